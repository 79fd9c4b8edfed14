//! Makes the tables, and changes them from version to version.
//!
//! A migration is a file a dialect, never changed once released. They run in one
//! transaction under a lock, so two processes that start at once migrate once,
//! and one that is killed leaves nothing half made. A database that is ahead of this
//! build is used as it is: migrations only add.

use std::time::Duration;

use tokio::time::Instant;

use super::database::{Bind, Changes, Database, Dialect, Statement};
use super::error::Fault;

/// The migrations in their order; the first is version 1.
const MIGRATIONS: [Migration; 2] = [
    Migration {
        postgres: include_str!("migrations/postgres/0001_tables.sql"),
        sqlite: include_str!("migrations/sqlite/0001_tables.sql"),
    },
    Migration {
        postgres: include_str!("migrations/postgres/0002_task_of_a_dead_letter.sql"),
        sqlite: include_str!("migrations/sqlite/0002_task_of_a_dead_letter.sql"),
    },
];

struct Migration {
    postgres: &'static str,
    sqlite: &'static str,
}

const VERSIONS_TABLE: &str = "CREATE TABLE IF NOT EXISTS windlass_migrations (version BIGINT PRIMARY KEY)";

/// Names our lock among those of other programs in the same database: "windlass" in ASCII.
const LOCK: &str = "SELECT pg_advisory_xact_lock(8604529940662154099)";

/// For how long it is tried again while others are at it.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(20);

/// Brings the tables up to date. A database that is needs no right to change its schema.
///
/// Of several processes that open a new SQLite file, those that meet while it
/// becomes one with a write-ahead log are refused at once: for that, SQLite does not wait.
pub(super) async fn migrate(database: &Database) -> Result<(), Fault> {
    let since = Instant::now();
    loop {
        match try_to_migrate(database).await {
            Err(fault) if fault.is_busy() && since.elapsed() < PATIENCE => tokio::time::sleep(PAUSE).await,
            answer => return answer,
        }
    }
}

async fn try_to_migrate(database: &Database) -> Result<(), Fault> {
    if is_current(database).await? {
        return Ok(());
    }
    // In SQLite the transaction itself is the lock, and every text is UTF-8.
    let mut writer = database.writer().await?;
    let mut changes = writer.begin().await?;
    if database.dialect() == Dialect::Postgres {
        check_encoding(&mut changes).await?;
        changes.fetch(&Statement::new(LOCK, [])).await?;
    }
    changes.execute_file(VERSIONS_TABLE).await?;
    let done = version(&changes.fetch(&newest()).await?)?;
    for (number, migration) in (1..).zip(&MIGRATIONS).filter(|(number, _)| *number > done) {
        apply(&mut changes, database.dialect(), number, migration).await?;
    }
    changes.commit().await
}

/// Another encoding lacks most characters, and the first event with one of them would hold up all others.
async fn check_encoding(changes: &mut Changes<'_>) -> Result<(), Fault> {
    let select = Statement::new("SELECT current_setting('server_encoding') AS encoding", []);
    let rows = changes.fetch(&select).await?;
    match rows.first().map(|row| row.text("encoding")).transpose()?.as_deref() {
        Some("UTF8") => Ok(()),
        other => Err(Fault::Invalid(format!(
            "the event log's database is encoded as {}: use one that was made with ENCODING 'UTF8'",
            other.unwrap_or("nothing known")
        ))),
    }
}

async fn apply(changes: &mut Changes<'_>, dialect: Dialect, number: i64, migration: &Migration) -> Result<(), Fault> {
    let sql = match dialect {
        Dialect::Postgres => migration.postgres,
        Dialect::Sqlite => migration.sqlite,
    };
    changes.execute_file(sql).await?;
    let note = Statement::new("INSERT INTO windlass_migrations (version) VALUES ($1)", [Bind::int(number)]);
    changes.execute(&note).await.map(|_| ())
}

async fn is_current(database: &Database) -> Result<bool, Fault> {
    let exists = match database.dialect() {
        Dialect::Postgres => "SELECT 1 WHERE to_regclass('windlass_migrations') IS NOT NULL",
        Dialect::Sqlite => "SELECT 1 FROM sqlite_schema WHERE name = 'windlass_migrations'",
    };
    if database.fetch(&Statement::new(exists, [])).await?.is_empty() {
        return Ok(false);
    }
    Ok(version(&database.fetch(&newest()).await?)? >= MIGRATIONS.len() as i64)
}

fn newest() -> Statement {
    Statement::new("SELECT max(version) AS version FROM windlass_migrations", [])
}

fn version(rows: &[super::database::Row]) -> Result<i64, Fault> {
    let newest = rows.first().map(|row| row.maybe_int("version")).transpose()?;
    Ok(newest.flatten().unwrap_or(0))
}
