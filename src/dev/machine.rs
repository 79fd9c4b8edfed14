//! What runs on this machine: queues with their loops, and pools.
//!
//! `apply` compares what is asked for with what is there, as an operator does.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, Result};

use super::manifest::{Manifests, PoolName, QueueManifest};
use super::pool::{Pool, Surroundings};
use super::screen::{Screen, Tone};
use super::ticker::Ticker;
use crate::broker::redis::{Redis, RedisBroker};
use crate::broker::{Broker, BrokerError, Owner, Takeover};
use crate::crd::TaskQueueSpec;
use crate::event_log::EventLog;
use crate::maintenance::Queue;
use crate::maintenance::metrics::LoopMetrics;
use crate::maintenance::runner::Runner;
use crate::protocol::names::QueueName;
use crate::protocol::policy::{EventRecording, Policy};

/// What runs.
pub(super) struct Machine {
    screen: Screen,
    redis: Redis,
    log: EventLog,
    surroundings: Surroundings,
    runner: Runner,
    queues: BTreeMap<QueueName, RunningQueue>,
    pools: BTreeMap<PoolName, Pool>,
}

/// A queue that is looked after.
struct RunningQueue {
    broker: Arc<RedisBroker>,
    spec: TaskQueueSpec,
    policy: Policy,
    ticker: Ticker,
}

impl Machine {
    /// A machine with nothing on it.
    pub(super) fn new(redis: Redis, log: EventLog, surroundings: Surroundings) -> Self {
        let mut runner = Runner::start(LoopMetrics::default());
        runner.listen(redis.notices());
        let screen = surroundings.household.screen.clone();
        Self { screen, redis, log, surroundings, runner, queues: BTreeMap::new(), pools: BTreeMap::new() }
    }

    /// Makes it so. An error says what could not be done; the rest is done.
    pub(super) async fn apply(&mut self, asked: &Manifests, before: &Manifests) -> Result<()> {
        for (name, pool) in &self.pools {
            if !asked.pools.contains_key(name) && before.pools.contains_key(name) {
                self.screen.line(name.name(), Tone::Plain, "pool removed: its workers drain and end");
                pool.rest();
            }
        }
        let gone: Vec<QueueName> =
            self.queues.keys().filter(|name| !asked.queues.contains_key(*name)).cloned().collect();
        for name in gone {
            self.forget(&name).await;
        }
        let mut outcome = Ok(());
        for (name, manifest) in &asked.queues {
            if let Err(error) = self.queue(name, manifest).await {
                self.screen.line(name.name(), Tone::Bad, &format!("{error:#}"));
                outcome = Err(error);
            }
        }
        for (name, manifest) in &asked.pools {
            if before.pools.get(name) == Some(manifest) {
                continue;
            }
            let verb = if before.pools.contains_key(name) { "changed" } else { "added" };
            let (replicas, queue) = (manifest.spec.replicas, &manifest.queue);
            let text = format!("pool {verb}: {replicas} × {} for {queue}", manifest.spec.handler.type_.as_str());
            self.screen.line(name.name(), Tone::Plain, &text);
            let new = || Pool::new(name.clone(), self.surroundings.clone());
            self.pools.entry(name.clone()).or_insert_with(new).apply(manifest);
        }
        outcome
    }

    async fn queue(&mut self, name: &QueueName, manifest: &QueueManifest) -> Result<()> {
        let known = self.queues.get(name);
        if known.is_some_and(|known| known.spec == manifest.spec) {
            return Ok(());
        }
        let policy = manifest.spec.policy(EventRecording::On)?;
        let keys = manifest.spec.keys(name)?;
        let prefix = keys.prefix().to_owned();
        let broker = match known {
            Some(known) => known.broker.clone(),
            None => Arc::new(self.redis.queue(keys)?),
        };
        broker.provision(&self.owner(), &policy).await?;
        if known.is_none() {
            self.greet(name, manifest, &broker).await;
            let queue = Queue::new(name.clone(), broker.clone(), Some(self.log.clone()));
            self.runner.add(&prefix, queue).await;
            let ticker = Ticker::start(name.clone(), self.log.clone(), self.screen.clone());
            let spec = manifest.spec.clone();
            self.queues.insert(name.clone(), RunningQueue { broker, spec, policy, ticker });
        } else if let Some(known) = self.queues.get_mut(name) {
            let text = format!("queue changed: {}", told(&policy));
            self.screen.line(name.name(), Tone::Plain, &text);
            (known.spec, known.policy) = (manifest.spec.clone(), policy);
        }
        Ok(())
    }

    async fn greet(&self, name: &QueueName, manifest: &QueueManifest, broker: &RedisBroker) {
        let say = |tone, text: &str| self.screen.line(name.name(), tone, text);
        if let Ok(policy) = manifest.spec.policy(EventRecording::On) {
            say(Tone::Plain, &format!("queue ready: {}", told(&policy)));
        }
        if manifest.spec.broker.is_some() {
            say(Tone::Faint, "broker has no effect on one machine: the queue is on the Redis of windlass dev");
        }
        for problem in broker.check_server().await.unwrap_or_default() {
            say(Tone::Bad, &problem);
        }
    }

    async fn forget(&mut self, name: &QueueName) {
        if let Some(queue) = self.queues.remove(name) {
            self.runner.remove(queue.broker.keys().prefix()).await;
            queue.ticker.stop();
            self.screen.line(name.name(), Tone::Plain, "queue removed: no longer looked after; its data stays");
        }
    }

    /// Makes queues again that are gone from Redis, as after a flush.
    pub(super) async fn repair(&self) {
        for (name, queue) in &self.queues {
            if !matches!(queue.broker.policy().await, Err(BrokerError::NoQueue(_))) {
                continue;
            }
            match queue.broker.provision(&self.owner(), &queue.policy).await {
                Ok(()) => self.screen.line(name.name(), Tone::Bad, "queue was gone from Redis; made again"),
                Err(error) => self.screen.line(name.name(), Tone::Bad, &error.to_string()),
            }
        }
    }

    /// Ends all pools; then nothing is looked after any more.
    pub(super) async fn stop(self) {
        futures::future::join_all(self.pools.into_values().map(Pool::leave)).await;
        for queue in self.queues.into_values() {
            queue.ticker.stop();
        }
    }

    fn owner(&self) -> Owner {
        Owner { name: format!("dev:{}", self.surroundings.id), takeover: Takeover::Respect }
    }

    /// Where each queue is known under which name, for whoever looks for an example.
    pub(super) fn example(&self) -> Option<String> {
        let name = self.queues.keys().next()?;
        Some(format!("windlass task enqueue -q {name} --type TYPE --payload '{{}}'"))
    }
}

/// What is most worth knowing of a policy.
fn told(policy: &Policy) -> String {
    let (retries, visibility) = (policy.retry.max_retries, policy.visibility_timeout.as_secs());
    format!("{:?}, {retries} retries, leases of {visibility} s", policy.mode)
}

/// A Redis that answers, or the reason why not.
pub(super) async fn reach(redis: &Redis) -> Result<()> {
    // Any queue will do: what is asked for is whether somebody answers.
    let name: QueueName = "windlass".parse().expect("invariant: a valid name");
    let broker = redis.queue(crate::protocol::keys::Keys::new(&name))?;
    match broker.policy().await {
        Ok(_) | Err(BrokerError::NoQueue(_)) => Ok(()),
        Err(error) => Err(error).context("the Redis of --redis-url cannot be used"),
    }
}
