//! Drives the loops of any number of queues.
//!
//! One task keeps the calendar; each step runs in a task of its own, so a queue
//! whose Redis is slow or gone delays nobody else. A loop of a queue never runs
//! twice at once. An idle queue costs an entry in the calendar and a look now
//! and then.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

use super::metrics::LoopMetrics;
use super::retainer::SHORTEST_REST;
use super::{Chore, ChoreError, History, LoopName, Next, Progress, Queue};
use crate::broker::{Notice, Notices, QueueCounts, Topic};

/// How long a loop that failed waits, at first and at most.
const FIRST_BACKOFF: Duration = Duration::from_millis(250);
const LONGEST_BACKOFF: Duration = Duration::from_secs(30);
/// How soon an idle queue is looked at after a notice.
const SOON: Duration = Duration::from_millis(200);
/// How many queues are looked at a second where all must be, after a start or a lost connection.
const LOOKS_A_SECOND: usize = 2000;
/// How many queues a second begin to forget what is old after a start, there and in the event log: nobody waits for it.
const FIRST_ROUNDS_A_SECOND: usize = 10;
/// For how long notices must have come for what ended them to be no part of a series.
const LASTED: Duration = Duration::from_secs(30);
/// How many notices and commands may wait.
const MAILBOX: usize = 10_000;

/// Drives loops until it is dropped.
pub struct Runner {
    mailbox: mpsc::Sender<Mail>,
    metrics: LoopMetrics,
    parts: JoinSet<()>,
}

/// Somebody who listens to the notices of a server.
pub struct Listening(AbortHandle);

impl Listening {
    /// Ends it.
    pub fn end(&self) {
        self.0.abort();
    }
}

/// What the calendar's keeper is told.
enum Mail {
    Add(Arc<str>, Queue),
    Remove(Arc<str>),
    Notice(Notice),
    Look(Arc<str>),
    /// Notices of the server at that address may have been lost: look at all its queues.
    LookAtAll(String),
}

impl Runner {
    /// Starts with no queue.
    pub fn start(metrics: LoopMetrics) -> Self {
        let (mailbox, mail) = mpsc::channel(MAILBOX);
        let mut parts = JoinSet::new();
        parts.spawn(Calendar::new(metrics.clone()).keep(mail));
        Self { mailbox, metrics, parts }
    }

    /// Begins to look after a queue; `prefix` is what notices call it. A queue
    /// of that prefix that was there before is replaced.
    pub async fn add(&self, prefix: &str, queue: Queue) {
        if queue.history() == History::NotRecorded {
            tracing::warn!(queue = %queue.name, "no history is recorded: no event log is configured, and dead letters live in the queue alone");
        }
        self.metrics.queues().insert(prefix.to_owned(), queue.clone());
        self.tell(Mail::Add(prefix.into(), queue)).await;
    }

    /// Ends looking after a queue. A step that is under way ends by itself.
    pub async fn remove(&self, prefix: &str) {
        self.metrics.queues().remove(prefix);
        self.tell(Mail::Remove(prefix.into())).await;
    }

    /// Counts a queue now: somebody saw that something came to it.
    pub async fn look(&self, prefix: &str) {
        self.tell(Mail::Look(prefix.into())).await;
    }

    /// Listens to the notices of a server, until the runner is dropped or told otherwise.
    pub fn listen(&mut self, notices: Box<dyn Notices>) -> Listening {
        Listening(self.parts.spawn(pass_on(notices, self.mailbox.clone())))
    }

    /// What the last look at a queue showed.
    pub fn counts(&self, prefix: &str) -> Option<QueueCounts> {
        self.metrics.queues().get(prefix)?.counts()
    }

    async fn tell(&self, mail: Mail) {
        // The keeper ends only with this runner.
        drop(self.mailbox.send(mail).await);
    }
}

/// Passes notices on, and connects again when they end.
async fn pass_on(mut notices: Box<dyn Notices>, mailbox: mpsc::Sender<Mail>) {
    let mut failures = 0;
    loop {
        let mut since = None;
        if let Err(error) = listen(&mut *notices, &mailbox, &mut since).await {
            tracing::warn!(%error, "no notices from Redis: queues are looked at by the clock until it is back");
        }
        if mailbox.is_closed() {
            return;
        }
        failures = failures_in_a_row(failures, since.map(|since: Instant| since.elapsed()));
        tokio::time::sleep(backoff(failures)).await;
    }
}

/// After one more, before which notices came for so long. A server that takes connections and drops them again
/// is not back, and each time all its queues are looked at.
fn failures_in_a_row(before: u32, lasted: Option<Duration>) -> u32 {
    if lasted.is_some_and(|lasted| lasted >= LASTED) { 0 } else { before.saturating_add(1) }
}

/// Passes notices on until they end; says since when they came.
async fn listen(
    notices: &mut dyn Notices,
    mailbox: &mpsc::Sender<Mail>,
    since: &mut Option<Instant>,
) -> crate::broker::Result<()> {
    notices.listen().await?;
    *since = Some(Instant::now());
    drop(mailbox.send(Mail::LookAtAll(notices.address().to_owned())).await);
    loop {
        let notice = notices.next().await?;
        if mailbox.send(Mail::Notice(notice)).await.is_err() {
            return Ok(());
        }
    }
}

