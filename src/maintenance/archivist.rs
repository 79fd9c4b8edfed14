//! Keeps the rows of the event log in step with what the queue keeps.

mod backfill;

use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;

use super::{Chore, ChoreError, Next, Progress, Queue};
use crate::broker::ListCursor;
use crate::event_log::{EventLog, MAX_PAGE, OldEvents};
use crate::protocol::names::DeadLetterId;
use crate::protocol::state::State;

/// Between two steps of a round: nobody waits for it.
const BETWEEN_STEPS: Duration = Duration::from_millis(50);
/// Between two rounds, at least; at most where something happens, and where nothing does.
const SHORTEST_REST: Duration = Duration::from_secs(10);
const LONGEST_REST_WHILE_BUSY: Duration = Duration::from_secs(60);
const LONGEST_REST: Duration = Duration::from_secs(3600);
/// By which part of its time a row may stay for too long where something happens, and where nothing does.
const TOLERANCE_WHILE_BUSY: u32 = 16;
const TOLERANCE: u32 = 4;
/// How many rows go at a time.
const ROWS: usize = MAX_PAGE;
/// How many dead letters are dealt with at a time: the queue is asked about each.
const LETTERS: usize = 50;

/// Brings dead letters into the event log that the queue has and the log has not (it
/// was added later, or began anew), and removes rows that are old enough.
pub struct Archivist {
    /// Where it goes on to look for dead letters that the log lacks; `None` when it has seen all.
    unseen: Option<ListCursor>,
    /// Behind which old dead letter it goes on: what the queue still has is passed over and
    /// holds up nothing behind it.
    behind: ListCursor,
}

impl Default for Archivist {
    fn default() -> Self {
        Self { unseen: Some(ListCursor::default()), behind: ListCursor::default() }
    }
}

#[async_trait]
impl Chore for Archivist {
    async fn run_once(&mut self, queue: &Queue) -> Result<Progress, ChoreError> {
        let Some(log) = &queue.log else { return Ok(Progress { handled: 0, next: Next::WhenNeeded }) };
        if let Some(from) = self.unseen.clone() {
            let page = backfill::page(queue, log, from).await?;
            self.unseen = page.next;
            // One that cannot be stored does not hold up those behind it.
            return page.refused.map_or(Ok(Progress { handled: page.brought, next: Next::In(BETWEEN_STEPS) }), Err);
        }
        // The age of rows is judged by the broker's clock, which wrote their times.
        let Some(counts) = queue.counts() else { return Ok(Progress { handled: 0, next: Next::In(SHORTEST_REST) }) };
        let forgotten = self.forget(queue, log, counts.sampled_at).await?;
        if !forgotten.more && backfill::is_wanted(queue, log, &counts).await? {
            self.unseen = Some(ListCursor::default());
        }
        let next = if forgotten.more { BETWEEN_STEPS } else { rest(queue, forgotten.kept_for) };
        Ok(Progress { handled: forgotten.rows, next: Next::In(next) })
    }
}

/// How long it rests after a round, if rows are kept for so long.
fn rest(queue: &Queue, kept_for: Duration) -> Duration {
    let (part, longest) =
        if queue.is_busy() { (TOLERANCE_WHILE_BUSY, LONGEST_REST_WHILE_BUSY) } else { (TOLERANCE, LONGEST_REST) };
    (kept_for / part).clamp(SHORTEST_REST, longest)
}

/// Rows of the event log that were removed.
struct Forgotten {
    rows: usize,
    /// Whether there may be more.
    more: bool,
    /// For how long they are kept.
    kept_for: Duration,
}

impl Archivist {
    /// Removes rows of the event log that are older than their retention. A dead letter's
    /// row also stays for as long as the queue has the letter, which it ages by another
    /// time and keeps for its readers; its task's events stay for as long as the row;
    /// and those of any task until it has ended for so long.
    async fn forget(&mut self, queue: &Queue, log: &EventLog, now: Timestamp) -> Result<Forgotten, ChoreError> {
        let policy = queue.broker.policy().await?;
        let before = |age: Duration| now.checked_sub(age).unwrap_or(Timestamp::UNIX_EPOCH);
        let (failed, succeeded) = (policy.retention.failed, policy.retention.succeeded);
        let kept_for = failed.max(succeeded);
        let letters = self.forget_letters(queue, log, before(failed)).await?;
        // What has no end by then never got one: nothing was recorded when it came.
        let old = OldEvents { ended: before(kept_for), all: before(kept_for + policy.retry.deadline) };
        let events = log.delete_events_before(&queue.name, old, ROWS).await?;
        let samples = log.delete_metrics_before(&queue.name, before(kept_for), ROWS).await?;
        let more = !self.behind.0.is_empty() || events.max(samples) == ROWS;
        Ok(Forgotten { rows: letters + events + samples, more, kept_for: failed.min(succeeded) })
    }

    /// Removes rows of a page of old dead letters that the queue does not have any more; says how many.
    async fn forget_letters(&mut self, queue: &Queue, log: &EventLog, before: Timestamp) -> Result<usize, ChoreError> {
        let page = log.dead_letters_before(&queue.name, before, self.behind.clone(), LETTERS).await?;
        let mut gone = Vec::new();
        for id in page.items {
            if is_gone(queue, &id).await? {
                gone.push(id);
            }
        }
        let deleted = log.delete_dead_letters(&queue.name, &gone, before).await?;
        self.behind = page.next.unwrap_or_default();
        Ok(deleted)
    }
}

/// Whether a queue neither has a dead letter nor is about to.
async fn is_gone(queue: &Queue, id: &DeadLetterId) -> Result<bool, ChoreError> {
    if queue.broker.dead_letter(id).await?.is_some() {
        return Ok(false);
    }
    // In this order: what is about to be recorded while it is asked for is a letter when that is asked for again.
    let waits = queue.broker.get(&id.task).await?.is_some_and(|task| task.state == State::DlqPending);
    Ok(!waits && queue.broker.dead_letter(id).await?.is_none())
}
