//! The states of a task and the moves between them.
//!
//! The core (`queued`, `running`, `retrying`, `dlq_pending`, `dlq_recorded`,
//! `succeeded`, `failed`) is frozen; `scheduled`, `blocked` and
//! `waiting_approval` are ways to begin, `cancelled` is a way to end.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The code of a move that the table does not allow.
pub const TRANSITION_INVALID: &str = "WF_STATE_TRANSITION_INVALID";

/// Where a task is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Waits for its time.
    Scheduled,
    /// Waits for tasks that it depends on.
    Blocked,
    /// Waits for a person's yes.
    WaitingApproval,
    /// Ready to be claimed for the first time.
    Queued,
    /// Claimed by a worker.
    Running,
    /// Was running, and will again: it waits for its delay or for a worker.
    Retrying,
    /// Has failed for good; its dead letter is not recorded yet.
    DlqPending,
    /// Its dead letter is recorded.
    DlqRecorded,
    /// Done. Final.
    Succeeded,
    /// Dead, with a dead letter to show for it. Final.
    Failed,
    /// Taken back before it was done. Final.
    Cancelled,
}

impl State {
    /// Every state, in the order of a task's life.
    pub const ALL: [State; 11] = [
        State::Scheduled,
        State::Blocked,
        State::WaitingApproval,
        State::Queued,
        State::Running,
        State::Retrying,
        State::DlqPending,
        State::DlqRecorded,
        State::Succeeded,
        State::Failed,
        State::Cancelled,
    ];

    /// Whether the state machine has a step from here to there.
    pub fn may_become(self, to: State) -> bool {
        use State::*;
        match self {
            Scheduled | Blocked | WaitingApproval => matches!(to, Queued | DlqPending | Cancelled),
            Queued => matches!(to, Running | DlqPending | Cancelled),
            Running => matches!(to, Succeeded | Retrying | WaitingApproval | DlqPending | Cancelled),
            Retrying => matches!(to, Running | DlqPending | Cancelled),
            DlqPending => to == DlqRecorded,
            DlqRecorded => to == Failed,
            Succeeded | Failed | Cancelled => false,
        }
    }

    /// Whether nothing can follow.
    pub fn is_final(self) -> bool {
        matches!(self, State::Succeeded | State::Failed | State::Cancelled)
    }

    /// Whether a new task may begin here.
    pub fn is_initial(self) -> bool {
        matches!(self, State::Scheduled | State::Blocked | State::WaitingApproval | State::Queued)
    }

    /// The spelling that people and the wire use.
    pub fn as_str(self) -> &'static str {
        match self {
            State::Scheduled => "scheduled",
            State::Blocked => "blocked",
            State::WaitingApproval => "waiting_approval",
            State::Queued => "queued",
            State::Running => "running",
            State::Retrying => "retrying",
            State::DlqPending => "dlq_pending",
            State::DlqRecorded => "dlq_recorded",
            State::Succeeded => "succeeded",
            State::Failed => "failed",
            State::Cancelled => "cancelled",
        }
    }

    /// The letter that packed records use: a live task carries its state in every write.
    pub fn letter(self) -> char {
        match self {
            State::Scheduled => 'S',
            State::Blocked => 'B',
            State::WaitingApproval => 'A',
            State::Queued => 'Q',
            State::Running => 'R',
            State::Retrying => 'T',
            State::DlqPending => 'P',
            State::DlqRecorded => 'D',
            State::Succeeded => 's',
            State::Failed => 'f',
            State::Cancelled => 'c',
        }
    }

    /// The state that a packed record's letter stands for.
    pub fn from_letter(letter: char) -> Option<State> {
        State::ALL.into_iter().find(|state| state.letter() == letter)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A word that is no state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown state {0:?}: use one of scheduled, blocked, waiting_approval, queued, running, retrying, \
     dlq_pending, dlq_recorded, succeeded, failed, cancelled"
)]
pub struct UnknownState(pub String);

