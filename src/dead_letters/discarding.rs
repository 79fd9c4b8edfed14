//! Gives dead letters up.

use serde::Serialize;

use super::selecting::Candidate;
use super::walk::{Counts, Report, Step, Walk};
use super::{DeadLetters, DeadLettersError, PATIENCE, Result, Run, Selection};
use crate::broker::patience::patiently;
use crate::broker::{DiscardRequest, Discarded, Review, Voice};
use crate::protocol::names::TaskId;

/// Dead letters are to be given up.
#[derive(Debug, Clone)]
pub struct Discard {
    /// Which.
    pub selection: Selection,
    /// Who wants it.
    pub person: String,
    /// Why.
    pub reason: String,
    /// Whether anything is done.
    pub run: Run,
    /// The most dead letters, the oldest first; all if absent.
    pub limit: Option<usize>,
}

impl Discard {
    /// That person gives these up, for that reason.
    pub fn new(selection: Selection, person: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { selection, person: person.into(), reason: reason.into(), run: Run::Real, limit: None }
    }
}

/// What became of one dead letter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", rename_all = "snake_case", rename_all_fields = "camelCase")]
pub enum DiscardOutcome {
    /// It is given up.
    Discarded,
    /// It would be given up; this was a dry run.
    WouldDiscard,
    /// The wish is noted, and somebody else has to agree.
    AwaitingSecond,
    /// The wish would be noted; this was a dry run.
    WouldRequest,
    /// The same person has asked before; somebody else has to agree.
    SamePerson,
    /// It was replayed before.
    AlreadyReplayed {
        /// As this task.
        task: TaskId,
    },
    /// It was given up before.
    AlreadyDiscarded,
    /// It is not there (any more).
    Unknown,
}

/// What is told of one dead letter.
pub type DiscardStep<'a> = Step<'a, DiscardOutcome>;

/// What a discard came to.
pub type DiscardReport = Report<DiscardCounts>;

/// How many became what.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DiscardCounts {
    /// That were meant.
    pub selected: usize,
    /// That are given up.
    pub discarded: usize,
    /// That would be given up.
    pub would_discard: usize,
    /// For which somebody else has to agree.
    pub awaiting_second: usize,
    /// For which the wish would be noted.
    pub would_request: usize,
    /// For which the same person has asked before.
    pub same_person: usize,
    /// That were replayed before.
    pub already_replayed: usize,
    /// That were given up before.
    pub already_discarded: usize,
    /// That are not there (any more).
    pub unknown: usize,
}

impl Counts for DiscardCounts {
    type Outcome = DiscardOutcome;

    fn of(selected: usize) -> Self {
        Self { selected, ..Self::default() }
    }

    fn add(&mut self, outcome: &DiscardOutcome) {
        let count = match outcome {
            DiscardOutcome::Discarded => &mut self.discarded,
            DiscardOutcome::WouldDiscard => &mut self.would_discard,
            DiscardOutcome::AwaitingSecond => &mut self.awaiting_second,
            DiscardOutcome::WouldRequest => &mut self.would_request,
            DiscardOutcome::SamePerson => &mut self.same_person,
            DiscardOutcome::AlreadyReplayed { .. } => &mut self.already_replayed,
            DiscardOutcome::AlreadyDiscarded => &mut self.already_discarded,
            DiscardOutcome::Unknown => &mut self.unknown,
        };
        *count += 1;
    }
}

impl DeadLetters {
    /// Gives dead letters up, as far as the policy lets this person do so alone, and tells of each as
    /// it goes. An error means that nothing was begun.
    pub async fn discard(&self, discard: &Discard, tell: impl FnMut(DiscardStep<'_>) + Send) -> Result<DiscardReport> {
        check(discard)?;
        let approvals = patiently(PATIENCE, || self.broker.policy()).await?.discard_approvals;
        let candidates = self.select(&discard.selection, discard.limit).await?;
        let mut walk = Walk::through(&candidates, tell);
        for candidate in &candidates {
            let one = match discard.run {
                Run::Real => self.discard_one(discard, candidate).await,
                Run::Dry => self.would_discard(discard, candidate, approvals).await,
            };
            match one {
                Ok(outcome) => walk.dealt_with(candidate, &outcome),
                Err(error) => return Ok(walk.end(Some(error))),
            }
        }
        Ok(walk.end(None))
    }

    async fn discard_one(&self, discard: &Discard, candidate: &Candidate) -> Result<DiscardOutcome> {
        let request = DiscardRequest {
            dead_letter: candidate.id().clone(),
            person: discard.person.clone(),
            reason: discard.reason.clone(),
        };
        Ok(match patiently(PATIENCE, || self.broker.discard(&request)).await? {
            Discarded::Done => DiscardOutcome::Discarded,
            Discarded::AwaitingSecond => DiscardOutcome::AwaitingSecond,
            Discarded::SamePerson => DiscardOutcome::SamePerson,
            Discarded::AlreadyReplayed { task } => DiscardOutcome::AlreadyReplayed { task },
            Discarded::AlreadyDiscarded => DiscardOutcome::AlreadyDiscarded,
            Discarded::Unknown => DiscardOutcome::Unknown,
        })
    }

    async fn would_discard(&self, discard: &Discard, candidate: &Candidate, approvals: u8) -> Result<DiscardOutcome> {
        let there = patiently(PATIENCE, || self.broker.dead_letter(candidate.id())).await?;
        Ok(match there.map(|view| view.review) {
            None => DiscardOutcome::Unknown,
            Some(Review::Replayed { task, .. }) => DiscardOutcome::AlreadyReplayed { task },
            Some(Review::Discarded { .. }) => DiscardOutcome::AlreadyDiscarded,
            Some(Review::DiscardRequested(Voice { person, .. })) if approvals > 1 && person == discard.person => {
                DiscardOutcome::SamePerson
            }
            Some(Review::Open) if approvals > 1 => DiscardOutcome::WouldRequest,
            Some(Review::Open | Review::DiscardRequested(_)) => DiscardOutcome::WouldDiscard,
        })
    }
}

fn check(discard: &Discard) -> Result<()> {
    let problems = [
        (discard.person.trim().is_empty(), "a discard needs a person: say who gives dead letters up"),
        (discard.reason.trim().is_empty(), "a discard needs a reason: say why dead letters are given up"),
    ];
    match problems.into_iter().find(|(wrong, _)| *wrong) {
        Some((_, sentence)) => Err(DeadLettersError::Invalid(sentence.to_owned())),
        None => Ok(()),
    }
}
