//! `windlass dlq replay` and `windlass dlq discard`: what a person decides about dead letters.

use std::num::NonZeroU32;

use serde::Serialize;

use super::{Desk, DeskArgs, FilterArgs};
use crate::broker::Broker;
use crate::cli::error::CliError;
use crate::cli::output::{Format, print, remark};
use crate::cli::progress::Progress;
use crate::cli::task::input;
use crate::cli::units::parse_rate;
use crate::dead_letters::{Discard, DiscardOutcome, Guard, Replay, ReplayOutcome, Report, Run, Selection, Step};
use crate::protocol::names::DeadLetterId;

/// With more dead letters than this, a table shows only those that something else became of.
const MOST_ROWS: usize = 20;

/// Which dead letters, and who decides.
#[derive(Debug, clap::Args)]
struct WhichArgs {
    /// The dead letters, TASK#EPOCH, or their tasks; or use filters.
    #[arg(value_name = "ID", conflicts_with_all = ["all", "fingerprint", "task_type", "error_code", "tenant", "since", "until"])]
    ids: Vec<String>,
    /// All that nobody has decided on.
    #[arg(long)]
    all: bool,
    /// Change nothing; show what would be done.
    #[arg(long)]
    dry_run: bool,
    /// How many at most, the oldest first.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..), value_name = "N")]
    limit: Option<u32>,
    /// Who decides; $USER if not given.
    #[arg(long = "as", value_name = "PERSON")]
    person: Option<String>,
    #[command(flatten)]
    filter: FilterArgs,
    #[command(flatten)]
    desk: DeskArgs,
}

/// Arguments of `windlass dlq replay`.
#[derive(Debug, clap::Args)]
pub(super) struct ReplayArgs {
    /// A corrected payload, for one dead letter: JSON, @FILE, or - for standard input.
    #[arg(long, value_name = "JSON|@FILE|-", allow_hyphen_values = true)]
    payload: Option<String>,
    /// How many new tasks a second at most.
    #[arg(long, value_parser = parse_rate, value_name = "N/s")]
    rate: Option<NonZeroU32>,
    /// Also replay what is a replay itself and failed again the same way.
    #[arg(long)]
    force: bool,
    /// Why; it is kept with the dead letter.
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    #[command(flatten)]
    which: WhichArgs,
}

/// Arguments of `windlass dlq discard`.
#[derive(Debug, clap::Args)]
pub(super) struct DiscardArgs {
    /// Why; it is kept with the dead letter.
    #[arg(long, value_name = "TEXT", required = true)]
    reason: String,
    #[command(flatten)]
    which: WhichArgs,
}

impl WhichArgs {
    fn person(&self) -> String {
        self.person.clone().unwrap_or_else(crate::cli::person)
    }

    fn run(&self) -> Run {
        if self.dry_run { Run::Dry } else { Run::Real }
    }

    async fn selection(&self, desk: &Desk) -> Result<Selection, CliError> {
        if self.ids.is_empty() {
            return Ok(Selection::Matching(self.filter.filter(None)));
        }
        let mut ids = Vec::with_capacity(self.ids.len());
        for word in &self.ids {
            ids.push(desk.named(word).await?);
        }
        Ok(Selection::Ids(ids))
    }

    /// Refuses to decide about everything by oversight.
    fn check(&self) -> Result<(), CliError> {
        if self.ids.is_empty() && !self.all && self.filter.is_empty() {
            return Err(CliError::usage(
                "no dead letters were named: give their ids, filters like --fingerprint or --type, or --all",
            ));
        }
        Ok(())
    }
}

/// What became of one dead letter.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct LetterOut<'a, O> {
    dlq_id: String,
    #[serde(flatten)]
    outcome: &'a O,
}

/// What became of all of them.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ReportOut<'a, C, O> {
    queue: String,
    dry_run: bool,
    counts: C,
    letters: Vec<LetterOut<'a, O>>,
}

/// How an outcome reads, and whether it is what was asked for.
struct Reading {
    words: String,
    problem: Option<CliError>,
}

impl Reading {
    fn fine(words: impl Into<String>) -> Self {
        Self { words: words.into(), problem: None }
    }

    fn conflict(words: impl Into<String>) -> Self {
        let words = words.into();
        Self { problem: Some(CliError::conflict(&words)), words }
    }
}

fn gone() -> Reading {
    let words = "is not there: see `windlass dlq list --all --decision any`";
    Reading { problem: Some(CliError::not_found(words)), words: words.to_owned() }
}

fn read_replay(outcome: &ReplayOutcome) -> Reading {
    match outcome {
        ReplayOutcome::Replayed { task } => Reading::fine(format!("runs again as task {task}")),
        ReplayOutcome::WouldReplay { task } => Reading::fine(format!("would run again as task {task}")),
        ReplayOutcome::AlreadyReplayed { task } => Reading::fine(format!("was replayed before, as task {task}")),
        ReplayOutcome::FailedAgain { times } => Reading::conflict(format!(
            "is left alone: it is a replay that failed again the same way ({times} times); mend the cause, then use --force"
        )),
        ReplayOutcome::Discarded => Reading::conflict("was discarded before, and stays so"),
        ReplayOutcome::KeyTaken { by } => Reading::conflict(format!(
            "cannot run again: task {by} has its idempotency key; wait until that one is over"
        )),
        ReplayOutcome::IdTaken { id } => Reading::conflict(format!("cannot run again: another task has the id {id}")),
        ReplayOutcome::Unknown => gone(),
    }
}

