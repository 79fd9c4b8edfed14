//! What the local API answers when it does not do what was asked.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::broker::{BrokerError, ErrorClass};

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
