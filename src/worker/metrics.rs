//! What a worker looks like to Prometheus.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use super::CancelReason;
use crate::broker::Settled;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answer {
    answer: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
}

/// The numbers of one worker. Clones are the same numbers.
#[derive(Clone)]
pub struct WorkerMetrics {
    claimed: Counter,
    settled: Family<Answer, Counter>,
    /// Counted for every task, so not looked up each time.
    succeeded: Counter,
    cancelled: Family<Reason, Counter>,
    killed: Counter,
    running: Gauge,
    waiting: Gauge,
    given_back: Counter,
    handler_seconds: Histogram,
    claim_seconds: Histogram,
    broker_errors: Counter,
}

impl Default for WorkerMetrics {
    fn default() -> Self {
        let settled = Family::<Answer, Counter>::default();
        let succeeded = settled.get_or_create(&Answer { answer: answer_word(&Settled::Succeeded) }).clone();
        Self {
            claimed: Counter::default(),
            settled,
            succeeded,
            cancelled: Family::default(),
            killed: Counter::default(),
            running: Gauge::default(),
            waiting: Gauge::default(),
            given_back: Counter::default(),
            handler_seconds: Histogram::new(exponential_buckets(0.001, 4.0, 10)),
            claim_seconds: Histogram::new(exponential_buckets(0.000_1, 4.0, 10)),
            broker_errors: Counter::default(),
        }
    }
}

impl WorkerMetrics {
    /// Adds them to a registry.
    pub fn register(&self, registry: &mut Registry) {
        registry.register("windlass_worker_claimed", "Tasks that were claimed", self.claimed.clone());
        let help = "Attempts that were settled, by what the broker answered";
        registry.register("windlass_worker_settled", help, self.settled.clone());
        let help = "Attempts that were asked to end, by reason";
        registry.register("windlass_worker_cancelled", help, self.cancelled.clone());
        let help = "Handlers that were dropped because they did not end when asked";
        registry.register("windlass_worker_killed", help, self.killed.clone());
        registry.register("windlass_worker_running", "Handlers that run", self.running.clone());
        let help = "Tasks that were claimed ahead and wait for a handler";
        registry.register("windlass_worker_waiting", help, self.waiting.clone());
        let help = "Tasks that were claimed ahead and given back, because no handler became free for them in time";
        registry.register("windlass_worker_given_back", help, self.given_back.clone());
        registry.register("windlass_worker_handler_seconds", "How long handlers ran", self.handler_seconds.clone());
        let help = "How long the broker took to answer a claim, or a settlement with the claim of the next task";
        registry.register("windlass_worker_claim_seconds", help, self.claim_seconds.clone());
        let help = "Calls that the broker did not serve";
        registry.register("windlass_worker_broker_errors", help, self.broker_errors.clone());
    }

    pub(super) fn add_claimed(&self, count: usize, took: Duration) {
        self.claimed.inc_by(count as u64);
        self.claim_seconds.observe(took.as_secs_f64());
    }

    pub(super) fn add_settled(&self, answer: &Settled) {
        match answer {
            Settled::Succeeded => self.succeeded.inc(),
            other => self.settled.get_or_create(&Answer { answer: answer_word(other) }).inc(),
        };
    }

    pub(super) fn add_cancelled(&self, reason: CancelReason) {
        let reason = match reason {
            CancelReason::Cancelled => "cancelled",
            CancelReason::LeaseLost => "lease_lost",
            CancelReason::TimedOut => "timed_out",
            CancelReason::Draining => "draining",
        };
        self.cancelled.get_or_create(&Reason { reason }).inc();
    }

    pub(super) fn add_killed(&self) {
        self.killed.inc();
    }

    pub(super) fn add_run(&self, took: Duration) {
        self.handler_seconds.observe(took.as_secs_f64());
    }

    pub(super) fn set_busy(&self, running: usize, waiting: usize) {
        self.running.set(running as i64);
        self.waiting.set(waiting as i64);
    }

    pub(super) fn add_given_back(&self, count: usize) {
        self.given_back.inc_by(count as u64);
    }

    pub(super) fn add_broker_error(&self) {
        self.broker_errors.inc();
    }
}

/// The label of what became of a settlement.
pub(super) fn answer_word(answer: &Settled) -> &'static str {
    match answer {
        Settled::Succeeded => "succeeded",
        Settled::Retrying { .. } => "retrying",
        Settled::Dead => "dead",
        Settled::AlreadySettled => "already_settled",
        Settled::LeaseLost => "lease_lost",
        Settled::Cancelled => "cancelled",
        Settled::InvalidTransition => "invalid_transition",
        Settled::Unknown => "unknown",
        Settled::ResultTooLarge => "result_too_large",
    }
}
