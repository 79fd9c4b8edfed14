//! A fresh queue on one of the brokers, and short words for what tests do with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;
use windlass::broker::clock::Clock;
use windlass::broker::model::Model;
use windlass::broker::redis::{ReclaimWith, RedisBroker, RedisOptions};
use windlass::broker::{
    Broker, ClaimRequest, Claimed, ClaimedTask, DeadLetterView, Decision, EffectEvent, Enqueued, Event, ListCursor,
    OutboxEntry, Outcome, Owner, Promoted, QueueCounts, ReclaimCursor, Reclaimed, ReplayRequest, RetainCursor,
    Retained, SettleReply, Settled, Settlement, SweepCursor, Swept, Takeover, WorkerInfo,
};
use windlass::protocol::backoff::Dice;
use windlass::protocol::keys::{AdoptedKeys, Keys};
use windlass::protocol::names::{Capabilities, DeadLetterId, TaskType, WorkerId};
use windlass::protocol::policy::Policy;
use windlass::{NewTask, QueueName, State, TaskId, TaskView};

use crate::support::fresh_queue;

pub(crate) mod keys;
mod shared;

use shared::{DATABASES, direct_url, shared_cluster};

/// Where a manual clock starts. In the past, because Redis takes no lease that begins in its future.
pub(crate) const START_MS: u64 = 1_700_000_000_000;

/// The brokers that the suite runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Model,
    Redis70,
    /// Redis 7.0, with expired leases found by XPENDING and XCLAIM as on servers before 6.2.
    Redis70PendingAndClaim,
    Redis62,
    Valkey91,
    Cluster,
}

/// A fresh queue with the default policy, a clock that stands still, and what a test needs to look at both.
pub(crate) struct Fixture {
    pub(crate) broker: Arc<dyn Broker>,
    pub(crate) clock: Clock,
    pub(crate) queue: QueueName,
    pub(crate) kind: Kind,
    store: Store,
}

enum Store {
    Model(Arc<Model>),
    Redis { broker: Arc<RedisBroker>, url: String },
}

/// Makes each claim a test on one broker.
macro_rules! on_broker {
    ($module:ident, $kind:ident, [$($claim:ident),*]) => {
        mod $module {
            use crate::conformance::fixture::{Fixture, Kind};
            $(
                #[tokio::test]
                async fn $claim() {
                    super::$claim(&Fixture::new(Kind::$kind).await).await;
                }
            )*
        }
    };
}

/// Makes each claim a test on every broker.
macro_rules! suite {
    ($($claim:ident),* $(,)?) => {
        on_broker!(model, Model, [$($claim),*]);
        redis_suite!($($claim),*);
    };
}

/// Makes each claim a test on every broker that has keys to look at.
macro_rules! redis_suite {
    ($($claim:ident),* $(,)?) => {
        on_broker!(redis_7_0, Redis70, [$($claim),*]);
        on_broker!(redis_7_0_pending_and_claim, Redis70PendingAndClaim, [$($claim),*]);
        on_broker!(redis_6_2, Redis62, [$($claim),*]);
        on_broker!(valkey_9_1, Valkey91, [$($claim),*]);
        on_broker!(redis_cluster, Cluster, [$($claim),*]);
    };
}

/// The owner that the fixture provisions as.
pub(crate) fn owner() -> Owner {
    Owner { name: "conformance".to_owned(), takeover: Takeover::Respect }
}

pub(crate) fn task_type(name: &str) -> TaskType {
    name.parse().expect("a valid type")
}

pub(crate) fn task_id(name: &str) -> TaskId {
    name.parse().expect("a valid id")
}

pub(crate) fn worker_id(name: &str) -> WorkerId {
    name.parse().expect("a valid worker id")
}

pub(crate) fn types(names: &[&str]) -> Capabilities {
    Capabilities::of(names.iter().map(|name| task_type(name))).expect("few types")
}

/// A task of that type.
pub(crate) fn task(kind: &str) -> NewTask {
    NewTask::new(task_type(kind), json!({"n": 1}))
}

