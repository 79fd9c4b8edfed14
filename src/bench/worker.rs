//! The library's worker with a handler that does nothing, beside the peers' workers.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use async_trait::async_trait;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::delivery::{Body, Delivery, join_all};
use super::load::{Load, Numbers};
use super::peers::Peer;
use super::players::{Collected, Player, judged_rows, nobody_yet, players};
use super::report::{Row, System};
use super::slow_log::SlowLogs;
use super::stats::Waits;
use super::windlass::{Dress, Queue, drain_outbox, enqueue, fill, new_task, noop, produce, record, watch};
use super::wire::{Pipeline, Shared};
use super::{Bench, bare};
use crate::broker::{Broker, MAX_BATCH};
use crate::protocol::keys::Keys;
use crate::{Handler, Outcome, TaskContext, Worker, WorkerOptions};

/// Handlers at a time.
const CONCURRENCY: [usize; 3] = [1, 10, 100];
/// Who has a worker.
const SYSTEMS: [System; 3] = [System::Windlass, System::Bullmq, System::Asynq];
/// Handlers of a worker that is idle, as the peers' drivers have.
const IDLE_CONCURRENCY: usize = 16;
/// How long an idle worker has nothing to do, at least; at most twice as long.
const PAUSE: Duration = Duration::from_millis(20);
/// The same for asynq as it is, which looks for work once a second: a shorter
/// pause would always meet it at the beginning of its second.
const LONG_PAUSE: Duration = Duration::from_secs(1);
/// Tasks before those that count, so that connections and scripts are there, as
/// in the peers' drivers.
const WARM_UP: usize = 3;
/// How long nothing may be done before a run has failed.
const PATIENCE: Duration = Duration::from_secs(30);

/// What the table cannot say by itself.
pub(super) const NOTES: [&str; 2] = [
    "Workers: \"from enqueue to handler\" is the whole path, one task an enqueue call, from the first enqueue to the last \
     handler. \"queue full before\" is the worker alone, from its first handler to its last; it is shown and not judged. \
     Afterwards every task is checked to be settled; on our side the events are read from the outbox meanwhile.",
    "An idle worker is sent one task at a time, when it has had nothing to do for a while. \"bare\" is an XADD to a \
     consumer in a blocking XREADGROUP; \"after a raw XADD\" is our worker, with a producer that knows nothing of us.",
];

/// What is asked of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Course {
    /// Tasks come while it works.
    WholePath,
    /// All tasks are there before it begins.
    Alone,
}

impl Course {
    const ALL: [Self; 2] = [Self::WholePath, Self::Alone];

    fn name(self) -> &'static str {
        match self {
            Self::WholePath => "from enqueue to handler",
            Self::Alone => "queue full before",
        }
    }
}

/// Steps that [`measure`] will report.
pub(super) fn steps(bench: &Bench) -> usize {
    let pick_ups: usize = idlers(bench).into_iter().map(|player| pick_up_runs(bench, player)).sum();
    Course::ALL.len() * CONCURRENCY.len() * systems(bench).len() * bench.settings.runs + pick_ups
}

fn systems(bench: &Bench) -> Vec<System> {
    bench.systems().into_iter().filter(|system| SYSTEMS.contains(system)).collect()
}

/// Who waits for work: everybody, and our worker for raw producers' too.
fn idlers(bench: &Bench) -> Vec<Player> {
    [Player::Raw].into_iter().chain(players(bench)).collect()
}

/// A task takes asynq as it is a second: it runs once.
fn pick_up_runs(bench: &Bench, player: Player) -> usize {
    if player == Player::Peer(Peer::Asynq) { 1 } else { bench.settings.runs }
}

/// Measures.
pub(super) async fn measure(bench: &mut Bench) -> Result<Vec<Row>> {
    let mut slow = SlowLogs::default();
    let mut rows = Vec::new();
    for course in Course::ALL {
        for handlers in CONCURRENCY {
            rows.push(measure_course(bench, course, handlers, &mut slow).await?);
        }
    }
    rows.extend(measure_pick_up(bench, &mut slow).await?);
    rows.push(slow.row("through workers"));
    Ok(rows)
}

async fn measure_course(bench: &mut Bench, course: Course, handlers: usize, slow: &mut SlowLogs) -> Result<Row> {
    let of = if handlers == 1 { "1 handler".to_owned() } else { format!("{handlers} handlers") };
    let mut per_second: Vec<(System, Vec<f64>)> = systems(bench).into_iter().map(|one| (one, Vec::new())).collect();
    for run in 1..=bench.settings.runs {
        for (system, per_second) in &mut per_second {
            bench.progress(&format!("worker with {of}, {}, run {run}: {}", course.name(), system.name()));
            bench.server.flush().await?;
            bench.server.reset_slow_log().await?;
            per_second.push(run_course(bench, *system, course, handlers).await?);
            slow.add(*system, bench.server.slow_log().await?);
        }
    }
    let row = Row::new(format!("worker, {of}, {}, tasks/s", course.name()));
    let row = per_second.iter().fold(row, |row, (system, runs)| row.value(*system, runs));
    let row = row.ratio_to(System::Bullmq).ratio_to(System::Asynq);
    let judged = |row: Row| row.budget("≥ 3× BullMQ and asynq", 2, |ratio| ratio >= 3.0);
    Ok(if course == Course::WholePath { judged(row) } else { row })
}

