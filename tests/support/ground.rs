//! What the tests stand on: a queue with an event log, a load, and leaders in processes of their own.

use std::collections::{HashMap, HashSet};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use windlass::broker::ListCursor;
use windlass::broker::redis::{Redis, RedisBroker, RedisOptions};
use windlass::event_log::{DeadLetterFilter, EventFilter, EventLog, RecordedEvent};
use windlass::maintenance::Queue;
use windlass::maintenance::metrics::LoopMetrics;
use windlass::maintenance::runner::Runner;
use windlass::protocol::keys::Keys;
use windlass::protocol::names::QueueName;
use windlass::protocol::policy::Policy;
use windlass::{State, TaskId};

use super::load::{Account, LedBy, Load};
use super::servers::Server;
use super::servers::process::spawn_tied;
use super::{fresh_queue, owner};
use windlass::broker::Broker;

/// A queue on a Redis, with its history in a database.
pub struct Ground {
    pub name: QueueName,
    pub keys: Keys,
    pub redis: Redis,
    pub redis_url: String,
    pub log_url: String,
    pub broker: Arc<RedisBroker>,
}

impl Ground {
    pub async fn new(server: &Server, log_url: String, policy: &Policy) -> Self {
        let name = fresh_queue();
        Self::with_keys(server, log_url, policy, Keys::new(&name), name).await
    }

    /// A queue with keys of another system.
    pub async fn with_keys(server: &Server, log_url: String, policy: &Policy, keys: Keys, name: QueueName) -> Self {
        let redis_url = server.url();
        let redis = Redis::new(RedisOptions::new(&redis_url)).expect("a usable URL");
        let broker = Arc::new(redis.queue(keys.clone()).expect("usable keys"));
        broker.provision(&owner(), policy).await.expect("the queue is made");
        Self { name, keys, redis, redis_url, log_url, broker }
    }

    pub fn log(&self) -> EventLog {
        EventLog::open(&self.log_url).expect("a usable URL")
    }

    pub fn load(&self, tasks: usize) -> Load {
        let (keys, url) = (self.keys.clone(), self.redis_url.clone());
        let connect = move || Arc::new(RedisBroker::new(keys.clone(), RedisOptions::new(&url)).expect("usable"));
        Load { tasks, workers: 8, producers: 2, cut_percent: 2, led_by: LedBy::TheTest, connect: Box::new(connect) }
    }

    /// Leads in this process.
    pub async fn lead(&self) -> Runner {
        self.lead_and_count(LoopMetrics::default()).await
    }

    /// The same, with an eye on the loops.
    pub async fn lead_and_count(&self, metrics: LoopMetrics) -> Runner {
        let mut runner = Runner::start(metrics);
        runner.listen(self.redis.notices());
        runner.add(self.keys.prefix(), Queue::new(self.name.clone(), self.broker.clone(), Some(self.log()))).await;
        runner
    }

    /// Leads in a process of its own.
    pub fn lead_apart(&self) -> Leader {
        self.lead_apart_by(Command::new(example("leader")))
    }

    pub fn lead_apart_by(&self, mut command: Command) -> Leader {
        command.args([&self.redis_url, &self.name.to_string(), &self.log_url]);
        Leader::start(&mut command)
    }

    /// Checks tasks, events and dead letters after a load that ended.
    pub async fn check(&self, account: &Account) {
        account.check_nothing_lost(&self.broker).await;
        let events = self.events().await;
        check_walks(&events, &account.accepted);
        let failed: HashSet<_> = tasks_that(&events, State::Failed);
        let letters = self.log().count_dead_letters(&self.name, &DeadLetterFilter::default()).await.expect("counted");
        assert_eq!(letters as usize, failed.len(), "each failed task has one dead letter");
    }

    pub async fn events(&self) -> Vec<RecordedEvent> {
        let (log, mut all, mut cursor) = (self.log(), Vec::new(), Some(ListCursor::default()));
        while let Some(from) = cursor {
            let page = log.events(&self.name, &EventFilter::default(), from, 1000).await.expect("the log can be read");
            all.extend(page.items);
            cursor = page.next;
        }
        all
    }
}

pub fn tasks_that(events: &[RecordedEvent], state: State) -> HashSet<TaskId> {
    events.iter().filter(|event| event.to == Some(state)).map(|event| event.task_id.clone()).collect()
}

/// Each task's events are one walk through the state machine, whole and to its end.
fn check_walks(events: &[RecordedEvent], accepted: &[TaskId]) {
    let mut walks: HashMap<&TaskId, Vec<(State, Option<State>)>> = HashMap::new();
    // Decisions move no task.
    for event in events {
        if let Some(to) = event.to {
            walks.entry(&event.task_id).or_default().push((to, event.from));
        }
    }
    assert_eq!(walks.len(), accepted.len(), "each accepted task has its events");
    for (task, moves) in &walks {
        let mut at = None;
        for (to, from) in moves {
            assert_eq!(*from, at, "{task}: {moves:?}");
            assert!(from.is_none_or(|from| from.may_become(*to)), "{task}: {moves:?}");
            at = Some(*to);
        }
        assert!(at.is_some_and(State::is_final), "{task}: {moves:?}");
        let dead = moves.iter().position(|(to, _)| *to == State::DlqRecorded);
        let failed = moves.iter().position(|(to, _)| *to == State::Failed);
        assert!(failed.is_none() || dead < failed, "{task} failed before its dead letter was recorded: {moves:?}");
    }
}

/// A leader in a process of its own, which ends with this value.
pub struct Leader(Child);

impl Leader {
    /// In a group of its own: what wraps a leader may start it as a child.
    pub fn start(command: &mut Command) -> Self {
        Self(spawn_tied(command, |tied| {
            tied.stdin(Stdio::null()).process_group(0);
        }))
    }

    pub fn kill9(&mut self) {
        self.signal("-KILL");
        self.0.wait().expect("the leader ends");
    }

    pub fn id(&self) -> u32 {
        self.0.id()
    }

    pub fn signal(&self, signal: &str) {
        let group = format!("-{}", self.0.id());
        let done = Command::new("kill").args([signal, "--", &group]).status().expect("kill runs");
        assert!(done.success(), "the leader is there");
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            self.kill9();
        }
    }
}

/// A program under `examples/`, which cargo builds with the tests.
pub fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("this test has a path");
    let program = test.ancestors().nth(2).expect("target/PROFILE/deps/TEST").join("examples").join(name);
    assert!(
        program.exists(),
        "{} is missing: cargo build --examples makes it (cargo test without --test does, too)",
        program.display()
    );
    program
}
