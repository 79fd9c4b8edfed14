//! The library's worker with a handler that does nothing, beside the peers' workers.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use async_trait::async_trait;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::Bench;
use super::delivery::{Body, Delivery, join_all};
use super::load::Load;
use super::peers::Peer;
use super::players::{Collected, judged_rows, name, nobody_yet, players};
use super::report::{Row, System};
use super::slow_log::SlowLog;
use super::stats::Waits;
use super::windlass::{Dress, Queue, drain_outbox, enqueue, fill, new_task, noop, record, watch};
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
/// How long nothing may be done before a run has failed.
const PATIENCE: Duration = Duration::from_secs(30);

/// What the table cannot say by itself.
pub(super) const NOTES: [&str; 1] =
    ["Workers: the queue is full before the worker starts, and the clock runs from its \
     first handler to its last; every task is then settled, and on our side its events are read from the outbox \
     meanwhile. An idle worker is sent one task at a time."];

/// Steps that [`measure`] will report.
pub(super) fn steps(bench: &Bench) -> usize {
    let pick_ups: usize = players(bench).into_iter().map(|player| pick_up_runs(bench, player)).sum();
    CONCURRENCY.len() * systems(bench).len() * bench.settings.runs + pick_ups
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
    for concurrency in CONCURRENCY {
        rows.push(measure_drain(bench, concurrency, &mut slow).await?);
    }
    rows.extend(measure_pick_up(bench, &mut slow).await?);
    rows.push(slow.row("through workers"));
    Ok(rows)
}

async fn measure_drain(bench: &mut Bench, concurrency: usize, slow: &mut SlowLog) -> Result<Row> {
    let port = bench.server.port;
    let tasks = if concurrency == 1 { bench.settings.lone_worker_tasks } else { bench.settings.worker_tasks };
    let mut per_second: Vec<(System, Vec<f64>)> = systems(bench).into_iter().map(|one| (one, Vec::new())).collect();
    for run in 1..=bench.settings.runs {
        for (system, per_second) in &mut per_second {
            bench.progress(&format!("worker with {concurrency} handlers, run {run}: {}", system.name()));
            bench.server.flush().await?;
            bench.server.reset_slow_log().await?;
            let seconds = match system {
                System::Bullmq => bench.peers()?.drain(Peer::Bullmq, port, tasks, concurrency).await?,
                System::Asynq => bench.peers()?.drain(Peer::Asynq, port, tasks, concurrency).await?,
                _ => drain(port, tasks, concurrency).await.context("windlass's worker failed")?,
            };
            if *system == System::Windlass {
                slow.add(bench.server.slow_log().await?);
            }
            per_second.push((tasks - 1) as f64 / seconds);
        }
    }
    let handlers = if concurrency == 1 { "1 handler".to_owned() } else { format!("{concurrency} handlers") };
    let row = Row::new(format!("worker, {handlers}, tasks/s"));
    let row = per_second.iter().fold(row, |row, (system, runs)| row.value(*system, runs));
    let row = row.ratio_to(System::Bullmq).ratio_to(System::Asynq);
    Ok(row.budget("≥ 3× BullMQ and asynq", 2, |ratio| ratio >= 3.0))
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

/// Fills a queue and lets a worker empty it; returns how many seconds passed
/// between the first handler and the last.
async fn drain(port: u16, tasks: usize, concurrency: usize) -> Result<f64> {
    let queue = Queue::make(port, "bench/worker").await?;
    fill(&queue, 0, Load::new(tasks, MAX_BATCH, 1), Dress::Plain).await?;
    drain_outbox(&*queue.broker).await?;
    let delivery = Arc::new(Delivery::new(tasks));
    let noop = Noop::new(delivery.clone(), |_| {});
    let mut parts = JoinSet::new();
    parts.spawn(work(queue.clone(), noop.clone(), concurrency));
    parts.spawn(record(queue.connect()?, delivery.clone(), None));
    watch(&mut parts, &delivery, PATIENCE);
    join_all(parts).await?;
    delivery.seconds_since(*noop.began.get().context("no handler began")?)
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
    let (delivery, waits, handled) = (Arc::new(Delivery::new(tasks)), Collected::default(), Arc::new(Notify::new()));
    let began = Instant::now();
    let (collected, tell) = (waits.clone(), handled.clone());
    let noop = Noop::new(delivery.clone(), move |body| {
        collected.add(began.elapsed().as_secs_f64() * 1e3 - body.at as f64 / 1e3);
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
