//! Databases that are killed, frozen or away for so long that the outbox is full: work goes on, and history is
//! whole when they are back.

use std::process::Command;
use std::time::Duration;

use tokio::time::sleep;
use windlass::broker::session::Session;
use windlass::broker::{Broker, BrokerError, Cancelled, ErrorClass, Outcome, Settled, Settlement};
use windlass::event_log::{DeadLetterFilter, EventLog};
use windlass::maintenance::archivist::Archivist;
use windlass::maintenance::metrics::LoopMetrics;
use windlass::maintenance::sampler::Sampler;
use windlass::maintenance::{Chore, History, LoopName, Queue};
use windlass::protocol::backoff::Dice;
use windlass::protocol::names::{Capabilities, WorkerId};
use windlass::protocol::policy::{EventRecording, Policy};
use windlass::{NewTask, State, TaskId};

use super::faults::{sqlite, until};
use crate::support::ground::{Ground, example, tasks_that};
use crate::support::load::hasty_policy;
use crate::support::logged::Logged;
use crate::support::servers::{Flavor, Postgres, Server};

/// Every process at once, in the middle of whatever it does; what it had committed is there again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn history_is_whole_after_postgres_was_killed_three_times_under_load() {
    let server = Server::start(Flavor::Redis70).await;
    let postgres = Postgres::start().await;
    let ground = Ground::new(&server, postgres.fresh_database(), &hasty_policy()).await;
    let _runner = ground.lead().await;
    let load = tokio::spawn(ground.load(6_000).run());
    for kills in 1..=3 {
        until(&ground, "some work", |counts| counts.finished > 1000 * kills).await;
        postgres.kill9().await;
        // It is away for as long as some more work takes.
        until(&ground, "work while it is away", |counts| counts.finished > 1000 * kills + 300).await;
        postgres.restart().await;
    }
    let account = load.await.expect("the load ends");
    ground.check(&account).await;
}

/// A server that neither answers nor lets go of its connections: calls give up, and what they had begun is done
/// once, whenever it goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn history_is_whole_after_postgres_stood_still_under_load() {
    let server = Server::start(Flavor::Redis70).await;
    let postgres = Postgres::start().await;
    let ground = Ground::new(&server, postgres.fresh_database(), &hasty_policy()).await;
    let metrics = LoopMetrics::default();
    let _runner = ground.lead_and_count(metrics.clone()).await;
    let load = tokio::spawn(ground.load(6_000).run());
    until(&ground, "some work", |counts| counts.finished > 1000).await;
    let log = EventLog::connect(&ground.log_url).await.expect("connected");
    postgres.freeze();
    let still = until(&ground, "all the work", |counts| {
        counts.backlog + counts.running + counts.delayed + counts.retrying == 0 && counts.dlq_pending > 0
    })
    .await;
    // Until calls that were under way have been given up, ours and those of the loops.
    let error = log.history(&ground.name, &TaskId::generate()).await.expect_err("nobody answers");
    assert_eq!(error.class(), ErrorClass::Transient, "{error}");
    while metrics.steps(LoopName::Recorder).1 == 0 || metrics.steps(LoopName::DeadLetterRouter).1 == 0 {
        sleep(Duration::from_millis(50)).await;
    }
    assert!(!load.is_finished(), "dead letters wait for the database");
    postgres.thaw();
    let account = load.await.expect("the load ends");
    ground.check(&account).await;
    println!("still with {} dead letters and {} entries of history waiting", still.dlq_pending, still.outbox);
}

/// All that does not end as a dead letter is done, and what happened waits in the outbox.
async fn done_without_a_database(ground: &Ground) -> windlass::broker::QueueCounts {
    until(ground, "all the work", |counts| {
        let unfinished = counts.backlog + counts.running + counts.delayed + counts.retrying;
        unfinished == 0 && counts.dlq_pending > 0 && counts.outbox > 0
    })
    .await
}

