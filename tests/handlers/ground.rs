//! What the tests stand on: a queue on a real Redis, and somebody who works on it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use serde_json::Value;
use tokio::sync::OnceCell;
use windlass::broker::redis::{RedisBroker, RedisOptions};
use windlass::broker::{Broker, ClaimRequest, ListCursor, Settlement};
use windlass::protocol::backoff::Dice;
use windlass::protocol::keys::Keys;
use windlass::protocol::names::{Capabilities, QueueName, TaskType, WorkerId};
use windlass::protocol::policy::{Limits, Policy};
use windlass::worker::exec::{ExecHandler, ExecOptions};
use windlass::worker::{WorkerHandle, WorkerSummary};
use windlass::{Handler, NewTask, State, TaskContext, TaskId, TaskView, Worker, WorkerOptions};

use crate::support::servers::{Flavor, Server, Wait};
use crate::support::{fresh_queue, owner};

/// A queue of its own, mostly on a Redis that all tests share.
#[derive(Clone)]
pub(super) struct Ground {
    pub(super) queue: QueueName,
    pub(super) broker: Arc<RedisBroker>,
    pub(super) url: String,
    /// A Redis of its own, where the test would hold up the others.
    _own: Option<Arc<Server>>,
}

impl Ground {
    /// With the usual policy.
    pub(super) async fn new() -> Self {
        Self::with(&Policy::default()).await
    }

    /// With room for very large payloads.
    pub(super) async fn roomy() -> Self {
        let limits = Limits { payload_bytes: 100 << 20, ..Policy::default().limits };
        let server = Arc::new(Server::start(Flavor::Redis70).await);
        let ground = Self { _own: Some(server.clone()), ..Self::at(server.url()) };
        ground.provision(&Policy { limits, ..Policy::default() }).await;
        ground
    }

    pub(super) async fn with(policy: &Policy) -> Self {
        let ground = Self::unprovisioned().await;
        ground.provision(policy).await;
        ground
    }

    /// A name and a Redis, but no queue yet.
    pub(super) async fn unprovisioned() -> Self {
        Self::at(server().await.url())
    }

    fn at(url: String) -> Self {
        let queue = fresh_queue();
        let broker = Arc::new(RedisBroker::new(Keys::new(&queue), RedisOptions::new(&url)).expect("a usable URL"));
        Self { queue, broker, url, _own: None }
    }

    pub(super) async fn provision(&self, policy: &Policy) {
        self.broker.provision(&owner(), policy).await.expect("the queue is made");
    }

    pub(super) async fn enqueue(&self, tasks: &[NewTask]) {
        for batch in tasks.chunks(100) {
            self.broker.enqueue(batch).await.expect("accepted");
        }
    }

    /// Runs one attempt at one task, and says what became of it.
    pub(super) async fn run(&self, handler: impl Handler, task: NewTask) -> TaskView {
        self.enqueue(std::slice::from_ref(&task)).await;
        self.work(handler, &task.id).await
    }

    /// Runs one attempt at the next task, which is this one.
    pub(super) async fn work(&self, handler: impl Handler, task: &TaskId) -> TaskView {
        let context = self.claim().await;
        assert_eq!(&context.task().lease.task, task, "the test has one task at a time");
        let outcome = handler.handle(&context).await;
        let settlement = Settlement { lease: context.task().lease.clone(), outcome, dice: Dice(0) };
        let nothing =
            ClaimRequest { worker: context.worker(), capabilities: &Capabilities::any(), limit: 0, recover: None };
        self.broker.settle(&[settlement], nothing).await.expect("settled");
        self.view(task).await
    }

    /// Claims the next task by hand.
    pub(super) async fn claim(&self) -> TaskContext {
        let worker = WorkerId::new(format!("by-hand-{}", fastrand::u64(..))).expect("valid");
        let request = ClaimRequest { worker: &worker, capabilities: &Capabilities::any(), limit: 1, recover: None };
        let claimed = self.broker.claim(request).await.expect("claimed").tasks.pop().expect("there is a task");
        TaskContext::detached(self.queue.clone(), worker, self.broker.clone(), claimed)
    }

    /// A worker of its own, until it is told to end.
    pub(super) fn worker(&self, handler: impl Handler, concurrency: usize) -> RunningWorker {
        let options = WorkerOptions { concurrency, ..WorkerOptions::default() };
        let worker = Worker::new(self.queue.clone(), self.broker.clone(), handler, options).expect("usable options");
        RunningWorker { handle: worker.handle(), running: tokio::spawn(worker.run()) }
    }

    pub(super) async fn view(&self, task: &TaskId) -> TaskView {
        self.broker.get(task).await.expect("read").expect("the task is known")
    }

    /// The one task that is running.
    pub(super) async fn running(&self) -> TaskId {
        let page = self.broker.list(State::Running, ListCursor::default(), 2).await.expect("listed");
        let [task] = &page.items[..] else { panic!("not one task is running: {page:?}") };
        task.id.clone()
    }

    /// Waits until a task is in that state.
    pub(super) async fn until(&self, task: &TaskId, state: State) -> TaskView {
        let mut wait = Wait::new(format!("task {task} to be {state}"));
        loop {
            let view = self.view(task).await;
            if view.state == state {
                return view;
            }
            wait.again(format!("{view:?}")).await;
        }
    }
}

pub(super) struct RunningWorker {
    handle: WorkerHandle,
    running: tokio::task::JoinHandle<windlass::broker::Result<WorkerSummary>>,
}

impl RunningWorker {
    /// Drains it.
    pub(super) async fn end(self) -> WorkerSummary {
        self.handle.drain();
        self.running.await.expect("it does not panic").expect("it ran")
    }
}

/// The Redis that all tests of this process share.
pub(super) async fn server() -> &'static Server {
    static SERVER: OnceCell<Server> = OnceCell::const_new();
    SERVER.get_or_init(|| Server::start(Flavor::Redis70)).await
}

pub(super) fn kind(name: &str) -> TaskType {
    name.parse().expect("a valid type")
}

pub(super) fn task(payload: Value) -> NewTask {
    NewTask::new(kind("test"), payload)
}

/// A handler that is a shell script.
pub(super) fn shell(script: &str) -> ExecHandler {
    ExecHandler::new(shell_options(script)).expect("there is a shell")
}

pub(super) fn shell_options(script: &str) -> ExecOptions {
    ExecOptions::new(["bash", "-c", script])
}

/// An interpreter that the test cannot do without.
pub(super) fn interpreter(name: &str) -> &str {
    let found = Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success());
    assert!(found, "{name} is missing: install it, these tests prove that handlers in its language work");
    name
}

/// An example handler of this crate.
pub(super) fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/handlers").join(name)
}

/// Waits until no process has that number, or only a zombie.
pub(super) async fn gone(pid: u32) {
    let mut wait = Wait::new(format!("process {pid} to be gone"));
    while let Some(state) = state_of(pid) {
        wait.again(format!("it is {state}")).await;
    }
}

/// What the kernel says of a process that is neither gone nor a zombie.
pub(super) fn state_of(pid: u32) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let state = stat.rsplit_once(") ")?.1.split(' ').next()?.to_owned();
    (state != "Z" && state != "X").then_some(state)
}

/// Waits for a file with that many lines.
pub(super) async fn lines(path: &Path, count: usize) -> Vec<String> {
    let mut wait = Wait::new(format!("{count} lines in {}", path.display()));
    loop {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        if text.ends_with('\n') && text.lines().count() >= count {
            return text.lines().map(str::to_owned).collect();
        }
        wait.again(text).await;
    }
}
