//! Forgets what has been kept for long enough.

use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;

use super::{Chore, ChoreError, Next, Progress, Queue};
use crate::broker::RetainCursor;
use crate::event_log::EventLog;
use crate::protocol::state::State;

/// Between two steps of a walk: nobody waits for it.
const BETWEEN_STEPS: Duration = Duration::from_millis(50);
/// Between two walks, at least and at most.
const SHORTEST_REST: Duration = Duration::from_secs(10);
const LONGEST_REST: Duration = Duration::from_secs(3600);
/// How many entries one step looks at; a hundred took Redis 1.5 ms.
const AT_ONCE: usize = 50;
/// How many rows of the event log go at a time.
const ROWS: usize = 500;
/// How many dead letters' rows go at a time: the queue is asked about each.
const LETTERS: usize = 50;

/// Removes results, finished tasks and dead letters that the policy does not
/// keep any longer, and what the event log says of that time.
#[derive(Default)]
pub struct Retainer {
    cursor: RetainCursor,
}

#[async_trait]
impl Chore for Retainer {
    async fn run_once(&mut self, queue: &Queue) -> Result<Progress, ChoreError> {
        let retained = queue.broker.retain(std::mem::take(&mut self.cursor), AT_ONCE).await?;
        self.cursor = retained.cursor;
        let mut handled = retained.results + retained.dead_letters;
        let mut next = match retained.next_in {
            Some(Duration::ZERO) => Next::In(BETWEEN_STEPS),
            Some(wait) => Next::In(wait.clamp(SHORTEST_REST, LONGEST_REST)),
            None => Next::In(LONGEST_REST),
        };
        // The age of rows is judged by the broker's clock, which wrote their times.
        if let (Some(log), Some(counts)) = (&queue.log, queue.counts()) {
            let forgotten = forget_rows(queue, log, counts.sampled_at).await?;
            handled += forgotten.rows;
            if forgotten.more {
                next = Next::In(BETWEEN_STEPS);
            }
        }
        Ok(Progress { handled, next })
    }
}

/// Rows of the event log that were removed.
struct Forgotten {
    rows: usize,
    /// Whether there may be more.
    more: bool,
}

/// Removes rows of the event log that are older than their retention. A dead letter's
/// row also stays for as long as the queue has the letter, which it ages by another
/// time and keeps for its readers; and its task's events stay for as long as the row.
async fn forget_rows(queue: &Queue, log: &EventLog, now: Timestamp) -> Result<Forgotten, ChoreError> {
    let retention = queue.broker.policy().await?.retention;
    let before = |age: Duration| now.checked_sub(age).unwrap_or(Timestamp::UNIX_EPOCH);
    let (letters, more_letters) = forget_letters(queue, log, before(retention.failed)).await?;
    let longest = before(retention.failed.max(retention.succeeded));
    let events = log.delete_events_before(&queue.name, longest, ROWS).await?;
    let samples = log.delete_metrics_before(&queue.name, longest, ROWS).await?;
    Ok(Forgotten { rows: letters + events + samples, more: more_letters || events.max(samples) == ROWS })
}

/// Removes rows of old dead letters that the queue does not have any more; says how
/// many, and whether there may be more.
async fn forget_letters(queue: &Queue, log: &EventLog, before: Timestamp) -> Result<(usize, bool), ChoreError> {
    let (old, mut gone) = (log.dead_letters_before(&queue.name, before, LETTERS).await?, Vec::new());
    let full = old.len() == LETTERS;
    for id in old {
        // In this order: what is about to be recorded while it is asked for is a letter when that is asked for.
        let waits = queue.broker.get(&id.task).await?.is_some_and(|task| task.state == State::DlqPending);
        if !waits && queue.broker.dead_letter(&id).await?.is_none() {
            gone.push(id);
        }
    }
    Ok((log.delete_dead_letters(&queue.name, &gone, before).await?, full && !gone.is_empty()))
}
