//! What only a file can suffer.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Stdio};

use windlass::broker::ErrorClass;
use windlass::event_log::{EventLog, EventLogError};

use super::place::{Folder, entry_of, python, queue, task};

/// Another process that has the file's lock until it is told to let go.
struct Holder(Child);

impl Holder {
    fn lock(folder: &Folder) -> Self {
        let program = "import sqlite3, sys\n\
                       c = sqlite3.connect(sys.argv[1], isolation_level=None)\n\
                       c.execute('BEGIN EXCLUSIVE')\n\
                       print('locked', flush=True)\n\
                       sys.stdin.readline()\n\
                       c.execute('COMMIT')\n";
        let mut command = python(program, &folder.file());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("python3 must start");
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().expect("piped")).read_line(&mut line).expect("it speaks");
        assert_eq!(line.trim(), "locked");
        Self(child)
    }

    fn let_go(mut self) {
        self.0.stdin.take().expect("piped").write_all(b"\n").expect("it listens");
        assert!(self.0.wait().expect("it ends").success());
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill().and_then(|()| self.0.wait());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_another_process_locks_delays_events_and_loses_none() {
    let folder = Folder::new();
    let log = EventLog::connect(&folder.url()).await.expect("connected");
    log.record(&queue(), &entry_of("before", 1)).await.expect("recorded");
    let holder = Holder::lock(&folder);
    let error = log.record(&queue(), &entry_of("a", 5)).await.expect_err("locked");
    assert!(matches!(error, EventLogError::Busy { .. }), "{error}");
    assert_eq!(error.class(), ErrorClass::Transient);
    let history = log.history(&queue(), &task("before-0")).await.expect("readers do not wait for a writer");
    assert_eq!(history.len(), 1);
    holder.let_go();
    assert_eq!(log.record(&queue(), &entry_of("a", 5)).await.expect("free again"), 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_is_locked_before_its_tables_are_made_works_once_it_is_free() {
    let folder = Folder::new();
    let holder = Holder::lock(&folder);
    let log = EventLog::open(&folder.url()).expect("a usable URL");
    let error = log.record(&queue(), &entry_of("a", 1)).await.expect_err("locked");
    assert_eq!(error.class(), ErrorClass::Transient, "{error}");
    holder.let_go();
    assert_eq!(log.record(&queue(), &entry_of("a", 1)).await.expect("free again"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_is_no_database_is_refused_and_left_alone() {
    let folder = Folder::new();
    let text = "Dear diary, ".repeat(1000);
    std::fs::write(folder.file(), &text).expect("written");
    let error = EventLog::connect(&folder.url()).await.expect_err("no database");
    assert_eq!(error.class(), ErrorClass::Invalid, "{error}");
    assert_eq!(std::fs::read_to_string(folder.file()).expect("still there"), text);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_committed_survives_the_end_of_the_process() {
    let folder = Folder::new();
    let log = EventLog::connect(&folder.url()).await.expect("connected");
    log.record(&queue(), &entry_of("a", 3)).await.expect("recorded");
    // What a power cut leaves: the file and its write-ahead log, as they are now, with nobody to close them.
    let copy = Folder::new();
    for ending in ["", "-wal"] {
        let of = |folder: &Folder| format!("{}{ending}", folder.file().display());
        std::fs::copy(of(&folder), of(&copy)).expect("both files are there");
    }
    let log = EventLog::connect(&copy.url()).await.expect("recovered");
    assert_eq!(log.record(&queue(), &entry_of("a", 3)).await.expect("recorded"), 0, "all of them were there");
}
