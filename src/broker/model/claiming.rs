//! Leases ready tasks to workers, and renews the leases.

use super::lane::{LaneName, Message};
use super::moves::Mishap;
use super::record::{Record, message_text};
use super::state::{Bell, Step};
use crate::broker::{ClaimRequest, Claimed, ClaimedTask, Extended, Lease};
use crate::protocol::names::{TaskId, WorkerId};
use crate::protocol::policy::Mode;
use crate::protocol::state::{RetryReason, State};

/// What a claim moves along before it looks for work.
const RAW_AT_ONCE: usize = 32;
const DUE_AT_ONCE: usize = 16;

/// How often a claim looks at a lane.
const MOST_ROUNDS: usize = 128;

/// The most entries that a recovery looks at in one lane.
const MOST_HANDED_BACK: usize = 1000;

impl Step<'_> {
    pub(super) fn claim(mut self, request: &ClaimRequest<'_>) -> Claimed {
        let claimed = self.claim_some(request);
        self.end();
        claimed
    }

    pub(super) fn claim_some(&mut self, request: &ClaimRequest<'_>) -> Claimed {
        let mode = self.policy.mode;
        if request.limit > 0 && mode != Mode::Closed {
            self.file_raw(RAW_AT_ONCE);
            self.promote_delayed(DUE_AT_ONCE);
            self.promote_retrying(DUE_AT_ONCE);
            self.announce();
            self.add_class(request.capabilities);
        }
        let mut tasks = match request.recover {
            Some(held) => self.hand_back(request.worker, held),
            None => Vec::new(),
        };
        if mode == Mode::Running {
            self.serve(request, &mut tasks);
        }
        Claimed { tasks, mode }
    }

    /// After an answer was lost: what is pending for the worker and not among what it holds.
    fn hand_back(&self, worker: &WorkerId, held: &[TaskId]) -> Vec<ClaimedTask> {
        let mut tasks = Vec::new();
        for lane in self.queue.lanes.values() {
            for message in lane.pending_of(worker, MOST_HANDED_BACK) {
                let entry = lane.entry(message).expect("invariant: what is pending is in the lane");
                let record = self.runs_on(&entry.task, message, worker);
                if let Some(record) = record.filter(|_| !held.contains(&entry.task)) {
                    tasks.push(record.claimed(&entry.task, &entry.body));
                }
            }
        }
        tasks
    }

    /// The record of a task, if that entry of it runs on that worker.
    pub(super) fn runs_on(&self, id: &TaskId, message: Message, worker: &WorkerId) -> Option<&Record> {
        self.queue.live.get(id).filter(|record| {
            record.state == State::Running && record.message == Some(message) && record.holder == worker.as_str()
        })
    }

    /// Leases what is ready, until there are as many tasks as were asked for.
    fn serve(&mut self, request: &ClaimRequest<'_>, tasks: &mut Vec<ClaimedTask>) {
        let wanted = request.limit.saturating_sub(tasks.len());
        let (mut left, mut rounds) = (wanted, 0);
        while left > 0 && rounds < MOST_ROUNDS {
            rounds += 1;
            let Some(lane) = self.first_ready(request.capabilities) else { break };
            let read = self.queue.lane_mut(&lane).read(request.worker, left, self.now);
            let whole = read.len() == left;
            for (message, id) in read {
                let task = self.take(&lane, message, &id, request.worker);
                left -= usize::from(task.is_some());
                tasks.extend(task);
            }
            if !whole {
                self.queue.ready.remove(&lane);
            } else if left == 0 {
                self.rank_again(&lane);
            }
        }
        let class = request.capabilities.class();
        if left == 0 || rounds == MOST_ROUNDS {
            self.rings.insert(class);
        } else if left == wanted {
            self.queue.bells.push(Bell::Hush(class));
        }
    }

    /// A lane that a claim has served stands where its new head says. While it
    /// is the only one, its place does not matter and is left as it is.
    fn rank_again(&mut self, lane: &LaneName) {
        let head = self.queue.lane_mut(lane).first_unread().map(|entry| entry.task.clone());
        match head {
            None => {
                self.queue.ready.remove(lane);
            }
            Some(head) if self.queue.ready.len() > 1 => {
                let since_ms = self.queue.live.get(&head).map_or(self.now, |record| record.since_ms);
                let score = self.score(lane, since_ms);
                self.queue.ready.insert(lane.clone(), score);
            }
            Some(_) => {}
        }
    }

    /// Leases a task that was read, unless its deadline is past.
    fn take(&mut self, lane: &LaneName, message: Message, id: &TaskId, worker: &WorkerId) -> Option<ClaimedTask> {
        let mut record = self.queue.live.get(id).expect("invariant: what is in a lane lives").clone();
        if self.now > self.deadline_of(record.created_ms) {
            let (_, body) = self.take_out(&record);
            let error = "was not done within its deadline";
            self.die(id, record, body, &Mishap { outcome: "permanent", code: "deadline_exceeded", error });
            return None;
        }
        let from = record.state;
        let detail = if from == State::Retrying { self.reclaimed_detail(id, &record) } else { String::new() };
        record.state = State::Running;
        record.epoch += 1;
        record.since_ms = self.now;
        record.holder = worker.to_string();
        self.emit(id, Some(from), State::Running, &record, &detail);
        let entry = self.queue.lane_mut(lane).entry(message).expect("invariant: what was read is in the lane");
        let claimed = record.claimed(id, &entry.body);
        self.queue.live.insert(id.clone(), record);
        Some(claimed)
    }

    /// What the claim of a reclaimed task says besides who claimed it.
    fn reclaimed_detail(&self, id: &TaskId, record: &Record) -> String {
        if !RetryReason::from_word(&record.holder).is_some_and(RetryReason::is_reclaim) {
            return String::new();
        }
        let taken_from = self.queue.trails.get(id).and_then(|trail| trail.taken_from.as_ref());
        let (from, message) =
            taken_from.map(|(from, message)| (from.clone(), message_text(*message))).unwrap_or_default();
        serde_json::json!({ "reason": record.holder, "from": from, "message": message }).to_string()
    }

    /// Renews leases, and counts as the worker's heartbeat.
    pub(super) fn extend(self, worker: &WorkerId, leases: &[Lease]) -> Vec<Extended> {
        let queue = self.queue;
        let mut answers = Vec::with_capacity(leases.len());
        for lease in leases {
            let record = queue.live.get(&lease.task);
            let cancelled = || queue.done.get(&lease.task).is_some_and(|finished| finished.state == State::Cancelled);
            answers.push(match record {
                Some(record) if record.is_held_by(lease) => {
                    let (lane, message) = (record.lane(), record.message);
                    let message = message.expect("invariant: a running task is in a lane");
                    queue.lane_mut(&lane).renew(message, worker, self.now);
                    Extended::Renewed
                }
                None if cancelled() => Extended::Cancelled,
                _ => Extended::Lost,
            });
        }
        if queue.workers.contains_key(worker) {
            queue.heartbeats.put(worker, self.now);
        }
        answers
    }
}
