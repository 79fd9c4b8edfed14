//! What was kept for its time goes, from the queue and from the event log; nothing goes before, and nothing that a
//! reader has not read.

use std::time::Duration;

use jiff::Timestamp;
use tokio::time::{Instant, sleep};
use windlass::broker::session::Session;
use windlass::broker::{Broker, ClaimedTask, ListCursor, Outcome, Settlement};
use windlass::event_log::{DeadLetterFilter, EventFilter};
use windlass::maintenance::archivist::Archivist;
use windlass::maintenance::dead_letter_router::DeadLetterRouter;
use windlass::maintenance::recorder::Recorder;
use windlass::maintenance::retainer::Retainer;
use windlass::maintenance::sampler::Sampler;
use windlass::maintenance::{Chore, Next, Queue};
use windlass::protocol::backoff::Dice;
use windlass::protocol::names::{Capabilities, WorkerId};
use windlass::protocol::policy::Policy;
use windlass::{NewTask, TaskId};

use super::faults::sqlite;
use crate::support::ground::Ground;
use crate::support::servers::{Flavor, Server};

const SUCCEEDED: Duration = Duration::from_secs(3);
const FAILED: Duration = Duration::from_secs(6);
const GOOD: usize = 120;
const BAD: usize = 60;

/// What is kept, and where.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
struct Kept {
    good: usize,
    bad: usize,
    dead_letters: u64,
    rows: usize,
    events: usize,
    samples: usize,
}

const NOTHING: Kept = Kept { good: 0, bad: 0, dead_letters: 0, rows: 0, events: 0, samples: 0 };

async fn kept(ground: &Ground, server: &Server) -> Kept {
    let results: Vec<(String, Vec<Vec<u8>>)> = server.query(&["XRANGE", &ground.keys.result, "-", "+"]).await;
    let with = |status: &str| {
        results.iter().filter(|(_, fields)| fields.iter().any(|field| field == status.as_bytes())).count()
    };
    let log = ground.log();
    let (name, any) = (&ground.name, DeadLetterFilter::default());
    let (old, new) = (Timestamp::UNIX_EPOCH, Timestamp::MAX);
    let events = log.events(name, &EventFilter::default(), ListCursor::default(), 1000).await.expect("answered");
    Kept {
        good: with("succeeded"),
        bad: with("failed"),
        dead_letters: server.query(&["XLEN", &ground.keys.dead_letter]).await,
        rows: log.count_dead_letters(name, &any).await.expect("answered") as usize,
        events: events.items.len(),
        samples: log.samples(name, old, new).await.expect("answered").len(),
    }
}

/// Runs what there is, and has all of it recorded.
async fn run_all(ground: &Ground, queue: &Queue) -> (TaskId, TaskId) {
    let kind = |name: &str| NewTask::new(name.parse().expect("valid"), serde_json::json!(1));
    let tasks: Vec<_> = (0..GOOD).map(|_| kind("good")).chain((0..BAD).map(|_| kind("bad"))).collect();
    for batch in tasks.chunks(100) {
        ground.broker.enqueue(batch).await.expect("taken");
    }
    let worker = WorkerId::new("w").expect("valid");
    let mut session = Session::new(ground.broker.clone(), worker, Capabilities::any());
    loop {
        let claimed = session.claim(100).await.expect("claimed");
        if claimed.is_empty() {
            break;
        }
        let end = |task: &ClaimedTask| match task.task_type.as_str() {
            "good" => Outcome::success(),
            _ => Outcome::permanent("failed", "no"),
        };
        let settlements: Vec<_> = claimed
            .iter()
            .map(|task| Settlement { lease: task.lease.clone(), outcome: end(task), dice: Dice(0) })
            .collect();
        session.settle(&settlements, 0).await.expect("settled");
    }
    let mut loops: [Box<dyn Chore>; 2] = [Box::<DeadLetterRouter>::default(), Box::new(Recorder)];
    for chore in &mut loops {
        while chore.run_once(queue).await.expect("a step").next != Next::WhenNeeded {}
    }
    (tasks[0].id.clone(), tasks[GOOD].id.clone())
}

