//! The loop of one worker.
//!
//! One task of the async runtime decides everything and waits for whatever
//! comes first: an answer of the broker, a handler that has ended, a ring, the
//! time. It never waits for one of them alone, so a broker that hangs holds up
//! no timeout and no drain. At most one claim or settlement is under way; what
//! ends meanwhile goes together in the next one, which also brings new tasks:
//! one round trip a task, or less.
//!
//! This file holds what the loop is made of, its turns and its times. What it
//! does at a turn is told by subject: `calls` to the broker, `attempts`, the
//! `bell`, `heartbeats`, and the `ending`; `boarding` comes before it.
//!
//! What a kill -9 leaves behind: before a claim's answer, tasks that are leased
//! to a worker that is gone; after it, the same. Before a settlement's answer,
//! a task that is settled or still leased. The lease, or the next worker in the
//! same place, brings back what is leased; the fence keeps out what comes late.

mod attempts;
mod bell;
mod boarding;
mod calls;
mod ending;
mod heartbeats;

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::sync::watch;
use tokio::time::{Instant, Sleep};

use self::bell::Slept;
pub(super) use self::boarding::come_aboard;
use self::calls::{Answered, LARGEST_CALL, Ready};
use self::heartbeats::{Beat, jittered};
use super::backoff::Pauses;
use super::context::Home;
use super::crew::{Crew, Left};
use super::drain::{Drain, DrainLevel};
use super::health::WorkerHealth;
use super::metrics::WorkerMetrics;
use super::pace::Pace;
use super::slots::{Due, Slots};
use super::verdict::Certainty;
use super::{CancelReason, Handler, WorkerOptions, WorkerSummary};
use crate::broker::session::Session;
use crate::broker::{Sleeper, WorkerInfo};
use crate::protocol::policy::Policy;

/// How often the loop looks around when nothing else is due.
const LOOK_AROUND: Duration = Duration::from_secs(1);

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
    options: WorkerOptions,
    info: WorkerInfo,
    health: Arc<WorkerHealth>,
    metrics: WorkerMetrics,
    policy: Policy,
    summary: WorkerSummary,
    slots: Slots,
    crew: Crew,
    pace: Pace,
    left: Vec<Left>,
    /// Whether the last claim brought a task that a worker was lost with.
    wary: bool,

    /// Settlements in the order in which their handlers ended.
    ready: VecDeque<Ready>,
    /// What the broker stumbled over, to be said again after the next heartbeat.
    set_aside: Vec<Ready>,
    /// How many of them go in one call: one at a time after an answer that made no sense, then more and more.
    batch: usize,

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
    /// Whether a ring came while a call was under way: it may have been for
    /// work that the call came too early for, whatever its answer says.
    rung_meanwhile: bool,
    /// Whether a ring came that this worker cannot use.
    pass_on: bool,
    sleeper: Option<Box<dyn Sleeper>>,
    sleeping: Option<BoxFuture<'static, Slept>>,

    beat: Option<BoxFuture<'static, Beat>>,
    next_beat: Instant,
    beat_pauses: Pauses,
    /// When the last heartbeat that was answered was sent.
    last_beat: Instant,
    /// Whether the registry may have forgotten this worker.
    register_again: bool,

    drain_level: watch::Receiver<DrainLevel>,
    drain: Option<Drain>,

    timer: Pin<Box<Sleep>>,
    armed: Instant,
    /// When every attempt is looked at again.
    next_look: Instant,
    /// When what waits is looked at again, while anything does.
    next_watch: Option<Instant>,
}