/// How many tasks a second one system does.
async fn run_course(bench: &Bench, system: System, course: Course, handlers: usize) -> Result<f64> {
    let port = bench.server.port;
    let tasks = if handlers == 1 { bench.settings.lone_worker_tasks } else { bench.settings.worker_tasks };
    let load = Load::new(tasks, 1, bench.settings.concurrency);
    let peer = match system {
        System::Bullmq => Some(Peer::Bullmq),
        System::Asynq => Some(Peer::Asynq),
        _ => None,
    };
    let seconds = match (peer, course) {
        (None, _) => own(port, load, course, handlers).await.context("windlass's worker failed")?,
        (Some(peer), Course::WholePath) => bench.peers()?.whole_path(peer, port, load, handlers).await?,
        (Some(peer), Course::Alone) => bench.peers()?.drain(peer, port, tasks, handlers).await?,
    };
    Ok(tasks as f64 / seconds)
}

/// Does nothing, and writes down that it did.
struct Noop {
    delivery: Arc<Delivery>,
    began: OnceLock<Instant>,
    on_task: Box<dyn Fn(&Body) + Send + Sync>,
}

impl Noop {
    fn new(delivery: Arc<Delivery>, on_task: impl Fn(&Body) + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { delivery, began: OnceLock::new(), on_task: Box::new(on_task) })
    }

    fn run(&self, task: &TaskContext) -> Result<()> {
        let _ = self.began.get_or_init(Instant::now);
        let body = Body::parse(task.task().payload.as_str())?;
        (self.on_task)(&body);
        self.delivery.handle(body.id)?;
        self.delivery.settle(1);
        Ok(())
    }
}

#[async_trait]
impl Handler for Noop {
    async fn handle(&self, task: &TaskContext) -> Outcome {
        match self.run(task) {
            Ok(()) => Outcome::Success { result: None },
            // The books of the queue show it at the end of the run.
            Err(error) => Outcome::permanent("bench", format!("{error:#}")),
        }
    }
}

/// Lets a worker do all tasks; returns how many seconds that took.
async fn own(port: u16, load: Load, course: Course, handlers: usize) -> Result<f64> {
    let queue = Queue::make(port, "bench/worker").await?;
    let delivery = Arc::new(Delivery::new(load.tasks));
    let noop = Noop::new(delivery.clone(), |_| {});
    if course == Course::Alone {
        fill(&queue, 0, Load::new(load.tasks, MAX_BATCH, 1), Dress::Plain).await?;
        drain_outbox(&*queue.broker).await?;
    }
    let mut parts = JoinSet::new();
    let start = Instant::now();
    if course == Course::WholePath {
        let (sending, numbers) = (queue.connect()?, Arc::new(Numbers::new(0, load)));
        for _ in 0..load.in_flight {
            parts.spawn(produce(sending.clone(), numbers.clone(), Dress::Plain));
        }
    }
    parts.spawn(work(queue.clone(), noop.clone(), handlers));
    parts.spawn(record(queue.connect()?, delivery.clone(), None));
    watch(&mut parts, &delivery, PATIENCE);
    join_all(parts).await?;
    let first_handler = *noop.began.get().context("no handler began")?;
    delivery.seconds_since(if course == Course::Alone { first_handler } else { start })
}

/// Runs a worker until every task was handled, and checks that all are settled.
async fn work(queue: Queue, noop: Arc<Noop>, concurrency: usize) -> Result<()> {
    let options = WorkerOptions { concurrency, ..WorkerOptions::default() };
    let worker = Worker::new(queue.name()?, queue.connect()?, noop.clone(), options)?;
    let handle = worker.handle();
    let ended = async {
        noop.delivery.finished().await;
        handle.drain();
    };
    let (summary, ()) = tokio::join!(worker.run(), ended);
    let (summary, counts) = (summary?, queue.broker.counts().await?);
    let left = counts.backlog + counts.running + counts.retrying + counts.dlq_pending;
    let settled = summary.settled == counts.finished && summary.released + summary.refused == 0;
    ensure!(left == 0 && settled, "the worker's books and the queue's do not add up: {summary:?}, {counts:?}");
    Ok(())
}

