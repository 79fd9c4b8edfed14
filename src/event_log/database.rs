//! The two databases behind one face: statements, connections, transactions, rows.
//!
//! Statements are written once for both. Placeholders are `$1`, `$2`, …, which
//! both understand; the little that has no common spelling asks for the
//! [`Dialect`].

use std::time::Duration;

use jiff::Timestamp;
use jiff_sqlx::ToSqlx;
use sqlx::pool::{PoolConnection, PoolOptions};
use sqlx::postgres::{PgArguments, PgConnectOptions, PgPool, PgPoolOptions, PgRow};
use sqlx::query::Query;
use sqlx::sqlite::{SqliteArguments, SqliteConnectOptions, SqlitePool, SqliteRow};
use sqlx::{AssertSqlSafe, Connection, Postgres, Row as _, Sqlite};

use super::error::Fault;

/// How long a call waits for a connection.
const ACQUIRE_LIMIT: Duration = Duration::from_secs(5);

/// How long a connection that is given back may take to prove that it is usable.
const RELEASE_LIMIT: Duration = Duration::from_secs(5);

/// Connections to PostgreSQL, and readers of SQLite.
const CONNECTIONS: u32 = 4;

/// What every connection to PostgreSQL is told: a statement that hangs must not
/// hold its locks for longer than we wait for it.
const LIMITS: &str = "SET statement_timeout = '10s'; SET lock_timeout = '5s'; \
                      SET idle_in_transaction_session_timeout = '30s'";

/// Which SQL is spoken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    Postgres,
    Sqlite,
}

/// A value that goes into a statement.
#[derive(Debug, Clone)]
pub(super) enum Bind {
    Text(Option<String>),
    Int(Option<i64>),
    Real(f64),
    Time(Option<Timestamp>),
}

impl Bind {
    /// A text. PostgreSQL holds no NUL, and one event that cannot be stored
    /// would hold up all that follow it.
    pub(super) fn text(value: impl AsRef<str>) -> Self {
        Self::Text(Some(storable(value.as_ref())))
    }

    /// A text that may be absent.
    pub(super) fn maybe_text(value: Option<impl AsRef<str>>) -> Self {
        Self::Text(value.map(|value| storable(value.as_ref())))
    }

    /// A number. What a column does not hold is cut to the most that it does.
    pub(super) fn int(value: impl TryInto<i64>) -> Self {
        Self::Int(Some(value.try_into().unwrap_or(i64::MAX)))
    }

    /// A time, to the millisecond.
    pub(super) fn time(value: Timestamp) -> Self {
        Self::Time(Some(value))
    }
}

/// A text that every database holds.
pub(super) fn storable(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

/// A time as SQLite and JSON hold it: of fixed width, so that it sorts as text.
pub(super) fn time_text(time: Timestamp) -> String {
    format!("{time:.3}")
}

/// A statement and its values.
#[derive(Debug, Clone)]
pub(super) struct Statement {
    sql: String,
    binds: Vec<Bind>,
}

impl Statement {
    /// A statement whose placeholders `$1`, … stand for these values.
    pub(super) fn new(sql: impl Into<String>, binds: impl IntoIterator<Item = Bind>) -> Self {
        Self { sql: sql.into(), binds: binds.into_iter().collect() }
    }

    /// More text, in which each `?` stands for the next of these values.
    pub(super) fn push(&mut self, sql: &str, binds: impl IntoIterator<Item = Bind>) {
        let mut binds = binds.into_iter();
        for (i, piece) in sql.split('?').enumerate() {
            if i > 0 {
                self.binds.extend(binds.next());
                self.sql.push_str(&format!("${}", self.binds.len()));
            }
            self.sql.push_str(piece);
        }
    }

    fn postgres(&self) -> Query<'_, Postgres, PgArguments> {
        let query = sqlx::query(AssertSqlSafe(self.sql.clone()));
        self.binds.iter().fold(query, |query, bind| match bind {
            Bind::Text(value) => query.bind(value.as_deref()),
            Bind::Int(value) => query.bind(*value),
            Bind::Real(value) => query.bind(*value),
            Bind::Time(value) => query.bind(value.map(|time| millisecond(time).to_sqlx())),
        })
    }

    fn sqlite(&self) -> Query<'_, Sqlite, SqliteArguments> {
        let query = sqlx::query(AssertSqlSafe(self.sql.clone()));
        self.binds.iter().fold(query, |query, bind| match bind {
            Bind::Text(value) => query.bind(value.as_deref()),
            Bind::Int(value) => query.bind(*value),
            Bind::Real(value) => query.bind(*value),
            Bind::Time(value) => query.bind(value.map(time_text)),
        })
    }
}

