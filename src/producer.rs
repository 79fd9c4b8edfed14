//! What an application uses to put tasks into a queue and to see what became of them.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::broker::patience::patiently;
use crate::broker::redis::{RedisBroker, RedisOptions};
use crate::broker::{Broker, BrokerError, Cancelled, Enqueued, MAX_BATCH, Result};
use crate::protocol::keys::Keys;
use crate::protocol::names::{QueueName, TaskId};
use crate::protocol::task::{NewTask, TaskView};

/// Puts tasks into a queue.
///
/// ```
/// # async fn example(url: &str) -> anyhow::Result<()> {
/// use serde_json::json;
/// use windlass::{NewTask, Producer};
///
/// let producer = Producer::connect(url, "shop/emails".parse()?)?;
/// let task = NewTask::new("send".parse()?, json!({"to": "ada@example.com"}));
/// let enqueued = producer.enqueue(task).await?;
/// assert!(enqueued.created);
///
/// let task = producer.get(&enqueued.id).await?.expect("it was just made");
/// assert_eq!(task.state.as_str(), "queued");
///
/// producer.cancel(&enqueued.id, "changed my mind").await?;
/// let done = producer.wait(&enqueued.id, std::time::Duration::from_secs(5)).await?;
/// assert_eq!(done.expect("it is final").state.as_str(), "cancelled");
/// # Ok(())
/// # }
/// # mod doc { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs")); }
/// # doc::with_queue("shop/emails", example).expect("the example runs");
/// ```
#[derive(Clone)]
pub struct Producer {
    broker: Arc<dyn Broker>,
    patience: Duration,
}

impl Producer {
    /// For a queue on a Redis. Connects when it is first used.
    pub fn connect(url: &str, queue: QueueName) -> Result<Self> {
        Ok(Self::new(Arc::new(RedisBroker::new(Keys::new(&queue), RedisOptions::new(url))?)))
    }

    /// For a broker that is there already.
    pub fn new(broker: Arc<dyn Broker>) -> Self {
        Self { broker, patience: Duration::from_secs(5) }
    }

    /// For how long a call is repeated while the broker cannot serve it (5 s unless set).
    pub fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Puts one task into the queue.
    pub async fn enqueue(&self, task: NewTask) -> Result<Enqueued> {
        let mut all = self.enqueue_all(&[task]).await?;
        let nothing = || BrokerError::Unexpected { operation: "enqueue", detail: "no answer for the task".to_owned() };
        all.pop().ok_or_else(nothing)
    }

    /// Puts many tasks into the queue, in steps of up to [`MAX_BATCH`]: each step is
    /// taken whole or not at all. After an error, repeat the call with the same
    /// tasks: those that were taken answer `created: false`.
    ///
    /// ```
    /// # async fn example(url: &str) -> anyhow::Result<()> {
    /// # use serde_json::json;
    /// # use windlass::{NewTask, Producer};
    /// # let producer = Producer::connect(url, "shop/bulk".parse()?)?;
    /// let tasks: Vec<_> = (0..250)
    ///     .map(|n| Ok(NewTask::new("send".parse()?, json!({"number": n}))))
    ///     .collect::<anyhow::Result<_>>()?;
    /// assert_eq!(producer.enqueue_all(&tasks).await?.len(), 250);
    /// assert!(producer.enqueue_all(&tasks).await?.iter().all(|task| !task.created));
    /// # Ok(())
    /// # }
    /// # mod doc { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs")); }
    /// # doc::with_queue("shop/bulk", example).expect("the example runs");
    /// ```
    pub async fn enqueue_all(&self, tasks: &[NewTask]) -> Result<Vec<Enqueued>> {
        let mut all = Vec::with_capacity(tasks.len());
        for batch in tasks.chunks(MAX_BATCH) {
            all.extend(patiently(self.patience, || self.broker.enqueue(batch)).await?);
        }
        Ok(all)
    }

    /// All that can be seen of a task.
    pub async fn get(&self, task: &TaskId) -> Result<Option<TaskView>> {
        patiently(self.patience, || self.broker.get(task)).await
    }

    /// Waits until a task is final, but no longer than `limit`: then `None`.
    pub async fn wait(&self, task: &TaskId, limit: Duration) -> Result<Option<TaskView>> {
        const SHORTEST: Duration = Duration::from_millis(10);
        const LONGEST: Duration = Duration::from_millis(500);
        let end = Instant::now() + limit;
        let mut pause = SHORTEST;
        loop {
            match self.get(task).await? {
                None => {
                    return Err(BrokerError::Invalid(format!("task {task} is not known: check its id and its queue")));
                }
                Some(view) if view.state.is_final() => return Ok(Some(view)),
                Some(_) if Instant::now() >= end => return Ok(None),
                Some(_) => tokio::time::sleep_until((Instant::now() + pause).min(end)).await,
            }
            pause = (pause * 2).min(LONGEST);
        }
    }

    /// Ends a task that is not needed any more.
    pub async fn cancel(&self, task: &TaskId, reason: &str) -> Result<Cancelled> {
        patiently(self.patience, || self.broker.cancel(task, reason)).await
    }
}
