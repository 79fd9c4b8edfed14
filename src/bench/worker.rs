//! The library's worker with a handler that does nothing, beside the peers' workers.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use async_trait::async_trait;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::Bench;
use super::delivery::{Body, Delivery, join_all};
use super::load::{Load, Numbers};
use super::peers::Peer;
use super::players::{Collected, judged_rows, name, nobody_yet, players};
use super::report::{Row, System};
use super::slow_log::SlowLog;
use super::stats::Waits;
use super::windlass::{Dress, Queue, drain_outbox, enqueue, fill, new_task, noop, produce, record, watch};
use crate::broker::{Broker, MAX_BATCH};
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
    "An idle worker is sent one task at a time, when it has had nothing to do for a while.",
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
    let pick_ups: usize = players(bench).into_iter().map(|player| pick_up_runs(bench, player)).sum();
    Course::ALL.len() * CONCURRENCY.len() * systems(bench).len() * bench.settings.runs + pick_ups
}

fn systems(bench: &Bench) -> Vec<System> {
    bench.systems().into_iter().filter(|system| SYSTEMS.contains(system)).collect()
}

/// A task takes asynq as it is a second: it runs once.
fn pick_up_runs(bench: &Bench, player: Option<Peer>) -> usize {
    if player == Some(Peer::Asynq) { 1 } else { bench.settings.runs }
}

/// Measures.
pub(super) async fn measure(bench: &mut Bench) -> Result<Vec<Row>> {
    let mut slow = SlowLog::default();
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

async fn measure_course(bench: &mut Bench, course: Course, handlers: usize, slow: &mut SlowLog) -> Result<Row> {
    let of = if handlers == 1 { "1 handler".to_owned() } else { format!("{handlers} handlers") };
    let mut per_second: Vec<(System, Vec<f64>)> = systems(bench).into_iter().map(|one| (one, Vec::new())).collect();
    for run in 1..=bench.settings.runs {
        for (system, per_second) in &mut per_second {
            bench.progress(&format!("worker with {of}, {}, run {run}: {}", course.name(), system.name()));
            bench.server.flush().await?;
            bench.server.reset_slow_log().await?;
            per_second.push(run_course(bench, *system, course, handlers).await?);
            if *system == System::Windlass {
                slow.add(bench.server.slow_log().await?);
            }
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

async fn measure_pick_up(bench: &mut Bench, slow: &mut SlowLog) -> Result<Vec<Row>> {
    let (port, tasks) = (bench.server.port, bench.settings.pickups);
    let mut results = nobody_yet(bench);
    for run in 1..=bench.settings.runs {
        for (player, waits) in &mut results {
            if run > pick_up_runs(bench, *player) {
                continue;
            }
            bench.progress(&format!("pick-up by an idle worker, run {run}: {}", name(*player)));
            bench.server.flush().await?;
            bench.server.reset_slow_log().await?;
            waits.push(match player {
                None => pick_up(port, tasks).await.context("windlass's idle worker failed")?,
                Some(Peer::Asynq) => {
                    bench.peers()?.pickup(Peer::Asynq, port, bench.settings.slow_pickups, LONG_PAUSE).await?
                }
                Some(peer) => bench.peers()?.pickup(*peer, port, tasks, PAUSE).await?,
            });
            if player.is_none() {
                slow.add(bench.server.slow_log().await?);
            }
        }
    }
    Ok(judged_rows(&results, "pick-up by an idle worker"))
}

/// Sends tasks one at a time to a worker that has nothing to do.
async fn pick_up(port: u16, tasks: usize) -> Result<Waits> {
    let queue = Queue::make(port, "bench/pick-up").await?;
    let tasks = WARM_UP + tasks;
    let (delivery, waits, handled) = (Arc::new(Delivery::new(tasks)), Collected::default(), Arc::new(Notify::new()));
    let began = Instant::now();
    let (collected, tell) = (waits.clone(), handled.clone());
    let noop = Noop::new(delivery.clone(), move |body| {
        if body.id >= WARM_UP {
            collected.add(began.elapsed().as_secs_f64() * 1e3 - body.at as f64 / 1e3);
        }
        tell.notify_one();
    });
    let mut parts = JoinSet::new();
    parts.spawn(work(queue.clone(), noop, IDLE_CONCURRENCY));
    parts.spawn(send_when_idle(queue.connect()?, tasks, began, handled));
    parts.spawn(record(queue.connect()?, delivery.clone(), None));
    watch(&mut parts, &delivery, PATIENCE);
    join_all(parts).await?;
    waits.waits()
}

async fn send_when_idle(broker: Arc<dyn Broker>, tasks: usize, began: Instant, handled: Arc<Notify>) -> Result<()> {
    for id in 0..tasks {
        tokio::time::sleep(PAUSE.mul_f64(1.0 + fastrand::f64())).await;
        let body = Body { id, at: began.elapsed().as_micros() as u64 };
        enqueue(&*broker, &[new_task(noop()?, &body, Dress::Plain)?]).await?;
        handled.notified().await;
    }
    Ok(())
}
