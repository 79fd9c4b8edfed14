//! Attempts from their claim to their end: what waits, what runs, what is to be said about it.

use std::time::Duration;

use tokio::time::Instant;

use super::Runtime;
use super::calls::Ready;
use crate::broker::{ClaimedTask, Outcome, Settlement};
use crate::protocol::backoff::Dice;
use crate::worker::crew::{How, Left};
use crate::worker::pace::AHEAD_WITHIN;
use crate::worker::slots::SlotId;
use crate::worker::verdict::{Certainty, verdict};
use crate::worker::{CancelReason, TaskContext};

/// How soon it is looked whether a handler that was dropped is gone.
const KILL_CHECK: Duration = Duration::from_millis(20);

/// What is claimed ahead and still waits after so many looks, each
/// [`AHEAD_WITHIN`] after the last, is given back.
const PATIENCE_LOOKS: u64 = 4;

/// Given back, ready for whoever has room.
const GIVEN_BACK: Outcome = Outcome::Released { delay: Duration::ZERO };

impl Runtime {
    /// Tasks have come: those that can be started are, the others wait.
    pub(super) fn admit(&mut self, tasks: Vec<ClaimedTask>, asked: Instant) {
        if tasks.is_empty() {
            return;
        }
        if self.uncertain {
            self.give_up_older(&tasks);
        }
        let free = self.crew.capacity().saturating_sub(self.slots.open());
        let (suspects, others) = match tasks.len() > free {
            true => tasks.into_iter().partition(|task| task.crash_count > 0),
            false => (Vec::new(), tasks),
        };
        for task in others {
            self.let_wait(task, asked);
        }
        for task in suspects {
            self.let_suspect_wait(task, asked);
        }
        let fast = self.pace.expected().filter(|one| *one <= AHEAD_WITHIN);
        self.crew.employ(fast);
        if self.next_watch.is_none() && (fast.is_some() || self.slots.open() > self.crew.capacity()) {
            self.watch(Instant::now() + AHEAD_WITHIN);
        }
    }

    /// A newer claim of a task that is still open here: the answer that ended the first one was lost.
    fn give_up_older(&mut self, tasks: &[ClaimedTask]) {
        for task in tasks {
            if let Some(old) = self.slots.open_task(&task.lease.task) {
                self.cancel(old, CancelReason::LeaseLost, Certainty::Confirmed);
            }
        }
    }

    /// A task that a worker was lost with comes last, so that nothing waits
    /// behind it, and no more of them wait than can run: should it be what
    /// kills workers, it takes with it what runs beside it and no more.
    fn let_suspect_wait(&mut self, task: ClaimedTask, asked: Instant) {
        let too_many = self.slots.suspects() >= self.crew.capacity().max(1);
        if too_many && task.release_count < self.policy.retry.max_releases / 2 {
            let slot = self.slots.add(TaskContext::new(&self.home, task, asked, None));
            self.give_back(slot);
        } else {
            self.let_wait(task, asked);
        }
    }

    fn let_wait(&mut self, task: ClaimedTask, asked: Instant) {
        let own = task.extras.timeout_ms.map(Duration::from_millis);
        let timeout = own.or_else(|| self.policy.timeout_of(&task.task_type));
        let context = TaskContext::new(&self.home, task, asked, timeout);
        let slot = self.slots.add(context.clone());
        if self.drain.is_some() {
            // It was on its way when the drain began.
            self.give_back(slot);
            return;
        }
        self.crew.admit(slot, context);
        if let Some(earliest) = timeout.and_then(|timeout| Instant::now().checked_add(timeout)) {
            self.arm(earliest);
        }
    }

    /// Takes down what has left the crew.
    pub(super) fn collect(&mut self) {
        let mut left = std::mem::take(&mut self.left);
        self.crew.take_left(&mut left);
        for Left { slot, how } in left.drain(..) {
            let Some(open) = self.slots.end(slot) else { continue };
            let reason = open.context.cancel_reason();
            let outcome = match how {
                How::Ended { outcome, took } => {
                    self.pace.add(took);
                    self.metrics.add_run(took);
                    verdict(reason, open.certainty, Some(outcome))
                }
                How::Stale => verdict(Some(CancelReason::LeaseLost), open.certainty, None),
            };
            self.conclude(slot, &open.context, outcome);
        }
        self.left = left;
    }

