//! What the loops and the queues look like to Prometheus.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use super::totals::{LATENCY_BOUNDS, Totals};
use super::{ChoreError, History, LoopName, Progress, Queue};
use crate::broker::QueueCounts;
use crate::protocol::policy::Mode;

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

    /// Shows no queue any more: somebody else looks after them.
    pub fn forget_queues(&self) {
        self.queues().clear();
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

/// A number of every queue: name, help, and its value where there is one.
type Number<T> = (&'static str, &'static str, fn(&Look) -> Option<T>);

/// What is known of a queue.
struct Look {
    counts: QueueCounts,
    outbox_bound: Option<u64>,
    mode: Option<Mode>,
    totals: Totals,
    history: History,
}

fn seconds(duration: Option<Duration>) -> Option<f64> {
    duration.map(|duration| duration.as_secs_f64())
}

/// Since when the oldest ready task waits, by the broker's clock at both ends.
fn oldest_age(counts: &QueueCounts) -> Option<Duration> {
    let since = counts.oldest_task_time?;
    Some(Duration::try_from(counts.sampled_at.duration_since(since)).unwrap_or_default())
}

fn retrying_ratio(counts: &QueueCounts) -> f64 {
    let live = counts.backlog + counts.running + counts.delayed + counts.retrying;
    if live == 0 { 0.0 } else { counts.retrying as f64 / live as f64 }
}

const GAUGES: [Number<f64>; 17] = [
    ("windlass_queue_backlog", "Tasks that are ready to be claimed", |look| Some(look.counts.backlog as f64)),
    ("windlass_queue_running", "Tasks that are claimed", |look| Some(look.counts.running as f64)),
    ("windlass_queue_delayed", "Tasks that wait for their time", |look| Some(look.counts.delayed as f64)),
    ("windlass_queue_retrying", "Tasks that wait for their retry", |look| Some(look.counts.retrying as f64)),
    ("windlass_queue_retrying_ratio", "The part of live tasks that wait for their retry, from 0 to 1", |look| {
        Some(retrying_ratio(&look.counts))
    }),
    ("windlass_queue_blocked", "Tasks that wait for other tasks", |look| Some(look.counts.blocked as f64)),
    ("windlass_queue_waiting_approval", "Tasks that wait for a person", |look| {
        Some(look.counts.waiting_approval as f64)
    }),
    ("windlass_queue_dlq_pending", "Dead tasks whose dead letter is not recorded yet", |look| {
        Some(look.counts.dlq_pending as f64)
    }),
    ("windlass_queue_dead_lettered", "Dead letters that nobody has decided on", |look| {
        Some(look.counts.dead_lettered as f64)
    }),
    ("windlass_queue_finished", "Finished tasks that are still known", |look| Some(look.counts.finished as f64)),
    ("windlass_queue_paused", "1 where the queue is Paused or Closed and gives out no work, else 0", |look| {
        look.mode.map(|mode| f64::from(u8::from(mode != Mode::Running)))
    }),
    ("windlass_queue_workers", "Registered workers", |look| Some(look.counts.workers as f64)),
    (
        "windlass_queue_oldest_task_age_seconds",
        "How long the oldest ready task has waited; absent where none waits",
        |look| seconds(oldest_age(&look.counts)),
    ),
    ("windlass_queue_heartbeat_delay_seconds", "How long ago the most silent worker was heard", |look| {
        seconds(look.counts.longest_silence)
    }),
    ("windlass_queue_outbox", "Entries that the event log does not have yet", |look| Some(look.counts.outbox as f64)),
    ("windlass_queue_outbox_bound", "Entries of the outbox at which new tasks are refused", |look| {
        look.outbox_bound.map(|bound| bound as f64)
    }),
    ("windlass_queue_history_recorded", "1 where an event log is configured, 0 where no history is recorded", |look| {
        Some(f64::from(u8::from(look.history == History::Recorded)))
    }),
];

/// Counters of events are those that this process recorded; where no history is recorded there are none.
const COUNTERS: [Number<u64>; 5] = [
    ("windlass_invalid_transitions", "Moves of tasks that were refused, since the queue was made", |look| {
        Some(look.counts.invalid_transitions)
    }),
    ("windlass_tasks_created", "Tasks that were created", |look| recorded(look, |totals| totals.created)),
    ("windlass_tasks_succeeded", "Tasks that succeeded", |look| recorded(look, |totals| totals.succeeded)),
    ("windlass_tasks_failed", "Tasks that failed for good", |look| recorded(look, |totals| totals.failed)),
    ("windlass_tasks_cancelled", "Tasks that were cancelled", |look| recorded(look, |totals| totals.cancelled)),
];

fn recorded(look: &Look, value: fn(&Totals) -> u64) -> Option<u64> {
    (look.history == History::Recorded).then(|| value(&look.totals))
}

impl Collector for Queues {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let queues: Vec<Queue> = self.0.lock().expect("invariant: no panic while held").values().cloned().collect();
        let seen: Vec<_> = queues.iter().filter_map(|queue| Some((queue.name.to_string(), look_at(queue)?))).collect();
        for (name, help, value) in GAUGES {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (queue, look) in &seen {
                if let Some(value) = value(look) {
                    ConstGauge::new(value).encode(metric.encode_family(&[("queue", queue.as_str())])?)?;
                }
            }
        }
        for (name, help, value) in COUNTERS {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (queue, look) in &seen {
                if let Some(value) = value(look) {
                    ConstCounter::new(value).encode(metric.encode_family(&[("queue", queue.as_str())])?)?;
                }
            }
        }
        encode_labelled(&mut encoder, &seen)?;
        encode_latency(&mut encoder, &seen)
    }
}

