//! A task: what a producer asks for, and what anybody can see of it.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::fingerprint::{Fingerprint, fingerprint};
use super::names::{DeadLetterId, Epoch, IdempotencyKey, TaskId, TaskType, TenantId, TraceId, WorkerId};
use super::state::{RetryReason, State};

/// A JSON text, kept byte for byte as it was given.
///
/// Parsing and printing it again would change numbers that no machine type
/// holds; the text is checked once and then only passed on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Payload(String);

/// Why a payload was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPayload {
    /// The text is not JSON.
    #[error("the payload is not JSON: {0}; quote text like \"this\", and write no NaN or Infinity")]
    NotJson(String),
    /// The value has no JSON form.
    #[error("the payload cannot be written as JSON: {0}")]
    NoJsonForm(String),
}

impl Payload {
    /// Checks and takes a JSON text.
    pub fn from_json(text: impl Into<String>) -> Result<Self, InvalidPayload> {
        let text = text.into();
        serde_json::from_str::<&RawValue>(&text).map_err(|error| InvalidPayload::NotJson(error.to_string()))?;
        Ok(Self(text))
    }

    /// Writes a value as JSON. Numbers that JSON cannot hold (NaN, infinity) are refused,
    /// not silently turned into null.
    pub fn encode<T: Serialize>(value: &T) -> Result<Self, InvalidPayload> {
        let refused = |error: &dyn fmt::Display| InvalidPayload::NoJsonForm(error.to_string());
        let packed = rmp_serde::to_vec_named(value).map_err(|error| refused(&error))?;
        rmp_serde::from_slice::<finite::Finite>(&packed).map_err(|error| refused(&error))?;
        serde_json::to_string(value).map(Self).map_err(|error| refused(&error))
    }

    /// A text that a broker has handed out and whose producer was not checked
    /// (a raw entry). [`Payload::parse`] says whether it is JSON.
    pub(crate) fn unchecked(text: String) -> Self {
        Self(text)
    }

    /// The JSON text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The payload as a value of one's own.
    pub fn parse<'a, T: Deserialize<'a>>(&'a self) -> Result<T, InvalidPayload> {
        serde_json::from_str(&self.0).map_err(|error| InvalidPayload::NotJson(error.to_string()))
    }

    /// Names the content: the same for two texts that differ only in white
    /// space or in the order of keys.
    pub fn content_hash(&self, task_type: &TaskType) -> Result<IdempotencyKey, InvalidPayload> {
        let mut value: serde_json::Value = self.parse()?;
        value.sort_all_objects();
        let hash = sha1_smol::Sha1::from(format!("{task_type}\n{value}")).digest().to_string();
        Ok(IdempotencyKey::new(hash).expect("invariant: a hex digest is a valid key"))
    }
}

impl From<serde_json::Value> for Payload {
    fn from(value: serde_json::Value) -> Self {
        Self(value.to_string())
    }
}

impl Default for Payload {
    fn default() -> Self {
        Self("null".to_owned())
    }
}

/// When a task may first run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum NotBefore {
    /// At once.
    #[default]
    Now,
    /// So long after it was accepted, by the broker's clock.
    After(Duration),
    /// At this time; at once if that is past.
    At(Timestamp),
}

/// What a producer asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewTask {
    /// Made here, so that a repeated enqueue is the same task.
    pub id: TaskId,
    /// What kind of work it is.
    pub task_type: TaskType,
    /// The work itself.
    pub payload: Payload,
    /// Its urgency; the queue's default when absent.
    pub priority: Option<u8>,
    /// When it may first run.
    pub not_before: NotBefore,
    /// The caller's name for this piece of work.
    pub idempotency_key: Option<IdempotencyKey>,
    /// On whose behalf.
    pub tenant_id: Option<TenantId>,
    /// Follows it to its handler.
    pub trace_id: Option<TraceId>,
    /// Its own retry limit instead of the queue's.
    pub max_retries: Option<u32>,
    /// What the broker carries along without reading it.
    pub extras: Extras,
}

/// What the broker carries along without reading it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extras {
    /// Free words to find it by.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The task that made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_id: Option<TaskId>,
    /// How long one attempt may take, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// The dead letter that it stands in for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replay_of: Option<String>,
}

/// Why labels were refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("labels refused: {0}")]
pub struct InvalidLabels(pub String);

impl Extras {
    /// Most labels of one task.
    pub const MAX_LABELS: usize = 32;

