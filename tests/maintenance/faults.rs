//! Whatever dies, stops or disagrees about the time: nothing is lost, no event is missing or there twice,
//! and no task fails before its dead letter is recorded.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use tokio::time::{Instant, sleep};
use windlass::broker::{Broker, QueueCounts};
use windlass::maintenance::LoopName;
use windlass::maintenance::metrics::LoopMetrics;
use windlass::protocol::policy::{EventRecording, Policy};
use windlass::{NewTask, State};

use crate::support::ground::{Ground, Leader, example, tasks_that};
use crate::support::load::hasty_policy;
use crate::support::servers::{Flavor, Postgres, Server};

pub(super) fn ms(range: std::ops::Range<u64>) -> Duration {
    Duration::from_millis(fastrand::u64(range))
}

/// Waits until the queue looks like that.
pub(super) async fn until(ground: &Ground, what: &str, is_so: impl Fn(&QueueCounts) -> bool) -> QueueCounts {
    let since = Instant::now();
    loop {
        if let Ok(counts) = ground.broker.counts().await {
            if is_so(&counts) {
                return counts;
            }
            assert!(since.elapsed() < Duration::from_secs(400), "{what} did not come: {counts:?}");
        }
        sleep(Duration::from_millis(20)).await;
    }
}

pub(super) fn sqlite(dir: &tempfile::TempDir) -> String {
    format!("sqlite://{}", dir.path().join("events.db").display())
}

/// Closes: "the recoverer dies between two commands" and its kin.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_is_killed_two_hundred_times_loses_and_repeats_nothing() {
    const KILLS: usize = 200;
    let server = Server::start(Flavor::Redis70).await;
    let postgres = Postgres::start().await;
    let ground = Ground::new(&server, postgres.fresh_database(), &hasty_policy()).await;
    ground.events().await;
    let events = |which: &str| {
        let sql = format!("SELECT count(*) FROM event_log {which}");
        let answer = tokio::task::block_in_place(|| postgres.query_at(&ground.log_url, &sql));
        answer.expect("the server obeys").parse::<usize>().expect("a number")
    };
    let (mut at_work, mut failed, mut last) = (0, 0, None);
    let kills = async {
        let mut recorded = events("");
        for kill in 0..KILLS {
            let (before, mut leader) = (recorded, ground.lead_apart());
            sleep(ms(10..150)).await;
            // However slow the machine is, every second one is in the middle of its work when it dies.
            let since = Instant::now();
            while kill % 2 == 0 && events("") == before {
                assert!(since.elapsed() < Duration::from_secs(400), "a leader records nothing");
                sleep(ms(1..50)).await;
            }
            leader.kill9();
            recorded = events("");
            at_work += usize::from(recorded > before);
        }
        failed = events("WHERE to_state = 'failed'");
        last = Some(ground.lead_apart());
    };
    let account = ground.load(20_000).run_beside(kills).await;
    drop(last);
    ground.check(&account).await;
    assert!(at_work >= KILLS / 2, "{at_work} of {KILLS} were killed at work");
    assert!(failed > 0, "some dead letters were recorded by those that were killed");
    println!("{KILLS} kills of the leader, {at_work} of them at work: {} tasks", account.accepted.len());
}

