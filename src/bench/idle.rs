//! What it costs to look after queues in which nothing happens.
//!
//! The loops run in a process of their own ([`look_after`], started by
//! [`measure`] with a hidden option), so that its memory and its processor time
//! are theirs alone. Every queue has been used once: it has a lane, a finished
//! task and its result, as queues in real life have.

use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};
use tokio::task::JoinSet;

use super::Bench;
use super::delivery::{Body, Delivery, join_all};
use super::load::{Load, Numbers};
use super::machine::{self, ProcessUsage};
use super::report::{Row, System, show};
use super::slow_log::SlowLogs;
use super::windlass::{Dress, drain_outbox, enqueue, handle, new_task, noop, settle};
use crate::broker::redis::{Redis, RedisBroker, RedisOptions};
use crate::broker::session::Session;
use crate::broker::{Broker, Owner, Takeover};
use crate::maintenance::Queue;
use crate::maintenance::metrics::LoopMetrics;
use crate::maintenance::runner::Runner;
use crate::protocol::keys::Keys;
use crate::protocol::names::{Capabilities, QueueName, WorkerId};
use crate::protocol::policy::Policy;

/// The number of queues that the budgets are for; they are not judged with fewer.
const JUDGED_FROM: usize = 10_000;
const MOST_MEBIBYTES: f64 = 128.0;
const MOST_CPU_PERCENT: f64 = 3.0;
const MOST_COMMANDS_A_SECOND: f64 = 200.0;
/// Queues that are made at once.
const AT_ONCE: usize = 32;
/// How long the loops' process may take until it has looked at every queue.
const PATIENCE: Duration = Duration::from_secs(120);
/// What it says then.
const READY: &str = "ready";

/// What the table cannot say by itself.
pub(super) const NOTES: [&str; 1] = [
    "Idle queues: each has done one task before. One process runs all maintenance loops \
     of all of them, on one Redis. Commands run are what the server counts, those inside scripts included; the budget is \
     judged on them.",
];

/// What a window of time showed.
struct Seen {
    mebibytes: f64,
    cpu_percent: f64,
    commands_run: f64,
    commands_sent: f64,
}

/// Steps that [`measure`] will report.
pub(super) fn steps(_: &Bench) -> usize {
    2
}

/// Measures.
pub(super) async fn measure(bench: &mut Bench) -> Result<Vec<Row>> {
    let (queues, window) = (bench.settings.idle_queues, bench.settings.idle_window);
    bench.progress(&format!("idle: making {} queues", show(queues as f64)));
    bench.server.flush().await?;
    let port = bench.server.port;
    make_queues(port, queues).await.context("making idle queues failed")?;
    bench.progress(&format!("idle: their loops, for {} s", show(window.as_secs_f64())));
    bench.server.reset_slow_log().await?;
    let mut loops = Loops::start(port, queues).await?;
    let seen = watch(bench, &loops, window).await;
    let slow = bench.server.slow_log().await?.into();
    loops.stop().await?;
    Ok(rows(queues, &seen?, &slow))
}

async fn watch(bench: &mut Bench, loops: &Loops, window: Duration) -> Result<Seen> {
    tokio::time::sleep(bench.settings.idle_rest).await;
    let counter = bench.server.count_commands().await?;
    let (began, process, server) = (Instant::now(), loops.usage()?, bench.server.usage().await?);
    tokio::time::sleep(window).await;
    let (after, used) = (loops.usage()?, bench.server.usage().await?.since(server));
    let seconds = began.elapsed().as_secs_f64();
    Ok(Seen {
        mebibytes: after.resident_mebibytes,
        cpu_percent: (after.cpu_seconds - process.cpu_seconds) / seconds * 100.0,
        commands_run: used.processed / seconds,
        commands_sent: counter.stop().await? as f64 / seconds,
    })
}

fn rows(queues: usize, seen: &Seen, slow: &SlowLogs) -> Vec<Row> {
    let name = |what: &str| format!("{} idle queues, {what}", show(queues as f64));
    let row = |what: &str, value: f64| Row::new(name(what)).value(System::Windlass, &[value]);
    let judged = |what: &str, value: f64, budget: &str, most: f64| {
        row(what, value).judged(budget, (queues >= JUDGED_FROM).then_some(value < most))
    };
    vec![
        judged("memory of the loops' process, MiB", seen.mebibytes, "< 128", MOST_MEBIBYTES),
        judged("CPU of the loops' process, % of a core", seen.cpu_percent, "< 3", MOST_CPU_PERCENT),
        judged("commands run, /s", seen.commands_run, "< 200", MOST_COMMANDS_A_SECOND),
        row("commands sent, /s", seen.commands_sent),
        slow.row("idle queues"),
    ]
}

