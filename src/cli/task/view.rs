//! A task as it is printed.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::value::RawValue;

use crate::cli::output::{Cell, Facts, json_of, shortened};
use crate::protocol::names::{Epoch, IdempotencyKey, QueueName, TaskId, TaskType, TenantId, TraceId, WorkerId};
use crate::protocol::state::{RetryReason, State};
use crate::protocol::task::TaskView;

/// A task as programs read it: these names are relied on.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::cli) struct TaskOut<'a> {
    id: &'a TaskId,
    queue: String,
    #[serde(rename = "type")]
    task_type: &'a TaskType,
    state: State,
    priority: u8,
    payload: Option<Box<RawValue>>,
    retry_count: u32,
    crash_count: u32,
    release_count: u32,
    /// Which attempt it is in, or was in last.
    attempt: u64,
    epoch: Epoch,
    idempotency_key: Option<&'a IdempotencyKey>,
    trace_id: Option<&'a TraceId>,
    tenant_id: Option<&'a TenantId>,
    labels: &'a BTreeMap<String, String>,
    parent_id: Option<&'a TaskId>,
    max_retries: Option<u32>,
    timeout_ms: Option<u64>,
    created_at: Timestamp,
    updated_at: Timestamp,
    started_at: Option<Timestamp>,
    finished_at: Option<Timestamp>,
    due_at: Option<Timestamp>,
    worker: Option<&'a WorkerId>,
    retry_reason: Option<RetryReason>,
    /// How far it is, while it runs; left out where it never said.
    #[serde(skip_serializing_if = "Option::is_none")]
    progress: Option<Box<RawValue>>,
    result: Option<Box<RawValue>>,
    error: Option<&'a str>,
    error_code: Option<&'a str>,
    dlq_id: Option<&'a str>,
    replay_of: Option<&'a str>,
    replayed_as: Option<&'a TaskId>,
}

impl<'a> TaskOut<'a> {
    pub(in crate::cli) fn new(queue: &QueueName, task: &'a TaskView) -> Self {
        Self {
            id: &task.id,
            queue: queue.to_string(),
            task_type: &task.task_type,
            state: task.state,
            priority: task.priority,
            payload: task.payload.as_ref().map(json_of),
            retry_count: task.retry_count,
            crash_count: task.crash_count,
            release_count: task.release_count,
            attempt: attempt(task),
            epoch: task.epoch,
            idempotency_key: task.idempotency_key.as_ref(),
            trace_id: task.trace_id.as_ref(),
            tenant_id: task.tenant_id.as_ref(),
            labels: &task.extras.labels,
            parent_id: task.extras.parent_id.as_ref(),
            max_retries: task.max_retries,
            timeout_ms: task.extras.timeout_ms,
            created_at: task.created_at,
            updated_at: task.updated_at,
            started_at: task.started_at,
            finished_at: task.finished_at,
            due_at: task.due_at,
            worker: task.worker.as_ref(),
            retry_reason: task.retry_reason,
            progress: task.progress.as_ref().map(json_of),
            result: task.result.as_ref().map(json_of),
            error: task.error.as_deref(),
            error_code: task.error_code.as_deref(),
            dlq_id: task.dlq_id.as_deref(),
            replay_of: task.extras.replay_of.as_deref(),
            replayed_as: task.replayed_as.as_ref(),
        }
    }
}

/// Which attempt a task is in, as its handler is told, or how many it has had. Releases and rate
/// limits cost none.
pub(in crate::cli) fn attempt(task: &TaskView) -> u64 {
    match task.state {
        State::Running => u64::from(task.retry_count) + u64::from(task.crash_count) + 1,
        _ => task.epoch.0.saturating_sub(task.release_count.into()),
    }
}

/// A task as people read it: what is known, a line each.
pub(in crate::cli) fn facts(task: &TaskOut<'_>) -> String {
    const LONGEST: usize = 2000;
    let text = |json: &Option<Box<RawValue>>| json.as_ref().map(|json| shortened(json.get(), LONGEST));
    let labels: Vec<String> = task.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let mut facts = Facts::default();
    facts.add("ID", task.id);
    facts.add("Queue", &task.queue);
    facts.add("Type", task.task_type);
    facts.add("State", Cell::state(task.state));
    facts.add("Priority", task.priority);
    facts.add("Attempt", task.attempt);
    facts.add("Retries", task.retry_count);
    facts.add("Crashes", task.crash_count);
    facts.add("Releases", task.release_count);
    facts.maybe("Max retries", task.max_retries);
    facts.maybe("Timeout", task.timeout_ms.map(|ms| format!("{ms}ms")));
    facts.maybe("Idempotency key", task.idempotency_key);
    facts.maybe("Trace", task.trace_id);
    facts.maybe("Tenant", task.tenant_id);
    facts.maybe("Parent", task.parent_id);
    facts.maybe("Labels", (!labels.is_empty()).then(|| labels.join(", ")));
    facts.add("Created", task.created_at);
    facts.add("Updated", task.updated_at);
    facts.maybe("Started", task.started_at);
    facts.maybe("Finished", task.finished_at);
    facts.maybe("Due", task.due_at);
    facts.maybe("Retry reason", task.retry_reason);
    facts.maybe("Worker", task.worker);
    facts.maybe("Error code", task.error_code);
    facts.maybe("Error", task.error.map(|error| shortened(error, LONGEST)));
    facts.maybe("Dead letter", task.dlq_id);
    facts.maybe("Replay of", task.replay_of);
    facts.maybe("Replayed as", task.replayed_as);
    facts.maybe("Progress", text(&task.progress));
    facts.maybe("Payload", text(&task.payload));
    facts.maybe("Result", text(&task.result));
    facts.shown()
}
