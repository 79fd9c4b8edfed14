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
    // Until all were looked at, and nothing more is asked.
    let mut quiet_since = Instant::now();
    let mut before = commands(&server).await;
    while quiet_since.elapsed() < Duration::from_secs(3) {
        sleep(Duration::from_millis(250)).await;
        let now = commands(&server).await;
        if now - before > 1 {
            quiet_since = Instant::now();
        }
        before = now;
    }
    for queue in &queues {
        assert!(runner.counts(queue.keys().prefix()).is_some(), "every queue was looked at");
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
