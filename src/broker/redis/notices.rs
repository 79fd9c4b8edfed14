//! What scripts tell the leader: that something is to do sooner than it may expect.
//!
//! One connection listens for all queues of a Redis. A notice may be lost (the
//! connection broke, nobody listened): it spares waiting, and nothing depends on it.

use async_trait::async_trait;
use futures::StreamExt;
use redis::aio::PubSub;

use super::connection::Link;
use crate::broker::{BrokerError, Notice, Notices, Result, Topic};
use crate::protocol::keys::NOTICES_CHANNEL;

pub(super) struct RedisNotices {
    link: Link,
    address: String,
    listening: Option<PubSub>,
}

impl RedisNotices {
    pub(super) fn new(link: Link, address: String) -> Self {
        Self { link, address, listening: None }
    }
}

#[async_trait]
impl Notices for RedisNotices {
    fn address(&self) -> &str {
        &self.address
    }

    async fn listen(&mut self) -> Result<()> {
        self.listening = None;
        let mut connection = self.link.listen().await?;
        connection
            .subscribe(NOTICES_CHANNEL)
            .await
            .map_err(|error| super::error::classify(&error, &self.address).error)?;
        self.listening = Some(connection);
        Ok(())
    }

    async fn next(&mut self) -> Result<Notice> {
        let lost = || BrokerError::Unreachable {
            address: self.address.clone(),
            reason: "the connection for notices is closed".to_owned(),
        };
        let connection = self.listening.as_mut().ok_or_else(lost)?;
        loop {
            let message = connection.on_message().next().await.ok_or_else(lost)?;
            if let Some(notice) = message.get_payload::<String>().ok().and_then(|text| read(&text)) {
                return Ok(notice);
            }
        }
    }
}

/// Reads a queue's prefix and a word. What a newer client may say is passed over.
fn read(text: &str) -> Option<Notice> {
    let at = text.rfind(':')? + 1;
    let topic = match &text[at..] {
        "due" => Topic::Due,
        "dead" => Topic::Dead,
        "outbox" => Topic::Outbox,
        "workers" => Topic::Workers,
        _ => return None,
    };
    Some(Notice { queue: text[..at].to_owned(), topic })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_names_a_queue_by_its_prefix() {
        let notice = read("prefix:outbox").expect("understood");
        assert_eq!((notice.queue.as_str(), notice.topic), ("prefix:", Topic::Outbox));
        assert_eq!(read("prefix:news"), None);
        assert_eq!(read("outbox"), None);
    }
}
