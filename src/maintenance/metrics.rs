//! What the loops and the queues look like to Prometheus.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use super::{ChoreError, LoopName, Progress, Queue};
use crate::broker::QueueCounts;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfLoop {
    r#loop: &'static str,
}

/// What the loops of all queues did. Clones are the same numbers.
#[derive(Clone)]
pub struct LoopMetrics {
    runs: Family<OfLoop, Counter>,
    handled: Family<OfLoop, Counter>,
    errors: Family<OfLoop, Counter>,
    lateness: Family<OfLoop, Histogram>,
    queues: Arc<Mutex<HashMap<String, Queue>>>,
}

impl Default for LoopMetrics {
    fn default() -> Self {
        let lateness = || Histogram::new(exponential_buckets(0.001, 4.0, 8));
        Self {
            runs: Family::default(),
            handled: Family::default(),
            errors: Family::default(),
            lateness: Family::new_with_constructor(lateness),
            queues: Arc::default(),
        }
    }
}

impl LoopMetrics {
    /// Adds them to a registry.
    pub fn register(&self, registry: &mut Registry) {
        registry.register("windlass_loop_runs", "Steps that a loop took", self.runs.clone());
        registry.register("windlass_loop_handled", "What a loop dealt with", self.handled.clone());
        registry.register("windlass_loop_errors", "Steps of a loop that failed", self.errors.clone());
        let help = "How long after it was due a step of a loop began";
        registry.register("windlass_loop_lateness_seconds", help, self.lateness.clone());
        registry.register_collector(Box::new(Queues(self.queues.clone())));
    }

    pub(super) fn add(&self, name: LoopName, late: Duration, outcome: &Result<Progress, ChoreError>) {
        let of = OfLoop { r#loop: name.as_str() };
        self.runs.get_or_create(&of).inc();
        self.lateness.get_or_create(&of).observe(late.as_secs_f64());
        match outcome {
            Ok(progress) => drop(self.handled.get_or_create(&of).inc_by(progress.handled as u64)),
            Err(_) => drop(self.errors.get_or_create(&of).inc()),
        }
    }

    /// How many steps a loop has taken, and how many of them failed.
    pub fn steps(&self, name: LoopName) -> (u64, u64) {
        let of = OfLoop { r#loop: name.as_str() };
        (self.runs.get_or_create(&of).get(), self.errors.get_or_create(&of).get())
    }

    pub(super) fn queues(&self) -> std::sync::MutexGuard<'_, HashMap<String, Queue>> {
        self.queues.lock().expect("invariant: no panic while held")
    }
}

/// Tells of each queue what its last sample showed, without keeping it twice.
#[derive(Clone)]
struct Queues(Arc<Mutex<HashMap<String, Queue>>>);

impl std::fmt::Debug for Queues {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Queues")
    }
}

/// A gauge of every queue: name, help, value.
type Gauge = (&'static str, &'static str, fn(&QueueCounts) -> u64);

const GAUGES: [Gauge; 9] = [
    ("windlass_queue_backlog", "Tasks that are ready to be claimed", |counts| counts.backlog),
    ("windlass_queue_running", "Tasks that are claimed", |counts| counts.running),
    ("windlass_queue_delayed", "Tasks that wait for their time", |counts| counts.delayed),
    ("windlass_queue_retrying", "Tasks that wait for their retry", |counts| counts.retrying),
    ("windlass_queue_dead_lettered", "Dead letters that nobody has decided on", |counts| counts.dead_lettered),
    ("windlass_queue_workers", "Registered workers", |counts| counts.workers),
    ("windlass_queue_outbox", "Entries that the event log does not have yet", |counts| counts.outbox),
    ("windlass_queue_finished", "Finished tasks that are still known", |counts| counts.finished),
    ("windlass_queue_invalid_transitions", "Moves that were refused", |counts| counts.invalid_transitions),
];

impl Collector for Queues {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let queues = self.0.lock().expect("invariant: no panic while held");
        let seen: Vec<_> =
            queues.values().filter_map(|queue| Some((queue.name.to_string(), queue.counts()?))).collect();
        for (name, help, value) in GAUGES {
            let gauge = ConstGauge::<i64>::new(0);
            let mut metric = encoder.encode_descriptor(name, help, None, gauge.metric_type())?;
            for (queue, counts) in &seen {
                let labels = [("queue", queue.as_str())];
                ConstGauge::new(value(counts) as i64).encode(metric.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}
