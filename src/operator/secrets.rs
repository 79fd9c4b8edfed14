//! Values out of Secrets, read one by one by name.
//!
//! The operator may `get` a Secret that an object names, and neither list nor
//! watch any: so what was read is kept for a while, and read again when it is
//! old or when the server it opens no longer lets us in. An API server that does
//! not answer for a while takes no password away that works.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};

use super::error::{OperatorError, bounded};
use crate::crd::SecretKeyRef;

/// For how long what was read is good. Who finds it almost that old looks again after as long: a Secret that
/// many share is seen by each within a minute.
pub const GOOD_FOR: Duration = Duration::from_secs(30);
/// For how long after a read nobody asks again, not even because a password was refused.
pub const AT_LEAST: Duration = Duration::from_secs(5);

/// What nobody asked for in so long is not kept, and neither is what could not be read again for so long.
const FORGET_AFTER: Duration = Duration::from_secs(300);

/// Why a value is not to be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SecretProblem {
    /// There is no such Secret.
    #[error("Secret {0} does not exist: create it, or name another one")]
    NotFound(String),
    /// The Secret lacks the key.
    #[error("Secret {name} has no key {key:?}: add it, or name another one")]
    NoKey {
        /// The Secret.
        name: String,
        /// What it lacks.
        key: String,
    },
    /// The value is no text.
    #[error("key {key:?} of Secret {name} is not text")]
    NotText {
        /// The Secret.
        name: String,
        /// The key.
        key: String,
    },
    /// The API server did not give it.
    #[error("Secret {name} could not be read: {why}")]
    Unreadable {
        /// The Secret.
        name: String,
        /// What the API server said.
        why: String,
        /// Whether that was a decision: we may not read it.
        denied: bool,
    },
}

/// What is in a Secret, and which version of it that is.
#[derive(Clone)]
struct Contents {
    data: Arc<BTreeMap<String, Vec<u8>>>,
    version: String,
}

/// What is known of a Secret.
struct Known {
    /// When it was last read, or tried to be.
    at: Instant,
    /// When it was last read indeed.
    read_at: Instant,
    outcome: Result<Contents, SecretProblem>,
}

impl Known {
    /// What is known after another read. One that failed leaves what was read before, for a while, unless the answer is
    /// that there is no such Secret, or none for us.
    fn after(before: Option<Self>, now: Instant, read: Result<Contents, SecretProblem>) -> Self {
        match (before, read) {
            (
                Some(Self { read_at, outcome: Ok(contents), .. }),
                Err(SecretProblem::Unreadable { name, why, denied }),
            ) if !denied && now.duration_since(read_at) < FORGET_AFTER => {
                tracing::warn!(secret = name, why, "a Secret could not be read again: what it held before is used");
                Self { at: now, read_at, outcome: Ok(contents) }
            }
            (_, outcome) => Self { at: now, read_at: now, outcome },
        }
    }
}

/// Reads Secrets, and keeps them for a while.
pub struct Secrets {
    client: Client,
    read: Mutex<HashMap<(String, String), Known>>,
}

impl Secrets {
    pub(super) fn new(client: Client) -> Self {
        Self { client, read: Mutex::default() }
    }

    /// A value that was read no longer ago than `freshness`.
    pub async fn value(
        &self,
        namespace: &str,
        wanted: &SecretKeyRef,
        freshness: Duration,
    ) -> Result<Vec<u8>, SecretProblem> {
        let contents = self.contents(namespace, &wanted.name, freshness).await?;
        contents.data.get(&wanted.key).cloned().ok_or_else(|| missing(wanted))
    }

    /// What changes with every change of the Secret in which the value is, and tells nothing about it.
    pub async fn version(
        &self,
        namespace: &str,
        wanted: &SecretKeyRef,
        freshness: Duration,
    ) -> Result<String, SecretProblem> {
        let contents = self.contents(namespace, &wanted.name, freshness).await?;
        if contents.data.contains_key(&wanted.key) { Ok(contents.version) } else { Err(missing(wanted)) }
    }

