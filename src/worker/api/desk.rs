//! Who may use the local API right now.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::worker::context::TaskContext;

/// How many ended tokens are remembered, to tell "too late" from "wrong".
const REMEMBERED: usize = 4096;

/// The tokens that are open, and the last ones that were.
#[derive(Default)]
pub(super) struct Desk {
    book: Mutex<Book>,
}

#[derive(Default)]
struct Book {
    open: HashMap<String, TaskContext>,
    ended: HashSet<String>,
    ended_in_order: VecDeque<String>,
}

/// Whom a token lets in.
pub(super) enum Admission {
    /// The handler of this attempt.
    Open(TaskContext),
    /// An attempt that is over.
    Ended,
    /// Nobody.
    Unknown,
}

impl Desk {
    /// Makes a token for an attempt.
    pub(super) fn admit(&self, task: TaskContext) -> String {
        let token = token();
        self.book().open.insert(token.clone(), task);
        token
    }

    /// Ends a token.
    pub(super) fn dismiss(&self, token: &str) {
        let mut book = self.book();
        if book.open.remove(token).is_none() {
            return;
        }
        book.ended.insert(token.to_owned());
        book.ended_in_order.push_back(token.to_owned());
        if book.ended_in_order.len() > REMEMBERED
            && let Some(oldest) = book.ended_in_order.pop_front()
        {
            book.ended.remove(&oldest);
        }
    }

    /// Whom a token lets in.
    pub(super) fn who(&self, token: &str) -> Admission {
        let book = self.book();
        match book.open.get(token) {
            Some(task) => Admission::Open(task.clone()),
            None if book.ended.contains(token) => Admission::Ended,
            None => Admission::Unknown,
        }
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        // Each change is one step: a panic elsewhere leaves nothing half done.
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// 256 bits that nobody can guess, as hex digits.
fn token() -> String {
    let mut bytes = [0u8; 32];
    rustls::crypto::ring::default_provider()
        .secure_random
        .fill(&mut bytes)
        .expect("invariant: the system has randomness");
    bytes.iter().fold(String::with_capacity(64), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
