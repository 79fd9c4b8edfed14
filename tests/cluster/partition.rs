//! A node that is cut off. On a cluster of its own: the others' pods would not like it.

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use kube::api::Api;

use crate::kubernetes::Kubernetes;

fn is_ready(found: Option<&Node>) -> Option<bool> {
    let conditions = found?.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|one| one.type_ == "Ready").map(|one| one.status == "True")
}

/// The id of a pod's container.
fn container(pod: &Pod) -> Option<String> {
    let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
    statuses.first()?.container_id.as_ref()?.strip_prefix("containerd://").map(str::to_owned)
}

#[tokio::test]
async fn a_node_that_is_cut_off_or_frozen_is_lost_to_the_cluster_while_its_containers_go_on() {
    // This one also tells, where it is so, that pods cannot run here.
    if Kubernetes::our_nodes().await.is_none() {
        return;
    }
    let started = std::time::Instant::now();
    let cluster = Kubernetes::start_nodes().await;
    let client = cluster.client().await;
    let nodes: Api<Node> = Api::all(client.clone());
    for node in ["node1", "node2"] {
        cluster.wait(&nodes, node, "to be ready", |found| is_ready(found) == Some(true)).await;
    }
    eprintln!("measured: from nothing to two nodes that are Ready: {:.1} s", started.elapsed().as_secs_f64());
    let namespace = cluster.namespace().await;
    let manifest = "{apiVersion: v1, kind: Pod, metadata: {name: lonely}, spec: {nodeName: node2, containers: [{name: one, image: 'localhost/busybox:test', command: [sleep, '100000']}]}}";
    cluster.apply(&namespace, manifest).await;
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    let running =
        |found: Option<&Pod>| found.and_then(|found| found.status.as_ref()?.phase.as_deref()) == Some("Running");
    let pod = cluster.wait(&pods, "lonely", "to run", running).await.expect("it runs");
    let id = container(&pod).expect("a running container has an id");

    cluster.cut_off("node2").await;
    cluster.wait(&nodes, "node2", "to be taken for lost", |found| is_ready(found) == Some(false)).await;
    assert!(cluster.running_containers("node2").await.contains(&id), "its container goes on");
    cluster.reconnect("node2").await;
    cluster.wait(&nodes, "node2", "to come back", |found| is_ready(found) == Some(true)).await;

    cluster.freeze_kubelet("node2").await;
    cluster.wait(&nodes, "node2", "to be taken for lost", |found| is_ready(found) == Some(false)).await;
    assert!(cluster.running_containers("node2").await.contains(&id), "its container goes on");
    cluster.thaw_kubelet("node2").await;
    let back = cluster.wait(&nodes, "node2", "to come back", |found| is_ready(found) == Some(true)).await;
    assert_eq!(back.expect("it is there").name_any(), "node2");
}
