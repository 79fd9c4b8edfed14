//! What the recorded events add up to between two samples.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::broker::{Event, OutboxEntry, QueueCounts};
use crate::event_log::Sample;
use crate::protocol::names::{TaskType, TenantId};
use crate::protocol::state::{RetryReason, State};

/// The most types and tenants that are told apart.
const MOST_NAMES: usize = 1000;

/// Sums since the last sample. An entry that is recorded twice because its
/// leader died in between is counted twice: this is for graphs, the event log is the record.
#[derive(Default)]
pub(super) struct Tally {
    created: u64,
    completed: u64,
    failed: u64,
    latency: Duration,
    attempts: BTreeMap<TaskType, Attempts>,
    dead_letters: BTreeMap<TenantId, u64>,
    /// As the queue counted them at the sample before, or when it was first looked at.
    invalid_transitions_before: Option<u64>,
}

#[derive(Default)]
struct Attempts {
    all: u64,
    failed: u64,
}

impl Tally {
    /// The queue counts refused moves from its beginning: what was before the first look is no news.
    pub(super) fn begin(&mut self, invalid_transitions: u64) {
        self.invalid_transitions_before.get_or_insert(invalid_transitions);
    }

    pub(super) fn add(&mut self, entries: &[OutboxEntry]) {
        for event in entries.iter().flat_map(|entry| &entry.events) {
            self.add_event(event);
        }
    }

    fn add_event(&mut self, event: &Event) {
        match (event.from, event.to) {
            (None, _) => self.created += 1,
            (_, State::Succeeded) => {
                self.completed += 1;
                self.latency += Duration::try_from(event.at.duration_since(event.created_at)).unwrap_or_default();
            }
            (_, State::Failed) => self.failed += 1,
            (_, State::DlqRecorded) => self.add_dead_letter(event.tenant_id.as_ref()),
            _ => {}
        }
        if let Some(failed) = ended_attempt(event) {
            let room = self.attempts.len() < MOST_NAMES || self.attempts.contains_key(&event.task_type);
            if room {
                let attempts = self.attempts.entry(event.task_type.clone()).or_default();
                attempts.all += 1;
                attempts.failed += u64::from(failed == Ended::Badly);
            }
        }
    }

    fn add_dead_letter(&mut self, tenant: Option<&TenantId>) {
        if let Some(tenant) = tenant
            && (self.dead_letters.len() < MOST_NAMES || self.dead_letters.contains_key(tenant))
        {
            *self.dead_letters.entry(tenant.clone()).or_default() += 1;
        }
    }

    /// Whether anything happened since the sample before.
    pub(super) fn is_empty(&self) -> bool {
        self.created + self.completed + self.failed == 0 && self.attempts.is_empty() && self.dead_letters.is_empty()
    }

    /// What happened since the sample before, and begins anew.
    pub(super) fn sample(&mut self, counts: &QueueCounts) -> Sample {
        let live = counts.backlog + counts.running + counts.delayed + counts.retrying;
        let sums = std::mem::take(self);
        let before = sums.invalid_transitions_before.unwrap_or(counts.invalid_transitions);
        self.invalid_transitions_before = Some(counts.invalid_transitions);
        let average = |sum: Duration, n: u64| u32::try_from(n).ok().and_then(|n| sum.checked_div(n));
        let rate = |(kind, attempts): (TaskType, Attempts)| (kind, attempts.failed as f64 / attempts.all as f64);
        Sample {
            at: counts.sampled_at,
            created: sums.created,
            completed: sums.completed,
            failed: sums.failed,
            average_latency: average(sums.latency, sums.completed),
            heartbeat_delay: counts.longest_silence,
            retrying_ratio: if live == 0 { 0.0 } else { counts.retrying as f64 / live as f64 },
            invalid_transitions: counts.invalid_transitions.saturating_sub(before),
            error_rates: sums.attempts.into_iter().map(rate).collect(),
            dead_letter_growth: sums.dead_letters,
        }
    }
}

#[derive(PartialEq)]
pub(super) enum Ended {
    Well,
    Badly,
}

/// How an attempt ended, if this event ends one. Who gives a task back did not fail.
pub(super) fn ended_attempt(event: &Event) -> Option<Ended> {
    match (event.from, event.to) {
        (Some(State::Running), State::Succeeded) => Some(Ended::Well),
        (Some(State::Running), State::DlqPending) => Some(Ended::Badly),
        (Some(State::Running), State::Retrying) => {
            let reason = event.detail.as_deref().and_then(RetryReason::from_word);
            (reason == Some(RetryReason::Failure)).then_some(Ended::Badly)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_tells_of_refused_moves_since_the_one_before_and_not_of_those_before_the_first_look() {
        let mut tally = Tally::default();
        let counts = |invalid_transitions| QueueCounts { invalid_transitions, ..QueueCounts::default() };
        tally.begin(1000);
        assert_eq!(tally.sample(&counts(1002)).invalid_transitions, 2);
        tally.begin(1002);
        assert_eq!(tally.sample(&counts(1005)).invalid_transitions, 3);
        assert_eq!(tally.sample(&counts(1005)).invalid_transitions, 0);
        assert_eq!(tally.sample(&counts(1)).invalid_transitions, 0, "the queue was made anew");
    }
}
