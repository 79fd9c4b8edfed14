//! Beds for idle workers: one bell for each class, and one for raw entries.
//!
//! A bell remembers one ring that nobody heard, like a stream of length one.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Notify;

use super::state::{Bell, Queue};
use crate::broker::{Result, Sleeper, Wake};
use crate::protocol::policy::Mode;

#[derive(Default)]
pub(super) struct Bells {
    of_classes: Mutex<HashMap<String, Arc<Notify>>>,
    raw: Arc<Notify>,
}

impl Bells {
    /// Rings and hushes in this order.
    pub(super) fn pull(&self, bells: Vec<Bell>) {
        for bell in bells {
            match bell {
                Bell::Ring(class) => self.of_class(&class).notify_one(),
                Bell::Raw => self.raw.notify_one(),
                Bell::Hush(class) => {
                    hush(&self.of_class(&class));
                    hush(&self.raw);
                }
            }
        }
    }

    pub(super) fn sleeper(&self, class: &str, queue: Arc<Mutex<Queue>>) -> ModelSleeper {
        ModelSleeper { own: self.of_class(class), raw: self.raw.clone(), queue }
    }

    fn of_class(&self, class: &str) -> Arc<Notify> {
        let mut bells = self.of_classes.lock().unwrap_or_else(PoisonError::into_inner);
        bells.entry(class.to_owned()).or_default().clone()
    }
}

/// Forgets a ring that nobody heard.
fn hush(bell: &Notify) {
    pin!(bell.notified()).enable();
}

pub(super) struct ModelSleeper {
    own: Arc<Notify>,
    raw: Arc<Notify>,
    queue: Arc<Mutex<Queue>>,
}

impl ModelSleeper {
    /// Whether tasks are given out, whatever this sleeper last heard.
    fn queue_runs(&self) -> bool {
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.policy().is_ok_and(|policy| policy.mode == Mode::Running)
    }
}

#[async_trait]
impl Sleeper for ModelSleeper {
    async fn sleep(&mut self, mode: Mode, limit: Duration) -> Result<Wake> {
        tokio::select! {
            () = self.own.notified() => {
                // Who sleeps on in a bed of the pause hears no raw entry.
                if mode != Mode::Running && self.queue_runs() {
                    self.own.notify_one();
                }
                Ok(Wake::Rung)
            }
            // While nothing may be claimed, a raw entry is no reason to get up.
            () = self.raw.notified(), if mode == Mode::Running => Ok(Wake::Rung),
            () = tokio::time::sleep(limit) => Ok(Wake::TimedOut),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::*;
    use crate::broker::{Broker, Sleeper, Wake};
    use crate::protocol::names::Capabilities;
    use crate::protocol::policy::{Mode, Policy};
    use crate::protocol::task::NewTask;
    use std::time::Duration;

    async fn sleep(bed: &mut Box<dyn Sleeper>, mode: Mode) -> Wake {
        bed.sleep(mode, Duration::from_millis(1)).await.expect("a sleep")
    }

    #[tokio::test]
    async fn work_wakes_those_who_can_do_it() {
        let rig = Rig::new(Policy::default()).await;
        let (any, only_b) = (Capabilities::any(), Capabilities::of([kind("b")]).expect("few"));
        assert!(rig.claim("w", 1).await.is_empty());
        assert!(rig.claim_as("v", &only_b, 1).await.is_empty());
        let mut first = rig.model.sleeper(&any).await.expect("a bed");
        let mut second = rig.model.sleeper(&only_b).await.expect("a bed");
        rig.enqueue(task("a")).await;
        assert_eq!(sleep(&mut first, Mode::Running).await, Wake::Rung);
        assert_eq!(sleep(&mut second, Mode::Running).await, Wake::TimedOut, "it is not for this class");
        rig.enqueue(NewTask { task_type: kind("b"), ..task("b") }).await;
        assert_eq!(sleep(&mut second, Mode::Running).await, Wake::Rung);
    }

    #[tokio::test]
    async fn a_claim_that_finds_nothing_forgets_old_rings() {
        let rig = Rig::new(Policy::default()).await;
        let mut bed = rig.model.sleeper(&Capabilities::any()).await.expect("a bed");
        rig.enqueue(task("a")).await;
        rig.claim("w", 1).await;
        assert!(rig.claim("w", 1).await.is_empty());
        assert_eq!(sleep(&mut bed, Mode::Running).await, Wake::TimedOut);
    }

    #[tokio::test]
    async fn a_claim_that_could_not_make_everything_ready_rings_again() {
        let rig = Rig::new(Policy::default()).await;
        let only_b = Capabilities::of([kind("b")]).expect("few");
        let mut bed = rig.model.sleeper(&only_b).await.expect("a bed");
        for n in 0..33 {
            rig.model.raw_add(&format!("{n}-0"), vec![("task_id".into(), format!("r{n}").into_bytes())]);
        }
        assert!(rig.claim_as("w", &only_b, 1).await.is_empty());
        for expected in [Wake::Rung, Wake::Rung, Wake::TimedOut] {
            assert_eq!(sleep(&mut bed, Mode::Running).await, expected, "one for the claim, one for the entries");
        }
        assert!(rig.claim_as("w", &only_b, 1).await.is_empty());
        assert_eq!(sleep(&mut bed, Mode::Running).await, Wake::TimedOut);
    }

    #[tokio::test]
    async fn a_raw_entry_wakes_a_sleeper_only_while_the_queue_runs() {
        let rig = Rig::new(Policy::default()).await;
        let mut bed = rig.model.sleeper(&Capabilities::any()).await.expect("a bed");
        assert!(rig.claim("w", 1).await.is_empty());
        rig.model.raw_add("1-0", vec![("task_id".into(), b"r1".to_vec())]);
        assert_eq!(sleep(&mut bed, Mode::Paused).await, Wake::TimedOut);
        assert_eq!(sleep(&mut bed, Mode::Running).await, Wake::Rung);
    }

    #[tokio::test]
    async fn a_wake_up_that_is_of_no_use_is_passed_on() {
        let rig = Rig::new(Policy::default()).await;
        let mut bed = rig.model.sleeper(&Capabilities::any()).await.expect("a bed");
        rig.enqueue(task("a")).await;
        assert_eq!(sleep(&mut bed, Mode::Running).await, Wake::Rung);
        assert_eq!(sleep(&mut bed, Mode::Running).await, Wake::TimedOut);
        rig.claim("w", 0).await;
        assert_eq!(sleep(&mut bed, Mode::Running).await, Wake::Rung);
    }
}
