//! Wrong usage, missing servers, and passwords that nobody should see.

use std::time::{Duration, Instant};

use windlass::broker::redis::{Redis, RedisOptions};
use windlass::broker::{Broker, Owner, Takeover};
use windlass::protocol::keys::Keys;
use windlass::protocol::policy::Policy;

use super::ground::{Ground, binary, run, run_command};
use crate::support::servers::{Flavor, Server};

/// A port that nobody listens on, and nobody else can have while this is there.
fn nobody() -> (tokio::net::TcpSocket, u16) {
    let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
    socket.bind("127.0.0.1:0".parse().expect("an address")).expect("a port");
    let port = socket.local_addr().expect("an address").port();
    (socket, port)
}

#[tokio::test]
async fn wrong_usage_is_status_2_and_says_what_is_right() {
    run(&[]).await.refused(2, &["Usage: windlass"]);
    run(&["task", "enqueue", "-q", "q"]).await.refused(2, &["--type <TYPE>", "--payload"]);
    run(&["task", "get", "x"]).await.refused(2, &["--queue <QUEUE>"]);
    run(&["task", "get", "-q", "q"]).await.refused(2, &["<ID>"]);
    run(&["task", "get", "x", "-q", "Not A Queue"]).await.refused(2, &["use NAME or NAMESPACE/NAME"]);
    run(&["task", "get", "x", "-q", "q", "-o", "xml"]).await.refused(2, &["table, json, yaml"]);
    run(&["task", "wait", "x", "-q", "q", "--timeout", "5"]).await.refused(2, &["like 500ms, 30s"]);
    let both = [
        "task",
        "enqueue",
        "-q",
        "q",
        "--type",
        "t",
        "--payload",
        "1",
        "--delay",
        "1s",
        "--at",
        "2030-01-01T00:00:00Z",
    ];
    run(&both).await.refused(2, &["--delay", "--at"]);
    run(&["task", "enqueue", "-q", "q", "--type", "t", "--payload", "1", "-n", "0"]).await.refused(2, &["--count"]);
    run(&["task", "enqueue", "-q", "q", "--type", "a b", "--payload", "1"]).await.refused(2, &["use 1 to 100 letters"]);
    run(&["dlq", "discard", "x#1", "-q", "q"]).await.refused(2, &["--reason"]);
    run(&["dlq", "replay", "-q", "q"]).await.refused(2, &["no dead letters were named", "--all"]);
    run(&["events", "-q", "q"]).await.refused(2, &["no event log was named", "WINDLASS_EVENT_LOG_URL"]);
    run(&["queue", "get", "-q", "q", "--redis-url", "http://x"]).await.refused(2, &["write redis://HOST:PORT"]);
    let mut command = binary(&["queue", "list"]);
    command.env("WINDLASS_LOG_FORMAT", "xml");
    run_command(command, None).await.refused(2, &["use text or json"]);
}

#[tokio::test]
async fn help_and_version_are_no_errors() {
    for arguments in [&["--help"][..], &["task", "enqueue", "--help"], &["help", "dlq"], &["--version"]] {
        let ran = run(arguments).await;
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{arguments:?}");
        assert!(!ran.stdout.contains('\x1b'), "no colours in a pipe");
    }
    run(&["--help"]).await.said(&["WINDLASS_REDIS_URL", "`windlass dev` has a Redis and an event log of its own"]);
    run(&["dev", "--help"]).await.said(&["WINDLASS_REDIS_URL and WINDLASS_EVENT_LOG_URL are not heeded"]);
    run(&["task", "enqueue", "--help"]).await.said(&["Examples:", "--idempotency-key", "steps of 100"]);
}

#[tokio::test]
async fn completion_knows_the_commands() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        run(&["completion", shell]).await.said(&["windlass", "enqueue", "conformance"]);
    }
    run(&["completion", "tcsh"]).await.refused(2, &["bash"]);
}

#[tokio::test]
async fn an_unknown_queue_is_status_3() {
    let ground = Ground::new(&Policy::default()).await;
    for command in [
        &["task", "get", "x"][..],
        &["task", "list"],
        &["task", "enqueue", "--type", "t", "--payload", "1"],
        &["queue", "get"],
        &["queue", "watch"],
        &["queue", "pause"],
        &["dlq", "list"],
        &["conformance"],
    ] {
        let ran = run(&[command, &["-q", "no/where", "--redis-url", &ground.url]].concat()).await;
        ran.refused(3, &["queue no/where is not on this Redis", "windlass queue list"]);
    }
}

/// Says so long before anybody gives up waiting: the limit is the command's own.
#[tokio::test]
async fn without_redis_every_command_fails_in_time_with_status_1() {
    let (_nobody, port) = nobody();
    let url = format!("redis://:hunter2@127.0.0.1:{port}");
    for command in [
        &["task", "get", "x", "-q", "q"][..],
        &["task", "enqueue", "-q", "q", "--type", "t", "--payload", "1"],
        &["queue", "list"],
        &["queue", "watch"],
        &["dlq", "list", "-q", "q"],
    ] {
        // The promise is 5 s; then there is a process to start and to end, and others may keep this machine busy.
        for attempt in 1.. {
            let began = Instant::now();
            let ran = run(&[command, &["--redis-url", &url]].concat()).await;
            let took = began.elapsed();
            ran.refused(1, &["was not reached", "check that it runs"]);
            assert!(!format!("{ran:?}").contains("hunter2"), "{ran:?}");
            if took < Duration::from_secs(5 + 2) {
                break;
            }
            assert!(attempt < 3, "{command:?} took {took:?}, and no less before");
        }
    }
}

