//! Runs tasks: claims them, hands each to a handler, renews leases, settles, drains.
//!
//! Owns: the [`Handler`] trait, what a handler sees of its task
//! ([`TaskContext`]), and the runtime around them. Must not know: Redis, who
//! leads, what Kubernetes is.
//!
//! Main flow: [`Worker::run`] registers and enters the loop of `runtime`, which
//! claims tasks into places (`slots`), as many as can be started now or, as
//! `pace` says, in a moment; the hands of its `crew` run their handlers;
//! `verdict` decides what is settled, and it ends as `drain` says. `once` gives handlers
//! outside effects that happen at most once; `probes` shows how it all is.

pub mod api;
mod backoff;
mod context;
mod crew;
mod drain;
pub mod exec;
mod foreign;
mod health;
pub mod http;
pub mod init;
mod metrics;
mod once;
mod options;
mod pace;
pub mod probes;
mod pulse;
mod runtime;
mod slots;
mod verdict;

use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::watch;

pub use self::context::{CancelReason, TaskContext};
pub use self::foreign::{ResultBound, UnusableHandler};
pub use self::health::WorkerHealth;
pub use self::metrics::WorkerMetrics;
pub use self::once::{EFFECT_IN_DOUBT, EffectError, OnceError};
pub use self::options::{WorkerOptions, WorkerPlace};

use self::context::Home;
use self::drain::DrainLevel;
use self::runtime::{Parts, Runtime};
use crate::broker::redis::{RedisBroker, RedisOptions};
use crate::broker::{Broker, Outcome, Result, WorkerInfo};
use crate::protocol::keys::Keys;
use crate::protocol::names::{QueueName, WorkerId};

/// Does the work of a task.
///
/// One value serves all tasks of a worker, many at once. An attempt is a task of
/// the async runtime: one that computes for long, or blocks, should do so in
/// [`tokio::task::spawn_blocking`]. One that never yields cannot be stopped: at
/// its hard deadline it is settled as failed, but its place stays lost, and when
/// all places are, `/livez` asks for a restart.
#[async_trait]
pub trait Handler: Send + Sync + 'static {
    /// Runs one attempt and says how it ended. When [`TaskContext::cancelled`]
    /// completes it should end soon; at the hard deadline it is dropped.
    async fn handle(&self, task: &TaskContext) -> Outcome;
}

#[async_trait]
impl<H: Handler + ?Sized> Handler for Arc<H> {
    async fn handle(&self, task: &TaskContext) -> Outcome {
        (**self).handle(task).await
    }
}

/// Runs the tasks of a queue.
///
/// ```
/// # async fn example(url: &str) -> anyhow::Result<()> {
/// use std::time::Duration;
///
/// use serde_json::json;
/// use windlass::{Handler, NewTask, Outcome, Producer, TaskContext, Worker, WorkerOptions};
///
/// struct Greeter;
///
/// #[async_trait::async_trait]
/// impl Handler for Greeter {
///     async fn handle(&self, task: &TaskContext) -> Outcome {
///         match task.payload::<String>() {
///             Ok(name) => Outcome::result(json!(format!("Hello, {name}!"))),
///             Err(error) => Outcome::permanent("bad_payload", error.to_string()),
///         }
///     }
/// }
///
/// let worker = Worker::connect(url, "shop/greetings".parse()?, Greeter, WorkerOptions::default())?;
/// let handle = worker.handle();
/// let running = tokio::spawn(worker.run());
///
/// let producer = Producer::connect(url, "shop/greetings".parse()?)?;
/// let task = producer.enqueue(NewTask::new("greet".parse()?, json!("Ada"))).await?;
/// let done = producer.wait(&task.id, Duration::from_secs(30)).await?.expect("it is final");
/// assert_eq!(done.result.expect("a greeting").as_str(), "\"Hello, Ada!\"");
///
/// handle.drain(); // on SIGTERM
/// assert_eq!(running.await??.settled, 1);
/// # Ok(())
/// # }
/// # mod doc { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs")); }
/// # doc::with_queue("shop/greetings", example).expect("the example runs");
/// ```
pub struct Worker {
    home: Arc<Home>,
    handler: Arc<dyn Handler>,
    options: WorkerOptions,
    info: WorkerInfo,
    handle: WorkerHandle,
    metrics: WorkerMetrics,
}

