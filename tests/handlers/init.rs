//! A worker that is the first process of its container.

use std::path::Path;
use std::process::Command;

use serde_json::json;
use windlass::State;

use super::command::{Process, send};
use super::ground::{Ground, task};
use crate::support::servers::Wait;

/// A worker that is process 1 of a namespace of its own.
struct Container {
    process: Process,
}

impl Container {
    fn start(ground: &Ground, place: &Path, options: &[&str], script: &str) -> Self {
        let inner = ground.command();
        let mut command = Command::new("unshare");
        // Its own user namespace lets anybody do this, not only root.
        command.args(["--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child"]);
        command.arg(inner.get_program()).args(inner.get_args()).args(options);
        command.args(["--exec", "--", "bash", "-c", script]);
        for (name, value) in inner.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        Self { process: Process::start(command, place) }
    }

    /// The first process, by its number out here.
    async fn first(&self) -> u32 {
        only_child(self.process.child.id()).await
    }

    /// The worker itself.
    async fn worker(&self) -> u32 {
        only_child(self.first().await).await
    }
}

async fn only_child(parent: u32) -> u32 {
    let mut wait = Wait::new(format!("process {parent} to have a child"));
    loop {
        let path = format!("/proc/{parent}/task/{parent}/children");
        let children = std::fs::read_to_string(path).unwrap_or_default();
        match children.split_whitespace().next() {
            Some(child) => return child.parse().expect("a number"),
            None => wait.again(format!("{children:?}; is `unshare` allowed here?")).await,
        }
    }
}

/// Starts processes that leave it and end as orphans; then says who is first
/// and how many dead nobody has asked for.
const ORPHANS: &str = r#"
    for n in 1 2 3 4 5; do setsid bash -c 'exit 0' > /dev/null 2>&1 < /dev/null & done
    zombies() { grep -l '^State:.Z' /proc/[0-9]*/status 2> /dev/null | wc -l; }
    # Those who are this script's own children go when it does.
    (setsid bash -c 'sleep 0.1 & sleep 0.1 & sleep 0.1 & exit 0' > /dev/null 2>&1 < /dev/null)
    wait
    # Another script that has just ended is one for a moment.
    for n in $(seq 500); do dead=$(zombies); [ $dead = 0 ] && break; sleep 0.02; done
    echo "first: $(cat /proc/1/comm), dead: $dead""#;

#[tokio::test]
async fn orphans_are_buried_and_handlers_still_say_how_they_ended() {
    let (ground, place) = (Ground::new().await, tempfile::tempdir().expect("a directory"));
    let mut container = Container::start(&ground, place.path(), &["--concurrency", "4"], ORPHANS);
    let tasks: Vec<_> = (0..12).map(|n| task(json!(n))).collect();
    ground.enqueue(&tasks).await;
    for task in &tasks {
        let view = ground.until(&task.id, State::Succeeded).await;
        let said = view.result.expect("a result");
        assert_eq!(said.as_str(), "\"first: windlass, dead: 0\"");
    }
    send(container.first().await, "TERM");
    assert_eq!(container.process.ended().await.code(), Some(0), "{}", container.process.log());
    assert!(container.process.log().contains("the worker drains"), "the signal was passed on");
}

#[tokio::test]
async fn the_first_process_ends_as_the_worker_ends() {
    let (ground, place) = (Ground::new().await, tempfile::tempdir().expect("a directory"));
    let mut container = Container::start(&ground, place.path(), &[], "true");
    container.process.logs("the worker has registered").await;
    send(container.worker().await, "KILL");
    assert_eq!(container.process.ended().await.code(), Some(137), "{}", container.process.log());

    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = taken.local_addr().expect("bound").to_string();
    let mut container = Container::start(&ground, place.path(), &["--listen", &address], "true");
    assert_eq!(container.process.ended().await.code(), Some(1), "{}", container.process.log());
}

#[tokio::test]
async fn one_interrupt_reaches_the_worker_once() {
    let (ground, place) = (Ground::new().await, tempfile::tempdir().expect("a directory"));
    let go = place.path().join("go");
    let script = format!("until [ -e {} ]; do sleep 0.02; done", go.display());
    let mut container = Container::start(&ground, place.path(), &[], &script);
    let one = task(json!(1));
    ground.enqueue(std::slice::from_ref(&one)).await;
    ground.until(&one.id, State::Running).await;
    send(container.first().await, "INT");
    container.process.logs("the worker drains").await;
    std::fs::write(&go, "").expect("written");
    assert_eq!(container.process.ended().await.code(), Some(0), "{}", container.process.log());
    assert_eq!(ground.view(&one.id).await.state, State::Succeeded, "it was let finish");
}
