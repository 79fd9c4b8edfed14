//! A load that does everything wrong that clients do, and an account of what became of it.
//!
//! Producers and workers are cut off in the middle of calls, answers are
//! dropped, workers die with tasks in their hands. The visibility timeout is an
//! hour: whatever waits for it makes the test fail.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::join_all;
use tokio::time::Instant;
use windlass::broker::redis::RedisBroker;
use windlass::broker::session::Session;
use windlass::broker::{
    Broker, BrokerError, ClaimedTask, ErrorClass, Event, ListCursor, Outcome, ReclaimCursor, Result, Settled,
    Settlement, SweepCursor,
};
use windlass::protocol::backoff::{Backoff, Dice, Jitter, Strategy};
use windlass::protocol::names::{Capabilities, Epoch, TaskId, TaskType, WorkerId};
use windlass::protocol::policy::Policy;
use windlass::protocol::state::{RetryReason, State};
use windlass::protocol::task::{NewTask, NotBefore};

/// How much, by how many.
pub struct Load {
    /// Tasks in all; more where the load has to last.
    pub tasks: usize,
    /// Workers at a time.
    pub workers: usize,
    /// Producers at a time.
    pub producers: usize,
    /// Of a hundred calls, how many lose their answer.
    pub cut_percent: u8,
    /// Who does the leader's work.
    pub led_by: LedBy,
    /// A new connection to the queue, as another process would have it.
    pub connect: Box<dyn Fn() -> Arc<RedisBroker> + Send + Sync>,
}

/// Who promotes, records dead letters and empties the outbox.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum LedBy {
    /// The load itself, which keeps the events.
    TheLoad,
    /// The test. All is done when the outbox is empty, too.
    TheTest,
}

/// Retries within milliseconds, and a lease that nothing may wait for.
pub fn hasty_policy() -> Policy {
    let short = |base_ms| Backoff {
        strategy: Strategy::Exponential { base_ms },
        max_ms: 50,
        jitter: Jitter::Additive { milliseconds: 5 },
    };
    let mut policy = Policy { visibility_timeout: Duration::from_secs(3600), ..Policy::default() };
    policy.retry.backoff = short(5);
    policy.retry.rate_limit = short(10);
    policy.retry.max_crashes = 1000;
    policy.retry.max_releases = 1000;
    policy
}

/// What the load's parts share.
struct Shared {
    load: Load,
    finished: AtomicBool,
    /// Nothing is left that the load has to last for.
    may_end: AtomicBool,
    workers_made: AtomicU64,
    cuts: AtomicU64,
    deaths: AtomicU64,
    refusals: AtomicU64,
    ends: Mutex<Vec<End>>,
}

/// An end of a task that a worker was told is written: nothing may lose it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    task: TaskId,
    epoch: Epoch,
    state: State,
}

/// What was seen while the load ran.
pub struct Account {
    /// Calls whose answer was dropped.
    pub cuts: u64,
    /// Workers that died with tasks in their hands.
    pub deaths: u64,
    /// Enqueues that were refused because memory was full.
    pub refusals: u64,
    /// Every event that the outbox carried.
    pub events: Vec<Event>,
    /// The ids that producers were told are accepted.
    pub accepted: Vec<TaskId>,
    /// The ends that workers were told are written.
    pub ends: Vec<End>,
}

impl Load {
    /// Runs the load until every task is final.
    pub async fn run(self) -> Account {
        self.run_beside(async {}).await
    }

    /// Runs the load for as long as what is done to it lasts, at the least, and then until every task is final.
    pub async fn run_beside(self, harm: impl Future<Output = ()>) -> Account {
        let shared = Arc::new(Shared {
            load: self,
            finished: AtomicBool::new(false),
            may_end: AtomicBool::new(false),
            workers_made: AtomicU64::new(0),
            cuts: AtomicU64::new(0),
            deaths: AtomicU64::new(0),
            refusals: AtomicU64::new(0),
            ends: Mutex::default(),
        });
        let harm = async {
            harm.await;
            shared.may_end.store(true, Ordering::SeqCst);
        };
        tokio::join!(harm, Self::drive(shared.clone())).1
    }

