//! Looks out for the first task of pools that rest.
//!
//! A pool that has nothing to do asks its queue nothing. Instead all of them are
//! looked at together, a few commands a second however many they are; producers
//! that know nothing of Windlass tell nobody of what they add, so somebody has to look.
//! Where something came, the queue is asked whether it is for the pool: the pool
//! itself is looked at only if it is.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::channel::mpsc;
use futures::future::join_all;

use crate::broker::Broker;
use crate::broker::redis::{Look, stirred};

/// Between two looks: a pool is to be asked for within two seconds of its first task.
const BETWEEN_LOOKS: Duration = Duration::from_millis(700);
/// Between two questions about what the pool's own pods may have claimed before anybody saw it wait.
const BETWEEN_QUESTIONS: Duration = Duration::from_secs(3);
/// How long a queue that was stirred may take to say what there is to do.
const PATIENCE: Duration = Duration::from_secs(2);

/// A pool: its namespace and name.
pub(super) type PoolKey = (String, String);

/// A pool that rests.
#[derive(Clone)]
struct Resting {
    look: Look,
    /// Whether it has pods, which claim a task as soon as it is there.
    has_pods: bool,
    /// When its queue said last that there is nothing to do.
    asked: Instant,
}

impl Resting {
    /// Whether a look may have missed what came: among other tasks that live, one that was claimed at once shows nowhere.
    fn is_unsure(&self) -> bool {
        self.has_pods && self.look.stillness.lives && self.asked.elapsed() >= BETWEEN_QUESTIONS
    }
}

/// The pools that rest.
pub(super) struct Lookout {
    resting: Mutex<HashMap<PoolKey, Resting>>,
    stirred: mpsc::UnboundedSender<PoolKey>,
}

impl Lookout {
    /// A lookout, and where it tells which pools have something to do.
    pub(super) fn new() -> (Self, mpsc::UnboundedReceiver<PoolKey>) {
        let (stirred, told) = mpsc::unbounded();
        (Self { resting: Mutex::default(), stirred }, told)
    }

    /// A pool rests from now on, with so many pods.
    pub(super) fn rest(&self, pool: PoolKey, look: Look, pods: i32) {
        self.all().insert(pool, Resting { look, has_pods: pods > 0, asked: Instant::now() });
    }

    /// A pool does not rest, or is gone.
    pub(super) fn wake(&self, pool: &PoolKey) {
        self.all().remove(pool);
    }

    /// Looks until it is dropped.
    pub(super) async fn run(&self) {
        loop {
            tokio::time::sleep(BETWEEN_LOOKS).await;
            let resting: Vec<(PoolKey, Resting)> =
                self.all().iter().map(|(pool, resting)| (pool.clone(), resting.clone())).collect();
            let looks: Vec<Look> = resting.iter().map(|(_, resting)| resting.look.clone()).collect();
            let answers = stirred(&looks).await;
            // All at once, as the looks were: a Redis that hangs by now delays nobody else for longer than that.
            join_all(resting.into_iter().zip(answers).map(|((pool, resting), answer)| async move {
                match answer {
                    Some(false) if !resting.is_unsure() => {}
                    Some(_) => self.ask(pool, &resting.look).await,
                    // A server that cannot be asked is something to tell, too.
                    None => self.tell(pool),
                }
            }))
            .await;
        }
    }

    /// Asks a queue whether what came is for the pool. If it is not, the pool rests on.
    async fn ask(&self, pool: PoolKey, look: &Look) {
        match tokio::time::timeout(PATIENCE, look.broker.demand(&look.capabilities)).await {
            Ok(Ok(demand)) if demand.total() == 0 => {
                // Of a pool that was looked at meanwhile it is an earlier moment than it might be, which hides nothing.
                let mut all = self.all();
                let same = all.get_mut(&pool).filter(|resting| Arc::ptr_eq(&resting.look.broker, &look.broker));
                if let Some(resting) = same {
                    (resting.look.stillness, resting.asked) = (demand.stillness, Instant::now());
                }
            }
            _ => self.tell(pool),
        }
    }

    fn tell(&self, pool: PoolKey) {
        self.wake(&pool);
        // Who does not listen any more has no pools either.
        drop(self.stirred.unbounded_send(pool));
    }

    fn all(&self) -> std::sync::MutexGuard<'_, HashMap<PoolKey, Resting>> {
        self.resting.lock().expect("invariant: no panic while held")
    }
}
