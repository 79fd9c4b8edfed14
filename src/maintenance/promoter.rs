//! Brings back what is due, and rings again where work waits.

use std::time::Duration;

use async_trait::async_trait;

use super::{Chore, ChoreError, Next, Progress, Queue};

/// How many of each kind (raw, delayed, retrying) come up in one step, which holds Redis for less than two milliseconds.
pub(crate) const AT_ONCE: usize = 25;

/// How often the bell is rung again while work waits: a worker may have died
/// between the bell and its claim.
const RING_AGAIN: Duration = Duration::from_secs(1);

/// How often it is asked what is due next while anything is to come: of what is due
/// earlier a notice tells, which may be lost. A queue with tasks in it is looked at as often.
const ASK_AGAIN: Duration = Duration::from_secs(5);

/// Moves delayed tasks and retries whose time has come into their lanes. Claims
/// do the same; this is for when nobody claims.
pub struct Promoter;

#[async_trait]
impl Chore for Promoter {
    async fn run_once(&mut self, queue: &Queue) -> Result<Progress, ChoreError> {
        let promoted = queue.broker.promote(AT_ONCE).await?;
        let handled = promoted.promoted + promoted.filed;
        let backlog = queue.counts().is_some_and(|counts| counts.backlog > 0);
        let next = match (promoted.next_in, handled) {
            (_, handled) if handled >= AT_ONCE => Next::AtOnce,
            (Some(wait), _) if backlog => Next::In(wait.min(RING_AGAIN)),
            (Some(wait), _) => Next::In(wait.min(ASK_AGAIN)),
            (None, _) if backlog => Next::In(RING_AGAIN),
            (None, _) => Next::WhenNeeded,
        };
        Ok(Progress { handled, next })
    }
}
