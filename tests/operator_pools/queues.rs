//! A pool and the queue that it may not have yet, or not any more.

use kube::api::{Api, DeleteParams};
use serde_json::json;
use windlass::crd::TaskQueue;

use super::ground::{Ground, replicas};
use crate::support::servers::{Flavor, Server};

#[tokio::test]
async fn a_pool_waits_for_its_queue_and_goes_on_by_itself() {
    let ground = Ground::new().await;
    ground.pool("p", "later", json!({"replicas": 2})).await;
    let message = ground.condition("p", "QueueResolved", "False", "QueueNotFound").await;
    assert!(message.contains("create it, or name another one"), "{message}");
    ground.condition("p", "TemplateAccepted", "Unknown", "NotJudged").await;
    assert!(ground.deployments().get_opt("p").await.expect("answered").is_none());
    ground.queue("later").await;
    ground.replicas("p", 2).await;
    ground.condition("p", "QueueResolved", "True", "QueueFound").await;
}

#[tokio::test]
async fn a_queue_that_is_gone_leaves_the_pods_and_one_on_another_redis_rolls_them() {
    let ground = Ground::new().await;
    ground.queue("q").await;
    ground.pool("p", "q", json!({"replicas": 2})).await;
    let before = ground.replicas("p", 2).await;
    let queues: Api<TaskQueue> = Api::namespaced(ground.client.clone(), &ground.namespace);
    queues.delete("q", &DeleteParams::default()).await.expect("deleted");
    ground.condition("p", "QueueResolved", "False", "QueueNotFound").await;
    let during = ground.deployments().get("p").await.expect("there");
    assert_eq!((replicas(&during), during.metadata.generation), (2, before.metadata.generation), "the pods stay");

    let other = Server::start(Flavor::Redis70).await;
    let url = format!("redis://127.0.0.1:{}", other.port());
    let broker = json!({"type": "Redis", "redis": {"url": url}});
    ground.apply(json!({"kind": "TaskQueue", "metadata": {"name": "q"}, "spec": {"broker": broker}})).await;
    ground.condition("p", "QueueResolved", "True", "QueueFound").await;
    let told = |found: &k8s_openapi::api::apps::v1::Deployment| {
        let pod = found.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
        let variables = pod.into_iter().flat_map(|pod| &pod.containers[0].env).flatten();
        variables.filter(|one| one.name == "WINDLASS_REDIS_URL").any(|one| one.value.as_deref() == Some(url.as_str()))
    };
    ground.deployment("p", "to name the other Redis", told).await;
}

#[tokio::test]
async fn a_password_is_named_and_never_written_and_its_change_rolls_the_pods() {
    let ground = Ground::new().await;
    let server = Server::builder(Flavor::Redis70).password("first").start().await;
    let secret = |password: &str| {
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "redis"},
               "stringData": {"url": format!("redis://:{password}@127.0.0.1:{}", server.port())}})
    };
    ground.cluster.apply(&ground.namespace, &secret("first").to_string()).await;
    let broker = json!({"type": "Redis", "redis": {"urlSecretRef": {"name": "redis", "key": "url"}}});
    ground.apply(json!({"kind": "TaskQueue", "metadata": {"name": "q"}, "spec": {"broker": broker}})).await;
    ground.ready_queue("q").await;
    ground.pool("p", "q", json!({})).await;
    let before = ground.replicas("p", 1).await;
    let text = serde_json::to_string(&before).expect("plain data");
    assert!(text.contains("secretKeyRef") && !text.contains("first"), "{text}");
    assert!(!ground.said().contains("first"), "no log tells it either");

    server.command(&["CONFIG", "SET", "requirepass", "second"]).await;
    ground.cluster.apply(&ground.namespace, &secret("second").to_string()).await;
    let rolled =
        |found: &k8s_openapi::api::apps::v1::Deployment| found.metadata.generation > before.metadata.generation;
    ground.deployment("p", "to roll", rolled).await;
}

#[tokio::test]
async fn the_operators_own_password_is_not_handed_on() {
    let ground = Ground::without_operator().await;
    ground.redis.command(&["ACL", "SETUSER", "operator", "on", ">other", "~*", "&*", "+@all"]).await;
    ground.redis.command(&["CONFIG", "SET", "requirepass", "mine"]).await;
    ground.start_operator_on(&format!("redis://:mine@127.0.0.1:{}", ground.redis.port()), "windlass:one");
    ground.apply(json!({"kind": "TaskQueue", "metadata": {"name": "q"}, "spec": {}})).await;
    ground.ready_queue("q").await;
    ground.pool("p", "q", json!({})).await;
    let message = ground.condition("p", "QueueResolved", "False", "NoCredentials").await;
    assert!(message.contains("windlass-redis") && message.contains("create it"), "{message}");
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "windlass-redis"},
        "stringData": {"url": format!("redis://:theirs@127.0.0.1:{}", ground.redis.port())}});
    ground.cluster.apply(&ground.namespace, &secret.to_string()).await;
    let made = ground.replicas("p", 1).await;
    let text = serde_json::to_string(&made).expect("plain data");
    assert!(text.contains("windlass-redis") && !text.contains("mine@") && !text.contains("theirs"), "{text}");

    // It may change without anybody else noticing: pods have their own.
    ground.stop_operator();
    ground.start_operator_on(&format!("redis://operator:other@127.0.0.1:{}", ground.redis.port()), "windlass:one");
    let paused = json!({"kind": "TaskQueue", "metadata": {"name": "q"}, "spec": {"mode": "Paused"}});
    ground.apply(paused).await;
    let queues: Api<TaskQueue> = Api::namespaced(ground.client.clone(), &ground.namespace);
    let seen = |queue: Option<&TaskQueue>| {
        let status = queue.and_then(|queue| queue.status.as_ref());
        status.is_some_and(|status| {
            status.observed_generation == Some(2)
                && status.conditions.iter().any(|one| one.type_ == "Ready" && one.status == "True")
        })
    };
    ground.cluster.wait(&queues, "q", "to be looked after by the new operator", seen).await;
    ground.cluster.kubectl(&["-n", &ground.namespace, "scale", "workerpool/p", "--replicas=2"]).await;
    let template = |made: &k8s_openapi::api::apps::v1::Deployment| made.spec.clone().map(|spec| spec.template);
    assert_eq!(template(&ground.replicas("p", 2).await), template(&made), "no pod is replaced");
}
