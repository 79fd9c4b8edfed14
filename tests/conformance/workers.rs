//! Workers come, go, die and come back under the same name; their tasks outlive them.

use std::time::Duration;

use windlass::State;
use windlass::broker::{BrokerError, ClaimRequest, ErrorClass, Extended, Registered, Settled};
use windlass::protocol::names::Capabilities;
use windlass::protocol::policy::ReclaimCause;
use windlass::protocol::state::RetryReason;

use super::fixture::{Fixture, settlement, success, task, worker_id, worker_info};

const SECOND: Duration = Duration::from_secs(1);

async fn register(fx: &Fixture, id: &str, pod_uid: Option<&str>, container: Option<&str>) -> Registered {
    fx.broker.register(&worker_info(id, pod_uid, container)).await.expect("answered")
}

async fn registered(fx: &Fixture) -> Vec<String> {
    fx.broker.workers().await.expect("answered").into_iter().map(|record| record.info.id.to_string()).collect()
}

async fn the_registry_says_what_workers_told_and_when_they_were_last_seen(fx: &Fixture) {
    let info = worker_info("w1", Some("uid"), Some("main"));
    fx.broker.register(&info).await.expect("answered");
    let started = fx.now();
    fx.advance(20 * SECOND);
    fx.broker.extend(&worker_id("w1"), &[]).await.expect("answered");
    let records = fx.broker.workers().await.expect("answered");
    assert_eq!(records.len(), 1);
    assert_eq!(records[0].info, info);
    assert_eq!((records[0].started_at, records[0].heartbeat_at), (started, fx.now()));
    assert_eq!(fx.counts().await.workers, 1);
}

async fn a_worker_that_leaves_is_gone_and_its_tasks_come_back_as_released(fx: &Fixture) {
    register(fx, "w1", None, None).await;
    let held = fx.running("a").await;
    fx.broker.deregister(&worker_id("w1")).await.expect("answered");
    assert!(registered(fx).await.is_empty());
    let view = fx.view(&held.lease.task).await;
    assert_eq!((view.state, view.retry_reason), (State::Retrying, Some(RetryReason::Released)));
    assert_eq!((view.retry_count, view.crash_count, view.release_count), (0, 0, 1), "leaving is a release");
    let again = fx.claim_one_as("w2").await;
    assert_eq!(again.lease.task, held.lease.task);
    assert_ne!(fx.settle(&held, success()).await, Settled::Succeeded);
    fx.succeed(&again).await;
}

/// closes: a way to run again that no count bounds
async fn leaving_with_tasks_in_hand_is_bounded_like_any_release(fx: &Fixture) {
    fx.set(|policy| policy.retry.max_releases = 2).await;
    let id = fx.add("a").await;
    for _ in 0..3 {
        fx.claim_one().await;
        fx.broker.deregister(&worker_id("w1")).await.expect("answered");
    }
    assert_eq!(fx.state(&id).await, State::DlqPending);
}

/// closes: apalis#507 (a reused worker id blocks recovery; a killed container restarts under the same pod UID)
async fn a_restarted_container_takes_its_predecessors_place_and_its_tasks_come_back_at_once(fx: &Fixture) {
    assert_eq!(register(fx, "pod-1", Some("uid"), Some("main")).await, Registered::default());
    fx.add("a").await;
    let lost = fx.claim_one_as("pod-1").await;
    let after = register(fx, "pod-2", Some("uid"), Some("main")).await;
    assert_eq!(after.superseded, Some(worker_id("pod-1")));
    assert_eq!(after.requeued, [lost.lease.task.clone()]);
    assert_eq!(registered(fx).await, ["pod-2"]);
    let view = fx.view(&lost.lease.task).await;
    assert_eq!((view.retry_reason, view.crash_count), (Some(RetryReason::Superseded), 1));
    let again = fx.claim_one_as("pod-2").await;
    assert_eq!(again.lease.task, lost.lease.task);
    assert_eq!(fx.settle(&lost, success()).await, Settled::LeaseLost);
    fx.succeed(&again).await;
}

async fn another_container_or_another_pod_supersedes_nobody(fx: &Fixture) {
    register(fx, "w1", Some("uid"), Some("main")).await;
    register(fx, "w2", Some("uid"), Some("side")).await;
    register(fx, "w3", Some("other"), Some("main")).await;
    register(fx, "w4", None, Some("main")).await;
    register(fx, "w5", None, Some("main")).await;
    assert_eq!(registered(fx).await, ["w1", "w2", "w3", "w4", "w5"]);
}

