//! Reads what scripts answer.

use std::collections::{BTreeMap, HashMap};

use jiff::Timestamp;
use redis::Value;
use serde::Deserialize;

use super::token::{Token, decode_extras};
use crate::broker::{
    BrokerError, DeadLetterView, Decision, DecisionAction, Demand, Doubt, EffectBegun, EffectEvent, EffectMark, Event,
    ListCursor, OutboxEntry, Page, Review, Stillness, Voice, WorkerInfo, WorkerRecord,
};
use crate::protocol::names::{DeadLetterId, Epoch, IdempotencyKey, TaskId, WorkerId};
use crate::protocol::state::{RetryReason, State};
use crate::protocol::task::{Attempt, DeadLetter, Payload, TaskView};

/// An answer that no script of ours gives.
#[derive(Debug)]
pub(super) struct Malformed(pub(super) String);

impl Malformed {
    /// As an error of the operation that was tried.
    pub(super) fn during(self, operation: &'static str) -> BrokerError {
        BrokerError::Unexpected { operation, detail: self.0 }
    }
}

/// Milliseconds since 1970 as a time; what no calendar holds is shown as the beginning of time.
pub(super) fn timestamp(ms: u64) -> Timestamp {
    i64::try_from(ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok()).unwrap_or_default()
}

pub(super) fn list(value: Value) -> Result<Vec<Value>, Malformed> {
    match value {
        Value::Array(items) => Ok(items),
        Value::Nil => Ok(Vec::new()),
        other => Err(Malformed(format!("expected a list, got {other:?}"))),
    }
}

pub(super) fn bytes(value: Value) -> Result<Vec<u8>, Malformed> {
    match value {
        Value::BulkString(bytes) => Ok(bytes),
        Value::SimpleString(text) => Ok(text.into_bytes()),
        Value::Okay => Ok(b"OK".to_vec()),
        Value::Int(number) => Ok(number.to_string().into_bytes()),
        Value::Nil => Ok(Vec::new()),
        other => Err(Malformed(format!("expected text, got {other:?}"))),
    }
}

pub(super) fn text(value: Value) -> Result<String, Malformed> {
    Ok(String::from_utf8_lossy(&bytes(value)?).into_owned())
}

pub(super) fn number(value: Value) -> Result<u64, Malformed> {
    match value {
        Value::Int(number) => u64::try_from(number).map_err(|_| Malformed(format!("a number below zero: {number}"))),
        other => {
            let word = text(other)?;
            // Scores come as floating-point numbers, whole ones here.
            word.parse::<f64>().map(|n| n as u64).map_err(|_| Malformed(format!("expected a number, got {word:?}")))
        }
    }
}

pub(super) fn texts(value: Value) -> Result<Vec<String>, Malformed> {
    list(value)?.into_iter().map(text).collect()
}

pub(super) fn task_id(word: String) -> Result<TaskId, Malformed> {
    TaskId::new(word).map_err(|error| Malformed(error.to_string()))
}

pub(super) fn task_ids(value: Value) -> Result<Vec<TaskId>, Malformed> {
    texts(value)?.into_iter().map(task_id).collect()
}

/// The answer's parts, of which there must be so many.
pub(super) fn parts<const N: usize>(value: Value) -> Result<[Value; N], Malformed> {
    let items = list(value)?;
    let count = items.len();
    items.try_into().map_err(|_| Malformed(format!("expected {N} parts, got {count}")))
}

/// A flat list of names and values.
pub(super) fn fields(value: Value) -> Result<HashMap<String, Vec<u8>>, Malformed> {
    let mut items = list(value)?.into_iter();
    let mut map = HashMap::new();
    while let (Some(name), Some(value)) = (items.next(), items.next()) {
        map.insert(text(name)?, bytes(value)?);
    }
    Ok(map)
}

fn field_text(map: &HashMap<String, Vec<u8>>, name: &str) -> Option<String> {
    map.get(name).map(|value| String::from_utf8_lossy(value).into_owned()).filter(|value| !value.is_empty())
}

fn field_number(map: &HashMap<String, Vec<u8>>, name: &str) -> Option<u64> {
    field_text(map, name)?.parse().ok()
}

fn payload(bytes: &[u8]) -> Option<Payload> {
    (!bytes.is_empty()).then(|| Payload::unchecked(String::from_utf8_lossy(bytes).into_owned()))
}

