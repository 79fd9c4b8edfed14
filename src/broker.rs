//! Where tasks live: the operations on a queue, each one atomic step.
//!
//! Owns: the [`Broker`] trait, what its operations take and answer, and the
//! classes of its errors. Must not know: how a worker runs a task, who leads,
//! what Kubernetes is.
//!
//! Main flow: `enqueue` puts a task into a lane or parks it until it is due;
//! `claim` leases it to a worker; `extend` renews the lease; `settle` ends the
//! attempt with a result, a retry or a dead letter; `promote`, `reclaim`,
//! `record_dead_letter` and `sweep` move what no worker moves, and `retain`
//! forgets what has been kept for long enough.
//!
//! [`model`] is the same in memory, for tests; [`redis`] is the real thing.

pub mod clock;
mod effects;
pub mod model;
pub(crate) mod patience;
pub mod redis;
mod sentences;
pub mod session;

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use serde::Serialize;

pub use self::effects::{Doubt, EffectAbandoned, EffectBegun, EffectCommitted, EffectMark, EffectRequest, Standing};
use crate::protocol::backoff::Dice;
use crate::protocol::names::{
    Capabilities, DeadLetterId, Epoch, IdempotencyKey, QueueName, TaskId, TaskType, TenantId, TraceId, WorkerId,
};
use crate::protocol::policy::{Mode, Policy};
use crate::protocol::state::{RetryReason, State};
use crate::protocol::task::{DeadLetter, Extras, NewTask, Payload, TaskView};

/// What a caller should do about an error. Callers branch on this, never on text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorClass {
    /// The input is wrong; the same call will fail again.
    Invalid,
    /// It may work later; the same call can be repeated safely.
    Transient,
    /// Somebody else has what was asked for.
    Conflict,
    /// This should not have happened.
    Bug,
}

/// Why an operation failed. Expected outcomes are values, not errors.
#[derive(Debug, Clone, thiserror::Error)]
pub enum BrokerError {
    /// The input breaks a rule; nothing was changed.
    #[error("{0}")]
    Invalid(String),
    /// The queue does not exist on this broker.
    #[error("queue {0} does not exist here: create its TaskQueue (or provision it) first")]
    NoQueue(String),
    /// The queue is closed; nothing was changed.
    #[error("queue {0} is closed and takes no tasks: set its mode to Running or Paused")]
    Closed(String),
    /// The event log has not kept up; nothing was changed.
    #[error("queue {0} has reached the bound of its outbox: the event log must catch up before new tasks are taken")]
    OutboxFull(String),
    /// The data was written by a client that is too old or too new.
    #[error("the queue's data model is version {found}, this client knows version {known}: upgrade the older side")]
    Version {
        /// What the data says.
        found: String,
        /// What this build writes.
        known: u32,
    },
    /// The queue belongs to another owner.
    #[error("the keys of queue {queue} belong to {owner}: give the queue other keys, or take them over on purpose")]
    Owned {
        /// The queue that was asked for.
        queue: String,
        /// Who has it.
        owner: String,
    },
    /// The worker was taken for gone while it runs; nothing was changed.
    #[error("this worker gets no more tasks, because its pod was deleted by force: let it end, and start another")]
    Fenced,
    /// The server is out of memory; nothing was changed.
    #[error("Redis is out of memory and takes no new tasks: let the queue drain or raise maxmemory ({0})")]
    OutOfMemory(String),
    /// The server does not let this client in, or not do this.
    #[error("Redis refused access: check user, password and ACL ({0})")]
    Denied(String),
    /// The server cannot serve right now: loading, failing over, moving a slot.
    #[error("Redis cannot serve this right now; try again ({0})")]
    Busy(String),
    /// The server was not reached, or its answer was lost.
    #[error("Redis at {address} was not reached: check that it runs and that the address is right ({reason})")]
    Unreachable {
        /// Where it was expected.
        address: String,
        /// What went wrong.
        reason: String,
    },
    /// The write was accepted but not confirmed by as many replicas as asked for.
    #[error("accepted, but only {confirmed} of {wanted} replicas confirmed in time: repeat with the same task ids")]
    NotReplicated {
        /// Replicas that confirmed.
        confirmed: u64,
        /// Replicas that were asked for.
        wanted: u64,
    },
    /// The server answered what no script of ours answers.
    #[error("unexpected answer from Redis during {operation}: {detail}")]
    Unexpected {
        /// What was tried.
        operation: &'static str,
        /// What came back.
        detail: String,
    },
}

