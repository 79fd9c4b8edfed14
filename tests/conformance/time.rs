//! Delays: never early, never lost, never twice.

use std::time::Duration;

use jiff::Timestamp;
use windlass::State::{Queued, Retrying, Running, Scheduled, Succeeded};
use windlass::broker::Settled;
use windlass::{NewTask, NotBefore, State, TaskId};

use super::fixture::{Fixture, failure, task};

const SECOND: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);

async fn add_after(fx: &Fixture, delay: Duration) -> TaskId {
    let enqueued = fx.enqueue(NewTask { not_before: NotBefore::After(delay), ..task("a") }).await;
    assert_eq!(enqueued.state, if delay.is_zero() { Queued } else { Scheduled });
    enqueued.id
}

async fn a_delayed_task_is_claimed_at_its_time_and_not_a_millisecond_before(fx: &Fixture) {
    let id = add_after(fx, 5 * SECOND).await;
    assert_eq!(fx.view(&id).await.due_at, Some(fx.in_ms(5000)));
    fx.advance(5 * SECOND - MS);
    assert!(fx.claim(1).await.is_empty());
    fx.advance(MS);
    let task = fx.claim_one().await;
    assert_eq!(task.lease.task, id);
    fx.succeed(&task).await;
    assert_eq!(fx.path(&id).await, [Scheduled, Queued, Running, Succeeded]);
}

/// closes: the poller that removes from the delayed set and dies before it pushes (sidekiq), dramatiq#431
async fn a_promotion_moves_what_is_due_and_says_what_comes_next(fx: &Fixture) {
    let (soon, later) = (add_after(fx, SECOND).await, add_after(fx, 10 * SECOND).await);
    fx.advance(SECOND - MS);
    let nothing = fx.promote(100).await;
    assert_eq!((nothing.promoted, nothing.next_in), (0, Some(MS)));
    fx.advance(MS);
    let one = fx.promote(100).await;
    assert_eq!((one.promoted, one.next_in), (1, Some(9 * SECOND)));
    assert_eq!((fx.state(&soon).await, fx.state(&later).await), (Queued, Scheduled));
    let counts = fx.counts().await;
    assert_eq!((counts.backlog, counts.delayed), (1, 1), "each is in one place");
    assert_eq!(fx.promote(100).await.promoted, 0, "and moved once");
}

async fn a_given_time_is_kept_and_a_past_one_is_now(fx: &Fixture) {
    let at = |time: Timestamp| NewTask { not_before: NotBefore::At(time), ..task("a") };
    let later = fx.enqueue(at(fx.in_ms(2000))).await;
    let past = fx.enqueue(at(fx.in_ms(-1))).await;
    let long_past = fx.enqueue(at(Timestamp::from_millisecond(-5).expect("before 1970"))).await;
    let now = fx.enqueue(at(fx.now())).await;
    assert_eq!([later.state, past.state, long_past.state, now.state], [Scheduled, Queued, Queued, Queued]);
    assert_eq!(fx.claim(10).await.len(), 3);
    fx.advance(2 * SECOND);
    assert_eq!(fx.claim_one().await.lease.task, later.id);
}

async fn a_delay_of_nothing_is_no_delay(fx: &Fixture) {
    let id = add_after(fx, Duration::ZERO).await;
    assert_eq!(fx.claim_one().await.lease.task, id);
}

async fn a_time_after_the_deadline_is_refused(fx: &Fixture) {
    fx.set(|policy| policy.retry.deadline = 60 * SECOND).await;
    let late = NewTask { not_before: NotBefore::After(61 * SECOND), ..task("a") };
    let refused = fx.broker.enqueue(&[task("a"), late]).await.expect_err("it could never run");
    assert!(refused.to_string().contains("after its deadline, 60000 ms"), "{refused}");
    assert_eq!(fx.counts().await.backlog, 0, "the batch is taken whole or not at all");
    add_after(fx, 60 * SECOND).await;
}

