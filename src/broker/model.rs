//! The broker in memory: the same answers as the scripts give, without a server.
//!
//! Owns: a second, independent statement of what every operation does. Property
//! tests drive random sequences through it and through Redis and compare; unit
//! tests of code that needs a broker use it by itself. Must not know: Redis,
//! randomness, or any clock but the one that it is given.
//!
//! Main flow: each operation locks the one `Queue`, runs one `Step` on it
//! to its end, and rings the bells that the step asked for. The steps are
//! synchronous functions of queue, time and arguments, in the files below by
//! concern.
//!
//! Where Redis leaves something open, so does a comparison with it: message
//! ids differ (also inside the detail of a reclaimed task's claim), live tasks
//! are listed in the order of their ids here and in no order there, and a sweep
//! looks at everything at once. Nobody reads the results here but through the
//! broker: there are no consumer groups that could hold them back, and no bytes
//! to be counted.

mod cancelling;
mod claiming;
mod dead_letters;
mod effects;
mod enqueue;
#[cfg(test)]
mod fixture;
mod intake;
mod lane;
mod maintenance;
mod moves;
mod record;
mod retention;
mod settling;
mod sleeper;
mod state;
mod time_set;
mod views;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use async_trait::async_trait;

use self::intake::RawEntry;
use self::maintenance::Evicted;
use self::moves::{Loss, Lost};
use self::sleeper::Bells;
use self::state::{Bell, Queue, Step};
use super::clock::Clock;
use super::*;
use crate::protocol::names::QueueName;

/// One queue in memory.
pub struct Model {
    queue: Arc<Mutex<Queue>>,
    bells: Arc<Bells>,
    clock: Clock,
}

impl Model {
    /// A queue that is not provisioned yet.
    ///
    /// Tests give it a manual clock; with [`Clock::Server`] it goes by the system's.
    pub fn new(queue: QueueName, clock: Clock) -> Self {
        Self { queue: Arc::new(Mutex::new(Queue::new(queue))), bells: Arc::default(), clock }
    }

    /// What a producer does that knows nothing of Windlass: an XADD to the task
    /// stream, which Redis would answer with `message_id`.
    pub fn raw_add(&self, message_id: &str, fields: Vec<(String, Vec<u8>)>) {
        self.on_queue(|queue| {
            queue.raw.push_back(RawEntry::new(message_id, fields));
            queue.bells.push(Bell::Raw);
        });
    }

    fn now_ms(&self) -> u64 {
        let system = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
        self.clock.now_ms().unwrap_or_else(system)
    }

    /// Runs something on the queue, and rings what it asked for.
    fn on_queue<T>(&self, act: impl FnOnce(&mut Queue) -> T) -> T {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = act(&mut queue);
        self.bells.pull(std::mem::take(&mut queue.bells));
        answer
    }

    /// Runs one step on a queue that is provisioned.
    fn step<T>(&self, act: impl FnOnce(Step<'_>) -> T) -> Result<T> {
        let now = self.now_ms();
        self.on_queue(|queue| queue.step(now).map(act))
    }

    /// Takes all tasks from a worker, in bounded steps.
    fn evict(&self, worker: &WorkerId, lost: Lost<'_>) -> Result<Reclaimed> {
        let mut all = Reclaimed::default();
        loop {
            let Evicted { requeued, dead, more, .. } = self.step(|step| step.evict(worker, lost))?;
            all.requeued.extend(requeued);
            all.dead.extend(dead);
            if !more {
                return Ok(all);
            }
        }
    }
}

#[async_trait]
impl Broker for Model {
    fn address(&self) -> &str {
        "memory"
    }

    async fn provision(&self, owner: &Owner, policy: &Policy) -> Result<()> {
        policy.validate().map_err(|error| BrokerError::Invalid(error.to_string()))?;
        self.on_queue(|queue| queue.provision(owner, policy))
    }

    async fn policy(&self) -> Result<Policy> {
        self.on_queue(|queue| queue.policy().map(|policy| Policy::clone(policy)))
    }

    async fn enqueue(&self, tasks: &[NewTask]) -> Result<Vec<Enqueued>> {
        sentences::check_new(tasks)?;
        self.step(|step| step.enqueue(tasks))?
    }

    async fn claim(&self, request: ClaimRequest<'_>) -> Result<Claimed> {
        sentences::check_batch(request.limit)?;
        self.step(|step| step.claim(&request))?
    }

    async fn settle(&self, settlements: &[Settlement], next: ClaimRequest<'_>) -> Result<SettleReply> {
        sentences::check_batch(settlements.len())?;
        sentences::check_batch(next.limit)?;
        self.step(|step| step.settle(settlements, &next))
    }

    async fn extend(&self, worker: &WorkerId, leases: &[Lease]) -> Result<Vec<Extended>> {
        self.step(|step| step.extend(worker, leases))
    }

    async fn report_progress(&self, lease: &Lease, progress: &Payload) -> Result<Extended> {
        sentences::check_progress(progress)?;
        self.step(|step| step.report_progress(lease, progress))
    }

