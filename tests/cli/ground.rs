//! What the tests stand on: the binary, a queue, a worker for a moment, and a leader.

use std::io::Write;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use serde_json::Value;
use windlass::broker::redis::{Redis, RedisBroker, RedisOptions};
use windlass::broker::{Broker, ClaimRequest, ClaimedTask, Outcome, Owner, Settled, Settlement, Takeover, WorkerInfo};
use windlass::event_log::EventLog;
use windlass::maintenance::Queue;
use windlass::maintenance::metrics::LoopMetrics;
use windlass::maintenance::runner::Runner;
use windlass::protocol::backoff::{Backoff, Dice, Jitter, Strategy};
use windlass::protocol::keys::Keys;
use windlass::protocol::names::{Capabilities, QueueName, WorkerId};
use windlass::protocol::policy::Policy;

use crate::support::fresh_queue;
use crate::support::servers::{Flavor, Server};

/// What a command did.
#[derive(Debug)]
pub(super) struct Ran {
    pub(super) code: i32,
    pub(super) stdout: String,
    pub(super) stderr: String,
}

impl Ran {
    /// What it printed, as JSON; it must have ended well.
    #[track_caller]
    pub(super) fn json(&self) -> Value {
        assert_eq!(self.code, 0, "{self:?}");
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The lines that it printed, each as JSON; it must have ended well.
    #[track_caller]
    pub(super) fn json_lines(&self) -> Vec<Value> {
        assert_eq!(self.code, 0, "{self:?}");
        self.stdout.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
    }

    /// It must have failed with that status and said that on stderr, in one sentence.
    #[track_caller]
    pub(super) fn refused(&self, code: i32, says: &[&str]) {
        assert_eq!(self.code, code, "{self:?}");
        for part in says {
            assert!(self.stderr.contains(part), "it does not say {part:?}: {self:?}");
        }
    }

    /// It must have ended well, and said that on stdout.
    #[track_caller]
    pub(super) fn said(&self, says: &[&str]) {
        assert_eq!(self.code, 0, "{self:?}");
        for part in says {
            assert!(self.stdout.contains(part), "it does not say {part:?}: {self:?}");
        }
    }
}

/// The binary, with nothing in its environment that could lead it astray.
pub(super) fn binary(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_windlass"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("WINDLASS_") {
            command.env_remove(name);
        }
    }
    command.env_remove("NO_COLOR").env("USER", "ada").args(arguments);
    command
}

pub(super) fn ran(output: Output) -> Ran {
    Ran {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8(output.stdout).expect("UTF-8"),
        stderr: String::from_utf8(output.stderr).expect("UTF-8"),
    }
}

/// Runs the binary to its end, away from the runtime: a leader may run beside.
pub(super) async fn run_command(mut command: Command, input: Option<Vec<u8>>) -> Ran {
    let run = move || {
        let stdin = if input.is_some() { Stdio::piped() } else { Stdio::null() };
        let command = command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary starts");
        if let Some(input) = input {
            let mut stdin = child.stdin.take().expect("piped");
            // Whoever is refused reads no further.
            std::thread::spawn(move || drop(stdin.write_all(&input)));
        }
        ran(child.wait_with_output().expect("the binary ends"))
    };
    tokio::task::spawn_blocking(run).await.expect("no panic")
}

/// Runs the binary to its end.
pub(super) async fn run(arguments: &[&str]) -> Ran {
    run_command(binary(arguments), None).await
}

/// A policy whose retries come at once.
pub(super) fn hasty() -> Policy {
    let mut policy = Policy::default();
    policy.retry.backoff = Backoff { strategy: Strategy::Fixed { base_ms: 10 }, max_ms: 10, jitter: Jitter::None };
    policy
}

/// A queue on a server of its own.
pub(super) struct Ground {
    pub(super) server: Server,
    pub(super) url: String,
    pub(super) name: QueueName,
    pub(super) broker: Arc<RedisBroker>,
    redis: Redis,
    keys: Keys,
}

