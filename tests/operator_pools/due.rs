//! Tasks that wait for their time need no pods before it, and one as soon as it has come.

use std::time::{Duration, Instant};

use serde_json::json;
use windlass::broker::{Broker, ClaimRequest, Outcome, Settlement};
use windlass::protocol::backoff::Dice;
use windlass::protocol::names::Capabilities;
use windlass::{NewTask, NotBefore, State, TaskId};

use super::ground::{Ground, task};

#[tokio::test]
async fn a_pool_sleeps_until_a_delayed_or_failed_task_is_due_and_wakes_then() {
    let ground = Ground::new().await;
    let fixed = json!({"strategy": "Fixed", "baseMilliseconds": 30000, "jitter": {"kind": "None"}});
    ground.apply(json!({"kind": "TaskQueue", "metadata": {"name": "q"}, "spec": {"retry": {"backoff": fixed}}})).await;
    ground.ready_queue("q").await;
    let scaled = json!({"minReplicas": 0, "maxReplicas": 3, "tasksPerReplica": 10, "scaleDownAfterSeconds": 1});
    ground.pool("p", "q", json!({"autoscaling": scaled})).await;
    ground.condition("p", "ScalingActive", "True", "FollowsDemand").await;
    ground.replicas("p", 0).await;
    let (broker, any) = (ground.broker("q"), Capabilities::any());
    let later = NewTask { not_before: NotBefore::After(Duration::from_secs(6)), ..task(1) };
    let enqueued = broker.enqueue(&[later]).await.expect("enqueued");
    let id = enqueued[0].id.clone();
    let began = Instant::now();
    assert_eq!(ground.view("q", &id).await.state, State::Scheduled);
    ground.replicas("p", 1).await;
    eprintln!("measured: due after 6 s: a pod was asked for after {:.2} s", began.elapsed().as_secs_f64());
    is_due(&ground, &id).await;

    // It fails: until it is due again there is nothing to do, for far longer than a pool takes to be sure of that.
    let pod = ground.pods_of("p", 1).await.remove(0);
    let worker = ground.worker("q", &pod, "p", 0).await;
    let request = |limit| ClaimRequest { worker: &worker.id, capabilities: &any, limit, recover: None };
    let held = broker.claim(request(1)).await.expect("claimed").tasks;
    let lease = held[0].lease.clone();
    let failed = Settlement { lease, outcome: Outcome::failure("broken", "it broke"), dice: Dice(0) };
    broker.settle(&[failed], request(0)).await.expect("settled");
    broker.deregister(&worker.id).await.expect("gone");
    let began = Instant::now();
    ground.replicas("p", 0).await;
    assert_eq!(ground.view("q", &id).await.state, State::Retrying, "what is not due keeps no pod");
    ground.replicas("p", 1).await;
    eprintln!("measured: failed, due after 30 s: a pod was asked for after {:.2} s", began.elapsed().as_secs_f64());
    is_due(&ground, &id).await;
}

/// Nobody was woken before its time: a task waits no longer for that, though it may still have to be moved.
async fn is_due(ground: &Ground, task: &TaskId) {
    let (seen, now) = (ground.view("q", task).await, jiff::Timestamp::now());
    assert!(seen.due_at.is_none_or(|due| due <= now), "at {now}: {seen:?}");
}
