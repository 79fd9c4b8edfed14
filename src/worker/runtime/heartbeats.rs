//! Heartbeats: every lease is renewed, and the policy read again.

use std::time::Duration;

use tokio::time::Instant;

use super::Runtime;
use crate::broker::{Extended, Result};
use crate::protocol::policy::Policy;
use crate::worker::CancelReason;
use crate::worker::slots::SlotId;
use crate::worker::verdict::Certainty;

/// A heartbeat that was answered, or was not.
pub(super) struct Beat {
    asked: Instant,
    /// Whether the worker registered before it.
    registered: bool,
    slots: Vec<SlotId>,
    answers: Result<Vec<Extended>>,
    /// `None` if it was not asked for.
    policy: Option<Result<Policy>>,
}

impl Runtime {
    /// Renews every lease, also of what waits, and reads the policy again.
    pub(super) fn next_heartbeat(&mut self, now: Instant) {
        if self.beat.is_some() || now < self.next_beat {
            return;
        }
        let (slots, leases) = self.slots.leases();
        let broker = self.home.broker.clone();
        let worker = self.info.id.clone();
        let again = self.register_again.then(|| self.info.clone());
        let registered = again.is_some();
        self.beat = Some(Box::pin(async move {
            let answers = match again {
                Some(info) => match broker.register(&info).await {
                    Ok(_) => broker.extend(&worker, &leases).await,
                    Err(error) => Err(error),
                },
                None => broker.extend(&worker, &leases).await,
            };
            let policy = if answers.is_ok() { Some(broker.policy().await) } else { None };
            Beat { asked: now, registered, slots, answers, policy }
        }));
    }

    pub(super) fn beaten(&mut self, beat: Beat) {
        let now = Instant::now();
        match beat.answers {
            Ok(answers) => {
                self.beat_pauses.reset();
                // Silent for so long, it may be out of the registry, though this beat was answered.
                let silence = now.saturating_duration_since(self.last_beat);
                self.register_again = !beat.registered && silence >= self.policy.reclaim.worker_lost_after;
                self.last_beat = beat.asked;
                if self.health.set_connected(true) {
                    tracing::info!(worker = %self.info.id, "the broker answers");
                }
                for (slot, answer) in beat.slots.into_iter().zip(answers) {
                    match answer {
                        Extended::Renewed => self.slots.renewed(slot, beat.asked),
                        Extended::Lost => self.cancel(slot, CancelReason::LeaseLost, Certainty::Confirmed),
                        Extended::Cancelled => self.cancel(slot, CancelReason::Cancelled, Certainty::Confirmed),
                    }
                }
                self.ready.extend(self.set_aside.drain(..));
                if let Some(Ok(policy)) = beat.policy {
                    self.crew.set_visibility(policy.visibility_timeout);
                    self.policy = policy;
                }
                self.next_beat = now + jittered(self.policy.heartbeat_period);
            }
            Err(error) => {
                // Whatever it is, it may last.
                self.register_again = true;
                self.metrics.add_broker_error();
                self.refused(&error);
                self.next_beat = now + self.beat_pauses.next().min(self.policy.heartbeat_period);
            }
        }
        self.arm(self.next_beat);
    }
}

/// A time a little shorter than that, so that workers do not all come at once.
pub(super) fn jittered(period: Duration) -> Duration {
    period.mul_f64(0.8 + fastrand::f64() * 0.2)
}
