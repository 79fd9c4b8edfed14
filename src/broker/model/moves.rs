//! Moves that several operations make, each from a record that was checked.

use super::lane::{Body, Message};
use super::record::{Finished, Record, TakenFrom};
use super::retention::ResultEntry;
use super::state::Step;
use crate::protocol::names::TaskId;
use crate::protocol::policy::IdempotencyScope;
use crate::protocol::state::{RetryReason, State};
use crate::protocol::task::{Attempt, Extras, Payload};

/// How many attempts a trail keeps.
const KEPT_ATTEMPTS: usize = 20;

/// How much of an error an attempt in the trail keeps.
const KEPT_ERROR_BYTES: usize = 256;

/// How an attempt went wrong.
pub(super) struct Mishap<'a> {
    /// A retry reason, `permanent`, or `expired` for what ended in no attempt.
    pub(super) outcome: &'a str,
    pub(super) code: &'a str,
    pub(super) error: &'a str,
}

/// What a lost worker costs its task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Loss {
    /// One of the crashes that it may survive.
    Crash,
    /// Nothing.
    Free,
}

/// How a worker lost its tasks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lost<'a> {
    pub(super) reason: RetryReason,
    pub(super) loss: Loss,
    /// What else is known of the worker's end; may be empty.
    pub(super) words: &'a str,
}

impl Lost<'_> {
    /// It counts as a crash, and there is no more to say.
    pub(super) fn crash(reason: RetryReason) -> Self {
        Lost { reason, loss: Loss::Crash, words: "" }
    }
}

/// What came of a task.
pub(super) struct Ending {
    pub(super) state: State,
    pub(super) extras: Extras,
    pub(super) result: Option<Payload>,
    pub(super) error: String,
    pub(super) code: String,
    pub(super) dlq_id: Option<String>,
}

/// A new task, checked.
pub(super) struct Birth {
    pub(super) id: TaskId,
    pub(super) record: Record,
    pub(super) due_ms: u64,
    pub(super) body: Body,
}

