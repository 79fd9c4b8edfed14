//! Forgets what has been kept for long enough, a bounded batch a call.

use jiff::Timestamp;

use super::database::{Bind, Statement};
use super::{EventLog, Result, page_size};
use crate::protocol::names::QueueName;

impl EventLog {
    /// Deletes events that happened before that time, oldest first, up to
    /// `limit`; says how many. A full batch means that there may be more.
    pub async fn delete_events_before(&self, queue: &QueueName, time: Timestamp, limit: usize) -> Result<usize> {
        self.delete("delete_events_before", ("event_log", "occurred_at"), queue, time, limit).await
    }

    /// Deletes dead letters that failed, and were decided on if they were,
    /// before that time, with what was said about them; up to `limit`, and says how
    /// many. A decision is thus kept as long as the letter itself.
    pub async fn delete_dead_letters_before(&self, queue: &QueueName, time: Timestamp, limit: usize) -> Result<usize> {
        let rows = ("dlq_items", "COALESCE(decided_at, failed_at)");
        let deleted = self.delete("delete_dead_letters_before", rows, queue, time, limit).await?;
        let sql = "DELETE FROM dlq_reviews WHERE id IN (SELECT id FROM dlq_reviews AS review WHERE queue = $1 AND \
                   reviewed_at < $2 AND NOT EXISTS (SELECT 1 FROM dlq_items AS item WHERE item.queue = review.queue \
                   AND item.dlq_id = review.dlq_id) ORDER BY reviewed_at LIMIT 1000)";
        let orphans = Statement::new(sql, [Bind::text(queue.to_string()), Bind::time(time)]);
        self.call("delete_dead_letters_before", async |database| database.execute(&orphans).await).await?;
        Ok(deleted)
    }

    /// Deletes samples that were taken before that time, oldest first, up to `limit`; says how many.
    pub async fn delete_metrics_before(&self, queue: &QueueName, time: Timestamp, limit: usize) -> Result<usize> {
        self.delete("delete_metrics_before", ("task_queue_metrics", "sampled_at"), queue, time, limit).await
    }

    async fn delete(
        &self,
        operation: &'static str,
        (table, age): (&str, &str),
        queue: &QueueName,
        time: Timestamp,
        limit: usize,
    ) -> Result<usize> {
        // The age is asked for twice: a letter that is decided on in between stays.
        let sql = format!(
            "DELETE FROM {table} WHERE {age} < $2 AND id IN \
             (SELECT id FROM {table} WHERE queue = $1 AND {age} < $2 ORDER BY {age} LIMIT {})",
            page_size(limit)
        );
        let delete = Statement::new(sql, [Bind::text(queue.to_string()), Bind::time(time)]);
        self.call(operation, async |database| Ok(database.execute(&delete).await? as usize)).await
    }
}
