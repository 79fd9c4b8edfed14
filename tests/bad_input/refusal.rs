//! What every refusal is held to, and a queue to be refused by.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use serde_json::json;
use tokio::sync::OnceCell;
use windlass::NewTask;
use windlass::broker::clock::Clock;
use windlass::broker::redis::{RedisBroker, RedisOptions};
use windlass::broker::{Broker, BrokerError, ClaimRequest, ClaimedTask, ErrorClass, Outcome, Settled, Settlement};
use windlass::protocol::backoff::Dice;
use windlass::protocol::keys::Keys;
use windlass::protocol::names::{Capabilities, WorkerId};
use windlass::protocol::policy::Policy;
use windlass::protocol::task::DeadLetter;

use crate::support::servers::{Flavor, Server};
use crate::support::{fresh_queue, owner};

/// The server that the tests of input share.
pub(crate) async fn shared_server() -> &'static Server {
    static SERVER: OnceCell<Server> = OnceCell::const_new();
    SERVER.get_or_init(|| Server::start(Flavor::Redis70)).await
}

/// A queue with the default policy on a server.
pub(crate) struct Queue<'a> {
    pub(crate) server: &'a Server,
    pub(crate) broker: Arc<RedisBroker>,
}

impl Queue<'static> {
    /// On the shared server.
    pub(crate) async fn new() -> Self {
        Queue::on(shared_server().await).await
    }
}

impl<'a> Queue<'a> {
    pub(crate) async fn on(server: &'a Server) -> Self {
        Self::with_options(server, RedisOptions::new(server.url())).await
    }

    pub(crate) async fn with_options(server: &'a Server, options: RedisOptions) -> Self {
        let queue = Self::unprovisioned(server, options);
        queue.set(|_| {}).await;
        queue
    }

    pub(crate) fn unprovisioned(server: &'a Server, options: RedisOptions) -> Self {
        let broker = RedisBroker::with_clock(Keys::new(&fresh_queue()), options, Clock::Server);
        Self { server, broker: Arc::new(broker.expect("a usable URL")) }
    }

    pub(crate) async fn set(&self, change: impl FnOnce(&mut Policy)) {
        let mut policy = self.broker.policy().await.unwrap_or_default();
        change(&mut policy);
        self.broker.provision(&owner(), &policy).await.expect("the policy is written");
    }

    /// The same queue, reached in another way.
    pub(crate) fn through(&self, options: RedisOptions) -> RedisBroker {
        RedisBroker::new(Keys::new(self.broker.keys().queue()), options).expect("a usable URL")
    }

    /// Every key of the queue with its whole content.
    pub(crate) async fn snapshot(&self) -> BTreeMap<String, Vec<Vec<u8>>> {
        let pattern = format!("{}*", self.broker.keys().prefix());
        let names: Vec<String> = self.server.query(&["KEYS", &pattern]).await;
        let mut all = BTreeMap::new();
        for name in names {
            let content = self.content(&name).await;
            all.insert(name, content);
        }
        all
    }

    /// What a key holds. A hash and a set have no order of their own: Redis may tell the same one in
    /// another order while its table grows, so that their serialized forms differ.
    async fn content(&self, name: &str) -> Vec<Vec<u8>> {
        let kind: String = self.server.query(&["TYPE", name]).await;
        let mut parts: Vec<Vec<u8>> = match kind.as_str() {
            "hash" => {
                let flat: Vec<Vec<u8>> = self.server.query(&["HGETALL", name]).await;
                flat.chunks(2).map(|pair| pair.join(&b"="[..])).collect()
            }
            "set" => self.server.query(&["SMEMBERS", name]).await,
            _ => vec![self.server.query(&["DUMP", name]).await],
        };
        parts.sort();
        parts
    }

    /// Tries something that must be refused, and checks that nothing changed.
    pub(crate) async fn refuses<T: Debug>(
        &self,
        attempt: impl Future<Output = windlass::broker::Result<T>>,
        class: ErrorClass,
        sentence: &str,
    ) -> BrokerError {
        let before = self.snapshot().await;
        let error = attempt.await.expect_err(sentence);
        is_refusal(&error, class, sentence);
        assert_eq!(self.snapshot().await, before, "nothing changed: {error}");
        error
    }

    pub(crate) async fn enqueue(&self, task: NewTask) -> windlass::TaskId {
        self.broker.enqueue(&[task]).await.expect("taken").remove(0).id
    }

    pub(crate) async fn raw(&self, fields: &[(&str, &[u8])]) -> String {
        let mut add = redis::cmd("XADD");
        add.arg(&self.broker.keys().task).arg("*");
        for (name, value) in fields {
            add.arg(*name).arg(*value);
        }
        let mut connection = self.server.connect().await.expect("the server is there");
        add.query_async(&mut connection).await.expect("added")
    }

    pub(crate) async fn claim(&self, limit: usize) -> Vec<ClaimedTask> {
        let worker = worker();
        let request = ClaimRequest { worker: &worker, capabilities: &Capabilities::any(), limit, recover: None };
        self.broker.claim(request).await.expect("answered").tasks
    }

    pub(crate) async fn settle(&self, task: &ClaimedTask, outcome: Outcome) -> Settled {
        settle_at(&*self.broker, task, outcome).await.expect("answered")
    }

    pub(crate) async fn dead_letters(&self) -> Vec<DeadLetter> {
        self.broker.pending_dead_letters(100).await.expect("answered")
    }
}

/// Settles one task and claims nothing.
pub(crate) async fn settle_at(
    broker: &dyn Broker,
    task: &ClaimedTask,
    outcome: Outcome,
) -> windlass::broker::Result<Settled> {
    let worker = worker();
    let nothing = ClaimRequest { worker: &worker, capabilities: &Capabilities::any(), limit: 0, recover: None };
    let settlement = Settlement { lease: task.lease.clone(), outcome, dice: Dice(0) };
    Ok(broker.settle(&[settlement], nothing).await?.settled[0])
}

/// The error has that class, and its sentence says so much.
pub(crate) fn is_refusal(error: &BrokerError, class: ErrorClass, sentence: &str) {
    assert!(error.to_string().contains(sentence), "{error} says {sentence:?}");
    assert_eq!(error.class(), class, "{error}");
}

pub(crate) fn worker() -> WorkerId {
    "w1".parse().expect("a valid id")
}

pub(crate) fn task() -> NewTask {
    NewTask::new("a".parse().expect("a valid type"), json!({"n": 1}))
}

pub(crate) fn success() -> Outcome {
    Outcome::Success { result: None }
}

pub(crate) fn failure() -> Outcome {
    Outcome::Failure { error: "it broke".to_owned(), code: "broken".to_owned() }
}

pub(crate) fn permanent() -> Outcome {
    Outcome::Permanent { error: "it can never work".to_owned(), code: "impossible".to_owned() }
}
