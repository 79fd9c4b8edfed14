//! A server is reached by every kind of URL, and scripts survive what happens to it.

mod support;

use support::servers::{Cluster, Flavor, Sentinel, Server, key_slot};
use support::{fresh_queue, owner, queue_at};
use windlass::NewTask;
use windlass::broker::redis::{Redis, RedisBroker, RedisOptions};
use windlass::broker::{Broker, BrokerError};
use windlass::protocol::keys::Keys;
use windlass::protocol::policy::Policy;

fn task() -> NewTask {
    NewTask::new("send".parse().expect("valid"), serde_json::json!(1))
}

#[tokio::test]
async fn a_server_with_tls_is_reached_with_its_authority_and_refused_without() {
    let server = Server::builder(Flavor::Redis70).tls().start().await;
    let keys = Keys::new(&fresh_queue());
    let trusting =
        RedisOptions { ca_pem: Some(server.ca_pem().as_bytes().to_vec()), ..RedisOptions::new(server.url()) };
    let broker = RedisBroker::new(keys.clone(), trusting).expect("usable options");
    broker.provision(&owner(), &Policy::default()).await.expect("the certificate is trusted");
    broker.enqueue(&[task()]).await.expect("accepted");
    let mut sleeper = broker.sleeper(&Default::default()).await.expect("a bed");
    let mode = windlass::protocol::policy::Mode::Running;
    sleeper.sleep(mode, std::time::Duration::from_millis(20)).await.expect("blocking reads use TLS too");

    let stranger = RedisBroker::new(keys, RedisOptions::new(server.url())).expect("usable options");
    let error = stranger.enqueue(&[task()]).await.expect_err("the authority is not known");
    assert!(matches!(error, BrokerError::Unreachable { .. }), "{error}");
}

/// Closes: "NOSCRIPT inside a pipeline" (groupmq#16).
#[tokio::test]
async fn scripts_survive_a_flush_of_scripts_and_a_restart_of_the_server() {
    for flavor in Flavor::ALL {
        let server = Server::builder(flavor).aof_always().start().await;
        let broker = queue_at(&server.url(), &Policy::default()).await;
        broker.enqueue(&[task()]).await.expect("accepted");
        let _ = server.command(&["SCRIPT", "FLUSH"]).await;
        broker.enqueue(&[task()]).await.expect("the script is sent again");
        server.kill9();
        server.restart().await;
        broker.enqueue(&[task()]).await.expect("the connection and the script are made again");
        assert_eq!(broker.counts().await.expect("answered").backlog, 3, "{flavor:?}");
    }
}

#[tokio::test]
async fn another_database_of_a_server_is_another_place() {
    let server = Server::start(Flavor::Redis70).await;
    let broker = queue_at(&format!("{}/3", server.url().trim_end_matches('/')), &Policy::default()).await;
    broker.enqueue(&[task()]).await.expect("accepted");
    let keys: u64 = server.query(&["DBSIZE"]).await;
    assert_eq!(keys, 0, "database 0 holds nothing");
}

/// A server that takes connections and never says a word, as one does that hangs; packets that are dropped look alike.
struct Mute(tokio::net::TcpListener);

impl Mute {
    async fn listen() -> Self {
        Self(tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port"))
    }

    fn host(&self) -> String {
        self.0.local_addr().expect("it is bound").to_string()
    }
}

/// Host and port of each URL.
fn hosts(urls: &[String]) -> Vec<String> {
    urls.iter().map(|url| url.replace("redis://", "")).collect()
}

#[tokio::test]
async fn a_cluster_is_found_behind_nodes_that_are_silent() {
    let cluster = Cluster::start(Flavor::Redis70, 3).await;
    let mute = [Mute::listen().await, Mute::listen().await, Mute::listen().await];
    let mut seeds: Vec<String> = mute.iter().map(Mute::host).collect();
    seeds.extend(hosts(&cluster.urls()));
    let options = RedisOptions::new(format!("redis+cluster://{}", seeds.join(",")));
    let (mut keys, mut home) = (Keys::new(&fresh_queue()), 0);
    while home == 0 {
        keys = Keys::new(&fresh_queue());
        home = cluster.node_of(key_slot(keys.policy())).await;
    }
    let broker = RedisBroker::new(keys.clone(), options.clone()).expect("usable options");
    broker.provision(&owner(), &Policy::default()).await.expect("the queue's node is found");
    let queues = Redis::new(options.clone()).expect("usable options").queues().await.expect("all masters are found");
    assert_eq!(queues.len(), 1);

    cluster.nodes()[0].freeze().await;
    let later = RedisBroker::new(keys, options).expect("usable options");
    later.enqueue(&[task()]).await.expect("a node that hangs hides no other");
}

#[tokio::test]
async fn a_master_is_found_behind_sentinels_that_are_silent() {
    let sentinel = Sentinel::start().await;
    let mute = [Mute::listen().await, Mute::listen().await];
    let mut seeds: Vec<String> = mute.iter().map(Mute::host).collect();
    seeds.extend(hosts(&sentinel.sentinel_urls()));
    sentinel.sentinels()[0].freeze().await;
    let url = format!("redis+sentinel://{}/{}", seeds.join(","), sentinel.master_name());
    let broker = queue_at(&url, &Policy::default()).await;
    broker.enqueue(&[task()]).await.expect("accepted");
    let mut sleeper = broker.sleeper(&Default::default()).await.expect("a bed");
    let mode = windlass::protocol::policy::Mode::Running;
    sleeper.sleep(mode, std::time::Duration::from_millis(20)).await.expect("blocking reads find it, too");
}

#[tokio::test]
async fn sentinels_without_a_password_know_a_master_that_has_one() {
    let sentinel = Sentinel::start().await;
    for node in sentinel.nodes() {
        node.command(&["CONFIG", "SET", "masterauth", "open sesame"]).await;
    }
    for one in sentinel.sentinels() {
        one.command(&["SENTINEL", "SET", sentinel.master_name(), "auth-pass", "open sesame"]).await;
    }
    for node in sentinel.nodes() {
        node.command(&["CONFIG", "SET", "requirepass", "open sesame"]).await;
    }
    let (hosts, master) = (hosts(&sentinel.sentinel_urls()).join(","), sentinel.master_name());
    let broker = queue_at(&format!("redis+sentinel://:open%20sesame@{hosts}/{master}"), &Policy::default()).await;
    broker.enqueue(&[task()]).await.expect("accepted");
    let stranger = RedisOptions::new(format!("redis+sentinel://:hunter2@{hosts}/{master}"));
    let error = RedisBroker::new(Keys::new(&fresh_queue()), stranger).expect("usable options").counts().await;
    assert!(matches!(error, Err(BrokerError::Denied(_))), "{error:?}");
}