impl BrokerError {
    /// What to do about it.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Invalid(_) | Self::NoQueue(_) | Self::Closed(_) | Self::Version { .. } | Self::Denied(_) => {
                ErrorClass::Invalid
            }
            Self::OutboxFull(_)
            | Self::OutOfMemory(_)
            | Self::Busy(_)
            | Self::Unreachable { .. }
            | Self::NotReplicated { .. } => ErrorClass::Transient,
            Self::Owned { .. } | Self::Fenced => ErrorClass::Conflict,
            Self::Unexpected { .. } => ErrorClass::Bug,
        }
    }
}

/// What an operation gives, or why not.
pub type Result<T> = std::result::Result<T, BrokerError>;

/// The most tasks that one enqueue, claim or settle takes. A script of this
/// size stays within the time that Redis may be held.
pub const MAX_BATCH: usize = 100;

/// The longest error text that is kept.
pub const MAX_ERROR_BYTES: usize = 4096;

/// The longest words on a worker's end that are kept.
pub const MAX_WORDS_BYTES: usize = 256;

/// The longest report of progress that is kept.
pub const MAX_PROGRESS_BYTES: usize = 4096;

/// Who provisions a queue, so that two owners notice each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// Names the owner: cluster, namespace, name and object.
    pub name: String,
    /// Whether to take the keys from another owner.
    pub takeover: Takeover,
}

impl Owner {
    const KUBERNETES: &str = "kubernetes:";

    /// The custom resource of a cluster, which is the only source of its queue's policy.
    pub fn kubernetes(cluster: &str, queue: &QueueName, object: &str) -> Self {
        Self { name: format!("{}{cluster}/{queue}/{object}", Self::KUBERNETES), takeover: Takeover::Respect }
    }

    /// Whether a recorded owner is a custom resource of a cluster.
    pub fn is_kubernetes(recorded: &str) -> bool {
        recorded.starts_with(Self::KUBERNETES)
    }
}

/// Whether provisioning may replace a recorded owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Takeover {
    /// The recorded owner stays.
    Respect,
    /// The new owner is recorded in place of this one, and of no other.
    From(String),
    /// The new owner is recorded.
    Force,
}

/// What became of one task of an enqueue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Enqueued {
    /// The task's id: the first task's, where the work was known already.
    pub id: TaskId,
    /// Its state now.
    pub state: State,
    /// Whether this call made it.
    pub created: bool,
}

/// The right to run a task until somebody else gets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// Which task.
    pub task: TaskId,
    /// Which claim.
    pub epoch: Epoch,
    /// The broker's own record of the claim, given back whole as the fence.
    pub(crate) token: Vec<u8>,
    /// The task's extras as they were stored; the result carries them on.
    pub(crate) extras: Vec<u8>,
}

/// A task that a worker holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimedTask {
    /// The right to run it.
    pub lease: Lease,
    /// What kind of work it is.
    pub task_type: TaskType,
    /// The work itself. From a raw entry it may turn out not to be JSON.
    pub payload: Payload,
    /// Its urgency.
    pub priority: u8,
    /// Failures so far.
    pub retry_count: u32,
    /// Workers lost so far.
    pub crash_count: u32,
    /// Releases and rate limits so far.
    pub release_count: u32,
    /// The caller's name for this piece of work.
    pub idempotency_key: Option<IdempotencyKey>,
    /// On whose behalf.
    pub tenant_id: Option<TenantId>,
    /// Follows it.
    pub trace_id: Option<TraceId>,
    /// What it carries along.
    pub extras: Extras,
    /// When it was accepted.
    pub created_at: Timestamp,
    /// When this claim began.
    pub claimed_at: Timestamp,
}

impl ClaimedTask {
    /// Names this execution: the same task after the same number of failures
    /// has the same key, so a side effect can be told from its repetition.
    pub fn execution_key(&self) -> String {
        format!("{}:{}", self.lease.task, self.retry_count)
    }
}