async fn registering_again_keeps_the_workers_tasks(fx: &Fixture) {
    register(fx, "w1", Some("uid"), Some("main")).await;
    let held = fx.running("a").await;
    let again = register(fx, "w1", Some("uid"), Some("main")).await;
    assert_eq!(again, Registered::default(), "a repeated call is the same registration");
    fx.succeed(&held).await;
}

async fn a_restart_brings_back_more_tasks_than_fit_one_step(fx: &Fixture) {
    register(fx, "w1", Some("uid"), None).await;
    for kind in ["a", "b", "c"] {
        let batch: Vec<_> = (0..80).map(|_| task(kind)).collect();
        fx.broker.enqueue(&batch).await.expect("taken");
        assert_eq!(fx.claim(100).await.len(), 80);
    }
    assert_eq!(register(fx, "w2", Some("uid"), None).await.requeued.len(), 240);
    assert_eq!(fx.counts().await.backlog, 240);
    assert_eq!(registered(fx).await, ["w2"]);
}

async fn a_silent_worker_is_found_lost_and_its_tasks_come_back(fx: &Fixture) {
    register(fx, "w1", None, None).await;
    register(fx, "w2", None, None).await;
    let lost = fx.running("a").await;
    fx.add("a").await;
    let kept = fx.claim_one_as("w2").await;
    fx.advance(60 * SECOND);
    fx.broker.extend(&worker_id("w2"), std::slice::from_ref(&kept.lease)).await.expect("answered");
    fx.advance(29 * SECOND);
    assert!(fx.sweep().await.workers_lost.is_empty(), "not before the time is up");
    fx.advance(2 * SECOND);
    let swept = fx.sweep().await;
    assert_eq!(swept.workers_lost, [worker_id("w1")]);
    assert_eq!(registered(fx).await, ["w2"]);
    let view = fx.view(&lost.lease.task).await;
    assert_eq!((view.retry_reason, view.crash_count), (Some(RetryReason::WorkerLost), 1));
    assert_eq!(fx.state(&kept.lease.task).await, State::Running, "the other one's goes on");
}

async fn a_silent_worker_keeps_its_tasks_where_only_the_timeout_counts(fx: &Fixture) {
    fx.set(|policy| policy.reclaim.on = [ReclaimCause::VisibilityTimeout].into()).await;
    register(fx, "w1", None, None).await;
    let held = fx.running("a").await;
    fx.advance(200 * SECOND);
    fx.sweep().await;
    assert_eq!(fx.state(&held.lease.task).await, State::Running, "only idle beyond the timeout counts");
    let renewed = fx.broker.extend(&worker_id("w1"), std::slice::from_ref(&held.lease)).await.expect("answered");
    assert_eq!(renewed, [Extended::Renewed]);
    fx.advance(301 * SECOND);
    fx.sweep().await;
    assert_eq!(fx.reclaim().await.requeued, [held.lease.task], "and that still does");
}

async fn an_expired_lease_stays_where_the_timeout_does_not_count(fx: &Fixture) {
    fx.set(|policy| policy.reclaim.on = [ReclaimCause::WorkerLost].into()).await;
    let held = fx.running("a").await;
    assert!(fx.expire_all().await.requeued.is_empty());
    fx.succeed(&held).await;
}

async fn a_sign_that_does_not_count_hides_no_worker_from_the_one_that_does(fx: &Fixture) {
    fx.set(|policy| policy.reclaim.on = [ReclaimCause::WorkerLost].into()).await;
    register(fx, "w1", Some("uid"), Some("main")).await;
    let held = fx.running("a").await;
    assert!(register(fx, "w2", Some("uid"), Some("main")).await.requeued.is_empty());
    let gone = fx.broker.reclaim_from(&worker_id("w1"), RetryReason::PodGone).await.expect("answered");
    assert!(gone.requeued.is_empty());
    assert_eq!(registered(fx).await, ["w1", "w2"]);
    fx.advance(91 * SECOND);
    assert!(fx.sweep().await.workers_lost.contains(&worker_id("w1")));
    assert_eq!(fx.view(&held.lease.task).await.retry_reason, Some(RetryReason::WorkerLost));

    fx.set(|policy| policy.reclaim.on = [ReclaimCause::PodGone].into()).await;
    register(fx, "w3", Some("uid"), Some("side")).await;
    let held = fx.claim_one_as("w3").await;
    fx.advance(200 * SECOND);
    assert!(fx.sweep().await.workers_lost.is_empty());
    assert_eq!(registered(fx).await, ["w3"]);
    let gone = fx.broker.reclaim_from(&worker_id("w3"), RetryReason::PodGone).await.expect("answered");
    assert_eq!(gone.requeued, [held.lease.task]);
    assert!(registered(fx).await.is_empty());
}

