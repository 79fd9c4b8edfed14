//! A worker that lost a task cannot touch it any more, whatever it does and however late.

use std::time::Duration;

use serde_json::json;
use windlass::State;
use windlass::broker::{ClaimedTask, Extended, Outcome, Settled};

use super::fixture::{Fixture, failure, permanent, released, settlement, success, worker_id};

fn every_outcome() -> [Outcome; 5] {
    let limited = Outcome::RateLimited { retry_after: None, error: "429".to_owned() };
    [success(), failure(), permanent(), limited, released()]
}

async fn extend(fx: &Fixture, worker: &str, task: &ClaimedTask) -> Extended {
    fx.broker.extend(&worker_id(worker), std::slice::from_ref(&task.lease)).await.expect("answered")[0]
}

/// The same task, as its first worker knew it and as its second worker knows it.
async fn reclaimed(fx: &Fixture) -> (ClaimedTask, ClaimedTask) {
    fx.add("a").await;
    let stale = fx.claim_one_as("old").await;
    fx.expire_all().await;
    let fresh = fx.claim_one_as("new").await;
    assert_eq!(fresh.lease.task, stale.lease.task);
    assert!(fresh.lease.epoch > stale.lease.epoch);
    (stale, fresh)
}

/// closes: river#1302, rq#2424, taskiq-redis#101, dapr#4599
async fn a_stale_lease_settles_nothing(fx: &Fixture) {
    let (stale, fresh) = reclaimed(fx).await;
    let before = fx.view(&fresh.lease.task).await;
    for outcome in every_outcome() {
        assert_eq!(fx.settle(&stale, outcome.clone()).await, Settled::LeaseLost, "{outcome:?}");
    }
    let given_up = fx.broker.release(&worker_id("old"), vec![stale.lease.clone()], Duration::ZERO).await;
    assert_eq!(given_up.expect("answered"), [Settled::LeaseLost]);
    assert_eq!(fx.view(&fresh.lease.task).await, before, "nothing changed");
    fx.succeed(&fresh).await;
}

async fn a_stale_lease_settles_nothing_before_the_next_claim_either(fx: &Fixture) {
    let task = fx.running("a").await;
    fx.expire_all().await;
    for outcome in every_outcome() {
        assert_eq!(fx.settle(&task, outcome.clone()).await, Settled::LeaseLost, "{outcome:?}");
    }
    assert_eq!(fx.state(&task.lease.task).await, State::Retrying);
    assert_eq!(extend(fx, "w1", &task).await, Extended::Lost);
    fx.succeed(&fx.claim_one().await).await;
}

/// closes: renewing with a bare XCLAIM steals the lease back
async fn an_extension_never_steals_a_task_back(fx: &Fixture) {
    let (stale, fresh) = reclaimed(fx).await;
    assert_eq!(extend(fx, "old", &stale).await, Extended::Lost);
    fx.advance(Duration::from_secs(200));
    assert_eq!(extend(fx, "old", &stale).await, Extended::Lost);
    assert_eq!(extend(fx, "new", &fresh).await, Extended::Renewed, "the new worker still has it");
    fx.advance(Duration::from_secs(200));
    assert_eq!(extend(fx, "old", &stale).await, Extended::Lost);
    assert!(fx.reclaim().await.requeued.is_empty());
    fx.advance(Duration::from_secs(101));
    assert_eq!(extend(fx, "old", &stale).await, Extended::Lost);
    assert_eq!(fx.reclaim().await.requeued, [fresh.lease.task.clone()], "nor does it keep it from expiring");
}

/// closes: taskiq-redis#101, dapr#4599 (live work is stolen for want of a renewal)
async fn a_renewed_lease_does_not_expire(fx: &Fixture) {
    let task = fx.running("a").await;
    for _ in 0..10 {
        fx.advance(Duration::from_secs(250));
        assert_eq!(extend(fx, "w1", &task).await, Extended::Renewed);
        assert!(fx.reclaim().await.requeued.is_empty());
    }
    fx.succeed(&task).await;
    assert_eq!(fx.view(&task.lease.task).await.crash_count, 0);
}

async fn an_unrenewed_lease_expires_once(fx: &Fixture) {
    let task = fx.running("a").await;
    assert_eq!(fx.expire_all().await.requeued, [task.lease.task.clone()]);
    assert!(fx.reclaim().await.requeued.is_empty(), "it was taken already");
    assert!(fx.expire_all().await.requeued.is_empty(), "and waits for a worker, not for a timeout");
    assert_eq!(fx.claim(10).await.len(), 1);
}

async fn a_late_worker_never_overwrites_a_result(fx: &Fixture) {
    let (stale, fresh) = reclaimed(fx).await;
    fx.succeed(&fresh).await;
    let done = fx.view(&fresh.lease.task).await;
    let late = Outcome::Success { result: Some(json!("late").into()) };
    assert_eq!(fx.settle(&stale, late).await, Settled::LeaseLost);
    assert_eq!(fx.settle(&stale, failure()).await, Settled::LeaseLost);
    assert_eq!(extend(fx, "old", &stale).await, Extended::Lost);
    assert_eq!(fx.view(&fresh.lease.task).await, done);
    assert_eq!(fx.results(&fresh.lease.task).await, 1);
}

/// closes: river#1302 (a rescue that comes late overwrites a completion)
async fn a_late_reclaim_never_overwrites_a_result(fx: &Fixture) {
    let task = fx.running("a").await;
    fx.advance(Duration::from_secs(301));
    fx.succeed(&task).await;
    let reclaimed = fx.reclaim().await;
    assert!(reclaimed.requeued.is_empty() && reclaimed.dead.is_empty());
    assert_eq!(fx.state(&task.lease.task).await, State::Succeeded);
    assert_eq!(fx.results(&task.lease.task).await, 1);
}