/// Both databases keep times to the millisecond, so that they answer alike.
fn millisecond(time: Timestamp) -> Timestamp {
    Timestamp::from_millisecond(time.as_millisecond()).unwrap_or(time)
}

/// A row of an answer. Its columns are asked for by name.
pub(super) enum Row {
    Postgres(PgRow),
    Sqlite(SqliteRow),
}

impl Row {
    pub(super) fn maybe_text(&self, column: &str) -> Result<Option<String>, Fault> {
        Ok(match self {
            Self::Postgres(row) => row.try_get(column)?,
            Self::Sqlite(row) => row.try_get(column)?,
        })
    }

    pub(super) fn maybe_int(&self, column: &str) -> Result<Option<i64>, Fault> {
        Ok(match self {
            Self::Postgres(row) => row.try_get(column)?,
            Self::Sqlite(row) => row.try_get(column)?,
        })
    }

    pub(super) fn real(&self, column: &str) -> Result<f64, Fault> {
        Ok(match self {
            Self::Postgres(row) => row.try_get(column)?,
            Self::Sqlite(row) => row.try_get(column)?,
        })
    }

    pub(super) fn maybe_time(&self, column: &str) -> Result<Option<Timestamp>, Fault> {
        match self {
            Self::Postgres(row) => {
                Ok(row.try_get::<Option<jiff_sqlx::Timestamp>, _>(column)?.map(jiff_sqlx::Timestamp::to_jiff))
            }
            Self::Sqlite(_) => self.maybe_text(column)?.map(|text| parse(column, &text)).transpose(),
        }
    }

    pub(super) fn text(&self, column: &str) -> Result<String, Fault> {
        self.maybe_text(column)?.ok_or_else(|| absent(column))
    }

    pub(super) fn int(&self, column: &str) -> Result<i64, Fault> {
        self.maybe_int(column)?.ok_or_else(|| absent(column))
    }

    /// A count; it is never negative.
    pub(super) fn count(&self, column: &str) -> Result<u64, Fault> {
        Ok(self.int(column)?.try_into().unwrap_or(0))
    }

    pub(super) fn time(&self, column: &str) -> Result<Timestamp, Fault> {
        self.maybe_time(column)?.ok_or_else(|| absent(column))
    }

    /// A text that is one of our names or words.
    pub(super) fn parsed<T: std::str::FromStr<Err: std::fmt::Display>>(&self, column: &str) -> Result<T, Fault> {
        parse(column, &self.text(column)?)
    }

    /// A text that is one of our names or words, where there is one.
    pub(super) fn maybe_parsed<T: std::str::FromStr<Err: std::fmt::Display>>(
        &self,
        column: &str,
    ) -> Result<Option<T>, Fault> {
        self.maybe_text(column)?.map(|text| parse(column, &text)).transpose()
    }

    /// A text that is JSON.
    pub(super) fn json<T: serde::de::DeserializeOwned>(&self, column: &str) -> Result<T, Fault> {
        serde_json::from_str(&self.text(column)?).map_err(|error| Fault::Stored(format!("{column}: {error}")))
    }
}

fn parse<T: std::str::FromStr<Err: std::fmt::Display>>(column: &str, text: &str) -> Result<T, Fault> {
    text.parse().map_err(|error| Fault::Stored(format!("{column}: {error}")))
}

