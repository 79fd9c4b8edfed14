//! Who may use the local API right now.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::extract::FromRequestParts;
use axum::http::StatusCode;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;

use super::refusal::Refusal;
use crate::broker::Doubt;
use crate::protocol::names::IdempotencyKey;
use crate::worker::context::TaskContext;

/// How many ended tokens are remembered, to tell "too late" from "wrong".
const REMEMBERED: usize = 4096;

/// How many doubts one attempt may have at a time.
const MAX_DOUBTS: usize = 1000;

/// The tokens that are open, and the last ones that were.
#[derive(Default)]
pub(super) struct Desk {
    book: Mutex<Book>,
}

#[derive(Default)]
struct Book {
    open: HashMap<String, Admitted>,
    ended: HashSet<String>,
    ended_in_order: VecDeque<String>,
}

/// The handler of an attempt that is going on.
#[derive(Clone)]
pub(super) struct Admitted {
    /// The attempt.
    pub(super) task: TaskContext,
    /// What it was told to be in doubt.
    doubts: Arc<Mutex<HashMap<IdempotencyKey, Doubt>>>,
}

impl Admitted {
    /// The doubt that the attempt was told of.
    pub(super) fn doubt(&self, key: &IdempotencyKey) -> Option<Doubt> {
        self.doubts().get(key).cloned()
    }

    /// Remembers a doubt for the attempt.
    pub(super) fn remember_doubt(&self, key: IdempotencyKey, doubt: Doubt) -> Result<(), Refusal> {
        let mut doubts = self.doubts();
        if doubts.len() >= MAX_DOUBTS && !doubts.contains_key(&key) {
            let sentence = format!("{MAX_DOUBTS} effects are in doubt already: resolve or commit some of them first");
            return Err(Refusal::new(StatusCode::CONFLICT, "too_many_doubts", sentence));
        }
        doubts.insert(key, doubt);
        Ok(())
    }

    /// There is no doubt any more.
    pub(super) fn forget_doubt(&self, key: &IdempotencyKey) {
        self.doubts().remove(key);
    }

    fn doubts(&self) -> MutexGuard<'_, HashMap<IdempotencyKey, Doubt>> {
        self.doubts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FromRequestParts<Arc<Desk>> for Admitted {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, desk: &Arc<Desk>) -> Result<Self, Refusal> {
        let header = parts.headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let words = header.and_then(|value| value.trim().split_once(' '));
        let token = words.filter(|(kind, _)| kind.eq_ignore_ascii_case("bearer")).map(|(_, token)| token.trim());
        desk.who(token.unwrap_or_default())
    }
}

impl Desk {
    /// Makes a token for an attempt.
    pub(super) fn admit(&self, task: TaskContext) -> String {
        let token = token();
        self.book().open.insert(token.clone(), Admitted { task, doubts: Arc::default() });
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
    fn who(&self, token: &str) -> Result<Admitted, Refusal> {
        let unauthorized = |sentence| Err(Refusal::new(StatusCode::UNAUTHORIZED, "unauthorized", sentence));
        let book = self.book();
        match book.open.get(token) {
            Some(admitted) => Ok(admitted.clone()),
            None if token.is_empty() => {
                unauthorized("send the task's token: `Authorization: Bearer` and the value of WINDLASS_API_TOKEN")
            }
            None if book.ended.contains(token) => {
                let sentence = "the attempt that this token belongs to is over: end, and do no more for it";
                Err(Refusal::new(StatusCode::GONE, "attempt_over", sentence))
            }
            None => unauthorized("this token is not known here: send the one of this very task"),
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
