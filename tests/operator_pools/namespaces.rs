//! Pools in one namespace, in some, or in all: each has its own watches, and its own pods.

use k8s_openapi::api::apps::v1::Deployment;
use kube::api::{Api, DeleteParams};
use serde_json::json;
use windlass::State;
use windlass::protocol::state::RetryReason;

use super::ground::{Ground, chart};

/// Gives the operator of a ground the chart's rights in these namespaces, or in all.
async fn grant(ground: &Ground, watched: &[&str]) {
    for document in chart(ground.cluster, &ground.namespace, watched).await {
        let apply = ["apply", "--server-side", "--force-conflicts", "--field-manager=tests", "-f", "-"];
        ground.cluster.try_kubectl(&apply, &document.to_string()).await.expect("granted");
    }
}

/// A pool with two pods and their workers, of which one dies: its tasks come back, the other's stay.
async fn a_pool_lives_and_loses_a_pod(ground: &Ground) {
    ground.pool("p", "q", json!({"replicas": 2})).await;
    let pods = ground.pods_of("p", 2).await;
    let running = json!({"state": {"running": {"startedAt": jiff::Timestamp::now().to_string()}}, "ready": true});
    let mut workers = Vec::new();
    for pod in &pods {
        ground.kubelet_says(pod, "Running", running.clone()).await;
        workers.push(ground.worker("q", pod, "p", 2).await);
    }
    let force = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    let name = pods[0].metadata.name.clone().expect("a name");
    ground.pods().delete(&name, &force).await.expect("deleted");
    for task in &workers[0].held {
        let seen = ground.task("q", &task.lease.task, "to come back", |seen| seen.state == State::Retrying).await;
        assert_eq!(seen.retry_reason, Some(RetryReason::PodForceDeleted));
    }
    for task in &workers[1].held {
        assert_eq!(ground.view("q", &task.lease.task).await.state, State::Running, "the other pod keeps its own");
    }
}

#[tokio::test]
async fn pools_of_some_namespaces_or_of_all_are_looked_after_and_no_others() {
    // An operator for all namespaces would be felt by the other tests.
    let cluster = Ground::own_cluster().await;
    let (first, second, third) =
        (Ground::on(cluster, None).await, Ground::on(cluster, None).await, Ground::on(cluster, None).await);
    for ground in [&first, &second, &third] {
        let broker = json!({"type": "Redis", "redis": {"url": ground.redis.url()}});
        ground.apply(json!({"kind": "TaskQueue", "metadata": {"name": "q"}, "spec": {"broker": broker}})).await;
    }
    let both = [&*first.namespace, &*second.namespace];
    grant(&first, &both).await;
    first.start_operator_for(Some(&both.join(",")), &first.redis.url(), "windlass:one");
    third.pool("p", "q", json!({"replicas": 2})).await;
    for ground in [&first, &second] {
        ground.ready_queue("q").await;
        a_pool_lives_and_loses_a_pod(ground).await;
    }
    assert_eq!(third.pools().get("p").await.expect("there").status, None, "nobody was asked to look after it");
    let theirs: Api<Deployment> = third.deployments();
    assert!(theirs.list(&Default::default()).await.expect("listed").items.is_empty());

    // The same operator for all of them finds what it had, and what it had not.
    first.stop_operator();
    grant(&first, &[]).await;
    first.start_operator_for(None, &first.redis.url(), "windlass:one");
    third.ready_queue("q").await;
    a_pool_lives_and_loses_a_pod(&third).await;
    for ground in [&first, &second] {
        ground.cluster.kubectl(&["-n", &ground.namespace, "scale", "workerpool/p", "--replicas=3"]).await;
        ground.replicas("p", 3).await;
    }
}
