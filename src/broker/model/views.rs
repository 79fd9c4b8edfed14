//! What can be seen of a queue and its tasks.

use std::time::Duration;

use super::record::{Finished, Record, time};
use super::state::Queue;
use crate::broker::{Demand, ListCursor, Page, QueueCounts, Review, Stillness, WorkerRecord};
use crate::protocol::names::{Capabilities, TaskId};
use crate::protocol::policy::Mode;
use crate::protocol::state::State;
use crate::protocol::task::TaskView;

impl Queue {
    /// One task, by its id or by an id that a raw producer sent for the same work.
    pub(super) fn get(&self, id: &TaskId) -> Option<TaskView> {
        let id = if self.knows(id) { id } else { self.aliases.get(id)? };
        if let Some(record) = self.live.get(id) {
            return Some(self.live_view(id, record));
        }
        self.done.get(id).map(|finished| self.finished_view(id, finished))
    }

    fn live_view(&self, id: &TaskId, record: &Record) -> TaskView {
        let in_lane = |message| self.lanes.get(&record.lane())?.entry(message).map(|entry| &entry.body);
        let body = record.message.map_or_else(|| self.parked.get(id), in_lane);
        let due = match record.state {
            _ if record.message.is_some() => None,
            State::Scheduled => self.delayed.time_of(id),
            _ => self.retrying.time_of(id),
        };
        let body = body.expect("invariant: a live task is in its lane or parked");
        let progress = self.progress.get(id).cloned();
        TaskView { progress, ..record.live_view(id, body, self.trails.get(id), due) }
    }

    fn finished_view(&self, id: &TaskId, finished: &Finished) -> TaskView {
        // Of an id that is used again, an earlier task's dead letter may still be there.
        let failed = finished.state == State::Failed;
        let replayed_as = match self.reviewed.get(id).filter(|_| failed) {
            Some(Review::Replayed { task, .. }) => Some(task.clone()),
            _ => None,
        };
        let payload = self.letters.get(id).filter(|_| failed).map(|letter| letter.shown.payload.clone());
        TaskView { payload, replayed_as, ..finished.view(id) }
    }

    /// Tasks in a state: live ones by id, finished ones from the last on.
    pub(super) fn list(&self, state: State, cursor: &ListCursor, limit: usize) -> Page<TaskView> {
        let mut all: Vec<TaskView> = if state.is_final() {
            let mut finished: Vec<_> = self.done.iter().filter(|(_, finished)| finished.state == state).collect();
            finished.sort_by_key(|(_, finished)| std::cmp::Reverse(finished.number));
            finished.into_iter().map(|(id, finished)| finished.view(id)).collect()
        } else {
            let live = self.live.iter().filter(|(_, record)| record.state == state);
            live.map(|(id, record)| self.live_view(id, record)).collect()
        };
        let seen: usize = cursor.0.parse().unwrap_or(0);
        let next = (all.len() > seen + limit).then(|| ListCursor((seen + limit).to_string()));
        let items = all.drain(..).skip(seen).take(limit).collect();
        Page { items, next }
    }

    pub(super) fn counts(&self, now_ms: u64) -> QueueCounts {
        let running: usize = self.lanes.values().map(|lane| lane.running()).sum();
        let in_lanes: usize = self.lanes.values().map(|lane| lane.len()).sum();
        QueueCounts {
            backlog: (in_lanes - running + self.raw.len()) as u64,
            running: running as u64,
            // Nobody but the scripts reads the model's raw entries.
            raw_taken: 0,
            delayed: self.delayed.len() as u64,
            retrying: self.retrying.len() as u64,
            blocked: 0,
            waiting_approval: 0,
            dlq_pending: self.dlq_pending.len() as u64,
            dead_lettered: self.dead.len() as u64,
            finished: self.done.len() as u64,
            oldest_task_time: self.oldest_ready().map(time),
            workers: self.heartbeats.len() as u64,
            outbox: self.outbox.len() as u64,
            invalid_transitions: self.invalid_transitions,
            longest_silence: self.heartbeats.first_time().map(|at| Duration::from_millis(now_ms.saturating_sub(at))),
            sampled_at: time(now_ms),
        }
    }

