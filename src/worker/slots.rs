//! The places of a worker: one a task that it holds, from its claim until the
//! broker has answered its settlement.

use std::time::Duration;

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

/// An attempt that has not ended: its task waits for a hand, or is in one.
pub(super) struct Open {
    pub(super) context: TaskContext,
    pub(super) certainty: Certainty,
    /// When its handler is dropped, once it was asked to end.
    pub(super) kill_at: Option<Instant>,
}

enum State {
    Free,
    Open(Open),
    /// The attempt is over; the broker does not know yet.
    Ended(TaskContext),
}

struct Slot {
    generation: u64,
    state: State,
}

/// All places.
#[derive(Default)]
pub(super) struct Slots {
    slots: Vec<Slot>,
    free: Vec<usize>,
    open: usize,
    /// Open ones that a worker was lost with before.
    suspects: usize,
}

impl Slots {
    /// How many attempts have not ended.
    pub(super) fn open(&self) -> usize {
        self.open
    }

    /// How many of them a worker was lost with before.
    pub(super) fn suspects(&self) -> usize {
        self.suspects
    }

    /// Whether every task is settled.
    pub(super) fn is_empty(&self) -> bool {
        self.held() == 0
    }

    /// How many tasks are not settled.
    pub(super) fn held(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// A task has come.
    pub(super) fn add(&mut self, context: TaskContext) -> SlotId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, state: State::Free });
            self.slots.len() - 1
        });
        self.open += 1;
        self.suspects += usize::from(is_suspect(&context));
        let slot = &mut self.slots[index];
        slot.state = State::Open(Open { context, certainty: Certainty::Presumed, kill_at: None });
        SlotId { index, generation: slot.generation }
    }

    /// An attempt that has not ended, if that is still so.
    pub(super) fn open_mut(&mut self, id: SlotId) -> Option<&mut Open> {
        match &mut self.slots[id.index] {
            Slot { generation, state: State::Open(open) } if *generation == id.generation => Some(open),
            _ => None,
        }
    }

    /// An attempt is over. `None` if it was before.
    pub(super) fn end(&mut self, id: SlotId) -> Option<Open> {
        self.open_mut(id)?;
        let slot = &mut self.slots[id.index];
        let State::Open(open) = std::mem::replace(&mut slot.state, State::Free) else { return None };
        slot.state = State::Ended(open.context.clone());
        self.open -= 1;
        self.suspects -= usize::from(is_suspect(&open.context));
        Some(open)
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

    /// Those that have not ended.
    pub(super) fn all_open(&self) -> Vec<SlotId> {
        let open = |(index, slot): (usize, &Slot)| {
            matches!(slot.state, State::Open(_)).then_some(SlotId { index, generation: slot.generation })
        };
        self.slots.iter().enumerate().filter_map(open).collect()
    }

    /// The attempt at this task that has not ended.
    pub(super) fn open_task(&self, task: &TaskId) -> Option<SlotId> {
        let is_it = |slot: &Slot| matches!(&slot.state, State::Open(open) if open.context.task().lease.task == *task);
        let index = self.slots.iter().position(is_it)?;
        Some(SlotId { index, generation: self.slots[index].generation })
    }

    /// Every lease to be renewed: also of what waits, and of what has ended, until that is known.
    pub(super) fn leases(&self) -> (Vec<SlotId>, Vec<Lease>) {
        let lease = |(index, slot): (usize, &Slot)| {
            let context = match &slot.state {
                State::Free => return None,
                State::Open(open) => &open.context,
                State::Ended(context) => context,
            };
            Some((SlotId { index, generation: slot.generation }, context.task().lease.clone()))
        };
        self.slots.iter().enumerate().filter_map(lease).unzip()
    }

    /// The lease was good at that time.
    pub(super) fn renewed(&self, id: SlotId, at: Instant) {
        match &self.slots[id.index] {
            Slot { generation, state: State::Open(Open { context, .. }) | State::Ended(context) }
                if *generation == id.generation =>
            {
                context.renewed_at(at);
            }
            _ => {}
        }
    }
}

/// Whether a worker was lost with this task: it may be why.
fn is_suspect(context: &TaskContext) -> bool {
    context.task().crash_count > 0
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

impl Open {
    /// What is due now. `visibility` is how long a lease lasts without renewal.
    pub(super) fn due(&self, now: Instant, visibility: Duration) -> Due {
        if let Some(at) = self.kill_at {
            return if at <= now { Due::Kill } else { Due::Nothing(Some(at)) };
        }
        if self.context.cancel_reason().is_some() {
            return Due::Noticed;
        }
        let is_over = |end: Option<Instant>| end.is_some_and(|end| end <= now);
        let expires = self.context.last_renewed().checked_add(visibility);
        let deadline = if self.context.began().is_some() {
            self.context.deadline()
        } else {
            // The earliest that there can be, should it begin at once.
            self.context.timeout().and_then(|timeout| now.checked_add(timeout)).filter(|at| *at > now)
        };
        if is_over(expires) {
            Due::Cancel(CancelReason::LeaseLost)
        } else if is_over(deadline) {
            Due::Cancel(CancelReason::TimedOut)
        } else {
            Due::Nothing(expires.into_iter().chain(deadline).min())
        }
    }
}
