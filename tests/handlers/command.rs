//! `windlass worker` as people and pods run it: signals, exit codes, probes, sentences.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};

use serde_json::json;
use windlass::broker::Broker;
use windlass::protocol::policy::Policy;
use windlass::protocol::state::RetryReason;
use windlass::{NewTask, State, TaskId};

use super::ground::{Ground, gone, kind, lines, task};
use crate::support::servers::process::spawn_tied;
use crate::support::servers::{Flavor, Server, Wait};

/// The binary, with nothing of this process's own settings.
pub(super) fn windlass() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_windlass"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("WINDLASS_") && name != "WINDLASS_CACHE" {
            command.env_remove(name);
        }
    }
    command.stdin(Stdio::null());
    command
}

/// A worker in a process of its own, which ends with this value.
pub(super) struct Process {
    pub(super) child: Child,
    log: PathBuf,
}

impl Process {
    pub(super) fn start(command: Command, place: &Path) -> Self {
        let log = place.join("worker.log");
        let file = File::create(&log).expect("a file for its log");
        let child = spawn_tied(&command, |tied| {
            tied.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
        });
        Self { child, log }
    }

    pub(super) fn signal(&self, signal: &str) {
        send(self.child.id(), signal);
    }

    pub(super) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub(super) async fn logs(&self, words: &str) -> String {
        let mut wait = Wait::new(format!("the worker to log {words:?}"));
        loop {
            let log = self.log();
            if log.contains(words) {
                return log;
            }
            wait.again(log).await;
        }
    }

    pub(super) async fn ended(&mut self) -> ExitStatus {
        let mut wait = Wait::new("the worker to end");
        loop {
            if let Some(status) = self.child.try_wait().expect("it is ours") {
                return status;
            }
            wait.again(self.log()).await;
        }
    }