/// A database that is down delays history and dead letters, never the work.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_goes_on_while_postgres_is_down_and_history_is_whole_when_it_is_back() {
    let server = Server::start(Flavor::Redis70).await;
    let postgres = Postgres::start().await;
    let ground = Ground::new(&server, postgres.fresh_database(), &hasty_policy()).await;
    let runner = ground.lead().await;
    let load = tokio::spawn(ground.load(5_000).run());
    until(&ground, "some work", |counts| counts.finished > 500).await;
    postgres.stop().await;
    // All that does not end as a dead letter is done while the database is down.
    let down = until(&ground, "all the work", |counts| {
        counts.backlog + counts.running + counts.delayed + counts.retrying == 0 && counts.dlq_pending > 0
    })
    .await;
    assert!(down.outbox > 0, "history waits in the outbox: {down:?}");
    assert!(!load.is_finished(), "dead letters wait for the database");
    postgres.restart().await;
    let account = load.await.expect("the load ends");
    ground.check(&account).await;
    drop(runner);
    println!("down with {} dead letters and {} entries of history waiting", down.dlq_pending, down.outbox);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_sqlite_file_that_another_process_locks_delays_history_alone() {
    let server = Server::start(Flavor::Redis70).await;
    let dir = tempfile::tempdir().expect("a directory");
    let ground = Ground::new(&server, sqlite(&dir), &hasty_policy()).await;
    let _runner = ground.lead().await;
    let script = "import sqlite3, sys\n\
        db = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=60)\n\
        db.execute('BEGIN IMMEDIATE')\n\
        print('locked', flush=True)\n\
        sys.stdin.read()";
    // However long it takes to lock the file, there is work to do while it is.
    let lock = async {
        until(&ground, "some work", |counts| counts.finished > 500).await;
        let mut locker = Command::new("python3")
            .args(["-c", script])
            .arg(dir.path().join("events.db"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 runs");
        let (mut line, mut said) = (String::new(), BufReader::new(locker.stdout.take().expect("piped")));
        let said = tokio::task::block_in_place(|| said.read_line(&mut line));
        assert!(said.is_ok() && line.trim() == "locked", "{said:?} {line}");
        let before = ground.broker.counts().await.expect("counted");
        let locked = until(&ground, "more work", |counts| {
            counts.finished > before.finished + 200 && counts.dlq_pending > before.dlq_pending
        })
        .await;
        assert!(locked.outbox > before.outbox, "history waits in the outbox: {before:?}, {locked:?}");
        // One may have been on its way.
        assert!(locked.dead_lettered <= before.dead_lettered + 1, "dead letters wait for the file: {locked:?}");
        drop(locker.stdin.take());
        locker.wait().expect("it ends");
    };
    let account = ground.load(5_000).run_beside(lock).await;
    ground.check(&account).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn loops_go_on_after_redis_was_killed_and_restarted() {
    let server = Server::builder(Flavor::Redis70).aof_always().start().await;
    let dir = tempfile::tempdir().expect("a directory");
    let ground = Ground::new(&server, sqlite(&dir), &hasty_policy()).await;
    let _runner = ground.lead().await;
    let load = tokio::spawn(ground.load(5_000).run());
    for kills in 1..=3 {
        until(&ground, "some work", |counts| counts.finished > 600 * kills).await;
        server.kill9();
        server.restart().await;
    }
    let account = load.await.expect("the load ends");
    ground.check(&account).await;
}

/// Leaders at once, of which one has a clock that is an hour ahead, one has one that is an hour
/// behind, and one is stopped for seconds in the middle of whatever it does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaders_that_overlap_pause_and_disagree_about_the_time_do_no_harm() {
    let server = Server::start(Flavor::Redis70).await;
    let postgres = Postgres::start().await;
    let ground = Ground::new(&server, postgres.fresh_database(), &hasty_policy()).await;
    let _here = ground.lead().await;
    let pausing = ground.lead_apart();
    let _disagreeing = ["+1h", "-1h"].map(|off| {
        let mut leader = Command::new("faketime");
        leader.args(["-f", off]).arg(example("leader"));
        ground.lead_apart_by(leader)
    });
    let load = tokio::spawn(ground.load(10_000).run());
    let mut pauses = 0;
    while !load.is_finished() {
        sleep(ms(5..100)).await;
        pausing.signal("-STOP");
        sleep(ms(100..1000)).await;
        pausing.signal("-CONT");
        pauses += 1;
    }
    let account = load.await.expect("the load ends");
    ground.check(&account).await;
    println!("four leaders, {pauses} pauses: {} tasks", account.accepted.len());
}

/// For longer than any time that a loop, a connection or a database waits for something.
const MINUTE: Duration = Duration::from_secs(61);

/// A leader that stood still while another one did its work goes on with what it had in its hands, which is long done.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_stood_still_for_a_minute_does_no_harm_when_it_goes_on() {
    let server = Server::start(Flavor::Redis70).await;
    let postgres = Postgres::start().await;
    let ground = Ground::new(&server, postgres.fresh_database(), &hasty_policy()).await;
    let slow = ground.lead_apart();
    let first = tokio::spawn(ground.load(2_000).run());
    until(&ground, "some work", |counts| counts.finished > 300).await;
    slow.signal("-STOP");
    let stopped = Instant::now();
    let _other = ground.lead_apart();
    let mut account = first.await.expect("the load ends, with the other leader");
    tokio::time::sleep_until(stopped + MINUTE).await;
    let second = tokio::spawn(ground.load(2_000).run());
    until(&ground, "some more work", |counts| counts.finished > 2_100).await;
    slow.signal("-CONT");
    let more = second.await.expect("the load ends, with both");
    account.accepted.extend(more.accepted);
    account.events.extend(more.events);
    ground.check(&account).await;
}

/// Where no database is configured dead letters live in Redis, and tasks fail as they should.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_database_dead_letters_live_in_redis() {
    let server = Server::start(Flavor::Redis70).await;
    let policy = Policy { events: EventRecording::Off, ..hasty_policy() };
    let ground = Ground::new(&server, String::new(), &policy).await;
    let mut command = Command::new(example("leader"));
    command.args([&ground.redis_url, &ground.name.to_string()]);
    let _leader = Leader::start(&mut command);
    let account = ground.load(2_000).run().await;
    account.check_nothing_lost(&ground.broker).await;
    let counts = ground.broker.counts().await.expect("counted");
    assert!(counts.dead_lettered > 0 && counts.outbox == 0, "{counts:?}");
}

