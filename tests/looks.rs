//! A look at many quiet queues at once.

mod support;

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use windlass::broker::redis::{Look, Redis, RedisBroker, RedisOptions, stirred};
use windlass::broker::{Broker, ClaimRequest, Outcome, Settlement};
use windlass::protocol::backoff::Dice;
use windlass::protocol::keys::Keys;
use windlass::protocol::names::{Capabilities, WorkerId};
use windlass::protocol::policy::Policy;
use windlass::{NewTask, NotBefore};

use support::servers::{Cluster, Flavor, Server};
use support::{fresh_queue, owner};

fn task() -> NewTask {
    NewTask::new("work".parse().expect("valid"), json!({}))
}

/// Queues on one server that share a connection.
async fn queues(url: &str, number: usize) -> Vec<Arc<RedisBroker>> {
    let redis = Redis::new(RedisOptions::new(url)).expect("a usable URL");
    let mut all = Vec::new();
    for _ in 0..number {
        let broker = redis.queue(Keys::new(&fresh_queue())).expect("usable keys");
        broker.provision(&owner(), &Policy::default()).await.expect("made");
        all.push(Arc::new(broker));
    }
    all
}

async fn looks(queues: &[Arc<RedisBroker>]) -> Vec<Look> {
    looks_for(queues, Capabilities::any()).await
}

/// For workers that can do this.
async fn looks_for(queues: &[Arc<RedisBroker>], capabilities: Capabilities) -> Vec<Look> {
    let mut looks = Vec::new();
    for broker in queues {
        let stillness = broker.demand(&capabilities).await.expect("answered").stillness;
        looks.push(Look { broker: broker.clone(), stillness, capabilities: capabilities.clone() });
    }
    looks
}

fn task_of(kind: &str) -> NewTask {
    NewTask::new(kind.parse().expect("valid"), json!({}))
}

fn only(kind: &str) -> Capabilities {
    Capabilities::of([kind.parse().expect("valid")]).expect("one type")
}

/// How many commands the server has seen, this one included.
async fn commands(server: &Server) -> u64 {
    server.info("stats").await["total_commands_processed"].parse().expect("a number")
}

/// The places in the list at which something is different.
async fn different(looks: &[Look]) -> Vec<usize> {
    let answers = stirred(looks).await;
    answers.iter().enumerate().filter(|(_, answer)| **answer == Some(true)).map(|(at, _)| at).collect()
}

async fn raw(server: &Server, broker: &RedisBroker) {
    server.command(&["XADD", &broker.keys().task, "*", "task_id", "r", "tool_name", "work", "payload", "{}"]).await;
}

#[tokio::test]
async fn a_task_of_any_kind_stirs_its_queue_and_no_other() {
    let server = Server::start(Flavor::Redis70).await;
    let queues = queues(&server.url(), 6).await;
    // What waits for tomorrow, and what was read long ago, is no reason to look again.
    let later = NewTask { not_before: NotBefore::After(Duration::from_secs(3600)), ..task() };
    queues[4].enqueue(&[later]).await.expect("enqueued");
    let worker = WorkerId::new("w").expect("valid");
    let any = Capabilities::any();
    let request = || ClaimRequest { worker: &worker, capabilities: &any, limit: 1, recover: None };
    raw(&server, &queues[5]).await;
    let held = queues[5].claim(request()).await.expect("claimed").tasks.remove(0);
    let done = Settlement { lease: held.lease, outcome: Outcome::success(), dice: Dice(0) };
    queues[5].settle(&[done], ClaimRequest { limit: 0, ..request() }).await.expect("settled");
    let looks = looks(&queues).await;
    assert_eq!(different(&looks).await, [0usize; 0], "all is quiet");
    queues[1].enqueue(&[task()]).await.expect("enqueued");
    assert_eq!(different(&looks).await, [1]);
    raw(&server, &queues[3]).await;
    raw(&server, &queues[5]).await;
    assert_eq!(different(&looks).await, [1, 3, 5]);
    queues[4].enqueue(&[task()]).await.expect("enqueued");
    assert_eq!(different(&looks).await, [1, 3, 4, 5]);
}

#[tokio::test]
async fn a_thousand_quiet_queues_are_seen_with_a_handful_of_commands() {
    let server = Server::start(Flavor::Redis70).await;
    let looks = looks(&queues(&server.url(), 1000).await).await;
    stirred(&looks).await;
    let before = commands(&server).await;
    assert_eq!(different(&looks).await, [0usize; 0]);
    let used = commands(&server).await - before - 1;
    assert!(used <= 4, "{used} commands");
}

