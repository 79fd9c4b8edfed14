//! Dead letters: what died, why, and what was decided.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use serde::Serialize;

use super::database::{Bind, Database, Dialect, Row, Statement};
use super::error::Fault;
use super::{EventLog, MAX_PAGE, Place, Result, next_page, page_size, place_of};
use crate::broker::{DecisionAction, ListCursor, Page, Review};
use crate::protocol::fingerprint::Fingerprint;
use crate::protocol::names::{DeadLetterId, IdempotencyKey, QueueName, TaskId, TaskType, TenantId, TraceId};
use crate::protocol::task::{DeadLetter, Payload};

/// What was decided about a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Nothing yet.
    Open,
    /// It runs again as a new task.
    Replayed,
    /// It was given up.
    Discarded,
}

impl Verdict {
    /// Every verdict.
    pub const ALL: [Verdict; 3] = [Verdict::Open, Verdict::Replayed, Verdict::Discarded];

    /// What an action decides, if anything.
    pub(super) fn of(action: DecisionAction) -> Option<Self> {
        match action {
            DecisionAction::Replayed => Some(Self::Replayed),
            DecisionAction::Discarded => Some(Self::Discarded),
            DecisionAction::DiscardRequested => None,
        }
    }

    /// The spelling that people and the table use.
    pub fn as_str(self) -> &'static str {
        match self {
            Verdict::Open => "open",
            Verdict::Replayed => "replayed",
            Verdict::Discarded => "discarded",
        }
    }
}

