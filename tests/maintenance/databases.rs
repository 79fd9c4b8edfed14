//! Databases that are killed, frozen or away for so long that the outbox is full: work goes on, and history is
//! whole when they are back.

use std::time::Duration;

use tokio::time::sleep;
use windlass::broker::session::Session;
use windlass::broker::{Broker, BrokerError, Cancelled, ErrorClass, Outcome, Settled, Settlement};
use windlass::event_log::EventLog;
use windlass::maintenance::metrics::LoopMetrics;
use windlass::maintenance::sampler::Sampler;
use windlass::maintenance::{Chore, History, LoopName, Queue};
use windlass::protocol::backoff::Dice;
use windlass::protocol::names::{Capabilities, WorkerId};
use windlass::protocol::policy::{EventRecording, Policy};
use windlass::{NewTask, State, TaskId};

use super::faults::{sqlite, until};
use crate::support::ground::{Ground, tasks_that};
use crate::support::load::hasty_policy;
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

/// What was logged while it was in place.
#[derive(Clone, Default)]
struct Logged(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);

impl std::io::Write for Logged {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("no panic").extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Logged {
    fn begin(&self) -> tracing::subscriber::DefaultGuard {
        let logged = self.clone();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || logged.clone()).finish();
        tracing::subscriber::set_default(subscriber)
    }

    fn times(&self, words: &str) -> usize {
        String::from_utf8_lossy(&self.0.lock().expect("no panic")).matches(words).count()
    }
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
