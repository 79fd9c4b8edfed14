//! A worker in Rust, with a side effect that must not repeat.
//!
//! Each task adds a line to a ledger, which stands for whatever cannot be taken
//! back: a payment, a letter. The worker may be killed at any moment; the line
//! is there once.
//!
//! ```text
//! cargo run --example worker -- redis://127.0.0.1:6379 shop/payments /tmp/ledger
//! windlass task enqueue -q shop/payments --type rust --payload '{"behave": "well"}'
//! ```
//!
//! The payload's `behave` makes it fail, panic or hang at its first attempt.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use async_trait::async_trait;
use serde::Deserialize;
use tokio::signal::unix::{SignalKind, signal};
use windlass::protocol::names::{Capabilities, TaskType};
use windlass::worker::WorkerOptions;
use windlass::{Handler, Outcome, TaskContext, Worker};

/// The only type that this worker does.
const TYPE: &str = "rust";

#[derive(Deserialize)]
struct Order {
    behave: String,
}

struct Ledger {
    path: PathBuf,
}

#[async_trait]
impl Handler for Ledger {
    async fn handle(&self, task: &TaskContext) -> Outcome {
        let order: Order = match task.payload() {
            Ok(order) => order,
            Err(error) => return Outcome::permanent("bad_order", error.to_string()),
        };
        let first = task.task().retry_count == 0;
        match order.behave.as_str() {
            "badly" => return Outcome::permanent("refused", "this order is not acceptable"),
            "fail" if first => return Outcome::failure("unlucky", "the first attempt fails"),
            "panic" if first => panic!("the first attempt panics"),
            // Deaf to cancellation: the worker drops it at its hard deadline.
            "hang" if first => std::future::pending::<()>().await,
            _ => {}
        }
        let (path, line) = (self.path.as_path(), task.task().lease.task.to_string());
        let written = task
            .once_checked(
                &task.effect_key("ledger"),
                async |_doubt| is_written(path, &line).map(|there| there.then_some(())),
                async || Ok(write(path, &line)?),
            )
            .await;
        match written {
            Ok(()) => Outcome::success(),
            Err(error) => error.into(),
        }
    }
}

/// The effect: one line, in one write.
fn write(path: &Path, line: &str) -> std::io::Result<()> {
    let mut ledger = std::fs::OpenOptions::new().append(true).create(true).open(path)?;
    ledger.write_all(format!("{line}\n").as_bytes())
}

/// How the other side is asked whether it happened.
fn is_written(path: &Path, line: &str) -> std::io::Result<bool> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(text.lines().any(|written| written == line)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let usage = "usage: worker REDIS_URL NAMESPACE/QUEUE LEDGER_FILE";
    let mut arguments = std::env::args().skip(1);
    let (url, queue) = (arguments.next().context(usage)?, arguments.next().context(usage)?);
    let path = PathBuf::from(arguments.next().context(usage)?);
    let options = WorkerOptions {
        concurrency: 8,
        capabilities: Capabilities::of([TaskType::new(TYPE)?])?,
        kill_grace: Duration::from_millis(500),
        ..WorkerOptions::default()
    };
    let worker = Worker::connect(&url, queue.parse()?, Ledger { path }, options)?;
    let handle = worker.handle();
    tokio::spawn(async move {
        // The first signal drains, the second gives everything back at once.
        if let Ok(mut terminate) = signal(SignalKind::terminate()) {
            while terminate.recv().await.is_some() {
                handle.drain();
            }
        }
    });
    worker.run().await?;
    Ok(())
}