/// A worker asks for tasks.
#[derive(Debug, Clone)]
pub struct ClaimRequest<'a> {
    /// Who asks.
    pub worker: &'a WorkerId,
    /// What it can do.
    pub capabilities: &'a Capabilities,
    /// How many it can take, up to [`MAX_BATCH`]. With 0 it only passes on a
    /// wake-up that it cannot use; raw entries, which may have been what rang,
    /// are filed then, too.
    pub limit: usize,
    /// After an answer was lost: what the worker knows it holds. What else it
    /// holds by the broker's books is handed out again, also a newer claim of
    /// the same task.
    pub recover: Option<&'a [Lease]>,
}

/// What a claim gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claimed {
    /// The tasks, in the order in which they should be started.
    pub tasks: Vec<ClaimedTask>,
    /// Whether the queue gives out work at all.
    pub mode: Mode,
}

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Done.
    Success {
        /// What came of it.
        result: Option<Payload>,
    },
    /// Failed, and may work next time.
    Failure {
        /// What went wrong.
        error: String,
        /// Its kind.
        code: String,
    },
    /// Failed, and will fail again.
    Permanent {
        /// What went wrong.
        error: String,
        /// Its kind.
        code: String,
    },
    /// What it talks to asked for patience.
    RateLimited {
        /// For how long, if it said so.
        retry_after: Option<Duration>,
        /// What was said.
        error: String,
    },
    /// Given back unfinished.
    Released {
        /// How long it should rest.
        delay: Duration,
    },
}

impl Outcome {
    /// Done, with nothing to tell.
    pub fn success() -> Self {
        Self::Success { result: None }
    }

    /// Done, and this came of it.
    pub fn result(result: impl Into<Payload>) -> Self {
        Self::Success { result: Some(result.into()) }
    }

    /// Failed, and may work next time.
    pub fn failure(code: impl Into<String>, error: impl Into<String>) -> Self {
        Self::Failure { error: error.into(), code: code.into() }
    }

    /// Failed, and will fail again: the task goes to the dead letters.
    pub fn permanent(code: impl Into<String>, error: impl Into<String>) -> Self {
        Self::Permanent { error: error.into(), code: code.into() }
    }
}

/// One attempt's end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settlement {
    /// The right to say so.
    pub lease: Lease,
    /// How it ended.
    pub outcome: Outcome,
    /// The random part of the delay, if there is one.
    pub dice: Dice,
}

/// What became of one settlement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// The task is done.
    Succeeded,
    /// It will run again.
    Retrying {
        /// When it may.
        due_at: Timestamp,
    },
    /// It is dead, and its dead letter is to be recorded.
    Dead,
    /// This very settlement was made before; its answer was lost. A failure or a release is recognised until its task
    /// is claimed again, an end for as long as its result is kept.
    AlreadySettled,
    /// Somebody else has, or had, the task since. What this settlement said may have been counted before that: a failure
    /// or a release that is said again after its retry was claimed is answered so, too. Nothing is counted twice.
    LeaseLost,
    /// The task was cancelled.
    Cancelled,
    /// The task is final ([`crate::protocol::state::TRANSITION_INVALID`]).
    InvalidTransition,
    /// Nobody knows the task (any more).
    Unknown,
    /// The result is over the queue's bound; nothing was changed.
    ResultTooLarge,
}

/// What a settle call gave.
#[derive(Debug)]
pub struct SettleReply {
    /// One answer a settlement, in their order.
    pub settled: Vec<Settled>,
    /// The next tasks, if they were asked for. An error here leaves the settlements standing.
    pub claimed: Result<Claimed>,
}

/// What became of one lease's renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extended {
    /// Renewed.
    Renewed,
    /// Somebody else has the task, or it is over.
    Lost,
    /// The task was cancelled.
    Cancelled,
}

/// What a promotion did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Promoted {
    /// Tasks whose time had come.
    pub promoted: usize,
    /// Raw entries that became tasks.
    pub filed: usize,
    /// How long it is until the next one is due, by the broker's clock.
    pub next_in: Option<Duration>,
}

/// Where a walk through all lanes goes on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReclaimCursor(pub(crate) String);

/// What a reclaim did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reclaimed {
    /// Tasks that will run again.
    pub requeued: Vec<TaskId>,
    /// Tasks that were lost once too often.
    pub dead: Vec<TaskId>,
    /// Where to go on; `None` after a full round.
    pub next: Option<ReclaimCursor>,
    /// The server has changed: its clock may have too, so expiry is not judged for a while.
    pub held: bool,
}

