//! Idle workers sleep without polling, and no ready task is left with a capable worker asleep.

#![allow(clippy::print_stdout, reason = "what was seen is part of the result")]

mod support;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use support::queue_at;
use support::servers::{Flavor, Server};
use tokio::task::JoinSet;
use tokio::time::Instant;
use windlass::NewTask;
use windlass::broker::redis::RedisBroker;
use windlass::broker::session::Session;
use windlass::broker::{Broker, ErrorClass, Outcome, Settlement, Wake};
use windlass::protocol::backoff::Dice;
use windlass::protocol::names::{Capabilities, TaskType, WorkerId};
use windlass::protocol::policy::{Mode, Policy};
use windlass::protocol::task::NotBefore;

/// So long that nothing is rescued by it.
const BLOCK: Duration = Duration::from_secs(3000);

/// How long a ready task may wait for a sleeping worker before it counts as stalled.
const STALL: Duration = Duration::from_secs(30);

struct Hall {
    broker: Arc<RedisBroker>,
    done: AtomicU64,
    rings: AtomicU64,
    useless: AtomicU64,
    killed: AtomicU64,
    killing: AtomicBool,
    by_type: Mutex<HashMap<String, u64>>,
}

fn kind(name: &str) -> TaskType {
    name.parse().expect("valid")
}

fn classes() -> [Capabilities; 3] {
    let of = |names: &[&str]| Capabilities::of(names.iter().map(|n| kind(n))).expect("few types");
    [Capabilities::any(), of(&["send"]), of(&["send", "render"])]
}

/// One worker: claims, finishes at once, sleeps when there is nothing. Some are
/// killed just after they were woken, and start again under another id.
async fn worker(hall: Arc<Hall>, class: Capabilities, number: usize) {
    let mut life = 0;
    loop {
        life += 1;
        let id = WorkerId::new(format!("w{number}-{life}")).expect("valid");
        let mut session = Session::new(hall.broker.clone(), id, class.clone());
        live(&hall, &mut session).await;
        hall.killed.fetch_add(1, Ordering::Relaxed);
    }
}

/// Returns when the worker is killed.
async fn live(hall: &Hall, session: &mut Session) {
    let mut woken = false;
    let mut tasks = session.claim(1).await.expect("Redis is there");
    loop {
        if woken {
            hall.rings.fetch_add(1, Ordering::Relaxed);
            hall.useless.fetch_add(u64::from(tasks.is_empty()), Ordering::Relaxed);
            woken = false;
        }
        if tasks.is_empty() {
            let wake = session.sleep(BLOCK).await.expect("Redis is there");
            assert_eq!(wake, Wake::Rung, "nobody sleeps through {BLOCK:?}");
            if hall.killing.load(Ordering::Relaxed) && fastrand::u8(..20) == 0 {
                return;
            }
            woken = true;
            tasks = session.claim(1).await.expect("Redis is there");
            continue;
        }
        let settlements: Vec<Settlement> = tasks
            .iter()
            .map(|task| {
                *hall.by_type.lock().expect("not poisoned").entry(task.task_type.to_string()).or_default() += 1;
                let outcome = Outcome::Success { result: None };
                Settlement { lease: task.lease.clone(), outcome, dice: Dice(0) }
            })
            .collect();
        let reply = session.settle(&settlements, 1).await.expect("Redis is there");
        hall.done.fetch_add(settlements.len() as u64, Ordering::Relaxed);
        tasks = reply.next.expect("Redis is there");
    }
}

