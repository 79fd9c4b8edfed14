//! `windlass task enqueue`.
//!
//! Tasks go in steps of up to [`MAX_BATCH`]; each step is taken whole or not at
//! all. A batch in a file is checked to its end before its first step; one on
//! standard input is checked a step at a time, because it may never end.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::sync::mpsc;

use super::input::{self, Numbered, Origin};
use crate::broker::{Broker, Enqueued, MAX_BATCH};
use crate::cli::connection::QueueArgs;
use crate::cli::error::CliError;
use crate::cli::output::{Format, OutputArgs, print};
use crate::cli::progress::Progress;
use crate::cli::units::{parse_duration, parse_label, parse_time};
use crate::producer::Producer;
use crate::protocol::names::{IdempotencyKey, QueueName, TaskId, TaskType, TenantId, TraceId};
use crate::protocol::policy::{IdempotencyRequirement, IdempotencySource, Policy};
use crate::protocol::state::State;
use crate::protocol::task::{NewTask, NotBefore, Payload};

/// How long a step waits for more lines before it goes with those that came.
const IDLE: Duration = Duration::from_millis(50);

/// With more tasks than this, a table shows only their number.
const MOST_ROWS: u64 = 20;

/// Arguments of `windlass task enqueue`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    windlass task enqueue -q shop/emails --type send --payload '{\"to\":\"ada@example.com\"}'\n  \
    windlass task enqueue -q shop/emails --type send --payload @mail.json --delay 5m\n  \
    windlass task enqueue -q shop/emails --type send --payload @mail.json --idempotency-key order-17\n  \
    generate | windlass task enqueue -q shop/emails --type send --batch -\n\n\
    A batch has one object a line, with any of: id, type, payload, priority, delay, at, idempotencyKey, tenantId, \
    traceId, labels, parentId, maxRetries, timeout. What a line leaves out is taken from the options.\n\n\
    Tasks go in steps of 100, each taken whole or not at all. A file is checked to its end first, so a wrong line \
    enqueues nothing; of standard input the steps before a wrong line stay. Give lines an idempotencyKey (or an id) \
    and a batch can be sent again without doubling what was taken.\n\n\
    Standard input is bounded in size (the queue's payload limit) and not in time; only a payload of which nothing at \
    all comes for a minute is given up.")]
pub(super) struct Args {
    /// What kind of work it is.
    #[arg(long = "type", value_name = "TYPE", required_unless_present = "batch")]
    task_type: Option<TaskType>,
    /// The work itself: JSON, @FILE, or - for standard input.
    #[arg(long, value_name = "JSON|@FILE|-", required_unless_present = "batch", allow_hyphen_values = true)]
    payload: Option<String>,
    /// Enqueue many: a file with a JSON object a line, or - for standard input.
    #[arg(long, value_name = "FILE|-", conflicts_with_all = ["count", "idempotency_key"], allow_hyphen_values = true)]
    batch: Option<String>,
    /// Enqueue the task so many times.
    #[arg(short = 'n', long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..), value_name = "COUNT")]
    count: u64,
    /// Its urgency; the queue's default if not given.
    #[arg(long, value_name = "N")]
    priority: Option<u8>,
    /// How long it should wait first.
    #[arg(long, value_parser = parse_duration, value_name = "DURATION", conflicts_with = "at")]
    delay: Option<Duration>,
    /// When it may first run, in RFC 3339.
    #[arg(long, value_parser = parse_time, value_name = "TIME")]
    at: Option<Timestamp>,
    /// Your name for this piece of work: a second task with it is not made.
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<IdempotencyKey>,
    /// On whose behalf it runs.
    #[arg(long, value_name = "TENANT")]
    tenant: Option<TenantId>,
    /// Follows it to its handler.
    #[arg(long, value_name = "TRACE")]
    trace_id: Option<TraceId>,
    /// A word to find it by.
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_label)]
    label: Vec<(String, String)>,
    /// The task that it belongs to.
    #[arg(long, value_name = "ID")]
    parent: Option<TaskId>,
    /// Its own retry limit instead of the queue's.
    #[arg(long, value_name = "N")]
    max_retries: Option<u32>,
    /// How long one attempt may take.
    #[arg(long, value_parser = parse_duration, value_name = "DURATION")]
    timeout: Option<Duration>,
    #[command(flatten)]
    queue: QueueArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// One task as it is printed: these names are relied on.
