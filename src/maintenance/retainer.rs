//! Forgets what has been kept for long enough.

use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;

use super::{Chore, ChoreError, Next, Progress, Queue};
use crate::broker::RetainCursor;
use crate::event_log::EventLog;

/// Between two steps of a walk: nobody waits for it.
const BETWEEN_STEPS: Duration = Duration::from_millis(50);
/// Between two walks, at least and at most.
const SHORTEST_REST: Duration = Duration::from_secs(10);
const LONGEST_REST: Duration = Duration::from_secs(3600);
/// How many entries one step looks at; a hundred took Redis 1.5 ms.
const AT_ONCE: usize = 50;
/// How many rows of the event log go at a time.
const ROWS: usize = 500;

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
            let rows = forget_rows(queue, log, counts.sampled_at).await?;
            handled += rows;
            if rows >= ROWS {
                next = Next::In(BETWEEN_STEPS);
            }
        }
        Ok(Progress { handled, next })
    }
}

/// Removes rows of the event log, and says how many. A task's events are kept as
/// long as the longer-lived of its traces, its dead letter.
async fn forget_rows(queue: &Queue, log: &EventLog, now: Timestamp) -> Result<usize, ChoreError> {
    let retention = queue.broker.policy().await?.retention;
    let before = |age: Duration| now.checked_sub(age).unwrap_or(Timestamp::UNIX_EPOCH);
    let dead_letters = log.delete_dead_letters_before(&queue.name, before(retention.failed), ROWS).await?;
    let longest = before(retention.failed.max(retention.succeeded));
    let events = log.delete_events_before(&queue.name, longest, ROWS).await?;
    let samples = log.delete_metrics_before(&queue.name, longest, ROWS).await?;
    Ok(dead_letters + events + samples)
}
