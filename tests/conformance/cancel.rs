//! A cancel ends a task in every state before it is dead, and both orders of every race end well.

use std::time::Duration;

use windlass::broker::{Cancelled, Extended, Settled};
use windlass::{NewTask, NotBefore, State, TaskId};

use super::fixture::{Fixture, failure, permanent, released, success, task, task_id, worker_id};

async fn cancel(fx: &Fixture, id: &TaskId) -> Cancelled {
    fx.broker.cancel(id, "changed my mind").await.expect("answered")
}

/// Cancelled for good: nobody gets it, nothing counts it, one result says so.
async fn is_gone(fx: &Fixture, id: &TaskId) {
    let view = fx.view(id).await;
    assert_eq!((view.state, view.error.as_deref()), (State::Cancelled, Some("changed my mind")));
    assert_eq!(view.finished_at, Some(fx.now()));
    assert_eq!(cancel(fx, id).await, Cancelled::AlreadyCancelled);
    fx.advance(Duration::from_secs(3600));
    fx.promote(100).await;
    assert!(fx.claim(10).await.is_empty());
    assert!(fx.reclaim().await.requeued.is_empty());
    assert!(fx.sweep().await.repaired.is_empty());
    let counts = fx.counts().await;
    assert_eq!((counts.backlog, counts.running, counts.delayed, counts.retrying), (0, 0, 0, 0));
    assert_eq!((fx.results(id).await, counts.invalid_transitions), (1, 0));
}

async fn a_scheduled_task_can_be_cancelled(fx: &Fixture) {
    let later = NotBefore::After(Duration::from_secs(60));
    let id = fx.enqueue(NewTask { not_before: later, ..task("a") }).await.id;
    assert_eq!(cancel(fx, &id).await, Cancelled::Done { from: State::Scheduled });
    assert_eq!(fx.path(&id).await, [State::Scheduled, State::Cancelled]);
    is_gone(fx, &id).await;
}

async fn a_queued_task_can_be_cancelled(fx: &Fixture) {
    let id = fx.add("a").await;
    assert_eq!(cancel(fx, &id).await, Cancelled::Done { from: State::Queued });
    assert_eq!(fx.path(&id).await, [State::Queued, State::Cancelled]);
    is_gone(fx, &id).await;
}

/// closes: a handler that ignores its cancellation stays active for ever (asynq)
async fn a_running_task_can_be_cancelled_and_its_worker_is_told(fx: &Fixture) {
    let running = fx.running("a").await;
    let id = running.lease.task.clone();
    assert_eq!(cancel(fx, &id).await, Cancelled::Done { from: State::Running });
    let leases = std::slice::from_ref(&running.lease);
    assert_eq!(fx.broker.extend(&worker_id("w1"), leases).await.expect("answered"), [Extended::Cancelled]);
    for outcome in [success(), failure(), permanent(), released()] {
        assert_eq!(fx.settle(&running, outcome).await, Settled::Cancelled);
    }
    assert_eq!(fx.path(&id).await, [State::Queued, State::Running, State::Cancelled]);
    is_gone(fx, &id).await;
}

async fn a_task_that_waits_for_its_retry_can_be_cancelled(fx: &Fixture) {
    let running = fx.running("a").await;
    assert!(matches!(fx.settle(&running, failure()).await, Settled::Retrying { .. }));
    assert_eq!(cancel(fx, &running.lease.task).await, Cancelled::Done { from: State::Retrying });
    is_gone(fx, &running.lease.task).await;
}

async fn a_task_that_is_ready_for_its_retry_can_be_cancelled(fx: &Fixture) {
    let running = fx.running("a").await;
    assert!(matches!(fx.settle(&running, released()).await, Settled::Retrying { .. }));
    assert_eq!(cancel(fx, &running.lease.task).await, Cancelled::Done { from: State::Retrying });
    is_gone(fx, &running.lease.task).await;
}

async fn a_dead_task_cannot_be_cancelled(fx: &Fixture) {
    let running = fx.running("a").await;
    assert_eq!(fx.settle(&running, permanent()).await, Settled::Dead);
    let id = &running.lease.task;
    assert_eq!(cancel(fx, id).await, Cancelled::InvalidTransition { state: State::DlqPending });
    let letters = fx.broker.pending_dead_letters(1).await.expect("answered");
    fx.broker.record_dead_letter(&letters[0].id).await.expect("answered");
    assert_eq!(cancel(fx, id).await, Cancelled::InvalidTransition { state: State::Failed });
    assert_eq!((fx.state(id).await, fx.counts().await.invalid_transitions), (State::Failed, 2));
    assert_eq!(fx.results(id).await, 1);
}