async fn measure_pick_up(bench: &mut Bench, slow: &mut SlowLogs) -> Result<Vec<Row>> {
    let (port, tasks) = (bench.server.port, bench.settings.pickups);
    let mut results = nobody_yet(idlers(bench));
    for run in 1..=bench.settings.runs {
        for (player, waits) in &mut results {
            if run > pick_up_runs(bench, *player) {
                continue;
            }
            bench.progress(&format!("pick-up by an idle worker, run {run}: {}", player.name()));
            bench.server.flush().await?;
            bench.server.reset_slow_log().await?;
            waits.push(match player {
                Player::Windlass | Player::Raw => {
                    pick_up(port, tasks, *player).await.context("windlass's idle worker failed")?
                }
                Player::Bare => bare_pick_up(port, tasks).await.context("a bare consumer failed")?,
                Player::Peer(Peer::Asynq) => {
                    bench.peers()?.pickup(Peer::Asynq, port, bench.settings.slow_pickups, LONG_PAUSE).await?
                }
                Player::Peer(peer) => bench.peers()?.pickup(*peer, port, tasks, PAUSE).await?,
            });
            slow.add(player.system(), bench.server.slow_log().await?);
        }
    }
    Ok(judged_rows(&results, "pick-up by an idle worker"))
}

/// Waits that count, and who is told of each.
struct Idle {
    tasks: usize,
    delivery: Arc<Delivery>,
    waits: Collected,
    handled: Arc<Notify>,
    began: Instant,
}

impl Idle {
    fn new(tasks: usize) -> Self {
        let tasks = WARM_UP + tasks;
        let (delivery, waits) = (Arc::new(Delivery::new(tasks)), Collected::default());
        Self { tasks, delivery, waits, handled: Arc::new(Notify::new()), began: Instant::now() }
    }

    fn on_task(&self) -> impl Fn(&Body) + Send + Sync + 'static {
        let (waits, handled, began) = (self.waits.clone(), self.handled.clone(), self.began);
        move |body| {
            if body.id >= WARM_UP {
                waits.add(began.elapsed().as_secs_f64() * 1e3 - body.at as f64 / 1e3);
            }
            handled.notify_one();
        }
    }

    /// Sends the next one a while after the one before was handled.
    fn send<S, F>(&self, send: F) -> impl Future<Output = Result<()>> + use<S, F>
    where
        F: Fn(Body) -> S,
        S: Future<Output = Result<()>>,
    {
        let (tasks, handled, began) = (self.tasks, self.handled.clone(), self.began);
        async move {
            for id in 0..tasks {
                tokio::time::sleep(PAUSE.mul_f64(1.0 + fastrand::f64())).await;
                send(Body { id, at: began.elapsed().as_micros() as u64 }).await?;
                handled.notified().await;
            }
            Ok(())
        }
    }
}

/// Sends tasks one at a time to a worker that has nothing to do.
async fn pick_up(port: u16, tasks: usize, player: Player) -> Result<Waits> {
    let queue = Queue::make(port, "bench/pick-up").await?;
    let idle = Idle::new(tasks);
    let noop = Noop::new(idle.delivery.clone(), idle.on_task());
    let mut parts = JoinSet::new();
    parts.spawn(work(queue.clone(), noop, IDLE_CONCURRENCY));
    if player == Player::Raw {
        let (raw, stream) = (Shared::connect(port).await?, Keys::new(&queue.name()?).task);
        parts.spawn(idle.send(move |body| add_raw(raw.clone(), stream.clone(), body)));
    } else {
        let broker = queue.connect()?;
        parts.spawn(idle.send(move |body| enqueue_one(broker.clone(), body)));
    }
    parts.spawn(record(queue.connect()?, idle.delivery.clone(), None));
    watch(&mut parts, &idle.delivery, PATIENCE);
    join_all(parts).await?;
    idle.waits.waits()
}

/// The same with a consumer in a blocking read, and nothing around it.
async fn bare_pick_up(port: u16, tasks: usize) -> Result<Waits> {
    let (sending, idle) = (bare::make(port).await?, Idle::new(tasks));
    let mut parts = JoinSet::new();
    parts.spawn(bare::wait_and_work(port, idle.tasks, IDLE_CONCURRENCY, idle.delivery.clone(), idle.on_task()));
    parts.spawn(idle.send(move |body| bare::send(sending.clone(), body)));
    watch(&mut parts, &idle.delivery, PATIENCE);
    join_all(parts).await?;
    idle.waits.waits()
}

async fn enqueue_one(broker: Arc<dyn Broker>, body: Body) -> Result<()> {
    enqueue(&*broker, &[new_task(noop()?, &body, Dress::Plain)?]).await
}

/// What a producer does that knows nothing of us.
async fn add_raw(raw: Shared, stream: String, body: Body) -> Result<()> {
    let (id, payload) = (format!("raw-{}", body.id), body.json());
    let mut pipeline = Pipeline::default();
    pipeline.add(["XADD", &stream, "*", "task_id", &id, "type", "noop", "payload", &payload].iter());
    raw.call(pipeline).await.map(drop)
}
