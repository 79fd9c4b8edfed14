//! Which queues a Redis holds, and under which names.
//!
//! There is no index of queues: a queue is its own keys, and an index in
//! another slot could not be kept with them. People who ask for all queues
//! wait for a scan.

use std::sync::Arc;

use redis::Value;

use super::connection::Link;
use super::error::classify;
use super::reply::{Malformed, list, parts, text, texts};
use super::{BrokerError, Redis, Result};
use crate::protocol::keys::{Keys, RecordedNames};
use crate::protocol::names::QueueName;

/// How many keys a server looks at before it answers: some tenths of a millisecond.
const SCAN_COUNT: usize = 1000;

/// The field of `meta` that names the owner.
pub(super) const OWNER: &str = "owner";
/// The fields of `meta` that tell names, in the order of [`RecordedNames`].
const NAMES: [&str; 4] = ["task", "result", "dlq", "group"];

/// A queue that somebody provisioned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueRecord {
    /// Its keys, adopted names included.
    pub keys: Keys,
    /// Who provisioned it.
    pub owner: Option<String>,
}

impl Redis {
    /// Whether a server answers. A user who may not even ask that is answered, too.
    pub async fn reach(&self) -> Result<()> {
        match ask(&self.link_of(""), &redis::cmd("PING")).await {
            Err(BrokerError::Denied(why)) if why.contains("NOPERM") => Ok(()),
            answer => answer.map(drop),
        }
    }

    /// The queue of that name, with the names that it adopted; `None` if nobody provisioned it here.
    pub async fn find(&self, queue: &QueueName) -> Result<Option<QueueRecord>> {
        match self.find_own(queue).await? {
            Some(found) => Ok(Some(found)),
            None => self.find_adopted(queue).await,
        }
    }

    /// The queue of that name, unless it adopted names with a hash tag of their own.
    pub async fn find_own(&self, queue: &QueueName) -> Result<Option<QueueRecord>> {
        self.record(&Keys::new(queue).policy()).await
    }

    /// The queue of that name that adopted names with a hash tag of their own, which brought
    /// its policy under that tag. Looks at every key of every server.
    pub async fn find_adopted(&self, queue: &QueueName) -> Result<Option<QueueRecord>> {
        for key in self.scan(&Keys::adopted_policy(queue)).await? {
            if let Some(found) = self.record(&key).await? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Every queue that was provisioned here, by name. Looks at every key of every server.
    pub async fn queues(&self) -> Result<Vec<QueueRecord>> {
        let mut found = Vec::new();
        for key in self.scan(Keys::ANY_POLICY).await? {
            found.extend(self.record(&key).await?);
        }
        found.sort_by(|a, b| a.keys.queue().cmp(b.keys.queue()));
        Ok(found)
    }

    /// The queue whose policy has that key, if there is one.
    async fn record(&self, policy: &str) -> Result<Option<QueueRecord>> {
        let Some(own) = Keys::of_policy(policy, None) else { return Ok(None) };
        let link = self.link_of(policy);
        let mut known = redis::cmd("HEXISTS");
        known.arg(policy).arg("version");
        if matches!(ask(&link, &known).await?, Value::Int(0)) {
            return Ok(None);
        }
        let mut meta = redis::cmd("HMGET");
        meta.arg(own.meta()).arg(OWNER).arg(&NAMES);
        let words = texts(ask(&link, &meta).await?).map_err(|m| m.during("find"))?;
        let [owner, task, result, dead_letter, group] =
            words.try_into().map_err(|_| Malformed("not 5 fields of meta".to_owned()).during("find"))?;
        let names = RecordedNames { task, result, dead_letter, group };
        let complete =
            [&names.task, &names.result, &names.dead_letter, &names.group].iter().all(|name| !name.is_empty());
        let keys = Keys::of_policy(policy, complete.then_some(names)).unwrap_or(own);
        Ok(Some(QueueRecord { keys, owner: (!owner.is_empty()).then_some(owner) }))
    }

    /// A connection to the server that has a key.
    fn link_of(&self, key: &str) -> Arc<Link> {
        self.shared.clone().unwrap_or_else(|| Arc::new(self.link(key.to_owned())))
    }

    /// All keys of all servers that match.
    async fn scan(&self, pattern: &str) -> Result<Vec<String>> {
        let malformed = |m: Malformed| m.during("scan");
        let mut keys = std::collections::BTreeSet::new();
        for mut server in self.link(String::new()).open_all().await? {
            let mut cursor = "0".to_owned();
            loop {
                let mut scan = redis::cmd("SCAN");
                scan.arg(&cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(SCAN_COUNT);
                let answer = scan.query_async::<Value>(&mut server).await;
                let answer = answer.map_err(|error| classify(&error, &self.endpoint.shown).error)?;
                let [next, page] = parts(answer).map_err(malformed)?;
                for key in list(page).map_err(malformed)? {
                    keys.insert(text(key).map_err(malformed)?);
                }
                cursor = text(next).map_err(malformed)?;
                if cursor == "0" {
                    break;
                }
            }
        }
        Ok(keys.into_iter().collect())
    }
}

/// Sends a command that may be repeated: a connection that broke while it was idle costs nothing.
async fn ask(link: &Link, command: &redis::Cmd) -> Result<Value> {
    match link.call(command).await {
        Err(fault) if matches!(fault.error, BrokerError::Unreachable { .. }) => Ok(link.call(command).await?),
        answer => Ok(answer?),
    }
}