fn name(n: usize) -> Result<QueueName> {
    Ok(format!("bench/idle-{n}").parse()?)
}

fn open(port: u16) -> Result<Redis> {
    Ok(Redis::new(RedisOptions::new(format!("redis://127.0.0.1:{port}")))?)
}

async fn make_queues(port: u16, queues: usize) -> Result<()> {
    let redis = open(port)?;
    let numbers = Arc::new(Numbers::new(0, Load { tasks: queues, batch: 1, in_flight: AT_ONCE }));
    let mut parts = JoinSet::new();
    for _ in 0..AT_ONCE {
        let (redis, numbers) = (redis.clone(), numbers.clone());
        parts.spawn(async move {
            while let Some(batch) = numbers.deal() {
                for n in batch {
                    use_once(redis.queue(Keys::new(&name(n)?))?).await?;
                }
            }
            Ok(())
        });
    }
    join_all(parts).await
}

/// Makes a queue and passes one task through it.
async fn use_once(broker: RedisBroker) -> Result<()> {
    let broker: Arc<dyn Broker> = Arc::new(broker);
    let owner = Owner { name: "bench".to_owned(), takeover: Takeover::Respect };
    broker.provision(&owner, &Policy::default()).await?;
    enqueue(&*broker, &[new_task(noop()?, &Body { id: 0, at: 0 }, Dress::Plain)?]).await?;
    // It is not in the registry: a worker there would be looked for.
    let mut session = Session::new(broker.clone(), WorkerId::new("bench-once")?, Capabilities::any());
    let tasks = session.claim(1).await?;
    ensure!(tasks.len() == 1, "a claim gave {} tasks instead of one", tasks.len());
    settle(&mut session, &handle(tasks, &Delivery::new(1), |_| {})?, 0).await?;
    drain_outbox(&*broker).await
}

/// The loops' process.
struct Loops {
    child: Child,
    pid: u32,
}

impl Loops {
    /// Starts it and waits until it has looked at every queue.
    async fn start(port: u16, queues: usize) -> Result<Self> {
        let program = std::env::current_exe().context("this program cannot find itself")?;
        let mut command = Command::new(program);
        command.args(["bench", "--look-after", &port.to_string(), "--idle-queues", &queues.to_string()]);
        // It ends when this end of its standard input does, however this process ends.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().context("the loops' process did not start")?;
        let pid = child.id().context("the loops' process ended at once")?;
        let stdout = child.stdout.take().context("the loops' process has no output")?;
        let line = tokio::time::timeout(PATIENCE, BufReader::new(stdout).lines().next_line()).await;
        match line.context("the loops did not look at every queue in time")?? {
            Some(line) if line == READY => Ok(Self { child, pid }),
            said => bail!("the loops' process failed; it said {said:?}"),
        }
    }

    fn usage(&self) -> Result<ProcessUsage> {
        machine::process_usage(self.pid).context("the loops' process has ended")
    }

    async fn stop(&mut self) -> Result<()> {
        drop(self.child.stdin.take());
        let status = self.child.wait().await?;
        ensure!(status.success(), "the loops' process ended with {status}");
        Ok(())
    }
}

/// The loops' process: looks after the queues on the server at this port until
/// its standard input ends.
pub(super) async fn look_after(port: u16, queues: usize) -> Result<()> {
    let redis = open(port)?;
    let mut runner = Runner::start(LoopMetrics::default());
    runner.listen(redis.notices());
    for n in 0..queues {
        let name = name(n)?;
        let keys = Keys::new(&name);
        let prefix = keys.prefix().to_owned();
        runner.add(&prefix, Queue::new(name, Arc::new(redis.queue(keys)?), None)).await;
    }
    for n in 0..queues {
        let keys = Keys::new(&name(n)?);
        while runner.counts(keys.prefix()).is_none() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    let mut stdout = tokio::io::stdout();
    stdout.write_all(format!("{READY}\n").as_bytes()).await?;
    stdout.flush().await?;
    tokio::io::stdin().read_to_end(&mut Vec::new()).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdicts(queues: usize, commands_run: f64) -> Vec<serde_json::Value> {
        let seen = Seen { mebibytes: 100.0, cpu_percent: 2.9, commands_run, commands_sent: 90.0 };
        let verdict = |row: &Row| serde_json::to_value(row).expect("a JSON form")["budget"]["met"].clone();
        rows(queues, &seen, &SlowLogs::default()).iter().map(verdict).collect()
    }

    #[test]
    fn budgets_are_for_ten_thousand_queues() {
        assert_eq!(verdicts(10_000, 199.0)[..3], [true, true, true]);
        assert_eq!(verdicts(10_000, 201.0)[..3], [true, true, false]);
        assert!(verdicts(1000, 20.0)[..3].iter().all(serde_json::Value::is_null), "with fewer nothing is judged");
    }
}