    async fn begin_effect(&self, request: &EffectRequest<'_>) -> Result<EffectBegun> {
        self.step(|step| step.begin_effect(request))
    }

    async fn commit_effect(
        &self,
        lease: &Lease,
        key: &IdempotencyKey,
        answer: &Payload,
        standing: Standing<'_>,
    ) -> Result<EffectCommitted> {
        self.step(|step| step.commit_effect(lease, key, answer, standing))?
    }

    async fn abandon_effect(&self, lease: &Lease, key: &IdempotencyKey) -> Result<EffectAbandoned> {
        self.step(|step| step.abandon_effect(lease, key))
    }

    async fn promote(&self, limit: usize) -> Result<Promoted> {
        self.step(|step| step.promote(limit.clamp(1, MAX_BATCH)))
    }

    async fn reclaim(&self, cursor: ReclaimCursor) -> Result<Reclaimed> {
        self.step(|step| step.reclaim(&cursor))
    }

    async fn take_back(&self, worker: &WorkerId, reason: RetryReason, words: &str) -> Result<Reclaimed> {
        // A pod that was deleted by force may have gone on running: nothing says that it crashed.
        let loss = if reason == RetryReason::PodForceDeleted { Loss::Free } else { Loss::Crash };
        self.evict(worker, Lost { reason, loss, words: sentences::cut_words(words) })
    }

    async fn cancel(&self, task: &TaskId, reason: &str) -> Result<Cancelled> {
        self.step(|step| step.cancel(task, reason))
    }

    async fn pending_dead_letters_after(&self, after: Option<&TaskId>, limit: usize) -> Result<PendingDeadLetters> {
        self.step(|step| step.queue.pending_dead_letters(after, limit.clamp(1, MAX_BATCH)))
    }

    async fn record_dead_letter(&self, dead_letter: &DeadLetterId) -> Result<Recorded> {
        self.step(|step| step.record_dead_letter(dead_letter))
    }

    async fn dead_letter(&self, dead_letter: &DeadLetterId) -> Result<Option<DeadLetterView>> {
        self.step(|step| step.queue.dead_letter_view(dead_letter))
    }

    async fn dead_letters(&self, cursor: ListCursor, limit: usize) -> Result<Page<DeadLetterView>> {
        self.step(|step| step.queue.dead_letters(&cursor, limit.clamp(1, MAX_BATCH)))
    }

    async fn replay(&self, request: &ReplayRequest) -> Result<Replayed> {
        sentences::check_replay(request)?;
        self.step(|step| step.replay(request))?
    }

    async fn discard(&self, request: &DiscardRequest) -> Result<Discarded> {
        sentences::check_discard(request)?;
        self.step(|step| step.discard(request))
    }

    async fn retain(&self, cursor: RetainCursor, limit: usize) -> Result<Retained> {
        self.step(|step| step.retain(&cursor, limit.clamp(1, MAX_BATCH)))
    }

    async fn sweep(&self, _: SweepCursor) -> Result<Swept> {
        self.step(|step| step.sweep())
    }

    async fn register(&self, worker: &WorkerInfo) -> Result<Registered> {
        let capabilities =
            Capabilities::of(worker.types.iter().cloned()).map_err(|error| BrokerError::Invalid(error.to_string()))?;
        let mut all = Registered::default();
        loop {
            let (registered, more) = self.step(|step| step.register(worker, &capabilities))??;
            all.superseded = registered.superseded;
            all.requeued.extend(registered.requeued);
            if !more {
                return Ok(all);
            }
        }
    }

    async fn deregister(&self, worker: &WorkerId) -> Result<()> {
        self.evict(worker, Lost { reason: RetryReason::Released, loss: Loss::Free, words: "" }).map(drop)
    }

    async fn workers(&self) -> Result<Vec<WorkerRecord>> {
        Ok(self.on_queue(|queue| queue.workers()))
    }

    async fn demand(&self, capabilities: &Capabilities) -> Result<Demand> {
        let now = self.now_ms();
        Ok(self.on_queue(|queue| queue.demand(capabilities, now)))
    }

    async fn counts(&self) -> Result<QueueCounts> {
        self.step(|step| step.queue.counts(step.now))
    }

    async fn get(&self, task: &TaskId) -> Result<Option<TaskView>> {
        self.step(|step| step.queue.get(task))
    }

    async fn list(&self, state: State, cursor: ListCursor, limit: usize) -> Result<Page<TaskView>> {
        Ok(self.on_queue(|queue| queue.list(state, &cursor, limit.clamp(1, 1000))))
    }

    async fn outbox(&self, limit: usize) -> Result<Vec<OutboxEntry>> {
        Ok(self.on_queue(|queue| queue.outbox(limit)))
    }

    async fn trim_outbox(&self, read: &[OutboxEntry]) -> Result<()> {
        self.on_queue(|queue| queue.trim_outbox(read));
        Ok(())
    }

    async fn sleeper(&self, capabilities: &Capabilities) -> Result<Box<dyn Sleeper>> {
        Ok(Box::new(self.bells.sleeper(&capabilities.class(), self.queue.clone())))
    }
}
