//! Repeats a call while a broker cannot serve it: every operation can be repeated safely.

use std::time::Duration;

use tokio::time::Instant;

use super::{ErrorClass, Result};

/// Repeats a call while its error says that it may work later, for that long.
pub(crate) async fn patiently<T, F>(patience: Duration, call: impl Fn() -> F) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    let end = Instant::now() + patience;
    loop {
        match call().await {
            Err(error) if error.class() == ErrorClass::Transient && Instant::now() < end => {
                tracing::debug!(%error, "call will be repeated");
                let pause = Duration::from_millis(fastrand::u64(50..150));
                tokio::time::sleep_until((Instant::now() + pause).min(end)).await;
            }
            answer => return answer,
        }
    }
}
