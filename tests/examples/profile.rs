//! A profile's own manifest, compiled and provisioned on a Redis of its own, with a clock that stands still until a test
//! moves it: no wait of a profile is waited for, and each is exact.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;
use windlass::broker::clock::Clock;
use windlass::broker::redis::{RedisBroker, RedisOptions};
use windlass::broker::{
    Broker, ClaimRequest, ClaimedTask, ReclaimCursor, Settled, Settlement, SweepCursor, WorkerInfo,
};
use windlass::conformance::{Conformance, run};
use windlass::crd::check::check;
use windlass::crd::{Kind, TaskQueue, WorkerPool};
use windlass::event_log::EventLog;
use windlass::maintenance::dead_letter_router::DeadLetterRouter;
use windlass::maintenance::promoter::Promoter;
use windlass::maintenance::recorder::Recorder;
use windlass::maintenance::{Chore, Queue};
use windlass::protocol::backoff::Dice;
use windlass::protocol::keys::Keys;
use windlass::protocol::names::{Capabilities, DeadLetterId, WorkerId};
use windlass::protocol::policy::{EventRecording, Policy};
use windlass::{NewTask, Outcome, QueueName, State, TaskId, TaskView};

use super::tree::{documents, name, of_kind, project, text};
use crate::support::owner;
use crate::support::servers::{Flavor, Server};

/// Where the clock stands at first. In the past, because Redis takes no lease that begins in its future.
const START_MS: u64 = 1_700_000_000_000;

/// The throw of the dice that adds the least, and the one that adds the most.
pub(super) const LEAST: Dice = Dice(0);
pub(super) const MOST: Dice = Dice(u16::MAX);

/// What can go wrong once.
pub(super) fn failure() -> Outcome {
    Outcome::failure("broken", "it broke")
}

/// A task of that type.
pub(super) fn task(kind: &str) -> NewTask {
    NewTask::new(kind.parse().expect("a type"), json!({"n": 1}))
}

pub(super) fn worker(name: &str) -> WorkerId {
    name.parse().expect("a valid worker id")
}

/// A profile's queue.
pub(super) struct Profile {
    pub(super) broker: Arc<RedisBroker>,
    pub(super) policy: Policy,
    pub(super) keys: Keys,
    pools: Vec<WorkerPool>,
    name: QueueName,
    clock: Clock,
    server: Server,
}

impl Profile {
    /// What `examples/profiles/FOLDER` asks for, made.
    pub(super) async fn open(folder: &str) -> Self {
        let file = project().join(format!("examples/profiles/{folder}/{folder}.yaml"));
        let objects = documents(&text(&file));
        let queue = of_kind(&objects, "TaskQueue").next().expect("a queue");
        let checked = check(Kind::TaskQueue, queue, None).expect("allowed");
        let spec = serde_json::from_value::<TaskQueue>(checked).expect("readable").spec;
        let pool = |pool| check(Kind::WorkerPool, pool, None).map(serde_json::from_value::<WorkerPool>);
        let pools: Vec<WorkerPool> =
            of_kind(&objects, "WorkerPool").map(|one| pool(one).expect("allowed").expect("readable")).collect();
        assert!(!pools.is_empty() && pools.iter().all(|pool| pool.spec.queue_ref.name == name(queue)));

        let name: QueueName = name(queue).parse().expect("a name");
        let (policy, keys) = (spec.policy(EventRecording::On).expect("compiles"), spec.keys(&name).expect("usable"));
        let (server, clock) = (Server::start(Flavor::Redis70).await, Clock::manual(START_MS));
        let options = RedisOptions::new(server.url());
        let broker = Arc::new(RedisBroker::with_clock(keys.clone(), options, clock.clone()).expect("a usable URL"));
        broker.provision(&owner(), &policy).await.expect("provisioned");
        Self { broker, policy, keys, pools, name, clock, server }
    }

    /// What the workers of one of its pools can do.
    pub(super) fn capabilities(&self, pool: &str) -> Capabilities {
        let pool = self.pools.iter().find(|one| one.metadata.name.as_deref() == Some(pool)).expect("the pool is there");
        Capabilities::of(pool.spec.task_types.iter().map(|kind| kind.parse().expect("a type"))).expect("few types")
    }

    // Time.

    pub(super) fn pass(&self, time: Duration) {
        self.clock.advance(time);
    }

    pub(super) fn seconds(&self, seconds: u64) {
        self.pass(Duration::from_secs(seconds));
    }

