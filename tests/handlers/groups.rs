//! A handler's processes end with its attempt, all of them, however it ends.

use std::path::Path;
use std::time::Duration;

use serde_json::json;
use windlass::worker::exec::ExecHandler;
use windlass::{Handler, State};

use super::ground::{Ground, gone, lines, shell_options, state_of, task};

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
