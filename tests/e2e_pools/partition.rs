//! A node that is cut off. On a cluster of its own: the others' pods would not like it.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::json;

use super::stage::{Stage, Watch};
use crate::kubernetes::Kubernetes;

#[tokio::test]
async fn tasks_on_a_node_that_is_cut_off_come_back_by_the_clock_and_run_once_for_all_that_counts() {
    if Kubernetes::our_nodes().await.is_none() {
        return;
    }
    let cluster = Kubernetes::start_nodes().await;
    let stage = Stage::on(&cluster).await;
    let reclaim = json!({"causes": ["VisibilityTimeout", "WorkerLost", "PodGone"], "workerLostAfterSeconds": 15});
    stage.queue(json!({"visibilityTimeoutSeconds": 30, "heartbeatPeriodSeconds": 5, "reclaim": reclaim})).await;
    // One pod a node; what is on node2 is lost with it.
    let spread = json!([{"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule",
                         "labelSelector": {"matchLabels": {"windlass.dev/pool": "p"}}}]);
    let template = json!({"spec": {"containers": [super::stage::application()], "topologySpreadConstraints": spread}});
    stage.pool("p", json!({"replicas": 2, "concurrency": 200, "template": template})).await;
    stage.ready("p", 2).await;
    stage.enqueue(200, 20.0).await;
    stage.running(200).await;
    let (held, pods) = (stage.held().await, stage.pods_of("p").await);
    let on_node2 = |pod: &&Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some("node2");
    let lost = pods.iter().find(on_node2).expect("one pod a node").name_any();
    eprintln!("before: {held:?}; {lost} will be lost");
    assert!(held.get(&lost).is_some_and(|number| *number > 0), "{lost} holds some");
    let watch = Watch::start();
    cluster.cut_off("node2").await;
    let done = stage.all_done(200).await;
    watch.read("a node cut off: until all 200 tasks were done");
    assert!(done.iter().all(|task| task["retryCount"] == 0));
    let said = stage.said().await;
    assert!(!said.contains("a dead worker's tasks were taken back"), "a node that is silent proves nothing: {said}");
    cluster.reconnect("node2").await;
    // The lost worker has kept how its attempts ended, and tells as soon as it reaches Redis: that it was taken for
    // gone, or that each of them comes too late. Only then is there anything to count.
    let refused = ["the attempt came too late and was not counted", "the worker was taken for gone: it ends"];
    cluster
        .wait_for(&stage.namespace, "the lost worker to be heard and refused", async || {
            let mut said = String::new();
            for previous in ["--previous=false", "--previous=true"] {
                let logs = ["-n", &*stage.namespace, "logs", &lost, "-c", "windlass-worker", "--tail=-1", previous];
                said += &cluster.try_kubectl(&logs, "").await.unwrap_or_else(|error| error);
            }
            if refused.iter().any(|words| said.contains(words)) { Ok(()) } else { Err(said) }
        })
        .await;
    stage.until("nothing to be left", |seen| seen["finished"] == 200 && seen["running"] == 0).await;
    let results = stage.redis(&["XLEN", &format!("windlass:{{{}/q}}:result", &*stage.namespace)]).await;
    assert_eq!(results.trim(), "200", "what the lost node still had to say was refused");
}
