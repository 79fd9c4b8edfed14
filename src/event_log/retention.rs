//! Forgets what has been kept for long enough, a bounded batch a call.

use jiff::Timestamp;

use super::database::{Bind, Statement};
use super::dead_letters::listed;
use super::{EventLog, Result, page_size};
use crate::protocol::names::{DeadLetterId, QueueName};

/// Since when a dead letter is kept.
const LETTER_AGE: &str = "COALESCE(decided_at, failed_at)";

const EVENT_OF_A_LETTER: &str = " AND NOT EXISTS \
    (SELECT 1 FROM dlq_items AS letter WHERE letter.queue = old.queue AND letter.task_id = old.task_id)";

/// What goes when it is old.
struct Old {
    table: &'static str,
    /// Its time.
    age: &'static str,
    /// What keeps it all the same.
    unless: &'static str,
}

impl EventLog {
    /// Deletes events that happened before that time, oldest first, up to
    /// `limit`; says how many. A full batch means that there may be more. Those of a
    /// task whose dead letter is here stay.
    pub async fn delete_events_before(&self, queue: &QueueName, time: Timestamp, limit: usize) -> Result<usize> {
        let old = Old { table: "event_log", age: "occurred_at", unless: EVENT_OF_A_LETTER };
        self.delete("delete_events_before", old, queue, time, limit).await
    }

    /// The dead letters that failed, and were decided on if they were, before that
    /// time; up to `limit`, the oldest first.
    pub async fn dead_letters_before(
        &self,
        queue: &QueueName,
        time: Timestamp,
        limit: usize,
    ) -> Result<Vec<DeadLetterId>> {
        let sql = format!(
            "SELECT dlq_id FROM dlq_items WHERE queue = $1 AND {LETTER_AGE} < $2 ORDER BY {LETTER_AGE} LIMIT {}",
            page_size(limit)
        );
        let select = Statement::new(sql, [Bind::text(queue.to_string()), Bind::time(time)]);
        self.call("dead_letters_before", async |database| {
            database.fetch(&select).await?.iter().map(|row| row.parsed("dlq_id")).collect()
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
        let old = Old { table: "task_queue_metrics", age: "sampled_at", unless: "" };
        self.delete("delete_metrics_before", old, queue, time, limit).await
    }

    async fn delete(
        &self,
        operation: &'static str,
        Old { table, age, unless }: Old,
        queue: &QueueName,
        time: Timestamp,
        limit: usize,
    ) -> Result<usize> {
        let sql = format!(
            "DELETE FROM {table} WHERE id IN \
             (SELECT id FROM {table} AS old WHERE queue = $1 AND {age} < $2{unless} ORDER BY {age} LIMIT {})",
            page_size(limit)
        );
        let delete = Statement::new(sql, [Bind::text(queue.to_string()), Bind::time(time)]);
        self.call(operation, async |database| Ok(database.execute(&delete).await? as usize)).await
    }
}
