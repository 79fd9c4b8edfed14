//! Records dead letters, and only then lets their tasks fail.

use async_trait::async_trait;

use super::{Chore, ChoreError, Next, Progress, Queue};
use crate::event_log::EventLogError;
use crate::protocol::names::TaskId;
use crate::protocol::task::DeadLetter;

/// How many it records at a time.
const AT_ONCE: usize = 50;

/// Writes what died to the event log (where there is one), then to the
/// dead-letter stream, which also fails the task. Both can be repeated: a
/// dead letter is named by its task and claim.
#[derive(Default)]
pub struct DeadLetterRouter {
    /// Behind which letter it goes on: one that the event log refused, and the last of those.
    behind: Option<TaskId>,
}

#[async_trait]
impl Chore for DeadLetterRouter {
    async fn run_once(&mut self, queue: &Queue) -> Result<Progress, ChoreError> {
        let mut behind = self.behind.take();
        let page = queue.broker.pending_dead_letters_after(behind.as_ref(), AT_ONCE).await?;
        let mut refused = None;
        for letter in &page.letters {
            match record(queue, letter).await {
                // One letter that cannot be stored does not hold up those behind it.
                Err(error @ ChoreError::Refused { .. }) => {
                    behind = Some(letter.id.task.clone());
                    refused = Some(error);
                }
                done => done?,
            }
        }
        // After the last page the next round begins with those that were refused.
        self.behind = behind.filter(|_| page.more);
        match refused {
            Some(error) => Err(error),
            None if page.more => Ok(Progress { handled: page.letters.len(), next: Next::AtOnce }),
            None => Ok(Progress { handled: page.letters.len(), next: Next::WhenNeeded }),
        }
    }
}

async fn record(queue: &Queue, letter: &DeadLetter) -> Result<(), ChoreError> {
    if let Some(log) = &queue.log {
        log.record_dead_letter(&queue.name, letter).await.map_err(|error| match error {
            // What the database says of this row; anything else is about the database.
            error @ (EventLogError::Unexpected { .. } | EventLogError::Invalid(_)) => {
                ChoreError::Refused { letter: letter.id.clone(), error }
            }
            error => error.into(),
        })?;
    }
    // Another leader may have been faster, which is as well.
    queue.broker.record_dead_letter(&letter.id).await?;
    Ok(())
}
