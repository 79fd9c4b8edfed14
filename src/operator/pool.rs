//! The WorkerPool controller: a Deployment for each pool, as large as it has to be.
//!
//! Owns: the Deployments of pools, which fields of them are ours, and how many
//! pods there are. Must not know: how a queue is provisioned, how a task runs.
//!
//! Main flow of a [`reconcile`]: [`observe`] reads queue, Deployment and work;
//! [`template`], [`deployment`], [`scaling`] and [`pacing`] plan, all of them
//! pure; the template is judged by the API server where it changed ([`verdict`]);
//! one server-side apply writes everything that is ours, the number of pods always
//! among it; [`judge`] says how the pool is. A pool that has nothing to do rests
//! until the [`lookout`] sees something. The pods themselves are watched beside it.

mod asking;
mod deployment;
mod environment;
mod judge;
mod lookout;
mod observe;
mod pacing;
mod reconcile;
mod scaling;
mod status;
mod template;
mod verdict;

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures::channel::mpsc::UnboundedReceiver;
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt};
use k8s_openapi::api::apps::v1::Deployment;
use kube::core::{DeserializeGuard, PartialObjectMeta};
use kube::runtime::controller::{Action, Config, applier};
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch};
use kube::{Api, Resource, ResourceExt};
use tracing::Instrument;

use self::asking::Asking;
pub(crate) use self::deployment::{POOL_LABEL, QUEUE_LABEL};
use self::lookout::{Lookout, PoolKey};
use self::pacing::Pacing;
use self::scaling::Slack;
use super::context::Context;
use super::error::OperatorError;
use super::metrics::Outcome;
use super::pods;
use crate::crd::{TaskQueue, WorkerPool};

/// An object that may turn out not to be readable: one such must not stop the others.
type Guarded = DeserializeGuard<WorkerPool>;
/// What is to be looked at next, whoever says so.
type Triggers = BoxStream<'static, Result<ObjectRef<Guarded>, watcher::Error>>;

/// How many pools are reconciled at a time.
const TOGETHER: u16 = 16;
/// What one reconciliation may take. Redis and the API server have time limits of their own; this is for the sum.
const LONGEST: Duration = Duration::from_secs(60);

/// What the reconciliations of one watch share.
struct Shared {
    context: Arc<Context>,
    pacing: Arc<Pacing>,
    asking: Arc<Asking>,
    lookout: Lookout,
    memory: Mutex<HashMap<String, Memory>>,
}

/// What is remembered of a pool between two looks at it. All of it may be lost: then
/// an apply is repeated that changes nothing, and a wait before pods go begins anew.
#[derive(Debug, Clone, Default)]
struct Memory {
    slack: Option<Slack>,
    /// What was applied last, and how the Deployment was right after it.
    applied: Option<(String, String)>,
    /// How often in a row the API server did not do its part.
    failures: u32,
}

impl Shared {
    fn memory(&self) -> MutexGuard<'_, HashMap<String, Memory>> {
        self.memory.lock().expect("invariant: no panic while held")
    }

    /// A pool is gone: nothing of it is kept.
    fn forget(&self, pool: &Guarded) {
        self.lookout.wake(&key(pool));
        let Some(uid) = pool.uid() else { return };
        self.memory().remove(&uid);
        self.pacing.forget(&uid);
        self.context.pods.forget_pool(&uid);
        self.context.failures.forget(&uid);
        self.context.status.forget(&uid);
    }
}

/// Looks after WorkerPools, and their pods, until the term ends.
pub(super) async fn run(context: Arc<Context>) {
    let (pacing, asking) = (Arc::new(Pacing::default()), Arc::new(Asking::default()));
    let mut controllers = Vec::new();
    // A watch for each namespace has its own objects; in one store they would take each other for deleted.
    let others = context.apis().into_iter().zip(context.apis());
    for (pools, (deployments, queues)) in context.apis::<Guarded>().into_iter().zip(others) {
        let (lookout, stirred) = Lookout::new();
        let shared = Arc::new(Shared {
            context: context.clone(),
            pacing: pacing.clone(),
            asking: asking.clone(),
            lookout,
            memory: Mutex::default(),
        });
        controllers.push(control(shared, pools, deployments, queues, stirred));
    }
    let term = context.term.clone();
    tokio::select! {
        () = term.cancelled() => {}
        _ = futures::future::join_all(controllers) => {}
        () = pods::run(context) => {}
    }
}

