//! What an exit status, an output and an input of any size mean.

use serde_json::{Value, json};
use windlass::broker::MAX_ERROR_BYTES;
use windlass::protocol::names::{IdempotencyKey, TenantId, TraceId};
use windlass::protocol::state::RetryReason;
use windlass::worker::exec::{ExecHandler, ExecOptions};
use windlass::{NewTask, Payload, State, TaskView};

use super::ground::{Ground, kind, shell, task};

/// Runs one task of a shell script.
async fn run(script: &str) -> TaskView {
    Ground::new().await.run(shell(script), task(json!({"n": 1}))).await
}

fn result(view: &TaskView) -> Value {
    view.result.as_ref().expect("a result").parse().expect("JSON")
}

fn error(view: &TaskView) -> (&str, &str) {
    (view.error_code.as_deref().unwrap_or_default(), view.error.as_deref().unwrap_or_default())
}

#[tokio::test]
async fn status_0_is_success_and_output_is_the_result() {
    for (script, expected) in [
        ("echo '{\"a\": [1, 2.50]}'", Some(json!({"a": [1, 2.50]}))),
        ("echo hello", Some(json!("hello"))),
        ("printf '  two\\nlines \\n'", Some(json!("two\nlines"))),
        ("printf '\\377'", Some(json!("\u{FFFD}"))),
        ("echo null", Some(json!(null))),
        ("true", None),
        ("echo; echo only an error >&2", None),
    ] {
        let view = run(script).await;
        assert_eq!(view.state, State::Succeeded, "{script}: {view:?}");
        assert_eq!(view.result.as_ref().map(|_| result(&view)), expected, "{script}");
    }
}

#[tokio::test]
async fn a_result_is_kept_byte_for_byte() {
    let odd = r#"{"b":1.00000000000000000001,"a":123456789012345678901234567890}"#;
    let view = run(&format!("echo '{odd}'")).await;
    assert_eq!(view.result.expect("a result").as_str(), odd);
}

#[tokio::test]
async fn other_statuses_and_signals_are_worth_another_attempt() {
    for (script, code, says) in [
        ("exit 1", "exit_1", "the handler exited with status 1"),
        ("echo lost the database >&2; exit 3", "exit_3", "lost the database"),
        ("echo out; echo why >&2; exit 255", "exit_255", "why"),
        ("kill -9 $$", "signal_9", "the handler was killed by signal 9"),
        ("kill -SEGV $$", "signal_11", "the handler was killed by signal 11"),
    ] {
        let view = run(script).await;
        assert_eq!(
            (view.state, view.retry_reason),
            (State::Retrying, Some(RetryReason::Failure)),
            "{script}: {view:?}"
        );
        assert_eq!(error(&view), (code, says), "{script}");
    }
}

#[tokio::test]
async fn status_65_is_permanent() {
    let view = run("echo no such customer >&2; exit 65").await;
    assert_eq!(view.state, State::DlqPending, "{view:?}");
    assert_eq!(error(&view), ("exit_65", "no such customer"));
}

#[tokio::test]
async fn status_75_is_a_rate_limit_that_costs_no_attempt() {
    let view = run("echo 'Retry-After: 1800' >&2; echo slow down >&2; exit 75").await;
    assert_eq!((view.state, view.retry_reason), (State::Retrying, Some(RetryReason::RateLimited)), "{view:?}");
    assert_eq!((view.retry_count, view.release_count), (0, 1));
    let wait = view.due_at.expect("a time").duration_since(view.updated_at);
    assert_eq!(wait.as_secs(), 1800);
    let view = run("exit 75").await;
    let wait = view.due_at.expect("a time").duration_since(view.updated_at);
    assert!(wait.as_secs() >= 60, "the queue's own backoff: {wait:?}");
}

#[tokio::test]
async fn a_task_is_told_on_stdin_and_in_the_environment() {
    let ground = Ground::new().await;
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let mut new = NewTask::new(kind("send"), Payload::from_json("{ \"exact\": 1.0 }").expect("JSON"));
    new.idempotency_key = Some(IdempotencyKey::new("order 7, ünïcode").expect("valid"));
    new.tenant_id = Some(TenantId::new("acme").expect("valid"));
    new.trace_id = Some(TraceId::new(trace).expect("valid"));
    new.extras.labels.insert("team".into(), "a".into());
    let id = new.id.clone();
    let script = r#"
        python3 -c '
import json, os, sys
told = {key: value for key, value in os.environ.items() if key.startswith("WINDLASS_") or key == "TRACEPARENT"}
json.dump({"task": json.load(sys.stdin), "env": told}, sys.stdout)'"#;
    let view = ground.run(shell(script), new).await;
    let (task, env) = (&result(&view)["task"], &result(&view)["env"]);

    let queue = ground.queue.to_string();
    for (name, expected) in [
        ("id", json!(id.as_str())),
        ("queue", json!(queue)),
        ("type", json!("send")),
        ("payload", json!({"exact": 1.0})),
        ("attempt", json!(1)),
        ("retryCount", json!(0)),
        ("crashCount", json!(0)),
        ("releaseCount", json!(0)),
        ("epoch", json!(1)),
        ("priority", json!(5)),
        ("idempotencyKey", json!("order 7, ünïcode")),
        ("executionKey", json!(format!("{id}:0"))),
        ("tenantId", json!("acme")),
        ("traceId", json!(trace)),
        ("traceparent", json!(trace)),
        ("labels", json!({"team": "a"})),
        ("parentId", json!(null)),
        ("replayOf", json!(null)),
    ] {
        assert_eq!(task[name], expected, "{name} in {task}");
    }
    for time in ["createdAt", "claimedAt"] {
        assert!(task[time].as_str().is_some_and(|text| text.parse::<jiff::Timestamp>().is_ok()), "{time} in {task}");
    }
    for (name, expected) in [
        ("WINDLASS_TASK_ID", id.as_str()),
        ("WINDLASS_TYPE", "send"),
        ("WINDLASS_QUEUE", queue.as_str()),
        ("WINDLASS_ATTEMPT", "1"),
        ("WINDLASS_IDEMPOTENCY_KEY", "order 7, ünïcode"),
        ("WINDLASS_EXECUTION_KEY", &format!("{id}:0")),
        ("WINDLASS_TRACE_ID", trace),
        ("WINDLASS_TENANT_ID", "acme"),
        ("TRACEPARENT", trace),
    ] {
        assert_eq!(env[name], expected, "{name} in {env}");
    }
}

