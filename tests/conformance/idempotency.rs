//! The same piece of work is one task, for as long as the policy says.

use serde_json::json;
use windlass::broker::{Enqueued, ErrorClass};
use windlass::protocol::policy::{IdempotencyRequirement, IdempotencyScope, IdempotencySource};
use windlass::{NewTask, Payload, State, TaskId};

use super::fixture::{Fixture, failure, permanent, success, task};

fn keyed(key: &str) -> NewTask {
    NewTask { idempotency_key: Some(key.parse().expect("a key")), ..task("a") }
}

fn for_tenant(tenant: &str, key: &str) -> NewTask {
    NewTask { tenant_id: Some(tenant.parse().expect("a tenant")), ..keyed(key) }
}

/// Brings a task with key `k` into that state.
async fn first_in(fx: &Fixture, state: State) -> TaskId {
    let id = fx.enqueue(keyed("k")).await.id;
    if state == State::Cancelled {
        fx.broker.cancel(&id, "not needed").await.expect("answered");
    } else if state != State::Queued {
        let task = fx.claim_one().await;
        match state {
            State::Running => {}
            State::Retrying => drop(fx.settle(&task, failure()).await),
            State::Succeeded => fx.succeed(&task).await,
            State::DlqPending => drop(fx.settle(&task, permanent()).await),
            State::Failed => drop(fx.bury(&task).await),
            other => panic!("no way to {other} here"),
        }
    }
    assert_eq!(fx.state(&id).await, state);
    id
}

/// Sends the same key again after the first task got into each state: known or new?
async fn scope_holds(fx: &Fixture, scope: IdempotencyScope, known_in: &[State]) {
    use State::{Cancelled, DlqPending, Failed, Queued, Retrying, Running, Succeeded};
    for state in [Queued, Running, Retrying, DlqPending, Succeeded, Failed, Cancelled] {
        let fx = &Fixture::new(fx.kind).await;
        fx.set(|policy| policy.idempotency.scope = scope).await;
        let first = first_in(fx, state).await;
        let second = fx.enqueue(keyed("k")).await;
        if known_in.contains(&state) {
            assert_eq!(second, Enqueued { id: first, state, created: false }, "{scope:?}, {state}");
        } else {
            assert!(second.created && second.id != first, "{scope:?}, {state}");
            assert_eq!(fx.enqueue(keyed("k")).await.id, second.id, "now the second one holds the key");
        }
    }
}

const LIVE: [State; 4] = [State::Queued, State::Running, State::Retrying, State::DlqPending];

/// closes: asynq#275 (a unique lock that is never released)
async fn scope_live_ends_with_the_task(fx: &Fixture) {
    scope_holds(fx, IdempotencyScope::Live, &LIVE).await;
}

async fn scope_live_and_succeeded_lets_failed_and_cancelled_work_be_sent_again(fx: &Fixture) {
    scope_holds(fx, IdempotencyScope::LiveAndSucceeded, &[&LIVE[..], &[State::Succeeded]].concat()).await;
}

async fn scope_retained_holds_however_the_task_ended(fx: &Fixture) {
    let finals = [State::Succeeded, State::Failed, State::Cancelled];
    scope_holds(fx, IdempotencyScope::Retained, &[&LIVE[..], &finals].concat()).await;
}

async fn a_scheduled_task_holds_its_key(fx: &Fixture) {
    let later = windlass::NotBefore::After(std::time::Duration::from_secs(60));
    let first = fx.enqueue(NewTask { not_before: later, ..keyed("k") }).await;
    let second = fx.enqueue(keyed("k")).await;
    assert_eq!(second, Enqueued { id: first.id, state: State::Scheduled, created: false });
    assert!(fx.claim(1).await.is_empty(), "the repetition did not hurry it");
}

async fn a_key_that_was_released_and_taken_again_is_not_released_by_the_first_task(fx: &Fixture) {
    fx.set(|policy| policy.idempotency.scope = IdempotencyScope::Live).await;
    let first = fx.dead(keyed("k")).await;
    let second = fx.enqueue(keyed("k")).await;
    assert!(second.created);
    fx.broker.record_dead_letter(&first).await.expect("answered");
    fx.broker.cancel(&first.task, "again").await.expect("answered");
    assert_eq!(fx.enqueue(keyed("k")).await.id, second.id, "the second task still holds it");
}

async fn tenants_have_keys_of_their_own(fx: &Fixture) {
    let one = fx.enqueue(for_tenant("ada", "k")).await;
    let other = fx.enqueue(for_tenant("bob", "k")).await;
    let nobody = fx.enqueue(keyed("k")).await;
    assert!(one.created && other.created && nobody.created);
    assert_eq!(fx.enqueue(for_tenant("ada", "k")).await.id, one.id);
    assert_eq!(fx.enqueue(for_tenant("bob", "k")).await.id, other.id);
    assert_eq!(fx.enqueue(keyed("k")).await.id, nobody.id);
}

async fn a_tenant_and_a_key_cannot_be_run_together(fx: &Fixture) {
    assert!(fx.enqueue(for_tenant("a", "bc")).await.created);
    assert!(fx.enqueue(for_tenant("ab", "c")).await.created);
    assert!(fx.enqueue(keyed("abc")).await.created);
}

async fn duplicates_inside_a_batch_are_one_task(fx: &Fixture) {
    let (one, twin, other) = (keyed("k"), keyed("k"), keyed("other"));
    let batch = [one.clone(), twin, other.clone(), one.clone(), for_tenant("ada", "k")];
    let answers = fx.broker.enqueue(&batch).await.expect("taken");
    assert_eq!(answers.iter().map(|answer| answer.created).collect::<Vec<_>>(), [true, false, true, false, true]);
    assert_eq!(answers[1].id, one.id);
    assert_eq!(answers[3].id, one.id);
    assert!(answers.iter().all(|answer| answer.state == State::Queued));
    assert_eq!(fx.counts().await.backlog, 3);
    assert_eq!(fx.claim(10).await.len(), 3);
}

