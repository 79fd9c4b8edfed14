//! `windlass events`: what happened, from the event log.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use jiff::Timestamp;

use super::connection::{EventLogArgs, QueueArgs};
use super::error::{CliError, Kind};
use super::output::{Cell, Format, OutputArgs, Table, print, shortened};
use super::units::{Moment, parse_moment};
use crate::broker::{Broker, ErrorClass, ListCursor};
use crate::event_log::{EventFilter, EventLog, EventLogError, RecordedEvent};
use crate::protocol::names::{IdempotencyKey, TaskId, TaskType, TenantId, TraceId};
use crate::protocol::policy::EventRecording;

/// How often new events are looked for.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How far back a look goes: events come into the log a little after they happened, and not in order.
const LATE: Duration = Duration::from_secs(30);

/// How many events are remembered as shown.
const REMEMBERED: usize = 100_000;

/// Arguments of `windlass events`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    windlass events -q shop/emails --event-log sqlite:///var/lib/windlass/events.db\n  \
    windlass events -q shop/emails --task 0193a5c2-…\n  \
    windlass events -q shop/emails -f --type task.dlq --type task.failed -o json\n\n\
    Kinds of events: task.created, .promoted, .claimed, .reclaimed, .retrying, .succeeded, .dlq_pending, .dlq, \
    .failed, .cancelled, approval.requested, .approved, .rejected, dlq.replayed, .discard_requested, .discarded, \
    effect.done (an outside effect; its key is shown as the detail).")]
pub struct Args {
    /// Go on with what happens next, until Ctrl-C.
    #[arg(short = 'f', long)]
    follow: bool,
    /// Everything that happened to this task.
    #[arg(long, value_name = "ID")]
    task: Option<TaskId>,
    /// Only events of this kind, like task.dlq; may be given several times.
    #[arg(long = "type", value_name = "EVENT")]
    event_type: Vec<String>,
    /// Only events of tasks of this type.
    #[arg(long, value_name = "TYPE")]
    task_type: Option<TaskType>,
    /// Only events of this tenant's tasks.
    #[arg(long, value_name = "TENANT")]
    tenant: Option<TenantId>,
    /// Only events of this trace.
    #[arg(long, value_name = "TRACE")]
    trace_id: Option<TraceId>,
    /// Since when: a time in RFC 3339, or how long ago.
    #[arg(long, value_parser = parse_moment, default_value = "1h", value_name = "TIME|AGO")]
    since: Moment,
    /// Until when.
    #[arg(long, value_parser = parse_moment, value_name = "TIME|AGO", conflicts_with = "follow")]
    until: Option<Moment>,
    /// How many at most, the last ones.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..), value_name = "N")]
    limit: u32,
    #[command(flatten)]
    queue: QueueArgs,
    #[command(flatten)]
    event_log: EventLogArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Runs `windlass events`.
pub(super) async fn run(args: Args) -> Result<(), CliError> {
    let Some(log) = args.event_log.open()? else {
        return Err(no_log(&args.queue).await);
    };
    let mut shown = Shown::default();
    let first = args.read(&log, args.since.timestamp()).await?;
    for event in &first {
        shown.is_new(event);
    }
    if !args.follow {
        let nothing = || "No events found; --since says how far back to look.\n".to_owned();
        return args.output.one(&first, || if first.is_empty() { nothing() } else { table(&first) });
    }
    print_lines(&first, args.output, true)?;
    let follow = args.follow(&log, shown);
    tokio::select! {
        ended = follow => ended,
        stopped = tokio::signal::ctrl_c() => Ok(stopped?),
    }
}

/// What to do without an event log. Whether the queue has one at all is only known if it is reached.
async fn no_log(queue: &QueueArgs) -> CliError {
    let recording = match queue.find().await {
        Ok(found) => found.broker.policy().await.ok().map(|policy| policy.events),
        Err(error) if error.kind() == Kind::NotFound => return error,
        Err(_) => None,
    };
    CliError::usage(match recording {
        Some(EventRecording::Off) => format!(
            "no history of queue {} is being recorded: run it with an event log (`windlass dev` has one, and the \
             operator takes WINDLASS_EVENT_LOG_URL), then give --event-log",
            queue.queue
        ),
        _ => "no event log was named, so there is no history to show: give --event-log or WINDLASS_EVENT_LOG_URL \
              (postgres://… or sqlite://…), the same that the operator or `windlass dev` records to"
            .to_owned(),
    })
}

impl Args {
    fn wants(&self, event: &RecordedEvent) -> bool {
        self.event_type.is_empty() || self.event_type.contains(&event.event_type)
    }

