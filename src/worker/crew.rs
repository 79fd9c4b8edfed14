//! The hands of a worker: they take the tasks that wait, and run their handlers.
//!
//! Owns: which task waits, which one runs, and in whose hands. Must not know:
//! the broker; what an end means is the loop's to say.
//!
//! Main flow: the loop lets tasks wait here ([`Crew::admit`]) and sees to it
//! that there are hands ([`Crew::employ`]). A hand is a task of the async
//! runtime that takes one after the other, as long as any waits, so a fast
//! handler costs neither a spawn nor a turn of the loop. Taking a task and
//! taking it away from the crew ([`Crew::withdraw`], [`Crew::kill`]) happen
//! under one lock: each task is begun by a hand or given to the loop, never both.

use std::collections::{HashMap, VecDeque};
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use futures::FutureExt;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tracing::Instrument;

use super::health::WorkerHealth;
use super::metrics::WorkerMetrics;
use super::pace::AHEAD_WITHIN;
use super::slots::SlotId;
use super::verdict::panicked;
use super::{Handler, TaskContext};
use crate::broker::Outcome;

/// How long a hand goes on with handlers that are done at once before it lets
/// others have the thread.
const SPELL: Duration = Duration::from_micros(200);

/// How much work is left to one hand while others could be had: less than this
/// is not worth a hand of its own.
const WORTH_A_HAND: Duration = Duration::from_micros(500);

/// A task that left the crew.
pub(super) struct Left {
    pub(super) slot: SlotId,
    pub(super) how: How,
}

/// How a task left the crew.
pub(super) enum How {
    /// Its handler has ended.
    Ended { outcome: Outcome, took: Duration },
    /// It was not begun, because its lease may be over.
    Stale,
}

struct Waiting {
    slot: SlotId,
    context: TaskContext,
    /// The number of the look at which it came.
    look: u64,
}

struct Hand {
    abort: AbortHandle,
    /// What it runs, and since when.
    task: Option<(SlotId, Instant)>,
}

/// What hands and the loop share.
struct Shared {
    handler: Arc<dyn Handler>,
    health: Arc<WorkerHealth>,
    metrics: WorkerMetrics,
    book: Mutex<Book>,
    /// Rung when somebody has left.
    left: Notify,
}

struct Book {
    waiting: VecDeque<Waiting>,
    hands: HashMap<u64, Hand>,
    hands_so_far: u64,
    /// The most hands.
    limit: usize,
    /// How long a lease is good without renewal.
    visibility: Duration,
    left: Vec<Left>,
    looks: u64,
}

/// All hands, as the loop sees them. Dropping it drops the handlers.
pub(super) struct Crew {
    shared: Arc<Shared>,
    concurrency: usize,
    /// Handlers that were dropped and may not have noticed.
    stuck: Vec<AbortHandle>,
}

impl Crew {
    pub(super) fn new(
        concurrency: usize,
        handler: Arc<dyn Handler>,
        health: Arc<WorkerHealth>,
        metrics: WorkerMetrics,
    ) -> Self {
        let book = Book {
            waiting: VecDeque::new(),
            hands: HashMap::new(),
            hands_so_far: 0,
            limit: concurrency,
            visibility: Duration::MAX,
            left: Vec::new(),
            looks: 0,
        };
        let shared = Shared { handler, health, metrics, book: Mutex::new(book), left: Notify::new() };
        Self { shared: Arc::new(shared), concurrency, stuck: Vec::new() }
    }

    /// How many handlers may run.
    pub(super) fn capacity(&self) -> usize {
        self.concurrency.saturating_sub(self.stuck.len())
    }

    /// How many of them are not held by an attempt that has run for long: one
    /// that has is expected to run for as long again.
    pub(super) fn brisk(&self, now: Instant) -> usize {
        let is_slow = |hand: &&Hand| {
            hand.task.as_ref().is_some_and(|(_, since)| now.saturating_duration_since(*since) >= AHEAD_WITHIN)
        };
        let slow = self.shared.book().hands.values().filter(is_slow).count();
        self.capacity().saturating_sub(slow)
    }

    /// How long a lease is good from now on.
    pub(super) fn set_visibility(&self, visibility: Duration) {
        self.shared.book().visibility = visibility;
    }

    /// Lets a task wait for a hand.
    pub(super) fn admit(&self, slot: SlotId, context: TaskContext) {
        let mut book = self.shared.book();
        let look = book.looks;
        book.waiting.push_back(Waiting { slot, context, look });
    }

    /// Sees to it that there are hands for what waits. `expected` is how long
    /// an attempt takes, where that is known to be short.
    pub(super) fn employ(&self, expected: Option<Duration>) {
        let mut book = self.shared.book();
        let waiting = book.waiting.len();
        let hands = match expected {
            None => waiting,
            // One at least, since those that are there may be held up.
            Some(one) => {
                let work = one.as_secs_f64() * waiting as f64;
                (work / WORTH_A_HAND.as_secs_f64()).ceil() as usize
            }
        };
        self.shared.hire(&mut book, hands.clamp(1, waiting.max(1)));
        self.shared.show(&book);
    }

    /// Waits until somebody has left.
    pub(super) async fn somebody_left(&self) {
        self.shared.left.notified().await;
    }

    /// Takes down who has left.
    pub(super) fn take_left(&self, into: &mut Vec<Left>) {
        into.append(&mut self.shared.book().left);
    }

    /// Whether handlers run.
    pub(super) fn is_at_work(&self) -> bool {
        !self.shared.book().hands.is_empty()
    }

