//! What is taken out of the outbox is what was read from it, whatever took the server's place meanwhile.

use windlass::NewTask;
use windlass::broker::{Broker, ErrorClass};
use windlass::protocol::policy::Policy;

use crate::support::ground::Ground;
use crate::support::servers::{Flavor, Server};

async fn add(ground: &Ground) {
    let task = NewTask::new("send".parse().expect("valid"), serde_json::json!(1));
    ground.broker.enqueue(&[task]).await.expect("taken");
}

/// A replica that takes over may lack what was read, and its clock may be behind: what comes then has an
/// earlier place than what was read, and nobody has read it.
#[tokio::test]
async fn what_nobody_has_read_stays_wherever_it_stands() {
    let server = Server::start(Flavor::Redis70).await;
    let ground = Ground::new(&server, String::new(), &Policy::default()).await;
    add(&ground).await;
    let read = ground.broker.outbox(10).await.expect("read");
    let key = ground.keys.events();
    server.command(&["DEL", &key]).await;
    for place in ["1-1", &read[0].id] {
        server.command(&["XADD", &key, place, "at", "1"]).await;
    }
    ground.broker.trim_outbox(&read).await.expect("trimmed");
    let left = ground.broker.outbox(10).await.expect("read");
    assert_eq!(left.iter().map(|entry| entry.id.as_str()).collect::<Vec<_>>(), ["1-1"]);
}

/// Behind another connection there may be another server, where the same place is another entry's.
#[tokio::test]
async fn what_was_read_over_a_connection_that_is_gone_is_read_again_before_it_goes() {
    let server = Server::start(Flavor::Redis70).await;
    let ground = Ground::new(&server, String::new(), &Policy::default()).await;
    add(&ground).await;
    let before = ground.broker.outbox(10).await.expect("read");
    server.command(&["CLIENT", "KILL", "TYPE", "normal"]).await;
    let again = ground.broker.outbox(10).await.expect("over another connection");
    assert_eq!((before.len(), again.len()), (1, 1));
    let error = ground.broker.trim_outbox(&before).await.expect_err("the connection is gone");
    assert_eq!(error.class(), ErrorClass::Transient, "{error}");
    assert_eq!(ground.broker.outbox(10).await.expect("read").len(), 1);
    ground.broker.trim_outbox(&again).await.expect("trimmed");
    assert!(ground.broker.outbox(10).await.expect("read").is_empty());
}
