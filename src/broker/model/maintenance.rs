//! Moves what no worker moves, and keeps the registry of workers.

use std::time::Duration;

use super::lane::Message;
use super::moves::Lost;
use super::state::{ALL, Step, Worker};
use crate::broker::{BrokerError, Promoted, ReclaimCursor, Reclaimed, Registered, Result, Swept, WorkerInfo};
use crate::protocol::names::{Capabilities, TaskId, WorkerId};
use crate::protocol::policy::{Mode, ReclaimCause};
use crate::protocol::state::{RetryReason, State};

/// How many expired leases one call takes back, and how many lanes it looks at.
const RECLAIM_AT_ONCE: usize = 10;
const MOST_LANES: usize = 200;

/// How many tasks one call takes from a worker that is gone.
const EVICT_AT_ONCE: usize = 20;

/// How long a worker that was fenced off is remembered.
const FENCED_FOR_MS: u64 = 3_600_000;

/// How many lost workers one sweep deals with, and how many tasks of all of them.
const LOST_AT_ONCE: usize = 5;
const SWEEP_AT_ONCE: usize = 20;

/// After so many lanes, counted once for each lost worker, the next sweep goes on.
const LANES_AT_ONCE: usize = 100;

/// What an eviction did.
#[derive(Default)]
pub(super) struct Evicted {
    pub(super) requeued: Vec<TaskId>,
    pub(super) dead: Vec<TaskId>,
    /// Whether the worker may hold more.
    pub(super) more: bool,
    /// Whether it must stay known, because nothing but a later sign of its end brings back what it holds.
    stays: bool,
}

