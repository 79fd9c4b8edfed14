//! `windlass queue`.

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

use serde_json::{Value, json};
use windlass::broker::redis::{Redis, RedisOptions};
use windlass::broker::{Broker, Owner, Takeover};
use windlass::protocol::keys::{AdoptedKeys, Keys};
use windlass::protocol::names::QueueName;
use windlass::protocol::policy::{Mode, Policy};

use super::ground::{Ground, run};
use crate::support::fresh_queue;
use crate::support::servers::{Cluster, Flavor};

fn owner() -> Owner {
    Owner { name: "cli:test".into(), takeover: Takeover::Respect }
}

fn names(list: &Value) -> Vec<&str> {
    list.as_array().expect("a list").iter().map(|queue| queue["queue"].as_str().expect("a name")).collect()
}

#[tokio::test]
async fn a_queue_is_shown_in_numbers_with_the_names_of_its_status() {
    let ground = Ground::new(&Policy::default()).await;
    ground.enqueued(&[]).await;
    ground.enqueued(&["--delay", "1h"]).await;
    let shown = ground.run(&["queue", "get", "-o", "json"]).await.json();
    for (name, value) in [
        ("backlog", json!(1)),
        ("running", json!(0)),
        ("delayed", json!(1)),
        ("retrying", json!(0)),
        ("blocked", json!(0)),
        ("waitingApproval", json!(0)),
        ("deadLettered", json!(0)),
        ("workers", json!(0)),
        ("mode", json!("Running")),
        ("queue", json!(ground.name.to_string())),
        ("owner", json!("cli:test")),
    ] {
        assert_eq!(shown[name], value, "{name}: {shown}");
    }
    let _: jiff::Timestamp = shown["oldestTaskTime"].as_str().expect("a time").parse().expect("RFC 3339");
    ground.run(&["queue", "get"]).await.said(&["Mode:", "Running", "Backlog:", "appendonly is off"]);
}

#[tokio::test]
async fn queues_are_found_with_the_names_that_they_adopted() {
    let ground = Ground::new(&Policy::default()).await;
    let redis = Redis::new(RedisOptions::new(&ground.url)).expect("a usable URL");
    let (tagged, plain) = (fresh_queue(), fresh_queue());
    let adopted = [
        (
            &tagged,
            AdoptedKeys {
                task: Some("{ade}:tasks".into()),
                result: Some("{ade}:results".into()),
                ..Default::default()
            },
        ),
        (
            &plain,
            AdoptedKeys { task: Some("stream:task".into()), group: Some("cg:workers".into()), ..Default::default() },
        ),
    ];
    for (name, names) in &adopted {
        let keys = Keys::adopting(name, names).expect("usable");
        redis.queue(keys).expect("usable").provision(&owner(), &Policy::default()).await.expect("made");
    }
    ground.server.command(&["SET", "windlass:{not a queue}:policy", "x"]).await;
    let list = ground.run(&["queue", "list", "-o", "json"]).await.json();
    let mut expected = [ground.name.to_string(), tagged.to_string(), plain.to_string()];
    expected.sort();
    assert_eq!(names(&list), expected);

    // A raw producer's entry on an adopted stream is the queue's, and the command line sees the same task.
    ground
        .server
        .command(&["XADD", "{ade}:tasks", "*", "task_id", "raw-1", "tool_name", "send", "payload", "{}"])
        .await;
    let of = |name: &QueueName, command: &[&str]| {
        let name = name.to_string();
        let arguments: Vec<String> = command.iter().map(|word| (*word).to_owned()).chain(["-q".into(), name]).collect();
        let url = ground.url.clone();
        async move {
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).chain(["--redis-url", &url]).collect();
            run(&arguments).await
        }
    };
    assert_eq!(of(&tagged, &["queue", "get", "-o", "json"]).await.json()["backlog"], json!(1));
    of(&plain, &["task", "enqueue", "--type", "send", "--payload", "1"]).await.said(&["queued"]);
    let none = ground.run(&["queue", "list", "--namespace", "elsewhere"]).await;
    none.said(&["No queues found."]);
    ground.run(&["queue", "list"]).await.said(&["QUEUE", "BACKLOG", &tagged.to_string()]);
}

#[tokio::test]
async fn the_queues_of_all_nodes_of_a_cluster_are_listed() {
    let cluster = Cluster::start(Flavor::Redis70, 3).await;
    let hosts: Vec<String> = cluster.urls().iter().map(|url| url.trim_start_matches("redis://").to_owned()).collect();
    let url = format!("redis+cluster://{}", hosts.join(","));
    let redis = Redis::new(RedisOptions::new(&url)).expect("a usable URL");
    let mut made: Vec<String> = Vec::new();
    for number in 0..12 {
        let name: QueueName = format!("ns{number}/q{number}").parse().expect("valid");
        redis.queue(Keys::new(&name)).expect("usable").provision(&owner(), &Policy::default()).await.expect("made");
        made.push(name.to_string());
    }
    made.sort();
    let list = run(&["queue", "list", "-o", "json", "--redis-url", &url]).await.json();
    assert_eq!(names(&list), made);
    let one = run(&["queue", "get", "-q", "ns7/q7", "-o", "json", "--redis-url", &url]).await.json();
    assert_eq!(one["queue"], "ns7/q7");
}

