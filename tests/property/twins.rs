//! One queue twice, in the model and on Redis, by one clock.

use std::time::Duration;

use futures::future::join_all;
use redis::aio::MultiplexedConnection;
use windlass::broker::clock::Clock;
use windlass::broker::model::Model;
use windlass::broker::redis::{ReclaimWith, RedisBroker, RedisOptions};
use windlass::broker::{Broker, DeadLetterView, ListCursor, MAX_BATCH, PendingDeadLetters, Result};
use windlass::protocol::keys::Keys;
use windlass::{State, TaskId, TaskView};

use super::compare::{Compared, Told, agree, alike_letter, alike_letter_view, alike_moves, alike_view, told};
use super::known::Known;
use super::tally::Tally;
use crate::support::fresh_queue;
use crate::support::servers::Server;

/// Where clocks start. In the past, because Redis takes no lease that begins in its future.
const START_MS: u64 = 1_700_000_000_000;

/// The Redis that the model is compared with.
pub(crate) struct Target<'a> {
    server: &'a Server,
    options: RedisOptions,
}

impl<'a> Target<'a> {
    pub(crate) fn new(server: &'a Server, reclaim_with: ReclaimWith) -> Self {
        let options =
            RedisOptions { reclaim_with, response_timeout: Duration::from_secs(60), ..RedisOptions::new(server.url()) };
        Self { server, options }
    }

    pub(crate) async fn connect(&self) -> MultiplexedConnection {
        self.server.connect().await.expect("the server is there")
    }
}

pub(crate) struct Twins {
    pub(super) model: Model,
    pub(super) redis: RedisBroker,
    /// For what brokers do not do: raw entries, and clearing away.
    pub(super) connection: MultiplexedConnection,
    pub(super) clock: Clock,
    /// Whether Redis finds expired leases by XPENDING and XCLAIM.
    pub(super) by_pending: bool,
    pub(crate) known: Known,
    pub(crate) tally: Tally,
}

impl Twins {
    pub(crate) fn new(target: &Target<'_>, connection: MultiplexedConnection) -> Self {
        let queue = fresh_queue();
        let clock = Clock::manual(START_MS);
        let redis = RedisBroker::with_clock(Keys::new(&queue), target.options.clone(), clock.clone());
        Self {
            model: Model::new(queue, clock.clone()),
            redis: redis.expect("a usable URL"),
            connection,
            clock,
            by_pending: target.options.reclaim_with == ReclaimWith::PendingAndClaim,
            known: Known::default(),
            tally: Tally::default(),
        }
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.clock.now_ms().expect("the clock is manual")
    }

    /// Asks both brokers the same; their answers must be equal.
    pub(super) async fn ask<T>(&self, what: &str, ask: impl AsyncFn(&dyn Broker) -> Result<T>) -> Compared<Told<T>>
    where
        T: PartialEq + std::fmt::Debug,
    {
        agree(what, told(ask(&self.model).await), told(ask(&self.redis).await))
    }

    /// Compares what is cheap to look at, these tasks, and the first so many pending dead letters.
    pub(crate) async fn compare(&mut self, ids: &[TaskId], letters: usize) -> Compared {
        // Behind one that waits, or one that did.
        let after = self.known.pending.first().filter(|_| self.now_ms().is_multiple_of(2)).map(|id| id.task.clone());
        let (counts, workers, pending, views) = futures::join!(
            self.redis.counts(),
            self.redis.workers(),
            self.redis.pending_dead_letters_after(after.as_ref(), letters),
            join_all(ids.iter().map(|id| self.redis.get(id)))
        );
        agree("counts", told(self.model.counts().await), told(counts)).map(drop)?;
        agree("workers", told(self.model.workers().await), told(workers)).map(drop)?;
        for (id, view) in ids.iter().zip(views) {
            let alike = |view: Option<TaskView>| view.map(alike_view);
            let model = told(self.model.get(id).await).map(alike);
            agree(format_args!("the task {id}"), model, told(view).map(alike)).map(drop)?;
        }
        let alike =
            |page: PendingDeadLetters| (page.letters.into_iter().map(alike_letter).collect::<Vec<_>>(), page.more);
        let model = told(self.model.pending_dead_letters_after(after.as_ref(), letters).await).map(alike);
        let (pending, more) = agree("pending dead letters", model, told(pending).map(alike))?.unwrap_or_default();
        self.tally.met_if("more pending dead letters", more);
        self.known.pending = pending.into_iter().map(|letter| letter.id).collect();
        Ok(())
    }

    /// Compares everything else: listings (so many tasks a page), recorded dead letters, the outbox, the policy.
    pub(crate) async fn compare_rest(&self, page: usize) -> Compared {
        let (model, redis) = (listings(&self.model, page).await, listings(&self.redis, page).await);
        for ((state, model), (_, redis)) in model.into_iter().zip(redis) {
            agree(format_args!("the list of {state} tasks"), model, redis).map(drop)?;
        }
        let letters = join_all(self.known.letters.iter().map(|id| self.redis.dead_letter(id))).await;
        for (id, redis) in self.known.letters.iter().zip(letters) {
            let alike = |view: Option<_>| view.map(alike_letter_view);
            let model = told(self.model.dead_letter(id).await).map(alike);
            agree(format_args!("the dead letter {id}"), model, told(redis).map(alike)).map(drop)?;
        }
        let page = page.min(MAX_BATCH);
        let (model, redis) = (all_letters(&self.model, page).await, all_letters(&self.redis, page).await);
        agree("the list of dead letters", model, redis).map(drop)?;
        let moves = |entries: Result<_>| told(entries).map(alike_moves);
        agree("the outbox", moves(self.model.outbox(10_000).await), moves(self.redis.outbox(10_000).await))
            .map(drop)?;
        self.ask("the policy", async |broker| broker.policy().await).await.map(drop)?;
        Ok(())
    }

    /// Removes the queue's keys.
    pub(crate) async fn clear(&mut self) {
        let pattern = format!("{}*", self.redis.keys().prefix());
        let keys: Vec<Vec<u8>> =
            redis::cmd("KEYS").arg(pattern).query_async(&mut self.connection).await.expect("the keys are listed");
        if !keys.is_empty() {
            let gone: redis::RedisResult<u64> = redis::cmd("DEL").arg(keys).query_async(&mut self.connection).await;
            gone.expect("the keys are removed");
        }
    }
}

/// Every recorded dead letter, the newest first.
async fn all_letters(broker: &dyn Broker, page: usize) -> Told<Vec<DeadLetterView>> {
    let (mut views, mut cursor) = (Vec::new(), Some(ListCursor::default()));
    while let Some(from) = cursor {
        let found = told(broker.dead_letters(from, page).await)?;
        views.extend(found.items.into_iter().map(alike_letter_view));
        cursor = found.next;
    }
    Ok(views)
}

/// Every task, by its state. Live ones come in no order.
async fn listings(broker: &dyn Broker, page: usize) -> Vec<(State, Told<Vec<TaskView>>)> {
    join_all(State::ALL.map(async |state| (state, listing(broker, state, page).await))).await
}

async fn listing(broker: &dyn Broker, state: State, page: usize) -> Told<Vec<TaskView>> {
    let (mut views, mut cursor) = (Vec::new(), Some(ListCursor::default()));
    while let Some(from) = cursor {
        let found = told(broker.list(state, from, page).await)?;
        views.extend(found.items.into_iter().map(alike_view));
        cursor = found.next;
    }
    if !state.is_final() {
        views.sort_by(|one, other| one.id.cmp(&other.id));
        views.dedup();
    }
    Ok(views)
}
