//! The places of a worker: one a task that it holds, from its claim until the
//! broker has answered its settlement.

use std::time::Duration;

use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::verdict::Certainty;
use super::{CancelReason, TaskContext};
use crate::broker::Lease;
use crate::protocol::names::TaskId;

/// A place, and which of its tenants is meant: messages may come late.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SlotId {
    index: usize,
    generation: u64,
}

/// An attempt whose handler runs.
pub(super) struct Running {
    pub(super) context: TaskContext,
    pub(super) started: Instant,
    pub(super) certainty: Certainty,
    /// When its handler is dropped, once it was asked to end.
    pub(super) kill_at: Option<Instant>,
    abort: AbortHandle,
}

enum State {
    Free,
    Running(Running),
    /// The handler has ended; the broker does not know yet.
    Ended(TaskContext),
}

struct Slot {
    generation: u64,
    state: State,
}

/// All places. Dropping them drops the handlers.
pub(super) struct Slots {
    slots: Vec<Slot>,
    free: Vec<usize>,
    concurrency: usize,
    running: usize,
    /// Handlers that were dropped and may not have noticed.
    stuck: Vec<AbortHandle>,
}

impl Slots {
    pub(super) fn new(concurrency: usize) -> Self {
        let slots = (0..concurrency).map(|_| Slot { generation: 0, state: State::Free }).collect();
        Self { slots, free: (0..concurrency).rev().collect(), concurrency, running: 0, stuck: Vec::new() }
    }

    /// How many tasks could be begun.
    pub(super) fn free(&self) -> usize {
        self.concurrency.saturating_sub(self.held() + self.stuck.len())
    }

    /// How many handlers run.
    pub(super) fn running(&self) -> usize {
        self.running
    }

    /// Whether every task is settled.
    pub(super) fn is_empty(&self) -> bool {
        self.held() == 0
    }

    /// How many tasks are not settled.
    pub(super) fn held(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// A place for one more task. There is always one: what was handed back
    /// after a lost answer may be more than was asked for.
    pub(super) fn reserve(&mut self) -> SlotId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, state: State::Free });
            self.slots.len() - 1
        });
        SlotId { index, generation: self.slots[index].generation }
    }

    /// The handler of a task runs.
    pub(super) fn occupy(&mut self, id: SlotId, context: TaskContext, started: Instant, abort: AbortHandle) {
        let running = Running { context, started, certainty: Certainty::Presumed, kill_at: None, abort };
        self.slots[id.index].state = State::Running(running);
        self.running += 1;
    }

    /// A task that is not to be run: it is only held until it is given back.
    pub(super) fn keep(&mut self, id: SlotId, context: TaskContext) {
        self.slots[id.index].state = State::Ended(context);
    }

    /// An attempt that runs, if it still does.
    pub(super) fn running_mut(&mut self, id: SlotId) -> Option<&mut Running> {
        match &mut self.slots[id.index] {
            Slot { generation, state: State::Running(running) } if *generation == id.generation => Some(running),
            _ => None,
        }
    }

    /// The handler has ended by itself. `None` if the worker has given it up before.
    pub(super) fn end(&mut self, id: SlotId) -> Option<Running> {
        self.running_mut(id)?;
        let slot = &mut self.slots[id.index];
        let State::Running(running) = std::mem::replace(&mut slot.state, State::Free) else { return None };
        slot.state = State::Ended(running.context.clone());
        self.running -= 1;
        Some(running)
    }

    /// Drops the handler. One that never yields goes on all the same: its place
    /// is lost until it does.
    pub(super) fn kill(&mut self, id: SlotId) -> Option<Running> {
        let running = self.end(id)?;
        running.abort.abort();
        self.stuck.push(running.abort.clone());
        Some(running)
    }

    /// The task is settled, or somebody else's.
    pub(super) fn vacate(&mut self, id: SlotId) {
        let slot = &mut self.slots[id.index];
        if slot.generation == id.generation {
            slot.generation += 1;
            slot.state = State::Free;
            self.free.push(id.index);
        }
    }

    /// Those that run.
    pub(super) fn all_running(&self) -> Vec<SlotId> {
        let running = |(index, slot): (usize, &Slot)| {
            matches!(slot.state, State::Running(_)).then_some(SlotId { index, generation: slot.generation })
        };
        self.slots.iter().enumerate().filter_map(running).collect()
    }

    /// The one that runs this task.
    pub(super) fn running_task(&self, task: &TaskId) -> Option<SlotId> {
        let is_it = |slot: &Slot| matches!(&slot.state, State::Running(r) if r.context.task().lease.task == *task);
        let index = self.slots.iter().position(is_it)?;
        Some(SlotId { index, generation: self.slots[index].generation })
    }

    /// Every lease to be renewed: also of what has ended, until that is known.
    pub(super) fn leases(&self) -> (Vec<SlotId>, Vec<Lease>) {
        let lease = |(index, slot): (usize, &Slot)| {
            let context = match &slot.state {
                State::Free => return None,
                State::Running(running) => &running.context,
                State::Ended(context) => context,
            };
            Some((SlotId { index, generation: slot.generation }, context.task().lease.clone()))
        };
        self.slots.iter().enumerate().filter_map(lease).unzip()
    }

    /// The lease was good at that time.
    pub(super) fn renewed(&self, id: SlotId, at: Instant) {
        match &self.slots[id.index] {
            Slot { generation, state: State::Running(Running { context, .. }) | State::Ended(context) }
                if *generation == id.generation =>
            {
                context.renewed_at(at);
            }
            _ => {}
        }
    }

    /// Forgets dropped handlers that are gone; says how many are not.
    pub(super) fn count_stuck(&mut self) -> usize {
        self.stuck.retain(|handle| !handle.is_finished());
        self.stuck.len()
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        for slot in &self.slots {
            if let State::Running(running) = &slot.state {
                running.abort.abort();
            }
        }
    }
}

/// What time asks of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    /// Nothing before then.
    Nothing(Option<Instant>),
    /// It should end.
    Cancel(CancelReason),
    /// It was asked to end, by somebody else than the worker's loop.
    Noticed,
    /// Its handler is to be dropped.
    Kill,
}

impl Running {
    /// What is due now. `visibility` is how long a lease lasts without renewal.
    pub(super) fn due(&self, now: Instant, visibility: Duration) -> Due {
        if let Some(at) = self.kill_at {
            return if at <= now { Due::Kill } else { Due::Nothing(Some(at)) };
        }
        if self.context.cancel_reason().is_some() {
            return Due::Noticed;
        }
        let is_over = |end: Option<Instant>| end.is_some_and(|end| end <= now);
        let (expires, deadline) = (self.context.last_renewed().checked_add(visibility), self.context.deadline());
        if is_over(expires) {
            Due::Cancel(CancelReason::LeaseLost)
        } else if is_over(deadline) {
            Due::Cancel(CancelReason::TimedOut)
        } else {
            Due::Nothing(expires.into_iter().chain(deadline).min())
        }
    }
}
