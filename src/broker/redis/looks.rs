//! A look at many quiet queues at once, for whoever waits for the first task of each.
//!
//! Producers that know nothing of Windlass tell nobody of what they add, so
//! somebody has to look; and thousands of quiet queues must cost next to
//! nothing. So one pair of commands looks at hundreds of queues of a server, and
//! where they tell that something is different, halves of them find out where.
//! A queue in which others are at work is never still: of such a one only the
//! lanes tell whether there is anything for those who wait.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, join, join_all};
use redis::{Cmd, Value};

use super::connection::Link;
use super::reply::{Malformed, list, number, parts, text, texts};
use super::{BrokerError, RedisBroker, Result};
use crate::broker::Stillness;
use crate::protocol::names::Capabilities;

/// How many queues one pair of commands looks at: some tenths of a millisecond.
const TOGETHER: usize = 500;
/// How long a server may take to answer before it counts as one that cannot be asked.
const PATIENCE: Duration = Duration::from_secs(2);

/// A queue, and how it was when it was quiet for some workers.
#[derive(Clone)]
pub struct Look {
    /// Where it is.
    pub broker: Arc<RedisBroker>,
    /// How it was.
    pub stillness: Stillness,
    /// What the workers can do.
    pub capabilities: Capabilities,
}

impl Look {
    /// Whether tasks of others lived in the queue: what comes and goes of them is no news.
    fn is_of_lanes(&self) -> bool {
        self.stillness.lives && self.capabilities.types().next().is_some()
    }
}

/// Whether something came to each queue since: a raw entry, ready work, the first live task or the
/// end of the last; of a queue with tasks of others, a raw entry or ready work of the workers' own
/// types. `None` where the server could not be asked.
pub async fn stirred(looks: &[Look]) -> Vec<Option<bool>> {
    let mut answers = vec![None; looks.len()];
    let servers = by_server(looks);
    let asked = servers.iter().map(|(link, group)| async move {
        let seen = tokio::time::timeout(PATIENCE, ask_server(link, group, looks)).await;
        seen.unwrap_or_else(|_| vec![None; group.len()])
    });
    // All at once: a server that hangs delays nobody else's queues for longer than that.
    for ((_, group), seen) in servers.iter().zip(join_all(asked).await) {
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
        let (still, lanes) = join(ask_together(link, &chosen), ask_lanes(link, &chosen)).await;
        let both = |(still, lanes): (Option<bool>, Option<bool>)| Some(still? || lanes?);
        seen.extend(still.into_iter().zip(lanes).map(both));
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

/// Whether each queue is as still as it was.
fn ask_together<'a>(link: &'a Link, looks: &'a [&'a Look]) -> BoxFuture<'a, Vec<Option<bool>>> {
    let ask = async move {
        match (ask(link, looks).await, looks) {
            (Ok(Seen { raw, changed: false }), _) => {
                looks.iter().map(|look| Some(raw.contains(&look.broker.keys.task))).collect()
            }
            (Err(BrokerError::Unreachable { .. } | BrokerError::Busy(_)), _) => vec![None; looks.len()],
            (Ok(_), [_]) => vec![Some(true)],
            (Err(_), [_]) => vec![None],
            // Something is different somewhere, or one queue's keys are not what they should be: which?
            _ => {
                let (left, right) = looks.split_at(looks.len() / 2);
                let (mut left, right) = join(ask_together(link, left), ask_together(link, right)).await;
                left.extend(right);
                left
            }
        }
    };
    ask.boxed()
}

/// What the commands saw.
struct Seen {
    /// Task streams with something new.
    raw: HashSet<String>,
    /// Whether any queue has ready work, a first live task, or none any more.
    changed: bool,
}

async fn ask(link: &Link, looks: &[&Look]) -> Result<Seen> {
    let (mut absent, mut present) = (Vec::new(), Vec::new());
    for look in looks.iter().filter(|look| !look.is_of_lanes()) {
        let keys = &look.broker.keys;
        absent.push(keys.ready());
        if look.stillness.lives { &mut present } else { &mut absent }.push(keys.live());
    }
    let mut read = redis::cmd("XREAD");
    read.arg("COUNT").arg(1).arg("STREAMS");
    for look in looks {
        read.arg(&look.broker.keys.task);
    }
    for look in looks {
        read.arg(&look.stillness.raw_up_to);
    }
    // What is there is not summed with what is not: one that went would hide one that came.
    let ((risen, left), raw) = join(join(how_many(link, &absent), how_many(link, &present)), call(link, &read)).await;
    let raw = streams(raw?).map_err(|malformed| malformed.during("stirred"))?;
    Ok(Seen { raw, changed: risen? > 0 || left? < present.len() })
}

/// Whether there is ready work of the workers' own types in each queue that has tasks of others; no for
/// the other queues.
async fn ask_lanes(link: &Link, looks: &[&Look]) -> Vec<Option<bool>> {
    let ready_of = |look: &Look| look.is_of_lanes().then(|| look.broker.keys.ready());
    let keys: HashSet<String> = looks.iter().filter_map(|look| ready_of(look)).collect();
    let lanes = lanes_of(link, &keys.into_iter().collect::<Vec<_>>()).await;
    let has_own = |look: &Look, lanes: &[String]| {
        let mut kinds = lanes.iter().filter_map(|lane| lane.rsplit_once(':'));
        kinds.any(|(kind, _)| look.capabilities.types().any(|own| own.as_str() == kind))
    };
    let answer = |look: &Look| match ready_of(look).and_then(|key| lanes.get(&key)) {
        None => Some(false),
        Some(lanes) => lanes.as_ref().map(|lanes| has_own(look, lanes)),
    };
    looks.iter().map(|look| answer(look)).collect()
}

/// The ready lanes of each queue that has any, by key; `None` of one that could not be asked.
fn lanes_of<'a>(link: &'a Link, keys: &'a [String]) -> BoxFuture<'a, HashMap<String, Option<Vec<String>>>> {
    let ask = async move {
        // Where all have some, or it cannot be told, each is asked.
        let number = if keys.len() > 1 { how_many(link, keys).await.unwrap_or(keys.len()) } else { keys.len() };
        if number == 0 {
            return HashMap::new();
        }
        if number < keys.len() {
            let (left, right) = keys.split_at(keys.len() / 2);
            let (mut left, right) = join(lanes_of(link, left), lanes_of(link, right)).await;
            left.extend(right);
            return left;
        }
        let each = keys.iter().map(|key| async move { (key.clone(), lanes_in(link, key).await.ok()) });
        join_all(each).await.into_iter().collect()
    };
    ask.boxed()
}

async fn lanes_in(link: &Link, ready: &str) -> Result<Vec<String>> {
    let lanes = call(link, redis::cmd("ZRANGE").arg(ready).arg(0).arg(-1)).await?;
    texts(lanes).map_err(|malformed| malformed.during("stirred"))
}

/// How many of these keys are there.
async fn how_many(link: &Link, keys: &[String]) -> Result<usize> {
    if keys.is_empty() {
        return Ok(0);
    }
    let found = call(link, redis::cmd("EXISTS").arg(keys)).await?;
    let found = number(found).map_err(|malformed| malformed.during("stirred"))?;
    Ok(usize::try_from(found).unwrap_or(usize::MAX))
}

/// A connection that broke while it was idle costs nothing.
async fn call(link: &Link, command: &Cmd) -> Result<Value> {
    match link.call(command).await {
        Err(fault) if matches!(fault.error, BrokerError::Unreachable { .. }) => Ok(link.call(command).await?),
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
