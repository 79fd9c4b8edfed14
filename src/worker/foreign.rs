//! What handlers in other languages have in common, however they are reached.
//!
//! Owns: the task as JSON, the facts that go into an environment or into
//! headers, and how output becomes a result. Must not know: processes, HTTP.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use serde::Serialize;
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::api::Pass;
use super::context::{CancelReason, TaskContext};
use crate::broker::{MAX_ERROR_BYTES, Outcome};
use crate::protocol::names::{IdempotencyKey, TaskId, TaskType, TenantId, TraceId};
use crate::protocol::policy::Policy;
use crate::protocol::task::Payload;

/// The largest result that a handler may give. Clones are the same bound: a
/// queue's owner may change it while its workers run.
#[derive(Debug, Clone)]
pub struct ResultBound(Arc<AtomicUsize>);

impl ResultBound {
    /// Sets the bound, in bytes.
    pub fn set(&self, bytes: u64) {
        self.0.store(usize::try_from(bytes).unwrap_or(usize::MAX), Ordering::Relaxed);
    }

    /// The bound, in bytes.
    pub fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Default for ResultBound {
    /// That of a queue with the usual limits.
    fn default() -> Self {
        let bound = Self(Arc::default());
        bound.set(Policy::default().limits.result_bytes);
        bound
    }
}

/// The code of a result that is too large.
pub(super) const RESULT_TOO_LARGE: &str = "result_too_large";

/// The longest wait that a `retry-after` may ask for; a queue's deadline is usually shorter.
const LONGEST_WAIT: Duration = Duration::from_secs(366 * 24 * 3600);

/// Why a handler cannot be used at all. Found before the first task is claimed.
#[derive(Debug, thiserror::Error)]
pub enum UnusableHandler {
    /// No command was given.
    #[error("no command was given: write it after `--exec --`, like `--exec -- python3 handle.py`")]
    NoCommand,
    /// The program does not exist.
    #[error("the handler {program:?} was not found: check its path, or that it is in PATH")]
    NotFound {
        /// As it was given.
        program: String,
    },
    /// The program may not be run.
    #[error("the handler {program:?} is not executable: make it so with `chmod +x`, or name its interpreter first")]
    NotExecutable {
        /// As it was given.
        program: String,
    },
    /// The directory to run in does not exist.
    #[error("the directory {directory:?} for the handler was not found: check its path")]
    NoDirectory {
        /// As it was given.
        directory: String,
    },
    /// The address is not one that can be posted to.
    #[error("the handler's address is not usable: {reason}; write it like http://127.0.0.1:8080/tasks")]
    BadUrl {
        /// What is wrong with it.
        reason: String,
    },
    /// The client could not be made.
    #[error("the HTTP client cannot be made: {reason}")]
    NoClient {
        /// What went wrong.
        reason: String,
    },
}

/// The task as handlers see it. Every field is always there.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Document<'a> {
    id: &'a TaskId,
    queue: String,
    #[serde(rename = "type")]
    task_type: &'a TaskType,
    payload: &'a RawValue,
    /// How many attempts have begun: the same number as the epoch, by the name that people use.
    attempt: u64,
    retry_count: u32,
    crash_count: u32,
    release_count: u32,
    epoch: u64,
    priority: u8,
    idempotency_key: Option<&'a IdempotencyKey>,
    execution_key: String,
    tenant_id: Option<&'a TenantId>,
    trace_id: Option<&'a TraceId>,
    traceparent: Option<String>,
    labels: &'a BTreeMap<String, String>,
    parent_id: Option<&'a TaskId>,
    replay_of: Option<&'a str>,
    created_at: Timestamp,
    claimed_at: Timestamp,
    deadline: Option<Timestamp>,
}