    /// Checks number and size of labels.
    pub fn validate(&self) -> Result<(), InvalidLabels> {
        if self.labels.len() > Self::MAX_LABELS {
            return Err(InvalidLabels(format!("{} labels; use at most {}", self.labels.len(), Self::MAX_LABELS)));
        }
        match self.labels.iter().find(|(key, value)| key.is_empty() || key.len() > 63 || value.len() > 256) {
            Some((key, _)) => {
                let key: String = key.chars().take(63).collect();
                Err(InvalidLabels(format!("{key:?}: use a key of 1 to 63 bytes and a value of at most 256")))
            }
            None => Ok(()),
        }
    }

    /// Whether there is nothing to carry.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl NewTask {
    /// A task of that type with that payload, and nothing special about it.
    pub fn new(task_type: TaskType, payload: impl Into<Payload>) -> Self {
        Self {
            id: TaskId::generate(),
            task_type,
            payload: payload.into(),
            priority: None,
            not_before: NotBefore::Now,
            idempotency_key: None,
            tenant_id: None,
            trace_id: None,
            max_retries: None,
            extras: Extras::default(),
        }
    }
}

/// All that can be seen of a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskView {
    /// Its id.
    pub id: TaskId,
    /// What kind of work it is.
    #[serde(rename = "type")]
    pub task_type: TaskType,
    /// Where it is in its life.
    pub state: State,
    /// Its urgency.
    pub priority: u8,
    /// The work itself, while it is live or a dead letter; results do not repeat it.
    pub payload: Option<Payload>,
    /// Failures so far.
    pub retry_count: u32,
    /// Workers lost so far.
    pub crash_count: u32,
    /// Releases and rate limits so far.
    pub release_count: u32,
    /// Number of its current or last claim.
    pub epoch: Epoch,
    /// The caller's name for this piece of work.
    pub idempotency_key: Option<IdempotencyKey>,
    /// Follows it to its handler.
    pub trace_id: Option<TraceId>,
    /// On whose behalf.
    pub tenant_id: Option<TenantId>,
    /// Its own retry limit.
    pub max_retries: Option<u32>,
    /// What it carries along.
    #[serde(flatten)]
    pub extras: Extras,
    /// When it was accepted.
    pub created_at: Timestamp,
    /// When it came into its state.
    pub updated_at: Timestamp,
    /// When its last attempt began, where that is known.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
    /// When it may run, while it waits for that.
    pub due_at: Option<Timestamp>,
    /// Who runs it, or ran it last.
    pub worker: Option<WorkerId>,
    /// Why it is to run again.
    pub retry_reason: Option<RetryReason>,
    /// How far it has come, as its handler last told, while it is live.
    pub progress: Option<Payload>,
    /// What came of it.
    pub result: Option<Payload>,
    /// What went wrong last.
    pub error: Option<String>,
    /// The kind of what went wrong last.
    pub error_code: Option<String>,
    /// Its dead letter.
    pub dlq_id: Option<String>,
    /// What it was replayed as.
    pub replayed_as: Option<TaskId>,
}

/// Everything about a task that died.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    /// Its name.
    pub id: DeadLetterId,
    /// What kind of work it was.
    pub task_type: TaskType,
    /// The work itself.
    pub payload: Payload,
    /// Its urgency.
    pub priority: u8,
    /// What went wrong last.
    pub error: String,
    /// The kind of what went wrong last.
    pub error_code: String,
    /// Failures.
    pub retry_count: u32,
    /// Lost workers.
    pub crash_count: u32,
    /// Releases and rate limits.
    pub release_count: u32,
    /// The caller's name for this piece of work.
    pub idempotency_key: Option<IdempotencyKey>,
    /// On whose behalf.
    pub tenant_id: Option<TenantId>,
    /// Follows it.
    pub trace_id: Option<TraceId>,
    /// Its own retry limit.
    pub max_retries: Option<u32>,
    /// What it carried along.
    pub extras: Extras,
    /// When it was accepted.
    pub created_at: Timestamp,
    /// When it died.
    pub failed_at: Timestamp,
    /// Its attempts, oldest first, as far as they are kept.
    pub history: Vec<Attempt>,
}

impl DeadLetter {
    /// Names what it died of.
    pub fn fingerprint(&self) -> Fingerprint {
        fingerprint(&self.task_type, &self.error_code, &self.error)
    }

    /// The dead letter that it was a replay of.
    pub fn replay_of(&self) -> Option<DeadLetterId> {
        self.extras.replay_of.as_deref().and_then(|id| id.parse().ok())
    }
}

