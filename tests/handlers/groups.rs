//! A handler's processes end with its attempt, all of them, however it ends.

use std::path::Path;
use std::time::Duration;

use serde_json::json;
use windlass::broker::Broker;
use windlass::protocol::backoff::{Backoff, Jitter, Strategy};
use windlass::protocol::policy::{Policy, Retry};
use windlass::worker::exec::ExecHandler;
use windlass::worker::http::{HttpHandler, HttpOptions};
use windlass::{Handler, NewTask, State};

use super::ground::{Ground, gone, lines, shell_options, state_of, task};
use crate::support::servers::LIMIT;

/// A script that starts a child and a grandchild, which write their numbers
/// down and ignore polite requests, and then goes on with `rest`.
fn family(place: &Path, rest: &str) -> String {
    let file = place.join("pids").display().to_string();
    format!(
        "trap '' TERM
         bash -c 'trap \"\" TERM; (echo $BASHPID >> {file}; while :; do sleep 0.1; done) & echo $$ >> {file}; wait' \
         > /dev/null 2>&1 &
         echo $$ >> {file}
         while [ $(wc -l < {file}) -lt 3 ]; do sleep 0.01; done
         {rest}"
    )
}

async fn pids(place: &Path) -> Vec<u32> {
    lines(&place.join("pids"), 3).await.iter().map(|line| line.parse().expect("a number")).collect()
}

fn handler(script: &str, kill_after: Duration) -> ExecHandler {
    let mut options = shell_options(script);
    options.kill_after = kill_after;
    ExecHandler::new(options).expect("there is a shell")
}

const LONG: Duration = Duration::from_secs(3600);

#[tokio::test]
async fn what_a_handler_leaves_behind_ends_with_it() {
    let place = tempfile::tempdir().expect("a directory");
    for (rest, state) in [("echo done", State::Succeeded), ("exit 1", State::Retrying), ("kill -9 $$", State::Retrying)]
    {
        let view = Ground::new().await.run(handler(&family(place.path(), rest), LONG), task(json!(1))).await;
        assert_eq!(view.state, state, "{rest}");
        for pid in pids(place.path()).await {
            gone(pid).await;
        }
        std::fs::remove_file(place.path().join("pids")).expect("removed");
    }
}

/// The worker's hard deadline, and its own end, drop the handler.
#[tokio::test]
async fn a_handler_that_is_dropped_is_killed_with_all_its_processes() {
    let (place, ground) = (tempfile::tempdir().expect("a directory"), Ground::new().await);
    ground.enqueue(&[task(json!(1))]).await;
    let context = ground.claim().await;
    let handler = handler(&family(place.path(), "wait"), LONG);
    let pids = tokio::select! {
        outcome = handler.handle(&context) => panic!("it ended by itself: {outcome:?}"),
        pids = pids(place.path()) => pids,
    };
    for pid in pids {
        gone(pid).await;
    }
}

/// The pipe is held by somebody who left the group: nobody can wait for its end.
#[tokio::test]
async fn a_grandchild_that_keeps_the_output_open_does_not_hold_the_attempt() {
    let place = tempfile::tempdir().expect("a directory");
    let file = place.path().join("pid");
    for (how, left) in [("", false), ("setsid", true)] {
        let script = format!("{how} sleep 3600 & echo $! > {}; echo '\"done\"'", file.display());
        let view = Ground::new().await.run(handler(&script, LONG), task(json!(1))).await;
        assert_eq!(view.result.expect("what was written in time").as_str(), "\"done\"");
        let pid: u32 = lines(&file, 1).await[0].parse().expect("a number");
        if left {
            assert!(state_of(pid).is_some(), "a new session is out of reach, and is not waited for");
            let killed = std::process::Command::new("kill").args(["-9", &pid.to_string()]).status();
            assert!(killed.expect("kill runs").success());
        }
        gone(pid).await;
    }
}

#[tokio::test]
async fn a_handler_may_close_its_output_and_go_on() {
    let script = "exec >&- 2>&- <&-; sleep 0.3; exit 65";
    let view = Ground::new().await.run(handler(script, LONG), task(json!(1))).await;
    assert_eq!((view.state, view.error_code.as_deref()), (State::DlqPending, Some("exit_65")));
}

/// A queue whose workers notice a cancellation soon.
async fn attentive() -> Ground {
    let policy = Policy {
        heartbeat_period: Duration::from_millis(200),
        visibility_timeout: Duration::from_secs(30),
        ..Policy::default()
    };
    Ground::with(&policy).await
}

fn within(timeout: Duration) -> NewTask {
    let mut new = task(json!(1));
    new.extras.timeout_ms = Some(timeout.as_millis() as u64);
    new
}

/// closes: handler ignores cancellation, active for ever
#[tokio::test]
async fn a_timeout_ends_the_whole_group_however_it_is_asked() {
    let (place, ground) = (tempfile::tempdir().expect("a directory"), attentive().await);
    let worker = ground.worker(handler(&family(place.path(), "wait"), Duration::from_millis(300)), 2);
    let new = within(Duration::from_secs(1));
    ground.enqueue(std::slice::from_ref(&new)).await;
    let pids = pids(place.path()).await;
    let view = ground.until(&new.id, State::Retrying).await;
    assert_eq!((view.error_code.as_deref(), view.retry_count), (Some("timeout"), 1), "{view:?}");
    for pid in pids {
        gone(pid).await;
    }
    worker.end().await;
}

