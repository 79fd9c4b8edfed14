//! One look at one pool: observe, plan, apply, status.

use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::stream;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use kube::Resource;
use kube::api::{Patch, PatchParams};
use kube::runtime::controller::Action;
use serde_json::{Value, json};

use super::deployment::{Draft, Footing, Owned, fingerprint, kept, manifest, owned};
use super::environment::Identity;
use super::judge::{Findings, QueueFound, TemplateFound, judge};
use super::observe::{Ground, Observed, Work, capabilities, observe};
use super::pacing::{Change, Turn, change};
use super::scaling::{Because, Scale, Situation, decide};
use super::template::{Surroundings, build};
use super::verdict::{self, Verdict};
use super::{Guarded, Shared, key, status};
use crate::broker::redis::Look;
use crate::crd::{WorkerPool, WorkerPoolStatus};
use crate::operator::apply::FIELD_MANAGER;
use crate::operator::conditions::{Holds, Judgement, conditions};
use crate::operator::error::{OperatorError, bounded};
use crate::operator::events::Weight;
use crate::operator::pods::book::DELETION_COST;
use crate::operator::reasons::{ConditionType, Reason};
use crate::operator::status::Written;
use crate::protocol::names::QueueName;

/// Between two looks at a pool that is scaled and has something to do.
const WHILE_SCALED: Duration = Duration::from_secs(3);
/// Between two looks at a pool of a fixed size that has something to do: for its counts.
const WHILE_BUSY: Duration = Duration::from_secs(10);
/// Before a queue is asked again that could not be asked.
const WHILE_UNKNOWN: Duration = Duration::from_secs(5);
/// Between two looks at a pool in which nothing happens: watches tell what does.
const WHILE_QUIET: Duration = Duration::from_secs(60);
/// Between two looks at a pool that waits for others.
const WHILE_OTHERS_ROLL: Duration = Duration::from_secs(5);
/// After so many failures in a row one that may pass by itself is told: a moment's is no news.
const WORTH_TELLING: u32 = 3;
/// How many pods are told at a time what they are worth.
const PATCHES_TOGETHER: usize = 8;

/// What is to be done, and what is to be said.
struct Plan {
    /// The pods, unless there are none to be made.
    draft: Option<Draft>,
    template: TemplateFound,
    scale: Scale,
    waits_for_turn: bool,
    /// What the API server did not do.
    failed: Option<OperatorError>,
}

impl Plan {
    /// Something was not done. What that says of the template is told with all the rest.
    fn fail(&mut self, error: OperatorError, uid: &str, shared: &Shared) {
        let failures = {
            let mut memory = shared.memory();
            let failures = &mut memory.entry(uid.to_owned()).or_default().failures;
            *failures = failures.saturating_add(1);
            *failures
        };
        match verdict::read(&error) {
            Some(TemplateFound::Unanswered(_)) if failures < WORTH_TELLING => {}
            Some(found) if !matches!(self.template, TemplateFound::Refused(_)) => self.template = found,
            _ => {}
        }
        self.failed = Some(error);
    }
}

/// Brings a pool up to date, and says when to look again.
pub(super) async fn reconcile(pool: &Guarded, shared: &Shared) -> Result<Action, OperatorError> {
    let pool = match &pool.0 {
        Ok(pool) => pool,
        Err(unreadable) => return say_unreadable(pool, &unreadable.error, shared).await,
    };
    let uid = pool.metadata.uid.clone().ok_or(OperatorError::Incomplete("a UID"))?;
    shared.context.pods.know_pool(&uid);
    // What it owns goes with it; nothing else of it is anywhere.
    if pool.metadata.deletion_timestamp.is_some() {
        shared.lookout.wake(&key(pool));
        shared.pacing.forget(&uid);
        return Ok(Action::await_change());
    }
    let mut observed = observe(pool, shared).await?;
    let mut plan = plan(pool, &uid, &observed, shared).await;
    if let Some(draft) = &plan.draft {
        match apply(pool, &uid, draft, &plan.scale, &observed, shared).await {
            Ok(Some(applied)) => observed.live = Some(applied),
            Ok(None) => {}
            Err(error) => {
                // What is refused does not roll: the turn is somebody else's.
                if matches!(verdict::read(&error), Some(TemplateFound::Refused(_))) {
                    shared.pacing.forget(&uid);
                }
                plan.fail(error, &uid, shared);
            }
        }
    }
    let left = say(pool, &plan, &observed, shared).await;
    if let Some(error) = plan.failed {
        return Err(error);
    }
    let left = left?;
    shared.memory().entry(uid.clone()).or_default().failures = 0;
    let wait = rest(pool, &plan, &observed, shared);
    Ok(Action::requeue(left.map_or(wait, |left| wait.min(left)).mul_f64(0.9 + 0.2 * fastrand::f64())))
}

