//! Moves of tasks and outside effects: from the outbox into the log, and out of it again.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::database::{Bind, Database, Dialect, Row, Statement, Writer, storable, time_text};
use super::error::{EventLogError, Fault};
use super::{EventLog, Place, Result, next_page, page_size, place_of, reviews};
use crate::broker::{EffectEvent, Event, ListCursor, OutboxEntry, Page};
use crate::protocol::names::{Epoch, IdempotencyKey, QueueName, TaskId, TaskType, TenantId, TraceId};
use crate::protocol::state::{RetryReason, State};

/// The error code of a task whose approval was refused.
const APPROVAL_REJECTED: &str = "approval_rejected";

/// What an outside effect that happened is called in the log.
const EFFECT_DONE: &str = "effect.done";

/// How many entries are written before others get the connection: SQLite has but one to write with.
const ENTRIES_A_TURN: usize = 32;

/// An event, as the log keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RecordedEvent {
    /// What happened: `task.claimed`, `dlq.discarded`, `effect.done`, ….
    pub event_type: String,
    /// Which task.
    pub task_id: TaskId,
    /// At which claim.
    pub epoch: Epoch,
    /// Where it was; `None` for a new task, and for what moves no task.
    pub from: Option<State>,
    /// Where it went; `None` for what moves no task.
    pub to: Option<State>,
    /// What kind of work it is.
    pub task_type: TaskType,
    /// Failures so far.
    pub retry_count: u32,
    /// On whose behalf.
    pub tenant_id: Option<TenantId>,
    /// Follows it.
    pub trace_id: Option<TraceId>,
    /// Who ran it, where somebody did.
    pub consumer: Option<String>,
    /// Its message in the lane, where it had one.
    pub message_id: Option<String>,
    /// More, by kind: an error code, a reason, what it was reclaimed from.
    pub detail: Option<String>,
    /// Which outside effect happened; `None` for everything else.
    pub idempotency_key: Option<IdempotencyKey>,
    /// When it happened, by the broker's clock.
    pub occurred_at: Timestamp,
    /// When it came into the log, by the database's clock.
    pub recorded_at: Timestamp,
}

/// Which events; the default is all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EventFilter {
    /// Of this kind.
    pub event_type: Option<String>,
    /// Of tasks of this type.
    pub task_type: Option<TaskType>,
    /// On behalf of this tenant.
    pub tenant: Option<TenantId>,
    /// Of this trace.
    pub trace: Option<TraceId>,
    /// Not before this time.
    pub after: Option<Timestamp>,
    /// Before this time.
    pub before: Option<Timestamp>,
}

/// How far [`EventLog::record_many`] came.
#[derive(Debug, Default)]
#[must_use = "it may have stopped before the last entry"]
pub struct Progress {
    /// Entries that are now in the log, from the first on.
    pub entries: usize,
    /// Moves and effects that were not in the log before.
    pub new: usize,
    /// Why it stopped before the last entry.
    pub stopped: Option<EventLogError>,
}

/// What a move is called in the log.
pub fn event_type(event: &Event) -> &'static str {
    use State::*;
    match (event.from, event.to) {
        // Also for a task that begins by waiting for a person: its state tells.
        (None, _) => "task.created",
        (Some(_), Succeeded) => "task.succeeded",
        (Some(_), Failed) => "task.failed",
        (Some(_), Cancelled) => "task.cancelled",
        (Some(_), Retrying) => "task.retrying",
        (Some(_), DlqRecorded) => "task.dlq",
        (Some(_), WaitingApproval) => "approval.requested",
        (Some(WaitingApproval), Queued) => "approval.approved",
        (Some(WaitingApproval), DlqPending) if event.detail.as_deref() == Some(APPROVAL_REJECTED) => {
            "approval.rejected"
        }
        (Some(_), DlqPending) => "task.dlq_pending",
        (Some(Retrying), Running) if was_reclaimed(event) => "task.reclaimed",
        (Some(_), Running) => "task.claimed",
        (Some(_), Queued | Scheduled | Blocked) => "task.promoted",
    }
}

/// Whether a claim's detail tells from whom the task was taken, and why.
fn was_reclaimed(event: &Event) -> bool {
    #[derive(Deserialize)]
    struct Taken {
        reason: String,
    }
    let taken = event.detail.as_deref().and_then(|detail| serde_json::from_str::<Taken>(detail).ok());
    taken.and_then(|taken| RetryReason::from_word(&taken.reason)).is_some_and(RetryReason::is_reclaim)
}

