//! The TaskQueue controller: a queue in Redis for each object, and its health in the object's status.
//!
//! Main flow: `observe` reads the object's Redis, `plan` decides (pure), `apply`
//! writes to Redis and has the queue looked after, `status` composes what the
//! object says. `cleanup` is the way out, `patrol` finds what changed in Redis
//! while nobody told, `reporter` keeps the counts fresh.

mod apply;
pub mod cleanup;
mod observe;
mod patrol;
pub mod plan;
mod quiet;
mod reporter;
pub mod status;

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::channel::mpsc::{self, UnboundedReceiver, UnboundedSender};
use futures::{FutureExt, StreamExt};
use kube::core::{DeserializeGuard, ObjectMeta};
use kube::runtime::controller::{Action, Config, Controller};
use kube::runtime::reflector::{self, ObjectRef};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Resource, ResourceExt};
use tracing::Instrument;

use self::apply::Applied;
use self::cleanup::Leaving;
use self::observe::Observed;
use self::plan::{Cause, Passes, TAKE_OVER_FROM};
use self::status::Findings;
use super::conditions::holds;
use super::context::Context;
use super::error::OperatorError;
use super::events::Weight;
use super::metrics::Outcome;
use super::reasons::{ConditionType, Reason};
use super::secrets;
use super::status::Written;
use crate::broker::ErrorClass;
use crate::crd::{TaskQueue, TaskQueueStatus};
use crate::protocol::names::QueueName;

/// An object that may turn out not to be readable: one such must not stop the others.
type Guarded = DeserializeGuard<TaskQueue>;

/// How many queues are reconciled at a time.
const TOGETHER: u16 = 16;
/// What one reconciliation may take. Redis and the API server have time limits of their own; this is for the sum.
const LONGEST: Duration = Duration::from_secs(60);

/// Where the controller of each namespace, or of all, hears what it is asked for.
type Ears = HashMap<Option<String>, UnboundedSender<ObjectRef<Guarded>>>;

/// Asks for queues to be looked at.
#[derive(Clone, Default)]
struct Pokes(Arc<Mutex<Ears>>);

impl Pokes {
    /// Where the controller of a namespace, or of all, hears them.
    fn listen(&self, namespace: Option<String>) -> UnboundedReceiver<ObjectRef<Guarded>> {
        let (sender, receiver) = mpsc::unbounded();
        self.0.lock().expect("invariant: no panic while held").insert(namespace, sender);
        receiver
    }

    fn poke(&self, queue: &QueueName) {
        let all = self.0.lock().expect("invariant: no panic while held");
        let sender = all.get(&Some(queue.namespace().to_owned())).or_else(|| all.get(&None));
        if let Some(sender) = sender {
            // A controller that is gone has nothing to look at.
            drop(sender.unbounded_send(ObjectRef::new(queue.name()).within(queue.namespace())));
        }
    }
}

/// Looks after TaskQueues until the term ends.
pub(super) async fn run(context: Arc<Context>) {
    let pokes = Pokes::default();
    let (mut stores, mut controllers) = (Vec::new(), Vec::new());
    for api in context.apis::<TaskQueue>() {
        let namespace = api.namespace().map(str::to_owned);
        let api: Api<Guarded> = match &namespace {
            Some(namespace) => Api::namespaced(context.client.clone(), namespace),
            None => Api::all(context.client.clone()),
        };
        let (reader, writer) = reflector::store();
        let objects = watcher::watcher(api, watcher::Config::default())
            .default_backoff()
            .modify(|object: &mut Guarded| lighten(object.meta_mut()))
            .reflect(writer)
            .inspect({
                let context = context.clone();
                move |event| forget_deleted(&context, event)
            })
            .applied_objects();
        let controller = Controller::for_stream(objects, reader)
            .with_config(Config::default().concurrency(TOGETHER))
            .reconcile_on(pokes.listen(namespace));
        stores.push(controller.store());
        controllers.push(drive(controller, context.clone()));
    }
    tokio::select! {
        () = context.term.cancelled() => {}
        _ = futures::future::join_all(controllers) => {}
        () = patrol::patrol(context.clone(), pokes.clone()) => {}
        () = patrol::watch_history(context.clone(), pokes) => {}
        () = reporter::report(context.clone(), stores) => {}
    }
}

