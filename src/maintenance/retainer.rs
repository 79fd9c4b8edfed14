//! Forgets what the queue has kept for long enough, or has too much of.

use std::time::{Duration, Instant};

use async_trait::async_trait;

use super::{Chore, ChoreError, Next, Progress, Queue};
use crate::broker::RetainCursor;

/// Between two steps of a walk that removes something, at least. With what a step looks at that is more than ten
/// thousand entries a second, so that the bounds can win. Three times what a step took is left to others, however
/// many queues there are.
const BETWEEN_STEPS: Duration = Duration::from_millis(2);
/// Between two steps where what is old has to stay, because its readers have not acknowledged it.
const WHERE_NOTHING_GOES: Duration = Duration::from_millis(50);
/// Between two walks, at least; and while work goes on, at most: what comes in the meantime may be above the bounds.
pub(super) const SHORTEST_REST: Duration = Duration::from_secs(10);
/// Between two walks where nothing comes.
const LONGEST_REST: Duration = Duration::from_secs(3600);
/// How many entries one step looks at; a hundred took Redis 1.5 ms.
const AT_ONCE: usize = 50;

/// Removes results, finished tasks and dead letters that the policy does not
/// keep any longer. It asks no database, so none can hold it up.
#[derive(Default)]
pub struct Retainer {
    cursor: RetainCursor,
}

#[async_trait]
impl Chore for Retainer {
    async fn run_once(&mut self, queue: &Queue) -> Result<Progress, ChoreError> {
        let began = Instant::now();
        let retained = queue.broker.retain(std::mem::take(&mut self.cursor), AT_ONCE).await?;
        let (took, removed) = (began.elapsed(), retained.results + retained.dead_letters);
        self.cursor = retained.cursor;
        let longest = if queue.is_busy() { SHORTEST_REST } else { LONGEST_REST };
        let next = match retained.next_in {
            Some(Duration::ZERO) if removed > 0 => BETWEEN_STEPS.max(took.saturating_mul(3)),
            Some(Duration::ZERO) => WHERE_NOTHING_GOES,
            Some(wait) => wait.clamp(SHORTEST_REST, longest),
            None => longest,
        };
        Ok(Progress { handled: removed, next: Next::In(next) })
    }
}
