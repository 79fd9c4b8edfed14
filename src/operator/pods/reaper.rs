//! Takes tasks back from workers whose end is proven.

use std::collections::{BTreeMap, HashMap};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use tokio::task::JoinSet;

use super::book::{Ends, PodBook};
use super::proof::{Gone, Proof, deaths, judge};
use crate::broker::{Broker, WorkerRecord};
use crate::operator::context::Context;
use crate::operator::error::OperatorError;
use crate::protocol::names::QueueName;

/// How long a queue that could not be looked at waits, at first and at most.
const FIRST_WAIT: Duration = Duration::from_millis(250);
const LONGEST_WAIT: Duration = Duration::from_secs(10);
/// How long one look may take: a Redis that hangs is asked anew.
const PATIENCE: Duration = Duration::from_secs(20);

/// What came of a look at a queue.
struct Looked {
    queue: QueueName,
    outcome: Result<(), OperatorError>,
}

/// Looks at queues that are due, each in a task of its own: one whose Redis is
/// away delays nobody else's.
pub(super) async fn run(context: &Arc<Context>) {
    let mut looks: JoinSet<Looked> = JoinSet::new();
    // Queues with a look under way, and how often in a row it failed; true if something came up meanwhile.
    let mut busy: HashMap<QueueName, (u32, bool)> = HashMap::new();
    loop {
        tokio::select! {
            due = context.pods.due() => {
                for queue in due {
                    match busy.get_mut(&queue) {
                        Some((_, again)) => *again = true,
                        None => {
                            busy.insert(queue.clone(), (0, false));
                            begin(&mut looks, context, queue, Duration::ZERO);
                        }
                    }
                }
            }
            Some(Ok(Looked { queue, outcome })) = looks.join_next() => {
                let (failures, again) = busy.remove(&queue).unwrap_or_default();
                match outcome {
                    Ok(()) if again => {
                        busy.insert(queue.clone(), (0, false));
                        begin(&mut looks, context, queue, Duration::ZERO);
                    }
                    Ok(()) => {}
                    Err(error) => {
                        tracing::warn!(%queue, %error, "the workers of dead pods could not be dealt with: this is tried again");
                        busy.insert(queue.clone(), (failures + 1, false));
                        begin(&mut looks, context, queue, wait_after(failures));
                    }
                }
            }
        }
    }
}

fn wait_after(failures: u32) -> Duration {
    FIRST_WAIT.saturating_mul(1 << failures.min(10)).min(LONGEST_WAIT)
}

fn begin(looks: &mut JoinSet<Looked>, context: &Arc<Context>, queue: QueueName, wait: Duration) {
    let context = context.clone();
    looks.spawn(async move {
        tokio::time::sleep(wait).await;
        let look = tokio::time::timeout(PATIENCE, look(&context, &context.pods, &queue));
        // A queue whose look ended without a word would never be looked at again.
        let outcome = match AssertUnwindSafe(look).catch_unwind().await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) => Err(OperatorError::TooLong(PATIENCE)),
            Err(_) => Err(OperatorError::Panicked),
        };
        Looked { queue, outcome }
    });
}

/// Compares a queue's registry with the book.
async fn look(context: &Context, book: &PodBook, queue: &QueueName) -> Result<(), OperatorError> {
    // A queue that is not looked after any more keeps what it has; its workers' leases expire by themselves.
    let Some(known) = context.directory.get(queue) else {
        book.forget(&vanished(&book.ends(queue)));
        return Ok(());
    };
    // The book first: who registers after it was read is of a pod that lives or of none that it tells of.
    let ends = book.ends(queue);
    for worker in known.broker.workers().await? {
        let Some(uid) = worker.info.pod_uid.as_deref() else { continue };
        if let Some(proof) = prove(context, book, queue, &worker, ends.get(uid)).await? {
            take_back(&*known.broker, queue, &worker, &proof).await?;
        }
    }
    book.forget(&vanished(&ends));
    Ok(())
}

fn vanished(ends: &BTreeMap<String, Ends>) -> Vec<String> {
    ends.iter().filter(|(_, ends)| ends.gone.is_some()).map(|(uid, _)| uid.clone()).collect()
}

/// Whether a worker is dead, for all that is known of its pod's end.
async fn prove(
    context: &Context,
    book: &PodBook,
    queue: &QueueName,
    worker: &WorkerRecord,
    ends: Option<&Ends>,
) -> Result<Option<Proof>, OperatorError> {
    let Some(Ends { deaths, gone }) = ends else {
        // It may be too new, or it vanished while nobody watched. Workers of another cluster may serve the same
        // queue, too: their pods are not to be found here.
        let ours = worker.info.pool.as_ref().is_some_and(|pool| book.knows_pool(pool));
        return if ours {
            look_for_pod(context, queue, worker, "its pod vanished while nobody watched").await
        } else {
            Ok(None)
        };
    };
    match (judge(worker, deaths), gone) {
        (Some(proof), _) => Ok(Some(proof)),
        (None, None) => Ok(None),
        (None, Some(Gone::Ended { words })) => Ok(Some(Proof::of_ended(words))),
        // The watch is of pods with a label: one that lost it is told of as if it was deleted.
        (None, Some(Gone::WhileRunning)) => look_for_pod(context, queue, worker, "deleted while it ran").await,
    }
}

/// Of a pod that no watch tells of only the API server knows whether it is there. With words for one that is not.
async fn look_for_pod(
    context: &Context,
    queue: &QueueName,
    worker: &WorkerRecord,
    words: &str,
) -> Result<Option<Proof>, OperatorError> {
    let Some(name) = &worker.info.pod else { return Ok(None) };
    let found = context.api::<Pod>(queue.namespace()).get_opt(name).await.map_err(OperatorError::api("show a pod"))?;
    Ok(match found.filter(|pod| pod.uid() == worker.info.pod_uid) {
        Some(pod) => judge(worker, &deaths(&pod)),
        None => Some(Proof::of_vanished(words)),
    })
}

async fn take_back(
    broker: &dyn Broker,
    queue: &QueueName,
    worker: &WorkerRecord,
    proof: &Proof,
) -> Result<(), OperatorError> {
    let id = &worker.info.id;
    let taken = broker.take_back(id, proof.reason, &proof.words).await?;
    tracing::info!(
        %queue,
        worker = %id,
        reason = %proof.reason,
        words = proof.words,
        requeued = taken.requeued.len(),
        dead = taken.dead.len(),
        "a dead worker's tasks were taken back"
    );
    Ok(())
}
