//! What was said about an object, so that it is not said again.

use std::collections::HashMap;
use std::sync::Mutex;

/// About how many objects it is remembered.
const MOST: usize = 1000;

/// The last thing that was said, by UID.
#[derive(Default)]
pub struct Said(Mutex<HashMap<String, String>>);

impl Said {
    /// Whether this was not the last thing said about it; from now on it is.
    pub fn is_new(&self, uid: &str, words: &str) -> bool {
        let mut said = self.0.lock().expect("invariant: no panic while held");
        // What is said twice once in a long while does no harm.
        if said.len() > MOST {
            said.clear();
        }
        said.insert(uid.to_owned(), words.to_owned()).as_deref() != Some(words)
    }
}
