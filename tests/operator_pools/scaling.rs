//! How many pods there are follows the work, and nothing else.

use std::time::{Duration, Instant};

use kube::ResourceExt;
use serde_json::json;
use windlass::broker::{Broker, ClaimRequest, ClaimedTask, Outcome, Settlement};
use windlass::protocol::backoff::Dice;
use windlass::protocol::names::{Capabilities, WorkerId};

use super::ground::{Ground, pool, task};

/// What is promised: so long after the first task a pod is asked for.
const IN_TIME: Duration = Duration::from_secs(2);

fn scaled(least: u32, most: u32) -> serde_json::Value {
    json!({"minReplicas": least, "maxReplicas": most, "tasksPerReplica": 10, "scaleDownAfterSeconds": 1})
}

/// closes: keda#6478, keda#7835 (one message does not wake zero workers)
#[tokio::test]
async fn the_first_task_starts_a_pod_also_a_raw_one_and_the_last_ones_end_stops_it() {
    let ground = Ground::new().await;
    ground.queue("q").await;
    ground.pool("p", "q", json!({"autoscaling": scaled(0, 5)})).await;
    ground.replicas("p", 0).await;
    ground.condition("p", "ScalingActive", "True", "FollowsDemand").await;
    ground.condition("p", "Ready", "True", "Ready").await;
    let (broker, any) = (ground.broker("q"), Capabilities::any());
    // A machine that is busy with something else may be late once; a promise that does not hold is broken each time.
    let mut late = [Vec::new(), Vec::new()];
    for (round, raw) in [false, true, false, true, false, true].into_iter().enumerate() {
        let late = &mut late[usize::from(raw)];
        if late.len() < round / 2 {
            continue;
        }
        let began = Instant::now();
        if raw {
            let (stream, id) = (broker.keys().task.clone(), format!("raw-{round}"));
            ground.redis.command(&["XADD", &stream, "*", "task_id", &id, "tool_name", "work", "payload", "{}"]).await;
        } else {
            broker.enqueue(&[task(1)]).await.expect("enqueued");
        }
        ground.replicas("p", 1).await;
        let took = began.elapsed();
        eprintln!("{} task: a pod was asked for after {took:?}", if raw { "raw" } else { "first" });
        late.extend((took > IN_TIME).then_some(took));

        // While it runs, with nothing else waiting, the pod stays.
        let pod = ground.pods_of("p", 1).await.remove(0);
        let worker = ground.worker("q", &pod, "p", 0).await;
        let request = || ClaimRequest { worker: &worker.id, capabilities: &any, limit: 1, recover: None };
        let held = broker.claim(request()).await.expect("claimed").tasks;
        assert_eq!(held.len(), 1);
        let running = |found: Option<&windlass::crd::WorkerPool>| {
            found
                .and_then(|pool| pool.status.as_ref())
                .is_some_and(|status| (status.running, status.workers) == (Some(1), Some(1)))
        };
        ground.cluster.wait(&ground.pools(), "p", "to tell of its running task", running).await;
        assert_eq!(super::ground::replicas(&ground.deployments().get("p").await.expect("there")), 1);
        let done = Settlement { lease: held[0].lease.clone(), outcome: Outcome::success(), dice: Dice(0) };
        broker.settle(&[done], ClaimRequest { limit: 0, ..request() }).await.expect("settled");
        broker.deregister(&worker.id).await.expect("gone");
        ground.replicas("p", 0).await;
    }
    assert!(late.iter().all(|late| late.len() < 3), "a pod was asked for only after {late:?}");
}

#[tokio::test]
async fn more_work_is_more_pods_up_to_the_bound_and_only_of_the_types_that_the_pool_can_do() {
    let ground = Ground::new().await;
    ground.queue("q").await;
    ground.pool("all", "q", json!({"autoscaling": scaled(0, 4)})).await;
    ground.pool("other", "q", json!({"autoscaling": scaled(0, 4), "taskTypes": ["other"]})).await;
    ground.replicas("all", 0).await;
    ground.replicas("other", 0).await;
    let broker = ground.broker("q");
    broker.enqueue(&(0..25).map(task).collect::<Vec<_>>()).await.expect("enqueued");
    ground.replicas("all", 3).await;
    broker.enqueue(&(0..90).map(task).collect::<Vec<_>>()).await.expect("enqueued");
    ground.replicas("all", 4).await;
    let message = ground.condition("all", "ScalingActive", "True", "AtMaximum").await;
    assert!(message.contains("raise autoscaling.maxReplicas"), "{message}");
    assert_eq!(super::ground::replicas(&ground.deployments().get("other").await.expect("there")), 0);
}

/// closes: keda#7239, #4098 (a broker outage scales workers away)
#[tokio::test]
async fn while_redis_is_away_the_number_of_pods_stays_and_the_conditions_tell() {
    let ground = Ground::new().await;
    ground.queue("q").await;
    ground.pool("p", "q", json!({"autoscaling": scaled(0, 5)})).await;
    let broker = ground.broker("q");
    broker.enqueue(&(0..25).map(task).collect::<Vec<_>>()).await.expect("enqueued");
    let before = ground.replicas("p", 3).await;
    ground.redis.freeze().await;
    ground.condition("p", "ScalingActive", "Unknown", "DemandUnknown").await;
    let during = ground.deployments().get("p").await.expect("there");
    assert_eq!(during.metadata.generation, before.metadata.generation, "nothing was changed");
    // An operator that starts now knows nothing, and keeps what there is.
    ground.stop_operator();
    ground.start_operator("windlass:one");
    // The one before knew the queue: only one that has never reached Redis says so.
    ground.condition("p", "QueueResolved", "False", "QueueNotReady").await;
    ground.redis.thaw().await;
    ground.condition("p", "ScalingActive", "True", "FollowsDemand").await;
    let after = ground.deployments().get("p").await.expect("there");
    assert_eq!((super::ground::replicas(&after), after.metadata.generation), (3, before.metadata.generation));
}

