//! The end of a TaskQueue: what becomes of its data, and when its object may go.
//!
//! Only `Delete` and `DeleteIfEmpty` hold an object back, with a finalizer, and
//! only for a bounded time: a Redis that is gone must not keep a namespace from
//! going, and neither must an object that this version cannot read. What could
//! not be removed is left where it is, and an Event says so.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Patch, PatchParams};
use kube::runtime::controller::Action;
use kube::{Resource, ResourceExt};

use super::Guarded;
use super::observe;
use super::plan::Obstacle;
use super::status;
use crate::broker::redis::{Removal, Removed};
use crate::broker::{BrokerError, Owner};
use crate::crd::{DeletionPolicy, TaskQueue};
use crate::operator::apply::FIELD_MANAGER;
use crate::operator::context::Context;
use crate::operator::error::{OperatorError, bounded};
use crate::operator::events::Weight;
use crate::operator::reasons::Reason;
use crate::protocol::names::QueueName;

/// Holds an object until its data is removed.
pub const FINALIZER: &str = "windlass.dev/queue-data";
/// For how long an object waits for a Redis that cannot be used, by this process's clock, from when it first found the
/// object on its way out: what the API server's clock says of its deletion says nothing about how often it was tried.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long until the next attempt.
const AGAIN: Duration = Duration::from_secs(2);
/// The most steps of a removal before other queues have their turn.
const STEPS: usize = 500;

/// What came of an attempt to remove a queue's data.
enum Attempt {
    Removed,
    /// More is to do.
    Unfinished,
    /// It stays, for this reason.
    Stays(String),
    /// It could not be tried.
    Failed(String),
}

/// Whether an object that this version cannot read has to wait.
pub(super) enum Leaving {
    /// Nothing here keeps it from going.
    Gone,
    /// It is let go after so long, unless it can be read before.
    Waits(Duration),
}

/// Gives the object the finalizer if its policy needs one, and takes it away if not.
/// Whether it was changed: then the watch brings the object again.
pub(super) async fn sync_finalizer(context: &Context, queue: &TaskQueue) -> Result<bool, OperatorError> {
    let wanted = queue.spec.deletion_policy != DeletionPolicy::Retain;
    if is_held(queue.meta()) == wanted {
        return Ok(false);
    }
    set_finalizer(context, queue.meta(), wanted).await?;
    Ok(true)
}

fn is_held(meta: &ObjectMeta) -> bool {
    meta.finalizers.iter().flatten().any(|known| known == FINALIZER)
}

async fn set_finalizer(context: &Context, meta: &ObjectMeta, wanted: bool) -> Result<(), OperatorError> {
    let others = meta.finalizers.iter().flatten().filter(|known| *known != FINALIZER).map(String::as_str);
    let all: Vec<&str> = others.chain(wanted.then_some(FINALIZER)).collect();
    // The whole list is written, so the version guards what others put into it meanwhile.
    let patch = serde_json::json!({
        "metadata": { "resourceVersion": meta.resource_version, "uid": meta.uid, "finalizers": all },
    });
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    let api = context.api::<Guarded>(meta.namespace.as_deref().unwrap_or_default());
    let name = meta.name.as_deref().unwrap_or_default();
    match bounded(api.patch(name, &params, &Patch::Merge(patch)), "change the finalizers").await {
        Err(error) if !wanted && error.is_gone() => Ok(()),
        answer => answer.map(drop),
    }
}

/// Removes the data of a queue whose object is being deleted, and lets the object go.
pub(super) async fn clean_up(context: &Context, queue: &TaskQueue, name: &QueueName) -> Result<Action, OperatorError> {
    if let Some(known) = context.directory.remove(name) {
        context.loops.remove(&known).await;
    }
    if !is_held(queue.meta()) {
        return Ok(Action::await_change());
    }
    // The wait begins before the first attempt, which may take its time.
    waited(context, queue.meta());
    let removal = match queue.spec.deletion_policy {
        DeletionPolicy::Retain => return let_go(context, queue, None).await,
        DeletionPolicy::Delete => Removal::WithTasks,
        DeletionPolicy::DeleteIfEmpty => Removal::IfEmpty,
    };
    match attempt(context, queue, name, removal).await {
        Attempt::Removed => {
            let_go(context, queue, Some((Weight::Normal, "DataRemoved", "the queue's data was removed".to_owned())))
                .await
        }
        Attempt::Unfinished => Ok(Action::requeue(Duration::from_millis(20))),
        Attempt::Stays(why) => let_go(context, queue, Some((Weight::Warning, "DataRetained", why))).await,
        Attempt::Failed(why) if waited(context, queue.meta()) >= PATIENCE => {
            let note = format!("the queue's data stays in Redis, because it could not be removed: {why}");
            let_go(context, queue, Some((Weight::Warning, "DataRetained", note))).await
        }
        Attempt::Failed(why) => {
            let message = format!("its data could not be removed yet: {why}");
            let status = status::alone(Reason::Deleting, &message, queue.meta().generation, queue.status.as_ref());
            let api = context.api::<TaskQueue>(name.namespace());
            context.status.write(&api, queue.meta(), queue.status.as_ref(), &status).await?;
            Ok(Action::requeue(AGAIN))
        }
    }
}

