//! What was said about an object, so that it is not said again.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

/// About how many objects it is remembered.
const MOST: usize = 1000;

/// The last thing that was said, by UID.
#[derive(Default)]
pub struct Said(Mutex<HashMap<String, String>>);

impl Said {
    /// Whether this was the last thing said about it.
    pub fn was(&self, uid: &str, words: &str) -> bool {
        self.all().get(uid).is_some_and(|said| said == words)
    }

    /// It was said: call it when it has arrived, and not before.
    pub fn remember(&self, uid: &str, words: &str) {
        let mut said = self.all();
        // What is said twice once in a long while does no harm.
        if said.len() > MOST {
            said.clear();
        }
        said.insert(uid.to_owned(), words.to_owned());
    }

    fn all(&self) -> MutexGuard<'_, HashMap<String, String>> {
        self.0.lock().expect("invariant: no panic while held")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_did_not_arrive_is_still_to_be_said() {
        let said = Said::default();
        assert!(!said.was("uid", "so"));
        assert!(!said.was("uid", "so"), "asking is not saying");
        said.remember("uid", "so");
        assert!(said.was("uid", "so") && !said.was("uid", "otherwise") && !said.was("other", "so"));
    }
}
