//! The record of a live task, as the scripts write it.

use serde::Deserialize;

use super::reply::{Malformed, timestamp};
use crate::broker::{ClaimedTask, Lease};
use crate::protocol::names::{Epoch, IdempotencyKey, TaskId, TaskType, TenantId, TraceId};
use crate::protocol::state::State;
use crate::protocol::task::{Extras, Payload};

/// The fields of a token, in their order (see `lua/part/token.lua`).
#[derive(Debug, Deserialize)]
pub(super) struct Token {
    state: char,
    pub(super) epoch: u64,
    pub(super) since_ms: u64,
    /// The worker while it runs; else why it runs again or died.
    pub(super) holder: String,
    pub(super) message: String,
    pub(super) created_ms: u64,
    pub(super) retries: u32,
    pub(super) crashes: u32,
    pub(super) releases: u32,
    kind: String,
    pub(super) priority: u8,
    key: String,
    tenant: String,
    trace: String,
    max_retries: i64,
}

/// A name that may be absent, which is written as an empty one.
fn optional<T>(value: &str, new: impl Fn(String) -> Result<T, crate::protocol::names::InvalidName>) -> Option<T> {
    if value.is_empty() { None } else { new(value.to_owned()).ok() }
}

impl Token {
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        serde_json::from_slice(bytes).map_err(|error| Malformed(format!("a task's record: {error}")))
    }

    pub(super) fn state(&self) -> Result<State, Malformed> {
        State::from_letter(self.state).ok_or_else(|| Malformed(format!("a state {:?}", self.state)))
    }

    pub(super) fn task_type(&self) -> Result<TaskType, Malformed> {
        TaskType::new(self.kind.clone()).map_err(|error| Malformed(error.to_string()))
    }

    pub(super) fn epoch(&self) -> Epoch {
        Epoch(self.epoch)
    }

    pub(super) fn idempotency_key(&self) -> Option<IdempotencyKey> {
        optional(&self.key, IdempotencyKey::new)
    }

    pub(super) fn tenant_id(&self) -> Option<TenantId> {
        optional(&self.tenant, TenantId::new)
    }

    pub(super) fn trace_id(&self) -> Option<TraceId> {
        optional(&self.trace, TraceId::new)
    }

    pub(super) fn max_retries(&self) -> Option<u32> {
        u32::try_from(self.max_retries).ok()
    }
}

/// Values as scripts unpack them.
pub(super) fn pack<T: serde::Serialize>(values: &T) -> Vec<u8> {
    rmp_serde::to_vec(values).expect("invariant: plain values have a packed form")
}

/// Extras as they are stored: nothing when there are none.
pub(super) fn encode_extras(extras: &Extras) -> Vec<u8> {
    if extras.is_empty() {
        return Vec::new();
    }
    serde_json::to_vec(extras).expect("invariant: extras have a JSON form")
}

/// Extras as they were stored.
pub(super) fn decode_extras(bytes: &[u8]) -> Result<Extras, Malformed> {
    if bytes.is_empty() {
        return Ok(Extras::default());
    }
    serde_json::from_slice(bytes).map_err(|error| Malformed(format!("a task's extras: {error}")))
}

/// A task as a claim hands it out: id, payload, extras, token.
pub(super) fn claimed(id: String, payload: Vec<u8>, extras: Vec<u8>, token: Vec<u8>) -> Result<ClaimedTask, Malformed> {
    let fields = Token::decode(&token)?;
    let task = TaskId::new(id).map_err(|error| Malformed(error.to_string()))?;
    Ok(ClaimedTask {
        task_type: fields.task_type()?,
        payload: Payload::unchecked(String::from_utf8_lossy(&payload).into_owned()),
        priority: fields.priority,
        retry_count: fields.retries,
        crash_count: fields.crashes,
        release_count: fields.releases,
        idempotency_key: fields.idempotency_key(),
        tenant_id: fields.tenant_id(),
        trace_id: fields.trace_id(),
        extras: decode_extras(&extras)?,
        created_at: timestamp(fields.created_ms),
        claimed_at: timestamp(fields.since_ms),
        lease: Lease { task, epoch: fields.epoch(), token, extras },
    })
}
