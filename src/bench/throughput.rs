//! How many tasks go through from end to end, and what each of them costs the server.

use std::collections::BTreeMap;

use anyhow::{Context, Result};

use super::bare::Acknowledge;
use super::load::Load;
use super::machine::client_cpu_seconds;
use super::peers::Peer;
use super::report::{Row, System};
use super::slow_log::SlowLogs;
use super::{Bench, bare, windlass};

/// Tasks a call.
const BATCHES: [usize; 3] = [1, 10, 100];

/// How many more tasks those get who run in this process at larger batches:
/// else they would be done before they are warm.
const MORE_IN_BATCHES: usize = 5;

/// What runs gave, in their order.
#[derive(Default)]
struct Runs {
    per_second: Vec<f64>,
    cpu_microseconds: Vec<f64>,
    /// The same for the clients, all of them together.
    client_microseconds: Vec<f64>,
    calls: Vec<f64>,
    /// Commands that clients sent, a task; counted in a run of its own.
    sent: Vec<f64>,
}

/// What the table cannot say by itself.
pub(super) const NOTES: [&str; 2] = [
    "\"bare\" is pipelined XADD, XREADGROUP, and an XACK and an XDEL a task, with no state, result, event or fence; the \
     budget is judged on it. \"bare, variadic\" is the same with one XACK and one XDEL a batch, which is cheaper; its \
     ratio is shown and not judged. Both are measured in the same turns.",
    "\"single\" is one task an enqueue call. Our side has one worker, which settles what has ended in one call; the \
     peers settle one by one.",
];

type Results = BTreeMap<(usize, System), Runs>;

/// Steps that [`measure`] will report.
pub(super) fn steps(bench: &Bench) -> usize {
    let systems: usize = BATCHES.into_iter().map(|batch| systems(bench, batch).len()).sum();
    systems * (bench.settings.runs + 1)
}

/// Who is measured at a batch size. With one task a batch both ways to
/// acknowledge are the same.
fn systems(bench: &Bench, batch: usize) -> Vec<System> {
    let all = bench.systems().into_iter();
    all.filter(|system| batch > 1 || *system != System::BareVariadic).collect()
}

/// Measures.
pub(super) async fn measure(bench: &mut Bench) -> Result<Vec<Row>> {
    let mut results = Results::new();
    let mut slow = SlowLogs::default();
    for batch in BATCHES {
        for run in 1..=bench.settings.runs {
            // The systems take turns, so that a slow minute of the machine hits them all.
            for system in systems(bench, batch) {
                bench.progress(&format!("throughput, batch {batch}, run {run}: {}", system.name()));
                one_run(bench, system, batch, results.entry((batch, system)).or_default(), &mut slow).await?;
            }
        }
        for system in systems(bench, batch) {
            bench.progress(&format!("commands, batch {batch}: {}", system.name()));
            let sent = count_commands(bench, system, batch).await?;
            results.entry((batch, system)).or_default().sent.push(sent);
        }
    }
    bench.slowest_single = slowest_single(&results);
    Ok(rows(&results, &slow))
}

/// The single-mode throughput of the slowest system, measured once.
pub(super) async fn probe(bench: &mut Bench) -> Result<f64> {
    let mut results = Results::new();
    for system in systems(bench, 1) {
        bench.remark(&format!("looking for a rate that all can keep up with: {}", system.name()));
        one_run(bench, system, 1, results.entry((1, system)).or_default(), &mut SlowLogs::default()).await?;
    }
    slowest_single(&results).context("nothing was measured")
}

fn slowest_single(results: &Results) -> Option<f64> {
    let single = results.iter().filter(|((batch, system), _)| *batch == 1 && !system.is_bare());
    let medians = single.filter_map(|(_, runs)| Some(super::stats::Spread::of(&runs.per_second)?.median));
    medians.min_by(f64::total_cmp)
}

async fn one_run(bench: &mut Bench, system: System, batch: usize, runs: &mut Runs, slow: &mut SlowLogs) -> Result<()> {
    let in_process = system == System::Windlass || system.is_bare();
    let more = if in_process && batch > 1 { MORE_IN_BATCHES } else { 1 };
    let load = Load::new(bench.settings.tasks * more, batch, bench.settings.concurrency);
    bench.server.flush().await?;
    bench.server.reset_slow_log().await?;
    let (clients, before) = (client_cpu_seconds(), bench.server.usage().await?);
    let seconds = drive(bench, system, load).await?;
    let used = bench.server.usage().await?.since(before);
    slow.add(system, bench.server.slow_log().await?);
    let worked = (load.tasks + warm_up(system)) as f64;
    runs.per_second.push(load.tasks as f64 / seconds);
    runs.cpu_microseconds.push(used.cpu * 1e6 / worked);
    runs.client_microseconds.push((client_cpu_seconds() - clients) * 1e6 / worked);
    runs.calls.push(used.calls / worked);
    Ok(())
}

