//! What the tests stand on: a folder with manifests, and `windlass dev` on it.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;

use windlass::broker::redis::{RedisBroker, RedisOptions};
use windlass::broker::{Broker, WorkerRecord};
use windlass::protocol::keys::Keys;
use windlass::protocol::names::TaskId;
use windlass::{NewTask, State, TaskType, TaskView};

use crate::support::servers::process::spawn_tied;
use crate::support::servers::{Flavor, LIMIT, Wait};

/// A folder with manifests, handlers and the data of a `windlass dev`.
pub(super) struct Ground {
    folder: tempfile::TempDir,
    pub(super) arguments: Vec<String>,
    /// What the shell that it is started from has in its environment besides.
    pub(super) environment: Vec<(&'static str, &'static str)>,
}

impl Ground {
    /// A folder with this manifest.
    pub(super) fn new(manifest: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let ground = Self { folder, arguments: Vec::new(), environment: Vec::new() };
        ground.write("manifest.yaml", manifest);
        ground
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(super) fn write(&self, name: &str, text: &str) {
        // Renamed, as editors do it: nobody reads half of it.
        let draft = self.path(&format!(".{name}.new"));
        std::fs::write(&draft, text).expect("written");
        std::fs::rename(draft, self.path(name)).expect("renamed");
    }

    pub(super) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// Starts `windlass dev` without waiting for it.
    pub(super) fn launch(&self) -> Dev<'_> {
        // One that was killed leaves its words behind; only new ones count.
        let held = File::open(self.path("data/lock")).is_ok_and(|lock| lock.try_lock().is_err());
        if !held {
            let _ = std::fs::remove_file(self.path("data/env"));
        }
        let output = File::options().create(true).append(true).open(self.path("dev.log")).expect("a log");
        let mut command = Command::new(env!("CARGO_BIN_EXE_windlass"));
        command.args(["dev", "-f"]).arg(self.path("manifest.yaml")).arg("--data-dir").arg(self.path("data"));
        command.args(&self.arguments).env("WINDLASS_REDIS_SERVER", Flavor::Redis70.binary());
        command.envs(self.environment.iter().copied());
        let errors = output.try_clone().expect("a second handle");
        let child = spawn_tied(&command, |tied| {
            tied.stdin(Stdio::null()).stdout(output).stderr(errors);
        });
        Dev { ground: self, child: Some(child) }
    }

    /// Starts `windlass dev` and returns once it is ready.
    pub(super) async fn start(&self) -> Dev<'_> {
        let mut dev = self.launch();
        let mut wait = Wait::new("windlass dev to be ready");
        while !self.path("data/env").exists() {
            assert_eq!(dev.ended(), None, "windlass dev ended:\n{}", self.log());
            wait.again(self.log()).await;
        }
        dev
    }

    /// What `windlass dev` has printed.
    pub(super) fn log(&self) -> String {
        let mut text = Vec::new();
        if let Ok(mut file) = File::open(self.path("dev.log")) {
            file.read_to_end(&mut text).expect("the log can be read");
        }
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Waits until `windlass dev` has printed this.
    pub(super) async fn logged(&self, words: &str) {
        let mut wait = Wait::new(format!("{words:?} to be printed"));
        while !self.log().contains(words) {
            wait.again(self.log()).await;
        }
    }

    /// Waits until a handler has made this file.
    pub(super) async fn made(&self, name: &str) {
        let mut wait = Wait::new(format!("{name} to be made"));
        while !self.path(name).exists() {
            wait.again(self.log()).await;
        }
    }

    /// The URL that a shell would get.
    pub(super) fn redis_url(&self) -> String {
        let text = self.read("data/env");
        let line = text.lines().find_map(|line| line.strip_prefix("export WINDLASS_REDIS_URL='"));
        line.expect("the URL is published").trim_end_matches('\'').to_owned()
    }

    /// A connection to its Redis that waits as long as a busy machine needs.
    pub(super) async fn connect(&self) -> redis::aio::MultiplexedConnection {
        let client = redis::Client::open(self.redis_url()).expect("a usable URL");
        let config =
            redis::AsyncConnectionConfig::new().set_connection_timeout(Some(LIMIT)).set_response_timeout(Some(LIMIT));
        client.get_multiplexed_async_connection_with_config(&config).await.expect("connected")
    }

    /// The process of its Redis.
    pub(super) async fn redis_pid(&self) -> u32 {
        let info: String = redis::cmd("INFO").arg("server").query_async(&mut self.connect().await).await.expect("told");
        let pid = info.lines().find_map(|line| line.strip_prefix("process_id:")).expect("a process");
        pid.trim().parse().expect("a number")
    }

    /// The queue of that name.
    pub(super) fn queue(&self, name: &str) -> QueueOn<'_> {
        let keys = Keys::new(&name.parse().expect("valid"));
        let broker = RedisBroker::new(keys, RedisOptions::new(self.redis_url())).expect("a usable URL");
        QueueOn { ground: self, broker: Arc::new(broker) }
    }

    /// Whether no process works in this folder's data directory: neither Redis nor a guard,
    /// which is there until whatever its program has started is gone.
    pub(super) fn is_quiet(&self) -> bool {
        let free = |name: &str| File::open(self.path(name)).is_ok_and(|file| file.try_lock().is_ok());
        free("data/children.lock") && free("data/redis.lock")
    }

    pub(super) async fn quiet(&self) {
        let mut wait = Wait::new("every process to be gone");
        while !self.is_quiet() {
            wait.again(self.log()).await;
        }
    }
}

