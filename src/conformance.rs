//! Checks a live queue against the protocol: RP-001 to RP-005 and the four
//! acceptance criteria of the task-queue protocol.
//!
//! Owns: the checks, and a producer and workers of their own. Must not know:
//! Redis, Kubernetes, how results are printed.
//!
//! Main flow: [`run`] looks whether it can be alone with its tasks, plays all
//! checks side by side on a stage of their own, waits for what the queue's leader
//! has to do, and clears away what it made. Its tasks have types of their own
//! that never change: a type makes a lane, and lanes stay.

mod criteria;
mod replays;
mod stage;

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use crate::broker::{Broker, BrokerError};
use crate::event_log::EventLog;
use crate::protocol::names::{QueueName, TaskId, TraceId, WorkerId};
use crate::protocol::policy::{Policy, ReclaimCause};
use crate::protocol::state::State;
use stage::Stage;

/// What a run needs.
pub struct Conformance {
    /// The queue's name.
    pub queue: QueueName,
    /// Its operations.
    pub broker: Arc<dyn Broker>,
    /// Where its history is recorded, if that is to be checked.
    pub log: Option<EventLog>,
    /// When to give up; as long as the policy's delays need, and some more, if not given.
    pub timeout: Option<Duration>,
}

/// Why a run did not begin.
#[derive(Debug, thiserror::Error)]
pub enum ConformanceError {
    /// The broker did not do its part.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// Somebody would take the tasks of the run.
    #[error(
        "worker {0} takes every type and would take the tasks of this check: stop it, or give its pool taskTypes, \
         and try again"
    )]
    Thief(WorkerId),
    /// Two runs would take each other's tasks.
    #[error("another check of this queue is running (worker {0}): wait until it has ended")]
    Another(WorkerId),
}

/// What was seen of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Check {
    /// What the check is called.
    pub id: &'static str,
    /// What it claims.
    pub claim: &'static str,
    /// Whether that holds.
    pub passed: bool,
    /// The trace of its task.
    pub trace_id: Option<TraceId>,
    /// Its task.
    pub job_id: Option<TaskId>,
    /// Its failures at the end.
    pub retry_count: Option<u32>,
    /// The states that it was seen in.
    pub status_transition: Vec<State>,
    /// What was seen, or what was not.
    pub seen: String,
}

/// How long a run takes at most, given the queue's delays.
pub fn expected_time(policy: &Policy) -> Duration {
    let retries: Duration =
        (1..=3).map(|retry| policy.retry.backoff.delay(retry, crate::protocol::backoff::Dice(u16::MAX))).sum();
    let reclaim = &policy.reclaim;
    let lost = [
        (ReclaimCause::PodGone, Duration::ZERO),
        (ReclaimCause::WorkerLost, reclaim.worker_lost_after + policy.heartbeat_period),
        (ReclaimCause::VisibilityTimeout, policy.visibility_timeout + policy.heartbeat_period),
    ];
    let lost = lost.into_iter().filter(|(cause, _)| reclaim.on.contains(cause)).map(|(_, after)| after).min();
    retries.max(lost.unwrap_or_default())
}

/// How much longer than its delays a run may take: for whoever leads the queue, and for a busy machine.
const MARGIN: Duration = Duration::from_secs(30);

/// Runs all checks, or as far as `stop` allows; says what was seen.
pub async fn run(
    conformance: Conformance,
    stop: impl Future<Output = ()>,
) -> Result<Option<Vec<Check>>, ConformanceError> {
    let policy = conformance.broker.policy().await?;
    let limit = conformance.timeout.unwrap_or_else(|| expected_time(&policy) + MARGIN);
    let stage = Stage::set(conformance, policy, limit).await?;
    let checks = tokio::select! {
        checks = play(&stage) => Some(checks),
        () = stop => None,
    };
    stage.clear().await;
    Ok(checks)
}

async fn play(stage: &Stage) -> Vec<Check> {
    let all = async {
        let replays = replays::play(stage);
        let criteria = criteria::play(stage);
        let (mut checks, more) = tokio::join!(replays, criteria);
        checks.extend(more);
        checks
    };
    tokio::select! {
        checks = all => checks,
        never = stage.work() => match never {},
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_takes_as_long_as_the_slowest_delay_of_the_policy() {
        let mut policy = Policy::default();
        let retries = Duration::from_millis(7000 + 3 * 300);
        assert_eq!(expected_time(&policy), retries, "a restarted container gives its tasks back at once");
        policy.reclaim.on = [ReclaimCause::VisibilityTimeout].into();
        assert_eq!(expected_time(&policy), Duration::from_secs(330));
    }
}
