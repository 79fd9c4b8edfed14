//! What a producer said of a task is still there at every later step.

use std::time::Duration;

use serde_json::json;
use windlass::broker::{ClaimedTask, Replayed};
use windlass::protocol::task::{DeadLetter, Extras};
use windlass::{NewTask, NotBefore, State, TaskId, TaskView};

use super::fixture::{Fixture, failure, task, task_id};

/// A task with everything that one can say.
fn full() -> NewTask {
    NewTask {
        priority: Some(7),
        idempotency_key: Some("order 7 ünïcode".parse().expect("a key")),
        tenant_id: Some("ada & sons".parse().expect("a tenant")),
        trace_id: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".parse().expect("a trace")),
        max_retries: Some(1),
        extras: Extras {
            labels: [("team".to_owned(), "blue".to_owned()), ("größe".to_owned(), "XL\n".to_owned())].into(),
            parent_id: Some(task_id("parent-1")),
            timeout_ms: Some(30_000),
            replay_of: None,
        },
        ..NewTask::new("mail/send".parse().expect("a type"), json!({"to": "ada@example.com", "n": 1.5}))
    }
}

fn check_claim(claimed: &ClaimedTask, new: &NewTask, when: &str) {
    assert_eq!(claimed.task_type, new.task_type, "{when}");
    assert_eq!(claimed.payload, new.payload, "{when}");
    assert_eq!(Some(claimed.priority), new.priority, "{when}");
    assert_eq!(claimed.idempotency_key, new.idempotency_key, "{when}");
    assert_eq!(claimed.tenant_id, new.tenant_id, "{when}");
    assert_eq!(claimed.trace_id, new.trace_id, "{when}");
    assert_eq!(claimed.extras, new.extras, "{when}");
}

fn check_view(view: &TaskView, new: &NewTask, when: &str) {
    assert_eq!(view.task_type, new.task_type, "{when}");
    assert_eq!(Some(view.priority), new.priority, "{when}");
    assert_eq!(view.idempotency_key, new.idempotency_key, "{when}");
    assert_eq!(view.tenant_id, new.tenant_id, "{when}");
    assert_eq!(view.trace_id, new.trace_id, "{when}");
    assert_eq!(view.max_retries, new.max_retries, "{when}");
    assert_eq!(view.extras, new.extras, "{when}");
}

fn check_letter(letter: &DeadLetter, new: &NewTask, when: &str) {
    assert_eq!(letter.task_type, new.task_type, "{when}");
    assert_eq!(letter.payload, new.payload, "{when}");
    assert_eq!(Some(letter.priority), new.priority, "{when}");
    assert_eq!(letter.idempotency_key, new.idempotency_key, "{when}");
    assert_eq!(letter.tenant_id, new.tenant_id, "{when}");
    assert_eq!(letter.trace_id, new.trace_id, "{when}");
    assert_eq!(letter.max_retries, new.max_retries, "{when}");
    assert_eq!(letter.extras, new.extras, "{when}");
}

/// closes: pg-boss#874 (a replay from the dead letters loses options)
async fn everything_is_carried_from_enqueue_to_replay(fx: &Fixture) {
    let new = full();
    let id = fx.enqueue(new.clone()).await.id;
    check_view(&fx.view(&id).await, &new, "queued");
    assert_eq!(fx.view(&id).await.payload, Some(new.payload.clone()));
    let created_at = fx.now();

    let first = fx.claim_one().await;
    check_claim(&first, &new, "first claim");
    check_view(&fx.view(&id).await, &new, "running");
    fx.fail_and_wait(&first).await;
    check_view(&fx.view(&id).await, &new, "retrying");

    let retry = fx.claim_one().await;
    check_claim(&retry, &new, "after a retry");
    fx.expire_all().await;
    check_view(&fx.view(&id).await, &new, "reclaimed");
    let reclaimed = fx.claim_one().await;
    check_claim(&reclaimed, &new, "after a reclaim");
    assert_eq!((reclaimed.retry_count, reclaimed.crash_count), (1, 1));

    fx.settle(&reclaimed, failure()).await;
    check_view(&fx.view(&id).await, &new, "dlq_pending");
    let pending = fx.broker.pending_dead_letters(10).await.expect("answered").remove(0);
    check_letter(&pending, &new, "pending dead letter");
    fx.broker.record_dead_letter(&pending.id).await.expect("answered");
    let recorded = fx.letter(&pending.id).await.letter;
    check_letter(&recorded, &new, "recorded dead letter");
    assert_eq!(recorded, pending, "what was written is what was to be written");
    check_view(&fx.view(&id).await, &new, "failed");
    assert_eq!(fx.view(&id).await.payload, Some(new.payload.clone()), "a dead letter keeps its payload");

    let replay = super::fixture::replay_of(&recorded.id, TaskId::generate());
    let replayed = fx.broker.replay(&replay).await.expect("answered");
    assert_eq!(replayed, Replayed::Done { task: replay.new_id.clone() });
    let linked = NewTask {
        id: replay.new_id,
        extras: Extras { replay_of: Some(recorded.id.to_string()), ..new.extras.clone() },
        ..new
    };
    check_view(&fx.view(&linked.id).await, &linked, "replayed");
    let again = fx.claim_one().await;
    check_claim(&again, &linked, "claim of the replay");
    assert_eq!((again.retry_count, again.crash_count, again.release_count), (0, 0, 0));
    fx.fail_and_wait(&again).await;
    let dead_again = fx.claim_one().await;
    fx.settle(&dead_again, failure()).await;
    assert_eq!(fx.state(&linked.id).await, State::DlqPending, "its own retry limit was carried too");
    assert_eq!(created_at, fx.view(&id).await.created_at, "and the first one's age");
}

