//! Dead letters: what died, why, how many of the same cause, and what was decided.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use serde::Serialize;

use super::database::{Bind, Database, Dialect, Row, Statement};
use super::error::Fault;
use super::{EventLog, MAX_PAGE, Place, Result, page_size, place_of};
use crate::broker::{ListCursor, Page};
use crate::protocol::fingerprint::{Fingerprint, fingerprint};
use crate::protocol::names::{DeadLetterId, IdempotencyKey, QueueName, TaskId, TaskType, TenantId, TraceId};
use crate::protocol::task::{DeadLetter, Payload};

/// What was decided about a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// Nothing yet.
    Open,
    /// It runs again as a new task.
    Replayed,
    /// It was given up.
    Discarded,
}

impl Decision {
    /// Every decision.
    pub const ALL: [Decision; 3] = [Decision::Open, Decision::Replayed, Decision::Discarded];

    /// The spelling that people and the table use.
    pub fn as_str(self) -> &'static str {
        match self {
            Decision::Open => "open",
            Decision::Replayed => "replayed",
            Decision::Discarded => "discarded",
        }
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A word that is no decision.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown decision {0:?}: use open, replayed or discarded")]
pub struct UnknownDecision(pub String);

impl FromStr for Decision {
    type Err = UnknownDecision;
    fn from_str(value: &str) -> std::result::Result<Self, UnknownDecision> {
        Decision::ALL.into_iter().find(|d| d.as_str() == value).ok_or_else(|| UnknownDecision(value.to_owned()))
    }
}

/// A dead letter, as the log keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedDeadLetter {
    /// What died; `extras.replay_of` names the dead letter that it was a replay of.
    pub letter: DeadLetter,
    /// What it died of.
    pub fingerprint: Fingerprint,
    /// What was decided.
    pub decision: Decision,
    /// When that was decided.
    pub decided_at: Option<Timestamp>,
    /// The task that it was replayed as.
    pub replayed_as: Option<TaskId>,
    /// When it came into the log, by the database's clock.
    pub recorded_at: Timestamp,
}

/// Dead letters of one type that died of the same thing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Cause {
    /// Names the cause.
    pub fingerprint: Fingerprint,
    /// How many died of it.
    pub count: u64,
    /// How many of those nobody has decided on.
    pub open: u64,
    /// What kind of work they were.
    pub task_type: TaskType,
    /// The kind of error.
    pub error_code: String,
    /// The error of the last of them, word for word.
    pub sample_error: String,
    /// When the first of them died.
    pub first_failed_at: Timestamp,
    /// When the last of them died.
    pub last_failed_at: Timestamp,
}

/// Which dead letters; the default is all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeadLetterFilter {
    /// Only these, at most [`MAX_PAGE`]; empty for no restriction.
    pub ids: Vec<DeadLetterId>,
    /// Of this cause.
    pub fingerprint: Option<Fingerprint>,
    /// Of tasks of this type.
    pub task_type: Option<TaskType>,
    /// With this kind of error.
    pub error_code: Option<String>,
    /// On behalf of this tenant.
    pub tenant: Option<TenantId>,
    /// That failed at this time or later.
    pub failed_after: Option<Timestamp>,
    /// That failed before this time.
    pub failed_before: Option<Timestamp>,
    /// With this decision.
    pub decision: Option<Decision>,
}

impl EventLog {
    /// Writes a dead letter; a second time changes nothing.
    pub async fn record_dead_letter(&self, queue: &QueueName, letter: &DeadLetter) -> Result<()> {
        let insert = insert(queue, letter);
        self.call("record_dead_letter", async |database| database.execute(&insert).await.map(|_| ())).await
    }

    /// Dead letters by cause, the commonest first.
    pub async fn causes(
        &self,
        queue: &QueueName,
        filter: &DeadLetterFilter,
        cursor: ListCursor,
        limit: usize,
    ) -> Result<Page<Cause>> {
        let limit = page_size(limit);
        self.call("causes", async |database| {
            let groups = grouped(database.dialect(), queue, filter, &cursor, limit)?;
            let rows = database.fetch(&groups).await?;
            let causes: Vec<Cause> = rows.iter().map(cause_of).collect::<std::result::Result<_, _>>()?;
            let last = causes.last().filter(|_| causes.len() == limit);
            let next = last.map(|cause| Place(cause.count, cause.fingerprint.as_str()).cursor());
            Ok(Page { items: causes, next })
        })
        .await
    }

