//! What people said about dead letters, and what follows from it.
//!
//! Decisions come with the outbox, in the entry of the moves that they made,
//! and are written in the transaction of those.

use serde::Serialize;

use super::database::{Bind, Changes, Dialect, Row, Statement};
use super::dead_letters::listed;
use super::error::Fault;
use super::{EventLog, MAX_PAGE, Result, Verdict};
use crate::broker::{Decision, DecisionAction};
use crate::protocol::names::{DeadLetterId, QueueName, TaskId, TaskType};
use jiff::Timestamp;

/// A decision, as the log keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedReview {
    /// What was said.
    pub decision: Decision,
    /// When it came into the log, by the database's clock.
    pub recorded_at: Timestamp,
}

impl EventLog {
    /// What was said about a dead letter, oldest first; at most [`MAX_PAGE`] reviews.
    pub async fn reviews(&self, queue: &QueueName, dead_letter: &DeadLetterId) -> Result<Vec<RecordedReview>> {
        self.reviews_of(queue, std::slice::from_ref(dead_letter)).await
    }

    /// What was said about these dead letters (at most [`MAX_PAGE`]), oldest first; at most as many reviews.
    pub async fn reviews_of(&self, queue: &QueueName, dead_letters: &[DeadLetterId]) -> Result<Vec<RecordedReview>> {
        self.call("reviews", async |database| {
            let (listed, ids) = listed(database.dialect(), dead_letters)?;
            let sql = "SELECT * FROM dlq_reviews WHERE queue = $1";
            let mut select = Statement::new(sql, [Bind::text(queue.to_string())]);
            select.push(listed, [ids]);
            select.push(&format!(" ORDER BY reviewed_at, id LIMIT {MAX_PAGE}"), []);
            let rows = database.fetch(&select).await?;
            rows.iter().map(recorded_review).collect()
        })
        .await
    }
}

/// Writes what a person said, an event (`dlq.replayed`, …), and what is thereby
/// decided; a second time changes nothing. A dead letter that is not here (its time
/// was up, or the database came later) leaves the rest as it is.
pub(super) async fn record(
    changes: &mut Changes<'_>,
    dialect: Dialect,
    queue: &str,
    said: &Decision,
) -> std::result::Result<(), Fault> {
    let new = changes.execute(&insert(queue, said)).await? > 0;
    if let Some(verdict) = Verdict::of(said.action) {
        // Said before, it may have come before the dead letter did; or that of a later task of its id is here now.
        let about_it = if new { "" } else { " AND failed_at <= $4" };
        changes.execute(&decide(queue, said, verdict, about_it)).await?;
    }
    if new {
        changes.execute(&tell(dialect, queue, said)).await?;
    }
    Ok(())
}

/// Notes the decision, if it is the first.
fn decide(queue: &str, said: &Decision, verdict: Verdict, about_it: &str) -> Statement {
    let update = "UPDATE dlq_items SET decision = $3, decided_at = $4, replayed_as = $5 \
                  WHERE queue = $1 AND dlq_id = $2 AND decision = 'open'";
    Statement::new(
        format!("{update}{about_it}"),
        [
            Bind::text(queue),
            Bind::text(said.dead_letter.to_string()),
            Bind::text(verdict.as_str()),
            Bind::time(said.at),
            Bind::maybe_text(said.new_task.as_ref().map(TaskId::as_str)),
        ],
    )
}

fn insert(queue: &str, said: &Decision) -> Statement {
    let sql = "INSERT INTO dlq_reviews (queue, dlq_id, review_key, action, person, reason, new_task_id, reviewed_at) \
               VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT (queue, dlq_id, review_key) DO NOTHING";
    Statement::new(
        sql,
        [
            Bind::text(queue),
            Bind::text(said.dead_letter.to_string()),
            Bind::text(review_key(said)),
            Bind::text(said.action.as_str()),
            Bind::text(&said.person),
            Bind::maybe_text(said.reason.as_ref()),
            Bind::maybe_text(said.new_task.as_ref().map(TaskId::as_str)),
            Bind::time(said.at),
        ],
    )
}

/// Names what was said and when: a digest, because words may be longer than an
/// index holds. The time is the broker's and part of the outbox entry, so it is the
/// same however often that comes; it tells two tasks apart that had one id.
fn review_key(said: &Decision) -> String {
    let Decision { action, person, reason, new_task, at, .. } = said;
    let all = (action.as_str(), person, reason, new_task, at.as_millisecond());
    let all = serde_json::to_string(&all).expect("invariant: text has a JSON form");
    sha1_smol::Sha1::from(all).digest().to_string()
}

/// The event. It moves no task, so it has no states; that it comes once is due
/// to the review's key. What is not known of the task is left at its default.
fn tell(dialect: Dialect, queue: &str, said: &Decision) -> Statement {
    #[derive(Serialize)]
    struct Detail<'a> {
        dlq_id: String,
        person: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        new_task_id: Option<&'a TaskId>,
    }
    let detail = Detail {
        dlq_id: said.dead_letter.to_string(),
        person: &said.person,
        reason: said.reason.as_deref(),
        new_task_id: said.new_task.as_ref(),
    };
    let detail = serde_json::to_string(&detail).expect("invariant: text has a JSON form");
    // A left join with one row: the event is told whether or not there is a dead letter. PostgreSQL has to be told
    // the types of values that stand for themselves.
    let said_here = match dialect {
        Dialect::Postgres => {
            "$1::text AS queue, $2::text AS dlq_id, $3::text AS event_type, $4::text AS task_id, $5::bigint AS epoch, \
             $6::text AS detail, $7::timestamptz AS at, $8::text AS no_type"
        }
        Dialect::Sqlite => {
            "$1 AS queue, $2 AS dlq_id, $3 AS event_type, $4 AS task_id, $5 AS epoch, $6 AS detail, $7 AS at, \
             $8 AS no_type"
        }
    };
    let sql = format!(
        "INSERT INTO event_log (queue, event_type, task_id, epoch, task_type, retry_count, tenant_id, trace_id, \
         detail, task_created_at, occurred_at) SELECT said.queue, said.event_type, said.task_id, said.epoch, \
         COALESCE(item.task_type, said.no_type), COALESCE(item.retry_count, 0), item.tenant_id, item.trace_id, \
         said.detail, COALESCE(item.created_at, said.at), said.at \
         FROM (SELECT {said_here}) AS said LEFT JOIN dlq_items AS item \
         ON item.queue = said.queue AND item.dlq_id = said.dlq_id"
    );
    Statement::new(
        sql,
        [
            Bind::text(queue),
            Bind::text(said.dead_letter.to_string()),
            Bind::text(format!("dlq.{}", said.action)),
            Bind::text(said.dead_letter.task.as_str()),
            Bind::int(said.dead_letter.epoch.0),
            Bind::text(detail),
            Bind::time(said.at),
            Bind::text(TaskType::default().as_str()),
        ],
    )
}

fn recorded_review(row: &Row) -> std::result::Result<RecordedReview, Fault> {
    let decision = Decision {
        dead_letter: row.parsed("dlq_id")?,
        action: row.parsed::<DecisionAction>("action")?,
        person: row.text("person")?,
        reason: row.maybe_text("reason")?,
        new_task: row.maybe_parsed("new_task_id")?,
        at: row.time("reviewed_at")?,
    };
    Ok(RecordedReview { decision, recorded_at: row.time("recorded_at")? })
}