/// What comes first.
enum Woken {
    Drain,
    Answered(Answered),
    Left,
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
        let now = Instant::now();
        let session = Session::new(home.broker.clone(), info.id.clone(), options.capabilities.clone());
        let crew = Crew::new(options.concurrency, handler, health.clone(), metrics.clone());
        crew.set_visibility(policy.visibility_timeout);
        Self {
            slots: Slots::default(),
            crew,
            pace: Pace::default(),
            left: Vec::new(),
            wary: false,
            ready: VecDeque::new(),
            set_aside: Vec::new(),
            batch: LARGEST_CALL,
            session: Some(session),
            call: None,
            call_pauses: Pauses::default(),
            call_not_before: None,
            uncertain: false,
            lost: Vec::new(),
            hungry: true,
            rung_meanwhile: false,
            pass_on: false,
            sleeper: None,
            sleeping: None,
            beat: None,
            next_beat: now + jittered(policy.heartbeat_period),
            beat_pauses: Pauses::default(),
            last_beat: now,
            register_again: false,
            drain_level: drain,
            drain: None,
            timer: Box::pin(tokio::time::sleep_until(now + LOOK_AROUND)),
            armed: now + LOOK_AROUND,
            next_look: now + LOOK_AROUND,
            next_watch: None,
            home,
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
            self.collect();
            if self.is_over(now) {
                break;
            }
            self.next_call(now);
            self.next_sleep();
            self.next_heartbeat(now);
            match self.wait().await {
                Woken::Drain => self.drain_now(),
                Woken::Answered(answered) => self.answered(answered),
                Woken::Left => self.let_others_come_along().await,
                Woken::Slept((sleeper, wake)) => self.slept(sleeper, wake),
                Woken::Beat(beat) => self.beaten(beat),
                Woken::Time => self.look(),
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
            () = self.crew.somebody_left() => Woken::Left,
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

    /// Handlers have ended. While others run, those that are about to end come
    /// along: their settlements go together.
    async fn let_others_come_along(&mut self) {
        if self.call.is_none() && self.crew.is_at_work() {
            tokio::task::yield_now().await;
        }
    }

    /// How many tasks could be begun.
    fn free(&self) -> usize {
        self.crew.capacity().saturating_sub(self.slots.held())
    }

    /// Wakes the loop to look at every attempt at that time, or before.
    fn arm(&mut self, at: Instant) {
        self.next_look = self.next_look.min(at);
        self.set_timer(at);
    }

    /// Wakes the loop to look at what waits.
    fn watch(&mut self, at: Instant) {
        self.next_watch = Some(at);
        self.set_timer(at);
    }

    fn set_timer(&mut self, at: Instant) {
        if at < self.armed {
            self.armed = at;
            self.timer.as_mut().reset(at);
            self.health.is_due(at);
        }
    }

    /// The time has come for something.
    fn look(&mut self) {
        let now = Instant::now();
        self.armed = now + LOOK_AROUND;
        self.timer.as_mut().reset(self.armed);
        self.health.is_due(self.armed);
        if self.next_watch.is_some_and(|at| at <= now) {
            self.next_watch = None;
            self.look_at_waiting(now);
        } else if let Some(at) = self.next_watch {
            self.set_timer(at);
        }
        if self.next_look <= now {
            self.look_around();
        } else {
            self.set_timer(self.next_look);
        }
    }

    /// Does what time asks for, and sets the time of the next look.
    fn look_around(&mut self) {
        let now = Instant::now();
        self.next_look = now + LOOK_AROUND;
        let mut next = self.next_look;
        for slot in self.slots.all_open() {
            let visibility = self.policy.visibility_timeout;
            let Some(open) = self.slots.open_mut(slot) else { continue };
            match open.due(now, visibility) {
                Due::Nothing(at) => next = at.map_or(next, |at| next.min(at)),
                Due::Cancel(reason) => self.cancel(slot, reason, Certainty::Presumed),
                Due::Noticed => {
                    let reason = open.context.cancel_reason().unwrap_or(CancelReason::Cancelled);
                    self.metrics.add_cancelled(reason);
                    self.cancel(slot, reason, Certainty::Presumed);
                }
                Due::Kill => self.kill(slot),
            }
        }
        self.look_at_drain(now);
        let stuck = self.crew.count_stuck();
        self.health.set_stuck(stuck);
        // A heartbeat that is under way is past its time, and says itself when it is answered.
        let next_beat = self.beat.is_none().then_some(self.next_beat);
        let more = [next_beat, self.call_not_before, self.drain.as_ref().and_then(|drain| drain.next(now))];
        next = more.into_iter().flatten().fold(next, Instant::min);
        // What is due already is dealt with by the loop before it waits again.
        self.arm(next.max(now + Duration::from_millis(1)));
    }
}
