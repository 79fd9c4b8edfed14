//! Checks in every run that each task is done exactly once.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// How large every task's payload is.
pub(super) const PAYLOAD_BYTES: usize = 100;

/// What a task carries; filler makes up the rest of its size.
#[derive(Debug, Deserialize)]
pub(super) struct Body {
    /// The task's number.
    pub(super) id: usize,
    /// A time: when it was sent, or when it is due.
    pub(super) at: u64,
}

impl Body {
    /// As JSON of [`PAYLOAD_BYTES`].
    pub(super) fn json(&self) -> String {
        let mut text = format!("{{\"id\":{},\"at\":{},\"pad\":\"", self.id, self.at);
        while text.len() < PAYLOAD_BYTES - 2 {
            text.push('x');
        }
        text.push_str("\"}");
        text
    }

    /// From JSON.
    pub(super) fn parse(text: &str) -> Result<Self> {
        serde_json::from_str(text).with_context(|| format!("a task came back with another payload: {text:?}"))
    }
}

/// The books of one run.
pub(super) struct Delivery {
    handled: Vec<AtomicBool>,
    settled: AtomicUsize,
    goal: usize,
    finished: watch::Sender<Option<Instant>>,
}

impl Delivery {
    /// For tasks `0..tasks`.
    pub(super) fn new(tasks: usize) -> Self {
        Self::part(tasks, tasks)
    }

    /// For tasks `0..tasks`, of which `goal` are to be done.
    pub(super) fn part(tasks: usize, goal: usize) -> Self {
        let handled = std::iter::repeat_with(AtomicBool::default).take(tasks).collect();
        Self { handled, settled: AtomicUsize::new(0), goal, finished: watch::Sender::new(None) }
    }

    /// A task's handler starts.
    pub(super) fn handle(&self, id: usize) -> Result<()> {
        let Some(before) = self.handled.get(id) else { bail!("a task came with number {id}, which nobody sent") };
        ensure!(!before.swap(true, Ordering::Relaxed), "task {id} was delivered twice");
        Ok(())
    }

    /// So many attempts were ended.
    pub(super) fn settle(&self, tasks: usize) {
        let before = self.settled.fetch_add(tasks, Ordering::Relaxed);
        if before < self.goal && before + tasks >= self.goal {
            self.finished.send_replace(Some(Instant::now()));
        }
    }

    /// Whether all is done.
    pub(super) fn is_finished(&self) -> bool {
        self.finished.borrow().is_some()
    }

    /// Waits until all is done.
    pub(super) async fn finished(&self) {
        // The sender lives as long as `self`, so this only ends when all is done.
        let _ = self.finished.subscribe().wait_for(Option::is_some).await;
    }

    /// How long it took from `start` until all was done.
    pub(super) fn seconds_since(&self, start: Instant) -> Result<f64> {
        let settled = self.settled.load(Ordering::Relaxed);
        ensure!(settled == self.goal, "{settled} tasks were done instead of {}", self.goal);
        let end = self.finished.borrow().context("not every task was done")?;
        Ok(end.duration_since(start).as_secs_f64())
    }

    /// Fails when nothing is done for too long; ends when all is done.
    pub(super) async fn watch(&self, patience: Duration) -> Result<()> {
        let mut last = (0, tokio::time::Instant::now());
        let mut tick = tokio::time::interval(Duration::from_secs(1));
        loop {
            tokio::select! {
                () = self.finished() => return Ok(()),
                now = tick.tick() => {
                    let settled = self.settled.load(Ordering::Relaxed);
                    if settled != last.0 {
                        last = (settled, now);
                    }
                    ensure!(now - last.1 < patience, "nothing was done for {patience:?}, after {settled} of {} tasks", self.goal);
                }
            }
        }
    }
}

/// Waits for all; the first error ends them all.
pub(super) async fn join_all(mut set: JoinSet<Result<()>>) -> Result<()> {
    while let Some(ended) = set.join_next().await {
        ended.context("a part of the benchmark was cut off")??;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_has_its_size_and_survives() {
        let body = Body { id: 1_234_567, at: 12_345_678_901 };
        assert_eq!(body.json().len(), PAYLOAD_BYTES);
        let back = Body::parse(&body.json()).expect("its own form");
        assert_eq!((back.id, back.at), (body.id, body.at));
        assert!(Body::parse("{}").expect_err("empty").to_string().contains("another payload"));
    }

    #[test]
    fn a_task_that_comes_twice_or_from_nowhere_fails_the_run() {
        let delivery = Delivery::new(2);
        delivery.handle(1).expect("once");
        assert_eq!(delivery.handle(1).expect_err("twice").to_string(), "task 1 was delivered twice");
        assert!(delivery.handle(2).expect_err("unknown").to_string().contains("nobody sent"));
    }

    #[test]
    fn the_clock_stops_when_the_last_task_is_settled() {
        let delivery = Delivery::new(3);
        let start = Instant::now();
        delivery.settle(2);
        assert!(!delivery.is_finished());
        assert!(delivery.seconds_since(start).expect_err("one is missing").to_string().contains("2 tasks"));
        delivery.settle(1);
        assert!(delivery.is_finished());
        delivery.seconds_since(start).expect("all is done");
        delivery.settle(1);
        assert!(delivery.seconds_since(start).is_err(), "one too many");
    }
}
