//! Redis hangs: its port is open, and nobody answers.

use kube::ResourceExt;
use kube::api::Api;
use serde_json::json;
use windlass::crd::WorkerPool;

use super::stage::{Stage, Watch};

#[tokio::test]
async fn while_redis_hangs_nothing_restarts_and_then_everything_goes_on() {
    let Some(stage) = Stage::shared().await else { return };
    stage.queue(json!({})).await;
    // Both pods stay until they were seen, however slowly they start.
    let autoscaling = json!({"minReplicas": 0, "maxReplicas": 2, "tasksPerReplica": 10, "scaleDownAfterSeconds": 60});
    stage.pool("p", json!({"autoscaling": autoscaling, "concurrency": 5})).await;
    stage.enqueue(60, 2.0).await;
    stage.ready("p", 2).await;
    let before = stage.deployment("p", "to be there", |_| true).await;
    let names: std::collections::BTreeSet<String> =
        stage.pods_of("p").await.iter().map(ResourceExt::name_any).collect();
    let watch = Watch::start();
    stage.redis(&["CLIENT", "PAUSE", "40000", "ALL"]).await;
    let pools: Api<WorkerPool> = Api::namespaced(stage.client.clone(), &stage.namespace);
    let unknown = |found: Option<&WorkerPool>| {
        let conditions = found.and_then(|pool| pool.status.as_ref()).map(|status| &status.conditions);
        conditions
            .is_some_and(|all| all.iter().any(|one| one.type_ == "ScalingActive" && one.reason == "DemandUnknown"))
    };
    stage.cluster.wait(&pools, "p", "to say that nothing is known", unknown).await;
    watch.read("Redis hangs: until the pool's conditions told");
    let is_back = |found: Option<&WorkerPool>| !unknown(found);
    stage.cluster.wait(&pools, "p", "to know again", is_back).await;
    watch.read("Redis hangs for 40 s: until the pool's conditions told that it is back");
    let during = stage.deployment("p", "to be there", |_| true).await;
    let changed = |of: &k8s_openapi::api::apps::v1::Deployment| of.spec.as_ref().map(|spec| spec.template.clone());
    assert_eq!(changed(&during), changed(&before));
    for pod in stage.pods_of("p").await {
        assert!(names.contains(&pod.name_any()), "{} is new", pod.name_any());
        let status = pod.status.expect("a status");
        let all = status.container_statuses.iter().chain(&status.init_container_statuses).flatten();
        assert!(all.into_iter().all(|one| one.restart_count == 0), "a container was restarted");
    }
    stage.all_done(60).await;
}
