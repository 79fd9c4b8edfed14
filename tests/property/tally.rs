//! What happened how often: a test that no longer meets a case says so.

use std::collections::BTreeMap;
use std::fmt::Debug;

use super::compare::Told;

#[derive(Debug, Default)]
pub(crate) struct Tally {
    sequences: usize,
    steps: usize,
    met: BTreeMap<String, u64>,
    /// Whether it is of too few sequences to say what they never meet.
    pub(crate) partial: bool,
}

impl Tally {
    pub(crate) fn met(&mut self, what: &str) {
        self.met_if(what, true);
    }

    pub(crate) fn met_if(&mut self, what: &str, happened: bool) {
        if happened {
            *self.met.entry(what.to_owned()).or_default() += 1;
        }
    }

    /// Counts an answer by the name of its variant.
    pub(crate) fn met_answer(&mut self, operation: &str, answer: &impl Debug) {
        let whole = format!("{answer:?}");
        let name = whole.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
        self.met(&format!("{operation} {name}"));
    }

    /// The same for an answer that may be a refusal.
    pub(crate) fn met_told(&mut self, operation: &str, answer: &Told<impl Debug>) {
        match answer {
            Ok(answer) => self.met_answer(operation, answer),
            Err(_) => self.met(&format!("{operation} refused")),
        }
    }

    pub(crate) fn of_one_sequence(self, steps: usize) -> Self {
        Self { sequences: 1, steps, ..self }
    }

    pub(crate) fn add(&mut self, other: Tally) {
        self.sequences += other.sequences;
        self.steps += other.steps;
        for (what, count) in other.met {
            *self.met.entry(what).or_default() += count;
        }
    }

    /// Checks that each of these was met.
    pub(crate) fn check(&self, expected: &[&str]) {
        eprintln!("{} sequences, {} steps: {:?}", self.sequences, self.steps, self.met);
        let missing: Vec<_> = expected.iter().filter(|what| !self.met.contains_key(**what)).collect();
        assert!(self.partial || missing.is_empty(), "the sequences never met {missing:?}");
    }
}
