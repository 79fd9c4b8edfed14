//! Workers are killed, Redis is killed, handlers fail, hang, crash and fork:
//! nothing is lost, each task ends once, and a guarded effect happens once.
//!
//! `make chaos` runs the long version.

#![allow(clippy::print_stdout, reason = "what was seen is part of the result")]

mod support;

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use support::ground::{Ground, example, tasks_that};
use support::load::{Account, hasty_policy};
use support::servers::process::spawn_tied;
use support::servers::{Flavor, Server};
use tokio::time::{Instant, sleep};
use windlass::broker::Broker;
use windlass::event_log::RecordedEvent;
use windlass::protocol::names::TaskType;
use windlass::{NewTask, Producer, State, TaskId};

/// Between two kills of a worker.
const BETWEEN_KILLS: Duration = Duration::from_millis(200);
/// How many tasks a worker has at a time; also in `examples/worker.rs`.
const CONCURRENCY: usize = 8;
/// How long nothing may finish before the test has failed.
const PATIENCE: Duration = Duration::from_secs(120);

/// How much.
struct Scale {
    tasks: usize,
    redis_kills: usize,
}

fn scale() -> Scale {
    match std::env::var("WINDLASS_CHAOS").as_deref() {
        Ok("full") => Scale { tasks: 20_000, redis_kills: 5 },
        _ => Scale { tasks: 2_000, redis_kills: 2 },
    }
}

/// What a worker process runs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// `examples/worker.rs`: a handler in Rust, with a guarded effect.
    Rust,
    /// `windlass worker` with a shell script.
    Shell,
    /// `windlass worker` with a Python program, with a guarded effect.
    Python,
}

impl Kind {
    /// Eight worker processes.
    const PROCESSES: [Kind; 8] =
        [Kind::Rust, Kind::Rust, Kind::Rust, Kind::Rust, Kind::Shell, Kind::Shell, Kind::Shell, Kind::Python];

    fn task_type(self) -> &'static str {
        match self {
            Kind::Rust => "rust",
            Kind::Shell => "shell",
            Kind::Python => "python",
        }
    }

    /// Of a hundred tasks, most behave well.
    fn behaviour(self) -> &'static str {
        let misbehaviours: &[&str] = match self {
            Kind::Rust => &["fail", "panic", "hang", "badly"],
            Kind::Shell => &["fail", "crash", "hang", "fork", "badly"],
            Kind::Python => &[],
        };
        misbehaviours.get(fastrand::usize(..40)).copied().unwrap_or("well")
    }
}

/// A worker process in a place of its own, as a container is: a new one there
/// supersedes the one before.
struct Place {
    kind: Kind,
    number: usize,
    process: Child,
}

/// What all worker processes are given.
struct Setting {
    redis_url: String,
    queue: String,
    ledger: PathBuf,
    scripts: PathBuf,
}

impl Setting {
    fn start(&self, kind: Kind, number: usize) -> Child {
        let ledger = self.ledger.to_str().expect("a path in UTF-8");
        let script = |name: &str| self.scripts.join(name).to_str().expect("a path in UTF-8").to_owned();
        let mut command = match kind {
            Kind::Rust => {
                let mut command = Command::new(example("worker"));
                command.args([&self.redis_url, &self.queue, ledger]);
                command
            }
            Kind::Shell => self.windlass_worker(kind, &["sh".to_owned(), script("shell.sh")]),
            Kind::Python => self.windlass_worker(kind, &["python3".to_owned(), script("effect.py"), ledger.to_owned()]),
        };
        let uid = pod(number);
        command
            .envs([("WINDLASS_POD_NAME", uid.as_str()), ("WINDLASS_POD_UID", &uid), ("WINDLASS_CONTAINER", "worker")])
            .env("WINDLASS_LOG", "error");
        spawn_tied(&command, |tied| {
            tied.stdin(Stdio::null()).stderr(Stdio::null());
        })
    }

    fn windlass_worker(&self, kind: Kind, handler: &[String]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_windlass"));
        command
            .args(["worker", "-q", &self.queue, "--redis-url", &self.redis_url, "--types", kind.task_type()])
            .args(["--concurrency", &CONCURRENCY.to_string(), "--kill-after", "500ms", "--exec", "--"])
            .args(handler);
        command
    }
}

/// The name of a place.
fn pod(number: usize) -> String {
    format!("pod-{number}")
}