async fn a_pod_that_is_known_to_be_gone_loses_its_tasks_at_once(fx: &Fixture) {
    register(fx, "w1", Some("uid"), Some("main")).await;
    let (one, other) = (fx.running("a").await, fx.running("b").await);
    fx.add("a").await;
    let kept = fx.claim_one_as("w2").await;
    let reclaimed = fx.broker.reclaim_from(&worker_id("w1"), RetryReason::PodGone).await.expect("answered");
    let mut ids = reclaimed.requeued.clone();
    ids.sort();
    assert_eq!(ids, [one.lease.task.clone(), other.lease.task.clone()]);
    let view = fx.view(&one.lease.task).await;
    assert_eq!((view.retry_reason, view.crash_count), (Some(RetryReason::PodGone), 1));
    assert!(registered(fx).await.is_empty());
    assert_eq!(fx.state(&kept.lease.task).await, State::Running, "only that worker's");
    let again = fx.broker.reclaim_from(&worker_id("w1"), RetryReason::PodGone).await.expect("answered");
    assert!(again.requeued.is_empty(), "and once");
}

async fn a_pod_that_was_deleted_by_force_counts_as_no_crash(fx: &Fixture) {
    fx.set(|policy| policy.retry.max_crashes = 0).await;
    let held = fx.running("a").await;
    let reclaimed = fx.broker.reclaim_from(&worker_id("w1"), RetryReason::PodForceDeleted).await.expect("answered");
    assert_eq!((reclaimed.requeued, reclaimed.dead), (vec![held.lease.task.clone()], vec![]));
    let view = fx.view(&held.lease.task).await;
    assert_eq!((view.retry_reason, view.crash_count), (Some(RetryReason::PodForceDeleted), 0));
    let again = fx.claim_one_as("w2").await;
    assert_eq!(fx.settle(&held, success()).await, Settled::LeaseLost, "should it still run, it is fenced off");
    fx.succeed(&again).await;
}

/// A pod that was deleted by force has been seen to run on for seconds: what it claimed then was lost with it.
async fn a_worker_whose_pod_was_deleted_by_force_claims_nothing_more(fx: &Fixture) {
    register(fx, "w1", Some("uid"), Some("main")).await;
    let (held, other) = (fx.running("a").await, fx.running("b").await);
    fx.broker.reclaim_from(&worker_id("w1"), RetryReason::PodForceDeleted).await.expect("answered");
    let (any, ghost) = (Capabilities::any(), worker_id("w1"));
    let request = || ClaimRequest { worker: &ghost, capabilities: &any, limit: 10, recover: None };
    let refused = fx.broker.claim(request()).await.expect_err("it is fenced off");
    assert!(matches!(refused, BrokerError::Fenced) && refused.class() == ErrorClass::Conflict, "{refused}");
    let reply = fx.broker.settle(&[settlement(&held, success())], request()).await.expect("answered");
    assert_eq!(reply.settled, [Settled::LeaseLost]);
    assert!(matches!(reply.claimed, Err(BrokerError::Fenced)), "nor with a settlement");
    let again = fx.broker.register(&worker_info("w1", Some("uid"), Some("main"))).await;
    assert!(matches!(again, Err(BrokerError::Fenced)), "nor once it has registered again");
    let passed_on = ClaimRequest { limit: 0, ..request() };
    fx.broker.claim(passed_on).await.expect("it may pass a ring on");
    let mut ids = vec![fx.claim_one_as("w2").await.lease.task, fx.claim_one_as("w2").await.lease.task];
    ids.sort();
    assert_eq!(ids, [held.lease.task, other.lease.task], "all of it is for others");
    fx.add("a").await;
    fx.claim_one_as("w1-again").await;
}

