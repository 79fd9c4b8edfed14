//! Beds for idle workers: one bell for each class, and one for raw entries.
//!
//! A bell remembers one ring that nobody heard, like a stream of length one.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Notify;

use super::state::Bell;
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

    pub(super) fn sleeper(&self, class: &str) -> ModelSleeper {
        ModelSleeper { own: self.of_class(class), raw: self.raw.clone() }
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
}

#[async_trait]
impl Sleeper for ModelSleeper {
    async fn sleep(&mut self, mode: Mode, limit: Duration) -> Result<Wake> {
        tokio::select! {
            () = self.own.notified() => Ok(Wake::Rung),
            // While nothing may be claimed, a raw entry is no reason to get up.
            () = self.raw.notified(), if mode == Mode::Running => Ok(Wake::Rung),
            () = tokio::time::sleep(limit) => Ok(Wake::TimedOut),
        }
    }
}
