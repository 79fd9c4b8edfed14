//! Which loops a queue needs is seen by a look at it, also where no notice tells.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use windlass::NewTask;
use windlass::broker::session::Session;
use windlass::broker::{Broker, Outcome, RetainCursor, Settlement};
use windlass::maintenance::dead_letter_router::DeadLetterRouter;
use windlass::maintenance::recorder::Recorder;
use windlass::maintenance::runner::Runner;
use windlass::maintenance::sampler::Sampler;
use windlass::maintenance::{Chore, ChoreError, Next, Queue};
use windlass::protocol::backoff::Dice;
use windlass::protocol::keys::{AdoptedKeys, Keys};
use windlass::protocol::names::{Capabilities, WorkerId};
use windlass::protocol::policy::Policy;
use windlass::protocol::task::NotBefore;

use super::faults::{sqlite, until};
use crate::support::fresh_queue;
use crate::support::ground::Ground;
use crate::support::servers::{Flavor, Postgres, Server};

fn task(kind: &str) -> NewTask {
    NewTask::new(kind.parse().expect("valid"), serde_json::json!(1))
}

/// Kills tasks, each with an error that names its number.
async fn kill(ground: &Ground, count: usize) {
    let batch: Vec<_> = (0..count).map(|_| task("bad")).collect();
    ground.broker.enqueue(&batch).await.expect("taken");
    let mut session = Session::new(ground.broker.clone(), WorkerId::new("w").expect("valid"), Capabilities::any());
    let claimed = session.claim(count).await.expect("claimed");
    assert_eq!(claimed.len(), count);
    for (number, task) in claimed.into_iter().enumerate() {
        let outcome = Outcome::permanent("test", format!("no. {number}."));
        session.settle(&[Settlement { lease: task.lease, outcome, dice: Dice(0) }], 0).await.expect("settled");
    }
}

/// What a leader left when it ended is found by the next one, though nothing happens in the queue any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_kept_of_an_idle_queue_goes_at_its_time_after_a_change_of_leaders() {
    let server = Server::start(Flavor::Redis70).await;
    let dir = tempfile::tempdir().expect("a directory");
    let mut policy = Policy::default();
    (policy.retention.succeeded, policy.retention.failed) = (Duration::from_secs(1), Duration::from_secs(1));
    let ground = Ground::new(&server, sqlite(&dir), &policy).await;
    let queue = Queue::new(ground.name.clone(), ground.broker.clone(), Some(ground.log()));
    let unwanted = task("send");
    ground.broker.enqueue(std::slice::from_ref(&unwanted)).await.expect("taken");
    ground.broker.cancel(&unwanted.id, "not needed").await.expect("cancelled");
    while Recorder.run_once(&queue).await.expect("recorded").next != Next::WhenNeeded {}
    // Redis forgets it, the event log does not yet.
    let since = Instant::now();
    while ground.broker.counts().await.expect("counted").finished > 0 {
        assert!(since.elapsed() < Duration::from_secs(60), "it is not forgotten");
        ground.broker.retain(RetainCursor::default(), 10).await.expect("answered");
        sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(ground.events().await.len(), 2);
    let _leader = ground.lead().await;
    while !ground.events().await.is_empty() {
        assert!(since.elapsed() < Duration::from_secs(120), "nobody forgets the rows of an idle queue");
        sleep(Duration::from_millis(50)).await;
    }
}

/// A worker of the system before read an entry and died; there is nothing else in the stream.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_that_a_worker_of_the_system_before_took_and_left_comes_back() {
    let server = Server::start(Flavor::Redis70).await;
    server.command(&["XGROUP", "CREATE", "stream:task", "cg:workers", "0", "MKSTREAM"]).await;
    server.command(&["XADD", "stream:task", "*", "task_id", "left", "tool_name", "send", "payload", "{}"]).await;
    let read = ["XREADGROUP", "GROUP", "cg:workers", "old", "STREAMS", "stream:task", ">"];
    server.command(&read).await;
    let names = AdoptedKeys {
        task: Some("stream:task".into()),
        result: Some("stream:result".into()),
        dead_letter: Some("stream:dlq".into()),
        group: Some("cg:workers".into()),
    };
    let policy = Policy {
        visibility_timeout: Duration::from_secs(2),
        heartbeat_period: Duration::from_millis(500),
        ..Policy::default()
    };
    let name = fresh_queue();
    let keys = Keys::adopting(&name, &names).expect("usable names");
    let ground = Ground::with_keys(&server, String::new(), &policy, keys, name).await;
    let taken = ground.broker.counts().await.expect("counted");
    assert_eq!((taken.raw_taken, taken.backlog, taken.running), (1, 0, 0));
    let runner = Runner::start(Default::default());
    runner.add(ground.keys.prefix(), Queue::new(ground.name.clone(), ground.broker.clone(), None)).await;
    until(&ground, "the entry that was left", |counts| (counts.raw_taken, counts.backlog) == (0, 1)).await;
}

