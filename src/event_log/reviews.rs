//! What people said about dead letters, and what follows from it.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use serde::Serialize;

use super::database::{Bind, Row, Statement};
use super::error::Fault;
use super::{Decision, EventLog, MAX_PAGE, Result};
use crate::protocol::names::{DeadLetterId, QueueName, TaskId};

/// What a person did about a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Ran it again as a new task.
    Replayed,
    /// Asked to give it up; somebody else has to agree.
    DiscardRequested,
    /// Gave it up.
    Discarded,
    /// Left it for later.
    Deferred,
    /// Passed it on to somebody who can decide.
    Escalated,
}

impl Action {
    /// Every action.
    pub const ALL: [Action; 5] =
        [Action::Replayed, Action::DiscardRequested, Action::Discarded, Action::Deferred, Action::Escalated];

    /// The spelling that people and the table use.
    pub fn as_str(self) -> &'static str {
        match self {
            Action::Replayed => "replayed",
            Action::DiscardRequested => "discard_requested",
            Action::Discarded => "discarded",
            Action::Deferred => "deferred",
            Action::Escalated => "escalated",
        }
    }

    /// What is decided by it, if anything.
    pub fn decision(self) -> Option<Decision> {
        match self {
            Action::Replayed => Some(Decision::Replayed),
            Action::Discarded => Some(Decision::Discarded),
            Action::DiscardRequested | Action::Deferred | Action::Escalated => None,
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A word that is no action.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown action {0:?}: use replayed, discard_requested, discarded, deferred or escalated")]
pub struct UnknownAction(pub String);

impl FromStr for Action {
    type Err = UnknownAction;
    fn from_str(value: &str) -> std::result::Result<Self, UnknownAction> {
        Action::ALL.into_iter().find(|action| action.as_str() == value).ok_or_else(|| UnknownAction(value.to_owned()))
    }
}

/// A person's word on a dead letter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Review {
    /// Which dead letter.
    pub dead_letter: DeadLetterId,
    /// What was done.
    pub action: Action,
    /// Who.
    pub person: String,
    /// Why; needed to give a dead letter up.
    pub reason: String,
    /// The new task, of a replay.
    pub new_task: Option<TaskId>,
    /// When.
    pub at: Timestamp,
}

/// A review, as the log keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedReview {
    /// What was said.
    pub review: Review,
    /// When it came into the log, by the database's clock.
    pub recorded_at: Timestamp,
}

/// What became of a review.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reviewed {
    /// It is in the log.
    Recorded,
    /// The same person said the same before.
    Before,
    /// There is no such dead letter in the log.
    Unknown,
}

impl EventLog {
    /// Writes what a person said, the decision that it makes, and an event
    /// (`dlq.replayed`, `dlq.discarded`, …), all of them or none. The same words
    /// of the same person count once. The first decision stands.
    pub async fn record_review(&self, queue: &QueueName, review: &Review) -> Result<Reviewed> {
        let queue = queue.to_string();
        self.call("record_review", async |database| {
            check(review)?;
            let mut changes = database.begin().await?;
            // Also waits for whoever is about to delete it.
            if changes.execute(&decide(&queue, review)).await? == 0 {
                return Ok(Reviewed::Unknown);
            }
            if changes.execute(&insert(&queue, review)).await? == 0 {
                return Ok(Reviewed::Before);
            }
            changes.execute(&tell(&queue, review)).await?;
            changes.commit().await?;
            Ok(Reviewed::Recorded)
        })
        .await
    }

    /// What was said about a dead letter, oldest first; at most [`MAX_PAGE`] reviews.
    pub async fn reviews(&self, queue: &QueueName, dead_letter: &DeadLetterId) -> Result<Vec<RecordedReview>> {
        let sql = format!(
            "SELECT * FROM dlq_reviews WHERE queue = $1 AND dlq_id = $2 ORDER BY reviewed_at, id LIMIT {MAX_PAGE}"
        );
        let select = Statement::new(sql, [Bind::text(queue.to_string()), Bind::text(dead_letter.to_string())]);
        self.call("reviews", async |database| {
            let rows = database.fetch(&select).await?;
            rows.iter().map(recorded_review).collect()
        })
        .await
    }
}

fn check(review: &Review) -> std::result::Result<(), Fault> {
    let invalid = |sentence: &str| Err(Fault::Invalid(sentence.to_owned()));
    let gives_up = matches!(review.action, Action::Discarded | Action::DiscardRequested);
    if review.person.trim().is_empty() {
        return invalid("a review needs a person: say who decided");
    }
    if gives_up && review.reason.trim().is_empty() {
        return invalid("giving up a dead letter needs a reason");
    }
    if (review.action == Action::Replayed) != review.new_task.is_some() {
        return invalid("a replay names its new task, and nothing else does");
    }
    Ok(())
}

