//! Looks for what changed in Redis while nobody told: a flush, a failover, a stranger's hand.
//!
//! Looking must cost next to nothing with ten thousand idle queues, so there are
//! several looks: at each server (is it there, is it the same?), at all policies of
//! a server in a few commands (are they there?), at all quiet queues in a few more
//! (did work come?), and at each queue in its turn (is it as it was provisioned?),
//! at a bounded pace.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use super::Pokes;
use super::quiet::QuietQueues;
use crate::broker::redis::Intact;
use crate::operator::connections::Connection;
use crate::operator::context::Context;
use crate::operator::directory::KnownQueue;

/// Between two looks at a server.
const ROUND: Duration = Duration::from_secs(5);
/// In how many rounds every queue has its turn, where the pace allows it: 20 seconds.
const ROUNDS_FOR_ALL: usize = 4;
/// The most queues of one server that are looked at in a round: up to a thousand queues have their turn within half a
/// minute. Where there are more, what all looks cost is what is bounded, at a hundred commands a second.
const MOST_A_ROUND: usize = 200;
const FEW: usize = 1000;
/// How many policies are asked for in one command.
const POLICIES_A_COMMAND: usize = 500;
/// How many queues are looked at together.
const TOGETHER: usize = 4;

/// What is remembered of a server between rounds.
#[derive(Default)]
struct Beat {
    /// Where the turn of single queues has got to.
    at: usize,
    quiet: QuietQueues,
}

/// Looks until it is dropped.
pub(super) async fn patrol(context: Arc<Context>, pokes: Pokes) {
    let mut beats: HashMap<String, Beat> = HashMap::new();
    let mut walking: JoinSet<(String, Beat)> = JoinSet::new();
    let mut out: HashSet<String> = HashSet::new();
    let mut rounds = tokio::time::interval(ROUND);
    rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = rounds.tick() => {}
            Some(Ok((fingerprint, beat))) = walking.join_next() => {
                out.remove(&fingerprint);
                beats.insert(fingerprint, beat);
                continue;
            }
        }
        if !context.leads() {
            continue;
        }
        if context.history.look().await {
            context.directory.all().iter().for_each(|known| pokes.poke(&known.name));
        }
        let servers = by_server(&context);
        beats.retain(|fingerprint, _| servers.contains_key(fingerprint));
        for (fingerprint, (connection, queues)) in servers {
            // A server that does not answer delays the look at itself, and at no other.
            if !out.insert(fingerprint.clone()) {
                continue;
            }
            let beat = beats.remove(&fingerprint).unwrap_or_default();
            let (context, pokes) = (context.clone(), pokes.clone());
            walking.spawn(async move { (fingerprint, walk(beat, &context, &connection, &queues, &pokes).await) });
        }
    }
}

type Servers = HashMap<String, (Arc<Connection>, Vec<Arc<KnownQueue>>)>;

fn by_server(context: &Context) -> Servers {
    let mut servers = Servers::new();
    for known in context.directory.all() {
        let of = servers.entry(known.connection.fingerprint.clone());
        of.or_insert_with(|| (known.connection.clone(), Vec::new())).1.push(known);
    }
    for (_, queues) in servers.values_mut() {
        queues.sort_by(|a, b| a.name.cmp(&b.name));
    }
    servers
}

/// One round at one server.
async fn walk(
    mut beat: Beat,
    context: &Context,
    connection: &Connection,
    queues: &[Arc<KnownQueue>],
    pokes: &Pokes,
) -> Beat {
    let health = connection.health(ROUND / 2).await;
    // Compared with what each queue's status says, and not with the last round: nothing can come in between.
    let other = |known: &&Arc<KnownQueue>| known.findings().is_none_or(|found| !found.agrees_with(&health));
    queues.iter().filter(other).for_each(|known| pokes.poke(&known.name));
    if health.is_err() {
        return beat;
    }
    let mut share_a_server = true;
    for chunk in queues.chunks(POLICIES_A_COMMAND) {
        let keys: Vec<_> = chunk.iter().map(|known| known.broker.keys()).collect();
        match connection.redis.count_policies(&keys).await {
            Ok(Some(count)) if count < chunk.len() as u64 => chunk.iter().for_each(|known| pokes.poke(&known.name)),
            Ok(Some(_)) => {}
            // A Cluster keeps each queue elsewhere: the turn of single queues finds what is gone.
            Ok(None) => share_a_server = false,
            Err(_) => return beat,
        }
    }
    if share_a_server {
        for known in beat.quiet.look(queues).await {
            context.loops.look(&known).await;
        }
    }
    look_at_some(&mut beat, queues, pokes).await;
    beat
}

/// Looks at the queues whose turn it is.
async fn look_at_some(beat: &mut Beat, queues: &[Arc<KnownQueue>], pokes: &Pokes) {
    let most = if queues.len() <= FEW { MOST_A_ROUND } else { MOST_A_ROUND / 2 };
    let share = queues.len().div_ceil(ROUNDS_FOR_ALL).min(most);
    if beat.at >= queues.len() {
        beat.at = 0;
    }
    let turn = &queues[beat.at..queues.len().min(beat.at + share)];
    beat.at += share;
    let mut looks = futures::stream::iter(turn.iter().cloned())
        .map(|known| async move { (known.broker.inspect(&known.policy).await, known) })
        .buffer_unordered(TOGETHER);
    while let Some((inspection, known)) = looks.next().await {
        let right = matches!(&inspection, Ok(found) if found.policy == Intact::Yes
            && found.groups == Intact::Yes && found.owner.as_deref() == Some(known.owner.as_str()));
        if !right {
            pokes.poke(&known.name);
        }
    }
}