/// What became of a cancel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancelled {
    /// It is cancelled, from that state.
    Done {
        /// Where it was.
        from: State,
    },
    /// It was cancelled before.
    AlreadyCancelled,
    /// It is past cancelling ([`crate::protocol::state::TRANSITION_INVALID`]).
    InvalidTransition {
        /// Where it is.
        state: State,
    },
    /// Nobody knows the task (any more).
    Unknown,
}

/// Dead tasks whose dead letter is to be recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingDeadLetters {
    /// Some of them, oldest first.
    pub letters: Vec<DeadLetter>,
    /// Whether more follow.
    pub more: bool,
}

/// What became of recording a dead letter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Recorded {
    /// Recorded, and the task has failed.
    Done,
    /// It was recorded before.
    AlreadyRecorded,
    /// The task is not waiting for that ([`crate::protocol::state::TRANSITION_INVALID`]).
    InvalidTransition,
    /// Nobody knows the task (any more).
    Unknown,
}

/// A dead letter runs again as a new task.
#[derive(Debug, Clone)]
pub struct ReplayRequest {
    /// Which dead letter.
    pub dead_letter: DeadLetterId,
    /// The new task's id, made by the caller so that the call can be repeated.
    pub new_id: TaskId,
    /// A corrected payload.
    pub payload: Option<Payload>,
    /// Who.
    pub person: String,
    /// Why, if that was said.
    pub reason: Option<String>,
}

/// What became of a replay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Replayed {
    /// The new task is queued.
    Done {
        /// Its id.
        task: TaskId,
    },
    /// It was replayed before.
    AlreadyReplayed {
        /// As this task.
        task: TaskId,
    },
    /// It was discarded before.
    Discarded,
    /// Another live task holds the idempotency key now.
    KeyTaken {
        /// That task.
        by: TaskId,
    },
    /// The id for the new task is in use.
    IdTaken {
        /// That id.
        id: TaskId,
    },
    /// There is no such dead letter.
    Unknown,
}

/// A person gives a dead letter up.
#[derive(Debug, Clone)]
pub struct DiscardRequest {
    /// Which dead letter.
    pub dead_letter: DeadLetterId,
    /// Who.
    pub person: String,
    /// Why.
    pub reason: String,
}

/// What became of a discard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Discarded {
    /// It is given up.
    Done,
    /// One more person has to agree.
    AwaitingSecond,
    /// The same person asked again; another one has to agree.
    SamePerson,
    /// It was replayed before.
    AlreadyReplayed {
        /// As this task.
        task: TaskId,
    },
    /// It was given up before.
    AlreadyDiscarded,
    /// There is no such dead letter.
    Unknown,
}

/// What a person said about a dead letter, and when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Voice {
    /// Who.
    pub person: String,
    /// Why, if that was said.
    pub reason: Option<String>,
    /// When.
    pub at: Timestamp,
}

/// Where a dead letter stands with the people who look after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Review {
    /// Nobody has said anything.
    Open,
    /// Somebody wants to give it up, and somebody else has to agree.
    DiscardRequested(Voice),
    /// It runs again.
    Replayed {
        /// As this task.
        task: TaskId,
        /// Who decided.
        by: Voice,
    },
    /// It was given up.
    Discarded {
        /// Who decided.
        by: Voice,
        /// Who asked for it before, where two had to agree.
        requested: Option<Voice>,
    },
}

/// A dead letter that was recorded, and what people decided about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetterView {
    /// What died.
    pub letter: DeadLetter,
    /// When it was recorded.
    pub recorded_at: Timestamp,
    /// What was decided.
    pub review: Review,
}

/// What a person did about a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DecisionAction {
    /// It runs again.
    Replayed,
    /// It is to be given up; somebody else has to agree.
    DiscardRequested,
    /// It was given up.
    Discarded,
}

impl DecisionAction {
    /// Every action.
    pub const ALL: [Self; 3] = [Self::Replayed, Self::DiscardRequested, Self::Discarded];

    /// The spelling that people and the event log use.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Replayed => "replayed",
            Self::DiscardRequested => "discard_requested",
            Self::Discarded => "discarded",
        }
    }
}

impl fmt::Display for DecisionAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A word that is no action.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown action {0:?}: use replayed, discard_requested or discarded")]
pub struct UnknownAction(pub String);

