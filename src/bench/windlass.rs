//! Windlass itself: the full protocol, with workers in the registry, events on
//! and a recorder that empties the outbox.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tokio::task::JoinSet;

use super::delivery::{Body, Delivery, join_all};
use super::load::{Load, Numbers};
use crate::broker::redis::{RedisBroker, RedisOptions};
use crate::broker::session::Session;
use crate::broker::{Broker, ClaimedTask, MAX_BATCH, Outcome, Owner, Settled, Settlement, Takeover, WorkerInfo};
use crate::protocol::backoff::Dice;
use crate::protocol::keys::Keys;
use crate::protocol::names::{Capabilities, IdempotencyKey, QueueName, TaskType, TenantId, TraceId, WorkerId};
use crate::protocol::policy::Policy;
use crate::protocol::task::{Extras, NewTask, NotBefore, Payload};

/// How many entries of the outbox the recorder takes at once. At batches of
/// 100 that is some megabyte: more would hold the server for too long.
const OUTBOX_PAGE: usize = 32;
/// How long the recorder rests that has emptied the outbox.
const RECORDER_REST: Duration = Duration::from_millis(10);
/// How long a worker sleeps at most; it is rung before that.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);
/// How long nothing may be done before a run has failed.
const PATIENCE: Duration = Duration::from_secs(30);
/// Every task is made, claimed and ended.
const EVENTS_A_TASK: usize = 3;

/// A queue on the benchmark's server.
#[derive(Clone)]
pub(super) struct Queue {
    port: u16,
    name: &'static str,
    /// For those that take no part in the measured work.
    pub(super) broker: Arc<dyn Broker>,
}

impl Queue {
    /// Makes one.
    pub(super) async fn make(port: u16, name: &'static str) -> Result<Self> {
        let broker = open(port, name)?;
        let owner = Owner { name: "bench".to_owned(), takeover: Takeover::Respect };
        broker.provision(&owner, &Policy::default()).await?;
        Ok(Self { port, name, broker })
    }

    /// A connection of its own to the queue, as another process would have.
    pub(super) fn connect(&self) -> Result<Arc<dyn Broker>> {
        open(self.port, self.name)
    }

    /// Its name.
    pub(super) fn name(&self) -> Result<QueueName> {
        Ok(self.name.parse()?)
    }

    /// Adds workers to the registry, and gives them a connection that they share.
    pub(super) async fn workers(&self, number: usize, capabilities: &Capabilities) -> Result<Vec<Session>> {
        let broker = self.connect()?;
        let mut sessions = Vec::with_capacity(number);
        for n in 0..number {
            let id = WorkerId::new(format!("bench-{n}"))?;
            let types = capabilities.types().cloned().collect();
            broker.register(&worker_info(id.clone(), types)).await?;
            sessions.push(Session::new(broker.clone(), id, capabilities.clone()));
        }
        Ok(sessions)
    }
}

fn open(port: u16, name: &str) -> Result<Arc<dyn Broker>> {
    let options = RedisOptions::new(format!("redis://127.0.0.1:{port}"));
    Ok(Arc::new(RedisBroker::new(Keys::new(&name.parse()?), options)?))
}

/// A worker of this process.
pub(super) fn worker_info(id: WorkerId, types: Vec<TaskType>) -> WorkerInfo {
    let version = env!("CARGO_PKG_VERSION").to_owned();
    let (pod, pod_uid, container) = (None, None, None);
    let (host, pid) = ("bench".to_owned(), std::process::id());
    WorkerInfo { id, host, pid, pod, pod_uid, container, version, types, pool: None, started: None }
}

/// The type of the benchmark's tasks.
pub(super) fn noop() -> Result<TaskType> {
    Ok(TaskType::new("noop")?)
}

/// What a task has besides its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dress {
    /// Nothing.
    Plain,
    /// An idempotency key, a tenant, a trace and two labels.
    Full,
}