async fn control(
    shared: Arc<Shared>,
    pools: Api<Guarded>,
    deployments: Api<PartialObjectMeta<Deployment>>,
    queues: Api<PartialObjectMeta<TaskQueue>>,
    stirred: UnboundedReceiver<PoolKey>,
) {
    let (reader, writer) = reflector::store::<Guarded>();
    let own = own_changes(shared.clone(), pools, writer);
    let triggers =
        stream::select_all([own, of_deployments(deployments), of_queues(queues, reader.clone()), told(stirred)]);
    let reconcile = |pool, shared| Box::pin(look_after(pool, shared));
    let mut results = Box::pin(applier(
        reconcile,
        wait_after,
        shared.clone(),
        reader,
        triggers,
        Config::default().concurrency(TOGETHER),
    ));
    let work = async {
        while let Some(result) = results.next().await {
            // What a reconciliation failed with was told where it failed.
            if let Err(kube::runtime::controller::Error::QueueError(error)) = result {
                tracing::warn!(%error, "WorkerPools, or what belongs to them, cannot be watched: this is tried again");
            }
        }
    };
    tokio::join!(work, shared.lookout.run());
}

/// Pools that change; what is gone is forgotten.
fn own_changes(shared: Arc<Shared>, pools: Api<Guarded>, writer: reflector::store::Writer<Guarded>) -> Triggers {
    let events = watch(pools, watcher::Config::default()).default_backoff().reflect(writer);
    events
        .filter_map(move |event| {
            let touched = match event {
                Ok(Event::Delete(pool)) => {
                    shared.forget(&pool);
                    None
                }
                Ok(Event::Apply(pool) | Event::InitApply(pool)) => Some(Ok(ObjectRef::from_obj(&pool))),
                Ok(Event::Init | Event::InitDone) => None,
                Err(error) => Some(Err(error)),
            };
            futures::future::ready(touched)
        })
        .boxed()
}

/// A Deployment has its pool's name, which nobody can remove from it as they can labels and owner.
fn of_deployments(deployments: Api<PartialObjectMeta<Deployment>>) -> Triggers {
    let config = watcher::Config::default().labels(POOL_LABEL);
    let touched = watch(deployments, config).default_backoff().touched_objects();
    let pool_of = |meta: PartialObjectMeta<Deployment>| {
        ObjectRef::new(&meta.name_any()).within(&meta.namespace().unwrap_or_default())
    };
    touched.map(move |touched| touched.map(pool_of)).boxed()
}

/// The pools of a queue follow what becomes of it.
fn of_queues(queues: Api<PartialObjectMeta<TaskQueue>>, pools: Store<Guarded>) -> Triggers {
    let touched = watch(queues, watcher::Config::default()).default_backoff().touched_objects();
    let pools_of = move |queue: PartialObjectMeta<TaskQueue>| {
        let (namespace, name) = (queue.namespace(), queue.name_any());
        let of_queue = pools.state_filter(|pool: &Guarded| {
            pool.0.as_ref().is_ok_and(|pool| pool.namespace() == namespace && pool.spec.queue_ref.name == name)
        });
        of_queue.iter().map(|pool| Ok(ObjectRef::from_obj(&**pool))).collect::<Vec<_>>()
    };
    let each = move |touched: Result<_, watcher::Error>| match touched {
        Ok(queue) => stream::iter(pools_of(queue)),
        Err(error) => stream::iter(vec![Err(error)]),
    };
    touched.flat_map(each).boxed()
}

fn told(stirred: UnboundedReceiver<PoolKey>) -> Triggers {
    stirred.map(|(namespace, name)| Ok(ObjectRef::new(&name).within(&namespace))).boxed()
}

/// Namespace and name.
fn key(pool: &impl Resource<DynamicType = ()>) -> PoolKey {
    (pool.meta().namespace.clone().unwrap_or_default(), pool.meta().name.clone().unwrap_or_default())
}

async fn look_after(pool: Arc<Guarded>, shared: Arc<Shared>) -> Result<Action, OperatorError> {
    let (namespace, name) = key(&*pool);
    let span = tracing::info_span!("reconcile", kind = "WorkerPool", namespace, name);
    let context = &shared.context;
    async {
        if !context.leads() {
            return Ok(Action::requeue(Duration::from_secs(1)));
        }
        // As for queues: one pool that panics must not take the others along.
        let step = AssertUnwindSafe(reconcile::reconcile(&pool, &shared)).catch_unwind();
        let outcome = match tokio::time::timeout(LONGEST, step).await {
            Ok(outcome) => outcome.unwrap_or(Err(OperatorError::Panicked)),
            Err(_) => Err(OperatorError::TooLong(LONGEST)),
        };
        match &outcome {
            Ok(_) => {
                context.failures.forget(&pool.uid().unwrap_or_default());
                context.metrics.reconciled("WorkerPool", Outcome::Done);
            }
            Err(error) => {
                context.metrics.reconciled("WorkerPool", Outcome::Failed);
                tracing::warn!(%error, "a WorkerPool could not be reconciled and will be tried again");
            }
        }
        outcome
    }
    .instrument(span)
    .await
}

fn wait_after(pool: Arc<Guarded>, error: &OperatorError, shared: Arc<Shared>) -> Action {
    Action::requeue(shared.context.failures.wait_after(&pool.uid().unwrap_or_default(), error.class()))
}