/// Nothing is kept of an object that is gone, also where it never became a queue that is looked after.
fn forget_deleted(context: &Context, event: &Result<watcher::Event<Guarded>, watcher::Error>) {
    if let Ok(watcher::Event::Delete(object)) = event
        && let Some(uid) = &object.meta().uid
    {
        context.status.forget(uid);
        context.failures.forget(uid);
        context.leaving.forget(uid);
    }
}

/// Who wrote which field, and what was applied last, is most of what an object weighs; nothing here asks for it.
fn lighten(meta: &mut ObjectMeta) {
    meta.managed_fields = None;
    if let Some(annotations) = &mut meta.annotations {
        annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
    }
    meta.annotations = meta.annotations.take().filter(|left| !left.is_empty());
}

async fn drive(controller: Controller<Guarded>, context: Arc<Context>) {
    let mut steps = Box::pin(controller.run(reconcile, error_policy, context));
    while let Some(step) = steps.next().await {
        // Failed reconciliations were logged where they happened; a poke for an object that is gone is nothing.
        if let Err(kube::runtime::controller::Error::QueueError(error)) = step {
            tracing::warn!(%error, "TaskQueues cannot be watched: are the definitions of `windlass crd` installed?");
        }
    }
}

async fn reconcile(object: Arc<Guarded>, context: Arc<Context>) -> Result<Action, OperatorError> {
    let meta = object.meta();
    let (namespace, name) = (meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default());
    let span = tracing::info_span!("reconcile", kind = "TaskQueue", namespace, name);
    async move {
        if !context.leads() {
            return Ok(Action::requeue(Duration::from_secs(1)));
        }
        // One object that panics must not take the others along, which would happen again after each restart.
        let step = AssertUnwindSafe(reconcile_one(&context, &object)).catch_unwind();
        let outcome = match tokio::time::timeout(LONGEST, step).await {
            Ok(outcome) => outcome.unwrap_or(Err(OperatorError::Panicked)),
            Err(_) => Err(OperatorError::TooLong(LONGEST)),
        };
        match &outcome {
            Ok(_) => context.metrics.reconciled("TaskQueue", Outcome::Done),
            Err(error) => {
                context.metrics.reconciled("TaskQueue", Outcome::Failed);
                tracing::warn!(%error, "a TaskQueue could not be reconciled and will be tried again");
            }
        }
        outcome
    }
    .instrument(span)
    .await
}

fn error_policy(object: Arc<Guarded>, error: &OperatorError, context: Arc<Context>) -> Action {
    let uid = object.meta().uid.clone().unwrap_or_default();
    Action::requeue(context.failures.wait_after(&uid, error.class()))
}

async fn reconcile_one(context: &Context, object: &Guarded) -> Result<Action, OperatorError> {
    let queue = match &object.0 {
        Ok(queue) => queue,
        Err(invalid) => return not_understood(context, object, &invalid.error).await,
    };
    let uid = queue.uid().ok_or(OperatorError::Incomplete("a UID"))?;
    let namespace = queue.namespace().ok_or(OperatorError::Incomplete("a namespace"))?;
    let name: QueueName = match format!("{namespace}/{}", queue.name_any()).parse() {
        Ok(name) => name,
        Err(error) => return not_understood(context, object, &format!("metadata.name: {error}")).await,
    };
    if queue.meta().deletion_timestamp.is_some() {
        return cleanup::clean_up(context, queue, &name).await;
    }
    // Before anything is in Redis: an object that is deleted a moment later must not leave it behind.
    if cleanup::sync_finalizer(context, queue).await? {
        return Ok(Action::await_change());
    }
    let seen = observe::observe(context, queue, &name, &uid).await;
    let asked = queue.annotations().get(TAKE_OVER_FROM).map(String::as_str);
    let plan = plan::plan(&seen, asked);
    let before = context.directory.get(&name);
    let applied = apply::apply(context, &seen, plan, asked, &uid).await;
    let known = context.directory.get(&name);

    let server = seen.health.as_ref().and_then(|health| health.as_ref().ok()).cloned();
    let mut findings = Findings::new(&applied, server, queue.meta().generation);
    findings.outbox_bound = seen.compiled.as_ref().ok().map(|(_, policy)| policy.limits.outbox_entries);
    let counts = known.as_ref().and_then(|known| known.counts());
    if let Some(known) = &known {
        known.set_findings(findings.clone());
    }
    let history = context.history.standing();
    let new = status::compose(&findings, counts.as_ref(), &history, queue.status.as_ref());
    let api = context.api::<TaskQueue>(&namespace);
    let written = context.status.write(&api, queue.meta(), queue.status.as_ref(), &new).await?;
    if written == Written::Done {
        context.metrics.status_written("TaskQueue");
    }
    tell(context, queue, &applied, &new, before.is_some()).await;
    Ok(next(context, queue, &applied, &uid))
}