impl FromStr for DecisionAction {
    type Err = UnknownAction;
    fn from_str(value: &str) -> std::result::Result<Self, UnknownAction> {
        Self::ALL.into_iter().find(|action| action.as_str() == value).ok_or_else(|| UnknownAction(value.to_owned()))
    }
}

/// A person's decision about a dead letter, as the outbox carries it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// Which dead letter.
    pub dead_letter: DeadLetterId,
    /// What was decided.
    pub action: DecisionAction,
    /// Who.
    pub person: String,
    /// Why, if that was said.
    pub reason: Option<String>,
    /// The task that it runs again as.
    pub new_task: Option<TaskId>,
    /// When.
    pub at: Timestamp,
}

/// Where a walk through results and dead letters goes on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RetainCursor(pub(crate) String);

/// What a step of retention did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Retained {
    /// Entries of the result stream that were removed, with the tasks that they told of.
    pub results: usize,
    /// Dead letters that were removed.
    pub dead_letters: usize,
    /// How long until there may be more to remove: nothing when the walk is not at
    /// its end yet, `None` when nothing is kept that time alone will end.
    pub next_in: Option<Duration>,
    /// A consumer group that has not acknowledged what would have been removed.
    pub held_by: Option<String>,
    /// For the next call. It may be lost: the walk then begins anew.
    pub cursor: RetainCursor,
}

/// Where a sweep goes on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SweepCursor(pub(crate) String);

/// What a sweep found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Swept {
    /// Tasks that were looked at.
    pub checked: usize,
    /// Tasks that were not where their state says, and were put back.
    pub repaired: Vec<(TaskId, String)>,
    /// Consumers without a worker that were removed.
    pub consumers_removed: usize,
    /// Workers that were found lost, with their tasks requeued.
    pub workers_lost: Vec<WorkerId>,
    /// Whether a silent worker holds more than one call takes back: sweep again.
    pub unfinished: bool,
    /// Where to go on; `None` after a full round.
    pub next: Option<SweepCursor>,
}

/// What a worker tells of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, serde::Deserialize)]
pub struct WorkerInfo {
    /// Its id, new with each start.
    pub id: WorkerId,
    /// The machine.
    pub host: String,
    /// The process.
    pub pid: u32,
    /// The pod's name, in a cluster.
    pub pod: Option<String>,
    /// The pod's UID, in a cluster.
    pub pod_uid: Option<String>,
    /// The container in the pod.
    pub container: Option<String>,
    /// The worker's version.
    pub version: String,
    /// The types that it can do; empty for every type.
    pub types: Vec<TaskType>,
    /// The UID of the WorkerPool that it belongs to, in a cluster. Workers of earlier versions do not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// When its process started, by the clock of its own machine: the clock by
    /// which a container's end is told. Workers of earlier versions do not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<Timestamp>,
}

/// A worker in the registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerRecord {
    /// What it told of itself.
    pub info: WorkerInfo,
    /// When it registered.
    pub started_at: Timestamp,
    /// Its last sign of life.
    pub heartbeat_at: Timestamp,
}

/// What a registration did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Registered {
    /// The worker that ran in the same container before.
    pub superseded: Option<WorkerId>,
    /// Its tasks, which came back.
    pub requeued: Vec<TaskId>,
}

/// What is seen of an idle queue at a glance. As long as two glances are equal,
/// no task, no worker, no raw entry and no dead letter has come to where there was none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Glance {
    /// How many keys there are of those that an idle queue may lack.
    pub(crate) keys: u64,
    /// How long the stream for raw entries is, read or not.
    pub(crate) raw_entries: u64,
}

/// A queue in numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct QueueCounts {
    /// Ready to be claimed, raw entries included.
    pub backlog: u64,
    /// Claimed.
    pub running: u64,
    /// Raw entries that a consumer of an older system has read and not acknowledged.
    #[serde(skip)]
    pub raw_taken: u64,
    /// Waiting for their time.
    pub delayed: u64,
    /// Waiting for their retry's delay.
    pub retrying: u64,
    /// Waiting for other tasks.
    pub blocked: u64,
    /// Waiting for a person.
    pub waiting_approval: u64,
    /// Dead, not yet recorded.
    pub dlq_pending: u64,
    /// Dead letters that nobody has decided on.
    pub dead_lettered: u64,
    /// Finished tasks that are still known.
    pub finished: u64,
    /// Since when the oldest ready task waits.
    pub oldest_task_time: Option<Timestamp>,
    /// Registered workers.
    pub workers: u64,
    /// Entries in the outbox.
    pub outbox: u64,
    /// Moves that were refused since the queue was made.
    pub invalid_transitions: u64,
    /// How long ago the most silent worker was heard.
    #[serde(skip)]
    pub longest_silence: Option<Duration>,
    /// When this was so, by the broker's clock.
    pub sampled_at: Timestamp,
}

