//! `TaskQueue`: what a queue promises.

#![allow(unreachable_pub, reason = "the schema is derived from copies of the types inside functions")]

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::backoff::Backoff;
use super::broker::Broker;
use crate::protocol::policy as engine;

/// What the queue promises to its producers and its workers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, CustomResource, KubeSchema)]
#[kube(
    group = "windlass.dev",
    version = "v1alpha1",
    kind = "TaskQueue",
    plural = "taskqueues",
    namespaced,
    doc = "A durable queue of tasks. Producers put tasks into it; the WorkerPools that name it run them. What is written here applies to the very next claim of every worker, with no restart.",
    status = "TaskQueueStatus",
    derive = "PartialEq",
    shortname = "tq",
    category = "windlass",
    printcolumn(name = "Ready", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(name = "Mode", type_ = "string", json_path = ".spec.mode"),
    printcolumn(name = "Backlog", type_ = "integer", json_path = ".status.backlog", description = "Tasks that wait for a worker"),
    printcolumn(name = "Running", type_ = "integer", json_path = ".status.running"),
    printcolumn(name = "Retrying", type_ = "integer", json_path = ".status.retrying"),
    printcolumn(name = "Dead", type_ = "integer", json_path = ".status.deadLettered", description = "Dead letters that nobody has decided on"),
    printcolumn(name = "Workers", type_ = "integer", json_path = ".status.workers"),
    printcolumn(name = "Oldest", type_ = "date", json_path = ".status.oldestTaskTime", description = "When the task was created that waits longest", priority = 1),
    printcolumn(name = "Delayed", type_ = "integer", json_path = ".status.delayed", priority = 1),
    printcolumn(name = "Reason", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].reason"#, priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new("self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$')")
        .message("metadata.name: a queue's name has 1 to 63 lower-case letters, digits or -, and begins and ends with a letter or digit, because it becomes a part of keys"),
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.visibilityTimeoutSeconds >= 3 * self.heartbeatPeriodSeconds")
        .message("visibilityTimeoutSeconds must be at least three times heartbeatPeriodSeconds, so that one lost heartbeat takes no task away: raise the one or lower the other")
        .field_path(".visibilityTimeoutSeconds"),
    validation = Rule::new("!('WorkerLost' in self.reclaim.causes) || self.reclaim.workerLostAfterSeconds >= 2 * self.heartbeatPeriodSeconds")
        .message("reclaim.workerLostAfterSeconds must be at least twice heartbeatPeriodSeconds, or every worker counts as lost: raise the one or lower the other")
        .field_path(".reclaim.workerLostAfterSeconds"),
    validation = Rule::new("!has(self.keys) || has(self.broker)")
        .message("keys adopts names on a Redis of one's own: set broker as well, or leave keys out")
        .field_path(".keys"),
    validation = Rule::new("has(self.broker) == has(oldSelf.broker) && (!has(self.broker) || self.broker == oldSelf.broker)")
        .message("broker is immutable, because the tasks would stay behind: make a new TaskQueue for another Redis")
        .field_path(".broker"),
    validation = Rule::new("has(self.keys) == has(oldSelf.keys) && (!has(self.keys) || self.keys == oldSelf.keys)")
        .message("keys is immutable, because the tasks would stay behind: make a new TaskQueue for other keys")
        .field_path(".keys"),
)]
pub struct TaskQueueSpec {
    /// The store that keeps the queue's tasks; the operator's default Redis if left out. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broker: Option<Broker>,
    /// Names of streams that exist already and that the queue takes over from a system that was there before.
    /// Only with a broker of one's own. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keys: Option<Keys>,
    /// Running: takes and gives work. Paused: takes work, gives none. Closed: neither.
    #[serde(default = "running")]
    #[schemars(schema_with = "mode_schema")]
    pub mode: engine::Mode,
    /// How long a task stays with a worker that no longer renews its lease, in seconds. At least three times
    /// `heartbeatPeriodSeconds`.
    #[serde(default = "visibility_timeout")]
    #[schemars(range(min = 3, max = 604_800))]
    pub visibility_timeout_seconds: u32,
    /// How often workers renew their leases, in seconds.
    #[serde(default = "heartbeat_period")]
    #[schemars(range(min = 1, max = 86_400))]
    pub heartbeat_period_seconds: u32,
    /// When a running task is taken from its worker.
    #[serde(default)]
    pub reclaim: Reclaim,
    /// How often and how long a task is tried.
    #[serde(default)]
    pub retry: Retry,
    /// What becomes of a task whose handler was told to come back later.
    #[serde(default)]
    pub rate_limit: RateLimit,
    /// The range of priorities, and which end is served first.
    #[serde(default)]
    pub priority: Priority,
    /// How a repeated enqueue of the same work is recognised.
    #[serde(default)]
    pub idempotency: Idempotency,
    /// How long one attempt at a task may take, in seconds; no limit if left out. A task, or its type in
    /// `taskTypes`, may have a limit of its own. (`retry.deadlineSeconds` bounds a task's whole life.)
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 2_592_000))]
    pub timeout_seconds: Option<u32>,
    /// What differs for single types of tasks. Types that are not listed are allowed as well.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub task_types: Vec<TaskType>,
    /// How long what is finished is kept.
    #[serde(default)]
    pub retention: Retention,
    /// What people may do with dead letters.
    #[serde(default)]
    pub dead_letter: DeadLetter,
    /// Sizes above which input is refused.
    #[serde(default)]
    pub limits: Limits,
    /// What becomes of the data when the TaskQueue is deleted. Retain: it stays, and a TaskQueue of the same name
    /// finds it. Delete: it goes; streams that were adopted in `keys` stay. DeleteIfEmpty: it goes if no task is live and
    /// no dead letter undecided at that time, else it stays. Where Redis cannot be used, the data stays.
    #[serde(default)]
    pub deletion_policy: DeletionPolicy,
}

