//! Forgets what has been kept for long enough, a bounded batch a call.

use jiff::Timestamp;

use super::database::{Bind, Statement};
use super::dead_letters::listed;
use super::{EventLog, Place, Result, next_page, page_size, place_of};
use crate::broker::{ListCursor, Page};
use crate::protocol::names::{DeadLetterId, QueueName};

/// Since when a dead letter is kept.
const LETTER_AGE: &str = "COALESCE(decided_at, failed_at)";

/// Which old events go: not those of a task whose dead letter is here, and those of a task that may be live only when
/// they are older than `$3`. A decision is about a task that has ended.
const NOT_NEEDED: &str = " AND NOT EXISTS \
    (SELECT 1 FROM dlq_items AS letter WHERE letter.queue = old.queue AND letter.task_id = old.task_id) \
    AND (occurred_at < $3 OR (to_state IS NULL AND idempotency_key IS NULL) OR EXISTS \
    (SELECT 1 FROM event_log AS ended WHERE ended.queue = old.queue AND ended.task_id = old.task_id \
    AND ended.task_created_at = old.task_created_at AND ended.to_state IN ('succeeded', 'failed', 'cancelled') \
    AND ended.occurred_at < $2))";

/// Which events are old. Those of a task stay together: they go when its end is old.
#[derive(Debug, Clone, Copy)]
pub struct OldEvents {
    /// Of tasks that ended before this time.
    pub ended: Timestamp,
    /// Of any task, before this time: no task lives for so long.
    pub all: Timestamp,
}

impl EventLog {
    /// Deletes old events, oldest first, up to `limit`; says how many. A full batch means
    /// that there may be more. Those of a task whose dead letter is here stay.
    pub async fn delete_events_before(&self, queue: &QueueName, old: OldEvents, limit: usize) -> Result<usize> {
        let sql = format!(
            "DELETE FROM event_log WHERE id IN (SELECT id FROM event_log AS old WHERE queue = $1 \
             AND occurred_at < $2{NOT_NEEDED} ORDER BY occurred_at, id LIMIT {})",
            page_size(limit)
        );
        let OldEvents { ended, all } = old;
        let delete = Statement::new(sql, [Bind::text(queue.to_string()), Bind::time(ended), Bind::time(all)]);
        self.call("delete_events_before", async |database| Ok(database.execute(&delete).await? as usize)).await
    }

    /// The dead letters that failed, and were decided on if they were, before that
    /// time; up to `limit`, the oldest first.
    pub async fn dead_letters_before(
        &self,
        queue: &QueueName,
        time: Timestamp,
        cursor: ListCursor,
        limit: usize,
    ) -> Result<Page<DeadLetterId>> {
        let limit = page_size(limit);
        self.call("dead_letters_before", async |database| {
            let sql = format!("SELECT id, dlq_id, {LETTER_AGE} AS age FROM dlq_items WHERE queue = $1");
            let mut select = Statement::new(sql, [Bind::text(queue.to_string())]);
            select.push(&format!(" AND {LETTER_AGE} < ?"), [Bind::time(time)]);
            if let Some(Place(age, id)) = place_of::<Timestamp, i64>(&cursor)? {
                select.push(&format!(" AND ({LETTER_AGE}, id) > (?, ?)"), [Bind::time(age), Bind::int(id)]);
            }
            select.push(&format!(" ORDER BY {LETTER_AGE}, id LIMIT {limit}"), []);
            let rows = database.fetch(&select).await?;
            let items = rows.iter().map(|row| row.parsed("dlq_id")).collect::<std::result::Result<_, _>>()?;
            Ok(Page { items, next: next_page(&rows, limit, "age")? })
        })
        .await
    }

    /// Deletes those of these dead letters (at most [`super::MAX_PAGE`]) that are still as
    /// old as that, with what was said about them, and says how many. A decision is
    /// thus kept as long as the letter itself.
    pub async fn delete_dead_letters(&self, queue: &QueueName, ids: &[DeadLetterId], time: Timestamp) -> Result<usize> {
        let of_queue = [Bind::text(queue.to_string()), Bind::time(time)];
        let deleted = self.call("delete_dead_letters", async |database| {
            let (listed, ids) = listed(database.dialect(), ids)?;
            let sql = format!("DELETE FROM dlq_items WHERE queue = $1 AND {LETTER_AGE} < $2");
            let mut delete = Statement::new(sql, of_queue);
            delete.push(listed, [ids]);
            Ok(database.execute(&delete).await? as usize)
        });
        let deleted = deleted.await?;
        let sql = "DELETE FROM dlq_reviews WHERE id IN (SELECT id FROM dlq_reviews AS review WHERE queue = $1 AND \
                   reviewed_at < $2 AND NOT EXISTS (SELECT 1 FROM dlq_items AS item WHERE item.queue = review.queue \
                   AND item.dlq_id = review.dlq_id) ORDER BY reviewed_at LIMIT 1000)";
        let orphans = Statement::new(sql, [Bind::text(queue.to_string()), Bind::time(time)]);
        self.call("delete_dead_letters", async |database| database.execute(&orphans).await).await?;
        Ok(deleted)
    }

    /// Deletes samples that were taken before that time, oldest first, up to `limit`; says how many.
    pub async fn delete_metrics_before(&self, queue: &QueueName, time: Timestamp, limit: usize) -> Result<usize> {
        let sql = format!(
            "DELETE FROM task_queue_metrics WHERE id IN (SELECT id FROM task_queue_metrics \
             WHERE queue = $1 AND sampled_at < $2 ORDER BY sampled_at LIMIT {})",
            page_size(limit)
        );
        let delete = Statement::new(sql, [Bind::text(queue.to_string()), Bind::time(time)]);
        self.call("delete_metrics_before", async |database| Ok(database.execute(&delete).await? as usize)).await
    }
}