/// closes: the answer to a settle is lost, its repetition fails or counts twice
async fn a_repeated_settlement_answers_already_settled(fx: &Fixture) {
    for outcome in every_outcome() {
        let fx = &Fixture::new(fx.kind).await;
        let task = fx.running("a").await;
        let first = fx.settle(&task, outcome.clone()).await;
        let before = fx.view(&task.lease.task).await;
        for _ in 0..2 {
            let again = fx.settle(&task, outcome.clone()).await;
            assert_eq!(again, Settled::AlreadySettled, "{outcome:?} after {first:?}");
        }
        assert_eq!(fx.view(&task.lease.task).await, before, "it counted once");
        assert_eq!(fx.counts().await.invalid_transitions, 0);
    }
}

async fn a_repeated_death_answers_already_settled_even_after_it_is_recorded(fx: &Fixture) {
    let task = fx.running("a").await;
    fx.bury(&task).await;
    assert_eq!(fx.settle(&task, permanent()).await, Settled::AlreadySettled);
    assert_eq!(fx.settle(&task, success()).await, Settled::InvalidTransition, "but it cannot succeed any more");
    assert_eq!(fx.counts().await.invalid_transitions, 1);
    assert_eq!(fx.state(&task.lease.task).await, State::Failed);
    assert_eq!(fx.results(&task.lease.task).await, 1);
}

async fn the_same_lease_cannot_end_twice_in_two_ways(fx: &Fixture) {
    let task = fx.running("a").await;
    assert!(matches!(fx.settle(&task, failure()).await, Settled::Retrying { .. }));
    assert_eq!(fx.settle(&task, success()).await, Settled::LeaseLost, "it gave the task back");
    assert_eq!(fx.state(&task.lease.task).await, State::Retrying);
    let mut batch = vec![settlement(&task, failure()), settlement(&task, success())];
    fx.advance(Duration::from_secs(2));
    let again = fx.claim_one().await;
    batch[0].lease = again.lease.clone();
    batch[1].lease = again.lease.clone();
    let worker = worker_id("w1");
    let capabilities = Default::default();
    let nothing =
        windlass::broker::ClaimRequest { worker: &worker, capabilities: &capabilities, limit: 0, recover: None };
    let settled = fx.broker.settle(&batch, nothing).await.expect("answered").settled;
    assert!(matches!(settled[0], Settled::Retrying { .. }));
    assert!(matches!(settled[1], Settled::AlreadySettled | Settled::LeaseLost), "{settled:?}");
    assert_eq!(fx.view(&task.lease.task).await.retry_count, 2);
}

async fn a_task_that_nobody_knows_is_said_to_be_unknown(fx: &Fixture) {
    let elsewhere = Fixture::new(fx.kind).await;
    let foreign = elsewhere.running("a").await;
    assert_eq!(fx.settle(&foreign, success()).await, Settled::Unknown);
    assert_eq!(extend(fx, "w1", &foreign).await, Extended::Lost);
    assert_eq!(fx.counts().await.finished, 0);
}

async fn one_bad_lease_does_not_spoil_its_batch(fx: &Fixture) {
    let (stale, fresh) = reclaimed(fx).await;
    let good = fx.running("b").await;
    let batch = [settlement(&stale, success()), settlement(&good, success()), settlement(&fresh, failure())];
    fx.add("c").await;
    let worker = worker_id("w1");
    let capabilities = Default::default();
    let next = windlass::broker::ClaimRequest { worker: &worker, capabilities: &capabilities, limit: 5, recover: None };
    let reply = fx.broker.settle(&batch, next).await.expect("answered");
    assert_eq!(reply.settled[..2], [Settled::LeaseLost, Settled::Succeeded]);
    assert!(matches!(reply.settled[2], Settled::Retrying { .. }));
    assert_eq!(reply.claimed.expect("answered").tasks.len(), 1, "and the next task comes along");
}

async fn many_leases_are_renewed_in_one_call(fx: &Fixture) {
    for _ in 0..3 {
        let batch: Vec<_> = (0..100).map(|_| super::fixture::task("a")).collect();
        fx.broker.enqueue(&batch).await.expect("taken");
    }
    let mut leases = Vec::new();
    for _ in 0..3 {
        leases.extend(fx.claim(100).await.into_iter().map(|task| task.lease));
    }
    fx.advance(Duration::from_secs(250));
    let answers = fx.broker.extend(&worker_id("w1"), &leases).await.expect("answered");
    assert_eq!(answers, vec![Extended::Renewed; 300]);
    fx.advance(Duration::from_secs(250));
    assert!(fx.reclaim().await.requeued.is_empty());
    fx.advance(Duration::from_secs(60));
    assert_eq!(fx.reclaim().await.requeued.len(), 300, "a walk goes on until all are found");
}

suite! {
    a_stale_lease_settles_nothing,
    a_stale_lease_settles_nothing_before_the_next_claim_either,
    an_extension_never_steals_a_task_back,
    a_renewed_lease_does_not_expire,
    an_unrenewed_lease_expires_once,
    a_late_worker_never_overwrites_a_result,
    a_late_reclaim_never_overwrites_a_result,
    a_repeated_settlement_answers_already_settled,
    a_repeated_death_answers_already_settled_even_after_it_is_recorded,
    the_same_lease_cannot_end_twice_in_two_ways,
    a_task_that_nobody_knows_is_said_to_be_unknown,
    one_bad_lease_does_not_spoil_its_batch,
    many_leases_are_renewed_in_one_call,
}