    /// Where it serves its probes.
    async fn probes(&self) -> String {
        let log = self.logs("probes are served").await;
        let (_, after) = log.split_once("address=").expect("it says where");
        after.split_whitespace().next().expect("an address").to_owned()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

pub(super) fn send(pid: u32, signal: &str) {
    let sent = Command::new("kill").args(["-s", signal, &pid.to_string()]).status().expect("kill runs");
    assert!(sent.success(), "{pid} is there");
}

/// Status and body of a page.
async fn page(address: &str, path: &str) -> (u16, String) {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder().tls_certs_only([]).no_proxy().build().expect("a client");
    let answer = client.get(format!("http://{address}{path}")).send().await.expect("it answers");
    (answer.status().as_u16(), answer.text().await.expect("to the end"))
}

async fn page_is(address: &str, path: &str, status: u16) -> String {
    let mut wait = Wait::new(format!("{path} to answer {status}"));
    loop {
        match page(address, path).await {
            (seen, text) if seen == status => return text,
            seen => wait.again(format!("{seen:?}")).await,
        }
    }
}

impl Ground {
    /// The command for a worker on this queue; a handler is still to be named.
    pub(super) fn command(&self) -> Command {
        let mut command = windlass();
        command.args(["worker", "-q", &self.queue.to_string(), "--redis-url", &self.url]);
        command
    }

    fn process(&self, place: &Path, options: &[&str], script: &str) -> Process {
        let mut command = self.command();
        command.args(options).args(["--exec", "--", "bash", "-c", script]);
        Process::start(command, place)
    }
}

/// A script that says where it is and goes on until a file `go` is there.
fn patient(place: &Path) -> String {
    let place = place.display();
    format!("echo $$ >> {place}/pids; until [ -e {place}/go ]; do sleep 0.02; done; echo done")
}

async fn pids(place: &Path, count: usize) -> Vec<u32> {
    lines(&place.join("pids"), count).await.iter().map(|line| line.parse().expect("a number")).collect()
}

async fn enqueue_some(ground: &Ground, count: usize) -> Vec<TaskId> {
    let tasks: Vec<NewTask> = (0..count).map(|n| task(json!(n))).collect();
    ground.enqueue(&tasks).await;
    tasks.into_iter().map(|task| task.id).collect()
}

#[tokio::test]
async fn sigterm_lets_what_runs_finish_and_claims_no_more() {
    let (ground, place) = (Ground::new().await, tempfile::tempdir().expect("a directory"));
    let mut worker = ground.process(place.path(), &["--concurrency", "4"], &patient(place.path()));
    let ids = enqueue_some(&ground, 4).await;
    pids(place.path(), 4).await;
    worker.signal("TERM");
    worker.logs("the worker drains").await;
    let later = enqueue_some(&ground, 1).await.remove(0);
    std::fs::write(place.path().join("go"), "").expect("written");
    assert_eq!(worker.ended().await.code(), Some(0), "{}", worker.log());
    for id in &ids {
        let view = ground.view(id).await;
        assert_eq!((view.state, view.result.expect("a result").as_str()), (State::Succeeded, "\"done\""));
    }
    assert_eq!(ground.view(&later).await.state, State::Queued);
    assert!(ground.broker.workers().await.expect("listed").is_empty(), "it left the registry");
}

#[tokio::test]
async fn what_does_not_finish_in_time_is_given_back_and_its_processes_end() {
    let (ground, place) = (Ground::new().await, tempfile::tempdir().expect("a directory"));
    let script = format!("trap '' TERM; {}", patient(place.path()));
    let mut worker = ground.process(place.path(), &["--concurrency", "2", "--drain-timeout", "4s"], &script);
    let ids = enqueue_some(&ground, 2).await;
    let pids = pids(place.path(), 2).await;
    worker.signal("INT");
    assert_eq!(worker.ended().await.code(), Some(0), "{}", worker.log());
    given_back(&ground, &ids).await;
    for pid in pids {
        gone(pid).await;
    }
}

#[tokio::test]
async fn a_second_signal_gives_everything_back_at_once() {
    let (ground, place) = (Ground::new().await, tempfile::tempdir().expect("a directory"));
    let script = format!("trap '' TERM; {}", patient(place.path()));
    let options = ["--concurrency", "2", "--drain-timeout", "10h", "--kill-after", "10h"];
    let mut worker = ground.process(place.path(), &options, &script);
    let ids = enqueue_some(&ground, 2).await;
    let pids = pids(place.path(), 2).await;
    worker.signal("TERM");
    worker.logs("the worker drains").await;
    worker.signal("TERM");
    assert_eq!(worker.ended().await.code(), Some(0), "{}", worker.log());
    given_back(&ground, &ids).await;
    for pid in pids {
        gone(pid).await;
    }
}

#[tokio::test]
async fn without_time_to_drain_everything_is_given_back_and_that_is_no_failure() {
    let (ground, place) = (Ground::new().await, tempfile::tempdir().expect("a directory"));
    let options = ["--concurrency", "2", "--drain-timeout", "0s"];
    let mut worker = ground.process(place.path(), &options, &patient(place.path()));
    let ids = enqueue_some(&ground, 2).await;
    let pids = pids(place.path(), 2).await;
    worker.signal("TERM");
    assert_eq!(worker.ended().await.code(), Some(0), "{}", worker.log());
    given_back(&ground, &ids).await;
    for pid in pids {
        gone(pid).await;
    }
}

async fn given_back(ground: &Ground, ids: &[TaskId]) {
    for id in ids {
        let view = ground.view(id).await;
        assert_eq!((view.state, view.retry_reason), (State::Retrying, Some(RetryReason::Released)), "{view:?}");
        assert_eq!((view.retry_count, view.crash_count, view.release_count), (0, 0, 1), "it cost no attempt");
    }
}

#[tokio::test]
async fn a_worker_that_is_early_waits_for_its_queue_and_says_so_once() {
    let (ground, place) = (Ground::unprovisioned().await, tempfile::tempdir().expect("a directory"));
    let mut worker = ground.process(place.path(), &["--listen", "127.0.0.1:0"], "echo hello");
    let probes = worker.probes().await;
    let log = worker.logs("waits for its queue").await;
    assert!(log.contains("create its TaskQueue"), "{log}");
    assert_eq!(page(&probes, "/livez").await.0, 200);
    assert_eq!(page(&probes, "/readyz").await.0, 503);

    ground.provision(&Policy::default()).await;
    page_is(&probes, "/readyz", 200).await;
    assert_eq!(worker.log().matches("waits for its queue").count(), 1, "{}", worker.log());
    let id = enqueue_some(&ground, 1).await.remove(0);
    ground.until(&id, State::Succeeded).await;
    let metrics = page_is(&probes, "/metrics", 200).await;
    assert!(metrics.contains("windlass_") && metrics.ends_with("# EOF\n"), "{metrics}");
    worker.signal("TERM");
    assert_eq!(worker.ended().await.code(), Some(0), "{}", worker.log());
}

#[tokio::test]
async fn a_worker_that_waits_can_be_ended() {
    let (ground, place) = (Ground::unprovisioned().await, tempfile::tempdir().expect("a directory"));
    let mut worker = ground.process(place.path(), &[], "true");
    worker.logs("waits for its queue").await;
    worker.signal("TERM");
    assert_eq!(worker.ended().await.code(), Some(0), "{}", worker.log());
}

#[tokio::test]
async fn a_redis_that_is_not_there_is_waited_for_without_showing_its_password() {
    let place = tempfile::tempdir().expect("a directory");
    // Nobody listens there, and nobody else can have it.
    let nobody = tokio::net::TcpSocket::new_v4().expect("a socket");
    nobody.bind("127.0.0.1:0".parse().expect("an address")).expect("a free port");
    let port = nobody.local_addr().expect("bound").port();
    let mut command = windlass();
    command.env("WINDLASS_REDIS_URL", format!("redis://me:hunter2@127.0.0.1:{port}")).env("WINDLASS_QUEUE", "shop/a");
    command.args(["worker", "--exec", "--", "true"]);
    let mut worker = Process::start(command, place.path());
    let log = worker.logs("was not reached").await;
    assert!(log.contains("check that it runs") && !log.contains("hunter2"), "{log}");
    worker.signal("TERM");
    assert_eq!(worker.ended().await.code(), Some(0), "{}", worker.log());
}

#[tokio::test]
async fn a_wrong_password_ends_the_worker_with_a_sentence() {
    let server = Server::builder(Flavor::Redis70).password("right").start().await;
    let url = server.url().replace("right", "hunter2");
    assert!(url.contains("hunter2"), "the URL carries the password");
    let output = refused(windlass().args(["worker", "-q", "shop/a", "--redis-url", &url, "--exec", "--", "true"]));
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("check user, password and ACL") && !said.contains("hunter2"), "{said}");
}

/// Runs a command that is to end by itself.
fn refused(command: &mut Command) -> Output {
    command.output().expect("the binary runs")
}

#[tokio::test]
async fn wrong_usage_is_refused_with_status_2_and_a_sentence() {
    let place = tempfile::tempdir().expect("a directory");
    let script = place.path().join("script.sh");
    std::fs::write(&script, "#!/bin/sh\n").expect("written");
    let script = script.to_str().expect("UTF-8");
    for (arguments, says) in [
        (&["-q", "a"][..], "<--exec|--http <URL>>"),
        (&["-q", "a", "--exec"], "-- <COMMAND>"),
        (&["-q", "a", "--exec", "--http", "http://x", "--", "true"], "cannot be used with"),
        (&["-q", "a", "--", "true"], "--exec"),
        (&["-q", "a", "--exec", "--", "no-such-program-anywhere"], "was not found: check its path"),
        (&["-q", "a", "--exec", "--", "./no-such-file"], "was not found: check its path"),
        (&["-q", "a", "--exec", "--", script], "is not executable: make it so with `chmod +x`"),
        (&["-q", "a", "--exec", "--directory", "/no/such", "--", "true"], "the directory \"/no/such\""),
        (&["-q", "a", "--http", "localhost:80"], "is neither http nor https"),
        (&["-q", "a", "--http", "/tasks"], "write it like http://127.0.0.1:8080/tasks"),
        (&["-q", "Not A Queue", "--exec", "--", "true"], "use NAME or NAMESPACE/NAME"),
        (&["--exec", "--", "true"], "--queue"),
        (&["-q", "a", "--concurrency", "0", "--exec", "--", "true"], "use 1 to 10000"),
        (&["-q", "a", "--concurrency", "many", "--exec", "--", "true"], "--concurrency"),
        (&["-q", "a", "--types", "send,two words", "--exec", "--", "true"], "use 1 to 100 letters"),
        (&["-q", "a", "--drain-timeout", "soon", "--exec", "--", "true"], "like 500ms, 30s"),
        (&["-q", "a", "--listen", "nowhere", "--exec", "--", "true"], "--listen"),
        (&["-q", "a", "--redis-url", "http://me:hunter2@x", "--exec", "--", "true"], "the Redis URL is not usable"),
        (&["-q", "a", "--redis-url", "me:hunter2@x", "--exec", "--", "true"], "the Redis URL is not usable"),
        (&["-q", "a", "--redis-url", "redis+x://me:hunter2@x", "--exec", "--", "true"], "neither sentinel nor cluster"),
    ] {
        let output = refused(windlass().arg("worker").args(arguments));
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(says), "{arguments:?} should say {says:?}: {said}");
        assert!(!said.contains("hunter2"), "{arguments:?}: {said}");
        assert!(output.stdout.is_empty());
    }
}