/// Names that the queue takes over. Streams that are left out get a name of the queue's own.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("(!has(self.task) || !has(self.result) || self.task != self.result) && (!has(self.task) || !has(self.deadLetter) || self.task != self.deadLetter) && (!has(self.result) || !has(self.deadLetter) || self.result != self.deadLetter)")
        .message("task, result and deadLetter must be three different streams"),
    validation = Rule::new("(!has(self.task) || !self.task.startsWith('windlass:')) && (!has(self.result) || !self.result.startsWith('windlass:')) && (!has(self.deadLetter) || !self.deadLetter.startsWith('windlass:'))")
        .message("keys adopts streams of another system, and names that begin with windlass: are queues' own: leave such a name out"),
)]
pub struct Keys {
    /// The stream that producers write to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 200), regex(pattern = r"^[!-~]+$"))]
    pub task: Option<String>,
    /// The stream of final results.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 200), regex(pattern = r"^[!-~]+$"))]
    pub result: Option<String>,
    /// The stream of dead letters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 200), regex(pattern = r"^[!-~]+$"))]
    pub dead_letter: Option<String>,
    /// The consumer group on the task stream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 200), regex(pattern = r"^[!-~]+$"))]
    pub group: Option<String>,
}

/// When a running task is taken from its worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Reclaim {
    /// Which signs count. VisibilityTimeout: the lease was not renewed. WorkerLost: the worker sent no heartbeat for
    /// `workerLostAfterSeconds`. PodGone: its pod is known to be dead.
    #[serde(default = "every_cause")]
    #[schemars(schema_with = "causes_schema")]
    pub causes: BTreeSet<engine::ReclaimCause>,
    /// How long a worker may be silent before it counts as lost, in seconds.
    #[serde(default = "worker_lost_after")]
    #[schemars(range(min = 2, max = 604_800))]
    pub worker_lost_after_seconds: u32,
}

/// How often and how long a task is tried. Every way to run again is bounded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Retry {
    /// Failures that are followed by another attempt; the next one makes a dead letter.
    #[schemars(range(min = 0, max = 10_000))]
    pub max_retries: u32,
    /// Lost workers that are followed by another attempt: they are counted apart from failures.
    #[schemars(range(min = 0, max = 10_000))]
    pub max_crashes: u32,
    /// Releases by a worker that drains, and rate limits, that are followed by another attempt: they cost no retry.
    #[schemars(range(min = 0, max = 100_000))]
    pub max_releases: u32,
    /// From a task's creation to its last attempt, in seconds; after that it becomes a dead letter.
    #[schemars(range(min = 1, max = 31_622_400))]
    pub deadline_seconds: u32,
    /// How long a failed task waits before its next attempt. If left out: Exponential from 1000 to 30000 milliseconds,
    /// with Additive jitter of 300 milliseconds.
    // Not a default of the schema: its fields would stay behind when an apply changes the strategy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backoff: Option<Backoff>,
}

