//! What the systems before promise, under the names that they gave it: the
//! replays RP-001 to RP-005 and the four acceptance criteria of the stream protocol.

use std::collections::HashSet;
use std::time::Duration;

use serde_json::{Value, json};
use windlass::State::{DlqPending, DlqRecorded, Failed, Queued, Retrying, Running, Succeeded};
use windlass::broker::{Cancelled, Recorded, Settled};
use windlass::protocol::backoff::{Backoff, Jitter, Strategy};
use windlass::protocol::names::DeadLetterId;
use windlass::protocol::policy::{IdempotencyRequirement, Policy, ReclaimCause};
use windlass::protocol::state::{RetryReason, TRANSITION_INVALID};
use windlass::{NewTask, TaskId};

use super::fixture::{Fixture, failure, success, task};

/// The stream protocol's own numbers: three retries after 1, 5 and 15 minutes,
/// a key for every task, and nothing but the visibility timeout takes a task back.
fn stream_protocol(policy: &mut Policy) {
    policy.visibility_timeout = Duration::from_secs(300);
    policy.heartbeat_period = Duration::from_secs(30);
    policy.reclaim.on = [ReclaimCause::VisibilityTimeout].into();
    policy.retry.max_retries = 3;
    policy.retry.backoff = Backoff {
        strategy: Strategy::Schedule { delays_ms: vec![60_000, 300_000, 900_000] },
        max_ms: u64::MAX,
        jitter: Jitter::None,
    };
    policy.idempotency.requirement = IdempotencyRequirement::Required;
}

fn keyed(kind: &str, key: &str) -> NewTask {
    NewTask { idempotency_key: Some(key.parse().expect("a key")), ..task(kind) }
}

async fn fails_times(fx: &Fixture, times: u32) -> TaskId {
    let id = fx.add("send").await;
    for expected in 0..times {
        let task = fx.claim_one().await;
        assert_eq!(task.retry_count, expected);
        fx.fail_and_wait(&task).await;
    }
    id
}

async fn rp_001_a_queued_task_runs_and_succeeds(fx: &Fixture) {
    let id = fails_times(fx, 0).await;
    fx.succeed(&fx.claim_one().await).await;
    assert_eq!(fx.path(&id).await, [Queued, Running, Succeeded]);
    assert_eq!(fx.view(&id).await.retry_count, 0);
}

async fn rp_002_one_transient_error_then_success_has_retry_count_1(fx: &Fixture) {
    let id = fails_times(fx, 1).await;
    fx.succeed(&fx.claim_one().await).await;
    assert_eq!(fx.path(&id).await, [Queued, Running, Retrying, Running, Succeeded]);
    assert_eq!(fx.view(&id).await.retry_count, 1);
}

async fn rp_003_three_transient_errors_then_success_has_retry_count_3(fx: &Fixture) {
    let id = fails_times(fx, 3).await;
    fx.succeed(&fx.claim_one().await).await;
    let expected = [Queued, Running, Retrying, Running, Retrying, Running, Retrying, Running, Succeeded];
    assert_eq!(fx.path(&id).await, expected);
    assert_eq!(fx.view(&id).await.retry_count, 3);
}

async fn rp_004_the_fourth_failure_goes_through_the_dead_letters_to_failed(fx: &Fixture) {
    let id = fails_times(fx, 3).await;
    let last = fx.claim_one().await;
    assert_eq!(fx.settle(&last, failure()).await, Settled::Dead);
    assert_eq!(fx.state(&id).await, DlqPending, "not failed before its dead letter is recorded");
    let letter = DeadLetterId { task: id.clone(), epoch: last.lease.epoch };
    assert_eq!(fx.broker.record_dead_letter(&letter).await.expect("answered"), Recorded::Done);
    let path = fx.path(&id).await;
    assert_eq!(path[path.len() - 4..], [Running, DlqPending, DlqRecorded, Failed]);
    let view = fx.view(&id).await;
    assert_eq!((view.state, view.retry_count), (Failed, 4));
    assert_eq!(view.dlq_id, Some(letter.to_string()), "the failed task names its dead letter");
    assert_eq!(fx.results(&id).await, 1);
}