/// No disk was filled for this: the database says so itself, where it would have grown.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_goes_on_while_postgres_is_full_and_history_is_whole_when_there_is_room() {
    let server = Server::start(Flavor::Redis70).await;
    let postgres = Postgres::start().await;
    let ground = Ground::new(&server, postgres.fresh_database(), &hasty_policy()).await;
    let metrics = LoopMetrics::default();
    let _runner = ground.lead_and_count(metrics.clone()).await;
    let load = tokio::spawn(ground.load(5_000).run());
    until(&ground, "some work", |counts| counts.finished > 500).await;
    // The first entry makes the tables, which may be later than much of the work.
    while metrics.steps(LoopName::Recorder).0 <= metrics.steps(LoopName::Recorder).1 {
        sleep(Duration::from_millis(10)).await;
    }
    let sql = |sql: &str| postgres.query_at(&ground.log_url, sql).expect("the server obeys");
    sql("CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION \
         USING ERRCODE = '53100', MESSAGE = 'could not extend file: No space left on device'; END $$");
    for table in ["event_log", "dlq_items", "task_queue_metrics"] {
        sql(&format!("CREATE TRIGGER full_disk BEFORE INSERT ON {table} EXECUTE FUNCTION full_disk()"));
    }
    let full = done_without_a_database(&ground).await;
    let log = ground.log();
    let sample = windlass::broker::OutboxEntry { id: "1-0".to_owned(), ..Default::default() };
    let error = log.record(&ground.name, &sample).await.expect_err("there is no room");
    assert_eq!(error.class(), ErrorClass::Transient, "{error}");
    assert!(error.to_string().contains("No space left on device"), "{error}");
    while metrics.steps(LoopName::Recorder).1 == 0 || metrics.steps(LoopName::DeadLetterRouter).1 == 0 {
        sleep(Duration::from_millis(50)).await;
    }
    assert!(!load.is_finished(), "dead letters wait for the database");
    sql("DROP FUNCTION full_disk CASCADE");
    let account = load.await.expect("the load ends");
    ground.check(&account).await;
    println!("full with {} dead letters and {} entries of history waiting", full.dlq_pending, full.outbox);
}