/// Notes the decision, if it is one and the first. Every review touches the row,
/// so a dead letter's reviews come one after the other and the row cannot vanish meanwhile.
fn decide(queue: &str, review: &Review) -> Statement {
    let decision = review.action.decision();
    let update = "UPDATE dlq_items SET \
                  decision = CASE WHEN decision = 'open' THEN $3 ELSE decision END, \
                  decided_at = CASE WHEN decision = 'open' THEN $4 ELSE decided_at END, \
                  replayed_as = CASE WHEN decision = 'open' THEN $5 ELSE replayed_as END \
                  WHERE queue = $1 AND dlq_id = $2";
    Statement::new(
        update,
        [
            Bind::text(queue),
            Bind::text(review.dead_letter.to_string()),
            Bind::text(decision.unwrap_or(Decision::Open).as_str()),
            Bind::Time(decision.map(|_| review.at)),
            Bind::maybe_text(review.new_task.as_ref().map(TaskId::as_str)),
        ],
    )
}

fn insert(queue: &str, review: &Review) -> Statement {
    let sql = "INSERT INTO dlq_reviews (queue, dlq_id, review_key, action, person, reason, new_task_id, reviewed_at) \
               VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT (queue, dlq_id, review_key) DO NOTHING";
    Statement::new(
        sql,
        [
            Bind::text(queue),
            Bind::text(review.dead_letter.to_string()),
            Bind::text(review_key(review)),
            Bind::text(review.action.as_str()),
            Bind::text(&review.person),
            Bind::text(&review.reason),
            Bind::maybe_text(review.new_task.as_ref().map(TaskId::as_str)),
            Bind::time(review.at),
        ],
    )
}

/// Names what was said, whenever it was: a digest, because words may be longer than an index holds.
fn review_key(review: &Review) -> String {
    let Review { action, person, reason, new_task, .. } = review;
    let said = (action.as_str(), person, reason, new_task);
    let said = serde_json::to_string(&said).expect("invariant: text has a JSON form");
    sha1_smol::Sha1::from(said).digest().to_string()
}

/// The event. It moves no task, so it has no states; that it comes once is due to the review's key.
fn tell(queue: &str, review: &Review) -> Statement {
    let sql = "INSERT INTO event_log (queue, event_type, task_id, epoch, task_type, retry_count, tenant_id, trace_id, \
               detail, occurred_at) SELECT queue, $3, task_id, $4, task_type, retry_count, tenant_id, trace_id, $5, $6 \
               FROM dlq_items WHERE queue = $1 AND dlq_id = $2";
    #[derive(Serialize)]
    struct Detail<'a> {
        dlq_id: String,
        person: &'a str,
        reason: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        new_task_id: Option<&'a TaskId>,
    }
    let detail = Detail {
        dlq_id: review.dead_letter.to_string(),
        person: &review.person,
        reason: &review.reason,
        new_task_id: review.new_task.as_ref(),
    };
    let detail = serde_json::to_string(&detail).expect("invariant: text has a JSON form");
    Statement::new(
        sql,
        [
            Bind::text(queue),
            Bind::text(review.dead_letter.to_string()),
            Bind::text(format!("dlq.{}", review.action)),
            Bind::int(review.dead_letter.epoch.0),
            Bind::text(detail),
            Bind::time(review.at),
        ],
    )
}

fn recorded_review(row: &Row) -> std::result::Result<RecordedReview, Fault> {
    let review = Review {
        dead_letter: row.parsed("dlq_id")?,
        action: row.parsed("action")?,
        person: row.text("person")?,
        reason: row.text("reason")?,
        new_task: row.maybe_parsed("new_task_id")?,
        at: row.time("reviewed_at")?,
    };
    Ok(RecordedReview { review, recorded_at: row.time("recorded_at")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_survive_being_spelt() {
        for action in Action::ALL {
            assert_eq!(action.as_str().parse::<Action>(), Ok(action));
        }
        for decision in Decision::ALL {
            assert_eq!(decision.as_str().parse::<Decision>(), Ok(decision));
        }
        assert!("delete".parse::<Action>().expect_err("no such action").to_string().contains("use replayed"));
        assert!("done".parse::<Decision>().expect_err("no such decision").to_string().contains("use open"));
    }
}