/// Looks after a worker from outside. Clones are for the same worker.
#[derive(Clone)]
pub struct WorkerHandle {
    drain: Arc<watch::Sender<DrainLevel>>,
    health: Arc<WorkerHealth>,
}

impl WorkerHandle {
    /// Ends the worker. It claims no more; what runs may finish, is asked to end
    /// near the end of the drain's time, and is given back if it does not.
    /// Called again, everything is given back at once.
    pub fn drain(&self) {
        self.drain.send_if_modified(|level| {
            let next = level.next();
            std::mem::replace(level, next) != next
        });
    }

    /// How the worker is.
    pub fn health(&self) -> &WorkerHealth {
        &self.health
    }
}

/// What a worker did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WorkerSummary {
    /// Attempts whose end the broker took.
    pub settled: u64,
    /// Those of them that were given back unfinished.
    pub released: u64,
    /// Attempts that ended too late: somebody else had their task, or it was cancelled.
    pub refused: u64,
    /// Tasks that were held to the end because the broker was away. They come
    /// back when their lease expires.
    pub unsettled: usize,
}

impl Worker {
    /// For a queue on a Redis. Connects when it runs.
    pub fn connect(url: &str, queue: QueueName, handler: impl Handler, options: WorkerOptions) -> Result<Self> {
        let broker = Arc::new(RedisBroker::new(Keys::new(&queue), RedisOptions::new(url))?);
        Self::new(queue, broker, handler, options)
    }

    /// For a broker that is there already.
    pub fn new(
        queue: QueueName,
        broker: Arc<dyn Broker>,
        handler: impl Handler,
        options: WorkerOptions,
    ) -> Result<Self> {
        options.validate()?;
        let info = options.place.introduce(options.capabilities.types().cloned().collect());
        let health = Arc::new(WorkerHealth::new(options.concurrency));
        let handle = WorkerHandle { drain: Arc::new(watch::Sender::new(DrainLevel::None)), health };
        let home = Home::new(queue, info.id.clone(), broker);
        Ok(Self { home, handler: Arc::new(handler), options, info, handle, metrics: WorkerMetrics::default() })
    }

    /// Its id, which no other start has.
    pub fn id(&self) -> &WorkerId {
        &self.info.id
    }

    /// What it tells of itself.
    pub fn info(&self) -> &WorkerInfo {
        &self.info
    }

    /// To drain it, and to see how it is.
    pub fn handle(&self) -> WorkerHandle {
        self.handle.clone()
    }

    /// Its numbers, to be added to a registry.
    pub fn metrics(&self) -> &WorkerMetrics {
        &self.metrics
    }

    /// Runs until it is drained. A broker that is away is waited for, and so is
    /// a queue that does not exist yet; what no waiting can cure (access denied,
    /// another data model) is an error before the first claim.
    ///
    /// Dropping the future is a crash: handlers are dropped, and what they held
    /// comes back when its lease expires.
    pub async fn run(self) -> Result<WorkerSummary> {
        let Self { home, handler, options, info, handle, metrics } = self;
        let mut drain = handle.drain.subscribe();
        let Some(policy) = runtime::come_aboard(&*home.broker, &info, &handle.health, &mut drain).await? else {
            return Ok(WorkerSummary::default());
        };
        let health = handle.health.clone();
        let _pulse = pulse::Pulse::watch(health.clone());
        let parts = Parts { home, handler, options, info, health, metrics, drain, policy };
        Ok(Runtime::new(parts).run().await)
    }
}
