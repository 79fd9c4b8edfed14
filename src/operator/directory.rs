//! The queues that the operator looks after, and how each is reached.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, RwLock};

use jiff::Timestamp;

use super::connections::Connection;
use super::queue::status::Findings;
use crate::broker::QueueCounts;
use crate::broker::redis::RedisBroker;
use crate::maintenance::Queue;
use crate::protocol::keys::Keys;
use crate::protocol::names::QueueName;
use crate::protocol::policy::Policy;

/// A queue that is provisioned and looked after.
pub struct KnownQueue {
    /// Its name.
    pub name: QueueName,
    /// The UID of its TaskQueue.
    pub uid: String,
    /// How its owner is recorded in Redis.
    pub owner: String,
    /// Its operations.
    pub broker: Arc<RedisBroker>,
    /// The Redis that it is on.
    pub connection: Arc<Connection>,
    /// The policy that was last written.
    pub policy: Policy,
    /// As the maintenance loops see it.
    pub queue: Queue,
    findings: Mutex<Option<Findings>>,
    reported: Mutex<Option<Timestamp>>,
}

/// What a queue is made known with.
pub(super) struct Introduction {
    pub(super) name: QueueName,
    pub(super) uid: String,
    pub(super) owner: String,
    pub(super) broker: Arc<RedisBroker>,
    pub(super) connection: Arc<Connection>,
    pub(super) policy: Policy,
    pub(super) queue: Queue,
}

impl KnownQueue {
    pub(super) fn new(of: Introduction) -> Self {
        let Introduction { name, uid, owner, broker, connection, policy, queue } = of;
        let (findings, reported) = (Mutex::default(), Mutex::default());
        Self { name, uid, owner, broker, connection, policy, queue, findings, reported }
    }

    /// What the last look at it showed; `None` before the first one.
    pub fn counts(&self) -> Option<QueueCounts> {
        self.queue.counts()
    }

    /// When it was last looked at.
    pub(super) fn sampled_at(&self) -> Option<Timestamp> {
        self.counts().map(|counts| counts.sampled_at)
    }

    /// What its controller found last.
    pub(super) fn findings(&self) -> Option<Findings> {
        self.findings.lock().expect("invariant: no panic while held").clone()
    }

    pub(super) fn set_findings(&self, findings: Findings) {
        *self.findings.lock().expect("invariant: no panic while held") = Some(findings);
    }

    /// The time of the sample that its object's status tells of.
    pub(super) fn reported(&self) -> Option<Timestamp> {
        *self.reported.lock().expect("invariant: no panic while held")
    }

    pub(super) fn set_reported(&self, sampled_at: Timestamp) {
        *self.reported.lock().expect("invariant: no panic while held") = Some(sampled_at);
    }
}

/// The queues that are looked after.
#[derive(Default)]
pub struct Directory(RwLock<HashMap<QueueName, Arc<KnownQueue>>>);

impl Directory {
    /// A queue, once it is provisioned; it stays while its Redis is away.
    pub fn get(&self, name: &QueueName) -> Option<Arc<KnownQueue>> {
        self.0.read().expect("invariant: no panic while held").get(name).cloned()
    }

    /// All of them.
    pub fn all(&self) -> Vec<Arc<KnownQueue>> {
        self.0.read().expect("invariant: no panic while held").values().cloned().collect()
    }

    /// Another queue on that Redis that uses a stream of these keys.
    pub(super) fn rival(&self, keys: &Keys, connection: &Connection) -> Option<Arc<KnownQueue>> {
        let all = self.0.read().expect("invariant: no panic while held");
        let is_rival = |known: &&Arc<KnownQueue>| {
            known.name != *keys.queue()
                && known.connection.fingerprint == connection.fingerprint
                && known.broker.keys().share_a_stream(keys)
        };
        all.values().find(is_rival).cloned()
    }

    pub(super) fn insert(&self, queue: Arc<KnownQueue>) -> Option<Arc<KnownQueue>> {
        self.0.write().expect("invariant: no panic while held").insert(queue.name.clone(), queue)
    }

    pub(super) fn remove(&self, name: &QueueName) -> Option<Arc<KnownQueue>> {
        self.0.write().expect("invariant: no panic while held").remove(name)
    }

    /// Removes this very one; whether it was there.
    pub(super) fn remove_same(&self, queue: &Arc<KnownQueue>) -> bool {
        let mut all = self.0.write().expect("invariant: no panic while held");
        match all.get(&queue.name) {
            Some(known) if Arc::ptr_eq(known, queue) => all.remove(&queue.name).is_some(),
            _ => false,
        }
    }
}
