//! How `/livez`, `/readyz` and `/metrics` answer, wherever they are served.
//!
//! Owns: the form of the answers. Must not know: who asks, and what being live
//! or ready means to a worker or an operator.

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use prometheus_client::registry::Registry;

/// Well, or what is wrong.
pub(crate) fn verdict(problem: Option<String>) -> Response {
    match problem {
        None => (StatusCode::OK, "ok\n").into_response(),
        Some(why) => (StatusCode::SERVICE_UNAVAILABLE, why + "\n").into_response(),
    }
}

/// All metrics, as Prometheus reads them.
pub(crate) fn metrics(registry: &Registry) -> Response {
    const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let mut text = String::new();
    match prometheus_client::encoding::text::encode(&mut text, registry) {
        Ok(()) => ([(header::CONTENT_TYPE, OPEN_METRICS)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