/// Files that cannot grow any more, for the leader's process alone; until they can.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_goes_on_while_the_sqlite_file_cannot_grow_and_history_is_whole_when_it_can() {
    let server = Server::start(Flavor::Redis70).await;
    let dir = tempfile::tempdir().expect("a directory");
    let ground = Ground::new(&server, sqlite(&dir), &hasty_policy()).await;
    let mut bounded = Command::new("sh");
    // Whoever writes beyond the limit is told so, instead of being killed.
    bounded.args(["-c", r#"trap '' XFSZ; exec prlimit --fsize=500000:unlimited "$0" "$@""#]).arg(example("leader"));
    let leader = ground.lead_apart_by(bounded);
    let load = tokio::spawn(ground.load(5_000).run());
    let full = done_without_a_database(&ground).await;
    let size = std::fs::metadata(dir.path().join("events.db-wal")).expect("a log of writes").len();
    assert!(size > 400_000, "it is the size that stops it: {size}");
    assert!(!load.is_finished(), "dead letters wait for the database");
    let pid = leader.id().to_string();
    let raised = Command::new("prlimit").args(["--pid", &pid, "--fsize=unlimited:unlimited"]).status();
    assert!(raised.expect("prlimit runs").success());
    let account = load.await.expect("the load ends");
    ground.check(&account).await;
    println!("full with {} dead letters and {} entries of history waiting", full.dlq_pending, full.outbox);
}

/// Closes: "the database was restored empty, and the leader has to be restarted".
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_is_emptied_under_a_leader_gets_its_tables_again_and_the_dead_letters_of_the_queue() {
    let server = Server::start(Flavor::Redis70).await;
    let postgres = Postgres::start().await;
    let ground = Ground::new(&server, postgres.fresh_database(), &hasty_policy()).await;
    let _runner = ground.lead().await;
    let kill = async |count: usize| {
        let tasks: Vec<_> = (0..count).map(task).collect();
        ground.broker.enqueue(&tasks).await.expect("taken");
        let mut session = Session::new(ground.broker.clone(), WorkerId::new("w").expect("valid"), Capabilities::any());
        let claimed = session.claim(count).await.expect("claimed");
        let end = |lease| Settlement { lease, outcome: Outcome::permanent("test", "never"), dice: Dice(0) };
        let settlements: Vec<_> = claimed.into_iter().map(|task| end(task.lease)).collect();
        session.settle(&settlements, 0).await.expect("settled");
    };
    kill(3).await;
    until(&ground, "three dead letters", |counts| (counts.dead_lettered, counts.outbox) == (3, 0)).await;
    // The loops that rest for long take their steps by hand.
    let queue = Queue::new(ground.name.clone(), ground.broker.clone(), Some(ground.log()));
    let (mut sampler, mut archivist) = (Sampler::default(), Archivist::default());
    for _ in 0..5 {
        sampler.run_once(&queue).await.expect("a look");
        archivist.run_once(&queue).await.expect("a step");
    }
    postgres.query_at(&ground.log_url, "DROP SCHEMA public CASCADE; CREATE SCHEMA public").expect("the server obeys");
    kill(4).await;
    until(&ground, "the others", |counts| (counts.dead_lettered, counts.outbox) == (7, 0)).await;
    sampler.run_once(&queue).await.expect("a look");
    for _ in 0..5 {
        archivist.run_once(&queue).await.expect("a step");
    }
    let letters = ground.log().count_dead_letters(&ground.name, &DeadLetterFilter::default()).await;
    assert_eq!(letters.expect("counted"), 7, "the log has what the queue has");
    assert_eq!(tasks_that(&ground.events().await, State::Failed).len(), 4, "history begins anew");
}

const BOUND: u64 = 200;

fn bounded() -> Policy {
    let mut policy = hasty_policy();
    policy.limits.outbox_entries = BOUND;
    policy
}

fn task(n: usize) -> NewTask {
    NewTask::new("send".parse().expect("valid"), serde_json::json!({ "n": n }))
}

/// Enqueues one task at a time until the queue takes no more; says which it took.
async fn fill(broker: &dyn Broker) -> (Vec<TaskId>, BrokerError) {
    let mut taken = Vec::new();
    loop {
        let task = task(taken.len());
        match broker.enqueue(std::slice::from_ref(&task)).await {
            Ok(_) => taken.push(task.id),
            Err(error) => return (taken, error),
        }
        assert!(taken.len() <= BOUND as usize, "the outbox has a bound");
    }
}

/// At the bound enqueues are refused, and nothing else.
///
/// Closes: "MAXLEN drops unread work": nothing is trimmed to make room, whoever brings more is told to wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_the_bound_of_the_outbox_enqueues_are_refused_and_everything_else_goes_on() {
    let server = Server::start(Flavor::Redis70).await;
    let postgres = Postgres::start().await;
    let ground = Ground::new(&server, postgres.fresh_database(), &bounded()).await;
    let _runner = ground.lead().await;
    until(&ground, "an empty outbox", |counts| counts.outbox == 0).await;
    postgres.stop().await;
    let (taken, error) = fill(&*ground.broker).await;
    assert!(matches!(error, BrokerError::OutboxFull(_)), "{error}");
    assert_eq!(error.class(), ErrorClass::Transient, "it may work later");

    // Claims, retries, results, releases and cancels go on, past the bound.
    let worker = WorkerId::new("w").expect("valid");
    let mut session = Session::new(ground.broker.clone(), worker, Capabilities::any());
    assert!(matches!(ground.broker.cancel(&taken[0], "not needed").await, Ok(Cancelled::Done { .. })));
    let mut ended = 1;
    while ended < taken.len() {
        let claimed = session.claim(10).await.expect("claims go on");
        let end = |task: &windlass::broker::ClaimedTask| match (task.retry_count, fastrand::u8(..4)) {
            (0, 0) => Outcome::failure("test", "not yet"),
            _ => Outcome::success(),
        };
        let settlements: Vec<_> = claimed
            .iter()
            .map(|task| Settlement { lease: task.lease.clone(), outcome: end(task), dice: Dice(0) })
            .collect();
        if settlements.is_empty() {
            // Only retries are left, and they wait for their time.
            sleep(Duration::from_millis(5)).await;
            continue;
        }
        let settled = session.settle(&settlements, 0).await.expect("settles go on").settled;
        ended += settled.iter().filter(|settled| **settled == Settled::Succeeded).count();
    }
    let full = ground.broker.counts().await.expect("counted");
    assert!(full.outbox > BOUND && full.finished as usize == taken.len(), "{full:?}");
    let again = ground.broker.enqueue(&[task(0)]).await;
    assert!(matches!(again, Err(BrokerError::OutboxFull(_))), "{again:?}");

    postgres.restart().await;
    until(&ground, "an outbox that was emptied", |counts| counts.outbox == 0).await;
    let last = task(1);
    ground.broker.enqueue(std::slice::from_ref(&last)).await.expect("tasks are taken again");
    until(&ground, "an outbox that was emptied", |counts| counts.outbox == 0).await;
    let events = ground.events().await;
    assert_eq!(tasks_that(&events, State::Queued).len(), taken.len() + 1, "every task is in the history");
    assert_eq!(tasks_that(&events, State::Succeeded).len(), taken.len() - 1);
    assert_eq!(tasks_that(&events, State::Cancelled).len(), 1);
    assert!(!tasks_that(&events, State::Retrying).is_empty(), "some were retried meanwhile");
}

