//! A server is reached by every kind of URL, and scripts survive what happens to it.

mod support;

use support::servers::{Flavor, Server};
use support::{fresh_queue, owner, queue_at};
use windlass::NewTask;
use windlass::broker::redis::{RedisBroker, RedisOptions};
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