/// Task number `id`.
pub(super) fn new_task(task_type: TaskType, body: &Body, dress: Dress) -> Result<NewTask> {
    let mut task = NewTask::new(task_type, Payload::from_json(body.json())?);
    if dress == Dress::Full {
        let n = body.id;
        task.idempotency_key = Some(IdempotencyKey::new(format!("order-{n:08}"))?);
        task.tenant_id = Some(TenantId::new(format!("tenant-{:03}", n % 100))?);
        task.trace_id = Some(TraceId::new(format!("00-{n:032x}-{n:016x}-01"))?);
        let label = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let labels = BTreeMap::from([label("team", "billing"), label("region", "eu-west-1")]);
        task.extras = Extras { labels, ..Extras::default() };
    }
    Ok(task)
}

/// Enqueues batches until all numbers are dealt.
pub(super) async fn produce(broker: Arc<dyn Broker>, numbers: Arc<Numbers>, dress: Dress) -> Result<()> {
    let kind = noop()?;
    while let Some(batch) = numbers.deal() {
        let tasks: Vec<_> =
            batch.map(|id| new_task(kind.clone(), &Body { id, at: 0 }, dress)).collect::<Result<_>>()?;
        enqueue(&*broker, &tasks).await?;
    }
    Ok(())
}

/// Enqueues tasks that must all be new.
pub(super) async fn enqueue(broker: &dyn Broker, tasks: &[NewTask]) -> Result<()> {
    let enqueued = broker.enqueue(tasks).await?;
    ensure!(
        enqueued.len() == tasks.len() && enqueued.iter().all(|task| task.created),
        "a new task was taken for a known one"
    );
    Ok(())
}

/// Enqueues one task that is due at a time.
pub(super) async fn enqueue_due(broker: &dyn Broker, body: &Body, due: jiff::Timestamp) -> Result<()> {
    let mut task = new_task(noop()?, body, Dress::Plain)?;
    task.not_before = NotBefore::At(due);
    enqueue(broker, &[task]).await
}

/// A worker: claims, does, and settles with the next claim in the same call,
/// until all is done. Sleeps when there is nothing to do.
pub(super) async fn work(
    mut session: Session,
    batch: usize,
    delivery: Arc<Delivery>,
    on_task: impl Fn(&Body),
) -> Result<()> {
    let mut tasks = session.claim(batch).await?;
    loop {
        if tasks.is_empty() {
            tokio::select! {
                () = delivery.finished() => return Ok(()),
                slept = session.sleep(LONGEST_SLEEP) => drop(slept?),
            }
            tasks = session.claim(batch).await?;
        } else {
            let settlements = handle(tasks, &delivery, &on_task)?;
            tasks = settle(&mut session, &settlements, batch).await?;
            delivery.settle(settlements.len());
        }
    }
}

/// Does tasks.
pub(super) fn handle(tasks: Vec<ClaimedTask>, delivery: &Delivery, on_task: impl Fn(&Body)) -> Result<Vec<Settlement>> {
    let mut settlements = Vec::with_capacity(tasks.len());
    for task in tasks {
        let body = Body::parse(task.payload.as_str())?;
        on_task(&body);
        delivery.handle(body.id)?;
        settlements.push(Settlement { lease: task.lease, outcome: Outcome::Success { result: None }, dice: Dice(0) });
    }
    Ok(settlements)
}

/// Settles tasks that are still held, and claims the next.
pub(super) async fn settle(session: &mut Session, settlements: &[Settlement], next: usize) -> Result<Vec<ClaimedTask>> {
    let reply = session.settle(settlements, next).await?;
    let all = reply.settled.iter().all(|settled| *settled == Settled::Succeeded);
    ensure!(
        all && reply.settled.len() == settlements.len(),
        "a task was lost between claim and settle: {:?}",
        reply.settled
    );
    Ok(reply.next?)
}

/// The recorder: reads the outbox and trims what it has read, until all is
/// done. `None` for no check of the number of events.
pub(super) async fn record(broker: Arc<dyn Broker>, delivery: Arc<Delivery>, events: Option<usize>) -> Result<()> {
    let mut recorded = 0;
    loop {
        let finished = delivery.is_finished();
        let page = record_page(&*broker).await?;
        recorded += page.events;
        if page.entries == OUTBOX_PAGE {
            continue;
        }
        if finished {
            break;
        }
        tokio::time::sleep(RECORDER_REST).await;
    }
    let expected = events.unwrap_or(recorded);
    ensure!(recorded == expected, "{recorded} events were recorded instead of {expected}");
    Ok(())
}