fn absent(column: &str) -> Fault {
    Fault::Stored(format!("{column} is null"))
}

/// The pools of one database.
#[derive(Debug, Clone)]
pub(super) enum Database {
    Postgres(PgPool),
    /// SQLite has one writer at a time, so we have one too: calls then queue up
    /// here, in order, instead of polling for the file's lock.
    Sqlite {
        writer: SqlitePool,
        readers: SqlitePool,
    },
}

impl Database {
    /// Pools that connect when they are first used.
    pub(super) fn postgres(options: PgConnectOptions) -> Self {
        let pool = PgPoolOptions::new()
            .max_connections(CONNECTIONS)
            .acquire_timeout(ACQUIRE_LIMIT)
            .after_connect(|connection, _| {
                Box::pin(async move { sqlx::raw_sql(LIMITS).execute(connection).await.map(|_| ()) })
            })
            .after_release(|connection, _| {
                // A connection whose network is gone would be waited for without
                // end, and hold its place in the pool.
                Box::pin(async move {
                    let proof = tokio::time::timeout(RELEASE_LIMIT, connection.ping()).await;
                    proof.unwrap_or(Err(sqlx::Error::PoolTimedOut)).map(|()| true)
                })
            });
        Self::Postgres(pool.connect_lazy_with(options))
    }

    /// Pools that connect when they are first used.
    pub(super) fn sqlite(options: SqliteConnectOptions) -> Self {
        let pool = |size| PoolOptions::new().max_connections(size).acquire_timeout(ACQUIRE_LIMIT);
        let writer = pool(1).connect_lazy_with(options.clone());
        Self::Sqlite { writer, readers: pool(CONNECTIONS).connect_lazy_with(options) }
    }

    pub(super) fn dialect(&self) -> Dialect {
        match self {
            Self::Postgres(_) => Dialect::Postgres,
            Self::Sqlite { .. } => Dialect::Sqlite,
        }
    }

    /// A connection for several statements, each a transaction of its own.
    pub(super) async fn writer(&self) -> Result<Writer, Fault> {
        Ok(match self {
            Self::Postgres(pool) => Writer::Postgres(pool.acquire().await?),
            Self::Sqlite { writer, .. } => Writer::Sqlite(writer.acquire().await?),
        })
    }

    /// Runs one statement as a transaction of its own; says how many rows it changed.
    pub(super) async fn execute(&self, statement: &Statement) -> Result<u64, Fault> {
        self.writer().await?.execute(statement).await
    }

    /// The rows that a statement finds.
    pub(super) async fn fetch(&self, statement: &Statement) -> Result<Vec<Row>, Fault> {
        Ok(match self {
            Self::Postgres(pool) => rows(statement.postgres().fetch_all(pool).await?, Row::Postgres),
            Self::Sqlite { readers, .. } => rows(statement.sqlite().fetch_all(readers).await?, Row::Sqlite),
        })
    }
}

/// A connection that writes.
pub(super) enum Writer {
    Postgres(PoolConnection<Postgres>),
    Sqlite(PoolConnection<Sqlite>),
}

impl Writer {
    pub(super) fn dialect(&self) -> Dialect {
        match self {
            Self::Postgres(_) => Dialect::Postgres,
            Self::Sqlite(_) => Dialect::Sqlite,
        }
    }

    /// Runs one statement as a transaction of its own; says how many rows it changed.
    pub(super) async fn execute(&mut self, statement: &Statement) -> Result<u64, Fault> {
        Ok(match self {
            Self::Postgres(connection) => statement.postgres().execute(&mut **connection).await?.rows_affected(),
            Self::Sqlite(connection) => statement.sqlite().execute(&mut **connection).await?.rows_affected(),
        })
    }

    /// The rows that a statement finds.
    async fn fetch(&mut self, statement: &Statement) -> Result<Vec<Row>, Fault> {
        Ok(match self {
            Self::Postgres(connection) => rows(statement.postgres().fetch_all(&mut **connection).await?, Row::Postgres),
            Self::Sqlite(connection) => rows(statement.sqlite().fetch_all(&mut **connection).await?, Row::Sqlite),
        })
    }