    /// Takes a task back that was not begun. False if it was, or is not here.
    pub(super) fn withdraw(&self, slot: SlotId) -> bool {
        let mut book = self.shared.book();
        let Some(at) = book.waiting.iter().position(|waiting| waiting.slot == slot) else { return false };
        book.waiting.remove(at);
        self.shared.show(&book);
        true
    }

    /// Takes everything back that was not begun.
    pub(super) fn withdraw_all(&self) -> Vec<SlotId> {
        let mut book = self.shared.book();
        let slots = book.waiting.drain(..).map(|waiting| waiting.slot).collect();
        self.shared.show(&book);
        slots
    }

    /// Looks at what waits; returns what was there so many looks ago already.
    /// It is counted in looks and not by the clock, because a process that was
    /// not let run is no handler that hangs.
    pub(super) fn overdue(&self, looks: u64) -> Vec<SlotId> {
        let mut book = self.shared.book();
        book.looks += 1;
        let now = book.looks;
        book.waiting.iter().take_while(|waiting| waiting.look + looks < now).map(|waiting| waiting.slot).collect()
    }

    /// How many tasks wait.
    pub(super) fn waiting(&self) -> usize {
        self.shared.book().waiting.len()
    }

    /// Drops the handler of a task. One that never yields goes on all the same:
    /// its place is lost until it does. False if it does not run (any more).
    pub(super) fn kill(&mut self, slot: SlotId) -> bool {
        let mut book = self.shared.book();
        let runs = |hand: &Hand| hand.task.as_ref().is_some_and(|(task, _)| *task == slot);
        let Some(id) = book.hands.iter().find_map(|(id, hand)| runs(hand).then_some(*id)) else { return false };
        let Some(hand) = book.hands.remove(&id) else { return false };
        hand.abort.abort();
        self.stuck.push(hand.abort);
        book.limit = self.concurrency.saturating_sub(self.stuck.len());
        self.shared.show(&book);
        true
    }

    /// Forgets dropped handlers that are gone; says how many are not.
    pub(super) fn count_stuck(&mut self) -> usize {
        if !self.stuck.is_empty() {
            self.stuck.retain(|handle| !handle.is_finished());
            self.shared.book().limit = self.capacity();
        }
        self.stuck.len()
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        let mut book = self.shared.book();
        book.waiting.clear();
        for (_, hand) in book.hands.drain() {
            hand.abort.abort();
        }
    }
}

impl Shared {
    fn book(&self) -> MutexGuard<'_, Book> {
        // Nothing panics while it is held.
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn show(&self, book: &Book) {
        let (running, waiting) = (book.hands.len(), book.waiting.len());
        self.health.set_busy(running, waiting);
        self.metrics.set_busy(running, waiting);
    }

    /// Adds hands, as many as may be.
    fn hire(self: &Arc<Self>, book: &mut Book, count: usize) {
        let count = count.min(book.waiting.len()).min(book.limit.saturating_sub(book.hands.len()));
        for _ in 0..count {
            let id = book.hands_so_far;
            book.hands_so_far += 1;
            // It waits for the book before it does anything.
            let abort = tokio::spawn(work(self.clone(), id)).abort_handle();
            book.hands.insert(id, Hand { abort, task: None });
        }
    }

    /// A hand has done something and takes the next task. `None` if it may go.
    fn next(&self, id: u64, done: Option<Left>) -> Option<(SlotId, TaskContext, Instant)> {
        let now = Instant::now();
        let mut book = self.book();
        let Book { waiting, hands, left, visibility, .. } = &mut *book;
        // Not there any more: the loop has dropped it, and has said what there was to say.
        let hand = hands.get_mut(&id)?;
        let rings = left.is_empty();
        left.extend(done);
        let next = loop {
            let Some(Waiting { slot, context, .. }) = waiting.pop_front() else { break None };
            if now.saturating_duration_since(context.last_renewed()) < *visibility {
                break Some((slot, context, now));
            }
            left.push(Left { slot, how: How::Stale });
        };
        let rings = rings && !left.is_empty();
        hand.task = next.as_ref().map(|(slot, ..)| (*slot, now));
        if let Some((_, context, _)) = &next {
            context.begin(now);
        } else {
            hands.remove(&id);
        }
        self.show(&book);
        drop(book);
        if rings {
            self.left.notify_one();
        }
        next
    }

    /// A hand is held up: what waits goes to others.
    fn hire_for_the_rest(self: &Arc<Self>) {
        let mut book = self.book();
        let waiting = book.waiting.len();
        self.hire(&mut book, waiting);
        self.show(&book);
    }

    async fn attempt(&self, context: &TaskContext) -> Outcome {
        let ended = AssertUnwindSafe(self.handler.handle(context)).catch_unwind().await;
        ended.unwrap_or_else(|panic| panicked(&*panic))
    }
}

/// What a hand does.
async fn work(shared: Arc<Shared>, id: u64) {
    let mut done = None;
    let mut spell = Instant::now();
    while let Some((slot, context, began)) = shared.next(id, done.take()) {
        let span = tracing::info_span!(
            "task",
            queue = %context.queue(),
            task_id = %context.task().lease.task,
            attempt = context.task().lease.epoch.0
        );
        let mut attempt = pin!(shared.attempt(&context).instrument(span));
        let outcome = match futures::poll!(attempt.as_mut()) {
            Poll::Ready(outcome) => outcome,
            Poll::Pending => {
                shared.hire_for_the_rest();
                let outcome = attempt.await;
                spell = Instant::now();
                outcome
            }
        };
        let now = Instant::now();
        done = Some(Left { slot, how: How::Ended { outcome, took: now - began } });
        if now - spell >= SPELL {
            tokio::task::yield_now().await;
            spell = Instant::now();
        }
    }
}

#[cfg(test)]
mod tests;
