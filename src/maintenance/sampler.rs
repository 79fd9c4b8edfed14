//! Looks at the queue: for its status, for metrics, and for what no notice told.

use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;

use super::{Chore, ChoreError, Next, Progress, Queue};
use crate::broker::{Glance, QueueCounts};
use crate::event_log::Sample;

/// Between two looks at a queue in which something happens.
const WHILE_BUSY: Duration = Duration::from_secs(5);
/// Between two looks at one in which nothing does. Ten thousand of these must
/// cost next to nothing: notices tell what happens in between.
const WHILE_IDLE: Duration = Duration::from_secs(300);
/// For how long glances may stand in for counts.
const GLANCES_DO: Duration = Duration::from_secs(2 * 3600);
/// Between two rows of the metrics table.
const BETWEEN_ROWS: Duration = Duration::from_secs(60);
/// The part of the outbox's bound from which on it is warned of.
const OUTBOX_WARNING: f64 = 0.8;

/// Counts, and writes a row of metrics now and then.
#[derive(Default)]
pub struct Sampler {
    /// When the queue was last counted, and what was seen just before.
    counted: Option<(Instant, Option<Glance>)>,
    /// When it wanted to be called again.
    due: Option<Instant>,
    /// When a row was last written, or could not be.
    row_tried: Option<Instant>,
    /// What could not be written then.
    unwritten: Option<Sample>,
    warned: bool,
}

#[async_trait]
impl Chore for Sampler {
    async fn run_once(&mut self, queue: &Queue) -> Result<Progress, ChoreError> {
        let first = self.counted.is_none();
        let glance = if first || !queue.is_busy() { queue.broker.glance().await? } else { None };
        if self.is_unchanged(glance, Instant::now()) {
            return Ok(self.rest(spread(WHILE_IDLE)));
        }
        let counts = queue.broker.counts().await?;
        let policy = queue.broker.policy().await?;
        self.counted = Some((Instant::now(), glance));
        self.look_at_outbox(queue, counts.outbox, policy.limits.outbox_entries);
        queue.seen().show(&counts, &policy);
        let busy = queue.is_busy();
        let due = self.row_tried.is_none_or(|at| at.elapsed() >= BETWEEN_ROWS);
        // Also of a queue that became idle since: the last of what it did is told, too.
        let done_something = !queue.seen().tally.is_empty();
        if due && (busy || done_something || self.unwritten.is_some()) {
            // A database that is down is asked as rarely: looks at the queue must not wait for it.
            self.row_tried = Some(Instant::now());
            self.write_rows(queue, &counts).await?;
        }
        let rest = if busy { WHILE_BUSY } else { WHILE_IDLE };
        // After a start all queues are looked at, so the first rest is spread over its whole length.
        Ok(self.rest(if first { rest.mul_f64(fastrand::f64()) } else { spread(rest) }))
    }
}

/// Spread, so that many queues are not looked at in the same moment.
fn spread(rest: Duration) -> Duration {
    rest.mul_f64(0.8 + 0.4 * fastrand::f64())
}

impl Sampler {
    fn rest(&mut self, rest: Duration) -> Progress {
        self.due = Some(Instant::now() + rest);
        Progress { handled: 1, next: Next::In(rest) }
    }

    /// Whether a glance shows that an idle queue is as it was when it was counted.
    /// Who is called before the time has heard of something, and counts.
    fn is_unchanged(&self, glance: Option<Glance>, now: Instant) -> bool {
        let Some((counted, before)) = self.counted else { return false };
        let in_time = self.due.is_some_and(|due| due <= now);
        in_time && glance.is_some() && glance == before && now.duration_since(counted) < GLANCES_DO
    }