/// closes: an enqueue whose answer was lost and is repeated makes a second task
async fn an_enqueue_can_be_repeated(fx: &Fixture) {
    let batch: Vec<NewTask> = (0..5).map(|_| task("a")).collect();
    assert!(fx.broker.enqueue(&batch).await.expect("taken").iter().all(|answer| answer.created));
    let running = fx.claim_one().await;
    let again = fx.broker.enqueue(&batch).await.expect("taken");
    for (task, answer) in batch.iter().zip(&again) {
        let state = if task.id == running.lease.task { State::Running } else { State::Queued };
        assert_eq!(*answer, Enqueued { id: task.id.clone(), state, created: false });
    }
    fx.succeed(&running).await;
    let done = fx.enqueue(batch[0].clone()).await;
    assert_eq!((done.state, done.created), (State::Succeeded, false), "a finished task is not run again");
    assert_eq!(fx.claim(10).await.len(), 4);
}

async fn without_a_key_each_task_is_its_own(fx: &Fixture) {
    assert_ne!(fx.add("a").await, fx.add("a").await);
    assert_eq!(fx.counts().await.backlog, 2);
}

async fn by_content(fx: &Fixture) {
    fx.set(|policy| policy.idempotency.source = IdempotencySource::ContentHash).await;
}

fn with_payload(kind: &str, payload: &str) -> NewTask {
    let mut task = task(kind);
    task.payload = Payload::from_json(payload).expect("JSON");
    task
}

async fn where_content_counts_the_same_content_is_one_task(fx: &Fixture) {
    by_content(fx).await;
    let first = fx.enqueue(with_payload("a", r#"{"x":1,"y":[1,2]}"#)).await;
    let same = fx.enqueue(with_payload("a", r#"{ "y": [1, 2], "x": 1 }"#)).await;
    assert_eq!((same.id, same.created), (first.id.clone(), false), "white space and the order of keys do not count");
    assert!(fx.enqueue(with_payload("b", r#"{"x":1,"y":[1,2]}"#)).await.created, "the type does");
    assert!(fx.enqueue(with_payload("a", r#"{"x":1,"y":[2,1]}"#)).await.created, "and every value");
    let keyed =
        NewTask { idempotency_key: Some("k".parse().expect("a key")), ..with_payload("a", r#"{"x":1,"y":[1,2]}"#) };
    assert!(!fx.enqueue(keyed).await.created, "a key of one's own does not");
}

async fn where_content_counts_a_dead_or_cancelled_task_does_not(fx: &Fixture) {
    by_content(fx).await;
    let first = fx.enqueue(with_payload("a", "{}")).await;
    fx.broker.cancel(&first.id, "not needed").await.expect("answered");
    let second = fx.enqueue(with_payload("a", "{}")).await;
    assert!(second.created);
    let running = fx.claim_one().await;
    fx.bury(&running).await;
    assert!(fx.enqueue(with_payload("a", "{}")).await.created);
}

async fn where_content_counts_raw_entries_count_too(fx: &Fixture) {
    by_content(fx).await;
    let first = fx.enqueue(with_payload("a", r#"{"x":1}"#)).await;
    fx.raw(&[("task_id", "raw"), ("type", "a"), ("payload", r#"{"x":1}"#)]).await;
    fx.promote(10).await;
    assert_eq!(fx.view(&"raw".parse().expect("an id")).await.id, first.id);
    assert_eq!(fx.counts().await.backlog, 1);
}

async fn where_a_key_is_required_a_task_without_one_is_refused(fx: &Fixture) {
    fx.set(|policy| policy.idempotency.requirement = IdempotencyRequirement::Required).await;
    let refused = fx.broker.enqueue(&[keyed("k"), task("a")]).await.expect_err("no key");
    assert_eq!(refused.class(), ErrorClass::Invalid);
    assert!(refused.to_string().contains("give each piece of work a key of its own"), "{refused}");
    assert_eq!(fx.counts().await.backlog, 0, "and so is the rest of its batch");
    by_content(fx).await;
    assert!(fx.enqueue(task("a")).await.created, "content is key enough");
}

async fn a_repetition_answers_with_the_first_tasks_result(fx: &Fixture) {
    let first = fx.enqueue(keyed("k")).await;
    let running = fx.claim_one().await;
    assert_eq!(fx.settle(&running, success()).await, windlass::broker::Settled::Succeeded);
    let again = fx.enqueue(keyed("k")).await;
    assert_eq!(again.id, first.id);
    let view = fx.view(&again.id).await;
    assert_eq!(view.result, Some(json!({"ok": true}).into()));
}

suite! {
    scope_live_ends_with_the_task,
    scope_live_and_succeeded_lets_failed_and_cancelled_work_be_sent_again,
    scope_retained_holds_however_the_task_ended,
    a_scheduled_task_holds_its_key,
    a_key_that_was_released_and_taken_again_is_not_released_by_the_first_task,
    tenants_have_keys_of_their_own,
    a_tenant_and_a_key_cannot_be_run_together,
    duplicates_inside_a_batch_are_one_task,
    an_enqueue_can_be_repeated,
    without_a_key_each_task_is_its_own,
    where_content_counts_the_same_content_is_one_task,
    where_content_counts_a_dead_or_cancelled_task_does_not,
    where_content_counts_raw_entries_count_too,
    where_a_key_is_required_a_task_without_one_is_refused,
    a_repetition_answers_with_the_first_tasks_result,
}
