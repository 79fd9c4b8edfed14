//! What becomes of a queue's data when its TaskQueue is deleted.

use kube::ResourceExt;
use kube::api::DeleteParams;
use serde_json::json;
use windlass::broker::{Broker, BrokerError, Outcome};
use windlass::{NewTask, TaskType};

use super::ground::Ground;

fn task() -> NewTask {
    NewTask::new(TaskType::new("send").expect("a type"), json!({}))
}

async fn delete(ground: &Ground, queue: &str) {
    ground.queues().delete(queue, &DeleteParams::default()).await.expect("it may be deleted");
}

/// Every key of a queue.
async fn keys(ground: &Ground, queue: &str) -> Vec<String> {
    let pattern = format!("*{}/{queue}}}*", &*ground.namespace);
    ground.redis.query(&["KEYS", &pattern]).await
}

/// closes: messaging-topology-operator#747 (pruning deletes messages)
#[tokio::test(flavor = "multi_thread")]
async fn by_default_the_data_stays_and_a_queue_of_the_same_name_finds_it() {
    let ground = Ground::new().await;
    let operator = ground.operator().await;
    ground.apply("emails", "{}").await;
    let first = ground.ready("emails").await;
    let broker = ground.broker("emails");
    broker.enqueue(&[task()]).await.expect("taken");
    delete(&ground, "emails").await;
    ground.gone("emails").await;
    operator.says("queue no longer looked after").await;
    assert_eq!(broker.counts().await.expect("still there").backlog, 1);
    ground.apply("emails", "{}").await;
    let second = ground.ready("emails").await;
    assert_ne!(first.uid(), second.uid());
    assert_eq!(broker.counts().await.expect("still there").backlog, 1);
    let owner = broker.owner().await.expect("answered").expect("an owner");
    assert!(owner.ends_with(&second.uid().expect("a UID")), "{owner}");
}

#[tokio::test(flavor = "multi_thread")]
async fn delete_takes_everything_that_is_the_queues_own() {
    let ground = Ground::new().await;
    let _operator = ground.operator().await;
    ground.apply("emails", "{deletionPolicy: Delete, retry: {maxRetries: 0}}").await;
    ground.apply("others", "{}").await;
    assert_eq!(ground.ready("emails").await.finalizers(), ["windlass.dev/queue-data"]);
    ground.ready("others").await;
    let broker = ground.broker("emails");
    for _ in 0..30 {
        let tasks: Vec<NewTask> = (0..100).map(|_| task()).collect();
        broker.enqueue(&tasks).await.expect("taken");
    }
    let worker = "w-1".parse().expect("an id");
    let any = windlass::protocol::names::Capabilities::any();
    let request = || windlass::broker::ClaimRequest { worker: &worker, capabilities: &any, limit: 100, recover: None };
    let claimed = broker.claim(request()).await.expect("claimed").tasks;
    let fail = |task: windlass::broker::ClaimedTask| windlass::broker::Settlement {
        lease: task.lease,
        outcome: Outcome::failure("broken", "it broke"),
        dice: windlass::protocol::backoff::Dice(0),
    };
    let failed: Vec<_> = claimed.into_iter().map(fail).collect();
    broker.settle(&failed, request()).await.expect("settled");
    assert!(keys(&ground, "emails").await.len() > 20);
    delete(&ground, "emails").await;
    ground.gone("emails").await;
    let left = keys(&ground, "emails").await;
    assert!(left.is_empty(), "{left:?}");
    assert!(matches!(broker.policy().await, Err(BrokerError::NoQueue(_))));
    ground.told("emails", "DataRemoved").await;
    assert!(!keys(&ground, "others").await.is_empty());
    ground.ready("others").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn delete_leaves_adopted_streams_to_those_who_had_them() {
    let ground = Ground::new().await;
    let _operator = ground.operator().await;
    ground.redis.command(&["XADD", "stream:task", "1-1", "task_id", "old", "payload", "{}"]).await;
    let url = ground.redis.url();
    let spec = format!(
        "{{deletionPolicy: Delete, broker: {{type: Redis, redis: {{url: \"{url}\"}}}}, keys: {{task: \"stream:task\"}}}}"
    );
    ground.apply("emails", &spec).await;
    ground.ready("emails").await;
    delete(&ground, "emails").await;
    ground.gone("emails").await;
    let left: Vec<String> = ground.redis.query(&["KEYS", "*"]).await;
    assert_eq!(left, ["stream:task"]);
    let groups: Vec<redis::Value> = ground.redis.query(&["XINFO", "GROUPS", "stream:task"]).await;
    assert!(groups.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn delete_if_empty_looks_before_it_deletes() {
    let ground = Ground::new().await;
    let _operator = ground.operator().await;
    for name in ["empty", "full"] {
        ground.apply(name, "{deletionPolicy: DeleteIfEmpty}").await;
        ground.ready(name).await;
    }
    ground.broker("full").enqueue(&[task()]).await.expect("taken");
    for name in ["empty", "full"] {
        delete(&ground, name).await;
        ground.gone(name).await;
    }
    assert!(keys(&ground, "empty").await.is_empty());
    assert_eq!(ground.broker("full").counts().await.expect("still there").backlog, 1);
    assert!(ground.told("full", "DataRetained").await.contains("1 live tasks"));
}

/// closes: keda#7950, messaging-topology-operator#1206 (a finalizer hangs when the broker is gone)
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_redis_does_not_keep_an_object_from_going() {
    let ground = Ground::new().await;
    let _operator = ground.operator().await;
    ground.apply("emails", "{deletionPolicy: Delete}").await;
    ground.ready("emails").await;
    ground.redis.kill9();
    delete(&ground, "emails").await;
    let began = std::time::Instant::now();
    ground.gone("emails").await;
    eprintln!("Redis dead, object gone after {:?}", began.elapsed());
    assert!(ground.told("emails", "DataRetained").await.contains("could not be removed"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_finalizer_follows_the_policy() {
    let ground = Ground::new().await;
    let _operator = ground.operator().await;
    ground.apply("emails", "{deletionPolicy: Delete}").await;
    assert_eq!(ground.ready("emails").await.finalizers().len(), 1);
    ground.apply("emails", "{deletionPolicy: Retain}").await;
    let none = |found: Option<&windlass::crd::TaskQueue>| found.is_some_and(|queue| queue.finalizers().is_empty());
    ground.cluster.wait(&ground.queues(), "emails", "to have no finalizer", none).await;
}
