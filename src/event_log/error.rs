//! What a database's error means to a caller.

use std::fmt::Display;

use sqlx::error::DatabaseError;

use crate::broker::ErrorClass;

/// Why an operation on the event log failed. Expected outcomes are values, not errors.
#[derive(Debug, thiserror::Error)]
pub enum EventLogError {
    /// The URL names no database that we can use.
    #[error("the event log's URL cannot be used: {0}")]
    Url(String),
    /// The input breaks a rule; nothing was changed.
    #[error("{0}")]
    Invalid(String),
    /// The database does not let us in, or not do this.
    #[error("the event log at {place} refused access: check user, password, database and rights ({reason})")]
    Denied {
        /// Which database.
        place: String,
        /// What it said.
        reason: String,
    },
    /// The database was not reached, or its answer was lost.
    #[error("the event log at {place} was not reached: check that it runs and that the URL is right ({reason})")]
    Unreachable {
        /// Which database.
        place: String,
        /// What went wrong.
        reason: String,
    },
    /// The database cannot serve right now: locked, starting, failing over, too many connections.
    #[error("the event log at {place} cannot serve this right now; try again ({reason})")]
    Busy {
        /// Which database.
        place: String,
        /// What it said.
        reason: String,
    },
    /// The database has no room left.
    #[error("the event log at {place} is full: make room, or shorten its retention ({reason})")]
    Full {
        /// Which database.
        place: String,
        /// What it said.
        reason: String,
    },
    /// No answer came in time.
    #[error("the event log at {place} did not finish {operation} in time; try again")]
    TimedOut {
        /// Which database.
        place: String,
        /// What was tried.
        operation: &'static str,
    },
    /// The database answered, or holds, what we do not write.
    #[error("unexpected answer from the event log during {operation}: {detail}")]
    Unexpected {
        /// What was tried.
        operation: &'static str,
        /// What came back.
        detail: String,
    },
}

impl EventLogError {
    /// What to do about it.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Url(_) | Self::Invalid(_) | Self::Denied { .. } => ErrorClass::Invalid,
            Self::Unreachable { .. } | Self::Busy { .. } | Self::Full { .. } | Self::TimedOut { .. } => {
                ErrorClass::Transient
            }
            Self::Unexpected { .. } => ErrorClass::Bug,
        }
    }
}

/// What went wrong inside, before it is known to whom it matters.
#[derive(Debug)]
pub(super) enum Fault {
    /// The driver or the database says so.
    Sql(sqlx::Error),
    /// A row holds what we do not write.
    Stored(String),
    /// The caller's input breaks a rule.
    Invalid(String),
}

impl From<sqlx::Error> for Fault {
    fn from(error: sqlx::Error) -> Self {
        Self::Sql(error)
    }
}

impl Fault {
    /// Whether somebody else is at it.
    pub(super) fn is_busy(&self) -> bool {
        matches!(self, Self::Sql(sqlx::Error::Database(error)) if kind_of(&**error) == Kind::Busy)
    }

    /// Whether the tables are not there (any more).
    pub(super) fn is_missing_tables(&self) -> bool {
        matches!(self, Self::Sql(sqlx::Error::Database(error)) if kind_of(&**error) == Kind::Missing)
    }

    /// As the error of an operation on the database at that place.
    pub(super) fn during(self, operation: &'static str, place: &str) -> EventLogError {
        match self {
            Self::Sql(error) => classify(error, operation, place),
            Self::Stored(detail) => EventLogError::Unexpected { operation, detail },
            Self::Invalid(sentence) => EventLogError::Invalid(sentence),
        }
    }
}

