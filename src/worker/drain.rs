//! The end of a worker, step by step.

use std::time::Duration;

use tokio::time::Instant;

/// What a worker was told about its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DrainLevel {
    /// Nothing.
    None,
    /// Finish what can be finished in time, and give the rest back.
    Graceful,
    /// Give everything back now.
    AtOnce,
}

impl DrainLevel {
    /// What one more request asks for.
    pub(super) fn next(self) -> Self {
        match self {
            Self::None => Self::Graceful,
            Self::Graceful | Self::AtOnce => Self::AtOnce,
        }
    }
}

/// A drain under way: when handlers are asked to end, when what is left is
/// given back, and when the worker ends whatever was said.
#[derive(Debug, Clone, Copy)]
pub(super) struct Drain {
    cancel_at: Instant,
    release_at: Instant,
    give_up_at: Instant,
}

/// The most of a drain that handlers get to end when asked, and the broker to take the rest back.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// The most of it that is kept for giving tasks back, and what there is for that in any case.
pub(super) const GIVING_BACK: Duration = Duration::from_secs(2);

impl Drain {
    pub(super) fn begin(now: Instant, timeout: Duration) -> Self {
        Self {
            cancel_at: now + (timeout - (timeout / 4).min(LAST_WORDS)),
            release_at: now + (timeout - (timeout / 8).min(GIVING_BACK)),
            // However short a drain is, what is held has to be said to the broker.
            give_up_at: now + timeout.max(GIVING_BACK),
        }
    }

    /// Everything is given back now. A broker that is away is not waited for longer than that takes.
    pub(super) fn hurry(&mut self, now: Instant) {
        (self.cancel_at, self.release_at, self.give_up_at) = (now, now, now + GIVING_BACK);
    }

    pub(super) fn cancel_at(&self) -> Instant {
        self.cancel_at
    }

    pub(super) fn release_at(&self) -> Instant {
        self.release_at
    }

    pub(super) fn give_up_at(&self) -> Instant {
        self.give_up_at
    }

    /// The next of its times.
    pub(super) fn next(&self, now: Instant) -> Option<Instant> {
        [self.cancel_at, self.release_at, self.give_up_at].into_iter().find(|at| *at > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn handlers_are_asked_before_their_tasks_are_given_back_and_both_before_the_end() {
        let now = Instant::now();
        for timeout in [Duration::ZERO, Duration::from_millis(400), Duration::from_secs(30), Duration::from_secs(600)] {
            let drain = Drain::begin(now, timeout);
            assert!(drain.cancel_at <= drain.release_at && drain.release_at <= drain.give_up_at, "{timeout:?}");
            let least = Duration::from_secs(2);
            assert_eq!(drain.give_up_at, now + timeout.max(least), "there is a moment to give everything back");
        }
        let mut drain = Drain::begin(now, Duration::from_secs(600));
        assert_eq!(drain.next(now), Some(now + Duration::from_secs(595)));
        let later = now + Duration::from_secs(100);
        drain.hurry(later);
        assert_eq!((drain.release_at(), drain.give_up_at()), (later, later + GIVING_BACK), "whatever time there was");
    }
}
