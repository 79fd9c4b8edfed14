//! What dead workers held comes back in steps that nobody feels.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use windlass::broker::redis::RedisBroker;
use windlass::broker::session::Session;
use windlass::broker::{Broker, Extended, Lease, ReclaimCursor};
use windlass::protocol::names::{Capabilities, WorkerId};
use windlass::protocol::policy::{EventRecording, Policy};
use windlass::{NewTask, TaskType};

use super::faults::until;
use crate::support::ground::Ground;
use crate::support::servers::{Flavor, Server};

/// How many leases the dead workers hold.
const PENDING: usize = 100_000;

/// A leader that is killed in the middle of it leaves no lock behind: the next one goes on at once.
///
/// Closes: "reclaim lock with no TTL" (taskiq-redis#131).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_thousand_leases_of_dead_workers_come_back_while_a_live_one_keeps_its_own() {
    let server = Server::start(Flavor::Redis70).await;
    let dir = tempfile::tempdir().expect("a directory");
    let policy = Policy {
        visibility_timeout: Duration::from_secs(10),
        heartbeat_period: Duration::from_secs(3),
        ..Policy::default()
    };
    let ground = Ground::new(&server, format!("sqlite://{}", dir.path().join("e.db").display()), &policy).await;
    held_by_the_dead(&ground).await;
    let live = worker("live");
    let mine: Vec<Lease> = live_leases(&ground, &live).await;
    let renewing = tokio::spawn(renew(ground.broker.clone(), live.clone(), mine.clone()));
    server.command(&["CONFIG", "SET", "slowlog-log-slower-than", "2000"]).await;
    server.command(&["CONFIG", "SET", "slowlog-max-len", "100000"]).await;
    server.command(&["SLOWLOG", "RESET"]).await;
    let since = Instant::now();
    let mut killed = ground.lead_apart();
    until(&ground, "some leases taken back", |counts| counts.backlog > 1000).await;
    killed.kill9();
    let before = ground.broker.counts().await.expect("counted").backlog;
    assert!((before as usize) < PENDING, "it was killed in the middle");
    let _runner = ground.lead().await;
    loop {
        assert!(!renewing.is_finished(), "a live worker lost a task");
        let counts = ground.broker.counts().await.expect("counted");
        if counts.running as usize == mine.len() {
            assert_eq!(counts.backlog as usize, PENDING);
            break;
        }
        assert!(since.elapsed() < Duration::from_secs(600), "{counts:?}");
        sleep(Duration::from_millis(200)).await;
    }
    renewing.abort();
    // By the wall clock, which also counts the times in which the machine ran something else: for people.
    let slow: u64 = server.query(&["SLOWLOG", "LEN"]).await;
    println!("{PENDING} leases taken back in {:?}; {slow} commands took more than 2 ms", since.elapsed());
}

/// Renews a live worker's leases until one is lost.
async fn renew(broker: Arc<RedisBroker>, live: WorkerId, mine: Vec<Lease>) {
    loop {
        let renewed = broker.extend(&live, &mine).await.expect("answered");
        if renewed.iter().any(|answer| *answer != Extended::Renewed) {
            return;
        }
        sleep(Duration::from_millis(200)).await;
    }
}

/// How long Redis has worked: the time that its main thread was on a processor.
/// This counts what it does between commands as well (its cron moves a growing
/// table for a millisecond at a time), so it is more than a command held it.
fn worked(server: &Server) -> Duration {
    let path = format!("/proc/{0}/task/{0}/schedstat", server.pid());
    let text = std::fs::read_to_string(path).expect("the kernel counts");
    Duration::from_nanos(text.split(' ').next().and_then(|ns| ns.parse().ok()).expect("nanoseconds"))
}

/// How often the machine took the processor away from Redis in the middle of something.
fn preempted(server: &Server) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{0}/status", server.pid())).expect("the kernel counts");
    let line = text.lines().find_map(|line| line.strip_prefix("nonvoluntary_ctxt_switches:"));
    line.and_then(|number| number.trim().parse().ok()).expect("a number")
}

/// The most tasks that one step takes back: nobody else is served while it runs.
const MOST_A_STEP: usize = 10;

/// Every step is small; what it costs Redis is printed, measured apart from what else the machine does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_step_of_taking_a_hundred_thousand_leases_back_is_large() {
    let server = Server::start(Flavor::Redis70).await;
    let policy = Policy {
        visibility_timeout: Duration::from_millis(300),
        heartbeat_period: Duration::from_millis(100),
        // The outbox is part of each step.
        events: EventRecording::On,
        ..Policy::default()
    };
    let ground = Ground::new(&server, String::new(), &policy).await;
    held_by_the_dead(&ground).await;
    sleep(policy.visibility_timeout * 2).await;
    server.command(&["CONFIG", "SET", "latency-monitor-threshold", "2"]).await;
    let preempted_before = preempted(&server);
    let (mut steps, mut taken) = (Vec::new(), 0);
    let mut cursor = Some(ReclaimCursor::default());
    while let Some(from) = cursor {
        let before = worked(&server);
        let reclaimed = ground.broker.reclaim(from).await.expect("reclaimed");
        steps.push(worked(&server) - before);
        let now = reclaimed.requeued.len() + reclaimed.dead.len();
        assert!(now <= MOST_A_STEP, "a step took {now} tasks back");
        taken += now;
        cursor = reclaimed.next;
    }
    assert_eq!(taken, PENDING);
    steps.sort();
    let part = |of: usize| steps[(steps.len() - 1) * of / 1000];
    println!(
        "{} steps, CPU of Redis: median {:?}, p99 {:?}, p99.9 {:?}, longest {:?}",
        steps.len(),
        part(500),
        part(990),
        part(999),
        part(1000)
    );
    // By the wall clock, so it is only fair where nothing else ran: for people.
    let late: Vec<(i64, i64)> = server.query(&["LATENCY", "HISTORY", "command"]).await;
    let interrupted = preempted(&server) - preempted_before;
    println!(
        "commands of 2 ms or more by Redis' latency monitor, a second and the longest in it: {late:?}; \
         Redis was preempted {interrupted} times"
    );
}

fn worker(name: &str) -> WorkerId {
    WorkerId::new(name).expect("valid")
}

async fn enqueue(ground: &Ground, count: usize) {
    let kind: TaskType = "send".parse().expect("valid");
    let batch: Vec<_> = (0..count).map(|n| NewTask::new(kind.clone(), serde_json::json!(n))).collect();
    ground.broker.enqueue(&batch).await.expect("taken");
}

/// Ten workers claim everything and are heard of no more.
async fn held_by_the_dead(ground: &Ground) {
    for _ in 0..PENDING / 100 {
        enqueue(ground, 100).await;
    }
    for n in 0..10 {
        let mut dead = Session::new(ground.broker.clone(), worker(&format!("dead-{n}")), Capabilities::any());
        for _ in 0..PENDING / 1000 {
            assert_eq!(dead.claim(100).await.expect("claimed").len(), 100);
        }
    }
}

async fn live_leases(ground: &Ground, live: &WorkerId) -> Vec<Lease> {
    enqueue(ground, 50).await;
    let mut session = Session::new(ground.broker.clone(), live.clone(), Capabilities::any());
    session.claim(50).await.expect("claimed").into_iter().map(|task| task.lease).collect()
}