#[tokio::test]
async fn a_port_that_is_taken_fails_the_worker_with_a_sentence() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = taken.local_addr().expect("bound").to_string();
    let ground = Ground::new().await;
    let output = refused(ground.command().args(["--listen", &address, "--exec", "--", "true"]));
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(&address) && said.contains("give --listen another port"), "{said}");
}

#[tokio::test]
async fn a_worker_says_where_it_runs_and_what_it_can_do() {
    let (ground, place) = (Ground::new().await, tempfile::tempdir().expect("a directory"));
    let mut command = ground.command();
    command.args(["--types", "send,render", "--exec", "--", "true"]);
    command.env("WINDLASS_POD_NAME", "emailers-7").env("WINDLASS_POD_UID", "uid-1").env("WINDLASS_CONTAINER", "main");
    let mut worker = Process::start(command, place.path());
    worker.logs("the worker has registered").await;
    let record = ground.broker.workers().await.expect("listed").remove(0).info;
    assert!(record.id.as_str().starts_with("emailers-7-"), "{record:?}");
    assert_eq!((record.pod_uid.as_deref(), record.container.as_deref()), (Some("uid-1"), Some("main")));
    assert_eq!(record.types, [kind("render"), kind("send")]);
    let other = enqueue_some(&ground, 1).await.remove(0);
    let mine = NewTask::new(kind("send"), json!(1));
    ground.enqueue(std::slice::from_ref(&mine)).await;
    ground.until(&mine.id, State::Succeeded).await;
    assert_eq!(ground.view(&other).await.state, State::Queued, "not its type");
    worker.signal("TERM");
    assert_eq!(worker.ended().await.code(), Some(0));
}

