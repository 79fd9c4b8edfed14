//! The bare commands of a stream that workers share, with nothing around them:
//! no retries, no priorities, no records, no events.
//!
//! A producer's call is one XADD a task; a worker's call is XACK and XDEL for
//! the batch before and XREADGROUP for the next, all in one pipeline. Where
//! waiting times are measured, that XREADGROUP blocks.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
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
    let (sending, working) = (make(port).await?, Shared::connect(port).await?);
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

/// Makes the stream and its group; returns a connection for a producer.
pub(super) async fn make(port: u16) -> Result<Shared> {
    let sending = Shared::connect(port).await?;
    let mut prepare = Pipeline::default();
    prepare.add(["XGROUP", "CREATE", STREAM, GROUP, "0", "MKSTREAM"].iter());
    sending.call(prepare).await?;
    Ok(sending)
}

/// Adds tasks that nobody does yet.
pub(super) async fn fill(sending: &Shared, load: Load) -> Result<()> {
    produce(sending.clone(), Arc::new(Numbers::new(0, load))).await
}

/// Reads and acknowledges as many entries, and leaves them where they are, as a queue leaves its results.
pub(super) async fn read_and_keep(sending: &Shared, load: Load) -> Result<()> {
    let (count, delivery, mut kept) = (load.batch.to_string(), Delivery::new(load.tasks), 0);
    while kept < load.tasks {
        let mut read = Pipeline::default();
        read.add(["XREADGROUP", "GROUP", GROUP, "keeper", "COUNT", &count, "STREAMS", STREAM, ">"].iter());
        let messages = handle(sending.call(read).await?.last().unwrap_or(&Reply::Nil), &delivery, |_| {})?;
        ensure!(!messages.is_empty(), "there were {kept} entries to read instead of {}", load.tasks);
        kept += messages.len();
        let mut acknowledge = Pipeline::default();
        let words = ["XACK", STREAM, GROUP].into_iter().chain(messages.iter().map(String::as_str));
        acknowledge.add(words.collect::<Vec<_>>().into_iter());
        sending.call(acknowledge).await?;
    }
    Ok(())
}

/// Adds one task.
pub(super) async fn send(sending: Shared, body: Body) -> Result<()> {
    let mut pipeline = Pipeline::default();
    pipeline.add(["XADD", STREAM, "*", "p", &body.json()].iter());
    sending.call(pipeline).await.map(drop)
}

/// A worker that waits in a blocking read, until it has done all tasks.
pub(super) async fn wait_and_work(
    port: u16,
    tasks: usize,
    most: usize,
    delivery: Arc<Delivery>,
    on_task: impl Fn(&Body),
) -> Result<()> {
    const BLOCK_MILLISECONDS: &str = "1000";
    let (shared, count) = (Shared::connect(port).await?, most.to_string());
    let read = ["XREADGROUP", "GROUP", GROUP, "worker", "COUNT", &count, "BLOCK", BLOCK_MILLISECONDS];
    let (mut handled, mut done) = (0, Vec::new());
    while !delivery.is_finished() {
        let mut pipeline = Pipeline::default();
        Acknowledge::EachTask.add(&mut pipeline, &done);
        if handled < tasks {
            let words: Vec<&str> = read.into_iter().chain(["STREAMS", STREAM, ">"]).collect();
            pipeline.add(words.into_iter());
        }
        let replies = shared.call(pipeline).await?;
        delivery.settle(done.len());
        let entries = replies.last().filter(|_| handled < tasks).unwrap_or(&Reply::Nil);
        done = handle(entries, &delivery, &on_task)?;
        handled += done.len();
    }
    Ok(())
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
        done = handle(replies.last().unwrap_or(&Reply::Nil), &delivery, |_| {})?;
        if done.is_empty() {
            if delivery.is_finished() {
                return Ok(());
            }
            tokio::time::sleep(REST).await;
        }
    }
}

/// Does the tasks of an XREADGROUP's answer; returns their messages.
fn handle(reply: &Reply, delivery: &Delivery, on_task: impl Fn(&Body)) -> Result<Vec<String>> {
    let entries = reply.items().first().and_then(|stream| stream.items().get(1)).map_or(&[][..], Reply::items);
    let mut done = Vec::with_capacity(entries.len());
    for entry in entries {
        let [message, fields] = entry.items() else { continue };
        let payload = fields.items().get(1).context("a stream's entry came back without its payload")?;
        let body = Body::parse(payload.text())?;
        on_task(&body);
        delivery.handle(body.id)?;
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
