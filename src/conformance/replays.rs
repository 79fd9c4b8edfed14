//! RP-001 to RP-005: the frozen state machine, replayed.

use futures::future::{BoxFuture, join_all};

use super::Check;
use super::stage::{Case, Seen, Stage, transient};
use crate::broker::{Outcome, Settled};
use crate::protocol::names::DeadLetterId;
use crate::protocol::state::State::{self, *};
use crate::protocol::state::TRANSITION_INVALID;

/// A check that has seen nothing yet.
pub(super) fn unseen(id: &'static str, claim: &'static str) -> Check {
    Check {
        id,
        claim,
        passed: false,
        trace_id: None,
        job_id: None,
        retry_count: None,
        status_transition: Vec::new(),
        seen: String::new(),
    }
}

/// Notes how a check ended.
pub(super) fn ended(mut check: Check, outcome: Seen<String>) -> Check {
    check.passed = outcome.is_ok();
    check.seen = outcome.unwrap_or_else(|problem| problem);
    check
}

/// Plays all replays side by side.
pub(super) async fn play(stage: &Stage) -> Vec<Check> {
    let all: [BoxFuture<'_, Check>; 5] = [
        Box::pin(rp_001(stage)),
        Box::pin(rp_002(stage)),
        Box::pin(rp_003(stage)),
        Box::pin(rp_004(stage)),
        Box::pin(rp_005(stage)),
    ];
    join_all(all).await
}

async fn rp_001(stage: &Stage) -> Check {
    let mut check = unseen("RP-001", "a claimed task that succeeds is succeeded");
    let outcome = async {
        let mut case = Case::begin(stage, &mut check).await?;
        case.succeed().await?;
        case.walked(&[Queued, Running, Succeeded])?;
        case.retried(0)?;
        case.history_is(&["task.created", "task.claimed", "task.succeeded"]).await
    };
    let outcome = outcome.await;
    ended(check, outcome)
}

async fn rp_002(stage: &Stage) -> Check {
    let mut check = unseen("RP-002", "a transient error is retried");
    let outcome = after_failures(stage, &mut check, 1).await;
    ended(check, outcome)
}

async fn rp_003(stage: &Stage) -> Check {
    let mut check = unseen("RP-003", "three transient errors are retried");
    let outcome = after_failures(stage, &mut check, 3).await;
    ended(check, outcome)
}

async fn after_failures(stage: &Stage, check: &mut Check, failures: u32) -> Seen<String> {
    let mut case = Case::begin(stage, check).await?;
    case.fail_times(failures).await?;
    case.succeed().await?;
    let (mut walk, mut events): (Vec<State>, Vec<&str>) = (vec![Queued], vec!["task.created"]);
    for _ in 0..failures {
        walk.extend([Running, Retrying]);
        events.extend(["task.claimed", "task.retrying"]);
    }
    walk.extend([Running, Succeeded]);
    events.extend(["task.claimed", "task.succeeded"]);
    case.walked(&walk)?;
    case.retried(failures)?;
    case.history_is(&events).await
}

/// Lets a task fail once more than it may, and waits for its dead letter. Also criterion 2.
pub(super) async fn to_the_dead_letters(stage: &Stage, check: &mut Check) -> Seen<String> {
    let mut case = Case::begin(stage, check).await?;
    case.fail_times(3).await?;
    let claimed = case.claim().await?;
    match case.settle(claimed.lease, transient()).await? {
        Settled::Dead => {}
        other => return Err(format!("the fourth failure was answered with {other:?}, not with the dead letters")),
    }
    let view = case.finished(Failed).await?;
    let dlq_id = view.dlq_id.clone().ok_or("the failed task names no dlq_id")?;
    let dead_letter: DeadLetterId = dlq_id.parse().map_err(|error| format!("{error}"))?;
    let letter = stage.broker.dead_letter(&dead_letter).await.map_err(|error| error.to_string())?;
    let letter = letter.ok_or_else(|| format!("there is no dead letter {dlq_id}"))?;
    // No view of a task ever shows dlq_recorded, because it lasts for no time: that its dead letter is there, and was
    // no later than the failure, is what shows it. An event log has it as an event of its own.
    if view.finished_at.is_none_or(|failed| failed < letter.recorded_at) {
        let (recorded, failed) = (letter.recorded_at, view.finished_at);
        return Err(format!("the dead letter was recorded at {recorded}, after the failure at {failed:?}"));
    }
    case.note(DlqRecorded);
    case.note(view.state);
    if letter.letter.retry_count != 4 {
        return Err(format!("the dead letter counts {} failures, not 4", letter.letter.retry_count));
    }
    case.walked(&[
        Queued,
        Running,
        Retrying,
        Running,
        Retrying,
        Running,
        Retrying,
        Running,
        DlqPending,
        DlqRecorded,
        Failed,
    ])?;
    let attempt = ["task.claimed", "task.retrying"];
    let mut events = vec!["task.created"];
    events.extend(attempt.iter().cycle().take(6));
    events.extend(["task.claimed", "task.dlq_pending", "task.dlq", "task.failed"]);
    let history = case.history_is(&events).await?;
    let replay = stage.bury(dead_letter).await?;
    Ok(format!(
        "dlq_id {dlq_id}, recorded no later than the failure, from which dlq_recorded is inferred; replayed as {replay}; \
         {history}"
    ))
}

async fn rp_004(stage: &Stage) -> Check {
    let mut check = unseen("RP-004", "the fourth failure ends in failed, by way of a dead letter");
    let outcome = to_the_dead_letters(stage, &mut check).await;
    ended(check, outcome)
}

async fn rp_005(stage: &Stage) -> Check {
    let mut check = unseen("RP-005", "a second final state is refused");
    let outcome = async {
        let mut case = Case::begin(stage, &mut check).await?;
        let (claimed, before) = case.succeed().await?;
        let refused = stage.broker.counts().await.map_err(|error| error.to_string())?.invalid_transitions;
        match case.settle(claimed.lease, Outcome::permanent("conformance", "a second final state")).await? {
            Settled::InvalidTransition => {}
            other => return Err(format!("a failure after the success was answered with {other:?}")),
        }
        let after = case.finished(Succeeded).await?;
        if after != before {
            return Err("the refused write changed the task".to_owned());
        }
        let counted = stage.broker.counts().await.map_err(|error| error.to_string())?.invalid_transitions;
        if counted <= refused {
            return Err("the refused write was not counted".to_owned());
        }
        case.walked(&[Queued, Running, Succeeded])?;
        Ok(format!("{TRANSITION_INVALID}, nothing changed, and it was counted"))
    };
    let outcome = outcome.await;
    ended(check, outcome)
}
