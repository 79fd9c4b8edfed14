//! The sleep of a worker that has room, until it is rung.

use std::time::Duration;

use super::Runtime;
use crate::broker::{Result, Sleeper, Wake};

/// How long an idle worker sleeps unless it is rung, in milliseconds: a bell
/// that was lost with a connection is made good after this.
const SLEEP_MS: std::ops::Range<u64> = 2000..5000;

/// A sleep that is over, and the bed, if there was one.
pub(super) type Slept = (Option<Box<dyn Sleeper>>, Result<Wake>);

impl Runtime {
    /// An idle worker, or one with places to spare, waits for the bell.
    pub(super) fn next_sleep(&mut self) {
        let has_room = !self.hungry && self.free() > 0 && self.drain.is_none();
        let Some(session) = self.session.as_ref().filter(|_| has_room && self.sleeping.is_none()) else { return };
        let (mode, sleeper) = (session.mode(), self.sleeper.take());
        let (broker, capabilities) = (self.home.broker.clone(), self.options.capabilities.clone());
        let limit = Duration::from_millis(fastrand::u64(SLEEP_MS));
        self.sleeping = Some(Box::pin(async move {
            let sleeper = match sleeper {
                Some(sleeper) => Ok(sleeper),
                None => broker.sleeper(&capabilities).await,
            };
            match sleeper {
                Ok(mut sleeper) => {
                    let wake = sleeper.sleep(mode, limit).await;
                    (Some(sleeper), wake)
                }
                Err(error) => (None, Err(error)),
            }
        }));
    }

    pub(super) fn slept(&mut self, sleeper: Option<Box<dyn Sleeper>>, wake: Result<Wake>) {
        self.sleeper = sleeper;
        self.hungry = true;
        self.rung_meanwhile = self.call.is_some();
        match wake {
            // Somebody else may have room for what this ring was for.
            Ok(Wake::Rung) => self.pass_on = self.drain.is_some() || self.free() == 0,
            Ok(Wake::TimedOut) => {}
            Err(error) => {
                self.unserved(&error);
                self.pause_calls();
            }
        }
    }
}
