//! The bare commands of a stream that workers share, with nothing around them:
//! no retries, no priorities, no records, no events.
//!
//! A producer's call is one XADD a task; a worker's call is XACK and XDEL for
//! the batch before and XREADGROUP for the next, all in one pipeline.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::task::JoinSet;

use super::delivery::{Body, Delivery, join_all};
use super::load::{Load, Numbers};
use super::wire::{Pipeline, Reply, Shared};

const STREAM: &str = "bench";
const GROUP: &str = "workers";
/// How long a worker rests that found nothing.
const REST: Duration = Duration::from_millis(1);
const PATIENCE: Duration = Duration::from_secs(30);

/// How a worker acknowledges and deletes what it has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Acknowledge {
    /// An XACK and an XDEL a task.
    EachTask,
    /// One XACK and one XDEL with all messages of the batch.
    WholeBatch,
}

impl Acknowledge {
    fn add(self, pipeline: &mut Pipeline, done: &[String]) {
        let portion = if self == Self::EachTask { 1 } else { done.len().max(1) };
        for messages in done.chunks(portion) {
            let command = |head: &[&'static str]| -> Vec<&str> {
                head.iter().copied().chain(messages.iter().map(String::as_str)).collect()
            };
            pipeline.add(command(&["XACK", STREAM, GROUP]).into_iter());
            pipeline.add(command(&["XDEL", STREAM]).into_iter());
        }
    }
}

/// Sends and does all tasks; returns how many seconds that took.
pub(super) async fn throughput(port: u16, load: Load, acknowledge: Acknowledge) -> Result<f64> {
    let (sending, working) = (Shared::connect(port).await?, Shared::connect(port).await?);
    let mut prepare = Pipeline::default();
    prepare.add(["XGROUP", "CREATE", STREAM, GROUP, "0", "MKSTREAM"].iter());
    sending.call(prepare).await?;

    let delivery = Arc::new(Delivery::new(load.tasks));
    let numbers = Arc::new(Numbers::new(0, load));
    let start = Instant::now();
    let mut parts = JoinSet::new();
    for lane in 0..load.in_flight {
        parts.spawn(produce(sending.clone(), numbers.clone()));
        let consumer = format!("worker-{lane}");
        parts.spawn(work(working.clone(), consumer, load.batch, acknowledge, delivery.clone()));
    }
    let watched = delivery.clone();
    parts.spawn(async move { watched.watch(PATIENCE).await });
    join_all(parts).await?;
    delivery.seconds_since(start)
}

async fn produce(shared: Shared, numbers: Arc<Numbers>) -> Result<()> {
    while let Some(batch) = numbers.deal() {
        let mut pipeline = Pipeline::default();
        for id in batch {
            pipeline.add(["XADD", STREAM, "*", "p", &Body { id, at: 0 }.json()].iter());
        }
        shared.call(pipeline).await?;
    }
    Ok(())
}

async fn work(
    shared: Shared,
    consumer: String,
    batch: usize,
    acknowledge: Acknowledge,
    delivery: Arc<Delivery>,
) -> Result<()> {
    let count = batch.to_string();
    let mut done: Vec<String> = Vec::new();
    loop {
        let mut pipeline = Pipeline::default();
        acknowledge.add(&mut pipeline, &done);
        pipeline.add(["XREADGROUP", "GROUP", GROUP, &consumer, "COUNT", &count, "STREAMS", STREAM, ">"].iter());
        let replies = shared.call(pipeline).await?;
        delivery.settle(done.len());
        done = handle(replies.last().unwrap_or(&Reply::Nil), &delivery)?;
        if done.is_empty() {
            if delivery.is_finished() {
                return Ok(());
            }
            tokio::time::sleep(REST).await;
        }
    }
}

/// Does the tasks of an XREADGROUP's answer; returns their messages.
fn handle(reply: &Reply, delivery: &Delivery) -> Result<Vec<String>> {
    let entries = reply.items().first().and_then(|stream| stream.items().get(1)).map_or(&[][..], Reply::items);
    let mut done = Vec::with_capacity(entries.len());
    for entry in entries {
        let [message, fields] = entry.items() else { continue };
        let payload = fields.items().get(1).context("a stream's entry came back without its payload")?;
        delivery.handle(Body::parse(payload.text())?.id)?;
        done.push(message.text().to_owned());
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_acknowledged_one_by_one_or_at_once() {
        let done = ["1-0".to_owned(), "2-0".to_owned()];
        let text = |acknowledge: Acknowledge| {
            let mut pipeline = Pipeline::default();
            acknowledge.add(&mut pipeline, &done);
            pipeline.text()
        };
        let (each, whole) = (text(Acknowledge::EachTask), text(Acknowledge::WholeBatch));
        assert_eq!((each.matches("XACK").count(), each.matches("XDEL").count()), (2, 2));
        assert_eq!((whole.matches("XACK").count(), whole.matches("XDEL").count()), (1, 1));
        assert!(whole.contains("1-0") && whole.contains("2-0"));
    }
}