#[tokio::test]
async fn an_outbox_that_fills_is_warned_of_before_its_bound_and_once() {
    let server = Server::start(Flavor::Redis70).await;
    let dir = tempfile::tempdir().expect("a directory");
    let ground = Ground::new(&server, sqlite(&dir), &bounded()).await;
    let queue = Queue::new(ground.name.clone(), ground.broker.clone(), Some(ground.log()));
    let (logged, mut sampler) = (Logged::default(), Sampler::default());
    let _guard = logged.begin();
    let mut warned_at = None;
    for n in 0..BOUND as usize {
        ground.broker.enqueue(&[task(n)]).await.expect("taken");
        sampler.run_once(&queue).await.expect("a look");
        if logged.times("the outbox is filling") > 0 && warned_at.is_none() {
            warned_at = Some(n);
        }
    }
    let warned_at = warned_at.expect("it was warned of");
    assert!(warned_at < BOUND as usize * 9 / 10, "early enough: at {warned_at}");
    assert_eq!(logged.times("the outbox is filling"), 1, "once");
    assert!(ground.broker.enqueue(&[task(0)]).await.is_err());
}

#[tokio::test]
async fn a_queue_without_a_database_says_that_no_history_is_recorded() {
    let server = Server::start(Flavor::Redis70).await;
    let policy = Policy { events: EventRecording::Off, ..Policy::default() };
    let ground = Ground::new(&server, String::new(), &policy).await;
    let queue = Queue::new(ground.name.clone(), ground.broker.clone(), None);
    assert_eq!(queue.history(), History::NotRecorded);
    assert!(queue.history().to_string().starts_with("no history is recorded"), "{}", queue.history());
    let logged = Logged::default();
    let _guard = logged.begin();
    let runner = windlass::maintenance::runner::Runner::start(LoopMetrics::default());
    runner.add(ground.keys.prefix(), queue).await;
    assert_eq!(logged.times("no history is recorded"), 1);
}