/// An object that is being deleted and cannot be read may not say where its data is. Whoever mends it has a while to
/// do so; then it goes, and the data stays.
pub(super) async fn let_unreadable_go(
    context: &Context,
    object: &Guarded,
    why: &str,
) -> Result<Leaving, OperatorError> {
    let meta = object.meta();
    let name = QueueName::new(meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default());
    if let Some(known) = name.ok().and_then(|name| context.directory.remove(&name)) {
        context.loops.remove(&known).await;
    }
    if !is_held(meta) {
        return Ok(Leaving::Gone);
    }
    let left = PATIENCE.saturating_sub(waited(context, meta));
    if !left.is_zero() {
        return Ok(Leaving::Waits(left));
    }
    set_finalizer(context, meta, false).await?;
    context.leaving.forget(meta.uid.as_deref().unwrap_or_default());
    let note = format!("the queue's data stays in Redis, because {why}");
    context.events.tell(&object.object_ref(&()), Weight::Warning, "DataRetained", note).await;
    Ok(Leaving::Gone)
}

async fn attempt(context: &Context, queue: &TaskQueue, name: &QueueName, removal: Removal) -> Attempt {
    let (connection, health) = observe::reach(context, queue, name).await;
    let connection = match (connection, health) {
        (Ok(connection), Some(Ok(_))) => connection,
        (Err(unresolved), _) => return Attempt::Failed(unresolved.to_string()),
        (_, Some(Err(error))) => return Attempt::Failed(error.to_string()),
        (Ok(_), None) => return Attempt::Failed("Redis was not asked".to_owned()),
    };
    let Ok(keys) = queue.spec.keys(name) else {
        return Attempt::Stays("its keys cannot be told, because spec.keys is not usable".to_owned());
    };
    let broker = match connection.redis.queue(keys) {
        Ok(broker) => broker,
        Err(error) => return Attempt::Stays(format!("it was never in this Redis: {error}")),
    };
    let owner = Owner::kubernetes(&context.cluster, name, &queue.uid().unwrap_or_default());
    for _ in 0..STEPS {
        match broker.remove(&owner.name, removal).await {
            Ok(Removed::Done) => return Attempt::Removed,
            Ok(Removed::More) => {}
            Ok(Removed::Owned { owner }) => {
                return Attempt::Stays(format!("the keys belong to {owner}, so their data stays"));
            }
            Ok(Removed::Busy { live, dead_letters, raw_entries }) => {
                return Attempt::Stays(format!(
                    "deletionPolicy is DeleteIfEmpty and the queue is not empty ({live} live tasks, {dead_letters} \
                     undecided dead letters, {raw_entries} waiting entries): its data stays, and a TaskQueue of the same \
                     name finds it"
                ));
            }
            Err(error @ BrokerError::Version { .. }) => return Attempt::Stays(error.to_string()),
            Err(error) => return Attempt::Failed(Obstacle::of(&error).message),
        }
    }
    Attempt::Unfinished
}

/// How long this process has known that the object is to go.
fn waited(context: &Context, meta: &ObjectMeta) -> Duration {
    context.leaving.since(meta.uid.as_deref().unwrap_or_default()).elapsed()
}

/// Tells what became of the data, and lets the object go.
async fn let_go(
    context: &Context,
    queue: &TaskQueue,
    told: Option<(Weight, &str, String)>,
) -> Result<Action, OperatorError> {
    set_finalizer(context, queue.meta(), false).await?;
    if let Some((weight, reason, note)) = told {
        context.events.tell(&queue.object_ref(&()), weight, reason, note).await;
    }
    let uid = queue.uid().unwrap_or_default();
    context.status.forget(&uid);
    context.failures.forget(&uid);
    context.leaving.forget(&uid);
    Ok(Action::await_change())
}