impl Step<'_> {
    /// Makes a task: ready, or parked until it is due.
    pub(super) fn create(&mut self, birth: Birth) -> State {
        let Birth { id, mut record, due_ms, body } = birth;
        if due_ms > self.now {
            record.state = State::Scheduled;
            self.queue.parked.insert(id.clone(), body);
            self.queue.delayed.put(&id, due_ms);
        } else {
            record.message = Some(self.push(&id, &record, body));
        }
        if !record.key.is_empty() {
            self.queue.keys.insert((record.tenant.clone(), record.key.clone()), id.clone());
        }
        let state = record.state;
        self.emit(&id, None, state, &record, "");
        self.queue.live.insert(id, record);
        state
    }

    /// Remembers how an attempt ended, or that the task ended outside of one.
    pub(super) fn remember(&mut self, id: &TaskId, record: &Record, mishap: &Mishap<'_>) {
        let trail = self.queue.trails.entry(id.clone()).or_default();
        let worker = record.worker();
        trail.error = mishap.error.to_owned();
        trail.code = mishap.code.to_owned();
        if let Some(worker) = &worker {
            trail.worker.clone_from(worker);
        }
        let attempt = Attempt {
            epoch: record.epoch,
            at_ms: self.now,
            outcome: mishap.outcome.to_owned(),
            code: mishap.code.to_owned(),
            error: mishap.error[..mishap.error.floor_char_boundary(KEPT_ERROR_BYTES)].to_owned(),
            worker: worker.unwrap_or_default(),
        };
        trail.attempts.push_back(attempt);
        if trail.attempts.len() > KEPT_ATTEMPTS {
            trail.attempts.pop_front();
        }
    }

    /// To `dlq_pending`. The caller has taken the task out of where it was.
    pub(super) fn die(&mut self, id: &TaskId, mut record: Record, body: Body, mishap: &Mishap<'_>) {
        let before = record.clone();
        self.remember(id, &record, mishap);
        record.state = State::DlqPending;
        record.since_ms = self.now;
        record.message = None;
        record.holder = mishap.outcome.to_owned();
        self.queue.parked.insert(id.clone(), body);
        self.queue.dlq_pending.put(id, self.now);
        self.emit_after(id, &before, &record, mishap.code);
        self.queue.live.insert(id.clone(), record);
    }

    /// To `retrying`. The caller has taken the task out of where it was and counted why.
    pub(super) fn run_again(&mut self, id: &TaskId, mut record: Record, body: Body, reason: RetryReason, due_ms: u64) {
        let before = record.clone();
        record.state = State::Retrying;
        record.since_ms = self.now;
        record.holder = reason.as_str().to_owned();
        if due_ms <= self.now {
            record.message = Some(self.push(id, &record, body));
        } else {
            record.message = None;
            self.queue.parked.insert(id.clone(), body);
            self.queue.retrying.put(id, due_ms);
        }
        self.emit_after(id, &before, &record, reason.as_str());
        self.queue.live.insert(id.clone(), record);
    }

    /// A worker lost a running task. Says where the task went.
    pub(super) fn lose(&mut self, id: &TaskId, mut record: Record, lost: Lost<'_>) -> State {
        let (message, body) = self.take_out(&record);
        let Lost { reason, loss, words } = lost;
        let word = reason.as_str();
        let told = if words.is_empty() { word.to_owned() } else { format!("{word} ({words})") };
        if reason == RetryReason::Released {
            record.releases += 1;
            if record.releases > self.policy.retry.max_releases {
                let error = format!("was released or rate limited {} times", record.releases);
                self.die(id, record, body, &Mishap { outcome: word, code: "too_many_releases", error: &error });
                return State::DlqPending;
            }
        } else if loss == Loss::Crash {
            record.crashes += 1;
            if record.crashes > self.policy.retry.max_crashes {
                let error = format!("lost its worker {} times, last by {told}", record.crashes);
                self.die(id, record, body, &Mishap { outcome: word, code: "worker_lost", error: &error });
                return State::DlqPending;
            }
        }
        let error = format!("was taken from its worker: {told}");
        self.remember(id, &record, &Mishap { outcome: word, code: word, error: &error });
        let taken_from = TakenFrom { worker: record.holder.clone(), message, words: words.to_owned() };
        self.queue.trails.entry(id.clone()).or_default().taken_from = Some(taken_from);
        self.run_again(id, record, body, reason, self.now);
        State::Retrying
    }

    /// Takes a task's entry out of its lane.
    pub(super) fn take_out(&mut self, record: &Record) -> (Message, Body) {
        let message = record.message.expect("invariant: the task is in a lane");
        let entry = self.queue.lane_mut(&record.lane()).remove(message);
        (message, entry.expect("invariant: a task in a lane has its entry there").body)
    }

    /// Ends a task: exactly one result, and its key released as the scope says.
    pub(super) fn finish(&mut self, id: &TaskId, record: Record, ending: Ending) {
        let keeps = match self.policy.idempotency.scope {
            IdempotencyScope::Live => false,
            IdempotencyScope::LiveAndSucceeded => ending.state == State::Succeeded,
            IdempotencyScope::Retained => true,
        };
        let key = (record.tenant.clone(), record.key.clone());
        if !keeps && !record.key.is_empty() && self.queue.keys.get(&key) == Some(id) {
            self.queue.keys.remove(&key);
        }
        let Ending { state, extras, result, error, code, dlq_id } = ending;
        let (finished_ms, number) = (self.now, self.queue.next_number());
        let finished = Finished { state, record, extras, result, error, code, dlq_id, finished_ms, number };
        self.queue.results.insert(number, ResultEntry::of(id, &finished));
        for alias in self.queue.awaited.remove(id).unwrap_or_default() {
            let number = self.queue.next_number();
            self.queue.results.insert(number, ResultEntry::for_alias(&alias, id, &finished));
        }
        self.queue.done.insert(id.clone(), finished);
        self.queue.live.remove(id);
        self.queue.trails.remove(id);
        self.queue.progress.remove(id);
    }
}
