//! What hands do, without a broker that matters.

use async_trait::async_trait;
use serde_json::json;

use super::*;
use crate::broker::clock::Clock;
use crate::broker::model::Model;
use crate::broker::session::Session;
use crate::broker::{Broker, Owner, Takeover};
use crate::protocol::names::{Capabilities, WorkerId};
use crate::protocol::policy::Policy;
use crate::protocol::task::NewTask;
use crate::worker::context::Home;
use crate::worker::slots::Slots;

/// Ends when it is told to, if it is told to wait at all.
struct Gated(Option<Arc<Notify>>);

#[async_trait]
impl Handler for Gated {
    async fn handle(&self, _: &TaskContext) -> Outcome {
        if let Some(gate) = &self.0 {
            gate.notified().await;
        }
        Outcome::success()
    }
}

struct Ground {
    crew: Crew,
    health: Arc<WorkerHealth>,
    slots: Vec<SlotId>,
    contexts: Vec<TaskContext>,
}

/// A crew, and tasks that it was not told of.
async fn ground(concurrency: usize, tasks: usize, gate: Option<Arc<Notify>>) -> Ground {
    let (queue, worker) = ("a/b".parse().expect("a queue"), WorkerId::new("w").expect("a worker"));
    let model = Arc::new(Model::new(queue, Clock::Server));
    let owner = Owner { name: "test".to_owned(), takeover: Takeover::Respect };
    model.provision(&owner, &Policy::default()).await.expect("provisioned");
    let new = |n| NewTask::new("work".parse().expect("a type"), json!(n));
    model.enqueue(&(0..tasks).map(new).collect::<Vec<_>>()).await.expect("enqueued");
    let claimed = Session::new(model.clone(), worker.clone(), Capabilities::any()).claim(tasks).await;
    let home = Home::new("a/b".parse().expect("a queue"), worker, model);
    let new = |task| TaskContext::new(&home, task, Instant::now(), Some(Duration::from_secs(60)));
    let contexts: Vec<_> = claimed.expect("claimed").into_iter().map(new).collect();
    let (mut slots, health) = (Slots::default(), Arc::new(WorkerHealth::new(concurrency)));
    let crew = Crew::new(concurrency, Arc::new(Gated(gate)), health.clone(), WorkerMetrics::default());
    Ground { slots: contexts.iter().map(|context| slots.add(context.clone())).collect(), crew, health, contexts }
}

impl Ground {
    fn admit_all(&self) {
        for (slot, context) in self.slots.iter().zip(&self.contexts) {
            self.crew.admit(*slot, context.clone());
        }
    }

    /// Waits until so many have left.
    async fn left(&self, count: usize) -> Vec<Left> {
        let mut left = Vec::new();
        while left.len() < count {
            self.crew.somebody_left().await;
            self.crew.take_left(&mut left);
        }
        left
    }
}

#[tokio::test]
async fn one_hand_does_what_is_done_at_once_in_the_order_in_which_it_came() {
    let ground = ground(8, 20, None).await;
    ground.admit_all();
    ground.crew.employ(Some(Duration::from_micros(1)));
    assert_eq!(ground.health.running(), 1);
    let left = ground.left(20).await;
    assert!(left.iter().map(|left| left.slot).eq(ground.slots.iter().copied()));
    assert_eq!((ground.health.running(), ground.crew.waiting()), (0, 0));
}

#[tokio::test]
async fn a_hand_that_is_held_up_leaves_the_rest_to_others() {
    let gate = Arc::new(Notify::new());
    let ground = ground(3, 5, Some(gate.clone())).await;
    ground.admit_all();
    ground.crew.employ(Some(Duration::from_micros(1)));
    while ground.health.running() < 3 {
        tokio::task::yield_now().await;
    }
    assert_eq!((ground.health.running(), ground.health.waiting()), (3, 2), "as many as may run");
    let later = Instant::now() + AHEAD_WITHIN;
    assert_eq!(ground.crew.brisk(later), 0, "none of them is expected to end soon");
    for _ in 0..5 {
        gate.notify_one();
        tokio::task::yield_now().await;
    }
    ground.left(5).await;
}

#[tokio::test]
async fn a_task_that_was_withdrawn_is_never_begun() {
    let ground = ground(1, 3, None).await;
    ground.admit_all();
    assert!(ground.crew.withdraw(ground.slots[1]));
    assert!(!ground.crew.withdraw(ground.slots[1]), "it is gone");
    ground.crew.employ(None);
    ground.left(2).await;
    assert!(ground.contexts[1].began().is_none() && ground.contexts[2].began().is_some());
    assert!(!ground.crew.withdraw(ground.slots[2]), "it was begun");
}

#[tokio::test]
async fn a_task_whose_lease_may_be_over_is_not_begun() {
    let ground = ground(1, 1, None).await;
    ground.crew.set_visibility(Duration::ZERO);
    ground.admit_all();
    ground.crew.employ(None);
    let left = ground.left(1).await;
    assert!(matches!(left[0].how, How::Stale) && ground.contexts[0].began().is_none());
}

#[tokio::test]
async fn a_handler_that_is_dropped_takes_no_other_task_with_it() {
    let gate = Arc::new(Notify::new());
    let mut ground = ground(1, 2, Some(gate.clone())).await;
    ground.admit_all();
    ground.crew.employ(None);
    while ground.contexts[0].began().is_none() {
        tokio::task::yield_now().await;
    }
    assert!(!ground.crew.kill(ground.slots[1]), "it does not run");
    assert!(ground.crew.kill(ground.slots[0]));
    assert_eq!(ground.crew.capacity(), 0, "until it is seen to be gone");
    while ground.crew.count_stuck() > 0 {
        tokio::task::yield_now().await;
    }
    ground.crew.employ(None);
    gate.notify_one();
    assert_eq!(ground.left(1).await[0].slot, ground.slots[1]);
}

#[tokio::test]
async fn what_waits_is_overdue_after_so_many_looks_and_what_came_later_is_not() {
    let ground = ground(1, 2, None).await;
    ground.crew.admit(ground.slots[0], ground.contexts[0].clone());
    assert!(ground.crew.overdue(2).is_empty());
    ground.crew.admit(ground.slots[1], ground.contexts[1].clone());
    assert!(ground.crew.overdue(2).is_empty());
    assert_eq!(ground.crew.overdue(2), [ground.slots[0]]);
}
