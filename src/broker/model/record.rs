//! What is known of a task: its record while it lives, the trail of its
//! attempts, and what is left when it has ended.

use std::collections::VecDeque;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::lane::{Body, History, LaneName, Message};
use crate::broker::{ClaimedTask, EffectEvent, Event, Lease};
use crate::protocol::names::{
    DeadLetterId, Epoch, IdempotencyKey, InvalidName, TaskId, TaskType, TenantId, TraceId, WorkerId,
};
use crate::protocol::state::{RetryReason, State};
use crate::protocol::task::{Attempt, DeadLetter, Extras, Payload, TaskView};

/// Milliseconds since 1970 as a time.
pub(super) fn time(ms: u64) -> Timestamp {
    i64::try_from(ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok()).unwrap_or_default()
}

/// A text where an empty one stands for none.
fn known(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

/// A name where an empty one stands for none. Raw producers may send one that
/// no client could: it is not shown.
fn named<T>(text: &str, new: impl Fn(String) -> Result<T, InvalidName>) -> Option<T> {
    new(text.to_owned()).ok()
}

/// A live task, field by field as the token of the scripts.
#[derive(Debug, Clone)]
pub(super) struct Record {
    pub(super) state: State,
    pub(super) epoch: u64,
    pub(super) retries: u32,
    pub(super) crashes: u32,
    pub(super) releases: u32,
    pub(super) created_ms: u64,
    /// Since when it is in this state, or ready.
    pub(super) since_ms: u64,
    pub(super) kind: TaskType,
    pub(super) priority: u8,
    /// Its entry, while it is in a lane.
    pub(super) message: Option<Message>,
    /// The worker while it runs; else why it runs again or died.
    pub(super) holder: String,
    /// The next three are empty where there is none.
    pub(super) key: String,
    pub(super) tenant: String,
    pub(super) trace: String,
    pub(super) max_retries: Option<u32>,
}

impl Record {
    /// The lane that it is in, or goes to.
    pub(super) fn lane(&self) -> LaneName {
        let claims = if self.state == State::Running { self.epoch - 1 } else { self.epoch };
        let history = if claims > 0 { History::RanBefore } else { History::New };
        LaneName::new(&self.kind, self.priority, history)
    }

    /// Names the claim under way. The scripts compare the whole record; epoch,
    /// worker and entry tell as much, because nothing else changes under a
    /// claim, and an id that is used again comes with another entry. The rest
    /// is there for who comes back when the record is gone.
    pub(super) fn token(&self) -> Vec<u8> {
        let claim = Claim {
            epoch: self.epoch,
            worker: self.holder.clone(),
            message: self.message.unwrap_or(0),
            created_ms: self.created_ms,
            kind: self.kind.clone(),
            retries: self.retries,
            tenant: self.tenant.clone(),
            trace: self.trace.clone(),
        };
        serde_json::to_vec(&claim).expect("invariant: numbers and texts have a JSON form")
    }

    /// Who runs it, while somebody does.
    pub(super) fn worker(&self) -> Option<String> {
        (self.state == State::Running).then(|| self.holder.clone())
    }

    /// Whether a lease is the claim under way.
    pub(super) fn is_held_by(&self, lease: &Lease) -> bool {
        self.state == State::Running && self.token() == lease.token
    }

    /// The task as a claim hands it out.
    pub(super) fn claimed(&self, id: &TaskId, body: &Body) -> ClaimedTask {
        ClaimedTask {
            lease: Lease {
                task: id.clone(),
                epoch: Epoch(self.epoch),
                token: self.token(),
                extras: encode_extras(&body.extras),
            },
            task_type: self.kind.clone(),
            payload: Payload::unchecked(body.payload.clone()),
            priority: self.priority,
            retry_count: self.retries,
            crash_count: self.crashes,
            release_count: self.releases,
            idempotency_key: named(&self.key, IdempotencyKey::new),
            tenant_id: named(&self.tenant, TenantId::new),
            trace_id: named(&self.trace, TraceId::new),
            extras: body.extras.clone(),
            created_at: time(self.created_ms),
            claimed_at: time(self.since_ms),
        }
    }

    /// One move of this task, as the outbox carries it.
    pub(super) fn event(&self, id: &TaskId, from: Option<State>, to: State, at_ms: u64, detail: &str) -> Event {
        Event {
            task: id.clone(),
            from,
            to,
            epoch: Epoch(self.epoch),
            at: time(at_ms),
            created_at: time(self.created_ms),
            task_type: self.kind.clone(),
            retry_count: self.retries,
            tenant_id: named(&self.tenant, TenantId::new),
            trace_id: named(&self.trace, TraceId::new),
            consumer: self.worker(),
            message_id: self.message.map(message_text),
            detail: known(detail),
        }
    }

    /// What the record alone says of its task.
    fn view(&self, id: &TaskId, extras: &Extras) -> TaskView {
        TaskView {
            id: id.clone(),
            task_type: self.kind.clone(),
            state: self.state,
            priority: self.priority,
            payload: None,
            retry_count: self.retries,
            crash_count: self.crashes,
            release_count: self.releases,
            epoch: Epoch(self.epoch),
            idempotency_key: named(&self.key, IdempotencyKey::new),
            trace_id: named(&self.trace, TraceId::new),
            tenant_id: named(&self.tenant, TenantId::new),
            max_retries: self.max_retries,
            extras: extras.clone(),
            created_at: time(self.created_ms),
            updated_at: time(self.since_ms),
            started_at: (self.state == State::Running).then(|| time(self.since_ms)),
            finished_at: None,
            due_at: None,
            worker: self.worker().and_then(|worker| WorkerId::new(worker).ok()),
            retry_reason: (self.state == State::Retrying).then(|| RetryReason::from_word(&self.holder)).flatten(),
            progress: None,
            result: None,
            error: None,
            error_code: None,
            dlq_id: None,
            replayed_as: None,
        }
    }

    /// The task while it lives.
    pub(super) fn live_view(&self, id: &TaskId, body: &Body, trail: Option<&Trail>, due_ms: Option<u64>) -> TaskView {
        let view = self.view(id, &body.extras);
        let last_worker = trail.and_then(|trail| WorkerId::new(trail.worker.clone()).ok());
        TaskView {
            payload: known(&body.payload).map(Payload::unchecked),
            due_at: due_ms.map(time),
            error: trail.and_then(|trail| known(&trail.error)),
            error_code: trail.and_then(|trail| known(&trail.code)),
            worker: view.worker.or(last_worker),
            ..view
        }
    }

    /// Everything about the task once it is dead.
    pub(super) fn dead_letter(&self, id: &TaskId, body: &Body, trail: Option<&Trail>) -> DeadLetter {
        DeadLetter {
            id: DeadLetterId { task: id.clone(), epoch: Epoch(self.epoch) },
            task_type: self.kind.clone(),
            payload: Payload::unchecked(body.payload.clone()),
            priority: self.priority,
            error: trail.map(|trail| trail.error.clone()).unwrap_or_default(),
            error_code: trail.map(|trail| trail.code.clone()).unwrap_or_default(),
            retry_count: self.retries,
            crash_count: self.crashes,
            release_count: self.releases,
            idempotency_key: named(&self.key, IdempotencyKey::new),
            tenant_id: named(&self.tenant, TenantId::new),
            trace_id: named(&self.trace, TraceId::new),
            max_retries: self.max_retries,
            extras: body.extras.clone(),
            created_at: time(self.created_ms),
            failed_at: time(self.since_ms),
            history: trail.map(|trail| trail.attempts.iter().cloned().collect()).unwrap_or_default(),
        }
    }
}

/// A message as it is shown.
pub(super) fn message_text(message: Message) -> String {
    format!("{message}-0")
}

/// A claim, as a lease's token names it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Claim {
    pub(super) epoch: u64,
    worker: String,
    message: Message,
    pub(super) created_ms: u64,
    kind: TaskType,
    retries: u32,
    pub(super) tenant: String,
    trace: String,
}

