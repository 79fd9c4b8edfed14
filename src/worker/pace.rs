//! How fast the handlers of a worker are, and how far ahead it may claim for them.
//!
//! A task that waits in a busy worker is one that an idle worker cannot have,
//! so a worker holds no more unstarted tasks than it expects to start within
//! [`AHEAD_WITHIN`]. With handlers of microseconds that is many, and saves them
//! the round trip that each would wait for; with handlers slower than the bound
//! it is none.
//!
//! One estimate serves all types: a claim brings whatever is next, so what
//! counts is the mixture that this worker gets.

use std::time::Duration;

use crate::broker::MAX_BATCH;

/// Within this time everything that a worker holds unstarted is expected to
/// start. It is what a task may lose to an idle worker elsewhere, and an urgent
/// task to less urgent ones: much less than what people notice, and much more
/// than the round trip that it saves.
pub(super) const AHEAD_WITHIN: Duration = Duration::from_millis(5);

/// The most unstarted tasks, however fast the handlers are: half of them are
/// run while a call brings the other half.
const MOST_AHEAD: usize = MAX_BATCH;

/// How many attempts the estimate remembers.
const MEMORY: u32 = 32;

/// How many attempts it takes before the estimate is worth anything.
const FIRST_LOOK: u32 = 16;

/// Longer attempts count as this long, so that one of an hour is forgotten
/// after some hundreds of fast ones.
const LONGEST: Duration = Duration::from_secs(1);

/// How many mean deviations an attempt is expected to be slower than the mean:
/// the estimate is to be wrong on the slow side.
const CAUTION: f64 = 2.0;

/// A recent, pessimistic estimate of how long an attempt takes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Pace {
    /// In seconds.
    mean: f64,
    /// From the mean, in seconds.
    deviation: f64,
    seen: u32,
}

impl Pace {
    /// An attempt took so long.
    pub(super) fn add(&mut self, took: Duration) {
        let took = took.min(LONGEST).as_secs_f64();
        self.seen = (self.seen + 1).min(MEMORY);
        let weight = 1.0 / f64::from(self.seen);
        let off = took - self.mean;
        self.mean += off * weight;
        self.deviation += (off.abs() - self.deviation) * weight;
    }

    /// How long an attempt is expected to take; `None` while too few were seen.
    pub(super) fn expected(&self) -> Option<Duration> {
        let seconds = self.mean + CAUTION * self.deviation;
        (self.seen >= FIRST_LOOK).then(|| Duration::from_secs_f64(seconds.max(1e-9)))
    }

    /// How many tasks beyond those that can be started at once `hands` handlers
    /// are expected to start in time.
    pub(super) fn ahead(&self, hands: usize) -> usize {
        match self.expected() {
            Some(one) if one <= AHEAD_WITHIN => {
                let rounds = AHEAD_WITHIN.as_secs_f64() / one.as_secs_f64();
                // A bounded number, so nothing is cut off.
                (rounds * hands as f64).min(MOST_AHEAD as f64) as usize
            }
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(times: impl IntoIterator<Item = Duration>) -> Pace {
        let mut pace = Pace::default();
        for time in times {
            pace.add(time);
        }
        pace
    }

    #[test]
    fn nothing_is_claimed_ahead_before_enough_was_seen() {
        let fast = |count| after(vec![Duration::from_micros(10); count]);
        assert_eq!(fast(0).ahead(100), 0);
        assert_eq!(fast(15).ahead(100), 0);
        assert_eq!(fast(16).ahead(1), MOST_AHEAD);
    }

    #[test]
    fn what_is_ahead_would_start_within_the_bound() {
        let pace = |time| after(vec![time; 1000]);
        for (micros, one_hand, ten_hands) in [(900, 5, 55), (4000, 1, 12), (6000, 0, 0)] {
            let pace = pace(Duration::from_micros(micros));
            assert_eq!((pace.ahead(1), pace.ahead(10)), (one_hand, ten_hands), "{micros} µs");
        }
        assert_eq!(pace(Duration::ZERO).ahead(10_000), MOST_AHEAD);
        assert_eq!(pace(Duration::from_micros(1)).ahead(0), 0, "nobody is free to start them");
    }

    #[test]
    fn a_few_slow_attempts_among_fast_ones_are_enough_to_stop_it() {
        let mixed = |slow| (0..1000).map(move |n| if n % 50 == 49 { slow } else { Duration::from_micros(10) });
        assert_eq!(after(mixed(Duration::from_secs(1))).ahead(1), 0);
        let some = after(mixed(Duration::from_millis(2))).ahead(1);
        assert!((1..MOST_AHEAD).contains(&some), "{some} with one of 2 ms among fifty");
    }

    #[test]
    fn the_longest_attempt_is_forgotten_after_some_hundreds() {
        let mut pace = after([Duration::from_secs(3600)]);
        for _ in 0..500 {
            pace.add(Duration::from_micros(10));
        }
        assert_eq!(pace.ahead(1), MOST_AHEAD);
    }
}