/// 50 MB do not fit into a pipe: whoever writes all before it reads hangs.
#[tokio::test]
async fn input_of_any_size_never_blocks() {
    let ground = Ground::roomy().await;
    let payload = json!("x".repeat(50_000_000));
    let view = ground.run(shell("wc -c"), task(payload.clone())).await;
    assert!(result(&view).as_u64().is_some_and(|read| read > 50_000_000), "{view:?}");
    // Echoed back while it is still being written, into a bound that cuts it off.
    let view = ground.run(shell("cat"), task(payload.clone())).await;
    assert_eq!(error(&view).0, "result_too_large");
    // Never read.
    let view = ground.run(shell("echo done"), task(payload.clone())).await;
    assert_eq!(result(&view), json!("done"));
    // Closed at once.
    let view = ground.run(shell("exec 0<&-; echo done"), task(payload)).await;
    assert_eq!(result(&view), json!("done"));
}

#[tokio::test]
async fn endless_output_is_a_permanent_failure_that_holds_nobody() {
    for script in ["yes", "head -c 100000000 /dev/zero; sleep 1000", "yes | head -c 1048577"] {
        let view = run(script).await;
        assert_eq!(view.state, State::DlqPending, "{script}: {view:?}");
        assert_eq!(error(&view).0, "result_too_large", "{script}");
    }
    let view = run("yes | tr -d '\\n' | head -c 1048574").await;
    assert_eq!(view.state, State::Succeeded, "just within the bound, with its quotes");
}

#[tokio::test]
async fn of_a_flood_of_errors_the_end_is_kept() {
    let script = "yes 'ünïcode noise' | head -c 100000000 >&2; echo the last words >&2; exit 1";
    let view = run(script).await;
    let (code, said) = error(&view);
    assert_eq!(code, "exit_1");
    assert!(said.ends_with("the last words"), "{said}");
    assert!(said.len() <= MAX_ERROR_BYTES && said.len() > MAX_ERROR_BYTES - 100, "{}", said.len());
    assert!(!said.contains('\u{FFFD}'), "no half characters");
}

#[tokio::test]
async fn a_program_that_vanishes_is_worth_another_attempt() {
    let place = tempfile::tempdir().expect("a directory");
    let program = place.path().join("handler");
    let write = |mode: u32, text: &str| {
        use std::os::unix::fs::PermissionsExt;
        std::fs::write(&program, text).expect("written");
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(mode)).expect("set");
    };
    write(0o755, "#!/no/such/interpreter\n");
    let handler = || ExecHandler::new(ExecOptions::new([&program])).expect("usable");
    let ground = Ground::new().await;
    let view = ground.run(handler(), task(json!(1))).await;
    assert_eq!((view.state, error(&view).0), (State::Retrying, "handler_not_found"), "{view:?}");
    write(0o755, "this is no program\n");
    let view = ground.run(handler(), task(json!(1))).await;
    assert_eq!((view.state, error(&view).0), (State::Retrying, "handler_not_started"), "{view:?}");
    let handler = handler();
    std::fs::remove_file(&program).expect("removed");
    let view = ground.run(handler, task(json!(1))).await;
    assert_eq!((view.state, error(&view).0), (State::Retrying, "handler_not_found"), "{view:?}");
}

#[tokio::test]
async fn a_handler_runs_in_its_directory_with_its_own_environment() {
    let place = tempfile::tempdir().expect("a directory");
    let mut options = ExecOptions::new(["sh", "-c", "pwd; echo $COLOUR"]);
    options.directory = Some(place.path().to_owned());
    options.environment = vec![("COLOUR".into(), "green".into())];
    let view = Ground::new().await.run(ExecHandler::new(options).expect("usable"), task(json!(1))).await;
    let expected = format!("{}\ngreen", place.path().canonicalize().expect("there").display());
    assert_eq!(result(&view), json!(expected));
}