    pub(super) fn demand(&self, capabilities: &Capabilities, now_ms: u64) -> Demand {
        let mut demand = Demand {
            mode: self.policy.as_ref().map_or(Mode::Running, |policy| policy.mode),
            backlog: self.raw.len() as u64,
            ..Demand::default()
        };
        for (name, lane) in &self.lanes {
            if capabilities.cover(&name.kind) {
                demand.running += lane.running() as u64;
                demand.backlog += (lane.len() - lane.running()) as u64;
            }
            for worker in lane.holders() {
                *demand.held.entry(worker.clone()).or_default() += 1;
            }
        }
        demand.due = (self.delayed.due(now_ms, usize::MAX).len() + self.retrying.due(now_ms, usize::MAX).len()) as u64;
        demand.stillness = Stillness { lives: !self.live.is_empty(), raw_up_to: String::new() };
        demand
    }

    /// The registered workers, by id.
    pub(super) fn workers(&self) -> Vec<WorkerRecord> {
        let record = |worker: &super::state::Worker| WorkerRecord {
            info: worker.info.clone(),
            started_at: time(worker.started_ms),
            heartbeat_at: time(self.heartbeats.time_of(&worker.info.id).unwrap_or(0)),
        };
        self.workers.values().map(record).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::fixture::*;
    use super::super::record::time;
    use crate::broker::{Broker, ListCursor, QueueCounts};
    use crate::protocol::policy::Policy;
    use crate::protocol::state::State;
    use crate::protocol::task::{NewTask, NotBefore};

    #[tokio::test]
    async fn counts_tell_where_everything_is() {
        let rig = Rig::new(Policy::default()).await;
        let dead = rig.dead(task("recorded")).await;
        rig.model.record_dead_letter(&dead).await.expect("recorded");
        rig.dead(task("pending")).await;
        rig.try_enqueue(&[task("running"), task("retrying")]).await.expect("taken");
        let leases = rig.claim("w", 2).await;
        rig.settle(&leases[1].lease, failure()).await;
        rig.advance(3);
        let later = NotBefore::After(Duration::from_secs(9));
        rig.try_enqueue(&[task("queued"), NewTask { not_before: later, ..task("later") }]).await.expect("taken");
        rig.model.raw_add("1-0", vec![("task_id".into(), b"raw".to_vec())]);
        rig.model.register(&worker_info("w", "pod")).await.expect("registered");
        let expected = QueueCounts {
            backlog: 2,
            running: 1,
            delayed: 1,
            retrying: 1,
            dlq_pending: 1,
            dead_lettered: 1,
            finished: 1,
            oldest_task_time: Some(time(START_MS + 3)),
            workers: 1,
            outbox: 11,
            longest_silence: Some(Duration::ZERO),
            sampled_at: time(START_MS + 3),
            ..QueueCounts::default()
        };
        assert_eq!(rig.model.counts().await.expect("counts"), expected);
    }

    #[tokio::test]
    async fn a_listing_goes_on_where_it_stopped() {
        let rig = Rig::new(Policy::default()).await;
        rig.try_enqueue(&[task("a"), task("b"), task("c")]).await.expect("taken");
        let (mut names, mut cursor) = (Vec::new(), Some(ListCursor::default()));
        while let Some(from) = cursor {
            let page = rig.model.list(State::Queued, from, 2).await.expect("a page");
            names.extend(page.items.into_iter().map(|view| view.id.to_string()));
            cursor = page.next;
        }
        assert_eq!(names, ["a", "b", "c"]);
        rig.cancel("a").await;
        rig.cancel("c").await;
        let cancelled = rig.model.list(State::Cancelled, ListCursor::default(), 9).await.expect("a page").items;
        assert_eq!(cancelled.iter().map(|view| view.id.as_str()).collect::<Vec<_>>(), ["c", "a"], "the last first");
    }
}