/// closes: kombu#337 (a delay longer than the visibility timeout repeats)
async fn a_delay_longer_than_the_visibility_timeout_runs_once(fx: &Fixture) {
    let id = add_after(fx, 3600 * SECOND).await;
    for _ in 0..7 {
        fx.advance(500 * SECOND);
        assert!(fx.reclaim().await.requeued.is_empty());
        assert!(fx.sweep().await.repaired.is_empty());
        fx.promote(100).await;
        assert!(fx.claim(1).await.is_empty());
    }
    fx.advance(100 * SECOND);
    let task = fx.claim_one().await;
    assert_eq!((task.lease.task, task.lease.epoch.0), (id, 1));
    assert!(fx.claim(1).await.is_empty());
}

async fn due_tasks_keep_their_priorities(fx: &Fixture) {
    let mut ids = Vec::new();
    for priority in [2, 8] {
        let delayed = NewTask { priority: Some(priority), not_before: NotBefore::After(SECOND), ..task("a") };
        ids.push(fx.enqueue(delayed).await.id);
    }
    fx.advance(SECOND);
    ids.reverse();
    assert_eq!(fx.drain_ids().await, ids);
}

async fn a_retry_waits_for_its_delay_and_a_claim_promotes_it(fx: &Fixture) {
    let task = fx.running("a").await;
    let id = task.lease.task.clone();
    assert_eq!(fx.settle(&task, failure()).await, Settled::Retrying { due_at: fx.in_ms(1000) });
    let view = fx.view(&id).await;
    assert_eq!((view.state, view.due_at), (Retrying, Some(fx.in_ms(1000))));
    fx.advance(SECOND - MS);
    assert!(fx.claim(1).await.is_empty());
    assert_eq!(fx.promote(1).await.next_in, Some(MS));
    fx.advance(MS);
    assert_eq!(fx.claim_one().await.lease.task, id);
}

async fn many_due_at_once_all_run_and_each_step_is_bounded(fx: &Fixture) {
    let tasks: Vec<NewTask> = (0..90).map(|_| NewTask { not_before: NotBefore::After(SECOND), ..task("a") }).collect();
    fx.broker.enqueue(&tasks).await.expect("taken");
    fx.advance(SECOND);
    assert_eq!(fx.promote(10).await.promoted, 10);
    assert_eq!(fx.counts().await.delayed, 80);
    let mut claimed = std::collections::HashSet::new();
    for _ in 0..90 {
        claimed.extend(fx.claim(100).await.into_iter().map(|task| task.lease.task));
    }
    assert_eq!(claimed.len(), 90);
    assert_eq!(fx.counts().await.delayed, 0);
}

async fn a_task_that_waited_past_its_deadline_dies_instead_of_running(fx: &Fixture) {
    fx.set(|policy| policy.retry.deadline = 60 * SECOND).await;
    let id = fx.add("a").await;
    let fresh = {
        fx.advance(61 * SECOND);
        fx.add("a").await
    };
    let claimed = fx.claim(10).await;
    assert_eq!(claimed.iter().map(|task| &task.lease.task).collect::<Vec<_>>(), [&fresh]);
    assert_eq!(fx.path(&id).await, [Queued, State::DlqPending]);
    let letters = fx.broker.pending_dead_letters(10).await.expect("answered");
    assert_eq!((letters.len(), letters[0].error_code.as_str()), (1, "deadline_exceeded"));
    let counts = fx.counts().await;
    assert_eq!((counts.backlog, counts.running, counts.dlq_pending), (0, 1, 1));
}

suite! {
    a_delayed_task_is_claimed_at_its_time_and_not_a_millisecond_before,
    a_promotion_moves_what_is_due_and_says_what_comes_next,
    a_given_time_is_kept_and_a_past_one_is_now,
    a_delay_of_nothing_is_no_delay,
    a_time_after_the_deadline_is_refused,
    a_delay_longer_than_the_visibility_timeout_runs_once,
    due_tasks_keep_their_priorities,
    a_retry_waits_for_its_delay_and_a_claim_promotes_it,
    many_due_at_once_all_run_and_each_step_is_bounded,
    a_task_that_waited_past_its_deadline_dies_instead_of_running,
}