    /// Warns before the outbox reaches its bound, at which enqueues are refused.
    fn look_at_outbox(&mut self, queue: &Queue, entries: u64, bound: u64) {
        let filling = entries as f64 > OUTBOX_WARNING * bound as f64;
        if filling && !self.warned {
            tracing::warn!(queue = %queue.name, entries, bound,
                "the outbox is filling: at its bound new tasks are refused until the event log has caught up");
        }
        self.warned = filling;
    }

    /// Writes what could not be written before, then what happened since. A row that was
    /// written though its answer was lost is written once: its time names it.
    async fn write_rows(&mut self, queue: &Queue, counts: &QueueCounts) -> Result<(), ChoreError> {
        let Some(log) = &queue.log else { return Ok(()) };
        if let Some(sample) = &self.unwritten {
            log.record_sample(&queue.name, sample).await?;
        }
        let sample = self.unwritten.insert(queue.seen().tally.sample(counts));
        log.record_sample(&queue.name, sample).await?;
        self.unwritten = None;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use jiff::Timestamp;

    use super::*;
    use crate::broker::clock::Clock;
    use crate::broker::model::Model;
    use crate::broker::{Broker, Owner, Takeover};
    use crate::event_log::EventLog;
    use crate::protocol::names::QueueName;
    use crate::protocol::policy::Policy;
    use crate::protocol::task::NewTask;

    const GLANCE: Glance = Glance { keys: 1, raw_entries: 0 };

    #[tokio::test]
    async fn a_row_that_the_database_did_not_take_is_written_later_with_what_came_since() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("events.db");
        let log = EventLog::open(&format!("sqlite://{}", file.display())).expect("a usable URL");
        let (name, clock): (QueueName, _) = ("shop/emails".parse().expect("valid"), Clock::manual(1_700_000_000_000));
        let model = Arc::new(Model::new(name.clone(), clock.clone()));
        let owner = Owner { name: "test".to_owned(), takeover: Takeover::Respect };
        model.provision(&owner, &Policy::default()).await.expect("made");
        let task = || NewTask::new("send".parse().expect("valid"), serde_json::json!(1));
        let queue = Queue::new(name.clone(), model.clone(), Some(log.clone()));
        let mut sampler = Sampler::default();
        model.enqueue(&[task(), task()]).await.expect("taken");
        let entries = model.outbox(1).await.expect("read");
        queue.seen().add(&entries);
        std::fs::create_dir(&file).expect("made");
        sampler.run_once(&queue).await.expect_err("that is no file");
        std::fs::remove_dir(&file).expect("removed");
        model.enqueue(&[task()]).await.expect("taken");
        let entries = model.outbox(2).await.expect("read");
        queue.seen().add(&entries[1..]);
        clock.advance(Duration::from_secs(60));
        sampler.row_tried = None;
        sampler.run_once(&queue).await.expect("now there can be one");
        let rows = log.samples(&name, Timestamp::UNIX_EPOCH, Timestamp::MAX).await.expect("answered");
        assert_eq!(rows.iter().map(|row| row.created).collect::<Vec<_>>(), [2, 1]);
        assert!(sampler.unwritten.is_none());
    }

    #[test]
    fn a_queue_is_counted_unless_a_glance_in_time_shows_no_change() {
        let (counted, due) = (Instant::now(), Instant::now() + WHILE_IDLE);
        let sampler = Sampler { counted: Some((counted, Some(GLANCE))), due: Some(due), ..Sampler::default() };
        assert!(sampler.is_unchanged(Some(GLANCE), due));
        assert!(!sampler.is_unchanged(Some(Glance { raw_entries: 1, ..GLANCE }), due), "a raw entry came");
        assert!(!sampler.is_unchanged(None, due), "this broker has no glances");
        assert!(!sampler.is_unchanged(Some(GLANCE), counted), "called early, because of a notice");
        assert!(!sampler.is_unchanged(Some(GLANCE), counted + GLANCES_DO), "glances do not do for ever");
        assert!(!Sampler::default().is_unchanged(Some(GLANCE), due), "it was never counted");
    }
}
