//! When an object is looked at again after a step failed, and for how long it has been waited for.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::broker::ErrorClass;

/// The first wait, and the longest one. The longest is well within the time in which drift is to be repaired.
const FIRST: Duration = Duration::from_millis(500);
const LONGEST: Duration = Duration::from_secs(15);
/// What the same call will not mend is tried again all the same: somebody may mend it elsewhere.
const LONGEST_FOR_INVALID: Duration = Duration::from_secs(60);

/// How many objects are remembered.
const MOST: usize = 20_000;

/// How often each object has failed in a row. Keyed by UID, so that an object that comes back begins anew.
#[derive(Default)]
pub struct Failures(Mutex<HashMap<String, u32>>);

impl Failures {
    /// Counts one more, and says how long to wait.
    pub fn wait_after(&self, uid: &str, class: ErrorClass) -> Duration {
        let mut all = self.all();
        // Objects that went while they failed are forgotten all at once; the others merely begin anew.
        if all.len() > MOST {
            all.clear();
        }
        let failures = all.entry(uid.to_owned()).or_default();
        *failures = failures.saturating_add(1);
        delay(*failures, class, fastrand::f64())
    }

    /// Forgets them: it worked, or the object is gone.
    pub fn forget(&self, uid: &str) {
        self.all().remove(uid);
    }

    fn all(&self) -> MutexGuard<'_, HashMap<String, u32>> {
        self.0.lock().expect("invariant: no panic while held")
    }
}

/// Since when each object is known to be on its way out, by this process's clock. Keyed by UID.
#[derive(Default)]
pub struct Leaving(Mutex<HashMap<String, Instant>>);

impl Leaving {
    /// When this was first asked about the object.
    pub fn since(&self, uid: &str) -> Instant {
        let mut all = self.all();
        // Whoever is left out begins to wait anew.
        if all.len() > MOST {
            all.clear();
        }
        *all.entry(uid.to_owned()).or_insert_with(Instant::now)
    }

    /// Forgets it: the object is gone.
    pub fn forget(&self, uid: &str) {
        self.all().remove(uid);
    }

    fn all(&self) -> MutexGuard<'_, HashMap<String, Instant>> {
        self.0.lock().expect("invariant: no panic while held")
    }
}

/// The wait after so many failures in a row; `dice` from 0 to 1 spreads it.
fn delay(failures: u32, class: ErrorClass, dice: f64) -> Duration {
    let longest = match class {
        ErrorClass::Invalid | ErrorClass::Bug => LONGEST_FOR_INVALID,
        ErrorClass::Transient | ErrorClass::Conflict => LONGEST,
    };
    let doubled = FIRST.saturating_mul(1 << failures.saturating_sub(1).min(16));
    doubled.min(longest).mul_f64(0.5 + dice / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_a_bound_and_are_spread() {
        let waits: Vec<Duration> = (1..40).map(|n| delay(n, ErrorClass::Transient, 1.0)).collect();
        assert_eq!(&waits[..3], [FIRST, FIRST * 2, FIRST * 4]);
        assert!(waits.iter().all(|wait| *wait <= LONGEST) && waits[38] == LONGEST);
        assert_eq!(delay(30, ErrorClass::Transient, 0.0), LONGEST / 2);
        assert_eq!(delay(30, ErrorClass::Invalid, 1.0), LONGEST_FOR_INVALID);
    }

    #[test]
    fn a_success_begins_anew() {
        let failures = Failures::default();
        for _ in 0..20 {
            failures.wait_after("uid", ErrorClass::Transient);
        }
        failures.forget("uid");
        assert!(failures.wait_after("uid", ErrorClass::Transient) <= FIRST);
    }

    #[test]
    fn a_wait_begins_when_it_is_first_asked_about() {
        let leaving = Leaving::default();
        let since = leaving.since("uid");
        assert_eq!(leaving.since("uid"), since);
        leaving.forget("uid");
        assert!(leaving.since("uid") >= since && leaving.all().len() == 1);
    }
}
