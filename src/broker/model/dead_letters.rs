//! Dead letters: recorded, then replayed or given up.

use super::enqueue::Names;
use super::lane::Body;
use super::moves::{Birth, Ending};
use super::record::Record;
use super::state::{Queue, Step};
use crate::broker::{DiscardRequest, Discarded, Recorded, ReplayRequest, Replayed};
use crate::protocol::names::{DeadLetterId, TaskId};
use crate::protocol::state::State;
use crate::protocol::task::{DeadLetter, Extras};

/// A dead letter that was recorded.
#[derive(Debug)]
pub(super) struct Letter {
    pub(super) shown: DeadLetter,
    /// The task's last record.
    record: Record,
}

/// What people decided about a dead letter.
#[derive(Debug, Clone)]
pub(super) enum Decision {
    /// It runs again as this task.
    Replayed(TaskId),
    Discarded,
}

impl Queue {
    /// Dead tasks whose dead letter is to be recorded, oldest first.
    pub(super) fn pending_dead_letters(&self, limit: usize) -> Vec<DeadLetter> {
        self.dlq_pending.iter().take(limit).map(|(_, id)| self.dead_letter_of(id)).collect()
    }

    /// A dead letter that was recorded.
    pub(super) fn dead_letter(&self, id: &DeadLetterId) -> Option<&DeadLetter> {
        self.letters.get(&id.task).map(|letter| &letter.shown).filter(|letter| letter.id == *id)
    }

    fn dead_letter_of(&self, id: &TaskId) -> DeadLetter {
        let record = self.live.get(id).expect("invariant: a dead task lives until it is recorded");
        let body = self.parked.get(id).expect("invariant: a dead task is parked");
        record.dead_letter(id, body, self.trails.get(id))
    }
}

impl Step<'_> {
    /// Writes a dead letter, then fails the task.
    pub(super) fn record_dead_letter(mut self, dead_letter: &DeadLetterId) -> Recorded {
        let id = &dead_letter.task;
        let Some(record) = self.queue.live.get(id).cloned() else { return self.recorded_before(id) };
        if record.state != State::DlqPending || record.epoch != dead_letter.epoch.0 {
            self.queue.invalid_transitions += 1;
            return Recorded::InvalidTransition;
        }
        let shown = self.queue.dead_letter_of(id);
        let ending = Ending {
            state: State::Failed,
            extras: shown.extras.clone(),
            result: None,
            error: shown.error.clone(),
            code: shown.error_code.clone(),
            dlq_id: Some(dead_letter.to_string()),
        };
        self.queue.dlq_pending.remove(id);
        self.queue.parked.remove(id);
        self.emit(id, Some(State::DlqPending), State::DlqRecorded, &record, &dead_letter.to_string());
        self.emit(id, Some(State::DlqRecorded), State::Failed, &record, &shown.error_code);
        self.queue.letters.insert(id.clone(), Letter { shown, record: record.clone() });
        self.queue.dead.insert(id.clone());
        self.finish(id, record, ending);
        self.end();
        Recorded::Done
    }

    fn recorded_before(self, id: &TaskId) -> Recorded {
        match self.queue.done.get(id).map(|finished| finished.state) {
            None => Recorded::Unknown,
            Some(State::Failed) => Recorded::AlreadyRecorded,
            Some(_) => {
                self.queue.invalid_transitions += 1;
                Recorded::InvalidTransition
            }
        }
    }

    /// Runs a dead letter again as a new task.
    pub(super) fn replay(mut self, request: &ReplayRequest) -> Replayed {
        let (id, new_id) = (&request.dead_letter.task, &request.new_id);
        let Some(letter) = self.queue.dead_letter(&request.dead_letter).cloned() else { return Replayed::Unknown };
        match self.queue.reviewed.get(id).cloned() {
            Some(Decision::Replayed(task)) => return Replayed::AlreadyReplayed { task },
            Some(Decision::Discarded) => return Replayed::Discarded,
            None => {}
        }
        let old = self.queue.letters.get(id).expect("invariant: it was just found").record.clone();
        let holder = self.queue.holder_of(&old.tenant, &old.key).filter(|_| !old.key.is_empty());
        if let Some(by) = holder.filter(|holder| *holder != id).cloned() {
            return Replayed::KeyTaken { by };
        }
        if !self.queue.knows(new_id) {
            let names = Names { key: old.key, tenant: old.tenant, trace: old.trace };
            let record = self.new_record(&old.kind, old.priority, names, old.max_retries);
            let payload = request.payload.as_ref().unwrap_or(&letter.payload).as_str().to_owned();
            let extras = Extras { replay_of: Some(request.dead_letter.to_string()), ..letter.extras };
            let due_ms = self.now;
            self.create(Birth { id: new_id.clone(), record, due_ms, body: Body { payload, extras } });
            self.announce();
        }
        self.queue.reviewed.insert(id.clone(), Decision::Replayed(new_id.clone()));
        self.queue.dead.remove(id);
        self.end();
        Replayed::Done { task: new_id.clone() }
    }

    /// Gives a dead letter up, once as many people agree as the policy asks for.
    pub(super) fn discard(self, request: &DiscardRequest) -> Discarded {
        let id = &request.dead_letter.task;
        match self.queue.reviewed.get(id).cloned() {
            Some(Decision::Replayed(task)) => return Discarded::AlreadyReplayed { task },
            Some(Decision::Discarded) => return Discarded::AlreadyDiscarded,
            None => {}
        }
        if self.queue.dead_letter(&request.dead_letter).is_none() {
            return Discarded::Unknown;
        }
        if self.policy.discard_approvals > 1 {
            match self.queue.discards.get(id) {
                None => {
                    self.queue.discards.insert(id.clone(), request.person.clone());
                    return Discarded::AwaitingSecond;
                }
                Some(first) if *first == request.person => return Discarded::SamePerson,
                Some(_) => {}
            }
        }
        self.queue.dead.remove(id);
        self.queue.discards.remove(id);
        self.queue.reviewed.insert(id.clone(), Decision::Discarded);
        Discarded::Done
    }
}
