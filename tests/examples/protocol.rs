//! What the Task Queue Protocol asks for, of `examples/profiles/task-queue-protocol`.

use windlass::broker::{Broker, Settled};
use windlass::protocol::state::RetryReason;
use windlass::{Outcome, State};

use super::profile::{LEAST, MOST, Profile, failure, worker};

async fn open() -> Profile {
    Profile::open("task-queue-protocol").await
}

/// §9, and the replays with it.
#[tokio::test]
async fn the_acceptance_criteria_hold() {
    open().await.conforms().await;
}

/// §1, §3.
#[tokio::test]
async fn the_protocols_streams_are_used_and_everything_is_acknowledged() {
    let queue = open().await;
    let keys = &queue.keys;
    let names = [&keys.task, &keys.result, &keys.dead_letter, &keys.group].map(String::as_str);
    assert_eq!(names, ["stream:task", "stream:result", "stream:dlq", "cg:workers"]);
    let sent = [("task_id", "t-1"), ("tool_name", "web.search"), ("idempotency_key", "k"), ("payload", r#"{"q":1}"#)];
    queue.xadd(&sent).await;
    let task = queue.claim_one().await;
    assert_eq!((task.lease.task.as_str(), task.task_type.as_str()), ("t-1", "web.search"));
    assert_eq!(task.idempotency_key.as_ref().map(|key| key.as_str()), Some("k"));
    queue.settle(&task, Outcome::result(serde_json::json!({"found": 2})), LEAST).await;
    assert_eq!(queue.unacknowledged().await, (0, 0));
    let results = queue.stream("stream:result").await;
    assert_eq!(results.len(), 1, "one final event");
    for (field, value) in [
        ("task_id", "t-1"),
        ("tool_name", "web.search"),
        ("status", "succeeded"),
        ("result", r#"{"found":2}"#),
        ("retry_count", "0"),
    ] {
        assert_eq!(results[0][field], value, "{field}");
    }
}

/// §4, §5.
#[tokio::test]
async fn a_lost_worker_is_found_by_the_visibility_timeout_and_by_nothing_else() {
    let queue = open().await;
    queue.register("stopped", Some("pod")).await;
    queue.xadd(&[("task_id", "t-1"), ("idempotency_key", "k"), ("payload", "{}")]).await;
    let lost = queue.claim_as("stopped").await;
    for sign in [RetryReason::WorkerLost, RetryReason::PodGone, RetryReason::PodForceDeleted] {
        let taken = queue.broker.take_back(&worker("stopped"), sign, "").await.expect("answered");
        assert!(taken.requeued.is_empty() && taken.dead.is_empty(), "{sign:?}");
    }
    assert!(queue.register("restarted", Some("pod")).await.is_empty(), "the next one in its container");
    queue.seconds(299);
    queue.sweep().await;
    assert!(queue.reclaim().await.is_empty());
    assert_eq!(queue.view(&lost.lease.task).await.state, State::Running);

    queue.seconds(1);
    assert_eq!(queue.reclaim().await, [lost.lease.task.clone()], "after 300 s");
    let again = queue.claim_as("restarted").await;
    assert_eq!((again.retry_count, again.crash_count), (0, 1), "a lost worker is no failure of the task");
    queue.succeed(&again).await;
    assert_eq!(queue.settle(&lost, Outcome::success(), LEAST).await, Settled::LeaseLost, "should it wake up");
    assert_eq!(queue.stream("stream:result").await.len(), 1);
}

/// §4: a heartbeat every 30 s is enough.
#[tokio::test]
async fn a_worker_that_renews_keeps_its_task() {
    let queue = open().await;
    queue.xadd(&[("task_id", "t-1"), ("idempotency_key", "k"), ("payload", "{}")]).await;
    let task = queue.claim_one().await;
    for _ in 0..20 {
        queue.pass(queue.policy.heartbeat_period);
        queue.broker.extend(&worker("w1"), &[task.lease.clone()]).await.expect("answered");
        assert!(queue.reclaim().await.is_empty());
    }
    queue.succeed(&task).await;
}

/// §6, §7.
#[tokio::test]
async fn failures_wait_1_5_and_15_minutes_and_the_fourth_is_in_the_dead_letter_queue() {
    let queue = open().await;
    let sent = [("task_id", "t-1"), ("tool_name", "publish"), ("idempotency_key", "k"), ("payload", r#"{"q":1}"#)];
    queue.xadd(&sent).await;
    assert_eq!(queue.waits(&failure(), MOST, 9).await, [60_000, 300_000, 900_000], "no dice");
    let died = queue.now();
    queue.record().await;
    let letters = queue.stream("stream:dlq").await;
    assert_eq!(letters.len(), 1);
    for (field, value) in [
        ("task_id", "t-1"),
        ("tool_name", "publish"),
        ("payload", r#"{"q":1}"#),
        ("error", "it broke"),
        ("retry_count", "4"),
        ("failed_at", &died.as_millisecond().to_string()),
    ] {
        assert_eq!(letters[0][field], value, "{field}");
    }
    let results = queue.stream("stream:result").await;
    assert_eq!((results.len(), results[0]["status"].as_str()), (1, "failed"));
    assert_eq!(queue.unacknowledged().await, (0, 0));
}

/// §7: what can never work does not wait.
#[tokio::test]
async fn input_that_cannot_be_mended_is_a_dead_letter_at_once() {
    let queue = open().await;
    queue.xadd(&[("task_id", "no-payload"), ("idempotency_key", "a")]).await;
    queue.xadd(&[("task_id", "no-key"), ("payload", "{}")]).await;
    queue.xadd(&[("task_id", "good"), ("idempotency_key", "b"), ("payload", "{}")]).await;
    assert_eq!(queue.drain().await, ["good"], "and holds nobody up");
    queue.record().await;
    let letters = queue.stream("stream:dlq").await;
    let error = |id: &str| letters.iter().find(|letter| letter["task_id"] == id).map(|letter| letter["error"].clone());
    assert!(error("no-payload").is_some_and(|error| error.contains("payload")), "{letters:?}");
    assert!(error("no-key").is_some_and(|error| error.contains("idempotency_key")), "{letters:?}");
}

/// §6: the key stands for one piece of work, however often it is sent, and each sender is answered.
#[tokio::test]
async fn the_same_key_runs_once_and_answers_under_every_id() {
    let queue = open().await;
    for id in ["first", "second", "first"] {
        queue.xadd(&[("task_id", id), ("tool_name", "order"), ("idempotency_key", "order-7"), ("payload", "{}")]).await;
    }
    let running = queue.claim(10).await;
    assert_eq!(running.len(), 1);
    queue.succeed(&running[0]).await;
    queue.xadd(&[("task_id", "late"), ("idempotency_key", "order-7"), ("payload", "{}")]).await;
    assert!(queue.drain().await.is_empty(), "not after the success either");
    let mut answered: Vec<_> =
        queue.stream("stream:result").await.into_iter().map(|result| result["task_id"].clone()).collect();
    answered.sort();
    assert_eq!(answered, ["first", "late", "second"]);
}