impl Place {
    /// How the ids of its workers begin.
    fn prefix(&self) -> String {
        format!("{}-", pod(self.number))
    }

    /// Kills it with everything that it runs, as the end of a container does.
    /// It is stopped first, so that it starts nothing meanwhile.
    fn kill9(&mut self) {
        let pid = self.process.id();
        signal("-STOP", pid);
        for descendant in descendants(pid) {
            signal("-KILL", descendant);
        }
        self.process.kill().expect("the worker can be killed");
        self.process.wait().expect("the worker ends");
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if matches!(self.process.try_wait(), Ok(None)) {
            self.kill9();
        }
    }
}

/// Sends a signal. The process may have ended by itself.
fn signal(signal: &str, pid: u32) {
    Command::new("kill").args([signal, &pid.to_string()]).stderr(Stdio::null()).status().expect("kill runs");
}

/// The processes that a process has started, and those that they have.
fn descendants(pid: u32) -> Vec<u32> {
    let mut found = Vec::new();
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    for thread in threads {
        let children = std::fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        for child in children.split_whitespace().filter_map(|word| word.parse().ok()) {
            found.extend(descendants(child));
            found.push(child);
        }
    }
    found
}

async fn enqueue(ground: &Ground, tasks: usize) -> BTreeMap<TaskId, Kind> {
    let producer = Producer::new(ground.broker.clone()).with_patience(Duration::from_secs(60));
    let mut made = BTreeMap::new();
    let new_task = |_| {
        let kind = match fastrand::usize(..100) {
            0..60 => Kind::Rust,
            60..96 => Kind::Shell,
            _ => Kind::Python,
        };
        let task_type = TaskType::new(kind.task_type()).expect("a valid type");
        let mut task = NewTask::new(task_type, json!({"behave": kind.behaviour()}));
        // Only what hangs takes so long, also on a busy machine that kills its workers.
        task.extras.timeout_ms = Some(if task.payload.as_str().contains("hang") { 300 } else { 60_000 });
        (kind, task)
    };
    let all: Vec<_> = (0..tasks).map(new_task).collect();
    for batch in all.chunks(100) {
        let tasks: Vec<_> = batch.iter().map(|(_, task)| task.clone()).collect();
        let answers = producer.enqueue_all(&tasks).await.expect("Redis is back within a minute");
        made.extend(answers.into_iter().zip(batch).map(|(answer, (kind, _))| (answer.id, *kind)));
    }
    made
}