    pub(super) fn now(&self) -> Timestamp {
        let now = self.clock.now_ms().expect("the clock is manual");
        Timestamp::from_millisecond(now.try_into().expect("a time")).expect("a time")
    }

    // Producers.

    pub(super) async fn add(&self, kind: &str) -> TaskId {
        self.enqueue(task(kind)).await
    }

    pub(super) async fn enqueue(&self, task: NewTask) -> TaskId {
        self.broker.enqueue(&[task]).await.expect("the task is taken").remove(0).id
    }

    /// What a producer of the system before does.
    pub(super) async fn xadd(&self, fields: &[(&str, &str)]) {
        let mut command = vec!["XADD", &self.keys.task, "*"];
        command.extend(fields.iter().flat_map(|(name, value)| [*name, *value]));
        self.server.command(&command).await;
    }

    /// The entries of a stream, as one of its readers finds them.
    pub(super) async fn stream(&self, key: &str) -> Vec<BTreeMap<String, String>> {
        let entries: Vec<(String, Vec<(String, redis::Value)>)> = self.server.query(&["XRANGE", key, "-", "+"]).await;
        let word = |value| redis::from_redis_value::<Vec<u8>>(value).expect("bytes");
        let field = |(name, value)| (name, String::from_utf8_lossy(&word(value)).into_owned());
        entries.into_iter().map(|(_, fields)| fields.into_iter().map(field).collect()).collect()
    }

    /// How many entries of the stream for raw tasks are there, and how many are pending in its group.
    pub(super) async fn unacknowledged(&self) -> (u64, u64) {
        let length = self.server.query(&["XLEN", &self.keys.task]).await;
        let (pending, ..): (u64, redis::Value, redis::Value, redis::Value) =
            self.server.query(&["XPENDING", &self.keys.task, &self.keys.group]).await;
        (length, pending)
    }

    // Workers.

    pub(super) async fn register(&self, id: &str, pod: Option<&str>) -> Vec<TaskId> {
        let info = WorkerInfo {
            id: worker(id),
            host: "host".to_owned(),
            pid: 7,
            pod: pod.map(str::to_owned),
            pod_uid: pod.map(str::to_owned),
            container: pod.map(|_| "worker".to_owned()),
            version: "1".to_owned(),
            types: vec![],
            pool: None,
            started: None,
        };
        self.broker.register(&info).await.expect("registered").requeued
    }

    /// Claims as that worker, which can do that.
    pub(super) async fn claim_with(&self, id: &str, capabilities: &Capabilities, limit: usize) -> Vec<ClaimedTask> {
        let request = ClaimRequest { worker: &worker(id), capabilities, limit, recover: None };
        self.broker.claim(request).await.expect("the claim is answered").tasks
    }

    pub(super) async fn claim(&self, limit: usize) -> Vec<ClaimedTask> {
        self.claim_with("w1", &Capabilities::any(), limit).await
    }

    pub(super) async fn claim_as(&self, id: &str) -> ClaimedTask {
        let mut tasks = self.claim_with(id, &Capabilities::any(), 1).await;
        assert_eq!(tasks.len(), 1, "{id} gets a task");
        tasks.remove(0)
    }

    pub(super) async fn claim_one(&self) -> ClaimedTask {
        self.claim_as("w1").await
    }

    /// Claims one by one until there is nothing; the ids in their order.
    pub(super) async fn drain(&self) -> Vec<String> {
        let mut ids = Vec::new();
        while let Some(task) = self.claim(1).await.pop() {
            ids.push(task.lease.task.to_string());
        }
        ids
    }

    pub(super) async fn settle(&self, task: &ClaimedTask, outcome: Outcome, dice: Dice) -> Settled {
        let (worker, any) = (worker("w1"), Capabilities::any());
        let nothing = ClaimRequest { worker: &worker, capabilities: &any, limit: 0, recover: None };
        let settlement = Settlement { lease: task.lease.clone(), outcome, dice };
        self.broker.settle(&[settlement], nothing).await.expect("the settlement is answered").settled[0]
    }

    pub(super) async fn succeed(&self, task: &ClaimedTask) {
        assert_eq!(self.settle(task, Outcome::success(), LEAST).await, Settled::Succeeded);
    }