fn look_at(queue: &Queue) -> Option<Look> {
    let seen = queue.seen();
    let counts = seen.counts.clone()?;
    let (outbox_bound, mode) = (seen.outbox_bound, seen.mode);
    Some(Look { counts, outbox_bound, mode, totals: seen.totals.clone(), history: queue.history() })
}

/// A counter whose values have a label besides the queue: name, help, label, values.
type Labelled = (&'static str, &'static str, &'static str, fn(&Totals) -> Vec<(&str, u64)>);

const LABELLED: [Labelled; 4] = [
    ("windlass_attempts", "Attempts that ended, by type of task", "type", |totals| {
        totals.attempts.iter().map(|(kind, (all, _))| (kind.as_str(), *all)).collect()
    }),
    ("windlass_attempts_failed", "Attempts that failed, by type of task", "type", |totals| {
        totals.attempts.iter().map(|(kind, (_, failed))| (kind.as_str(), *failed)).collect()
    }),
    ("windlass_retries", "Tasks that are to run again, by reason", "reason", |totals| {
        totals.retries.iter().map(|(reason, count)| (*reason, *count)).collect()
    }),
    ("windlass_dead_letters", "Dead letters that came, by tenant", "tenant", |totals| {
        totals.dead_letters.iter().map(|(tenant, count)| (tenant.as_str(), *count)).collect()
    }),
];

fn encode_labelled(encoder: &mut DescriptorEncoder<'_>, seen: &[(String, Look)]) -> Result<(), std::fmt::Error> {
    for (name, help, label, values) in LABELLED {
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (queue, look) in seen {
            for (value, count) in values(&look.totals) {
                let labels = [("queue", queue.as_str()), (label, value)];
                ConstCounter::new(count).encode(metric.encode_family(&labels)?)?;
            }
        }
    }
    Ok(())
}

fn encode_latency(encoder: &mut DescriptorEncoder<'_>, seen: &[(String, Look)]) -> Result<(), std::fmt::Error> {
    let help = "From the creation of a task to its success";
    let mut metric = encoder.encode_descriptor("windlass_task_latency_seconds", help, None, MetricType::Histogram)?;
    for (queue, look) in seen.iter().filter(|(_, look)| look.history == History::Recorded) {
        let latency = &look.totals.latency;
        let bounds = LATENCY_BOUNDS.into_iter().chain([f64::MAX]);
        let buckets: Vec<_> = bounds.zip(latency.buckets).collect();
        let count = latency.buckets.iter().sum();
        let labels = [("queue", queue.as_str())];
        metric.encode_family(&labels)?.encode_histogram::<NoLabelSet>(latency.sum, count, &buckets, None)?;
    }
    Ok(())
}