#[tokio::test]
async fn a_cancelled_task_ends_with_its_whole_group() {
    let (place, ground) = (tempfile::tempdir().expect("a directory"), attentive().await);
    let worker = ground.worker(handler(&family(place.path(), "wait"), Duration::from_millis(300)), 2);
    let new = task(json!(1));
    ground.enqueue(std::slice::from_ref(&new)).await;
    let pids = pids(place.path()).await;
    ground.broker.cancel(&new.id, "not needed").await.expect("cancelled");
    for pid in pids {
        gone(pid).await;
    }
    assert_eq!(ground.view(&new.id).await.state, State::Cancelled);
    worker.end().await;
}

/// Many programs end a SIGTERM with status 0, and half of the work.
#[tokio::test]
async fn a_polite_end_is_heard_and_is_no_success() {
    let ground = attentive().await;
    let script = "trap 'echo cleaned up >&2; exit 0' TERM; echo '\"half\"'; while :; do sleep 0.05; done";
    let worker = ground.worker(handler(script, LONG), 2);
    let new = within(Duration::from_millis(500));
    ground.enqueue(std::slice::from_ref(&new)).await;
    let view = ground.until(&new.id, State::Retrying).await;
    assert_eq!(view.error_code.as_deref(), Some("timeout"));
    assert!(view.error.as_deref().is_some_and(|error| error.ends_with("cleaned up")), "{view:?}");
    worker.end().await;
}

#[tokio::test]
async fn a_handler_is_told_until_when_it_may_run() {
    let ground = attentive().await;
    let script = "python3 -c 'import json, sys; json.dump(json.load(sys.stdin)[\"deadline\"], sys.stdout)'";
    let worker = ground.worker(handler(script, LONG), 2);
    let new = within(Duration::from_secs(3600));
    ground.enqueue(std::slice::from_ref(&new)).await;
    let view = ground.until(&new.id, State::Succeeded).await;
    let told: jiff::Timestamp = view.result.expect("a result").parse().expect("a time");
    let ahead = told.duration_since(view.created_at).as_secs();
    assert!((3590..3700).contains(&ahead), "{ahead}");
    worker.end().await;
}

#[tokio::test]
async fn many_processes_at_once_settle_all_their_tasks() {
    let ground = Ground::new().await;
    let worker = ground.worker(handler("sleep 0.0$((RANDOM % 9)); cat > /dev/null; echo $WINDLASS_TASK_ID", LONG), 16);
    let tasks: Vec<_> = (0..100).map(|n| task(json!(n))).collect();
    ground.enqueue(&tasks).await;
    for task in &tasks {
        let view = ground.until(&task.id, State::Succeeded).await;
        assert_eq!(view.result.expect("its own id").as_str(), format!("\"{}\"", task.id));
    }
    let summary = worker.end().await;
    assert_eq!((summary.settled, summary.unsettled), (100, 0));
}

/// An HTTP handler cannot be killed; its request is dropped, which it can see.
#[tokio::test]
async fn a_request_is_dropped_when_its_task_is_cancelled() {
    let ground = attentive().await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}/", listener.local_addr().expect("bound"));
    let worker = ground.worker(HttpHandler::new(HttpOptions::new(url)).expect("usable"), 2);
    let new = task(json!(1));
    ground.enqueue(std::slice::from_ref(&new)).await;
    let (mut stream, _) = listener.accept().await.expect("the request");
    ground.until(&new.id, State::Running).await;
    ground.broker.cancel(&new.id, "not needed").await.expect("cancelled");
    // The answer never comes, and the connection ends.
    let mut request = Vec::new();
    let end = tokio::time::timeout(LIMIT, tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut request)).await;
    end.expect("the connection is closed").ok();
    worker.end().await;

    // A slow answer is cut off the same way.
    let ground = attentive().await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}/", listener.local_addr().expect("bound"));
    let worker = ground.worker(HttpHandler::new(HttpOptions::new(url)).expect("usable"), 2);
    let new = within(Duration::from_secs(1));
    ground.enqueue(std::slice::from_ref(&new)).await;
    let (mut stream, _) = listener.accept().await.expect("the request");
    let head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n";
    tokio::io::AsyncWriteExt::write_all(&mut stream, head).await.expect("written");
    let dripping = tokio::spawn(async move {
        while tokio::io::AsyncWriteExt::write_all(&mut stream, b"x").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    let view = ground.until(&new.id, State::Retrying).await;
    assert_eq!(view.error_code.as_deref(), Some("timeout"));
    dripping.await.expect("the connection is closed");
    worker.end().await;
}

/// A release costs no attempt, a failure does; the execution's key follows the failures.
#[tokio::test]
async fn a_handler_is_told_which_attempt_it_is() {
    let policy = Policy::default();
    let backoff = Backoff { strategy: Strategy::Fixed { base_ms: 1 }, max_ms: 1, jitter: Jitter::None };
    let retry = Retry { backoff, ..policy.retry.clone() };
    let ground = Ground::with(&Policy { retry, ..policy }).await;
    let script = "case $WINDLASS_EXECUTION_KEY in *:0) exit 1;; esac; echo $WINDLASS_ATTEMPT";
    let new = task(json!(1));
    ground.enqueue(std::slice::from_ref(&new)).await;
    let context = ground.claim().await;
    let lease = context.task().lease.clone();
    ground.broker.release(context.worker(), vec![lease], Duration::ZERO).await.expect("given back");
    let worker = ground.worker(handler(script, LONG), 1);
    let view = ground.until(&new.id, State::Succeeded).await;
    assert_eq!(view.result.expect("a result").as_str(), "2");
    worker.end().await;
}
