//! What the recorded events of a queue add up to since this process began: counters for Prometheus.

use std::collections::BTreeMap;
use std::time::Duration;

use super::tally::{Ended, ended_attempt};
use crate::broker::{Event, OutboxEntry};
use crate::protocol::state::{RetryReason, State};

/// The most types and tenants that have a label of their own: every label is a series that somebody has to keep.
const MOST_LABELS: usize = 100;

/// What all others are counted under.
const OTHER: &str = "other";

/// Upper bounds of the latency's buckets, in seconds.
pub(super) const LATENCY_BOUNDS: [f64; 12] =
    [0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0, 3600.0, 21600.0];

/// Sums that only grow. An entry that is recorded twice because its leader died
/// in between is counted twice: this is for graphs, the event log is the record.
#[derive(Debug, Clone, Default)]
pub(super) struct Totals {
    pub(super) created: u64,
    pub(super) succeeded: u64,
    pub(super) failed: u64,
    pub(super) cancelled: u64,
    /// From creation to success.
    pub(super) latency: Latency,
    /// By type: attempts that ended, and those of them that failed.
    pub(super) attempts: BTreeMap<String, (u64, u64)>,
    /// By reason.
    pub(super) retries: BTreeMap<&'static str, u64>,
    /// By tenant; empty for those without one.
    pub(super) dead_letters: BTreeMap<String, u64>,
}

/// How long something took, in buckets.
#[derive(Debug, Clone, Default)]
pub(super) struct Latency {
    pub(super) sum: f64,
    /// One a bound, and one for what is above all of them.
    pub(super) buckets: [u64; LATENCY_BOUNDS.len() + 1],
}

impl Latency {
    fn add(&mut self, seconds: f64) {
        self.sum += seconds;
        let at = LATENCY_BOUNDS.iter().position(|bound| seconds <= *bound).unwrap_or(LATENCY_BOUNDS.len());
        self.buckets[at] += 1;
    }
}

impl Totals {
    pub(super) fn add(&mut self, entries: &[OutboxEntry]) {
        for event in entries.iter().flat_map(|entry| &entry.events) {
            self.add_event(event);
        }
    }

    fn add_event(&mut self, event: &Event) {
        match (event.from, event.to) {
            (None, _) => self.created += 1,
            (_, State::Succeeded) => {
                self.succeeded += 1;
                let took = Duration::try_from(event.at.duration_since(event.created_at)).unwrap_or_default();
                self.latency.add(took.as_secs_f64());
            }
            (_, State::Failed) => self.failed += 1,
            (_, State::Cancelled) => self.cancelled += 1,
            (_, State::DlqRecorded) => {
                *labelled(&mut self.dead_letters, event.tenant_id.as_ref().map_or("", |tenant| tenant.as_str())) += 1;
            }
            (_, State::Retrying) => {
                let reason = event.detail.as_deref().and_then(RetryReason::from_word);
                *self.retries.entry(reason.map_or(OTHER, RetryReason::as_str)).or_default() += 1;
            }
            _ => {}
        }
        if let Some(ended) = ended_attempt(event) {
            let (all, failed) = labelled(&mut self.attempts, event.task_type.as_str());
            *all += 1;
            *failed += u64::from(ended == Ended::Badly);
        }
    }
}

/// The place of a label, or of all others where there are too many.
fn labelled<'a, T: Default>(map: &'a mut BTreeMap<String, T>, label: &str) -> &'a mut T {
    let known = map.len() < MOST_LABELS || map.contains_key(label);
    map.entry(if known { label } else { OTHER }.to_owned()).or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_bounded() {
        let mut map: BTreeMap<String, u64> = BTreeMap::new();
        for n in 0..1000 {
            *labelled(&mut map, &format!("tenant-{n}")) += 1;
        }
        assert_eq!((map.len(), map[OTHER]), (MOST_LABELS + 1, 900));
        *labelled(&mut map, "tenant-7") += 1;
        assert_eq!(map["tenant-7"], 2);
    }

    #[test]
    fn a_time_is_in_the_first_bucket_that_holds_it() {
        let mut latency = Latency::default();
        for seconds in [0.0, 0.01, 0.02, 1e9] {
            latency.add(seconds);
        }
        assert_eq!((latency.buckets[0], latency.buckets[1], latency.buckets[LATENCY_BOUNDS.len()]), (2, 1, 1));
    }
}