    /// The last events since a time, in their order.
    async fn read(&self, log: &EventLog, since: Timestamp) -> Result<Vec<RecordedEvent>, EventLogError> {
        if let Some(task) = &self.task {
            let all = log.history(&self.queue.queue, task).await?;
            return Ok(all.into_iter().filter(|event| self.wants(event)).collect());
        }
        let filter = EventFilter {
            // The log takes one kind; several are told apart here.
            event_type: (self.event_type.len() == 1).then(|| self.event_type[0].clone()),
            task_type: self.task_type.clone(),
            tenant: self.tenant.clone(),
            trace: self.trace_id.clone(),
            after: Some(since),
            before: self.until.map(Moment::timestamp),
        };
        let (mut last, mut cursor) = (VecDeque::new(), Some(ListCursor::default()));
        while let Some(from) = cursor {
            let page = log.events(&self.queue.queue, &filter, from, crate::event_log::MAX_PAGE).await?;
            last.extend(page.items.into_iter().filter(|event| self.wants(event)));
            let surplus = last.len().saturating_sub(self.limit as usize);
            last.drain(..surplus);
            cursor = page.next;
        }
        Ok(last.into())
    }

    /// Prints what comes, through outages of the log.
    async fn follow(&self, log: &EventLog, mut shown: Shown) -> Result<(), CliError> {
        let mut outage = false;
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let since = Moment::Ago(LATE).timestamp();
            let read = match self.read(log, since).await {
                Err(error) if error.class() == ErrorClass::Transient => {
                    if !outage {
                        super::output::remark(&format!("{error}; waiting for it"));
                    }
                    outage = true;
                    continue;
                }
                read => read?,
            };
            outage = false;
            let new: Vec<_> = read.into_iter().filter(|event| shown.is_new(event)).collect();
            print_lines(&new, self.output, false)?;
        }
    }
}

/// Which events were shown.
#[derive(Default)]
struct Shown {
    keys: HashSet<String>,
    order: VecDeque<String>,
}

impl Shown {
    fn is_new(&mut self, event: &RecordedEvent) -> bool {
        let RecordedEvent { task_id, epoch, event_type, to, idempotency_key, occurred_at, .. } = event;
        let key = format!("{task_id} {epoch} {event_type} {to:?} {idempotency_key:?} {occurred_at}");
        if !self.keys.insert(key.clone()) {
            return false;
        }
        self.order.push_back(key);
        if self.order.len() > REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.keys.remove(&oldest);
        }
        true
    }
}

fn step(event: &RecordedEvent) -> String {
    match (event.from, event.to) {
        (Some(from), Some(to)) => format!("{from} → {to}"),
        (None, Some(to)) => format!("→ {to}"),
        _ => "-".to_owned(),
    }
}

fn cells(event: &RecordedEvent) -> [Cell; 7] {
    let tone = event.to.map_or(super::output::Tone::Plain, super::output::Tone::of);
    let effect = event.idempotency_key.as_ref().map(IdempotencyKey::as_str);
    [
        event.occurred_at.into(),
        Cell::toned(&event.event_type, tone),
        (&event.task_id).into(),
        (&event.task_type).into(),
        step(event).into(),
        event.consumer.as_deref().unwrap_or("-").into(),
        shortened(event.detail.as_deref().or(effect).unwrap_or("-"), 100).into(),
    ]
}

fn table(events: &[RecordedEvent]) -> String {
    let mut table = Table::new(&["TIME", "EVENT", "TASK", "TYPE", "STEP", "WORKER", "DETAIL"]);
    for event in events {
        table.row(cells(event));
    }
    table.shown()
}

/// Events that come one by one: a line each.
fn print_lines(events: &[RecordedEvent], output: OutputArgs, head: bool) -> Result<(), CliError> {
    if output.format != Format::Table {
        return events.iter().try_for_each(|event| output.line(event, String::new));
    }
    let text = table(events);
    let text = if head { text.as_str() } else { text.split_once('\n').map_or("", |(_, rows)| rows) };
    print(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::names::Epoch;
    use crate::protocol::state::State;

    #[test]
    fn an_event_that_is_read_twice_is_shown_once() {
        let event = |epoch| RecordedEvent {
            event_type: "task.claimed".into(),
            task_id: TaskId::new("t").expect("valid"),
            epoch: Epoch(epoch),
            from: Some(State::Queued),
            to: Some(State::Running),
            task_type: TaskType::default(),
            retry_count: 0,
            tenant_id: None,
            trace_id: None,
            consumer: None,
            message_id: None,
            detail: None,
            idempotency_key: None,
            occurred_at: Timestamp::UNIX_EPOCH,
            recorded_at: Timestamp::UNIX_EPOCH,
        };
        let mut shown = Shown::default();
        assert!(shown.is_new(&event(1)) && shown.is_new(&event(2)) && !shown.is_new(&event(1)));
    }
}