impl Step<'_> {
    pub(super) fn promote(mut self, limit: usize) -> Promoted {
        let filed = if self.policy.mode == Mode::Closed { 0 } else { self.file_raw(limit) };
        let promoted = self.promote_delayed(limit) + self.promote_retrying(limit);
        self.announce();
        self.ring_if_ready(ALL);
        for class in self.queue.classes.keys().cloned().collect::<Vec<_>>() {
            self.ring_if_ready(&class);
        }
        let first = [self.queue.delayed.first_time(), self.queue.retrying.first_time()].into_iter().flatten().min();
        let next_in = first.map(|due| Duration::from_millis(due.saturating_sub(self.now)));
        self.end();
        Promoted { promoted, filed, next_in }
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
        // The first call looks at the task stream too, which counts as a lane.
        let most_lanes = if first.is_empty() { MOST_LANES - 1 } else { MOST_LANES };
        let lanes: Vec<_> = self.queue.lanes.keys().filter(|lane| lane.as_str() >= first).cloned().collect();
        for (visited, lane) in lanes.iter().enumerate() {
            if visited == most_lanes || reclaimed.requeued.len() + reclaimed.dead.len() >= RECLAIM_AT_ONCE {
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
                self.take_back(&id, Lost::crash(RetryReason::VisibilityTimeout), &mut reclaimed);
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

    fn take_back(&mut self, id: &TaskId, lost: Lost<'_>, reclaimed: &mut Reclaimed) {
        let record = self.queue.live.get(id).expect("invariant: what is in a lane lives").clone();
        match self.lose(id, record, lost) {
            State::DlqPending => reclaimed.dead.push(id.clone()),
            _ => reclaimed.requeued.push(id.clone()),
        }
    }

    /// A worker is gone: its tasks come back, and it leaves the registry.
    pub(super) fn evict(mut self, worker: &WorkerId, lost: Lost<'_>) -> Evicted {
        if lost.reason == RetryReason::PodForceDeleted {
            self.fence(worker);
        }
        let evicted = self.evict_some(worker, lost, EVICT_AT_ONCE);
        if !evicted.more && !evicted.stays {
            self.forget(worker);
        }
        self.announce();
        self.end();
        evicted
    }

    /// Takes tasks back from one worker, lane by lane, if the policy accepts
    /// the sign of its end. Else the visibility timeout brings them back or, where it
    /// must not, another sign: the worker stays known.
    fn evict_some(&mut self, worker: &WorkerId, lost: Lost<'_>, limit: usize) -> Evicted {
        if sign_of(lost.reason).is_some_and(|sign| !self.policy.reclaim.on.contains(&sign)) {
            let stays = !self.policy.reclaim.on.contains(&ReclaimCause::VisibilityTimeout);
            return Evicted { stays, ..Evicted::default() };
        }
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
                return Evicted { requeued: reclaimed.requeued, dead: reclaimed.dead, more: true, stays: false };
            }
            if self.runs_on(&id, message, worker).is_some() {
                self.take_back(&id, lost, &mut reclaimed);
            }
        }
        Evicted { requeued: reclaimed.requeued, dead: reclaimed.dead, more: false, stays: false }
    }

    /// Keeps a worker from new tasks, should it go on running.
    fn fence(&mut self, worker: &WorkerId) {
        let over = self.now.saturating_sub(FENCED_FOR_MS);
        self.queue.fenced.insert(worker.clone(), self.now);
        self.queue.fenced.retain(|_, since| *since > over);
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
    pub(super) fn register(mut self, info: &WorkerInfo, capabilities: &Capabilities) -> Result<(Registered, bool)> {
        if self.queue.fenced.contains_key(&info.id) {
            return Err(BrokerError::Fenced);
        }
        let place = place_of(info);
        let before = self.queue.places.get(&place).filter(|before| **before != info.id).cloned();
        let mut evicted = Evicted::default();
        if let Some(before) = &before {
            evicted = self.evict_some(before, Lost::crash(RetryReason::Superseded), EVICT_AT_ONCE);
            if !evicted.more && !evicted.stays {
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
        Ok((Registered { superseded: before, requeued: evicted.requeued }, evicted.more))
    }

    /// Looks at silent workers, and removes lanes that hold nothing. Every task is where its
    /// state says, so nothing is repaired; consumers are not modelled, so none is removed.
    pub(super) fn sweep(mut self) -> Swept {
        let checked = self.queue.live.len();
        let (mut lost, mut budget, mut unfinished) = (Vec::new(), SWEEP_AT_ONCE, false);
        let walks = self.policy.reclaim.on.contains(&ReclaimCause::WorkerLost);
        let mut looked_at = 0;
        let silent = self.now.checked_sub(self.policy.reclaim.worker_lost_after.as_millis() as u64);
        for worker in silent.map(|since| self.queue.heartbeats.due(since, LOST_AT_ONCE)).unwrap_or_default() {
            if looked_at >= LANES_AT_ONCE {
                unfinished = true;
                break;
            }
            looked_at += if walks { self.queue.lanes.len() } else { 0 };
            let evicted = self.evict_some(&worker, Lost::crash(RetryReason::WorkerLost), budget);
            budget -= evicted.requeued.len() + evicted.dead.len();
            if evicted.more {
                unfinished = true;
            } else if !evicted.stays {
                self.forget(&worker);
                lost.push(worker);
            }
        }
        self.announce();
        let ready = &self.queue.ready;
        self.queue.lanes.retain(|name, lane| lane.len() + lane.running() > 0 || ready.contains_key(name));
        self.end();
        Swept { checked, repaired: Vec::new(), consumers_removed: 0, workers_lost: lost, unfinished, next: None }
    }
}

/// Which sign of a worker's end a reason stands for.
fn sign_of(reason: RetryReason) -> Option<ReclaimCause> {
    match reason {
        RetryReason::PodGone | RetryReason::PodForceDeleted | RetryReason::Superseded => Some(ReclaimCause::PodGone),
        RetryReason::WorkerLost => Some(ReclaimCause::WorkerLost),
        _ => None,
    }
}

/// The container that a worker runs in, where that is known.
fn place_of(info: &WorkerInfo) -> String {
    let container = info.container.as_deref().unwrap_or_default();
    info.pod_uid.as_ref().map(|uid| format!("{uid}/{container}")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::fixture::*;
    use crate::broker::{Broker, Reclaimed, Settled};
    use crate::protocol::policy::{Policy, ReclaimCause};
    use crate::protocol::state::{RetryReason, State};
    use crate::protocol::task::{NewTask, NotBefore};

    const VISIBILITY_MS: u64 = 300_000;

    #[tokio::test]
    async fn what_is_due_is_promoted_by_time_then_by_id() {
        let rig = Rig::new(Policy::default()).await;
        let due = |name: &str, ms| NewTask { not_before: NotBefore::After(Duration::from_millis(ms)), ..task(name) };
        rig.try_enqueue(&[due("b", 5), due("a", 5), due("c", 4), due("d", 9)]).await.expect("taken");
        rig.advance(6);
        let promoted = rig.model.promote(2).await.expect("promoted");
        assert_eq!((promoted.promoted, promoted.next_in), (2, Some(Duration::ZERO)));
        rig.model.promote(100).await.expect("promoted");
        assert_eq!(ids(&rig.claim("w", 9).await), ["c", "a", "b"]);
        assert_eq!(rig.moves().await[1], ["c scheduled queued - -", "a scheduled queued - -"]);
    }

    #[tokio::test]
    async fn an_expired_lease_is_reclaimed_once_and_counts_as_a_crash() {
        let rig = Rig::new(Policy::default()).await;
        rig.enqueue(task("a")).await;
        let lease = rig.claim_one("w").await;
        rig.advance(VISIBILITY_MS - 1);
        assert_eq!(rig.reclaim().await, Reclaimed::default());
        rig.advance(1);
        assert_eq!(rig.reclaim().await.requeued, [id("a")]);
        assert_eq!(rig.reclaim().await, Reclaimed::default());
        let view = rig.get("a").await;
        assert_eq!((view.crash_count, view.retry_count, view.state), (1, 0, State::Retrying));
        assert_eq!(view.retry_reason, Some(RetryReason::VisibilityTimeout));
        assert_eq!(rig.settle(&lease, success()).await, Settled::LeaseLost);
    }

    #[tokio::test]
    async fn a_task_that_loses_its_worker_too_often_is_dead() {
        let mut policy = Policy::default();
        policy.retry.max_crashes = 1;
        let rig = Rig::new(policy).await;
        rig.enqueue(task("a")).await;
        for _ in 0..2 {
            rig.claim_one("w").await;
            rig.advance(VISIBILITY_MS);
            rig.reclaim().await;
        }
        let dead = rig.model.pending_dead_letters(9).await.expect("letters").remove(0);
        assert_eq!((dead.error_code.as_str(), dead.crash_count), ("worker_lost", 2));
        assert_eq!(dead.error, "lost its worker 2 times, last by visibility_timeout");
    }

    #[tokio::test]
    async fn a_reclaim_takes_ten_at_most_and_says_where_to_go_on() {
        let rig = Rig::new(Policy::default()).await;
        let of_type = |of: &str, n: u32| NewTask { task_type: kind(of), ..task(&format!("{of}{n:02}")) };
        let tasks: Vec<_> = (0..30).map(|n| of_type("a", n)).chain((0..10).map(|n| of_type("b", n))).collect();
        rig.try_enqueue(&tasks).await.expect("taken");
        rig.claim("w", 100).await;
        rig.advance(VISIBILITY_MS);
        let (mut sizes, mut cursor) = (Vec::new(), Some(Default::default()));
        while let Some(from) = cursor {
            let reclaimed = rig.model.reclaim(from).await.expect("a reclaim");
            sizes.push(reclaimed.requeued.len());
            cursor = reclaimed.next;
        }
        assert_eq!(sizes, [10, 10, 10, 10]);
    }

    #[tokio::test]
    async fn expiry_counts_only_where_the_policy_says_so() {
        let mut policy = Policy::default();
        policy.reclaim.on.remove(&ReclaimCause::VisibilityTimeout);
        let rig = Rig::new(policy).await;
        rig.enqueue(task("a")).await;
        rig.claim_one("w").await;
        rig.advance(10 * VISIBILITY_MS);
        assert_eq!(rig.reclaim().await, Reclaimed::default());
    }

    #[tokio::test]
    async fn a_sign_that_the_policy_does_not_accept_takes_nothing_but_the_registration() {
        let mut policy = Policy::default();
        policy.reclaim.on = [ReclaimCause::VisibilityTimeout].into();
        let rig = Rig::new(policy).await;
        rig.model.register(&worker_info("w", "pod")).await.expect("registered");
        rig.enqueue(task("a")).await;
        let lease = rig.claim_one("w").await;
        let registered = rig.model.register(&worker_info("v", "pod")).await.expect("registered");
        assert_eq!((registered.superseded, registered.requeued.len()), (Some(worker("w")), 0));
        for reason in [RetryReason::PodGone, RetryReason::PodForceDeleted, RetryReason::WorkerLost] {
            assert_eq!(rig.model.reclaim_from(&worker("w"), reason).await.expect("an answer"), Reclaimed::default());
        }
        assert_eq!(rig.settle(&lease, success()).await, Settled::Succeeded);
        assert_eq!(rig.model.workers().await.expect("workers").len(), 1);
    }

    #[tokio::test]
    async fn a_worker_that_is_gone_gives_back_all_it_holds() {
        let rig = Rig::new(Policy::default()).await;
        let tasks: Vec<_> = (0..100).map(|n| task(&format!("t{n:03}"))).collect();
        rig.try_enqueue(&tasks).await.expect("taken");
        rig.enqueue(task("t100")).await;
        rig.claim("w", 100).await;
        rig.claim("w", 1).await;
        let reclaimed = rig.model.reclaim_from(&worker("w"), RetryReason::PodForceDeleted).await.expect("taken back");
        assert_eq!(reclaimed.requeued.len(), 101);
        let view = rig.get("t000").await;
        assert_eq!((view.crash_count, view.retry_reason), (0, Some(RetryReason::PodForceDeleted)));
        rig.claim("v", 1).await;
        rig.model.reclaim_from(&worker("v"), RetryReason::PodGone).await.expect("taken back");
        assert_eq!(rig.get("t000").await.crash_count, 1, "a pod that ended did crash");
    }

    #[tokio::test]
    async fn a_worker_supersedes_the_one_in_its_place() {
        let rig = Rig::new(Policy::default()).await;
        rig.model.register(&worker_info("w1", "pod")).await.expect("registered");
        rig.enqueue(task("a")).await;
        rig.claim_one("w1").await;
        let elsewhere = rig.model.register(&worker_info("w2", "other")).await.expect("registered");
        assert_eq!(elsewhere.superseded, None);
        let registered = rig.model.register(&worker_info("w3", "pod")).await.expect("registered");
        assert_eq!((registered.superseded, registered.requeued), (Some(worker("w1")), vec![id("a")]));
        let names: Vec<_> = rig.model.workers().await.expect("workers").into_iter().map(|w| w.info.id).collect();
        assert_eq!(names, [worker("w2"), worker("w3")]);
        rig.model.deregister(&worker("w3")).await.expect("gone");
        let again = rig.model.register(&worker_info("w4", "pod")).await.expect("registered");
        assert_eq!(again.superseded, None, "who has left is not superseded");
    }

    #[tokio::test]
    async fn leaving_with_a_task_counts_as_a_release_and_is_bounded() {
        let mut policy = Policy::default();
        policy.retry.max_releases = 1;
        let rig = Rig::new(policy).await;
        rig.enqueue(task("a")).await;
        rig.claim_one("w1").await;
        rig.model.deregister(&worker("w1")).await.expect("gone");
        let view = rig.get("a").await;
        assert_eq!((view.release_count, view.crash_count, view.state), (1, 0, State::Retrying));
        rig.claim_one("w2").await;
        rig.model.deregister(&worker("w2")).await.expect("gone");
        let view = rig.get("a").await;
        assert_eq!((view.state, view.error_code.as_deref()), (State::DlqPending, Some("too_many_releases")));
    }

    #[tokio::test]
    async fn silent_workers_are_lost_and_heartbeats_keep_the_others() {
        let rig = Rig::new(Policy::default()).await;
        for name in ["w1", "w2"] {
            rig.model.register(&worker_info(name, name)).await.expect("registered");
        }
        rig.enqueue(task("a")).await;
        rig.claim_one("w1").await;
        rig.advance(89_999);
        rig.model.extend(&worker("w2"), &[]).await.expect("a heartbeat");
        assert!(rig.model.sweep(Default::default()).await.expect("a sweep").workers_lost.is_empty());
        rig.advance(1);
        let swept = rig.model.sweep(Default::default()).await.expect("a sweep");
        assert_eq!((swept.workers_lost, swept.checked, swept.next), (vec![worker("w1")], 1, None));
        assert_eq!(rig.get("a").await.retry_reason, Some(RetryReason::WorkerLost));
    }
}
