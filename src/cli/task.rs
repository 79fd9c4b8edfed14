//! `windlass task`: enqueue, see, cancel, await and explain tasks.

mod enqueue;
pub(super) mod input;
pub(super) mod view;

use std::time::Duration;

use clap::Subcommand;
use serde::Serialize;

use super::connection::{FoundQueue, QueueArgs};
use super::error::CliError;
use super::explain::{Situation, explain};
use super::output::{Cell, OutputArgs, Table, gist};
use super::units::{parse_duration, parse_label, since, spoken};
use crate::broker::{Broker, Cancelled, ListCursor, QueueCounts};
use crate::producer::Producer;
use crate::protocol::names::{TaskId, TaskType, TenantId};
use crate::protocol::state::{State, TRANSITION_INVALID};
use crate::protocol::task::TaskView;
use view::TaskOut;

/// How many tasks one look of a listing passes over.
const PAGE: usize = 1000;

/// Arguments of `windlass task`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Put tasks into a queue.
    Enqueue(Box<enqueue::Args>),
    /// Show all that is known of a task.
    #[command(after_help = "Examples:\n  \
        windlass task get 0193a5c2-… -q shop/emails\n  \
        windlass task get 0193a5c2-… -q shop/emails -o json | jq .state")]
    Get(OneArgs),
    /// List tasks, the unfinished ones first.
    #[command(after_help = "Examples:\n  \
        windlass task list -q shop/emails\n  \
        windlass task list -q shop/emails --state running,retrying\n  \
        windlass task list -q shop/emails --type send --label order=17 -o json")]
    List(ListArgs),
    /// End tasks that are not needed any more.
    #[command(after_help = "Examples:\n  \
        windlass task cancel 0193a5c2-… -q shop/emails --reason 'order was withdrawn'")]
    Cancel(CancelArgs),
    /// Wait until a task is final: status 0 if it succeeded, 1 if not.
    #[command(after_help = "Examples:\n  \
        windlass task wait 0193a5c2-… -q shop/emails --timeout 30s\n  \
        windlass task wait 0193a5c2-… -q shop/emails -o json | jq .result")]
    Wait(WaitArgs),
    /// Say why a task is where it is, and what would move it.
    #[command(after_help = "Examples:\n  \
        windlass task explain 0193a5c2-… -q shop/emails")]
    Explain(OneArgs),
}

#[derive(Debug, clap::Args)]
struct OneArgs {
    /// The task.
    #[arg(value_name = "ID")]
    id: TaskId,
    #[command(flatten)]
    queue: QueueArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, clap::Args)]
struct ListArgs {
    /// Only tasks in these states.
    #[arg(long, value_name = "STATE", value_delimiter = ',')]
    state: Vec<State>,
    /// Only tasks of this type.
    #[arg(long = "type", value_name = "TYPE")]
    task_type: Option<TaskType>,
    /// Only tasks of this tenant.
    #[arg(long, value_name = "TENANT")]
    tenant: Option<TenantId>,
    /// Only tasks with this label; several must all be there.
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_label)]
    label: Vec<(String, String)>,
    /// How many at most.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..), value_name = "N")]
    limit: u32,
    #[command(flatten)]
    queue: QueueArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, clap::Args)]
struct CancelArgs {
    /// The tasks.
    #[arg(value_name = "ID", required = true)]
    ids: Vec<TaskId>,
    /// Why; the task keeps it.
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    #[command(flatten)]
    queue: QueueArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, clap::Args)]