/// The work that is there for some workers, and who holds how much of the queue's.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Demand {
    /// Whether the queue gives out work at all.
    pub mode: Mode,
    /// Ready to be claimed by them; raw entries too, whose type nobody has read yet.
    pub backlog: u64,
    /// Claimed, of the types that they can do.
    pub running: u64,
    /// Tasks of any type whose time has come, and that nobody has brought back yet.
    pub due: u64,
    /// How many tasks each worker of the queue holds; who holds none is not listed.
    pub held: BTreeMap<WorkerId, u64>,
    /// What a look has to differ from for anything to have happened.
    pub stillness: Stillness,
}

impl Demand {
    /// All that waits or runs.
    pub fn total(&self) -> u64 {
        self.backlog + self.running + self.due
    }
}

/// How a queue was when nothing was to do in it, to be compared by [`redis::stirred`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stillness {
    /// Whether any task was alive: one that waits for its time may be.
    pub(crate) lives: bool,
    /// The last entry of the stream for raw entries.
    pub(crate) raw_up_to: String,
}

/// Where a listing goes on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListCursor(pub(crate) String);

/// One page of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page<T> {
    /// What is on it. It may be empty though more pages follow.
    pub items: Vec<T>,
    /// Where to go on; `None` at the end.
    pub next: Option<ListCursor>,
}

/// One move of one task, as the outbox carries it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Which task.
    pub task: TaskId,
    /// Where it was; `None` for a new task.
    pub from: Option<State>,
    /// Where it went.
    pub to: State,
    /// At which claim.
    pub epoch: Epoch,
    /// When.
    pub at: Timestamp,
    /// When the task was accepted.
    pub created_at: Timestamp,
    /// What kind of work it is.
    pub task_type: TaskType,
    /// Failures so far.
    pub retry_count: u32,
    /// On whose behalf.
    pub tenant_id: Option<TenantId>,
    /// Follows it.
    pub trace_id: Option<TraceId>,
    /// Who ran it, where somebody did.
    pub consumer: Option<String>,
    /// Its message in the lane, where it had one.
    pub message_id: Option<String>,
    /// More, by kind: an error code, a reason, what it was reclaimed from.
    pub detail: Option<String>,
}

/// An outside effect that happened, as the outbox carries it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EffectEvent {
    /// Names the effect.
    pub key: IdempotencyKey,
    /// The task on whose behalf somebody said so.
    pub task: TaskId,
    /// By which claim of it.
    pub epoch: Epoch,
    /// By which worker.
    pub consumer: Option<String>,
    /// When.
    pub at: Timestamp,
    /// When the task was accepted.
    pub created_at: Timestamp,
    /// What kind of work it is.
    pub task_type: TaskType,
    /// Failures so far.
    pub retry_count: u32,
    /// On whose behalf: the key names one effect a tenant.
    pub tenant_id: Option<TenantId>,
    /// Follows it.
    pub trace_id: Option<TraceId>,
}

/// An entry of the outbox: what one operation did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OutboxEntry {
    /// Its place.
    pub id: String,
    /// Which of the broker's connections it was read by: behind another one there may be
    /// another server, on which that place is another entry's.
    pub read_by: u64,
    /// The moves, in their order.
    pub events: Vec<Event>,
    /// The decisions of people that led to them.
    pub decisions: Vec<Decision>,
    /// Outside effects that happened.
    pub effects: Vec<EffectEvent>,
}

/// Why a sleeping worker woke.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wake {
    /// There may be work.
    Rung,
    /// The time was up.
    TimedOut,
}

/// An idle worker's bed: it blocks without polling until there may be work.
#[async_trait]
pub trait Sleeper: Send {
    /// Sleeps until rung, but no longer than `limit`. Always claim first:
    /// what was ready before is not rung again.
    async fn sleep(&mut self, mode: Mode, limit: Duration) -> Result<Wake>;
}