impl Claim {
    /// The claim of a lease; `None` if nobody can have handed it out.
    pub(super) fn of(lease: &Lease) -> Option<Self> {
        serde_json::from_slice(&lease.token).ok()
    }

    /// An effect that its attempt says has happened, as the outbox carries it.
    pub(super) fn effect(self, task: &TaskId, key: &IdempotencyKey, at_ms: u64) -> EffectEvent {
        EffectEvent {
            key: key.clone(),
            task: task.clone(),
            epoch: Epoch(self.epoch),
            at: time(at_ms),
            created_at: time(self.created_ms),
            task_type: self.kind,
            retry_count: self.retries,
            tenant_id: named(&self.tenant, TenantId::new),
            trace_id: named(&self.trace, TraceId::new),
            consumer: known(&self.worker),
        }
    }
}

/// The claim that a lease's token names; 0 if none can have that.
pub(super) fn epoch_of(lease: &Lease) -> u64 {
    Claim::of(lease).map_or(0, |claim| claim.epoch)
}

/// When the task of a lease was created, and its tenant (empty for none).
pub(super) fn created_and_tenant(lease: &Lease) -> (u64, String) {
    Claim::of(lease).map(|claim| (claim.created_ms, claim.tenant)).unwrap_or_default()
}

fn encode_extras(extras: &Extras) -> Vec<u8> {
    serde_json::to_vec(extras).expect("invariant: extras have a JSON form")
}

/// The extras that a lease carries.
pub(super) fn decode_extras(lease: &Lease) -> Extras {
    serde_json::from_slice(&lease.extras).unwrap_or_default()
}

/// What is kept of attempts that did not succeed.
#[derive(Debug, Default)]
pub(super) struct Trail {
    pub(super) error: String,
    pub(super) code: String,
    /// Who ran it last; empty before anybody did.
    pub(super) worker: String,
    pub(super) taken_from: Option<TakenFrom>,
    /// The last ones, the oldest first.
    pub(super) attempts: VecDeque<Attempt>,
}

/// From whom a task was taken, which entry, and what was known of that worker's end.
#[derive(Debug)]
pub(super) struct TakenFrom {
    pub(super) worker: String,
    pub(super) message: Message,
    pub(super) words: String,
}

/// A task that has ended, as its result tells it.
#[derive(Debug)]
pub(super) struct Finished {
    pub(super) state: State,
    /// Its last record.
    pub(super) record: Record,
    pub(super) extras: Extras,
    pub(super) result: Option<Payload>,
    pub(super) error: String,
    pub(super) code: String,
    pub(super) dlq_id: Option<String>,
    pub(super) finished_ms: u64,
    /// Its place among all results.
    pub(super) number: u64,
}

impl Finished {
    pub(super) fn view(&self, id: &TaskId) -> TaskView {
        TaskView {
            state: self.state,
            updated_at: time(self.finished_ms),
            finished_at: Some(time(self.finished_ms)),
            retry_reason: None,
            result: self.result.clone(),
            error: known(&self.error),
            error_code: known(&self.code),
            dlq_id: self.dlq_id.clone(),
            ..self.record.view(id, &self.extras)
        }
    }
}
