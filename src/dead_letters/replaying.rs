//! Runs dead letters again.

use std::num::NonZeroU32;
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::selecting::Candidate;
use super::walk::{Counts, Report, Step, Walk};
use super::{DeadLetters, DeadLettersError, PATIENCE, Result, Run, Selection};
use crate::broker::patience::patiently;
use crate::broker::{ReplayRequest, Replayed, Review};
use crate::event_log::Brief;
use crate::protocol::names::{DeadLetterId, QueueName, TaskId};
use crate::protocol::task::Payload;

/// How far back a line of replays is followed.
const LONGEST_LINE: usize = 100;

/// Whether what failed again the same way is left alone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Guard {
    /// It is: whoever replays by filter day after day does not turn in circles.
    #[default]
    On,
    /// It is replayed all the same.
    Off,
}

/// Dead letters are to run again, each as a new task.
#[derive(Debug, Clone)]
pub struct Replay {
    /// Which.
    pub selection: Selection,
    /// Who wants it.
    pub person: String,
    /// Why, if that is said.
    pub reason: Option<String>,
    /// A corrected payload, for one dead letter. Something new is tried then, so the guard lets it pass.
    pub payload: Option<Payload>,
    /// Whether anything is done.
    pub run: Run,
    /// Whether what failed again the same way is left alone.
    pub guard: Guard,
    /// The most new tasks a second; as fast as it goes if absent.
    pub per_second: Option<NonZeroU32>,
    /// The most dead letters, the oldest first; all if absent.
    pub limit: Option<usize>,
}

impl Replay {
    /// A replay of these by that person, as fast as it goes and with the guard on.
    pub fn new(selection: Selection, person: impl Into<String>) -> Self {
        Self {
            selection,
            person: person.into(),
            reason: None,
            payload: None,
            run: Run::Real,
            guard: Guard::On,
            per_second: None,
            limit: None,
        }
    }
}

/// What became of one dead letter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", rename_all = "snake_case", rename_all_fields = "camelCase")]
pub enum ReplayOutcome {
    /// It runs again.
    Replayed {
        /// As this task.
        task: TaskId,
    },
    /// It would run again; this was a dry run.
    WouldReplay {
        /// As this task.
        task: TaskId,
    },
    /// It was replayed before, perhaps by a call like this one that did not come to its end.
    AlreadyReplayed {
        /// As this task.
        task: TaskId,
    },
    /// The guard left it alone: it is a replay that failed again the same way.
    FailedAgain {
        /// How many of those that led to it did.
        times: u32,
    },
    /// It was given up before.
    Discarded,
    /// Another live task holds the idempotency key now.
    KeyTaken {
        /// That task.
        by: TaskId,
    },
    /// A task that is not its replay has the id that its replay would have.
    IdTaken {
        /// That id.
        id: TaskId,
    },
    /// It is not there (any more).
    Unknown,
}

/// What is told of one dead letter.
pub type ReplayStep<'a> = Step<'a, ReplayOutcome>;

/// What a replay came to.
pub type ReplayReport = Report<ReplayCounts>;

/// How many became what.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReplayCounts {
    /// That were meant.
    pub selected: usize,
    /// That run again.
    pub replayed: usize,
    /// That would run again.
    pub would_replay: usize,
    /// That were replayed before.
    pub already_replayed: usize,
    /// That the guard left alone.
    pub failed_again: usize,
    /// That were given up before.
    pub discarded: usize,
    /// Whose idempotency key, or new id, somebody else has.
    pub taken: usize,
    /// That are not there (any more).
    pub unknown: usize,
}

impl Counts for ReplayCounts {
    type Outcome = ReplayOutcome;

    fn of(selected: usize) -> Self {
        Self { selected, ..Self::default() }
    }

    fn add(&mut self, outcome: &ReplayOutcome) {
        let count = match outcome {
            ReplayOutcome::Replayed { .. } => &mut self.replayed,
            ReplayOutcome::WouldReplay { .. } => &mut self.would_replay,
            ReplayOutcome::AlreadyReplayed { .. } => &mut self.already_replayed,
            ReplayOutcome::FailedAgain { .. } => &mut self.failed_again,
            ReplayOutcome::Discarded => &mut self.discarded,
            ReplayOutcome::KeyTaken { .. } | ReplayOutcome::IdTaken { .. } => &mut self.taken,
            ReplayOutcome::Unknown => &mut self.unknown,
        };
        *count += 1;
    }
}

