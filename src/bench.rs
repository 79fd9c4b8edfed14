//! `windlass bench`: what the broker costs, beside bare Redis commands and other queues.
//!
//! Owns: the measurements, the server that they run on, and the report. Must
//! not know: how the broker works inside; it is measured from outside, through
//! its trait and through what the server counts.
//!
//! Main flow: [`run`] pins this process to one core and starts a Redis on
//! another; each measurement flushes it, drives one system at a time, checks
//! that every task was done exactly once, and adds rows to the report.

mod bare;
mod delivery;
mod info;
mod latency;
mod load;
mod machine;
mod memory;
mod peers;
mod report;
mod scale;
mod server;
mod stats;
mod throughput;
mod windlass;
mod wire;

use std::collections::BTreeSet;
use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use clap::builder::RangedU64ValueParser;

use self::machine::{Machine, Pinning};
use self::peers::Peers;
use self::report::{Report, Row, System};
use self::server::Server;

const EXAMPLES: &str = "Examples:
  windlass bench --quick                       a first look, in about a minute
  windlass bench --only scale,memory           some measurements only
  windlass bench --no-peers -o json            without BullMQ and asynq, as JSON
  windlass bench --runs 9 --tasks 100000       longer, for steadier numbers";

/// A whole number from 1.
fn from_one() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=1_000_000_000)
}

/// What to measure, and how.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// How often each measurement is repeated; the table shows median and range [default: 5].
    #[arg(long, value_parser = from_one())]
    pub runs: Option<usize>,
    /// One run with small numbers: a first look, nothing to quote.
    #[arg(long)]
    pub quick: bool,
    /// Only these measurements, separated by commas.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "NAME")]
    pub only: Vec<Measurement>,
    /// Leave BullMQ and asynq out.
    #[arg(long)]
    pub no_peers: bool,
    /// How to print the result.
    #[arg(short, long, value_enum, default_value = "markdown")]
    pub output: Output,
    /// Tasks of a throughput run (five times as many in batches) [default: 30000].
    #[arg(long, value_parser = from_one())]
    pub tasks: Option<usize>,
    /// Calls under way at once on each side; handlers at once in the peers.
    #[arg(long, default_value = "32", value_parser = from_one())]
    pub concurrency: usize,
    /// Tasks a second while pick-up is measured [default: half of what the slowest system can do].
    #[arg(long, value_parser = from_one())]
    pub rate: Option<usize>,
    /// Seconds that pick-up is measured for [default: 10].
    #[arg(long, value_parser = from_one())]
    pub seconds: Option<usize>,
    /// Delayed tasks [default: 2000].
    #[arg(long, value_parser = from_one())]
    pub delayed_tasks: Option<usize>,
    /// Tasks that are queued and finished to measure memory [default: 100000].
    #[arg(long, value_parser = from_one())]
    pub memory_tasks: Option<usize>,
    /// Tasks that make a queue long [default: 1000000].
    #[arg(long, value_parser = from_one())]
    pub scale_tasks: Option<usize>,
    /// The redis-server to start [default: the one on the PATH, else the one that `make servers` gets].
    #[arg(long, value_name = "PATH")]
    pub redis_server: Option<PathBuf>,
    /// The core for the server.
    #[arg(long, default_value = "0", value_name = "CORE")]
    pub server_core: usize,
    /// The core for all clients.
    #[arg(long, default_value = "1", value_name = "CORE")]
    pub client_core: usize,
}

/// What can be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Measurement {
    /// Tasks a second from end to end; the server's time and commands a task; its slow log.
    Throughput,
    /// How long a task waits until it starts, at half load.
    Latency,
    /// How late delayed tasks come.
    Delayed,
    /// Bytes a task.
    Memory,
    /// What a task costs in a long queue, and a claim among many lanes.
    Scale,
}

/// How the result is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// A table.
    Markdown,
    /// The same numbers for programs.
    Json,
}

/// The arguments with all defaults filled in.
struct Settings {
    runs: usize,
    tasks: usize,
    concurrency: usize,
    rate: Option<usize>,
    seconds: usize,
    delayed_tasks: usize,
    delay_ms: usize,
    memory_tasks: usize,
    scale_tasks: usize,
}

impl Settings {
    fn from(args: &Args) -> Self {
        let either =
            |given: Option<usize>, full: usize, quick: usize| given.unwrap_or(if args.quick { quick } else { full });
        Self {
            runs: either(args.runs, 5, 1),
            tasks: either(args.tasks, 30_000, 3_000),
            concurrency: args.concurrency,
            rate: args.rate,
            seconds: either(args.seconds, 10, 2),
            delayed_tasks: either(args.delayed_tasks, 2_000, 200),
            delay_ms: either(None, 2_000, 1_000),
            memory_tasks: either(args.memory_tasks, 100_000, 10_000),
            scale_tasks: either(args.scale_tasks, 1_000_000, 50_000),
        }
    }

    fn sentence(&self) -> String {
        let runs = if self.runs == 1 { "1 run".to_owned() } else { format!("Median (range) of {} runs", self.runs) };
        format!(
            "{runs}; {} tasks of {} bytes a run, {} calls under way at once, every task checked to be done exactly once.",
            report::show(self.tasks as f64),
            delivery::PAYLOAD_BYTES,
            self.concurrency
        )
    }
}