    async fn drive(shared: Arc<Shared>) -> Account {
        let workers: Vec<_> = (0..shared.load.workers).map(|_| tokio::spawn(work(shared.clone()))).collect();
        let mut leader = tokio::spawn(lead(shared.clone()));
        let share = shared.load.tasks / shared.load.producers;
        let producers = (0..shared.load.producers).map(|_| tokio::spawn(produce(shared.clone(), share)));
        let accepted: Vec<TaskId> =
            join_all(producers).await.into_iter().flat_map(|ids| ids.expect("no producer panics")).collect();
        tokio::select! {
            () = wait_until_done(&shared, accepted.len()) => {}
            ended = &mut leader, if shared.load.led_by == LedBy::TheLoad => {
                panic!("the leader ended before its time: {:?}", ended.map(|events| events.len()));
            }
        }
        shared.finished.store(true, Ordering::SeqCst);
        for worker in workers {
            worker.await.expect("no worker panics");
        }
        let events = leader.await.expect("the leader does not panic");
        let number = |counter: &AtomicU64| counter.load(Ordering::SeqCst);
        let (cuts, deaths, refusals) = (number(&shared.cuts), number(&shared.deaths), number(&shared.refusals));
        let ends = std::mem::take(&mut *shared.ends.lock().expect("nobody panics while it is held"));
        Account { cuts, deaths, refusals, events, accepted, ends }
    }
}

