//! Whether history is kept: what the operator knows of its event log.

use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use crate::event_log::EventLog;
use crate::protocol::names::QueueName;

/// How long the event log may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Whether what happens in queues is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum History {
    /// In the event log.
    Recorded,
    /// Nowhere: there is no event log.
    NotConfigured,
    /// Not now: the event log does not answer.
    Unavailable(String),
}

/// The event log, and how it was when it was last looked at.
pub struct HistoryKeeper {
    log: Option<EventLog>,
    seen: Mutex<History>,
}

impl HistoryKeeper {
    pub(super) fn new(log: Option<EventLog>) -> Self {
        let seen = Mutex::new(if log.is_some() { History::Recorded } else { History::NotConfigured });
        Self { log, seen }
    }

    /// How it was when it was last looked at.
    pub fn standing(&self) -> History {
        self.seen().clone()
    }

    /// Looks at it. Whether that changed anything.
    pub(super) async fn look(&self) -> bool {
        let Some(log) = &self.log else { return false };
        let nobody: QueueName = "windlass".parse().expect("invariant: a valid name");
        let now = jiff::Timestamp::now();
        let found = match tokio::time::timeout(PATIENCE, log.samples(&nobody, now, now)).await {
            Ok(Ok(_)) => History::Recorded,
            Ok(Err(error)) => History::Unavailable(error.to_string()),
            Err(_) => History::Unavailable(format!("no answer within {} s", PATIENCE.as_secs())),
        };
        let mut seen = self.seen();
        // The words of an error may differ each time; only whether it works matters to whoever waits for a change.
        let changed = std::mem::discriminant(&*seen) != std::mem::discriminant(&found);
        if changed {
            *seen = found;
        }
        changed
    }

    fn seen(&self) -> MutexGuard<'_, History> {
        self.seen.lock().expect("invariant: no panic while held")
    }
}
