//! `windlass queue watch`: queues live.
//!
//! In a terminal it draws on the alternate screen and gives the screen back
//! however it ends; elsewhere it prints a line a queue and second.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use jiff::Timestamp;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::MissedTickBehavior;

use super::{Look, QueueOut, table};
use crate::broker::BrokerError;
use crate::broker::redis::Redis;
use crate::cli::connection::RedisArgs;
use crate::cli::error::CliError;
use crate::cli::output::{Colours, Format, OutputArgs, Tone, print};
use crate::cli::units::{parse_duration, spoken};
use crate::protocol::names::QueueName;

/// How often queues that were not there before are looked for: that looks at every key.
const NEW_QUEUES_EVERY: u32 = 10;

/// Arguments of `windlass queue watch`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The queue: NAME or NAMESPACE/NAME; without it, all queues.
    #[arg(short = 'q', long, env = "WINDLASS_QUEUE", value_name = "QUEUE")]
    queue: Option<QueueName>,
    /// How often to look.
    #[arg(long, value_parser = parse_duration, default_value = "1s", value_name = "DURATION")]
    interval: Duration,
    #[command(flatten)]
    redis: RedisArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// The screen of a terminal while something else is drawn on it.
struct Screen;

impl Screen {
    fn enter() -> Result<Self, CliError> {
        // Alternate screen, no cursor.
        print("\x1b[?1049h\x1b[?25l")?;
        Ok(Self)
    }

    fn draw(&self, text: &str) -> Result<(), CliError> {
        // Each line is cleared to its end as it is written, and the rest below: no flicker.
        print(&format!("\x1b[H{}\x1b[J", text.replace('\n', "\x1b[K\n")))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let mut out = std::io::stdout().lock();
        // There is nobody to tell if the terminal is gone.
        let _ = out.write_all(b"\x1b[?25h\x1b[?1049l");
        let _ = out.flush();
    }
}

/// Runs the command.
pub(super) async fn run(args: Args) -> Result<(), CliError> {
    let redis = args.redis.open()?;
    let mut watch = Watch { redis, queue: args.queue.clone(), known: Vec::new(), turn: 0 };
    // What is wrong from the beginning is said at once.
    args.redis.first(watch.redis.reach()).await?;
    let first = watch.look().await?;
    if let (Some(queue), true) = (&args.queue, first.is_empty()) {
        let sentence = format!("queue {queue} is not on this Redis: see `windlass queue list` for those that are");
        return Err(CliError::not_found(sentence));
    }
    let screen = if args.output.format == Format::Table && std::io::stdout().is_terminal() {
        Some(Screen::enter()?)
    } else {
        None
    };
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let mut ticks = tokio::time::interval(args.interval.max(Duration::from_millis(100)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut seen = Some(Ok(first));
    loop {
        tokio::select! {
            _ = interrupt.recv() => return Ok(()),
            _ = terminate.recv() => return Ok(()),
            _ = ticks.tick() => {}
        }
        let looked = match seen.take() {
            Some(first) => first,
            None => tokio::select! {
                _ = interrupt.recv() => return Ok(()),
                _ = terminate.recv() => return Ok(()),
                looked = watch.look() => looked,
            },
        };
        match &screen {
            Some(screen) => screen.draw(&drawn(looked, args.interval))?,
            None => lines(looked, args.output)?,
        }
    }
}

struct Watch {
    redis: Redis,
    queue: Option<QueueName>,
    known: Vec<crate::broker::redis::QueueRecord>,
    turn: u32,
}

impl Watch {
    async fn look(&mut self) -> Result<Vec<Look>, BrokerError> {
        if self.turn.is_multiple_of(NEW_QUEUES_EVERY) || self.known.is_empty() {
            self.known = match &self.queue {
                Some(queue) => self.redis.find(queue).await?.into_iter().collect(),
                None => self.redis.queues().await?,
            };
        }
        self.turn = self.turn.wrapping_add(1);
        let mut seen = Vec::new();
        for record in &self.known {
            match Look::at(&self.redis, record.clone()).await {
                Ok(look) => seen.push(look),
                Err(BrokerError::NoQueue(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(seen)
    }
}

fn drawn(looked: Result<Vec<Look>, BrokerError>, interval: Duration) -> String {
    let now = Timestamp::now().strftime("%H:%M:%S UTC").to_string();
    let head = format!("windlass queue watch, every {}, {now}; Ctrl-C ends\n\n", spoken(interval));
    let body = match looked {
        Ok(seen) if seen.is_empty() => "No queues found.\n".to_owned(),
        Ok(seen) => table(&seen).shown(),
        Err(error) => Colours::of_stdout().paint(Tone::Bad, &format!("{error}\n")),
    };
    head + &body
}

/// A line a queue, without a terminal. An outage is said on stderr, and does not end the watch.
fn lines(looked: Result<Vec<Look>, BrokerError>, output: OutputArgs) -> Result<(), CliError> {
    let seen = match looked {
        Ok(seen) => seen,
        Err(error) => {
            crate::cli::output::remark(&format!("{} {error}", Timestamp::now()));
            return Ok(());
        }
    };
    for look in &seen {
        let shown: QueueOut<'_> = look.out(Vec::new());
        output.line(&shown, || {
            let counts = &look.counts;
            format!(
                "{} {} mode={:?} backlog={} running={} delayed={} retrying={} dead={} workers={} finished={}\n",
                counts.sampled_at,
                look.name,
                look.policy.mode,
                counts.backlog,
                counts.running,
                counts.delayed,
                counts.retrying,
                counts.dead_lettered + counts.dlq_pending,
                counts.workers,
                counts.finished,
            )
        })?;
    }
    Ok(())
}
