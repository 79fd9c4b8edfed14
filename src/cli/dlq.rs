//! `windlass dlq`: read, replay and discard dead letters.

mod decide;

use clap::{Subcommand, ValueEnum};

use super::connection::{EventLogArgs, FoundQueue, QueueArgs};
use super::error::CliError;
use super::output::{Cell, Facts, OutputArgs, Table, Tone, gist, shortened};
use super::units::{Moment, parse_moment, since, spoken};
use crate::broker::{Broker, ListCursor, Page, Review, Voice};
use crate::dead_letters::{Cause, DeadLetterFilter, DeadLetters, Entry, Verdict};
use crate::protocol::fingerprint::Fingerprint;
use crate::protocol::names::{DeadLetterId, TaskId, TaskType, TenantId};

/// How many causes or dead letters one look takes.
const PAGE: usize = 100;

/// Arguments of `windlass dlq`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List dead letters by cause, or one by one.
    #[command(after_help = "Examples:\n  \
        windlass dlq list -q shop/emails\n  \
        windlass dlq list -q shop/emails --all --since 24h\n  \
        windlass dlq list -q shop/emails --fingerprint 3f1d0c22a9b87e64 -o json\n\n\
        Without an event log the queue itself is looked through, which takes longer where there are many.")]
    List(ListArgs),
    /// Show a dead letter whole: payload, error, attempts, decisions.
    #[command(after_help = "Examples:\n  \
        windlass dlq show '0193a5c2-…#4' -q shop/emails\n  \
        windlass dlq show 0193a5c2-… -q shop/emails -o yaml")]
    Show(ShowArgs),
    /// Run dead letters again, each as a new task.
    #[command(after_help = "Examples:\n  \
        windlass dlq replay '0193a5c2-…#4' -q shop/emails\n  \
        windlass dlq replay '0193a5c2-…#4' -q shop/emails --payload @corrected.json\n  \
        windlass dlq replay -q shop/emails --fingerprint 3f1d0c22a9b87e64 --rate 10/s --dry-run\n\n\
        By filter, only those are meant that nobody has decided on. A dead letter that is itself a replay and died \
        of the same cause is left alone, unless --force is given. A replay that was cut short can be given again: \
        what was replayed is not replayed twice.")]
    Replay(decide::ReplayArgs),
    /// Give dead letters up.
    #[command(after_help = "Examples:\n  \
        windlass dlq discard '0193a5c2-…#4' -q shop/emails --reason 'customer is gone'\n  \
        windlass dlq discard -q shop/emails --type report --until 7d --reason 'too old to matter'\n\n\
        Where the queue's policy wants two people, the first one's discard waits for a second person's.")]
    Discard(decide::DiscardArgs),
}

/// Which decisions are looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum DecisionWord {
    /// Nobody has decided.
    Open,
    /// Runs again.
    Replayed,
    /// Given up.
    Discarded,
    /// Whatever was decided.
    Any,
}

impl DecisionWord {
    fn verdict(self) -> Option<Verdict> {
        match self {
            Self::Open => Some(Verdict::Open),
            Self::Replayed => Some(Verdict::Replayed),
            Self::Discarded => Some(Verdict::Discarded),
            Self::Any => None,
        }
    }
}

/// Which dead letters.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Filters")]
struct FilterArgs {
    /// Only of this cause, as `dlq list` names it.
    #[arg(long, value_name = "FINGERPRINT")]
    fingerprint: Option<Fingerprint>,
    /// Only of tasks of this type.
    #[arg(long = "type", value_name = "TYPE")]
    task_type: Option<TaskType>,
    /// Only with this kind of error.
    #[arg(long, value_name = "CODE")]
    error_code: Option<String>,
    /// Only of this tenant.
    #[arg(long, value_name = "TENANT")]
    tenant: Option<TenantId>,
    /// Only what failed since: a time in RFC 3339, or how long ago.
    #[arg(long, value_parser = parse_moment, value_name = "TIME|AGO")]
    since: Option<Moment>,
    /// Only what failed before: a time in RFC 3339, or how long ago.
    #[arg(long, value_parser = parse_moment, value_name = "TIME|AGO")]
    until: Option<Moment>,
}

impl FilterArgs {
    fn filter(&self, decision: Option<Verdict>) -> DeadLetterFilter {
        DeadLetterFilter {
            ids: Vec::new(),
            fingerprint: self.fingerprint.clone(),
            task_type: self.task_type.clone(),
            error_code: self.error_code.clone(),
            tenant: self.tenant.clone(),
            failed_after: self.since.map(Moment::timestamp),
            failed_before: self.until.map(Moment::timestamp),
            decision,
        }
    }

