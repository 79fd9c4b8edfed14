//! Dead letters as people work with them: read as causes, run again, given up.
//!
//! Owns: what a person may ask about the dead letters of a queue, the walk
//! through many of them, and the guard against running in circles. Must not know:
//! Redis, SQL, Kubernetes, or who may do what: callers check that.
//!
//! Main flow: [`DeadLetters::causes`] shows what there is; a [`Selection`] is
//! resolved into a list (from the event log, or by a walk through the queue where there is
//! none); each letter on it is then one atomic step of the broker, paced, counted and told as it
//! is made. Decisions reach the event log with the outbox, like everything else.
//!
//! What was begun can be begun again: a letter is replayed once, as a task whose id follows from
//! the letter, whoever asks and however often.

mod discarding;
mod entry;
mod reading;
mod replaying;
mod selecting;
mod walk;

use std::sync::Arc;
use std::time::Duration;

pub use crate::event_log::{Cause, DeadLetterFilter, Verdict};
pub use discarding::{Discard, DiscardCounts, DiscardOutcome, DiscardReport, DiscardStep};
pub use entry::Entry;
pub use replaying::{Guard, Replay, ReplayCounts, ReplayOutcome, ReplayReport, ReplayStep};
pub use selecting::{Run, Selection};
pub use walk::{Report, Step};

use crate::broker::{Broker, BrokerError, ErrorClass};
use crate::event_log::{EventLog, EventLogError};
use crate::protocol::names::QueueName;

/// Why something could not be read or done.
#[derive(Debug, thiserror::Error)]
pub enum DeadLettersError {
    /// What was asked for makes no sense; nothing was changed.
    #[error("{0}")]
    Invalid(String),
    /// The broker did not do its part.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// The event log did not do its part.
    #[error(transparent)]
    EventLog(#[from] EventLogError),
}

impl DeadLettersError {
    /// What to do about it.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Invalid(_) => ErrorClass::Invalid,
            Self::Broker(error) => error.class(),
            Self::EventLog(error) => error.class(),
        }
    }
}

/// What an operation gives, or why not.
pub type Result<T> = std::result::Result<T, DeadLettersError>;

/// For how long a step is repeated while the broker cannot serve it.
const PATIENCE: Duration = Duration::from_secs(10);

/// The dead letters of one queue. Clones are the same.
#[derive(Clone)]
pub struct DeadLetters {
    queue: QueueName,
    broker: Arc<dyn Broker>,
    /// Where they are found by their traits; without it, by walking through the queue.
    log: Option<EventLog>,
}

impl DeadLetters {
    /// Those of a queue, with its event log if there is one.
    pub fn new(queue: QueueName, broker: Arc<dyn Broker>, log: Option<EventLog>) -> Self {
        Self { queue, broker, log }
    }
}