/// Decides. Asks the API server where it has to judge a template.
async fn plan(pool: &WorkerPool, uid: &str, observed: &Observed, shared: &Shared) -> Plan {
    let scale = scale(pool, uid, observed, shared);
    let live = observed.live.as_ref();
    // What stays as it is does not roll: the turn is somebody else's.
    let without_turn = |draft, template| {
        shared.pacing.forget(uid);
        Plan { draft, template, scale: scale.clone(), waits_for_turn: false, failed: None }
    };
    if live.is_some_and(|live| owned(live, pool) == Owned::Foreign) {
        return without_turn(None, TemplateFound::NameTaken);
    }
    let stay = |template| without_turn(live.and_then(kept), template);
    let Some(ground) = &observed.ground else {
        let template = judged_before(pool).map_or(TemplateFound::NotJudged, TemplateFound::AsBefore);
        return stay(template);
    };
    let (draft, remarks) = match draft(pool, uid, ground, shared) {
        Ok(made) => made,
        Err(problem) => return stay(TemplateFound::Refused(problem)),
    };
    let change = change(live, &draft);
    if shared.pacing.turn(uid, change, live) == Turn::Later {
        let template = judged_before(pool).map_or(TemplateFound::NotJudged, TemplateFound::AsBefore);
        return Plan { waits_for_turn: true, ..stay(template) };
    }
    let before = judged_before(pool).filter(|_| change == Change::None);
    let template = match before {
        Some(before) => TemplateFound::AsBefore(before),
        None => {
            let (namespace, _) = key(pool);
            let wanted = manifest(pool, &draft, scale.replicas);
            match verdict::ask(&shared.context.client, &namespace, &wanted).await {
                Ok(Verdict::Accepted(warnings)) => {
                    TemplateFound::Accepted(remarks.into_iter().chain(warnings).collect())
                }
                // What is there goes on until the template is mended.
                Ok(Verdict::Refused(why)) => return stay(TemplateFound::Refused(why)),
                Err(error) => {
                    let known = judged_before(pool).map_or(TemplateFound::NotJudged, TemplateFound::AsBefore);
                    let mut plan = without_turn(None, known);
                    plan.fail(error, uid, shared);
                    return plan;
                }
            }
        }
    };
    Plan { draft: Some(draft), template, scale, waits_for_turn: false, failed: None }
}

fn scale(pool: &WorkerPool, uid: &str, observed: &Observed, shared: &Shared) -> Scale {
    let mut memory = shared.memory();
    let memory = memory.entry(uid.to_owned()).or_default();
    let current = observed.live.as_ref().and_then(|live| live.spec.as_ref()?.replicas);
    let demand = observed.work.as_ref().map(|work| &work.demand);
    let busy = observed.work.as_ref().map_or(0, |work| work.busy_pods(&shared.context.pods));
    let (slack, now) = (memory.slack, Instant::now());
    let situation = Situation { spec: &pool.spec, current, demand, busy, slack, now };
    let (scale, slack) = decide(&situation);
    memory.slack = slack;
    scale
}

fn draft(pool: &WorkerPool, uid: &str, ground: &Ground, shared: &Shared) -> Result<(Draft, Vec<String>), String> {
    let (namespace, _) = key(pool);
    let queue = QueueName::new(&namespace, &pool.spec.queue_ref.name).map_err(|error| error.to_string())?;
    let identity = Identity {
        queue: &queue,
        pool_uid: uid,
        access: &ground.access,
        task_types: &pool.spec.task_types,
        concurrency: pool.spec.concurrency,
    };
    let options = &shared.context.options;
    let (worker_image, pull) = (&options.worker_image, options.worker_image_pull_policy);
    let around = Surroundings { worker_image, pull, identity };
    let built = build(&pool.spec, &around).map_err(|problem| problem.to_string())?;
    let footing = Footing { broker: ground.broker.as_ref(), versions: &ground.versions };
    Ok((Draft::new(pool, &built, footing), built.remarks))
}

