//! A decision about many dead letters, made one by one: what is told of each, and what it came to.

use super::DeadLettersError;
use super::selecting::Candidate;
use crate::protocol::names::DeadLetterId;

/// One dead letter is dealt with.
#[derive(Debug)]
pub struct Step<'a, O> {
    /// Which.
    pub id: &'a DeadLetterId,
    /// What became of it.
    pub outcome: &'a O,
    /// How many are dealt with, this one included.
    pub done: usize,
    /// How many there are.
    pub total: usize,
}

/// What the decision came to.
#[derive(Debug)]
#[must_use = "it may have stopped before the last dead letter"]
pub struct Report<C> {
    /// How many became what.
    pub counts: C,
    /// Why it stopped before the last dead letter. What was done stands; the same call again goes on.
    pub stopped: Option<DeadLettersError>,
}

/// How many became what.
pub(super) trait Counts {
    /// What can become of one.
    type Outcome;

    /// Nothing yet of so many.
    fn of(selected: usize) -> Self;

    fn add(&mut self, outcome: &Self::Outcome);
}

/// Counts and tells while somebody works through a list.
pub(super) struct Walk<C, T> {
    counts: C,
    tell: T,
    done: usize,
    total: usize,
}

impl<C: Counts, T: FnMut(Step<'_, C::Outcome>)> Walk<C, T> {
    pub(super) fn through(candidates: &[Candidate], tell: T) -> Self {
        let total = candidates.len();
        Self { counts: C::of(total), tell, done: 0, total }
    }

    pub(super) fn dealt_with(&mut self, candidate: &Candidate, outcome: &C::Outcome) {
        self.counts.add(outcome);
        self.done += 1;
        (self.tell)(Step { id: candidate.id(), outcome, done: self.done, total: self.total });
    }

    /// At the last dead letter, or at the one that could not be dealt with.
    pub(super) fn end(self, stopped: Option<DeadLettersError>) -> Report<C> {
        Report { counts: self.counts, stopped }
    }
}
