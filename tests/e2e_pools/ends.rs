//! Pods that end in every way there is, each with 200 tasks in flight.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{DeleteParams, EvictParams};
use serde_json::{Value, json};

use super::stage::{Stage, Watch, application, named};

/// How many tasks are in flight when something happens.
const IN_FLIGHT: usize = 200;
/// Far more than it takes on any machine until they run again, and far less than a silence or a lease takes to end.
const SOON: Duration = Duration::from_secs(30);
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

/// Waits until all tasks run again and none of them in that worker, then until all are done.
async fn recovers(stage: &Stage<'_>, watch: Watch, what: &str) -> Vec<Value> {
    let again = |seen: &Value| {
        seen["running"].as_u64().unwrap_or(0) + seen["finished"].as_u64().unwrap_or(0) == IN_FLIGHT as u64
    };
    stage
        .cluster
        .wait_for(&stage.namespace, "the tasks to be taken back", async || {
            let said = stage.said().await;
            if said.contains("a dead worker's tasks were taken back") { Ok(()) } else { Err("not yet".to_owned()) }
        })
        .await;
    stage.until("all tasks to run again", again).await;
    let took = watch.read(&format!("{what}: until all {IN_FLIGHT} tasks run again"));
    assert!(took < SOON, "it was not its end that brought them back: {took:?}");
    stage.all_done(IN_FLIGHT).await
}

#[tokio::test]
async fn a_worker_killed_with_9_loses_nothing() {
    let Some(stage) = Stage::ours().await else { return };
    let pod = busy(&stage, SECONDS, json!({})).await;
    let watch = Watch::start();
    stage.kill9(&pod, "windlass-worker").await;
    let done = recovers(&stage, watch, "kill -9").await;
    assert!(done.iter().any(|task| task["crashCount"] == 1), "it counted as a crash");
    let said = stage.said().await;
    assert!(said.contains("exit code 137"), "the operator knows why: {said}");
}

#[tokio::test]
async fn a_pod_deleted_by_force_loses_nothing_and_nobody_crashed() {
    let Some(stage) = Stage::shared().await else { return };
    let pod = busy(&stage, SECONDS, json!({})).await;
    let watch = Watch::start();
    let force = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    stage.pods().delete(&pod.name_any(), &force).await.expect("deleted");
    let done = recovers(&stage, watch, "deleted with --grace-period=0 --force").await;
    assert!(done.iter().all(|task| task["crashCount"] == 0), "no crash was counted");
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
    let Some(stage) = Stage::shared().await else { return };
    let small = json!([{"name": "small", "emptyDir": {"sizeLimit": "1Mi"}}]);
    let mut template = json!({"spec": {"containers": [application()], "volumes": small}});
    template["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "small", "mountPath": "/small"}]);
    // A kubelet looks at volumes once in a while: the tasks have to last for longer than that.
    let pod = busy(&stage, 75.0, json!({"template": template})).await;
    let fill = "import sys; open('/small/much', 'wb').write(b'x' * (8 << 20))";
    let exec = ["-n", &*stage.namespace, "exec", &pod.name_any(), "-c", "app", "--", "/usr/bin/python3", "-c", fill];
    stage.cluster.kubectl(&exec).await;
    let evicted = |found: Option<&Pod>| {
        found.is_none_or(|pod| pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Failed"))
    };
    stage.cluster.wait(&stage.pods(), &pod.name_any(), "to be evicted", evicted).await;
    let watch = Watch::start();
    recovers(&stage, watch, "evicted by the kubelet").await;
    let said = stage.said().await;
    assert!(said.contains("Evicted"), "the operator knows why: {said}");
}

#[tokio::test]
async fn a_worker_that_ran_out_of_memory_loses_nothing() {
    let Some(stage) = Stage::ours().await else { return };
    let limited = json!({"resources": {"limits": {"memory": "64Mi"}}});
    let pod = busy(&stage, SECONDS, json!({"worker": limited})).await;
    let watch = Watch::start();
    stage.exhaust_memory(&pod, "windlass-worker").await;
    let done = recovers(&stage, watch, "out of memory").await;
    assert!(done.iter().any(|task| task["crashCount"] == 1), "it counted as a crash");
    let said = stage.said().await;
    assert!(said.contains("OOMKilled"), "the operator knows why: {said}");
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