impl Ground {
    pub(super) async fn new(policy: &Policy) -> Self {
        Self::owned_by("cli:test", policy).await
    }

    pub(super) async fn owned_by(owner: &str, policy: &Policy) -> Self {
        let server = Server::start(Flavor::Redis70).await;
        let url = server.url();
        let (redis, name) = (Redis::new(RedisOptions::new(&url)).expect("a usable URL"), fresh_queue());
        let keys = Keys::new(&name);
        let broker = Arc::new(redis.queue(keys.clone()).expect("usable keys"));
        let owner = Owner { name: owner.to_owned(), takeover: Takeover::Respect };
        broker.provision(&owner, policy).await.expect("the queue is made");
        Self { server, url, name, broker, redis, keys }
    }

    /// The binary on this queue.
    pub(super) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = binary(arguments);
        command.env("WINDLASS_REDIS_URL", &self.url).env("WINDLASS_QUEUE", self.name.to_string());
        command
    }

    pub(super) async fn run(&self, arguments: &[&str]) -> Ran {
        run_command(self.command(arguments), None).await
    }

    pub(super) async fn run_with(&self, arguments: &[&str], input: impl Into<Vec<u8>>) -> Ran {
        run_command(self.command(arguments), Some(input.into())).await
    }

    /// Enqueues a task of the type `send`; gives its id.
    pub(super) async fn enqueued(&self, more: &[&str]) -> String {
        let mut arguments = vec!["task", "enqueue", "--type", "send", "--payload", "{}", "-o", "json"];
        arguments.extend(more);
        self.run(&arguments).await.json()["id"].as_str().expect("an id").to_owned()
    }

    /// Leads the queue in this process.
    pub(super) async fn lead(&self, log: Option<EventLog>) -> Runner {
        let mut runner = Runner::start(LoopMetrics::default());
        runner.listen(self.redis.notices());
        runner.add(self.keys.prefix(), Queue::new(self.name.clone(), self.broker.clone(), log)).await;
        runner
    }

    /// Registers a worker for these types; none for every type.
    pub(super) async fn register(&self, id: &str, types: &[&str]) -> WorkerId {
        let id = WorkerId::new(id).expect("valid");
        let types = types.iter().map(|name| name.parse().expect("valid")).collect();
        let info = WorkerInfo {
            id: id.clone(),
            host: "test".into(),
            pid: 1,
            pod: None,
            pod_uid: None,
            container: None,
            version: "1".into(),
            types,
            pool: None,
            started: None,
        };
        self.broker.register(&info).await.expect("registered");
        id
    }

    /// Claims up to a hundred tasks.
    pub(super) async fn claim(&self) -> Vec<ClaimedTask> {
        let (worker, any) = (WorkerId::new("w1").expect("valid"), Capabilities::any());
        let request = ClaimRequest { worker: &worker, capabilities: &any, limit: 100, recover: None };
        self.broker.claim(request).await.expect("claimed").tasks
    }

    /// Ends an attempt.
    pub(super) async fn settle(&self, task: &ClaimedTask, outcome: Outcome) -> Settled {
        let (worker, any) = (WorkerId::new("w1").expect("valid"), Capabilities::any());
        let nothing = ClaimRequest { worker: &worker, capabilities: &any, limit: 0, recover: None };
        let settlement = Settlement { lease: task.lease.clone(), outcome, dice: Dice(0) };
        self.broker.settle(&[settlement], nothing).await.expect("settled").settled[0]
    }

    /// Lets everything that is ready die of that error.
    pub(super) async fn let_die(&self, error: &str) -> usize {
        let tasks = self.claim().await;
        for task in &tasks {
            assert_eq!(self.settle(task, Outcome::permanent("broken", error)).await, Settled::Dead);
        }
        for letter in self.broker.pending_dead_letters(100).await.expect("read") {
            self.broker.record_dead_letter(&letter.id).await.expect("recorded");
        }
        tasks.len()
    }
}
