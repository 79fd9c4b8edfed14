//! Kubernetes Events on the objects: what happened, for `kubectl describe`.
//!
//! An Event is a write to the API server, so it tells of a change and never of
//! a state; one that cannot be written is logged, and stops nothing.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};

use super::error::bounded;

/// The controller that Events name.
const CONTROLLER: &str = "windlass-operator";
/// The longest text that the API server takes.
const LONGEST_NOTE: usize = 1000;

/// How many notes are remembered, so that one that is told again is counted.
const NOTES_KEPT: usize = 256;

/// Whether people should look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weight {
    /// Things go their way.
    Normal,
    /// Somebody should look.
    Warning,
}

/// Writes Events.
#[derive(Clone)]
pub struct Events {
    client: Client,
    reporter: Reporter,
    /// A recorder takes whatever has the same reason for the same Event, and goes on
    /// showing the first note. So each note has a recorder of its own; the latest come last.
    recorders: Arc<Mutex<VecDeque<(String, Recorder)>>>,
}

impl Events {
    /// Events in the name of this process.
    pub(super) fn new(client: Client, instance: &str) -> Self {
        let reporter = Reporter { controller: CONTROLLER.to_owned(), instance: Some(instance.to_owned()) };
        Self { client, reporter, recorders: Arc::default() }
    }

    /// Tells what happened to an object: a stable CamelCase reason, and a sentence without credentials.
    pub async fn tell(&self, object: &ObjectReference, weight: Weight, reason: &str, note: impl Into<String>) {
        let mut note: String = note.into();
        note.truncate(note.floor_char_boundary(LONGEST_NOTE));
        let type_ = match weight {
            Weight::Normal => EventType::Normal,
            Weight::Warning => EventType::Warning,
        };
        let recorder = self.recorder_of(&note);
        let event = Event {
            type_,
            reason: reason.to_owned(),
            note: Some(note),
            action: "Reconcile".to_owned(),
            secondary: None,
        };
        if let Err(error) = bounded(recorder.publish(&event, object), "take an Event").await {
            tracing::warn!(%error, reason, "an Event could not be written");
        }
    }

    fn recorder_of(&self, note: &str) -> Recorder {
        let mut recorders = self.recorders.lock().unwrap_or_else(PoisonError::into_inner);
        let known = recorders.iter().position(|(known, _)| known == note).and_then(|at| recorders.remove(at));
        let (note, recorder) =
            known.unwrap_or_else(|| (note.to_owned(), Recorder::new(self.client.clone(), self.reporter.clone())));
        recorders.push_back((note, recorder.clone()));
        while recorders.len() > NOTES_KEPT {
            recorders.pop_front();
        }
        recorder
    }
}