fn backoff(failures: u32) -> Duration {
    let ceiling = FIRST_BACKOFF.saturating_mul(1 << failures.min(7)).min(LONGEST_BACKOFF);
    ceiling.mul_f64(0.5 + fastrand::f64() / 2.0)
}

/// One loop of one queue, and where it stands.
struct Slot {
    /// Out while a step runs.
    chore: Option<Box<dyn Chore>>,
    due: Option<Instant>,
    /// Something came up while a step was running.
    again: bool,
    failures: u32,
}

/// A queue and its loops.
struct Entry {
    queue: Queue,
    /// Tells a queue from one that had its prefix before.
    number: u64,
    slots: [Slot; LoopName::ALL.len()],
    /// Whether it was looked at.
    seen: bool,
}

/// A step that runs.
struct Running {
    prefix: Arc<str>,
    number: u64,
    name: LoopName,
    chore: Box<dyn Chore>,
}

/// A step that ended.
type Ended = (Running, Result<Progress, ChoreError>);

/// When which loop of which queue is due.
type Date = (Instant, u64, Arc<str>, LoopName);

struct Calendar {
    entries: HashMap<Arc<str>, Entry>,
    dates: BinaryHeap<Reverse<Date>>,
    running: JoinSet<Ended>,
    added: u64,
    metrics: LoopMetrics,
}

impl Calendar {
    fn new(metrics: LoopMetrics) -> Self {
        Self { entries: HashMap::new(), dates: BinaryHeap::new(), running: JoinSet::new(), added: 0, metrics }
    }

    async fn keep(mut self, mut mail: mpsc::Receiver<Mail>) {
        loop {
            let next = self.dates.peek().map(|Reverse((due, ..))| *due);
            tokio::select! {
                received = mail.recv() => match received {
                    Some(received) => self.read(received),
                    None => return,
                },
                Some(ended) = self.running.join_next() => {
                    self.end(ended.expect("invariant: a step's panic is caught in it"));
                }
                () = until(next) => self.begin_due(),
            }
        }
    }

    fn read(&mut self, mail: Mail) {
        match mail {
            Mail::Add(prefix, queue) => self.add(prefix, queue),
            Mail::Remove(prefix) => drop(self.entries.remove(&prefix)),
            Mail::LookAtAll(address) => {
                let there = self.entries.iter().filter(|(_, entry)| entry.queue.broker.address() == address);
                let prefixes: Vec<_> = there.map(|(prefix, _)| prefix.clone()).collect();
                for prefix in prefixes {
                    self.look(&prefix);
                }
            }
            Mail::Notice(notice) => self.notice(&notice),
            Mail::Look(prefix) => self.due_in(&prefix, LoopName::Sampler, Duration::ZERO),
        }
    }

    fn add(&mut self, prefix: Arc<str>, queue: Queue) {
        self.added += 1;
        let slots = LoopName::ALL.map(|name| Slot { chore: Some(name.chore()), due: None, again: false, failures: 0 });
        self.entries.insert(prefix.clone(), Entry { queue, number: self.added, slots, seen: false });
        self.look(&prefix);
    }

    /// Looks at a queue, at a pace that all queues together can have.
    fn look(&mut self, prefix: &Arc<str>) {
        let all = Duration::from_secs_f64(self.entries.len() as f64 / LOOKS_A_SECOND as f64);
        self.due_in(prefix, LoopName::Sampler, all.mul_f64(fastrand::f64()));
    }

    fn notice(&mut self, notice: &Notice) {
        let Some((prefix, entry)) = self.entries.get_key_value(notice.queue.as_str()) else { return };
        let (prefix, busy) = (prefix.clone(), entry.queue.is_busy());
        let name = match notice.topic {
            Topic::Due => LoopName::Promoter,
            Topic::Dead => LoopName::DeadLetterRouter,
            Topic::Outbox => LoopName::Recorder,
            Topic::Workers => LoopName::Sampler,
        };
        self.due_in(&prefix, name, Duration::ZERO);
        if !busy {
            self.due_in(&prefix, LoopName::Sampler, SOON);
        }
    }

    /// Makes a loop due after so long, unless it is due before that.
    fn due_in(&mut self, prefix: &Arc<str>, name: LoopName, wait: Duration) {
        let Some(entry) = self.entries.get_mut(prefix) else { return };
        let slot = &mut entry.slots[name as usize];
        if slot.chore.is_none() {
            slot.again = true;
            return;
        }
        let due = Instant::now() + wait;
        if slot.due.is_none_or(|before| due < before) {
            slot.due = Some(due);
            self.dates.push(Reverse((due, entry.number, prefix.clone(), name)));
        }
    }