struct WaitArgs {
    /// The task.
    #[arg(value_name = "ID")]
    id: TaskId,
    /// How long to wait; without it, until the task is final.
    #[arg(long, value_parser = parse_duration, value_name = "DURATION")]
    timeout: Option<Duration>,
    #[command(flatten)]
    queue: QueueArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Runs `windlass task`.
pub(super) async fn run(args: Args) -> Result<(), CliError> {
    match args.command {
        Command::Enqueue(args) => enqueue::run(*args).await,
        Command::Get(args) => get(args).await,
        Command::List(args) => list(args).await,
        Command::Cancel(args) => cancel(args).await,
        Command::Wait(args) => wait(args).await,
        Command::Explain(args) => explain_one(args).await,
    }
}

/// What to say of a task that nobody knows.
fn unknown(id: &TaskId, queue: &FoundQueue) -> CliError {
    CliError::not_found(format!(
        "queue {} knows no task {id}: check the id and the queue; a finished task is forgotten after its retention",
        queue.name
    ))
}

async fn known(queue: &FoundQueue, id: &TaskId) -> Result<TaskView, CliError> {
    queue.broker.get(id).await?.ok_or_else(|| unknown(id, queue))
}

async fn get(args: OneArgs) -> Result<(), CliError> {
    let queue = args.queue.find().await?;
    let task = known(&queue, &args.id).await?;
    let shown = TaskOut::new(&queue.name, &task);
    args.output.one(&shown, || view::facts(&shown))
}

async fn list(args: ListArgs) -> Result<(), CliError> {
    let queue = args.queue.find().await?;
    let counts = queue.broker.counts().await?;
    let states: Vec<State> = if args.state.is_empty() { State::ALL.to_vec() } else { args.state.clone() };
    let wanted = |task: &TaskView| {
        args.task_type.as_ref().is_none_or(|wanted| task.task_type == *wanted)
            && args.tenant.as_ref().is_none_or(|wanted| task.tenant_id.as_ref() == Some(wanted))
            && args.label.iter().all(|(key, value)| task.extras.labels.get(key) == Some(value))
    };
    let everything = args.task_type.is_none() && args.tenant.is_none() && args.label.is_empty();
    let limit = args.limit as usize;
    let mut tasks = Vec::new();
    // One walk a state: a state that nothing is in is not looked for.
    for state in states.into_iter().filter(|state| may_hold(&counts, *state)) {
        let (begin, mut cursor) = (tasks.len(), Some(ListCursor::default()));
        while let Some(from) = cursor.filter(|_| tasks.len() < limit) {
            // Where nearly all are wanted, no more are looked at than will be shown.
            let most = if everything && state == State::Queued { limit - tasks.len() } else { PAGE };
            let page = queue.broker.list(state, from, most).await?;
            tasks.extend(page.items.into_iter().filter(wanted));
            cursor = page.next;
        }
        if !state.is_final() {
            tasks[begin..].sort_by(|a, b| (a.created_at, &a.id).cmp(&(b.created_at, &b.id)));
        }
    }
    tasks.truncate(limit);
    let shown: Vec<_> = tasks.iter().map(|task| TaskOut::new(&queue.name, task)).collect();
    args.output.one(&shown, || table(&tasks, &counts))
}

/// Whether any task can be in a state, by the queue's numbers.
fn may_hold(counts: &QueueCounts, state: State) -> bool {
    match state {
        State::Scheduled => counts.delayed > 0,
        State::Blocked => counts.blocked > 0,
        State::WaitingApproval => counts.waiting_approval > 0,
        State::Queued => counts.backlog > 0,
        State::Running => counts.running > 0,
        State::Retrying => counts.retrying + counts.backlog > 0,
        State::DlqPending => counts.dlq_pending > 0,
        // Passed through inside one step.
        State::DlqRecorded => false,
        State::Succeeded | State::Failed | State::Cancelled => counts.finished > 0,
    }
}

fn table(tasks: &[TaskView], counts: &QueueCounts) -> String {
    if tasks.is_empty() {
        return "No tasks found.\n".to_owned();
    }
    let mut table = Table::new(&["ID", "TYPE", "STATE", "PRIORITY", "ATTEMPT", "AGE", "WORKER", "ERROR"]);
    for task in tasks {
        table.row([
            (&task.id).into(),
            (&task.task_type).into(),
            Cell::state(task.state),
            task.priority.into(),
            view::attempt(task).into(),
            spoken(since(counts.sampled_at, task.created_at)).into(),
            task.worker.as_ref().map_or("-", |worker| worker.as_str()).into(),
            gist(task.error.as_deref().unwrap_or("-"), 60).into(),
        ]);
    }
    table.shown()
}

/// What became of one task of a cancel.
#[derive(Serialize)]
struct CancelOut<'a> {
    id: &'a TaskId,
    queue: String,
    state: State,
    /// Where it was before.
    from: State,
}