    /// The same as text, without the line ending that files bring along.
    pub async fn text(
        &self,
        namespace: &str,
        wanted: &SecretKeyRef,
        freshness: Duration,
    ) -> Result<String, SecretProblem> {
        let bytes = self.value(namespace, wanted, freshness).await?;
        let not_text = |_| SecretProblem::NotText { name: wanted.name.clone(), key: wanted.key.clone() };
        Ok(String::from_utf8(bytes).map_err(not_text)?.trim().to_owned())
    }

    async fn contents(&self, namespace: &str, name: &str, freshness: Duration) -> Result<Contents, SecretProblem> {
        let key = (namespace.to_owned(), name.to_owned());
        let freshness = freshness.max(AT_LEAST);
        if let Some(known) = self.all().get(&key)
            && known.at.elapsed() < freshness
        {
            return known.outcome.clone();
        }
        let read = self.read(namespace, name).await;
        let mut all = self.all();
        let known = Known::after(all.remove(&key), Instant::now(), read);
        let outcome = known.outcome.clone();
        all.retain(|_, known| known.at.elapsed() < FORGET_AFTER);
        all.insert(key, known);
        outcome
    }

    async fn read(&self, namespace: &str, name: &str) -> Result<Contents, SecretProblem> {
        let secrets = Api::<Secret>::namespaced(self.client.clone(), namespace);
        let secret = bounded(secrets.get(name), "give us the Secret").await;
        let problem = |error: OperatorError| match error.code() {
            Some(404) => SecretProblem::NotFound(name.to_owned()),
            code => {
                SecretProblem::Unreadable { name: name.to_owned(), why: error.to_string(), denied: code == Some(403) }
            }
        };
        let Secret { data, metadata, .. } = secret.map_err(problem)?;
        let data = data.unwrap_or_default().into_iter().map(|(key, value)| (key, value.0)).collect();
        // One of the same name that was made anew is another one.
        let version = [metadata.uid, metadata.resource_version].map(Option::unwrap_or_default).join("/");
        Ok(Contents { data: Arc::new(data), version })
    }

    fn all(&self) -> std::sync::MutexGuard<'_, HashMap<(String, String), Known>> {
        self.read.lock().expect("invariant: no panic while held")
    }
}

fn missing(wanted: &SecretKeyRef) -> SecretProblem {
    SecretProblem::NoKey { name: wanted.name.clone(), key: wanted.key.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contents(version: &str) -> Contents {
        Contents { data: Arc::default(), version: version.to_owned() }
    }

    fn unreadable(denied: bool) -> SecretProblem {
        SecretProblem::Unreadable { name: "redis".into(), why: "no answer".into(), denied }
    }

    fn version(known: &Known) -> Result<&str, &SecretProblem> {
        known.outcome.as_ref().map(|contents| contents.version.as_str())
    }

    #[test]
    fn what_was_read_outlives_reads_that_fail_for_a_while() {
        let start = Instant::now();
        let first = Known::after(None, start, Ok(contents("1")));
        let nearly = start + FORGET_AFTER - Duration::from_secs(1);
        let kept = Known::after(Some(first), nearly, Err(unreadable(false)));
        assert_eq!(version(&kept), Ok("1"));
        let over = Known::after(Some(kept), start + FORGET_AFTER, Err(unreadable(false)));
        assert_eq!(version(&over), Err(&unreadable(false)), "not for ever");
        let again = Known::after(Some(over), start + FORGET_AFTER, Ok(contents("2")));
        assert_eq!(version(&again), Ok("2"));
    }

    #[test]
    fn what_is_gone_or_denied_is_not_used_any_more() {
        let start = Instant::now();
        for answer in [SecretProblem::NotFound("redis".into()), unreadable(true)] {
            let known = Known::after(Some(Known::after(None, start, Ok(contents("1")))), start, Err(answer.clone()));
            assert_eq!(version(&known), Err(&answer));
        }
        let never = Known::after(None, start, Err(unreadable(false)));
        assert_eq!(version(&never), Err(&unreadable(false)), "there was nothing before");
    }
}
