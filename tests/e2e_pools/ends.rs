//! Pods that end in every way there is, each with 200 tasks in flight.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{DeleteParams, EvictParams};
use serde_json::{Value, json};

use super::stage::{Stage, application, in_time, named};

/// How many tasks are in flight when something happens.
const IN_FLIGHT: usize = 200;
/// What is promised: so long after a pod's end all its tasks run again.
const IN_TIME: Duration = Duration::from_secs(5);
/// How long each takes: long enough for all to be in flight, and to be again.
const SECONDS: f64 = 20.0;

/// Two pods with all tasks in flight, and the one that holds most of them.
async fn busy(stage: &Stage<'_>, seconds: f64, fields: Value) -> Pod {
    stage.queue(json!({"visibilityTimeoutSeconds": 300, "retry": {"maxCrashes": 20}})).await;
    let mut all = json!({"replicas": 2, "concurrency": IN_FLIGHT, "drainTimeoutSeconds": 60});
    for (name, value) in fields.as_object().expect("fields") {
        all[name] = value.clone();
    }
    stage.pool("p", all).await;
    stage.ready("p", 2).await;
    stage.enqueue(IN_FLIGHT, seconds).await;
    stage.running(IN_FLIGHT as u64).await;
    let held = stage.held().await;
    let (most, number) = held.iter().max_by_key(|(_, number)| **number).expect("somebody holds them");
    eprintln!("{number} of {IN_FLIGHT} tasks are in {most}: {held:?}");
    named(&stage.pods_of("p").await, most).clone()
}

/// Waits until all tasks are done, each after so many seconds, and tells how long after that moment the last one
/// that was lost ran again, as the queue has it: whoever asks on a slow machine is told late.
async fn recovers(stage: &Stage<'_>, seconds: f64, ended: Timestamp, what: &str) -> (Vec<Value>, Duration) {
    let done = stage.all_done(IN_FLIGHT).await;
    let lost = done.iter().filter(|task| task["epoch"].as_u64() > Some(1));
    let ends = lost.map(|task| {
        let end: Timestamp = task["finishedAt"].as_str().and_then(|time| time.parse().ok()).expect("a time");
        end.duration_since(ended).as_secs_f64() - seconds
    });
    let took = ends.reduce(f64::max).expect("some were lost");
    eprintln!("measured: {what}: until all {IN_FLIGHT} tasks ran again: {took:.1} s");
    // The clocks of somebody's own cluster may say anything.
    let took = if stage.cluster.is_ours() { took.max(0.0) } else { 0.0 };
    (done, Duration::from_secs_f64(took))
}

/// The operator says why it took tasks back. The next worker in the same pod may have been there before it.
async fn operator_knows_why(stage: &Stage<'_>, why: &str) {
    let said = stage.said().await;
    assert!(said.contains(why) || !said.contains("a dead worker's tasks were taken back"), "{said}");
}

#[tokio::test]
async fn a_worker_killed_with_9_loses_nothing() {
    in_time(IN_TIME, async || {
        let stage = Stage::ours().await?;
        let pod = busy(&stage, SECONDS, json!({})).await;
        stage.kill9(&pod, "windlass-worker").await;
        let (done, took) = recovers(&stage, SECONDS, Timestamp::now(), "kill -9").await;
        assert!(done.iter().any(|task| task["crashCount"] == 1), "it counted as a crash");
        operator_knows_why(&stage, "exit code 137").await;
        Some(took)
    })
    .await;
}

#[tokio::test]
async fn a_pod_deleted_by_force_loses_nothing_and_nobody_crashed() {
    in_time(IN_TIME, async || {
        let stage = Stage::shared().await?;
        let pod = busy(&stage, SECONDS, json!({})).await;
        let force = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
        stage.pods().delete(&pod.name_any(), &force).await.expect("deleted");
        let (done, took) = recovers(&stage, SECONDS, Timestamp::now(), "deleted with --grace-period=0 --force").await;
        assert!(done.iter().all(|task| task["crashCount"] == 0), "no crash was counted");
        Some(took)
    })
    .await;
}

#[tokio::test]
async fn a_pod_that_the_api_evicts_drains_and_nothing_runs_twice() {
    let Some(stage) = Stage::shared().await else { return };
    let pod = busy(&stage, SECONDS, json!({})).await;
    stage.pods().evict(&pod.name_any(), &EvictParams::default()).await.expect("evicted");
    let done = stage.all_done(IN_FLIGHT).await;
    for task in &done {
        assert_eq!(
            (&task["epoch"], &task["crashCount"], &task["releaseCount"]),
            (&json!(1), &json!(0), &json!(0)),
            "{task}"
        );
    }
}