fn classify(error: sqlx::Error, operation: &'static str, place: &str) -> EventLogError {
    match error {
        sqlx::Error::Database(error) => kind_of(&*error).error(&*error, operation, place),
        sqlx::Error::PoolTimedOut => Kind::Unreachable.error("no connection in time", operation, place),
        // An answer that breaks off is a lost connection.
        error @ (sqlx::Error::Io(_)
        | sqlx::Error::Tls(_)
        | sqlx::Error::Protocol(_)
        | sqlx::Error::WorkerCrashed
        | sqlx::Error::BeginFailed) => Kind::Unreachable.error(error, operation, place),
        error => Kind::Unexpected.error(error, operation, place),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Denied,
    Unreachable,
    Busy,
    Full,
    /// The tables are not there, which the next call makes good.
    Missing,
    Unexpected,
}

impl Kind {
    fn error(self, reason: impl Display, operation: &'static str, place: &str) -> EventLogError {
        let (place, reason) = (place.to_owned(), reason.to_string());
        match self {
            Self::Denied => EventLogError::Denied { place, reason },
            Self::Unreachable => EventLogError::Unreachable { place, reason },
            Self::Busy | Self::Missing => EventLogError::Busy { place, reason },
            Self::Full => EventLogError::Full { place, reason },
            Self::Unexpected => EventLogError::Unexpected { operation, detail: reason },
        }
    }
}

fn kind_of(error: &dyn DatabaseError) -> Kind {
    let code = error.code().unwrap_or_default();
    if error.try_downcast_ref::<sqlx::sqlite::SqliteError>().is_some() {
        // It has no code of its own for this.
        let missing = code == "1" && error.message().starts_with("no such table");
        if missing { Kind::Missing } else { code.parse().map_or(Kind::Unexpected, sqlite_kind) }
    } else {
        postgres_kind(&code)
    }
}

/// By PostgreSQL's SQLSTATE.
fn postgres_kind(code: &str) -> Kind {
    match code {
        // Out of disk, or of memory.
        "53100" | "53200" => Kind::Full,
        // A server that was demoted takes no writes; a statement that took too long was cancelled.
        "25006" | "55P03" | "57014" => Kind::Busy,
        // No such table, or no such schema for it.
        "42P01" | "3F000" => Kind::Missing,
        // No such database, no such right.
        "3D000" | "42501" => Kind::Denied,
        _ => match code.get(..2) {
            Some("08") => Kind::Unreachable,
            // Roll-backs for others' sake, lack of resources, an operator's hand, failing disks.
            Some("25" | "40" | "53" | "57" | "58") => Kind::Busy,
            Some("28") => Kind::Denied,
            _ => Kind::Unexpected,
        },
    }
}

/// By SQLite's result code, whose lower byte is the primary one.
fn sqlite_kind(code: i32) -> Kind {
    match code & 0xff {
        // Busy, locked, a failing disk.
        5 | 6 | 10 => Kind::Busy,
        13 => Kind::Full,
        14 => Kind::Unreachable,
        // Permission, read only, authorisation; a file that is no database.
        3 | 8 | 23 | 26 => Kind::Denied,
        _ => Kind::Unexpected,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_judged_by_what_a_caller_can_do() {
        for (code, kind) in [
            ("08006", Kind::Unreachable),
            ("57P01", Kind::Busy),
            ("57P03", Kind::Busy),
            ("53300", Kind::Busy),
            ("40P01", Kind::Busy),
            ("55P03", Kind::Busy),
            ("57014", Kind::Busy),
            ("25006", Kind::Busy),
            ("25P03", Kind::Busy),
            ("53100", Kind::Full),
            ("28P01", Kind::Denied),
            ("3D000", Kind::Denied),
            ("42501", Kind::Denied),
            ("42P01", Kind::Missing),
            ("22P05", Kind::Unexpected),
        ] {
            assert_eq!(postgres_kind(code), kind, "{code}");
        }
        for (code, kind) in [
            (5, Kind::Busy),
            (517, Kind::Busy),
            (6, Kind::Busy),
            (778, Kind::Busy),
            (13, Kind::Full),
            (14, Kind::Unreachable),
            (8, Kind::Denied),
            (26, Kind::Denied),
            (1, Kind::Unexpected),
            (2067, Kind::Unexpected),
        ] {
            assert_eq!(sqlite_kind(code), kind, "{code}");
        }
    }

    #[test]
    fn a_lost_connection_is_worth_another_try_and_a_strange_row_is_not() {
        let lost = Fault::Sql(sqlx::Error::Io(std::io::ErrorKind::UnexpectedEof.into())).during("record", "db:5432");
        assert_eq!(lost.class(), ErrorClass::Transient);
        assert!(lost.to_string().contains("db:5432 was not reached"), "{lost}");
        assert_eq!(Fault::Sql(sqlx::Error::PoolTimedOut).during("record", "x").class(), ErrorClass::Transient);
        assert_eq!(Fault::Stored("epoch is null".to_owned()).during("history", "x").class(), ErrorClass::Bug);
        assert_eq!(Fault::Invalid("no".to_owned()).during("history", "x").class(), ErrorClass::Invalid);
    }
}
