//! What keeps queues healthy without a worker's help: the leader's loops.
//!
//! Owns: the loops, one file each, and the runner that drives them. Must not
//! know: who leads and why, what Kubernetes is, how a broker keeps its tasks.
//!
//! Main flow: the [`runner`] wakes a loop when it is due or when a script told
//! that there is something to do; the loop takes one bounded step
//! ([`Chore::run_once`]) and says when it wants to be called again. The
//! [`sampler`] looks at each queue now and then and finds what no notice told.
//!
//! Every step is an operation that is safe to repeat, so two leaders at once,
//! one that was paused, or one that died anywhere do no harm.

pub mod archivist;
pub mod dead_letter_router;
pub mod metrics;
pub mod promoter;
pub mod reclaimer;
pub mod recorder;
pub mod retainer;
pub mod runner;
pub mod sampler;
pub mod sweeper;
mod tally;
mod totals;

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;

use crate::broker::{Broker, BrokerError, ErrorClass, OutboxEntry, QueueCounts};
use crate::event_log::{EventLog, EventLogError};
use crate::protocol::names::{DeadLetterId, QueueName};
use crate::protocol::policy::{Mode, Policy};
use tally::Tally;
use totals::Totals;

/// A queue as its loops see it. Clones are the same queue.
#[derive(Clone)]
pub struct Queue {
    /// Its name.
    pub name: QueueName,
    /// Where its tasks are.
    pub broker: Arc<dyn Broker>,
    /// Where its history goes, if anywhere.
    pub log: Option<EventLog>,
    seen: Arc<Mutex<Seen>>,
}

/// Whether what happens in a queue is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum History {
    /// In the event log.
    Recorded,
    /// Nowhere: no event log is configured. Dead letters live in the queue alone.
    NotRecorded,
}

impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Recorded => "history is recorded in the event log",
            Self::NotRecorded => {
                "no history is recorded: no event log is configured, and dead letters live in the \
                                  queue alone"
            }
        })
    }
}

/// What the loops of a queue tell each other.
#[derive(Default)]
struct Seen {
    counts: Option<QueueCounts>,
    /// At how many entries of the outbox enqueues are refused.
    outbox_bound: Option<u64>,
    /// Whether the queue takes and gives work.
    mode: Option<Mode>,
    tally: Tally,
    totals: Totals,
}

impl Seen {
    /// What a look at the queue and at its policy showed.
    fn show(&mut self, counts: &QueueCounts, policy: &Policy) {
        self.counts = Some(counts.clone());
        self.tally.begin(counts.invalid_transitions);
        self.outbox_bound = Some(policy.limits.outbox_entries);
        self.mode = Some(policy.mode);
    }

    /// Adds up what was recorded.
    fn add(&mut self, recorded: &[OutboxEntry]) {
        self.tally.add(recorded);
        self.totals.add(recorded);
    }
}

impl Queue {
    /// A queue that nobody has looked at yet.
    pub fn new(name: QueueName, broker: Arc<dyn Broker>, log: Option<EventLog>) -> Self {
        Self { name, broker, log, seen: Arc::default() }
    }

    /// Whether what happens in it is kept.
    pub fn history(&self) -> History {
        if self.log.is_some() { History::Recorded } else { History::NotRecorded }
    }

    /// What the last look at the queue showed.
    pub fn counts(&self) -> Option<QueueCounts> {
        self.seen().counts.clone()
    }

    /// Whether anything in it can change by itself, by the last look at it.
    pub(crate) fn is_busy(&self) -> bool {
        self.seen().counts.as_ref().is_none_or(|counts| self.is_busy_with(counts))
    }

    /// Whether anything can change by itself in a queue that looks like this.
    fn is_busy_with(&self, counts: &QueueCounts) -> bool {
        let waiting = counts.delayed + counts.retrying + counts.dlq_pending;
        // Without a log what is in the outbox stays there until there is one.
        let outbox = if self.log.is_some() { counts.outbox } else { 0 };
        counts.backlog + counts.raw_taken + counts.running + waiting + counts.workers + outbox > 0
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.seen.lock().expect("invariant: no panic while held")
    }
}

