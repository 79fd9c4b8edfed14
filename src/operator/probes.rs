//! `/livez`, `/readyz` and `/metrics` of the operator, for a kubelet and a Prometheus.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::get;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;

use crate::probes;

/// After so long without a sign of life only a restart can help.
const SILENCE: Duration = Duration::from_secs(60);

/// Signs of life of the process. Clones are the same.
#[derive(Clone)]
pub(super) struct Pulse(Arc<Mutex<Beat>>);

struct Beat {
    at: Instant,
    /// Why the API server does not serve us; `None` once it does.
    trouble: Option<String>,
}

impl Pulse {
    pub(super) fn new() -> Self {
        let trouble = Some("the API server was not reached yet".to_owned());
        Self(Arc::new(Mutex::new(Beat { at: Instant::now(), trouble })))
    }

    /// The process goes on, and the API server serves it.
    pub(super) fn well(&self) {
        *self.beat() = Beat { at: Instant::now(), trouble: None };
    }

    /// The process goes on, without the API server.
    pub(super) fn troubled(&self, trouble: String) {
        *self.beat() = Beat { at: Instant::now(), trouble: Some(trouble) };
    }

    /// Whether only a restart can help.
    fn why_not_live(&self) -> Option<String> {
        let silent = self.beat().at.elapsed();
        (silent > SILENCE).then(|| format!("no sign of life for {} s", silent.as_secs()))
    }

    /// A process that waits for its turn to lead is as ready as one that leads.
    fn why_not_ready(&self) -> Option<String> {
        self.beat().trouble.clone()
    }

    fn beat(&self) -> MutexGuard<'_, Beat> {
        self.0.lock().expect("invariant: no panic while held")
    }
}

struct Shown {
    pulse: Pulse,
    registry: Registry,
}

/// Serves them until the future is dropped.
pub(super) async fn serve(listener: TcpListener, pulse: Pulse, registry: Registry) -> std::io::Result<()> {
    let pages = Router::new()
        .route("/livez", get(async |State(shown): State<Arc<Shown>>| probes::verdict(shown.pulse.why_not_live())))
        .route("/readyz", get(async |State(shown): State<Arc<Shown>>| probes::verdict(shown.pulse.why_not_ready())))
        .route("/metrics", get(metrics))
        .with_state(Arc::new(Shown { pulse, registry }));
    axum::serve(listener, pages).await
}

async fn metrics(State(shown): State<Arc<Shown>>) -> Response {
    probes::metrics(&shown.registry)
}