/// Closes: "one bad shard stops the scheduler for all".
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_hangs_does_not_delay_the_loops_of_another() {
    let (good, bad) = (Server::start(Flavor::Redis70).await, Server::start(Flavor::Redis70).await);
    let dir = tempfile::tempdir().expect("a directory");
    let healthy = Ground::new(&good, sqlite(&dir), &hasty_policy()).await;
    let sick = Ground::new(&bad, sqlite(&dir), &hasty_policy()).await;
    let metrics = LoopMetrics::default();
    let mut runner = healthy.lead_and_count(metrics.clone()).await;
    runner.listen(sick.redis.notices());
    let queue = windlass::maintenance::Queue::new(sick.name.clone(), sick.broker.clone(), Some(sick.log()));
    runner.add(sick.keys.prefix(), queue).await;
    // With work in it, so that all its loops have something to do when it hangs.
    let tasks = (0..50).map(|n| NewTask::new("send".parse().expect("valid"), serde_json::json!(n)));
    sick.broker.enqueue(&tasks.collect::<Vec<_>>()).await.expect("taken");
    until(&sick, "a history of the one that is to hang", |counts| counts.outbox == 0).await;
    bad.freeze().await;
    let before = LoopName::ALL.map(|name| metrics.steps(name));
    let account = healthy.load(2_000).run().await;
    healthy.check(&account).await;
    assert!(!tasks_that(&healthy.events().await, State::Failed).is_empty(), "some died, and were recorded");
    // A step of the frozen one ends in an error, after seconds. Waited for, each would cost the healthy one a
    // step; those of the healthy one are many times as many.
    let (mut done, mut failed) = (0, 0);
    for (name, before) in LoopName::ALL.into_iter().zip(before) {
        let (runs, errors) = metrics.steps(name);
        failed += errors - before.1;
        done += runs - before.0 - (errors - before.1);
    }
    assert!(done > 50 + 5 * failed, "{done} steps of the healthy queue's loops beside {failed} that failed");
    bad.thaw().await;
}
