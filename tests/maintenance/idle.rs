//! Queues in which nothing happens cost next to nothing, and wake at once.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use windlass::NewTask;
use windlass::broker::Broker;
use windlass::maintenance::Queue;
use windlass::maintenance::metrics::LoopMetrics;
use windlass::maintenance::runner::Runner;
use windlass::protocol::keys::Keys;
use windlass::protocol::policy::Policy;
use windlass::protocol::task::NotBefore;

use crate::support::servers::{Flavor, Server};
use crate::support::{fresh_queue, owner};
use windlass::broker::redis::{Redis, RedisOptions};

async fn commands(server: &Server) -> u64 {
    server.info("stats").await["total_commands_processed"].parse().expect("a number")
}

/// Closes: "every queue polls": idle queues are looked at once and then left alone,
/// until a script tells that one of them has something to do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_queues_are_left_alone_until_one_has_something_to_do() {
    const QUEUES: usize = 300;
    let server = Server::start(Flavor::Redis70).await;
    let redis = Redis::new(RedisOptions::new(server.url())).expect("a usable URL");
    let metrics = LoopMetrics::default();
    let mut runner = Runner::start(metrics.clone());
    runner.listen(redis.notices());
    let mut queues = Vec::new();
    for _ in 0..QUEUES {
        let name = fresh_queue();
        let broker = Arc::new(redis.queue(Keys::new(&name)).expect("usable keys"));
        broker.provision(&owner(), &Policy::default()).await.expect("the queue is made");
        runner.add(broker.keys().prefix(), Queue::new(name, broker.clone(), None)).await;
        queues.push(broker);
    }
    // Until all were looked at, and next to nothing is asked any more.
    let since = Instant::now();
    let mut before = commands(&server).await;
    loop {
        sleep(Duration::from_secs(1)).await;
        let now = commands(&server).await;
        if now - before < (QUEUES / 10) as u64
            && queues.iter().all(|queue| runner.counts(queue.keys().prefix()).is_some())
        {
            break;
        }
        assert!(since.elapsed() < Duration::from_secs(60), "{} commands a second for idle queues", now - before);
        before = now;
    }
    let connections: usize = server.info("clients").await["connected_clients"].parse().expect("a number");
    assert!(connections < 10, "{QUEUES} queues share few connections, not {connections}");

    // A task that is due in a moment is brought back though nobody claims.
    let mut task = NewTask::new("send".parse().expect("valid"), serde_json::json!(1));
    task.not_before = NotBefore::After(Duration::from_millis(300));
    queues[7].enqueue(&[task]).await.expect("taken");
    let since = Instant::now();
    while queues[7].counts().await.expect("counted").backlog == 0 {
        assert!(since.elapsed() < Duration::from_secs(60), "nobody promoted the task");
        sleep(Duration::from_millis(20)).await;
    }
}

/// What no notice tells must be seen at a glance: raw entries, and a queue that is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_glance_tells_an_untouched_queue_from_one_that_something_came_to() {
    let server = Server::start(Flavor::Redis70).await;
    let redis = Redis::new(RedisOptions::new(server.url())).expect("a usable URL");
    let broker = redis.queue(Keys::new(&fresh_queue())).expect("usable keys");
    broker.provision(&owner(), &Policy::default()).await.expect("the queue is made");
    let untouched = broker.glance().await.expect("seen");
    assert!(untouched.is_some());
    assert_eq!(broker.glance().await.expect("seen"), untouched, "nothing happened");

    let task = NewTask::new("send".parse().expect("valid"), serde_json::json!(1));
    let enqueued = broker.enqueue(&[task]).await.expect("taken");
    assert_ne!(broker.glance().await.expect("seen"), untouched, "a task came");
    broker.cancel(&enqueued[0].id, "not needed").await.expect("cancelled");
    assert_eq!(broker.glance().await.expect("seen"), untouched, "and went");

    let fields = ["task_id", "raw-1", "tool_name", "send", "payload", "1"];
    server.command(&[&["XADD", broker.keys().task.as_str(), "*"][..], &fields[..]].concat()).await;
    assert_ne!(broker.glance().await.expect("seen"), untouched, "a raw entry came");
    server.command(&["FLUSHALL"]).await;
    assert_ne!(broker.glance().await.expect("seen"), untouched, "the queue is gone");
}