async fn everything_is_carried_through_a_delay(fx: &Fixture) {
    let new = NewTask { not_before: NotBefore::After(Duration::from_secs(5)), ..full() };
    let id = fx.enqueue(new.clone()).await.id;
    check_view(&fx.view(&id).await, &new, "scheduled");
    assert_eq!(fx.view(&id).await.payload, Some(new.payload.clone()));
    fx.advance(Duration::from_secs(5));
    check_claim(&fx.claim_one().await, &new, "when due");
}

async fn everything_is_carried_to_the_result(fx: &Fixture) {
    let new = full();
    let id = fx.enqueue(new.clone()).await.id;
    fx.succeed(&fx.claim_one().await).await;
    check_view(&fx.view(&id).await, &new, "succeeded");
    check_view(&fx.list(State::Succeeded).await[0], &new, "listed");
}

async fn everything_is_carried_to_a_cancellation(fx: &Fixture) {
    for state in [State::Scheduled, State::Queued, State::Running] {
        let new = full();
        let delay = if state == State::Scheduled { Duration::from_secs(5) } else { Duration::ZERO };
        let id = fx.enqueue(NewTask { not_before: NotBefore::After(delay), ..new.clone() }).await.id;
        if state == State::Running {
            fx.claim_one().await;
        }
        fx.broker.cancel(&id, "not needed").await.expect("answered");
        check_view(&fx.view(&id).await, &new, &format!("cancelled while {state}"));
    }
}

async fn events_name_tenant_trace_type_and_retry_count(fx: &Fixture) {
    let new = full();
    let id = fx.enqueue(new.clone()).await.id;
    fx.fail_and_wait(&fx.claim_one().await).await;
    fx.succeed(&fx.claim_one().await).await;
    let events = fx.events(&id).await;
    assert_eq!(events.iter().map(|event| event.retry_count).collect::<Vec<_>>(), [0, 0, 1, 1, 1]);
    for event in events {
        assert_eq!((event.tenant_id, event.trace_id), (new.tenant_id.clone(), new.trace_id.clone()));
        assert_eq!(event.task_type, new.task_type);
    }
}

async fn a_payload_is_carried_byte_for_byte(fx: &Fixture) {
    for text in [
        "null",
        r#"{ "b": 1.00000000000000000001, "a": 123456789012345678901234567890 }"#,
        r#"["\u0000", "ü", "\ud83d\ude00", "😀"]"#,
        "[]",
        "{}",
        "  7  ",
    ] {
        let mut new = task("a");
        new.payload = windlass::Payload::from_json(text).expect("JSON");
        fx.enqueue(new).await;
        let claimed = fx.claim_one().await;
        assert_eq!(claimed.payload.as_str(), text);
        fx.fail_and_wait(&claimed).await;
        let again = fx.claim_one().await;
        assert_eq!(again.payload.as_str(), text, "after a retry");
        let letter = fx.bury(&again).await;
        let letter = fx.letter(&letter).await.letter;
        assert_eq!(letter.payload.as_str(), text, "in a dead letter");
    }
}

async fn everything_is_carried_at_its_longest_and_at_every_length_on_the_way(fx: &Fixture) {
    fx.set(|policy| (policy.priority.min, policy.priority.max) = (0, 100)).await;
    // Packed records change their shape at 32, 256 and 65,536 bytes, and numbers at 128 and 256.
    for length in [1, 31, 32, 33, 99, 100, 127, 128, 199, 200, 255, 256, 257, 511, 512] {
        let name = |longest: usize| "x".repeat(length.min(longest));
        let new = NewTask {
            id: task_id(&format!("{:x<1$}", length, length.min(128))),
            task_type: name(100).parse().expect("a type"),
            priority: Some(u8::try_from(length.min(100)).expect("small")),
            idempotency_key: Some(name(512).parse().expect("a key")),
            tenant_id: Some(name(128).parse().expect("a tenant")),
            trace_id: Some(name(128).parse().expect("a trace")),
            max_retries: Some(u32::try_from(length).expect("small")),
            ..full()
        };
        let worker = name(200);
        let id = fx.enqueue(new.clone()).await.id;
        let first = fx.claim_one_as(&worker).await;
        check_claim(&first, &new, "first claim");
        check_view(&fx.view(&id).await, &new, "running");
        assert_eq!(fx.view(&id).await.worker.map(String::from), Some(worker.clone()));
        fx.fail_and_wait(&first).await;
        let second = fx.claim_one_as(&worker).await;
        check_claim(&second, &new, "second claim");
        fx.expire_all().await;
        let third = fx.claim_one_as(&worker).await;
        check_claim(&third, &new, "third claim");
        fx.succeed(&third).await;
        check_view(&fx.view(&id).await, &new, "succeeded");
        assert_eq!(fx.events(&id).await.len(), 7);
    }
}

suite! {
    everything_is_carried_at_its_longest_and_at_every_length_on_the_way,
    everything_is_carried_from_enqueue_to_replay,
    everything_is_carried_through_a_delay,
    everything_is_carried_to_the_result,
    everything_is_carried_to_a_cancellation,
    events_name_tenant_trace_type_and_retry_count,
    a_payload_is_carried_byte_for_byte,
}