/// What was last said of the template, if that was the API server's yes to this generation of it.
fn judged_before(pool: &WorkerPool) -> Option<Judgement> {
    let all = &pool.status.as_ref()?.conditions;
    let known = all.iter().find(|known| known.type_ == ConditionType::TemplateAccepted.as_str())?;
    let yes = [Reason::TemplateAccepted, Reason::AcceptedWithWarnings];
    let reason = yes.into_iter().find(|reason| reason.as_str() == known.reason)?;
    let (condition, message) = (ConditionType::TemplateAccepted, known.message.clone());
    Some(Judgement { condition, holds: Holds::True, reason, message })
}

/// Applies what is ours, unless it is so already.
async fn apply(
    pool: &WorkerPool,
    uid: &str,
    draft: &Draft,
    scale: &Scale,
    observed: &Observed,
    shared: &Shared,
) -> Result<Option<Deployment>, OperatorError> {
    let (namespace, name) = key(pool);
    let wanted = manifest(pool, draft, scale.replicas);
    let word = wanted.to_string();
    let live = observed.live.as_ref();
    let known = shared.memory().get(uid).and_then(|memory| memory.applied.clone());
    if live.is_some_and(|live| known == Some((word.clone(), fingerprint(live)))) {
        return Ok(None);
    }
    let before = live.and_then(|live| live.spec.as_ref()?.replicas);
    if let (Some(work), Some(before)) = (&observed.work, before)
        && scale.replicas < before
    {
        price_pods(&namespace, &name, work, shared).await;
    }
    let params = PatchParams::apply(FIELD_MANAGER).force();
    let api = shared.context.api::<Deployment>(&namespace);
    let applied = bounded(api.patch(&name, &params, &Patch::Apply(&wanted)), "apply the Deployment").await?;
    tracing::info!(replicas = scale.replicas, template = draft.digest, "applied a Deployment");
    let memory = (word, fingerprint(&applied));
    shared.memory().entry(uid.to_owned()).or_default().applied = Some(memory);
    if before != Some(scale.replicas) {
        tell_scaled(pool, before, scale, shared).await;
    }
    Ok(Some(applied))
}

/// Says what each pod is worth by what it runs, so that idle ones go first.
async fn price_pods(namespace: &str, pool: &str, work: &Work, shared: &Shared) {
    let api = &shared.context.api::<Pod>(namespace);
    let patches = shared.context.pods.pods(namespace, pool).into_iter().filter_map(|(uid, pod)| {
        let cost = i64::try_from(work.held_by_pod(&uid)).unwrap_or(i64::MAX).min(i64::from(i32::MAX));
        let patch = json!({ "metadata": { "uid": uid, "annotations": { DELETION_COST: cost.to_string() } } });
        (pod.deletion_cost != cost).then_some((pod.name, patch))
    });
    let patched = patches.map(|(name, patch): (String, Value)| async move {
        let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
        let answer = bounded(api.patch_metadata(&name, &params, &patch), "say what a pod is worth").await;
        // One that is gone meanwhile is worth nothing to anybody; any other goes when its turn comes.
        if let Err(error) = answer {
            tracing::debug!(%error, pod = name, "a pod was not told what it is worth");
        }
    });
    stream::iter(patched).buffer_unordered(PATCHES_TOGETHER).collect::<()>().await;
}

async fn tell_scaled(pool: &WorkerPool, before: Option<i32>, scale: &Scale, shared: &Shared) {
    let number = scale.replicas;
    let why = match &scale.because {
        Because::Asked => "replicas says so".to_owned(),
        Because::Demand { tasks } => format!("{tasks} tasks wait or run"),
        Because::AtMost { .. } => "maxReplicas allows no more".to_owned(),
        Because::Settling | Because::Paused | Because::Unknown => "autoscaling's bounds say so".to_owned(),
    };
    let note = match before {
        None => format!("made a Deployment of {number} pods: {why}"),
        Some(before) => format!("from {before} to {number} pods: {why}"),
    };
    shared.context.events.tell(&pool.object_ref(&()), Weight::Normal, "Scaled", note).await;
}