/// The loops, in the order in which they are listed everywhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LoopName {
    /// Looks at the queue.
    Sampler,
    /// Brings back what is due.
    Promoter,
    /// Takes back what expired.
    Reclaimer,
    /// Records dead letters.
    DeadLetterRouter,
    /// Empties the outbox into the event log.
    Recorder,
    /// Finds lost workers and misplaced tasks.
    Sweeper,
    /// Forgets what is old enough, or too much.
    Retainer,
    /// Keeps the event log in step with that.
    Archivist,
}

impl LoopName {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Sampler,
        Self::Promoter,
        Self::Reclaimer,
        Self::DeadLetterRouter,
        Self::Recorder,
        Self::Sweeper,
        Self::Retainer,
        Self::Archivist,
    ];

    /// As it stands in metrics and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Sampler => "sampler",
            Self::Promoter => "promoter",
            Self::Reclaimer => "reclaimer",
            Self::DeadLetterRouter => "dead_letter_router",
            Self::Recorder => "recorder",
            Self::Sweeper => "sweeper",
            Self::Retainer => "retainer",
            Self::Archivist => "archivist",
        }
    }

    fn chore(self) -> Box<dyn Chore> {
        match self {
            Self::Sampler => Box::<sampler::Sampler>::default(),
            Self::Promoter => Box::new(promoter::Promoter),
            Self::Reclaimer => Box::<reclaimer::Reclaimer>::default(),
            Self::DeadLetterRouter => Box::<dead_letter_router::DeadLetterRouter>::default(),
            Self::Recorder => Box::new(recorder::Recorder),
            Self::Sweeper => Box::<sweeper::Sweeper>::default(),
            Self::Retainer => Box::<retainer::Retainer>::default(),
            Self::Archivist => Box::<archivist::Archivist>::default(),
        }
    }

    /// Whether a queue that looks like this needs it.
    fn is_needed(self, queue: &Queue, counts: &QueueCounts) -> bool {
        match self {
            Self::Sampler => true,
            Self::Promoter => counts.backlog + counts.delayed + counts.retrying > 0,
            Self::Reclaimer => counts.running + counts.raw_taken > 0,
            Self::DeadLetterRouter => counts.dlq_pending > 0,
            Self::Recorder => queue.log.is_some() && counts.outbox > 0,
            Self::Sweeper => queue.is_busy_with(counts),
            Self::Retainer => counts.finished + counts.dead_lettered > 0,
            Self::Archivist => queue.log.is_some() && counts.dead_lettered > 0,
        }
    }
}

/// When a loop wants to be called again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Its batch was full.
    AtOnce,
    /// After so long.
    In(Duration),
    /// When a notice or a look at the queue says that there is something to do.
    WhenNeeded,
}

/// What one step of a loop did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Tasks, events or entries that it dealt with.
    pub handled: usize,
    /// When it wants to go on.
    pub next: Next,
}

/// Why a step failed. What it had done stands; the rest is done by the next one.
#[derive(Debug, thiserror::Error)]
pub enum ChoreError {
    /// The broker did not do its part.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// The event log did not do its part.
    #[error(transparent)]
    EventLog(#[from] EventLogError),
    /// The event log does not take a dead letter, whose task waits for it.
    #[error("the dead letter {letter} is not recorded and its task does not fail: {error}")]
    Refused {
        /// Which one.
        letter: DeadLetterId,
        /// What the event log said.
        error: EventLogError,
    },
    /// The event log does not take a dead letter that the queue has.
    #[error("the dead letter {letter} is in the queue and not in the event log: {error}")]
    NotTaken {
        /// Which one.
        letter: DeadLetterId,
        /// What the event log said.
        error: EventLogError,
    },
    /// A bug.
    #[error("the loop panicked: {0}")]
    Panic(String),
}

impl ChoreError {
    /// What to do about it.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Broker(error) => error.class(),
            Self::EventLog(error) | Self::Refused { error, .. } | Self::NotTaken { error, .. } => error.class(),
            Self::Panic(_) => ErrorClass::Bug,
        }
    }
}

/// One loop of one queue.
#[async_trait]
pub trait Chore: Send {
    /// Takes one bounded step.
    async fn run_once(&mut self, queue: &Queue) -> Result<Progress, ChoreError>;
}
