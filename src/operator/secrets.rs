//! Values out of Secrets, read one by one by name.
//!
//! The operator may `get` a Secret that an object names, and neither list nor
//! watch any: so what was read is kept for a while, and read again when it is
//! old or when the server it opens no longer lets us in.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};

use super::error::code_of;
use crate::crd::SecretKeyRef;

/// For how long what was read is good. Who finds it almost that old looks again after as long: a Secret that
/// many share is seen by each within a minute.
pub const GOOD_FOR: Duration = Duration::from_secs(30);
/// For how long after a read nobody asks again, not even because a password was refused.
pub const AT_LEAST: Duration = Duration::from_secs(5);

/// What nobody asked for in so long is not kept.
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
    },
}

/// What is in a Secret, and which version of it that is.
#[derive(Clone)]
struct Contents {
    data: Arc<BTreeMap<String, Vec<u8>>>,
    version: String,
}

/// When a Secret was read, and what was in it.
type Read = (Instant, Result<Contents, SecretProblem>);

/// Reads Secrets, and keeps them for a while.
pub struct Secrets {
    client: Client,
    read: Mutex<HashMap<(String, String), Read>>,
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
        if let Some((at, read)) = self.all().get(&key)
            && at.elapsed() < freshness
        {
            return read.clone();
        }
        let read = self.read(namespace, name).await;
        let mut all = self.all();
        all.retain(|_, (at, _)| at.elapsed() < FORGET_AFTER);
        all.insert(key, (Instant::now(), read.clone()));
        read
    }

    async fn read(&self, namespace: &str, name: &str) -> Result<Contents, SecretProblem> {
        let secret = Api::<Secret>::namespaced(self.client.clone(), namespace).get(name).await;
        let problem = |error: kube::Error| match code_of(&error) {
            Some(404) => SecretProblem::NotFound(name.to_owned()),
            _ => SecretProblem::Unreadable { name: name.to_owned(), why: error.to_string() },
        };
        let Secret { data, metadata, .. } = secret.map_err(problem)?;
        let data = data.unwrap_or_default().into_iter().map(|(key, value)| (key, value.0)).collect();
        // One of the same name that was made anew is another one.
        let version = [metadata.uid, metadata.resource_version].map(Option::unwrap_or_default).join("/");
        Ok(Contents { data: Arc::new(data), version })
    }

    fn all(&self) -> std::sync::MutexGuard<'_, HashMap<(String, String), Read>> {
        self.read.lock().expect("invariant: no panic while held")
    }
}

fn missing(wanted: &SecretKeyRef) -> SecretProblem {
    SecretProblem::NoKey { name: wanted.name.clone(), key: wanted.key.clone() }
}
