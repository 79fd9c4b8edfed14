//! Ends attempts and tasks.

use std::collections::BTreeSet;
use std::time::Duration;

use super::lane::Body;
use super::moves::{Ending, Mishap};
use super::record::{Record, decode_extras, epoch_of, time};
use super::state::Step;
use crate::broker::{Cancelled, ClaimRequest, Claimed, Outcome, Settled, Settlement, sentences};
use crate::protocol::names::TaskId;
use crate::protocol::state::{RetryReason, State};

/// An attempt's end that was accepted.
struct Accepted<'a> {
    /// Its place among the settlements.
    index: usize,
    settlement: &'a Settlement,
    record: Record,
    body: Body,
}

/// What is to become of an attempt that did not succeed.
enum Verdict {
    /// It runs again then.
    Again(u64),
    /// It is dead, for this reason.
    Dead { code: String, error: String },
}

/// What an outcome other than success says.
struct Complaint {
    /// `None` for what will fail again.
    reason: Option<RetryReason>,
    error: String,
    code: String,
    /// For how long the task should rest, where that was said.
    wait: Option<Duration>,
}

impl Complaint {
    /// `None` for a success.
    fn of(outcome: &Outcome) -> Option<Self> {
        let (reason, error, code, wait) = match outcome {
            Outcome::Success { .. } => return None,
            Outcome::Failure { error, code } => (Some(RetryReason::Failure), error.as_str(), code.as_str(), None),
            Outcome::Permanent { error, code } => (None, error.as_str(), code.as_str(), None),
            Outcome::RateLimited { retry_after, error } => {
                (Some(RetryReason::RateLimited), error.as_str(), "rate_limited", *retry_after)
            }
            Outcome::Released { delay } => (Some(RetryReason::Released), "", "released", Some(*delay)),
        };
        Some(Self { reason, error: sentences::cut_error(error), code: sentences::cut_error(code), wait })
    }

    /// How the record of a task names it.
    fn word(&self) -> &'static str {
        self.reason.map_or("permanent", RetryReason::as_str)
    }

    /// The error, after what it led to.
    fn after(&self, what: String) -> String {
        if self.error.is_empty() { what } else { format!("{what}: {}", self.error) }
    }
}

