//! Numbers out of numbers: medians, ranges and percentiles.

use serde::Serialize;

/// What several runs of one measurement gave.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Spread {
    /// The middle value: one bad run does not move it.
    pub(super) median: f64,
    /// The lowest.
    pub(super) min: f64,
    /// The highest.
    pub(super) max: f64,
}

impl Spread {
    /// Of these values; `None` of none.
    pub(super) fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let upper = sorted[sorted.len() / 2];
        let lower = sorted[(sorted.len() - 1) / 2];
        Some(Self { median: (lower + upper) / 2.0, min, max })
    }
}

/// The value that the share `q` of all values does not exceed, as the peers' drivers reckon it.
pub(super) fn percentile(sorted: &[f64], q: f64) -> Option<f64> {
    let rank = (q * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied()
}

/// How long things took, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Waits {
    /// Half of them were not longer.
    pub(super) p50: f64,
    /// All but one in a hundred were not longer.
    pub(super) p99: f64,
    /// The longest.
    pub(super) max: f64,
    /// How many were below zero.
    pub(super) early: usize,
}

impl Waits {
    /// Of these values; `None` of none.
    pub(super) fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        Some(Self {
            p50: percentile(&values, 0.5)?,
            p99: percentile(&values, 0.99)?,
            max: *values.last()?,
            early: values.iter().filter(|wait| **wait < 0.0).count(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_the_middle_or_between_the_two_middle_ones() {
        let odd = Spread::of(&[5.0, 1.0, 3.0]).expect("three");
        assert_eq!((odd.median, odd.min, odd.max), (3.0, 1.0, 5.0));
        assert_eq!(Spread::of(&[1.0, 4.0, 2.0, 3.0]).expect("four").median, 2.5);
        assert_eq!(Spread::of(&[7.0]).expect("one"), Spread { median: 7.0, min: 7.0, max: 7.0 });
        assert_eq!(Spread::of(&[]), None);
    }

    #[test]
    fn a_percentile_is_one_of_the_values() {
        let hundred: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(percentile(&hundred, 0.5), Some(50.0));
        assert_eq!(percentile(&hundred, 0.99), Some(99.0));
        assert_eq!(percentile(&hundred, 1.0), Some(100.0));
        assert_eq!(percentile(&[8.0], 0.01), Some(8.0));
        assert_eq!(percentile(&[], 0.5), None);
    }

    #[test]
    fn what_came_too_soon_is_counted() {
        let waits = Waits::of(vec![2.0, -1.0, 0.0, 3.0]).expect("four");
        assert_eq!((waits.early, waits.p50, waits.max), (1, 0.0, 3.0));
    }
}
