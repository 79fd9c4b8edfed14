//! Runs the maintenance loops of one queue in a process of its own.
//!
//! `windlass` does this for all queues of a cluster or of one machine. Use it
//! like this where a queue is looked after by a program of yours.
//!
//! ```text
//! cargo run --example leader -- redis://127.0.0.1:6379 shop/emails sqlite:///var/lib/windlass/events.db
//! ```
//!
//! Two leaders of one queue do no harm, and neither does one that dies.

use std::sync::Arc;

use anyhow::{Context, Result};
use windlass::broker::redis::{Redis, RedisOptions};
use windlass::event_log::EventLog;
use windlass::maintenance::Queue;
use windlass::maintenance::metrics::LoopMetrics;
use windlass::maintenance::runner::Runner;
use windlass::protocol::keys::Keys;
use windlass::protocol::names::QueueName;

#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: leader REDIS_URL NAMESPACE/QUEUE [EVENT_LOG_URL]";
    let redis = Redis::new(RedisOptions::new(arguments.next().context(usage)?))?;
    let name: QueueName = arguments.next().context(usage)?.parse()?;
    // Without an event log dead letters live in Redis alone, and no history is kept.
    let log = arguments.next().map(|url| EventLog::open(&url)).transpose()?;

    let keys = Keys::new(&name);
    let prefix = keys.prefix().to_owned();
    let mut runner = Runner::start(LoopMetrics::default());
    runner.listen(redis.notices());
    runner.add(&prefix, Queue::new(name, Arc::new(redis.queue(keys)?), log)).await;
    tokio::signal::ctrl_c().await?;
    Ok(())
}
