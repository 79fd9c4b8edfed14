//! Tells of a queue's tasks as they move, from the event log.

use std::collections::HashSet;
use std::time::Duration;

use jiff::Timestamp;
use tokio::task::JoinHandle;

use super::screen::{Screen, Tone};
use super::speech::short;
use crate::broker::ListCursor;
use crate::event_log::{EventFilter, EventLog, RecordedEvent};
use crate::protocol::names::QueueName;
use crate::protocol::state::State;

/// How often the log is looked at.
const PERIOD: Duration = Duration::from_millis(300);
/// How many moves are told at a time; the others are counted.
const MOST_TOLD: usize = 25;
/// How many moves are read at a time.
const PAGE: usize = 500;

/// Tells until it is stopped.
pub(super) struct Ticker {
    task: JoinHandle<()>,
}

impl Ticker {
    /// Begins with what happens from now on.
    pub(super) fn start(queue: QueueName, log: EventLog, screen: Screen) -> Self {
        let from = Timestamp::now();
        Self { task: tokio::spawn(Tail { queue, log, screen, from, told: HashSet::new() }.follow()) }
    }

    /// Falls silent.
    pub(super) fn stop(self) {
        self.task.abort();
    }
}

struct Tail {
    queue: QueueName,
    log: EventLog,
    screen: Screen,
    /// Moves before this were told.
    from: Timestamp,
    /// Moves at that very time that were told, too.
    told: HashSet<(String, u64, Option<State>)>,
}

impl Tail {
    async fn follow(mut self) {
        loop {
            tokio::time::sleep(PERIOD).await;
            let mut told = 0;
            // What cannot be read now is read next time.
            while let Some(events) = self.read().await {
                for event in &events {
                    if let Some((tone, text)) = sentence(event).filter(|_| told < MOST_TOLD) {
                        self.screen.line(self.queue.name(), tone, &text);
                    }
                    told += 1;
                }
                if events.len() < PAGE {
                    break;
                }
            }
            if told > MOST_TOLD {
                self.screen.line(self.queue.name(), Tone::Faint, &format!("… and {} more moves", told - MOST_TOLD));
            }
        }
    }

    /// The next moves, each once.
    async fn read(&mut self) -> Option<Vec<RecordedEvent>> {
        let filter = EventFilter { after: Some(self.from), ..EventFilter::default() };
        let page = self.log.events(&self.queue, &filter, ListCursor::default(), PAGE + self.told.len()).await.ok()?;
        let mut new = Vec::new();
        for event in page.items {
            if event.occurred_at > self.from {
                (self.from, self.told) = (event.occurred_at, HashSet::new());
            }
            if self.told.insert((event.task_id.to_string(), event.epoch.0, event.to)) {
                new.push(event);
            }
        }
        Some(new)
    }
}

/// What happened, for a person. Moves that only prepare another are not told.
fn sentence(event: &RecordedEvent) -> Option<(Tone, String)> {
    let tone = match event.to? {
        State::Succeeded => Tone::Good,
        State::Failed | State::Cancelled | State::Retrying => Tone::Bad,
        State::Queued | State::Scheduled | State::Running => Tone::Faint,
        _ => return None,
    };
    let from = event.from.map_or_else(String::new, |from| format!("{from} → "));
    let to = event.to?;
    let detail = event.detail.as_deref().map_or_else(String::new, |detail| format!(" ({})", explained(detail)));
    let attempt = if event.epoch.0 > 0 { format!(" [attempt {}]", event.epoch) } else { String::new() };
    Some((tone, format!("{} {}: {from}{to}{attempt}{detail}", event.task_type, short(event.task_id.as_str()))))
}

/// A detail is a word, or JSON about whom the task was taken back from.
fn explained(detail: &str) -> String {
    let Ok(facts) = serde_json::from_str::<serde_json::Value>(detail) else { return detail.to_owned() };
    match (facts["from"].as_str(), facts["reason"].as_str()) {
        (Some(from), Some(reason)) => format!("taken back from {from}: {reason}"),
        _ => detail.to_owned(),
    }
}
