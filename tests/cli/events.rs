//! `windlass events`.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use serde_json::Value;
use windlass::Outcome;
use windlass::event_log::EventLog;
use windlass::protocol::policy::{EventRecording, Policy};

use super::ground::{Ground, hasty};
use crate::support::servers::Wait;

#[tokio::test]
async fn what_happened_to_a_task_is_told_in_its_order() {
    let folder = tempfile::tempdir().expect("a folder");
    let url = format!("sqlite://{}/events.db", folder.path().display());
    let ground = Ground::new(&hasty()).await;
    ground.run(&["events"]).await.refused(2, &["no event log was named", "WINDLASS_EVENT_LOG_URL"]);
    let silent = Policy { events: EventRecording::Off, ..hasty() };
    let silent = Ground::new(&silent).await;
    silent.run(&["events"]).await.refused(2, &["no history of queue", "is being recorded"]);
    silent.run(&["events", "-q", "no/where"]).await.refused(3, &["is not on this Redis"]);
    let missing = ground.run(&["events", "--event-log", &url]).await;
    missing.refused(3, &["there is no event log at"]);
    let log = EventLog::connect(&url).await.expect("a log");
    let _leader = ground.lead(Some(log)).await;
    let id = ground.enqueued(&["--trace-id", "trace-1"]).await;
    let task = ground.claim().await.remove(0);
    ground.settle(&task, Outcome::success()).await;
    let kinds = |list: &Value| -> Vec<String> {
        let kind = |event: &Value| event["eventType"].as_str().expect("a kind").to_owned();
        list.as_array().expect("a list").iter().map(kind).collect()
    };
    let mut wait = Wait::new("the task's events");
    loop {
        let told = ground.run(&["events", "--event-log", &url, "--task", &id, "-o", "json"]).await.json();
        if kinds(&told) == ["task.created", "task.claimed", "task.succeeded"] {
            break;
        }
        wait.again(told).await;
    }
    let mut command = ground.command(&["events", "--type", "task.claimed", "--type", "task.created", "-o", "json"]);
    command.env("WINDLASS_EVENT_LOG_URL", &url);
    let two = super::ground::run_command(command, None).await.json();
    assert_eq!(kinds(&two), ["task.created", "task.claimed"]);
    let table = ground.run(&["events", "--event-log", &url, "--trace-id", "trace-1"]).await;
    table.said(&["TIME", "task.claimed", "queued → running", "w1"]);
    let none = ground.run(&["events", "--event-log", &url, "--since", "2090-01-01T00:00:00Z"]).await;
    none.said(&["No events found"]);
    let last = ground.run(&["events", "--event-log", &url, "--limit", "1", "-o", "json"]).await.json();
    assert_eq!(kinds(&last), ["task.succeeded"], "the last ones");
}

#[tokio::test]
async fn following_shows_what_comes_and_ends_when_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let url = format!("sqlite://{}/events.db", folder.path().display());
    let ground = Ground::new(&hasty()).await;
    let log = EventLog::connect(&url).await.expect("a log");
    let _leader = ground.lead(Some(log)).await;
    let first = ground.enqueued(&[]).await;
    let mut child = ground
        .command(&["events", "-f", "--type", "task.created", "--event-log", &url, "-o", "json"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let mut next = move || -> (Value, _) {
        let line = lines.next().expect("a line").expect("text");
        (serde_json::from_str(&line).expect("JSON"), ())
    };
    let (seen, next) = tokio::task::spawn_blocking(move || (next().0, next)).await.expect("no panic");
    assert_eq!(seen["taskId"], first);
    let second = ground.enqueued(&[]).await;
    let mut next = next;
    let seen = tokio::task::spawn_blocking(move || next().0).await.expect("no panic");
    assert_eq!(seen["taskId"], second);
    let told = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(told.expect("kill runs").success());
    let ended = tokio::task::spawn_blocking(move || child.wait()).await.expect("no panic").expect("it ends");
    assert_eq!(ended.code(), Some(0));
}
