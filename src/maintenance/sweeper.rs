//! Finds workers that fell silent and tasks that are not where they should be.

use std::time::Duration;

use async_trait::async_trait;

use super::{Chore, ChoreError, Next, Progress, Queue};
use crate::broker::SweepCursor;

/// Between two pages of a round: a round through a long queue should not be felt.
const BETWEEN_PAGES: Duration = Duration::from_millis(100);
/// Between two rounds.
const REST: Duration = Duration::from_secs(5);

/// Each step deals with lost workers and looks at a page of live tasks. On a
/// healthy queue it finds nothing to repair; what it does find is logged.
#[derive(Default)]
pub struct Sweeper {
    cursor: SweepCursor,
}

#[async_trait]
impl Chore for Sweeper {
    async fn run_once(&mut self, queue: &Queue) -> Result<Progress, ChoreError> {
        let swept = queue.broker.sweep(std::mem::take(&mut self.cursor)).await?;
        for (task, what) in &swept.repaired {
            tracing::warn!(queue = %queue.name, task_id = %task, what, "a task was not where its state says and was put back");
        }
        for worker in &swept.workers_lost {
            tracing::warn!(queue = %queue.name, %worker, "a worker fell silent and left the registry: its tasks come back, as reclaim.causes says");
        }
        let more_pages = swept.next.is_some();
        self.cursor = swept.next.unwrap_or_default();
        let next = match more_pages {
            _ if swept.unfinished => Next::AtOnce,
            true => Next::In(BETWEEN_PAGES),
            false if queue.is_busy() => Next::In(REST),
            false => Next::WhenNeeded,
        };
        Ok(Progress { handled: swept.repaired.len() + swept.workers_lost.len() + swept.consumers_removed, next })
    }
}
