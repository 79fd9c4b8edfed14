//! A queue in numbers over time, for whoever reads tables instead of scraping.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;

use super::database::{Bind, Row, Statement};
use super::error::Fault;
use super::{EventLog, MAX_PAGE, Result};
use crate::protocol::names::{QueueName, TaskType, TenantId};

/// What a queue did since the sample before.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Sample {
    /// When it was taken; a second one of the same time is the same one.
    pub at: Timestamp,
    /// Tasks that were created.
    pub created: u64,
    /// Tasks that succeeded.
    pub completed: u64,
    /// Tasks that failed for good.
    pub failed: u64,
    /// From creation to success, on average, where any succeeded.
    pub average_latency: Option<Duration>,
    /// How late the latest worker's heartbeat is, where there are workers.
    pub heartbeat_delay: Option<Duration>,
    /// The part of live tasks that are to run again, from 0 to 1.
    pub retrying_ratio: f64,
    /// Moves that were refused.
    pub invalid_transitions: u64,
    /// The part of attempts that failed, from 0 to 1, by type.
    pub error_rates: BTreeMap<TaskType, f64>,
    /// Dead letters that came, by tenant.
    pub dead_letter_growth: BTreeMap<TenantId, u64>,
}

impl EventLog {
    /// Writes a sample; a second one of the same time changes nothing.
    pub async fn record_sample(&self, queue: &QueueName, sample: &Sample) -> Result<()> {
        let insert = insert(queue, sample);
        self.call("record_sample", async |database| database.execute(&insert).await.map(|_| ())).await
    }

    /// Samples from one time on and before another, oldest first; at most [`MAX_PAGE`].
    pub async fn samples(&self, queue: &QueueName, from: Timestamp, to: Timestamp) -> Result<Vec<Sample>> {
        let sql = format!(
            "SELECT * FROM task_queue_metrics WHERE queue = $1 AND sampled_at >= $2 AND sampled_at < $3 \
             ORDER BY sampled_at LIMIT {MAX_PAGE}"
        );
        let select = Statement::new(sql, [Bind::text(queue.to_string()), Bind::time(from), Bind::time(to)]);
        self.call("samples", async |database| {
            let rows = database.fetch(&select).await?;
            rows.iter().map(sample_of).collect()
        })
        .await
    }
}

fn insert(queue: &QueueName, sample: &Sample) -> Statement {
    let sql = "INSERT INTO task_queue_metrics (queue, sampled_at, tasks_created, tasks_completed, tasks_failed, \
               average_latency_ms, worker_heartbeat_delay_ms, retrying_ratio, invalid_transitions, \
               error_rates_per_type, dlq_growth_per_tenant) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) \
               ON CONFLICT (queue, sampled_at) DO NOTHING";
    let ms = |duration: Option<Duration>| Bind::Int(duration.map(|d| d.as_millis().try_into().unwrap_or(i64::MAX)));
    Statement::new(
        sql,
        [
            Bind::text(queue.to_string()),
            Bind::time(sample.at),
            Bind::int(sample.created),
            Bind::int(sample.completed),
            Bind::int(sample.failed),
            ms(sample.average_latency),
            ms(sample.heartbeat_delay),
            Bind::Real(finite(sample.retrying_ratio)),
            Bind::int(sample.invalid_transitions),
            Bind::Text(Some(json(
                &sample.error_rates.iter().map(|(k, v)| (k, finite(*v))).collect::<BTreeMap<_, _>>(),
            ))),
            Bind::Text(Some(json(&sample.dead_letter_growth))),
        ],
    )
}

/// A ratio of nothing to nothing is none.
fn finite(ratio: f64) -> f64 {
    if ratio.is_finite() { ratio } else { 0.0 }
}

fn json<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("invariant: names and finite numbers have a JSON form")
}

fn sample_of(row: &Row) -> std::result::Result<Sample, Fault> {
    let duration = |ms: Option<i64>| ms.map(|ms| Duration::from_millis(ms.try_into().unwrap_or(0)));
    Ok(Sample {
        at: row.time("sampled_at")?,
        created: row.count("tasks_created")?,
        completed: row.count("tasks_completed")?,
        failed: row.count("tasks_failed")?,
        average_latency: duration(row.maybe_int("average_latency_ms")?),
        heartbeat_delay: duration(row.maybe_int("worker_heartbeat_delay_ms")?),
        retrying_ratio: row.real("retrying_ratio")?,
        invalid_transitions: row.count("invalid_transitions")?,
        error_rates: row.json("error_rates_per_type")?,
        dead_letter_growth: row.json("dlq_growth_per_tenant")?,
    })
}
