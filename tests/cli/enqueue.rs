//! `windlass task enqueue`.

use std::process::Stdio;

use serde_json::{Value, json};
use windlass::broker::Broker;
use windlass::protocol::policy::{Mode, Policy};

use super::ground::{Ground, hasty};

#[tokio::test]
async fn a_task_is_enqueued_with_all_that_was_said_of_it() {
    let ground = Ground::new(&Policy::default()).await;
    let options = [
        "task",
        "enqueue",
        "--type",
        "send",
        "--payload",
        r#"{"n": 12345678901234567890123.50}"#,
        "--priority",
        "7",
        "--delay",
        "1h",
        "--idempotency-key",
        "order 17",
        "--tenant",
        "acme",
        "--trace-id",
        "t-1",
        "--label",
        "order=17",
        "--label",
        "kind=a=b",
        "--parent",
        "p1",
        "--max-retries",
        "5",
        "--timeout",
        "30s",
        "-o",
        "json",
    ];
    let made = ground.run(&options).await.json();
    assert_eq!(made["queue"], ground.name.to_string());
    assert_eq!((&made["state"], &made["created"]), (&json!("scheduled"), &json!(true)));
    let keys: Vec<_> = made.as_object().expect("an object").keys().collect();
    assert_eq!(keys.len(), 4, "{made}");

    let again = ground.run(&options).await.json();
    assert_eq!((&again["id"], &again["created"]), (&made["id"], &json!(false)), "the key was known");

    let got = ground.run(&["task", "get", made["id"].as_str().expect("an id"), "-o", "json"]).await;
    assert!(got.stdout.contains(r#"{"n": 12345678901234567890123.50}"#), "byte for byte: {got:?}");
    let got = got.json();
    for (name, value) in [
        ("type", json!("send")),
        ("priority", json!(7)),
        ("idempotencyKey", json!("order 17")),
        ("tenantId", json!("acme")),
        ("traceId", json!("t-1")),
        ("labels", json!({"order": "17", "kind": "a=b"})),
        ("parentId", json!("p1")),
        ("maxRetries", json!(5)),
        ("timeoutMs", json!(30_000)),
    ] {
        assert_eq!(got[name], value, "{name}");
    }
}

#[tokio::test]
async fn a_time_that_is_given_is_kept() {
    let ground = Ground::new(&Policy::default()).await;
    let at = jiff::Timestamp::from_second(jiff::Timestamp::now().as_second() + 3600).expect("a time");
    let id = ground.enqueued(&["--at", &at.to_string()]).await;
    let got = ground.run(&["task", "get", &id, "-o", "json"]).await.json();
    assert_eq!(got["dueAt"], at.to_string());
}

#[tokio::test]
async fn many_are_one_line_of_json_each() {
    let ground = Ground::new(&Policy::default()).await;
    let made = ground.run(&["task", "enqueue", "--type", "send", "--payload", "{}", "-n", "250", "-o", "json"]).await;
    let made = made.json_lines();
    let ids: std::collections::HashSet<_> = made.iter().map(|task| task["id"].to_string()).collect();
    assert_eq!(ids.len(), 250);
    assert_eq!(ground.broker.counts().await.expect("counted").backlog, 250);
    let few = ground.run(&["task", "enqueue", "--type", "send", "--payload", "{}", "-n", "2"]).await;
    assert_eq!(few.stdout.lines().count(), 3, "a head and two rows: {few:?}");
    let many = ground.run(&["task", "enqueue", "--type", "send", "--payload", "{}", "-n", "1000"]).await;
    many.said(&["1000 tasks enqueued into"]);
    assert_eq!(many.stdout.lines().count(), 1, "their number is enough: {many:?}");
    let yaml = ground.run(&["task", "enqueue", "--type", "send", "--payload", "{}", "-n", "2", "-o", "yaml"]).await;
    let documents: Vec<Value> =
        yaml.stdout.split("---\n").map(|text| serde_yaml::from_str(text).expect("YAML")).collect();
    assert_eq!(documents.len(), 2);
    assert_eq!(documents[0]["created"], json!(true));
}

#[tokio::test]
async fn bad_json_is_refused_with_its_position() {
    let ground = Ground::new(&Policy::default()).await;
    let ran = ground.run(&["task", "enqueue", "--type", "send", "--payload", "{\"a\":\n  oops}"]).await;
    ran.refused(2, &["the payload is not JSON", "line 2 column 3", "from --payload"]);
    let ran = ground.run_with(&["task", "enqueue", "--type", "send", "--payload", "-"], "{\"a\": ").await;
    ran.refused(2, &["line 1 column", "from standard input"]);
    assert_eq!(ground.broker.counts().await.expect("counted").backlog, 0);
}

#[tokio::test]
async fn a_payload_comes_from_a_file_or_from_standard_input() {
    let ground = Ground::new(&Policy::default()).await;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("payload.json");
    std::fs::write(&file, "{\"from\": \"file\"}\n").expect("written");
    let name = format!("@{}", file.display());
    let id = ground.run(&["task", "enqueue", "--type", "send", "--payload", &name, "-o", "json"]).await.json();
    let got = ground.run(&["task", "get", id["id"].as_str().expect("an id"), "-o", "json"]).await.json();
    assert_eq!(got["payload"], json!({"from": "file"}));

    let piped = ground.run_with(&["task", "enqueue", "--type", "send", "--payload", "-", "-o", "json"], "[1, 2]").await;
    let got = ground.run(&["task", "get", piped.json()["id"].as_str().expect("an id"), "-o", "json"]).await.json();
    assert_eq!(got["payload"], json!([1, 2]));

    let ran = ground.run(&["task", "enqueue", "--type", "send", "--payload", "@/nowhere/at/all.json"]).await;
    ran.refused(2, &["the file /nowhere/at/all.json cannot be read"]);
}

/// Whoever writes may be slow; that the command waits is said, and what comes in the end counts.
#[tokio::test]
async fn a_payload_on_standard_input_that_does_not_end_is_waited_for_with_a_sentence() {
    use std::io::{BufRead, BufReader, Write};
    let ground = Ground::new(&Policy::default()).await;
    let mut command = ground.command(&["task", "enqueue", "--type", "send", "--payload", "-", "-o", "json"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let waits = move || {
        let mut child = command.spawn().expect("it starts");
        let mut stdin = child.stdin.take().expect("piped");
        stdin.write_all(b"[1, ").expect("it reads");
        let mut said = String::new();
        BufReader::new(child.stderr.take().expect("piped")).read_line(&mut said).expect("text");
        assert!(said.contains("standard input has not ended yet"), "{said}");
        assert!(child.try_wait().expect("asked").is_none(), "it waits");
        stdin.write_all(b"2]").expect("it still reads");
        drop(stdin);
        child.wait_with_output().expect("it ends")
    };
    let output = tokio::task::spawn_blocking(waits).await.expect("no panic");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(ground.broker.counts().await.expect("counted").backlog, 1);
}

/// The writer never ends; the command reads no more than the queue takes.
#[tokio::test]
async fn a_payload_on_standard_input_that_is_too_large_is_refused_while_it_is_read() {
    let mut policy = Policy::default();
    policy.limits.payload_bytes = 1000;
    let ground = Ground::new(&policy).await;
    let endless = ground.command(&["task", "enqueue", "--type", "send", "--payload", "-"]);
    let run = move || {
        let mut command = endless;
        let source = std::fs::File::open("/dev/zero").expect("a source without end");
        super::ground::ran(command.stdin(source).output().expect("it ends"))
    };
    let ran = tokio::task::spawn_blocking(run).await.expect("no panic");
    ran.refused(2, &["more than the 1000 bytes that this queue takes", "send a reference"]);
    let large = format!("\"{}\"", "x".repeat(1000));
    ground.run(&["task", "enqueue", "--type", "send", "--payload", &large]).await.refused(2, &["at most 1000"]);
}

#[tokio::test]
async fn a_batch_is_enqueued_line_by_line() {
    let ground = Ground::new(&hasty()).await;
    let lines: String = (0..150).map(|n| format!("{{\"payload\":{n},\"idempotencyKey\":\"k{n}\"}}\n\n")).collect();
    let batch = ["task", "enqueue", "--type", "send", "--batch", "-", "-o", "json"];
    let made = ground.run_with(&batch, lines.clone()).await.json_lines();
    assert_eq!(made.len(), 150);
    assert!(made.iter().all(|task| task["created"] == json!(true)));
    let again = ground.run_with(&batch, lines).await.json_lines();
    assert!(again.iter().zip(&made).all(|(now, then)| now["id"] == then["id"] && now["created"] == json!(false)));
    let own = r#"{"id":"mine","type":"render","payload":{"a":1},"labels":{"x":"y"},"delay":"1h","timeout":"5s"}"#;
    ground.run_with(&batch, own).await.json_lines();
    let got = ground.run(&["task", "get", "mine", "-o", "json"]).await.json();
    assert_eq!((&got["type"], &got["timeoutMs"], &got["labels"]["x"]), (&json!("render"), &json!(5000), &json!("y")));
}

#[tokio::test]
async fn a_bad_line_of_a_file_enqueues_nothing_and_is_named() {
    let ground = Ground::new(&Policy::default()).await;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("tasks.jsonl");
    let mut lines: String = "{\"payload\":1}\n".repeat(250);
    lines += "{\"payload\":1, \"prioritty\":3}\n";
    std::fs::write(&file, &lines).expect("written");
    let path = file.to_str().expect("UTF-8");
    let ran = ground.run(&["task", "enqueue", "--type", "send", "--batch", path]).await;
    ran.refused(2, &["line 251: unknown field `prioritty`", "nothing of"]);
    assert_eq!(ground.broker.counts().await.expect("counted").backlog, 0);
    std::fs::write(&file, "{\"payload\":1}\n{\"priority\":99}\n").expect("written");
    let ran = ground.run(&["task", "enqueue", "--type", "send", "--batch", path]).await;
    ran.refused(2, &["line 2: priority 99 is out of range: use 1 to 10"]);
}

#[tokio::test]
async fn a_bad_line_of_standard_input_leaves_the_steps_before_it() {
    let ground = Ground::new(&Policy::default()).await;
    let lines = "{\"payload\":1}\n".repeat(250) + "nonsense\n";
    let ran = ground.run_with(&["task", "enqueue", "--type", "send", "--batch", "-"], lines).await;
    ran.refused(2, &["line 251: a batch has a JSON object a line", "200 tasks before that were enqueued and stay"]);
    assert_eq!(ground.broker.counts().await.expect("counted").backlog, 200);
}

#[tokio::test]
async fn a_queue_that_is_closed_or_wants_keys_says_so() {
    let closed = Ground::new(&Policy { mode: Mode::Closed, ..Policy::default() }).await;
    let ran = closed.run(&["task", "enqueue", "--type", "send", "--payload", "{}"]).await;
    ran.refused(4, &["is closed and takes no tasks"]);
    let mut policy = Policy::default();
    policy.idempotency.requirement = windlass::protocol::policy::IdempotencyRequirement::Required;
    let strict = Ground::new(&policy).await;
    let ran = strict.run(&["task", "enqueue", "--type", "send", "--payload", "{}"]).await;
    ran.refused(2, &["requires an idempotency key"]);
}
