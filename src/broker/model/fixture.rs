//! A provisioned model and short words for what tests do with it.

use std::time::Duration;

use super::Model;
use crate::broker::clock::Clock;
use crate::broker::{
    Broker, Cancelled, ClaimRequest, ClaimedTask, Enqueued, Lease, Outcome, Owner, Reclaimed, Result, Settled,
    Settlement, Takeover, WorkerInfo,
};
use crate::protocol::backoff::Dice;
use crate::protocol::names::{Capabilities, DeadLetterId, TaskId, TaskType, WorkerId};
use crate::protocol::policy::Policy;
use crate::protocol::state::State;
use crate::protocol::task::{NewTask, TaskView};

/// When the clock of a rig starts.
pub(super) const START_MS: u64 = 1_700_000_000_000;

pub(super) struct Rig {
    pub(super) model: Model,
    pub(super) clock: Clock,
}

pub(super) fn id(name: &str) -> TaskId {
    TaskId::new(name).expect("a valid id")
}

pub(super) fn kind(name: &str) -> TaskType {
    TaskType::new(name).expect("a valid type")
}

pub(super) fn worker(name: &str) -> WorkerId {
    WorkerId::new(name).expect("a valid worker")
}

pub(super) fn letter(name: &str) -> DeadLetterId {
    name.parse().expect("a valid dead letter")
}

/// A task of type `send` with that id.
pub(super) fn task(name: &str) -> NewTask {
    NewTask { id: id(name), ..NewTask::new(kind("send"), serde_json::json!({ "for": name })) }
}

pub(super) fn failure() -> Outcome {
    Outcome::Failure { error: "boom".to_owned(), code: "oops".to_owned() }
}

pub(super) fn success() -> Outcome {
    Outcome::Success { result: None }
}

/// A worker in a container of its own.
pub(super) fn worker_info(name: &str, pod_uid: &str) -> WorkerInfo {
    WorkerInfo {
        id: worker(name),
        host: "host".to_owned(),
        pid: 1,
        pod: None,
        pod_uid: Some(pod_uid.to_owned()),
        container: Some("main".to_owned()),
        version: "1".to_owned(),
        types: Vec::new(),
        pool: None,
        started: None,
    }
}

/// The ids of claimed tasks, in their order.
pub(super) fn ids(tasks: &[ClaimedTask]) -> Vec<&str> {
    tasks.iter().map(|task| task.lease.task.as_str()).collect()
}

impl Rig {
    pub(super) async fn new(policy: Policy) -> Self {
        let clock = Clock::manual(START_MS);
        let rig = Self { model: Model::new("shop/emails".parse().expect("valid"), clock.clone()), clock };
        rig.provision(&policy).await;
        rig
    }

    pub(super) async fn provision(&self, policy: &Policy) {
        let owner = Owner { name: "test".to_owned(), takeover: Takeover::Respect };
        self.model.provision(&owner, policy).await.expect("the queue is made");
    }

    pub(super) fn advance(&self, ms: u64) {
        self.clock.advance(Duration::from_millis(ms));
    }

    pub(super) async fn try_enqueue(&self, tasks: &[NewTask]) -> Result<Vec<Enqueued>> {
        self.model.enqueue(tasks).await
    }

    pub(super) async fn enqueue(&self, task: NewTask) -> Enqueued {
        self.try_enqueue(&[task]).await.expect("it is taken").remove(0)
    }

    pub(super) async fn claim(&self, name: &str, limit: usize) -> Vec<ClaimedTask> {
        self.claim_as(name, &Capabilities::any(), limit).await
    }

    pub(super) async fn claim_as(&self, name: &str, capabilities: &Capabilities, limit: usize) -> Vec<ClaimedTask> {
        let request = ClaimRequest { worker: &worker(name), capabilities, limit, recover: None };
        self.model.claim(request).await.expect("a claim").tasks
    }

    /// Claims one task, which must be there.
    pub(super) async fn claim_one(&self, name: &str) -> Lease {
        self.claim(name, 1).await.pop().expect("a task is ready").lease
    }

    pub(super) async fn settle(&self, lease: &Lease, outcome: Outcome) -> Settled {
        let settlement = Settlement { lease: lease.clone(), outcome, dice: Dice(0) };
        let (nobody, any) = (worker("nobody"), Capabilities::any());
        let next = ClaimRequest { worker: &nobody, capabilities: &any, limit: 0, recover: None };
        self.model.settle(&[settlement], next).await.expect("a settlement").settled[0]
    }

    pub(super) async fn cancel(&self, name: &str) -> Cancelled {
        self.model.cancel(&id(name), "not needed").await.expect("a cancel")
    }

    pub(super) async fn reclaim(&self) -> Reclaimed {
        self.model.reclaim(Default::default()).await.expect("a reclaim")
    }

    pub(super) async fn get(&self, name: &str) -> TaskView {
        self.model.get(&id(name)).await.expect("an answer").expect("the task is known")
    }

    /// Enqueues a task and lets it die at its first attempt.
    pub(super) async fn dead(&self, task: NewTask) -> DeadLetterId {
        self.enqueue(task).await;
        let lease = self.claim_one("w").await;
        let outcome = Outcome::Permanent { error: "no such address".to_owned(), code: "bad_address".to_owned() };
        assert_eq!(self.settle(&lease, outcome).await, Settled::Dead);
        DeadLetterId { task: lease.task, epoch: lease.epoch }
    }

    /// Every move in the outbox, in words; one list an entry.
    pub(super) async fn moves(&self) -> Vec<Vec<String>> {
        let entries = self.model.outbox(1000).await.expect("the outbox");
        let words = |event: &crate::broker::Event| {
            let from = event.from.map_or("new", State::as_str);
            let (detail, by) = (event.detail.as_deref().unwrap_or("-"), event.consumer.as_deref().unwrap_or("-"));
            format!("{} {from} {} {detail} {by}", event.task, event.to)
        };
        entries.iter().map(|entry| entry.events.iter().map(words).collect()).collect()
    }
}