#[tokio::test]
async fn a_redis_that_does_not_answer_is_given_up() {
    let ground = Ground::new(&Policy::default()).await;
    ground.server.freeze().await;
    let enqueue = ["task", "enqueue", "--type", "t", "--payload", "1"];
    let ran = ground.run(&[&enqueue[..], &["--connect-timeout", "500ms"]].concat()).await;
    let usual = ground.run(&enqueue).await;
    ground.server.thaw().await;
    ran.refused(1, &["500ms"]);
    usual.refused(1, &["Redis did not answer within 4s", "--connect-timeout"]);
}

/// No error path shows the password of a URL, wherever the URL stands.
#[tokio::test]
async fn a_password_is_never_printed() {
    let server = Server::builder(Flavor::Redis70).password("right").start().await;
    let wrong = server.url().replace(":right@", ":hunter2@");
    run(&["queue", "list", "--redis-url", &wrong]).await.refused(1, &["Redis refused access"]);
    let urls = [
        wrong.as_str(),
        "redis://u:hunter2@:x",
        "redis://u:hunter2/more@127.0.0.1:1",
        "redis://u:hunter2?more@127.0.0.1:1",
        "redis://u:hunter2#more@127.0.0.1:1",
        "redis+sentinel://u:hunter2@127.0.0.1:1",
        "redis+ring://u:hunter2@127.0.0.1:1",
        "u:hunter2@127.0.0.1:1",
    ];
    for url in urls {
        let mut seen = vec![run(&["queue", "get", "-q", "q", "--redis-url", url]).await];
        let mut command = binary(&["queue", "get", "-q", "q"]);
        command.env("WINDLASS_REDIS_URL", url).env("WINDLASS_LOG", "trace");
        seen.push(run_command(command, None).await);
        let mut command = binary(&["queue", "get", "--help"]);
        command.env("WINDLASS_REDIS_URL", url).env("WINDLASS_EVENT_LOG_URL", url);
        seen.push(run_command(command, None).await);
        for ran in seen {
            assert!(!format!("{ran:?}").contains("hunter2"), "{url}: {ran:?}");
        }
    }
    let misplaced = "redis://u:hunter2@127.0.0.1:1";
    for arguments in [&["queue", "get", misplaced][..], &[misplaced], &["task", "get", "x", "-q", misplaced]] {
        let ran = run(arguments).await;
        assert_eq!(ran.code, 2, "{ran:?}");
        assert!(!format!("{ran:?}").contains("hunter2"), "{ran:?}");
    }
    let ground = Ground::new(&Policy::default()).await;
    for log in ["postgres://u:hunter2@127.0.0.1:1/x", "mysql://u:hunter2@h/x", "postgres://u:hunter2/y@h:z/x"] {
        let ran = ground.run(&["events", "--event-log", log]).await;
        assert!([1, 2].contains(&ran.code), "{ran:?}");
        assert!(!format!("{ran:?}").contains("hunter2"), "{ran:?}");
    }
}

#[tokio::test]
async fn logs_go_to_stderr_as_asked() {
    let ground = Ground::new(&Policy::default()).await;
    let mut command = ground.command(&["queue", "get", "-o", "json"]);
    command.env("WINDLASS_LOG", "trace").env("WINDLASS_LOG_FORMAT", "json");
    let ran = run_command(command, None).await;
    ran.json();
    let quiet = ground.run(&["queue", "get", "-o", "json"]).await;
    assert_eq!(quiet.stderr, "");
    for line in ran.stderr.lines() {
        serde_json::from_str::<serde_json::Value>(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    }
}

/// The provider of TLS is installed once, and a private authority is trusted if named.
#[tokio::test]
async fn tls_works_with_a_named_authority() {
    let server = Server::builder(Flavor::Redis70).tls().start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("ca.pem");
    std::fs::write(&file, server.ca_pem()).expect("written");
    let file = file.to_str().expect("UTF-8");
    run(&["queue", "list", "--redis-url", &server.url(), "--redis-ca-file", file]).await.said(&["No queues found."]);
    run(&["queue", "list", "--redis-url", &server.url()]).await.refused(1, &["was not reached"]);
    let ran = run(&["queue", "list", "--redis-url", &server.url(), "--redis-ca-file", "/nowhere.pem"]).await;
    ran.refused(2, &["the certificate file /nowhere.pem cannot be read"]);
}

/// A user whose rights end at its own queue can work with it.
#[tokio::test]
async fn a_user_of_one_queue_needs_no_other_rights() {
    let rights = "one on >pw ~windlass:{test/own}:* &* +@all -scan -ping";
    let server = Server::builder(Flavor::Redis70).acl(rights).start().await;
    let redis = Redis::new(RedisOptions::new(server.url())).expect("usable");
    let queue = redis.queue(Keys::new(&"test/own".parse().expect("valid"))).expect("usable");
    let owner = Owner { name: "cli:test".into(), takeover: Takeover::Respect };
    queue.provision(&owner, &Policy::default()).await.expect("made");
    let url = server.url_as("one", "pw");
    let own = run(&["task", "enqueue", "--type", "t", "--payload", "1", "-q", "test/own", "--redis-url", &url]).await;
    own.said(&["queued"]);
    run(&["queue", "list", "--redis-url", &url]).await.refused(1, &["Redis refused access"]);
    // Its name lies outside the user's rights, so Redis does not even say that it is not there.
    run(&["task", "list", "-q", "test/other", "--redis-url", &url]).await.refused(1, &["Redis refused access"]);
}