/// What the leader does: promotes when something is due, and once a second.
async fn leader(broker: Arc<RedisBroker>) {
    loop {
        match broker.promote(100).await {
            Ok(_) => {}
            Err(error) => assert_eq!(error.class(), ErrorClass::Transient, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
}

async fn typed(broker: &RedisBroker, name: &str, count: usize) -> u64 {
    let tasks: Vec<_> = (0..count).map(|_| NewTask::new(kind(name), serde_json::json!(1))).collect();
    broker.enqueue(&tasks).await.expect("accepted");
    count as u64
}

async fn raw(server: &Server, broker: &RedisBroker, name: &str, count: usize) -> u64 {
    for _ in 0..count {
        let id = windlass::TaskId::generate();
        let entry = ["XADD", &broker.keys().task, "*", "task_id", id.as_str(), "tool_name", name, "payload", "1"];
        let _: String = server.query(&entry).await;
    }
    count as u64
}

async fn delayed(broker: &RedisBroker, count: usize) -> u64 {
    let one = || {
        let not_before = NotBefore::After(Duration::from_millis(fastrand::u64(1..300)));
        NewTask { not_before, ..NewTask::new(kind("render"), serde_json::json!(1)) }
    };
    let tasks: Vec<_> = (0..count).map(|_| one()).collect();
    broker.enqueue(&tasks).await.expect("accepted");
    count as u64
}

/// Workers and the leader go on until the test ends: what one of them found wrong, the test did.
fn nobody_ended(staff: &mut JoinSet<()>) {
    if let Some(ended) = staff.try_join_next() {
        panic!("a worker or the leader ended: {ended:?}");
    }
}

/// Waits until so many are done; a stall shows what lies there while everybody sleeps.
async fn all_done(hall: &Hall, staff: &mut JoinSet<()>, expected: u64) {
    let (mut last, mut since) = (0, Instant::now());
    loop {
        nobody_ended(staff);
        let done = hall.done.load(Ordering::Relaxed);
        if done >= expected {
            assert_eq!(done, expected, "each task is done once");
            return;
        }
        if done != last {
            (last, since) = (done, Instant::now());
        }
        if since.elapsed() > STALL {
            panic!("stalled at {done} of {expected}: {:?}", hall.broker.counts().await);
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Workers, each of the class that `class` names by number.
async fn start(server: &Server, workers: usize, class: fn(usize) -> Capabilities) -> (Arc<Hall>, JoinSet<()>) {
    let hall = Arc::new(Hall {
        broker: queue_at(&server.url(), &Policy::default()).await,
        done: AtomicU64::new(0),
        rings: AtomicU64::new(0),
        useless: AtomicU64::new(0),
        killed: AtomicU64::new(0),
        killing: AtomicBool::new(false),
        by_type: Mutex::default(),
    });
    let staff = (0..workers).map(|number| worker(hall.clone(), class(number), number)).collect();
    (hall, staff)
}

/// One of the three classes.
fn one_of_three(number: usize) -> Capabilities {
    classes()[number % 3].clone()
}

fn report(hall: &Hall, what: &str) {
    let number = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let (done, rings, useless) = (number(&hall.done), number(&hall.rings), number(&hall.useless));
    let ratio = useless as f64 / done as f64;
    println!("{what}: {done} tasks, {rings} wake-ups, {useless} of them useless ({ratio:.2} a task)");
}

/// Fifty sleepers in three classes. Nobody rescues them: no leader runs, and
/// the blocking time is longer than the test.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bursts_pauses_and_raw_entries_never_leave_a_task_with_a_capable_worker_asleep() {
    let server = Server::start(Flavor::Redis70).await;
    let (hall, mut staff) = start(&server, 50, one_of_three).await;
    let mut expected = 0;
    for round in 0..300 {
        expected += match fastrand::u8(..6) {
            0 => typed(&hall.broker, "send", fastrand::usize(1..30)).await,
            1 => typed(&hall.broker, "render", fastrand::usize(1..30)).await,
            2 => typed(&hall.broker, "other", fastrand::usize(1..30)).await,
            3 => raw(&server, &hall.broker, "send", fastrand::usize(1..10)).await,
            4 => raw(&server, &hall.broker, "other", fastrand::usize(1..10)).await,
            _ => {
                set_mode(&hall.broker, Mode::Paused).await;
                let some = typed(&hall.broker, "render", 5).await + raw(&server, &hall.broker, "send", 3).await;
                set_mode(&hall.broker, Mode::Running).await;
                some
            }
        };
        if round % 3 == 0 {
            all_done(&hall, &mut staff, expected).await;
        }
    }
    all_done(&hall, &mut staff, expected).await;
    report(&hall, "bursts");
    nobody_ended(&mut staff);
}

/// Workers die just after they were woken, and tasks become due: the leader's
/// round rings again, so that a ring that died with its worker costs no more than that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_dies_just_after_it_was_woken_stalls_nobody() {
    let server = Server::start(Flavor::Redis70).await;
    let (hall, mut staff) = start(&server, 50, one_of_three).await;
    staff.spawn(leader(hall.broker.clone()));
    hall.killing.store(true, Ordering::Relaxed);
    let mut expected = 0;
    for round in 0..150 {
        expected += match fastrand::u8(..4) {
            0 => typed(&hall.broker, "send", fastrand::usize(1..10)).await,
            1 => typed(&hall.broker, "other", fastrand::usize(1..10)).await,
            2 => raw(&server, &hall.broker, "render", fastrand::usize(1..5)).await,
            _ => delayed(&hall.broker, fastrand::usize(1..10)).await,
        };
        if round % 5 == 0 {
            all_done(&hall, &mut staff, expected).await;
        }
    }
    all_done(&hall, &mut staff, expected).await;
    report(&hall, "deaths");
    println!("{} workers were killed just after being woken", hall.killed.load(Ordering::Relaxed));
    assert!(hall.killed.load(Ordering::Relaxed) > 0);
    nobody_ended(&mut staff);
}

/// One task wakes one worker, not a crowd; and while nothing happens, nobody asks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_task_wakes_no_crowd_and_idle_workers_send_nothing() {
    let server = Server::start(Flavor::Redis70).await;
    let (hall, mut staff) = start(&server, 50, |_| Capabilities::any()).await;
    all_asleep(&server, &mut staff).await;
    hall.rings.store(0, Ordering::Relaxed);
    let mut expected = 0;
    for round in 0..20 {
        expected += match round % 2 {
            0 => typed(&hall.broker, "send", 1).await,
            _ => raw(&server, &hall.broker, "send", 1).await,
        };
        all_done(&hall, &mut staff, expected).await;
        all_asleep(&server, &mut staff).await;
    }
    report(&hall, "one at a time");
    let rings = hall.rings.load(Ordering::Relaxed);
    assert!(rings <= 2 * expected, "{rings} wake-ups for {expected} tasks");

    let before: u64 = server.info("stats").await["total_commands_processed"].parse().expect("a number");
    tokio::time::sleep(Duration::from_secs(2)).await;
    let after: u64 = server.info("stats").await["total_commands_processed"].parse().expect("a number");
    assert!(after - before <= 5, "idle workers sent {} commands", after - before);
    nobody_ended(&mut staff);
}

async fn all_asleep(server: &Server, staff: &mut JoinSet<()>) {
    let mut wait = support::servers::Wait::new("all workers to sleep");
    loop {
        nobody_ended(staff);
        let blocked: u64 = server.info("clients").await["blocked_clients"].parse().expect("a number");
        if blocked == staff.len() as u64 {
            return;
        }
        wait.again(format!("{blocked} blocked")).await;
    }
}

async fn set_mode(broker: &RedisBroker, mode: Mode) {
    let policy = Policy { mode, ..Policy::default() };
    broker.provision(&support::owner(), &policy).await.expect("the policy is written");
}
