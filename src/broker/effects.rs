//! Outside effects that must happen at most once: what their operations take and answer.
//!
//! A broker cannot undo what happened elsewhere, and it cannot know whether an
//! attempt that died in the middle has reached the other side. So it hands out
//! the right to act once, remembers the answer, and says "in doubt" between the
//! two. Only who has asked the other side may go on from there.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::Lease;
use crate::protocol::names::{Epoch, IdempotencyKey, TaskId, WorkerId};
use crate::protocol::task::Payload;

/// Names one call that begins an effect, so that the call can be repeated
/// when its answer was lost without casting doubt on itself.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EffectMark(String);

impl EffectMark {
    /// A mark that nobody has used.
    pub fn generate() -> Self {
        Self(format!("{:032x}", fastrand::u128(..)))
    }

    /// The mark as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// A mark as a broker kept it.
    pub(crate) fn kept(text: String) -> Self {
        Self(text)
    }
}

/// An attempt began an effect and never said how it ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Doubt {
    /// When it was begun.
    pub since: Timestamp,
    /// By which task.
    pub task: TaskId,
    /// By which claim of it.
    pub epoch: Epoch,
    /// By which worker.
    pub worker: Option<WorkerId>,
    /// Which beginning this is about: a doubt that was resolved meanwhile resolves nothing.
    pub mark: EffectMark,
}

/// With what right a caller begins or ends an effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing<'a> {
    /// Its own: it is the first, or the one that began.
    Own,
    /// It has asked the other side about this doubt. To begin says that the
    /// effect did not happen; to commit says that it did.
    Checked(&'a Doubt),
}

/// An attempt wants to begin an effect.
#[derive(Debug, Clone)]
pub struct EffectRequest<'a> {
    /// Whose attempt it is. The effect belongs to the queue and the tenant of its task.
    pub lease: &'a Lease,
    /// Names the effect.
    pub key: &'a IdempotencyKey,
    /// Names this call.
    pub mark: &'a EffectMark,
    /// With what right.
    pub standing: Standing<'a>,
}

/// Whether an effect may begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EffectBegun {
    /// It may: nobody else is told so.
    Begin,
    /// Somebody began it and never said how it ended. Ask the other side, then
    /// begin or commit with [`Standing::Checked`].
    InDoubt(Doubt),
    /// It happened.
    Done {
        /// What came of it.
        answer: Payload,
    },
    /// The lease is gone, and with it the right to ask.
    LeaseLost,
}

/// What became of an effect's commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EffectCommitted {
    /// The answer is kept.
    Committed,
    /// An answer was kept before, and stays.
    AlreadyCommitted {
        /// The first one.
        answer: Payload,
    },
    /// Somebody else has begun the effect since.
    Superseded,
    /// Nobody has begun it, or that was too long ago.
    Unknown,
}

/// What became of giving an effect up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EffectAbandoned {
    /// It may begin anew.
    Abandoned,
    /// It is not this attempt's to give up: it is done, somebody else's, or unknown.
    NotOurs,
}