async fn now(server: &Server) -> Duration {
    let (seconds, micros): (u64, u64) = server.query(&["TIME"]).await;
    Duration::from_secs(seconds) + Duration::from_micros(micros)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_goes_at_its_time_and_nothing_before_it_or_before_it_was_read() {
    let server = Server::start(Flavor::Redis70).await;
    let dir = tempfile::tempdir().expect("a directory");
    let mut policy = Policy::default();
    (policy.retention.succeeded, policy.retention.failed) = (SUCCEEDED, FAILED);
    let ground = Ground::new(&server, sqlite(&dir), &policy).await;
    let queue = Queue::new(ground.name.clone(), ground.broker.clone(), Some(ground.log()));
    // Two readers: one of results who reads late, one of dead letters who reads at once.
    for stream in [&ground.keys.result, &ground.keys.dead_letter] {
        server.command(&["XGROUP", "CREATE", stream, "readers", "0", "MKSTREAM"]).await;
    }
    let begin = now(&server).await;
    let mut sampler = Sampler::default();
    let (good, bad) = run_all(&ground, &queue).await;
    sampler.run_once(&queue).await.expect("a sample");
    let end = now(&server).await;
    let full = kept(&ground, &server).await;
    // created, claimed, succeeded; and created, claimed, dlq_pending, dlq, failed.
    let expected =
        Kept { good: GOOD, bad: BAD, dead_letters: BAD as u64, rows: BAD, events: GOOD * 3 + BAD * 5, samples: 1 };
    assert_eq!(full, expected);
    read_all(&server, &ground.keys.dead_letter).await;

    let (mut retainer, mut archivist) = (Retainer::default(), Archivist::default());
    let (since, mut read) = (Instant::now(), false);
    loop {
        sampler.run_once(&queue).await.expect("a look");
        retainer.run_once(&queue).await.expect("a step");
        archivist.run_once(&queue).await.expect("a step");
        let seen = kept(&ground, &server).await;
        let age = now(&server).await - begin;
        // Nothing before its time: what was seen was seen before `age` was read.
        if age < SUCCEEDED {
            assert_eq!(seen, full, "after {age:?}");
        }
        if age < FAILED {
            assert_eq!(Kept { good: full.good, ..seen }, full, "after {age:?}");
        }
        if !read {
            assert_eq!((seen.good, seen.bad), (GOOD, BAD), "nobody has read them, after {age:?}");
        }
        // Long after everything's time the late reader comes.
        if !read
            && now(&server).await > end + FAILED
            && (seen.dead_letters, seen.rows, seen.events, seen.samples) == (0, 0, 0, 0)
        {
            read_all(&server, &ground.keys.result).await;
            read = true;
        }
        if seen == NOTHING {
            break;
        }
        assert!(since.elapsed() < Duration::from_secs(120), "{seen:?} is left, {read}");
        sleep(Duration::from_millis(20)).await;
    }
    assert!(read);
    for id in [good, bad] {
        assert_eq!(ground.broker.get(&id).await.expect("answered"), None, "a forgotten task is unknown");
    }
    let counts = ground.broker.counts().await.expect("counted");
    assert_eq!((counts.finished, counts.dead_lettered), (0, 0));
}

/// The queue counts a dead letter's time from when it was recorded, and keeps it for a reader that was slow: its row
/// and its events stay for as long, however long ago it failed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_letter_that_was_recorded_late_is_in_the_event_log_for_as_long_as_in_the_queue() {
    let server = Server::start(Flavor::Redis70).await;
    let dir = tempfile::tempdir().expect("a directory");
    let mut policy = Policy::default();
    (policy.retention.succeeded, policy.retention.failed) = (SUCCEEDED, SUCCEEDED);
    let ground = Ground::new(&server, sqlite(&dir), &policy).await;
    let queue = Queue::new(ground.name.clone(), ground.broker.clone(), Some(ground.log()));
    server.command(&["XGROUP", "CREATE", &ground.keys.dead_letter, "readers", "0", "MKSTREAM"]).await;
    let task = NewTask::new("bad".parse().expect("valid"), serde_json::json!(1));
    ground.broker.enqueue(&[task]).await.expect("taken");
    let mut session = Session::new(ground.broker.clone(), WorkerId::new("w").expect("valid"), Capabilities::any());
    let claimed = session.claim(1).await.expect("claimed").remove(0);
    let outcome = Outcome::permanent("failed", "no");
    session.settle(&[Settlement { lease: claimed.lease, outcome, dice: Dice(0) }], 0).await.expect("settled");
    // There was no leader for longer than it is to be kept.
    sleep(SUCCEEDED + Duration::from_millis(500)).await;
    let mut loops: [Box<dyn Chore>; 2] = [Box::<DeadLetterRouter>::default(), Box::new(Recorder)];
    for chore in &mut loops {
        while chore.run_once(&queue).await.expect("a step").next != Next::WhenNeeded {}
    }
    let (mut sampler, mut retainer, mut archivist) = (Sampler::default(), Retainer::default(), Archivist::default());
    let (since, recorded, mut read) = (Instant::now(), now(&server).await, false);
    loop {
        sampler.run_once(&queue).await.expect("a look");
        retainer.run_once(&queue).await.expect("a step");
        archivist.run_once(&queue).await.expect("a step");
        // First the log, which may lose it only after the queue.
        let seen = Kept { dead_letters: 0, ..kept(&ground, &server).await };
        let letters: usize = server.query(&["XLEN", &ground.keys.dead_letter]).await;
        if letters > 0 {
            assert_eq!((seen.rows, seen.events), (1, 5), "the queue has it, read: {read}");
        }
        if !read && now(&server).await > recorded + SUCCEEDED * 2 {
            assert_eq!(letters, 1, "nobody has read it");
            read_all(&server, &ground.keys.dead_letter).await;
            read = true;
        }
        if (letters, seen.rows, seen.events) == (0, 0, 0) {
            break;
        }
        assert!(since.elapsed() < Duration::from_secs(120), "{letters} letters and {seen:?} are left");
        sleep(Duration::from_millis(20)).await;
    }
    assert!(read);
}

