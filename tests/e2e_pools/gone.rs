//! Redis is really gone for two minutes: its process is dead and its port refuses, and then it is back with its data.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use kube::api::Api;
use serde_json::{Value, json};
use windlass::crd::{TaskQueue, WorkerPool};

use super::stage::{Stage, Watch};

/// For how long it is gone.
const GONE: Duration = Duration::from_secs(120);

/// A Redis that starts again when it has ended, unless somebody put a file there.
const KEEPER: &str = "while true; do \
    [ -e /tmp/stay-away ] || /usr/bin/redis-server --appendonly yes --appendfsync always --dir /tmp --bind 0.0.0.0 --protected-mode no; \
    sleep 0.2; done";

/// The same Deployment as the stage's, with another command.
fn redis() -> Value {
    let ready = json!({"exec": {"command": ["/usr/bin/redis-cli", "ping"]}, "periodSeconds": 1, "timeoutSeconds": 10});
    let pod = json!({
        "nodeSelector": {"kubernetes.io/hostname": "node1"},
        "terminationGracePeriodSeconds": 1,
        "containers": [{"name": "redis", "image": "localhost/redis:test", "command": ["/bin/sh", "-c", KEEPER],
            "args": [], "readinessProbe": ready}],
    });
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "redis"}, "spec": {
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}, "selector": {"matchLabels": {"app": "redis"}},
        "template": {"metadata": {"labels": {"app": "redis"}}, "spec": pod}}})
}

fn says(conditions: Option<&[Condition]>, type_: &str, status: &str) -> bool {
    conditions.is_some_and(|all| all.iter().any(|one| one.type_ == type_ && one.status == status))
}

/// What must not change while Redis is gone: the pods, how often their containers were started, and their number.
async fn standing(stage: &Stage<'_>) -> (BTreeSet<String>, i32, Option<i32>) {
    let (mut names, mut restarts) = (BTreeSet::new(), 0);
    for pod in stage.pods_of("p").await {
        names.insert(pod.name_any());
        let status = pod.status.expect("a status");
        let all = status.container_statuses.iter().chain(&status.init_container_statuses).flatten();
        restarts += all.map(|one| one.restart_count).sum::<i32>();
    }
    let deployment = stage.deployment("p", "to be there", |_| true).await;
    (names, restarts, deployment.spec.and_then(|spec| spec.replicas))
}

#[tokio::test]
async fn while_redis_is_gone_conditions_tell_replicas_hold_nothing_restarts_and_everything_resumes() {
    let Some(stage) = Stage::shared().await else { return };
    stage.apply(&redis()).await;
    let is_new = |found: &k8s_openapi::api::apps::v1::Deployment| {
        let status = found.status.clone().unwrap_or_default();
        status.observed_generation == found.metadata.generation
            && (status.updated_replicas, status.available_replicas, status.replicas) == (Some(1), Some(1), Some(1))
    };
    stage.deployment("redis", "to be replaced", is_new).await;
    stage.queue(json!({"retry": {"maxCrashes": 20}})).await;
    let autoscaling = json!({"minReplicas": 0, "maxReplicas": 2, "tasksPerReplica": 10, "scaleDownAfterSeconds": 1});
    stage.pool("p", json!({"autoscaling": autoscaling, "concurrency": 5})).await;
    let queues: Api<TaskQueue> = Api::namespaced(stage.client.clone(), &stage.namespace);
    let pools: Api<WorkerPool> = Api::namespaced(stage.client.clone(), &stage.namespace);
    let queue_says = |type_: &'static str, status: &'static str| {
        move |found: Option<&TaskQueue>| {
            let conditions = found.and_then(|queue| queue.status.as_ref()).map(|status| &*status.conditions);
            says(conditions, type_, status)
        }
    };
    let pool_says = |type_: &'static str, status: &'static str| {
        move |found: Option<&WorkerPool>| {
            let conditions = found.and_then(|pool| pool.status.as_ref()).map(|status| &*status.conditions);
            says(conditions, type_, status)
        }
    };
    stage.enqueue(150, 3.0).await;
    stage.ready("p", 2).await;
    let before = standing(&stage).await;
    assert_eq!((before.0.len(), before.1, before.2), (2, 0, Some(2)));

    let away = [
        "-n",
        &*stage.namespace,
        "exec",
        "deploy/redis",
        "--",
        "/bin/sh",
        "-c",
        "touch /tmp/stay-away; kill -9 $(pidof redis-server)",
    ];
    stage.cluster.kubectl(&away).await;
    let (watch, gone) = (Watch::start(), Instant::now());
    stage.cluster.wait(&queues, "q", "to say that Redis is gone", queue_says("BrokerConnected", "False")).await;
    watch.read("Redis gone: until the queue's conditions told");
    stage.cluster.wait(&queues, "q", "to be unready", queue_says("Ready", "False")).await;
    stage.cluster.wait(&pools, "p", "to say that nothing is known", pool_says("ScalingActive", "Unknown")).await;
    watch.read("Redis gone: until the pool's conditions told");
    let mut looks = 0;
    // That nothing happens in this time is the claim.
    while gone.elapsed() < GONE {
        assert_eq!(standing(&stage).await, before, "after {:?}", gone.elapsed());
        looks += 1;
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    eprintln!("{looks} looks while it was gone: the same pods, no restart, the same number");

    let back = ["-n", &*stage.namespace, "exec", "deploy/redis", "--", "/bin/sh", "-c", "rm /tmp/stay-away"];
    stage.cluster.kubectl(&back).await;
    let watch = Watch::start();
    stage.cluster.wait(&queues, "q", "to be ready again", queue_says("Ready", "True")).await;
    watch.read("Redis back: until the queue was ready");
    stage.cluster.wait(&pools, "p", "to know again", pool_says("ScalingActive", "True")).await;
    watch.read("Redis back: until the pool knew its work");
    let after = standing(&stage).await;
    assert_eq!((&after.0, after.1), (&before.0, before.1), "the same pods go on");
    stage.all_done(150).await;
    watch.read("Redis back: until the rest of 150 tasks was done");
}