    /// Whether anything is held back.
    fn is_empty(&self) -> bool {
        self.filter(None) == DeadLetterFilter::default()
    }
}

/// Where the dead letters are, and how to print them.
#[derive(Debug, clap::Args)]
struct DeskArgs {
    #[command(flatten)]
    queue: QueueArgs,
    #[command(flatten)]
    event_log: EventLogArgs,
    #[command(flatten)]
    output: OutputArgs,
}

impl DeskArgs {
    async fn open(&self) -> Result<Desk, CliError> {
        let log = self.event_log.open()?;
        let queue = self.queue.find().await?;
        let letters = DeadLetters::new(queue.name.clone(), queue.broker.clone(), log);
        Ok(Desk { queue, letters })
    }
}

#[derive(Debug, clap::Args)]
struct ListArgs {
    /// List the dead letters one by one, not their causes; so does --fingerprint.
    #[arg(long)]
    all: bool,
    /// Which decisions to look for: open, replayed, discarded or any.
    #[arg(long, value_enum, default_value_t = DecisionWord::Open, hide_possible_values = true, value_name = "DECISION")]
    decision: DecisionWord,
    /// How many at most.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..), value_name = "N")]
    limit: u32,
    #[command(flatten)]
    filter: FilterArgs,
    #[command(flatten)]
    desk: DeskArgs,
}

#[derive(Debug, clap::Args)]
struct ShowArgs {
    /// The dead letter, TASK#EPOCH, or its task.
    #[arg(value_name = "ID")]
    id: String,
    #[command(flatten)]
    desk: DeskArgs,
}

/// Runs `windlass dlq`.
pub(super) async fn run(args: Args) -> Result<(), CliError> {
    match args.command {
        Command::List(args) => list(args).await,
        Command::Show(args) => show(args).await,
        Command::Replay(args) => decide::replay(args).await,
        Command::Discard(args) => decide::discard(args).await,
    }
}

/// A queue and its dead letters.
struct Desk {
    queue: FoundQueue,
    letters: DeadLetters,
}

impl Desk {
    /// The dead letter that a word names: by its own id, or by its task's.
    async fn named(&self, word: &str) -> Result<DeadLetterId, CliError> {
        if let Ok(id) = word.parse() {
            return Ok(id);
        }
        let task: TaskId = word.parse().map_err(|error| CliError::usage(format!("{error}")))?;
        let missing = || {
            CliError::not_found(format!(
                "queue {} has no dead letter of task {task}: see `windlass dlq list -q {} --all --decision any`",
                self.queue.name, self.queue.name
            ))
        };
        let view = self.queue.broker.get(&task).await?.ok_or_else(missing)?;
        let id = view.dlq_id.ok_or_else(missing)?;
        id.parse().map_err(|error| CliError::failed(format!("the queue names a dead letter oddly: {error}")))
    }
}

/// Pages, until there are enough or no more.
async fn gather<T, F>(limit: u32, page: impl Fn(ListCursor) -> F) -> Result<Vec<T>, CliError>
where
    F: Future<Output = crate::dead_letters::Result<Page<T>>>,
{
    let (mut found, mut cursor) = (Vec::new(), Some(ListCursor::default()));
    while let Some(from) = cursor.filter(|_| found.len() < limit as usize) {
        let page = page(from).await?;
        found.extend(page.items);
        cursor = page.next;
    }
    found.truncate(limit as usize);
    Ok(found)
}

async fn list(args: ListArgs) -> Result<(), CliError> {
    let Desk { letters, .. } = &args.desk.open().await?;
    let filter = &args.filter.filter(args.decision.verdict());
    let nothing = || "No dead letters found.\n".to_owned();
    if args.all || args.filter.fingerprint.is_some() {
        let found = gather(args.limit, |from| letters.list(filter, from, PAGE)).await?;
        return args.desk.output.one(&found, || if found.is_empty() { nothing() } else { letter_table(&found) });
    }
    let causes = gather(args.limit, |from| letters.causes(filter, from, PAGE)).await?;
    args.desk.output.one(&causes, || if causes.is_empty() { nothing() } else { cause_table(&causes) })
}

fn cause_table(causes: &[Cause]) -> String {
    let now = jiff::Timestamp::now();
    let ago = |then| format!("{} ago", spoken(since(now, then)));
    let mut table = Table::new(&["FINGERPRINT", "COUNT", "OPEN", "TYPE", "CODE", "FIRST", "LAST", "ERROR"]);
    for cause in causes {
        table.row([
            (&cause.fingerprint).into(),
            cause.count.into(),
            Cell::alarming(cause.open),
            (&cause.task_type).into(),
            (&cause.error_code).into(),
            ago(cause.first_failed_at).into(),
            ago(cause.last_failed_at).into(),
            gist(&cause.sample_error, 80).into(),
        ]);
    }
    table.shown()
}

