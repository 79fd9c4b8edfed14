//! An answer that was lost strands no task: the worker asks for what it does not know it holds.

use futures::FutureExt;
use windlass::broker::session::Session;
use windlass::broker::{ClaimRequest, ClaimedTask, Lease};
use windlass::protocol::names::Capabilities;
use windlass::protocol::policy::Mode;

use super::fixture::{Fixture, Kind, released, settlement, success, types, worker_id};

/// A claim after an answer was lost.
async fn recover(fx: &Fixture, worker: &str, held: &[Lease], limit: usize) -> Vec<ClaimedTask> {
    let worker = worker_id(worker);
    let request = ClaimRequest { worker: &worker, capabilities: &Capabilities::any(), limit, recover: Some(held) };
    fx.broker.claim(request).await.expect("answered").tasks
}

/// closes: the reply to a claim is lost, the task waits for the timeout
async fn what_a_lost_claim_leased_is_handed_out_again(fx: &Fixture) {
    let ids = [fx.add("a").await, fx.add("b").await, fx.add("a").await];
    let lost = fx.claim(3).await;
    let mut back = recover(fx, "w1", &[], 3).await;
    back.sort_by(|one, other| one.lease.task.cmp(&other.lease.task));
    assert_eq!(back.iter().map(|task| &task.lease.task).collect::<Vec<_>>(), ids.iter().collect::<Vec<_>>());
    for task in &back {
        let before = lost.iter().find(|lost| lost.lease.task == task.lease.task).expect("it was leased");
        assert_eq!(task, before, "the same lease, not a new one");
        fx.succeed(task).await;
    }
}

async fn what_the_worker_knows_it_holds_is_not_handed_out_again(fx: &Fixture) {
    let known = fx.running("a").await;
    let unknown = fx.running("a").await;
    let back = recover(fx, "w1", std::slice::from_ref(&known.lease), 10).await;
    assert_eq!(back, [unknown]);
}

/// closes: a lost call gave a task back and claimed it again, and its new lease waits for the timeout
async fn a_newer_lease_of_a_task_that_the_worker_thinks_it_holds_is_handed_out(fx: &Fixture) {
    let known = fx.running("a").await;
    let lost = fx.settle_with(settlement(&known, released()), 1).await.claimed.expect("answered").tasks.remove(0);
    assert_eq!((&lost.lease.task, lost.lease.epoch.0), (&known.lease.task, known.lease.epoch.0 + 1));
    let back = recover(fx, "w1", std::slice::from_ref(&known.lease), 1).await;
    assert_eq!(back, [lost]);
    fx.succeed(&back[0]).await;
}

async fn what_others_hold_is_not_handed_out(fx: &Fixture) {
    fx.running("a").await;
    assert!(recover(fx, "w2", &[], 10).await.is_empty());
}

async fn recovered_tasks_count_against_the_limit(fx: &Fixture) {
    for _ in 0..4 {
        fx.add("a").await;
    }
    fx.claim(2).await;
    let back = recover(fx, "w1", &[], 3).await;
    assert_eq!(back.len(), 3, "two again and one new");
    assert_eq!(fx.counts().await.backlog, 1);
}

async fn a_lost_settle_is_repeated_and_what_it_claimed_is_found(fx: &Fixture) {
    let done = fx.running("a").await;
    let next = fx.add("a").await;
    let lost = fx.settle_with(settlement(&done, success()), 1).await;
    assert_eq!(lost.claimed.expect("answered").tasks.len(), 1);
    let worker = worker_id("w1");
    let held = [done.lease.clone()];
    let request = ClaimRequest { worker: &worker, capabilities: &Capabilities::any(), limit: 1, recover: Some(&held) };
    let again = fx.broker.settle(&[settlement(&done, success())], request).await.expect("answered");
    assert_eq!(again.settled, [windlass::broker::Settled::AlreadySettled]);
    let tasks = again.claimed.expect("answered").tasks;
    assert_eq!(tasks.iter().map(|task| &task.lease.task).collect::<Vec<_>>(), [&next]);
    assert_eq!(fx.results(&done.lease.task).await, 1);
}

