//! Whether a worker makes progress, and whether it is of any use right now.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// How long the loop of a worker may be silent. It looks around every second,
/// also while its broker is away, so this is a worker that hangs.
const LONGEST_SILENCE: Duration = Duration::from_secs(30);

/// How a worker is. Kept by the worker, read by probes.
#[derive(Debug)]
pub struct WorkerHealth {
    base: Instant,
    last_tick_ms: AtomicU64,
    /// When the loop wants to go round again at the latest.
    due_ms: AtomicU64,
    registered: AtomicBool,
    connected: AtomicBool,
    draining: AtomicBool,
    running: AtomicUsize,
    waiting: AtomicUsize,
    stuck: AtomicUsize,
    concurrency: usize,
}

impl WorkerHealth {
    pub(super) fn new(concurrency: usize) -> Self {
        Self {
            base: Instant::now(),
            last_tick_ms: AtomicU64::new(0),
            due_ms: AtomicU64::new(u64::MAX),
            registered: AtomicBool::new(false),
            connected: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            running: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            stuck: AtomicUsize::new(0),
            concurrency,
        }
    }

    /// Why the worker should be restarted, if it should.
    pub fn why_not_live(&self) -> Option<String> {
        let silence = self.silence();
        if silence > LONGEST_SILENCE {
            return Some(format!("the worker's loop has been silent for {} s", silence.as_secs()));
        }
        let stuck = self.stuck();
        (stuck >= self.concurrency).then(|| {
            format!(
                "all {stuck} places are held by handlers that were dropped and do not yield: they block their threads"
            )
        })
    }

    /// Why the worker does no work right now, if it does none.
    pub fn why_not_ready(&self) -> Option<&'static str> {
        if !self.registered.load(Ordering::Relaxed) {
            Some("the worker has not registered yet")
        } else if self.draining.load(Ordering::Relaxed) {
            Some("the worker is draining")
        } else if !self.is_connected() {
            Some("the broker does not answer")
        } else {
            None
        }
    }

    /// Whether the broker served the last call.
    pub fn is_connected(&self) -> bool {
        self.connected.load(Ordering::Relaxed)
    }

    /// How many handlers run.
    pub fn running(&self) -> usize {
        self.running.load(Ordering::Relaxed)
    }

    /// How many tasks were claimed ahead and wait for a handler.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// How many places are held by handlers that were dropped and go on all the
    /// same, because they never yield.
    pub fn stuck(&self) -> usize {
        self.stuck.load(Ordering::Relaxed)
    }

    /// How long ago the worker's loop last went round.
    pub fn silence(&self) -> Duration {
        let last = Duration::from_millis(self.last_tick_ms.load(Ordering::Relaxed));
        self.base.elapsed().saturating_sub(last)
    }

    pub(super) fn tick(&self, now: Instant) {
        let since = now.saturating_duration_since(self.base);
        self.last_tick_ms.store(since.as_millis() as u64, Ordering::Relaxed);
    }

    /// The loop wants to go round again at that time.
    pub(super) fn is_due(&self, at: Instant) {
        let since = at.saturating_duration_since(self.base);
        self.due_ms.store(since.as_millis() as u64, Ordering::Relaxed);
    }

    /// How late the loop is.
    pub(super) fn lateness(&self) -> Duration {
        let due = Duration::from_millis(self.due_ms.load(Ordering::Relaxed));
        self.base.elapsed().saturating_sub(due)
    }

    pub(super) fn has_registered(&self) {
        self.registered.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_draining(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// Says whether that is news.
    pub(super) fn set_connected(&self, connected: bool) -> bool {
        self.connected.swap(connected, Ordering::Relaxed) != connected
    }

    pub(super) fn set_busy(&self, running: usize, waiting: usize) {
        self.running.store(running, Ordering::Relaxed);
        self.waiting.store(waiting, Ordering::Relaxed);
    }

    pub(super) fn set_stuck(&self, count: usize) {
        self.stuck.store(count, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_is_ready_once_it_is_registered_and_until_it_drains() {
        let health = WorkerHealth::new(2);
        assert!(health.why_not_ready().is_some());
        health.has_registered();
        health.set_connected(true);
        assert_eq!(health.why_not_ready(), None);
        health.set_connected(false);
        assert!(health.why_not_ready().is_some_and(|why| why.contains("broker")));
        health.set_connected(true);
        health.is_draining();
        assert!(health.why_not_ready().is_some_and(|why| why.contains("draining")));
    }

    #[tokio::test]
    async fn a_worker_whose_loop_hangs_or_whose_places_are_all_lost_is_not_live() {
        assert_eq!(WorkerHealth::new(2).why_not_live(), None);
        let long_ago = Instant::now().checked_sub(LONGEST_SILENCE * 2).expect("the machine is up for longer");
        let health = WorkerHealth { base: long_ago, ..WorkerHealth::new(2) };
        assert!(health.why_not_live().is_some_and(|why| why.contains("silent")));
        health.tick(Instant::now());
        health.set_stuck(1);
        assert_eq!(health.why_not_live(), None, "one place is left");
        health.set_stuck(2);
        assert!(health.why_not_live().is_some_and(|why| why.contains("do not yield")));
    }
}