#[derive(Serialize)]
struct Out<'a> {
    id: &'a TaskId,
    queue: &'a str,
    state: State,
    created: bool,
}

/// A line of a batch.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Line {
    id: Option<TaskId>,
    #[serde(rename = "type")]
    task_type: Option<TaskType>,
    payload: Option<Box<RawValue>>,
    priority: Option<u8>,
    delay: Option<String>,
    at: Option<String>,
    idempotency_key: Option<IdempotencyKey>,
    tenant_id: Option<TenantId>,
    trace_id: Option<TraceId>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    parent_id: Option<TaskId>,
    max_retries: Option<u32>,
    timeout: Option<String>,
}

/// Tasks that go together, and the lines that they came from.
#[derive(Default)]
struct Step {
    tasks: Vec<NewTask>,
    lines: Option<(u64, u64)>,
}

/// Runs the command.
pub(super) async fn run(args: Args) -> Result<(), CliError> {
    let queue = args.queue.find().await?;
    let policy = queue.broker.policy().await?;
    let payload = match &args.payload {
        Some(word) => Some(input::payload(word, policy.limits.payload_bytes).await?),
        None => None,
    };
    let template = template(&args, payload);
    let mut taker = Taker {
        producer: Producer::new(queue.broker.clone()).with_patience(args.queue.redis.connect_timeout),
        queue: queue.name.clone(),
        output: args.output,
        many: false,
        shown: 0,
        created: 0,
        taken: 0,
        progress: None,
    };
    match &args.batch {
        Some(word) => batch(&Origin::of(word), &template, &policy, &mut taker).await?,
        None => repeat(&template, &policy, args.count, &mut taker).await?,
    }
    taker.summary()
}

/// The task that the options describe.
fn template(args: &Args, payload: Option<Payload>) -> NewTask {
    let mut task = NewTask::new(args.task_type.clone().unwrap_or_default(), payload.unwrap_or_default());
    task.priority = args.priority;
    task.not_before = match (args.delay, args.at) {
        (Some(delay), _) => NotBefore::After(delay),
        (None, Some(at)) => NotBefore::At(at),
        (None, None) => NotBefore::Now,
    };
    task.idempotency_key = args.idempotency_key.clone();
    task.tenant_id = args.tenant.clone();
    task.trace_id = args.trace_id.clone();
    task.max_retries = args.max_retries;
    task.extras.labels = args.label.iter().cloned().collect();
    task.extras.parent_id = args.parent.clone();
    task.extras.timeout_ms = args.timeout.map(|timeout| timeout.as_millis() as u64);
    task
}

async fn repeat(template: &NewTask, policy: &Policy, count: u64, taker: &mut Taker) -> Result<(), CliError> {
    check(template, policy).map_err(CliError::usage)?;
    taker.expect(Some(count));
    let mut left = count;
    while left > 0 {
        let size = left.min(MAX_BATCH as u64);
        let tasks = (0..size).map(|_| NewTask { id: TaskId::generate(), ..template.clone() }).collect();
        taker.take(Step { tasks, lines: None }).await.map_err(|error| taker.after(error))?;
        left -= size;
    }
    Ok(())
}

async fn batch(origin: &Origin, template: &NewTask, policy: &Policy, taker: &mut Taker) -> Result<(), CliError> {
    let limit = policy.limits.payload_bytes;
    let mut total = None;
    if let Origin::File(path) = origin {
        let mut checked = input::lines(origin, limit)?;
        let mut count = 0;
        while let Some(line) = checked.recv().await {
            let wrong = |error: CliError| error.more(format!("nothing of {path} was enqueued"));
            line.and_then(|line| read(line, template, policy)).map_err(wrong)?;
            count += 1;
        }
        total = Some(count);
    }
    taker.expect(total);
    let mut lines = input::lines(origin, limit)?;
    while let Some(step) = next_step(&mut lines, template, policy).await.map_err(|error| taker.after(error))? {
        taker.take(step).await.map_err(|error| taker.after(error))?;
    }
    Ok(())
}

