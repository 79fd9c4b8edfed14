//! A dead letter as people see it.

use jiff::Timestamp;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use crate::broker::{DeadLetterView, Decision, DecisionAction, Review, Voice};
use crate::event_log::{RecordedDeadLetter, Verdict};
use crate::protocol::fingerprint::Fingerprint;
use crate::protocol::task::{Attempt, DeadLetter};

/// A dead letter, what it died of, and what was decided about it. Its JSON form is
/// flat, with the names that tasks have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// What died.
    pub letter: DeadLetter,
    /// What it died of.
    pub fingerprint: Fingerprint,
    /// Where it stands with the people who look after it: who asked to give it up
    /// is here for whoever has to agree.
    pub review: Review,
    /// When it was recorded.
    pub recorded_at: Timestamp,
}

impl From<DeadLetterView> for Entry {
    fn from(view: DeadLetterView) -> Self {
        let DeadLetterView { letter, recorded_at, review } = view;
        Self { fingerprint: letter.fingerprint(), letter, review, recorded_at }
    }
}

impl Entry {
    /// One that the event log has, with what was said about dead letters of its name.
    pub(super) fn recorded(found: RecordedDeadLetter, said: &[&Decision]) -> Self {
        let review = review_of(&found, said);
        let RecordedDeadLetter { letter, fingerprint, recorded_at, .. } = found;
        Self { letter, fingerprint, review, recorded_at }
    }
}

fn review_of(found: &RecordedDeadLetter, said: &[&Decision]) -> Review {
    // What was said before it died was about an earlier task of its id.
    let voice = |action: DecisionAction| {
        let about_it = said.iter().filter(|said| said.action == action && said.at >= found.letter.failed_at);
        about_it.map(|said| voice_of(said)).next()
    };
    let requested = voice(DecisionAction::DiscardRequested);
    // The verdict and who gave it are written together.
    let nobody = || Voice { person: String::new(), reason: None, at: found.decided_at.unwrap_or(found.recorded_at) };
    match (found.decision, &found.replayed_as) {
        (Verdict::Replayed, Some(task)) => {
            Review::Replayed { task: task.clone(), by: voice(DecisionAction::Replayed).unwrap_or_else(nobody) }
        }
        (Verdict::Discarded, _) => {
            Review::Discarded { by: voice(DecisionAction::Discarded).unwrap_or_else(nobody), requested }
        }
        (Verdict::Open | Verdict::Replayed, _) => requested.map_or(Review::Open, Review::DiscardRequested),
    }
}

fn voice_of(said: &Decision) -> Voice {
    Voice { person: said.person.clone(), reason: said.reason.clone(), at: said.at }
}

impl Serialize for Entry {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let letter = &self.letter;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("dlqId", &letter.id.to_string())?;
        map.serialize_entry("taskId", &letter.id.task)?;
        map.serialize_entry("type", &letter.task_type)?;
        match serde_json::from_str::<&RawValue>(letter.payload.as_str()) {
            Ok(json) => map.serialize_entry("payload", json)?,
            // Of a raw producer that did not send JSON.
            Err(_) => map.serialize_entry("payload", letter.payload.as_str())?,
        }
        map.serialize_entry("priority", &letter.priority)?;
        map.serialize_entry("error", &letter.error)?;
        map.serialize_entry("errorCode", &letter.error_code)?;
        map.serialize_entry("fingerprint", &self.fingerprint)?;
        map.serialize_entry("retryCount", &letter.retry_count)?;
        map.serialize_entry("crashCount", &letter.crash_count)?;
        map.serialize_entry("releaseCount", &letter.release_count)?;
        map.serialize_entry("maxRetries", &letter.max_retries)?;
        map.serialize_entry("idempotencyKey", &letter.idempotency_key)?;
        map.serialize_entry("tenantId", &letter.tenant_id)?;
        map.serialize_entry("traceId", &letter.trace_id)?;
        map.serialize_entry("labels", &letter.extras.labels)?;
        map.serialize_entry("parentId", &letter.extras.parent_id)?;
        map.serialize_entry("timeoutMs", &letter.extras.timeout_ms)?;
        map.serialize_entry("replayOf", &letter.extras.replay_of)?;
        map.serialize_entry("createdAt", &letter.created_at)?;
        map.serialize_entry("failedAt", &letter.failed_at)?;
        map.serialize_entry("recordedAt", &self.recorded_at)?;
        map.serialize_entry("history", &letter.history.iter().map(AttemptView::from).collect::<Vec<_>>())?;
        map.serialize_entry("review", &ReviewView::from(&self.review))?;
        map.end()
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct AttemptView<'a> {
    epoch: u64,
    ended_at: Option<Timestamp>,
    outcome: &'a str,
    error_code: &'a str,
    error: &'a str,
    worker: &'a str,
}

impl<'a> From<&'a Attempt> for AttemptView<'a> {
    fn from(attempt: &'a Attempt) -> Self {
        let ended_at = attempt.at_ms.try_into().ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
        Self {
            epoch: attempt.epoch,
            ended_at,
            outcome: &attempt.outcome,
            error_code: &attempt.code,
            error: &attempt.error,
            worker: &attempt.worker,
        }
    }
}

#[derive(Serialize, Default)]
#[serde(rename_all = "camelCase")]
struct ReviewView<'a> {
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<VoiceView<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    requested: Option<VoiceView<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    replayed_as: Option<&'a str>,
}

#[derive(Serialize)]
struct VoiceView<'a> {
    person: &'a str,
    reason: Option<&'a str>,
    at: Timestamp,
}

impl<'a> From<&'a Voice> for VoiceView<'a> {
    fn from(voice: &'a Voice) -> Self {
        Self { person: &voice.person, reason: voice.reason.as_deref(), at: voice.at }
    }
}

impl<'a> From<&'a Review> for ReviewView<'a> {
    fn from(review: &'a Review) -> Self {
        let view = |state| Self { state, ..Self::default() };
        match review {
            Review::Open => view("open"),
            Review::DiscardRequested(voice) => Self { requested: Some(voice.into()), ..view("discard_requested") },
            Review::Replayed { task, by } => {
                Self { by: Some(by.into()), replayed_as: Some(task.as_str()), ..view("replayed") }
            }
            Review::Discarded { by, requested } => {
                Self { by: Some(by.into()), requested: requested.as_ref().map(VoiceView::from), ..view("discarded") }
            }
        }
    }
}