/// One attempt that did not succeed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// The claim's number.
    pub epoch: u64,
    /// When it ended, in milliseconds since 1970.
    pub at_ms: u64,
    /// How it ended: a retry reason, or `permanent`.
    pub outcome: String,
    /// The kind of error.
    pub code: String,
    /// The beginning of the error.
    pub error: String,
    /// Who ran it.
    pub worker: String,
}

mod finite {
    //! A reader that accepts any value whose numbers are all finite.

    use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

    pub(super) struct Finite;

    impl<'de> Deserialize<'de> for Finite {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            deserializer.deserialize_any(FiniteVisitor)
        }
    }

    struct FiniteVisitor;

    impl<'de> Visitor<'de> for FiniteVisitor {
        type Value = Finite;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a value without NaN or infinity")
        }

        fn visit_f64<E: Error>(self, value: f64) -> Result<Finite, E> {
            let advice = "a number is NaN or infinite; send null or a string instead";
            if value.is_finite() { Ok(Finite) } else { Err(E::custom(advice)) }
        }

        fn visit_bool<E: Error>(self, _: bool) -> Result<Finite, E> {
            Ok(Finite)
        }

        fn visit_i64<E: Error>(self, _: i64) -> Result<Finite, E> {
            Ok(Finite)
        }

        fn visit_u64<E: Error>(self, _: u64) -> Result<Finite, E> {
            Ok(Finite)
        }

        fn visit_str<E: Error>(self, _: &str) -> Result<Finite, E> {
            Ok(Finite)
        }

        fn visit_bytes<E: Error>(self, _: &[u8]) -> Result<Finite, E> {
            Ok(Finite)
        }

        fn visit_unit<E: Error>(self) -> Result<Finite, E> {
            Ok(Finite)
        }

        fn visit_none<E: Error>(self) -> Result<Finite, E> {
            Ok(Finite)
        }

        fn visit_some<D: Deserializer<'de>>(self, inner: D) -> Result<Finite, D::Error> {
            Finite::deserialize(inner)
        }

        fn visit_newtype_struct<D: Deserializer<'de>>(self, inner: D) -> Result<Finite, D::Error> {
            Finite::deserialize(inner)
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Finite, A::Error> {
            while items.next_element::<Finite>()?.is_some() {}
            Ok(Finite)
        }

        fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Finite, A::Error> {
            while entries.next_entry::<IgnoredAny, Finite>()?.is_some() {}
            Ok(Finite)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_is_kept_byte_for_byte() {
        let odd = "{ \"b\": 1.00000000000000000001, \"a\": 123456789012345678901234567890 }";
        assert_eq!(Payload::from_json(odd).expect("JSON").as_str(), odd);
    }

    #[test]
    fn what_is_not_json_is_refused_with_a_sentence() {
        for bad in ["", "{", "NaN", "{\"a\": NaN}", "[Infinity]", "hello", "{}{}"] {
            let error = Payload::from_json(bad).expect_err(bad);
            assert!(error.to_string().contains("is not JSON"), "{error}");
        }
    }

    #[test]
    fn nan_in_a_rust_value_is_refused_and_not_turned_into_null() {
        #[derive(Serialize)]
        struct Reading {
            values: Vec<Option<f64>>,
        }
        let error = Payload::encode(&Reading { values: vec![Some(1.5), Some(f64::NAN)] }).expect_err("NaN");
        assert!(error.to_string().contains("NaN or infinite"), "{error}");
        assert!(Payload::encode(&f32::INFINITY).is_err());
        let fine = Payload::encode(&Reading { values: vec![Some(1.5), None] }).expect("finite");
        assert_eq!(fine.as_str(), r#"{"values":[1.5,null]}"#);
    }

    #[test]
    fn the_content_hash_sees_content_alone() {
        let send = TaskType::new("send").expect("valid");
        let hash = |text: &str, t: &TaskType| Payload::from_json(text).expect("JSON").content_hash(t).expect("JSON");
        assert_eq!(hash(r#"{"a":{"c":1,"b":2}}"#, &send), hash(r#"{ "a": {"b": 2, "c": 1} }"#, &send));
        assert_ne!(hash(r#"{"a":1}"#, &send), hash(r#"{"a":2}"#, &send));
        assert_ne!(hash("{}", &send), hash("{}", &TaskType::default()));
    }

    #[test]
    fn labels_are_bounded() {
        let mut extras = Extras::default();
        extras.labels.insert("k".repeat(64), "v".into());
        assert!(extras.validate().expect_err("long key").to_string().contains("1 to 63"));
        extras.labels = (0..40).map(|i| (i.to_string(), String::new())).collect();
        assert!(extras.validate().is_err());
    }
}