/// When a queue is looked at again if nothing happens before.
fn next(context: &Context, queue: &TaskQueue, applied: &Applied, uid: &str) -> Action {
    match applied {
        Applied::Kept | Applied::Provisioned(_) => {
            context.failures.forget(uid);
            match Observed::reads_secrets(queue) {
                true => Action::requeue(secrets::GOOD_FOR),
                false => Action::await_change(),
            }
        }
        Applied::Held(obstacle) => {
            let class = match obstacle.passes {
                Passes::ByItself => ErrorClass::Transient,
                Passes::NotByItself => ErrorClass::Invalid,
            };
            Action::requeue(context.failures.wait_after(uid, class))
        }
    }
}

/// Events tell of changes: what was done, and when the queue became ready or stopped being so.
async fn tell(context: &Context, queue: &TaskQueue, applied: &Applied, new: &TaskQueueStatus, was_known: bool) {
    let object = queue.object_ref(&());
    if let Applied::Provisioned(cause) = applied {
        let edited = queue.status.as_ref().and_then(|status| status.observed_generation) != queue.meta().generation;
        let told = match cause {
            Cause::New => Some(("Provisioned", "keys, groups and policy were made in Redis".to_owned())),
            Cause::Inherited => {
                Some(("Provisioned", "what an earlier TaskQueue of this name left in Redis was found".to_owned()))
            }
            Cause::TakenOver { from } => Some(("TakenOver", format!("the keys were taken over from {from}"))),
            Cause::Differs if edited => Some(("PolicyChanged", "the policy in Redis follows the spec".to_owned())),
            Cause::Differs if was_known => {
                Some(("Repaired", "policy or groups in Redis were changed or gone, and were made again".to_owned()))
            }
            Cause::Differs => None,
        };
        if let Some((reason, note)) = told {
            tracing::info!(reason, "queue provisioned");
            context.events.tell(&object, Weight::Normal, reason, note).await;
        }
    }
    let ready = |status: &TaskQueueStatus| {
        status.conditions.iter().find(|one| one.type_ == ConditionType::Ready.as_str()).cloned()
    };
    let (was, is) = (queue.status.as_ref().and_then(ready), ready(new));
    let Some(is) = is else { return };
    let same = was.as_ref().is_some_and(|was| (&was.status, &was.reason) == (&is.status, &is.reason));
    if same {
        return;
    }
    match holds(&new.conditions, ConditionType::Ready) {
        Some(true) if was.is_some() => {
            context.events.tell(&object, Weight::Normal, "Ready", "the queue is ready again").await;
        }
        Some(true) => {}
        _ => context.events.tell(&object, Weight::Warning, &is.reason, is.message).await,
    }
}

/// An object that this version cannot read says so, and is otherwise left alone. It is not kept from going.
async fn not_understood(context: &Context, object: &Guarded, why: &str) -> Result<Action, OperatorError> {
    let message = format!("this version of the operator cannot read the object: {why}");
    let meta = object.meta();
    let waits = match meta.deletion_timestamp {
        Some(_) => match cleanup::let_unreadable_go(context, object, &message).await? {
            Leaving::Gone => return Ok(Action::await_change()),
            Leaving::Waits(left) => Some(left),
        },
        None => None,
    };
    let before = object.0.as_ref().ok().and_then(|queue| queue.status.clone());
    let new = status::alone(Reason::NotUnderstood, &message, meta.generation, before.as_ref());
    let api = context.api::<Guarded>(meta.namespace.as_deref().unwrap_or_default());
    let uid = meta.uid.clone().unwrap_or_default();
    // Its status may be what cannot be read, so what was said is remembered here.
    if !context.said.was(&uid, &message) {
        context.status.write(&api, meta, before.as_ref(), &new).await?;
        context.said.remember(&uid, &message);
        context.events.tell(&object.object_ref(&()), Weight::Warning, Reason::NotUnderstood.as_str(), &message).await;
    }
    Ok(waits.map_or_else(Action::await_change, Action::requeue))
}
