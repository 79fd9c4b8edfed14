//! What the command line can say, and what that means.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use clap::builder::RangedU64ValueParser;

use super::delayed::Dues;
use super::delivery::PAYLOAD_BYTES;
use super::report::show;

const EXAMPLES: &str = "Examples:
  windlass bench --quick                       a first look, in two or three minutes
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
    /// Delayed tasks, due over a minute [default: 10000].
    #[arg(long, value_parser = from_one())]
    pub delayed_tasks: Option<usize>,
    /// Tasks that are queued and finished to measure memory [default: 100000].
    #[arg(long, value_parser = from_one())]
    pub memory_tasks: Option<usize>,
    /// Tasks that make a queue long [default: 1000000].
    #[arg(long, value_parser = from_one())]
    pub scale_tasks: Option<usize>,
    /// Tasks of dead workers that are taken back [default: 100000].
    #[arg(long, value_parser = from_one())]
    pub reclaim_tasks: Option<usize>,
    /// Queues in which nothing happens [default: 10000].
    #[arg(long, value_parser = from_one())]
    pub idle_queues: Option<usize>,
    /// Look after so many idle queues on the Redis at this port until standard
    /// input ends: what `--only idle` starts as a process of its own.
    #[arg(long, hide = true, value_name = "PORT", requires = "idle_queues")]
    pub look_after: Option<u16>,
    /// The redis-server to start [default: the one on the PATH, else the one that `make servers` gets].
    #[arg(long, value_name = "PATH")]
    pub redis_server: Option<PathBuf>,
    /// The core for the server [default: the first that may be used].
    #[arg(long, value_name = "CORE", requires = "client_core")]
    pub server_core: Option<u16>,
    /// The core for all clients [default: the second that may be used].
    #[arg(long, value_name = "CORE", requires = "server_core")]
    pub client_core: Option<u16>,
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
    /// How long taking tasks back from dead workers holds the server.
    Reclaim,
    /// How long each operation holds the server at most, also among 500 lanes.
    Holds,
    /// What looking after idle queues costs: memory, CPU, commands a second.
    Idle,
    /// The library's worker with a handler that does nothing, beside the peers' workers.
    Worker,
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
pub(super) struct Settings {
    pub(super) runs: usize,
    pub(super) tasks: usize,
    pub(super) concurrency: usize,
    pub(super) rate: Option<usize>,
    pub(super) seconds: usize,
    /// Runs with delayed tasks: one takes more than a minute a system.
    pub(super) delayed_runs: usize,
    pub(super) dues: Dues,
    /// Runs that measure memory: they hardly differ.
    pub(super) memory_runs: usize,
    pub(super) memory_tasks: usize,
    pub(super) scale_tasks: usize,
    pub(super) reclaim_tasks: usize,
    pub(super) idle_queues: usize,
    /// How long idle queues are left to themselves before anything is measured.
    pub(super) idle_rest: Duration,
    pub(super) idle_window: Duration,
    /// Tasks for a worker with one handler, and for one with more.
    pub(super) lone_worker_tasks: usize,
    pub(super) worker_tasks: usize,
    /// Tasks for a worker that is idle.
    pub(super) pickups: usize,
    /// The same for asynq as it is, which looks for work once a second.
    pub(super) slow_pickups: usize,
}

impl Settings {
    /// From the command line.
    pub(super) fn from(args: &Args) -> Self {
        let either =
            |given: Option<usize>, full: usize, quick: usize| given.unwrap_or(if args.quick { quick } else { full });
        let seconds = |full: u64, quick: u64| Duration::from_secs(if args.quick { quick } else { full });
        Self {
            runs: either(args.runs, 5, 1),
            tasks: either(args.tasks, 30_000, 3_000),
            concurrency: args.concurrency,
            rate: args.rate,
            seconds: either(args.seconds, 10, 2),
            delayed_runs: either(args.runs, 1, 1),
            dues: Dues { tasks: either(args.delayed_tasks, 10_000, 500), delay: seconds(5, 1), spread: seconds(60, 3) },
            memory_runs: either(args.runs, 2, 1),
            memory_tasks: either(args.memory_tasks, 100_000, 10_000),
            scale_tasks: either(args.scale_tasks, 1_000_000, 50_000),
            reclaim_tasks: either(args.reclaim_tasks, 100_000, 5_000),
            idle_queues: either(args.idle_queues, 10_000, 1_000),
            idle_rest: seconds(10, 2),
            idle_window: seconds(60, 5),
            lone_worker_tasks: either(args.tasks.map(|tasks| tasks.div_ceil(4)), 5_000, 1_000),
            worker_tasks: either(args.tasks, 20_000, 3_000),
            pickups: either(None, 200, 50),
            slow_pickups: either(None, 30, 4),
        }
    }

    /// In a sentence for the report.
    pub(super) fn sentence(&self) -> String {
        let runs = if self.runs == 1 { "1 run".to_owned() } else { format!("Median (range) of {} runs", self.runs) };
        format!(
            "{runs}; {} tasks of {} bytes a run, calls under way at once: {}; every task checked to be done exactly once.",
            show(self.tasks as f64),
            PAYLOAD_BYTES,
            self.concurrency
        )
    }
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
