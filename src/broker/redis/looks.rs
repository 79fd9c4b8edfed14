//! A look at many quiet queues at once, for whoever waits for the first task of each.
//!
//! Producers that know nothing of Windlass tell nobody of what they add, so
//! somebody has to look; and thousands of quiet queues must cost next to
//! nothing. So one pair of commands looks at hundreds of queues of a server.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Value};

use super::connection::Link;
use super::reply::{Malformed, list, number, parts, text};
use super::{BrokerError, RedisBroker, Result};
use crate::broker::Stillness;

/// How many queues one pair of commands looks at: some tenths of a millisecond.
const TOGETHER: usize = 500;
/// How long a server may take to answer before it counts as one that cannot be asked.
const PATIENCE: Duration = Duration::from_secs(2);

/// A queue, and how it was when it was quiet.
#[derive(Clone)]
pub struct Look {
    /// Where it is.
    pub broker: Arc<RedisBroker>,
    /// How it was.
    pub stillness: Stillness,
}

/// Whether something came to each queue since: a raw entry, ready work, the
/// first live task or the end of the last. `None` where the server could not be asked.
pub async fn stirred(looks: &[Look]) -> Vec<Option<bool>> {
    let mut answers = vec![None; looks.len()];
    let servers = by_server(looks);
    let asked = servers.iter().map(|(link, group)| async move {
        let seen = tokio::time::timeout(PATIENCE, ask_server(link, group, looks)).await;
        seen.unwrap_or_else(|_| vec![None; group.len()])
    });
    // All at once: a server that hangs delays nobody else's queues for longer than that.
    for ((_, group), seen) in servers.iter().zip(futures::future::join_all(asked).await) {
        for (at, answer) in group.iter().zip(seen) {
            answers[*at] = answer;
        }
    }
    answers
}

async fn ask_server(link: &Link, group: &[usize], looks: &[Look]) -> Vec<Option<bool>> {
    let mut seen = Vec::with_capacity(group.len());
    for some in group.chunks(TOGETHER) {
        let chosen: Vec<&Look> = some.iter().map(|at| &looks[*at]).collect();
        seen.extend(ask_together(link, &chosen).await);
    }
    seen
}

/// The places in the list of those that one connection can ask for.
fn by_server(looks: &[Look]) -> Vec<(Arc<Link>, Vec<usize>)> {
    let mut servers: Vec<(Arc<Link>, Vec<usize>)> = Vec::new();
    for (at, look) in looks.iter().enumerate() {
        let link = &look.broker.link;
        match servers.iter_mut().find(|(known, _)| Arc::ptr_eq(known, link)) {
            Some((_, group)) => group.push(at),
            None => servers.push((link.clone(), vec![at])),
        }
    }
    servers
}

async fn ask_together(link: &Link, looks: &[&Look]) -> Vec<Option<bool>> {
    match ask(link, looks).await {
        Ok(Seen { raw, keys }) if keys == expected(looks) => {
            looks.iter().map(|look| Some(raw.contains(&look.broker.keys.task))).collect()
        }
        Err(BrokerError::Unreachable { .. } | BrokerError::Busy(_)) => vec![None; looks.len()],
        // Something is different somewhere, or one queue's keys are not what they should be: which?
        _ => futures::future::join_all(looks.iter().map(|look| ask_alone(link, look))).await,
    }
}

async fn ask_alone(link: &Link, look: &Look) -> Option<bool> {
    let seen = ask(link, &[look]).await.ok()?;
    Some(!seen.raw.is_empty() || seen.keys != expected(&[look]))
}

/// How many of the keys are there that [`ask`] counts while all is quiet.
fn expected(looks: &[&Look]) -> u64 {
    looks.iter().map(|look| u64::from(look.stillness.lives)).sum()
}

/// What a pair of commands saw.
struct Seen {
    /// Task streams with something new.
    raw: HashSet<String>,
    /// How many queues have ready work, plus how many have a live task.
    keys: u64,
}

async fn ask(link: &Link, looks: &[&Look]) -> Result<Seen> {
    let (mut exist, mut read) = (redis::cmd("EXISTS"), redis::cmd("XREAD"));
    read.arg("COUNT").arg(1).arg("STREAMS");
    for look in looks {
        let keys = &look.broker.keys;
        exist.arg(keys.ready()).arg(keys.live());
        read.arg(&keys.task);
    }
    for look in looks {
        read.arg(&look.stillness.raw_up_to);
    }
    let (keys, raw) = call_both(link, &exist, &read).await?;
    let read = || Ok(Seen { keys: number(keys)?, raw: streams(raw)? });
    read().map_err(|malformed: Malformed| malformed.during("stirred"))
}

/// A connection that broke while it was idle costs nothing.
async fn call_both(link: &Link, first: &Cmd, second: &Cmd) -> Result<(Value, Value)> {
    match link.call_both(first, second).await {
        Err(fault) if matches!(fault.error, BrokerError::Unreachable { .. }) => {
            Ok(link.call_both(first, second).await?)
        }
        answer => Ok(answer?),
    }
}

/// The names of the streams in an answer to XREAD.
fn streams(answer: Value) -> std::result::Result<HashSet<String>, Malformed> {
    match answer {
        Value::Nil => Ok(HashSet::new()),
        Value::Map(pairs) => pairs.into_iter().map(|(name, _)| text(name)).collect(),
        other => {
            let name_of = |stream: Value| -> std::result::Result<String, Malformed> {
                let [name, _] = parts(stream)?;
                text(name)
            };
            list(other)?.into_iter().map(name_of).collect()
        }
    }
}