/// What a token alone says of a task.
fn view_of(id: TaskId, token: &Token, extras: &[u8]) -> Result<TaskView, Malformed> {
    let state = token.state()?;
    let runs = state == State::Running;
    Ok(TaskView {
        id,
        task_type: token.task_type()?,
        state,
        priority: token.priority,
        payload: None,
        retry_count: token.retries,
        crash_count: token.crashes,
        release_count: token.releases,
        epoch: token.epoch(),
        idempotency_key: token.idempotency_key(),
        trace_id: token.trace_id(),
        tenant_id: token.tenant_id(),
        max_retries: token.max_retries(),
        extras: decode_extras(extras)?,
        created_at: timestamp(token.created_ms),
        updated_at: timestamp(token.since_ms),
        started_at: runs.then(|| timestamp(token.since_ms)),
        finished_at: None,
        due_at: None,
        worker: runs.then(|| WorkerId::new(token.holder.clone()).ok()).flatten(),
        retry_reason: (state == State::Retrying).then(|| RetryReason::from_word(&token.holder)).flatten(),
        progress: None,
        result: None,
        error: None,
        error_code: None,
        dlq_id: None,
        replayed_as: None,
    })
}

/// A live task, from `get`.
pub(super) fn live_view(parts: [Value; 8]) -> Result<TaskView, Malformed> {
    let [_, id, token, body, extras, due, more, progress] = parts;
    let token = Token::decode(&bytes(token)?)?;
    let mut view = view_of(task_id(text(id)?)?, &token, &bytes(extras)?)?;
    view.payload = payload(&bytes(body)?);
    view.progress = payload(&bytes(progress)?);
    view.due_at = match text(due)?.as_str() {
        "" => None,
        word => Some(timestamp(number(Value::BulkString(word.as_bytes().to_vec()))?)),
    };
    let more = fields(more)?;
    view.error = field_text(&more, "error");
    view.error_code = field_text(&more, "code");
    view.worker = view.worker.or_else(|| field_text(&more, "worker").and_then(|word| WorkerId::new(word).ok()));
    Ok(view)
}

/// A finished task, from its result entry.
pub(super) fn done_view(id: TaskId, entry: &HashMap<String, Vec<u8>>) -> Result<TaskView, Malformed> {
    let token = entry.get("token").ok_or_else(|| Malformed("a result without a token".to_owned()))?;
    let token = Token::decode(token)?;
    let mut view = view_of(id, &token, entry.get("meta").map_or(&[], Vec::as_slice))?;
    let word = field_text(entry, "status").unwrap_or_default();
    view.state = word.parse().map_err(|error| Malformed(format!("{error}")))?;
    view.finished_at = field_number(entry, "finished_at").map(timestamp);
    view.updated_at = view.finished_at.unwrap_or(view.updated_at);
    view.retry_reason = None;
    view.result = entry.get("result").and_then(|body| payload(body));
    view.error = field_text(entry, "error");
    view.error_code = field_text(entry, "error_code");
    view.dlq_id = field_text(entry, "dlq_id");
    Ok(view)
}

/// A finished task, from `get`.
pub(super) fn finished_view(parts: [Value; 8]) -> Result<TaskView, Malformed> {
    let [_, id, _, entry, _, _, body, replayed] = parts;
    let mut view = done_view(task_id(text(id)?)?, &fields(entry)?)?;
    view.payload = payload(&bytes(body)?);
    view.replayed_as = TaskId::new(text(replayed)?).ok();
    Ok(view)
}

/// A dead letter, from `pending_dead_letters` or as a part of `dead_letters`.
pub(super) fn dead_letter(value: Value) -> Result<DeadLetter, Malformed> {
    #[derive(Deserialize)]
    struct Row(u64, u64, String, String, serde_bytes::ByteBuf, String);
    let [id, token, body, extras, error, code, history] = parts(value)?;
    let token = Token::decode(&bytes(token)?)?;
    let rows: Vec<Row> = serde_json::from_slice(&bytes(history)?).map_err(|e| Malformed(format!("a history: {e}")))?;
    Ok(DeadLetter {
        id: DeadLetterId { task: task_id(text(id)?)?, epoch: token.epoch() },
        task_type: token.task_type()?,
        payload: payload(&bytes(body)?).unwrap_or_default(),
        priority: token.priority,
        error: text(error)?,
        error_code: text(code)?,
        retry_count: token.retries,
        crash_count: token.crashes,
        release_count: token.releases,
        idempotency_key: token.idempotency_key(),
        tenant_id: token.tenant_id(),
        trace_id: token.trace_id(),
        max_retries: token.max_retries(),
        extras: decode_extras(&bytes(extras)?)?,
        created_at: timestamp(token.created_ms),
        failed_at: timestamp(token.since_ms),
        history: rows
            .into_iter()
            .map(|Row(epoch, at_ms, outcome, code, error, worker)| Attempt {
                epoch,
                at_ms,
                outcome,
                code,
                error: lossy(error),
                worker,
            })
            .collect(),
    })
}

