//! Before the loop: a worker registers, and reads the policy that it works by.

use tokio::sync::watch;
use tokio::time::Instant;

use super::LOOK_AROUND;
use crate::broker::{Broker, ErrorClass, Result, WorkerInfo};
use crate::protocol::policy::Policy;
use crate::worker::backoff::Pauses;
use crate::worker::drain::DrainLevel;
use crate::worker::health::WorkerHealth;

/// Registers, and reads the policy; repeats it while the broker is away or the
/// queue does not exist yet. `None` when the worker was drained meanwhile.
pub(in crate::worker) async fn come_aboard(
    broker: &dyn Broker,
    info: &WorkerInfo,
    health: &WorkerHealth,
    drain: &mut watch::Receiver<DrainLevel>,
) -> Result<Option<Policy>> {
    let mut pauses = Pauses::default();
    loop {
        health.tick(Instant::now());
        let attempt = async {
            let registered = broker.register(info).await?;
            Ok((registered, broker.policy().await?))
        };
        tokio::pin!(attempt);
        let attempt = loop {
            tokio::select! {
                attempt = &mut attempt => break attempt,
                _ = drain.wait_for(|level| *level != DrainLevel::None) => return Ok(None),
                // A broker that hangs is no reason to restart.
                () = tokio::time::sleep(LOOK_AROUND) => health.tick(Instant::now()),
            }
        };
        match attempt {
            Ok((registered, policy)) => {
                health.has_registered();
                health.set_connected(true);
                let superseded = registered.superseded.as_ref().map(ToString::to_string).unwrap_or_default();
                tracing::info!(worker = %info.id, superseded, requeued = registered.requeued.len(), "the worker has registered");
                return Ok(Some(policy));
            }
            Err(error) => {
                let waits = matches!(error, crate::broker::BrokerError::NoQueue(_));
                if error.class() != ErrorClass::Transient && !waits {
                    return Err(error);
                }
                tracing::warn!(%error, worker = %info.id, "the worker cannot register yet");
            }
        }
        tokio::select! {
            () = tokio::time::sleep(pauses.next()) => {}
            _ = drain.wait_for(|level| *level != DrainLevel::None) => return Ok(None),
        }
    }
}
