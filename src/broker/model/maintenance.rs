//! Moves what no worker moves, and keeps the registry of workers.

use super::lane::Message;
use super::moves::Loss;
use super::state::{Step, Worker};
use crate::broker::{Promoted, ReclaimCursor, Reclaimed, Registered, Swept, WorkerInfo};
use crate::protocol::names::{Capabilities, TaskId, WorkerId};
use crate::protocol::policy::{Mode, ReclaimCause};
use crate::protocol::state::{RetryReason, State};

use super::record::time;

/// How many expired leases one call takes back, and how many lanes it looks at.
const RECLAIM_AT_ONCE: usize = 50;
const MOST_LANES: usize = 200;

/// How many tasks one call takes from a worker that is gone.
const EVICT_AT_ONCE: usize = 100;

/// How many lost workers one sweep deals with, and how many tasks of each.
const LOST_AT_ONCE: usize = 5;
const SWEEP_AT_ONCE: usize = 50;

/// What an eviction did.
#[derive(Default)]
pub(super) struct Evicted {
    pub(super) requeued: Vec<TaskId>,
    pub(super) dead: Vec<TaskId>,
    /// Whether the worker may hold more.
    pub(super) more: bool,
}

impl Step<'_> {
    pub(super) fn promote(mut self, limit: usize) -> Promoted {
        let filed = if self.policy.mode == Mode::Closed { 0 } else { self.file_raw(limit) };
        let promoted = self.promote_delayed(limit) + self.promote_retrying(limit);
        self.announce();
        self.rings.insert(super::state::ALL.to_owned());
        self.rings.extend(self.queue.classes.keys().cloned());
        let next_due = [self.queue.delayed.first_time(), self.queue.retrying.first_time()].into_iter().flatten().min();
        self.end();
        Promoted { promoted, filed, next_due: next_due.map(time) }
    }

    pub(super) fn promote_delayed(&mut self, limit: usize) -> usize {
        let due = self.queue.delayed.due(self.now, limit);
        for id in &due {
            self.queue.delayed.remove(id);
            self.unpark(id);
        }
        due.len()
    }

    pub(super) fn promote_retrying(&mut self, limit: usize) -> usize {
        let due = self.queue.retrying.due(self.now, limit);
        for id in &due {
            self.queue.retrying.remove(id);
            self.unpark(id);
        }
        due.len()
    }

    /// Moves a task whose time has come into its lane.
    fn unpark(&mut self, id: &TaskId) {
        let body = self.queue.parked.remove(id).expect("invariant: a task that waits is parked");
        let mut record = self.queue.live.get(id).expect("invariant: a task that waits lives").clone();
        let from = record.state;
        record.since_ms = self.now;
        if from == State::Scheduled {
            record.state = State::Queued;
        }
        record.message = Some(self.push(id, &record, body));
        if from == State::Scheduled {
            self.emit(id, Some(from), State::Queued, &record, "");
        }
        self.queue.live.insert(id.clone(), record);
    }

    /// Takes tasks back whose lease has expired, a bounded number of lanes and tasks at a time.
    pub(super) fn reclaim(mut self, cursor: &ReclaimCursor) -> Reclaimed {
        let mut reclaimed = Reclaimed::default();
        if !self.policy.reclaim.on.contains(&ReclaimCause::VisibilityTimeout) {
            return reclaimed;
        }
        let (first, message) = cursor.0.split_once('\n').unwrap_or(("", "0"));
        let message: Message = message.parse().unwrap_or(0);
        let lanes: Vec<_> = self.queue.lanes.keys().filter(|lane| lane.as_str() >= first).cloned().collect();
        for (visited, lane) in lanes.iter().enumerate() {
            if visited == MOST_LANES || reclaimed.requeued.len() + reclaimed.dead.len() >= RECLAIM_AT_ONCE {
                reclaimed.next = Some(ReclaimCursor(format!("{lane}\n0")));
                break;
            }
            let from = if lane.as_str() == first { message } else { 0 };
            let Some(not_since) = self.now.checked_sub(self.policy.visibility_timeout.as_millis() as u64) else {
                break;
            };
            let expired = self.queue.lane_mut(lane).expired(from, not_since, RECLAIM_AT_ONCE);
            for message in expired.messages {
                let entry = self.queue.lane_mut(lane).entry(message);
                let id = entry.expect("invariant: what is pending is in the lane").task.clone();
                self.take_back(&id, RetryReason::VisibilityTimeout, Loss::Crash, &mut reclaimed);
            }
            if let Some(next) = expired.next {
                reclaimed.next = Some(ReclaimCursor(format!("{lane}\n{next}")));
                break;
            }
        }
        self.announce();
        self.end();
        reclaimed
    }

    fn take_back(&mut self, id: &TaskId, reason: RetryReason, loss: Loss, reclaimed: &mut Reclaimed) {
        let record = self.queue.live.get(id).expect("invariant: what is in a lane lives").clone();
        match self.lose(id, record, reason, loss) {
            State::DlqPending => reclaimed.dead.push(id.clone()),
            _ => reclaimed.requeued.push(id.clone()),
        }
    }

    /// A worker is gone: its tasks come back, and it leaves the registry.
    pub(super) fn evict(mut self, worker: &WorkerId, reason: RetryReason, loss: Loss) -> Evicted {
        let evicted = self.evict_some(worker, reason, loss, EVICT_AT_ONCE);
        if !evicted.more {
            self.forget(worker);
        }
        self.announce();
        self.end();
        evicted
    }

    /// Takes tasks back from one worker, lane by lane.
    fn evict_some(&mut self, worker: &WorkerId, reason: RetryReason, loss: Loss, limit: usize) -> Evicted {
        let lanes = self.queue.lanes.values();
        let held = lanes.flat_map(|lane| {
            lane.pending_of(worker, limit + 1)
                .into_iter()
                .filter_map(|message| Some((lane.entry(message)?.task.clone(), message)))
        });
        let held: Vec<_> = held.collect();
        let mut reclaimed = Reclaimed::default();
        for (id, message) in held {
            if reclaimed.requeued.len() + reclaimed.dead.len() >= limit {
                return Evicted { requeued: reclaimed.requeued, dead: reclaimed.dead, more: true };
            }
            if self.runs_on(&id, message, worker).is_some() {
                self.take_back(&id, reason, loss, &mut reclaimed);
            }
        }
        Evicted { requeued: reclaimed.requeued, dead: reclaimed.dead, more: false }
    }

    /// Out of the registry.
    fn forget(&mut self, worker: &WorkerId) {
        self.queue.heartbeats.remove(worker);
        if let Some(known) = self.queue.workers.remove(worker)
            && self.queue.places.get(&known.place) == Some(worker)
        {
            self.queue.places.remove(&known.place);
        }
    }

    /// Adds a worker to the registry; it supersedes the one that was in its
    /// place. Says whether it must be called again for the rest of that one's tasks.
    pub(super) fn register(mut self, info: &WorkerInfo, capabilities: &Capabilities) -> (Registered, bool) {
        let place = place_of(info);
        let before = self.queue.places.get(&place).filter(|before| **before != info.id).cloned();
        let mut evicted = Evicted::default();
        if let Some(before) = &before {
            evicted = self.evict_some(before, RetryReason::Superseded, Loss::Crash, EVICT_AT_ONCE);
            if !evicted.more {
                self.forget(before);
            }
        }
        if !evicted.more {
            if !place.is_empty() {
                self.queue.places.insert(place.clone(), info.id.clone());
            }
            self.queue.heartbeats.put(&info.id, self.now);
            let worker = Worker { place, info: info.clone(), started_ms: self.now };
            self.queue.workers.insert(info.id.clone(), worker);
            self.add_class(capabilities);
        }
        self.announce();
        self.end();
        (Registered { superseded: before, requeued: evicted.requeued }, evicted.more)
    }

    /// Looks at every live task at once, then at silent workers. Of what a
    /// sweep repairs, one thing can go wrong here: a lease that another worker
    /// renewed. Consumers are not modelled, so none is removed.
    pub(super) fn sweep(mut self) -> Swept {
        let checked = self.queue.live.len();
        let repaired = self.repair();
        let mut lost = Vec::new();
        let silent = self.now.checked_sub(self.policy.reclaim.worker_lost_after.as_millis() as u64);
        for worker in silent.map(|since| self.queue.heartbeats.due(since, LOST_AT_ONCE)).unwrap_or_default() {
            let takes = self.policy.reclaim.on.contains(&ReclaimCause::WorkerLost);
            if !takes || !self.evict_some(&worker, RetryReason::WorkerLost, Loss::Crash, SWEEP_AT_ONCE).more {
                self.forget(&worker);
                lost.push(worker);
            }
        }
        self.announce();
        self.end();
        Swept { checked, repaired, consumers_removed: 0, workers_lost: lost, next: None }
    }

    fn repair(&mut self) -> Vec<(TaskId, String)> {
        let mut repaired = Vec::new();
        let running: Vec<_> = self.queue.live.iter().filter(|(_, record)| record.state == State::Running).collect();
        let running: Vec<_> = running.into_iter().map(|(id, record)| (id.clone(), record.clone())).collect();
        for (id, record) in running {
            let message = record.message.expect("invariant: a running task is in a lane");
            let owner = self.queue.lane_mut(&record.lane()).owner(message).map(ToString::to_string);
            if owner.as_deref() != Some(record.holder.as_str()) {
                let owner = owner.unwrap_or_else(|| "nobody".to_owned());
                repaired.push((id.clone(), format!("it runs on {} and is pending for {owner}", record.holder)));
                self.lose(&id, record, RetryReason::Repaired, Loss::Free);
            }
        }
        repaired
    }
}

/// The container that a worker runs in, where that is known.
fn place_of(info: &WorkerInfo) -> String {
    let container = info.container.as_deref().unwrap_or_default();
    info.pod_uid.as_ref().map(|uid| format!("{uid}/{container}")).unwrap_or_default()
}