/// What a queue's leader should look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Topic {
    /// Something is due sooner than before.
    Due,
    /// A task has died.
    Dead,
    /// The outbox was empty, and is not any more.
    Outbox,
    /// A worker has registered.
    Workers,
}

/// A hint to the leader of a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// Which queue, by the prefix of its keys.
    pub queue: String,
    /// What to look at.
    pub topic: Topic,
}

/// Hints that the queues of one server give to their leader. One may be lost;
/// nothing but time depends on it.
#[async_trait]
pub trait Notices: Send {
    /// Of which server, as [`Broker::address`] tells it.
    fn address(&self) -> &str;

    /// Begins to listen. What was told before is lost: look at everything once.
    async fn listen(&mut self) -> Result<()>;

    /// Waits for the next one. After an error, [`Self::listen`] again.
    async fn next(&mut self) -> Result<Notice>;
}

/// The operations on one queue. Each is one atomic step, and each can be
/// repeated when its answer was lost.
#[async_trait]
pub trait Broker: Send + Sync {
    /// Where its server is: brokers of one server have the same.
    fn address(&self) -> &str;

    /// Makes the queue if it is not there, and writes its policy.
    async fn provision(&self, owner: &Owner, policy: &Policy) -> Result<()>;

    /// The policy in force.
    async fn policy(&self) -> Result<Policy>;

    /// Takes up to [`MAX_BATCH`] tasks: all of them or, on an error, none.
    async fn enqueue(&self, tasks: &[NewTask]) -> Result<Vec<Enqueued>>;

