//! A change that many pools share reaches them a few at a time.
//!
//! When the operator is upgraded, or its Redis or a Secret changes, the pods of
//! every pool are to be replaced. All at once would be felt by everybody, and a
//! bad image by everybody at once. What the owner of a pool or of its queue
//! changed is the owner's own business and never waits.

use std::collections::HashSet;
use std::sync::Mutex;

use k8s_openapi::api::apps::v1::Deployment;
use kube::ResourceExt;

use super::deployment::{ASKED, Draft, TEMPLATE, is_paused, is_rolled_out, is_stuck};

/// How many pools roll at once because of what they share.
const AT_ONCE: usize = 3;

/// What of a pool's pods is to change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    /// Nothing.
    None,
    /// What an owner asked for, or there are none yet.
    Asked,
    /// Only what Windlass adds: the worker, and how it reaches Redis.
    Ours,
}

/// What would change if the draft were applied.
pub(super) fn change(live: Option<&Deployment>, draft: &Draft) -> Change {
    let Some(live) = live else { return Change::Asked };
    let known = |name: &str| live.annotations().get(name).map(String::as_str);
    if known(TEMPLATE) == Some(draft.digest.as_str()) {
        Change::None
    } else if known(ASKED) == Some(draft.asked.as_str()) {
        Change::Ours
    } else {
        Change::Asked
    }
}

/// The pools that roll because of what they share.
#[derive(Default)]
pub(super) struct Pacing(Mutex<HashSet<String>>);

/// Whether a pool may roll.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// It may.
    Now,
    /// Others roll: later.
    Later,
}

impl Pacing {
    /// Whether a pool may change its pods now. It has its turn until it is rolled out, or stuck
    /// for so long that the others need not wait for it.
    pub(super) fn turn(&self, uid: &str, change: Change, live: Option<&Deployment>) -> Turn {
        let mut rolling = self.0.lock().expect("invariant: no panic while held");
        match change {
            Change::None => {
                if live.is_some_and(|live| is_rolled_out(live) || is_stuck(live) || is_paused(live)) {
                    rolling.remove(uid);
                }
                Turn::Now
            }
            Change::Asked => Turn::Now,
            // No pod, nobody who could feel it; and what somebody paused rolls when that somebody lets it.
            Change::Ours if live.and_then(|live| live.spec.as_ref()?.replicas) == Some(0) => Turn::Now,
            Change::Ours if live.is_some_and(is_paused) => {
                rolling.remove(uid);
                Turn::Now
            }
            Change::Ours if rolling.contains(uid) || rolling.len() < AT_ONCE => {
                rolling.insert(uid.to_owned());
                Turn::Now
            }
            Change::Ours => Turn::Later,
        }
    }

    /// Forgets a pool that is gone.
    pub(super) fn forget(&self, uid: &str) {
        self.0.lock().expect("invariant: no panic while held").remove(uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn draft(asked: &str, digest: &str) -> Draft {
        Draft { template: json!({}), asked: asked.into(), digest: digest.into() }
    }

    fn live(asked: &str, digest: &str, available: i32) -> Deployment {
        serde_json::from_value(json!({
            "metadata": {"name": "d", "generation": 1, "annotations": {ASKED: asked, TEMPLATE: digest}},
            "spec": {"replicas": 1, "selector": {}, "template": {}},
            "status": {"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1, "availableReplicas": available},
        }))
        .expect("a Deployment")
    }

    #[test]
    fn what_changed_is_told_by_who_changed_it() {
        assert_eq!(change(None, &draft("a", "1")), Change::Asked);
        assert_eq!(change(Some(&live("a", "1", 1)), &draft("a", "1")), Change::None);
        assert_eq!(change(Some(&live("a", "1", 1)), &draft("a", "2")), Change::Ours);
        assert_eq!(change(Some(&live("a", "1", 1)), &draft("b", "2")), Change::Asked);
    }

    #[test]
    fn a_new_worker_image_reaches_a_few_pools_at_a_time_and_an_owners_change_all_at_once() {
        let pacing = Pacing::default();
        let old = live("a", "1", 1);
        let turn = |uid: &str, change| pacing.turn(uid, change, Some(&old));
        for uid in ["a", "b", "c"] {
            assert_eq!(turn(uid, Change::Ours), Turn::Now);
        }
        assert_eq!((turn("d", Change::Ours), turn("d", Change::Asked)), (Turn::Later, Turn::Now));
        assert_eq!(turn("a", Change::Ours), Turn::Now, "who has a turn keeps it");
        pacing.turn("a", Change::None, Some(&live("a", "2", 0)));
        assert_eq!(turn("d", Change::Ours), Turn::Later, "the first still rolls");
        pacing.turn("a", Change::None, Some(&live("a", "2", 1)));
        assert_eq!(turn("d", Change::Ours), Turn::Now);
        pacing.forget("b");
        assert_eq!(turn("e", Change::Ours), Turn::Now);
    }

    #[test]
    fn a_rollout_that_is_stuck_does_not_hold_up_the_others_for_ever() {
        let pacing = Pacing::default();
        let old = live("a", "1", 1);
        for uid in ["a", "b", "c"] {
            pacing.turn(uid, Change::Ours, Some(&old));
        }
        let mut stuck = live("a", "2", 0);
        let given_up = json!([{"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}]);
        stuck.status.as_mut().expect("a status").conditions = serde_json::from_value(given_up).expect("conditions");
        pacing.turn("a", Change::None, Some(&stuck));
        assert_eq!(pacing.turn("d", Change::Ours, Some(&old)), Turn::Now);
    }

    #[test]
    fn rollouts_that_somebody_paused_keep_no_turn() {
        let pacing = Pacing::default();
        let old = live("a", "1", 1);
        let paused = |digest: &str| {
            let mut paused = live("a", digest, 0);
            paused.spec.as_mut().expect("a spec").paused = Some(true);
            paused
        };
        for uid in ["a", "b", "c"] {
            pacing.turn(uid, Change::Ours, Some(&old));
        }
        assert_eq!(pacing.turn("d", Change::Ours, Some(&old)), Turn::Later);
        assert_eq!(pacing.turn("p", Change::Ours, Some(&paused("1"))), Turn::Now, "it takes nobody's turn");
        pacing.turn("a", Change::None, Some(&paused("2")));
        pacing.turn("b", Change::Ours, Some(&paused("1")));
        for uid in ["d", "e"] {
            assert_eq!(pacing.turn(uid, Change::Ours, Some(&old)), Turn::Now);
        }
        assert_eq!(pacing.turn("f", Change::Ours, Some(&old)), Turn::Later, "c still rolls");
    }
}
