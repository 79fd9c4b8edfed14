//! How long a task waits before its next attempt.
//!
//! One pure function, [`Backoff::delay`], with the random part injected. A
//! broker that computes elsewhere (in a script) is given [`Backoff::bases`]
//! and applies [`Jitter`] alone, so every strategy's numbers come from here.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The random part of a delay: a number below [`Dice::SIDES`], thrown by the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Dice(pub u16);

impl Dice {
    /// How many numbers a throw can show. Small enough that the product with a
    /// delay of two years is still exact in the floating-point numbers of Lua.
    pub const SIDES: u64 = 65_536;

    /// A fair throw.
    pub fn throw() -> Self {
        Self(fastrand::u16(..))
    }

    /// A whole number from 0 to `top`, both possible.
    fn up_to(self, top: u64) -> u64 {
        (top + 1) * u64::from(self.0) / Self::SIDES
    }
}

/// How the wait grows with the number of the retry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "strategy", rename_all = "snake_case")]
pub enum Strategy {
    /// `base · 2ⁿ⁻¹`: 1 s, 2 s, 4 s, …
    Exponential {
        /// The first wait, in milliseconds.
        base_ms: u64,
    },
    /// `base · n²`: 5 s, 20 s, 45 s, …
    Quadratic {
        /// The first wait, in milliseconds.
        base_ms: u64,
    },
    /// The same wait each time.
    Fixed {
        /// The wait, in milliseconds.
        base_ms: u64,
    },
    /// A list of waits; the last one repeats.
    Schedule {
        /// The waits, in milliseconds.
        delays_ms: Vec<u64>,
    },
}

/// What keeps a thousand tasks that failed together from coming back together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Jitter {
    /// Nothing.
    None,
    /// Between 0 and so many milliseconds more.
    Additive {
        /// The most that is added.
        milliseconds: u64,
    },
    /// Between 0 and so many percent more.
    Proportional {
        /// The most that is added, in percent of the wait.
        percent: u8,
    },
    /// Up to so many percent more or less.
    Symmetric {
        /// The most that is added or taken away, in percent of the wait.
        percent: u8,
    },
}

/// A strategy, its cap and its jitter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Backoff {
    /// How the wait grows.
    #[serde(flatten)]
    pub strategy: Strategy,
    /// The most that the wait may grow to before jitter, in milliseconds.
    pub max_ms: u64,
    /// The random part.
    pub jitter: Jitter,
}

/// A delay longer than this is no delay but a mistake; it also keeps sums exact.
const LONGEST_MS: u64 = 366 * 24 * 3600 * 1000;

/// How many retries a schedule of delays tells apart; later ones wait like the last.
pub const LONGEST_TABLE: u32 = 100;

impl Backoff {
    /// The wait before retry number `retry` (from 1), before jitter.
    fn base_ms(&self, retry: u32) -> u64 {
        let retry = retry.max(1);
        let raw = match &self.strategy {
            Strategy::Exponential { base_ms } => {
                base_ms.saturating_mul(1u64.checked_shl(retry - 1).unwrap_or(u64::MAX))
            }
            Strategy::Quadratic { base_ms } => base_ms.saturating_mul(u64::from(retry).pow(2)),
            Strategy::Fixed { base_ms } => *base_ms,
            Strategy::Schedule { delays_ms } => {
                delays_ms.get(retry as usize - 1).or(delays_ms.last()).copied().unwrap_or(0)
            }
        };
        raw.min(self.max_ms).min(LONGEST_MS)
    }

    /// How long retry number `retry` (from 1) waits, given a throw of the dice.
    pub fn delay(&self, retry: u32, dice: Dice) -> Duration {
        Duration::from_millis(self.jitter.apply(self.base_ms(retry.min(LONGEST_TABLE)), dice))
    }

    /// The waits before jitter of retries 1, 2, …, up to where they stop changing.
    pub fn bases(&self) -> Vec<u64> {
        let mut bases: Vec<u64> = (1..=LONGEST_TABLE).map(|retry| self.base_ms(retry)).collect();
        while bases.len() > 1 && bases[bases.len() - 1] == bases[bases.len() - 2] {
            bases.pop();
        }
        bases
    }
}

impl Jitter {
    /// The wait with its random part.
    fn apply(self, base_ms: u64, dice: Dice) -> u64 {
        match self {
            Jitter::None => base_ms,
            Jitter::Additive { milliseconds } => base_ms + dice.up_to(milliseconds.min(LONGEST_MS)),
            Jitter::Proportional { percent } => base_ms + dice.up_to(base_ms * u64::from(percent) / 100),
            Jitter::Symmetric { percent } => {
                let swing = base_ms * u64::from(percent.min(100)) / 100;
                base_ms - swing + dice.up_to(2 * swing)
            }
        }
    }

