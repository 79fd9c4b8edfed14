//! Looks out for the first task of pools that rest.
//!
//! A pool that has nothing to do asks its queue nothing. Instead all of them are
//! looked at together, a few commands a second however many they are; producers
//! that know nothing of Windlass tell nobody of what they add, so somebody has to look.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use futures::channel::mpsc;

use crate::broker::redis::{Look, stirred};

/// Between two looks: a pool is to be asked for within two seconds of its first task.
const BETWEEN_LOOKS: Duration = Duration::from_millis(700);

/// A pool: its namespace and name.
pub(super) type PoolKey = (String, String);

/// The pools that rest.
pub(super) struct Lookout {
    resting: Mutex<HashMap<PoolKey, Look>>,
    stirred: mpsc::UnboundedSender<PoolKey>,
}

impl Lookout {
    /// A lookout, and where it tells which pools have something to do.
    pub(super) fn new() -> (Self, mpsc::UnboundedReceiver<PoolKey>) {
        let (stirred, told) = mpsc::unbounded();
        (Self { resting: Mutex::default(), stirred }, told)
    }

    /// A pool rests from now on.
    pub(super) fn rest(&self, pool: PoolKey, look: Look) {
        self.all().insert(pool, look);
    }

    /// A pool does not rest, or is gone.
    pub(super) fn wake(&self, pool: &PoolKey) {
        self.all().remove(pool);
    }

    /// Looks until it is dropped.
    pub(super) async fn run(&self) {
        loop {
            tokio::time::sleep(BETWEEN_LOOKS).await;
            let resting: Vec<(PoolKey, Look)> =
                self.all().iter().map(|(pool, look)| (pool.clone(), look.clone())).collect();
            if resting.is_empty() {
                continue;
            }
            let (pools, looks): (Vec<_>, Vec<_>) = resting.into_iter().unzip();
            for (pool, answer) in pools.into_iter().zip(stirred(&looks).await) {
                // A server that cannot be asked is something to tell, too.
                if answer != Some(false) {
                    self.wake(&pool);
                    // Who does not listen any more has no pools either.
                    drop(self.stirred.unbounded_send(pool));
                }
            }
        }
    }

    fn all(&self) -> std::sync::MutexGuard<'_, HashMap<PoolKey, Look>> {
        self.resting.lock().expect("invariant: no panic while held")
    }
}
