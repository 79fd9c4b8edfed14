//! What a queue's owner decided: the compiled form of a `TaskQueue`'s spec.
//!
//! A policy is written to the broker, and every operation reads it there: a
//! change applies to the very next claim or settle of every client.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::backoff::{Backoff, Jitter, Strategy};
use super::names::TaskType;

/// Whether the queue takes and gives work.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mode {
    /// Both.
    #[default]
    Running,
    /// Takes work, gives none.
    Paused,
    /// Neither takes nor gives work.
    Closed,
}

/// What may take a running task from its worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ReclaimCause {
    /// The lease was not renewed for the visibility timeout.
    VisibilityTimeout,
    /// The worker sent no heartbeat.
    WorkerLost,
    /// The worker's pod is known to be dead.
    PodGone,
}

/// Which end of the priorities is served first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum PriorityOrder {
    /// 10 before 1.
    HighestFirst,
    /// 0 before 9.
    LowestFirst,
}

/// What tells two enqueues of the same work from two pieces of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum IdempotencySource {
    /// The key that the producer gave.
    Key,
    /// The task's type and payload.
    ContentHash,
}

/// Whether a task may come without an idempotency key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum IdempotencyRequirement {
    /// It may.
    Optional,
    /// It is refused.
    Required,
}

/// For how long a key stands for its first task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum IdempotencyScope {
    /// Until the task is finished.
    Live,
    /// Until it is finished, and after a success for as long as that is retained.
    LiveAndSucceeded,
    /// For as long as the finished task is retained, however it ended.
    Retained,
}

/// Whether moves are written to the outbox of the event log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum EventRecording {
    /// Every move.
    On,
    /// None: no event log is configured, and nobody would empty the outbox.
    Off,
}

/// When a running task is taken from its worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reclaim {
    /// Which signs count.
    pub on: BTreeSet<ReclaimCause>,
    /// How long a worker may be silent before it counts as lost.
    #[serde(with = "millis", rename = "worker_lost_after_ms")]
    pub worker_lost_after: Duration,
}

/// How often and how long a task is tried. Every way to run again is bounded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retry {
    /// Failures that are followed by another attempt.
    pub max_retries: u32,
    /// Lost workers that are followed by another attempt.
    pub max_crashes: u32,
    /// Releases and rate limits that are followed by another attempt.
    pub max_releases: u32,
    /// From a task's creation to its last attempt.
    #[serde(with = "millis", rename = "deadline_ms")]
    pub deadline: Duration,
    /// How long a failed task waits.
    pub backoff: Backoff,
    /// How long a rate-limited task waits when nobody said for how long.
    pub rate_limit: Backoff,
}

/// The range of priorities and their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Priorities {
    /// What a task gets that names none.
    pub default: u8,
    /// The lowest number allowed.
    pub min: u8,
    /// The highest number allowed.
    pub max: u8,
    /// Which end is served first.
    pub order: PriorityOrder,
}

impl Priorities {
    /// The highest number that any queue may use: more priorities make more lanes, not better order.
    pub const CEILING: u8 = 100;

    /// How many steps behind the most urgent a priority is.
    pub fn rank(&self, priority: u8) -> u8 {
        match self.order {
            PriorityOrder::HighestFirst => self.max.saturating_sub(priority),
            PriorityOrder::LowestFirst => priority.saturating_sub(self.min),
        }
    }
}

/// How repeated enqueues are recognised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Idempotency {
    /// What is compared.
    pub source: IdempotencySource,
    /// Whether it must be there.
    pub requirement: IdempotencyRequirement,
    /// For how long it counts.
    pub scope: IdempotencyScope,
}

/// How long what is finished is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retention {
    /// Succeeded and cancelled tasks and their results.
    #[serde(with = "millis", rename = "succeeded_ms")]
    pub succeeded: Duration,
    /// Failed tasks and their dead letters.
    #[serde(with = "millis", rename = "failed_ms")]
    pub failed: Duration,
    /// The most results that are kept.
    pub result_max_entries: u64,
    /// The most memory that results may take.
    pub result_max_mebibytes: u64,
}

/// Sizes above which input is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// A payload, in bytes.
    pub payload_bytes: u64,
    /// A result, in bytes.
    pub result_bytes: u64,
    /// Lanes: types times priorities in use.
    pub lanes: u32,
    /// Entries in the outbox; at this number enqueues are refused and nothing else.
    pub outbox_entries: u64,
}

/// What differs from the queue for one type of task.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TypePolicy {
    /// How long one attempt may take.
    #[serde(default, with = "maybe_millis", rename = "timeout_ms")]
    pub timeout: Option<Duration>,
}