/// What the measurements share.
struct Bench {
    settings: Settings,
    server: Server,
    peers: Option<Peers>,
    /// What the slowest queue did in a second, task by task, once that is known.
    slowest_single: Option<f64>,
    step: usize,
    steps: usize,
}

impl Bench {
    fn systems(&self) -> Vec<System> {
        let all = System::ALL.into_iter();
        all.filter(|system| self.peers.is_some() || matches!(system, System::Windlass | System::Bare)).collect()
    }

    fn peers(&self) -> Result<&Peers> {
        self.peers.as_ref().context("the peers were left out")
    }

    /// Says on stderr what is done next.
    fn progress(&mut self, what: &str) {
        self.step += 1;
        // The numbers go elsewhere; nobody has to read this.
        let _ = writeln!(std::io::stderr(), "[{}/{}] {what}", self.step, self.steps);
    }

    async fn measure(&mut self, what: Measurement) -> Result<Vec<Row>> {
        match what {
            Measurement::Throughput => throughput::measure(self).await,
            Measurement::Latency => latency::measure_half_load(self).await,
            Measurement::Delayed => latency::measure_delayed(self).await,
            Measurement::Memory => memory::measure(self).await,
            Measurement::Scale => scale::measure(self).await,
        }
    }

    fn steps_of(&self, what: Measurement) -> usize {
        match what {
            Measurement::Throughput => throughput::steps(self),
            Measurement::Latency | Measurement::Delayed => latency::steps(self),
            Measurement::Memory => memory::steps(self),
            Measurement::Scale => scale::steps(self),
        }
    }
}

/// Measures and prints.
pub async fn run(args: Args) -> Result<()> {
    let machine = Machine::here();
    let pinning = Pinning::apply(args.server_core, args.client_core).await?;
    let output = args.output;
    // All clients share one core, so a second thread would only be in the way.
    let measured = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(measure(args, machine, pinning))
    });
    let report = measured.await.context("the benchmark was cut off")??;
    let text = match output {
        Output::Markdown => report.markdown(),
        Output::Json => report.json()?,
    };
    std::io::stdout().write_all(text.as_bytes()).context("the result could not be printed")
}

async fn measure(args: Args, machine: Machine, pinning: Pinning) -> Result<Report> {
    let wanted: BTreeSet<Measurement> = match args.only.is_empty() {
        true => Measurement::value_variants().iter().copied().collect(),
        false => args.only.iter().copied().collect(),
    };
    let cache = cache()?;
    let beside_peers = !args.no_peers && wanted.iter().any(|what| *what != Measurement::Scale);
    let peers = if beside_peers { Some(Peers::find(&cache).await?) } else { None };
    let server = Server::start(&server::find_program(args.redis_server.clone(), &cache)?, &pinning).await?;

    let mut versions = vec![server.version.clone()];
    versions.extend(peers.iter().flat_map(|peers| peers.versions.clone()));
    let settings = Settings::from(&args);
    let mut report = Report {
        date: jiff::Timestamp::now().strftime("%Y-%m-%d").to_string(),
        machine,
        pinning: pinning.sentence(),
        versions,
        settings: settings.sentence(),
        rows: Vec::new(),
    };
    let mut bench = Bench { settings, server, peers, slowest_single: None, step: 0, steps: 0 };
    bench.steps = wanted.iter().map(|what| bench.steps_of(*what)).sum();
    let outcome = tokio::select! {
        outcome = measure_all(&mut bench, wanted) => outcome,
        outcome = interrupted() => outcome,
    };
    bench.server.stop().await?;
    report.rows = outcome?;
    Ok(report)
}

async fn measure_all(bench: &mut Bench, wanted: BTreeSet<Measurement>) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for what in wanted {
        rows.extend(bench.measure(what).await?);
    }
    Ok(rows)
}

/// Ends, with an error, when somebody wants this process to end.
async fn interrupted() -> Result<Vec<Row>> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminate.recv() => {}
    }
    bail!("interrupted; what was measured so far is lost")
}

/// Where `make` puts servers and peers.
fn cache() -> Result<PathBuf> {
    if let Some(cache) = std::env::var_os("WINDLASS_CACHE").filter(|cache| !cache.is_empty()) {
        return Ok(cache.into());
    }
    let home = std::env::var_os("HOME").context("neither WINDLASS_CACHE nor HOME is set: set one of them")?;
    Ok(PathBuf::from(home).join(".cache/windlass"))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn parse(line: &str) -> Result<Settings, clap::Error> {
        Line::try_parse_from(line.split(' ')).map(|line| Settings::from(&line.args))
    }

    #[test]
    fn what_is_given_wins_over_quick_and_quick_over_the_defaults() {
        let settings = parse("bench").expect("defaults");
        assert_eq!((settings.runs, settings.tasks, settings.scale_tasks), (5, 30_000, 1_000_000));
        let quick = parse("bench --quick --tasks 77").expect("valid");
        assert_eq!((quick.runs, quick.tasks, quick.scale_tasks), (1, 77, 50_000));
    }

    #[test]
    fn bad_input_is_refused() {
        for bad in ["bench --runs 0", "bench --tasks -1", "bench --only speed", "bench --concurrency x", "bench -o xml"]
        {
            parse(bad).map(|_| ()).expect_err(bad);
        }
        let several = Line::try_parse_from(["bench", "--only", "scale,memory"]).expect("valid");
        assert_eq!(several.args.only, [Measurement::Scale, Measurement::Memory]);
    }
}
