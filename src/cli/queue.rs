//! `windlass queue`: see, watch, pause and resume queues.

mod watch;

use clap::Subcommand;
use serde::Serialize;

use super::connection::{FoundQueue, QueueArgs, RedisArgs};
use super::error::CliError;
use super::output::{Cell, Facts, OutputArgs, Table, Tone, remark};
use super::units::{since, spoken};
use crate::broker::redis::{QueueRecord, Redis};
use crate::broker::{Broker, BrokerError, Owner, QueueCounts};
use crate::protocol::names::QueueName;
use crate::protocol::policy::{EventRecording, Mode, Policy};

/// Arguments of `windlass queue`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the queues of a Redis, with their numbers.
    #[command(after_help = "Examples:\n  \
        windlass queue list\n  \
        windlass queue list --namespace shop -o json\n\n\
        Queues are found by looking at all keys of the Redis; on a very large one that takes a while.")]
    List(ListArgs),
    /// Show a queue in numbers.
    #[command(after_help = "Examples:\n  \
        windlass queue get -q shop/emails\n  \
        windlass queue get -q shop/emails -o json | jq .backlog")]
    Get(GetArgs),
    /// Show queues live, until Ctrl-C.
    #[command(after_help = "Examples:\n  \
        windlass queue watch\n  \
        windlass queue watch -q shop/emails\n\n\
        Without a terminal it prints a line a queue and second.")]
    Watch(watch::Args),
    /// Give out no more work; what runs goes on, and new tasks are taken.
    #[command(after_help = "Examples:\n  \
        windlass queue pause -q shop/emails\n\n\
        A queue of a cluster is paused in its TaskQueue, which is the only source of its policy. Under \
        `windlass dev` this lasts until the manifest is edited.")]
    Pause(GetArgs),
    /// Give out work again.
    #[command(after_help = "Examples:\n  \
        windlass queue resume -q shop/emails")]
    Resume(GetArgs),
}

#[derive(Debug, clap::Args)]
struct ListArgs {
    /// Only queues of this namespace.
    #[arg(long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    #[command(flatten)]
    redis: RedisArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, clap::Args)]
struct GetArgs {
    #[command(flatten)]
    queue: QueueArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Runs `windlass queue`.
pub(super) async fn run(args: Args) -> Result<(), CliError> {
    match args.command {
        Command::List(args) => list(args).await,
        Command::Get(args) => get(args).await,
        Command::Watch(args) => watch::run(args).await,
        Command::Pause(args) => set_mode(args, Mode::Paused).await,
        Command::Resume(args) => set_mode(args, Mode::Running).await,
    }
}

/// A queue as programs read it: the names of the custom resource's status.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct QueueOut<'a> {
    queue: String,
    mode: Mode,
    #[serde(flatten)]
    counts: &'a QueueCounts,
    /// Whether every move goes to an event log.
    event_recording: EventRecording,
    owner: Option<&'a str>,
    /// What about the server puts the queue at risk.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    problems: Vec<String>,
}

/// A queue, looked at once.
struct Look {
    name: QueueName,
    policy: Policy,
    counts: QueueCounts,
    owner: Option<String>,
}

impl Look {
    async fn at(redis: &Redis, record: QueueRecord) -> Result<Self, BrokerError> {
        let name = record.keys.queue().clone();
        let broker = redis.queue(record.keys)?;
        let (policy, counts) = tokio::try_join!(broker.policy(), broker.counts())?;
        Ok(Self { name, policy, counts, owner: record.owner })
    }

    fn out(&self, problems: Vec<String>) -> QueueOut<'_> {
        QueueOut {
            queue: self.name.to_string(),
            mode: self.policy.mode,
            counts: &self.counts,
            event_recording: self.policy.events,
            owner: self.owner.as_deref(),
            problems,
        }
    }
}

