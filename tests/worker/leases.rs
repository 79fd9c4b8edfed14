//! A handler that has lost its task changes nothing any more.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::sync::Notify;
use windlass::broker::Broker;
use windlass::protocol::policy::{Mode, Policy};
use windlass::worker::CancelReason;
use windlass::{Outcome, State, TaskContext};

use super::ground::{Does, Ground, hasty, options};
use crate::support::servers::Wait;

/// closes: late rescue overwrites a completion (river#1302, rq#2424); live work is stolen (taskiq-redis#101)
#[tokio::test]
async fn a_handler_that_outlives_its_lease_never_overwrites_a_newer_claim() {
    let ground = Ground::new(hasty()).await;
    let (go_on, reasons) = (Arc::new(Notify::new()), tokio::sync::mpsc::unbounded_channel());
    let (waiting, (tell, mut told)) = (go_on.clone(), reasons);
    let slow = ground.work(
        Does(move |task: TaskContext| {
            let (waiting, tell) = (waiting.clone(), tell.clone());
            async move {
                tell.send(task.cancelled().await).expect("the test listens");
                // Deaf to it: it ends when the test says so.
                waiting.notified().await;
                Outcome::result(json!("late"))
            }
        }),
        options(1),
    );
    let id = ground.add(1).await.remove(0);
    slow.until_running(1).await;
    // Somebody says that the worker is gone, while it is not.
    let reason = windlass::protocol::state::RetryReason::PodGone;
    let taken = ground.broker.reclaim_from(&slow.id, reason).await.expect("answered");
    assert_eq!(taken.requeued.first(), Some(&id));
    let fresh = ground.work(Does(|_| async { Outcome::result(json!("fresh")) }), options(1));
    let done = ground.until(&id, State::Succeeded).await;
    assert_eq!(told.recv().await, Some(CancelReason::LeaseLost), "a heartbeat noticed");
    go_on.notify_one();
    slow.until_running(0).await;
    let summary = slow.drain().await;
    assert_eq!((summary.settled, summary.refused), (0, 1));
    assert_eq!(ground.view(&id).await, done, "nothing changed");
    assert_eq!(done.result.expect("a result").as_str(), r#""fresh""#);
    fresh.drain().await;
}

/// A pod that was deleted by force runs on for seconds: whatever its worker claimed then would be lost with it.
#[tokio::test]
async fn a_worker_whose_pod_was_deleted_by_force_takes_no_more_tasks_and_ends() {
    let ground = Ground::new(hasty()).await;
    let ghost = ground.work(
        Does(|task: TaskContext| async move {
            task.cancelled().await;
            Outcome::result(json!("late"))
        }),
        options(2),
    );
    let id = ground.add(1).await.remove(0);
    ghost.until_running(1).await;
    let reason = windlass::protocol::state::RetryReason::PodForceDeleted;
    let taken = ground.broker.reclaim_from(&ghost.id, reason).await.expect("answered");
    assert_eq!(taken.requeued.first(), Some(&id));
    // It has a free place, and is the only one who could be rung.
    let other = ground.add(1).await.remove(0);
    let summary = ghost.end().await;
    assert_eq!((summary.settled, summary.refused, summary.unsettled), (0, 1, 0), "{summary:?}");
    let fresh = ground.work(Does(|_| async { Outcome::result(json!("fresh")) }), options(2));
    for id in [&id, &other] {
        let done = ground.until(id, State::Succeeded).await;
        assert_eq!((done.crash_count, done.result.expect("a result").as_str()), (0, r#""fresh""#));
    }
    assert_eq!(ground.view(&other).await.epoch.0, 1, "the ghost never had it");
    fresh.drain().await;
}

#[tokio::test]
async fn a_long_handler_keeps_its_lease_by_heartbeats() {
    // A busy machine may delay many heartbeats before one comes too late.
    let lease = Duration::from_secs(6);
    let policy = Policy { visibility_timeout: lease, heartbeat_period: Duration::from_millis(500), ..hasty() };
    let ground = Ground::new(policy).await;
    let worker = ground.work(
        Does(move |task: TaskContext| async move {
            tokio::select! {
                () = tokio::time::sleep(lease * 2) => Outcome::success(),
                reason = task.cancelled() => Outcome::permanent("stopped", format!("{reason:?}")),
            }
        }),
        options(3),
    );
    let ids = ground.add(3).await;
    worker.until_running(3).await;
    while worker.handle.health().running() > 0 {
        let reclaimed = ground.broker.reclaim(Default::default()).await.expect("answered");
        assert!(reclaimed.requeued.is_empty(), "twice its visibility timeout, and it is still its own");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for id in &ids {
        assert_eq!(ground.until(id, State::Succeeded).await.crash_count, 0);
    }
    worker.drain().await;
}

#[tokio::test]
async fn a_pause_and_its_end_reach_a_worker_without_a_restart() {
    let ground = Ground::new(hasty()).await;
    let worker = ground.work(Does(|_| async { Outcome::success() }), options(4));
    ground.add(10).await;
    ground.until_finished(10).await;
    ground.set(|policy| policy.mode = Mode::Paused).await;
    ground.add(10).await;
    // Long enough for it to have looked twice, had it been allowed to.
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(ground.counts().await.finished, 10);
    ground.set(|policy| policy.mode = Mode::Running).await;
    ground.until_finished(20).await;
    worker.drain().await;
}

#[tokio::test]
async fn a_new_heartbeat_period_and_a_new_timeout_reach_a_worker_without_a_restart() {
    let ground = Ground::new(hasty()).await;
    let worker = ground.work(
        Does(|task: TaskContext| async move {
            let deadline = task.deadline().map(|at| at.saturating_duration_since(tokio::time::Instant::now()));
            Outcome::result(json!(deadline.map_or(0, |left| left.as_secs_f64().round() as u64)))
        }),
        options(1),
    );
    ground
        .set(|policy| {
            policy.visibility_timeout = Duration::from_secs(600);
            policy.heartbeat_period = Duration::from_secs(200);
            policy.timeout = Some(Duration::from_secs(100));
        })
        .await;
    let mut wait = Wait::new("the new timeout".to_owned());
    loop {
        let id = ground.add(1).await.remove(0);
        let done = ground.until(&id, State::Succeeded).await.result.expect("a result");
        if done.as_str() == "100" {
            break;
        }
        wait.again(done.as_str()).await;
    }
    let beat = || async { ground.broker.workers().await.expect("answered").remove(0).heartbeat_at };
    // The beat that brought the policy was the last for long.
    let before = beat().await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(beat().await, before, "seven heartbeats of the old period");
    worker.drain().await;
}
