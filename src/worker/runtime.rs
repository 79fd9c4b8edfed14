//! The loop of one worker.
//!
//! One task of the async runtime decides everything and waits for whatever
//! comes first: an answer of the broker, a handler that has ended, a ring, the
//! time. It never waits for one of them alone, so a broker that hangs holds up
//! no timeout and no drain. At most one claim or settlement is under way; what
//! ends meanwhile goes together in the next one, which also brings new tasks:
//! one round trip a task, or less.
//!
//! What a kill -9 leaves behind: before a claim's answer, tasks that are leased
//! to a worker that is gone; after it, the same. Before a settlement's answer,
//! a task that is settled or still leased. The lease, or the next worker in the
//! same place, brings back what is leased; the fence keeps out what comes late.

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, Sleep};
use tracing::Instrument;

use super::backoff::Pauses;
use super::context::Home;
use super::drain::{Drain, DrainLevel};
use super::health::WorkerHealth;
use super::metrics::{WorkerMetrics, answer_word};
use super::slots::{Due, SlotId, Slots};
use super::verdict::{Certainty, panicked, verdict};
use super::{CancelReason, Handler, TaskContext, WorkerOptions, WorkerSummary};
use crate::broker::session::{Session, SessionReply};
use crate::broker::{
    Broker, ClaimedTask, ErrorClass, Extended, MAX_BATCH, Outcome, Result, Settled, Settlement, Sleeper, Wake,
    WorkerInfo,
};
use crate::protocol::backoff::Dice;
use crate::protocol::policy::Policy;

/// How often the loop looks around when nothing else is due.
const LOOK_AROUND: Duration = Duration::from_secs(1);

/// How long an idle worker sleeps unless it is rung, in milliseconds: a bell
/// that was lost with a connection is made good after this.
const SLEEP_MS: std::ops::Range<u64> = 2000..5000;

/// How soon it is looked whether a handler that was dropped is gone.
const KILL_CHECK: Duration = Duration::from_millis(20);

/// A handler has ended.
struct Finished {
    slot: SlotId,
    outcome: Outcome,
}

/// A settlement that the broker does not know of yet.
struct Ready {
    slot: SlotId,
    settlement: Settlement,
}

/// A call that was answered, or was not.
struct Answered {
    session: Session,
    asked: Instant,
    /// How many tasks were asked for.
    limit: usize,
    said: Said,
}

enum Said {
    Claim(Result<Vec<ClaimedTask>>),
    Settle { slots: Vec<SlotId>, settlements: Vec<Settlement>, reply: Result<SessionReply> },
}

/// A sleep that is over, and the bed, if there was one.
type Slept = (Option<Box<dyn Sleeper>>, Result<Wake>);

/// A heartbeat that was answered, or was not.
struct Beat {
    asked: Instant,
    slots: Vec<SlotId>,
    answers: Result<Vec<Extended>>,
    /// `None` if it was not asked for.
    policy: Option<Result<Policy>>,
}

/// What a worker is made of when its loop begins.
pub(super) struct Parts {
    pub(super) home: Arc<Home>,
    pub(super) handler: Arc<dyn Handler>,
    pub(super) options: WorkerOptions,
    pub(super) info: WorkerInfo,
    pub(super) health: Arc<WorkerHealth>,
    pub(super) metrics: WorkerMetrics,
    pub(super) drain: watch::Receiver<DrainLevel>,
    pub(super) policy: Policy,
}

pub(super) struct Runtime {
    home: Arc<Home>,
    handler: Arc<dyn Handler>,
    options: WorkerOptions,
    info: WorkerInfo,
    health: Arc<WorkerHealth>,
    metrics: WorkerMetrics,
    policy: Policy,
    summary: WorkerSummary,
    slots: Slots,

    /// Settlements in the order in which their handlers ended.
    ready: VecDeque<Ready>,
    /// How many of them go in one call: one at a time after an answer that made no sense.
    batch: usize,
    finished: mpsc::UnboundedReceiver<Finished>,
    finisher: mpsc::UnboundedSender<Finished>,
    ended: Vec<Finished>,

    /// Here, or under way in `call`.
    session: Option<Session>,
    call: Option<BoxFuture<'static, Answered>>,
    call_pauses: Pauses,
    call_not_before: Option<Instant>,
    /// Whether an answer was lost: tasks may come back that are known.
    uncertain: bool,
    /// Leases to be forgotten when the session is back.
    lost: Vec<crate::broker::Lease>,

