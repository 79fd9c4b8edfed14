//! Runs tasks: claims them, hands each to a handler, renews leases, settles, drains.
//!
//! Owns: the [`Handler`] trait, what a handler sees of its task
//! ([`TaskContext`]), and the runtime around them. Must not know: Redis, who
//! leads, what Kubernetes is.

pub mod api;
mod backoff;
mod context;
pub mod exec;
mod foreign;
pub mod http;
pub mod init;
mod once;
mod options;

use async_trait::async_trait;

pub use self::context::{CancelReason, TaskContext};
pub use self::foreign::UnusableHandler;
pub use self::once::{EFFECT_IN_DOUBT, EffectError, OnceError};
pub use self::options::{WorkerOptions, WorkerPlace};
use crate::broker::Outcome;

/// Does the work of a task.
///
/// One value serves all tasks of a worker, many at once.
#[async_trait]
pub trait Handler: Send + Sync + 'static {
    /// Runs one attempt and says how it ended. When [`TaskContext::cancelled`]
    /// completes it should end soon; at the hard deadline it is dropped.
    async fn handle(&self, task: &TaskContext) -> Outcome;
}