impl Step<'_> {
    /// Ends attempts, then claims the next tasks.
    pub(super) fn settle(mut self, settlements: &[Settlement], next: &ClaimRequest<'_>) -> (Vec<Settled>, Claimed) {
        let (mut answers, accepted) = self.judge_all(settlements);
        for attempt in accepted {
            let index = attempt.index;
            answers[index] = self.end_attempt(attempt);
        }
        let invalid = answers.iter().filter(|answer| **answer == Settled::InvalidTransition).count();
        self.queue.invalid_transitions += invalid as u64;
        self.announce();
        let claimed = self.claim_some(next);
        self.end();
        (answers, claimed)
    }

    /// Everything is judged before anything moves. Those that are accepted have
    /// a provisional answer: said twice in one call, it was settled before.
    fn judge_all<'a>(&mut self, settlements: &'a [Settlement]) -> (Vec<Settled>, Vec<Accepted<'a>>) {
        let (mut answers, mut accepted, mut seen) = (Vec::new(), Vec::new(), BTreeSet::new());
        for (index, settlement) in settlements.iter().enumerate() {
            let id = &settlement.lease.task;
            answers.push(Settled::AlreadySettled);
            if seen.contains(id) {
                continue;
            }
            let record = self.queue.live.get(id).filter(|record| record.is_held_by(&settlement.lease)).cloned();
            match record {
                None => answers[index] = self.judge(settlement),
                Some(_) if self.is_too_large(&settlement.outcome) => answers[index] = Settled::ResultTooLarge,
                Some(record) => {
                    seen.insert(id);
                    let (_, body) = self.take_out(&record);
                    accepted.push(Accepted { index, settlement, record, body });
                }
            }
        }
        (answers, accepted)
    }

    fn is_too_large(&self, outcome: &Outcome) -> bool {
        let bytes = match outcome {
            Outcome::Success { result: Some(result) } => result.as_str().len() as u64,
            _ => 0,
        };
        bytes > self.policy.limits.result_bytes
    }

    /// The lease does not match: says why, from what became of the task.
    fn judge(&self, settlement: &Settlement) -> Settled {
        let (id, mine) = (&settlement.lease.task, epoch_of(&settlement.lease));
        let complaint = Complaint::of(&settlement.outcome);
        if let Some(record) = self.queue.live.get(id) {
            let died = record.state == State::DlqPending && record.holder == "permanent";
            let same = |complaint: Complaint| died || complaint.reason.is_some() && record.holder == complaint.word();
            let same = record.epoch == mine && complaint.is_some_and(same);
            return if same { Settled::AlreadySettled } else { Settled::LeaseLost };
        }
        let Some(finished) = self.queue.done.get(id) else { return Settled::Unknown };
        let succeeded = finished.state == State::Succeeded;
        match finished.record.epoch {
            _ if finished.state == State::Cancelled => Settled::Cancelled,
            epoch if epoch > mine => Settled::LeaseLost,
            epoch if epoch == mine && succeeded == complaint.is_none() => Settled::AlreadySettled,
            _ => Settled::InvalidTransition,
        }
    }

    fn end_attempt(&mut self, attempt: Accepted<'_>) -> Settled {
        let Accepted { settlement, record, body, .. } = attempt;
        match Complaint::of(&settlement.outcome) {
            None => self.succeed(settlement, record),
            Some(complaint) => self.go_wrong(settlement, record, body, &complaint),
        }
    }

    fn succeed(&mut self, settlement: &Settlement, record: Record) -> Settled {
        let id = &settlement.lease.task;
        let result = match &settlement.outcome {
            Outcome::Success { result } => result.clone(),
            _ => None,
        };
        self.emit(id, Some(State::Running), State::Succeeded, &record, "");
        let ending = Ending {
            state: State::Succeeded,
            extras: decode_extras(&settlement.lease),
            result,
            error: String::new(),
            code: String::new(),
            dlq_id: None,
        };
        self.finish(id, record, ending);
        Settled::Succeeded
    }

    fn go_wrong(&mut self, settlement: &Settlement, mut record: Record, body: Body, complaint: &Complaint) -> Settled {
        let id = &settlement.lease.task;
        let outcome = complaint.word();
        match (self.verdict(settlement, &mut record, complaint), complaint.reason) {
            (Verdict::Again(due_ms), Some(reason)) => {
                if reason != RetryReason::Released {
                    self.remember(id, &record, &Mishap { outcome, code: &complaint.code, error: &complaint.error });
                }
                self.run_again(id, record, body, reason, due_ms);
                Settled::Retrying { due_at: time(due_ms) }
            }
            (Verdict::Dead { code, error }, _) => {
                self.die(id, record, body, &Mishap { outcome, code: &code, error: &error });
                Settled::Dead
            }
            (Verdict::Again(_), None) => unreachable!("invariant: what fails for good does not run again"),
        }
    }

    /// Counts the attempt and says whether another one follows.
    fn verdict(&self, settlement: &Settlement, record: &mut Record, complaint: &Complaint) -> Verdict {
        let retry = &self.policy.retry;
        let dead = |code: &str, error: String| Verdict::Dead { code: code.to_owned(), error };
        let due_ms = match complaint.reason {
            None => return dead(&complaint.code, complaint.error.clone()),
            Some(RetryReason::Failure) => {
                record.retries += 1;
                if record.retries > record.max_retries.unwrap_or(retry.max_retries) {
                    return dead(&complaint.code, complaint.error.clone());
                }
                self.after(retry.backoff.delay(record.retries, settlement.dice))
            }
            Some(_) => {
                record.releases += 1;
                if record.releases > retry.max_releases {
                    let what = format!("was released or rate limited {} times", record.releases);
                    return dead("too_many_releases", complaint.after(what));
                }
                let wait = complaint.wait;
                self.after(wait.unwrap_or_else(|| retry.rate_limit.delay(record.releases, settlement.dice)))
            }
        };
        if due_ms > self.deadline_of(record.created_ms) {
            let what = "its next attempt would come after its deadline".to_owned();
            return dead("deadline_exceeded", complaint.after(what));
        }
        Verdict::Again(due_ms)
    }

    /// Ends a task that is not needed any more.
    pub(super) fn cancel(mut self, id: &TaskId, reason: &str) -> Cancelled {
        let Some(record) = self.queue.live.get(id).cloned() else { return self.cancel_finished(id) };
        let from = record.state;
        if from == State::DlqPending {
            self.queue.invalid_transitions += 1;
            return Cancelled::InvalidTransition { state: from };
        }
        let body = if record.message.is_some() { self.leave_lane(&record) } else { self.leave_parking(id) };
        let reason = sentences::cut_error(reason);
        self.emit(id, Some(from), State::Cancelled, &record, &reason);
        let ending = Ending {
            state: State::Cancelled,
            extras: body.extras,
            result: None,
            error: reason,
            code: "cancelled".to_owned(),
            dlq_id: None,
        };
        self.finish(id, record, ending);
        self.end();
        Cancelled::Done { from }
    }

    fn cancel_finished(self, id: &TaskId) -> Cancelled {
        match self.queue.done.get(id).map(|finished| finished.state) {
            None => Cancelled::Unknown,
            Some(State::Cancelled) => Cancelled::AlreadyCancelled,
            Some(state) => {
                self.queue.invalid_transitions += 1;
                Cancelled::InvalidTransition { state }
            }
        }
    }

    /// Out of its lane, which is ready no more if nothing else waits there.
    fn leave_lane(&mut self, record: &Record) -> Body {
        let (_, body) = self.take_out(record);
        let lane = record.lane();
        if record.state != State::Running && self.queue.lane_mut(&lane).first_unread().is_none() {
            self.queue.ready.remove(&lane);
        }
        body
    }

    fn leave_parking(&mut self, id: &TaskId) -> Body {
        self.queue.delayed.remove(id);
        self.queue.retrying.remove(id);
        self.queue.parked.remove(id).expect("invariant: a task in no lane is parked")
    }
}