/// Closes: "a page of rows that may not go yet, and all rows behind it stay for ever".
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_dead_letters_that_the_queue_keeps_hold_up_no_rows_behind_them() {
    const KEPT: usize = 55;
    let server = Server::start(Flavor::Redis70).await;
    let dir = tempfile::tempdir().expect("a directory");
    let mut policy = Policy::default();
    (policy.retention.succeeded, policy.retention.failed) = (Duration::from_secs(1), Duration::from_secs(1));
    let ground = Ground::new(&server, sqlite(&dir), &policy).await;
    let queue = Queue::new(ground.name.clone(), ground.broker.clone(), Some(ground.log()));
    let letters = &ground.keys.dead_letter;
    server.command(&["XGROUP", "CREATE", letters, "readers", "0", "MKSTREAM"]).await;
    run_all(&ground, &queue).await;
    // A reader has them all, and is through with the latest alone.
    server.command(&["XREADGROUP", "GROUP", "readers", "me", "STREAMS", letters, ">"]).await;
    let all: Vec<(String, Vec<Vec<u8>>)> = server.query(&["XRANGE", letters, "-", "+"]).await;
    for (id, _) in &all[KEPT..] {
        server.command(&["XACK", letters, "readers", id]).await;
    }
    let (mut sampler, mut retainer, mut archivist) = (Sampler::default(), Retainer::default(), Archivist::default());
    let since = Instant::now();
    loop {
        sampler.run_once(&queue).await.expect("a look");
        retainer.run_once(&queue).await.expect("a step");
        archivist.run_once(&queue).await.expect("a step");
        let seen = kept(&ground, &server).await;
        assert!(seen.rows >= KEPT && seen.events >= KEPT * 5, "the queue has them: {seen:?}");
        if (seen.dead_letters as usize, seen.rows, seen.events) == (KEPT, KEPT, KEPT * 5) {
            break;
        }
        assert!(since.elapsed() < Duration::from_secs(120), "{seen:?} is left");
        sleep(Duration::from_millis(20)).await;
    }
}

/// Reads and acknowledges a stream as a consumer does.
async fn read_all(server: &Server, stream: &str) {
    type Read = Option<Vec<(String, Vec<(String, Vec<Vec<u8>>)>)>>;
    loop {
        let read: Read =
            server.query(&["XREADGROUP", "GROUP", "readers", "me", "COUNT", "100", "STREAMS", stream, ">"]).await;
        let Some(read) = read else { return };
        for (id, _) in read.into_iter().flat_map(|(_, entries)| entries) {
            server.command(&["XACK", stream, "readers", &id]).await;
        }
    }
}