impl EventLog {
    /// Writes what one outbox entry tells, all of it or nothing; says how many moves
    /// and effects were new.
    pub async fn record(&self, queue: &QueueName, entry: &OutboxEntry) -> Result<usize> {
        self.call("record", async |database| write(&mut database.writer().await?, queue, entry).await).await
    }

    /// Writes outbox entries in their order, each in a transaction of its own.
    /// What it says it has written may be trimmed from the outbox.
    pub async fn record_many(&self, queue: &QueueName, entries: &[OutboxEntry]) -> Progress {
        let mut progress = Progress::default();
        for turn in entries.chunks(ENTRIES_A_TURN) {
            progress.stopped = self.record_turn(queue, turn, &mut progress).await.err();
            if progress.stopped.is_some() {
                break;
            }
        }
        progress
    }

    /// Writes entries over one connection.
    async fn record_turn(&self, queue: &QueueName, entries: &[OutboxEntry], progress: &mut Progress) -> Result<()> {
        let mut writer = self.call("record", Database::writer).await?;
        for entry in entries {
            progress.new += self.call("record", async |_| write(&mut writer, queue, entry).await).await?;
            progress.entries += 1;
        }
        Ok(())
    }

    /// Everything that happened to a task, in its order; at most [`super::MAX_PAGE`] events.
    pub async fn history(&self, queue: &QueueName, task: &TaskId) -> Result<Vec<RecordedEvent>> {
        let sql = format!(
            "SELECT * FROM event_log WHERE queue = $1 AND task_id = $2 \
             ORDER BY COALESCE(task_created_at, occurred_at), epoch, occurred_at, id LIMIT {}",
            super::MAX_PAGE
        );
        let select = Statement::new(sql, [Bind::text(queue.to_string()), Bind::text(task.as_str())]);
        self.call("history", async |database| {
            let rows = database.fetch(&select).await?;
            rows.iter().map(recorded_event).collect()
        })
        .await
    }

    /// Events in the order of their time.
    pub async fn events(
        &self,
        queue: &QueueName,
        filter: &EventFilter,
        cursor: ListCursor,
        limit: usize,
    ) -> Result<Page<RecordedEvent>> {
        let limit = page_size(limit);
        self.call("events", async |database| {
            let mut select = matching(queue, filter);
            if let Some(Place(at, id)) = place_of::<Timestamp, i64>(&cursor)? {
                select.push(" AND (occurred_at, id) > (?, ?)", [Bind::time(at), Bind::int(id)]);
            }
            select.push(&format!(" ORDER BY occurred_at, id LIMIT {limit}"), []);
            let rows = database.fetch(&select).await?;
            let next = next_page(&rows, limit, "occurred_at")?;
            Ok(Page { items: rows.iter().map(recorded_event).collect::<std::result::Result<_, _>>()?, next })
        })
        .await
    }
}

/// Writes an entry as one transaction; says how many of its moves and effects were new.
/// Most entries hold no decision, and are one statement.
async fn write(writer: &mut Writer, queue: &QueueName, entry: &OutboxEntry) -> std::result::Result<usize, Fault> {
    let dialect = writer.dialect();
    let insert = insert_of(dialect, queue, entry);
    if entry.decisions.is_empty() {
        return Ok(writer.execute(&insert).await? as usize);
    }
    let mut changes = writer.begin().await?;
    let new = changes.execute(&insert).await?;
    for said in &entry.decisions {
        reviews::record(&mut changes, dialect, &queue.to_string(), said).await?;
    }
    changes.commit().await?;
    Ok(new as usize)
}

fn insert_of(dialect: Dialect, queue: &QueueName, entry: &OutboxEntry) -> Statement {
    let moves = entry.events.iter().map(EventRow::of_move);
    let rows: Vec<EventRow<'_>> = moves.chain(entry.effects.iter().map(EventRow::of_effect)).collect();
    insert_rows(dialect, queue, serde_json::to_string(&rows).expect("invariant: text and numbers have a JSON form"))
}

