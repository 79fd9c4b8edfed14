//! The policy as scripts read it: one hash, a field a fact.

use std::time::Duration;

use super::token::pack;
use crate::protocol::policy::{
    EventRecording, IdempotencyRequirement, IdempotencyScope, IdempotencySource, Mode, Policy, PriorityOrder,
    ReclaimCause, Retention,
};

/// The field that holds the whole policy, for clients.
pub(super) const WHOLE: &str = "spec";

/// Every field and its value.
pub(super) fn fields(policy: &Policy) -> Vec<(&'static str, Vec<u8>)> {
    let csv = |delays: Vec<u64>| delays.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
    let causes: Vec<&str> = policy.reclaim.on.iter().map(|cause| cause_word(*cause)).collect();
    let (retry, limits, idempotency) = (&policy.retry, &policy.limits, &policy.idempotency);
    let texts = vec![
        ("mode", mode_word(policy.mode).to_owned()),
        ("events", if policy.events == EventRecording::On { "On" } else { "Off" }.to_owned()),
        ("visibility", policy.visibility_timeout.as_millis().to_string()),
        ("heartbeat", policy.heartbeat_period.as_millis().to_string()),
        ("worker_lost", policy.reclaim.worker_lost_after.as_millis().to_string()),
        ("reclaim_on", causes.join(",")),
        ("max_retries", retry.max_retries.to_string()),
        ("max_crashes", retry.max_crashes.to_string()),
        ("max_releases", retry.max_releases.to_string()),
        ("deadline", retry.deadline.as_millis().to_string()),
        ("retry_delays", csv(retry.backoff.bases())),
        ("retry_jitter", retry.backoff.jitter.word()),
        ("rate_limit_delays", csv(retry.rate_limit.bases())),
        ("rate_limit_jitter", retry.rate_limit.jitter.word()),
        ("priority_default", policy.priority.default.to_string()),
        ("priority_min", policy.priority.min.to_string()),
        ("priority_max", policy.priority.max.to_string()),
        ("order", order_word(policy.priority.order).to_owned()),
        ("idempotency_source", source_word(idempotency.source).to_owned()),
        ("idempotency_requirement", requirement_word(idempotency.requirement).to_owned()),
        ("idempotency_scope", scope_word(idempotency.scope).to_owned()),
        ("discard_approvals", policy.discard_approvals.to_string()),
        ("payload_bytes", limits.payload_bytes.to_string()),
        ("result_bytes", limits.result_bytes.to_string()),
        ("lanes", limits.lanes.to_string()),
        ("outbox_entries", limits.outbox_entries.to_string()),
        (WHOLE, serde_json::to_string(policy).expect("invariant: a policy has a JSON form")),
    ];
    let mut fields: Vec<_> = texts.into_iter().map(|(name, text)| (name, text.into_bytes())).collect();
    fields.push(("hot", hot(policy)));
    fields.push(("retention", retention(policy)));
    fields
}

/// What most scripts need, packed in the order in which `lua/part/head.lua` and others read it.
fn hot(policy: &Policy) -> Vec<u8> {
    let (priority, limits, idempotency) = (&policy.priority, &policy.limits, &policy.idempotency);
    pack(&(
        mode_word(policy.mode),
        policy.events == EventRecording::On,
        order_word(priority.order),
        priority.min,
        priority.max,
        policy.retry.deadline.as_millis() as u64,
        limits.result_bytes,
        priority.default,
        limits.payload_bytes,
        source_word(idempotency.source),
        requirement_word(idempotency.requirement),
        limits.lanes,
        limits.outbox_entries,
    ))
}

/// What `lua/retain.lua` goes by: two times in milliseconds, then the bounds of the results.
fn retention(policy: &Policy) -> Vec<u8> {
    let Retention { succeeded, failed, result_max_entries, result_max_mebibytes } = policy.retention;
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    pack(&(millis(succeeded), millis(failed), result_max_entries, result_max_mebibytes))
}

/// The mode that a script answered.
pub(super) fn mode_from(word: &str) -> Option<Mode> {
    [Mode::Running, Mode::Paused, Mode::Closed].into_iter().find(|mode| mode_word(*mode) == word)
}

fn mode_word(mode: Mode) -> &'static str {
    match mode {
        Mode::Running => "Running",
        Mode::Paused => "Paused",
        Mode::Closed => "Closed",
    }
}

fn cause_word(cause: ReclaimCause) -> &'static str {
    match cause {
        ReclaimCause::VisibilityTimeout => "VisibilityTimeout",
        ReclaimCause::WorkerLost => "WorkerLost",
        ReclaimCause::PodGone => "PodGone",
    }
}

fn order_word(order: PriorityOrder) -> &'static str {
    match order {
        PriorityOrder::HighestFirst => "HighestFirst",
        PriorityOrder::LowestFirst => "LowestFirst",
    }
}

fn source_word(source: IdempotencySource) -> &'static str {
    match source {
        IdempotencySource::Key => "Key",
        IdempotencySource::ContentHash => "ContentHash",
    }
}

fn requirement_word(requirement: IdempotencyRequirement) -> &'static str {
    match requirement {
        IdempotencyRequirement::Optional => "Optional",
        IdempotencyRequirement::Required => "Required",
    }
}

fn scope_word(scope: IdempotencyScope) -> &'static str {
    match scope {
        IdempotencyScope::Live => "Live",
        IdempotencyScope::LiveAndSucceeded => "LiveAndSucceeded",
        IdempotencyScope::Retained => "Retained",
    }
}
