//! How long tasks wait until they start, at half load and when they are delayed.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use jiff::Timestamp;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;

use super::delivery::{Body, Delivery, join_all};
use super::load::{Load, Numbers};
use super::peers::Peer;
use super::report::{Row, System, show};
use super::stats::Waits;
use super::windlass::{Dress, Queue, enqueue, enqueue_due, new_task, noop, record, watch, work};
use super::{Bench, throughput};
use crate::broker::Broker;
use crate::protocol::names::Capabilities;

/// Enqueues under way at once at most, as in the peers' drivers.
const MOST_IN_FLIGHT: usize = 1000;
/// How long nothing may be done before a run has failed.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long the leader sleeps at most.
const LONGEST_NAP: Duration = Duration::from_secs(1);
/// How many tasks the leader promotes at once.
const PROMOTED_AT_ONCE: usize = 100;

/// Who takes part; `None` is Windlass.
fn players(bench: &Bench) -> Vec<Option<Peer>> {
    let mut players = vec![None];
    if bench.peers.is_some() {
        players.extend([Some(Peer::Bullmq), Some(Peer::Asynq), Some(Peer::AsynqTuned)]);
    }
    players
}

fn name(player: Option<Peer>) -> &'static str {
    match player {
        None => "windlass",
        Some(Peer::Bullmq) => "BullMQ",
        Some(Peer::Asynq) => "asynq",
        Some(Peer::AsynqTuned) => "asynq, checking every 1 ms",
    }
}

/// What the runs of each player gave.
type Results = Vec<(Option<Peer>, Vec<Waits>)>;

/// Steps that each of the two measurements will report.
pub(super) fn steps(bench: &Bench) -> usize {
    players(bench).len() * bench.settings.runs
}

/// Measures how long tasks wait that come at half of what the slowest can do.
pub(super) async fn measure_half_load(bench: &mut Bench) -> Result<Vec<Row>> {
    let slowest = match (bench.settings.rate, bench.slowest_single) {
        (Some(rate), _) => rate as f64 * 2.0,
        (None, Some(slowest)) => slowest,
        (None, None) => throughput::probe(bench).await?,
    };
    let rate = (slowest / 2.0).max(1.0) as usize;
    let (port, seconds, concurrency) = (bench.server.port, bench.settings.seconds, bench.settings.concurrency);
    let mut results: Results = players(bench).into_iter().map(|player| (player, Vec::new())).collect();
    for run in 1..=bench.settings.runs {
        for (player, waits) in &mut results {
            bench.progress(&format!("pick-up at {rate} tasks/s, run {run}: {}", name(*player)));
            bench.server.flush().await?;
            waits.push(match player {
                None => half_load(port, rate, seconds, concurrency).await.context("windlass at half load failed")?,
                Some(peer) => bench.peers()?.latency(*peer, port, rate, seconds, concurrency).await?,
            });
        }
    }
    let what = |percentile: &str| format!("pick-up at {} tasks/s, {percentile}, ms", show(rate as f64));
    let mut rows = rows(&results, &what("p50"), |waits| waits.p50);
    rows.extend(judge(rows_of_p99(&results, &what("p99"))));
    rows.extend(self::rows(&results, &what("max"), |waits| waits.max));
    Ok(rows)
}

/// Measures how late delayed tasks come.
pub(super) async fn measure_delayed(bench: &mut Bench) -> Result<Vec<Row>> {
    let (port, concurrency) = (bench.server.port, bench.settings.concurrency);
    let (tasks, delay_ms) = (bench.settings.delayed_tasks, bench.settings.delay_ms);
    let mut results: Results = players(bench).into_iter().map(|player| (player, Vec::new())).collect();
    for run in 1..=bench.settings.runs {
        for (player, waits) in &mut results {
            bench.progress(&format!("delayed tasks, run {run}: {}", name(*player)));
            bench.server.flush().await?;
            waits.push(match player {
                None => {
                    delayed(port, tasks, delay_ms, concurrency).await.context("windlass with delayed tasks failed")?
                }
                Some(peer) => bench.peers()?.delayed(*peer, port, tasks, delay_ms, concurrency).await?,
            });
        }
    }
    let mut rows = rows(&results, "delayed tasks, lateness p50, ms", |waits| waits.p50);
    rows.extend(rows_of_p99(&results, "delayed tasks, lateness p99, ms"));
    rows.extend(self::rows(&results, &format!("delayed tasks that ran early, of {}", show(tasks as f64)), |waits| {
        waits.early as f64
    }));
    Ok(rows)
}

