//! Takes tasks back whose lease has run out.

use std::time::Duration;

use async_trait::async_trait;

use super::{Chore, ChoreError, Next, Progress, Queue};
use crate::broker::ReclaimCursor;

/// How long it rests between two rounds.
const REST: Duration = Duration::from_secs(1);

/// Walks through the pending lists of all lanes, a bounded part at a time, and
/// puts back what its worker did not renew.
#[derive(Default)]
pub struct Reclaimer {
    cursor: ReclaimCursor,
}

#[async_trait]
impl Chore for Reclaimer {
    async fn run_once(&mut self, queue: &Queue) -> Result<Progress, ChoreError> {
        let reclaimed = queue.broker.reclaim(std::mem::take(&mut self.cursor)).await?;
        let handled = reclaimed.requeued.len() + reclaimed.dead.len();
        let next = match reclaimed.next {
            Some(cursor) => {
                self.cursor = cursor;
                Next::AtOnce
            }
            None if queue.is_busy() => Next::In(REST),
            None => Next::WhenNeeded,
        };
        Ok(Progress { handled, next })
    }
}