/// The tasks of the next lines: as many as go together, or those that are there.
async fn next_step(
    lines: &mut mpsc::Receiver<Result<Numbered, CliError>>,
    template: &NewTask,
    policy: &Policy,
) -> Result<Option<Step>, CliError> {
    let Some(first) = lines.recv().await else { return Ok(None) };
    let mut step = Step::default();
    let mut next = Some(first);
    while let Some(line) = next {
        let (number, text) = line?;
        step.tasks.push(read((number, text), template, policy)?);
        step.lines = Some((step.lines.map_or(number, |(from, _)| from), number));
        if step.tasks.len() == MAX_BATCH {
            break;
        }
        next = tokio::time::timeout(IDLE, lines.recv()).await.ok().flatten();
    }
    Ok(Some(step))
}

/// A line as a task; an error names the line.
fn read((number, text): Numbered, template: &NewTask, policy: &Policy) -> Result<NewTask, CliError> {
    let wrong = |what: String| CliError::usage(format!("line {number}: {what}"));
    if !text.trim_start().starts_with('{') {
        return Err(wrong("a batch has a JSON object a line, like {\"type\":\"send\",\"payload\":{}}".to_owned()));
    }
    let line: Line = serde_json::from_str(&text).map_err(|error| wrong(column_only(&error)))?;
    let task = task_of(line, template).map_err(wrong)?;
    check(&task, policy).map_err(wrong)?;
    Ok(task)
}

/// What the parser says: its line is always the first, only the column tells.
fn column_only(error: &serde_json::Error) -> String {
    error.to_string().replace(" at line 1 column", " at column")
}

fn task_of(line: Line, template: &NewTask) -> Result<NewTask, String> {
    let mut task = NewTask { id: line.id.unwrap_or_else(TaskId::generate), ..template.clone() };
    task.task_type = line.task_type.unwrap_or(task.task_type);
    if let Some(payload) = line.payload {
        task.payload = Payload::from_json(payload.get()).map_err(|error| error.to_string())?;
    }
    task.priority = line.priority.or(task.priority);
    task.not_before = match (line.delay, line.at) {
        (Some(_), Some(_)) => return Err("it has both delay and at: give one of them".to_owned()),
        (Some(delay), None) => NotBefore::After(parse_duration(&delay)?),
        (None, Some(at)) => NotBefore::At(parse_time(&at)?),
        (None, None) => task.not_before,
    };
    task.idempotency_key = line.idempotency_key;
    task.tenant_id = line.tenant_id.or(task.tenant_id);
    task.trace_id = line.trace_id.or(task.trace_id);
    task.max_retries = line.max_retries.or(task.max_retries);
    task.extras.labels.extend(line.labels);
    task.extras.parent_id = line.parent_id.or(task.extras.parent_id);
    if let Some(timeout) = line.timeout {
        task.extras.timeout_ms = Some(parse_duration(&timeout)?.as_millis() as u64);
    }
    Ok(task)
}

/// What the queue would refuse, found before it is asked: only here the line is known.
fn check(task: &NewTask, policy: &Policy) -> Result<(), String> {
    let (bytes, most) = (task.payload.as_str().len() as u64, policy.limits.payload_bytes);
    if bytes > most {
        return Err(format!(
            "the payload has {bytes} bytes and this queue takes at most {most}: store it elsewhere and send a reference, \
             or raise the queue's limit"
        ));
    }
    let priorities = &policy.priority;
    if let Some(given) = task.priority.filter(|given| !(priorities.min..=priorities.max).contains(given)) {
        let (min, max) = (priorities.min, priorities.max);
        return Err(format!("priority {given} is out of range: use {min} to {max}, or none for the queue's default"));
    }
    let idempotency = &policy.idempotency;
    let needs_key =
        idempotency.requirement == IdempotencyRequirement::Required && idempotency.source == IdempotencySource::Key;
    if needs_key && task.idempotency_key.is_none() {
        return Err("this queue requires an idempotency key: give each piece of work a key of its own".to_owned());
    }
    task.extras.validate().map_err(|error| error.to_string())
}

/// Puts steps into the queue and prints what became of them.
struct Taker {
    producer: Producer,
    queue: QueueName,
    output: OutputArgs,
    /// Whether there are too many for a table.
    many: bool,
    shown: u64,
    created: u64,
    taken: u64,
    progress: Option<Progress>,
}

impl Taker {
    fn expect(&mut self, total: Option<u64>) {
        self.many = total.is_none_or(|total| total > MOST_ROWS);
        self.progress = self.many.then(|| Progress::new(total, "tasks enqueued"));
    }

