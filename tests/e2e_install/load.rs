//! Work that comes steadily, from somebody who needs no operator, and an account of what became of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use tokio::time::{MissedTickBehavior, interval, sleep};
use windlass::broker::redis::{RedisBroker, RedisOptions};
use windlass::broker::{Broker, ListCursor};
use windlass::protocol::keys::Keys;
use windlass::protocol::names::QueueName;
use windlass::protocol::task::{NotBefore, TaskView};
use windlass::{NewTask, Producer, State, TaskId};

use crate::kubernetes::Kubernetes;
use crate::support::load::Account as Accepted;

/// How long each task takes.
const SECONDS: f64 = 0.5;
/// How long a producer waits for a Redis that is away, and how long nothing may finish before a test has failed.
const PATIENCE: Duration = Duration::from_secs(180);

/// For how long at most no task is given out while an upgrade or a leader's end goes on: no longer than a handover takes. It
/// leaves a busy machine all the room, because workers claim without a leader, and a gap is a fraction of a second.
pub(super) const GAP: Duration = Duration::from_secs(17);

/// A queue that somebody in the cluster's network can reach.
#[derive(Clone)]
pub(super) struct Work {
    pub(super) cluster: &'static Kubernetes,
    pub(super) url: String,
    pub(super) queue: QueueName,
}

/// A producer that adds one task after another.
pub(super) struct Producing {
    work: Work,
    stop: Arc<AtomicBool>,
    accepted: Arc<AtomicUsize>,
    thread: JoinHandle<Vec<TaskId>>,
}

/// Tasks that were accepted, all of which must become final once.
pub(super) struct Produced {
    work: Work,
    tasks: Vec<TaskId>,
}

/// What became of them.
pub(super) struct Account {
    /// How many there were.
    pub(super) tasks: usize,
    /// How many ended as a dead letter, as they were meant to.
    pub(super) failed: usize,
    /// When their last attempts began, in order.
    claims: Vec<Timestamp>,
}

impl Work {
    /// Begins to add tasks, so long after one another. Some of them need a leader: they are delayed, tried again, or end
    /// as dead letters.
    pub(super) fn begin(&self, every: Duration) -> Producing {
        let (stop, accepted) = <(Arc<AtomicBool>, Arc<AtomicUsize>)>::default();
        let (work, stopped, counted) = (self.clone(), stop.clone(), accepted.clone());
        let produce = move || work.there(async |work| work.produce(every, &stopped, &counted).await);
        Producing { work: self.clone(), stop, accepted, thread: std::thread::spawn(produce) }
    }

    /// How many tasks have ended so far.
    pub(super) async fn finished(&self) -> u64 {
        let work = self.clone();
        let count = move || work.there(async |work| work.broker().counts().await.map(|counts| counts.finished));
        tokio::task::spawn_blocking(count).await.expect("no panic").unwrap_or(0)
    }

    /// Waits until so many tasks have ended.
    pub(super) async fn has_finished(&self, number: u64) {
        let look = async || {
            let seen = self.finished().await;
            if seen >= number { Ok(()) } else { Err(format!("{seen} tasks")) }
        };
        self.cluster.wait_for(self.queue.namespace(), &format!("{number} tasks to have ended"), look).await;
    }

    /// Does something in the cluster's network, in this thread.
    fn there<T: Send>(&self, something: impl AsyncFnOnce(&Self) -> T + Send) -> T {
        self.cluster.in_network(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(something(self))
        })
    }

    fn broker(&self) -> Arc<RedisBroker> {
        Arc::new(RedisBroker::new(Keys::new(&self.queue), RedisOptions::new(&self.url)).expect("a usable URL"))
    }

    async fn produce(&self, every: Duration, stop: &AtomicBool, accepted: &AtomicUsize) -> Vec<TaskId> {
        let producer = Producer::new(self.broker()).with_patience(PATIENCE);
        let mut tasks = Vec::new();
        let mut ticks = interval(every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !stop.load(Ordering::SeqCst) {
            ticks.tick().await;
            let task = task(tasks.len());
            tasks.push(task.id.clone());
            producer.enqueue(task).await.expect("Redis comes back");
            accepted.store(tasks.len(), Ordering::SeqCst);
        }
        tasks
    }

    async fn account(&self, tasks: Vec<TaskId>) -> Account {
        let broker = self.broker();
        wait_until_done(&broker, tasks.len() as u64).await;
        let accepted =
            Accepted { cuts: 0, deaths: 0, refusals: 0, events: Vec::new(), accepted: tasks, ends: Vec::new() };
        accepted.check_nothing_lost(&broker).await;
        let (succeeded, failed) = (list(&broker, State::Succeeded).await, list(&broker, State::Failed).await);
        let mut claims: Vec<_> = succeeded.iter().chain(&failed).filter_map(claimed_at).collect();
        claims.sort_unstable();
        Account { tasks: accepted.accepted.len(), failed: failed.len(), claims }
    }
}