/// Recorded dead letters, from `dead_letters`.
pub(super) fn dead_letter_page(value: Value) -> Result<Page<DeadLetterView>, Malformed> {
    let [next, rows] = parts(value)?;
    let next = text(next)?;
    let view = |row| -> Result<DeadLetterView, Malformed> {
        let [letter, recorded, decided, asked] = parts(row)?;
        let (decided, asked) = (bytes(decided)?, bytes(asked)?);
        let review = match (decided.is_empty(), asked.is_empty()) {
            (false, _) => review(&decided)?,
            (true, false) => Review::DiscardRequested(request(&asked)?),
            (true, true) => Review::Open,
        };
        Ok(DeadLetterView { letter: dead_letter(letter)?, recorded_at: timestamp(number(recorded)?), review })
    };
    let items = list(rows)?.into_iter().map(view).collect::<Result<_, _>>()?;
    Ok(Page { items, next: (!next.is_empty()).then_some(ListCursor(next)) })
}

/// Whether an effect may begin.
pub(super) fn effect_begun(value: Value) -> Result<EffectBegun, Malformed> {
    let mut values = list(value)?.into_iter();
    let mut next = || values.next().unwrap_or(Value::Nil);
    match text(next())?.as_str() {
        "begin" => Ok(EffectBegun::Begin),
        "lost" => Ok(EffectBegun::LeaseLost),
        "done" => Ok(EffectBegun::Done { answer: Payload::unchecked(text(next())?) }),
        "doubt" => Ok(EffectBegun::InDoubt(Doubt {
            since: timestamp(number(next())?),
            task: task_id(text(next())?)?,
            epoch: Epoch(number(next())?),
            worker: WorkerId::new(text(next())?).ok(),
            mark: EffectMark::kept(text(next())?),
        })),
        other => Err(Malformed(format!("answer {other:?}"))),
    }
}

