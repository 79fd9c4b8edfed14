//! The requests of the local API.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::{BytesRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, FromRequestParts, Query, State};
use axum::http::StatusCode;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::{Deserialize, Serialize};

use super::desk::{Admission, Desk};
use super::refusal::Refusal;
use crate::worker::context::{CancelReason, TaskContext};

/// The largest body: a payload of the usual bound with room for what is around it.
const MAX_BODY_BYTES: usize = 4 << 20;

/// The longest wait of one request.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// All requests.
pub(super) fn router(desk: Arc<Desk>) -> Router {
    Router::new()
        .route("/v1/cancelled", get(cancelled))
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(desk)
}

/// Whose handler asks.
struct Admitted(TaskContext);

impl FromRequestParts<Arc<Desk>> for Admitted {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, desk: &Arc<Desk>) -> Result<Self, Refusal> {
        let unauthorized = |sentence| Refusal::new(StatusCode::UNAUTHORIZED, "unauthorized", sentence);
        let header = parts.headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let token =
            header.and_then(|value| value.split_once(' ')).filter(|(kind, _)| kind.eq_ignore_ascii_case("bearer"));
        let Some((_, token)) = token else {
            let advice = "send the task's token: Authorization: Bearer $WINDLASS_API_TOKEN";
            return Err(unauthorized(advice));
        };
        match desk.who(token.trim()) {
            Admission::Open(task) => Ok(Self(task)),
            Admission::Ended => {
                let sentence = "the attempt that this token belongs to is over: end, and do no more for it";
                Err(Refusal::new(StatusCode::GONE, "attempt_over", sentence))
            }
            Admission::Unknown => Err(unauthorized("this token is not known here: send the one of this very task")),
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CancelledQuery {
    wait_seconds: Option<f64>,
}

#[derive(Serialize)]
struct CancelledAnswer {
    cancelled: bool,
    reason: Option<&'static str>,
}

async fn cancelled(
    Admitted(task): Admitted,
    query: Result<Query<CancelledQuery>, QueryRejection>,
) -> Result<Json<CancelledAnswer>, Refusal> {
    let Query(query) = query.map_err(|error| Refusal::invalid(error.body_text()))?;
    if let Some(seconds) = query.wait_seconds {
        let wait = Duration::try_from_secs_f64(seconds).map_err(|error| Refusal::invalid(error.to_string()))?;
        // That nothing happened in the meantime is an answer as well.
        let _ = tokio::time::timeout(wait.min(LONGEST_WAIT), task.cancelled()).await;
    }
    let reason = task.cancel_reason().map(word);
    Ok(Json(CancelledAnswer { cancelled: reason.is_some(), reason }))
}

fn word(reason: CancelReason) -> &'static str {
    match reason {
        CancelReason::Cancelled => "cancelled",
        CancelReason::LeaseLost => "lease-lost",
        CancelReason::TimedOut => "timed-out",
        CancelReason::Draining => "draining",
    }
}

async fn unknown() -> Refusal {
    let known = "/v1/once/begin, /v1/once/commit, /v1/once/resolve, /v1/progress, /v1/extend, /v1/cancelled, /v1/tasks";
    Refusal::new(StatusCode::NOT_FOUND, "not_found", format!("there is no such path; there is {known}"))
}

async fn wrong_method() -> Refusal {
    let sentence = "the path exists with another method: GET for /v1/cancelled, POST for the others";
    Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", sentence)
}
