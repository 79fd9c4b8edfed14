//! What survives, and who may use a data directory.

use std::net::TcpListener;

use serde_json::json;
use windlass::State;

use super::ground::{Ground, is_alive, manifest, parent_of, queue, send};
use crate::support::servers::{Flavor, Server};

#[tokio::test(flavor = "multi_thread")]
async fn tasks_and_history_survive_a_restart() {
    let ground = Ground::new(&queue("q", "{mode: Paused}"));
    let dev = ground.start().await;
    let url = ground.redis_url();
    let id = ground.queue("q").enqueue("a", json!({"n": 1})).await;
    dev.stop().await;

    ground.write("manifest.yaml", &manifest("[cat]"));
    let dev = ground.start().await;
    assert_eq!(ground.redis_url(), url, "the URL that somebody noted stays right");
    ground.queue("q").reaches(&id, State::Succeeded).await;
    dev.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_kill_9_workers_drain_redis_ends_and_the_next_start_goes_on() {
    let ground = Ground::new(&manifest("[sh, handle.sh]"));
    ground.write("handle.sh", "touch begun; sleep 2; echo done\n");
    let dev = ground.start().await;
    let queue = ground.queue("q");
    let running = queue.enqueue("slow", json!({})).await;
    ground.made("begun").await;
    dev.kill9();
    // At once, while the others are still ending.
    let dev = ground.start().await;
    let task = ground.queue("q").reaches(&running, State::Succeeded).await;
    assert_eq!((task.epoch.0, task.crash_count), (1, 0), "its worker could finish it: {task:?}");
    let next = ground.queue("q").enqueue("slow", json!({})).await;
    ground.queue("q").reaches(&next, State::Succeeded).await;
    dev.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_kill_9_nothing_is_left_for_ever() {
    let ground = Ground::new(&manifest("[cat]"));
    let dev = ground.start().await;
    ground.queue("q").workers(1).await;
    dev.kill9();
    ground.quiet().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_lost_its_guard_is_ended_by_the_next_start() {
    let ground = Ground::new(&queue("q", "{mode: Paused}"));
    let dev = ground.start().await;
    let id = ground.queue("q").enqueue("a", json!({})).await;
    let orphan = ground.redis_pid().await;
    // Stopped first: it would start another one.
    dev.signal("STOP");
    send(parent_of(orphan), "KILL");
    dev.kill9();
    assert!(is_alive(orphan));
    let dev = ground.start().await;
    ground.logged("a redis-server was left behind on this data directory; ending it").await;
    assert_ne!(ground.redis_pid().await, orphan);
    assert_eq!(ground.queue("q").task(&id).await.state, State::Queued);
    dev.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_one_on_the_same_directory_is_refused_with_a_sentence() {
    let ground = Ground::new(&queue("q", "{}"));
    let dev = ground.start().await;
    let mut second = ground.launch();
    let status = second.end().await;
    assert_eq!(status.code(), Some(1), "{}", ground.log());
    ground.logged("another windlass dev (process ").await;
    ground.logged("give this one its own with --data-dir").await;
    ground.queue("q").enqueue("a", json!({})).await;
    dev.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_that_somebody_took_is_left_to_them() {
    let ground = Ground::new(&queue("q", "{mode: Paused}"));
    let dev = ground.start().await;
    let url = ground.redis_url();
    let id = ground.queue("q").enqueue("a", json!({})).await;
    dev.stop().await;
    let port = url.rsplit(':').next().expect("a port").parse().expect("a number");
    let _stranger = TcpListener::bind(("127.0.0.1", port)).expect("free again");
    let dev = ground.start().await;
    assert_ne!(ground.redis_url(), url);
    assert_eq!(ground.queue("q").task(&id).await.state, State::Queued);
    dev.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_is_given_is_used_and_left_running() {
    let server = Server::start(Flavor::Redis70).await;
    let mut ground = Ground::new(&manifest("[cat]"));
    ground.arguments = vec!["--redis-url".to_owned(), server.url()];
    let dev = ground.start().await;
    assert_eq!(ground.redis_url(), server.url());
    ground.logged("appendonly is off").await;
    let id = ground.queue("q").enqueue("a", json!({})).await;
    ground.queue("q").reaches(&id, State::Succeeded).await;
    dev.stop().await;
    server.command(&["PING"]).await;

    // Somebody else's data directory is somebody else: the queue is not taken from its owner.
    let mut other = Ground::new(&manifest("[cat]"));
    other.arguments = ground.arguments.clone();
    let status = other.launch().end().await;
    assert!(!status.success(), "{}", other.log());
    other.logged("belong to dev:").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_is_not_there_is_told_within_a_sentence() {
    let mut ground = Ground::new(&queue("q", "{}"));
    ground.arguments = vec!["--redis-url".to_owned(), "redis://127.0.0.1:1".to_owned()];
    let status = ground.launch().end().await;
    assert_eq!(status.code(), Some(1));
    ground.logged("was not reached").await;
}