fn rows_of_p99(results: &Results, measure: &str) -> Vec<Row> {
    rows(results, measure, |waits| waits.p99)
}

/// A line for all as they are, and one for asynq tuned.
fn rows(results: &Results, measure: &str, pick: impl Fn(&Waits) -> f64) -> Vec<Row> {
    let mut main = Row::new(measure);
    let mut tuned = Row::new(format!("{measure} (asynq checking every 1 ms)"));
    for (player, waits) in results {
        let values: Vec<f64> = waits.iter().map(&pick).collect();
        match player {
            None => main = main.value(System::Windlass, &values),
            Some(Peer::Bullmq) => main = main.value(System::Bullmq, &values),
            Some(Peer::Asynq) => main = main.value(System::Asynq, &values),
            Some(Peer::AsynqTuned) => tuned = tuned.value(System::Asynq, &values),
        }
    }
    let main = main.ratio_to(System::Bullmq).ratio_to(System::Asynq);
    if tuned.values.is_empty() { vec![main] } else { vec![main, tuned] }
}

/// Half of either peer's, asynq's better figure included.
fn judge(rows: Vec<Row>) -> Vec<Row> {
    let own = rows.iter().find_map(|row| row.median(System::Windlass));
    let others = rows.iter().flat_map(|row| [row.median(System::Bullmq), row.median(System::Asynq)]).flatten();
    let best = others.min_by(f64::total_cmp);
    let met = own.zip(best).map(|(own, best)| own <= best / 2.0);
    let mut rows = rows.into_iter();
    let first = rows.next().map(|row| row.judged("≤ ½ of either peer's", met));
    first.into_iter().chain(rows).collect()
}

/// A list that several workers add to.
#[derive(Clone, Default)]
struct Collected(Arc<Mutex<Vec<f64>>>);

impl Collected {
    fn add(&self, value: f64) {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(value);
    }

    fn waits(&self) -> Result<Waits> {
        let values = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone();
        Waits::of(values).context("no task was done")
    }
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
        parts.spawn(work(session, concurrency.min(crate::broker::MAX_BATCH), delivery.clone(), on_task));
    }
    parts.spawn(send_at_rate(queue.connect()?, ticks(tasks, rate), began));
    parts.spawn(record(queue.connect()?, delivery.clone(), None));
    watch(&mut parts, &delivery, PATIENCE);
    join_all(parts).await?;
    waits.waits()
}

/// Numbers that come at an even rate. A thread of its own keeps the time: the
/// runtime's timers only tick once a millisecond.
fn ticks(tasks: usize, rate: usize) -> mpsc::UnboundedReceiver<usize> {
    let (sender, receiver) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        let start = Instant::now();
        for id in 0..tasks {
            let at = Duration::from_secs_f64(id as f64 / rate as f64);
            std::thread::sleep(at.saturating_sub(start.elapsed()));
            if sender.send(id).is_err() {
                return;
            }
        }
    });
    receiver
}

/// Enqueues tasks as their numbers come, whether or not those before were taken.
async fn send_at_rate(
    broker: Arc<dyn Broker>,
    mut numbers: mpsc::UnboundedReceiver<usize>,
    began: Instant,
) -> Result<()> {
    let room = Arc::new(Semaphore::new(MOST_IN_FLIGHT));
    let kind = noop()?;
    let mut sends = JoinSet::new();
    while let Some(id) = numbers.recv().await {
        let place = room.clone().acquire_owned().await?;
        let (broker, kind) = (broker.clone(), kind.clone());
        sends.spawn(async move {
            let at = began.elapsed().as_micros() as u64;
            let task = new_task(kind, &Body { id, at }, Dress::Plain)?;
            let sent = enqueue(&*broker, &[task]).await;
            drop(place);
            sent
        });
        while let Some(ended) = sends.try_join_next() {
            ended.context("an enqueue was cut off")??;
        }
    }
    join_all(sends).await
}