fn read_discard(outcome: &DiscardOutcome) -> Reading {
    match outcome {
        DiscardOutcome::Discarded => Reading::fine("is discarded"),
        DiscardOutcome::WouldDiscard => Reading::fine("would be discarded"),
        DiscardOutcome::AwaitingSecond => Reading::fine("will be discarded when a second person says so too"),
        DiscardOutcome::WouldRequest => Reading::fine("would wait for a second person"),
        DiscardOutcome::SamePerson => {
            Reading::conflict("waits for another person: the same one cannot agree with themselves (see --as)")
        }
        DiscardOutcome::AlreadyReplayed { task } => Reading::conflict(format!("was replayed before, as task {task}")),
        DiscardOutcome::AlreadyDiscarded => Reading::fine("was discarded before"),
        DiscardOutcome::Unknown => gone(),
    }
}

/// What became of each, while it is shown how far it is.
struct Dealt<O> {
    what: &'static str,
    progress: Option<Progress>,
    letters: Vec<(DeadLetterId, O)>,
}

impl<O: Clone> Dealt<O> {
    /// `what` is what is counted.
    fn new(what: &'static str) -> Self {
        Self { what, progress: None, letters: Vec::new() }
    }

    fn add(&mut self, step: &Step<'_, O>) {
        let bar = self.progress.get_or_insert_with(|| Progress::new(Some(step.total as u64), self.what));
        bar.at(step.done as u64);
        self.letters.push((step.id.clone(), step.outcome.clone()));
    }

    /// All of them; the bar is gone.
    fn done(self) -> Vec<(DeadLetterId, O)> {
        self.letters
    }
}

/// Prints a report; an id that was named and not dealt with is an error.
fn report<C: Serialize, O: Serialize>(
    which: &WhichArgs,
    desk: &Desk,
    dealt: Vec<(DeadLetterId, O)>,
    Report { counts, stopped }: Report<C>,
    read: impl Fn(&O) -> Reading,
) -> Result<(), CliError> {
    let letters = dealt.iter().map(|(id, outcome)| LetterOut { dlq_id: id.to_string(), outcome }).collect();
    let shown = ReportOut { queue: desk.queue.name.to_string(), dry_run: which.dry_run, counts, letters };
    let mut problem = None;
    let mut lines = String::new();
    for (id, outcome) in &dealt {
        let reading = read(outcome);
        if dealt.len() <= MOST_ROWS || reading.problem.is_some() {
            lines += &format!("{id} {}\n", reading.words);
        }
        problem = problem.or(reading.problem.map(|error| (id, error)));
    }
    match which.desk.output.format {
        Format::Table if dealt.is_empty() => print("No dead letters found.\n")?,
        Format::Table => {
            print(&lines)?;
            if dealt.len() > MOST_ROWS {
                remark(&format!("{} dead letters were dealt with: {}", dealt.len(), counted(&shown.counts)));
            }
        }
        Format::Json | Format::Yaml => which.desk.output.one(&shown, String::new)?,
    }
    if let Some(error) = stopped {
        let done = dealt.len();
        return Err(CliError::from(error).more(format!("{done} were dealt with before; the same command goes on")));
    }
    // By filter, what was left alone is part of the answer.
    match problem.filter(|_| !which.ids.is_empty()) {
        Some((id, error)) if error.kind() == crate::cli::error::Kind::NotFound => {
            Err(CliError::not_found(format!("dead letter {id} {error}")))
        }
        Some((id, error)) => Err(CliError::conflict(format!("dead letter {id} {error}"))),
        None => Ok(()),
    }
}

/// Counts that are not zero, in words.
fn counted<C: Serialize>(counts: &C) -> String {
    let value = serde_json::to_value(counts).unwrap_or_default();
    let fields = value.as_object().into_iter().flatten();
    let some = fields.filter(|(name, count)| *name != "selected" && count.as_u64() != Some(0));
    some.map(|(name, count)| format!("{name} {count}")).collect::<Vec<_>>().join(", ")
}

/// Runs `windlass dlq replay`.
pub(super) async fn replay(args: ReplayArgs) -> Result<(), CliError> {
    let which = &args.which;
    which.check()?;
    let desk = which.desk.open().await?;
    let mut replay = Replay::new(which.selection(&desk).await?, which.person());
    replay.reason = args.reason.clone();
    replay.run = which.run();
    replay.guard = if args.force { Guard::Off } else { Guard::On };
    replay.per_second = args.rate;
    replay.limit = which.limit.map(|limit| limit as usize);
    if let Some(word) = &args.payload {
        let limit = desk.queue.broker.policy().await?.limits.payload_bytes;
        replay.payload = Some(input::payload(word, limit).await?);
    }
    let mut dealt = Dealt::new("dead letters replayed");
    let done = desk.letters.replay(&replay, |step| dealt.add(&step)).await;
    report(which, &desk, dealt.done(), done?, read_replay)
}

/// Runs `windlass dlq discard`.
pub(super) async fn discard(args: DiscardArgs) -> Result<(), CliError> {
    let which = &args.which;
    which.check()?;
    let desk = which.desk.open().await?;
    let mut discard = Discard::new(which.selection(&desk).await?, which.person(), args.reason.clone());
    discard.run = which.run();
    discard.limit = which.limit.map(|limit| limit as usize);
    let mut dealt = Dealt::new("dead letters discarded");
    let done = desk.letters.discard(&discard, |step| dealt.add(&step)).await;
    report(which, &desk, dealt.done(), done?, read_discard)
}
