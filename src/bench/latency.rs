//! How long tasks wait until they start, at half load.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;

use super::delivery::{Body, Delivery, join_all};
use super::players::{Collected, Player, judged_rows, nobody_yet, players};
use super::report::{Row, show};
use super::slow_log::SlowLogs;
use super::stats::Waits;
use super::windlass::{Dress, Queue, enqueue, new_task, noop, record, watch, work};
use super::{Bench, bare, throughput};
use crate::broker::{Broker, MAX_BATCH};
use crate::protocol::names::Capabilities;

/// Enqueues under way at once at most, as in the peers' drivers.
const MOST_IN_FLIGHT: usize = 1000;
/// How long nothing may be done before a run has failed.
const PATIENCE: Duration = Duration::from_secs(30);

/// Steps that [`measure`] will report.
pub(super) fn steps(bench: &Bench) -> usize {
    players(bench).len() * bench.settings.runs
}

/// Measures how long tasks wait that come at half of what the slowest can do.
pub(super) async fn measure(bench: &mut Bench) -> Result<Vec<Row>> {
    let slowest = match (bench.settings.rate, bench.slowest_single) {
        (Some(rate), _) => rate as f64 * 2.0,
        (None, Some(slowest)) => slowest,
        (None, None) => throughput::probe(bench).await?,
    };
    let rate = (slowest / 2.0).max(1.0) as usize;
    let (port, seconds, concurrency) = (bench.server.port, bench.settings.seconds, bench.settings.concurrency);
    let (mut results, mut slow) = (nobody_yet(players(bench)), SlowLogs::default());
    for run in 1..=bench.settings.runs {
        for (player, waits) in &mut results {
            bench.progress(&format!("pick-up at {rate} tasks/s, run {run}: {}", player.name()));
            bench.server.flush().await?;
            bench.server.reset_slow_log().await?;
            waits.push(match player {
                Player::Windlass | Player::Raw => {
                    half_load(port, rate, seconds, concurrency).await.context("windlass at half load failed")?
                }
                Player::Bare => bare_half_load(port, rate, seconds, concurrency)
                    .await
                    .context("bare commands at half load failed")?,
                Player::Peer(peer) => bench.peers()?.latency(*peer, port, rate, seconds, concurrency).await?,
            });
            slow.add(player.system(), bench.server.slow_log().await?);
        }
    }
    let mut rows = judged_rows(&results, &format!("pick-up at {} tasks/s", show(rate as f64)));
    rows.push(slow.row("at half load"));
    Ok(rows)
}

/// One worker, as a process would have one, that starts what comes at an even rate.
async fn half_load(port: u16, rate: usize, seconds: usize, concurrency: usize) -> Result<Waits> {
    let queue = Queue::make(port, "bench/latency").await?;
    let tasks = rate * seconds;
    let (delivery, waits) = (Arc::new(Delivery::new(tasks)), Collected::default());
    let began = Instant::now();
    let mut parts = JoinSet::new();
    for session in queue.workers(1, &Capabilities::any()).await? {
        let waits = waits.clone();
        let on_task = move |body: &Body| waits.add(began.elapsed().as_secs_f64() * 1e3 - body.at as f64 / 1e3);
        parts.spawn(work(session, concurrency.min(MAX_BATCH), delivery.clone(), on_task));
    }
    parts.spawn(send_at_rate(queue.connect()?, 0..tasks, rate, began));
    parts.spawn(record(queue.connect()?, delivery.clone(), None));
    watch(&mut parts, &delivery, PATIENCE);
    join_all(parts).await?;
    waits.waits()
}

/// The same with a consumer in a blocking read, and nothing around it.
async fn bare_half_load(port: u16, rate: usize, seconds: usize, concurrency: usize) -> Result<Waits> {
    let (sending, tasks) = (bare::make(port).await?, rate * seconds);
    let (delivery, waits) = (Arc::new(Delivery::new(tasks)), Collected::default());
    let began = Instant::now();
    let mut parts = JoinSet::new();
    let collected = waits.clone();
    let on_task = move |body: &Body| collected.add(began.elapsed().as_secs_f64() * 1e3 - body.at as f64 / 1e3);
    parts.spawn(bare::wait_and_work(port, tasks, concurrency.min(MAX_BATCH), delivery.clone(), on_task));
    parts.spawn(at_rate(0..tasks, rate, move |id| {
        bare::send(sending.clone(), Body { id, at: began.elapsed().as_micros() as u64 })
    }));
    watch(&mut parts, &delivery, PATIENCE);
    join_all(parts).await?;
    waits.waits()
}

/// Numbers that come at an even rate. A thread of its own keeps the time: the
/// runtime's timers only tick once a millisecond.
fn ticks(numbers: std::ops::Range<usize>, rate: usize) -> mpsc::UnboundedReceiver<usize> {
    let (sender, receiver) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        let start = Instant::now();
        for (n, id) in numbers.enumerate() {
            let at = Duration::from_secs_f64(n as f64 / rate as f64);
            std::thread::sleep(at.saturating_sub(start.elapsed()));
            if sender.send(id).is_err() {
                return;
            }
        }
    });
    receiver
}

/// Enqueues tasks with these numbers at an even rate, whether or not those
/// before were taken. Each carries when it was sent, in microseconds since `began`.
pub(super) async fn send_at_rate(
    broker: Arc<dyn Broker>,
    numbers: std::ops::Range<usize>,
    rate: usize,
    began: Instant,
) -> Result<()> {
    let kind = noop()?;
    let send = move |id| {
        let (broker, kind) = (broker.clone(), kind.clone());
        async move {
            let at = began.elapsed().as_micros() as u64;
            enqueue(&*broker, &[new_task(kind, &Body { id, at }, Dress::Plain)?]).await
        }
    };
    at_rate(numbers, rate, send).await
}

/// Sends these numbers at an even rate, in calls that do not wait for each other.
async fn at_rate<S>(numbers: std::ops::Range<usize>, rate: usize, send: impl Fn(usize) -> S) -> Result<()>
where
    S: Future<Output = Result<()>> + Send + 'static,
{
    let room = Arc::new(Semaphore::new(MOST_IN_FLIGHT));
    let mut sends = JoinSet::new();
    let mut numbers = ticks(numbers, rate);
    while let Some(id) = numbers.recv().await {
        let place = room.clone().acquire_owned().await?;
        let sending = send(id);
        sends.spawn(async move {
            let sent = sending.await;
            drop(place);
            sent
        });
        while let Some(ended) = sends.try_join_next() {
            ended.context("an enqueue was cut off")??;
        }
    }
    join_all(sends).await
}