/// Closes: the worker's credentials in the environment of whatever it runs.
#[tokio::test]
async fn a_program_gets_no_credentials_of_the_worker_and_nothing_of_other_tasks() {
    let (ground, place) = (Ground::new().await, tempfile::tempdir().expect("a directory"));
    let mut command = windlass();
    command.env("WINDLASS_REDIS_URL", &ground.url).env("WINDLASS_QUEUE", ground.queue.to_string());
    command.env("WINDLASS_EVENT_LOG_URL", "postgres://me:hunter2@db/log").env("WINDLASS_TENANT_ID", "acme");
    command.env("EXTRA", "x");
    let script = "env | grep -e REDIS_URL -e EVENT_LOG_URL -e hunter2 -e WINDLASS_TENANT_ID -e ^EXTRA=";
    command.args(["worker", "--exec", "--", "sh", "-c", script]);
    let _worker = Process::start(command, place.path());
    let id = enqueue_some(&ground, 1).await.remove(0);
    let view = ground.until(&id, State::Succeeded).await;
    assert_eq!(view.result.expect("what it found").as_str(), "\"EXTRA=x\"", "what else it was started with is there");
}

/// What a handler writes is seen, whether its task succeeds or not.
#[tokio::test]
async fn what_a_handler_writes_to_stderr_is_in_the_log_with_its_task() {
    let (ground, place) = (Ground::new().await, tempfile::tempdir().expect("a directory"));
    let worker = ground.process(place.path(), &[], "echo note to self >&2; printf 'no newline' >&2");
    let id = enqueue_some(&ground, 1).await.remove(0);
    ground.until(&id, State::Succeeded).await;
    let log = worker.logs("no newline").await;
    let line = log.lines().find(|line| line.contains("note to self")).expect("a line of its own");
    assert!(line.contains(id.as_str()), "{line}");
}