/// A text that may not have been said.
fn said(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

/// Who asked for a discard.
fn request(packed: &[u8]) -> Result<Voice, Malformed> {
    let (person, reason, at): (serde_bytes::ByteBuf, serde_bytes::ByteBuf, u64) =
        rmp_serde::from_slice(packed).map_err(|error| Malformed(format!("a request for a discard: {error}")))?;
    Ok(Voice { person: lossy(person), reason: said(lossy(reason)), at: timestamp(at) })
}

/// What was decided about a dead letter.
fn review(packed: &[u8]) -> Result<Review, Malformed> {
    #[derive(Deserialize)]
    struct Row(
        String,
        serde_bytes::ByteBuf,
        u64,
        #[expect(dead_code, reason = "the message is for scripts")] String,
        #[serde(default)] serde_bytes::ByteBuf,
        #[serde(default)] serde_bytes::ByteBuf,
    );
    let malformed = |error| Malformed(format!("a decision about a dead letter: {error}"));
    let Row(word, subject, at, _, more, last) = rmp_serde::from_slice(packed).map_err(malformed)?;
    let at = timestamp(at);
    match word.as_str() {
        "replayed" => Ok(Review::Replayed {
            task: task_id(lossy(subject))?,
            by: Voice { person: lossy(more), reason: said(lossy(last)), at },
        }),
        "discarded" => {
            let requested = if last.is_empty() { None } else { Some(request(&last)?) };
            Ok(Review::Discarded { by: Voice { person: lossy(subject), reason: said(lossy(more)), at }, requested })
        }
        other => Err(Malformed(format!("a decision {other:?}"))),
    }
}

/// What people decided, as an entry of the outbox carries it.
fn decisions(packed: &[u8], at: Timestamp) -> Result<Vec<Decision>, Malformed> {
    type Row = (String, String, u64, serde_bytes::ByteBuf, serde_bytes::ByteBuf, String);
    let rows: Vec<Row> =
        rmp_serde::from_slice(packed).map_err(|error| Malformed(format!("decisions in the outbox: {error}")))?;
    let decision = |(action, task, epoch, person, reason, new_task): Row| {
        Ok(Decision {
            dead_letter: DeadLetterId { task: task_id(task)?, epoch: Epoch(epoch) },
            action: match action.as_str() {
                "replayed" => DecisionAction::Replayed,
                "requested" => DecisionAction::DiscardRequested,
                "discarded" => DecisionAction::Discarded,
                other => return Err(Malformed(format!("an action {other:?}"))),
            },
            person: lossy(person),
            reason: said(lossy(reason)),
            new_task: said(new_task).map(task_id).transpose()?,
            at,
        })
    };
    rows.into_iter().map(decision).collect()
}

/// An entry of the outbox: its id, and its fields.
pub(super) fn outbox_entry(value: Value) -> Result<OutboxEntry, Malformed> {
    let [id, entry] = parts(value)?;
    let entry = fields(entry)?;
    let at = timestamp(field_number(&entry, "at").unwrap_or_default());
    // Tokens are bytes, which the packed form does not tell from text.
    let packed = |field: &str| -> Result<std::vec::IntoIter<serde_bytes::ByteBuf>, Malformed> {
        let Some(packed) = entry.get(field) else { return Ok(Vec::new().into_iter()) };
        let values: Vec<_> =
            rmp_serde::from_slice(packed).map_err(|error| Malformed(format!("{field} in the outbox: {error}")))?;
        Ok(values.into_iter())
    };
    let mut moves = packed("moves")?;
    let mut events = Vec::new();
    while let (Some(step), Some(id), Some(token)) = (moves.next(), moves.next(), moves.next()) {
        let more = if step.len() > 2 { moves.next().zip(moves.next()) } else { None };
        let (detail, worker) = more.unwrap_or_default();
        events.push(event(&step, [id, detail, worker].map(lossy), &token, at)?);
    }
    let decisions = entry.get("decisions").map_or(Ok(Vec::new()), |packed| decisions(packed, at))?;
    let mut done = packed("effects")?;
    let mut effects = Vec::new();
    while let (Some(id), Some(key), Some(token)) = (done.next(), done.next(), done.next()) {
        effects.push(effect([id, key].map(lossy), &token, at)?);
    }
    Ok(OutboxEntry { id: text(id)?, read_by: 0, events, decisions, effects })
}

/// An outside effect that happened, and the record of the task whose attempt said so.
fn effect([id, key]: [String; 2], token: &[u8], at: Timestamp) -> Result<EffectEvent, Malformed> {
    let token = Token::decode(token)?;
    Ok(EffectEvent {
        key: IdempotencyKey::new(key).map_err(|error| Malformed(error.to_string()))?,
        task: task_id(id)?,
        epoch: token.epoch(),
        at,
        created_at: timestamp(token.created_ms),
        task_type: token.task_type()?,
        retry_count: token.retries,
        tenant_id: token.tenant_id(),
        trace_id: token.trace_id(),
        consumer: said(token.holder),
    })
}

fn lossy(bytes: serde_bytes::ByteBuf) -> String {
    String::from_utf8_lossy(&bytes).into_owned()
}

/// One move: its step ('sR' is running to succeeded), and the task's record after it.
fn event(step: &[u8], [id, detail, worker]: [String; 3], token: &[u8], at: Timestamp) -> Result<Event, Malformed> {
    let state = |i: usize| step.get(i).and_then(|letter| State::from_letter(char::from(*letter)));
    let token = Token::decode(token)?;
    let runs = token.state()? == State::Running;
    Ok(Event {
        task: task_id(id)?,
        from: state(1),
        to: state(0).ok_or_else(|| Malformed(format!("an event's step {step:?}")))?,
        epoch: Epoch(token.epoch),
        at,
        created_at: timestamp(token.created_ms),
        task_type: token.task_type()?,
        retry_count: token.retries,
        tenant_id: token.tenant_id(),
        trace_id: token.trace_id(),
        consumer: said(if runs { token.holder.clone() } else { worker }),
        message_id: said(token.message.clone()),
        detail: said(detail),
    })
}

/// A registered worker: what it told of itself, and its heartbeat.
pub(super) fn worker_record(packed: &[u8], heartbeat_ms: u64) -> Result<WorkerRecord, Malformed> {
    #[derive(Deserialize)]
    struct Row(#[expect(dead_code, reason = "the place is for scripts")] String, u64, String);
    let Row(_, started_ms, told) =
        rmp_serde::from_slice(packed).map_err(|error| Malformed(format!("a worker's record: {error}")))?;
    let info: WorkerInfo =
        serde_json::from_str(&told).map_err(|error| Malformed(format!("what a worker told of itself: {error}")))?;
    Ok(WorkerRecord { info, started_at: timestamp(started_ms), heartbeat_at: timestamp(heartbeat_ms) })
}

/// The work that is there, and who holds how much of it.
pub(super) fn demand(value: Value) -> Result<Demand, Malformed> {
    let [mode, backlog, running, due, holders, lives, last] = parts(value)?;
    let mut held = BTreeMap::new();
    for pair in list(holders)?.chunks_exact(2) {
        // A consumer that is no worker's name is a stranger's.
        if let Ok(worker) = WorkerId::new(text(pair[0].clone())?) {
            held.insert(worker, number(pair[1].clone())?);
        }
    }
    let mode = super::mode_of(mode)?;
    let stillness = Stillness { lives: number(lives)? > 0, raw_up_to: text(last)? };
    Ok(Demand { mode, backlog: number(backlog)?, running: number(running)?, due: number(due)?, held, stillness })
}