    /// Dead letters, the oldest first.
    pub async fn dead_letters(
        &self,
        queue: &QueueName,
        filter: &DeadLetterFilter,
        cursor: ListCursor,
        limit: usize,
    ) -> Result<Page<RecordedDeadLetter>> {
        let limit = page_size(limit);
        self.call("dead_letters", async |database| {
            let mut select = matching("SELECT *", database.dialect(), queue, filter)?;
            if let Some(Place(at, id)) = place_of::<Timestamp, i64>(&cursor)? {
                select.push(" AND (failed_at, id) > (?, ?)", [Bind::time(at), Bind::int(id)]);
            }
            select.push(&format!(" ORDER BY failed_at, id LIMIT {limit}"), []);
            let rows = database.fetch(&select).await?;
            let next = match rows.last().filter(|_| rows.len() == limit) {
                Some(row) => Some(Place(row.time("failed_at")?, row.int("id")?).cursor()),
                None => None,
            };
            Ok(Page { items: rows.iter().map(recorded).collect::<std::result::Result<_, _>>()?, next })
        })
        .await
    }

    /// One dead letter.
    pub async fn dead_letter(&self, queue: &QueueName, id: &DeadLetterId) -> Result<Option<RecordedDeadLetter>> {
        let filter = DeadLetterFilter { ids: vec![id.clone()], ..DeadLetterFilter::default() };
        Ok(self.dead_letters(queue, &filter, ListCursor::default(), 1).await?.items.pop())
    }

    /// How many dead letters there are.
    pub async fn count_dead_letters(&self, queue: &QueueName, filter: &DeadLetterFilter) -> Result<u64> {
        self.call("count_dead_letters", async |database: &Database| {
            let select = matching("SELECT count(*) AS letters", database.dialect(), queue, filter)?;
            let rows = database.fetch(&select).await?;
            rows.first().map_or(Ok(0), |row| row.count("letters"))
        })
        .await
    }

    /// How many replays in a row led to this dead letter, each dead of the same
    /// cause as the one before: with more than none, replaying it again is likely in vain.
    pub async fn failed_again_the_same_way(&self, queue: &QueueName, id: &DeadLetterId) -> Result<u32> {
        let select = Statement::new(SAME_LINE, [Bind::text(queue.to_string()), Bind::text(id.to_string())]);
        self.call("failed_again_the_same_way", async |database| {
            let rows = database.fetch(&select).await?;
            let line = rows.first().map_or(Ok(0), |row| row.count("line"))?;
            Ok(line.saturating_sub(1).try_into().unwrap_or(u32::MAX))
        })
        .await
    }
}

/// From a dead letter back through those that it was a replay of, as long as the
/// cause is the same. The depth ends what should have no end.
const SAME_LINE: &str = "\
    WITH RECURSIVE line (replayed_from, fingerprint, depth) AS ( \
        SELECT replayed_from, fingerprint, 1 FROM dlq_items WHERE queue = $1 AND dlq_id = $2 \
        UNION ALL \
        SELECT item.replayed_from, item.fingerprint, line.depth + 1 FROM line JOIN dlq_items AS item \
        ON item.queue = $1 AND item.dlq_id = line.replayed_from AND item.fingerprint = line.fingerprint \
        WHERE line.depth < 100 \
    ) SELECT count(*) AS line FROM line";

fn insert(queue: &QueueName, letter: &DeadLetter) -> Statement {
    let sql = "INSERT INTO dlq_items (queue, dlq_id, task_id, task_type, payload, priority, error, error_code, \
               fingerprint, retry_count, crash_count, release_count, max_retries, idempotency_key, tenant_id, \
               trace_id, extras, history, replayed_from, created_at, failed_at) VALUES ($1, $2, $3, $4, $5, $6, \
               $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21) \
               ON CONFLICT (queue, dlq_id) DO NOTHING";
    Statement::new(
        sql,
        [
            Bind::text(queue.to_string()),
            Bind::text(letter.id.to_string()),
            Bind::text(letter.id.task.as_str()),
            Bind::text(letter.task_type.as_str()),
            Bind::text(letter.payload.as_str()),
            Bind::int(letter.priority),
            Bind::text(&letter.error),
            Bind::text(&letter.error_code),
            Bind::text(fingerprint(&letter.task_type, &letter.error_code, &letter.error).as_str()),
            Bind::int(letter.retry_count),
            Bind::int(letter.crash_count),
            Bind::int(letter.release_count),
            Bind::Int(letter.max_retries.map(i64::from)),
            Bind::maybe_text(letter.idempotency_key.as_ref().map(IdempotencyKey::as_str)),
            Bind::maybe_text(letter.tenant_id.as_ref().map(TenantId::as_str)),
            Bind::maybe_text(letter.trace_id.as_ref().map(TraceId::as_str)),
            Bind::text(json(&letter.extras)),
            Bind::text(json(&letter.history)),
            Bind::maybe_text(letter.extras.replay_of.as_ref()),
            Bind::time(letter.created_at),
            Bind::time(letter.failed_at),
        ],
    )
}

fn json<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("invariant: text and numbers have a JSON form")
}