/// Of all that a task needs, nothing is left: no descriptor, no process, dead or alive.
#[tokio::test]
async fn many_tasks_leave_nothing_behind() {
    let (ground, place) = (Ground::new().await, tempfile::tempdir().expect("a directory"));
    let script = "case $WINDLASS_TYPE in hang) sleep 1000;; *) cat > /dev/null; sleep 1000 > /dev/null 2>&1 & esac";
    let worker = ground.process(place.path(), &["--concurrency", "8", "--kill-after", "100ms"], script);
    let pid = worker.child.id();
    let entries = |what: &str| std::fs::read_dir(format!("/proc/{pid}/{what}")).expect("it runs").count();
    let children = || {
        // Each thread has its own.
        let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it runs").flatten();
        threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok()).collect::<String>()
    };
    let settle_some = async |count: usize| {
        for id in enqueue_some(&ground, count).await {
            ground.until(&id, State::Succeeded).await;
        }
    };
    settle_some(20).await;
    let before = entries("fd");
    settle_some(300).await;
    let mut hanging = NewTask::new(kind("hang"), json!(1));
    hanging.extras.timeout_ms = Some(200);
    ground.enqueue(std::slice::from_ref(&hanging)).await;
    ground.until(&hanging.id, State::Retrying).await;
    let mut wait = Wait::new("everything to be let go of");
    loop {
        let (now, children) = (entries("fd"), children());
        if now <= before + 2 && children.is_empty() {
            break;
        }
        wait.again(format!("{now} descriptors instead of {before}, children: {children}")).await;
    }
}

/// Through the binary: the program's way to the local API, and a server's.
#[tokio::test]
async fn handlers_of_the_binary_reach_the_local_api() {
    let (ground, place) = (Ground::new().await, tempfile::tempdir().expect("a directory"));
    let script = r#"python3 -c '
import json, os, urllib.request
request = urllib.request.Request(os.environ["WINDLASS_API"] + "/v1/cancelled")
request.add_header("Authorization", "Bearer " + os.environ["WINDLASS_API_TOKEN"])
print(json.load(urllib.request.urlopen(request)))'"#;
    let _worker = ground.process(place.path(), &[], script);
    let id = enqueue_some(&ground, 1).await.remove(0);
    let view = ground.until(&id, State::Succeeded).await;
    assert_eq!(view.result.expect("printed by Python").as_str(), "\"{'cancelled': False, 'reason': None}\"");
}
