//! Who owns the number of pods, as the API server's managed fields tell, whoever asks for it.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use windlass::broker::Broker;

use super::ground::{Ground, task};

/// Who owns a field: its managers, each with the subresource that it wrote through.
fn owners(managed: &[ManagedFieldsEntry], pointer: &str) -> BTreeSet<String> {
    let owns = |entry: &&ManagedFieldsEntry| {
        entry.fields_v1.as_ref().is_some_and(|fields| fields.0.pointer(pointer).is_some())
    };
    let name = |entry: &ManagedFieldsEntry| {
        let through = entry.subresource.clone().unwrap_or_default();
        format!("{} {through}", entry.manager.clone().unwrap_or_default()).trim().to_owned()
    };
    managed.iter().filter(owns).map(name).collect()
}

/// How often the operator has looked at pools.
async fn looks(ground: &Ground) -> u64 {
    let said = ground.said();
    let served = said.lines().rev().find(|line| line.contains("probes and metrics are served")).expect("it serves");
    let address = served.rsplit_once("address=").expect("an address").1.trim().to_owned();
    let page = reqwest::get(format!("http://{address}/metrics")).await.expect("it answers");
    let text = page.text().await.expect("text");
    let of_pools = |line: &&str| {
        line.starts_with("windlass_operator_reconciliations_total{") && line.contains("kind=\"WorkerPool\"")
    };
    text.lines().filter(of_pools).filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
}

/// The Deployment has that many pods wanted by the operator alone; who wants them of the pool is somebody else; and
/// when the operator looks again, nothing changes any more.
async fn is_agreed(ground: &Ground, number: i32, asker: &str) {
    let deployment = ground.replicas("p", number).await;
    let expected: BTreeSet<String> = ["windlass-operator".to_owned()].into();
    assert_eq!(owners(deployment.managed_fields(), "/f:spec/f:replicas"), expected, "{asker}");
    let pool = ground.pools().get("p").await.expect("it is there");
    let askers = owners(pool.managed_fields(), "/f:spec/f:replicas");
    assert!(askers.contains(asker), "{asker}: {askers:?}");
    for entry in pool.managed_fields() {
        let ours = entry.manager.as_deref() == Some("windlass-operator");
        assert!(!ours || entry.subresource.as_deref() == Some("status"), "{asker}: the operator wrote a pool's spec");
    }
    for round in 0..3 {
        let before = looks(ground).await;
        let touch = Patch::Merge(json!({"metadata": {"annotations": {"touched": format!("{asker} {round}")}}}));
        ground.pools().patch("p", &PatchParams::default(), &touch).await.expect("touched");
        let looked = async || match looks(ground).await {
            now if now > before => Ok(()),
            now => Err(format!("{now} looks")),
        };
        ground.cluster.wait_for(&ground.namespace, "the operator to look again", looked).await;
    }
    let after = ground.deployments().get("p").await.expect("it is there");
    let pool_after = ground.pools().get("p").await.expect("it is there");
    assert_eq!(after.metadata.generation, deployment.metadata.generation, "{asker}: somebody changes the Deployment");
    assert_eq!(pool_after.metadata.generation, pool.metadata.generation, "{asker}: somebody changes the pool");
}

fn autoscaler(least: u32, most: u32) -> Value {
    json!({
        "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "p"},
        "spec": {
            "scaleTargetRef": {"apiVersion": "windlass.dev/v1alpha1", "kind": "WorkerPool", "name": "p"},
            "minReplicas": least, "maxReplicas": most,
            "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}}],
        },
    })
}

/// The bounds of a HorizontalPodAutoscaler move its target without metrics, of which there are none here.
#[tokio::test]
async fn an_autoscaler_of_kubernetes_moves_a_pool_up_and_down() {
    let ground = Ground::new().await;
    ground.queue("q").await;
    ground.pool("p", "q", json!({"replicas": 2})).await;
    is_agreed(&ground, 2, "tests").await;
    ground.cluster.apply(&ground.namespace, &autoscaler(4, 6).to_string()).await;
    is_agreed(&ground, 4, "kube-controller-manager scale").await;
    ground.cluster.apply(&ground.namespace, &autoscaler(1, 3).to_string()).await;
    is_agreed(&ground, 3, "kube-controller-manager scale").await;
    let said = ["-n", &ground.namespace, "get", "hpa", "p", "-o", "jsonpath={.status}"];
    let said = ground.cluster.kubectl(&said).await;
    assert!(!said.contains("InvalidSelector") && !said.contains("FailedGetScale"), "it can use /scale: {said}");
}

#[tokio::test]
async fn autoscaling_that_is_switched_on_and_off_leaves_one_owner_at_a_time() {
    let ground = Ground::new().await;
    ground.queue("q").await;
    let scaled = json!({"minReplicas": 0, "maxReplicas": 9, "tasksPerReplica": 10, "scaleDownAfterSeconds": 1});
    ground.pool("p", "q", json!({"replicas": 3})).await;
    is_agreed(&ground, 3, "tests").await;
    ground.pool("p", "q", json!({"replicas": 3, "autoscaling": scaled})).await;
    is_agreed(&ground, 0, "tests").await;
    let tasks: Vec<_> = (0..45).map(task).collect();
    ground.broker("q").enqueue(&tasks).await.expect("enqueued");
    is_agreed(&ground, 5, "tests").await;
    let refused = ["-n", &ground.namespace, "scale", "workerpool/p", "--replicas=7"];
    let said = ground.cluster.try_kubectl(&refused, "").await.expect_err("the number belongs to the autoscaler");
    assert!(said.contains("replicas belongs to the autoscaler"), "{said}");
    is_agreed(&ground, 5, "tests").await;
    ground.pool("p", "q", json!({"replicas": 3})).await;
    is_agreed(&ground, 3, "tests").await;
    ground.cluster.kubectl(&["-n", &ground.namespace, "scale", "workerpool/p", "--replicas=2"]).await;
    is_agreed(&ground, 2, "kubectl scale").await;
}
