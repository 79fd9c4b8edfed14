//! Empties the outbox into the event log.

use std::time::Duration;

use async_trait::async_trait;

use super::{Chore, ChoreError, Next, Progress, Queue};

/// How many entries it takes at once. At a hundred moves an entry that is some
/// megabyte: more would hold Redis for too long.
const PAGE: usize = 32;

/// How long it rests after a page that was not full, so that more comes together.
const REST: Duration = Duration::from_millis(20);

/// Writes entries to the event log and forgets them only then. What was written
/// and not forgotten comes again, and the log knows it.
pub struct Recorder;

#[async_trait]
impl Chore for Recorder {
    async fn run_once(&mut self, queue: &Queue) -> Result<Progress, ChoreError> {
        let Some(log) = &queue.log else { return Ok(Progress { handled: 0, next: Next::WhenNeeded }) };
        let entries = queue.broker.outbox(PAGE).await?;
        let progress = log.record_many(&queue.name, &entries).await;
        let recorded = &entries[..progress.entries];
        queue.broker.trim_outbox(recorded).await?;
        queue.seen().add(recorded);
        if let Some(error) = progress.stopped {
            return Err(error.into());
        }
        // Whether the outbox is empty now only an empty page tells: the notice
        // comes when it was empty and is not any more.
        let next = match entries.len() {
            0 => Next::WhenNeeded,
            PAGE => Next::AtOnce,
            _ => Next::In(REST),
        };
        Ok(Progress { handled: recorded.iter().map(|entry| entry.events.len()).sum(), next })
    }
}