/// `select` from the dead letters that the filter lets through.
fn matching(
    select: &str,
    dialect: Dialect,
    queue: &QueueName,
    filter: &DeadLetterFilter,
) -> std::result::Result<Statement, Fault> {
    let DeadLetterFilter { ids, fingerprint, task_type, error_code, tenant, failed_after, failed_before, decision } =
        filter;
    if ids.len() > MAX_PAGE {
        return Err(Fault::Invalid(format!("{} dead letter ids; name at most {MAX_PAGE} at a time", ids.len())));
    }
    let listed = match dialect {
        Dialect::Postgres => " AND dlq_id IN (SELECT json_array_elements_text(?::json))",
        Dialect::Sqlite => " AND dlq_id IN (SELECT value FROM json_each(?))",
    };
    let ids: Vec<String> = ids.iter().map(DeadLetterId::to_string).collect();
    let conditions = [
        (listed, (!ids.is_empty()).then(|| Bind::text(json(&ids)))),
        (" AND fingerprint = ?", fingerprint.as_ref().map(|value| Bind::text(value.as_str()))),
        (" AND task_type = ?", task_type.as_ref().map(|value| Bind::text(value.as_str()))),
        (" AND error_code = ?", error_code.as_ref().map(Bind::text)),
        (" AND tenant_id = ?", tenant.as_ref().map(|value| Bind::text(value.as_str()))),
        (" AND failed_at >= ?", failed_after.map(Bind::time)),
        (" AND failed_at < ?", failed_before.map(Bind::time)),
        (" AND decision = ?", decision.map(|value| Bind::text(value.as_str()))),
    ];
    let mut found =
        Statement::new(format!("{select} FROM dlq_items WHERE queue = $1"), [Bind::text(queue.to_string())]);
    for (condition, value) in conditions {
        if let Some(value) = value {
            found.push(condition, [value]);
        }
    }
    Ok(found)
}

/// Groups by cause. Type and code are part of a fingerprint, so each group has one of them.
fn grouped(
    dialect: Dialect,
    queue: &QueueName,
    filter: &DeadLetterFilter,
    cursor: &ListCursor,
    limit: usize,
) -> std::result::Result<Statement, Fault> {
    let columns = "SELECT cause.*, item.error AS sample_error, item.task_type, item.error_code FROM ( \
                   SELECT fingerprint, count(*) AS letters, count(*) FILTER (WHERE decision = 'open') AS undecided, \
                   min(failed_at) AS first_failed_at, max(failed_at) AS last_failed_at, max(id) AS last_id";
    let mut groups = matching(columns, dialect, queue, filter)?;
    groups.push(" GROUP BY fingerprint", []);
    if let Some(Place(count, fingerprint)) = place_of::<u64, Fingerprint>(cursor)? {
        let place = [Bind::int(count), Bind::int(count), Bind::text(fingerprint.as_str())];
        groups.push(" HAVING count(*) < ? OR (count(*) = ? AND fingerprint > ?)", place);
    }
    let rest = format!(
        " ORDER BY letters DESC, fingerprint LIMIT {limit}) AS cause JOIN dlq_items AS item ON item.id = cause.last_id \
         ORDER BY letters DESC, cause.fingerprint"
    );
    groups.push(&rest, []);
    Ok(groups)
}

fn cause_of(row: &Row) -> std::result::Result<Cause, Fault> {
    Ok(Cause {
        fingerprint: row.parsed("fingerprint")?,
        count: row.count("letters")?,
        open: row.count("undecided")?,
        task_type: row.parsed("task_type")?,
        error_code: row.text("error_code")?,
        sample_error: row.text("sample_error")?,
        first_failed_at: row.time("first_failed_at")?,
        last_failed_at: row.time("last_failed_at")?,
    })
}

fn recorded(row: &Row) -> std::result::Result<RecordedDeadLetter, Fault> {
    let small = |column: &str| Ok::<u32, Fault>(row.count(column)?.try_into().unwrap_or(u32::MAX));
    let letter = DeadLetter {
        id: row.parsed("dlq_id")?,
        task_type: row.parsed("task_type")?,
        payload: Payload::unchecked(row.text("payload")?),
        priority: row.count("priority")?.try_into().unwrap_or(u8::MAX),
        error: row.text("error")?,
        error_code: row.text("error_code")?,
        retry_count: small("retry_count")?,
        crash_count: small("crash_count")?,
        release_count: small("release_count")?,
        idempotency_key: row.maybe_parsed("idempotency_key")?,
        tenant_id: row.maybe_parsed("tenant_id")?,
        trace_id: row.maybe_parsed("trace_id")?,
        max_retries: row.maybe_int("max_retries")?.map(|most| most.try_into().unwrap_or(u32::MAX)),
        extras: row.json("extras")?,
        created_at: row.time("created_at")?,
        failed_at: row.time("failed_at")?,
        history: row.json("history")?,
    };
    Ok(RecordedDeadLetter {
        letter,
        fingerprint: row.parsed("fingerprint")?,
        decision: row.parsed("decision")?,
        decided_at: row.maybe_time("decided_at")?,
        replayed_as: row.maybe_parsed("replayed_as")?,
        recorded_at: row.time("recorded_at")?,
    })
}
