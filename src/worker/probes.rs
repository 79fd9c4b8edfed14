//! `/livez`, `/readyz` and `/metrics` of a worker, for a kubelet and a Prometheus.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::get;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;

use super::WorkerHandle;
use crate::probes;

struct Shown {
    handle: WorkerHandle,
    registry: Arc<Registry>,
}

/// The three pages. `/livez` fails when the worker makes no progress and only a
/// restart can help: not when its broker is away. `/readyz` fails while it does
/// no work: before it has registered, while the broker is away, while it drains.
pub fn router(handle: WorkerHandle, registry: Arc<Registry>) -> Router {
    let shown = Arc::new(Shown { handle, registry });
    Router::new()
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .with_state(shown)
}

/// Serves them until the future is dropped.
pub async fn serve(listener: TcpListener, handle: WorkerHandle, registry: Arc<Registry>) -> std::io::Result<()> {
    axum::serve(listener, router(handle, registry)).await
}

async fn livez(State(shown): State<Arc<Shown>>) -> Response {
    probes::verdict(shown.handle.health().why_not_live())
}

async fn readyz(State(shown): State<Arc<Shown>>) -> Response {
    probes::verdict(shown.handle.health().why_not_ready().map(str::to_owned))
}

async fn metrics(State(shown): State<Arc<Shown>>) -> Response {
    probes::metrics(&shown.registry)
}
