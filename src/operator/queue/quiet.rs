//! Sees work come to queues in which nothing was going on.
//!
//! Where no history is recorded, scripts tell nobody of a new task, and a queue
//! without workers is counted once in minutes. Just such a queue is what people
//! look at when nothing happens. So all quiet queues of a server are looked at
//! together, two commands for hundreds of them, and those to which something
//! came are counted at once.

use std::collections::HashMap;
use std::sync::Arc;

use crate::broker::Broker;
use crate::broker::redis::{Look, stirred};
use crate::operator::directory::KnownQueue;
use crate::protocol::names::{Capabilities, QueueName};

/// How many queues a round begins to look at: each has to be asked how it is first, with a dozen commands.
const NEW_A_ROUND: usize = 10;

/// The quiet queues of one server, and how each was when it became quiet.
#[derive(Default)]
pub(super) struct QuietQueues(HashMap<QueueName, Look>);

impl QuietQueues {
    /// Those of these queues to which something came since the last look.
    pub(super) async fn look(&mut self, queues: &[Arc<KnownQueue>]) -> Vec<Arc<KnownQueue>> {
        let quiet: HashMap<_, _> =
            queues.iter().filter(|known| !known.queue.is_busy()).map(|known| (known.name.clone(), known)).collect();
        self.0.retain(|name, look| quiet.get(name).is_some_and(|known| Arc::ptr_eq(&known.broker, &look.broker)));
        let mut awake = self.meet(quiet.values().copied()).await;
        let (names, looks): (Vec<_>, Vec<_>) = self.0.iter().map(|(name, look)| (name.clone(), look.clone())).unzip();
        for (name, answer) in names.iter().zip(stirred(&looks).await) {
            if answer == Some(true) {
                self.0.remove(name);
                awake.extend(quiet.get(name).map(|known| Arc::clone(known)));
            }
        }
        awake
    }

    /// Asks queues that became quiet how they are; answers with those that are not quiet any more.
    async fn meet(&mut self, quiet: impl Iterator<Item = &Arc<KnownQueue>>) -> Vec<Arc<KnownQueue>> {
        let mut awake = Vec::new();
        let new: Vec<_> = quiet.filter(|known| !self.0.contains_key(&known.name)).take(NEW_A_ROUND).collect();
        for known in new {
            match known.broker.demand(&Capabilities::any()).await {
                Ok(demand) if demand.total() == 0 => {
                    let (stillness, capabilities) = (demand.stillness, Capabilities::any());
                    let look = Look { broker: known.broker.clone(), stillness, capabilities };
                    self.0.insert(known.name.clone(), look);
                }
                Ok(_) => awake.push(known.clone()),
                // The look at the server says what is wrong with it.
                Err(_) => return awake,
            }
        }
        awake
    }
}