impl DeadLetters {
    /// Runs dead letters again, each as a new task with fresh counters that is linked
    /// to it, and tells of each as it goes. An error means that nothing was begun.
    pub async fn replay(&self, replay: &Replay, tell: impl FnMut(ReplayStep<'_>) + Send) -> Result<ReplayReport> {
        check(replay)?;
        let candidates = self.select(&replay.selection, replay.limit).await?;
        let mut walk = Walk::through(&candidates, tell);
        let mut pace = replay.per_second.filter(|_| replay.run == Run::Real).map(pace_of);
        for candidate in &candidates {
            match self.replay_one(replay, candidate, &mut pace).await {
                Ok(outcome) => walk.dealt_with(candidate, &outcome),
                Err(error) => return Ok(walk.end(Some(error))),
            }
        }
        Ok(walk.end(None))
    }

    async fn replay_one(
        &self,
        replay: &Replay,
        candidate: &Candidate,
        pace: &mut Option<Interval>,
    ) -> Result<ReplayOutcome> {
        let Candidate::Known(letter) = candidate else { return Ok(ReplayOutcome::Unknown) };
        if replay.guard == Guard::On && replay.payload.is_none() {
            let times = self.failed_again(letter).await?;
            if times > 0 {
                return Ok(ReplayOutcome::FailedAgain { times });
            }
        }
        let new_id = replay_id(&self.queue, &letter.id, letter.created_at);
        if replay.run == Run::Dry {
            return self.would_replay(letter, new_id).await;
        }
        if let Some(pace) = pace {
            pace.tick().await;
        }
        let request = ReplayRequest {
            dead_letter: letter.id.clone(),
            new_id,
            payload: replay.payload.clone(),
            person: replay.person.clone(),
            reason: replay.reason.clone(),
        };
        match patiently(PATIENCE, || self.broker.replay(&request)).await? {
            Replayed::Done { task } => Ok(ReplayOutcome::Replayed { task }),
            Replayed::AlreadyReplayed { task } => Ok(ReplayOutcome::AlreadyReplayed { task }),
            Replayed::Discarded => Ok(ReplayOutcome::Discarded),
            Replayed::KeyTaken { by } => Ok(ReplayOutcome::KeyTaken { by }),
            Replayed::IdTaken { id } => self.who_has(id, letter).await,
            Replayed::Unknown => Ok(ReplayOutcome::Unknown),
        }
    }

    /// A script that was cut short may have left the new task without a note of it at the dead letter.
    async fn who_has(&self, id: TaskId, letter: &Brief) -> Result<ReplayOutcome> {
        let holder = patiently(PATIENCE, || self.broker.get(&id)).await?;
        let is_it = holder.is_some_and(|task| task.extras.replay_of == Some(letter.id.to_string()));
        Ok(if is_it { ReplayOutcome::AlreadyReplayed { task: id } } else { ReplayOutcome::IdTaken { id } })
    }

    async fn would_replay(&self, letter: &Brief, task: TaskId) -> Result<ReplayOutcome> {
        let there = patiently(PATIENCE, || self.broker.dead_letter(&letter.id)).await?;
        Ok(match there.map(|view| view.review) {
            None => ReplayOutcome::Unknown,
            Some(Review::Replayed { task, .. }) => ReplayOutcome::AlreadyReplayed { task },
            Some(Review::Discarded { .. }) => ReplayOutcome::Discarded,
            Some(Review::Open | Review::DiscardRequested(_)) => ReplayOutcome::WouldReplay { task },
        })
    }

    /// How many of the dead letters that led to this one by replays died of what it
    /// died of. The event log remembers longest; the queue knows what was before the log.
    async fn failed_again(&self, letter: &Brief) -> Result<u32> {
        let Some(parent) = &letter.replay_of else { return Ok(0) };
        if let Some(log) = &self.log {
            let times = log.failed_again_the_same_way(&self.queue, &letter.id).await?;
            if times > 0 {
                return Ok(times);
            }
        }
        let at = async |id: &DeadLetterId| patiently(PATIENCE, || self.broker.dead_letter(id)).await;
        let Some(own) = at(&letter.id).await? else { return Ok(0) };
        let (own, mut times, mut next) = (own.letter.fingerprint(), 0, Some(parent.clone()));
        for _ in 0..LONGEST_LINE {
            let Some(id) = next else { break };
            let Some(before) = at(&id).await? else { break };
            times += u32::from(before.letter.fingerprint() == own);
            next = before.letter.replay_of();
        }
        Ok(times)
    }
}

fn check(replay: &Replay) -> Result<()> {
    let one = matches!(&replay.selection, Selection::Ids(ids) if ids.len() == 1);
    if replay.payload.is_some() && !one {
        let sentence = "a corrected payload is for one dead letter: name that one alone";
        return Err(DeadLettersError::Invalid(sentence.to_owned()));
    }
    if replay.person.trim().is_empty() {
        let sentence = "a replay needs a person: say who runs dead letters again";
        return Err(DeadLettersError::Invalid(sentence.to_owned()));
    }
    Ok(())
}

fn pace_of(per_second: NonZeroU32) -> Interval {
    let mut pace = interval(Duration::from_secs(1) / per_second.get());
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    pace
}

/// The id of the task that a dead letter runs again as: always the same, so that a
/// replay whose answer was lost is found again. An id that was used twice died at two
/// different times of creation, and has two. It is a UUID, as other ids are: an error
/// that names its task has the same fingerprint when the replay dies of it.
fn replay_id(queue: &QueueName, letter: &DeadLetterId, created_at: Timestamp) -> TaskId {
    let name = format!("{queue}\n{letter}\n{}", created_at.as_millisecond());
    let digest = sha1_smol::Sha1::from(name).digest().bytes();
    let first = *digest.first_chunk::<16>().expect("invariant: a digest has twenty bytes");
    TaskId::new(uuid::Builder::from_sha1_bytes(first).into_uuid().to_string()).expect("invariant: a UUID is a valid id")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replay_s_id_follows_from_its_dead_letter() {
        let queue: QueueName = "shop/emails".parse().expect("valid");
        let letter: DeadLetterId = "a#4".parse().expect("valid");
        let id =
            |letter: &DeadLetterId, ms| replay_id(&queue, letter, Timestamp::from_millisecond(ms).expect("in range"));
        assert_eq!(id(&letter, 5), id(&letter, 5));
        assert_ne!(id(&letter, 5), id(&letter, 6), "a task of the same id that was made later");
        assert_ne!(id(&letter, 5), id(&"a#5".parse().expect("valid"), 5));
    }
}
