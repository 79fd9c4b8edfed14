//! What a sequence has met so far, for later steps to come back to.

use std::collections::HashSet;
use std::sync::Arc;

use windlass::TaskId;
use windlass::broker::{Claimed, Doubt, EffectMark, Lease, ReclaimCursor, RetainCursor};
use windlass::protocol::names::{DeadLetterId, WorkerId};

/// One claim, as each of the two brokers handed it out.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) model: Lease,
    pub(crate) redis: Lease,
    pub(crate) worker: WorkerId,
}

#[derive(Default)]
pub(crate) struct Known {
    /// Ids of tasks, in the order in which they were met.
    ids: Vec<TaskId>,
    met: HashSet<TaskId>,
    /// Every claim that was ever made, the last one last.
    pub(crate) held: Vec<Arc<Held>>,
    /// Those that nobody has ended yet, though the task may have been taken back.
    pub(crate) open: Vec<Arc<Held>>,
    /// Dead letters that wait to be recorded.
    pub(crate) pending: Vec<DeadLetterId>,
    /// Dead letters that were recorded.
    pub(crate) letters: Vec<DeadLetterId>,
    /// Where each broker's walk through expired leases goes on.
    pub(crate) reclaiming: (ReclaimCursor, ReclaimCursor),
    /// Where each broker's walk through results and dead letters goes on.
    pub(crate) retaining: (RetainCursor, RetainCursor),
    /// The last call that began an effect.
    pub(crate) mark: Option<EffectMark>,
    /// The last doubt that was met.
    pub(crate) doubt: Option<Doubt>,
}

impl Known {
    pub(crate) fn ids(&self) -> &[TaskId] {
        &self.ids
    }

    pub(crate) fn meet(&mut self, id: &TaskId) {
        if self.met.insert(id.clone()) {
            self.ids.push(id.clone());
        }
    }

    /// Remembers claims that both brokers made alike.
    pub(crate) fn hold(&mut self, model: &Claimed, redis: &Claimed, worker: &WorkerId) {
        for (model, redis) in model.tasks.iter().zip(&redis.tasks) {
            let held = Held { model: model.lease.clone(), redis: redis.lease.clone(), worker: worker.clone() };
            self.held.push(Arc::new(held));
            self.open.extend(self.held.last().cloned());
        }
    }

    pub(crate) fn end(&mut self, ended: &Arc<Held>) {
        self.open.retain(|held| !Arc::ptr_eq(held, ended));
    }
}