/// A move or an effect as a row. The rows of an entry travel as one JSON text:
/// however many there are, the statement is the same one, prepared once and under
/// no bound on the number of values.
#[derive(Serialize)]
struct EventRow<'a> {
    event_type: &'static str,
    task_id: &'a str,
    epoch: i64,
    from_state: Option<&'static str>,
    to_state: Option<&'static str>,
    task_type: &'a str,
    retry_count: u32,
    tenant_id: Option<&'a str>,
    trace_id: Option<&'a str>,
    consumer: Option<String>,
    message_id: Option<String>,
    detail: Option<String>,
    idempotency_key: Option<&'a str>,
    task_created_at: String,
    occurred_at: String,
}

fn storable_text(text: &Option<String>) -> Option<String> {
    text.as_deref().map(storable)
}

impl<'a> EventRow<'a> {
    fn of_move(event: &'a Event) -> Self {
        Self {
            event_type: event_type(event),
            task_id: event.task.as_str(),
            epoch: event.epoch.0.try_into().unwrap_or(i64::MAX),
            from_state: event.from.map(State::as_str),
            to_state: Some(event.to.as_str()),
            task_type: event.task_type.as_str(),
            retry_count: event.retry_count,
            tenant_id: event.tenant_id.as_ref().map(TenantId::as_str),
            trace_id: event.trace_id.as_ref().map(TraceId::as_str),
            consumer: storable_text(&event.consumer),
            message_id: storable_text(&event.message_id),
            detail: storable_text(&event.detail),
            idempotency_key: None,
            task_created_at: time_text(event.created_at),
            occurred_at: time_text(event.at),
        }
    }

    fn of_effect(effect: &'a EffectEvent) -> Self {
        Self {
            event_type: EFFECT_DONE,
            task_id: effect.task.as_str(),
            epoch: effect.epoch.0.try_into().unwrap_or(i64::MAX),
            from_state: None,
            to_state: None,
            task_type: effect.task_type.as_str(),
            retry_count: effect.retry_count,
            tenant_id: effect.tenant_id.as_ref().map(TenantId::as_str),
            trace_id: effect.trace_id.as_ref().map(TraceId::as_str),
            consumer: storable_text(&effect.consumer),
            message_id: None,
            detail: None,
            idempotency_key: Some(effect.key.as_str()),
            task_created_at: time_text(effect.created_at),
            occurred_at: time_text(effect.at),
        }
    }
}

/// The columns of an [`EventRow`], with their types in PostgreSQL.
const COLUMNS: [(&str, &str); 15] = [
    ("event_type", "text"),
    ("task_id", "text"),
    ("epoch", "bigint"),
    ("from_state", "text"),
    ("to_state", "text"),
    ("task_type", "text"),
    ("retry_count", "bigint"),
    ("tenant_id", "text"),
    ("trace_id", "text"),
    ("consumer", "text"),
    ("message_id", "text"),
    ("detail", "text"),
    ("idempotency_key", "text"),
    ("task_created_at", "timestamptz"),
    ("occurred_at", "timestamptz"),
];

fn insert_rows(dialect: Dialect, queue: &QueueName, rows: String) -> Statement {
    let each = |write: fn(&(&str, &str)) -> String| COLUMNS.iter().map(write).collect::<Vec<_>>().join(", ");
    let columns = each(|(name, _)| (*name).to_owned());
    let unpacked = match dialect {
        Dialect::Postgres => {
            let typed = each(|(name, kind)| format!("{name} {kind}"));
            format!("SELECT $1, {columns} FROM json_to_recordset($2::json) AS rows ({typed})")
        }
        // Without a condition, ON CONFLICT would be read as part of a join.
        Dialect::Sqlite => {
            format!("SELECT $1, {} FROM json_each($2) WHERE true", each(|(name, _)| format!("value ->> '{name}'")))
        }
    };
    let sql = format!(
        // A move conflicts by its index, and an effect by its own.
        "INSERT INTO event_log (queue, {columns}) {unpacked} ON CONFLICT DO NOTHING"
    );
    Statement::new(sql, [Bind::text(queue.to_string()), Bind::Text(Some(rows))])
}

