//! What a handler sees of its task, and what it may do while it runs it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde::Deserialize;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::broker::{Broker, BrokerError, ClaimedTask, Enqueued, ErrorClass, Extended, Result};
use crate::protocol::names::{IdempotencyKey, QueueName, TaskId, WorkerId};
use crate::protocol::task::{InvalidPayload, NewTask, Payload};

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

/// What all attempts of one worker have in common.
pub(crate) struct Home {
    pub(crate) queue: QueueName,
    pub(crate) worker: WorkerId,
    pub(crate) broker: Arc<dyn Broker>,
    /// Times of renewals are counted from here.
    base: Instant,
}

impl Home {
    pub(crate) fn new(queue: QueueName, worker: WorkerId, broker: Arc<dyn Broker>) -> Arc<Self> {
        Arc::new(Self { queue, worker, broker, base: Instant::now() })
    }
}

/// One attempt at a task. Clones are the same attempt.
#[derive(Clone)]
pub struct TaskContext {
    attempt: Arc<Attempt>,
}

struct Attempt {
    home: Arc<Home>,
    task: ClaimedTask,
    /// How long it may take, from when it begins.
    timeout: Option<Duration>,
    began: OnceLock<Instant>,
    cancelled: CancellationToken,
    reason: OnceLock<CancelReason>,
    /// When the lease was last known to be good, in milliseconds since the home's base.
    renewed_ms: AtomicU64,
}

impl TaskContext {
    /// An attempt that has yet to begin; `asked` is when the claim was sent.
    pub(crate) fn new(home: &Arc<Home>, task: ClaimedTask, asked: Instant, timeout: Option<Duration>) -> Self {
        let attempt = Attempt {
            task,
            timeout,
            began: OnceLock::new(),
            cancelled: CancellationToken::new(),
            reason: OnceLock::new(),
            renewed_ms: AtomicU64::new(0),
            home: home.clone(),
        };
        let context = Self { attempt: Arc::new(attempt) };
        context.renewed_at(asked);
        context
    }

    /// An attempt at a task that was claimed without a [`super::Worker`]: for
    /// tests of handlers. Nobody renews its lease or cancels it.
    pub fn detached(queue: QueueName, worker: WorkerId, broker: Arc<dyn Broker>, task: ClaimedTask) -> Self {
        let context = Self::new(&Home::new(queue, worker, broker), task, Instant::now(), None);
        context.begin(Instant::now());
        context
    }

    /// The queue that the task is from.
    pub fn queue(&self) -> &QueueName {
        &self.attempt.home.queue
    }

    /// The worker that runs the attempt.
    pub fn worker(&self) -> &WorkerId {
        &self.attempt.home.worker
    }

    /// The task: its payload, its counters, what it carries along.
    pub fn task(&self) -> &ClaimedTask {
        &self.attempt.task
    }

    /// The task's payload as a value of one's own.
    pub fn payload<'a, T: Deserialize<'a>>(&'a self) -> std::result::Result<T, InvalidPayload> {
        self.attempt.task.payload.parse()
    }

    /// When the attempt will be cancelled for taking too long.
    pub fn deadline(&self) -> Option<Instant> {
        self.attempt.began.get()?.checked_add(self.attempt.timeout?)
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

    /// The task's trace in the form of the W3C's `traceparent` header, where
    /// its trace id is one, or is the trace part of one.
    pub fn traceparent(&self) -> Option<String> {
        traceparent(self.attempt.task.trace_id.as_ref()?.as_str(), &self.attempt.task.execution_key())
    }

    /// Tells how far the attempt has come; people see it in the task's view. Up to
    /// [`crate::broker::MAX_PROGRESS_BYTES`].
    pub async fn progress(&self, progress: impl Into<Payload>) -> Result<Extended> {
        let Attempt { home, task, .. } = &*self.attempt;
        let answer = home.broker.report_progress(&task.lease, &progress.into()).await?;
        self.heed(answer);
        Ok(answer)
    }

    /// Renews the lease now, and says whether it is still this attempt's. The
    /// worker renews by itself; this is for who is about to do something that
    /// nobody else should be doing.
    pub async fn extend(&self) -> Result<Extended> {
        let Attempt { home, task, .. } = &*self.attempt;
        let asked = Instant::now();
        let answers = home.broker.extend(&home.worker, std::slice::from_ref(&task.lease)).await?;
        let answer = answers.first().copied().unwrap_or(Extended::Lost);
        if answer == Extended::Renewed {
            self.renewed_at(asked);
        }
        self.heed(answer);
        Ok(answer)
    }

    /// Puts a follow-up into the same queue. It is a child of this task, and
    /// has its trace and tenant unless it brings its own.
    ///
    /// An attempt may run again after this. Give the follow-up an id or a key
    /// that the next attempt gives it too, and it is made once.
    pub async fn enqueue(&self, task: NewTask) -> Result<Enqueued> {
        let mut task = task;
        let parent = &self.attempt.task;
        task.extras.parent_id.get_or_insert_with(|| parent.lease.task.clone());
        task.trace_id = task.trace_id.or_else(|| parent.trace_id.clone());
        task.tenant_id = task.tenant_id.or_else(|| parent.tenant_id.clone());
        let tasks = [task];
        let answer = self.patiently(|| self.attempt.home.broker.enqueue(&tasks)).await?;
        let nothing = || BrokerError::Unexpected { operation: "enqueue", detail: "no answer for the task".to_owned() };
        answer.into_iter().next().ok_or_else(nothing)
    }

    /// Names an effect of this task: the same in every attempt, and different
    /// from the same effect of other work. It is made of the task's own
    /// idempotency key, or of its id where it has none.
    pub fn effect_key(&self, effect: &str) -> IdempotencyKey {
        let task = &self.attempt.task;
        effect_key(&task.lease.task, task.idempotency_key.as_ref(), effect)
    }

    pub(crate) fn home(&self) -> &Home {
        &self.attempt.home
    }

    /// Asks the handler to end. The first reason stands.
    pub(crate) fn cancel(&self, reason: CancelReason) {
        // A second reason changes nothing.
        let _ = self.attempt.reason.set(reason);
        self.attempt.cancelled.cancel();
    }

    /// The attempt begins.
    pub(crate) fn begin(&self, at: Instant) {
        // It begins once; a second time changes nothing.
        let _ = self.attempt.began.set(at);
    }

    /// When the attempt began, if it has.
    pub(crate) fn began(&self) -> Option<Instant> {
        self.attempt.began.get().copied()
    }

    /// How long the attempt may take.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        self.attempt.timeout
    }