async fn a_task_that_nobody_knows_cannot_be_cancelled(fx: &Fixture) {
    assert_eq!(cancel(fx, &task_id("nobody")).await, Cancelled::Unknown);
    assert_eq!(fx.counts().await.finished, 0);
}

async fn success_before_cancel_is_a_success(fx: &Fixture) {
    let running = fx.running("a").await;
    fx.succeed(&running).await;
    assert_eq!(cancel(fx, &running.lease.task).await, Cancelled::InvalidTransition { state: State::Succeeded });
    assert_eq!((fx.state(&running.lease.task).await, fx.results(&running.lease.task).await), (State::Succeeded, 1));
}

async fn a_cancel_after_a_reclaim_reaches_both_workers(fx: &Fixture) {
    fx.add("a").await;
    let stale = fx.claim_one_as("old").await;
    fx.expire_all().await;
    let fresh = fx.claim_one_as("new").await;
    assert_eq!(cancel(fx, &fresh.lease.task).await, Cancelled::Done { from: State::Running });
    for (worker, task) in [("old", stale), ("new", fresh.clone())] {
        let told = fx.broker.extend(&worker_id(worker), std::slice::from_ref(&task.lease)).await.expect("answered");
        assert_eq!(told, [Extended::Cancelled]);
        assert_eq!(fx.settle(&task, success()).await, Settled::Cancelled);
    }
    is_gone(fx, &fresh.lease.task).await;
}

async fn a_cancel_before_a_reclaim_leaves_nothing_to_reclaim(fx: &Fixture) {
    let running = fx.running("a").await;
    fx.advance(Duration::from_secs(301));
    assert_eq!(cancel(fx, &running.lease.task).await, Cancelled::Done { from: State::Running });
    assert!(fx.reclaim().await.requeued.is_empty());
    is_gone(fx, &running.lease.task).await;
}

async fn a_cancel_of_one_task_leaves_its_neighbours(fx: &Fixture) {
    let ids = [fx.add("a").await, fx.add("a").await, fx.add("a").await];
    cancel(fx, &ids[1]).await;
    assert_eq!(fx.drain_ids().await, [ids[0].clone(), ids[2].clone()]);
    cancel(fx, &ids[0]).await;
    assert_eq!(fx.counts().await.running, 1);
    let next = fx.add("a").await;
    assert_eq!(fx.drain_ids().await, [next]);
}

async fn a_cancel_releases_the_key(fx: &Fixture) {
    let keyed = || NewTask { idempotency_key: Some("k".parse().expect("a key")), ..task("a") };
    let first = fx.enqueue(keyed()).await.id;
    cancel(fx, &first).await;
    let second = fx.enqueue(keyed()).await;
    assert!(second.created);
    assert_eq!(cancel(fx, &first).await, Cancelled::AlreadyCancelled);
    assert_eq!(fx.enqueue(keyed()).await.id, second.id, "a second cancel takes nothing from the second task");
}

async fn a_cancel_while_paused_or_closed_works(fx: &Fixture) {
    use windlass::protocol::policy::Mode;
    for mode in [Mode::Paused, Mode::Closed] {
        fx.set(|policy| policy.mode = Mode::Running).await;
        let id = fx.add("a").await;
        fx.set(|policy| policy.mode = mode).await;
        assert_eq!(cancel(fx, &id).await, Cancelled::Done { from: State::Queued });
    }
}

suite! {
    a_scheduled_task_can_be_cancelled,
    a_queued_task_can_be_cancelled,
    a_running_task_can_be_cancelled_and_its_worker_is_told,
    a_task_that_waits_for_its_retry_can_be_cancelled,
    a_task_that_is_ready_for_its_retry_can_be_cancelled,
    a_dead_task_cannot_be_cancelled,
    a_task_that_nobody_knows_cannot_be_cancelled,
    success_before_cancel_is_a_success,
    a_cancel_after_a_reclaim_reaches_both_workers,
    a_cancel_before_a_reclaim_leaves_nothing_to_reclaim,
    a_cancel_of_one_task_leaves_its_neighbours,
    a_cancel_releases_the_key,
    a_cancel_while_paused_or_closed_works,
}