/// The queues of a Redis, or those of one namespace. One that goes while it is looked at is left out.
async fn looks(redis: &Redis, namespace: Option<&str>) -> Result<Vec<Look>, BrokerError> {
    let mut looks = Vec::new();
    for record in redis.queues().await? {
        if namespace.is_none_or(|wanted| record.keys.queue().namespace() == wanted) {
            match Look::at(redis, record).await {
                Ok(look) => looks.push(look),
                Err(BrokerError::NoQueue(_)) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(looks)
}

async fn list(args: ListArgs) -> Result<(), CliError> {
    let redis = args.redis.open()?;
    args.redis.first(redis.reach()).await?;
    let looks = looks(&redis, args.namespace.as_deref()).await?;
    let shown: Vec<_> = looks.iter().map(|look| look.out(Vec::new())).collect();
    args.output.one(&shown, || match looks.is_empty() {
        true => "No queues found.\n".to_owned(),
        false => table(&looks).shown(),
    })
}

fn mode_cell(mode: Mode) -> Cell {
    match mode {
        Mode::Running => Cell::toned("Running", Tone::Good),
        Mode::Paused => Cell::toned("Paused", Tone::Busy),
        Mode::Closed => Cell::toned("Closed", Tone::Bad),
    }
}

fn oldest(counts: &QueueCounts) -> String {
    counts.oldest_task_time.map_or_else(|| "-".to_owned(), |then| spoken(since(counts.sampled_at, then)))
}

fn table(looks: &[Look]) -> Table {
    let mut table = Table::new(&[
        "QUEUE", "MODE", "BACKLOG", "RUNNING", "DELAYED", "RETRYING", "DEAD", "WORKERS", "OLDEST", "FINISHED",
    ]);
    for Look { name, policy, counts, .. } in looks {
        table.row([
            name.into(),
            mode_cell(policy.mode),
            counts.backlog.into(),
            counts.running.into(),
            counts.delayed.into(),
            counts.retrying.into(),
            Cell::alarming(counts.dead_lettered + counts.dlq_pending),
            counts.workers.into(),
            oldest(counts).into(),
            counts.finished.into(),
        ]);
    }
    table
}

async fn get(args: GetArgs) -> Result<(), CliError> {
    let FoundQueue { name, broker, owner } = args.queue.find().await?;
    let (policy, counts) = tokio::try_join!(broker.policy(), broker.counts())?;
    // Not every user may ask the server for its settings; the numbers are worth having without.
    let problems = broker.check_server().await.unwrap_or_default();
    let look = Look { name, policy, counts, owner };
    args.output.one(&look.out(problems.clone()), || facts(&look, &problems))
}

fn facts(look: &Look, problems: &[String]) -> String {
    let Look { name, policy, counts, owner } = look;
    let mut facts = Facts::default();
    facts.add("Queue", name);
    facts.add("Mode", mode_cell(policy.mode));
    facts.add("Backlog", counts.backlog);
    facts.add("Running", counts.running);
    facts.add("Delayed", counts.delayed);
    facts.add("Retrying", counts.retrying);
    facts.add("Blocked", counts.blocked);
    facts.add("Waiting approval", counts.waiting_approval);
    facts.add("Dying", Cell::alarming(counts.dlq_pending));
    facts.add("Dead letters", Cell::alarming(counts.dead_lettered));
    facts.add("Finished", counts.finished);
    facts.maybe("Oldest task", counts.oldest_task_time.map(|then| format!("{then} ({} ago)", oldest(counts))));
    facts.add("Workers", counts.workers);
    facts.add("Outbox", counts.outbox);
    facts.add("Invalid transitions", Cell::alarming(counts.invalid_transitions));
    facts.add("Event recording", if policy.events == EventRecording::On { "On" } else { "Off" });
    facts.maybe("Owner", owner.as_ref());
    for problem in problems {
        facts.add("Problem", Cell::toned(problem, Tone::Bad));
    }
    facts.shown()
}

/// What became of a pause or resume.
#[derive(Serialize)]
struct ModeOut {
    queue: String,
    mode: Mode,
}

async fn set_mode(args: GetArgs, mode: Mode) -> Result<(), CliError> {
    let FoundQueue { name, broker, owner } = args.queue.find().await?;
    if owner.as_deref().is_some_and(Owner::is_kubernetes) {
        let patch = format!(r#"{{"spec":{{"mode":"{mode:?}"}}}}"#);
        return Err(CliError::conflict(format!(
            "queue {name} gets its policy from its TaskQueue, so it is changed there: kubectl -n {} patch taskqueue {} \
             --type merge -p '{patch}'",
            name.namespace(),
            name.name(),
        )));
    }
    let before = broker.policy().await?.mode;
    if before == Mode::Closed && mode == Mode::Paused {
        return Err(CliError::conflict(format!(
            "queue {name} is closed, which is more than paused: resume it first if it should take tasks"
        )));
    }
    broker.change_policy(|policy| policy.mode = mode).await?;
    if owner.as_deref().is_some_and(|owner| owner.starts_with("dev:")) {
        remark("note: `windlass dev` applies the manifest's own mode again when its file is edited");
    }
    args.output.one(&ModeOut { queue: name.to_string(), mode }, || match (before == mode, mode) {
        (true, _) => format!("queue {name} was {mode:?} already\n"),
        (false, Mode::Paused) => format!("queue {name} is paused: what runs goes on, nothing new is given out\n"),
        (false, _) => format!("queue {name} is running\n"),
    })
}
