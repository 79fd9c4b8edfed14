//! How late delayed tasks come.
//!
//! Windlass runs twice: with the leader's promoter, which sleeps until
//! something is due, and with no leader, where tasks come up by the claims of a
//! worker that has other work to do.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use jiff::Timestamp;
use tokio::task::JoinSet;

use super::Bench;
use super::delivery::{Body, Delivery, join_all};
use super::latency::send_at_rate;
use super::load::{Load, Numbers};
use super::peers::Peer;
use super::players::{Collected, Player, Results, nobody_yet, queues, rows};
use super::report::{Row, System, show};
use super::slow_log::SlowLogs;
use super::stats::Waits;
use super::windlass::{Queue, enqueue_due, record, watch, work};
use crate::broker::redis::{Redis, RedisOptions};
use crate::broker::{Broker, MAX_BATCH};
use crate::maintenance;
use crate::maintenance::metrics::LoopMetrics;
use crate::maintenance::runner::Runner;
use crate::protocol::keys::Keys;
use crate::protocol::names::{Capabilities, QueueName};

const QUEUE: &str = "bench/delayed";
/// How long nothing may be done before a run has failed.
const PATIENCE: Duration = Duration::from_secs(30);
/// The other work of a worker without a leader, in tasks a second.
const OTHER_WORK: usize = 500;
/// How much longer the other work goes on than tasks fall due: all of them
/// must be sent before.
const LONGER: Duration = Duration::from_secs(3);

/// What the table cannot say by itself.
pub(super) const NOTES: [&str; 1] = [
    "Delayed tasks: \"no leader\" is a worker that claims for 500 other tasks a second, \
     with no maintenance loop anywhere. asynq keeps due times in whole seconds and so runs tasks early; p99 counts those as \
     below zero.",
];

/// When tasks fall due.
#[derive(Debug, Clone, Copy)]
pub(super) struct Dues {
    /// How many.
    pub(super) tasks: usize,
    /// When the first is due, after it was sent.
    pub(super) delay: Duration,
    /// Over how long a time they are spread.
    pub(super) spread: Duration,
}

impl Dues {
    /// How long task `id` is delayed.
    fn delay_of(self, id: usize) -> Duration {
        self.delay + self.spread.mul_f64(id as f64 / self.tasks as f64)
    }
}

/// Who brings up what is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Promoted {
    ByLeader,
    ByClaims,
}

/// Steps that [`measure`] will report.
pub(super) fn steps(bench: &Bench) -> usize {
    (queues(bench).len() + 1) * bench.settings.delayed_runs
}

/// Measures.
pub(super) async fn measure(bench: &mut Bench) -> Result<Vec<Row>> {
    let concurrency = bench.settings.concurrency;
    let dues = bench.settings.dues;
    let (mut results, mut without_leader, mut slow) = (nobody_yet(queues(bench)), Vec::new(), SlowLogs::default());
    for run in 1..=bench.settings.delayed_runs {
        for (player, waits) in &mut results {
            bench.progress(&format!("delayed tasks, run {run}: {}", player.name()));
            let Player::Peer(peer) = player else {
                waits.push(own(bench, dues, Promoted::ByLeader, &mut slow).await?);
                continue;
            };
            bench.server.flush().await?;
            bench.server.reset_slow_log().await?;
            waits.push(bench.peers()?.delayed(*peer, bench.server.port, dues, concurrency).await?);
            slow.add(player.system(), bench.server.slow_log().await?);
        }
        bench.progress(&format!("delayed tasks, run {run}: windlass without a leader"));
        without_leader.push(own(bench, dues, Promoted::ByClaims, &mut slow).await?);
    }
    Ok(all_rows(dues, &results, without_leader, &slow))
}

async fn own(bench: &mut Bench, dues: Dues, promoted: Promoted, slow: &mut SlowLogs) -> Result<Waits> {
    bench.server.flush().await?;
    bench.server.reset_slow_log().await?;
    let waits = delayed(bench.server.port, dues, bench.settings.concurrency, promoted).await;
    let waits = waits.with_context(|| format!("windlass with delayed tasks, promoted {promoted:?}, failed"))?;
    slow.add(System::Windlass, bench.server.slow_log().await?);
    Ok(waits)
}

fn all_rows(dues: Dues, results: &Results, without_leader: Vec<Waits>, slow: &SlowLogs) -> Vec<Row> {
    // The peers' figures are the same for both.
    let as_they_are = [Peer::Bullmq, Peer::Asynq].map(Player::Peer);
    let others = results.iter().filter(|(player, _)| as_they_are.contains(player)).cloned();
    let without: Results = [(Player::Windlass, without_leader)].into_iter().chain(others).collect();
    let what = format!("{} tasks due over {} s", show(dues.tasks as f64), show(dues.spread.as_secs_f64()));
    let mut all = Vec::new();
    for (results, how) in [(results, ""), (&without, ", no leader")] {
        all.extend(rows(results, &format!("{what}{how}, lateness p50, ms"), |waits| waits.p50));
        all.extend(judge_p99(rows(results, &format!("{what}{how}, lateness p99, ms"), |waits| waits.p99)));
        all.extend(judge_early(rows(results, &format!("{what}{how}, early, tasks"), |waits| waits.early as f64)));
    }
    all.push(slow.row("delayed tasks"));
    all
}

