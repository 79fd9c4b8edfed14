//! The maintenance loops of all queues, for as long as this process leads.

use std::collections::HashMap;

use tokio::sync::Mutex;

use super::connections::Connection;
use super::directory::KnownQueue;
use crate::maintenance::metrics::LoopMetrics;
use crate::maintenance::runner::{Listening, Runner};

/// Drives the loops, and listens to each Redis once.
pub(super) struct Loops(Mutex<Running>);

struct Running {
    runner: Runner,
    /// By the connection's fingerprint.
    listening: HashMap<String, Listener>,
    /// Which connection the queue of a prefix is on.
    places: HashMap<String, String>,
}

/// What listens to a Redis, and how many queues need it.
struct Listener {
    listening: Listening,
    queues: usize,
}

impl Loops {
    pub(super) fn start(metrics: LoopMetrics) -> Self {
        let runner = Runner::start(metrics);
        Self(Mutex::new(Running { runner, listening: HashMap::new(), places: HashMap::new() }))
    }

    /// Begins to look after a queue. One of the same keys that was there before is replaced.
    pub(super) async fn add(&self, known: &KnownQueue) {
        let prefix = known.broker.keys().prefix();
        let running = &mut *self.0.lock().await;
        running.leave(prefix);
        running.enter(&known.connection, prefix);
        running.runner.add(prefix, known.queue.clone()).await;
    }

    /// Counts a queue now.
    pub(super) async fn look(&self, known: &KnownQueue) {
        self.0.lock().await.runner.look(known.broker.keys().prefix()).await;
    }

    /// Ends looking after a queue.
    pub(super) async fn remove(&self, known: &KnownQueue) {
        let prefix = known.broker.keys().prefix();
        let running = &mut *self.0.lock().await;
        running.leave(prefix);
        running.runner.remove(prefix).await;
    }
}

impl Running {
    fn enter(&mut self, connection: &Connection, prefix: &str) {
        let Self { runner, listening, places } = self;
        let listen = || Listener { listening: runner.listen(connection.redis.notices()), queues: 0 };
        listening.entry(connection.fingerprint.clone()).or_insert_with(listen).queues += 1;
        places.insert(prefix.to_owned(), connection.fingerprint.clone());
    }

    /// Ends listening to a Redis that no queue is left on.
    fn leave(&mut self, prefix: &str) {
        let Some(fingerprint) = self.places.remove(prefix) else { return };
        let Some(listener) = self.listening.get_mut(&fingerprint) else { return };
        listener.queues -= 1;
        if listener.queues == 0 {
            listener.listening.end();
            self.listening.remove(&fingerprint);
        }
    }
}