#[tokio::test]
async fn a_paused_queue_changes_nothing() {
    let ground = Ground::new().await;
    ground.queue("q").await;
    ground.apply(json!({"kind": "TaskQueue", "metadata": {"name": "q"}, "spec": {"mode": "Paused"}})).await;
    ground.pool("p", "q", json!({"autoscaling": scaled(0, 5)})).await;
    ground.replicas("p", 0).await;
    ground.broker("q").enqueue(&[task(1)]).await.expect("enqueued");
    ground.condition("p", "ScalingActive", "False", "QueuePaused").await;
    assert_eq!(super::ground::replicas(&ground.deployments().get("p").await.expect("there")), 0);
    ground.apply(json!({"kind": "TaskQueue", "metadata": {"name": "q"}, "spec": {"mode": "Running"}})).await;
    ground.replicas("p", 1).await;
}

#[tokio::test]
async fn switching_autoscaling_on_and_off_hands_the_number_over() {
    let ground = Ground::new().await;
    ground.queue("q").await;
    ground.pool("p", "q", json!({"replicas": 3})).await;
    ground.replicas("p", 3).await;
    ground.condition("p", "ScalingActive", "False", "FixedReplicas").await;
    ground.pool("p", "q", json!({"replicas": 3, "autoscaling": scaled(1, 5)})).await;
    ground.replicas("p", 1).await;
    let refused = ground.try_apply(pool("p", "q", json!({"replicas": 4, "autoscaling": scaled(1, 5)}))).await;
    let said = refused.expect_err("replicas belongs to the autoscaler");
    assert!(said.contains("change autoscaling.minReplicas"), "{said}");
    ground.pool("p", "q", json!({"replicas": 3})).await;
    ground.replicas("p", 3).await;
}

/// closes: keda#7368 (few long tasks in many pods: the pods that go are busy ones)
#[tokio::test]
async fn pods_that_hold_tasks_stay_however_few_the_tasks_are() {
    let ground = Ground::new().await;
    ground.queue("q").await;
    ground.pool("p", "q", json!({"autoscaling": scaled(0, 5)})).await;
    let (broker, any) = (ground.broker("q"), Capabilities::any());
    broker.enqueue(&(0..30).map(task).collect::<Vec<_>>()).await.expect("enqueued");
    ground.replicas("p", 3).await;
    let pods = ground.pods_of("p", 3).await;
    let mut workers = Vec::new();
    for pod in &pods {
        let worker = ground.worker("q", pod, "p", 0).await;
        let request = ClaimRequest { worker: &worker.id, capabilities: &any, limit: 10, recover: None };
        let held = broker.claim(request).await.expect("claimed").tasks;
        assert_eq!(held.len(), 10);
        workers.push((worker.id, held));
    }
    let done = async |worker: &WorkerId, held: &[ClaimedTask]| {
        let done = held.iter().map(|task| Settlement {
            lease: task.lease.clone(),
            outcome: Outcome::success(),
            dice: Dice(0),
        });
        let nothing = ClaimRequest { worker, capabilities: &any, limit: 0, recover: None };
        broker.settle(&done.collect::<Vec<_>>(), nothing).await.expect("settled");
    };
    // One pod would be enough for the three tasks that are left.
    for (worker, held) in &workers {
        done(worker, &held[1..]).await;
    }
    for (left, (worker, held)) in [(2, &workers[0]), (1, &workers[1])] {
        done(worker, &held[..1]).await;
        ground.replicas("p", left).await;
    }
    assert_eq!(ground.pods_of("p", 1).await[0].name_any(), pods[2].name_any(), "the busy one is left");
}

/// closes: keda#7368, #3674, #2901 (the pods that go are those that run something)
#[tokio::test]
async fn idle_pods_go_first() {
    let ground = Ground::new().await;
    ground.queue("q").await;
    ground.pool("p", "q", json!({"replicas": 3})).await;
    let pods = ground.pods_of("p", 3).await;
    // To the ReplicaSet controller, pods that are ready differ by their cost; none runs here.
    let busy = [ground.worker("q", &pods[0], "p", 2).await, ground.worker("q", &pods[2], "p", 5).await];
    ground.cluster.kubectl(&["-n", &ground.namespace, "scale", "workerpool/p", "--replicas=2"]).await;
    let left = ground.pods_of("p", 2).await;
    let names: std::collections::BTreeSet<String> = left.iter().map(ResourceExt::name_any).collect();
    assert_eq!(names, [pods[0].name_any(), pods[2].name_any()].into());
    let cost = |name: &str| {
        let pod = left.iter().find(|pod| pod.name_any() == name).expect("it is left");
        pod.annotations().get("controller.kubernetes.io/pod-deletion-cost").cloned()
    };
    assert_eq!((cost(&pods[0].name_any()).as_deref(), cost(&pods[2].name_any()).as_deref()), (Some("2"), Some("5")));
    drop(busy);
}
