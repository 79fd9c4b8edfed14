//! `windlass task get`, `list`, `cancel`, `wait` and `explain`.

use std::time::Duration;

use serde_json::{Value, json};
use windlass::broker::Outcome;
use windlass::protocol::policy::{Mode, Policy};

use super::ground::{Ground, hasty};

/// What scripts rely on.
const NAMES: [&str; 25] = [
    "id",
    "queue",
    "type",
    "state",
    "priority",
    "payload",
    "retryCount",
    "crashCount",
    "releaseCount",
    "attempt",
    "epoch",
    "idempotencyKey",
    "traceId",
    "tenantId",
    "labels",
    "parentId",
    "createdAt",
    "updatedAt",
    "startedAt",
    "finishedAt",
    "worker",
    "result",
    "error",
    "errorCode",
    "dlqId",
];

#[tokio::test]
async fn a_task_is_shown_with_every_name_that_scripts_rely_on() {
    let ground = Ground::new(&hasty()).await;
    let id = ground.enqueued(&[]).await;
    let task = ground.claim().await.remove(0);
    let running = ground.run(&["task", "get", &id, "-o", "json"]).await.json();
    for name in NAMES {
        assert!(running.get(name).is_some(), "{name} is missing: {running}");
    }
    assert_eq!(
        (&running["state"], &running["attempt"], &running["worker"]),
        (&json!("running"), &json!(1), &json!("w1"))
    );
    ground.settle(&task, Outcome::result(json!({"sent": true}))).await;
    let done = ground.run(&["task", "get", &id, "-o", "json"]).await.json();
    assert_eq!((&done["state"], &done["result"]), (&json!("succeeded"), &json!({"sent": true})));
    let finished: jiff::Timestamp = done["finishedAt"].as_str().expect("a time").parse().expect("RFC 3339");
    assert!(done["finishedAt"].as_str().expect("a time").ends_with('Z'), "in UTC: {finished}");

    let yaml = ground.run(&["task", "get", &id, "-o", "yaml"]).await;
    let yaml: Value = serde_yaml::from_str(&yaml.stdout).expect("YAML");
    assert_eq!(yaml, done);
    let table = ground.run(&["task", "get", &id]).await;
    table.said(&["State:", "succeeded", r#"{"sent":true}"#]);
    assert!(!table.stdout.contains('\x1b'), "no colours in a pipe: {table:?}");
}

#[tokio::test]
async fn an_unknown_task_is_status_3_everywhere() {
    let ground = Ground::new(&Policy::default()).await;
    for command in ["get", "cancel", "wait", "explain"] {
        let ran = ground.run(&["task", command, "nobody", "-o", "json"]).await;
        ran.refused(3, &["knows no task nobody", "check the id and the queue"]);
        assert_eq!(ran.stdout, "");
    }
}

#[tokio::test]
async fn tasks_are_listed_by_state_type_and_label() {
    let ground = Ground::new(&hasty()).await;
    let first = ground.enqueued(&["--label", "order=17"]).await;
    let task = ground.claim().await.remove(0);
    ground.settle(&task, Outcome::success()).await;
    let second = ground.enqueued(&["--priority", "9", "--tenant", "acme"]).await;
    ground.run(&["task", "enqueue", "--type", "render", "--payload", "1", "--delay", "1h"]).await.said(&["scheduled"]);
    let ids = |list: Value| -> Vec<String> {
        list.as_array().expect("a list").iter().map(|task| task["id"].as_str().expect("an id").to_owned()).collect()
    };
    let list = async |more: &[&str]| ids(ground.run(&[&["task", "list", "-o", "json"], more].concat()).await.json());
    assert_eq!(list(&[]).await.len(), 3);
    assert_eq!(list(&["--state", "queued,running"]).await, std::slice::from_ref(&second));
    assert_eq!(list(&["--type", "render"]).await.len(), 1);
    assert_eq!(list(&["--label", "order=17"]).await, [first]);
    assert_eq!(list(&["--tenant", "acme"]).await, [second]);
    assert_eq!(list(&["--limit", "2"]).await.len(), 2);
    assert_eq!(list(&["--state", "failed"]).await.len(), 0);
    ground.run(&["task", "list"]).await.said(&["ID ", "STATE", "scheduled", "queued", "succeeded"]);
    ground.run(&["task", "list", "--state", "failed"]).await.said(&["No tasks found."]);
    ground.run(&["task", "list", "--state", "sleeping"]).await.refused(2, &["unknown state", "use one of scheduled"]);
}

#[tokio::test]
async fn a_task_is_cancelled_once_and_not_after_its_end() {
    let ground = Ground::new(&hasty()).await;
    let id = ground.enqueued(&[]).await;
    let ran = ground.run(&["task", "cancel", &id, "--reason", "order was withdrawn", "-o", "json"]).await.json();
    assert_eq!((&ran["state"], &ran["from"]), (&json!("cancelled"), &json!("queued")));
    ground.run(&["task", "cancel", &id]).await.said(&["was cancelled before"]);
    ground.run(&["task", "explain", &id]).await.said(&["was cancelled", "(order was withdrawn)"]);
    let done = ground.enqueued(&[]).await;
    let task = ground.claim().await.remove(0);
    ground.settle(&task, Outcome::success()).await;
    let ran = ground.run(&["task", "cancel", &done]).await;
    ran.refused(4, &["is succeeded and can no longer be cancelled", "WF_STATE_TRANSITION_INVALID"]);
    let both = ground.run(&["task", "cancel", "nobody", &ground.enqueued(&[]).await]).await;
    both.refused(3, &["knows no task nobody"]);
    assert!(both.stdout.contains("is cancelled (it was queued)"), "the other one is done: {both:?}");
}

#[tokio::test]
async fn waiting_ends_with_the_final_state() {
    let ground = Ground::new(&hasty()).await;
    let good = ground.enqueued(&[]).await;
    let wait = tokio::spawn(super::ground::run_command(ground.command(&["task", "wait", &good, "-o", "json"]), None));
    let task = ground.claim().await.remove(0);
    ground.settle(&task, Outcome::result(json!(42))).await;
    assert_eq!(wait.await.expect("no panic").json()["result"], json!(42));

    let bad = ground.enqueued(&[]).await;
    let wait = tokio::spawn(super::ground::run_command(ground.command(&["task", "wait", &bad, "-o", "json"]), None));
    ground.let_die("no such address").await;
    let ran = wait.await.expect("no panic");
    ran.refused(1, &["has failed: no such address"]);
    let seen: Value = serde_json::from_str(&ran.stdout).expect("the task is printed all the same");
    assert_eq!(seen["state"], "failed");
    assert_eq!(seen["dlqId"], format!("{bad}#1"));

    let cancelled = ground.enqueued(&[]).await;
    ground.run(&["task", "cancel", &cancelled]).await.said(&["is cancelled"]);
    ground.run(&["task", "wait", &cancelled]).await.refused(1, &["has been cancelled"]);

    let never = ground.enqueued(&[]).await;
    let ran = ground.run(&["task", "wait", &never, "--timeout", "300ms"]).await;
    ran.refused(1, &["is still queued after 300ms", "windlass task explain"]);
}

#[tokio::test]
async fn a_task_explains_itself() {
    let ground = Ground::new(&hasty()).await;
    let id = ground.enqueued(&["--max-retries", "1"]).await;
    let explain = async |says: &[&str]| ground.run(&["task", "explain", &id]).await.said(says);
    explain(&["is ready, but no worker is registered", "windlass worker -q"]).await;
    ground.register("w2", &["render"]).await;
    explain(&["none of the 1 registered workers takes the type send"]).await;
    ground.register("w1", &["send"]).await;
    explain(&["is ready and next", "1 worker takes its type"]).await;
    ground.run(&["queue", "pause"]).await.said(&["is paused"]);
    explain(&["but the queue is paused", "windlass queue resume"]).await;
    ground.run(&["queue", "resume"]).await.said(&["is running"]);
    let task = ground.claim().await.remove(0);
    explain(&["runs on worker w1 since", "attempt 1", "was last heard"]).await;
    ground
        .settle(&task, Outcome::RateLimited { retry_after: Some(Duration::from_secs(3600)), error: "slow".into() })
        .await;
    explain(&["was rate limited", "slow", "it may run again in"]).await;

    let dead = ground.enqueued(&[]).await;
    ground.let_die("no such address").await;
    let told = ground.run(&["task", "explain", &dead, "-o", "json"]).await.json();
    assert_eq!(told["state"], "failed");
    assert!(told["why"].as_str().expect("words").contains("broken: no such address"), "{told}");
    assert!(told["next"].as_str().expect("words").contains(&format!("windlass dlq replay '{dead}#1'")), "{told}");
    ground.run(&["dlq", "discard", &dead, "--reason", "a test order"]).await.said(&["is discarded"]);
    let told = ground.run(&["task", "explain", &dead]).await;
    told.said(&["broken: no such address", "its dead letter was discarded by ada (a test order)"]);
    assert!(!told.stdout.contains("replay"), "what cannot be done is not advised: {told:?}");
    let retried = ground.enqueued(&["--max-retries", "2"]).await;
    let task = ground.claim().await.remove(0);
    ground.settle(&task, Outcome::failure("smtp", "no answer")).await;
    let told = ground.run(&["task", "explain", &retried]).await;
    told.said(&["waits for retry 1 of 2 after smtp: no answer"]);
    let late = ground.enqueued(&["--delay", "1h"]).await;
    ground.run(&["task", "explain", &late]).await.said(&["waits for its time", "it is queued in 59m"]);
    let closed = Policy { mode: Mode::Closed, ..hasty() };
    windlass::broker::Broker::provision(
        &*ground.broker,
        &windlass::broker::Owner { name: "cli:test".into(), takeover: windlass::broker::Takeover::Respect },
        &closed,
    )
    .await
    .expect("closed");
    ground.run(&["task", "explain", &late]).await.said(&["waits for its time"]);
}