/// closes: river#1302, rq#2424 (a late write over a completion)
async fn rp_005_a_second_final_write_is_refused_and_counted(fx: &Fixture) {
    let task = fx.running("send").await;
    let id = task.lease.task.clone();
    fx.succeed(&task).await;
    let (before, events) = (fx.view(&id).await, fx.events(&id).await);

    assert_eq!(fx.settle(&task, failure()).await, Settled::InvalidTransition);
    let letter = DeadLetterId { task: id.clone(), epoch: task.lease.epoch };
    assert_eq!(fx.broker.record_dead_letter(&letter).await.expect("answered"), Recorded::InvalidTransition);
    let cancelled = fx.broker.cancel(&id, "too late").await.expect("answered");
    assert_eq!(cancelled, Cancelled::InvalidTransition { state: Succeeded });

    assert_eq!(TRANSITION_INVALID, "WF_STATE_TRANSITION_INVALID");
    assert_eq!(fx.counts().await.invalid_transitions, 3, "each refusal is counted");
    assert_eq!(fx.view(&id).await, before, "nothing changed");
    assert_eq!(fx.events(&id).await, events, "nothing was recorded");
    assert_eq!(fx.results(&id).await, 1);
    assert_eq!(fx.settle(&task, success()).await, Settled::AlreadySettled, "the same write again is no new write");
    assert_eq!(fx.results(&id).await, 1);
}

async fn s0_criterion_1_a_success_is_created_claimed_succeeded_and_acknowledged(fx: &Fixture) {
    fx.set(stream_protocol).await;
    fx.enqueue(keyed("search", "k")).await;
    let task = fx.claim_one().await;
    assert_eq!(fx.counts().await.running, 1, "pending until it is settled");
    fx.succeed(&task).await;
    let counts = fx.counts().await;
    assert_eq!((counts.backlog, counts.running, counts.finished), (0, 0, 1));
    let events = fx.events(&task.lease.task).await;
    assert_eq!(events.iter().map(|event| event.to).collect::<Vec<_>>(), [Queued, Running, Succeeded]);
    assert_eq!(events[1].consumer.as_deref(), Some("w1"), "the claim names its consumer");
    assert!(events[1].message_id.is_some(), "and its message");
}

