//! Wakes the async runtime when a handler blocks it.
//!
//! A thread of the runtime that is blocked may be the one that would have
//! looked at timers and sockets next; the others then sleep though there is
//! work, and with them the worker's heartbeats. Anything that is spawned from
//! outside wakes one of them, which then looks.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::runtime::Handle;

use super::health::WorkerHealth;

/// How often it is felt.
const PERIOD: Duration = Duration::from_millis(200);

/// A loop that is later than this is held up.
const TOO_LATE: Duration = Duration::from_millis(100);

/// Ends the watch when it is dropped.
pub(super) struct Pulse(#[expect(dead_code, reason = "its end is what is watched")] Arc<()>);

impl Pulse {
    /// Watches over the loop of a worker on this runtime.
    pub(super) fn watch(health: Arc<WorkerHealth>) -> Self {
        let alive = Arc::new(());
        let (watched, runtime) = (Arc::downgrade(&alive), Handle::current());
        let thread = std::thread::Builder::new().name("windlass-pulse".to_owned());
        if let Err(error) = thread.spawn(move || feel(&watched, &health, &runtime)) {
            tracing::warn!(%error, "no thread watches over the worker: a handler that blocks may hold it up");
        }
        Self(alive)
    }
}

fn feel(alive: &Weak<()>, health: &WorkerHealth, runtime: &Handle) {
    while alive.strong_count() > 0 {
        std::thread::sleep(PERIOD);
        if health.lateness() > TOO_LATE {
            drop(runtime.spawn(async {}));
        }
    }
}
