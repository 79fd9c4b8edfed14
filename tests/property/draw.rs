//! Random values: tasks, raw entries, outcomes and policies, good and bad.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;
use windlass::broker::{Outcome, Owner, Takeover, WorkerInfo};
use windlass::protocol::backoff::{Dice, Jitter, Strategy};
use windlass::protocol::names::{Capabilities, WorkerId};
use windlass::protocol::policy::{
    EventRecording, IdempotencyRequirement, IdempotencyScope, IdempotencySource, Mode, Policy, PriorityOrder,
    ReclaimCause,
};
use windlass::{NewTask, NotBefore, TaskId, TaskType};

/// The most bytes of a payload or a result under every policy here.
const MOST_BYTES: u64 = 200;

/// A field of a raw entry.
pub(crate) type Field = (String, Vec<u8>);

/// What now and then stands in place of a good field of a raw entry, or beside it.
type OddFields = &'static [(&'static str, &'static [u8])];

const ODD_IDS: OddFields = &[("task_id", b"has space"), ("taskId", b"shared"), ("task_id", b""), ("jobId", b"shared")];
const ODD_TYPES: OddFields = &[("type", b"bad type"), ("kind", b"c:d"), ("task_type", b"b"), ("job_type", b"")];
const ODD_PAYLOADS: OddFields = &[
    ("payload", b""),
    ("payload", b"\xff\xfe"),
    ("payload", b"{nope / \"x\"\n\x7f\x01"),
    ("payload", b"[NaN]"),
    ("payload", b"1e999"),
    ("payload", b"[0x10]"),
    ("payload", b"[1, 01]"),
    ("payload", b"[1.]"),
    ("payload", b"{\"a\": \"b\tc\"}"),
    ("payload", b"[1e05]\n"),
    ("payload_json", b"[1,2]"),
    ("pay\"load/", b"\xc3\x28 v/"),
];
const ODD_PRIORITIES: OddFields = &[
    ("priority", b"10"),
    ("priority", b"07"),
    ("priority", b"99"),
    ("priority", b" 7 "),
    ("priority", b"0x6"),
    ("priority", b"5.5"),
    ("priority", b"-0"),
];
const ODD_KEYS: OddFields =
    &[("idempotencyKey", b"a\x01b"), ("idempotency_key", "schlüssel".as_bytes()), ("idempotency_key", b"")];
const ODD_NAMES: OddFields = &[
    ("tenant_id", b"ten1"),
    ("tenantId", "mieter-ä".as_bytes()),
    ("tenant_id", "a\u{85}".as_bytes()),
    ("traceparent", b"00-abc"),
    ("trace_id", b"a b"),
];
const ODD_NUMBERS: OddFields = &[
    ("max_retries", b"2"),
    ("maxRetries", b"-1"),
    ("max_retries", b"5000"),
    ("max_retries", b"1.9"),
    ("delay_ms", b"1500"),
    ("delayMs", b"0"),
    ("delay_ms", b"999999999999"),
    ("delay_ms", b"soon"),
];

pub(crate) fn task_id(name: &str) -> TaskId {
    name.parse().expect("a valid id")
}

fn task_type(name: &str) -> TaskType {
    name.parse().expect("a valid type")
}

/// What is random about one step of one sequence.
pub(crate) struct Draw(fastrand::Rng);

impl Draw {
    /// Steps draw independently: one that is left out changes no other.
    pub(crate) fn of_step(seed: u64, step: usize) -> Self {
        // The finaliser of SplitMix64 keeps neighbours apart.
        let mut mixed = seed ^ (step as u64).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for (shift, factor) in [(30, 0xbf58_476d_1ce4_e5b9), (27, 0x94d0_49bb_1331_11eb)] {
            mixed = (mixed ^ (mixed >> shift)).wrapping_mul(factor);
        }
        Self(fastrand::Rng::with_seed(mixed ^ (mixed >> 31)))
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0.usize(0..end)
    }

    pub(crate) fn between(&mut self, range: std::ops::RangeInclusive<usize>) -> usize {
        self.0.usize(range)
    }

