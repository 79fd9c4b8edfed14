//! What keeps a queue from its Redis, or puts it at risk there, is said in its conditions.

use windlass::broker::Broker;

use super::ground::{Ground, condition_of};
use crate::support::servers::{Cluster, Flavor, Server};

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_without_a_broker_needs_a_default() {
    let ground = Ground::new().await;
    let _operator = ground.operator_with(&[("WINDLASS_REDIS_URL", "")]).await;
    ground.apply("emails", "{}").await;
    let queue = ground.shows("emails", "Ready", "False", "NoDefaultBroker").await;
    let message = &condition_of(&queue, "BrokerConnected").expect("there").message;
    assert!(message.contains("WINDLASS_REDIS_URL"), "{message}");

    let url = ground.redis.url();
    ground.apply("own", &format!("{{broker: {{type: Redis, redis: {{url: \"{url}\"}}}}}}")).await;
    ground.ready("own").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_dead_redis_leaves_the_queues_on_others_alone() {
    let ground = Ground::new().await;
    let _operator = ground.operator().await;
    for number in 0..5 {
        let spec = "{broker: {type: Redis, redis: {url: \"redis://127.0.0.1:1\"}}}";
        ground.apply(&format!("dead{number}"), spec).await;
    }
    ground.apply("alive", "{}").await;
    ground.ready("alive").await;
    let dead = ground.shows("dead3", "BrokerConnected", "False", "BrokerUnreachable").await;
    assert!(condition_of(&dead, "BrokerConnected").expect("there").message.contains("127.0.0.1:1"));
}

/// closes: asynq#799 (queue data is evicted)
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_may_delete_tasks_degrades_its_queues() {
    let redis = Server::builder(Flavor::Redis70).aof_always().maxmemory("100mb", "allkeys-lru").start().await;
    let ground = Ground::with(redis).await;
    let _operator = ground.operator().await;
    ground.apply("emails", "{}").await;
    ground.ready("emails").await;
    let queue = ground.shows("emails", "Degraded", "True", "EvictionPolicy").await;
    assert!(condition_of(&queue, "Degraded").expect("there").message.contains("noeviction"));
    ground.redis.command(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]).await;
    ground.shows("emails", "Degraded", "False", "AsExpected").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn adopted_names_without_a_common_tag_are_refused_on_a_cluster_and_work_with_one() {
    let ground = Ground::new().await;
    let cluster = Cluster::start(Flavor::Redis70, 3).await;
    let _operator = ground.operator().await;
    let hosts: Vec<String> = cluster.nodes().iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
    let hosts = hosts.join(",");
    let broker = format!("broker: {{type: Redis, redis: {{url: \"redis://{hosts}\", topology: Cluster}}}}");
    let keys = "keys: {task: \"stream:task\", result: \"stream:result\", deadLetter: \"stream:dlq\"}";
    ground.apply("apart", &format!("{{{broker}, {keys}}}")).await;
    let queue = ground.shows("apart", "Provisioned", "False", "NoCommonHashTag").await;
    assert!(condition_of(&queue, "Ready").expect("there").message.contains("hash tag"));
    let keys = "keys: {task: \"{orders}:task\", result: \"{orders}:result\", deadLetter: \"{orders}:dlq\"}";
    ground.apply("together", &format!("{{{broker}, {keys}}}")).await;
    ground.ready("together").await;
    ground.apply("own", &format!("{{{broker}}}")).await;
    ground.ready("own").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_is_no_stream_is_named() {
    let ground = Ground::new().await;
    let _operator = ground.operator().await;
    ground.redis.command(&["SET", "stream:task", "text"]).await;
    let url = ground.redis.url();
    let spec = format!("{{broker: {{type: Redis, redis: {{url: \"{url}\"}}}}, keys: {{task: \"stream:task\"}}}}");
    ground.apply("emails", &spec).await;
    let queue = ground.shows("emails", "Provisioned", "False", "NotAStream").await;
    assert!(condition_of(&queue, "Provisioned").expect("there").message.contains("stream:task"));
    let kept: String = ground.redis.query(&["GET", "stream:task"]).await;
    assert_eq!(kept, "text");
}

#[tokio::test(flavor = "multi_thread")]
async fn history_is_recorded_where_there_is_an_event_log_and_missed_where_it_is_away() {
    let ground = Ground::new().await;
    let dir = tempfile::tempdir().expect("a directory");
    let url = format!("sqlite://{}", dir.path().join("events.db").display());
    let operator = ground.operator_with(&[("WINDLASS_EVENT_LOG_URL", &url)]).await;
    ground.apply("emails", "{}").await;
    ground.ready("emails").await;
    ground.shows("emails", "EventLogRecording", "True", "Recording").await;
    assert_eq!(
        ground.broker("emails").policy().await.expect("there").events,
        windlass::protocol::policy::EventRecording::On
    );
    operator.signal("TERM");
    operator.ended().await;
    let away = "postgres://nobody:nothing@127.0.0.1:1/none";
    let _operator = ground.operator_with(&[("WINDLASS_EVENT_LOG_URL", away)]).await;
    ground.shows("emails", "EventLogRecording", "False", "EventLogUnavailable").await;
    let queue = ground.shows("emails", "Degraded", "True", "EventLogUnavailable").await;
    let text = serde_json::to_string(&queue.status).expect("JSON");
    assert!(!text.contains("nothing@"), "no credential in a status: {text}");
    ground.ready("emails").await;
}