async fn cancel(args: CancelArgs) -> Result<(), CliError> {
    let queue = args.queue.find().await?;
    let reason = args.reason.clone().unwrap_or_else(|| format!("cancelled by {}", super::person()));
    let mut problem: Option<CliError> = None;
    for id in &args.ids {
        match queue.broker.cancel(id, &reason).await? {
            Cancelled::Done { from } => {
                let shown = CancelOut { id, queue: queue.name.to_string(), state: State::Cancelled, from };
                args.output.line(&shown, || format!("task {id} is cancelled (it was {from})\n"))?;
            }
            Cancelled::AlreadyCancelled => {
                let from = State::Cancelled;
                let shown = CancelOut { id, queue: queue.name.to_string(), state: from, from };
                args.output.line(&shown, || format!("task {id} was cancelled before\n"))?;
            }
            Cancelled::InvalidTransition { state } => {
                let end = if state.is_final() { "is over" } else { "has failed for good" };
                let sentence = format!(
                    "task {id} is {state} and can no longer be cancelled, because it {end} ({TRANSITION_INVALID})"
                );
                problem.get_or_insert(CliError::conflict(sentence));
            }
            Cancelled::Unknown => drop(problem.get_or_insert(unknown(id, &queue))),
        }
    }
    problem.map_or(Ok(()), Err)
}

async fn wait(args: WaitArgs) -> Result<(), CliError> {
    // As good as for ever, and still a time that can be added to now.
    const LONGEST: Duration = Duration::from_secs(10 * 365 * 86400);
    let queue = args.queue.find().await?;
    known(&queue, &args.id).await?;
    let producer = Producer::new(queue.broker.clone()).with_patience(args.queue.redis.connect_timeout);
    let limit = args.timeout.unwrap_or(LONGEST).min(LONGEST);
    let Some(task) = producer.wait(&args.id, limit).await? else {
        let state = known(&queue, &args.id).await?.state;
        return Err(CliError::failed(format!(
            "task {} is still {state} after {}: raise --timeout, or ask `windlass task explain {} -q {}`",
            args.id,
            spoken(limit),
            args.id,
            queue.name
        )));
    };
    let shown = TaskOut::new(&queue.name, &task);
    args.output.one(&shown, || view::facts(&shown))?;
    if task.state == State::Succeeded {
        return Ok(());
    }
    let why = task.error.as_deref().map(|error| format!(": {}", gist(error, 300))).unwrap_or_default();
    Err(CliError::failed(format!("task {} has {}{why}", args.id, ended(task.state))))
}

fn ended(state: State) -> &'static str {
    match state {
        State::Cancelled => "been cancelled",
        State::Failed => "failed",
        _ => "ended otherwise",
    }
}

/// Why a task is where it is.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ExplainOut<'a> {
    id: &'a TaskId,
    queue: String,
    state: State,
    why: &'a str,
    next: &'a str,
}

async fn explain_one(args: OneArgs) -> Result<(), CliError> {
    let queue = args.queue.find().await?;
    let task = known(&queue, &args.id).await?;
    let (policy, counts, workers) = (queue.broker.policy(), queue.broker.counts(), queue.broker.workers());
    let (policy, counts, workers) = tokio::try_join!(policy, counts, workers)?;
    let review = match task.dlq_id.as_deref().and_then(|id| id.parse().ok()) {
        Some(letter) => queue.broker.dead_letter(&letter).await?.map(|letter| letter.review),
        None => None,
    };
    let situation = Situation {
        queue: &queue.name,
        task: &task,
        policy: &policy,
        counts: &counts,
        workers: &workers,
        review: review.as_ref(),
    };
    let found = explain(&situation);
    let queue = queue.name.to_string();
    let shown = ExplainOut { id: &task.id, queue, state: task.state, why: &found.why, next: &found.next };
    args.output.one(&shown, || format!("Task {} {}: {}.\n", task.id, found.why, found.next))
}