/// A queue, and what became of its tasks.
pub(super) struct QueueOn<'a> {
    ground: &'a Ground,
    pub(super) broker: Arc<RedisBroker>,
}

impl QueueOn<'_> {
    pub(super) async fn enqueue(&self, task_type: &str, payload: serde_json::Value) -> TaskId {
        let task = NewTask::new(TaskType::new(task_type).expect("valid"), payload);
        self.broker.enqueue(&[task]).await.expect("accepted")[0].id.clone()
    }

    pub(super) async fn task(&self, id: &TaskId) -> TaskView {
        self.broker.get(id).await.expect("readable").expect("known")
    }

    pub(super) async fn reaches(&self, id: &TaskId, state: State) -> TaskView {
        let mut wait = Wait::new(format!("task {id} to be {state}"));
        loop {
            let task = self.task(id).await;
            if task.state == state {
                return task;
            }
            wait.again(format!("{task:?}\n{}", self.ground.log())).await;
        }
    }

    /// Waits until there are so many workers.
    pub(super) async fn workers(&self, count: usize) -> Vec<WorkerRecord> {
        let mut wait = Wait::new(format!("{count} workers"));
        loop {
            let workers = self.broker.workers().await.expect("readable");
            if workers.len() == count {
                return workers;
            }
            wait.again(format!("{workers:?}\n{}", self.ground.log())).await;
        }
    }
}

/// A `windlass dev`, which ends with this value.
pub(super) struct Dev<'a> {
    ground: &'a Ground,
    child: Option<Child>,
}

impl Dev<'_> {
    pub(super) fn signal(&self, signal: &str) {
        let pid = self.child.as_ref().expect("it runs").id();
        send(pid, signal);
    }

    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.as_mut()?.try_wait().expect("a child's state is known")
    }

    pub(super) async fn end(&mut self) -> ExitStatus {
        let mut wait = Wait::new("windlass dev to end");
        loop {
            if let Some(status) = self.ended() {
                self.child = None;
                return status;
            }
            wait.again(self.ground.log()).await;
        }
    }

    /// Ctrl-C, and its end.
    pub(super) async fn stop(mut self) {
        self.signal("INT");
        let status = self.end().await;
        assert!(status.success(), "{status}:\n{}", self.ground.log());
        assert!(self.ground.is_quiet(), "something was left behind:\n{}", self.ground.log());
    }

    pub(super) fn kill9(mut self) {
        let mut child = self.child.take().expect("it runs");
        child.kill().expect("killed");
        child.wait().expect("reaped");
    }
}

impl Drop for Dev<'_> {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // Its guards end what it had started.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

pub(super) fn send(pid: u32, signal: &str) {
    let done = Command::new("kill").args([&format!("-{signal}"), &pid.to_string()]).status().expect("kill runs");
    assert!(done.success(), "process {pid} is there");
}

/// A queue, and a pool of one worker that runs this command for each task.
pub(super) fn manifest(command: &str) -> String {
    format!(
        "{}---\n{}",
        queue("q", "{heartbeatPeriodSeconds: 1, visibilityTimeoutSeconds: 30}"),
        exec("pool", "q", command)
    )
}

/// A queue.
pub(super) fn queue(name: &str, spec: &str) -> String {
    format!("apiVersion: windlass.dev/v1alpha1\nkind: TaskQueue\nmetadata: {{name: {name}}}\nspec: {spec}\n")
}

/// A pool of one worker that runs this command for each task.
pub(super) fn exec(name: &str, queue: &str, command: &str) -> String {
    format!(
        "apiVersion: windlass.dev/v1alpha1\nkind: WorkerPool\nmetadata: {{name: {name}}}\nspec:\n  \
         queueRef: {{name: {queue}}}\n  replicas: 1\n  concurrency: 4\n  drainTimeoutSeconds: 30\n  \
         handler: {{type: Exec, exec: {{command: {command}}}}}\n  \
         template: {{spec: {{containers: [{{name: app, image: none}}]}}}}\n"
    )
}

/// The parent of a process.
pub(super) fn parent_of(pid: u32) -> u32 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("the process is there");
    // "pid (name) state parent …", where the name may hold anything.
    let (_, after_name) = stat.rsplit_once(") ").expect("a name in parentheses");
    after_name.split(' ').nth(1).expect("a parent").parse().expect("a number")
}

/// Whether a process is there.
pub(super) fn is_alive(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}