/// Closes: one row that a database refuses, and the dead letters of a whole queue behind it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_letters_that_the_database_refuses_hold_up_no_others() {
    const REFUSED: usize = 55;
    const ALL: usize = 60;
    let server = Server::start(Flavor::Redis70).await;
    let postgres = Postgres::start().await;
    let ground = Ground::new(&server, postgres.fresh_database(), &Policy::default()).await;
    let queue = Queue::new(ground.name.clone(), ground.broker.clone(), Some(ground.log()));
    ground.events().await;
    let sql = |sql: &str| postgres.query_at(&ground.log_url, sql).expect("the server obeys");
    sql("CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not this one'; END $$");
    sql(&format!(
        "CREATE TRIGGER refuse BEFORE INSERT ON dlq_items FOR EACH ROW \
         WHEN (substring(NEW.error FROM '\\d+')::int < {REFUSED}) EXECUTE FUNCTION refuse()"
    ));
    kill(&ground, ALL).await;
    let mut router = DeadLetterRouter::default();
    for _ in 0..2 {
        let error = router.run_once(&queue).await.expect_err("some are refused");
        assert!(matches!(&error, ChoreError::Refused { .. }), "{error}");
        assert!(error.to_string().contains("not this one"), "{error}");
    }
    let counts = ground.broker.counts().await.expect("counted");
    assert_eq!((counts.dead_lettered as usize, counts.dlq_pending as usize), (ALL - REFUSED, REFUSED));
    // They are not forgotten: once the database takes them, they are recorded.
    sql("DROP FUNCTION refuse CASCADE");
    while router.run_once(&queue).await.expect("a step").next != Next::WhenNeeded {}
    let counts = ground.broker.counts().await.expect("counted");
    assert_eq!((counts.dead_lettered as usize, counts.dlq_pending), (ALL, 0));
}

/// Closes: "a lost wake-up": what is due later keeps nobody from what is due now.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_whose_notice_is_lost_is_promoted_though_another_is_due_in_an_hour() {
    let server = Server::start(Flavor::Redis70).await;
    let ground = Ground::new(&server, String::new(), &Policy::default()).await;
    let due_in = |seconds| NewTask { not_before: NotBefore::After(Duration::from_secs(seconds)), ..task("send") };
    ground.broker.enqueue(&[due_in(3600)]).await.expect("taken");
    // Nobody listens to notices: all are lost.
    let metrics = windlass::maintenance::metrics::LoopMetrics::default();
    let runner = Runner::start(metrics.clone());
    runner.add(ground.keys.prefix(), Queue::new(ground.name.clone(), ground.broker.clone(), None)).await;
    let since = Instant::now();
    while metrics.steps(windlass::maintenance::LoopName::Promoter).0 == 0 {
        assert!(since.elapsed() < Duration::from_secs(60), "nobody asked what is due");
        sleep(Duration::from_millis(20)).await;
    }
    ground.broker.enqueue(&[due_in(1)]).await.expect("taken");
    until(&ground, "the task that is due", |counts| (counts.delayed, counts.backlog) == (1, 1)).await;
}

/// Where history was switched off, what nobody recorded stays, and is no work.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_left_in_the_outbox_makes_no_queue_busy_without_an_event_log_and_is_recorded_by_the_next_one() {
    let server = Server::start(Flavor::Redis70).await;
    let dir = tempfile::tempdir().expect("a directory");
    let ground = Ground::new(&server, sqlite(&dir), &Policy::default()).await;
    let unwanted = task("send");
    ground.broker.enqueue(std::slice::from_ref(&unwanted)).await.expect("taken");
    ground.broker.cancel(&unwanted.id, "not needed").await.expect("cancelled");
    let rest = async |log| {
        let queue = Queue::new(ground.name.clone(), ground.broker.clone(), log);
        let mut sampler = Sampler::default();
        // The first rest is a part of one, to spread many queues.
        sampler.run_once(&queue).await.expect("a look");
        match sampler.run_once(&queue).await.expect("a look").next {
            Next::In(rest) => rest,
            next => panic!("{next:?}"),
        }
    };
    assert!(rest(None).await > Duration::from_secs(60), "it is idle");
    assert!(rest(Some(ground.log())).await < Duration::from_secs(60), "there is something to record");
    let _leader = ground.lead().await;
    until(&ground, "an empty outbox", |counts| counts.outbox == 0).await;
    assert_eq!(ground.events().await.len(), 2);
}