    /// The lease was good at that time.
    pub(crate) fn renewed_at(&self, at: Instant) {
        let ms = at.saturating_duration_since(self.attempt.home.base).as_millis() as u64;
        self.attempt.renewed_ms.fetch_max(ms, Ordering::Relaxed);
    }

    /// When the lease was last known to be good.
    pub(crate) fn last_renewed(&self) -> Instant {
        self.attempt.home.base + Duration::from_millis(self.attempt.renewed_ms.load(Ordering::Relaxed))
    }

    /// What a broker says about the lease.
    fn heed(&self, answer: Extended) {
        match answer {
            Extended::Renewed => {}
            Extended::Lost => self.cancel(CancelReason::LeaseLost),
            Extended::Cancelled => self.cancel(CancelReason::Cancelled),
        }
    }

    /// Repeats a call while the broker cannot serve it and the attempt goes on.
    pub(crate) async fn patiently<T, F>(&self, call: impl Fn() -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let mut pauses = super::backoff::Pauses::default();
        loop {
            match call().await {
                Err(error) if error.class() == ErrorClass::Transient && self.cancel_reason().is_none() => {
                    tracing::debug!(%error, "call will be repeated");
                    tokio::select! {
                        () = tokio::time::sleep(pauses.next()) => {}
                        () = self.attempt.cancelled.cancelled() => return Err(error),
                    }
                }
                answer => return answer,
            }
        }
    }
}

/// The name of an effect of that work. It says which kind of name the work goes
/// by and how long that is, so that no two of them read the same.
fn effect_key(task: &TaskId, key: Option<&IdempotencyKey>, effect: &str) -> IdempotencyKey {
    let (kind, work) = key.map_or(("id", task.as_str()), |key| ("key", key.as_str()));
    let plain = format!("{kind}:{}:{work}:{effect}", work.len());
    let hash = || sha1_smol::Sha1::from(&plain).digest().to_string();
    IdempotencyKey::new(plain.as_str())
        .unwrap_or_else(|_| IdempotencyKey::new(hash()).expect("invariant: a hex digest is a valid key"))
}

/// A trace id as a `traceparent`: as it is, or with a span that is named by `span`.
fn traceparent(trace: &str, span: &str) -> Option<String> {
    let hex = |text: &str, length: usize| {
        text.len() == length && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    };
    let is_whole = |words: &[&str]| match words {
        [version, trace, parent, flags] => hex(version, 2) && hex(trace, 32) && hex(parent, 16) && hex(flags, 2),
        _ => false,
    };
    if is_whole(&trace.split('-').collect::<Vec<_>>()) {
        return Some(trace.to_owned());
    }
    let plain = trace.replace('-', "").to_ascii_lowercase();
    hex(&plain, 32).then(|| format!("00-{plain}-{}-01", &sha1_smol::Sha1::from(span).digest().to_string()[..16]))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::{IdempotencyKey, TaskId, effect_key, traceparent};

    #[test]
    fn effects_of_different_work_never_share_a_key() {
        let (task, long) = (TaskId::new("order").expect("valid"), "x".repeat(512));
        let keyed =
            |key: &str, effect: &str| effect_key(&task, Some(&IdempotencyKey::new(key).expect("valid")), effect);
        let all = [
            effect_key(&task, None, "1:charge"),
            effect_key(&task, None, "charge"),
            effect_key(&TaskId::new("order:1").expect("valid"), None, "charge"),
            keyed("order", "1:charge"),
            keyed("order:1", "charge"),
            keyed("order", "charge"),
            keyed(&long, "charge"),
            keyed(&long, "refund"),
        ];
        assert_eq!(all.iter().collect::<HashSet<_>>().len(), all.len(), "{all:?}");
        assert_eq!(keyed("order", "charge"), keyed("order", "charge"), "the same in every attempt");
    }

    #[test]
    fn a_trace_id_becomes_a_traceparent_where_it_can() {
        let whole = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        assert_eq!(traceparent(whole, "a:0").as_deref(), Some(whole));
        let made = traceparent("4bf92f3577b34da6a3ce929d0e0e4736", "a:0").expect("a trace");
        assert!(made.starts_with("00-4bf92f3577b34da6a3ce929d0e0e4736-") && made.len() == whole.len(), "{made}");
        assert_ne!(traceparent("4bf92f3577b34da6a3ce929d0e0e4736", "a:1"), Some(made), "another attempt");
        assert!(traceparent("4BF92F35-77b3-4da6-a3ce-929d0e0e4736", "a:0").is_some(), "a UUID is one");
        assert_eq!(traceparent("request 7", "a:0"), None);
    }
}
