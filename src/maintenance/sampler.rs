//! Looks at the queue: for its status, for metrics, and for what no notice told.

use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;

use super::{Chore, ChoreError, Next, Progress, Queue, is_busy};
use crate::broker::QueueCounts;

/// Between two looks at a queue in which something happens.
const WHILE_BUSY: Duration = Duration::from_secs(5);
/// Between two looks at one in which nothing does. Ten thousand of these must
/// cost next to nothing: notices tell what happens in between.
const WHILE_IDLE: Duration = Duration::from_secs(120);
/// Between two rows of the metrics table.
const BETWEEN_ROWS: Duration = Duration::from_secs(60);
/// The part of the outbox's bound from which on it is warned of.
const OUTBOX_WARNING: f64 = 0.8;

/// Counts, and writes a row of metrics now and then.
#[derive(Default)]
pub struct Sampler {
    row_written: Option<Instant>,
    warned: bool,
}

#[async_trait]
impl Chore for Sampler {
    async fn run_once(&mut self, queue: &Queue) -> Result<Progress, ChoreError> {
        let counts = queue.broker.counts().await?;
        queue.seen().counts = Some(counts.clone());
        let busy = is_busy(&counts);
        if counts.outbox > 0 || self.warned {
            self.look_at_outbox(queue, &counts).await?;
        }
        let due = self.row_written.is_none_or(|at| at.elapsed() >= BETWEEN_ROWS);
        // Also of a queue that became idle since: the last of what it did is told, too.
        let done_something = !queue.seen().tally.is_empty();
        if due && (busy || done_something) {
            self.row_written = Some(Instant::now());
            self.write_row(queue, &counts).await?;
        }
        let rest = if busy { WHILE_BUSY } else { WHILE_IDLE };
        // Spread, so that many queues are not looked at in the same moment.
        Ok(Progress { handled: 1, next: Next::In(rest.mul_f64(0.8 + 0.4 * fastrand::f64())) })
    }
}

impl Sampler {
    /// Warns before the outbox reaches its bound, at which enqueues are refused.
    async fn look_at_outbox(&mut self, queue: &Queue, counts: &QueueCounts) -> Result<(), ChoreError> {
        let bound = queue.broker.policy().await?.limits.outbox_entries;
        queue.seen().outbox_bound = Some(bound);
        let filling = counts.outbox as f64 > OUTBOX_WARNING * bound as f64;
        if filling && !self.warned {
            tracing::warn!(queue = %queue.name, entries = counts.outbox, bound,
                "the outbox is filling: at its bound new tasks are refused until the event log has caught up");
        }
        self.warned = filling;
        Ok(())
    }

    async fn write_row(&self, queue: &Queue, counts: &QueueCounts) -> Result<(), ChoreError> {
        let sample = queue.seen().tally.sample(counts);
        if let Some(log) = &queue.log {
            log.record_sample(&queue.name, &sample).await?;
        }
        Ok(())
    }
}
