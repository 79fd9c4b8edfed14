//! `windlass conformance`: checks a live queue against the protocol.

use std::time::Duration;

use super::connection::{EventLogArgs, QueueArgs};
use super::error::CliError;
use super::output::{Cell, OutputArgs, Table, Tone, remark};
use super::units::{parse_duration, spoken};
use crate::broker::Broker;
use crate::conformance::{Check, Conformance, ConformanceError, expected_time, run as run_checks};

/// Arguments of `windlass conformance`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    windlass conformance -q shop/emails\n  \
    windlass conformance -q shop/emails --event-log sqlite:///var/lib/windlass/events.db -o json\n\n\
    It enqueues tasks of a type of its own, works on them as a worker of its own, and clears away what it made. \
    The queue's leader (`windlass operator` or `windlass dev`) must be running. Retries wait as long as the queue's \
    policy says. A worker that takes every type would take the tasks, so it is refused then.")]
pub struct Args {
    /// When to give up; if not given, as long as the queue's delays need, and half a minute.
    #[arg(long, value_parser = parse_duration, value_name = "DURATION")]
    timeout: Option<Duration>,
    #[command(flatten)]
    queue: QueueArgs,
    #[command(flatten)]
    event_log: EventLogArgs,
    #[command(flatten)]
    output: OutputArgs,
}

impl From<ConformanceError> for CliError {
    fn from(error: ConformanceError) -> Self {
        match error {
            ConformanceError::Broker(error) => error.into(),
            refused @ (ConformanceError::Thief(_) | ConformanceError::Another(_)) => {
                CliError::conflict(refused.to_string())
            }
        }
    }
}

/// Runs `windlass conformance`.
pub(super) async fn run(args: Args) -> Result<(), CliError> {
    let queue = args.queue.find().await?;
    let log = args.event_log.open()?;
    let needed = expected_time(&queue.broker.policy().await?);
    remark(&format!("By the queue's delays this takes about {}.", spoken(needed.max(Duration::from_secs(1)))));
    if args.timeout.is_some_and(|timeout| timeout < needed) {
        remark("That is longer than --timeout: some checks will be given up.");
    }
    let conformance = Conformance { queue: queue.name, broker: queue.broker, log, timeout: args.timeout };
    let stop = async { drop(tokio::signal::ctrl_c().await) };
    let Some(checks) = run_checks(conformance, stop).await? else {
        return Err(CliError::failed("interrupted; what the checks made was cleared away"));
    };
    args.output.one(&checks, || table(&checks))?;
    match checks.iter().filter(|check| !check.passed).count() {
        0 => Ok(()),
        failed => Err(CliError::failed(format!("{failed} of {} checks failed", checks.len()))),
    }
}

fn table(checks: &[Check]) -> String {
    let mut table = Table::new(&["CHECK", "RESULT", "RETRIES", "TRANSITIONS", "JOB", "TRACE", "SEEN"]);
    for check in checks {
        let walk: Vec<_> = check.status_transition.iter().map(|state| state.as_str()).collect();
        table.row([
            check.id.into(),
            if check.passed { Cell::toned("pass", Tone::Good) } else { Cell::toned("FAIL", Tone::Bad) },
            check.retry_count.map_or_else(|| "-".to_owned(), |count| count.to_string()).into(),
            if walk.is_empty() { "-".into() } else { walk.join(" → ").into() },
            check.job_id.as_ref().map_or("-", |id| id.as_str()).into(),
            check.trace_id.as_ref().map_or("-", |id| id.as_str()).into(),
            (&check.seen).into(),
        ]);
    }
    table.shown()
}
