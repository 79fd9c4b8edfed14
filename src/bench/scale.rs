//! Whether a task costs the same however many others there are.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::task::JoinSet;

use super::Bench;
use super::delivery::{Body, Delivery, join_all};
use super::load::{Load, Numbers};
use super::report::{Row, System, show};
use super::slow_log::SlowLogs;
use super::windlass::{Dress, Queue, drain_outbox, enqueue, fill, new_task, noop, work_off};
use super::wire::{Pipeline, Shared};
use crate::broker::session::Session;
use crate::broker::{Broker, ClaimRequest, MAX_BATCH};
use crate::protocol::names::{Capabilities, TaskType, WorkerId};

/// Lanes beside the first.
pub(super) const LANES: usize = 500;
/// The size of a task's record in its queue, in bytes.
const RECORD: usize = 110;
/// How long the server gets to end what it does in the background.
const REST: Duration = Duration::from_secs(2);
/// Rounds that are not counted, so that all is warm.
const WARM_UP: usize = 1;
/// The outbox is emptied after so many tasks.
const FILL_STEP: usize = 50_000;

/// The server's time a task, in microseconds, in the order of the rounds.
#[derive(Default)]
struct Costs {
    enqueue: Vec<f64>,
    work: Vec<f64>,
}

/// Steps that [`measure`] will report.
pub(super) fn steps(_: &Bench) -> usize {
    4
}

/// Measures.
pub(super) async fn measure(bench: &mut Bench) -> Result<Vec<Row>> {
    let many = bench.settings.scale_tasks;
    bench.server.flush().await?;
    let mut lines = [Line::make(bench, "bench/short", 0).await?, Line::make(bench, "bench/long", many).await?];
    bench.progress(&format!("scale: filling a queue with {} tasks", show(many as f64)));
    bench.server.reset_slow_log().await?;
    lines[1].fill(bench, many).await?;
    bench.progress(&format!("scale: a queue that is empty and one with {} tasks, in turn", show(many as f64)));
    for round in 0..bench.settings.runs + WARM_UP {
        // In turn, so that a slow minute of the machine hits both.
        for line in &mut lines {
            let (enqueue, work) = line.round(bench).await.context("a round of windlass failed")?;
            if round >= WARM_UP {
                line.costs.enqueue.push(enqueue);
                line.costs.work.push(work);
            }
        }
    }
    let mut slow = SlowLogs::from(bench.server.slow_log().await?);
    bench.server.reset_slow_log().await?;
    bench.progress(&format!("scale: bare hashes that are empty and of {} fields, in turn", show(many as f64)));
    let fields = new_fields(bench, many).await.context("a round of bare hashes failed")?;
    slow.add(System::Bare, bench.server.slow_log().await?);
    bench.progress(&format!("scale: empty claims with 1 and with {LANES} lanes"));
    let claims = empty_claims(bench).await?;
    slow.add(System::Windlass, bench.server.slow_log().await?);
    let [short, long] = &lines;
    let mut rows = rows(many, &short.costs, &long.costs, &claims);
    rows.splice(2..2, rows_of_fields(many, &fields));
    rows.push(slow.row(&format!("filling and using a queue of {}, many lanes", show(many as f64))));
    Ok(rows)
}

/// What Redis alone takes: no budget is judged by it.
fn rows_of_fields(many: usize, [empty, full]: &[Vec<f64>; 2]) -> [Row; 2] {
    let row = |with: String, runs: &[f64]| {
        Row::new(format!("HSETNX of a new field, Redis CPU, {with}, µs/field")).value(System::Bare, runs)
    };
    let base = row("empty hash".to_owned(), empty);
    let full = row(format!("hash of {}", show(many as f64)), full);
    let ratio = base.median(System::Bare).zip(full.median(System::Bare)).map(|(few, many)| many / few);
    [base, full.note(ratio.map(|ratio| format!("{ratio:.2}× empty hash")))]
}

