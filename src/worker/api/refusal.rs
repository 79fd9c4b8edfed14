//! Bodies of the local API, and what it answers when it does not do what was asked.

use axum::Json;
use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::de::DeserializeOwned;
use serde_json::json;
use serde_json::value::RawValue;

use crate::broker::{BrokerError, ErrorClass};
use crate::protocol::task::Payload;

/// Why a request was not done.
#[derive(Debug)]
pub(super) struct Refusal {
    status: StatusCode,
    code: &'static str,
    sentence: String,
}

impl Refusal {
    pub(super) fn new(status: StatusCode, code: &'static str, sentence: impl Into<String>) -> Self {
        Self { status, code, sentence: sentence.into() }
    }

    /// The input is wrong.
    pub(super) fn invalid(sentence: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", sentence)
    }
}

impl From<BrokerError> for Refusal {
    fn from(error: BrokerError) -> Self {
        let (status, code) = match error.class() {
            ErrorClass::Invalid => (StatusCode::UNPROCESSABLE_ENTITY, "invalid"),
            ErrorClass::Transient => (StatusCode::SERVICE_UNAVAILABLE, "try_again"),
            ErrorClass::Conflict => (StatusCode::CONFLICT, "conflict"),
            ErrorClass::Bug => (StatusCode::INTERNAL_SERVER_ERROR, "bug"),
        };
        Self::new(status, code, error.to_string())
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.status, Json(json!({"code": self.code, "error": self.sentence}))).into_response()
    }
}

/// A body that is JSON, whatever its content type says.
pub(super) struct Body<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, state: &S) -> Result<Self, Refusal> {
        let bytes = Bytes::from_request(request, state).await.map_err(|error| match error.status() {
            StatusCode::PAYLOAD_TOO_LARGE => {
                Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", "the body is too large: send less than 4 MiB")
            }
            status => Refusal::new(status, "invalid", error.body_text()),
        })?;
        let wrong = |error| Refusal::invalid(format!("the body is not what this path takes: {error}"));
        serde_json::from_slice(&bytes).map(Self).map_err(wrong)
    }
}

/// JSON that came in, byte for byte.
pub(super) fn payload(raw: Box<RawValue>) -> Payload {
    Payload::unchecked(String::from(Box::<str>::from(raw)))
}

/// JSON that goes out, byte for byte.
pub(super) fn raw(payload: &Payload) -> Box<RawValue> {
    RawValue::from_string(payload.as_str().to_owned()).unwrap_or_else(|_| RawValue::NULL.to_owned())
}