    async fn take(&mut self, step: Step) -> Result<(), CliError> {
        let named = |error: CliError| match step.lines {
            Some((from, to)) if from < to => error.more(format!("this was said of lines {from} to {to}")),
            Some((line, _)) => error.more(format!("this was said of line {line}")),
            None => error,
        };
        let enqueued = self.producer.enqueue_all(&step.tasks).await.map_err(|error| named(error.into()))?;
        self.taken += enqueued.len() as u64;
        self.created += enqueued.iter().filter(|task| task.created).count() as u64;
        let text = enqueued.iter().map(|task| self.row(task)).collect::<Result<String, CliError>>()?;
        match &mut self.progress {
            Some(progress) => {
                if !text.is_empty() {
                    progress.aside(|| print(&text))?;
                }
                progress.at(self.taken);
            }
            None => print(&text)?,
        }
        Ok(())
    }

    fn row(&mut self, task: &Enqueued) -> Result<String, CliError> {
        let queue = self.queue.to_string();
        let shown = Out { id: &task.id, queue: &queue, state: task.state, created: task.created };
        let written = match self.output.format {
            Format::Table if self.many => return Ok(String::new()),
            Format::Table => {
                let head = format!("{:<36}   {:<9}   CREATED\n", "ID", "STATE");
                let head = if self.shown == 0 { head } else { String::new() };
                format!("{head}{:<36}   {:<9}   {}\n", task.id.as_str(), task.state.as_str(), task.created)
            }
            Format::Json => serde_json::to_string(&shown).expect("invariant: words have a JSON form") + "\n",
            Format::Yaml => {
                let text = serde_yaml::to_string(&shown);
                let text = text.map_err(|error| CliError::failed(format!("no YAML for this: {error}")))?;
                if self.shown == 0 { text } else { format!("---\n{text}") }
            }
        };
        self.shown += 1;
        Ok(written)
    }

    /// An error, and what was done before it.
    fn after(&self, error: CliError) -> CliError {
        match self.taken {
            0 => error.more("nothing was enqueued"),
            taken => error.more(format!("{taken} tasks before that were enqueued and stay")),
        }
    }

    fn summary(&mut self) -> Result<(), CliError> {
        self.progress = None;
        if !self.many || self.output.format != Format::Table {
            return Ok(());
        }
        let known = self.taken - self.created;
        let known = if known > 0 { format!("; {known} were known before") } else { String::new() };
        print(&format!("{} tasks enqueued into {}{known}\n", self.created, self.queue))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> Result<NewTask, CliError> {
        let mut template = NewTask::new("send".parse().expect("valid"), Payload::default());
        template.priority = Some(7);
        read((3, text.to_owned()), &template, &Policy::default())
    }

    #[test]
    fn a_line_overrides_the_options_and_keeps_its_payload_as_it_is() {
        let task = line(r#"{"type":"render","payload":{"n":1.00},"delay":"5s","labels":{"a":"b"},"maxRetries":2}"#);
        let task = task.expect("a good line");
        assert_eq!((task.task_type.as_str(), task.payload.as_str()), ("render", r#"{"n":1.00}"#));
        assert_eq!(task.not_before, NotBefore::After(Duration::from_secs(5)));
        assert_eq!((task.priority, task.max_retries), (Some(7), Some(2)));
        assert_ne!(line("{}").expect("all by options").id, line("{}").expect("all by options").id);
    }

    #[test]
    fn a_wrong_line_is_named_with_what_is_wrong() {
        for (bad, said) in [
            ("[1]", "line 3: a batch has a JSON object a line"),
            ("{\"type\":", "line 3: EOF while parsing a value at column 8"),
            (r#"{"typ":"x"}"#, "line 3: unknown field `typ`"),
            (r#"{"priority":99}"#, "line 3: priority 99 is out of range: use 1 to 10"),
            (r#"{"delay":"soon"}"#, "line 3: \"soon\" is no duration"),
            (r#"{"delay":"1s","at":"2026-01-01T00:00:00Z"}"#, "line 3: it has both delay and at"),
            (r#"{"type":"a b"}"#, "line 3: task type \"a b\" is not allowed"),
        ] {
            let error = line(bad).expect_err(bad).to_string();
            assert!(error.starts_with(said), "{error:?} does not begin with {said:?}");
        }
    }
}