fn rows(many: usize, empty: &Costs, full: &Costs, claims: &[Vec<f64>; 3]) -> Vec<Row> {
    const BUDGET: &str = "≤ 1.10× (goal 1.00×)";
    let [one, used, foreign] = claims;
    let row = |what: String, runs: &[f64]| Row::new(what).value(System::Windlass, runs);
    let pair = |first: String, base: &[f64], second: String, runs: &[f64], over: &str| {
        let base = row(first, base);
        let other = row(second, runs).ratio(over, base.median(System::Windlass));
        [base, other.budget(BUDGET, 1, |ratio| ratio <= 1.10)]
    };
    let queued = show(many as f64);
    let mut rows = Vec::new();
    for (what, base, runs) in
        [("enqueue", &empty.enqueue, &full.enqueue), ("claim and settle", &empty.work, &full.work)]
    {
        let name = |with: &str| format!("{what}, Redis CPU, {with}, µs/task");
        rows.extend(pair(name("empty queue"), base, name(&format!("{queued} queued")), runs, "empty queue"));
    }
    let name = |with: &str| format!("claim of nothing, Redis CPU, {with}, µs/call");
    let used_name = name(&format!("{LANES} lanes used and empty"));
    rows.extend(pair(name("1 lane"), one, used_name, used, "1 lane"));
    let foreign = row(name(&format!("{LANES} lanes full of other types")), foreign)
        .ratio("1 lane", rows[4].median(System::Windlass));
    rows.push(foreign.budget(BUDGET, 1, |ratio| ratio <= 1.10));
    rows
}

/// What a bare hash takes for a new field, of the size of a task's record: one that has none, and one that has many.
/// Every task is such a field, so a queue cannot cost less more than this does.
async fn new_fields(bench: &mut Bench, many: usize) -> Result<[Vec<f64>; 2]> {
    bench.server.flush().await?;
    let wire = Shared::connect(bench.server.port).await?;
    let mut hashes = [("bench:short", 0..0), ("bench:long", 0..0)];
    change(&wire, hashes[1].0, "HSETNX", 0..many).await?;
    hashes[1].1 = 0..many;
    tokio::time::sleep(REST).await;
    let (tasks, mut costs) = (bench.settings.tasks, [Vec::new(), Vec::new()]);
    for round in 0..bench.settings.runs + WARM_UP {
        for ((hash, there), costs) in hashes.iter_mut().zip(&mut costs) {
            let before = bench.server.usage().await?;
            change(&wire, hash, "HSETNX", there.end..there.end + tasks).await?;
            let took = bench.server.usage().await?.since(before).cpu;
            change(&wire, hash, "HDEL", there.start..there.start + tasks).await?;
            *there = there.start + tasks..there.end + tasks;
            if round >= WARM_UP {
                costs.push(took * 1e6 / tasks as f64);
            }
        }
    }
    Ok(costs)
}

/// Adds fields to a hash, or takes them away, a batch a call.
async fn change(wire: &Shared, hash: &str, command: &str, fields: std::ops::Range<usize>) -> Result<()> {
    let record = "x".repeat(RECORD);
    for from in fields.clone().step_by(MAX_BATCH) {
        let mut pipeline = Pipeline::default();
        for number in from..(from + MAX_BATCH).min(fields.end) {
            let field = format!("{number:036}");
            let words = [command, hash, &field, &record];
            pipeline.add(words[..if command == "HDEL" { 3 } else { 4 }].iter());
        }
        wire.call(pipeline).await?;
    }
    Ok(())
}

/// A queue through which tasks pass in order.
struct Line {
    queue: Queue,
    sessions: Vec<Session>,
    /// Tasks a round.
    load: Load,
    delivery: Arc<Delivery>,
    next: usize,
    costs: Costs,
}

impl Line {
    async fn make(bench: &Bench, name: &'static str, many: usize) -> Result<Self> {
        let queue = Queue::make(bench.server.port, name).await?;
        let load = Load::new(bench.settings.tasks, MAX_BATCH, bench.settings.concurrency);
        let sessions = queue.workers(load.in_flight, &Capabilities::any()).await?;
        let passed = (bench.settings.runs + WARM_UP) * load.tasks;
        let delivery = Arc::new(Delivery::part(many + passed, passed));
        Ok(Self { queue, sessions, load, delivery, next: 0, costs: Costs::default() })
    }

    /// Adds a round of tasks and does as many.
    async fn round(&mut self, bench: &mut Bench) -> Result<(f64, f64)> {
        let tasks = self.load.tasks as f64;
        let before = bench.server.usage().await?;
        fill(&self.queue, self.next, self.load, Dress::Plain).await?;
        let enqueue = bench.server.usage().await?.since(before).cpu;
        self.next += self.load.tasks;
        drain_outbox(&*self.queue.broker).await?;

        let before = bench.server.usage().await?;
        let sessions = std::mem::take(&mut self.sessions);
        self.sessions = work_off(sessions, self.load, self.delivery.clone()).await?;
        let work = bench.server.usage().await?.since(before).cpu;
        drain_outbox(&*self.queue.broker).await?;
        Ok((enqueue * 1e6 / tasks, work * 1e6 / tasks))
    }