/// One of many tasks.
fn task(number: usize) -> NewTask {
    let fails = match number % 50 {
        7 => "always",
        12 | 37 => "once",
        _ => "never",
    };
    let mut task = NewTask::new("work".parse().expect("a type"), json!({"seconds": SECONDS, "fails": fails}));
    if number % 10 == 5 {
        task.not_before = NotBefore::After(Duration::from_secs(1));
    }
    task
}

/// When a task that has ended was given out last: a result does not tell, but it took as long as all do.
fn claimed_at(view: &TaskView) -> Option<Timestamp> {
    view.started_at.or_else(|| view.finished_at.map(|end| end - SignedDuration::from_secs_f64(SECONDS)))
}

async fn wait_until_done(broker: &RedisBroker, tasks: u64) {
    let (mut last, mut since) = (0, Instant::now());
    loop {
        let counts = broker.counts().await;
        match &counts {
            Ok(counts) if counts.finished >= tasks => return,
            Ok(counts) if counts.finished != last => (last, since) = (counts.finished, Instant::now()),
            _ => {}
        }
        assert!(since.elapsed() < PATIENCE, "nothing has ended for {PATIENCE:?}: {counts:?} of {tasks}");
        sleep(Duration::from_millis(100)).await;
    }
}

async fn list(broker: &RedisBroker, state: State) -> Vec<TaskView> {
    let (mut all, mut cursor) = (Vec::new(), Some(ListCursor::default()));
    while let Some(from) = cursor {
        let page = broker.list(state, from, 1000).await.expect("results can be listed");
        all.extend(page.items);
        cursor = page.next;
    }
    all
}

impl Producing {
    /// How many tasks were accepted so far.
    pub(super) fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }

    /// Waits until so many more tasks were accepted.
    pub(super) async fn goes_on(&self, number: usize) {
        let until = self.accepted() + number;
        while self.accepted() < until {
            assert!(!self.thread.is_finished(), "the producer goes on");
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Adds no more.
    pub(super) async fn stop(self) -> Produced {
        self.stop.store(true, Ordering::SeqCst);
        let joined = tokio::task::spawn_blocking(|| self.thread.join()).await.expect("no panic");
        Produced { work: self.work, tasks: joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic)) }
    }
}

impl Produced {
    /// Waits until all is done, and checks that nothing was lost, that each task has one final result, and that nothing
    /// is left behind.
    pub(super) async fn all_done(self) -> Account {
        let account = move || self.work.there(async |work| work.account(self.tasks).await);
        let account = tokio::task::spawn_blocking(account).await;
        let account = account.unwrap_or_else(|failed| std::panic::resume_unwind(failed.into_panic()));
        eprintln!("all of {} tasks have one result each; {} of them are dead letters", account.tasks, account.failed);
        assert!(account.failed > 0 || account.tasks <= 7, "some must become dead letters");
        account
    }
}

impl Account {
    /// Checks that tasks were given out all through a time, and that none was for so long at most, by Redis' clock.
    pub(super) fn claims_went_on(&self, from: Timestamp, to: Timestamp, gap: Duration, meanwhile: &str) {
        let within: Vec<_> = self.claims.iter().copied().filter(|claim| (from..=to).contains(claim)).collect();
        let mut ends = vec![from];
        ends.extend(&within);
        ends.push(to);
        let gaps = ends.windows(2).map(|pair| pair[1].duration_since(pair[0]));
        let longest = gaps.max().expect("there is one");
        eprintln!(
            "measured: {meanwhile}: {} claims in {:.1} s, and none for {:.2} s at the longest, of {:.0} s that it may take",
            within.len(),
            to.duration_since(from).as_secs_f64(),
            longest.as_secs_f64(),
            gap.as_secs_f64()
        );
        assert!(
            longest <= SignedDuration::try_from(gap).expect("a short while"),
            "nothing was given out for {longest:#}"
        );
        let third = to.duration_since(from) / 3;
        for part in 0..3 {
            let (begins, ends) = (from + third * part, from + third * (part + 1));
            assert!(within.iter().any(|claim| (begins..=ends).contains(claim)), "claiming stopped: {within:?}");
        }
    }
}