#[tokio::test]
async fn a_queue_is_paused_and_resumed_where_no_cluster_owns_it() {
    let ground = Ground::owned_by("dev:emails.yaml", &Policy::default()).await;
    let ran = ground.run(&["queue", "pause", "-o", "json"]).await;
    assert_eq!(ran.json()["mode"], "Paused");
    ran.refused(0, &["windlass dev` applies the manifest's own mode again"]);
    assert_eq!(ground.broker.policy().await.expect("a policy").mode, Mode::Paused);
    ground.enqueued(&[]).await;
    assert!(ground.claim().await.is_empty(), "a paused queue gives out no work");
    ground.run(&["queue", "pause"]).await.said(&["was Paused already"]);
    ground.run(&["queue", "resume"]).await.said(&["is running"]);
    assert_eq!(ground.claim().await.len(), 1);
    assert_eq!(ground.broker.owner().await.expect("read").as_deref(), Some("dev:emails.yaml"));
}

#[tokio::test]
async fn a_queue_of_a_cluster_is_changed_with_kubectl() {
    let name: QueueName = "shop/emails".parse().expect("valid");
    let owner = Owner::kubernetes("5f1c", &name, "77aa");
    let ground = Ground::owned_by(&owner.name, &Policy::default()).await;
    let ran = ground.run(&["queue", "pause"]).await;
    ran.refused(4, &["kubectl -n test patch taskqueue", r#"-p '{"spec":{"mode":"Paused"}}'"#]);
    assert_eq!(ground.broker.policy().await.expect("a policy").mode, Mode::Running);
}

#[tokio::test]
async fn a_policy_that_somebody_else_changes_meanwhile_is_not_overwritten() {
    let ground = Ground::new(&Policy::default()).await;
    let others: Vec<_> = (0..8)
        .map(|number| {
            let broker = ground.broker.clone();
            tokio::spawn(async move {
                let change = |policy: &mut Policy| match number % 2 {
                    0 => policy.retry.max_retries += 1,
                    _ => policy.retry.max_crashes += 1,
                };
                broker.change_policy(change).await
            })
        })
        .collect();
    let mut changed = 0;
    for other in others {
        changed += u32::from(other.await.expect("no panic").is_ok());
    }
    let policy = ground.broker.policy().await.expect("a policy");
    assert_eq!(policy.retry.max_retries + policy.retry.max_crashes, 6 + changed, "each change that was made is there");
}

#[tokio::test]
async fn without_a_terminal_a_watch_prints_a_line_a_queue_and_ends_when_told() {
    let ground = Ground::new(&Policy::default()).await;
    let mut child = ground
        .command(&["queue", "watch", "--interval", "100ms"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let stdout = child.stdout.take().expect("piped");
    let name = ground.name.to_string();
    let seen = tokio::task::spawn_blocking(move || {
        let lines: Vec<String> = BufReader::new(stdout).lines().take(3).map(|line| line.expect("text")).collect();
        assert!(lines.iter().all(|line| line.contains(&name) && line.contains("backlog=0")), "{lines:?}");
        let told = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status();
        assert!(told.expect("kill runs").success());
        child.wait().expect("it ends")
    });
    assert_eq!(seen.await.expect("no panic").code(), Some(0));
}

/// `script` gives the binary a terminal of its own.
#[tokio::test]
async fn in_a_terminal_a_watch_gives_the_screen_back() {
    let ground = Ground::new(&Policy::default()).await;
    let folder = tempfile::tempdir().expect("a folder");
    let pid = folder.path().join("pid");
    let binary = env!("CARGO_BIN_EXE_windlass");
    let line = format!("echo $$ > {}; exec {binary} queue watch --interval 200ms", pid.display());
    let mut command = std::process::Command::new("script");
    command.args(["-qec", &line, "/dev/null"]).env("TERM", "xterm").env("WINDLASS_REDIS_URL", &ground.url);
    let watch = move || {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("it starts");
        let (mut stdout, mut seen) = (child.stdout.take().expect("piped"), Vec::new());
        let mut told = false;
        loop {
            let mut buffer = [0; 4096];
            let length = stdout.read(&mut buffer).expect("readable");
            seen.extend_from_slice(&buffer[..length]);
            let shown = String::from_utf8_lossy(&seen).contains("\x1b[32mRunning");
            if !told && shown {
                let pid = std::fs::read_to_string(&pid).expect("it said who it is");
                let sent = std::process::Command::new("kill").args(["-INT", pid.trim()]).status();
                told = sent.expect("kill runs").success();
            }
            if length == 0 {
                break;
            }
        }
        child.wait().expect("it ends");
        String::from_utf8(seen).expect("UTF-8")
    };
    let seen = tokio::task::spawn_blocking(watch).await.expect("no panic");
    let (enter, leave) =
        (seen.find("\x1b[?1049h").expect("another screen"), seen.rfind("\x1b[?1049l").expect("given back"));
    assert!(enter < leave, "{seen:?}");
    assert!(seen.ends_with("\x1b[?25h\x1b[?1049l"), "the cursor is back, and nothing follows: {seen:?}");
    assert!(seen.contains(&ground.name.to_string()) && seen.contains("\x1b[32mRunning"), "in colours: {seen:?}");
}

#[tokio::test]
async fn no_color_means_no_colours_in_a_terminal_too() {
    let ground = Ground::new(&Policy::default()).await;
    let binary = env!("CARGO_BIN_EXE_windlass");
    let shown = async |no_color: &str| {
        let mut command = std::process::Command::new("script");
        command.args(["-qec", &format!("{binary} queue list"), "/dev/null"]).env("TERM", "xterm");
        command.env("WINDLASS_REDIS_URL", &ground.url).env("NO_COLOR", no_color);
        super::ground::run_command(command, None).await.stdout
    };
    assert!(shown("").await.contains("\x1b[32mRunning"), "an empty NO_COLOR says nothing");
    let plain = shown("1").await;
    assert!(plain.contains("Running") && !plain.contains('\x1b'), "{plain:?}");
}