    /// Leases ready tasks to a worker: by priority, then what ran before,
    /// then by the time since they are ready.
    async fn claim(&self, request: ClaimRequest<'_>) -> Result<Claimed>;

    /// Ends attempts, and claims the next tasks in the same step.
    async fn settle(&self, settlements: &[Settlement], next: ClaimRequest<'_>) -> Result<SettleReply>;

    /// Renews leases, and counts as the worker's heartbeat.
    async fn extend(&self, worker: &WorkerId, leases: &[Lease]) -> Result<Vec<Extended>>;

    /// Keeps how far an attempt has come, up to [`MAX_PROGRESS_BYTES`], while
    /// its lease is good. It renews nothing.
    async fn report_progress(&self, lease: &Lease, progress: &Payload) -> Result<Extended>;

    /// Asks whether an outside effect may begin. The right to is given once in
    /// the queue, the tenant and the key, to an attempt whose lease is good. It
    /// is remembered for as long as results are kept and the task may run.
    async fn begin_effect(&self, request: &EffectRequest<'_>) -> Result<EffectBegun>;

    /// Keeps the answer of an effect that happened; also when the lease is gone
    /// meanwhile, because the effect happened all the same.
    async fn commit_effect(
        &self,
        lease: &Lease,
        key: &IdempotencyKey,
        answer: &Payload,
        standing: Standing<'_>,
    ) -> Result<EffectCommitted>;

    /// Says that an effect that this attempt began did not happen: it may begin anew.
    async fn abandon_effect(&self, lease: &Lease, key: &IdempotencyKey) -> Result<EffectAbandoned>;

    /// Gives tasks back unfinished, to run again after `delay`.
    async fn release(&self, worker: &WorkerId, leases: Vec<Lease>, delay: Duration) -> Result<Vec<Settled>> {
        let settle = |lease| Settlement { lease, outcome: Outcome::Released { delay }, dice: Dice(0) };
        let settlements: Vec<_> = leases.into_iter().map(settle).collect();
        let nothing = ClaimRequest { worker, capabilities: &Capabilities::any(), limit: 0, recover: None };
        Ok(self.settle(&settlements, nothing).await?.settled)
    }

    /// Moves what is due into its lane, files raw entries, and rings again
    /// where work waits: a worker may have died between bell and claim.
    async fn promote(&self, limit: usize) -> Result<Promoted>;

    /// Takes tasks back whose lease has expired, if the policy says so.
    async fn reclaim(&self, cursor: ReclaimCursor) -> Result<Reclaimed>;

    /// Takes all tasks back from a worker that is known to be gone, if the
    /// policy accepts that sign; it leaves the registry in any case. `words` say
    /// what else is known of its end, like `OOMKilled`; up to [`MAX_WORDS_BYTES`] are kept.
    /// A worker whose pod was deleted by force may run on: it is fenced off, and gets
    /// [`BrokerError::Fenced`] when it claims or registers.
    async fn take_back(&self, worker: &WorkerId, reason: RetryReason, words: &str) -> Result<Reclaimed>;

    /// The same where nothing else is known.
    async fn reclaim_from(&self, worker: &WorkerId, reason: RetryReason) -> Result<Reclaimed> {
        self.take_back(worker, reason, "").await
    }

    /// Ends a task that is not needed any more.
    async fn cancel(&self, task: &TaskId, reason: &str) -> Result<Cancelled>;

    /// Dead tasks whose dead letter is to be recorded, oldest first, up to
    /// [`MAX_BATCH`]; large ones make it fewer. With `after`, those behind that task,
    /// as long as it waits itself.
    async fn pending_dead_letters_after(&self, after: Option<&TaskId>, limit: usize) -> Result<PendingDeadLetters>;

    /// The first of them.
    async fn pending_dead_letters(&self, limit: usize) -> Result<Vec<DeadLetter>> {
        Ok(self.pending_dead_letters_after(None, limit).await?.letters)
    }

    /// Writes the dead letter and fails the task.
    async fn record_dead_letter(&self, dead_letter: &DeadLetterId) -> Result<Recorded>;

    /// A dead letter that was recorded, and what was decided about it.
    async fn dead_letter(&self, dead_letter: &DeadLetterId) -> Result<Option<DeadLetterView>>;

    /// Recorded dead letters, the newest first, up to [`MAX_BATCH`] a page; large
    /// ones make a page shorter.
    async fn dead_letters(&self, cursor: ListCursor, limit: usize) -> Result<Page<DeadLetterView>>;

    /// Runs a dead letter again as a new task.
    async fn replay(&self, request: &ReplayRequest) -> Result<Replayed>;

    /// Gives a dead letter up.
    async fn discard(&self, request: &DiscardRequest) -> Result<Discarded>;

    /// Removes results, with the tasks that they tell of, and dead letters that
    /// the policy's retention does not keep any longer. One call looks at up to
    /// `limit` entries, at most [`MAX_BATCH`]. What a consumer group has not
    /// acknowledged stays, whatever its age.
    async fn retain(&self, cursor: RetainCursor, limit: usize) -> Result<Retained>;

    /// Checks that every live task is where its state says, repairs what is
    /// not, and clears away what dead workers left and lanes that hold nothing.
    async fn sweep(&self, cursor: SweepCursor) -> Result<Swept>;

    /// Adds a worker to the registry. It takes the place of the one that ran
    /// in the same container before, whose tasks come back at once if the policy
    /// accepts [`crate::protocol::policy::ReclaimCause::PodGone`].
    async fn register(&self, worker: &WorkerInfo) -> Result<Registered>;

    /// Takes a worker out of the registry. Its tasks, if any, come back as released.
    async fn deregister(&self, worker: &WorkerId) -> Result<()>;

    /// The registered workers.
    async fn workers(&self) -> Result<Vec<WorkerRecord>>;

    /// The work that is there for workers with these capabilities, and who holds how much.
    async fn demand(&self, capabilities: &Capabilities) -> Result<Demand>;

    /// The queue in numbers.
    async fn counts(&self) -> Result<QueueCounts>;

    /// A look at an idle queue that costs next to nothing; `None` where there is no such thing.
    async fn glance(&self) -> Result<Option<Glance>> {
        Ok(None)
    }

    /// One task, by its id or by an id that a raw producer sent for the same work.
    async fn get(&self, task: &TaskId) -> Result<Option<TaskView>>;

    /// Tasks in a state.
    async fn list(&self, state: State, cursor: ListCursor, limit: usize) -> Result<Page<TaskView>>;

    /// The oldest entries of the outbox.
    async fn outbox(&self, limit: usize) -> Result<Vec<OutboxEntry>>;

    /// Forgets these entries and no others. What was read by a connection that is gone
    /// stays, with a transient error: read again.
    async fn trim_outbox(&self, read: &[OutboxEntry]) -> Result<()>;

    /// A bed for an idle worker.
    async fn sleeper(&self, capabilities: &Capabilities) -> Result<Box<dyn Sleeper>>;
}
