//! Reports counts in the statuses of queues, and lets go of queues whose objects are gone.
//!
//! Counts come from the samples that the maintenance loops take anyway, so
//! reporting asks nothing of Redis; an idle queue costs a comparison.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use kube::Resource;
use kube::runtime::reflector::{ObjectRef, Store};
use tokio::time::MissedTickBehavior;

use super::{Guarded, status};
use crate::crd::TaskQueue;
use crate::operator::context::Context;
use crate::operator::directory::KnownQueue;
use crate::operator::status::Written;

/// Between two looks at the samples.
const ROUND: Duration = Duration::from_secs(2);
/// In every how many rounds it is looked for queues whose objects are gone.
const LOOK_FOR_GONE: u64 = 3;
/// How many statuses are written together.
const TOGETHER: usize = 16;

/// Reports until it is dropped.
pub(super) async fn report(context: Arc<Context>, stores: Vec<Store<Guarded>>) {
    let mut rounds = tokio::time::interval(ROUND);
    rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for round in 0u64.. {
        rounds.tick().await;
        if !context.leads() {
            continue;
        }
        let mut known = context.directory.all();
        if !round.is_multiple_of(LOOK_FOR_GONE) {
            known.retain(|known| known.sampled_at() != known.reported());
        }
        let known = futures::stream::iter(known);
        known.for_each_concurrent(TOGETHER, |known| report_one(&context, &stores, known)).await;
    }
}

async fn report_one(context: &Context, stores: &[Store<Guarded>], known: Arc<KnownQueue>) {
    let Some(object) = find(stores, &known) else {
        // Deleted without a finalizer: what is in Redis stays, and nobody looks after it here.
        if context.directory.remove_same(&known) {
            tracing::info!(queue = %known.name, "queue no longer looked after: its TaskQueue is gone");
            context.loops.remove(&known).await;
            context.status.forget(&known.uid);
            context.failures.forget(&known.uid);
        }
        return;
    };
    let Ok(queue) = &object.0 else { return };
    if let Err(error) = report_counts(context, queue, &known).await {
        tracing::warn!(queue = %known.name, %error, "the status was not written");
    }
}

async fn report_counts(
    context: &Context,
    queue: &TaskQueue,
    known: &KnownQueue,
) -> Result<(), crate::operator::error::OperatorError> {
    let Some(counts) = known.counts() else { return Ok(()) };
    // While the object changes, the controller is about to look at it and writes all of it.
    let Some(findings) = known.findings().filter(|found| found.generation == queue.meta().generation) else {
        return Ok(());
    };
    if known.reported() == Some(counts.sampled_at) {
        return Ok(());
    }
    let history = context.history.standing();
    let new = status::compose(&findings, Some(&counts), &history, queue.status.as_ref());
    let api = context.api::<TaskQueue>(known.name.namespace());
    let written = context.status.write(&api, queue.meta(), queue.status.as_ref(), &new).await?;
    if matches!(written, Written::Done) {
        context.metrics.status_written("TaskQueue");
    }
    if !matches!(written, Written::Deferred(_)) {
        known.set_reported(counts.sampled_at);
    }
    Ok(())
}

/// The object of a queue, if it is still there.
fn find(stores: &[Store<Guarded>], known: &KnownQueue) -> Option<Arc<Guarded>> {
    let reference = ObjectRef::new(known.name.name()).within(known.name.namespace());
    let found = stores.iter().find_map(|store| store.get(&reference))?;
    (found.meta().uid.as_deref() == Some(known.uid.as_str())).then_some(found)
}