async fn a_paused_queue_hands_lost_tasks_back_too(fx: &Fixture) {
    for mode in [Mode::Paused, Mode::Closed] {
        fx.set(|policy| policy.mode = Mode::Running).await;
        let lost = fx.running("a").await;
        fx.set(|policy| policy.mode = mode).await;
        assert_eq!(recover(fx, "w1", &[], 1).await, [lost.clone()]);
        fx.succeed(&lost).await;
    }
}

async fn a_task_that_was_reclaimed_meanwhile_is_not_handed_back(fx: &Fixture) {
    let lost = fx.running("a").await;
    fx.expire_all().await;
    let other = fx.claim_one_as("w2").await;
    assert_eq!(other.lease.task, lost.lease.task);
    assert!(recover(fx, "w1", &[], 1).await.is_empty());
}

async fn a_recovery_looks_at_types_that_the_worker_has_now_lost_too(fx: &Fixture) {
    let lost = fx.running("a").await;
    let worker = worker_id("w1");
    let request = ClaimRequest { worker: &worker, capabilities: &types(&["b"]), limit: 1, recover: Some(&[]) };
    assert_eq!(fx.broker.claim(request).await.expect("answered").tasks, [lost]);
}

async fn a_session_keeps_its_books(fx: &Fixture) {
    for _ in 0..3 {
        fx.add("a").await;
    }
    let mut session = Session::new(fx.broker.clone(), worker_id("w1"), Capabilities::any());
    let first = session.claim(2).await.expect("answered");
    assert_eq!((first.len(), session.holds()), (2, 2));
    let reply = session.settle(&[settlement(&first[0], success())], 1).await.expect("answered");
    assert_eq!((reply.next.expect("answered").len(), session.holds()), (1, 2));
    fx.broker.cancel(&first[1].lease.task, "not needed").await.expect("answered");
    let gone = session.extend().await.expect("answered");
    assert_eq!(gone, [(first[1].lease.task.clone(), windlass::broker::Extended::Cancelled)]);
    assert_eq!((session.holds(), session.mode()), (1, Mode::Running));
}

/// closes: the reply to a claim is lost, the task waits for the timeout
async fn a_session_asks_for_what_an_abandoned_claim_may_have_leased(fx: &Fixture) {
    let mut session = Session::new(fx.broker.clone(), worker_id("w1"), Capabilities::any());
    assert!(session.claim(1).await.expect("answered").is_empty());
    let id = fx.add("a").await;
    // Dropped before its answer was read; whether it reached the broker nobody knows.
    if session.claim(1).now_or_never().is_some() {
        assert_eq!((fx.kind, session.holds()), (Kind::Model, 1), "only the model answers at once");
        return;
    }
    // As if it had: the lease is made on the session's behalf.
    let leased = fx.claim(1).await;
    let back = session.claim(1).await.expect("answered");
    assert_eq!(back.iter().map(|task| &task.lease.task).collect::<Vec<_>>(), [&id], "{leased:?}");
    assert_eq!(session.holds(), 1);
    fx.succeed(&back[0]).await;
}

suite! {
    what_a_lost_claim_leased_is_handed_out_again,
    what_the_worker_knows_it_holds_is_not_handed_out_again,
    a_newer_lease_of_a_task_that_the_worker_thinks_it_holds_is_handed_out,
    what_others_hold_is_not_handed_out,
    recovered_tasks_count_against_the_limit,
    a_lost_settle_is_repeated_and_what_it_claimed_is_found,
    a_paused_queue_hands_lost_tasks_back_too,
    a_task_that_was_reclaimed_meanwhile_is_not_handed_back,
    a_recovery_looks_at_types_that_the_worker_has_now_lost_too,
    a_session_keeps_its_books,
    a_session_asks_for_what_an_abandoned_claim_may_have_leased,
}
