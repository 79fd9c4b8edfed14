//! What the tests stand on: a queue, workers on it, and handlers made of closures.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use windlass::broker::redis::{RedisBroker, RedisOptions};
use windlass::broker::{Broker, QueueCounts, ReclaimCursor};
use windlass::protocol::keys::Keys;
use windlass::protocol::policy::Policy;
use windlass::worker::{WorkerPlace, WorkerSummary};
use windlass::{
    Handler, NewTask, Outcome, Producer, QueueName, State, TaskContext, TaskId, TaskView, Worker, WorkerHandle,
    WorkerOptions,
};

use crate::support::servers::{Flavor, Server, Wait};
use crate::support::{fresh_queue, owner};

/// A queue on a Redis.
pub(super) struct Ground {
    pub(super) server: Server,
    pub(super) name: QueueName,
    pub(super) broker: Arc<RedisBroker>,
    pub(super) producer: Producer,
}

impl Ground {
    /// On a Redis with nothing but the defaults.
    pub(super) async fn new(policy: Policy) -> Self {
        Self::on(Server::start(Flavor::Redis70).await, policy).await
    }

    pub(super) async fn on(server: Server, policy: Policy) -> Self {
        let name = fresh_queue();
        let broker = Arc::new(broker_at(&server.url(), &name));
        broker.provision(&owner(), &policy).await.expect("the queue is made");
        Self { server, name, producer: Producer::new(broker.clone()), broker }
    }

    /// Changes the policy.
    pub(super) async fn set(&self, change: impl FnOnce(&mut Policy)) {
        let mut policy = self.broker.policy().await.expect("the queue has a policy");
        change(&mut policy);
        self.broker.provision(&owner(), &policy).await.expect("the policy is written");
    }

    /// A worker with a connection of its own that runs.
    pub(super) fn work(&self, handler: impl Handler, options: WorkerOptions) -> Running {
        self.work_at(&self.server.url(), handler, options)
    }

    /// The same by another way to the server.
    pub(super) fn work_at(&self, url: &str, handler: impl Handler, options: WorkerOptions) -> Running {
        let broker = Arc::new(broker_at(url, &self.name));
        let worker = Worker::new(self.name.clone(), broker, handler, options).expect("usable options");
        let (id, handle) = (worker.id().clone(), worker.handle());
        let task = tokio::spawn(async move { worker.run().await.expect("the worker ends well") });
        Running { id, handle, task }
    }

    pub(super) fn keys(&self) -> &Keys {
        self.broker.keys()
    }

    pub(super) async fn add(&self, count: usize) -> Vec<TaskId> {
        let tasks: Vec<_> = (0..count).map(|n| new_task(json!({ "n": n }))).collect();
        let made = self.producer.enqueue_all(&tasks).await.expect("the tasks are taken");
        made.into_iter().map(|made| made.id).collect()
    }

    pub(super) async fn add_one(&self, task: NewTask) -> TaskId {
        self.producer.enqueue(task).await.expect("the task is taken").id
    }

    pub(super) async fn view(&self, id: &TaskId) -> TaskView {
        self.broker.get(id).await.expect("answered").expect("the task is known")
    }

    pub(super) async fn counts(&self) -> QueueCounts {
        self.broker.counts().await.expect("answered")
    }

    /// Waits until a task is in a state.
    pub(super) async fn until(&self, id: &TaskId, state: State) -> TaskView {
        let mut wait = Wait::new(format!("{id} to be {state}"));
        loop {
            let view = self.view(id).await;
            if view.state == state {
                return view;
            }
            wait.again(format!("{view:?}")).await;
        }
    }

    /// Waits until so many tasks are finished.
    pub(super) async fn until_finished(&self, count: u64) {
        let mut wait = Wait::new(format!("{count} tasks to be finished"));
        while self.counts().await.finished < count {
            wait.again(format!("{:?}", self.counts().await)).await;
        }
    }

    /// Takes back what has expired, until something does.
    pub(super) async fn reclaim_one(&self) -> TaskId {
        let mut wait = Wait::new("a lease to expire".to_owned());
        loop {
            let mut reclaimed = self.broker.reclaim(ReclaimCursor::default()).await.expect("answered");
            if let Some(task) = reclaimed.requeued.pop() {
                return task;
            }
            wait.again("none has").await;
        }
    }
}

pub(super) fn broker_at(url: &str, name: &QueueName) -> RedisBroker {
    let mut options = RedisOptions::new(url);
    // So that a frozen server is noticed within a test's patience.
    options.response_timeout = Duration::from_secs(1);
    RedisBroker::new(Keys::new(name), options).expect("a usable URL")
}

