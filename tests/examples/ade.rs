//! What the agent development environment's queue asks for, of `examples/profiles/ade`.

use std::time::Duration;

use serde_json::json;
use windlass::broker::Broker;
use windlass::{NewTask, Outcome, State, TaskId};

use super::profile::{LEAST, MOST, Profile, failure, task, worker};

async fn open() -> Profile {
    Profile::open("ade").await
}

#[tokio::test]
async fn the_protocol_holds() {
    open().await.conforms().await;
}

/// §1.1, §1.5, §2.1.
#[tokio::test]
async fn its_own_entries_in_its_own_stream_are_tasks_and_0_goes_first() {
    let queue = open().await;
    assert_eq!((queue.keys.task.as_str(), queue.keys.group.as_str()), ("ade:queue:tasks", "ade-workers"));
    let payload = r#"{"kind":"message","text":"hello"}"#;
    for (id, priority) in [("nine", "9"), ("five", "5"), ("zero", "0")] {
        queue.xadd(&[("taskId", id), ("payload", payload), ("priority", priority)]).await;
    }
    queue.xadd(&[("taskId", "none"), ("payload", payload)]).await;
    let claimed = queue.claim(10).await;
    let order: Vec<_> = claimed.iter().map(|task| task.lease.task.as_str()).collect();
    assert_eq!(order, ["zero", "five", "none", "nine"], "5 if none is given, and then the older one");
    assert_eq!(claimed[0].payload.as_str(), payload);
    for task in &claimed {
        queue.succeed(task).await;
    }
    assert_eq!(queue.unacknowledged().await, (0, 0));
    assert_eq!(queue.view(&claimed[0].lease.task).await.state, State::Succeeded);
}

/// §4.1: 1 s · 2ⁿ⁻¹ ≤ 300 s, 10 % more or less.
#[tokio::test]
async fn three_attempts_wait_1_and_2_seconds_a_tenth_more_or_less() {
    let queue = open().await;
    for (dice, waits) in [(LEAST, [900, 1800]), (MOST, [1100, 2200])] {
        let id = queue.add("default").await;
        assert_eq!(queue.waits(&failure(), dice, 9).await, waits);
        queue.record().await;
        assert_eq!(queue.view(&id).await.state, State::Failed, "the third failure");
    }
    queue.enqueue(NewTask { max_retries: Some(12), ..task("default") }).await;
    let waits = queue.waits(&failure(), MOST, 20).await;
    assert_eq!((waits.len(), waits[11]), (12, 330_000), "300 s and a tenth: {waits:?}");
}

/// §3, §6.4.
#[tokio::test]
async fn a_worker_that_is_silent_for_30_seconds_is_lost() {
    let queue = open().await;
    queue.register("host:7:a", None).await;
    let id = queue.add("default").await;
    queue.claim_as("host:7:a").await;
    queue.seconds(29);
    assert!(queue.sweep().await.is_empty());
    // A heartbeat.
    queue.broker.extend(&worker("host:7:a"), &[]).await.expect("answered");
    queue.seconds(29);
    assert!(queue.sweep().await.is_empty(), "heard 29 s ago");
    queue.pass(Duration::from_millis(1001));
    assert_eq!(queue.sweep().await, ["host:7:a"]);
    let again = queue.claim_as("host:7:b").await;
    assert_eq!((again.lease.task, again.crash_count), (id, 1));
    assert!(queue.broker.workers().await.expect("answered").is_empty(), "and no longer registered");
}

/// §3.1, §6.4: processing takes 300 s at most.
#[tokio::test]
async fn what_nobody_renews_for_300_seconds_is_taken_back_and_an_attempt_takes_no_longer() {
    let queue = open().await;
    let id = queue.add("default").await;
    queue.claim_as("host:7:a").await;
    queue.seconds(299);
    assert!(queue.reclaim().await.is_empty());
    queue.seconds(1);
    assert_eq!(queue.reclaim().await, [id]);
    let timeout = queue.policy.timeout_of(&"default".parse().expect("a type"));
    assert_eq!(timeout, Some(Duration::from_secs(300)));
}

/// §3.1: a worker that stops gives its tasks back.
#[tokio::test]
async fn a_worker_that_ends_in_order_gives_its_tasks_back_at_once() {
    let queue = open().await;
    let id = queue.add("default").await;
    let held = queue.claim_as("host:7:a").await;
    queue.broker.release(&worker("host:7:a"), vec![held.lease], Duration::ZERO).await.expect("answered");
    let again = queue.claim_as("host:7:b").await;
    assert_eq!((again.lease.task, again.retry_count, again.crash_count), (id, 0, 0));
}

/// §6.4: an id runs once.
#[tokio::test]
async fn the_same_id_is_the_same_task() {
    let queue = open().await;
    for _ in 0..3 {
        queue.xadd(&[("taskId", "a-1"), ("payload", "{}"), ("priority", "5")]).await;
    }
    let claimed = queue.claim(10).await;
    assert_eq!(claimed.len(), 1);
    queue.succeed(&claimed[0]).await;
    queue.xadd(&[("taskId", "a-1"), ("payload", "{}"), ("priority", "5")]).await;
    assert!(queue.claim(10).await.is_empty());
}

/// §1.2, §2.1: runAfter.
#[tokio::test]
async fn a_task_for_later_is_not_to_be_had_before() {
    let queue = open().await;
    queue.xadd(&[("taskId", "later"), ("payload", "{}"), ("delay_ms", "5000")]).await;
    queue.xadd(&[("taskId", "now"), ("payload", "{}")]).await;
    assert_eq!(queue.drain().await, ["now"]);
    queue.pass(Duration::from_millis(4999));
    assert!(queue.claim(1).await.is_empty());
    queue.pass(Duration::from_millis(1));
    assert_eq!(queue.drain().await, ["later"]);
}

/// §1.3: result, parent, and 7 days.
#[tokio::test]
async fn what_is_finished_is_known_for_seven_days() {
    let queue = open().await;
    let parent = queue.add("default").await;
    queue.succeed(&queue.claim_one().await).await;
    let mut child = task("default");
    child.extras.parent_id = Some(parent);
    let child = queue.enqueue(child).await;
    let outcome = Outcome::result(json!({"report": "done"}));
    queue.settle(&queue.claim_one().await, outcome, LEAST).await;
    queue.seconds(7 * 24 * 3600 - 1);
    queue.broker.retain(windlass::broker::RetainCursor::default(), 100).await.expect("answered");
    let seen = queue.view(&child).await;
    assert_eq!(seen.result.as_ref().map(|result| result.as_str()), Some(r#"{"report":"done"}"#));
    assert!(seen.extras.parent_id.is_some());
    queue.seconds(2);
    queue.broker.retain(windlass::broker::RetainCursor::default(), 100).await.expect("answered");
    assert!(queue.broker.get(&TaskId::clone(&child)).await.expect("answered").is_none());
}