async fn wait_until_done(shared: &Shared, tasks: usize) {
    let broker = (shared.load.connect)();
    let (mut last, mut since) = ((0, 0), Instant::now());
    loop {
        if let Ok(counts) = broker.counts().await {
            let left_to_lead = match shared.load.led_by {
                LedBy::TheLoad => 0,
                LedBy::TheTest => counts.outbox,
            };
            if counts.finished as usize >= tasks && left_to_lead == 0 {
                return;
            }
            let now = (counts.finished, left_to_lead);
            if now != last {
                (last, since) = (now, Instant::now());
            }
            assert!(since.elapsed() < Duration::from_secs(120), "stuck for two minutes: {counts:?} of {tasks}");
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

impl Shared {
    /// Runs a call, or drops it at a random moment, as a lost connection or an aborted task would.
    async fn maybe_cut<T>(&self, call: impl Future<Output = Result<T>>) -> Option<Result<T>> {
        if fastrand::u8(0..100) >= self.load.cut_percent {
            return Some(call.await);
        }
        let moment = Duration::from_micros(fastrand::u64(0..3000));
        let answer = tokio::time::timeout(moment, call).await.ok();
        if answer.is_none() {
            self.cuts.fetch_add(1, Ordering::Relaxed);
        }
        answer
    }
}

impl Shared {
    /// Keeps what became final, as far as the answer came.
    fn keep_ends(&self, settlements: &[Settlement], answers: &[Settled]) {
        let mut ends = self.ends.lock().expect("nobody panics while it is held");
        for (Settlement { lease, .. }, answer) in settlements.iter().zip(answers) {
            let state = match answer {
                Settled::Succeeded => State::Succeeded,
                Settled::Dead => State::Failed,
                _ => continue,
            };
            ends.push(End { task: lease.task.clone(), epoch: lease.epoch, state });
        }
    }
}

/// Says what is wrong with an error that a repetition does not mend.
fn must_be_transient<T>(answer: &Result<T>) {
    if let Err(error) = answer {
        assert_eq!(error.class(), ErrorClass::Transient, "{error}");
    }
}

async fn pause() {
    tokio::time::sleep(Duration::from_millis(fastrand::u64(1..50))).await;
}

async fn produce(shared: Arc<Shared>, count: usize) -> Vec<TaskId> {
    let types: Vec<TaskType> = ["send", "render", "index"].iter().map(|t| t.parse().expect("valid")).collect();
    let broker = (shared.load.connect)();
    let mut accepted = Vec::with_capacity(count);
    loop {
        let size = match count - accepted.len().min(count) {
            0 if shared.may_end.load(Ordering::SeqCst) => return accepted,
            // Enough to go on, and not more and more.
            0 => {
                pause().await;
                fastrand::usize(1..=5)
            }
            left => fastrand::usize(1..=100).min(left),
        };
        let one = || {
            let mut task = NewTask::new(types[fastrand::usize(..types.len())].clone(), serde_json::json!({"n": 1}));
            task.priority = (fastrand::u8(..4) == 0).then(|| fastrand::u8(1..=10));
            if fastrand::u8(..10) == 0 {
                task.not_before = NotBefore::After(Duration::from_millis(fastrand::u64(0..200)));
            }
            task
        };
        let batch: Vec<NewTask> = (0..size).map(|_| one()).collect();
        // The same batch until it is accepted: ids are the producer's, so this is safe.
        loop {
            match shared.maybe_cut(broker.enqueue(&batch)).await {
                Some(Ok(answers)) => {
                    assert_eq!(answers.len(), batch.len());
                    break;
                }
                Some(answer) => {
                    must_be_transient(&answer);
                    let is_full = matches!(answer, Err(BrokerError::OutOfMemory(_)));
                    shared.refusals.fetch_add(u64::from(is_full), Ordering::Relaxed);
                    pause().await;
                }
                None => {}
            }
        }
        accepted.extend(batch.into_iter().map(|task| task.id));
    }
}

/// One worker after another in one place: each lives until it dies at a random moment.
async fn work(shared: Arc<Shared>) {
    while !shared.finished.load(Ordering::SeqCst) {
        let number = shared.workers_made.fetch_add(1, Ordering::SeqCst);
        let worker = WorkerId::new(format!("worker-{number}")).expect("valid");
        let broker = (shared.load.connect)();
        let mut session = Session::new(broker.clone(), worker.clone(), Capabilities::any());
        if live(&shared, &mut session).await == Life::Died {
            shared.deaths.fetch_add(1, Ordering::Relaxed);
            drop(session);
            // What the operator does when it sees the pod end.
            loop {
                let answer = broker.reclaim_from(&worker, RetryReason::PodGone).await;
                must_be_transient(&answer);
                if answer.is_ok() {
                    break;
                }
                pause().await;
            }
        }
    }
}

#[derive(PartialEq)]
enum Life {
    Died,
    Ended,
}

async fn live(shared: &Shared, session: &mut Session) -> Life {
    let mut held: Vec<ClaimedTask> = Vec::new();
    loop {
        if fastrand::u16(..1000) == 0 {
            return Life::Died;
        }
        let settlements: Vec<Settlement> = held.iter().map(end_somehow).collect();
        let limit = fastrand::usize(1..=20);
        let answer = if settlements.is_empty() {
            shared.maybe_cut(session.claim(limit)).await
        } else {
            match shared.maybe_cut(session.settle(&settlements, limit)).await {
                Some(Ok(reply)) => {
                    check_answers(&settlements, &reply.settled);
                    shared.keep_ends(&settlements, &reply.settled);
                    held.clear();
                    Some(reply.next)
                }
                // Settled or not: the same again will say.
                Some(Err(error)) => Some(Err(error)),
                None => None,
            }
        };
        match answer {
            None => {}
            Some(Ok(tasks)) if tasks.is_empty() && held.is_empty() => {
                if shared.finished.load(Ordering::SeqCst) {
                    return Life::Ended;
                }
                if let Some(answer) = shared.maybe_cut(session.sleep(Duration::from_millis(500))).await {
                    must_be_transient(&answer);
                }
            }
            Some(Ok(tasks)) => held.extend(tasks),
            Some(answer) => {
                must_be_transient(&answer);
                pause().await;
            }
        }
    }
}

fn end_somehow(task: &ClaimedTask) -> Settlement {
    let outcome = match fastrand::u8(0..100) {
        0..70 => Outcome::Success { result: Some(serde_json::json!({"done": true}).into()) },
        70..85 => Outcome::Failure { error: "did not work".into(), code: "test".into() },
        85..90 => Outcome::Permanent { error: "never will".into(), code: "test".into() },
        90..95 => Outcome::RateLimited { retry_after: None, error: "429".into() },
        _ => Outcome::Released { delay: Duration::ZERO },
    };
    Settlement { lease: task.lease.clone(), outcome, dice: Dice::throw() }
}

/// A settlement is made once. Outcomes are thrown anew for a repetition, so
/// that may also be refused instead of recognised.
fn check_answers(settlements: &[Settlement], answers: &[Settled]) {
    assert_eq!(settlements.len(), answers.len());
    for (settlement, answer) in settlements.iter().zip(answers) {
        let wrong = matches!(answer, Settled::Cancelled | Settled::Unknown | Settled::ResultTooLarge);
        assert!(!wrong, "{answer:?} for {settlement:?}");
    }
}

/// What the leader's loops do: promote, record dead letters, empty the outbox.
async fn lead(shared: Arc<Shared>) -> Vec<Event> {
    let broker = (shared.load.connect)();
    let mut events = Vec::new();
    if shared.load.led_by == LedBy::TheTest {
        return events;
    }
    loop {
        let last_round = shared.finished.load(Ordering::SeqCst);
        must_be_transient(&broker.promote(100).await);
        must_be_transient(&broker.reclaim(ReclaimCursor::default()).await);
        let dead = broker.pending_dead_letters(100).await;
        must_be_transient(&dead);
        for letter in dead.unwrap_or_default() {
            must_be_transient(&broker.record_dead_letter(&letter.id).await);
        }
        let entries = broker.outbox(500).await;
        must_be_transient(&entries);
        match entries {
            Ok(entries) if entries.is_empty() && last_round => return events,
            Ok(entries) if !entries.is_empty() => {
                must_be_transient(&broker.trim_outbox(&entries).await);
                // Kept once: what could not be trimmed comes again, and is recognised.
                events.extend(entries.into_iter().flat_map(|entry| entry.events));
            }
            _ => {}
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

impl Account {
    /// Checks that nothing was lost, nothing was done twice, nothing is left
    /// behind, and that the events tell the same story.
    pub async fn check(&self, broker: &RedisBroker) {
        self.check_nothing_lost(broker).await;
        self.check_events();
    }

    /// Checks that each accepted task is final once, that it ended as a worker was told, and nothing is left behind.
    pub async fn check_nothing_lost(&self, broker: &RedisBroker) {
        self.check_accepted(broker).await;
        self.check_ends(broker).await;
    }

    /// Checks that each accepted task is final once, and nothing is left behind, whatever workers were told.
    pub async fn check_accepted(&self, broker: &RedisBroker) {
        self.check_results(broker).await;
        let counts = broker.counts().await.expect("the queue answers");
        let left = counts.backlog + counts.running + counts.delayed + counts.retrying + counts.dlq_pending;
        assert_eq!(left, 0, "something is left: {counts:?}");
        let mut cursor = Some(SweepCursor::default());
        while let Some(from) = cursor {
            let swept = broker.sweep(from).await.expect("the sweep runs");
            assert!(swept.repaired.is_empty(), "the sweep found {:?}", swept.repaired);
            cursor = swept.next;
        }
    }

    /// What workers were told is written is there, of the very attempt, and was told once.
    async fn check_ends(&self, broker: &RedisBroker) {
        let results: HashMap<TaskId, End> =
            all_results(broker).await.into_iter().map(|end| (end.task.clone(), end)).collect();
        let other: Vec<_> =
            self.ends.iter().map(|end| (end, results.get(&end.task))).filter(|(end, is)| Some(*end) != *is).collect();
        assert!(other.is_empty(), "{} ends that were told and are not so: {:?}", other.len(), other.first());
        let mut told = HashSet::new();
        let twice: Vec<_> = self.ends.iter().filter(|end| !told.insert(&end.task)).take(5).collect();
        assert!(twice.is_empty(), "told to have ended more than once: {twice:?}");
    }

    /// Exactly one result for each accepted task, and none for any other.
    async fn check_results(&self, broker: &RedisBroker) {
        let mut results: HashMap<TaskId, u32> = HashMap::new();
        for end in all_results(broker).await {
            *results.entry(end.task).or_default() += 1;
        }
        let lost: Vec<_> = self.accepted.iter().filter(|id| !results.contains_key(id)).take(5).collect();
        assert!(lost.is_empty(), "accepted and lost: {lost:?}");
        let twice: Vec<_> = results.iter().filter(|(_, n)| **n != 1).take(5).collect();
        assert!(twice.is_empty(), "finished more than once: {twice:?}");
        assert_eq!(results.len(), self.accepted.len(), "tasks that nobody asked for");
    }

    /// Each task's events are a walk through the state machine that ends once.
    fn check_events(&self) {
        let mut walks: HashMap<&TaskId, State> = HashMap::new();
        let mut seen = HashSet::new();
        for event in &self.events {
            if !seen.insert((&event.task, event.epoch, event.to)) {
                continue; // an entry that came again because it could not be trimmed
            }
            let before = walks.insert(&event.task, event.to);
            assert_eq!(before, event.from, "{event:?} does not follow {before:?}");
            if let Some(from) = event.from {
                assert!(from.may_become(event.to), "{event:?}");
            }
        }
        let open: Vec<_> = walks.iter().filter(|(_, state)| !state.is_final()).take(5).collect();
        assert!(open.is_empty(), "events end in the middle: {open:?}");
        assert_eq!(walks.len(), self.accepted.len(), "each accepted task has its events");
    }
}

/// How every task ended, as its result says.
async fn all_results(broker: &RedisBroker) -> Vec<End> {
    let mut all = Vec::new();
    for state in [State::Succeeded, State::Failed, State::Cancelled] {
        let mut cursor = Some(ListCursor::default());
        while let Some(from) = cursor {
            let page = broker.list(state, from, 1000).await.expect("results can be listed");
            all.extend(page.items.into_iter().map(|view| End { task: view.id, epoch: view.epoch, state: view.state }));
            cursor = page.next;
        }
    }
    all
}
