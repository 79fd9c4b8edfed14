//! What the operator tells Prometheus about itself.

use std::sync::atomic::AtomicI64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// How a reconciliation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It went through.
    Done,
    /// It will be tried again.
    Failed,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfKind {
    kind: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfOutcome {
    kind: &'static str,
    outcome: &'static str,
}

/// The operator's own numbers. Clones are the same numbers.
#[derive(Clone, Default)]
pub struct OperatorMetrics {
    reconciled: Family<OfOutcome, Counter>,
    statuses: Family<OfKind, Counter>,
    leads: Gauge<i64, AtomicI64>,
}

impl OperatorMetrics {
    /// Adds them to a registry.
    pub(super) fn register(&self, registry: &mut Registry) {
        let help = "Reconciliations, by kind of object and outcome";
        registry.register("windlass_operator_reconciliations", help, self.reconciled.clone());
        let help = "Statuses that were written, by kind of object";
        registry.register("windlass_operator_statuses_written", help, self.statuses.clone());
        registry.register("windlass_operator_leads", "1 while this process leads, else 0", self.leads.clone());
    }

    /// An object was reconciled.
    pub fn reconciled(&self, kind: &'static str, outcome: Outcome) {
        let outcome = match outcome {
            Outcome::Done => "done",
            Outcome::Failed => "failed",
        };
        self.reconciled.get_or_create(&OfOutcome { kind, outcome }).inc();
    }

    /// A status was written.
    pub fn status_written(&self, kind: &'static str) {
        self.statuses.get_or_create(&OfKind { kind }).inc();
    }

    pub(super) fn set_leads(&self, leads: bool) {
        self.leads.set(i64::from(leads));
    }
}
