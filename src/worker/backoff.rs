//! Pauses between repetitions of a call that the broker could not serve.

use std::time::Duration;

/// The first pause.
const FIRST: Duration = Duration::from_millis(50);

/// The longest pause: how late a worker notices that its broker is back.
const LONGEST: Duration = Duration::from_secs(3);

/// Growing pauses, each with a random part, so that the workers of a queue do
/// not all come back at once.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Pauses {
    failures: u32,
}

impl Pauses {
    /// The next pause.
    pub(crate) fn next(&mut self) -> Duration {
        let whole = FIRST.saturating_mul(1 << self.failures.min(10)).min(LONGEST);
        self.failures += 1;
        whole.mul_f64(0.5 + fastrand::f64() / 2.0)
    }

    /// The call was served.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_a_bound_and_begin_anew() {
        let mut pauses = Pauses::default();
        assert!(pauses.next() <= FIRST);
        for _ in 0..40 {
            pauses.next();
        }
        let long = pauses.next();
        assert!((LONGEST / 2..=LONGEST).contains(&long), "{long:?}");
        pauses.reset();
        assert!(pauses.next() <= FIRST);
    }
}
