//! The four acceptance criteria of the task-queue protocol.

use futures::future::{BoxFuture, join_all};

use super::Check;
use super::replays::{ended, to_the_dead_letters, unseen};
use super::stage::{Case, LOST_TYPE, Seen, Stage, transient};
use crate::broker::{
    EffectBegun, EffectCommitted, EffectMark, EffectRequest, Extended, Lease, Outcome, Settled, Standing,
};
use crate::protocol::names::{IdempotencyKey, TaskId};
use crate::protocol::policy::{IdempotencyScope, ReclaimCause};
use crate::protocol::state::State::*;
use crate::protocol::task::Payload;

/// Checks all criteria side by side.
pub(super) async fn play(stage: &Stage) -> Vec<Check> {
    let all: [BoxFuture<'_, Check>; 4] =
        [Box::pin(first(stage)), Box::pin(second(stage)), Box::pin(third(stage)), Box::pin(fourth(stage))];
    join_all(all).await
}

async fn first(stage: &Stage) -> Check {
    let mut check = unseen("TQP-1", "created, claimed, succeeded, acknowledged; nothing is pending");
    let outcome = async {
        let mut case = Case::begin(stage, &mut check).await?;
        let claimed = case.claim().await?;
        let lease = claimed.lease.clone();
        match case.settle(claimed.lease, Outcome::success()).await? {
            Settled::Succeeded => {}
            other => return Err(format!("the success was answered with {other:?}")),
        }
        case.finished(Succeeded).await?;
        match stage.renew(&lease).await? {
            Extended::Renewed => return Err("the entry is still pending after the success".to_owned()),
            Extended::Lost | Extended::Cancelled => {}
        }
        case.walked(&[Queued, Running, Succeeded])?;
        let history = case.history_is(&["task.created", "task.claimed", "task.succeeded"]).await?;
        Ok(format!("no longer pending; {history}"))
    };
    let outcome = outcome.await;
    ended(check, outcome)
}

async fn second(stage: &Stage) -> Check {
    let mut check = unseen("TQP-2", "a failing task is retried to its limit, then a dead letter");
    let outcome = to_the_dead_letters(stage, &mut check).await;
    ended(check, outcome)
}

async fn third(stage: &Stage) -> Check {
    let mut check = unseen("TQP-3", "what a dead worker had is reclaimed and completed");
    let outcome = lose_a_worker(stage, &mut check).await;
    ended(check, outcome)
}

/// A worker claims a task and is never heard again; where the policy says so, the container's
/// next worker gets it back at once, else the leader finds out.
async fn lose_a_worker(stage: &Stage, check: &mut Check) -> Seen<String> {
    let place = format!("conformance-{}", stage.nonce);
    let lost = stage.register("lost", Some(&place)).await?;
    let task = stage.new_task(check.id, LOST_TYPE);
    let mut case = Case::begin_with(stage, check, task).await?;
    let first = stage.claim_as(&lost, &case.task, "the task was not handed out").await?;
    case.note(Running);
    let at_once = stage.policy.reclaim.on.contains(&ReclaimCause::PodGone);
    let next = stage.register("successor", at_once.then_some(place.as_str())).await?;
    let why = "nobody took the task back from its dead worker; check that `windlass operator` or `windlass dev` runs, \
               and that --timeout is longer than the queue's timeouts";
    let second = stage.claim_as(&next, &case.task, why).await?;
    case.note(Retrying);
    case.note(Running);
    if second.lease.epoch <= first.lease.epoch {
        return Err(format!("the second claim has epoch {}, the first {}", second.lease.epoch, first.lease.epoch));
    }
    match stage.settle_as(&lost, first.lease, Outcome::success()).await? {
        Settled::LeaseLost => {}
        other => return Err(format!("the lost worker's late success was answered with {other:?}")),
    }
    match stage.settle_as(&next, second.lease, Outcome::success()).await? {
        Settled::Succeeded => case.note(Succeeded),
        other => return Err(format!("the second worker's success was answered with {other:?}")),
    }
    let view = case.finished(Succeeded).await?;
    let Some(history) = stage.history(&case.task).await? else {
        return Ok(format!("reclaimed, crash {} of the task; no event log given to check", view.crash_count));
    };
    let reclaimed = history.iter().find(|event| event.event_type == "task.reclaimed");
    let event = reclaimed.ok_or("the event log has no task.reclaimed")?;
    let detail = event.detail.as_deref().unwrap_or_default();
    let complete = detail.contains(lost.as_str())
        && event.consumer.as_deref() == Some(next.as_str())
        && event.message_id.is_some();
    if complete {
        Ok(format!("task.reclaimed from {lost} by {next}: {detail}"))
    } else {
        Err(format!("task.reclaimed does not name old consumer, new consumer and message: {event:?}"))
    }
}

/// The first attempt has its effect and fails behind it; the second one is told that it happened.
async fn act_once(stage: &Stage, case: &mut Case<'_>) -> Seen<()> {
    let key = IdempotencyKey::new(format!("conformance-{}-effect", stage.nonce)).map_err(|error| error.to_string())?;
    let begin = async |lease: &Lease| {
        let mark = EffectMark::generate();
        let request = EffectRequest { lease, key: &key, mark: &mark, standing: Standing::Own };
        stage.broker.begin_effect(&request).await.map_err(|error| error.to_string())
    };
    let claimed = case.claim().await?;
    match begin(&claimed.lease).await? {
        EffectBegun::Begin => {}
        other => return Err(format!("a new effect was answered with {other:?}")),
    }
    let answer = Payload::from(serde_json::json!({"effect": 1}));
    match stage.broker.commit_effect(&claimed.lease, &key, &answer, Standing::Own).await {
        Ok(EffectCommitted::Committed) => {}
        other => return Err(format!("the effect's answer was not kept: {other:?}")),
    }
    match case.settle(claimed.lease, transient()).await? {
        Settled::Retrying { .. } => {}
        other => return Err(format!("the failure was answered with {other:?}, not with a retry")),
    }
    let claimed = case.claim().await?;
    match begin(&claimed.lease).await? {
        EffectBegun::Done { answer: kept } if kept == answer => {}
        other => return Err(format!("the effect of the first attempt was begun again: {other:?}")),
    }
    match case.settle(claimed.lease, Outcome::success()).await? {
        Settled::Succeeded => case.finished(Succeeded).await.map(drop),
        other => Err(format!("the success was answered with {other:?}")),
    }
}

async fn fourth(stage: &Stage) -> Check {
    let mut check = unseen("TQP-4", "the same idempotency key is done once");
    let outcome = async {
        let task = stage.new_task(check.id, super::stage::TYPE);
        let mut case = Case::begin_with(stage, &mut check, task.clone()).await?;
        let again = || async {
            let twin = crate::protocol::task::NewTask { id: TaskId::generate(), ..task.clone() };
            let answer = stage.broker.enqueue(&[twin]).await.map_err(|error| error.to_string())?;
            answer.into_iter().next().ok_or_else(|| "the broker did not answer for the task".to_owned())
        };
        let twin = again().await?;
        if twin.created || twin.id != case.task {
            return Err(format!("a second task with the key of a live one was answered with {twin:?}"));
        }
        act_once(stage, &mut case).await?;
        case.walked(&[Queued, Running, Retrying, Running, Succeeded])?;
        if stage.policy.idempotency.scope == IdempotencyScope::Live {
            return Ok("one task while it was live, which is the queue's scope, and one effect".to_owned());
        }
        let late = again().await?;
        if late.created || late.id != case.task {
            return Err(format!("a second task with the key of a succeeded one was answered with {late:?}"));
        }
        Ok("three enqueues, one task; two attempts, one effect".to_owned())
    };
    let outcome = outcome.await;
    ended(check, outcome)
}