    /// Lets the only task end its attempts like that, up to so many times, and says how many milliseconds it waited after
    /// each. Before its time it is not to be had, and then it is.
    pub(super) async fn waits(&self, outcome: &Outcome, dice: Dice, times: usize) -> Vec<u64> {
        let mut waits = Vec::new();
        while waits.len() < times {
            let task = self.claim_one().await;
            let Settled::Retrying { due_at } = self.settle(&task, outcome.clone(), dice).await else { break };
            let wait = u64::try_from(due_at.duration_since(self.now()).as_millis()).expect("not in the past");
            let seen = self.view(&task.lease.task).await;
            assert_eq!((seen.state, seen.due_at), (State::Retrying, Some(due_at)), "as `windlass task get` tells it");
            self.pass(Duration::from_millis(wait - 1));
            assert!(self.claim(1).await.is_empty(), "not {wait} ms before its time");
            self.pass(Duration::from_millis(1));
            waits.push(wait);
        }
        waits
    }

    // The leader.

    /// One full round of reclaiming.
    pub(super) async fn reclaim(&self) -> Vec<TaskId> {
        let (mut all, mut cursor) = (Vec::new(), Some(ReclaimCursor::default()));
        while let Some(from) = cursor {
            let step = self.broker.reclaim(from).await.expect("the reclaim is answered");
            assert!(step.dead.is_empty(), "{step:?}");
            all.extend(step.requeued);
            cursor = step.next;
        }
        all
    }

    /// One full round of sweeping; says which workers were found lost.
    pub(super) async fn sweep(&self) -> Vec<String> {
        let (mut lost, mut cursor) = (Vec::new(), Some(SweepCursor::default()));
        while let Some(from) = cursor {
            let step = self.broker.sweep(from).await.expect("the sweep is answered");
            assert!(step.repaired.is_empty(), "{step:?}");
            lost.extend(step.workers_lost.into_iter().map(|worker| worker.to_string()));
            cursor = step.next;
        }
        lost
    }

    /// Records every dead letter.
    pub(super) async fn record(&self) -> Vec<DeadLetterId> {
        let letters = self.broker.pending_dead_letters(100).await.expect("answered");
        let ids: Vec<_> = letters.into_iter().map(|letter| letter.id).collect();
        for id in &ids {
            self.broker.record_dead_letter(id).await.expect("recorded");
        }
        ids
    }

    pub(super) async fn view(&self, id: &TaskId) -> TaskView {
        self.broker.get(id).await.expect("the look is answered").unwrap_or_else(|| panic!("{id} is known"))
    }

    /// What `windlass conformance` checks, on this queue as it is: all of it holds.
    pub(super) async fn conforms(&self) {
        let folder = tempfile::tempdir().expect("a folder");
        let log = EventLog::connect(&format!("sqlite://{}/events.db", folder.path().display())).await.expect("a log");
        let conformance = Conformance {
            queue: self.name.clone(),
            broker: self.broker.clone(),
            log: Some(log.clone()),
            timeout: Some(crate::support::servers::LIMIT),
        };
        let checks = tokio::select! {
            checks = run(conformance, std::future::pending()) => checks.expect("it begins").expect("nobody stops it"),
            never = self.lead(log) => match never {},
        };
        let ids: Vec<_> = checks.iter().map(|check| check.id).collect();
        let all = ["RP-001", "RP-002", "RP-003", "RP-004", "RP-005", "TQP-1", "TQP-2", "TQP-3", "TQP-4"];
        assert_eq!(ids, all);
        for check in checks {
            assert!(check.passed, "{check:#?}");
        }
    }

    /// Leads the queue, and lets time pass whenever nobody does anything: a worker that is alive can then never seem lost,
    /// however slow this machine is.
    async fn lead(&self, log: EventLog) -> Infallible {
        let queue = Queue::new(self.name.clone(), self.broker.clone(), Some(log));
        let mut chores: [Box<dyn Chore>; 3] =
            [Box::new(Promoter), Box::<DeadLetterRouter>::default(), Box::new(Recorder)];
        loop {
            for chore in &mut chores {
                chore.run_once(&queue).await.expect("the step is taken");
            }
            self.reclaim().await;
            let demand = self.broker.demand(&Capabilities::any()).await.expect("answered");
            let alive = demand.held.keys().any(|worker| !worker.as_str().ends_with("-lost"));
            if demand.backlog + demand.due == 0 && !alive {
                self.seconds(20);
            }
            tokio::time::sleep(crate::support::servers::POLL / 3).await;
        }
    }
}