    async fn fill(&mut self, bench: &mut Bench, many: usize) -> Result<()> {
        let end = self.next + many;
        while self.next < end {
            let tasks = FILL_STEP.min(end - self.next);
            let load = Load::new(tasks, MAX_BATCH, bench.settings.concurrency);
            fill(&self.queue, self.next, load, Dress::Plain).await.context("filling windlass failed")?;
            drain_outbox(&*self.queue.broker).await?;
            self.next += tasks;
        }
        tokio::time::sleep(REST).await;
        Ok(())
    }
}

/// What a claim costs that gives nothing: with one lane, with many that were
/// used and are empty, and with many that hold what the worker cannot do.
async fn empty_claims(bench: &mut Bench) -> Result<[Vec<f64>; 3]> {
    bench.server.flush().await?;
    bench.server.reset_slow_log().await?;
    let port = bench.server.port;
    let one = Queue::make(port, "bench/one-lane").await?;
    use_lanes(&one, 0).await?;
    let used = Queue::make(port, "bench/used-lanes").await?;
    use_lanes(&used, LANES).await?;
    let foreign = Queue::make(port, "bench/foreign-lanes").await?;
    use_lanes(&foreign, 0).await?;
    fill_lanes(&foreign, LANES).await?;
    let mut costs = [Vec::new(), Vec::new(), Vec::new()];
    for round in 0..bench.settings.runs + WARM_UP {
        for (queue, costs) in [&one, &used, &foreign].into_iter().zip(&mut costs) {
            let cost = claim_nothing(bench, queue).await?;
            if round >= WARM_UP {
                costs.push(cost);
            }
        }
    }
    Ok(costs)
}

pub(super) fn lane_type(n: usize) -> Result<TaskType> {
    if n == 0 { noop() } else { Ok(TaskType::new(format!("type-{n}"))?) }
}

/// Puts one task into each of the lanes beside the first.
pub(super) async fn fill_lanes(queue: &Queue, lanes: usize) -> Result<()> {
    let task = |n: usize| new_task(lane_type(n)?, &Body { id: n, at: 0 }, Dress::Plain);
    let tasks: Vec<_> = (1..=lanes).map(task).collect::<Result<_>>()?;
    for batch in tasks.chunks(MAX_BATCH) {
        enqueue(&*queue.broker, batch).await?;
    }
    drain_outbox(&*queue.broker).await
}

/// Passes one task through the first lane and through each of those beside it.
async fn use_lanes(queue: &Queue, lanes: usize) -> Result<()> {
    enqueue(&*queue.broker, &[new_task(lane_type(0)?, &Body { id: 0, at: 0 }, Dress::Plain)?]).await?;
    fill_lanes(queue, lanes).await?;
    let sessions = queue.workers(1, &Capabilities::any()).await?;
    let tasks = lanes + 1;
    work_off(sessions, Load::new(tasks, MAX_BATCH, 1), Arc::new(Delivery::new(tasks))).await?;
    drain_outbox(&*queue.broker).await
}

async fn claim_nothing(bench: &mut Bench, queue: &Queue) -> Result<f64> {
    let calls = bench.settings.tasks;
    let load = Load::new(calls, 1, bench.settings.concurrency);
    let (broker, numbers) = (queue.connect()?, Arc::new(Numbers::new(0, load)));
    let before = bench.server.usage().await?;
    let mut parts = JoinSet::new();
    for _ in 0..load.in_flight {
        parts.spawn(claim_again(broker.clone(), numbers.clone()));
    }
    join_all(parts).await?;
    Ok(bench.server.usage().await?.since(before).cpu * 1e6 / calls as f64)
}

async fn claim_again(broker: Arc<dyn Broker>, numbers: Arc<Numbers>) -> Result<()> {
    let (worker, capabilities) = (WorkerId::new("bench-idle")?, Capabilities::of([noop()?])?);
    while numbers.deal().is_some() {
        let request = ClaimRequest { worker: &worker, capabilities: &capabilities, limit: MAX_BATCH, recover: None };
        let claimed = broker.claim(request).await?;
        ensure!(claimed.tasks.is_empty(), "a claim gave a task that the worker cannot do");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_grows_with_the_queue_breaks_the_budget() {
        let costs = |enqueue, work| Costs { enqueue: vec![enqueue], work: vec![work] };
        let claims = [vec![10.0], vec![10.5], vec![20.0]];
        let rows = rows(1_000_000, &costs(10.0, 20.0), &costs(10.9, 30.0), &claims);
        let verdicts: Vec<_> = rows
            .iter()
            .filter_map(|row| serde_json::to_value(row).expect("a JSON form")["budget"]["met"].as_bool())
            .collect();
        assert_eq!(verdicts, [true, false, true, false]);
        assert!(rows[1].measure.contains("1,000,000 queued"), "{}", rows[1].measure);
    }
}