/// How many tasks each worker holds, as the pending lists have it.
const HELD: &str = "local held = {}
for _, lane in ipairs(redis.call('SMEMBERS', ARGV[1] .. 'lanes')) do
  local lane = ARGV[1] .. 'lane:' .. lane
  for _, group in ipairs(redis.call('XINFO', 'GROUPS', lane)) do
    for _, of in ipairs(redis.call('XPENDING', lane, group[2])[4] or {}) do
      held[#held + 1], held[#held + 2] = of[1], tonumber(of[2])
    end
  end
end
return held";

/// How many tasks the workers held that were killed, each when it was.
#[derive(Default)]
struct InFlight(BTreeMap<String, u64>);

impl InFlight {
    /// Takes down what the workers of a place hold: the one that has just been killed, mostly.
    async fn add(&mut self, ground: &Ground, server: &Server, place: &Place) {
        // What it had sent may still be read; then it has been by the second time.
        for _ in 0..2 {
            let held: Vec<(String, u64)> = server.query(&["EVAL", HELD, "0", ground.keys.prefix()]).await;
            let mut of_worker = BTreeMap::<String, u64>::new();
            for (worker, count) in held.into_iter().filter(|(worker, _)| worker.starts_with(&place.prefix())) {
                *of_worker.entry(worker).or_default() += count;
            }
            for (worker, count) in of_worker {
                let most = self.0.entry(worker).or_default();
                *most = count.max(*most);
            }
        }
    }
}

/// Kills a worker every now and then, and Redis as often as that is wanted,
/// until all is done. Returns the kills of workers, and how many tasks were in flight at them.
async fn torment(
    ground: &Ground,
    server: &Server,
    setting: &Setting,
    places: &mut [Place],
    scale: &Scale,
) -> (usize, usize) {
    let (mut kills, mut redis_kills, mut done, mut progressed) = (0, 0, 0, Instant::now());
    let mut in_flight = InFlight::default();
    loop {
        let victim = &mut places[fastrand::usize(..Kind::PROCESSES.len())];
        victim.kill9();
        in_flight.add(ground, server, victim).await;
        victim.process = setting.start(victim.kind, victim.number);
        kills += 1;
        if redis_kills < scale.redis_kills && done * (scale.redis_kills + 1) > (redis_kills + 1) * scale.tasks {
            server.kill9();
            sleep(BETWEEN_KILLS).await;
            server.restart().await;
            redis_kills += 1;
        }
        sleep(BETWEEN_KILLS).await;
        let Ok(counts) = ground.broker.counts().await else { continue };
        if counts.finished as usize == scale.tasks && counts.outbox == 0 {
            assert_eq!(redis_kills, scale.redis_kills, "Redis was killed as often as planned");
            return (kills, in_flight.0.into_values().sum::<u64>() as usize);
        }
        if counts.finished as usize > done {
            (done, progressed) = (counts.finished as usize, Instant::now());
        }
        assert!(progressed.elapsed() < PATIENCE, "nothing has finished for long: {counts:?}");
    }
}

/// Closes: "pop loses the task when the worker dies" (sidekiq#4633, rq#1716), "late rescue overwrites a
/// completion" (river#1302), "reused worker id blocks recovery" (apalis#507).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_and_redis_are_killed_and_each_task_ends_once_with_its_effect() {
    let scale = scale();
    let server = Arc::new(Server::builder(Flavor::Redis70).aof_always().start().await);
    let folder = tempfile::tempdir().expect("a temporary directory");
    let log_url = format!("sqlite://{}", folder.path().join("events.db").display());
    let ground = Ground::new(&server, log_url, &hasty_policy()).await;
    let _leader = ground.lead().await;
    let setting = Setting {
        redis_url: ground.redis_url.clone(),
        queue: ground.name.to_string(),
        ledger: folder.path().join("ledger"),
        scripts: Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/worker_chaos"),
    };
    let start = |(number, kind): (usize, &Kind)| Place { kind: *kind, number, process: setting.start(*kind, number) };
    let mut places: Vec<_> = Kind::PROCESSES.iter().enumerate().map(start).collect();

    let began = Instant::now();
    let (tasks, (kills, in_flight)) =
        tokio::join!(enqueue(&ground, scale.tasks), torment(&ground, &server, &setting, &mut places, &scale));
    let seconds = began.elapsed().as_secs();

    for place in &mut places {
        signal("-TERM", place.process.id());
    }
    for place in &mut places {
        let status = place.process.wait().expect("the worker ends");
        assert!(status.success(), "a drained worker ends well: {status}");
    }

    let accepted: Vec<TaskId> = tasks.keys().cloned().collect();
    let account =
        Account { cuts: 0, deaths: kills as u64, refusals: 0, events: Vec::new(), accepted, ends: Vec::new() };
    ground.check(&account).await;
    let events = ground.events().await;
    let effects = check_effects(&setting.ledger, &tasks, &events);
    let reruns = events.iter().filter(|event| event.event_type == "task.reclaimed").count();
    assert!(reruns <= in_flight, "{reruns} reruns, but only {in_flight} tasks were in flight at {kills} kills");
    let ended = |state| tasks_that(&events, state).len();
    println!(
        "{} tasks in {seconds} s: {} succeeded, {} dead letters, 0 lost, one final event each\n\
         {kills} kills of workers, {} of Redis: {reruns} reruns ({in_flight} were in flight)\n\
         {effects} guarded effects, each exactly once",
        tasks.len(),
        ended(State::Succeeded),
        ended(State::Failed),
        scale.redis_kills,
    );
}

/// Every task with an effect that succeeded has its line, once; no other task has one.
fn check_effects(ledger: &Path, tasks: &BTreeMap<TaskId, Kind>, events: &[RecordedEvent]) -> usize {
    let lines: Vec<TaskId> = std::fs::read_to_string(ledger)
        .expect("there is a ledger")
        .lines()
        .map(|line| line.parse().expect("a line is a task's id"))
        .collect();
    let once: HashSet<&TaskId> = lines.iter().collect();
    assert_eq!(once.len(), lines.len(), "an effect happened twice");
    let succeeded = tasks_that(events, State::Succeeded);
    let guarded = succeeded.iter().filter(|task| tasks[task] != Kind::Shell).collect::<HashSet<_>>();
    assert_eq!(once, guarded, "effects and successes differ");
    lines.len()
}