    pub(crate) fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    pub(crate) fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        self.0.choice(from)
    }

    /// All of them or, of many, so many anywhere among them.
    pub(crate) fn some<T: Clone>(&mut self, from: &[T], most: usize) -> Vec<T> {
        if from.len() <= most { from.to_vec() } else { (0..most).map(|_| self.one_of(from)).collect() }
    }

    fn one_of<T: Clone>(&mut self, from: &[T]) -> T {
        self.pick(from).expect("there is something to pick from").clone()
    }

    pub(crate) fn dice(&mut self) -> Dice {
        Dice(self.0.u16(..))
    }

    pub(crate) fn worker(&mut self) -> WorkerId {
        self.one_of(&["w1", "w2", "w3"]).parse().expect("a valid worker")
    }

    pub(crate) fn capabilities(&mut self) -> Capabilities {
        let types = self.one_of(&[&[][..], &[], &["a"], &["b", "c:d"], &["a", "b"]]);
        Capabilities::of(types.iter().map(|name| task_type(name))).expect("few types")
    }

    pub(crate) fn worker_info(&mut self) -> WorkerInfo {
        let id = self.worker();
        let pod_uid = self.one_of(&[None, Some("u1"), Some("u1"), Some("u2")]).map(str::to_owned);
        WorkerInfo {
            id,
            host: "host".to_owned(),
            pid: 1,
            pod: None,
            pod_uid,
            container: Some("main".to_owned()),
            version: "1".to_owned(),
            types: self.capabilities().types().cloned().collect(),
            pool: None,
            started: None,
        }
    }

    /// A task that only some policies refuse; `payloads` is how many different ones there are.
    pub(crate) fn new_task(&mut self, id: TaskId, now_ms: u64, payloads: usize) -> NewTask {
        let kind = self.one_of(&["a", "a", "b", "c:d"]);
        let mut task = NewTask::new(task_type(kind), json!({ "n": self.below(payloads) }));
        task.id = id;
        task.priority = self.one_of(&[None, None, None, None, Some(1), Some(1), Some(5), Some(6), Some(10), Some(10)]);
        task.not_before = match self.below(8) {
            0 => NotBefore::After(Duration::from_millis(self.0.u64(0..8000))),
            1 => {
                let near = i64::try_from(now_ms).expect("a time") + self.0.i64(-5000..5000);
                NotBefore::At(Timestamp::from_millisecond(near).expect("a time"))
            }
            _ => NotBefore::Now,
        };
        if self.one_in(3) {
            task.idempotency_key = format!("k{}", self.below(5)).parse().ok();
        }
        if self.one_in(3) {
            task.tenant_id = self.one_of(&["ten1", "ten2"]).parse().ok();
        }
        if self.one_in(3) {
            task.trace_id = "trace".parse().ok();
        }
        if self.one_in(4) {
            task.max_retries = Some(self.0.u32(0..3));
        }
        if self.one_in(4) {
            task.extras.labels.insert("team".to_owned(), "blue".to_owned());
            task.extras.timeout_ms = Some(5);
        }
        task
    }

    /// Makes a task one that every policy refuses.
    pub(crate) fn spoil(&mut self, task: &mut NewTask) {
        match self.below(4) {
            0 => task.priority = Some(11),
            1 => task.payload = json!("x".repeat(300)).into(),
            2 => task.not_before = NotBefore::After(Duration::from_secs(100_000)),
            _ => task.max_retries = Some(1001),
        }
    }

    /// An entry of a producer that knows nothing of Windlass; `name` is a fresh id.
    pub(crate) fn raw_entry(&mut self, name: &str) -> Vec<Field> {
        let key = format!("k{}", self.below(5));
        let payload = format!("{{\"n\": {}}}", self.below(6));
        let long = format!("\"{}\"", "z".repeat(300));
        let mut entry = Vec::new();
        let mut add = |(name, value): (&str, &[u8])| entry.push((name.to_owned(), value.to_vec()));
        for (usual, odd, one_in) in [
            (Some(("task_id", name.as_bytes())), ODD_IDS, 6),
            (Some(("tool_name", "a".as_bytes())), ODD_TYPES, 3),
            (Some(("payload", payload.as_bytes())), ODD_PAYLOADS, 3),
            (None, ODD_PRIORITIES, 3),
            (None, ODD_KEYS, 5),
            (None, ODD_NAMES, 3),
            (None, ODD_NUMBERS, 3),
        ] {
            let drawn = if self.one_in(one_in) { self.pick(odd).copied() } else { usual };
            drawn.into_iter().for_each(&mut add);
        }
        match self.below(40) {
            0..4 => add(("idempotency_key", key.as_bytes())),
            4 => add(("payload", long.as_bytes())),
            5 => add(("other", b"value")),
            _ => {}
        }
        if entry.is_empty() {
            entry.push(("other".to_owned(), b"value".to_vec()));
        }
        entry
    }

    /// Errors are long only where there are few: a step of retention also looks
    /// at how many bytes it has read, which the model does not.
    pub(crate) fn outcome(&mut self, bulk: usize) -> Outcome {
        let error = match self.below(5) {
            0 => String::new(),
            1 => format!("x{}", "é".repeat(self.below(3000 / bulk))),
            _ => "did not work".to_owned(),
        };
        match self.below(12) {
            0..=4 => {
                let results = [None, Some(json!({ "ok": true })), Some(json!(1)), Some(json!("y".repeat(300)))];
                let result = if self.one_in(8) { results[3].clone() } else { self.one_of(&results[..3]) };
                Outcome::Success { result: result.map(Into::into) }
            }
            5 | 6 => Outcome::Failure { error, code: "broken".to_owned() },
            7 | 8 => Outcome::Permanent { error, code: self.one_of(&["", "impossible"]).to_owned() },
            9 => {
                let wait = Duration::from_millis(self.0.u64(0..5000));
                Outcome::RateLimited { retry_after: self.one_of(&[None, Some(wait)]), error }
            }
            _ => Outcome::Released { delay: Duration::from_millis(self.one_of(&[0, 0, 700, 2500])) },
        }
    }

    pub(crate) fn owner(&mut self) -> Owner {
        let name = self.one_of(&["one", "one", "one", "other"]).to_owned();
        Owner { name, takeover: self.one_of(&[Takeover::Respect, Takeover::Respect, Takeover::Force]) }
    }

    pub(crate) fn wait(&mut self) -> Duration {
        Duration::from_millis(self.one_of(&[1, 500, 1000, 3000, 3000, 10_000, 30_000, 30_000, 100_000]))
    }

    pub(crate) fn policy(&mut self) -> Policy {
        let heartbeat_period = Duration::from_secs(self.one_of(&[1, 10]));
        let mut policy = Policy {
            mode: match self.below(16) {
                0 => Mode::Closed,
                1 => Mode::Paused,
                _ => Mode::Running,
            },
            visibility_timeout: heartbeat_period * 3,
            heartbeat_period,
            discard_approvals: self.one_of(&[1, 2]),
            events: self.one_of(&[EventRecording::On, EventRecording::On, EventRecording::On, EventRecording::Off]),
            ..Policy::default()
        };
        let causes = [ReclaimCause::VisibilityTimeout, ReclaimCause::WorkerLost, ReclaimCause::PodGone];
        policy.reclaim.worker_lost_after = heartbeat_period * 9;
        policy.reclaim.on = causes.into_iter().filter(|_| !self.one_in(5)).collect();
        policy.priority.order = self.one_of(&[PriorityOrder::HighestFirst, PriorityOrder::LowestFirst]);
        policy.priority.min = self.one_of(&[0, 1]);
        policy.limits.payload_bytes = MOST_BYTES;
        policy.limits.result_bytes = MOST_BYTES;
        policy.limits.lanes = if self.one_in(8) { 3 } else { 1000 };
        policy.limits.outbox_entries = if self.one_in(8) { 12 } else { 1000 };
        let idempotency = &mut policy.idempotency;
        idempotency.scope =
            self.one_of(&[IdempotencyScope::Live, IdempotencyScope::LiveAndSucceeded, IdempotencyScope::Retained]);
        if self.one_in(4) {
            idempotency.source = IdempotencySource::ContentHash;
        }
        if self.one_in(16) {
            idempotency.requirement = IdempotencyRequirement::Required;
        }
        let retry = &mut policy.retry;
        retry.max_crashes = self.0.u32(0..4);
        retry.max_retries = self.0.u32(0..4);
        retry.max_releases = self.one_of(&[1, 3, 30]);
        retry.deadline = Duration::from_secs(self.one_of(&[20, 60, 600, 80_000]));
        retry.backoff.jitter = self.one_of(&[
            Jitter::None,
            Jitter::Additive { milliseconds: 300 },
            Jitter::Proportional { percent: 10 },
            Jitter::Symmetric { percent: 20 },
        ]);
        retry.backoff.strategy = self.one_of(&[
            Strategy::Exponential { base_ms: 1000 },
            Strategy::Quadratic { base_ms: 700 },
            Strategy::Fixed { base_ms: 0 },
            Strategy::Schedule { delays_ms: vec![100, 2000] },
        ]);
        let retention = &mut policy.retention;
        let kept = [Duration::ZERO, Duration::from_secs(2), Duration::from_secs(30), Duration::from_secs(30_000)];
        (retention.succeeded, retention.failed) = (self.one_of(&kept[1..]), self.one_of(&kept));
        retention.result_max_entries = self.one_of(&[0, 1, 3, 100, 100, 100]);
        policy
    }
}
