//! Dead letters by cause: thousands of them read as a few.

use jiff::Timestamp;
use serde::Serialize;

use super::database::{Bind, Database, Dialect, Row, Statement};
use super::dead_letters::{json, matching};
use super::error::Fault;
use super::{DeadLetterFilter, EventLog, MAX_PAGE, Place, Result, page_size, place_of};
use crate::broker::{ListCursor, Page};
use crate::protocol::fingerprint::Fingerprint;
use crate::protocol::names::{DeadLetterId, QueueName, TaskType, TenantId};

/// Dead letters of one type that died of the same thing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Cause {
    /// Names the cause.
    pub fingerprint: Fingerprint,
    /// How many died of it.
    pub count: u64,
    /// How many of those nobody has decided on.
    pub open: u64,
    /// What kind of work they were. It is part of what a fingerprint names, and so is the error's code.
    #[serde(rename = "type")]
    pub task_type: TaskType,
    /// The kind of error.
    pub error_code: String,
    /// The error of the last of them, word for word.
    pub sample_error: String,
    /// The last of them.
    #[serde(serialize_with = "as_text")]
    pub sample_id: DeadLetterId,
    /// On whose behalf they were: those with the most, at most [`Cause::MAX_TENANTS`].
    pub tenants: Vec<TenantId>,
    /// How many different tenants there are.
    pub tenant_count: u64,
    /// When the first of them died.
    pub first_failed_at: Timestamp,
    /// When the last of them died.
    pub last_failed_at: Timestamp,
}

impl Cause {
    /// The most tenants that a cause names.
    pub const MAX_TENANTS: usize = 10;
}

fn as_text<S: serde::Serializer>(id: &DeadLetterId, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    serializer.collect_str(id)
}

impl EventLog {
    /// Dead letters by cause, the commonest first.
    pub async fn causes(
        &self,
        queue: &QueueName,
        filter: &DeadLetterFilter,
        cursor: ListCursor,
        limit: usize,
    ) -> Result<Page<Cause>> {
        let limit = page_size(limit);
        self.call("causes", async |database| {
            let groups = grouped(database.dialect(), queue, filter, &cursor, limit)?;
            let rows = database.fetch(&groups).await?;
            let mut causes: Vec<Cause> = rows.iter().map(cause_of).collect::<std::result::Result<_, _>>()?;
            name_tenants(database, queue, filter, &mut causes).await?;
            let last = causes.last().filter(|_| causes.len() == limit);
            let next = last.map(|cause| Place(cause.count, cause.fingerprint.as_str()).cursor());
            Ok(Page { items: causes, next })
        })
        .await
    }
}

/// Groups by cause.
fn grouped(
    dialect: Dialect,
    queue: &QueueName,
    filter: &DeadLetterFilter,
    cursor: &ListCursor,
    limit: usize,
) -> std::result::Result<Statement, Fault> {
    let columns = "SELECT cause.*, item.error AS sample_error, item.dlq_id AS sample_id, item.task_type, \
                   item.error_code FROM (SELECT fingerprint, count(*) AS letters, \
                   count(*) FILTER (WHERE decision = 'open') AS undecided, count(DISTINCT tenant_id) AS tenants, \
                   min(failed_at) AS first_failed_at, max(failed_at) AS last_failed_at, max(id) AS last_id";
    let mut groups = matching(columns, dialect, queue, filter)?;
    groups.push(" GROUP BY fingerprint", []);
    if let Some(Place(count, fingerprint)) = place_of::<u64, Fingerprint>(cursor)? {
        let place = [Bind::int(count), Bind::int(count), Bind::text(fingerprint.as_str())];
        groups.push(" HAVING count(*) < ? OR (count(*) = ? AND fingerprint > ?)", place);
    }
    let rest = format!(
        " ORDER BY letters DESC, fingerprint LIMIT {limit}) AS cause JOIN dlq_items AS item ON item.id = cause.last_id \
         ORDER BY letters DESC, cause.fingerprint"
    );
    groups.push(&rest, []);
    Ok(groups)
}

/// Adds who was hit, the hardest hit first.
async fn name_tenants(
    database: &Database,
    queue: &QueueName,
    filter: &DeadLetterFilter,
    causes: &mut [Cause],
) -> std::result::Result<(), Fault> {
    let hit: Vec<_> = causes.iter().filter(|cause| cause.tenant_count > 0).map(|cause| &cause.fingerprint).collect();
    if hit.is_empty() {
        return Ok(());
    }
    let columns = "SELECT fingerprint, tenant_id, count(*) AS letters";
    let mut select = matching(columns, database.dialect(), queue, filter)?;
    let among = match database.dialect() {
        Dialect::Postgres => " AND fingerprint IN (SELECT json_array_elements_text(?::json))",
        Dialect::Sqlite => " AND fingerprint IN (SELECT value FROM json_each(?))",
    };
    select.push(among, [Bind::text(json(&hit))]);
    let rest = " AND tenant_id IS NOT NULL GROUP BY fingerprint, tenant_id ORDER BY letters DESC, tenant_id LIMIT";
    select.push(&format!("{rest} {MAX_PAGE}"), []);
    for row in database.fetch(&select).await? {
        let fingerprint: Fingerprint = row.parsed("fingerprint")?;
        let cause = causes.iter_mut().find(|cause| cause.fingerprint == fingerprint);
        if let Some(cause) = cause.filter(|cause| cause.tenants.len() < Cause::MAX_TENANTS) {
            cause.tenants.push(row.parsed("tenant_id")?);
        }
    }
    Ok(())
}

fn cause_of(row: &Row) -> std::result::Result<Cause, Fault> {
    Ok(Cause {
        fingerprint: row.parsed("fingerprint")?,
        count: row.count("letters")?,
        open: row.count("undecided")?,
        task_type: row.parsed("task_type")?,
        error_code: row.text("error_code")?,
        sample_error: row.text("sample_error")?,
        sample_id: row.parsed("sample_id")?,
        tenants: Vec::new(),
        tenant_count: row.count("tenants")?,
        first_failed_at: row.time("first_failed_at")?,
        last_failed_at: row.time("last_failed_at")?,
    })
}
