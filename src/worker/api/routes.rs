//! The requests of the local API, but for those about effects.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::QueryRejection;
use axum::extract::{DefaultBodyLimit, Query};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::desk::{Admitted, Desk};
use super::effects;
use super::refusal::{Body, Refusal, payload};
use crate::protocol::names::{IdempotencyKey, TaskId, TaskType, TenantId, TraceId};
use crate::protocol::state::State;
use crate::protocol::task::{Extras, NewTask, NotBefore, Payload};
use crate::worker::context::{CancelReason, TaskContext};

/// The largest body: a payload of the usual bound with room for what is around it.
const MAX_BODY_BYTES: usize = 4 << 20;

/// The longest wait of one request.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// All requests.
pub(super) fn router(desk: Arc<Desk>) -> Router {
    Router::new()
        .route("/v1/once/begin", post(effects::begin))
        .route("/v1/once/commit", post(effects::commit))
        .route("/v1/once/resolve", post(effects::resolve))
        .route("/v1/once/abandon", post(effects::abandon))
        .route("/v1/progress", post(progress))
        .route("/v1/extend", post(extend))
        .route("/v1/cancelled", get(cancelled))
        .route("/v1/tasks", post(enqueue))
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(desk)
}

/// Whether the handler should end.
#[derive(Serialize)]
struct Wanted {
    cancelled: bool,
    reason: Option<&'static str>,
}

impl Wanted {
    fn of(task: &TaskContext) -> Json<Self> {
        let reason = task.cancel_reason().map(word);
        Json(Self { cancelled: reason.is_some(), reason })
    }
}

fn word(reason: CancelReason) -> &'static str {
    match reason {
        CancelReason::Cancelled => "cancelled",
        CancelReason::LeaseLost => "lease-lost",
        CancelReason::TimedOut => "timed-out",
        CancelReason::Draining => "draining",
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CancelledQuery {
    wait_seconds: Option<f64>,
}

async fn cancelled(
    admitted: Admitted,
    query: Result<Query<CancelledQuery>, QueryRejection>,
) -> Result<Json<Wanted>, Refusal> {
    let Query(query) = query.map_err(|error| Refusal::invalid(error.body_text()))?;
    if let Some(seconds) = query.wait_seconds {
        let bad = |error| Refusal::invalid(format!("waitSeconds={seconds} is no time to wait: {error}"));
        let wait = Duration::try_from_secs_f64(seconds).map_err(bad)?;
        // That nothing happened in the meantime is an answer as well.
        let _ = tokio::time::timeout(wait.min(LONGEST_WAIT), admitted.task.cancelled()).await;
    }
    Ok(Wanted::of(&admitted.task))
}

async fn progress(admitted: Admitted, Body(report): Body<Box<RawValue>>) -> Result<Json<Wanted>, Refusal> {
    admitted.task.progress(payload(report)).await?;
    Ok(Wanted::of(&admitted.task))
}

async fn extend(admitted: Admitted) -> Result<Json<Wanted>, Refusal> {
    admitted.task.extend().await?;
    Ok(Wanted::of(&admitted.task))
}

/// A follow-up, as a handler asks for it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct FollowUp {
    id: Option<TaskId>,
    #[serde(rename = "type")]
    task_type: TaskType,
    payload: Option<Box<RawValue>>,
    priority: Option<u8>,
    delay_seconds: Option<f64>,
    at: Option<Timestamp>,
    idempotency_key: Option<IdempotencyKey>,
    tenant_id: Option<TenantId>,
    trace_id: Option<TraceId>,
    max_retries: Option<u32>,
    timeout_seconds: Option<f64>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
}

impl TryFrom<FollowUp> for NewTask {
    type Error = Refusal;

    fn try_from(asked: FollowUp) -> Result<Self, Refusal> {
        let seconds = |name: &str, value: f64| {
            let bad = |error| Refusal::invalid(format!("{name}: {value} is no duration: {error}"));
            Duration::try_from_secs_f64(value).map_err(bad)
        };
        let not_before = match (asked.delay_seconds, asked.at) {
            (None, None) => NotBefore::Now,
            (Some(delay), None) => NotBefore::After(seconds("delaySeconds", delay)?),
            (None, Some(at)) => NotBefore::At(at),
            (Some(_), Some(_)) => return Err(Refusal::invalid("give delaySeconds or at, not both")),
        };
        let timeout = asked.timeout_seconds.map(|value| seconds("timeoutSeconds", value)).transpose()?;
        let timeout_ms = timeout.map(|timeout| u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX));
        Ok(NewTask {
            id: asked.id.unwrap_or_else(TaskId::generate),
            priority: asked.priority,
            not_before,
            idempotency_key: asked.idempotency_key,
            tenant_id: asked.tenant_id,
            trace_id: asked.trace_id,
            max_retries: asked.max_retries,
            extras: Extras { labels: asked.labels, timeout_ms, ..Extras::default() },
            ..NewTask::new(asked.task_type, asked.payload.map_or_else(Payload::default, payload))
        })
    }
}

#[derive(Serialize)]
struct Made {
    id: TaskId,
    queue: String,
    state: State,
    created: bool,
}

async fn enqueue(admitted: Admitted, Body(asked): Body<FollowUp>) -> Result<(StatusCode, Json<Made>), Refusal> {
    let made = admitted.task.enqueue(asked.try_into()?).await?;
    let queue = admitted.task.queue().to_string();
    let status = if made.created { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(Made { id: made.id, queue, state: made.state, created: made.created })))
}

async fn unknown() -> Refusal {
    let known = "/v1/once/begin, /v1/once/commit, /v1/once/resolve, /v1/once/abandon, /v1/progress, /v1/extend, \
                 /v1/cancelled and /v1/tasks";
    Refusal::new(StatusCode::NOT_FOUND, "not_found", format!("there is no such path; there are {known}"))
}

async fn wrong_method() -> Refusal {
    let sentence = "the path exists with another method: GET for /v1/cancelled, POST for the others";
    Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", sentence)
}