struct Recorded {
    entries: usize,
    events: usize,
}

async fn record_page(broker: &dyn Broker) -> Result<Recorded> {
    let page = broker.outbox(OUTBOX_PAGE).await?;
    broker.trim_outbox(&page).await?;
    Ok(Recorded { entries: page.len(), events: page.iter().map(|entry| entry.events.len()).sum() })
}

/// Empties the outbox.
pub(super) async fn drain_outbox(broker: &dyn Broker) -> Result<()> {
    while record_page(broker).await?.entries > 0 {}
    Ok(())
}

/// Sends and does all tasks at the same time; returns how many seconds that took.
pub(super) async fn throughput(port: u16, load: Load) -> Result<f64> {
    let queue = Queue::make(port, "bench/throughput").await?;
    let sending = queue.connect()?;
    // Single tasks are sent one a call. Like the peers', their worker is one
    // process with so many handlers; what ends while a call is under way is
    // settled with the next one.
    let (workers, at_once) =
        if load.batch == 1 { (1, load.in_flight.min(MAX_BATCH)) } else { (load.in_flight, load.batch) };
    let sessions = queue.workers(workers, &Capabilities::any()).await?;
    let delivery = Arc::new(Delivery::new(load.tasks));
    let numbers = Arc::new(Numbers::new(0, load));
    let mut parts = JoinSet::new();
    let start = Instant::now();
    for _ in 0..load.in_flight {
        parts.spawn(produce(sending.clone(), numbers.clone(), Dress::Plain));
    }
    for session in sessions {
        parts.spawn(work(session, at_once, delivery.clone(), |_| {}));
    }
    parts.spawn(record(queue.connect()?, delivery.clone(), Some(load.tasks * EVENTS_A_TASK)));
    watch(&mut parts, &delivery, PATIENCE);
    join_all(parts).await?;
    let counts = queue.broker.counts().await?;
    let left = counts.backlog + counts.running + counts.outbox;
    ensure!(left == 0 && counts.finished == load.tasks as u64, "the queue's own books do not add up: {counts:?}");
    delivery.seconds_since(start)
}

/// Adds a watch to the parts of a run, so that it fails rather than hangs.
pub(super) fn watch(parts: &mut JoinSet<Result<()>>, delivery: &Arc<Delivery>, patience: Duration) {
    let watched = delivery.clone();
    parts.spawn(async move { watched.watch(patience).await });
}

/// Fills the queue with tasks `first..first + load.tasks`.
pub(super) async fn fill(queue: &Queue, first: usize, load: Load, dress: Dress) -> Result<()> {
    let broker = queue.connect()?;
    let numbers = Arc::new(Numbers::new(first, load));
    let mut parts = JoinSet::new();
    for _ in 0..load.in_flight {
        parts.spawn(produce(broker.clone(), numbers.clone(), dress));
    }
    join_all(parts).await
}

/// Does as many tasks as the load has; there must be so many.
pub(super) async fn work_off(sessions: Vec<Session>, load: Load, delivery: Arc<Delivery>) -> Result<Vec<Session>> {
    let portions = Arc::new(Numbers::new(0, load));
    let mut parts = JoinSet::new();
    for session in sessions {
        parts.spawn(work_portions(session, portions.clone(), delivery.clone()));
    }
    let mut back = Vec::new();
    while let Some(ended) = parts.join_next().await {
        back.push(ended.context("a part of the benchmark was cut off")??);
    }
    Ok(back)
}

async fn work_portions(mut session: Session, portions: Arc<Numbers>, delivery: Arc<Delivery>) -> Result<Session> {
    let mut wanted = portions.deal().map_or(0, |portion| portion.len());
    let mut tasks = session.claim(wanted).await?;
    while wanted > 0 {
        ensure!(tasks.len() == wanted, "a claim gave {} tasks instead of {wanted}", tasks.len());
        let settlements = handle(tasks, &delivery, |_| {})?;
        wanted = portions.deal().map_or(0, |portion| portion.len());
        tasks = settle(&mut session, &settlements, wanted).await?;
        delivery.settle(settlements.len());
    }
    Ok(session)
}