fn decision(review: &Review) -> Cell {
    match review {
        Review::Open => Cell::toned("open", Tone::Bad),
        Review::DiscardRequested(_) => Cell::toned("discard_requested", Tone::Busy),
        Review::Replayed { .. } => Cell::toned("replayed", Tone::Good),
        Review::Discarded { .. } => Cell::toned("discarded", Tone::Faint),
    }
}

fn letter_table(letters: &[Entry]) -> String {
    let mut table = Table::new(&["ID", "TYPE", "FAILED AT", "CODE", "RETRIES", "TENANT", "DECISION", "ERROR"]);
    for Entry { letter, review, .. } in letters {
        table.row([
            (&letter.id).into(),
            (&letter.task_type).into(),
            letter.failed_at.into(),
            (&letter.error_code).into(),
            letter.retry_count.into(),
            letter.tenant_id.as_ref().map_or("-", |tenant| tenant.as_str()).into(),
            decision(review),
            gist(&letter.error, 80).into(),
        ]);
    }
    table.shown()
}

async fn show(args: ShowArgs) -> Result<(), CliError> {
    let desk = args.desk.open().await?;
    let id = desk.named(&args.id).await?;
    let Some(entry) = desk.letters.show(&id).await? else {
        return Err(unknown(&id, &desk));
    };
    args.desk.output.one(&entry, || facts(&entry))
}

fn unknown(id: &DeadLetterId, desk: &Desk) -> CliError {
    CliError::not_found(format!(
        "queue {} has no dead letter {id}: see `windlass dlq list -q {} --all --decision any`; what is older than the \
         queue's retention is gone",
        desk.queue.name, desk.queue.name
    ))
}

fn facts(entry: &Entry) -> String {
    const LONGEST: usize = 2000;
    let letter = &entry.letter;
    let labels: Vec<String> = letter.extras.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let mut facts = Facts::default();
    facts.add("ID", &letter.id);
    facts.add("Task", &letter.id.task);
    facts.add("Type", &letter.task_type);
    facts.add("Decision", decision(&entry.review));
    for (name, value) in voices(&entry.review) {
        facts.add(name, value);
    }
    facts.add("Error code", &letter.error_code);
    facts.add("Error", shortened(&letter.error, LONGEST));
    facts.add("Fingerprint", &entry.fingerprint);
    facts.add("Retries", letter.retry_count);
    facts.add("Crashes", letter.crash_count);
    facts.add("Releases", letter.release_count);
    facts.add("Priority", letter.priority);
    facts.maybe("Idempotency key", letter.idempotency_key.as_ref());
    facts.maybe("Tenant", letter.tenant_id.as_ref());
    facts.maybe("Trace", letter.trace_id.as_ref());
    facts.maybe("Parent", letter.extras.parent_id.as_ref());
    facts.maybe("Replay of", letter.extras.replay_of.as_ref());
    facts.maybe("Labels", (!labels.is_empty()).then(|| labels.join(", ")));
    facts.add("Created", letter.created_at);
    facts.add("Failed", letter.failed_at);
    facts.add("Recorded", entry.recorded_at);
    facts.add("Payload", shortened(letter.payload.as_str(), LONGEST));
    let mut attempts = Table::new(&["ATTEMPT", "ENDED", "OUTCOME", "CODE", "WORKER", "ERROR"]);
    for attempt in &letter.history {
        let ended = i64::try_from(attempt.at_ms).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
        attempts.row([
            attempt.epoch.into(),
            ended.map_or_else(|| "-".to_owned(), |time| time.to_string()).into(),
            (&attempt.outcome).into(),
            (&attempt.code).into(),
            (&attempt.worker).into(),
            gist(&attempt.error, 120).into(),
        ]);
    }
    format!("{}\n{}", facts.shown(), attempts.shown())
}

fn voices(review: &Review) -> Vec<(&'static str, String)> {
    let said = |Voice { person, reason, at }: &Voice| {
        let reason = reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
        format!("{person}, {at}{reason}")
    };
    match review {
        Review::Open => Vec::new(),
        Review::DiscardRequested(voice) => vec![("Discard asked by", said(voice))],
        Review::Replayed { task, by } => vec![("Replayed as", task.to_string()), ("Replayed by", said(by))],
        Review::Discarded { by, requested } => {
            let asked = requested.as_ref().map(|voice| ("Discard asked by", said(voice)));
            asked.into_iter().chain([("Discarded by", said(by))]).collect()
        }
    }
}
