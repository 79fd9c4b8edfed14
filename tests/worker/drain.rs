//! The end of a worker: everything is finished or given back, at once and not by a timeout.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::net::TcpListener;
use windlass::protocol::policy::Policy;
use windlass::{Outcome, State, TaskContext, WorkerOptions};

use super::ground::{Does, Gauge, Ground, Running, options};
use crate::support::servers::Wait;

/// Runs for so long unless it is asked to end, which it heeds.
fn polite(time: Duration, gauge: Gauge) -> impl windlass::Handler {
    Does(move |task: TaskContext| {
        let inside = gauge.enter();
        async move {
            let _inside = inside;
            tokio::select! {
                () = tokio::time::sleep(time) => Outcome::success(),
                _ = task.cancelled() => Outcome::failure("stopped", "asked to end"),
            }
        }
    })
}

/// The default policy: nothing here comes back by its visibility timeout within the test.
async fn ground() -> Ground {
    Ground::new(Policy::default()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_finishes_what_it_can_in_time() {
    let ground = ground().await;
    ground.add(150).await;
    let gauge = Gauge::default();
    let worker = ground.work(polite(Duration::from_secs(2), gauge.clone()), options(100));
    gauge.until_entered(100).await;
    let summary = worker.drain().await;
    assert_eq!((summary.settled, summary.released, summary.unsettled), (100, 0, 0));
    assert_eq!(gauge.entered(), 100, "nothing was claimed after the drain began");
    let counts = ground.counts().await;
    assert_eq!((counts.finished, counts.backlog, counts.running, counts.workers), (100, 50, 0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_gives_back_what_it_cannot_finish_before_its_time_is_over() {
    let ground = ground().await;
    let ids = ground.add(100).await;
    let gauge = Gauge::default();
    let short = WorkerOptions { drain_timeout: Duration::from_secs(1), ..options(100) };
    let worker = ground.work(polite(Duration::from_secs(600), gauge.clone()), short);
    gauge.until_entered(100).await;
    let summary = worker.drain().await;
    assert_eq!((summary.settled, summary.released, summary.unsettled), (100, 100, 0));
    let counts = ground.counts().await;
    assert_eq!((counts.backlog, counts.running, counts.workers), (100, 0, 0), "ready for the next worker");
    let view = ground.view(&ids[0]).await;
    assert_eq!((view.retry_count, view.crash_count, view.release_count), (0, 0, 1), "it cost no attempt");
    let next = ground.work(Does(|_| async { Outcome::success() }), options(100));
    ground.until_finished(100).await;
    next.drain().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_does_not_end_when_asked_is_given_back_all_the_same() {
    let ground = ground().await;
    ground.add(20).await;
    let short = WorkerOptions { drain_timeout: Duration::from_secs(1), ..options(20) };
    let worker = ground.work(Does(|_| std::future::pending()), short);
    worker.until_running(20).await;
    let summary = worker.drain().await;
    assert_eq!((summary.settled, summary.released, summary.unsettled), (20, 20, 0));
    assert_eq!(ground.counts().await.backlog, 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_request_gives_everything_back_at_once() {
    let ground = ground().await;
    let ids = ground.add(10).await;
    let patient = WorkerOptions { drain_timeout: Duration::from_secs(3600), ..options(10) };
    let worker = ground.work(Does(|_| std::future::pending()), patient);
    worker.until_running(10).await;
    worker.handle.drain();
    until_it_says(&worker, Some("the worker is draining")).await;
    assert_eq!(worker.handle.health().running(), 10, "it waits for them");
    let summary = worker.drain().await;
    assert_eq!((summary.released, summary.unsettled), (10, 0));
    for id in &ids {
        assert_eq!(ground.view(id).await.state, State::Retrying);
    }
}

/// Its broker is away; it has hours to drain.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_request_does_not_wait_for_a_broker_that_is_away() {
    let ground = Ground::new(Policy { heartbeat_period: Duration::from_millis(200), ..Policy::default() }).await;
    ground.add(2).await;
    let patient = WorkerOptions { drain_timeout: Duration::from_secs(3600), ..options(2) };
    let worker = ground.work(Does(|_| std::future::pending()), patient);
    worker.until_running(2).await;
    ground.server.freeze().await;
    worker.handle.drain();
    worker.handle.drain();
    // For hours, if it waited for the broker.
    let summary = worker.end().await;
    assert_eq!((summary.settled, summary.unsettled), (0, 2));
}

/// Waits until the worker says this of itself.
async fn until_it_says(worker: &Running, words: Option<&str>) {
    let mut wait = Wait::new(format!("the worker to say {words:?}"));
    while worker.handle.health().why_not_ready() != words {
        wait.again(format!("{:?}", worker.handle.health().why_not_ready())).await;
    }
}

/// Its broker is away, and to leave the registry is all that it has to do, with hours for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_request_is_heard_by_a_worker_that_cannot_say_good_bye() {
    let ground = ground().await;
    let patient = WorkerOptions { drain_timeout: Duration::from_secs(3600), ..options(2) };
    let worker = ground.work(Does(|_| async { Outcome::success() }), patient);
    until_it_says(&worker, None).await;
    ground.server.kill9();
    // In its place somebody counts who comes, and says nothing.
    let door = TcpListener::bind(("127.0.0.1", ground.server.port())).await.expect("the server's port is free");
    let came = Arc::new(AtomicUsize::new(0));
    let counter = came.clone();
    let doorkeeper = tokio::spawn(async move {
        while door.accept().await.is_ok() {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    });
    until_it_says(&worker, Some("the broker does not answer")).await;
    worker.handle.drain();
    until_it_says(&worker, Some("the worker is draining")).await;
    let before = came.load(Ordering::Relaxed);
    let mut wait = Wait::new("the worker to try to leave the registry, and again".to_owned());
    while came.load(Ordering::Relaxed) < before + 3 {
        wait.again(format!("{} came, {before} of them before", came.load(Ordering::Relaxed))).await;
    }
    worker.handle.drain();
    // After hours, if it did not hear.
    let summary = worker.end().await;
    assert_eq!((summary.settled, summary.unsettled), (0, 0));
    doorkeeper.abort();
}

#[tokio::test]
async fn a_worker_that_has_nothing_to_do_ends_at_once_and_swallows_no_ring() {
    let ground = ground().await;
    let patient = WorkerOptions { drain_timeout: Duration::from_secs(3600), ..options(4) };
    let ends = ground.work(Does(|_| async { Outcome::success() }), patient.clone());
    let stays = ground.work(Does(|_| async { Outcome::success() }), patient);
    for round in 0..20 {
        ground.add(1).await;
        ground.until_finished(round + 1).await;
    }
    let ended = ends.drain().await;
    for round in 20..30 {
        ground.add(1).await;
        ground.until_finished(round + 1).await;
    }
    assert_eq!(ended.settled + stays.drain().await.settled, 30);
    assert_eq!(ground.counts().await.workers, 0);
}
