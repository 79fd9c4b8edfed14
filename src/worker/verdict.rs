//! What is settled when an attempt was asked to end before it was done.

use std::any::Any;
use std::time::Duration;

use super::CancelReason;
use crate::broker::Outcome;

/// The most of a panic's message that is kept.
const LONGEST_PANIC: usize = 1024;

/// Whose word it is that an attempt has lost its lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Certainty {
    /// The worker's own, because it could not renew for too long.
    Presumed,
    /// The broker's: nothing that the attempt says counts any more.
    Confirmed,
}

/// What to settle: `ended` is how the handler ended by itself, `None` if it was
/// dropped. `None` when there is nothing to be said any more.
pub(super) fn verdict(reason: Option<CancelReason>, certainty: Certainty, ended: Option<Outcome>) -> Option<Outcome> {
    let back = Outcome::Released { delay: Duration::ZERO };
    match (reason, ended) {
        (None, Some(outcome)) => Some(outcome),
        (Some(CancelReason::Cancelled), _) => None,
        (Some(CancelReason::LeaseLost), _) if certainty == Certainty::Confirmed => None,
        // What did get done is done, whatever was asked for meanwhile; the fence decides whether it counts.
        (_, Some(outcome @ (Outcome::Success { .. } | Outcome::Permanent { .. } | Outcome::RateLimited { .. }))) => {
            Some(outcome)
        }
        (Some(CancelReason::TimedOut), Some(Outcome::Failure { error, .. })) => {
            Some(Outcome::failure("timeout", format!("the attempt took longer than it may, and then: {error}")))
        }
        (Some(CancelReason::TimedOut), Some(_)) => {
            Some(Outcome::failure("timeout", "the attempt took longer than it may"))
        }
        (Some(CancelReason::TimedOut), None) => Some(Outcome::failure(
            "timeout",
            "the attempt took longer than it may and did not end when asked; its handler was dropped",
        )),
        (Some(CancelReason::Draining), Some(outcome @ Outcome::Released { .. })) => Some(outcome),
        // A failure is most likely what being asked to end looks like: it costs the task nothing.
        (Some(CancelReason::LeaseLost | CancelReason::Draining) | None, _) => Some(back),
    }
}

/// A handler's panic as an outcome.
pub(super) fn panicked(panic: &(dyn Any + Send)) -> Outcome {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    let text = text.unwrap_or("with no message");
    Outcome::failure("panic", format!("the handler panicked: {}", &text[..text.floor_char_boundary(LONGEST_PANIC)]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use Certainty::{Confirmed, Presumed};

    fn released() -> Option<Outcome> {
        Some(Outcome::Released { delay: Duration::ZERO })
    }

    #[test]
    fn an_attempt_that_was_left_alone_says_itself_how_it_ended() {
        for outcome in [Outcome::success(), Outcome::failure("a", "b"), Outcome::permanent("a", "b")] {
            assert_eq!(verdict(None, Presumed, Some(outcome.clone())), Some(outcome));
        }
    }

    #[test]
    fn what_was_done_counts_though_the_end_was_asked_for() {
        for reason in [CancelReason::TimedOut, CancelReason::Draining, CancelReason::LeaseLost] {
            assert_eq!(verdict(Some(reason), Presumed, Some(Outcome::success())), Some(Outcome::success()));
        }
    }

    #[test]
    fn a_drain_costs_no_attempt_and_a_timeout_does() {
        let failure = || Some(Outcome::failure("interrupted", "asked to end"));
        assert_eq!(verdict(Some(CancelReason::Draining), Presumed, failure()), released());
        assert_eq!(verdict(Some(CancelReason::Draining), Presumed, None), released());
        for ended in [failure(), None, released()] {
            let Some(Outcome::Failure { code, .. }) = verdict(Some(CancelReason::TimedOut), Presumed, ended) else {
                panic!("a timeout is a failure");
            };
            assert_eq!(code, "timeout");
        }
    }

    #[test]
    fn nothing_is_said_about_a_task_that_is_known_to_be_somebody_elses() {
        assert_eq!(verdict(Some(CancelReason::LeaseLost), Confirmed, Some(Outcome::success())), None);
        assert_eq!(verdict(Some(CancelReason::Cancelled), Presumed, Some(Outcome::success())), None);
        assert_eq!(verdict(Some(CancelReason::LeaseLost), Presumed, None), released(), "it may still be ours");
    }

    #[test]
    fn a_panic_is_told_with_a_bounded_message() {
        let Outcome::Failure { error, code } = panicked(&"é".repeat(5000)) else { panic!("a failure") };
        assert_eq!(code, "panic");
        assert!(error.len() < LONGEST_PANIC + 50);
        let Outcome::Failure { error, .. } = panicked(&7_u8) else { panic!("a failure") };
        assert!(error.contains("no message"));
    }
}