/// What becomes of a task whose handler was told to come back later.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RateLimit {
    /// How long it waits where no Retry-After says better. If left out: Exponential from 60000 to 3600000
    /// milliseconds, with Proportional jitter of 10 percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backoff: Option<Backoff>,
}

/// The range of priorities.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.min <= self.default && self.default <= self.max")
        .message("priorities must be ordered min ≤ default ≤ max: set default to a number between min and max"),
)]
pub struct Priority {
    /// What a task gets that names none.
    #[serde(default = "priority_default")]
    #[schemars(range(min = 0, max = 100))]
    pub default: u8,
    /// The lowest number allowed.
    #[serde(default = "priority_min")]
    #[schemars(range(min = 0, max = 100))]
    pub min: u8,
    /// The highest number allowed.
    #[serde(default = "priority_max")]
    #[schemars(range(min = 0, max = 100))]
    pub max: u8,
    /// HighestFirst: 10 is more urgent than 1. LowestFirst: 0 is more urgent than 9.
    #[serde(default = "highest_first")]
    #[schemars(schema_with = "order_schema")]
    pub order: engine::PriorityOrder,
}

/// How a repeated enqueue of the same work is recognised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Idempotency {
    /// Key: by the key that the producer gives. ContentHash: by the task's type and payload.
    #[schemars(schema_with = "source_schema")]
    pub source: engine::IdempotencySource,
    /// Optional: a task may come without a key. Required: such a task is refused.
    #[schemars(schema_with = "requirement_schema")]
    pub requirement: engine::IdempotencyRequirement,
    /// For how long a key stands for its first task. Live: until that is finished. LiveAndSucceeded: after a success
    /// also for as long as the task is retained. Retained: for as long as it is retained, however it ended.
    #[schemars(schema_with = "scope_schema")]
    pub scope: engine::IdempotencyScope,
}

/// What differs for one type of tasks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TaskType {
    /// The type: 1 to 100 letters, digits or . _ / : - beginning with a letter or digit.
    #[schemars(length(min = 1, max = 100), regex(pattern = r"^[A-Za-z0-9][A-Za-z0-9._/:-]*$"))]
    pub name: String,
    /// How long one attempt at a task of this type may take, in seconds; as the queue's `timeoutSeconds` if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 2_592_000))]
    pub timeout_seconds: Option<u32>,
}

/// How long what is finished is kept. The bounds win over the times. What a consumer group of the result or the
/// dead-letter stream has not acknowledged is never removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Retention {
    /// Succeeded and cancelled tasks and their results, in seconds.
    #[schemars(range(min = 0, max = 315_360_000))]
    pub succeeded_seconds: u32,
    /// Failed tasks and their dead letters, in seconds.
    #[schemars(range(min = 0, max = 315_360_000))]
    pub failed_seconds: u32,
    /// The most results that are kept.
    #[schemars(range(min = 0, max = 1_000_000_000))]
    pub result_max_entries: u32,
    /// The most memory that results may take, in mebibytes.
    #[schemars(range(min = 1, max = 1_048_576))]
    pub result_max_mebibytes: u32,
}

/// What people may do with dead letters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DeadLetter {
    /// What giving up a dead letter takes.
    pub discard: Discard,
}

/// What giving up a dead letter takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Discard {
    /// How many different people must agree: 1 or 2.
    #[schemars(range(min = 1, max = 2))]
    pub approvals: u8,
}

/// Sizes above which input is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Limits {
    /// A task's payload, in kibibytes.
    #[schemars(range(min = 1, max = 65_536))]
    pub payload_kibibytes: u32,
    /// A task's result, in kibibytes.
    #[schemars(range(min = 1, max = 65_536))]
    pub result_kibibytes: u32,
}

/// What becomes of the data when the TaskQueue is deleted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DeletionPolicy {
    /// It stays.
    #[default]
    Retain,
    /// It goes.
    Delete,
    /// It goes once nothing is left to do.
    DeleteIfEmpty,
}

