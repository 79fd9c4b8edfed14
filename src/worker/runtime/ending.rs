//! The end of the loop: it claims no more, finishes or gives back what it has, and leaves.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::Runtime;
use crate::broker::ErrorClass;
use crate::worker::backoff::Pauses;
use crate::worker::drain::{Drain, DrainLevel, GIVING_BACK};
use crate::worker::verdict::Certainty;
use crate::worker::{CancelReason, WorkerSummary};

impl Runtime {
    pub(super) fn drain_now(&mut self) {
        let level = *self.drain_level.borrow_and_update();
        let now = Instant::now();
        let drain = self.drain.get_or_insert_with(|| Drain::begin(now, self.options.drain_timeout));
        if level == DrainLevel::AtOnce {
            drain.hurry(now);
        }
        tracing::info!(worker = %self.info.id, ?level, held = self.slots.held(), "the worker drains");
        self.health.is_draining();
        self.give_back_waiting();
        // Its connection closes with it; a ring that it may have swallowed goes to somebody else.
        self.pass_on |= self.sleeping.take().is_some();
        self.sleeper = None;
        self.look_around();
    }

    pub(super) fn look_at_drain(&mut self, now: Instant) {
        let Some(drain) = &self.drain else { return };
        let (cancels, releases) = (now >= drain.cancel_at(), now >= drain.release_at());
        if cancels || releases {
            for slot in self.slots.all_open() {
                self.cancel(slot, CancelReason::Draining, Certainty::Presumed);
                if releases {
                    self.kill(slot);
                }
            }
        }
    }

    pub(super) fn is_over(&self, now: Instant) -> bool {
        let Some(drain) = &self.drain else { return false };
        let all_said = self.slots.is_empty() && self.ready.is_empty() && self.call.is_none() && !self.pass_on;
        all_said || now >= drain.give_up_at()
    }

    /// Leaves the registry. What could not be settled comes back with that, or with its lease.
    pub(super) async fn leave(mut self) -> WorkerSummary {
        self.summary.unsettled = self.slots.held();
        if self.summary.unsettled > 0 {
            tracing::error!(unsettled = self.summary.unsettled, "the worker ends with tasks that it could not settle");
        }
        let until = self.drain.as_ref().map_or_else(Instant::now, Drain::give_up_at);
        let until = until.max(Instant::now() + Duration::from_secs(1));
        let (broker, id) = (self.home.broker.clone(), self.info.id.clone());
        let deregister = async {
            let mut pauses = Pauses::default();
            while let Err(error) = broker.deregister(&id).await {
                tracing::debug!(%error, "the worker could not leave the registry yet");
                if error.class() != ErrorClass::Transient {
                    break;
                }
                tokio::time::sleep(pauses.next()).await;
            }
        };
        tokio::select! {
            left = tokio::time::timeout_at(until, deregister) => {
                if left.is_ok() {
                    return self.summary;
                }
            }
            () = hurried(self.drain_level) => {}
        }
        tracing::warn!(worker = %id, "the worker could not leave the registry: it will be found lost");
        self.summary
    }
}

/// Returns when a worker that was told to end at once has had the time to say so to the broker.
async fn hurried(mut level: watch::Receiver<DrainLevel>) {
    if level.wait_for(|level| *level == DrainLevel::AtOnce).await.is_err() {
        // Nobody is there to ask for it.
        std::future::pending::<()>().await;
    }
    tokio::time::sleep(GIVING_BACK).await;
}
