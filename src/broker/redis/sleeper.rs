//! An idle worker's bed: a blocking read on a connection of its own.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use redis::Value;
use redis::aio::MultiplexedConnection;

use super::connection::Link;
use super::error::classify;
use super::script::SCRIPTS;
use crate::broker::{Result, Sleeper, Wake};
use crate::protocol::keys::{BELL_GROUP, Keys};
use crate::protocol::policy::Mode;

/// How much longer than the block a client waits for the answer. Above it the
/// connection is dead, whatever the socket says.
const GRACE: Duration = Duration::from_secs(5);

/// The longest that one read blocks; a sleep can be longer.
const LONGEST_BLOCK: Duration = Duration::from_secs(3600);

/// The longest that a sleeper's connection may have to wait for an answer.
pub(super) const LONGEST_ANSWER: Duration = LONGEST_BLOCK.saturating_add(GRACE);

pub(super) struct RedisSleeper {
    /// Opens the bed's connection.
    link: Link,
    /// Where calls go that do not block.
    calls: Arc<Link>,
    keys: Keys,
    class: String,
    wake: String,
    /// Taken while a read is under way: a sleep that is abandoned closes the
    /// connection, so that no forgotten read swallows somebody's ring.
    connection: Option<MultiplexedConnection>,
}

impl RedisSleeper {
    pub(super) fn new(link: Link, calls: Arc<Link>, keys: &Keys, class: String) -> Self {
        Self { link, calls, wake: keys.wake(&class), class, keys: keys.clone(), connection: None }
    }

    async fn take_connection(&mut self) -> Result<MultiplexedConnection> {
        match self.connection.take() {
            Some(connection) => Ok(connection),
            None => Ok(self.link.open_own().await?),
        }
    }
}

#[async_trait]
impl Sleeper for RedisSleeper {
    async fn sleep(&mut self, mode: Mode, limit: Duration) -> Result<Wake> {
        let block = limit.clamp(Duration::from_millis(1), LONGEST_BLOCK);
        let mut connection = self.take_connection().await?;
        let mut read = redis::cmd("XREADGROUP");
        // One consumer for all: nothing is ever pending in this group.
        read.arg("GROUP").arg(BELL_GROUP).arg(BELL_GROUP).arg("COUNT").arg(1);
        read.arg("BLOCK").arg(block.as_millis() as u64).arg("NOACK").arg("STREAMS");
        match mode {
            Mode::Running => read.arg(&self.keys.task).arg(&self.wake).arg(">").arg(">"),
            // While nothing may be claimed, a raw entry is no reason to get up.
            Mode::Paused | Mode::Closed => read.arg(&self.wake).arg(">"),
        };
        let answer = tokio::time::timeout(block + GRACE, read.query_async::<Value>(&mut connection)).await;
        match answer {
            Ok(Ok(Value::Nil)) => {
                self.connection = Some(connection);
                Ok(Wake::TimedOut)
            }
            Ok(Ok(_)) => {
                self.connection = Some(connection);
                if mode != Mode::Running {
                    self.rouse().await;
                }
                Ok(Wake::Rung)
            }
            Ok(Err(error)) if error.to_string().contains("NOGROUP") => {
                self.make_groups(connection).await?;
                // What was rung before the group was there is not lost: the caller claims first.
                Ok(Wake::Rung)
            }
            Ok(Err(error)) => Err(classify(&error, self.link.address()).error),
            Err(_) => Ok(Wake::TimedOut),
        }
    }
}

impl RedisSleeper {
    /// The queue was resumed. Who sleeps on in a bed of the pause hears no raw entry, so each that gets up wakes the
    /// next, as long as the queue runs. Where this fails, they get up when their time is over.
    async fn rouse(&self) {
        let call = SCRIPTS.rouse.call(&self.keys, 0).arg(&self.class);
        if let Err(fault) = call.run(&self.calls).await {
            tracing::debug!(error = %fault.error, "the next sleeper could not be woken");
        }
    }

    /// Makes the groups that the bell needs (a new class, or a flush).
    async fn make_groups(&mut self, mut connection: MultiplexedConnection) -> Result<()> {
        for stream in [&self.keys.task, &self.wake] {
            let mut create = redis::cmd("XGROUP");
            create.arg("CREATE").arg(stream).arg(BELL_GROUP).arg("$").arg("MKSTREAM");
            match create.query_async::<Value>(&mut connection).await {
                Ok(_) => {}
                Err(error) if error.to_string().contains("BUSYGROUP") => {}
                Err(error) => return Err(classify(&error, self.link.address()).error),
            }
        }
        self.connection = Some(connection);
        Ok(())
    }
}