#[tokio::test]
async fn a_pod_that_its_kubelet_evicts_loses_nothing() {
    in_time(IN_TIME, async || Some(evicted_by_its_kubelet(&Stage::shared().await?).await)).await;
}

async fn evicted_by_its_kubelet(stage: &Stage<'_>) -> Duration {
    // A kubelet looks at volumes once in a while: the tasks have to last for longer than that.
    let seconds = 75.0;
    let small = json!([{"name": "small", "emptyDir": {"sizeLimit": "1Mi"}}]);
    let mut template = json!({"spec": {"containers": [application()], "volumes": small}});
    template["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "small", "mountPath": "/small"}]);
    let pod = busy(stage, seconds, json!({"template": template})).await;
    let fill = "import sys; open('/small/much', 'wb').write(b'x' * (8 << 20))";
    let exec = ["-n", &*stage.namespace, "exec", &pod.name_any(), "-c", "app", "--", "/usr/bin/python3", "-c", fill];
    stage.cluster.kubectl(&exec).await;
    let evicted = |found: Option<&Pod>| {
        found.is_none_or(|pod| pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Failed"))
    };
    stage.cluster.wait(&stage.pods(), &pod.name_any(), "to be evicted", evicted).await;
    let (_, took) = recovers(stage, seconds, Timestamp::now(), "evicted by the kubelet").await;
    let said = stage.said().await;
    assert!(said.contains("Evicted"), "the operator knows why: {said}");
    took
}

#[tokio::test]
async fn a_worker_that_ran_out_of_memory_loses_nothing() {
    in_time(IN_TIME, async || {
        let stage = Stage::ours().await?;
        let limited = json!({"resources": {"limits": {"memory": "64Mi"}}});
        let pod = busy(&stage, SECONDS, json!({"worker": limited})).await;
        stage.exhaust_memory(&pod, "windlass-worker").await;
        let (done, took) = recovers(&stage, SECONDS, Timestamp::now(), "out of memory").await;
        assert!(done.iter().any(|task| task["crashCount"] == 1), "it counted as a crash");
        operator_knows_why(&stage, "OOMKilled").await;
        Some(took)
    })
    .await;
}

#[tokio::test]
async fn an_application_that_is_not_alive_is_restarted_alone_and_claiming_goes_on() {
    let Some(stage) = Stage::shared().await else { return };
    stage.queue(json!({})).await;
    let mut app = application();
    app["livenessProbe"] = json!({"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 1, "failureThreshold": 2, "timeoutSeconds": 10});
    stage.pool("p", json!({"concurrency": 4, "template": {"spec": {"containers": [app]}}})).await;
    stage.ready("p", 1).await;
    stage.enqueue(2, 0.0).await;
    stage.all_done(2).await;
    let pod = stage.pods_of("p").await.remove(0);
    let sick = "open('/tmp/sick', 'w')";
    let exec = ["-n", &*stage.namespace, "exec", &pod.name_any(), "-c", "app", "--", "/usr/bin/python3", "-c", sick];
    stage.cluster.kubectl(&exec).await;
    let restarts = |found: Option<&Pod>| {
        let status = found.and_then(|pod| pod.status.as_ref());
        let of = |all: Option<&Vec<k8s_openapi::api::core::v1::ContainerStatus>>| {
            all.and_then(|all| all.first()).map(|one| one.restart_count)
        };
        (
            of(status.and_then(|status| status.init_container_statuses.as_ref())),
            of(status.and_then(|status| status.container_statuses.as_ref())),
        )
    };
    let seen = stage
        .cluster
        .wait(&stage.pods(), &pod.name_any(), "to have its application restarted", |found| restarts(found).0 >= Some(1))
        .await;
    assert_eq!(restarts(seen.as_ref()).1, Some(0), "the worker went on");
    stage.enqueue(20, 0.1).await;
    let done = stage.all_done(22).await;
    assert!(done.iter().all(|task| task["crashCount"] == 0));
    let last = stage.pods().get(&pod.name_any()).await.expect("it is the same pod");
    assert_eq!(restarts(Some(&last)).1, Some(0));
}