/// A way to a server that can be cut, while others still reach it.
pub(super) struct Line {
    port: u16,
    is_cut: tokio::sync::watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Line {
    pub(super) async fn to(server: &Server) -> Self {
        let target = server.port();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let is_cut = tokio::sync::watch::Sender::new(false);
        let watch = is_cut.subscribe();
        let task = tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let mut watch = watch.clone();
                tokio::spawn(async move {
                    if *watch.borrow() {
                        return;
                    }
                    let Ok(mut far) = TcpStream::connect(("127.0.0.1", target)).await else { return };
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
                        _ = watch.wait_for(|is_cut| *is_cut) => {}
                    }
                });
            }
        });
        Self { port, is_cut, task }
    }

    pub(super) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub(super) fn cut(&self) {
        self.is_cut.send_replace(true);
    }

    pub(super) fn mend(&self) {
        self.is_cut.send_replace(false);
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A worker that runs. Dropped, it is gone as by kill -9.
pub(super) struct Running {
    pub(super) id: windlass::protocol::names::WorkerId,
    pub(super) handle: WorkerHandle,
    task: JoinHandle<WorkerSummary>,
}

impl Running {
    /// Waits for its end.
    pub(super) async fn end(mut self) -> WorkerSummary {
        let ended = tokio::time::timeout(Duration::from_secs(120), &mut self.task).await;
        ended.expect("the worker ends in time").expect("the worker does not panic")
    }

    pub(super) async fn drain(self) -> WorkerSummary {
        self.handle.drain();
        self.end().await
    }

    /// Ends it as a crash would: nothing is settled, nobody is told.
    pub(super) async fn crash(mut self) {
        self.task.abort();
        let _ = (&mut self.task).await;
    }

    /// Waits until so many handlers run.
    pub(super) async fn until_running(&self, count: usize) {
        let mut wait = Wait::new(format!("{count} handlers to run"));
        while self.handle.health().running() != count {
            wait.again(format!("{} run", self.handle.health().running())).await;
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub(super) fn new_task(payload: impl Into<windlass::Payload>) -> NewTask {
    NewTask::new("work".parse().expect("a valid type"), payload)
}

pub(super) fn options(concurrency: usize) -> WorkerOptions {
    let place = WorkerPlace { host: "test".to_owned(), ..WorkerPlace::default() };
    WorkerOptions { concurrency, place, ..WorkerOptions::default() }
}

/// A policy under which leases are short.
pub(super) fn hasty() -> Policy {
    let mut policy = Policy {
        visibility_timeout: Duration::from_millis(1500),
        heartbeat_period: Duration::from_millis(300),
        ..Policy::default()
    };
    policy.retry.backoff.strategy = windlass::protocol::backoff::Strategy::Fixed { base_ms: 1 };
    policy.retry.backoff.jitter = windlass::protocol::backoff::Jitter::None;
    policy
}

/// A handler made of a closure.
pub(super) struct Does<F>(pub(super) F);

#[async_trait]
impl<F, O> Handler for Does<F>
where
    F: Fn(TaskContext) -> O + Send + Sync + 'static,
    O: Future<Output = Outcome> + Send,
{
    async fn handle(&self, task: &TaskContext) -> Outcome {
        (self.0)(task.clone()).await
    }
}

/// Counts how many are in at a time, and how many there were.
#[derive(Clone, Default)]
pub(super) struct Gauge(Arc<[AtomicUsize; 3]>);

pub(super) struct Inside(Gauge);

impl Gauge {
    pub(super) fn enter(&self) -> Inside {
        let inside = self.0[0].fetch_add(1, Ordering::SeqCst) + 1;
        self.0[1].fetch_max(inside, Ordering::SeqCst);
        self.0[2].fetch_add(1, Ordering::SeqCst);
        Inside(self.clone())
    }

    pub(super) fn inside(&self) -> usize {
        self.0[0].load(Ordering::SeqCst)
    }

    pub(super) fn most(&self) -> usize {
        self.0[1].load(Ordering::SeqCst)
    }

    pub(super) fn entered(&self) -> usize {
        self.0[2].load(Ordering::SeqCst)
    }

    pub(super) async fn until_entered(&self, count: usize) {
        let mut wait = Wait::new(format!("{count} handlers to have begun"));
        while self.entered() < count {
            wait.again(format!("{} have", self.entered())).await;
        }
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.0[0].fetch_sub(1, Ordering::SeqCst);
    }
}