/// Tasks that fall due one after the other, as evenly as the drivers of the
/// peers spread theirs: from one delay to two.
async fn delayed(port: u16, tasks: usize, delay_ms: usize, concurrency: usize) -> Result<Waits> {
    let queue = Queue::make(port, "bench/delayed").await?;
    let (delivery, lateness) = (Arc::new(Delivery::new(tasks)), Collected::default());
    let mut parts = JoinSet::new();
    for session in queue.workers(1, &Capabilities::any()).await? {
        let lateness = lateness.clone();
        let on_task = move |body: &Body| {
            lateness.add(Timestamp::now().as_microsecond() as f64 / 1e3 - body.at as f64);
        };
        parts.spawn(work(session, concurrency.min(crate::broker::MAX_BATCH), delivery.clone(), on_task));
    }
    let numbers = Arc::new(Numbers::new(0, Load::new(tasks, 1, concurrency)));
    let sending = queue.connect()?;
    for _ in 0..concurrency {
        parts.spawn(send_delayed(sending.clone(), numbers.clone(), tasks, delay_ms));
    }
    parts.spawn(lead(queue.connect()?, delivery.clone()));
    parts.spawn(record(queue.connect()?, delivery.clone(), None));
    watch(&mut parts, &delivery, PATIENCE + Duration::from_millis(delay_ms as u64));
    join_all(parts).await?;
    lateness.waits()
}

async fn send_delayed(broker: Arc<dyn Broker>, numbers: Arc<Numbers>, tasks: usize, delay_ms: usize) -> Result<()> {
    while let Some(batch) = numbers.deal() {
        for id in batch {
            let delay = delay_ms + delay_ms * id / tasks;
            let due = Timestamp::now().as_millisecond() + delay as i64;
            let body = Body { id, at: due.unsigned_abs() };
            enqueue_due(&*broker, &body, Timestamp::from_millisecond(due)?).await?;
        }
    }
    Ok(())
}

/// The leader's part: promotes what is due and sleeps until something is.
async fn lead(broker: Arc<dyn Broker>, delivery: Arc<Delivery>) -> Result<()> {
    while !delivery.is_finished() {
        let promoted = broker.promote(PROMOTED_AT_ONCE).await?;
        let nap = promoted.next_in.unwrap_or(LONGEST_NAP).min(LONGEST_NAP);
        tokio::select! {
            () = delivery.finished() => {}
            () = tokio::time::sleep(nap) => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(player: Option<Peer>, p99: f64) -> (Option<Peer>, Vec<Waits>) {
        (player, vec![Waits { p50: 0.1, p99, max: 9.0, early: 0 }])
    }

    #[test]
    fn asynq_is_judged_by_its_better_figure() {
        let mut results = vec![of(None, 1.0), of(Some(Peer::Bullmq), 5.0), of(Some(Peer::Asynq), 900.0)];
        let verdict = |results: &Results| {
            let rows = judge(rows_of_p99(results, "x"));
            serde_json::to_value(&rows[0]).expect("a JSON form")["budget"]["met"].clone()
        };
        assert_eq!(verdict(&results), true);
        results.push(of(Some(Peer::AsynqTuned), 1.5));
        assert_eq!(verdict(&results), false);
        assert_eq!(verdict(&vec![of(None, 1.0)]), serde_json::Value::Null);
    }

    #[test]
    fn asynq_tuned_has_a_line_of_its_own() {
        let rows = rows_of_p99(&vec![of(None, 1.0), of(Some(Peer::AsynqTuned), 3.0)], "x");
        assert_eq!((rows.len(), rows[1].median(System::Asynq)), (2, Some(3.0)));
    }
}
