//! Observe: everything that is read about a TaskQueue before anything is decided.

use std::sync::Arc;
use std::time::Duration;

use crate::broker::redis::{Inspection, RedisBroker};
use crate::broker::{BrokerError, ErrorClass, Owner};
use crate::crd::{InvalidSpec, TaskQueue};
use crate::operator::connections::{Connection, Health, Source, Unresolved};
use crate::operator::context::Context;
use crate::operator::secrets;
use crate::protocol::keys::Keys;
use crate::protocol::names::QueueName;
use crate::protocol::policy::{EventRecording, Policy};

/// How old a look at a Redis may be.
const HEALTH_FRESHNESS: Duration = Duration::from_secs(2);

/// What was read.
pub(super) struct Observed {
    pub(super) name: QueueName,
    /// How the queue's owner is recorded.
    pub(super) owner: Owner,
    /// What the spec compiles to.
    pub(super) compiled: Result<(Keys, Policy), InvalidSpec>,
    /// The Redis that the spec names.
    pub(super) connection: Result<Arc<Connection>, Unresolved>,
    /// How that Redis is; only where there is one.
    pub(super) health: Option<Health>,
    /// The queue on it; only where it answers and the spec compiles.
    pub(super) broker: Option<Result<Arc<RedisBroker>, BrokerError>>,
    /// Who has a stream that it adopts, as far as is known here: what Redis knew of that may be lost.
    pub(super) rival: Option<String>,
    /// How the queue stands there; only where it could be looked at.
    pub(super) inspection: Option<Result<Inspection, BrokerError>>,
}

impl Observed {
    fn new(context: &Context, queue: &TaskQueue, name: &QueueName, uid: &str) -> Self {
        // An outbox that nobody empties would fill up and close the queue.
        let recording = if context.event_log.is_some() { EventRecording::On } else { EventRecording::Off };
        let compiled = queue.spec.keys(name).and_then(|keys| Ok((keys, queue.spec.policy(recording)?)));
        let compiled = compiled.and_then(|compiled| match (&queue.spec.keys, Source::of(&queue.spec)) {
            (Some(_), Source::OperatorDefault) => Err(InvalidSpec {
                field: "keys",
                sentence: "existing names are adopted on a Redis of one's own only: set broker as well".to_owned(),
            }),
            _ => Ok(compiled),
        });
        Self {
            name: name.clone(),
            owner: Owner::kubernetes(&context.cluster, name, uid),
            compiled,
            connection: Err(Unresolved::NoDefault),
            health: None,
            broker: None,
            rival: None,
            inspection: None,
        }
    }

    /// How long a Secret stays as it was read, as far as this queue is concerned.
    pub(super) fn reads_secrets(queue: &TaskQueue) -> bool {
        let redis = queue.spec.broker.as_ref().and_then(|broker| broker.redis.as_ref());
        redis.is_some_and(|redis| redis.url_secret_ref.is_some() || redis.tls.is_some())
    }
}

/// Reads all that a plan needs. What cannot be read is a finding, not an error.
pub(super) async fn observe(context: &Context, queue: &TaskQueue, name: &QueueName, uid: &str) -> Observed {
    let mut seen = Observed::new(context, queue, name, uid);
    (seen.connection, seen.health) = reach(context, queue, name).await;
    let (Ok(connection), Some(Ok(server)), Ok((keys, policy))) = (&seen.connection, &seen.health, &seen.compiled)
    else {
        return seen;
    };
    if !server.is_supported() {
        return seen;
    }
    // A queue that is known on this very connection keeps its broker, and what gathers in it.
    let known = context
        .directory
        .get(name)
        .filter(|known| known.connection.fingerprint == connection.fingerprint && known.broker.keys() == keys);
    let broker = match known {
        Some(known) => Ok(known.broker.clone()),
        None => connection.redis.queue(keys.clone()).map(Arc::new),
    };
    // A name of the queue's own is nobody else's.
    if queue.spec.keys.is_some() {
        seen.rival = context.directory.rival(keys, connection).map(|rival| rival.owner.clone());
    }
    if let Ok(broker) = &broker {
        seen.inspection = Some(broker.inspect(policy).await);
    }
    seen.broker = Some(broker);
    seen
}

/// The Redis of a queue, and how it is. A Secret is read again where the server no longer lets us in.
pub(super) async fn reach(
    context: &Context,
    queue: &TaskQueue,
    name: &QueueName,
) -> (Result<Arc<Connection>, Unresolved>, Option<Health>) {
    let find = |freshness| context.connections.of(name.namespace(), &queue.spec, freshness);
    let mut connection = find(secrets::GOOD_FOR).await;
    let Ok(first) = &connection else {
        if Observed::reads_secrets(queue) {
            connection = find(secrets::AT_LEAST).await;
        }
        let health = match &connection {
            Ok(connection) => Some(connection.health(HEALTH_FRESHNESS).await),
            Err(_) => None,
        };
        return (connection, health);
    };
    let mut health = first.health(HEALTH_FRESHNESS).await;
    if matches!(&health, Err(error) if error.class() == ErrorClass::Invalid) && Observed::reads_secrets(queue) {
        connection = find(secrets::AT_LEAST).await;
        if let Ok(second) = &connection {
            health = second.health(HEALTH_FRESHNESS).await;
        }
    }
    (connection, Some(health))
}