/// The first line is the one of all as they are.
fn judge_first(rows: Vec<Row>, judge: impl FnOnce(Row) -> Row) -> Vec<Row> {
    let mut rows = rows.into_iter();
    let first = rows.next().map(judge);
    first.into_iter().chain(rows).collect()
}

fn judge_p99(rows: Vec<Row>) -> Vec<Row> {
    judge_first(rows, |row| {
        let median = |system| row.median(system);
        let peers = median(System::Bullmq).zip(median(System::Asynq));
        let met =
            median(System::Windlass).zip(peers).map(|(own, (bullmq, asynq))| own <= bullmq && own <= asynq / 10.0);
        row.judged("≤ BullMQ's and ⅒ of asynq's", met)
    })
}

fn judge_early(rows: Vec<Row>) -> Vec<Row> {
    judge_first(rows, |row| {
        let none = row.values.get(&System::Windlass).map(|early| early.max == 0.0);
        row.judged("none", none)
    })
}

/// Sends tasks that fall due evenly, and waits until all ran.
async fn delayed(port: u16, dues: Dues, concurrency: usize, promoted: Promoted) -> Result<Waits> {
    let queue = Queue::make(port, QUEUE).await?;
    let Dues { tasks, delay, spread } = dues;
    let others = match promoted {
        Promoted::ByLeader => 0,
        Promoted::ByClaims => ((delay + spread + LONGER).as_secs_f64() * OTHER_WORK as f64) as usize,
    };
    let (delivery, lateness) = (Arc::new(Delivery::new(tasks + others)), Collected::default());
    let mut parts = JoinSet::new();
    for session in queue.workers(1, &Capabilities::any()).await? {
        let lateness = lateness.clone();
        let on_task = move |body: &Body| {
            if body.id < tasks {
                lateness.add(Timestamp::now().as_microsecond() as f64 / 1e3 - body.at as f64);
            }
        };
        parts.spawn(work(session, concurrency.min(MAX_BATCH), delivery.clone(), on_task));
    }
    let numbers = Arc::new(Numbers::new(0, Load::new(tasks, 1, concurrency)));
    let sending = queue.connect()?;
    for _ in 0..concurrency {
        parts.spawn(send(sending.clone(), numbers.clone(), dues));
    }
    // Loops run until they are dropped.
    let _leader = match promoted {
        Promoted::ByLeader => Some(lead(port).await?),
        Promoted::ByClaims => {
            let work = tasks..tasks + others;
            parts.spawn(send_at_rate(queue.connect()?, work, OTHER_WORK, Instant::now()));
            None
        }
    };
    parts.spawn(record(queue.connect()?, delivery.clone(), None));
    watch(&mut parts, &delivery, PATIENCE + delay);
    join_all(parts).await?;
    lateness.waits()
}

/// Each task carries when it is due, in milliseconds of the wall clock.
async fn send(broker: Arc<dyn Broker>, numbers: Arc<Numbers>, dues: Dues) -> Result<()> {
    while let Some(batch) = numbers.deal() {
        for id in batch {
            let due = Timestamp::now().as_millisecond() + dues.delay_of(id).as_millis() as i64;
            let body = Body { id, at: due.unsigned_abs() };
            enqueue_due(&*broker, &body, Timestamp::from_millisecond(due)?).await?;
        }
    }
    Ok(())
}

/// The leader's loops, with no event log: the outbox is emptied here.
async fn lead(port: u16) -> Result<Runner> {
    let redis = Redis::new(RedisOptions::new(format!("redis://127.0.0.1:{port}")))?;
    let name: QueueName = QUEUE.parse()?;
    let keys = Keys::new(&name);
    let prefix = keys.prefix().to_owned();
    let mut runner = Runner::start(LoopMetrics::default());
    runner.listen(redis.notices());
    runner.add(&prefix, maintenance::Queue::new(name, Arc::new(redis.queue(keys)?), None)).await;
    Ok(runner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DUES: Dues = Dues { tasks: 100, delay: Duration::from_secs(5), spread: Duration::from_secs(60) };

    fn waits(p99: f64, early: usize) -> Vec<Waits> {
        vec![Waits { p50: 1.0, p99, max: 9.0, early }]
    }

    #[test]
    fn tasks_fall_due_evenly() {
        assert_eq!(DUES.delay_of(0), Duration::from_secs(5));
        assert_eq!(DUES.delay_of(50), Duration::from_secs(35));
    }

    #[test]
    fn lateness_is_judged_with_and_without_a_leader() {
        let results = vec![
            (Player::Windlass, waits(5.0, 0)),
            (Player::Peer(Peer::Bullmq), waits(6.0, 0)),
            (Player::Peer(Peer::Asynq), waits(4000.0, 3)),
        ];
        let rows = all_rows(DUES, &results, waits(7.0, 1), &SlowLogs::default());
        let verdicts: Vec<_> = rows
            .iter()
            .filter_map(|row| serde_json::to_value(row).expect("a JSON form")["budget"]["met"].as_bool())
            .collect();
        // p99 and early with a leader, the same without, the slow log.
        assert_eq!(verdicts, [true, true, false, false, true]);
        assert!(rows[0].measure.starts_with("100 tasks due over 60 s, lateness"), "{}", rows[0].measure);
    }
}
