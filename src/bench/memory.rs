//! How much memory a task takes while it waits, and after it is done.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};

use super::delivery::Delivery;
use super::info::Usage;
use super::load::Load;
use super::peers::Peer;
use super::players::Player;
use super::report::{Row, System};
use super::slow_log::SlowLogs;
use super::windlass::{Dress, Queue, drain_outbox, fill, work_off};
use super::{Bench, bare};
use crate::protocol::names::Capabilities;

/// Tasks a call.
const BATCH: usize = 100;
/// How long the server gets to end what it does in the background.
const REST: Duration = Duration::from_millis(1500);

/// What the table cannot say by itself.
pub(super) const NOTES: [&str; 1] =
    ["Memory of \"bare\" is that of the entries of a stream with the same payload: not yet read (queued), and read, \
     acknowledged and kept (finished)."];

/// One of a system's two columns.
type Pick = fn(&Bytes) -> &Vec<f64>;

/// Bytes a task, in the order of the runs.
#[derive(Default)]
struct Bytes {
    queued: Vec<f64>,
    finished: Vec<f64>,
}

/// Steps that [`measure`] will report.
pub(super) fn steps(bench: &Bench) -> usize {
    (3 + if bench.peers.is_some() { 2 } else { 0 }) * bench.settings.memory_runs
}

/// Measures.
pub(super) async fn measure(bench: &mut Bench) -> Result<Vec<Row>> {
    let [mut plain, mut full, mut bare, mut bullmq, mut asynq] = std::array::from_fn(|_| Bytes::default());
    let mut slow = SlowLogs::default();
    for run in 1..=bench.settings.memory_runs {
        bench.progress(&format!("memory, run {run}: windlass"));
        own(bench, Dress::Plain, &mut plain, &mut slow).await.context("filling windlass failed")?;
        bench.progress(&format!("memory, run {run}: windlass with keys, tenants, traces and labels"));
        own(bench, Dress::Full, &mut full, &mut slow).await.context("filling windlass failed")?;
        bench.progress(&format!("memory, run {run}: bare"));
        of_bare(bench, &mut bare, &mut slow).await.context("filling a bare stream failed")?;
        if bench.peers.is_some() {
            bench.progress(&format!("memory, run {run}: BullMQ"));
            of_peer(bench, Peer::Bullmq, &mut bullmq, &mut slow).await?;
            bench.progress(&format!("memory, run {run}: asynq"));
            of_peer(bench, Peer::Asynq, &mut asynq, &mut slow).await?;
        }
    }
    let row = |measure: &str, own: &Bytes, pick: Pick| Row::new(measure).value(System::Windlass, pick(own));
    let beside = |row: Row, pick: Pick| {
        let row = row.value(System::Bare, pick(&bare)).value(System::Bullmq, pick(&bullmq));
        row.value(System::Asynq, pick(&asynq)).ratio_to(System::Bullmq).ratio_to(System::Bare)
    };
    let when_queued: Pick = |bytes| &bytes.queued;
    let when_finished: Pick = |bytes| &bytes.finished;
    let queued = beside(row("memory, queued, bytes/task", &plain, when_queued), when_queued);
    let finished = row("memory, finished, bytes/task (asynq keeps nothing)", &plain, when_finished);
    let met =
        queued.median(System::Windlass).zip(queued.median(System::Bullmq)).map(|(own, peer)| own <= peer * 2.0 / 3.0);
    Ok(vec![
        queued.judged("≤ ⅔ of BullMQ's", met),
        row("memory, queued, with key, tenant, trace and labels, bytes/task", &full, when_queued),
        beside(finished, when_finished),
        row("memory, finished, with key, tenant, trace and labels, bytes/task", &full, when_finished),
        slow.row("filling and emptying a queue"),
    ])
}

async fn at_rest(bench: &mut Bench) -> Result<Usage> {
    tokio::time::sleep(REST).await;
    bench.server.usage().await
}

async fn own(bench: &mut Bench, dress: Dress, bytes: &mut Bytes, slow: &mut SlowLogs) -> Result<()> {
    let tasks = bench.settings.memory_tasks;
    let load = Load::new(tasks, BATCH, bench.settings.concurrency);
    bench.server.flush().await?;
    bench.server.reset_slow_log().await?;
    let queue = Queue::make(bench.server.port, "bench/memory").await?;
    let sessions = queue.workers(load.in_flight, &Capabilities::any()).await?;
    let before = at_rest(bench).await?;
    fill(&queue, 0, load, dress).await?;
    drain_outbox(&*queue.broker).await?;
    bytes.queued.push(at_rest(bench).await?.since(before).memory / tasks as f64);
    work_off(sessions, load, Arc::new(Delivery::new(tasks))).await?;
    drain_outbox(&*queue.broker).await?;
    bytes.finished.push(at_rest(bench).await?.since(before).memory / tasks as f64);
    slow.add(System::Windlass, bench.server.slow_log().await?);
    Ok(())
}

async fn of_bare(bench: &mut Bench, bytes: &mut Bytes, slow: &mut SlowLogs) -> Result<()> {
    let tasks = bench.settings.memory_tasks;
    let load = Load::new(tasks, BATCH, bench.settings.concurrency);
    bench.server.flush().await?;
    bench.server.reset_slow_log().await?;
    let sending = bare::make(bench.server.port).await?;
    let before = at_rest(bench).await?;
    bare::fill(&sending, load).await?;
    bytes.queued.push(at_rest(bench).await?.since(before).memory / tasks as f64);
    bare::read_and_keep(&sending, load).await?;
    bytes.finished.push(at_rest(bench).await?.since(before).memory / tasks as f64);
    slow.add(System::Bare, bench.server.slow_log().await?);
    Ok(())
}

async fn of_peer(bench: &mut Bench, peer: Peer, bytes: &mut Bytes, slow: &mut SlowLogs) -> Result<()> {
    let (port, concurrency) = (bench.server.port, bench.settings.concurrency);
    let load = Load::new(bench.settings.memory_tasks, BATCH, concurrency);
    bench.server.flush().await?;
    bench.server.reset_slow_log().await?;
    let before = at_rest(bench).await?;
    bench.peers()?.fill(peer, port, load).await?;
    bytes.queued.push(at_rest(bench).await?.since(before).memory / load.tasks as f64);
    bench.server.flush().await?;
    let before = at_rest(bench).await?;
    bench.peers()?.throughput(peer, port, load, concurrency).await?;
    let kept = (load.tasks + peer.warm_up()) as f64;
    bytes.finished.push(at_rest(bench).await?.since(before).memory / kept);
    slow.add(Player::Peer(peer).system(), bench.server.slow_log().await?);
    Ok(())
}
