//! What Loki's task queue asks for, of `examples/profiles/loki`.

use std::time::Duration;

use serde_json::json;
use windlass::broker::{Broker, Cancelled, Settled};
use windlass::{NewTask, Outcome, Payload, State, TaskId};

use super::profile::{LEAST, MOST, Profile, failure, task};

async fn open() -> Profile {
    Profile::open("loki").await
}

#[tokio::test]
async fn the_protocol_holds() {
    open().await.conforms().await;
}

#[tokio::test]
async fn three_attempts_wait_60_and_120_seconds_and_240_where_there_are_four() {
    let queue = open().await;
    let id = queue.add("eng-backend").await;
    assert_eq!(queue.waits(&failure(), MOST, 9).await, [60_000, 120_000], "no jitter");
    assert_eq!(queue.view(&id).await.state, State::DlqPending, "the third failure");
    queue.record().await;
    assert_eq!(queue.view(&id).await.state, State::Failed);

    let patient = NewTask { max_retries: Some(8), ..task("eng-backend") };
    queue.enqueue(patient).await;
    let minutes: Vec<_> = queue.waits(&failure(), LEAST, 9).await.into_iter().map(|wait| wait / 60_000).collect();
    assert_eq!(minutes, [1, 2, 4, 8, 16, 32, 64, 128], "without a cap");
}

#[tokio::test]
async fn a_rate_limit_waits_as_it_is_told_or_doubles_up_to_an_hour_and_costs_no_attempt() {
    let queue = open().await;
    let id = queue.add("eng-backend").await;
    let limited = |retry_after| Outcome::RateLimited { retry_after, error: "429 too many requests".to_owned() };
    let least = queue.waits(&limited(None), LEAST, 8).await;
    let bases = [60, 120, 240, 480, 960, 1920, 3600, 3600].map(|seconds| seconds * 1000);
    assert_eq!(least, bases);
    let told = queue.waits(&limited(Some(Duration::from_secs(7))), MOST, 1).await;
    assert_eq!(told, [7000], "Retry-After says better");
    let seen = queue.view(&id).await;
    assert_eq!((seen.retry_count, seen.release_count), (0, 9));
    queue.succeed(&queue.claim_one().await).await;

    queue.add("ops-devops").await;
    for (most, base) in queue.waits(&limited(None), MOST, 8).await.into_iter().zip(bases) {
        assert!(most > base && most <= base + base / 10, "{most} of {base}");
    }
}

#[tokio::test]
async fn an_agent_gets_the_most_urgent_of_what_it_can_do() {
    let queue = open().await;
    let mut payload = 0;
    for (kind, priority) in
        [("eng-backend", 1), ("ops-devops", 10), ("eng-frontend", 10), ("eng-backend", 9), ("eng-backend", 10)]
    {
        payload += 1;
        let id: TaskId = format!("{kind}-{priority}").parse().expect("an id");
        let new = NewTask { id, priority: Some(priority), payload: json!({"n": payload}).into(), ..task(kind) };
        queue.enqueue(new).await;
        queue.seconds(1);
    }
    queue.enqueue(NewTask { id: "no-word".parse().expect("an id"), ..task("eng-backend") }).await;
    let engineer = queue.capabilities("engineers");
    let mut order = Vec::new();
    while let Some(task) = queue.claim_with("engineer", &engineer, 1).await.pop() {
        order.push(task.lease.task.to_string());
    }
    assert_eq!(order.len(), 4, "{order:?}");
    assert_eq!(order[..2], ["eng-frontend-10", "eng-backend-10"], "ten first, the older one before");
    assert_eq!(order[2..], ["eng-backend-9", "eng-backend-1"]);
    let operator = queue.claim_with("operator", &queue.capabilities("operations"), 9).await;
    assert_eq!(operator.len(), 1);
}

#[tokio::test]
async fn content_is_the_key_and_what_is_dead_or_cancelled_does_not_count() {
    let queue = open().await;
    let content = |text: &str| {
        let payload = Payload::from_json(text).expect("JSON");
        NewTask { payload, ..task("eng-backend") }
    };
    let add = async |text: &str| queue.enqueue(content(text)).await;
    let first = add(r#"{"action": "fix", "target": "a.rs"}"#).await;
    assert_eq!(add(r#"{"target":"a.rs","action":"fix"}"#).await, first, "pending; the keys are sorted");
    assert_ne!(add(r#"{"action": "fix", "target": "b.rs"}"#).await, first, "other content");
    let running = queue.claim_one().await;
    assert_eq!(running.lease.task, first);
    assert_eq!(add(r#"{"action": "fix", "target": "a.rs"}"#).await, first, "in progress");
    queue.succeed(&running).await;
    assert_eq!(add(r#"{"action": "fix", "target": "a.rs"}"#).await, first, "completed");

    let cancelled = add(r#"{"action": "test"}"#).await;
    let outcome = queue.broker.cancel(&cancelled, "not needed").await.expect("answered");
    assert_eq!(outcome, Cancelled::Done { from: State::Queued });
    let dead = add(r#"{"action": "test"}"#).await;
    assert_ne!(dead, cancelled, "a cancelled task does not count");
    while let Some(task) = queue.claim(1).await.pop() {
        assert_eq!(queue.settle(&task, Outcome::permanent("invalid", "no"), LEAST).await, Settled::Dead);
    }
    queue.record().await;
    assert_eq!(queue.view(&dead).await.state, State::Failed);
    assert_ne!(add(r#"{"action": "test"}"#).await, dead, "and neither does a dead one");
}

#[tokio::test]
async fn a_claim_expires_after_an_hour_and_an_attempt_may_take_one() {
    let queue = open().await;
    let id = queue.add("eng-backend").await;
    let lost = queue.claim_as("agent-1").await;
    queue.seconds(3599);
    queue.sweep().await;
    assert!(queue.reclaim().await.is_empty());
    queue.seconds(1);
    assert_eq!(queue.reclaim().await, [id.clone()]);
    queue.succeed(&queue.claim_as("agent-2").await).await;
    assert_eq!(queue.settle(&lost, failure(), LEAST).await, Settled::LeaseLost);
    assert_eq!(queue.view(&id).await.state, State::Succeeded);
    let timeout = queue.policy.timeout_of(&"eng-backend".parse().expect("a type"));
    assert_eq!(timeout, Some(Duration::from_secs(3600)));
}

#[tokio::test]
async fn a_task_is_cancelled_while_it_runs_and_its_agent_is_told() {
    let queue = open().await;
    let id = queue.add("eng-backend").await;
    let running = queue.claim_one().await;
    let outcome = queue.broker.cancel(&id, "the goal has changed").await.expect("answered");
    assert_eq!(outcome, Cancelled::Done { from: State::Running });
    assert_eq!(queue.settle(&running, Outcome::success(), LEAST).await, Settled::Cancelled);
    let seen = queue.view(&id).await;
    assert_eq!((seen.state, seen.error.as_deref()), (State::Cancelled, Some("the goal has changed")));
}