pub(crate) fn success() -> Outcome {
    Outcome::Success { result: Some(json!({"ok": true}).into()) }
}

pub(crate) fn failure() -> Outcome {
    Outcome::Failure { error: "it broke".to_owned(), code: "broken".to_owned() }
}

pub(crate) fn permanent() -> Outcome {
    Outcome::Permanent { error: "it can never work".to_owned(), code: "impossible".to_owned() }
}

pub(crate) fn released() -> Outcome {
    Outcome::Released { delay: Duration::ZERO }
}

pub(crate) fn settlement(task: &ClaimedTask, outcome: Outcome) -> Settlement {
    Settlement { lease: task.lease.clone(), outcome, dice: Dice(0) }
}

/// Ada runs a dead letter again.
pub(crate) fn replay_of(dead_letter: &DeadLetterId, new_id: TaskId) -> ReplayRequest {
    let dead_letter = dead_letter.clone();
    ReplayRequest { dead_letter, new_id, payload: None, person: "ada".to_owned(), reason: None }
}

/// A worker in a container of a pod.
pub(crate) fn worker_info(id: &str, pod_uid: Option<&str>, container: Option<&str>) -> WorkerInfo {
    WorkerInfo {
        id: worker_id(id),
        host: "host".to_owned(),
        pid: 7,
        pod: pod_uid.map(|_| "pod".to_owned()),
        pod_uid: pod_uid.map(str::to_owned),
        container: container.map(str::to_owned),
        version: "1".to_owned(),
        types: vec![],
        pool: pod_uid.map(|_| "pool".to_owned()),
        started: pod_uid.map(|_| Timestamp::UNIX_EPOCH),
    }
}

impl Fixture {
    pub(crate) async fn new(kind: Kind) -> Self {
        let queue = fresh_queue();
        let clock = Clock::manual(START_MS);
        if kind == Kind::Model {
            let model = Arc::new(Model::new(queue.clone(), clock.clone()));
            let fixture = Self { broker: model.clone(), clock, queue, kind, store: Store::Model(model) };
            fixture.set(|_| {}).await;
            return fixture;
        }
        let keys = Keys::new(&queue);
        let url = direct_url(kind, &keys, 0).await;
        let fixture = Self::on_redis(kind, keys, url, clock).await;
        fixture.set(|_| {}).await;
        fixture
    }

    /// A queue that goes on using names that were there before, in a place where no other test
    /// uses them: a database of its own or, on a cluster, with a hash tag of its own before them.
    /// Not provisioned yet.
    pub(crate) async fn adopting(&self, adopted: &AdoptedKeys) -> Self {
        static DATABASE: AtomicU64 = AtomicU64::new(1);
        let database = DATABASE.fetch_add(1, Ordering::Relaxed);
        assert!(database < DATABASES, "the shared servers have no database left");
        let tagged = |name: &Option<String>| match self.kind {
            Kind::Cluster => name.as_ref().map(|name| format!("{{adopted-{database}}}:{name}")),
            _ => name.clone(),
        };
        let adopted = AdoptedKeys {
            task: tagged(&adopted.task),
            result: tagged(&adopted.result),
            dead_letter: tagged(&adopted.dead_letter),
            group: adopted.group.clone(),
        };
        let keys = Keys::adopting(&fresh_queue(), &adopted).expect("names that can be adopted");
        let url = direct_url(self.kind, &keys, database).await;
        Self::on_redis(self.kind, keys, url, Clock::manual(START_MS)).await
    }

    /// Another queue that adopts the very task and result streams and the group of this one. Not provisioned yet.
    pub(crate) async fn rival(&self) -> Self {
        let Store::Redis { broker, url } = &self.store else { panic!("the model has no keys") };
        let (task, result) = (Some(broker.keys().task.clone()), Some(broker.keys().result.clone()));
        let group = Some(broker.keys().group.clone());
        let adopted = AdoptedKeys { task, result, dead_letter: None, group };
        let keys = Keys::adopting(&fresh_queue(), &adopted).expect("names that can be adopted");
        Self::on_redis(self.kind, keys, url.clone(), Clock::manual(START_MS)).await
    }

