//! What a handler sees of its task, and what it may do while it runs it.

use std::sync::{Arc, OnceLock};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::broker::{Broker, ClaimedTask};
use crate::protocol::names::QueueName;

/// Why an attempt should end before it is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CancelReason {
    /// Somebody cancelled the task.
    Cancelled,
    /// The lease is gone: somebody else has the task, or may get it.
    LeaseLost,
    /// The attempt took longer than it may.
    TimedOut,
    /// The worker ends and gives the task back.
    Draining,
}

/// One attempt at a task. Clones are the same attempt.
#[derive(Clone)]
pub struct TaskContext {
    attempt: Arc<Attempt>,
}

struct Attempt {
    queue: QueueName,
    task: ClaimedTask,
    broker: Arc<dyn Broker>,
    deadline: Option<Instant>,
    cancelled: CancellationToken,
    reason: OnceLock<CancelReason>,
}

impl TaskContext {
    /// An attempt that begins.
    pub(crate) fn new(queue: QueueName, task: ClaimedTask, broker: Arc<dyn Broker>, deadline: Option<Instant>) -> Self {
        let (cancelled, reason) = (CancellationToken::new(), OnceLock::new());
        Self { attempt: Arc::new(Attempt { queue, task, broker, deadline, cancelled, reason }) }
    }

    /// The queue that the task is from.
    pub fn queue(&self) -> &QueueName {
        &self.attempt.queue
    }

    /// The task: its payload, its counters, what it carries along.
    pub fn task(&self) -> &ClaimedTask {
        &self.attempt.task
    }

    /// When the attempt will be cancelled for taking too long.
    pub fn deadline(&self) -> Option<Instant> {
        self.attempt.deadline
    }

    /// Completes when the attempt should end before it is done; says why.
    pub async fn cancelled(&self) -> CancelReason {
        self.attempt.cancelled.cancelled().await;
        self.cancel_reason().unwrap_or(CancelReason::Cancelled)
    }

    /// Why the attempt should end, if it should.
    pub fn cancel_reason(&self) -> Option<CancelReason> {
        self.attempt.reason.get().copied()
    }

    /// Asks the handler to end. The first reason stands.
    pub(crate) fn cancel(&self, reason: CancelReason) {
        // A second reason changes nothing.
        let _ = self.attempt.reason.set(reason);
        self.attempt.cancelled.cancel();
    }
}