async fn drive(bench: &Bench, system: System, load: Load) -> Result<f64> {
    let (port, concurrency) = (bench.server.port, bench.settings.concurrency);
    let outcome = match system {
        System::Windlass => windlass::throughput(port, load).await,
        System::Bare => bare::throughput(port, load, Acknowledge::EachTask).await,
        System::BareVariadic => bare::throughput(port, load, Acknowledge::WholeBatch).await,
        System::Bullmq => bench.peers()?.throughput(Peer::Bullmq, port, load, concurrency).await,
        System::Asynq => bench.peers()?.throughput(Peer::Asynq, port, load, concurrency).await,
    };
    outcome.with_context(|| format!("{} at batch {} failed", system.name(), load.batch))
}

fn warm_up(system: System) -> usize {
    if system == System::Bullmq { Peer::Bullmq.warm_up() } else { 0 }
}

/// How many commands a client sends for a task, from a small run.
async fn count_commands(bench: &mut Bench, system: System, batch: usize) -> Result<f64> {
    const MOST: usize = 2000;
    let load = Load::new(bench.settings.tasks.min(MOST), batch, bench.settings.concurrency);
    bench.server.flush().await?;
    let counter = bench.server.count_commands().await?;
    drive(bench, system, load).await?;
    Ok(counter.stop().await? as f64 / (load.tasks + warm_up(system)) as f64)
}

fn rows(results: &Results, slow: &SlowLogs) -> Vec<Row> {
    let row = |batch: usize, measure: String, pick: fn(&Runs) -> &Vec<f64>| {
        let of_batch = results.iter().filter(|((b, _), _)| *b == batch);
        of_batch.fold(Row::new(measure), |row, ((_, system), runs)| row.value(*system, pick(runs)))
    };
    let mut rows = Vec::new();
    for batch in BATCHES {
        let name = if batch == 1 { "single".to_owned() } else { format!("batches of {batch}") };
        let speed = row(batch, format!("end to end, {name}, tasks/s"), |runs| &runs.per_second);
        rows.push(
            speed.ratio_to(System::Bullmq).ratio_to(System::Asynq).budget("≥ 3× BullMQ and asynq", 2, |r| r >= 3.0),
        );
        let cpu =
            row(batch, format!("Redis CPU, {name}, µs/task"), |runs| &runs.cpu_microseconds).ratio_to(System::Bare);
        let cpu = if batch == 100 { cpu.budget("≤ 4× bare (goal 3×)", 1, |r| r <= 4.0) } else { cpu };
        // Behind the budget, which it is not judged by.
        rows.push(cpu.ratio_to(System::BareVariadic));
        rows.push(row(batch, format!("clients' CPU, {name}, µs/task"), |runs| &runs.client_microseconds));
        let sent = row(batch, format!("commands sent, {name}, /task"), |runs| &runs.sent);
        let run = row(batch, format!("commands run, {name}, /task"), |runs| &runs.calls);
        rows.extend([sent, run].map(|row| row.ratio_to(System::Bare).ratio_to(System::BareVariadic)));
    }
    rows.push(slow.row("end to end"));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_is_looked_for_among_queues_in_single_mode() {
        let runs = |per_second: f64| Runs { per_second: vec![per_second], ..Runs::default() };
        let results = Results::from([
            ((1, System::Windlass), runs(900.0)),
            ((1, System::Bare), runs(50.0)),
            ((1, System::Asynq), runs(300.0)),
            ((10, System::Asynq), runs(100.0)),
        ]);
        assert_eq!(slowest_single(&results), Some(300.0));
        assert_eq!(slowest_single(&Results::new()), None);
    }

    #[test]
    fn the_budget_is_judged_on_the_dearer_of_the_bare_ways() {
        let runs = |cpu: f64| Runs { cpu_microseconds: vec![cpu], ..Runs::default() };
        let results = Results::from([
            ((100, System::Windlass), runs(12.0)),
            ((100, System::Bare), runs(4.0)),
            ((100, System::BareVariadic), runs(2.0)),
        ]);
        let rows = rows(&results, &SlowLogs::default());
        let row = rows.iter().find(|row| row.measure.starts_with("Redis CPU, batches of 100")).expect("is there");
        let row = serde_json::to_value(row).expect("a JSON form");
        assert_eq!(row["budget"]["met"], true);
        assert_eq!((&row["ratios"][0]["value"], &row["ratios"][1]["value"]), (&3.0.into(), &6.0.into()));
    }
}
