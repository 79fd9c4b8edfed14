//! Real servers for the integration tests.
//!
//! The tests run against the servers that users run, never against an imitation: what a queue
//! promises hangs on what the server really does when it is killed, frozen, full, or moving a slot.
//!
//! ```no_run
//! let server = Server::builder(Flavor::Redis70).aof_always().start().await;
//! server.command(&["SET", "key", "value"]).await;
//! server.kill9();
//! server.restart().await;
//! ```
//!
//! * [`Server`]: one server, with its own port and directory.
//! * [`Cluster`]: masters that share the 16384 slots, and a slot that can be moved under load.
//! * [`Sentinel`]: a master, a replica and three sentinels that fail over.
//! * [`Postgres`]: one PostgreSQL, for the event log.
//!
//! # Where the servers come from
//!
//! From the cache directory (`$WINDLASS_CACHE`, else `$HOME/.cache/windlass`), where `make servers`
//! puts them; PostgreSQL from where the distribution puts it. A missing one fails the test: a test that skips itself proves nothing, silently.
//!
//! # What is cleaned up, and when
//!
//! Dropping a [`Server`] kills its process and removes its directory, in a panic too. If the test
//! process itself is killed with `kill -9`, the kernel kills the servers (see [`process`]) and the
//! next test process removes the directories.
//!
//! # How things are waited for
//!
//! By asking again every [`POLL`] until the condition holds or [`LIMIT`] has passed (see [`Wait`]).
//! No sleep stands in for a condition, so that a slow machine makes a test slow but not wrong.

#![allow(dead_code, unused_imports, reason = "each test binary compiles all of this and uses a part of it")]
#![allow(unreachable_pub, reason = "`pub` marks what tests may use; `pub(super)` what only the harness may")]

mod builder;
mod cluster;
mod postgres;
pub(crate) mod process;
mod sentinel;
mod server;
mod tls;

use std::fmt::Display;
use std::path::PathBuf;
use std::time::{Duration, Instant};

pub use builder::ServerBuilder;
pub use cluster::{Cluster, SLOTS, key_slot};
pub use postgres::Postgres;
pub use sentinel::Sentinel;
pub use server::Server;

/// How long any condition is waited for. Generous, because it is only ever reached by a test that
/// fails: a shorter limit would not make a passing test faster.
pub const LIMIT: Duration = Duration::from_secs(60);

/// How often a condition is asked for again.
pub const POLL: Duration = Duration::from_millis(15);

/// The servers that the tests run against.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Flavor {
    /// Redis 7.0, for the tests that say nothing about versions; the only one built with TLS.
    Redis70,
    /// Redis 6.2, the oldest: no `CLUSTER ADDSLOTSRANGE`, no multi-part AOF, no `CLUSTER SHARDS`.
    Redis62,
    /// Valkey 9.1.
    Valkey91,
}

impl Flavor {
    /// Every flavour, for the tests that must hold on all of them.
    pub const ALL: [Flavor; 3] = [Flavor::Redis70, Flavor::Redis62, Flavor::Valkey91];

    /// The server's executable in the cache directory.
    ///
    /// # Panics
    ///
    /// If it is not there: a missing server must never look like a passed test.
    pub fn binary(self) -> PathBuf {
        let relative = match self {
            Flavor::Redis70 => "servers/redis-7.0/redis-server",
            Flavor::Redis62 => "servers/redis-6.2/redis-server",
            Flavor::Valkey91 => "servers/valkey-9.1/valkey-server",
        };
        let binary = cache_dir().join(relative);
        assert!(binary.is_file(), "{} is missing: run `make servers`", binary.display());
        binary
    }

    /// The field of `INFO server` that tells this server's version, and how that version begins.
    ///
    /// Valkey also has a `redis_version`, the one that it claims to be compatible with.
    pub fn version(self) -> (&'static str, &'static str) {
        match self {
            Flavor::Redis70 => ("redis_version", "7.0."),
            Flavor::Redis62 => ("redis_version", "6.2."),
            Flavor::Valkey91 => ("valkey_version", "9.1."),
        }
    }
}

/// The directory that `make servers` fills.
pub(crate) fn cache_dir() -> PathBuf {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    set("WINDLASS_CACHE").map_or_else(
        || {
            let home = set("HOME").expect("either WINDLASS_CACHE or HOME must be set");
            PathBuf::from(home).join(".cache/windlass")
        },
        PathBuf::from,
    )
}

/// A condition that is being waited for.
///
/// ```no_run
/// let mut wait = Wait::new("the queue to be empty");
/// while let length @ 1.. = length(&server).await {
///     wait.again(format!("{length} entries")).await;
/// }
/// ```
///
/// It is a value and not a function that takes a closure, because a future that holds an async
/// closure is often not provably `Send`, and tests must be able to spawn what they wait for.
#[derive(Debug)]
pub struct Wait {
    what: String,
    started: Instant,
}

impl Wait {
    /// Begins to wait; `what` completes the sentence "waited for …" of the panic message.
    pub fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), started: Instant::now() }
    }

    /// Waits one poll interval before the next look; `seen` is what the last look found instead.
    ///
    /// # Panics
    ///
    /// Once [`LIMIT`] has passed, with `seen`: what was seen last is what explains the failure.
    pub async fn again(&mut self, seen: impl Display) {
        assert!(self.started.elapsed() < LIMIT, "waited {LIMIT:?} for {}; last seen: {seen}", self.what);
        tokio::time::sleep(POLL).await;
    }
}