    /// Runs a text of statements.
    async fn execute_text(&mut self, sql: &'static str) -> Result<(), Fault> {
        match self {
            Self::Postgres(connection) => sqlx::raw_sql(sql).execute(&mut **connection).await.map(|_| ())?,
            Self::Sqlite(connection) => sqlx::raw_sql(sql).execute(&mut **connection).await.map(|_| ())?,
        }
        Ok(())
    }

    /// Begins a transaction that may write. It is undone unless it is committed,
    /// also when it is dropped.
    pub(super) async fn begin(&mut self) -> Result<Changes<'_>, Fault> {
        let begin = match self {
            Self::Postgres(_) => "BEGIN",
            // Takes the file's lock now: a reader that becomes a writer could not wait for it.
            Self::Sqlite(_) => "BEGIN IMMEDIATE",
        };
        let mut changes = Changes { writer: self, open: true };
        let begun = changes.writer.execute_text(begin).await;
        changes.open = begun.is_ok();
        begun.map(|()| changes)
    }
}

/// An open transaction.
///
/// The driver has one of its own, which it undoes when it is dropped, unless that
/// happens while it begins: the connection then goes back to its pool inside of a
/// transaction that nobody commits, and what is written through it later is lost though
/// it was acknowledged. Here a connection that is left in a transaction is closed.
pub(super) struct Changes<'a> {
    writer: &'a mut Writer,
    open: bool,
}

impl Changes<'_> {
    /// Runs one statement; says how many rows it changed.
    pub(super) async fn execute(&mut self, statement: &Statement) -> Result<u64, Fault> {
        self.writer.execute(statement).await
    }

    /// Runs a file of statements.
    pub(super) async fn execute_file(&mut self, sql: &'static str) -> Result<(), Fault> {
        self.writer.execute_text(sql).await
    }

    /// The rows that a statement finds.
    pub(super) async fn fetch(&mut self, statement: &Statement) -> Result<Vec<Row>, Fault> {
        self.writer.fetch(statement).await
    }

    pub(super) async fn commit(mut self) -> Result<(), Fault> {
        self.writer.execute_text("COMMIT").await?;
        self.open = false;
        Ok(())
    }
}

impl Drop for Changes<'_> {
    fn drop(&mut self) {
        if self.open {
            match self.writer {
                Writer::Postgres(connection) => connection.close_on_drop(),
                Writer::Sqlite(connection) => connection.close_on_drop(),
            }
        }
    }
}

fn rows<R>(rows: Vec<R>, wrap: fn(R) -> Row) -> Vec<Row> {
    rows.into_iter().map(wrap).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_numbered_in_their_order() {
        let mut statement = Statement::new("SELECT 1 WHERE a = $1", [Bind::int(1u8)]);
        statement.push(" AND (b, c) > (?, ?)", [Bind::text("x"), Bind::int(2u8)]);
        statement.push(" LIMIT 5", []);
        assert_eq!(statement.sql, "SELECT 1 WHERE a = $1 AND (b, c) > ($2, $3) LIMIT 5");
        assert_eq!(statement.binds.len(), 3);
    }

    #[test]
    fn times_as_text_sort_as_times() {
        let text = |ms| time_text(Timestamp::from_millisecond(ms).expect("in range"));
        assert_eq!(text(1_700_000_000_000), "2023-11-14T22:13:20.000Z");
        assert!(text(1_700_000_000_000) < text(1_700_000_000_500));
        assert_eq!(time_text("2024-01-01T00:00:00.0019Z".parse().expect("a time")), "2024-01-01T00:00:00.001Z");
    }

    #[test]
    fn what_no_column_holds_is_made_to_fit() {
        assert!(matches!(Bind::text("a\0b"), Bind::Text(Some(text)) if text == "a\u{fffd}b"));
        assert!(matches!(Bind::int(u64::MAX), Bind::Int(Some(i64::MAX))));
    }
}
