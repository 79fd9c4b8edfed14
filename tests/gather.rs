//! Enqueues of one client that come together go together, and stay apart where it matters.

mod support;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use support::queue_at;
use support::servers::{Flavor, Server};
use windlass::NewTask;
use windlass::broker::redis::RedisBroker;
use windlass::broker::{Broker, ErrorClass};
use windlass::protocol::policy::Policy;

fn task(n: usize) -> NewTask {
    NewTask::new("send".parse().expect("valid"), serde_json::json!({ "n": n }))
}

/// Script calls that a server has run.
async fn calls(server: &Server) -> u64 {
    let stats = server.info("commandstats").await;
    let calls = stats.get("cmdstat_evalsha").and_then(|line| line.split(['=', ',']).nth(1).map(str::to_owned));
    calls.and_then(|n| n.parse().ok()).unwrap_or_default()
}

#[tokio::test]
async fn many_callers_need_few_calls_and_each_gets_its_own_answer() {
    let server = Server::start(Flavor::Redis70).await;
    let broker = queue_at(&server.url(), &Policy::default()).await;
    broker.enqueue(&[task(0)]).await.expect("taken"); // the script is known from here on
    let before = calls(&server).await;
    let one = async |n: usize| {
        let tasks: Vec<NewTask> = (0..1 + n % 3).map(task).collect();
        let answers = broker.enqueue(&tasks).await.expect("taken");
        let ids: Vec<_> = tasks.iter().map(|task| task.id.clone()).collect();
        assert_eq!(answers.iter().map(|answer| answer.id.clone()).collect::<Vec<_>>(), ids);
        assert!(answers.iter().all(|answer| answer.created));
        ids.len()
    };
    let made: usize = join_all((0..500).map(one)).await.into_iter().sum();
    let used = calls(&server).await - before;
    assert_eq!(broker.counts().await.expect("counted").backlog as usize, made + 1);
    assert!(used < 100, "{made} tasks of 500 callers took {used} calls");
}

/// The same work asked for by two callers at once is one task, and both know its id.
#[tokio::test]
async fn callers_with_one_idempotency_key_get_one_task() {
    let server = Server::start(Flavor::Redis70).await;
    let broker = queue_at(&server.url(), &Policy::default()).await;
    let one = async |n: usize| {
        let mut task = task(n);
        task.idempotency_key = Some("order-1".parse().expect("valid"));
        broker.enqueue(&[task]).await.expect("taken").remove(0)
    };
    let answers = join_all((0..50).map(one)).await;
    assert_eq!(answers.iter().filter(|answer| answer.created).count(), 1);
    assert_eq!(answers.iter().map(|answer| &answer.id).collect::<HashSet<_>>().len(), 1);
}

/// What one caller did wrong is told to that caller alone, and costs the others nothing.
#[tokio::test]
async fn one_callers_bad_task_is_refused_to_that_caller_alone() {
    let server = Server::start(Flavor::Redis70).await;
    let broker = queue_at(&server.url(), &Policy::default()).await;
    let one = async |n: usize| {
        let mut task = task(n);
        if n % 10 == 7 {
            task.priority = Some(200); // out of the queue's range, which only the server knows
        }
        broker.enqueue(&[task]).await
    };
    for (n, answer) in join_all((0..100).map(one)).await.into_iter().enumerate() {
        match answer {
            Ok(_) => assert_ne!(n % 10, 7),
            Err(error) => {
                assert_eq!((n % 10, error.class()), (7, ErrorClass::Invalid), "{error}");
                assert!(error.to_string().contains("priority"), "{error}");
            }
        }
    }
    assert_eq!(broker.counts().await.expect("counted").backlog, 90);
}

/// Whoever is dropped in the middle, also while it sends for others: the rest is answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_that_are_dropped_leave_nobody_waiting() {
    let server = Server::start(Flavor::Redis70).await;
    let broker = queue_at(&server.url(), &Policy::default()).await;
    let enqueue = |broker: Arc<RedisBroker>, n| tokio::spawn(async move { broker.enqueue(&[task(n)]).await });
    let mut kept = 0;
    for _ in 0..200 {
        let callers: Vec<_> = (0..20).map(|n| enqueue(broker.clone(), n)).collect();
        tokio::time::sleep(Duration::from_micros(fastrand::u64(0..600))).await;
        for caller in callers {
            if fastrand::bool() {
                caller.abort();
            } else {
                let answer =
                    tokio::time::timeout(Duration::from_secs(60), caller).await.expect("nobody is left waiting");
                answer.expect("it was not dropped").expect("taken");
                kept += 1;
            }
        }
    }
    let backlog = broker.counts().await.expect("counted").backlog;
    assert!((kept..=4000).contains(&backlog), "{kept} were answered, {backlog} are there");
}

/// A caller that gave up must not hold the turn.
#[tokio::test]
async fn the_turn_passes_on_when_its_holder_gives_up_on_a_frozen_server() {
    let server = Server::start(Flavor::Redis70).await;
    let broker = queue_at(&server.url(), &Policy::default()).await;
    server.freeze().await;
    let first = tokio::time::timeout(Duration::from_millis(100), broker.enqueue(&[task(1)])).await;
    assert!(first.is_err(), "a frozen server does not answer");
    let second = [task(2)];
    let (answer, ()) = futures::join!(broker.enqueue(&second), server.thaw());
    answer.expect("taken");
}
