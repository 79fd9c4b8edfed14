//! Why a command failed: a sentence for people, and an exit code for scripts.

use std::process::ExitCode;

use crate::broker::BrokerError;
use crate::dead_letters::DeadLettersError;
use crate::event_log::EventLogError;

/// What a script can tell apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It did not work.
    Failed,
    /// It was asked for in a way that cannot work.
    Usage,
    /// What it is about is not there.
    NotFound,
    /// What it is about is in a state that forbids it, or is somebody else's.
    Conflict,
}

impl Kind {
    /// The status that the process ends with.
    pub fn code(self) -> u8 {
        match self {
            Kind::Failed => 1,
            Kind::Usage => 2,
            Kind::NotFound => 3,
            Kind::Conflict => 4,
        }
    }
}

/// Why a command failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{sentence}")]
pub struct CliError {
    kind: Kind,
    sentence: String,
}

impl CliError {
    /// It did not work.
    pub fn failed(sentence: impl Into<String>) -> Self {
        Self { kind: Kind::Failed, sentence: sentence.into() }
    }

    /// It was asked for in a way that cannot work.
    pub fn usage(sentence: impl Into<String>) -> Self {
        Self { kind: Kind::Usage, sentence: sentence.into() }
    }

    /// What it is about is not there.
    pub fn not_found(sentence: impl Into<String>) -> Self {
        Self { kind: Kind::NotFound, sentence: sentence.into() }
    }

    /// What it is about is in a state that forbids it, or is somebody else's.
    pub fn conflict(sentence: impl Into<String>) -> Self {
        Self { kind: Kind::Conflict, sentence: sentence.into() }
    }

    /// What a script can tell apart.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The status that the process ends with.
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.kind.code())
    }

    /// The same kind of error, with more to say.
    pub fn more(self, what: impl std::fmt::Display) -> Self {
        Self { sentence: format!("{}; {what}", self.sentence), ..self }
    }
}

impl From<BrokerError> for CliError {
    fn from(error: BrokerError) -> Self {
        let kind = match &error {
            BrokerError::Invalid(_) => Kind::Usage,
            BrokerError::NoQueue(_) => Kind::NotFound,
            BrokerError::Closed(_) | BrokerError::Owned { .. } | BrokerError::Fenced => Kind::Conflict,
            BrokerError::Version { .. }
            | BrokerError::OutboxFull(_)
            | BrokerError::OutOfMemory(_)
            | BrokerError::Denied(_)
            | BrokerError::Busy(_)
            | BrokerError::Unreachable { .. }
            | BrokerError::NotReplicated { .. }
            | BrokerError::Unexpected { .. } => Kind::Failed,
        };
        Self { kind, sentence: error.to_string() }
    }
}

impl From<EventLogError> for CliError {
    fn from(error: EventLogError) -> Self {
        let kind = match &error {
            EventLogError::Url(_) | EventLogError::Invalid(_) => Kind::Usage,
            _ => Kind::Failed,
        };
        Self { kind, sentence: error.to_string() }
    }
}

impl From<DeadLettersError> for CliError {
    fn from(error: DeadLettersError) -> Self {
        match error {
            DeadLettersError::Invalid(sentence) => Self::usage(sentence),
            DeadLettersError::Broker(error) => error.into(),
            DeadLettersError::EventLog(error) => error.into(),
        }
    }
}

impl From<std::io::Error> for CliError {
    fn from(error: std::io::Error) -> Self {
        match error.kind() {
            // Whoever read the output has seen enough: there is nobody to tell.
            std::io::ErrorKind::BrokenPipe => Self::failed(""),
            _ => Self::failed(format!("the output could not be written: {error}")),
        }
    }
}

impl From<anyhow::Error> for CliError {
    fn from(error: anyhow::Error) -> Self {
        let error = match error.downcast::<CliError>() {
            Ok(own) => return own,
            Err(other) => other,
        };
        match error.downcast::<BrokerError>() {
            Ok(broker) => broker.into(),
            Err(other) => Self::failed(format!("{other:#}")),
        }
    }
}

/// A text in which the credentials of URLs are blotted out.
pub(super) fn without_credentials(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        shown.push_str(before);
        let end = after.find(|c: char| c.is_whitespace() || "'\"`<>".contains(c)).unwrap_or(after.len());
        rest = match after[..end].rfind('@') {
            Some(host) => {
                shown.push_str("***");
                &after[host..]
            }
            None => after,
        };
    }
    shown + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_the_status_that_scripts_rely_on() {
        let codes = [Kind::Failed, Kind::Usage, Kind::NotFound, Kind::Conflict].map(Kind::code);
        assert_eq!(codes, [1, 2, 3, 4]);
        assert_eq!(CliError::from(BrokerError::NoQueue("a/b".into())).kind(), Kind::NotFound);
        assert_eq!(CliError::from(BrokerError::Closed("a/b".into())).kind(), Kind::Conflict);
        let wrapped = anyhow::Error::from(BrokerError::NoQueue("a/b".into())).context("while looking");
        assert_eq!(CliError::from(wrapped).kind(), Kind::NotFound);
    }

    #[test]
    fn no_credentials_stay_in_a_text() {
        let text = "invalid value 'redis://u:hunter2@h:1' and postgres://u:p@ss@h/d, but redis://h:1 a@b";
        let shown = without_credentials(text);
        assert_eq!(shown, "invalid value 'redis://***@h:1' and postgres://***@h/d, but redis://h:1 a@b");
    }
}
