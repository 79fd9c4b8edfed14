//! How the operator reaches the Redis of a queue, and how that Redis is.
//!
//! Queues on one Redis share one connection, and one look at it: a thousand
//! queues whose Redis is gone cost one attempt to reach it, not a thousand.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use super::options::DefaultRedis;
use super::secrets::{SecretProblem, Secrets};
use crate::broker::BrokerError;
use crate::broker::redis::{Redis, RedisBroker, RedisOptions, ServerReport};
use crate::crd::{SecretKeyRef, TaskQueueSpec};
use crate::protocol::keys::Keys;
use crate::protocol::names::QueueName;

/// How long opening a connection, and an answer, may take: a controller has other objects to look after.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Where a spec says that its Redis is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source<'a> {
    /// It does not: on the operator's own.
    OperatorDefault,
    /// At this address, which holds no credentials.
    Url(&'a str),
    /// At the address in this Secret.
    Secret(&'a SecretKeyRef),
}

impl<'a> Source<'a> {
    /// What the spec says.
    pub fn of(spec: &'a TaskQueueSpec) -> Self {
        let redis = spec.broker.as_ref().and_then(|broker| broker.redis.as_ref());
        match redis {
            None => Self::OperatorDefault,
            // The schema allows exactly one of the two.
            Some(redis) => match (&redis.url_secret_ref, &redis.url) {
                (Some(secret), _) => Self::Secret(secret),
                (None, url) => Self::Url(url.as_deref().unwrap_or_default()),
            },
        }
    }
}

/// Why a queue's Redis is not even known.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Unresolved {
    /// The queue leaves it to the operator, and the operator has none.
    #[error(
        "the queue names no broker and the operator has no default Redis: set broker, or start the operator with \
         WINDLASS_REDIS_URL"
    )]
    NoDefault,
    /// A Secret did not give it.
    #[error(transparent)]
    Secret(#[from] SecretProblem),
    /// The address is none.
    #[error("{0}")]
    Url(BrokerError),
}

/// One Redis, shared by the queues on it.
pub struct Connection {
    /// The Redis.
    pub redis: Redis,
    /// Changes with the address, the credentials and the certificate authority. Whoever has it can try passwords
    /// on it, so it stays in this process.
    pub fingerprint: String,
    probe: RedisBroker,
    seen: tokio::sync::Mutex<Option<(Instant, Health)>>,
}

/// How a Redis is, or why nobody knows.
pub type Health = Result<ServerReport, BrokerError>;

impl Connection {
    fn open(options: RedisOptions, fingerprint: String) -> Result<Self, BrokerError> {
        let redis = Redis::new(options)?;
        // Any queue will do: what is asked for is the server.
        let nobody: QueueName = "windlass".parse().expect("invariant: a valid name");
        let probe = redis.queue(Keys::new(&nobody))?;
        Ok(Self { redis, fingerprint, probe, seen: tokio::sync::Mutex::new(None) })
    }

    /// One to nowhere, for what never uses it.
    #[cfg(test)]
    pub(super) fn for_tests() -> Self {
        Self::open(RedisOptions::new("redis://127.0.0.1:1"), "none".to_owned()).expect("a usable URL")
    }

    /// How the Redis is, as seen no longer ago than `freshness`. All who ask at once share one look.
    pub async fn health(&self, freshness: Duration) -> Health {
        let mut seen = self.seen.lock().await;
        if let Some((at, health)) = &*seen
            && at.elapsed() < freshness
        {
            return health.clone();
        }
        let mut health = self.probe.server_report().await;
        if health.is_err() && seen.as_ref().is_some_and(|(_, before)| before.is_ok()) {
            // One that was slow once is no news for a thousand queues.
            health = self.probe.server_report().await;
        }
        *seen = Some((Instant::now(), health.clone()));
        health
    }
}

/// The connections that are in use.
pub struct Connections {
    default: Option<DefaultRedis>,
    secrets: Arc<Secrets>,
    open: Mutex<HashMap<String, Weak<Connection>>>,
}

impl Connections {
    pub(super) fn new(default: Option<DefaultRedis>, secrets: Arc<Secrets>) -> Self {
        Self { default, secrets, open: Mutex::default() }
    }

    /// The connection of a queue; Secrets that it needs were read no longer ago than `freshness`.
    pub async fn of(
        &self,
        namespace: &str,
        spec: &TaskQueueSpec,
        freshness: Duration,
    ) -> Result<Arc<Connection>, Unresolved> {
        let (url, ca_pem) = self.address(namespace, spec, freshness).await?;
        let fingerprint = fingerprint(&url, ca_pem.as_deref());
        let mut open = self.open.lock().expect("invariant: no panic while held");
        if let Some(known) = open.get(&fingerprint).and_then(Weak::upgrade) {
            return Ok(known);
        }
        open.retain(|_, connection| connection.strong_count() > 0);
        let mut options = RedisOptions::new(url);
        options.ca_pem = ca_pem;
        options.connect_timeout = CONNECT_TIMEOUT;
        options.response_timeout = RESPONSE_TIMEOUT;
        let connection = Arc::new(Connection::open(options, fingerprint.clone()).map_err(Unresolved::Url)?);
        open.insert(fingerprint, Arc::downgrade(&connection));
        Ok(connection)
    }

    async fn address(
        &self,
        namespace: &str,
        spec: &TaskQueueSpec,
        freshness: Duration,
    ) -> Result<(String, Option<Vec<u8>>), Unresolved> {
        let Some(redis) = spec.broker.as_ref().and_then(|broker| broker.redis.as_ref()) else {
            return self.default.as_ref().ok_or(Unresolved::NoDefault)?.now().map_err(Unresolved::Url);
        };
        let url = match Source::of(spec) {
            Source::Secret(wanted) => self.secrets.text(namespace, wanted, freshness).await?,
            Source::Url(url) => url.to_owned(),
            Source::OperatorDefault => return Err(Unresolved::NoDefault),
        };
        let ca_pem = match &redis.tls {
            Some(tls) => Some(self.secrets.value(namespace, &tls.ca_secret_ref, freshness).await?),
            None => None,
        };
        Ok((redis.engine_url(&url), ca_pem))
    }
}

fn fingerprint(url: &str, ca_pem: Option<&[u8]>) -> String {
    let mut digest = sha1_smol::Sha1::new();
    for part in [url.as_bytes(), ca_pem.unwrap_or_default()] {
        digest.update(&(part.len() as u64).to_be_bytes());
        digest.update(part);
    }
    digest.digest().to_string()
}
