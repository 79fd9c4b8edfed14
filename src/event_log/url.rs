//! Which database a URL names.

use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use sqlx::ConnectOptions;
use sqlx::postgres::PgConnectOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};

use super::database::Database;
use super::error::EventLogError;

/// How long SQLite waits for another process to let go of the file.
const BUSY_LIMIT: Duration = Duration::from_secs(5);

/// The database that a URL names, and how it is called in messages: never with a password.
pub(super) fn parse(url: &str) -> Result<(Database, String), EventLogError> {
    match url.split_once("://").map(|(scheme, _)| scheme) {
        Some("postgres" | "postgresql") => postgres(url),
        Some("sqlite") => sqlite(url),
        _ => Err(refused("write postgres://USER:PASSWORD@HOST:PORT/DATABASE or sqlite://PATH/TO/FILE")),
    }
}

fn postgres(url: &str) -> Result<(Database, String), EventLogError> {
    let advice = "write postgres://USER:PASSWORD@HOST:PORT/DATABASE, with special characters in user and password \
                  percent-encoded (%40 for @), and check the options after the ?";
    // The parser's own message may quote a part of the URL.
    let options = PgConnectOptions::from_str(url).map_err(|_| refused(advice))?;
    let options = options.application_name("windlass").disable_statement_logging();
    let database = options.get_database().unwrap_or(options.get_username()).to_owned();
    let place = match options.get_socket() {
        Some(socket) => format!("{}/{database}", socket.display()),
        None => format!("{}:{}/{database}", options.get_host(), options.get_port()),
    };
    Ok((Database::postgres(options), place))
}

fn sqlite(url: &str) -> Result<(Database, String), EventLogError> {
    let options = sqlite_options(url)?;
    let place = options.get_filename().display().to_string();
    Ok((Database::sqlite(options), place))
}

/// How an SQLite file is opened.
pub(super) fn sqlite_options(url: &str) -> Result<SqliteConnectOptions, EventLogError> {
    if url.contains(":memory:") || url.contains("mode=memory") {
        return Err(refused("an event log in memory would be forgotten; name a file: sqlite://PATH/TO/FILE"));
    }
    let advice = "write sqlite://PATH/TO/FILE (three slashes before an absolute path)";
    let options = SqliteConnectOptions::from_str(url).map_err(|_| refused(advice))?;
    let file = options.get_filename().to_owned();
    if file.as_os_str().is_empty() || file.is_dir() {
        return Err(refused(advice));
    }
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !folder.is_dir() {
        return Err(refused(&format!("there is no directory {}; make it, or name another file", folder.display())));
    }
    Ok(options
        .create_if_missing(true)
        .foreign_keys(true)
        .journal_mode(SqliteJournalMode::Wal)
        // The outbox is trimmed behind what is committed here, so a commit must survive a power cut.
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(BUSY_LIMIT)
        .disable_statement_logging())
}

fn refused(advice: &str) -> EventLogError {
    EventLogError::Url(advice.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::ErrorClass;

    #[tokio::test]
    async fn a_bad_url_is_refused_with_advice_and_without_its_password() {
        for url in [
            "",
            "hunter2",
            "mysql://me:hunter2@db/x",
            "redis://:hunter2@db",
            "postgres:hunter2",
            "postgres://me:hunter2#@db/x",
            "postgres://me:hunter2@db:port/x",
            "postgres://me:pw@db/x?sslmode=hunter2",
            "sqlite://",
            "sqlite::memory:",
            "sqlite://:memory:",
            "sqlite://x.db?mode=memory",
            "sqlite:///tmp",
            "sqlite:///no/such/place/hunter.db",
        ] {
            let error = parse(url).expect_err(url);
            assert_eq!(error.class(), ErrorClass::Invalid, "{url}");
            assert!(!error.to_string().contains("hunter2"), "{error}");
            assert!(error.to_string().contains("://") || error.to_string().contains("make it"), "{error}");
        }
    }

    #[tokio::test]
    async fn a_place_is_named_without_credentials() {
        let place = |url: &str| parse(url).expect("a usable URL").1;
        assert_eq!(place("postgres://me:hunter2@db.shop:5433/log?sslmode=require"), "db.shop:5433/log");
        assert_eq!(place("postgresql://me:hunter2@db/"), "db:5432/me");
        assert_eq!(place("sqlite:///tmp/windlass.db"), "/tmp/windlass.db");
        assert_eq!(place("sqlite://windlass.db"), "windlass.db");
    }
}
