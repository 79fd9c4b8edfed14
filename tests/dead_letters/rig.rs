//! A queue whose tasks die, and a leader that takes one step at a time.

use windlass::broker::session::Session;
use windlass::broker::{Broker, ClaimedTask, ListCursor, Outcome, Settlement};
use windlass::dead_letters::{DeadLetterFilter, DeadLetters, Entry};
use windlass::event_log::{EventLog, RecordedEvent};
use windlass::maintenance::dead_letter_router::DeadLetterRouter;
use windlass::maintenance::recorder::Recorder;
use windlass::maintenance::{Chore, Next, Queue};
use windlass::protocol::backoff::Dice;
use windlass::protocol::names::{Capabilities, DeadLetterId, WorkerId};
use windlass::protocol::policy::{EventRecording, Policy};
use windlass::{NewTask, TaskId};

use crate::support::ground::Ground;
use crate::support::servers::{Flavor, Postgres, Server};

/// A queue with a leader that works when it is told to.
pub(super) struct Rig {
    pub(super) server: Server,
    pub(super) ground: Ground,
    pub(super) log: Option<EventLog>,
    /// Held for its end.
    _postgres: Option<Postgres>,
    /// For files, and removed at its end.
    dir: tempfile::TempDir,
}

impl Rig {
    /// With a file as its event log.
    pub(super) async fn new(policy: Policy) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let url = format!("sqlite://{}", dir.path().join("events.db").display());
        Self::on(url, None, dir, policy).await
    }

    /// With PostgreSQL as its event log.
    pub(super) async fn on_postgres(policy: Policy) -> Self {
        let postgres = Postgres::start().await;
        let url = postgres.fresh_database();
        Self::on(url, Some(postgres), tempfile::tempdir().expect("a directory"), policy).await
    }

    /// Without a database.
    pub(super) async fn without_log(policy: Policy) -> Self {
        let policy = Policy { events: EventRecording::Off, ..policy };
        Self::on(String::new(), None, tempfile::tempdir().expect("a directory"), policy).await
    }

    /// The same queue, with a file as its event log from now on.
    pub(super) fn with_log(self) -> Self {
        let url = format!("sqlite://{}", self.dir.path().join("events.db").display());
        Self { log: Some(EventLog::open(&url).expect("a usable URL")), ..self }
    }

    async fn on(url: String, postgres: Option<Postgres>, dir: tempfile::TempDir, policy: Policy) -> Self {
        let server = Server::start(Flavor::Redis70).await;
        let ground = Ground::new(&server, url, &policy).await;
        let log = (!ground.log_url.is_empty()).then(|| ground.log());
        Self { server, ground, log, _postgres: postgres, dir }
    }

    pub(super) fn broker(&self) -> &dyn Broker {
        &*self.ground.broker
    }

    pub(super) fn log(&self) -> &EventLog {
        self.log.as_ref().expect("it has an event log")
    }

    /// As people have it.
    pub(super) fn letters(&self) -> DeadLetters {
        DeadLetters::new(self.ground.name.clone(), self.ground.broker.clone(), self.log.clone())
    }

    /// As people have it who do not reach the database.
    pub(super) fn letters_by_walking(&self) -> DeadLetters {
        DeadLetters::new(self.ground.name.clone(), self.ground.broker.clone(), None)
    }

    /// Runs what is ready once and lets it end like that; says how many there were.
    pub(super) async fn work(&self, end: impl Fn(&ClaimedTask) -> Outcome) -> usize {
        let worker = WorkerId::new("w").expect("valid");
        let mut session = Session::new(self.ground.broker.clone(), worker, Capabilities::any());
        let (mut held, mut all) = (session.claim(100).await.expect("claimed"), 0);
        while !held.is_empty() {
            all += held.len();
            let end = |task: &ClaimedTask| Settlement { lease: task.lease.clone(), outcome: end(task), dice: Dice(0) };
            let settlements: Vec<_> = held.iter().map(end).collect();
            held = session.settle(&settlements, 100).await.expect("settled").next.expect("claimed");
        }
        self.lead().await;
        all
    }

    /// Puts tasks into the queue and lets them die of what is said of each.
    pub(super) async fn die(&self, tasks: &[NewTask], error: impl Fn(&ClaimedTask) -> String) {
        for batch in tasks.chunks(100) {
            self.broker().enqueue(batch).await.expect("taken");
        }
        self.work(|task| Outcome::permanent("failed", error(task))).await;
    }

    /// What the leader does: records dead letters, and what happened.
    pub(super) async fn lead(&self) {
        let queue = Queue::new(self.ground.name.clone(), self.ground.broker.clone(), self.log.clone());
        let mut loops: [Box<dyn Chore>; 2] = [Box::<DeadLetterRouter>::default(), Box::new(Recorder)];
        for chore in &mut loops {
            while chore.run_once(&queue).await.expect("a step").next != Next::WhenNeeded {}
        }
    }

    /// Every dead letter, the newest first.
    pub(super) async fn all(&self, letters: &DeadLetters, filter: &DeadLetterFilter) -> Vec<Entry> {
        let (mut all, mut cursor) = (Vec::new(), Some(ListCursor::default()));
        while let Some(from) = cursor {
            let page = letters.list(filter, from, 100).await.expect("listed");
            all.extend(page.items);
            cursor = page.next;
        }
        all
    }

    pub(super) async fn ids(&self) -> Vec<DeadLetterId> {
        let all = self.all(&self.letters_by_walking(), &DeadLetterFilter::default()).await;
        all.into_iter().map(|entry| entry.letter.id).collect()
    }

    pub(super) async fn history(&self, task: &TaskId) -> Vec<RecordedEvent> {
        self.log().history(&self.ground.name, task).await.expect("answered")
    }
}

pub(super) fn send(n: usize) -> NewTask {
    NewTask::new("send".parse().expect("valid"), serde_json::json!({ "n": n }))
}

pub(super) fn tasks(count: usize) -> Vec<NewTask> {
    (0..count).map(send).collect()
}