#[tokio::test]
async fn where_others_are_at_work_only_ready_work_of_the_own_types_and_raw_entries_stir() {
    let server = Server::start(Flavor::Redis70).await;
    let queues = queues(&server.url(), 5).await;
    for broker in &queues[..4] {
        broker.enqueue(&[task_of("theirs")]).await.expect("enqueued");
    }
    let looks = looks_for(&queues, only("ours")).await;
    assert_eq!(different(&looks).await, [0usize; 0], "it waits for others");
    queues[0].enqueue(&[task_of("theirs"), task_of("ours-too")]).await.expect("enqueued");
    queues[1].enqueue(&[NewTask { priority: Some(3), ..task_of("ours") }]).await.expect("enqueued");
    raw(&server, &queues[3]).await;
    assert_eq!(different(&looks).await, [1, 3]);
    // What comes to a queue in which nothing lived may be for them.
    queues[4].enqueue(&[task_of("theirs")]).await.expect("enqueued");
    assert_eq!(different(&looks).await, [1, 3, 4]);
    // What has run before waits in a lane of its own.
    let worker = WorkerId::new("w").expect("valid");
    let ours = only("ours");
    let request = |limit| ClaimRequest { worker: &worker, capabilities: &ours, limit, recover: None };
    let held = queues[1].claim(request(1)).await.expect("claimed").tasks.remove(0);
    assert_eq!(different(&looks).await, [3, 4]);
    let released =
        Settlement { lease: held.lease, outcome: Outcome::Released { delay: Duration::ZERO }, dice: Dice(0) };
    queues[1].settle(&[released], request(0)).await.expect("settled");
    assert_eq!(different(&looks).await, [1, 3, 4]);
}

#[tokio::test]
async fn one_queue_that_is_different_costs_a_few_commands_and_not_some_for_each_of_the_others() {
    let server = Server::start(Flavor::Redis70).await;
    let queues = queues(&server.url(), 500).await;
    queues[77].enqueue(&[task_of("theirs")]).await.expect("enqueued");
    let looks = looks_for(&queues, only("ours")).await;
    let used = async |wanted: &[usize]| {
        let before = commands(&server).await;
        assert_eq!(different(&looks).await, wanted);
        commands(&server).await - before - 1
    };
    let (quiet, again) = (used(&[]).await, used(&[]).await);
    assert!(again <= 3, "{quiet}, then {again} commands while others' work waits in one");
    queues[300].enqueue(&[task_of("theirs")]).await.expect("enqueued");
    let one = used(&[300]).await;
    assert!(one <= 60, "{one} commands to find one in 500");
}

#[tokio::test]
async fn a_queue_that_falls_silent_does_not_hide_one_that_wakes() {
    let server = Server::start(Flavor::Redis70).await;
    let queues = queues(&server.url(), 2).await;
    let later = NewTask { not_before: NotBefore::After(Duration::from_secs(3600)), ..task() };
    let waiting = queues[0].enqueue(&[later]).await.expect("enqueued");
    let looks = looks(&queues).await;
    queues[0].cancel(&waiting[0].id, "not any more").await.expect("cancelled");
    queues[1].enqueue(&[task()]).await.expect("enqueued");
    let worker = WorkerId::new("w").expect("valid");
    let any = Capabilities::any();
    let request = ClaimRequest { worker: &worker, capabilities: &any, limit: 1, recover: None };
    assert_eq!(queues[1].claim(request).await.expect("claimed").tasks.len(), 1, "it lives and is not ready");
    assert_eq!(different(&looks).await, [0, 1]);
}

#[tokio::test]
async fn a_key_that_is_no_stream_hides_nobody_else() {
    let server = Server::start(Flavor::Redis70).await;
    let queues = queues(&server.url(), 3).await;
    let looks = looks(&queues).await;
    server.command(&["SET", &queues[0].keys().task, "no stream"]).await;
    raw(&server, &queues[2]).await;
    assert_eq!(stirred(&looks).await, [None, Some(false), Some(true)]);
}

#[tokio::test]
async fn a_server_that_is_away_is_not_taken_for_a_quiet_one() {
    let (server, gone) = (Server::start(Flavor::Redis70).await, Server::start(Flavor::Redis70).await);
    let mut both = looks(&queues(&server.url(), 1).await).await;
    both.extend(looks(&queues(&gone.url(), 1).await).await);
    gone.kill9();
    assert_eq!(stirred(&both).await, [Some(false), None]);
}

#[tokio::test]
async fn queues_of_a_cluster_are_seen_each_where_it_is() {
    let cluster = Cluster::start(Flavor::Redis70, 3).await;
    let queues = queues(&format!("redis+cluster://127.0.0.1:{}", cluster.nodes()[0].port()), 5).await;
    let looks = looks(&queues).await;
    assert_eq!(different(&looks).await, [0usize; 0]);
    queues[3].enqueue(&[task()]).await.expect("enqueued");
    assert_eq!(different(&looks).await, [3]);
}