/// Writes the status, if it changed. Answers with how long a change of counts has to wait.
async fn say(
    pool: &WorkerPool,
    plan: &Plan,
    observed: &Observed,
    shared: &Shared,
) -> Result<Option<Duration>, OperatorError> {
    let findings = Findings {
        queue_name: &pool.spec.queue_ref.name,
        queue: observed.queue.clone(),
        template: plan.template.clone(),
        live: observed.live.as_ref().filter(|live| owned(live, pool) == Owned::Ours),
        scale: &plan.scale,
        waits_for_turn: plan.waits_for_turn,
    };
    let judged = judge(&findings);
    let new = status::compose(pool, &judged, findings.live, plan.scale.replicas, observed.work.as_ref());
    let (namespace, _) = key(pool);
    let api = shared.context.api::<WorkerPool>(&namespace);
    let written = shared.context.status.write(&api, &pool.metadata, pool.status.as_ref(), &new).await?;
    if written == Written::Done {
        shared.context.metrics.status_written("WorkerPool");
        tell_refused(pool, &judged, shared).await;
    }
    Ok(match written {
        Written::Deferred(left) => Some(left),
        Written::Unchanged | Written::Done | Written::Gone => None,
    })
}

/// A template that is refused, for the first time or for another reason, is something to look at.
async fn tell_refused(pool: &WorkerPool, judged: &[Judgement], shared: &Shared) {
    let Some(now) = judged.iter().find(|judged| judged.condition == ConditionType::TemplateAccepted) else { return };
    let mut before = pool.status.iter().flat_map(|status| &status.conditions);
    let known = before.any(|known| known.type_ == now.condition.as_str() && known.message == now.message);
    if now.holds == Holds::False && !known {
        let (object, reason) = (pool.object_ref(&()), now.reason.as_str());
        shared.context.events.tell(&object, Weight::Warning, reason, now.message.clone()).await;
    }
}

/// When to look again. A scaled pool with nothing to do rests, and the lookout watches over it.
fn rest(pool: &WorkerPool, plan: &Plan, observed: &Observed, shared: &Shared) -> Duration {
    let pool_key = key(pool);
    let quiet = |demand: &crate::broker::Demand| demand.total() == 0;
    let demand = observed.work.as_ref().map(|work| &work.demand);
    let least = pool.spec.autoscaling.as_ref().map(|scaled| i32::try_from(scaled.min_replicas).unwrap_or(i32::MAX));
    if let (Some(ground), Some(demand), Some(least)) = (&observed.ground, demand, least)
        && quiet(demand)
        && plan.scale.replicas <= least
    {
        let (broker, stillness) = (ground.known.broker.clone(), demand.stillness.clone());
        let look = Look { broker, stillness, capabilities: capabilities(pool) };
        shared.lookout.rest(pool_key, look, plan.scale.replicas);
        return WHILE_QUIET;
    }
    shared.lookout.wake(&pool_key);
    match demand {
        _ if plan.waits_for_turn => WHILE_OTHERS_ROLL,
        // Nobody tells of a stranger's Deployment.
        _ if plan.template == TemplateFound::NameTaken => WHILE_BUSY,
        None if observed.queue != QueueFound::Missing => WHILE_UNKNOWN,
        Some(_) if least.is_some() => WHILE_SCALED,
        Some(demand) if !quiet(demand) => WHILE_BUSY,
        _ => WHILE_QUIET,
    }
}

/// An object that this version cannot read says so itself.
async fn say_unreadable(pool: &Guarded, error: &str, shared: &Shared) -> Result<Action, OperatorError> {
    let (meta, context) = (pool.meta(), &shared.context);
    let sentence = format!("this version of the operator cannot read the object: {error}");
    // Its status may be what cannot be read, so what was said is remembered here.
    let uid = meta.uid.as_deref().unwrap_or_default();
    shared.pacing.forget(uid);
    if context.said.was(uid, &sentence) {
        return Ok(Action::await_change());
    }
    let generation = meta.generation;
    let judged = [Judgement::no(ConditionType::Ready, Reason::NotUnderstood, &sentence)];
    let status = WorkerPoolStatus {
        conditions: conditions(&judged, &[], generation),
        observed_generation: generation,
        ..Default::default()
    };
    let (namespace, _) = key(pool);
    context.status.write(&context.api::<Guarded>(&namespace), meta, None, &status).await?;
    context.said.remember(uid, &sentence);
    context.events.tell(&pool.object_ref(&()), Weight::Warning, Reason::NotUnderstood.as_str(), sentence).await;
    Ok(Action::await_change())
}