    /// An attempt is over: what is to be said about it is said with the next call.
    fn conclude(&mut self, slot: SlotId, context: &TaskContext, outcome: Option<Outcome>) {
        let lease = context.task().lease.clone();
        match outcome {
            Some(outcome) => {
                let settlement = Settlement { lease, outcome, dice: Dice(fastrand::u16(..)) };
                self.ready.push_back(Ready { slot, settlement });
            }
            None => {
                self.summary.refused += 1;
                self.lost.push(lease);
                self.slots.vacate(slot);
                self.hungry = true;
            }
        }
    }

    /// Gives a task back that was not begun and that the crew does not have.
    fn give_back(&mut self, slot: SlotId) {
        if let Some(open) = self.slots.end(slot) {
            self.conclude(slot, &open.context, Some(GIVEN_BACK));
        }
    }

    /// Gives everything back that was not begun.
    pub(super) fn give_back_waiting(&mut self) {
        for slot in self.crew.withdraw_all() {
            self.give_back(slot);
        }
    }

    /// Looks after what waits: what should have been started long ago is for others to have.
    pub(super) fn look_at_waiting(&mut self, now: Instant) {
        let mut given_back = 0;
        for slot in self.crew.overdue(PATIENCE_LOOKS) {
            let most = self.policy.retry.max_releases;
            // To give it back once more would be its end; it is better off waiting.
            let may_go = |context: &TaskContext| context.task().release_count < most;
            if self.slots.open_mut(slot).is_some_and(|open| may_go(&open.context)) && self.crew.withdraw(slot) {
                self.give_back(slot);
                given_back += 1;
            }
        }
        if given_back > 0 {
            self.metrics.add_given_back(given_back);
            tracing::info!(worker = %self.info.id, given_back, "handlers take longer than they did: what waited is given back");
        }
        if self.crew.waiting() > 0 {
            // A hand that is blocked does not say so.
            self.crew.employ(None);
            self.watch(now + AHEAD_WITHIN);
        }
    }

    /// Asks a handler to end; a task that was not begun never is.
    pub(super) fn cancel(&mut self, slot: SlotId, reason: CancelReason, certainty: Certainty) {
        if self.crew.withdraw(slot) {
            if let Some(open) = self.slots.end(slot) {
                tracing::info!(task_id = %open.context.task().lease.task, ?reason, "the attempt does not begin");
                self.metrics.add_cancelled(reason);
                self.conclude(slot, &open.context, verdict(Some(reason), certainty, None));
            }
            return;
        }
        let Some(open) = self.slots.open_mut(slot) else { return };
        if certainty == Certainty::Confirmed {
            open.certainty = certainty;
        }
        let kill_at = match &self.drain {
            Some(drain) if reason == CancelReason::Draining => drain.release_at(),
            _ => Instant::now() + self.options.kill_grace,
        };
        open.kill_at.get_or_insert(kill_at);
        if open.context.cancel_reason().is_none() {
            let task = &open.context.task().lease.task;
            tracing::info!(task_id = %task, ?reason, "the attempt is asked to end");
            open.context.cancel(reason);
            self.metrics.add_cancelled(reason);
        }
        self.arm(kill_at);
    }

    /// Drops a handler that was asked to end.
    pub(super) fn kill(&mut self, slot: SlotId) {
        if !self.crew.kill(slot) {
            return;
        }
        let Some(open) = self.slots.end(slot) else { return };
        let now = Instant::now();
        self.metrics.add_killed();
        self.metrics.add_run(open.context.began().map_or(Duration::ZERO, |began| now - began));
        let reason = open.context.cancel_reason();
        tracing::warn!(task_id = %open.context.task().lease.task, ?reason, "the handler was dropped");
        let outcome = verdict(reason, open.certainty, None);
        self.conclude(slot, &open.context, outcome);
        self.arm(now + KILL_CHECK);
    }
}
