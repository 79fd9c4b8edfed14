//! Gives dead letters up.

use serde::Serialize;

use super::selecting::Candidate;
use super::{DeadLetters, DeadLettersError, PATIENCE, Result, Run, Selection};
use crate::broker::patience::patiently;
use crate::broker::{DiscardRequest, Discarded, Review, Voice};
use crate::protocol::names::{DeadLetterId, TaskId};

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

/// One dead letter is dealt with.
#[derive(Debug)]
pub struct DiscardStep<'a> {
    /// Which.
    pub id: &'a DeadLetterId,
    /// What became of it.
    pub outcome: &'a DiscardOutcome,
    /// How many are dealt with, this one included.
    pub done: usize,
    /// How many there are.
    pub total: usize,
}

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

impl DiscardCounts {
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

/// What a discard came to.
#[derive(Debug)]
#[must_use = "it may have stopped before the last dead letter"]
pub struct DiscardReport {
    /// How many became what.
    pub counts: DiscardCounts,
    /// Why it stopped before the last dead letter. What was done stands; the same call again goes on.
    pub stopped: Option<DeadLettersError>,
}

impl DeadLetters {
    /// Gives dead letters up, as far as the policy lets this person do so alone, and tells of each as
    /// it goes. An error means that nothing was begun.
    pub async fn discard(
        &self,
        discard: &Discard,
        mut tell: impl FnMut(DiscardStep<'_>) + Send,
    ) -> Result<DiscardReport> {
        check(discard)?;
        let approvals = patiently(PATIENCE, || self.broker.policy()).await?.discard_approvals;
        let candidates = self.select(&discard.selection, discard.limit).await?;
        let total = candidates.len();
        let mut counts = DiscardCounts { selected: total, ..DiscardCounts::default() };
        for (before, candidate) in candidates.iter().enumerate() {
            let one = match discard.run {
                Run::Real => self.discard_one(discard, candidate).await,
                Run::Dry => self.would_discard(discard, candidate, approvals).await,
            };
            match one {
                Ok(outcome) => {
                    counts.add(&outcome);
                    tell(DiscardStep { id: candidate.id(), outcome: &outcome, done: before + 1, total });
                }
                Err(error) => return Ok(DiscardReport { counts, stopped: Some(error) }),
            }
        }
        Ok(DiscardReport { counts, stopped: None })
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