/// How the queue is. Counts are a sample, at most 10 seconds old while they change.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct TaskQueueStatus {
    /// The generation of the spec that this status tells of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Ready, BrokerConnected, Provisioned, WorkersAvailable, EventLogRecording and Degraded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
    /// Tasks that wait for a worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backlog: Option<i64>,
    /// Tasks that a worker holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<i64>,
    /// Tasks that wait for their time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delayed: Option<i64>,
    /// Tasks that failed or were given back, and wait for their next attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retrying: Option<i64>,
    /// Tasks that wait for other tasks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocked: Option<i64>,
    /// Tasks that wait for a person's word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_approval: Option<i64>,
    /// Dead letters that nobody has decided on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dead_lettered: Option<i64>,
    /// When the task was created that waits longest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oldest_task_time: Option<Time>,
    /// Workers that give signs of life.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers: Option<i64>,
}

fn running() -> engine::Mode {
    engine::Mode::Running
}

fn visibility_timeout() -> u32 {
    300
}

fn heartbeat_period() -> u32 {
    30
}

fn every_cause() -> BTreeSet<engine::ReclaimCause> {
    use engine::ReclaimCause::{PodGone, VisibilityTimeout, WorkerLost};
    [VisibilityTimeout, WorkerLost, PodGone].into()
}

fn worker_lost_after() -> u32 {
    90
}

fn priority_default() -> u8 {
    5
}

fn priority_min() -> u8 {
    1
}

fn priority_max() -> u8 {
    10
}

fn highest_first() -> engine::PriorityOrder {
    engine::PriorityOrder::HighestFirst
}

/// A word out of a list. The engine's own enums serve here, so that nothing is
/// spelt twice; the protocol knows no schemas, so they are written down here.
fn one_of(words: &[&str]) -> schemars::Schema {
    schemars::json_schema!({ "type": "string", "enum": words })
}

fn mode_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    one_of(&["Running", "Paused", "Closed"])
}

fn causes_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    let causes = one_of(&["VisibilityTimeout", "WorkerLost", "PodGone"]);
    schemars::json_schema!({
        "type": "array", "items": causes, "minItems": 1, "maxItems": 3, "x-kubernetes-list-type": "set",
    })
}

fn order_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    one_of(&["HighestFirst", "LowestFirst"])
}

fn source_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    one_of(&["Key", "ContentHash"])
}

fn requirement_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    one_of(&["Optional", "Required"])
}

fn scope_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    one_of(&["Live", "LiveAndSucceeded", "Retained"])
}

impl Default for TaskQueueSpec {
    fn default() -> Self {
        Self {
            broker: None,
            keys: None,
            mode: running(),
            visibility_timeout_seconds: visibility_timeout(),
            heartbeat_period_seconds: heartbeat_period(),
            reclaim: Reclaim::default(),
            retry: Retry::default(),
            rate_limit: RateLimit::default(),
            priority: Priority::default(),
            idempotency: Idempotency::default(),
            timeout_seconds: None,
            task_types: Vec::new(),
            retention: Retention::default(),
            dead_letter: DeadLetter::default(),
            limits: Limits::default(),
            deletion_policy: DeletionPolicy::default(),
        }
    }
}

impl Default for Reclaim {
    fn default() -> Self {
        Self { causes: every_cause(), worker_lost_after_seconds: worker_lost_after() }
    }
}

impl Default for Retry {
    fn default() -> Self {
        Self { max_retries: 3, max_crashes: 3, max_releases: 100, deadline_seconds: 604_800, backoff: None }
    }
}

impl Default for Priority {
    fn default() -> Self {
        Self { default: priority_default(), min: priority_min(), max: priority_max(), order: highest_first() }
    }
}

impl Default for Idempotency {
    fn default() -> Self {
        Self {
            source: engine::IdempotencySource::Key,
            requirement: engine::IdempotencyRequirement::Optional,
            scope: engine::IdempotencyScope::LiveAndSucceeded,
        }
    }
}

impl Default for Retention {
    fn default() -> Self {
        Self {
            succeeded_seconds: 604_800,
            failed_seconds: 604_800,
            result_max_entries: 100_000,
            result_max_mebibytes: 1024,
        }
    }
}

impl Default for Discard {
    fn default() -> Self {
        Self { approvals: 1 }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self { payload_kibibytes: 1024, result_kibibytes: 1024 }
    }
}