impl FromStr for State {
    type Err = UnknownState;
    fn from_str(value: &str) -> Result<Self, UnknownState> {
        State::ALL.into_iter().find(|state| state.as_str() == value).ok_or_else(|| UnknownState(value.to_owned()))
    }
}

/// Why a task that was running is to run again; alerts tell a deploy from an outage by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RetryReason {
    /// Its handler said that it failed.
    Failure,
    /// Its worker gave it back, for instance while draining.
    Released,
    /// What it talks to asked for patience.
    RateLimited,
    /// Nobody renewed its lease in time.
    VisibilityTimeout,
    /// Its worker sent no heartbeat for too long.
    WorkerLost,
    /// Its worker's container started again.
    Superseded,
    /// Its worker's pod ended.
    PodGone,
    /// Its pod was deleted by force; it may still have run for a while.
    PodForceDeleted,
    /// Its entry was not where it had to be; the sweep put it back.
    Repaired,
}

impl RetryReason {
    /// Every reason.
    pub const ALL: [RetryReason; 9] = [
        RetryReason::Failure,
        RetryReason::Released,
        RetryReason::RateLimited,
        RetryReason::VisibilityTimeout,
        RetryReason::WorkerLost,
        RetryReason::Superseded,
        RetryReason::PodGone,
        RetryReason::PodForceDeleted,
        RetryReason::Repaired,
    ];

    /// The spelling that people and the wire use.
    pub fn as_str(self) -> &'static str {
        match self {
            RetryReason::Failure => "failure",
            RetryReason::Released => "released",
            RetryReason::RateLimited => "rate_limited",
            RetryReason::VisibilityTimeout => "visibility_timeout",
            RetryReason::WorkerLost => "worker_lost",
            RetryReason::Superseded => "superseded",
            RetryReason::PodGone => "pod_gone",
            RetryReason::PodForceDeleted => "pod_force_deleted",
            RetryReason::Repaired => "repaired",
        }
    }

    /// The reason that a packed record's word stands for.
    pub fn from_word(word: &str) -> Option<RetryReason> {
        RetryReason::ALL.into_iter().find(|reason| reason.as_str() == word)
    }

    /// Whether the task was taken from its worker, which then counts as reclaimed.
    pub fn is_reclaim(self) -> bool {
        !matches!(self, RetryReason::Failure | RetryReason::Released | RetryReason::RateLimited)
    }
}

impl fmt::Display for RetryReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_frozen_core_holds_and_nothing_else_does() {
        use State::*;
        let core = [
            (Queued, Running),
            (Running, Succeeded),
            (Running, Retrying),
            (Running, DlqPending),
            (Retrying, Running),
            (Retrying, DlqPending),
            (DlqPending, DlqRecorded),
            (DlqRecorded, Failed),
        ];
        for (from, to) in core {
            assert!(from.may_become(to), "{from} -> {to}");
        }
        for from in State::ALL {
            assert!(!from.may_become(from), "{from} -> {from}");
            assert_eq!(from.may_become(Failed), from == DlqRecorded, "{from} -> failed");
            assert!(!from.is_final() || State::ALL.iter().all(|to| !from.may_become(*to)), "{from} is final");
        }
        assert!(!DlqPending.may_become(Cancelled) && !DlqRecorded.may_become(Cancelled));
    }

    #[test]
    fn every_state_can_be_reached_and_spelt() {
        for state in State::ALL {
            assert!(state.is_initial() || State::ALL.iter().any(|from| from.may_become(state)), "{state}");
            assert_eq!(state.as_str().parse::<State>().expect("round trip"), state);
            assert_eq!(State::from_letter(state.letter()), Some(state));
        }
        let error = "sleeping".parse::<State>().expect_err("no such state");
        assert!(error.to_string().contains("use one of scheduled"), "{error}");
    }
}
