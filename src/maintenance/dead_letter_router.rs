//! Records dead letters, and only then lets their tasks fail.

use async_trait::async_trait;

use super::{Chore, ChoreError, Next, Progress, Queue};

/// How many it records at a time.
const AT_ONCE: usize = 50;

/// Writes what died to the event log (where there is one), then to the
/// dead-letter stream, which also fails the task. Both can be repeated: a
/// dead letter is named by its task and claim.
pub struct DeadLetterRouter;

#[async_trait]
impl Chore for DeadLetterRouter {
    async fn run_once(&mut self, queue: &Queue) -> Result<Progress, ChoreError> {
        let letters = queue.broker.pending_dead_letters(AT_ONCE).await?;
        for letter in &letters {
            if let Some(log) = &queue.log {
                log.record_dead_letter(&queue.name, letter).await?;
            }
            // Another leader may have been faster, which is as well.
            queue.broker.record_dead_letter(&letter.id).await?;
        }
        let next = if letters.len() == AT_ONCE { Next::AtOnce } else { Next::WhenNeeded };
        Ok(Progress { handled: letters.len(), next })
    }
}
