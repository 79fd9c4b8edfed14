//! Two queues on the same keys: the recorded owner wins, the other says so.

use windlass::broker::Broker;

use super::ground::{Ground, Operator, condition_of, define, grant, queue};
use crate::kubernetes::Kubernetes;

/// The annotation by which keys are taken over.
const TAKE_OVER_FROM: &str = "windlass.dev/take-over-from";

fn adopting(url: &str) -> String {
    format!(
        "{{broker: {{type: Redis, redis: {{url: \"{url}\"}}}}, keys: {{task: \"stream:task\", result: \"stream:result\"}}}}"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn two_queues_that_adopt_one_stream_are_told_apart_and_one_may_take_over() {
    let ground = Ground::new().await;
    let _operator = ground.operator().await;
    let spec = adopting(&ground.redis.url());
    ground.apply("first", &spec).await;
    ground.ready("first").await;
    ground.apply("second", &spec).await;
    let refused = ground.shows("second", "Provisioned", "False", "OwnedByAnother").await;
    let message = condition_of(&refused, "Ready").expect("there").message.clone();
    assert!(message.contains("/first/") && message.contains(TAKE_OVER_FROM), "{message}");
    ground.ready("first").await;

    let owner = ground.broker("first").owner().await.expect("answered").expect("an owner");
    let wrong = serde_json::json!({"metadata": {"annotations": {TAKE_OVER_FROM: "somebody"}}});
    ground.merge("second", wrong).await;
    let right = serde_json::json!({"metadata": {"annotations": {TAKE_OVER_FROM: owner}}});
    ground.merge("second", right).await;
    ground.ready("second").await;
    ground.told("second", "TakenOver").await;
    ground.shows("first", "Provisioned", "False", "OwnedByAnother").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_waits_for_a_stream_does_not_get_it_by_a_flush() {
    let ground = Ground::new().await;
    let _operator = ground.operator().await;
    let spec = adopting(&ground.redis.url());
    ground.apply("first", &spec).await;
    ground.ready("first").await;
    ground.apply("second", &spec).await;
    ground.shows("second", "Provisioned", "False", "OwnedByAnother").await;
    let owner = ground.broker("first").owner().await.expect("answered");

    // The second one is looked at before the patrol finds what is gone.
    ground.redis.command(&["FLUSHALL"]).await;
    ground.merge("second", serde_json::json!({"spec": {"retry": {"maxRetries": 5}}})).await;
    let generation = ground.queues().get("second").await.expect("there").metadata.generation;
    let looked = |found: Option<&windlass::crd::TaskQueue>| {
        let status = found.and_then(|queue| queue.status.as_ref());
        status.is_some_and(|status| status.observed_generation == generation)
    };
    ground.cluster.wait(&ground.queues(), "second", "to be looked at", looked).await;
    ground.shows("second", "Provisioned", "False", "OwnedByAnother").await;
    let back = async || match ground.broker("first").owner().await {
        Ok(found) if found == owner => Ok(()),
        other => Err(format!("{other:?}")),
    };
    ground.until("the first one to have it again", back).await;
    ground.shows("second", "Provisioned", "False", "OwnedByAnother").await;
    ground.ready("first").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_name_in_another_cluster_is_another_owner() {
    let ground = Ground::new().await;
    let _operator = ground.operator().await;
    ground.apply("emails", "{retry: {maxRetries: 7}}").await;
    ground.ready("emails").await;
    let owner = ground.broker("emails").owner().await.expect("answered");

    // Another cluster, in which the namespace happens to have the same name.
    let other = Kubernetes::start_api().await;
    define(&other).await;
    other.kubectl(&["create", "namespace", &ground.namespace]).await;
    grant(&other, &ground.namespace, None, |_| true).await;
    let url = ground.redis.url();
    let theirs = Operator::start(&other, &ground.namespace, &[("WINDLASS_REDIS_URL", &url)]).await;
    other.apply(&ground.namespace, &queue("emails", "{retry: {maxRetries: 1}}")).await;
    let queues: kube::Api<windlass::crd::TaskQueue> = kube::Api::namespaced(other.client().await, &ground.namespace);
    other
        .wait(&queues, "emails", "to say whose the keys are", |found| {
            found.and_then(|queue| condition_of(queue, "Provisioned")).is_some_and(|one| one.reason == "OwnedByAnother")
        })
        .await;
    let broker = ground.broker("emails");
    assert_eq!(broker.owner().await.expect("answered"), owner);
    assert_eq!(broker.policy().await.expect("there").retry.max_retries, 7);
    ground.ready("emails").await;
    drop(theirs);
}