async fn s0_criterion_2_a_failing_task_reaches_the_dead_letters_with_every_event(fx: &Fixture) {
    fx.set(stream_protocol).await;
    fx.enqueue(keyed("search", "k")).await;
    let mut waits = Vec::new();
    let last = loop {
        let task = fx.claim_one().await;
        match fx.settle(&task, failure()).await {
            Settled::Retrying { due_at } => {
                let wait = Duration::try_from(due_at - fx.now()).expect("a wait");
                waits.push(wait.as_secs() / 60);
                assert!(fx.claim(1).await.is_empty(), "not before its time");
                fx.advance(wait);
            }
            settled => {
                assert_eq!(settled, Settled::Dead);
                break task;
            }
        }
    };
    assert_eq!(waits, [1, 5, 15], "minutes");
    let letter = DeadLetterId { task: last.lease.task.clone(), epoch: last.lease.epoch };
    fx.broker.record_dead_letter(&letter).await.expect("answered");

    let path = fx.path(&letter.task).await;
    let attempts = [Running, Retrying, Running, Retrying, Running, Retrying, Running];
    assert_eq!(path, [&[Queued][..], &attempts, &[DlqPending, DlqRecorded, Failed]].concat());
    let events = fx.events(&letter.task).await;
    let unique: HashSet<_> = events.iter().map(|event| (event.epoch, event.to)).collect();
    assert_eq!(unique.len(), events.len(), "an event log can tell each event from its repetition");
    assert!(events.iter().filter(|event| event.to == Running).all(|event| event.consumer.as_deref() == Some("w1")));
    let written = fx.letter(&letter).await.letter;
    assert_eq!((written.retry_count, written.error.as_str(), written.error_code.as_str()), (4, "it broke", "broken"));
    assert_eq!((written.payload.as_str(), written.failed_at), (r#"{"n":1}"#, fx.now()));
    assert_eq!(written.history.len(), 4, "one row an attempt");
}

/// closes: taskiq-redis#130 (nobody reads the pending list)
async fn s0_criterion_3_a_task_of_a_stopped_worker_is_reclaimed_after_the_timeout_and_done(fx: &Fixture) {
    fx.set(stream_protocol).await;
    let id = fx.enqueue(keyed("search", "k")).await.id;
    let lost = fx.claim_one_as("stopped").await;
    fx.advance(Duration::from_secs(299));
    assert!(fx.reclaim().await.requeued.is_empty(), "only after the visibility timeout");
    fx.advance(Duration::from_secs(2));
    assert_eq!(fx.reclaim().await.requeued, [id.clone()]);
    let again = fx.claim_one_as("restarted").await;
    assert_eq!((again.lease.task.clone(), again.retry_count, again.crash_count), (id.clone(), 0, 1));
    fx.succeed(&again).await;
    assert_eq!(fx.path(&id).await, [Queued, Running, Retrying, Running, Succeeded]);

    let events = fx.events(&id).await;
    let reclaimed = &events[3];
    assert_eq!(reclaimed.consumer.as_deref(), Some("restarted"), "the event names the new consumer");
    let detail: Value = serde_json::from_str(reclaimed.detail.as_deref().expect("a detail")).expect("JSON");
    assert_eq!(detail["from"], "stopped", "the old one");
    assert_eq!(detail["reason"], RetryReason::VisibilityTimeout.as_str());
    assert_eq!(detail["message"].as_str(), events[1].message_id.as_deref(), "and the message");
    assert_eq!(fx.settle(&lost, success()).await, Settled::LeaseLost, "should the old one wake up");
    assert_eq!(fx.results(&id).await, 1);
}

async fn s0_criterion_4_the_same_key_never_becomes_a_second_task(fx: &Fixture) {
    fx.set(stream_protocol).await;
    let first = fx.enqueue(keyed("pay", "order-7")).await;
    let again = fx.enqueue(keyed("pay", "order-7")).await;
    assert_eq!((again.id, again.created), (first.id.clone(), false));
    fx.raw(&[("task_id", "other"), ("tool_name", "pay"), ("payload", "{}"), ("idempotency_key", "order-7")]).await;

    let one = fx.claim(10).await;
    assert_eq!(one.len(), 1, "however it was sent");
    let key = one[0].execution_key();
    assert_eq!(key, format!("{}:0", first.id));
    fx.expire_all().await;
    let same = fx.claim_one().await;
    assert_eq!(same.execution_key(), key, "after a crash it is the same execution: its effect may have happened");
    fx.fail_and_wait(&same).await;
    let retry = fx.claim_one().await;
    assert_eq!(retry.execution_key(), format!("{}:1", first.id), "after a failure it is the next");
    assert_eq!(retry.idempotency_key.as_ref().map(|key| key.as_str()), Some("order-7"));
    fx.succeed(&retry).await;
    assert!(!fx.enqueue(keyed("pay", "order-7")).await.created, "not after the success either");
    assert!(fx.claim(10).await.is_empty());
}

async fn a_task_without_a_key_is_refused_where_the_protocol_wants_one(fx: &Fixture) {
    fx.set(stream_protocol).await;
    let refused = fx.broker.enqueue(&[task("pay")]).await.expect_err("no key");
    assert!(refused.to_string().contains("idempotency key"), "{refused}");
    fx.raw(&[("task_id", "keyless"), ("tool_name", "pay"), ("payload", &json!({}).to_string())]).await;
    assert!(fx.claim(1).await.is_empty());
    let letters = fx.broker.pending_dead_letters(10).await.expect("answered");
    assert_eq!(letters.len(), 1);
    assert!(letters[0].error.contains("idempotency_key"), "{}", letters[0].error);
}

suite! {
    rp_001_a_queued_task_runs_and_succeeds,
    rp_002_one_transient_error_then_success_has_retry_count_1,
    rp_003_three_transient_errors_then_success_has_retry_count_3,
    rp_004_the_fourth_failure_goes_through_the_dead_letters_to_failed,
    rp_005_a_second_final_write_is_refused_and_counted,
    s0_criterion_1_a_success_is_created_claimed_succeeded_and_acknowledged,
    s0_criterion_2_a_failing_task_reaches_the_dead_letters_with_every_event,
    s0_criterion_3_a_task_of_a_stopped_worker_is_reclaimed_after_the_timeout_and_done,
    s0_criterion_4_the_same_key_never_becomes_a_second_task,
    a_task_without_a_key_is_refused_where_the_protocol_wants_one,
}
