//! Secrets are read by name, and rotated without a restart.

use serde_json::json;
use windlass::broker::Broker;
use windlass::broker::redis::{RedisBroker, RedisOptions};
use windlass::protocol::keys::Keys;

use super::ground::{Ground, condition_of};
use crate::support::servers::{Flavor, Server};

fn secret(name: &str, url: &str) -> String {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": {"url": url}}).to_string()
}

const SPEC: &str = "{broker: {type: Redis, redis: {urlSecretRef: {name: redis, key: url}}}}";

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_waits_for_its_secret() {
    let ground = Ground::new().await;
    let _operator = ground.operator_with(&[("WINDLASS_REDIS_URL", "")]).await;
    ground.apply("emails", SPEC).await;
    let queue = ground.shows("emails", "Ready", "False", "SecretNotFound").await;
    assert!(condition_of(&queue, "Ready").expect("there").message.contains("Secret redis does not exist"));
    let lacking =
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "redis"}, "stringData": {"uri": "x"}});
    ground.cluster.apply(&ground.namespace, &lacking.to_string()).await;
    ground.shows("emails", "Ready", "False", "SecretKeyMissing").await;
    ground.cluster.apply(&ground.namespace, &secret("redis", "nonsense")).await;
    ground.shows("emails", "Ready", "False", "InvalidUrl").await;
    ground.cluster.apply(&ground.namespace, &secret("redis", &ground.redis.url())).await;
    ground.ready("emails").await;
}

/// The old password ends at once, also for connections that were let in with it.
async fn change_password(redis: &Server, after: &str) {
    redis.command(&["CONFIG", "SET", "requirepass", after]).await;
    let killer = redis::Client::open(url(redis, after)).expect("a URL");
    let mut killer = killer.get_multiplexed_async_connection().await.expect("the new password works");
    let kill = ["KILL", "TYPE", "normal", "SKIPME", "yes"];
    let _: redis::Value = redis::cmd("CLIENT").arg(&kill).query_async(&mut killer).await.expect("killed");
}

fn url(redis: &Server, password: &str) -> String {
    format!("redis://:{password}@127.0.0.1:{}", redis.port())
}

/// closes: keda#7906 (a Secret that was rotated stays in use)
#[tokio::test(flavor = "multi_thread")]
async fn a_rotated_password_is_taken_up_without_a_restart() {
    let redis = Server::builder(Flavor::Redis70).aof_always().password("before").start().await;
    let ground = Ground::with(redis).await;
    let operator = ground.operator_with(&[("WINDLASS_REDIS_URL", "")]).await;
    ground.cluster.apply(&ground.namespace, &secret("redis", &url(&ground.redis, "before"))).await;
    ground.apply("emails", SPEC).await;
    ground.ready("emails").await;

    change_password(&ground.redis, "after").await;
    let denied = ground.shows("emails", "Ready", "False", "AccessDenied").await;
    let text = serde_json::to_string(&denied.status).expect("JSON");
    assert!(!text.contains("before") && !text.contains("after@"), "{text}");
    ground.cluster.apply(&ground.namespace, &secret("redis", &url(&ground.redis, "after"))).await;
    ground.ready("emails").await;
    let options = RedisOptions::new(url(&ground.redis, "after"));
    let broker = RedisBroker::new(Keys::new(&ground.name("emails")), options).expect("a URL");
    broker.policy().await.expect("the queue is there");
    assert!(operator.is_running());
    assert!(!operator.log().contains("before@") && !operator.log().contains("after@"), "no credential in a log");
}

/// closes: keda#7906, for the operator's own Redis: its Secret is a file in the pod, which the kubelet changes in place
#[tokio::test(flavor = "multi_thread")]
async fn a_rotated_password_of_the_operators_own_redis_is_taken_up_without_a_restart() {
    let redis = Server::builder(Flavor::Redis70).aof_always().password("before").start().await;
    let ground = Ground::with(redis).await;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("url");
    std::fs::write(&file, url(&ground.redis, "before")).expect("written");
    let named = format!("file://{}", file.display());
    let operator = ground.operator_with(&[("WINDLASS_REDIS_URL", &named)]).await;
    ground.apply("emails", "{}").await;
    ground.ready("emails").await;

    change_password(&ground.redis, "after").await;
    ground.shows("emails", "Ready", "False", "AccessDenied").await;
    std::fs::write(&file, url(&ground.redis, "after") + "\n").expect("written");
    ground.ready("emails").await;
    assert!(operator.is_running());
    assert!(!operator.log().contains("before@") && !operator.log().contains("after@"), "no credential in a log");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_that_names_another_redis_moves_the_queue_there() {
    let ground = Ground::new().await;
    let other = Server::builder(Flavor::Redis70).aof_always().start().await;
    let _operator = ground.operator_with(&[("WINDLASS_REDIS_URL", "")]).await;
    ground.cluster.apply(&ground.namespace, &secret("redis", &ground.redis.url())).await;
    ground.apply("emails", SPEC).await;
    ground.ready("emails").await;
    ground.cluster.apply(&ground.namespace, &secret("redis", &other.url())).await;
    let broker = ground.broker_on(&other, "emails");
    let took = ground
        .until("the queue on the other Redis", async || {
            broker.policy().await.map(drop).map_err(|error| error.to_string())
        })
        .await;
    eprintln!("a changed Secret was taken up after {took:?}");
    ground.ready("emails").await;
}
