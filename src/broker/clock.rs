//! Time is the broker's own; tests may inject it.
//!
//! No other clock is read: workers, producers and the leader may disagree
//! about the time, and nothing that they do depends on it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Which time a broker goes by, in milliseconds since 1970.
///
/// Clones of a manual clock are one clock: give it to several brokers and
/// advance them together.
#[derive(Debug, Clone)]
pub enum Clock {
    /// The server's.
    Server,
    /// The one that a test sets.
    Manual(Arc<AtomicU64>),
}

impl Clock {
    /// A clock that stands still at `start_ms` until it is advanced.
    ///
    /// Begin above 0, which asks for the server's time, and in the past: Redis
    /// takes no lease that began in its future.
    pub fn manual(start_ms: u64) -> Self {
        Self::Manual(Arc::new(AtomicU64::new(start_ms)))
    }

    /// Moves a manual clock forward, by whole milliseconds. The server's clock moves itself.
    pub fn advance(&self, by: Duration) {
        if let Self::Manual(time) = self {
            time.fetch_add(u64::try_from(by.as_millis()).unwrap_or(u64::MAX), Ordering::SeqCst);
        }
    }

    /// The time that a test set; `None` where the server's counts.
    pub fn now_ms(&self) -> Option<u64> {
        match self {
            Self::Server => None,
            Self::Manual(time) => Some(time.load(Ordering::SeqCst)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_of_a_manual_clock_are_one_clock() {
        let clock = Clock::manual(1000);
        let other = clock.clone();
        clock.advance(Duration::from_millis(250));
        assert_eq!(other.now_ms(), Some(1250));
        Clock::Server.advance(Duration::from_secs(1));
        assert_eq!(Clock::Server.now_ms(), None);
    }
}
