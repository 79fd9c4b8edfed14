//! Objects that this version cannot read, as an older or a newer one may have left them.

use kube::api::Api;
use serde_json::{Value, json};
use windlass::crd::WorkerPool;

use super::ground::{Ground, condition};

/// Lets a definition take any spec.
async fn bend(ground: &Ground, plural: &str) {
    let anything = json!([{"op": "replace", "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec",
        "value": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}]);
    let name = format!("{plural}.windlass.dev");
    ground.cluster.kubectl(&["patch", "crd", &name, "--type=json", "-p", &anything.to_string()]).await;
}

/// Applies an object as soon as the bent definition is served.
async fn apply(ground: &Ground, object: Value) {
    ground
        .cluster
        .wait_for(&ground.namespace, "the bent definition to be served", async || {
            ground.try_apply(object.clone()).await.map(drop)
        })
        .await;
}

/// Waits until a pool's condition has these words in it, read as nobody's type.
async fn says(ground: &Ground, kind: &str, name: &str, words: &[&str]) {
    ground
        .cluster
        .wait_for(&ground.namespace, &format!("{kind} {name} to say {words:?}"), async || {
            let get = ["-n", &ground.namespace, "get", kind, name, "-o", "jsonpath={.status.conditions}"];
            let text = ground.cluster.kubectl(&get).await;
            if words.iter().all(|word| text.contains(word)) { Ok(()) } else { Err(text) }
        })
        .await;
}

/// Waits until a queue is gone, and an Event says what became of its data.
async fn goes(ground: &Ground, queue: &str) {
    ground
        .cluster
        .wait_for(&ground.namespace, &format!("{queue} to be gone"), async || {
            let get = ["-n", &*ground.namespace, "get", "taskqueue", queue, "--ignore-not-found", "-o", "yaml"];
            let left = ground.cluster.kubectl(&get).await;
            if left.is_empty() { Ok(()) } else { Err(left) }
        })
        .await;
    let events = ["-n", &*ground.namespace, "get", "events", "--field-selector=reason=DataRetained", "-o"];
    ground
        .cluster
        .wait_for(&ground.namespace, "an Event that tells of the data", async || {
            let told = ground.cluster.kubectl(&[&events[..], &["jsonpath={.items[*].message}"]].concat()).await;
            if told.contains("stays in Redis") && told.contains("cannot read the object") { Ok(()) } else { Err(told) }
        })
        .await;
}

#[tokio::test]
async fn a_pool_or_a_queue_that_cannot_be_read_says_so_and_stops_no_other() {
    let ground = Ground::on(Ground::own_cluster().await, None).await;
    bend(&ground, "workerpools").await;
    bend(&ground, "taskqueues").await;
    let broken = |concurrency: Value| {
        let mut pool = super::ground::pool("broken", "q", json!({"replicas": 1, "drainTimeoutSeconds": 60}));
        pool["spec"]["concurrency"] = concurrency;
        pool["spec"]["handler"]["http"]["path"] = json!("/");
        pool
    };
    apply(&ground, broken(json!("many"))).await;
    let sideways = |mode: &str| json!({"kind": "TaskQueue", "metadata": {"name": "sideways"}, "spec": {"mode": mode}});
    apply(&ground, sideways("Sideways")).await;
    // Defaults are the schema's, which is gone: what they would have said is written out.
    let fields = json!({"replicas": 2, "concurrency": 1, "drainTimeoutSeconds": 60,
        "handler": {"type": "HTTP", "http": {"port": 8080, "path": "/"}}});
    ground.pool("waits", "sideways", fields.clone()).await;
    // One that is deleted before anybody could read it has a finalizer of ours that somebody has to take away.
    let mut stuck = sideways("Sideways");
    stuck["metadata"] = json!({"name": "stuck", "finalizers": ["windlass.dev/queue-data"]});
    ground.apply(stuck).await;
    ground.cluster.kubectl(&["-n", &ground.namespace, "delete", "taskqueue", "stuck", "--wait=false"]).await;
    ground.start_operator("windlass:one");

    // Both are there before the operator: neither keeps it from listing the others.
    ground.queue("q").await;
    ground.pool("fine", "q", fields).await;
    ground.replicas("fine", 2).await;
    says(&ground, "workerpool", "broken", &["NotUnderstood", "many"]).await;
    says(&ground, "taskqueue", "sideways", &["NotUnderstood", "Sideways"]).await;
    says(&ground, "workerpool", "waits", &["QueueNotReady", "cannot read"]).await;
    ground.cluster.kubectl(&["-n", &ground.namespace, "scale", "workerpool/fine", "--replicas=3"]).await;
    ground.replicas("fine", 3).await;

    // Mended, they go on by themselves.
    ground.apply(broken(json!(2))).await;
    ground.apply(sideways("Running")).await;
    ground.replicas("broken", 1).await;
    ground.replicas("waits", 2).await;
    let pools: Api<WorkerPool> = ground.pools();
    let understood = |found: Option<&WorkerPool>| {
        found
            .and_then(|pool| condition(pool.status.as_ref()?, "Ready"))
            .is_some_and(|(_, reason, _)| reason != "NotUnderstood")
    };
    ground.cluster.wait(&pools, "broken", "to be understood", understood).await;
    goes(&ground, "stuck").await;
}