async fn a_poison_task_dies_with_the_pods_that_it_kills(fx: &Fixture) {
    fx.set(|policy| policy.retry.max_crashes = 1).await;
    let id = fx.add("a").await;
    fx.claim_one_as("w1").await;
    fx.broker.reclaim_from(&worker_id("w1"), RetryReason::PodGone).await.expect("answered");
    fx.claim_one_as("w2").await;
    let last = fx.broker.reclaim_from(&worker_id("w2"), RetryReason::PodGone).await.expect("answered");
    assert_eq!((last.requeued, last.dead), (vec![], vec![id.clone()]));
    assert_eq!(fx.state(&id).await, State::DlqPending);
}

async fn every_reclaim_says_from_whom_and_why_when_the_task_is_claimed_again(fx: &Fixture) {
    for reason in [RetryReason::PodGone, RetryReason::PodForceDeleted] {
        let fx = &Fixture::new(fx.kind).await;
        let held = fx.running("a").await;
        fx.broker.reclaim_from(&worker_id("w1"), reason).await.expect("answered");
        fx.claim_one_as("w2").await;
        let events = fx.events(&held.lease.task).await;
        let claim = events.last().expect("a claim");
        assert_eq!((claim.to, claim.consumer.as_deref()), (State::Running, Some("w2")));
        let detail = claim.detail.as_deref().expect("a detail");
        let detail: serde_json::Value = serde_json::from_str(detail).expect("JSON");
        assert_eq!((detail["from"].as_str(), detail["reason"].as_str()), (Some("w1"), Some(reason.as_str())));
    }
}

async fn what_is_known_of_a_workers_end_is_told_with_its_tasks_once(fx: &Fixture) {
    let held = fx.running("a").await;
    fx.broker.take_back(&worker_id("w1"), RetryReason::PodGone, "OOMKilled, exit code 137").await.expect("answered");
    let error = fx.view(&held.lease.task).await.error.expect("why it came back");
    assert_eq!(error, "was taken from its worker: pod_gone (OOMKilled, exit code 137)");
    let words = async || {
        fx.claim_one_as("w1").await;
        let detail = fx.events(&held.lease.task).await.last().and_then(|claim| claim.detail.clone()).expect("a detail");
        serde_json::from_str::<serde_json::Value>(&detail).expect("JSON")["words"].clone()
    };
    assert_eq!(words().await, "OOMKilled, exit code 137");
    fx.broker.reclaim_from(&worker_id("w1"), RetryReason::PodGone).await.expect("answered");
    assert_eq!(words().await, serde_json::Value::Null, "the words of an earlier end are not told again");
    let long = "ü".repeat(1000);
    fx.broker.take_back(&worker_id("w1"), RetryReason::PodGone, &long).await.expect("answered");
    assert_eq!(words().await.as_str().map(str::len), Some(256));
}

async fn an_unregistered_worker_is_given_work_and_covered_by_the_timeout(fx: &Fixture) {
    let held = fx.running("a").await;
    assert!(registered(fx).await.is_empty());
    fx.advance(200 * SECOND);
    assert!(fx.sweep().await.workers_lost.is_empty());
    fx.advance(101 * SECOND);
    assert_eq!(fx.reclaim().await.requeued, [held.lease.task]);
}

suite! {
    the_registry_says_what_workers_told_and_when_they_were_last_seen,
    a_worker_that_leaves_is_gone_and_its_tasks_come_back_as_released,
    leaving_with_tasks_in_hand_is_bounded_like_any_release,
    a_restarted_container_takes_its_predecessors_place_and_its_tasks_come_back_at_once,
    another_container_or_another_pod_supersedes_nobody,
    registering_again_keeps_the_workers_tasks,
    a_restart_brings_back_more_tasks_than_fit_one_step,
    a_silent_worker_is_found_lost_and_its_tasks_come_back,
    a_silent_worker_keeps_its_tasks_where_only_the_timeout_counts,
    a_sign_that_does_not_count_hides_no_worker_from_the_one_that_does,
    an_expired_lease_stays_where_the_timeout_does_not_count,
    a_pod_that_is_known_to_be_gone_loses_its_tasks_at_once,
    a_pod_that_was_deleted_by_force_counts_as_no_crash,
    a_worker_whose_pod_was_deleted_by_force_claims_nothing_more,
    a_poison_task_dies_with_the_pods_that_it_kills,
    every_reclaim_says_from_whom_and_why_when_the_task_is_claimed_again,
    what_is_known_of_a_workers_end_is_told_with_its_tasks_once,
    an_unregistered_worker_is_given_work_and_covered_by_the_timeout,
}
