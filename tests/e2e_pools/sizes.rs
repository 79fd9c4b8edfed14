//! Pods come with the work and go without harm.

use std::time::Duration;

use kube::ResourceExt;
use serde_json::json;

use super::stage::{Stage, Watch, in_time};

/// What is promised: so long after the first task a pod is asked for.
const IN_TIME: Duration = Duration::from_secs(2);

#[tokio::test]
async fn scaling_from_five_to_one_under_load_cuts_nothing_short_and_idle_pods_go_first() {
    let Some(stage) = Stage::shared().await else { return };
    stage.queue(json!({})).await;
    stage.pool("p", json!({"replicas": 5, "concurrency": 40})).await;
    stage.ready("p", 5).await;
    // Long enough to be seen running all at once, and to run on while pods go, however slow the machine.
    stage.enqueue(100, 40.0).await;
    stage.running(100).await;
    let held = stage.held().await;
    stage.cluster.kubectl(&["-n", &stage.namespace, "scale", "workerpool/p", "--replicas=1"]).await;
    let left = stage
        .cluster
        .wait_for(&stage.namespace, "one pod to be left", async || {
            let left = stage.pods_of("p").await;
            if left.len() == 1 { Ok(left[0].name_any()) } else { Err(format!("{} pods", left.len())) }
        })
        .await;
    eprintln!("before: {held:?}; left: {left}");
    let most = held.values().max().copied().unwrap_or(0);
    assert_eq!(held.get(&left).copied().unwrap_or(0), most, "the one that stays held the most");
    for task in stage.all_done(100).await {
        assert_eq!(
            (&task["epoch"], &task["crashCount"], &task["releaseCount"]),
            (&json!(1), &json!(0), &json!(0)),
            "{task}"
        );
    }
}

#[tokio::test]
async fn a_pool_without_work_has_no_pods_and_the_first_task_brings_one() {
    let Some(stage) = Stage::shared().await else { return };
    stage.queue(json!({})).await;
    let autoscaling = json!({"minReplicas": 0, "maxReplicas": 3, "tasksPerReplica": 10, "scaleDownAfterSeconds": 2});
    stage.pool("p", json!({"autoscaling": autoscaling, "concurrency": 10})).await;
    let wanted = |number: i32| {
        move |found: &k8s_openapi::api::apps::v1::Deployment| {
            found.spec.as_ref().and_then(|spec| spec.replicas) == Some(number)
        }
    };
    stage.deployment("p", "to want no pods", wanted(0)).await;
    let mut done = 0;
    in_time(IN_TIME, async || {
        // The command itself takes a while to start; the time is from its end on.
        stage.enqueue(1, 3.0).await;
        let watch = Watch::start();
        stage.deployment("p", "to want a pod", wanted(1)).await;
        let took = watch.read("0 to 1: until replicas were asked for");
        done += 1;
        stage.all_done(done).await;
        watch.read("0 to 1: until the first task was done");
        stage.deployment("p", "to want no pods again", wanted(0)).await;
        Some(took)
    })
    .await;
    in_time(IN_TIME, async || {
        done += 1;
        let (stream, id) = (format!("windlass:{{{}/q}}:task", &*stage.namespace), format!("raw-{done}"));
        stage.redis(&["XADD", &stream, "*", "task_id", &id, "tool_name", "work", "payload", "{}"]).await;
        let watch = Watch::start();
        stage.deployment("p", "to want a pod for a raw task", wanted(1)).await;
        let took = watch.read("0 to 1 by a raw task: until replicas were asked for");
        stage.all_done(done).await;
        stage.deployment("p", "to want no pods again", wanted(0)).await;
        Some(took)
    })
    .await;
}
