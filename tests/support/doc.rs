// Runs the examples of the crate's documentation against a real Redis.
// Included by them (`include!`), so it opens with no inner doc comment.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, anyhow};

use windlass::broker::redis::{RedisBroker, RedisOptions};
use windlass::broker::{Broker, Owner, Takeover};
use windlass::protocol::keys::Keys;
use windlass::protocol::policy::Policy;

/// Ends the server with the example.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a Redis, provisions the queue and runs the example with the Redis' URL.
pub fn with_queue(queue: &str, example: impl AsyncFn(&str) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(async {
        let (server, url) = start()?;
        let broker = RedisBroker::new(Keys::new(&queue.parse()?), RedisOptions::new(&url))?;
        let owner = Owner { name: "doctest".to_owned(), takeover: Takeover::Respect };
        let provision = async {
            while broker.provision(&owner, &Policy::default()).await.is_err() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), provision).await.context("the example's Redis did not answer")?;
        let outcome = example(&url).await;
        drop(server);
        outcome
    })
}

fn start() -> anyhow::Result<(Server, String)> {
    let cache = std::env::var("WINDLASS_CACHE").or_else(|_| std::env::var("HOME").map(|home| format!("{home}/.cache/windlass")));
    let binary = format!("{}/servers/redis-7.0/redis-server", cache.context("neither WINDLASS_CACHE nor HOME is set")?);
    let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let child = Command::new(&binary)
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
        .stdout(Stdio::null())
        .spawn()
        .map_err(|error| anyhow!("{binary} does not start: run `make servers` ({error})"))?;
    Ok((Server(child), format!("redis://127.0.0.1:{port}")))
}