    async fn on_redis(kind: Kind, keys: Keys, url: String, clock: Clock) -> Self {
        let queue = keys.queue().clone();
        let mut options = RedisOptions::new(match kind {
            Kind::Cluster => {
                let hosts: Vec<String> =
                    shared_cluster().await.urls().iter().map(|url| url.replace("redis://", "")).collect();
                format!("redis+cluster://{}", hosts.join(","))
            }
            _ => url.clone(),
        });
        if kind == Kind::Redis70PendingAndClaim {
            options.reclaim_with = ReclaimWith::PendingAndClaim;
        }
        let broker = Arc::new(RedisBroker::with_clock(keys, options, clock.clone()).expect("a usable URL"));
        Self { broker: broker.clone(), clock, queue, kind, store: Store::Redis { broker, url } }
    }

    // The policy.

    /// Changes the policy from what it is (the default at first).
    pub(crate) async fn set(&self, change: impl FnOnce(&mut Policy)) {
        let mut policy = self.broker.policy().await.unwrap_or_default();
        change(&mut policy);
        self.broker.provision(&owner(), &policy).await.expect("the policy is written");
    }

    // The clock.

    pub(crate) fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.in_ms(0)
    }

    /// The time in so many milliseconds.
    pub(crate) fn in_ms(&self, ms: i64) -> Timestamp {
        let now = self.clock.now_ms().expect("the clock is manual");
        Timestamp::from_millisecond(i64::try_from(now).expect("a time") + ms).expect("a time")
    }

    // Producers.

    /// A task of that type, and its id.
    pub(crate) async fn add(&self, kind: &str) -> TaskId {
        self.enqueue(task(kind)).await.id
    }

    pub(crate) async fn enqueue(&self, task: NewTask) -> Enqueued {
        self.broker.enqueue(&[task]).await.expect("the task is taken").remove(0)
    }

    /// What a producer does that knows nothing of Windlass; returns the message's id.
    pub(crate) async fn raw(&self, fields: &[(&str, &str)]) -> String {
        let fields: Vec<_> = fields.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
        self.raw_bytes(&fields).await
    }

    pub(crate) async fn raw_bytes(&self, fields: &[(&str, &[u8])]) -> String {
        match &self.store {
            Store::Model(model) => {
                static SEQUENCE: AtomicU64 = AtomicU64::new(0);
                let message = format!("{START_MS}-{}", SEQUENCE.fetch_add(1, Ordering::Relaxed));
                let fields = fields.iter().map(|(name, value)| ((*name).to_owned(), value.to_vec())).collect();
                model.raw_add(&message, fields);
                message
            }
            Store::Redis { .. } => {
                let mut add = redis::cmd("XADD");
                add.arg(&self.keys().task).arg("*");
                for (name, value) in fields {
                    add.arg(*name).arg(*value);
                }
                self.command(add).await
            }
        }
    }

    // Workers.

    /// Claims as worker `w1`, which can do everything.
    pub(crate) async fn claim(&self, limit: usize) -> Vec<ClaimedTask> {
        self.claim_as("w1", limit).await
    }

    pub(crate) async fn claim_as(&self, worker: &str, limit: usize) -> Vec<ClaimedTask> {
        self.claim_with(worker, &Capabilities::any(), limit).await.tasks
    }

    /// Claims exactly one task as worker `w1`.
    pub(crate) async fn claim_one(&self) -> ClaimedTask {
        self.claim_one_as("w1").await
    }

    pub(crate) async fn claim_one_as(&self, worker: &str) -> ClaimedTask {
        let mut tasks = self.claim_as(worker, 1).await;
        assert_eq!(tasks.len(), 1, "{worker} gets a task");
        tasks.remove(0)
    }

    pub(crate) async fn claim_with(&self, worker: &str, capabilities: &Capabilities, limit: usize) -> Claimed {
        let worker = worker_id(worker);
        let request = ClaimRequest { worker: &worker, capabilities, limit, recover: None };
        self.broker.claim(request).await.expect("the claim is answered")
    }

    /// Claims one by one until there is nothing, as `w1`; the ids in their order.
    pub(crate) async fn drain_ids(&self) -> Vec<TaskId> {
        let mut ids = Vec::new();
        while let Some(task) = self.claim(1).await.pop() {
            ids.push(task.lease.task);
        }
        ids
    }

    /// Adds a task and claims it.
    pub(crate) async fn running(&self, kind: &str) -> ClaimedTask {
        let id = self.add(kind).await;
        let task = self.claim_one().await;
        assert_eq!(task.lease.task, id, "nothing else was waiting");
        task
    }

    pub(crate) async fn settle(&self, task: &ClaimedTask, outcome: Outcome) -> Settled {
        self.settle_with(settlement(task, outcome), 0).await.settled[0]
    }

    /// One settlement, and a claim of so many as `w1`.
    pub(crate) async fn settle_with(&self, settlement: Settlement, limit: usize) -> SettleReply {
        let worker = worker_id("w1");
        let next = ClaimRequest { worker: &worker, capabilities: &Capabilities::any(), limit, recover: None };
        self.broker.settle(&[settlement], next).await.expect("the settlement is answered")
    }

    pub(crate) async fn succeed(&self, task: &ClaimedTask) {
        assert_eq!(self.settle(task, success()).await, Settled::Succeeded);
    }

    /// Fails an attempt and waits until the retry is due.
    pub(crate) async fn fail_and_wait(&self, task: &ClaimedTask) {
        let settled = self.settle(task, failure()).await;
        let Settled::Retrying { due_at } = settled else { panic!("it will run again, not {settled:?}") };
        let wait = due_at.as_millisecond() - self.now().as_millisecond();
        self.advance(Duration::from_millis(wait.try_into().expect("not in the past")));
    }

    /// Makes a running task a recorded dead letter.
    pub(crate) async fn bury(&self, task: &ClaimedTask) -> DeadLetterId {
        assert_eq!(self.settle(task, permanent()).await, Settled::Dead);
        let id = DeadLetterId { task: task.lease.task.clone(), epoch: task.lease.epoch };
        self.broker.record_dead_letter(&id).await.expect("the dead letter is recorded");
        assert_eq!(self.state(&id.task).await, State::Failed);
        id
    }

    /// Makes a new task a recorded dead letter.
    pub(crate) async fn dead(&self, new: NewTask) -> DeadLetterId {
        self.enqueue(new).await;
        let task = self.claim_one().await;
        self.bury(&task).await
    }

    // Maintenance.

    /// One full round of reclaiming.
    pub(crate) async fn reclaim(&self) -> Reclaimed {
        let mut all = Reclaimed::default();
        let mut cursor = Some(ReclaimCursor::default());
        while let Some(from) = cursor {
            let step = self.broker.reclaim(from).await.expect("the reclaim is answered");
            all.requeued.extend(step.requeued);
            all.dead.extend(step.dead);
            all.held |= step.held;
            cursor = step.next;
        }
        all
    }

    /// Lets every lease expire and takes the tasks back.
    pub(crate) async fn expire_all(&self) -> Reclaimed {
        self.advance(self.broker.policy().await.expect("a policy").visibility_timeout + Duration::from_secs(1));
        self.reclaim().await
    }

    /// One full round of sweeping.
    pub(crate) async fn sweep(&self) -> Swept {
        let mut all = Swept::default();
        let mut cursor = Some(SweepCursor::default());
        while let Some(from) = cursor {
            let step = self.broker.sweep(from).await.expect("the sweep is answered");
            all.checked += step.checked;
            all.repaired.extend(step.repaired);
            all.consumers_removed += step.consumers_removed;
            all.workers_lost.extend(step.workers_lost);
            cursor = step.next;
        }
        all
    }

    /// One full round of retention, and what its last call said of the time.
    pub(crate) async fn retain(&self) -> Retained {
        self.retain_from(RetainCursor::default()).await
    }

    /// The same from where another round ended.
    pub(crate) async fn retain_from(&self, mut cursor: RetainCursor) -> Retained {
        let (mut results, mut dead_letters) = (0, 0);
        for _ in 0..1000 {
            let step = self.broker.retain(cursor, 100).await.expect("the retention is answered");
            (results, dead_letters) = (results + step.results, dead_letters + step.dead_letters);
            if step.next_in != Some(Duration::ZERO) {
                return Retained { results, dead_letters, ..step };
            }
            cursor = step.cursor;
        }
        panic!("a round of retention ends");
    }

    pub(crate) async fn promote(&self, limit: usize) -> Promoted {
        self.broker.promote(limit).await.expect("the promotion is answered")
    }

    // Looking.

    pub(crate) async fn view(&self, id: &TaskId) -> TaskView {
        self.broker.get(id).await.expect("the look is answered").unwrap_or_else(|| panic!("{id} is known"))
    }

    /// Whether anybody knows the task.
    pub(crate) async fn knows(&self, id: &TaskId) -> bool {
        self.broker.get(id).await.expect("the look is answered").is_some()
    }

    pub(crate) async fn letter(&self, id: &DeadLetterId) -> DeadLetterView {
        let found = self.broker.dead_letter(id).await.expect("the look is answered");
        found.unwrap_or_else(|| panic!("{id} is recorded"))
    }

    pub(crate) async fn state(&self, id: &TaskId) -> State {
        self.view(id).await.state
    }

    pub(crate) async fn counts(&self) -> QueueCounts {
        self.broker.counts().await.expect("the counts are answered")
    }

    pub(crate) async fn list(&self, state: State) -> Vec<TaskView> {
        let mut all = Vec::new();
        let mut cursor = Some(ListCursor::default());
        while let Some(from) = cursor {
            let page = self.broker.list(state, from, 100).await.expect("the listing is answered");
            all.extend(page.items);
            cursor = page.next;
        }
        all
    }

    pub(crate) async fn outbox(&self) -> Vec<OutboxEntry> {
        self.broker.outbox(10_000).await.expect("the outbox is answered")
    }

    /// Outside effects that happened, in their order.
    pub(crate) async fn effects(&self) -> Vec<EffectEvent> {
        self.outbox().await.into_iter().flat_map(|entry| entry.effects).collect()
    }

    /// What people decided, in its order.
    pub(crate) async fn decisions(&self) -> Vec<Decision> {
        self.outbox().await.into_iter().flat_map(|entry| entry.decisions).collect()
    }

    /// The moves of one task, in their order.
    pub(crate) async fn events(&self, id: &TaskId) -> Vec<Event> {
        self.outbox().await.into_iter().flat_map(|entry| entry.events).filter(|event| event.task == *id).collect()
    }

    /// The states that a task went through, in their order.
    pub(crate) async fn path(&self, id: &TaskId) -> Vec<State> {
        let events = self.events(id).await;
        assert_eq!(events.first().map(|event| event.from), Some(None), "a path begins with the task");
        for (one, next) in events.iter().zip(&events[1..]) {
            assert_eq!(Some(one.to), next.from, "a path has no gap");
            assert!(one.to.may_become(next.to), "{} may not become {}", one.to, next.to);
        }
        events.into_iter().map(|event| event.to).collect()
    }

    /// How many final results stand under that id.
    pub(crate) async fn results(&self, id: &TaskId) -> usize {
        match &self.store {
            Store::Model(_) => {
                let mut found = 0;
                for state in [State::Succeeded, State::Failed, State::Cancelled] {
                    found += self.list(state).await.iter().filter(|view| view.id == *id).count();
                }
                found
            }
            Store::Redis { .. } => {
                let entries = self.stream(&self.keys().result).await;
                entries.iter().filter(|entry| entry.field("task_id") == Some(id.as_str())).count()
            }
        }
    }
}
