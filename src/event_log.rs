//! The history of every task in SQL: events, dead letters, decisions, samples.
//!
//! Owns: the tables `event_log`, `dlq_items`, `dlq_reviews` and
//! `task_queue_metrics` on PostgreSQL or SQLite, and every statement on them.
//! Must not know: Redis, Kubernetes, who leads, when to record.
//!
//! Main flow: the recorder reads an entry of the outbox, [`EventLog::record`]s
//! it and trims the outbox behind it; a dead task is written with
//! [`EventLog::record_dead_letter`] before the broker fails it; people read
//! [`EventLog::causes`] and decide, and what they decided comes with the outbox, too.
//!
//! # Exactly once
//!
//! Every write can be repeated. A move is unique by queue, task, time of the task's
//! creation, epoch and state reached; an outbox entry's own id would not do, because
//! a stream id can be issued twice after a failover. These name one move, because a
//! task comes into a state at most once between two claims, and each claim raises the epoch:
//!
//! - before the first claim (epoch 0) it is created in `scheduled`, `blocked`,
//!   `waiting_approval` or `queued`, may come from one of the first three into
//!   `queued`, and from any of them into `dlq_pending` or `cancelled`;
//! - `running` is what raises the epoch;
//! - from `running` it goes into `succeeded`, `retrying`, `waiting_approval`,
//!   `dlq_pending` or `cancelled`. From `retrying` only a claim or an end leads
//!   on (that its delay is over is no move, and tells the outbox nothing); from
//!   `waiting_approval` it may go into `queued` once;
//! - `dlq_pending`, `dlq_recorded` and `failed` follow each other, and nothing
//!   else leads to the latter two.
//!
//! A task id that is used again after its queue has forgotten the first task is a
//! task that was created at another time, with a history of its own; its dead letter
//! takes the place of an older one of the same name, as it does in the queue. A claim
//! that a failover of Redis undid and somebody made again repeats the first one's
//! name: the log keeps what came first.
//!
//! A decision is unique by dead letter, person, action, words and time, all of which
//! the outbox carries. It is written in the transaction of the moves that it made,
//! also where the dead letter itself is not in the log (any more).
//!
//! # Side effects
//!
//! The column `idempotency_key` of `event_log` is empty for moves. A row that tells
//! of an outside effect (`effect.done`) carries its key, and a partial unique index on
//! queue, tenant and key lets in no second one. What keeps an effect from happening
//! twice is the broker, which is asked before it begins and works while this database
//! does not; the log shows that it happened, when, and on whose behalf, for as long as
//! events are kept.

mod causes;
mod database;
mod dead_letters;
mod error;
mod events;
mod metrics;
mod retention;
mod reviews;
mod schema;
mod url;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub use causes::Cause;
pub use dead_letters::{Brief, DeadLetterFilter, RecordedDeadLetter, UnknownVerdict, Verdict};
pub use error::EventLogError;
pub use events::{EventFilter, Progress, RecordedEvent, event_type};
pub use metrics::Sample;
pub use retention::OldEvents;
pub use reviews::RecordedReview;

use crate::broker::ListCursor;
use database::{Database, Row};
use error::Fault;

/// What an operation gives, or why not.
pub type Result<T> = std::result::Result<T, EventLogError>;

/// The most rows that one call reads or deletes.
pub const MAX_PAGE: usize = 1000;

/// How long any call takes at most.
const CALL_LIMIT: Duration = Duration::from_secs(15);

/// The event log of any number of queues, in one database. Clones share its connections.
#[derive(Clone)]
pub struct EventLog {
    shared: Arc<Shared>,
}

struct Shared {
    database: Database,
    /// How the database is called in messages.
    place: String,
    /// Set while the tables are known to be there.
    migrated: AtomicBool,
}

impl fmt::Debug for EventLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventLog").field("place", &self.shared.place).finish_non_exhaustive()
    }
}

impl EventLog {
    /// The event log at that URL (`postgres://…` or `sqlite://…`), without
    /// reaching for it yet: the first call connects and makes the tables. Needs a tokio runtime.
    pub fn open(url: &str) -> Result<Self> {
        let (database, place) = url::parse(url)?;
        Ok(Self { shared: Arc::new(Shared { database, place, migrated: AtomicBool::new(false) }) })
    }

    /// The event log at that URL, connected and with its tables up to date.
    pub async fn connect(url: &str) -> Result<Self> {
        let log = Self::open(url)?;
        log.call("connect", async |_| Ok(())).await?;
        Ok(log)
    }

    /// Runs one operation, bounded in time. What is dropped half way is undone.
    async fn call<T>(
        &self,
        operation: &'static str,
        work: impl AsyncFnOnce(&Database) -> std::result::Result<T, Fault>,
    ) -> Result<T> {
        let Shared { database, place, migrated } = &*self.shared;
        let all = async {
            if !migrated.load(Ordering::Acquire) {
                schema::migrate(database).await?;
                migrated.store(true, Ordering::Release);
            }
            work(database).await
        };
        match tokio::time::timeout(CALL_LIMIT, all).await {
            Ok(answer) => answer.map_err(|fault| {
                // The database was made anew: the next call makes the tables.
                if fault.is_missing_tables() {
                    migrated.store(false, Ordering::Release);
                }
                fault.during(operation, place)
            }),
            Err(_) => Err(EventLogError::TimedOut { place: place.clone(), operation }),
        }
    }
}