    /// Whether there may be work to claim.
    hungry: bool,
    /// Whether a ring came that this worker cannot use.
    pass_on: bool,
    sleeper: Option<Box<dyn Sleeper>>,
    sleeping: Option<BoxFuture<'static, Slept>>,

    beat: Option<BoxFuture<'static, Beat>>,
    next_beat: Instant,
    beat_pauses: Pauses,
    /// Whether the registry may have forgotten this worker.
    register_again: bool,

    drain_level: watch::Receiver<DrainLevel>,
    drain: Option<Drain>,
    timer: Pin<Box<Sleep>>,
    armed: Instant,
}

/// What comes first.
enum Woken {
    Drain,
    Answered(Answered),
    Finished,
    Slept(Slept),
    Beat(Beat),
    Time,
}

/// Waits for a future that may not be there.
async fn maybe<T>(future: &mut Option<BoxFuture<'static, T>>) -> T {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

impl Runtime {
    pub(super) fn new(parts: Parts) -> Self {
        let Parts { home, handler, options, info, health, metrics, drain, policy } = parts;
        let (finisher, finished) = mpsc::unbounded_channel();
        let now = Instant::now();
        let session = Session::new(home.broker.clone(), info.id.clone(), options.capabilities.clone());
        Self {
            slots: Slots::new(options.concurrency),
            ready: VecDeque::new(),
            batch: MAX_BATCH,
            finished,
            finisher,
            ended: Vec::new(),
            session: Some(session),
            call: None,
            call_pauses: Pauses::default(),
            call_not_before: None,
            uncertain: false,
            lost: Vec::new(),
            hungry: true,
            pass_on: false,
            sleeper: None,
            sleeping: None,
            beat: None,
            next_beat: now + jittered(policy.heartbeat_period),
            beat_pauses: Pauses::default(),
            register_again: false,
            drain_level: drain,
            drain: None,
            timer: Box::pin(tokio::time::sleep_until(now + LOOK_AROUND)),
            armed: now + LOOK_AROUND,
            home,
            handler,
            options,
            info,
            health,
            metrics,
            policy,
            summary: WorkerSummary::default(),
        }
    }

    /// Runs until it is drained.
    pub(super) async fn run(mut self) -> WorkerSummary {
        if *self.drain_level.borrow() != DrainLevel::None {
            self.drain_now();
        }
        loop {
            let now = Instant::now();
            self.health.tick(now);
            if self.is_over(now) {
                break;
            }
            self.next_call(now);
            self.next_sleep();
            self.next_heartbeat(now);
            match self.wait().await {
                Woken::Drain => self.drain_now(),
                Woken::Answered(answered) => self.answered(answered),
                Woken::Finished => self.gather().await,
                Woken::Slept((sleeper, wake)) => self.slept(sleeper, wake),
                Woken::Beat(beat) => self.beaten(beat),
                Woken::Time => self.look_around(),
            }
        }
        self.leave().await
    }

    async fn wait(&mut self) -> Woken {
        tokio::select! {
            biased;
            Ok(()) = self.drain_level.changed() => Woken::Drain,
            answered = maybe(&mut self.call) => {
                self.call = None;
                Woken::Answered(answered)
            }
            _ = self.finished.recv_many(&mut self.ended, MAX_BATCH) => Woken::Finished,
            slept = maybe(&mut self.sleeping) => {
                self.sleeping = None;
                Woken::Slept(slept)
            }
            beat = maybe(&mut self.beat) => {
                self.beat = None;
                Woken::Beat(beat)
            }
            () = &mut self.timer => Woken::Time,
        }
    }

    // Claims and settlements.

    /// Sends what is to be said to the broker, unless something is under way.
    fn next_call(&mut self, now: Instant) {
        if self.call_not_before.is_some_and(|at| now < at) {
            return;
        }
        let Some(mut session) = self.session.take() else { return };
        for lease in self.lost.drain(..) {
            session.forget(&lease);
        }
        let free = if self.drain.is_some() { 0 } else { self.slots.free() };
        if !self.ready.is_empty() {
            let batch: Vec<Ready> = self.ready.drain(..self.ready.len().min(self.batch)).collect();
            let limit = if self.drain.is_some() { 0 } else { (free + batch.len()).min(MAX_BATCH) };
            let (slots, settlements): (Vec<_>, Vec<_>) =
                batch.into_iter().map(|ready| (ready.slot, ready.settlement)).unzip();
            self.call = Some(Box::pin(async move {
                let reply = session.settle(&settlements, limit).await;
                Answered { session, asked: now, limit, said: Said::Settle { slots, settlements, reply } }
            }));
        } else if (self.hungry && free > 0) || self.pass_on {
            let limit = if self.hungry { free.min(MAX_BATCH) } else { 0 };
            self.pass_on = false;
            self.call = Some(Box::pin(async move {
                let claimed = session.claim(limit).await;
                Answered { session, asked: now, limit, said: Said::Claim(claimed) }
            }));
        } else {
            self.session = Some(session);
        }
    }

    fn answered(&mut self, answered: Answered) {
        let Answered { session, asked, limit, said } = answered;
        self.session = Some(session);
        let claimed = match said {
            Said::Claim(claimed) => claimed,
            Said::Settle { slots, settlements, reply } => match reply {
                Ok(SessionReply { settled, next }) => {
                    self.settled(slots, settlements, settled);
                    next
                }
                Err(error) => {
                    if error.class() == ErrorClass::Bug {
                        // One of them may be what the broker stumbles over.
                        self.batch = 1;
                    }
                    let again = slots.into_iter().zip(settlements);
                    for (slot, settlement) in again.rev() {
                        self.ready.push_front(Ready { slot, settlement });
                    }
                    Err(error)
                }
            },
        };
        match claimed {
            Ok(tasks) => {
                self.served();
                self.metrics.add_claimed(tasks.len(), asked.elapsed());
                if limit > 0 {
                    self.hungry = tasks.len() >= limit;
                }
                for task in tasks {
                    self.start(task, asked);
                }
                self.uncertain = false;
                self.count();
            }
            Err(error) => {
                self.hungry = true;
                self.uncertain = true;
                self.metrics.add_broker_error();
                let pause = self.call_pauses.next();
                let until = Instant::now() + pause;
                self.call_not_before = Some(until);
                self.arm(until);
                self.unserved(&error);
            }
        }
    }

    fn settled(&mut self, slots: Vec<SlotId>, settlements: Vec<Settlement>, answers: Vec<Settled>) {
        self.batch = MAX_BATCH;
        for ((slot, settlement), answer) in slots.into_iter().zip(settlements).zip(answers) {
            self.metrics.add_settled(&answer);
            if answer == Settled::ResultTooLarge {
                let error = "the result is over the queue's bound: store it elsewhere and give a reference, or raise \
                             the queue's limit";
                let outcome = Outcome::permanent("result_too_large", error);
                self.ready.push_back(Ready { slot, settlement: Settlement { outcome, ..settlement } });
                continue;
            }
            match answer {
                Settled::Succeeded | Settled::Retrying { .. } | Settled::Dead | Settled::AlreadySettled => {
                    self.summary.settled += 1;
                    if matches!(settlement.outcome, Outcome::Released { .. }) {
                        self.summary.released += 1;
                    }
                }
                refused => {
                    self.summary.refused += 1;
                    let (task, answer) = (&settlement.lease.task, answer_word(&refused));
                    tracing::warn!(task_id = %task, answer, "the attempt came too late and was not counted");
                }
            }
            self.slots.vacate(slot);
        }
    }

    /// The broker answers.
    fn served(&mut self) {
        self.call_pauses.reset();
        self.call_not_before = None;
        if self.health.set_connected(true) {
            tracing::info!(worker = %self.info.id, "the broker answers");
        }
    }

    fn unserved(&self, error: &crate::broker::BrokerError) {
        if self.health.set_connected(false) {
            tracing::warn!(%error, worker = %self.info.id, "the broker does not serve; handlers go on, their ends are kept");
        } else {
            tracing::debug!(%error, "the broker does not serve yet");
        }
    }

    // Handlers.

    fn start(&mut self, task: ClaimedTask, asked: Instant) {
        if self.uncertain
            && let Some(old) = self.slots.running_task(&task.lease.task)
        {
            // A newer claim of a task that still runs here: the answer that ended the first one was lost.
            self.cancel(old, CancelReason::LeaseLost, Certainty::Confirmed);
        }
        let own = task.extras.timeout_ms.map(Duration::from_millis);
        let timeout = own.or_else(|| self.policy.timeout_of(&task.task_type));
        let started = Instant::now();
        let deadline = timeout.and_then(|timeout| started.checked_add(timeout));
        let span = tracing::info_span!(
            "task",
            queue = %self.home.queue,
            task_id = %task.lease.task,
            attempt = task.lease.epoch.0
        );
        let context = TaskContext::new(&self.home, task, asked, deadline);
        let slot = self.slots.reserve();
        let (handler, finisher, own) = (self.handler.clone(), self.finisher.clone(), context.clone());
        let attempt = async move {
            let ended = AssertUnwindSafe(handler.handle(&own)).catch_unwind().await;
            let outcome = ended.unwrap_or_else(|panic| panicked(&*panic));
            // The worker may be gone; then nobody wants to know.
            let _ = finisher.send(Finished { slot, outcome });
        };
        let abort = tokio::spawn(attempt.instrument(span)).abort_handle();
        self.slots.occupy(slot, context, started, abort);
        if let Some(deadline) = deadline {
            self.arm(deadline);
        }
    }

    /// Handlers have ended. While others run, those that are about to end come
    /// along: their settlements go together.
    async fn gather(&mut self) {
        if self.call.is_none() && self.ended.len() < self.slots.running() {
            tokio::task::yield_now().await;
            while let Ok(finished) = self.finished.try_recv() {
                self.ended.push(finished);
            }
        }
        let mut ended = std::mem::take(&mut self.ended);
        for Finished { slot, outcome } in ended.drain(..) {
            if let Some(running) = self.slots.end(slot) {
                self.metrics.add_run(running.started.elapsed());
                let outcome = verdict(running.context.cancel_reason(), running.certainty, Some(outcome));
                self.conclude(slot, &running.context, outcome);
            }
        }
        self.ended = ended;
        self.count();
    }

    /// An attempt is over: what is to be said about it is said with the next call.
    fn conclude(&mut self, slot: SlotId, context: &TaskContext, outcome: Option<Outcome>) {
        let lease = context.task().lease.clone();
        match outcome {
            Some(outcome) => {
                let settlement = Settlement { lease, outcome, dice: Dice(fastrand::u16(..)) };
                self.ready.push_back(Ready { slot, settlement });
            }
            None => {
                self.summary.refused += 1;
                self.lost.push(lease);
                self.slots.vacate(slot);
                self.hungry = true;
            }
        }
    }

    /// Asks a handler to end.
    fn cancel(&mut self, slot: SlotId, reason: CancelReason, certainty: Certainty) {
        let Some(running) = self.slots.running_mut(slot) else { return };
        if certainty == Certainty::Confirmed {
            running.certainty = certainty;
        }
        let kill_at = match &self.drain {
            Some(drain) if reason == CancelReason::Draining => drain.release_at(),
            _ => Instant::now() + self.options.kill_grace,
        };
        running.kill_at.get_or_insert(kill_at);
        if running.context.cancel_reason().is_none() {
            let task = &running.context.task().lease.task;
            tracing::info!(task_id = %task, ?reason, "the attempt is asked to end");
            running.context.cancel(reason);
            self.metrics.add_cancelled(reason);
        }
        self.arm(kill_at);
    }

    /// Drops a handler that was asked to end.
    fn kill(&mut self, slot: SlotId) {
        let Some(running) = self.slots.kill(slot) else { return };
        self.metrics.add_killed();
        self.metrics.add_run(running.started.elapsed());
        let reason = running.context.cancel_reason();
        tracing::warn!(task_id = %running.context.task().lease.task, ?reason, "the handler was dropped");
        let outcome = verdict(reason, running.certainty, None);
        self.conclude(slot, &running.context, outcome);
        self.arm(Instant::now() + KILL_CHECK);
    }

    fn count(&self) {
        self.metrics.set_running(self.slots.running());
        self.health.set_running(self.slots.running());
    }

    // Sleep.

    /// An idle worker, or one with places to spare, waits for the bell.
    fn next_sleep(&mut self) {
        let has_room = !self.hungry && self.slots.free() > 0 && self.drain.is_none();
        let Some(session) = self.session.as_ref().filter(|_| has_room && self.sleeping.is_none()) else { return };
        let (mode, sleeper) = (session.mode(), self.sleeper.take());
        let (broker, capabilities) = (self.home.broker.clone(), self.options.capabilities.clone());
        let limit = Duration::from_millis(fastrand::u64(SLEEP_MS));
        self.sleeping = Some(Box::pin(async move {
            let sleeper = match sleeper {
                Some(sleeper) => Ok(sleeper),
                None => broker.sleeper(&capabilities).await,
            };
            match sleeper {
                Ok(mut sleeper) => {
                    let wake = sleeper.sleep(mode, limit).await;
                    (Some(sleeper), wake)
                }
                Err(error) => (None, Err(error)),
            }
        }));
    }

    fn slept(&mut self, sleeper: Option<Box<dyn Sleeper>>, wake: Result<Wake>) {
        self.sleeper = sleeper;
        self.hungry = true;
        match wake {
            // Somebody else may have room for what this ring was for.
            Ok(Wake::Rung) => self.pass_on = self.drain.is_some() || self.slots.free() == 0,
            Ok(Wake::TimedOut) => {}
            Err(error) => {
                self.unserved(&error);
                let until = Instant::now() + self.call_pauses.next();
                self.call_not_before = Some(until);
                self.arm(until);
            }
        }
    }

    // Heartbeats.

    /// Renews every lease, and reads the policy again.
    fn next_heartbeat(&mut self, now: Instant) {
        if self.beat.is_some() || now < self.next_beat {
            return;
        }
        let (slots, leases) = self.slots.leases();
        let broker = self.home.broker.clone();
        let worker = self.info.id.clone();
        let again = self.register_again.then(|| self.info.clone());
        self.beat = Some(Box::pin(async move {
            let answers = match again {
                Some(info) => match broker.register(&info).await {
                    Ok(_) => broker.extend(&worker, &leases).await,
                    Err(error) => Err(error),
                },
                None => broker.extend(&worker, &leases).await,
            };
            let policy = if answers.is_ok() { Some(broker.policy().await) } else { None };
            Beat { asked: now, slots, answers, policy }
        }));
    }

    fn beaten(&mut self, beat: Beat) {
        let now = Instant::now();
        match beat.answers {
            Ok(answers) => {
                self.beat_pauses.reset();
                self.register_again = false;
                if self.health.set_connected(true) {
                    tracing::info!(worker = %self.info.id, "the broker answers");
                }
                for (slot, answer) in beat.slots.into_iter().zip(answers) {
                    match answer {
                        Extended::Renewed => self.slots.renewed(slot, beat.asked),
                        Extended::Lost => self.cancel(slot, CancelReason::LeaseLost, Certainty::Confirmed),
                        Extended::Cancelled => self.cancel(slot, CancelReason::Cancelled, Certainty::Confirmed),
                    }
                }
                if let Some(Ok(policy)) = beat.policy {
                    self.policy = policy;
                }
                self.next_beat = now + jittered(self.policy.heartbeat_period);
            }
            Err(error) => {
                // Silent for too long, and it is out of the registry.
                self.register_again = true;
                self.metrics.add_broker_error();
                self.unserved(&error);
                self.next_beat = now + self.beat_pauses.next().min(self.policy.heartbeat_period);
            }
        }
        self.arm(self.next_beat);
    }

    // Time.

    /// Wakes the loop at that time, or before.
    fn arm(&mut self, at: Instant) {
        if at < self.armed {
            self.armed = at;
            self.timer.as_mut().reset(at);
            self.health.is_due(at);
        }
    }

    /// Does what time asks for, and sets the time of the next look.
    fn look_around(&mut self) {
        let now = Instant::now();
        self.armed = now + LOOK_AROUND;
        self.timer.as_mut().reset(self.armed);
        self.health.is_due(self.armed);
        let mut next = self.next_beat;
        for slot in self.slots.all_running() {
            let visibility = self.policy.visibility_timeout;
            let Some(running) = self.slots.running_mut(slot) else { continue };
            match running.due(now, visibility) {
                Due::Nothing(at) => next = at.map_or(next, |at| next.min(at)),
                Due::Cancel(reason) => self.cancel(slot, reason, Certainty::Presumed),
                Due::Noticed => {
                    let reason = running.context.cancel_reason().unwrap_or(CancelReason::Cancelled);
                    self.metrics.add_cancelled(reason);
                    self.cancel(slot, reason, Certainty::Presumed);
                }
                Due::Kill => self.kill(slot),
            }
        }
        self.look_at_drain(now);
        let stuck = self.slots.count_stuck();
        self.health.set_stuck(stuck);
        let more = [self.call_not_before, self.drain.as_ref().and_then(|drain| drain.next(now))];
        next = more.into_iter().flatten().fold(next, Instant::min);
        // What is due already is dealt with by the loop before it waits again.
        self.arm(next.max(now + Duration::from_millis(1)));
        self.count();
    }

    // The end.

    fn drain_now(&mut self) {
        let level = *self.drain_level.borrow_and_update();
        let now = Instant::now();
        let drain = self.drain.get_or_insert_with(|| Drain::begin(now, self.options.drain_timeout));
        if level == DrainLevel::AtOnce {
            drain.hurry(now);
        }
        tracing::info!(worker = %self.info.id, ?level, held = self.slots.held(), "the worker drains");
        self.health.is_draining();
        // Its connection closes with it, so that it swallows nobody's ring.
        self.sleeping = None;
        self.sleeper = None;
        self.look_around();
    }

    fn look_at_drain(&mut self, now: Instant) {
        let Some(drain) = &self.drain else { return };
        let (cancels, releases) = (now >= drain.cancel_at(), now >= drain.release_at());
        if cancels || releases {
            for slot in self.slots.all_running() {
                self.cancel(slot, CancelReason::Draining, Certainty::Presumed);
                if releases {
                    self.kill(slot);
                }
            }
        }
    }

    fn is_over(&self, now: Instant) -> bool {
        let Some(drain) = &self.drain else { return false };
        let all_said = self.slots.is_empty() && self.ready.is_empty() && self.call.is_none() && !self.pass_on;
        all_said || now >= drain.give_up_at()
    }

    /// Leaves the registry. What could not be settled comes back with that, or with its lease.
    async fn leave(mut self) -> WorkerSummary {
        self.summary.unsettled = self.slots.held();
        if self.summary.unsettled > 0 {
            tracing::error!(unsettled = self.summary.unsettled, "the worker ends with tasks that it could not settle");
        }
        let until = self.drain.as_ref().map_or_else(Instant::now, Drain::give_up_at);
        let until = until.max(Instant::now() + Duration::from_secs(1));
        let (broker, id) = (self.home.broker.clone(), self.info.id.clone());
        let deregister = async {
            let mut pauses = Pauses::default();
            while let Err(error) = broker.deregister(&id).await {
                tracing::debug!(%error, "the worker could not leave the registry yet");
                if error.class() != ErrorClass::Transient {
                    break;
                }
                tokio::time::sleep(pauses.next()).await;
            }
        };
        if tokio::time::timeout_at(until, deregister).await.is_err() {
            tracing::warn!(worker = %id, "the worker could not leave the registry: it will be found lost");
        }
        self.summary
    }
}

/// A time a little shorter than that, so that workers do not all come at once.
fn jittered(period: Duration) -> Duration {
    period.mul_f64(0.8 + fastrand::f64() * 0.2)
}

/// Registers, and reads the policy; repeats it while the broker is away or the
/// queue does not exist yet. `None` when the worker was drained meanwhile.
pub(super) async fn come_aboard(
    broker: &dyn Broker,
    info: &WorkerInfo,
    health: &WorkerHealth,
    drain: &mut watch::Receiver<DrainLevel>,
) -> Result<Option<Policy>> {
    let mut pauses = Pauses::default();
    loop {
        health.tick(Instant::now());
        let attempt = async {
            let registered = broker.register(info).await?;
            Ok((registered, broker.policy().await?))
        };
        let attempt = tokio::select! {
            attempt = attempt => attempt,
            _ = drain.wait_for(|level| *level != DrainLevel::None) => return Ok(None),
        };
        match attempt {
            Ok((registered, policy)) => {
                health.has_registered();
                health.set_connected(true);
                let superseded = registered.superseded.as_ref().map(ToString::to_string).unwrap_or_default();
                tracing::info!(worker = %info.id, superseded, requeued = registered.requeued.len(), "the worker has registered");
                return Ok(Some(policy));
            }
            Err(error) => {
                let waits = matches!(error, crate::broker::BrokerError::NoQueue(_));
                if error.class() != ErrorClass::Transient && !waits {
                    return Err(error);
                }
                tracing::warn!(%error, worker = %info.id, "the worker cannot register yet");
            }
        }
        tokio::select! {
            () = tokio::time::sleep(pauses.next()) => {}
            _ = drain.wait_for(|level| *level != DrainLevel::None) => return Ok(None),
        }
    }
}
