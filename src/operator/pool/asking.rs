//! Asking queues what there is to do, such that a Redis that hangs holds up nobody but its own pools.
//!
//! Pools are looked at a few at a time, and one that waits for an answer keeps a
//! place. So only some of the places wait for the same Redis; and while that does
//! not answer, one pool at a time finds out whether it does again, and the others
//! are told at once that nothing is known.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Semaphore;

use crate::broker::BrokerError;

/// How long a Redis may take to answer before what there is to do is unknown.
const PATIENCE: Duration = Duration::from_secs(6);
/// How many pools wait for one Redis at a time: half of those that are looked at together.
const AT_ONCE: usize = super::TOGETHER as usize / 2;
/// How long a pool waits until it may ask. Far longer than a Redis that answers takes for all before it.
const FOR_A_PLACE: Duration = Duration::from_secs(1);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoAnswer {
    /// The Redis said so.
    #[error(transparent)]
    Refused(#[from] BrokerError),
    /// It said nothing.
    #[error("Redis did not answer within {PATIENCE:?}")]
    TooLate,
    /// Others wait for the same Redis in vain.
    #[error("Redis does not answer others")]
    Silent,
}

/// Who asks which Redis.
#[derive(Default)]
pub(super) struct Asking(Mutex<HashMap<String, Arc<Server>>>);

struct Server {
    places: Semaphore,
    /// For whoever finds out whether it answers again.
    probe: Semaphore,
    silent: AtomicBool,
}

impl Asking {
    /// Asks a Redis, by its connection's fingerprint.
    pub(super) async fn ask<T>(
        &self,
        fingerprint: &str,
        question: impl Future<Output = Result<T, BrokerError>>,
    ) -> Result<T, NoAnswer> {
        let server = self.server(fingerprint);
        let place = match server.silent.load(Ordering::Relaxed) {
            true => server.probe.try_acquire().ok(),
            false => tokio::time::timeout(FOR_A_PLACE, server.places.acquire()).await.ok().and_then(Result::ok),
        };
        let Some(_place) = place else { return Err(NoAnswer::Silent) };
        let answer = match tokio::time::timeout(PATIENCE, question).await {
            Ok(answer) => answer.map_err(NoAnswer::Refused),
            Err(_) => Err(NoAnswer::TooLate),
        };
        let silent = matches!(answer, Err(NoAnswer::TooLate | NoAnswer::Refused(BrokerError::Unreachable { .. })));
        server.silent.store(silent, Ordering::Relaxed);
        answer
    }

    fn server(&self, fingerprint: &str) -> Arc<Server> {
        let mut all = self.0.lock().expect("invariant: no panic while held");
        if let Some(known) = all.get(fingerprint) {
            return known.clone();
        }
        // Of one that nobody asks and that answered there is nothing to remember.
        all.retain(|_, server| Arc::strong_count(server) > 1 || server.silent.load(Ordering::Relaxed));
        let (places, probe) = (Semaphore::new(AT_ONCE), Semaphore::new(1));
        let server = Arc::new(Server { places, probe, silent: AtomicBool::new(false) });
        all.insert(fingerprint.to_owned(), server.clone());
        server
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    /// A Redis that says nothing until it is told to, and then that it is not there.
    #[derive(Default)]
    struct Hanging {
        waiting: AtomicUsize,
        end: tokio::sync::Notify,
    }

    impl Hanging {
        async fn question(&self) -> Result<u32, BrokerError> {
            self.waiting.fetch_add(1, Ordering::Relaxed);
            self.end.notified().await;
            Err(BrokerError::Unreachable { address: "redis:6379".to_owned(), reason: "it hangs".to_owned() })
        }

        /// How many of so many at once waited for it. It ends when the others were told that nothing is known.
        async fn waited(&self, asking: &Asking, number: usize) -> usize {
            let (told, before) = (AtomicUsize::new(0), self.waiting.load(Ordering::Relaxed));
            let all = (0..number).map(|_| async {
                if matches!(asking.ask("hangs", self.question()).await, Err(NoAnswer::Silent)) {
                    told.fetch_add(1, Ordering::Relaxed);
                }
            });
            let end = async {
                let waiting = || self.waiting.load(Ordering::Relaxed) - before;
                while waiting() + told.load(Ordering::Relaxed) < number {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                self.end.notify_waiters();
            };
            tokio::join!(futures::future::join_all(all), end);
            number - told.load(Ordering::Relaxed)
        }
    }

    async fn seven() -> Result<u32, BrokerError> {
        Ok(7)
    }

    async fn all_are_answered(asking: &Asking, fingerprint: &str) -> bool {
        let many = futures::future::join_all((0..40).map(|_| asking.ask(fingerprint, seven()))).await;
        many.iter().all(Result::is_ok)
    }

    #[tokio::test]
    async fn one_that_hangs_keeps_half_of_the_places_and_then_one() {
        let (asking, redis) = (Asking::default(), Hanging::default());
        assert_eq!(redis.waited(&asking, 3 * AT_ONCE).await, AT_ONCE);
        assert_eq!(redis.waited(&asking, 5).await, 1, "one finds out, the others are told");
        assert!(all_are_answered(&asking, "other").await);
        assert!(matches!(asking.ask("hangs", seven()).await, Ok(7)));
        assert!(all_are_answered(&asking, "hangs").await, "it answers again, so all ask again");
    }

    #[tokio::test]
    async fn what_is_wrong_with_one_queue_is_not_held_against_its_redis() {
        let asking = Asking::default();
        let gone = async { Err::<u32, _>(BrokerError::NoQueue("shop/emails".to_owned())) };
        assert!(matches!(asking.ask("a", gone).await, Err(NoAnswer::Refused(_))));
        assert!(all_are_answered(&asking, "a").await);
    }
}