/// How many rows a page holds: at least one, at most [`MAX_PAGE`].
fn page_size(limit: usize) -> usize {
    limit.clamp(1, MAX_PAGE)
}

/// A place in an order by two columns.
struct Place<A, B>(A, B);

impl<A: fmt::Display, B: fmt::Display> Place<A, B> {
    fn cursor(&self) -> ListCursor {
        ListCursor(format!("{}/{}", self.0, self.1))
    }
}

/// Where the next page begins, if this one is full: its rows stand in the order of that time, and then of their ids.
fn next_page(rows: &[Row], limit: usize, time: &str) -> std::result::Result<Option<ListCursor>, Fault> {
    match rows.last().filter(|_| rows.len() == limit) {
        Some(row) => Ok(Some(Place(row.time(time)?, row.int("id")?).cursor())),
        None => Ok(None),
    }
}

/// Where a page begins; `None` at the beginning.
fn place_of<A: std::str::FromStr, B: std::str::FromStr>(
    cursor: &ListCursor,
) -> std::result::Result<Option<Place<A, B>>, Fault> {
    if cursor.0.is_empty() {
        return Ok(None);
    }
    let parts = cursor.0.split_once('/').and_then(|(a, b)| Some(Place(a.parse().ok()?, b.parse().ok()?)));
    parts.map(Some).ok_or_else(|| Fault::Invalid("the cursor is not one that this listing gave".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::{ErrorClass, Event, OutboxEntry};
    use crate::protocol::names::{Epoch, QueueName, TaskType};
    use crate::protocol::state::State;

    /// The loops that use the log are spawned.
    #[tokio::test]
    async fn calls_can_be_spawned() {
        fn sendable<T: Send>(_: &T) {}
        let log = EventLog::open("sqlite://unused.db").expect("a usable URL");
        let queue: QueueName = "q".parse().expect("valid");
        let entry = OutboxEntry::default();
        sendable(&log.record(&queue, &entry));
        sendable(&log.record_many(&queue, &[]));
        sendable(&log.causes(&queue, &DeadLetterFilter::default(), ListCursor::default(), 1));
        assert_eq!(format!("{log:?}"), "EventLog { place: \"unused.db\", .. }");
    }

    fn hundred_moves(name: usize) -> OutboxEntry {
        let event = |i: usize| Event {
            task: format!("{name}-{i}").parse().expect("valid"),
            from: None,
            to: State::Queued,
            epoch: Epoch(0),
            at: jiff::Timestamp::UNIX_EPOCH,
            created_at: jiff::Timestamp::UNIX_EPOCH,
            task_type: TaskType::default(),
            retry_count: 0,
            tenant_id: None,
            trace_id: None,
            consumer: None,
            message_id: None,
            detail: None,
        };
        OutboxEntry { events: (0..100).map(event).collect(), ..OutboxEntry::default() }
    }

    #[tokio::test]
    async fn a_full_disk_delays_events_and_loses_none() {
        let folder = std::env::temp_dir().join(format!("windlass-full-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a temporary directory");
        let url = format!("sqlite://{}/log.db", folder.display());
        let small = url::sqlite_options(&url).expect("a usable URL").pragma("max_page_count", "100");
        let (database, place) = (Database::sqlite(small), "small".to_owned());
        let log = EventLog { shared: Arc::new(Shared { database, place, migrated: AtomicBool::new(false) }) };
        let queue: QueueName = "q".parse().expect("valid");
        let mut entries = 0;
        let error = loop {
            match log.record(&queue, &hundred_moves(entries)).await {
                Ok(new) => assert_eq!(new, 100),
                Err(error) => break error,
            }
            entries += 1;
        };
        assert!(matches!(error, EventLogError::Full { .. }), "{error}");
        assert_eq!(error.class(), ErrorClass::Transient);
        assert!(entries > 0, "there was some room");
        let roomy = EventLog::open(&url).expect("a usable URL");
        for entry in 0..=entries {
            let new = if entry < entries { 0 } else { 100 };
            assert_eq!(roomy.record(&queue, &hundred_moves(entry)).await.expect("there is room"), new);
        }
        std::fs::remove_dir_all(&folder).expect("removed");
    }

    #[test]
    fn a_cursor_of_another_listing_is_refused() {
        let read = |text: &str| place_of::<u64, i64>(&ListCursor(text.to_owned()));
        assert!(read("").expect("the beginning").is_none());
        assert!(matches!(read(&Place(7, -1).cursor().0), Ok(Some(Place(7, -1)))));
        assert!(matches!(read("7"), Err(Fault::Invalid(_))));
        assert!(matches!(read("x/1"), Err(Fault::Invalid(_))));
    }
}
