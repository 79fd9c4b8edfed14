//! Why a step of the operator failed, and what to do about it.

use std::time::Duration;

use crate::broker::{BrokerError, ErrorClass};

/// What one call to the API server may take. A write that is judged by webhooks may need a while.
const CALL: Duration = Duration::from_secs(10);

/// Why a step failed. What it had done stands; the next one does the rest.
#[derive(Debug, thiserror::Error)]
pub enum OperatorError {
    /// The API server did not do its part.
    #[error("the API server did not {action}: {}", sentence(.source))]
    Api {
        /// What was asked of it, like "apply the Deployment".
        action: &'static str,
        /// What it answered.
        source: Box<kube::Error>,
    },
    /// The broker did not do its part.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// An object lacks what every stored object has.
    #[error("an object without {0}, which the API server gives to every object")]
    Incomplete(&'static str),
    /// The API server took too long.
    #[error("the API server did not {action} within {after:?}")]
    NoAnswer {
        /// What was asked of it.
        action: &'static str,
        /// How long it was waited for.
        after: Duration,
    },
    /// A step took too long as a whole.
    #[error("it took longer than {0:?}, and was cut off")]
    TooLong(Duration),
    /// A step broke off; what it said is on standard error.
    #[error("it panicked, and was cut off")]
    Panicked,
    /// A part of a leader's work ended by itself.
    #[error("a part of the leader's work ended ({0}), so the operator ends: another one leads, or the next one here")]
    Broken(String),
    /// Somebody else leads, or may.
    #[error("the Lease is lost: {0}")]
    LeaseLost(String),
    /// The Lease is ours, and was changed by somebody.
    #[error("the Lease was changed by somebody")]
    LeaseChanged,
    /// The operator itself cannot start like this.
    #[error("{0}")]
    Start(String),
}

impl OperatorError {
    /// For `map_err`: what was asked of the API server.
    pub fn api(action: &'static str) -> impl Fn(kube::Error) -> Self {
        move |source| Self::Api { action, source: Box::new(source) }
    }

    /// What to do about it.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Api { source, .. } => class_of(source),
            Self::Broker(error) => error.class(),
            Self::NoAnswer { .. } | Self::TooLong(_) => ErrorClass::Transient,
            Self::LeaseLost(_) | Self::LeaseChanged => ErrorClass::Conflict,
            Self::Incomplete(_) | Self::Panicked | Self::Broken(_) => ErrorClass::Bug,
            Self::Start(_) => ErrorClass::Invalid,
        }
    }

    /// Whether the object is gone that it was about.
    pub fn is_gone(&self) -> bool {
        self.code() == Some(404)
    }

    /// The HTTP status of the API server's answer, where there was one.
    pub(super) fn code(&self) -> Option<u16> {
        match self {
            Self::Api { source, .. } => code_of(source),
            _ => None,
        }
    }
}

/// Waits for an answer of the API server, and not for ever: the client itself has no limit, because watches have none.
pub(super) async fn bounded<T>(
    call: impl Future<Output = Result<T, kube::Error>>,
    action: &'static str,
) -> Result<T, OperatorError> {
    within(CALL, call, action).await
}

/// The same for who has less time, or more.
pub(super) async fn within<T>(
    limit: Duration,
    call: impl Future<Output = Result<T, kube::Error>>,
    action: &'static str,
) -> Result<T, OperatorError> {
    match tokio::time::timeout(limit, call).await {
        Ok(answer) => answer.map_err(OperatorError::api(action)),
        Err(_) => Err(OperatorError::NoAnswer { action, after: limit }),
    }
}

/// The HTTP status of an answer, where there was one.
pub(super) fn code_of(error: &kube::Error) -> Option<u16> {
    match error {
        kube::Error::Api(status) => Some(status.code),
        _ => None,
    }
}

fn class_of(error: &kube::Error) -> ErrorClass {
    match (error, code_of(error)) {
        // Whoever is about to write again finds the object as it is now, or finds it gone.
        (_, Some(404 | 409 | 410)) => ErrorClass::Conflict,
        (_, Some(408 | 429)) => ErrorClass::Transient,
        (_, Some(400..=499)) => ErrorClass::Invalid,
        (kube::Error::SerdeError(_), _) => ErrorClass::Bug,
        _ => ErrorClass::Transient,
    }
}

/// What the API server said, without the wrapping.
fn sentence(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(code: u16) -> OperatorError {
        let status = kube::core::Status::failure("no", "Because").with_code(code);
        OperatorError::api("write it")(kube::Error::Api(status.boxed()))
    }

    #[test]
    fn an_answer_of_the_api_server_has_a_class() {
        let classes = [404, 409, 403, 422, 429, 500, 503].map(|code| answered(code).class());
        use ErrorClass::{Conflict, Invalid, Transient};
        assert_eq!(classes, [Conflict, Conflict, Invalid, Invalid, Transient, Transient, Transient]);
        assert!(answered(404).is_gone() && !answered(409).is_gone());
        assert_eq!(answered(403).to_string(), "the API server did not write it: no");
    }
}