fn matching(queue: &QueueName, filter: &EventFilter) -> Statement {
    let EventFilter { event_type, task_type, tenant, trace, after, before } = filter;
    let mut select = Statement::new("SELECT * FROM event_log WHERE queue = $1", [Bind::text(queue.to_string())]);
    let conditions = [
        (" AND event_type = ?", event_type.as_ref().map(Bind::text)),
        (" AND task_type = ?", task_type.as_ref().map(|value| Bind::text(value.as_str()))),
        (" AND tenant_id = ?", tenant.as_ref().map(|value| Bind::text(value.as_str()))),
        (" AND trace_id = ?", trace.as_ref().map(|value| Bind::text(value.as_str()))),
        (" AND occurred_at >= ?", after.map(Bind::time)),
        (" AND occurred_at < ?", before.map(Bind::time)),
    ];
    for (condition, value) in conditions {
        if let Some(value) = value {
            select.push(condition, [value]);
        }
    }
    select
}

fn recorded_event(row: &Row) -> std::result::Result<RecordedEvent, Fault> {
    Ok(RecordedEvent {
        event_type: row.text("event_type")?,
        task_id: row.parsed("task_id")?,
        epoch: Epoch(row.count("epoch")?),
        from: row.maybe_parsed("from_state")?,
        to: row.maybe_parsed("to_state")?,
        task_type: row.parsed("task_type")?,
        retry_count: row.count("retry_count")?.try_into().unwrap_or(u32::MAX),
        tenant_id: row.maybe_parsed("tenant_id")?,
        trace_id: row.maybe_parsed("trace_id")?,
        consumer: row.maybe_text("consumer")?,
        message_id: row.maybe_text("message_id")?,
        detail: row.maybe_text("detail")?,
        idempotency_key: row.maybe_parsed("idempotency_key")?,
        occurred_at: row.time("occurred_at")?,
        recorded_at: row.time("recorded_at")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(from: Option<State>, to: State, detail: Option<&str>) -> &'static str {
        event_type(&Event {
            task: TaskId::new("t").expect("valid"),
            from,
            to,
            epoch: Epoch(1),
            at: Timestamp::UNIX_EPOCH,
            created_at: Timestamp::UNIX_EPOCH,
            task_type: TaskType::default(),
            retry_count: 0,
            tenant_id: None,
            trace_id: None,
            consumer: None,
            message_id: None,
            detail: detail.map(str::to_owned),
        })
    }

    #[test]
    fn every_move_of_the_state_table_has_its_name() {
        use State::*;
        let expected = |from: State, to: State| match (from, to) {
            (WaitingApproval, Queued) => "approval.approved",
            (Scheduled | Blocked, Queued) => "task.promoted",
            (Queued | Retrying, Running) => "task.claimed",
            (Running, Retrying) => "task.retrying",
            (Running, WaitingApproval) => "approval.requested",
            (Running, Succeeded) => "task.succeeded",
            (_, DlqPending) => "task.dlq_pending",
            (DlqPending, DlqRecorded) => "task.dlq",
            (DlqRecorded, Failed) => "task.failed",
            (_, Cancelled) => "task.cancelled",
            other => panic!("the table has a move without a name: {other:?}"),
        };
        let mut moves = 0;
        for from in State::ALL {
            for to in State::ALL.into_iter().filter(|to| from.may_become(*to)) {
                assert_eq!(named(Some(from), to, None), expected(from, to), "{from} -> {to}");
                moves += 1;
            }
        }
        assert_eq!(moves, 22, "a move was added or removed");
        for first in State::ALL.into_iter().filter(|state| state.is_initial()) {
            assert_eq!(named(None, first, None), "task.created", "{first}");
        }
    }

    #[test]
    fn a_claim_is_a_reclaim_only_if_the_task_was_taken_from_somebody() {
        let claim = |detail: Option<&str>| named(Some(State::Retrying), State::Running, detail);
        for reason in RetryReason::ALL {
            let detail = format!(r#"{{"from":"w","message":"1-0","reason":"{reason}"}}"#);
            let expected = if reason.is_reclaim() { "task.reclaimed" } else { "task.claimed" };
            assert_eq!(claim(Some(&detail)), expected, "{reason}");
        }
        for odd in [None, Some(""), Some("worker_lost"), Some("{}"), Some(r#"{"reason":"bored"}"#)] {
            assert_eq!(claim(odd), "task.claimed", "{odd:?}");
        }
    }

    #[test]
    fn a_refused_approval_is_told_from_one_that_took_too_long() {
        let dead = |detail| named(Some(State::WaitingApproval), State::DlqPending, Some(detail));
        assert_eq!(dead("approval_rejected"), "approval.rejected");
        assert_eq!(dead("deadline_exceeded"), "task.dlq_pending");
    }
}
