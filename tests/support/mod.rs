//! What the integration tests share: real servers, and queues on them.

#![allow(unreachable_pub, reason = "shared by test files, each a crate of its own")]
#![allow(dead_code, reason = "each test file uses a part of this")]

pub mod ground;
pub mod load;
pub mod logged;
pub mod servers;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use windlass::broker::redis::{RedisBroker, RedisOptions};
use windlass::broker::{Broker, Owner, Takeover};
use windlass::protocol::keys::Keys;
use windlass::protocol::names::QueueName;
use windlass::protocol::policy::Policy;

/// A queue name that no other test uses.
pub fn fresh_queue() -> QueueName {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    format!("test/q{}-{number}", std::process::id()).parse().expect("a valid queue name")
}

/// The owner that tests provision as.
pub fn owner() -> Owner {
    Owner { name: "test".to_owned(), takeover: Takeover::Respect }
}

/// A fresh queue with that policy on the Redis at that URL.
pub async fn queue_at(url: &str, policy: &Policy) -> Arc<RedisBroker> {
    let broker = RedisBroker::new(Keys::new(&fresh_queue()), RedisOptions::new(url)).expect("a usable URL");
    broker.provision(&owner(), policy).await.expect("the queue is made");
    Arc::new(broker)
}