impl From<&Review> for Verdict {
    fn from(review: &Review) -> Self {
        match review {
            Review::Open | Review::DiscardRequested(_) => Self::Open,
            Review::Replayed { .. } => Self::Replayed,
            Review::Discarded { .. } => Self::Discarded,
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A word that is no decision.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown decision {0:?}: use open, replayed or discarded")]
pub struct UnknownVerdict(pub String);

impl FromStr for Verdict {
    type Err = UnknownVerdict;
    fn from_str(value: &str) -> std::result::Result<Self, UnknownVerdict> {
        Verdict::ALL.into_iter().find(|d| d.as_str() == value).ok_or_else(|| UnknownVerdict(value.to_owned()))
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
    pub decision: Verdict,
    /// When that was decided.
    pub decided_at: Option<Timestamp>,
    /// The task that it was replayed as.
    pub replayed_as: Option<TaskId>,
    /// When it came into the log, by the database's clock.
    pub recorded_at: Timestamp,
}

/// What has to be known of a dead letter to decide what to do with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Brief {
    /// Which dead letter.
    pub id: DeadLetterId,
    /// The dead letter that it was a replay of.
    pub replay_of: Option<DeadLetterId>,
    /// What was decided.
    pub decision: Verdict,
    /// When its task was accepted.
    pub created_at: Timestamp,
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
    pub decision: Option<Verdict>,
}

impl DeadLetterFilter {
    /// Whether it lets a dead letter through that is not read from the log.
    pub fn lets_through(&self, letter: &DeadLetter, verdict: Verdict) -> bool {
        fn is<T: PartialEq>(wanted: &Option<T>, value: &T) -> bool {
            wanted.as_ref().is_none_or(|wanted| wanted == value)
        }
        (self.ids.is_empty() || self.ids.contains(&letter.id))
            && is(&self.task_type, &letter.task_type)
            && is(&self.error_code, &letter.error_code)
            && (self.tenant.is_none() || self.tenant == letter.tenant_id)
            && self.failed_after.is_none_or(|time| letter.failed_at >= time)
            && self.failed_before.is_none_or(|time| letter.failed_at < time)
            && is(&self.decision, &verdict)
            && self.fingerprint.as_ref().is_none_or(|wanted| *wanted == letter.fingerprint())
    }
}

impl EventLog {
    /// Writes a dead letter; a second time changes nothing. That of a later task
    /// with the same id takes an older one's place, as it does in the queue.
    pub async fn record_dead_letter(&self, queue: &QueueName, letter: &DeadLetter) -> Result<()> {
        let insert = insert(queue, letter);
        self.call("record_dead_letter", async |database| database.execute(&insert).await.map(|_| ())).await
    }

    /// Dead letters, the newest first.
    pub async fn dead_letters(
        &self,
        queue: &QueueName,
        filter: &DeadLetterFilter,
        cursor: ListCursor,
        limit: usize,
    ) -> Result<Page<RecordedDeadLetter>> {
        let limit = page_size(limit);
        self.call("dead_letters", async |database| {
            let select = page("*", database.dialect(), queue, filter, &cursor, limit)?;
            let rows = database.fetch(&select).await?;
            let next = next_page(&rows, limit, "failed_at")?;
            Ok(Page { items: rows.iter().map(recorded).collect::<std::result::Result<_, _>>()?, next })
        })
        .await
    }

    /// The same without payloads and histories, for whoever goes through many.
    pub async fn dead_letter_briefs(
        &self,
        queue: &QueueName,
        filter: &DeadLetterFilter,
        cursor: ListCursor,
        limit: usize,
    ) -> Result<Page<Brief>> {
        let limit = page_size(limit);
        self.call("dead_letter_briefs", async |database| {
            let columns = "id, dlq_id, replayed_from, decision, created_at, failed_at";
            let select = page(columns, database.dialect(), queue, filter, &cursor, limit)?;
            let rows = database.fetch(&select).await?;
            let next = next_page(&rows, limit, "failed_at")?;
            Ok(Page { items: rows.iter().map(brief).collect::<std::result::Result<_, _>>()?, next })
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

    /// How many of the dead letters that led to this one by replays died of the same
    /// cause: with more than none, replaying it again is likely in vain.
    pub async fn failed_again_the_same_way(&self, queue: &QueueName, id: &DeadLetterId) -> Result<u32> {
        let select = Statement::new(SAME_LINE, [Bind::text(queue.to_string()), Bind::text(id.to_string())]);
        self.call("failed_again_the_same_way", async |database| {
            let rows = database.fetch(&select).await?;
            let times = rows.first().map_or(Ok(0), |row| row.count("times"))?;
            Ok(times.try_into().unwrap_or(u32::MAX))
        })
        .await
    }
}

/// From a dead letter back through those that it was a replay of. The depth ends
/// what should have no end.
const SAME_LINE: &str = "\
    WITH RECURSIVE line (replayed_from, fingerprint, own, depth) AS ( \
        SELECT replayed_from, fingerprint, fingerprint, 0 FROM dlq_items WHERE queue = $1 AND dlq_id = $2 \
        UNION ALL \
        SELECT item.replayed_from, item.fingerprint, line.own, line.depth + 1 FROM line JOIN dlq_items AS item \
        ON item.queue = $1 AND item.dlq_id = line.replayed_from WHERE line.depth < 100 \
    ) SELECT count(*) AS times FROM line WHERE depth > 0 AND fingerprint = own";

/// The columns of a dead letter.
const COLUMNS: [&str; 21] = [
    "queue",
    "dlq_id",
    "task_id",
    "task_type",
    "payload",
    "priority",
    "error",
    "error_code",
    "fingerprint",
    "retry_count",
    "crash_count",
    "release_count",
    "max_retries",
    "idempotency_key",
    "tenant_id",
    "trace_id",
    "extras",
    "history",
    "replayed_from",
    "created_at",
    "failed_at",
];

fn insert(queue: &QueueName, letter: &DeadLetter) -> Statement {
    let each = |write: &dyn Fn(usize, &str) -> String| {
        COLUMNS.iter().enumerate().map(|(i, name)| write(i + 1, name)).collect::<Vec<_>>().join(", ")
    };
    let sql = format!(
        "INSERT INTO dlq_items ({}) VALUES ({}) ON CONFLICT (queue, dlq_id) DO UPDATE SET {}, decision = 'open', \
         decided_at = NULL, replayed_as = NULL WHERE dlq_items.created_at < excluded.created_at",
        COLUMNS.join(", "),
        each(&|number, _| format!("${number}")),
        each(&|_, name| format!("{name} = excluded.{name}")),
    );
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
            Bind::text(letter.fingerprint().as_str()),
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

pub(super) fn json<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("invariant: text and numbers have a JSON form")
}

/// A condition on `dlq_id`, and its value: among these.
pub(super) fn listed(dialect: Dialect, ids: &[DeadLetterId]) -> std::result::Result<(&'static str, Bind), Fault> {
    if ids.len() > MAX_PAGE {
        return Err(Fault::Invalid(format!("{} dead letter ids; name at most {MAX_PAGE} at a time", ids.len())));
    }
    let condition = match dialect {
        Dialect::Postgres => " AND dlq_id IN (SELECT json_array_elements_text(?::json))",
        Dialect::Sqlite => " AND dlq_id IN (SELECT value FROM json_each(?))",
    };
    let ids: Vec<String> = ids.iter().map(DeadLetterId::to_string).collect();
    Ok((condition, Bind::text(json(&ids))))
}

/// `select` from the dead letters that the filter lets through.
pub(super) fn matching(
    select: &str,
    dialect: Dialect,
    queue: &QueueName,
    filter: &DeadLetterFilter,
) -> std::result::Result<Statement, Fault> {
    let DeadLetterFilter { ids, fingerprint, task_type, error_code, tenant, failed_after, failed_before, decision } =
        filter;
    let (listed, listed_ids) = listed(dialect, ids)?;
    let conditions = [
        (listed, (!ids.is_empty()).then_some(listed_ids)),
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

/// A page of the dead letters that the filter lets through, the newest first.
fn page(
    columns: &str,
    dialect: Dialect,
    queue: &QueueName,
    filter: &DeadLetterFilter,
    cursor: &ListCursor,
    limit: usize,
) -> std::result::Result<Statement, Fault> {
    let mut select = matching(&format!("SELECT {columns}"), dialect, queue, filter)?;
    if let Some(Place(at, id)) = place_of::<Timestamp, i64>(cursor)? {
        select.push(" AND (failed_at, id) < (?, ?)", [Bind::time(at), Bind::int(id)]);
    }
    select.push(&format!(" ORDER BY failed_at DESC, id DESC LIMIT {limit}"), []);
    Ok(select)
}

fn brief(row: &Row) -> std::result::Result<Brief, Fault> {
    Ok(Brief {
        id: row.parsed("dlq_id")?,
        // A producer may have written anything there.
        replay_of: row.maybe_text("replayed_from")?.and_then(|id| id.parse().ok()),
        decision: row.parsed("decision")?,
        created_at: row.time("created_at")?,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_survive_being_spelt() {
        for verdict in Verdict::ALL {
            assert_eq!(verdict.as_str().parse::<Verdict>(), Ok(verdict));
        }
        assert!("done".parse::<Verdict>().expect_err("no such decision").to_string().contains("use open"));
    }
}
