//! Looks for what changed in Redis while nobody told: a flush, a failover, a stranger's hand.
//!
//! Looking must cost next to nothing with ten thousand idle queues, so there are
//! several looks: at each server (is it there, is it the same?), at all policies of
//! a server in a few commands (are they there?), at all quiet queues in a few more
//! (did work come?), at each queue's policy and groups in its turn (are they as they
//! were made?), and in a slower turn at whose it is, both at a bounded pace.

use std::collections::{HashMap, HashSet};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt, StreamExt};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use super::Pokes;
use super::quiet::QuietQueues;
use crate::broker::BrokerError;
use crate::broker::redis::Intact;
use crate::operator::connections::Connection;
use crate::operator::context::Context;
use crate::operator::directory::KnownQueue;

/// Between two looks at a server.
const ROUND: Duration = Duration::from_secs(5);
/// How fast policy and groups of a server's queues are looked at, with two commands each: up to a thousand in 25 seconds.
const INTACT: Pace = Pace { rounds: 4, most: 200, most_of_many: 100 };
/// How fast it is looked at whose each queue is, with a command each: up to a thousand in 100 seconds.
const OWNER: Pace = Pace { rounds: 12, most: 50, most_of_many: 25 };
/// Up to here, a queue's turn comes soon. Where there are more, what all looks cost together is what is bounded.
const FEW: usize = 1000;
/// How many queues are asked for in one command.
const QUEUES_A_COMMAND: usize = 500;
/// How many queues are looked at together.
const TOGETHER: usize = 4;

/// What is remembered of a server between rounds.
#[derive(Default)]
struct Beat {
    intact: Turn,
    owner: Turn,
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
        let servers = by_server(&context);
        beats.retain(|fingerprint, _| servers.contains_key(fingerprint));
        for (fingerprint, (connection, queues)) in servers {
            // A server that does not answer delays the look at itself, and at no other.
            if !out.insert(fingerprint.clone()) {
                continue;
            }
            let beat = beats.remove(&fingerprint).unwrap_or_default();
            let (context, pokes) = (context.clone(), pokes.clone());
            walking.spawn(async move {
                let walk = AssertUnwindSafe(walk(beat, &context, &connection, &queues, &pokes)).catch_unwind();
                // A server whose look ended without a word would never be looked at again.
                (fingerprint, walk.await.unwrap_or_default())
            });
        }
    }
}

/// Looks at the event log until it is dropped. Beside the patrol, because one that hangs must not delay the looks at Redis.
pub(super) async fn watch_history(context: Arc<Context>, pokes: Pokes) {
    let mut rounds = tokio::time::interval(ROUND);
    rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        rounds.tick().await;
        if context.leads() && context.history.look().await {
            context.directory.all().iter().for_each(|known| pokes.poke(&known.name));
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
    for chunk in queues.chunks(QUEUES_A_COMMAND) {
        let keys: Vec<_> = chunk.iter().map(|known| known.broker.keys()).collect();
        match connection.redis.are_there(&keys).await {
            Ok(Some(true)) => {}
            Ok(Some(false)) => chunk.iter().for_each(|known| pokes.poke(&known.name)),
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
    let some = beat.intact.next(queues, &INTACT);
    let is_intact = async |known: &KnownQueue| matches!(known.broker.is_intact(&known.policy).await, Ok(Intact::Yes));
    poke_those(some, pokes, is_intact).await;
    let some = beat.owner.next(queues, &OWNER);
    poke_those(some, pokes, async |known| matches!(owner(known).await, Ok(Some(found)) if found == known.owner)).await;
}

/// Whose a queue is. Where it adopted streams, each has a record of its own.
async fn owner(known: &KnownQueue) -> Result<Option<String>, BrokerError> {
    match known.broker.keys().adopts() {
        true => Ok(known.broker.inspect(&known.policy).await?.owner),
        false => known.broker.owner().await,
    }
}

/// Has those reconciled that are not right.
async fn poke_those(some: &[Arc<KnownQueue>], pokes: &Pokes, is_right: impl AsyncFn(&KnownQueue) -> bool) {
    let mut looks = futures::stream::iter(some.iter().cloned())
        .map(|known| async { (is_right(&known).await, known) })
        .buffer_unordered(TOGETHER);
    while let Some((is_right, known)) = looks.next().await {
        if !is_right {
            pokes.poke(&known.name);
        }
    }
}

/// How many have their turn in a round.
struct Pace {
    /// In so many rounds everyone has had a turn, if the bounds allow it.
    rounds: usize,
    most: usize,
    /// The bound where there are more than a [`FEW`].
    most_of_many: usize,
}

/// Whose turn it is.
#[derive(Default)]
struct Turn {
    /// Where it has got to.
    at: usize,
}

impl Turn {
    fn next<'a, T>(&mut self, all: &'a [T], pace: &Pace) -> &'a [T] {
        let most = if all.len() <= FEW { pace.most } else { pace.most_of_many };
        let share = all.len().div_ceil(pace.rounds).min(most);
        let from = if self.at < all.len() { self.at } else { 0 };
        self.at = from + share;
        &all[from..all.len().min(self.at)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACE: Pace = Pace { rounds: 4, most: 10, most_of_many: 3 };

    fn seen(turn: &mut Turn, all: &[usize], rounds: usize) -> Vec<usize> {
        (0..rounds).flat_map(|_| turn.next(all, &PACE).to_vec()).collect()
    }

    #[test]
    fn everyone_has_a_turn_within_the_rounds_or_at_the_bound() {
        for count in [0, 1, 3, 4, 7, 40] {
            let all: Vec<usize> = (0..count).collect();
            let seen: HashSet<usize> = seen(&mut Turn::default(), &all, 4).into_iter().collect();
            assert_eq!(seen.len(), count, "within four rounds");
        }
        let (all, mut turn): (Vec<usize>, _) = ((0..95).collect(), Turn::default());
        assert_eq!(seen(&mut turn, &all, 10), all, "at the bound");
        assert_eq!(seen(&mut turn, &all, 1), all[..10], "and from the beginning again");
        assert_eq!(seen(&mut turn, &all[..5], 1), all[..2], "where many are gone, too");
        let many: Vec<usize> = (0..FEW + 1).collect();
        assert_eq!(seen(&mut Turn::default(), &many, 2), many[..6], "what all of them cost is bounded");
    }
}
