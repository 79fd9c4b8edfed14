//! Forgets what has been kept for long enough.

use std::fmt;
use std::ops::Bound;
use std::time::Duration;

use super::record::Finished;
use super::state::Step;
use crate::broker::{RetainCursor, Retained};
use crate::protocol::names::TaskId;
use crate::protocol::state::State;

/// An entry of the result stream.
#[derive(Debug)]
pub(super) struct ResultEntry {
    /// Under which id it stands.
    task: TaskId,
    /// The first task, where this one is for another id of the same work.
    duplicate_of: Option<TaskId>,
    state: State,
    finished_ms: u64,
}

/// An entry of the stream of dead letters.
#[derive(Debug)]
pub(super) struct LetterEntry {
    pub(super) task: TaskId,
    pub(super) recorded_ms: u64,
}

impl ResultEntry {
    pub(super) fn of(task: &TaskId, finished: &Finished) -> Self {
        let Finished { state, finished_ms, .. } = *finished;
        Self { task: task.clone(), duplicate_of: None, state, finished_ms }
    }

    pub(super) fn for_alias(alias: &TaskId, first: &TaskId, finished: &Finished) -> Self {
        Self { duplicate_of: Some(first.clone()), ..Self::of(alias, finished) }
    }
}

/// Which part of a round is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Letters,
    Results,
    /// The round is over.
    Rest,
}

/// Where a round stands.
#[derive(Debug, Clone)]
struct Walk {
    phase: Phase,
    /// The last entries that were passed.
    letter: u64,
    result: u64,
    /// Whether this round removes what is above a bound.
    over: bool,
    /// When one of the results that were passed may go.
    due: u64,
    /// When the next dead letter may go.
    letter_due: u64,
    /// The times of the policy, for what succeeded and what failed, that all it passed were judged by.
    times: Option<(u64, u64)>,
}

impl fmt::Display for Walk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { phase, letter, result, over, due, letter_due, times } = self;
        let times = times.unwrap_or((u64::MAX, u64::MAX));
        write!(f, "{} {letter} {result} {} {due} {letter_due} {} {}", *phase as u8, u8::from(*over), times.0, times.1)
    }
}

impl Walk {
    fn read(cursor: &str) -> Option<Self> {
        let words: Option<Vec<u64>> = cursor.split(' ').map(|word| word.parse().ok()).collect();
        let [phase, letter, result, over, due, letter_due, succeeded, failed] = words?[..] else { return None };
        let phase = [Phase::Letters, Phase::Results, Phase::Rest].into_iter().find(|known| *known as u64 == phase)?;
        let times = Some((succeeded, failed)).filter(|times| *times != (u64::MAX, u64::MAX));
        Some(Self { phase, letter, result, over: over == 1, due, letter_due, times })
    }

    /// A round that is over, and that the next one does not go on from.
    fn none() -> Self {
        Self { phase: Phase::Rest, letter: 0, result: 0, over: false, due: 0, letter_due: u64::MAX, times: None }
    }

    fn begin(&mut self, now: u64, times: (u64, u64)) {
        (self.phase, self.letter, self.letter_due, self.over) = (Phase::Letters, 0, u64::MAX, false);
        if self.due <= now || self.times != Some(times) {
            (self.result, self.due, self.times) = (0, u64::MAX, Some(times));
        }
    }
}

/// How a walk through a stream came to stand still.
#[derive(PartialEq, Eq)]
enum Halt {
    /// It has looked at as many as it may.
    Tired,
    /// Nothing further can go.
    End,
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl Step<'_> {
    /// One step of a walk through dead letters and results: looks at up to
    /// `limit` entries and removes what is not to be kept.
    pub(super) fn retain(mut self, cursor: &RetainCursor, limit: usize) -> Retained {
        let retention = self.policy.retention;
        let times = (millis(retention.succeeded), millis(retention.failed));
        let mut walk = Walk::read(&cursor.0).unwrap_or_else(Walk::none);
        if walk.phase == Phase::Rest {
            walk.begin(self.now, times);
        }
        walk.times = walk.times.filter(|known| *known == times);
        let (mut budget, mut removed, mut next_due) = (limit, Retained::default(), u64::MAX);
        if walk.phase == Phase::Letters && self.retain_letters(&mut walk, &mut budget, &mut removed) == Halt::End {
            walk.phase = Phase::Results;
        }
        if walk.phase == Phase::Results {
            let excess = self.queue.results.len() as u64;
            let mut excess = excess.saturating_sub(retention.result_max_entries);
            if excess > 0 && !walk.over {
                (walk.over, walk.result, walk.due) = (true, 0, u64::MAX);
            }
            let mut young = |due| next_due = due;
            if self.retain_results(&mut walk, &mut budget, &mut excess, &mut removed, &mut young) == Halt::End {
                walk.phase = Phase::Rest;
            }
        }
        // A dead letter's time may have come since this round passed it; a result that is due stays for another reason.
        let due = if walk.due > self.now { walk.due } else { u64::MAX };
        let first = next_due.min(walk.letter_due).min(due);
        removed.next_in = match walk.phase {
            Phase::Rest => (first < u64::MAX).then(|| Duration::from_millis(first.saturating_sub(self.now))),
            _ => Some(Duration::ZERO),
        };
        removed.cursor = RetainCursor(walk.to_string());
        removed
    }