/// One attempt, told to a handler in another language.
pub(super) struct Told {
    /// The task as JSON.
    pub(super) document: String,
    /// Short facts by name, like `task-id`; `None` where the task has no such thing.
    pub(super) facts: Vec<(&'static str, Option<String>)>,
    /// The `traceparent` to go on with.
    pub(super) traceparent: Option<String>,
}

impl Told {
    /// Tells an attempt; with a pass, also how to reach the local API.
    pub(super) fn new(context: &TaskContext, pass: Option<&Pass>) -> Self {
        let task = context.task();
        let traceparent = context.traceparent();
        let document = document(context, traceparent.clone());
        let owned = |text: &str| Some(text.to_owned());
        let facts = vec![
            ("task-id", owned(task.lease.task.as_str())),
            ("type", owned(task.task_type.as_str())),
            ("queue", Some(context.queue().to_string())),
            ("attempt", Some(task.lease.epoch.to_string())),
            ("execution-key", Some(task.execution_key())),
            ("idempotency-key", task.idempotency_key.as_ref().and_then(|key| owned(key.as_str()))),
            ("trace-id", task.trace_id.as_ref().and_then(|id| owned(id.as_str()))),
            ("tenant-id", task.tenant_id.as_ref().and_then(|id| owned(id.as_str()))),
            ("api", pass.and_then(|pass| owned(pass.url()))),
            ("api-token", pass.and_then(|pass| owned(pass.token()))),
        ];
        Self { document, facts, traceparent }
    }
}

fn document(context: &TaskContext, traceparent: Option<String>) -> String {
    let task = context.task();
    let payload = raw(task.payload.as_str());
    let document = Document {
        id: &task.lease.task,
        queue: context.queue().to_string(),
        task_type: &task.task_type,
        payload: &payload,
        attempt: task.lease.epoch.0,
        retry_count: task.retry_count,
        crash_count: task.crash_count,
        release_count: task.release_count,
        epoch: task.lease.epoch.0,
        priority: task.priority,
        idempotency_key: task.idempotency_key.as_ref(),
        execution_key: task.execution_key(),
        tenant_id: task.tenant_id.as_ref(),
        trace_id: task.trace_id.as_ref(),
        traceparent,
        labels: &task.extras.labels,
        parent_id: task.extras.parent_id.as_ref(),
        replay_of: task.extras.replay_of.as_deref(),
        created_at: task.created_at,
        claimed_at: task.claimed_at,
        deadline: context.deadline().map(wall_clock),
    };
    serde_json::to_string(&document).expect("invariant: names, numbers and JSON have a JSON form")
}

/// The payload byte for byte; what a raw producer sent that is no JSON becomes a string.
fn raw(payload: &str) -> Box<RawValue> {
    RawValue::from_string(payload.to_owned()).unwrap_or_else(|_| {
        let quoted = serde_json::Value::from(payload).to_string();
        RawValue::from_string(quoted).expect("invariant: a quoted text is JSON")
    })
}

/// A moment of this process as a time that others understand.
fn wall_clock(at: Instant) -> Timestamp {
    let left = at.saturating_duration_since(Instant::now());
    Timestamp::now().checked_add(left).unwrap_or(Timestamp::MAX)
}

/// Output as a result: JSON if it is, else a text; nothing if it is empty.
pub(super) fn success(output: &[u8], bound: usize) -> Outcome {
    let text = String::from_utf8_lossy(output);
    let text = text.trim();
    if text.is_empty() {
        return Outcome::success();
    }
    let result = Payload::from_json(text).unwrap_or_else(|_| serde_json::Value::from(text).into());
    if result.as_str().len() > bound { too_large(bound) } else { Outcome::result(result) }
}

/// A result that is over the bound: trying again would give the same.
pub(super) fn too_large(bound: usize) -> Outcome {
    let advice = "store it elsewhere and return where it is";
    Outcome::permanent(RESULT_TOO_LARGE, format!("the result is larger than {bound} bytes: {advice}"))
}

/// How an attempt ends that was told to end. What the handler says then does
/// not count: many programs end a SIGTERM with status 0 and half of the work.
pub(super) fn cut_short(reason: CancelReason, said: &str) -> Outcome {
    let said = if said.is_empty() { "the handler was ended" } else { said };
    match reason {
        CancelReason::Cancelled => Outcome::failure("cancelled", said),
        CancelReason::LeaseLost => Outcome::failure("lease_lost", said),
        CancelReason::TimedOut => Outcome::failure("timeout", said),
        CancelReason::Draining => Outcome::Released { delay: Duration::ZERO },
    }
}

/// The wait that a `Retry-After` asks for: seconds or an HTTP date.
pub(super) fn retry_after(value: &str) -> Option<Duration> {
    let value = value.trim();
    let wait = match value.parse::<f64>() {
        Ok(seconds) if seconds.is_nan() || seconds < 0.0 => return None,
        Ok(seconds) => Duration::try_from_secs_f64(seconds).unwrap_or(LONGEST_WAIT),
        Err(_) => {
            let at = httpdate::parse_http_date(value).ok()?;
            at.duration_since(SystemTime::now()).unwrap_or_default()
        }
    };
    Some(wait.min(LONGEST_WAIT))
}

/// The end of an output as text: at most [`MAX_ERROR_BYTES`], no half characters.
pub(super) fn tail(output: &[u8]) -> String {
    let last = &output[output.len().saturating_sub(MAX_ERROR_BYTES)..];
    let begun_before = last.iter().take(3).take_while(|byte| (0x80..0xC0).contains(*byte)).count();
    let skipped = if last.len() < output.len() { begun_before } else { 0 };
    let text = String::from_utf8_lossy(&last[skipped..]);
    // What is not UTF-8 grew when it was replaced.
    let text = text.trim();
    text[text.ceil_char_boundary(text.len().saturating_sub(MAX_ERROR_BYTES))..].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_json_if_it_parses_and_a_text_otherwise() {
        let result = |text: &str| success(text.as_bytes(), 100);
        assert_eq!(result(" {\"a\": 1.0}\n"), Outcome::result(Payload::from_json("{\"a\": 1.0}").expect("JSON")));
        assert_eq!(result("done\n"), Outcome::result(serde_json::json!("done")));
        assert_eq!(result("NaN"), Outcome::result(serde_json::json!("NaN")));
        assert_eq!(result(" \n"), Outcome::success());
        assert!(matches!(success(b"\xff", 100), Outcome::Success { result: Some(_) }));
    }

    #[test]
    fn a_text_that_outgrows_the_bound_when_it_is_quoted_is_too_large() {
        let quotes = "\"".repeat(60);
        assert!(matches!(success(quotes.as_bytes(), 100), Outcome::Permanent { code, .. } if code == RESULT_TOO_LARGE));
    }

    #[test]
    fn a_wait_is_seconds_or_a_date_and_never_endless() {
        assert_eq!(retry_after(" 120 "), Some(Duration::from_secs(120)));
        assert_eq!(retry_after("1.5"), Some(Duration::from_millis(1500)));
        assert_eq!(retry_after("Wed, 21 Oct 2015 07:28:00 GMT"), Some(Duration::ZERO));
        assert_eq!(retry_after("1e300"), Some(LONGEST_WAIT));
        assert_eq!(retry_after("inf"), Some(LONGEST_WAIT));
        for bad in ["", "-1", "NaN", "soon"] {
            assert_eq!(retry_after(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn the_tail_is_bounded_and_has_no_half_characters() {
        assert_eq!(tail("  a\n".as_bytes()), "a");
        let long = "é".repeat(MAX_ERROR_BYTES);
        for cut in 0..2 {
            let kept = tail(&long.as_bytes()[cut..]);
            assert!(kept.len() <= MAX_ERROR_BYTES && kept.ends_with('é'), "{}", kept.len());
        }
        assert!(!tail(format!("x{long}").as_bytes()).contains('\u{FFFD}'));
        assert!(tail(&[0xff; 10_000]).len() <= MAX_ERROR_BYTES);
    }

    #[test]
    fn a_payload_that_is_no_json_is_told_as_a_text() {
        assert_eq!(raw("{ \"a\":1 }").get(), "{ \"a\":1 }");
        assert_eq!(raw("hello \"you\"").get(), r#""hello \"you\"""#);
    }
}
