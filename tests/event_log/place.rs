//! Databases for the tests, and what is written into them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use jiff::Timestamp;
use windlass::broker::{Event, ListCursor, OutboxEntry};
use windlass::event_log::{EventFilter, EventLog, RecordedEvent};
use windlass::protocol::names::{DeadLetterId, Epoch, QueueName, TaskId};
use windlass::protocol::state::State;
use windlass::protocol::task::{DeadLetter, Extras, Payload};

use crate::support::servers::Postgres;

/// Makes each claim a test on both databases.
macro_rules! suite {
    ($($claim:ident),* $(,)?) => {
        mod on_postgres {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $claim() {
                    super::$claim(&crate::event_log::place::Place::postgres().await).await;
                }
            )*
        }
        mod on_sqlite {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $claim() {
                    super::$claim(&crate::event_log::place::Place::sqlite()).await;
                }
            )*
        }
    };
}

/// An empty database.
pub(super) enum Place {
    Postgres { server: Arc<Postgres>, url: String },
    Sqlite(Folder),
}

impl Place {
    /// A database of a server that the tests share; it ends with the last of them.
    pub(super) async fn postgres() -> Self {
        static SERVER: tokio::sync::Mutex<Weak<Postgres>> = tokio::sync::Mutex::const_new(Weak::new());
        let mut shared = SERVER.lock().await;
        let server = match shared.upgrade() {
            Some(server) => server,
            None => Arc::new(Postgres::start().await),
        };
        *shared = Arc::downgrade(&server);
        let url = server.fresh_database();
        Self::Postgres { server, url }
    }

    /// A file that does not exist yet.
    pub(super) fn sqlite() -> Self {
        Self::Sqlite(Folder::new())
    }

    pub(super) fn url(&self) -> String {
        match self {
            Self::Postgres { url, .. } => url.clone(),
            Self::Sqlite(folder) => folder.url(),
        }
    }

    pub(super) async fn log(&self) -> EventLog {
        EventLog::connect(&self.url()).await.expect("the database is there")
    }

    /// What a statement of somebody else answers.
    pub(super) fn query(&self, sql: &str) -> Result<String, String> {
        match self {
            Self::Postgres { server, url } => server.query_at(url, sql),
            Self::Sqlite(folder) => folder.query(sql),
        }
    }
}

/// A directory with an SQLite file in it, removed when it is dropped.
pub(super) struct Folder(PathBuf);

impl Folder {
    pub(super) fn new() -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("windlass-event-log-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a temporary directory");
        Self(path)
    }

    pub(super) fn file(&self) -> PathBuf {
        self.0.join("log.db")
    }

    pub(super) fn url(&self) -> String {
        format!("sqlite://{}", self.file().display())
    }

    fn query(&self, sql: &str) -> Result<String, String> {
        let program = "import sqlite3, sys\n\
                       c = sqlite3.connect(sys.argv[1], timeout=30, isolation_level=None)\n\
                       print('\\n'.join('|'.join(map(str, row)) for row in c.execute(sys.argv[2])))";
        let output = python(program, &self.file()).arg(sql).output().map_err(|error| error.to_string())?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Another process, which has SQLite in its standard library.
pub(super) fn python(program: &str, file: &Path) -> Command {
    let mut command = Command::new("python3");
    command.args(["-c", program]).arg(file);
    command
}

pub(super) fn queue() -> QueueName {
    "shop/emails".parse().expect("valid")
}

pub(super) fn task(id: impl Into<String>) -> TaskId {
    TaskId::new(id).expect("valid")
}

/// A time, in milliseconds after some beginning.
pub(super) fn at(ms: i64) -> Timestamp {
    Timestamp::from_millisecond(1_700_000_000_000 + ms).expect("in range")
}

/// A task's first move.
pub(super) fn created(id: &str, ms: i64) -> Event {
    Event {
        task: task(id),
        from: None,
        to: State::Queued,
        epoch: Epoch(0),
        at: at(ms),
        created_at: at(0),
        task_type: "send".parse().expect("valid"),
        retry_count: 0,
        tenant_id: None,
        trace_id: None,
        consumer: None,
        message_id: Some("1-0".to_owned()),
        detail: None,
    }
}

/// A later move of a task.
pub(super) fn moved(id: &str, (from, to): (State, State), epoch: u64, ms: i64) -> Event {
    Event { from: Some(from), to, epoch: Epoch(epoch), ..created(id, ms) }
}

pub(super) fn entry(events: impl IntoIterator<Item = Event>) -> OutboxEntry {
    OutboxEntry { id: "1-0".to_owned(), events: events.into_iter().collect(), ..OutboxEntry::default() }
}

/// So many new tasks in one entry.
pub(super) fn entry_of(name: &str, tasks: usize) -> OutboxEntry {
    entry((0..tasks).map(|i| created(&format!("{name}-{i}"), i as i64)))
}

/// A dead letter that has nothing special about it.
pub(super) fn letter(id: &str, error: &str) -> DeadLetter {
    DeadLetter {
        id: DeadLetterId { task: task(id), epoch: Epoch(4) },
        task_type: "send".parse().expect("valid"),
        payload: Payload::from_json(r#"{"to":"bob"}"#).expect("JSON"),
        priority: 5,
        error: error.to_owned(),
        error_code: "failed".to_owned(),
        retry_count: 3,
        crash_count: 0,
        release_count: 0,
        idempotency_key: None,
        tenant_id: None,
        trace_id: None,
        max_retries: None,
        extras: Extras::default(),
        created_at: at(0),
        failed_at: at(1000),
        history: Vec::new(),
    }
}

/// Every event that the filter lets through, in pages of that size.
pub(super) async fn all_events(log: &EventLog, filter: &EventFilter, page: usize) -> Vec<RecordedEvent> {
    let (mut found, mut cursor) = (Vec::new(), Some(ListCursor::default()));
    while let Some(from) = cursor {
        let page = log.events(&queue(), filter, from, page).await.expect("answered");
        found.extend(page.items);
        cursor = page.next;
    }
    found
}