    fn retain_letters(&mut self, walk: &mut Walk, budget: &mut usize, removed: &mut Retained) -> Halt {
        while *budget > 0 {
            let behind = (Bound::Excluded(walk.letter), Bound::Unbounded);
            let Some((&number, entry)) = self.queue.dlq.range(behind).next() else { return Halt::End };
            *budget -= 1;
            let expires = entry.recorded_ms.saturating_add(millis(self.policy.retention.failed));
            if expires > self.now {
                walk.letter_due = expires;
                return Halt::End;
            }
            self.forget_letter(number);
            removed.dead_letters += 1;
            walk.letter = number;
        }
        Halt::Tired
    }

    fn forget_letter(&mut self, number: u64) {
        let LetterEntry { task, .. } = self.queue.dlq.remove(&number).expect("invariant: it was just seen");
        // A later task of the same id may have died since.
        if self.queue.letters.get(&task).is_some_and(|letter| letter.number == number) {
            self.queue.letters.remove(&task);
            self.queue.dead.remove(&task);
            self.queue.reviewed.remove(&task);
            self.queue.discards.remove(&task);
        }
    }

    fn retain_results(
        &mut self,
        walk: &mut Walk,
        budget: &mut usize,
        excess: &mut u64,
        removed: &mut Retained,
        young: &mut impl FnMut(u64),
    ) -> Halt {
        let (succeeded, failed) = (millis(self.policy.retention.succeeded), millis(self.policy.retention.failed));
        while *budget > 0 {
            let behind = (Bound::Excluded(walk.result), Bound::Unbounded);
            let Some((&number, entry)) = self.queue.results.range(behind).next() else { return Halt::End };
            *budget -= 1;
            let kept = if entry.state == State::Failed { failed } else { succeeded };
            let expires = entry.finished_ms.saturating_add(kept);
            if *excess > 0 || expires <= self.now {
                self.forget_result(number);
                *excess = excess.saturating_sub(1);
                removed.results += 1;
            } else {
                let earliest = entry.finished_ms.saturating_add(succeeded.min(failed));
                if earliest > self.now {
                    young(earliest);
                    return Halt::End;
                }
                walk.due = walk.due.min(expires);
            }
            walk.result = number;
        }
        Halt::Tired
    }

    fn forget_result(&mut self, number: u64) {
        let entry = self.queue.results.remove(&number).expect("invariant: it was just seen");
        let ResultEntry { task, duplicate_of, .. } = entry;
        if let Some(first) = duplicate_of {
            if self.queue.aliases.get(&task) == Some(&first) {
                self.queue.aliases.remove(&task);
            }
        } else if self.queue.done.get(&task).is_some_and(|finished| finished.number == number) {
            let finished = self.queue.done.remove(&task).expect("invariant: it was just seen");
            let key = (finished.record.tenant, finished.record.key);
            if self.queue.keys.get(&key) == Some(&task) {
                self.queue.keys.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::*;
    use crate::broker::{Broker, RetainCursor, Retained};
    use crate::protocol::policy::Policy;
    use std::time::Duration;

    async fn retain(rig: &Rig, cursor: RetainCursor) -> Retained {
        rig.model.retain(cursor, 100).await.expect("an answer")
    }

    async fn knows(rig: &Rig, name: &str) -> bool {
        rig.model.get(&id(name)).await.expect("an answer").is_some()
    }

    #[tokio::test]
    async fn what_is_kept_longer_is_passed_over_and_comes_up_again_at_its_time() {
        let mut policy = Policy::default();
        (policy.retention.succeeded, policy.retention.failed) = (Duration::from_secs(10), Duration::from_secs(100));
        let rig = Rig::new(policy).await;
        let dead = rig.dead(task("dead")).await;
        rig.model.record_dead_letter(&dead).await.expect("recorded");
        rig.enqueue(task("a")).await;
        rig.cancel("a").await;
        let step = retain(&rig, RetainCursor::default()).await;
        assert_eq!((step.results, step.next_in), (0, Some(Duration::from_secs(10))));
        rig.advance(10_000);
        let step = retain(&rig, step.cursor).await;
        assert_eq!((step.results, step.dead_letters, step.next_in), (1, 0, Some(Duration::from_secs(90))));
        assert_eq!((knows(&rig, "dead").await, knows(&rig, "a").await), (true, false));
        rig.advance(90_000);
        let step = retain(&rig, step.cursor).await;
        assert_eq!((step.results, step.dead_letters, step.next_in), (1, 1, None));
        assert!(!knows(&rig, "dead").await);
    }
}