    fn begin_due(&mut self) {
        let now = Instant::now();
        while let Some(Reverse((due, ..))) = self.dates.peek()
            && *due <= now
        {
            let Some(Reverse((due, number, prefix, name))) = self.dates.pop() else { return };
            let Some(entry) = self.entries.get_mut(&prefix).filter(|entry| entry.number == number) else { continue };
            let slot = &mut entry.slots[name as usize];
            // A date that was brought forward stands in the calendar twice.
            if slot.due != Some(due) {
                continue;
            }
            let Some(chore) = slot.chore.take() else { continue };
            slot.due = None;
            let queue = entry.queue.clone();
            self.running.spawn(step(Running { prefix, number, name, chore }, queue, due, self.metrics.clone()));
        }
    }

    fn end(&mut self, (step, outcome): Ended) {
        let Running { prefix, number, name, chore } = step;
        let Some(entry) = self.entries.get_mut(&prefix).filter(|entry| entry.number == number) else { return };
        let slot = &mut entry.slots[name as usize];
        slot.chore = Some(chore);
        let again = std::mem::take(&mut slot.again);
        let next = match outcome {
            Ok(progress) => {
                if slot.failures > 0 {
                    tracing::info!(queue = %entry.queue.name, r#loop = name.as_str(), "a loop works again");
                }
                slot.failures = 0;
                if again { Next::AtOnce } else { progress.next }
            }
            Err(error) => {
                if slot.failures == 0 {
                    tracing::warn!(queue = %entry.queue.name, r#loop = name.as_str(), %error, "a loop failed and will be tried again");
                }
                slot.failures = slot.failures.saturating_add(1);
                Next::In(backoff(slot.failures - 1))
            }
        };
        match next {
            Next::AtOnce => self.due_in(&prefix, name, Duration::ZERO),
            Next::In(wait) => self.due_in(&prefix, name, wait),
            Next::WhenNeeded => {}
        }
        if name == LoopName::Sampler {
            self.begin_needed(&prefix);
        }
    }

    /// Wakes the loops that a look at the queue says are needed and that nobody has woken.
    fn begin_needed(&mut self, prefix: &Arc<str>) {
        let Some(entry) = self.entries.get_mut(prefix) else { return };
        let Some(counts) = entry.queue.counts() else { return };
        let first = !std::mem::replace(&mut entry.seen, true);
        let asleep = |name: &LoopName| entry.slots[*name as usize].due.is_none();
        let needed: Vec<_> =
            LoopName::ALL.into_iter().filter(asleep).filter(|name| name.is_needed(&entry.queue, &counts)).collect();
        let comes = entry.queue.is_busy();
        for name in needed {
            self.due_in(prefix, name, Duration::ZERO);
        }
        // It may rest for long, from when nothing came; the bounds are to hold while work goes on.
        if comes {
            self.due_in(prefix, LoopName::Retainer, SHORTEST_REST);
        }
        // Counts do not tell of all that is kept: decided dead letters, rows of the event log.
        if first {
            let all = Duration::from_secs_f64(self.entries.len() as f64 / FIRST_ROUNDS_A_SECOND as f64);
            for name in [LoopName::Retainer, LoopName::Archivist] {
                self.due_in(prefix, name, all.mul_f64(fastrand::f64()));
            }
        }
    }
}

/// Runs one step of a loop.
async fn step(mut step: Running, queue: Queue, due: Instant, metrics: LoopMetrics) -> Ended {
    let late = due.elapsed();
    let outcome = AssertUnwindSafe(step.chore.run_once(&queue)).catch_unwind().await;
    let outcome = outcome.unwrap_or_else(|panic| Err(ChoreError::Panic(words_of(&*panic))));
    metrics.add(step.name, late, &outcome);
    (step, outcome)
}

fn words_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}

/// Until a time, or for ever.
async fn until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::clock::Clock;
    use crate::broker::model::Model;

    #[test]
    fn a_server_that_drops_its_connections_again_and_again_is_listened_to_ever_more_rarely() {
        assert_eq!(failures_in_a_row(0, None), 1);
        assert_eq!(failures_in_a_row(4, Some(Duration::from_secs(1))), 5, "it took the connection, for a second");
        assert_eq!(failures_in_a_row(4, Some(LASTED)), 0);
        assert!(backoff(failures_in_a_row(u32::MAX, None)) >= LONGEST_BACKOFF / 2);
    }

    #[test]
    fn lost_notices_lead_to_looks_at_the_queues_of_their_server_alone() {
        let mut calendar = Calendar::new(LoopMetrics::default());
        let name: crate::protocol::names::QueueName = "shop/emails".parse().expect("valid");
        let broker = Arc::new(Model::new(name.clone(), Clock::Server));
        let address = crate::broker::Broker::address(&*broker).to_owned();
        calendar.add("p:".into(), Queue::new(name, broker, None));
        let sampler = |calendar: &mut Calendar| {
            let entry = calendar.entries.get_mut("p:").expect("it was added");
            entry.slots[LoopName::Sampler as usize].due.take()
        };
        assert!(sampler(&mut calendar).is_some(), "a new one is looked at");
        calendar.read(Mail::LookAtAll("elsewhere".to_owned()));
        assert!(sampler(&mut calendar).is_none());
        calendar.read(Mail::LookAtAll(address));
        assert!(sampler(&mut calendar).is_some());
    }
}