/// Everything that a queue's owner can decide about the engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// Whether the queue takes and gives work.
    pub mode: Mode,
    /// How long a lease lasts without renewal.
    #[serde(with = "millis", rename = "visibility_timeout_ms")]
    pub visibility_timeout: Duration,
    /// How often workers renew.
    #[serde(with = "millis", rename = "heartbeat_period_ms")]
    pub heartbeat_period: Duration,
    /// When a running task is taken from its worker.
    pub reclaim: Reclaim,
    /// How often and how long a task is tried.
    pub retry: Retry,
    /// The range of priorities.
    pub priority: Priorities,
    /// How repeated enqueues are recognised.
    pub idempotency: Idempotency,
    /// How long what is finished is kept.
    pub retention: Retention,
    /// How many different people must agree before a dead letter is discarded.
    pub discard_approvals: u8,
    /// Sizes above which input is refused.
    pub limits: Limits,
    /// Whether moves are written to the outbox.
    pub events: EventRecording,
    /// How long one attempt may take, where neither the task nor its type says.
    #[serde(default, with = "maybe_millis", rename = "timeout_ms")]
    pub timeout: Option<Duration>,
    /// What differs by type.
    #[serde(default)]
    pub task_types: BTreeMap<TaskType, TypePolicy>,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            mode: Mode::Running,
            visibility_timeout: Duration::from_secs(300),
            heartbeat_period: Duration::from_secs(30),
            reclaim: Reclaim {
                on: [ReclaimCause::VisibilityTimeout, ReclaimCause::WorkerLost, ReclaimCause::PodGone].into(),
                worker_lost_after: Duration::from_secs(90),
            },
            retry: Retry {
                max_retries: 3,
                max_crashes: 3,
                max_releases: 100,
                deadline: Duration::from_secs(604_800),
                backoff: Backoff {
                    strategy: Strategy::Exponential { base_ms: 1000 },
                    max_ms: 30_000,
                    jitter: Jitter::Additive { milliseconds: 300 },
                },
                rate_limit: Backoff {
                    strategy: Strategy::Exponential { base_ms: 60_000 },
                    max_ms: 3_600_000,
                    jitter: Jitter::Proportional { percent: 10 },
                },
            },
            priority: Priorities { default: 5, min: 1, max: 10, order: PriorityOrder::HighestFirst },
            idempotency: Idempotency {
                source: IdempotencySource::Key,
                requirement: IdempotencyRequirement::Optional,
                scope: IdempotencyScope::LiveAndSucceeded,
            },
            retention: Retention {
                succeeded: Duration::from_secs(604_800),
                failed: Duration::from_secs(604_800),
                result_max_entries: 100_000,
                result_max_mebibytes: 1024,
            },
            discard_approvals: 1,
            limits: Limits { payload_bytes: 1 << 20, result_bytes: 1 << 20, lanes: 1000, outbox_entries: 1_000_000 },
            events: EventRecording::On,
            timeout: None,
            task_types: BTreeMap::new(),
        }
    }
}

/// A policy that contradicts itself.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("policy refused: {0}")]
pub struct InvalidPolicy(pub String);

impl Policy {
    /// How long one attempt at a task of this type may take, unless the task says otherwise.
    pub fn timeout_of(&self, task_type: &TaskType) -> Option<Duration> {
        self.task_types.get(task_type).and_then(|own| own.timeout).or(self.timeout)
    }

    /// Checks what single fields cannot say.
    pub fn validate(&self) -> Result<(), InvalidPolicy> {
        let priority = &self.priority;
        let problems = [
            (
                self.visibility_timeout < self.heartbeat_period * 3,
                "the visibility timeout must be at least three times the heartbeat period".to_owned(),
            ),
            (self.heartbeat_period.is_zero(), "the heartbeat period must be above zero".to_owned()),
            (
                priority.min > priority.max || !(priority.min..=priority.max).contains(&priority.default),
                format!(
                    "priorities must be ordered min ≤ default ≤ max, not {} ≤ {} ≤ {}",
                    priority.min, priority.default, priority.max
                ),
            ),
            (priority.max > Priorities::CEILING, format!("priorities go up to {}", Priorities::CEILING)),
            (self.limits.lanes == 0, "at least one lane must be allowed".to_owned()),
            (!(1..=2).contains(&self.discard_approvals), "a discard needs one or two people's approval".to_owned()),
        ];
        match problems.into_iter().find(|(wrong, _)| *wrong) {
            Some((_, sentence)) => Err(InvalidPolicy(sentence)),
            None => Ok(()),
        }
    }
}

/// Durations as whole milliseconds on the wire.
mod millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(value: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(value.as_millis() as u64)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        u64::deserialize(deserializer).map(Duration::from_millis)
    }
}

/// The same where there may be none.
mod maybe_millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(value: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
        value.map(|value| value.as_millis() as u64).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<u64>::deserialize(deserializer)?.map(Duration::from_millis))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_policy_is_valid_and_survives_the_wire() {
        let mut policy = Policy::default();
        policy.validate().expect("defaults agree with each other");
        let slow = TypePolicy { timeout: Some(Duration::from_secs(60)) };
        policy.task_types.insert(TaskType::new("render").expect("valid"), slow);
        let text = serde_json::to_string(&policy).expect("serialises");
        assert_eq!(serde_json::from_str::<Policy>(&text).expect("parses"), policy);
    }

    #[test]
    fn a_contradiction_is_refused_with_a_sentence() {
        let hasty = Policy { visibility_timeout: Duration::from_secs(60), ..Policy::default() };
        assert!(hasty.validate().expect_err("too short").to_string().contains("three times the heartbeat"));
        let mut upside_down = Policy::default();
        upside_down.priority.min = 9;
        assert!(upside_down.validate().expect_err("min above default").to_string().contains("min ≤ default ≤ max"));
    }

    #[test]
    fn the_most_urgent_priority_has_rank_zero_in_both_orders() {
        let mut priorities = Policy::default().priority;
        assert_eq!((priorities.rank(10), priorities.rank(1)), (0, 9));
        priorities = Priorities { default: 5, min: 0, max: 9, order: PriorityOrder::LowestFirst };
        assert_eq!((priorities.rank(0), priorities.rank(9)), (0, 9));
    }
}
