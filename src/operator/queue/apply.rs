//! Apply: what a plan changes in Redis, and who looks after the queue from then on.

use std::sync::Arc;

use super::observe::Observed;
use super::plan::{Cause, Obstacle, Passes, Plan, Side, takeover_from};
use crate::broker::redis::RedisBroker;
use crate::broker::{Broker, BrokerError, Owner, Takeover};
use crate::maintenance::Queue;
use crate::operator::context::Context;
use crate::operator::directory::{Introduction, KnownQueue};
use crate::protocol::policy::{Mode, Policy};

/// What came of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Applied {
    /// Nothing had to be done.
    Kept,
    /// It was written.
    Provisioned(Cause),
    /// Something stands in the way.
    Held(Obstacle),
}

/// Carries a plan out.
pub(super) async fn apply(context: &Context, seen: &Observed, plan: Plan, asked: Option<&str>, uid: &str) -> Applied {
    let (Some(Ok(broker)), Ok((_, policy)), Ok(_)) = (&seen.broker, &seen.compiled, &seen.connection) else {
        return match plan {
            Plan::Hold(obstacle) => held(context, seen, obstacle).await,
            // Plans to write come only from a queue that was looked at.
            Plan::Keep | Plan::Provision { .. } => Applied::Kept,
        };
    };
    let applied = match plan {
        Plan::Keep => Applied::Kept,
        Plan::Provision { takeover, cause } => {
            match provision(broker, &seen.owner.name, takeover, cause, policy, asked).await {
                Ok(cause) => Applied::Provisioned(cause),
                Err(BrokerError::Owned { owner, .. }) => Applied::Held(Obstacle::owned(&owner)),
                Err(error) => Applied::Held(Obstacle::of(&error)),
            }
        }
        Plan::Hold(obstacle) => Applied::Held(obstacle),
    };
    match applied {
        Applied::Held(obstacle) => held(context, seen, obstacle).await,
        done => {
            look_after(context, seen, broker, policy, uid).await;
            done
        }
    }
}

/// Writes policy, groups and owner.
async fn provision(
    broker: &RedisBroker,
    me: &str,
    takeover: Takeover,
    cause: Cause,
    policy: &Policy,
    asked: Option<&str>,
) -> Result<Cause, BrokerError> {
    let owner = |takeover| Owner { name: me.to_owned(), takeover };
    let cause = match broker.provision(&owner(takeover), policy).await {
        // A stream that the queue adopts has an owner of its own, who is asked about first here.
        Err(BrokerError::Owned { owner: other, queue }) => match takeover_from(&other, me, asked) {
            Some(cause) => {
                broker.provision(&owner(Takeover::From(other)), policy).await?;
                cause
            }
            None => return Err(BrokerError::Owned { owner: other, queue }),
        },
        answer => {
            answer?;
            cause
        }
    };
    if cause == Cause::Differs && policy.mode != Mode::Closed {
        // A group that is gone is made by who reads next, because only that one knows where it stood.
        broker.promote(1).await?;
    }
    Ok(cause)
}

/// Sees to it that the loops run on this broker, and that others find it.
async fn look_after(context: &Context, seen: &Observed, broker: &Arc<RedisBroker>, policy: &Policy, uid: &str) {
    let Ok(connection) = &seen.connection else { return };
    let known = context.directory.get(&seen.name);
    let same = |known: &Arc<KnownQueue>| known.uid == uid && Arc::ptr_eq(&known.broker, broker);
    let (queue, moved) = match &known {
        Some(known) if same(known) && known.policy == *policy => return,
        Some(known) if same(known) => (known.queue.clone(), false),
        _ => (Queue::new(seen.name.clone(), broker.clone(), context.event_log.clone()), true),
    };
    let now = Arc::new(KnownQueue::new(Introduction {
        name: seen.name.clone(),
        uid: uid.to_owned(),
        owner: seen.owner.name.clone(),
        broker: broker.clone(),
        connection: connection.clone(),
        policy: policy.clone(),
        queue,
    }));
    if let Some(before) = context.directory.insert(now.clone())
        && before.broker.keys().prefix() != now.broker.keys().prefix()
    {
        context.loops.remove(&before).await;
    }
    if moved {
        context.loops.add(&now).await;
        // Pods may have died while nobody looked after it.
        context.pods.look_at(&seen.name);
    }
}

/// A queue that cannot be provisioned is not looked after, unless its Redis is merely away: then it is ours still.
async fn held(context: &Context, seen: &Observed, obstacle: Obstacle) -> Applied {
    if obstacle.side == Side::Queue && obstacle.passes == Passes::NotByItself {
        forget(context, seen).await;
    }
    Applied::Held(obstacle)
}

async fn forget(context: &Context, seen: &Observed) {
    if let Some(known) = context.directory.remove(&seen.name) {
        context.loops.remove(&known).await;
    }
}
