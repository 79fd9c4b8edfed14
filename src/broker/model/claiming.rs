//! Leases ready tasks to workers, and renews the leases.

use super::lane::{LaneName, Message};
use super::moves::Mishap;
use super::record::{Record, message_text};
use super::state::{Bell, Ring, Step};
use crate::broker::{BrokerError, ClaimRequest, Claimed, ClaimedTask, Extended, Lease, Result};
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

/// How much of the ready work a claim took.
enum Found {
    /// As much as was asked for: there may be more.
    Enough,
    /// All there was.
    TheRest,
    /// There was none.
    Nothing,
    /// Not even all that is due was made ready.
    NotAll,
}

impl Step<'_> {
    pub(super) fn claim(mut self, request: &ClaimRequest<'_>) -> Result<Claimed> {
        let claimed = self.claim_some(request);
        self.end();
        claimed
    }

    pub(super) fn claim_some(&mut self, request: &ClaimRequest<'_>) -> Result<Claimed> {
        if request.limit > 0 && self.queue.fenced.contains_key(request.worker) {
            return Err(BrokerError::Fenced);
        }
        let mode = self.policy.mode;
        let mut behind = false;
        if mode != Mode::Closed {
            behind |= self.file_raw(RAW_AT_ONCE) == RAW_AT_ONCE;
            if request.limit > 0 {
                behind |= self.promote_delayed(DUE_AT_ONCE) == DUE_AT_ONCE;
                behind |= self.promote_retrying(DUE_AT_ONCE) == DUE_AT_ONCE;
            }
            self.announce();
            if request.limit > 0 {
                self.add_class(request.capabilities);
            }
        }
        let mut tasks = match request.recover {
            Some(held) => self.hand_back(request.worker, held),
            None => Vec::new(),
        };
        if mode == Mode::Running {
            let found = self.serve(request, &mut tasks);
            self.pass_on(request.capabilities.class(), if behind { Found::NotAll } else { found });
        }
        Ok(Claimed { tasks, mode })
    }

    /// Rings for what a claim may have left behind, or forgets the rings for what it did not find.
    fn pass_on(&mut self, class: String, found: Found) {
        match found {
            Found::NotAll => {
                self.rings.insert(class, Ring::Always);
            }
            Found::Enough => {
                self.rings.entry(class).or_insert(Ring::IfReady);
            }
            Found::Nothing => self.queue.bells.push(Bell::Hush(class)),
            Found::TheRest => {}
        }
    }

    /// After an answer was lost: what is pending for the worker and not among
    /// what it holds. By epoch: the lost call may have settled a task and
    /// claimed it again.
    fn hand_back(&self, worker: &WorkerId, held: &[Lease]) -> Vec<ClaimedTask> {
        let mut tasks = Vec::new();
        for lane in self.queue.lanes.values() {
            for message in lane.pending_of(worker, MOST_HANDED_BACK) {
                let entry = lane.entry(message).expect("invariant: what is pending is in the lane");
                let known = held.iter().rfind(|lease| lease.task == entry.task).map(|lease| lease.epoch.0);
                let record = self.runs_on(&entry.task, message, worker);
                if let Some(record) = record.filter(|record| Some(record.epoch) != known) {
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
    fn serve(&mut self, request: &ClaimRequest<'_>, tasks: &mut Vec<ClaimedTask>) -> Found {
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
            } else if left == 0 && (self.queue.ready.len() > 1 || self.queue.head_since(&lane).is_none()) {
                // A lane that is alone keeps its score: there is nobody to stand behind.
                self.rank_again(&lane);
            }
        }
        match left {
            0 => Found::Enough,
            _ if rounds == MOST_ROUNDS => Found::Enough,
            _ if left == wanted => Found::Nothing,
            _ => Found::TheRest,
        }
    }

    /// A lane stands where its first task says; without one it is not ready.
    pub(super) fn rank_again(&mut self, lane: &LaneName) {
        match self.queue.head_since(lane) {
            None => {
                self.queue.ready.remove(lane);
            }
            Some(since_ms) => {
                let score = self.score(lane, since_ms);
                self.queue.ready.insert(lane.clone(), score);
            }
        }
    }

    /// Leases a task that was read, unless its deadline is past.
    fn take(&mut self, lane: &LaneName, message: Message, id: &TaskId, worker: &WorkerId) -> Option<ClaimedTask> {
        let mut record = self.queue.live.get(id).expect("invariant: what is in a lane lives").clone();
        if self.now > self.deadline_of(record.created_ms) {
            let (_, body) = self.take_out(&record);
            let error = "was not done within its deadline";
            self.die(id, record, body, &Mishap { outcome: "expired", code: "deadline_exceeded", error });
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
        let (from, message) = taken_from.map(|of| (of.worker.as_str(), message_text(of.message))).unwrap_or_default();
        let mut detail = serde_json::json!({ "reason": record.holder, "from": from, "message": message });
        if let Some(taken) = taken_from.filter(|taken| !taken.words.is_empty()) {
            detail["words"] = taken.words.clone().into();
        }
        detail.to_string()
    }

    /// Renews leases, and counts as the worker's heartbeat.
    pub(super) fn extend(self, worker: &WorkerId, leases: &[Lease]) -> Vec<Extended> {
        let queue = self.queue;
        let mut answers = Vec::with_capacity(leases.len());
        for lease in leases {
            let record = queue.live.get(&lease.task);
            let cancelled = || queue.done.get(&lease.task).is_some_and(|finished| finished.state == State::Cancelled);
            answers.push(match record {
                Some(record) if record.is_held_by(lease) && record.holder == worker.as_str() => {
                    let (lane, message) = (record.lane(), record.message);
                    let message = message.expect("invariant: a running task is in a lane");
                    queue.lane_mut(&lane).renew(message, self.now);
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

#[cfg(test)]
mod tests {
    use super::super::fixture::*;
    use crate::broker::{Broker, Cancelled, ClaimRequest, Claimed, Extended, Lease, Outcome, Settled};
    use crate::protocol::names::Capabilities;
    use crate::protocol::policy::{Mode, Policy, PriorityOrder};
    use crate::protocol::state::{RetryReason, State};
    use crate::protocol::task::{NewTask, NotBefore};
    use std::time::Duration;

    fn urgent(name: &str, priority: u8) -> NewTask {
        NewTask { priority: Some(priority), ..task(name) }
    }

    fn of_type(name: &str, of: &str) -> NewTask {
        NewTask { task_type: kind(of), ..task(name) }
    }

    #[tokio::test]
    async fn the_most_urgent_task_comes_first_and_equals_in_their_order() {
        let mut policy = Policy::default();
        let rig = Rig::new(policy.clone()).await;
        let tasks = [urgent("low", 1), urgent("a", 5), urgent("b", 5), urgent("high", 10)];
        rig.try_enqueue(&tasks).await.expect("taken");
        assert_eq!(ids(&rig.claim("w", 2).await), ["high", "a"]);
        policy.priority.order = PriorityOrder::LowestFirst;
        rig.provision(&policy).await;
        assert_eq!(ids(&rig.claim("w", 9).await), ["low", "b"], "the new policy orders what was there");
    }

    #[tokio::test]
    async fn what_ran_before_goes_first_within_its_priority() {
        let rig = Rig::new(Policy::default()).await;
        rig.enqueue(task("old")).await;
        let lease = rig.claim_one("w").await;
        rig.try_enqueue(&[task("new"), urgent("high", 9)]).await.expect("taken");
        let released = rig.settle(&lease, Outcome::Released { delay: Duration::ZERO }).await;
        assert!(matches!(released, Settled::Retrying { .. }));
        assert_eq!(ids(&rig.claim("w", 3).await), ["high", "old", "new"]);
    }

    #[tokio::test]
    async fn a_lane_that_was_served_stands_behind_one_whose_head_waits_longer() {
        let rig = Rig::new(Policy::default()).await;
        rig.enqueue(of_type("a1", "a")).await;
        rig.advance(10);
        rig.enqueue(of_type("b1", "b")).await;
        rig.advance(10);
        rig.try_enqueue(&[of_type("a2", "a"), of_type("b2", "b")]).await.expect("taken");
        let mut order = Vec::new();
        for _ in 0..4 {
            order.push(rig.claim_one("w").await.task.to_string());
        }
        assert_eq!(order, ["a1", "b1", "a2", "b2"]);
    }

    #[tokio::test]
    async fn a_lane_stands_where_its_first_task_says_after_a_claim_and_after_a_cancel() {
        let rig = Rig::new(Policy::default()).await;
        for name in ["a1", "a2", "a3"] {
            rig.enqueue(of_type(name, "a")).await;
            rig.advance(10);
        }
        let oldest = async || rig.model.counts().await.expect("counts").oldest_task_time.expect("ready");
        assert_eq!(oldest().await.as_millisecond() as u64, START_MS);
        rig.claim_one("w").await;
        assert_eq!(oldest().await.as_millisecond() as u64, START_MS + 10);
        rig.enqueue(of_type("b1", "b")).await;
        rig.advance(10);
        rig.enqueue(of_type("a4", "a")).await;
        rig.cancel("a2").await;
        rig.cancel("a3").await;
        assert_eq!(oldest().await.as_millisecond() as u64, START_MS + 30);
        assert_eq!(ids(&rig.claim("w", 1).await), ["b1"]);
    }

    #[tokio::test]
    async fn lanes_that_became_ready_together_are_served_by_name() {
        let rig = Rig::new(Policy::default()).await;
        rig.try_enqueue(&[of_type("2", "b"), of_type("1", "a"), of_type("3", "c")]).await.expect("taken");
        assert_eq!(ids(&rig.claim("w", 3).await), ["1", "2", "3"]);
    }

    #[tokio::test]
    async fn a_worker_gets_only_what_it_can_do() {
        let rig = Rig::new(Policy::default()).await;
        rig.try_enqueue(&[of_type("a1", "a"), of_type("b1", "b"), of_type("a2", "a")]).await.expect("taken");
        let only_a = Capabilities::of([kind("a")]).expect("few");
        assert_eq!(ids(&rig.claim_as("w", &only_a, 9).await), ["a1", "a2"]);
        assert!(rig.claim_as("w", &only_a, 9).await.is_empty());
        assert_eq!(ids(&rig.claim("v", 9).await), ["b1"]);
    }

    #[tokio::test]
    async fn each_claim_has_the_next_epoch_and_says_what_it_took() {
        let rig = Rig::new(Policy::default()).await;
        rig.enqueue(task("a")).await;
        rig.claim_one("w").await;
        rig.model.reclaim_from(&worker("w"), RetryReason::PodGone).await.expect("taken back");
        rig.advance(5);
        let claimed = rig.claim("v", 1).await.pop().expect("ready again");
        assert_eq!((claimed.lease.epoch.0, claimed.crash_count), (2, 1));
        assert_eq!(claimed.claimed_at.as_millisecond() as u64, START_MS + 5);
        assert_eq!(claimed.execution_key(), "a:0");
        let moves = rig.moves().await;
        assert_eq!(moves[2], ["a running retrying pod_gone w"]);
        let detail = r#"{"from":"w","message":"1-0","reason":"pod_gone"}"#;
        assert_eq!(moves[3], [format!("a retrying running {detail} v")]);
    }

    #[tokio::test]
    async fn a_task_past_its_deadline_dies_instead_of_running() {
        let rig = Rig::new(Policy::default()).await;
        rig.try_enqueue(&[task("late"), task("later")]).await.expect("taken");
        let deadline = Policy::default().retry.deadline.as_millis() as u64;
        rig.advance(deadline);
        assert_eq!(ids(&rig.claim("w", 1).await), ["late"], "it is due to the last millisecond");
        rig.advance(1);
        assert!(rig.claim("w", 1).await.is_empty());
        let view = rig.get("later").await;
        assert_eq!((view.state, view.error_code.as_deref()), (State::DlqPending, Some("deadline_exceeded")));
    }

    #[tokio::test]
    async fn a_claim_brings_up_a_bounded_number_of_due_tasks() {
        let rig = Rig::new(Policy::default()).await;
        let soon =
            |n: u32| NewTask { not_before: NotBefore::After(Duration::from_millis(5)), ..task(&format!("t{n:02}")) };
        let tasks: Vec<_> = (0..20).map(soon).collect();
        rig.try_enqueue(&tasks).await.expect("taken");
        assert!(rig.claim("w", 50).await.is_empty());
        rig.advance(5);
        assert_eq!(rig.claim("w", 50).await.len(), 16);
        assert_eq!(rig.claim("w", 50).await.len(), 4);
    }

    async fn recover(rig: &Rig, held: &[Lease]) -> Claimed {
        let (w, capabilities) = (worker("w"), Capabilities::any());
        let request = ClaimRequest { worker: &w, capabilities: &capabilities, limit: 5, recover: Some(held) };
        rig.model.claim(request).await.expect("a claim")
    }

    #[tokio::test]
    async fn a_queue_that_does_not_run_gives_nothing_but_what_is_handed_back() {
        let rig = Rig::new(Policy::default()).await;
        rig.try_enqueue(&[task("a"), task("b"), task("c")]).await.expect("taken");
        let held = rig.claim("w", 2).await;
        rig.provision(&Policy { mode: Mode::Paused, ..Policy::default() }).await;
        assert!(rig.claim("w", 1).await.is_empty());
        let claimed = recover(&rig, &[held[0].lease.clone()]).await;
        assert_eq!((&claimed.tasks[..], claimed.mode), (&held[1..], Mode::Paused), "it is the same claim");
    }

    #[tokio::test]
    async fn a_newer_claim_of_a_task_that_the_worker_holds_is_handed_back() {
        let rig = Rig::new(Policy::default()).await;
        rig.enqueue(task("a")).await;
        let old = rig.claim_one("w").await;
        rig.settle(&old, Outcome::Released { delay: Duration::ZERO }).await;
        let new = rig.claim_one("w").await;
        assert_eq!(recover(&rig, &[old]).await.tasks[0].lease, new);
        assert!(recover(&rig, &[new]).await.tasks.is_empty());
    }

    #[tokio::test]
    async fn a_lease_is_renewed_while_it_is_ones_own() {
        let rig = Rig::new(Policy::default()).await;
        rig.try_enqueue(&[task("a"), task("b"), task("c")]).await.expect("taken");
        let leases: Vec<_> = rig.claim("w", 3).await.into_iter().map(|task| task.lease).collect();
        assert_eq!(rig.cancel("b").await, Cancelled::Done { from: State::Running });
        rig.settle(&leases[2], success()).await;
        rig.advance(299_999);
        let answers = rig.model.extend(&worker("w"), &leases).await.expect("answers");
        assert_eq!(answers, [Extended::Renewed, Extended::Cancelled, Extended::Lost]);
        rig.advance(299_999);
        assert!(rig.reclaim().await.requeued.is_empty());
        rig.advance(1);
        assert_eq!(rig.reclaim().await.requeued, [id("a")]);
        let answers = rig.model.extend(&worker("w"), &leases[..1]).await.expect("answers");
        assert_eq!(answers, [Extended::Lost], "what was taken back is not stolen back");
    }

    #[tokio::test]
    async fn nobody_but_the_holder_renews_a_lease() {
        let rig = Rig::new(Policy::default()).await;
        rig.enqueue(task("a")).await;
        let lease = rig.claim_one("w").await;
        rig.advance(299_999);
        let answers = rig.model.extend(&worker("v"), std::slice::from_ref(&lease)).await.expect("answers");
        assert_eq!(answers, [Extended::Lost]);
        rig.advance(1);
        assert_eq!(rig.reclaim().await.requeued, [id("a")]);
    }
}
