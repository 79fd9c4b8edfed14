//! New tasks: all of them, or none.

use std::collections::HashSet;

use super::lane::Body;
use super::moves::Birth;
use super::record::Record;
use super::state::Step;
use crate::broker::{BrokerError, Enqueued, Result, sentences};
use crate::protocol::names::{TaskId, TaskType};
use crate::protocol::policy::{EventRecording, IdempotencyRequirement, IdempotencySource, Mode};
use crate::protocol::state::State;
use crate::protocol::task::{NewTask, NotBefore};

/// What the policy makes of a new task.
struct Wanted {
    priority: u8,
    due_ms: u64,
    key: String,
}

impl Step<'_> {
    pub(super) fn enqueue(mut self, tasks: &[NewTask]) -> Result<Vec<Enqueued>> {
        self.check_intake()?;
        let mut lanes = HashSet::new();
        let mut wanted = Vec::with_capacity(tasks.len());
        for task in tasks {
            let one = self.wanted(task)?;
            let most = self.policy.limits.lanes as usize;
            if self.is_new_lane(&task.task_type, one.priority)
                && lanes.insert((&task.task_type, one.priority))
                && self.queue.lanes.len() + lanes.len() > most
            {
                return Err(BrokerError::Invalid(sentences::too_many_lanes(most)));
            }
            wanted.push(one);
        }
        let answers = tasks.iter().zip(wanted).map(|(task, wanted)| self.enqueue_one(task, wanted)).collect();
        self.announce();
        self.end();
        Ok(answers)
    }

    /// Whether the queue takes tasks at all.
    fn check_intake(&self) -> Result<()> {
        let name = self.queue.name.to_string();
        let bound = self.policy.limits.outbox_entries;
        if self.policy.mode == Mode::Closed {
            return Err(BrokerError::Closed(name));
        }
        if self.policy.events == EventRecording::On && self.queue.outbox.len() as u64 >= bound {
            return Err(BrokerError::OutboxFull(name));
        }
        Ok(())
    }

    fn wanted(&self, task: &NewTask) -> Result<Wanted> {
        let (range, limits) = (&self.policy.priority, &self.policy.limits);
        let refuse = |sentence| Err(BrokerError::Invalid(sentence));
        let priority = task.priority.unwrap_or(range.default);
        if !(range.min..=range.max).contains(&priority) {
            return refuse(sentences::priority_out_of_range(task.priority, range.min, range.max));
        }
        let bytes = task.payload.as_str().len();
        if bytes as u64 > limits.payload_bytes {
            return refuse(sentences::payload_too_large(bytes, limits.payload_bytes));
        }
        let key = match self.policy.idempotency.source {
            IdempotencySource::ContentHash => sentences::content_hash(task)?.to_string(),
            IdempotencySource::Key => task.idempotency_key.as_ref().map(ToString::to_string).unwrap_or_default(),
        };
        if key.is_empty() && self.policy.idempotency.requirement == IdempotencyRequirement::Required {
            return refuse(sentences::key_required());
        }
        let due_ms = match task.not_before {
            NotBefore::Now => self.now,
            NotBefore::After(wait) => self.after(wait),
            NotBefore::At(time) => u64::try_from(time.as_millisecond()).unwrap_or(0),
        };
        if due_ms > self.deadline_of(self.now) {
            return refuse(sentences::due_after_deadline(self.policy.retry.deadline.as_millis()));
        }
        Ok(Wanted { priority, due_ms, key })
    }

    fn enqueue_one(&mut self, task: &NewTask, wanted: Wanted) -> Enqueued {
        let tenant = task.tenant_id.as_ref().map(ToString::to_string).unwrap_or_default();
        let by_key = || self.queue.holder_of(&tenant, &wanted.key).filter(|_| !wanted.key.is_empty());
        let first = if self.queue.knows(&task.id) { Some(&task.id) } else { by_key() };
        if let Some(first) = first.cloned() {
            return Enqueued { state: self.state_of(&first), id: first, created: false };
        }
        let trace = task.trace_id.as_ref().map(ToString::to_string).unwrap_or_default();
        let named = Names { key: wanted.key, tenant, trace };
        let record = self.new_record(&task.task_type, wanted.priority, named, task.max_retries);
        let body = Body { payload: task.payload.as_str().to_owned(), extras: task.extras.clone() };
        let state = self.create(Birth { id: task.id.clone(), record, due_ms: wanted.due_ms, body });
        Enqueued { id: task.id.clone(), state, created: true }
    }

    /// The record of a task that nobody has claimed.
    pub(super) fn new_record(&self, kind: &TaskType, priority: u8, names: Names, max_retries: Option<u32>) -> Record {
        Record {
            state: State::Queued,
            epoch: 0,
            retries: 0,
            crashes: 0,
            releases: 0,
            created_ms: self.now,
            since_ms: self.now,
            kind: kind.clone(),
            priority,
            message: None,
            holder: String::new(),
            key: names.key,
            tenant: names.tenant,
            trace: names.trace,
            max_retries,
        }
    }

    /// The state of a task that is known.
    fn state_of(&self, id: &TaskId) -> State {
        let done = || self.queue.done.get(id).map(|finished| finished.state);
        let live = self.queue.live.get(id).map(|record| record.state);
        live.or_else(done).expect("invariant: the task is known")
    }
}

/// What a task is known by besides its id; empty where there is none.
#[derive(Default)]
pub(super) struct Names {
    pub(super) key: String,
    pub(super) tenant: String,
    pub(super) trace: String,
}