    /// Kind and number in one word, as scripts read it.
    pub fn word(self) -> String {
        match self {
            Jitter::None => "N0".to_owned(),
            Jitter::Additive { milliseconds } => format!("A{}", milliseconds.min(LONGEST_MS)),
            Jitter::Proportional { percent } => format!("P{percent}"),
            Jitter::Symmetric { percent } => format!("S{}", percent.min(100)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOW: Dice = Dice(0);
    const MIDDLE: Dice = Dice(32_768);
    const HIGH: Dice = Dice(65_535);

    fn waits(backoff: &Backoff, dice: Dice, retries: u32) -> Vec<u64> {
        (1..=retries).map(|retry| backoff.delay(retry, dice).as_millis() as u64).collect()
    }

    fn backoff(strategy: Strategy, max_ms: u64, jitter: Jitter) -> Backoff {
        Backoff { strategy, max_ms, jitter }
    }

    #[test]
    fn s0_waits_one_five_and_fifteen_minutes() {
        let s0 = backoff(Strategy::Schedule { delays_ms: vec![60_000, 300_000, 900_000] }, u64::MAX, Jitter::None);
        for dice in [LOW, HIGH] {
            assert_eq!(waits(&s0, dice, 4), [60_000, 300_000, 900_000, 900_000]);
        }
    }

    #[test]
    fn s1_doubles_from_a_minute_without_cap_or_jitter() {
        let s1 = backoff(Strategy::Exponential { base_ms: 60_000 }, u64::MAX, Jitter::None);
        assert_eq!(waits(&s1, HIGH, 3), [60_000, 120_000, 240_000]);
    }

    #[test]
    fn s1_rate_limit_doubles_to_an_hour_and_adds_up_to_a_tenth() {
        let jitter = Jitter::Proportional { percent: 10 };
        let limit = backoff(Strategy::Exponential { base_ms: 60_000 }, 3_600_000, jitter);
        assert_eq!(
            waits(&limit, LOW, 8),
            [60_000, 120_000, 240_000, 480_000, 960_000, 1_920_000, 3_600_000, 3_600_000]
        );
        assert_eq!(waits(&limit, HIGH, 7)[0], 66_000);
        assert_eq!(waits(&limit, HIGH, 7)[6], 3_960_000 - 5, "65,536 sides show 360,001 numbers in steps of 5 or 6");
        assert_eq!(waits(&limit, MIDDLE, 1), [63_000]);
    }

    #[test]
    fn s2_formula_is_exact() {
        let s2 = backoff(Strategy::Exponential { base_ms: 1000 }, 30_000, Jitter::Additive { milliseconds: 300 });
        assert_eq!(waits(&s2, LOW, 7), [1000, 2000, 4000, 8000, 16_000, 30_000, 30_000]);
        assert_eq!(waits(&s2, HIGH, 7), [1300, 2300, 4300, 8300, 16_300, 30_300, 30_300]);
        assert_eq!(waits(&s2, MIDDLE, 1), [1150]);
    }

    #[test]
    fn s3_doubles_from_a_second_give_or_take_a_tenth() {
        let s3 = backoff(Strategy::Exponential { base_ms: 1000 }, 300_000, Jitter::Symmetric { percent: 10 });
        assert_eq!(waits(&s3, LOW, 3), [900, 1800, 3600]);
        assert_eq!(waits(&s3, MIDDLE, 5), [1000, 2000, 4000, 8000, 16_000]);
        assert_eq!(waits(&s3, HIGH, 3), [1100, 2200, 4400]);
        assert_eq!(waits(&s3, LOW, 12)[11], 270_000);
        assert_eq!(waits(&s3, HIGH, 12)[11], 330_000);
    }

    #[test]
    fn s4_grows_with_the_square() {
        let s4 = backoff(Strategy::Quadratic { base_ms: 5000 }, u64::MAX, Jitter::None);
        assert_eq!(waits(&s4, HIGH, 3), [5000, 20_000, 45_000]);
    }

    #[test]
    fn no_number_of_retries_overflows() {
        let wild = backoff(Strategy::Exponential { base_ms: u64::MAX }, u64::MAX, Jitter::Symmetric { percent: 255 });
        assert!(wild.delay(u32::MAX, HIGH).as_millis() as u64 <= 2 * LONGEST_MS);
        assert_eq!(backoff(Strategy::Schedule { delays_ms: vec![] }, 5, Jitter::None).delay(0, HIGH), Duration::ZERO);
    }

    #[test]
    fn the_table_for_scripts_says_the_same() {
        let s2 = backoff(Strategy::Exponential { base_ms: 1000 }, 30_000, Jitter::None);
        assert_eq!(s2.bases(), [1000, 2000, 4000, 8000, 16_000, 30_000]);
        let s4 = backoff(Strategy::Quadratic { base_ms: 5000 }, u64::MAX, Jitter::None);
        assert_eq!(s4.bases().len(), LONGEST_TABLE as usize);
        assert_eq!(backoff(Strategy::Fixed { base_ms: 7 }, 100, Jitter::None).bases(), [7]);
    }
}
