//! From a `TaskQueue`'s spec to what the engine takes.

use std::time::Duration;

use super::task_queue::TaskQueueSpec;
use crate::protocol::keys::{AdoptedKeys, Keys};
use crate::protocol::names::{QueueName, TaskType};
use crate::protocol::policy::{self as engine, EventRecording, Policy, TypePolicy};

/// A spec that contradicts itself. The API server's rules refuse most of these before.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {sentence}")]
pub struct InvalidSpec {
    /// Where, from the spec on.
    pub field: &'static str,
    /// What is wrong.
    pub sentence: String,
}

impl InvalidSpec {
    pub(super) fn new(field: &'static str, sentence: impl Into<String>) -> Self {
        Self { field, sentence: sentence.into() }
    }
}

impl TaskQueueSpec {
    /// The policy that the engine is given. `events` says whether somebody empties the outbox.
    pub fn policy(&self, events: EventRecording) -> Result<Policy, InvalidSpec> {
        let (retry, priority, retention) = (&self.retry, &self.priority, &self.retention);
        let default = Policy::default();
        let policy = Policy {
            mode: self.mode,
            visibility_timeout: seconds(self.visibility_timeout_seconds),
            heartbeat_period: seconds(self.heartbeat_period_seconds),
            reclaim: engine::Reclaim {
                on: self.reclaim.causes.clone(),
                worker_lost_after: seconds(self.reclaim.worker_lost_after_seconds),
            },
            retry: engine::Retry {
                max_retries: retry.max_retries,
                max_crashes: retry.max_crashes,
                max_releases: retry.max_releases,
                deadline: seconds(retry.deadline_seconds),
                backoff: backoff(&retry.backoff, default.retry.backoff, "retry.backoff")?,
                rate_limit: backoff(&self.rate_limit.backoff, default.retry.rate_limit, "rateLimit.backoff")?,
            },
            priority: engine::Priorities {
                default: priority.default,
                min: priority.min,
                max: priority.max,
                order: priority.order,
            },
            idempotency: engine::Idempotency {
                source: self.idempotency.source,
                requirement: self.idempotency.requirement,
                scope: self.idempotency.scope,
            },
            retention: engine::Retention {
                succeeded: seconds(retention.succeeded_seconds),
                failed: seconds(retention.failed_seconds),
                result_max_entries: retention.result_max_entries.into(),
                result_max_mebibytes: retention.result_max_mebibytes.into(),
            },
            discard_approvals: self.dead_letter.discard.approvals,
            limits: engine::Limits {
                payload_bytes: u64::from(self.limits.payload_kibibytes) << 10,
                result_bytes: u64::from(self.limits.result_kibibytes) << 10,
                ..default.limits
            },
            events,
            timeout: self.timeout_seconds.map(seconds),
            task_types: self.type_policies()?,
        };
        policy.validate().map_err(|error| InvalidSpec::new("spec", error.0))?;
        Ok(policy)
    }

    /// The keys of the queue with that name.
    pub fn keys(&self, queue: &QueueName) -> Result<Keys, InvalidSpec> {
        let Some(keys) = &self.keys else { return Ok(Keys::new(queue)) };
        let adopted = AdoptedKeys {
            task: keys.task.clone(),
            result: keys.result.clone(),
            dead_letter: keys.dead_letter.clone(),
            group: keys.group.clone(),
        };
        Keys::adopting(queue, &adopted).map_err(|error| InvalidSpec::new("keys", error.to_string()))
    }

    fn type_policies(&self) -> Result<std::collections::BTreeMap<TaskType, TypePolicy>, InvalidSpec> {
        let compile = |of: &super::TaskType| {
            let name = TaskType::new(&of.name).map_err(|error| InvalidSpec::new("taskTypes", error.to_string()))?;
            Ok((name, TypePolicy { timeout: of.timeout_seconds.map(seconds) }))
        };
        self.task_types.iter().map(compile).collect()
    }
}

fn backoff(
    given: &Option<super::Backoff>,
    default: crate::protocol::backoff::Backoff,
    field: &'static str,
) -> Result<crate::protocol::backoff::Backoff, InvalidSpec> {
    given.as_ref().map_or(Ok(default), |given| given.compile(field))
}

fn seconds(seconds: u32) -> Duration {
    Duration::from_secs(seconds.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spec_that_says_nothing_is_the_default_policy() {
        let policy = TaskQueueSpec::default().policy(EventRecording::On).expect("defaults agree");
        assert_eq!(policy, Policy::default());
        let queue: QueueName = "shop/emails".parse().expect("valid");
        assert_eq!(TaskQueueSpec::default().keys(&queue).expect("no names to refuse"), Keys::new(&queue));
    }
}
