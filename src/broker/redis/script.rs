//! The Lua scripts: one file an operation, each put together from its parts.

use std::sync::LazyLock;

use redis::{Cmd, Value};

use super::connection::Link;
use super::error::Fault;
use crate::protocol::keys::Keys;

macro_rules! part {
    ($name:literal) => {
        include_str!(concat!("lua/part/", $name, ".lua"))
    };
}

macro_rules! scripts {
    ($($name:ident: [$($part:literal),*];)*) => {
        /// Every script that the broker runs.
        pub(super) struct Scripts {
            $(pub(super) $name: Script,)*
        }

        impl Scripts {
            fn load() -> Self {
                Self {
                    $($name: Script::new(
                        &[$(part!($part),)* include_str!(concat!("lua/", stringify!($name), ".lua"))],
                    ),)*
                }
            }
        }
    };
}

scripts! {
    provision: [];
    enqueue: ["head", "token", "lanes", "create"];
    claim: ["head", "token", "lanes", "moves", "create", "intake", "due", "claiming"];
    settle: ["head", "token", "lanes", "moves", "create", "intake", "due", "claiming"];
    extend: ["head", "lanes"];
    promote: ["head", "token", "lanes", "moves", "create", "intake", "due"];
    reclaim: ["head", "token", "lanes", "moves", "create", "intake", "clock"];
    evict: ["head", "token", "lanes", "moves", "evict"];
    register: ["head", "token", "lanes", "moves", "evict"];
    cancel: ["head", "token", "lanes", "moves"];
    record_dead_letter: ["head", "token", "lanes", "moves"];
    replay: ["head", "token", "lanes", "create"];
    discard: ["head"];
    sweep: ["head", "token", "lanes", "moves", "clock", "evict"];
    dead_letters: ["head"];
    get: ["head", "lanes"];
    counts: ["head", "lanes"];
}

/// The scripts, put together once.
pub(super) static SCRIPTS: LazyLock<Scripts> = LazyLock::new(Scripts::load);

/// One script and the digest that names it on the server.
pub(super) struct Script {
    text: String,
    digest: String,
}

impl Script {
    fn new(parts: &[&str]) -> Self {
        let text = parts.join("\n");
        let digest = sha1_smol::Sha1::from(&text).digest().to_string();
        Self { text, digest }
    }

    /// A call of this script, to be given its arguments.
    pub(super) fn call<'a>(&'a self, keys: &Keys, now_ms: u64) -> Call<'a> {
        let mut command = redis::cmd("EVALSHA");
        command.arg(&self.digest).arg(4).arg(keys.policy()).arg(&keys.task).arg(&keys.result).arg(&keys.dead_letter);
        command.arg(now_ms).arg(&keys.group);
        Call { script: self, command }
    }
}

/// A script and its arguments.
pub(super) struct Call<'a> {
    script: &'a Script,
    command: Cmd,
}

impl Call<'_> {
    /// Adds an argument.
    pub(super) fn arg(mut self, value: impl redis::ToRedisArgs) -> Self {
        self.command.arg(value);
        self
    }

    /// Adds an argument in place.
    pub(super) fn push(&mut self, value: impl redis::ToRedisArgs) -> &mut Self {
        self.command.arg(value);
        self
    }

    /// Runs it. A server that does not have the script (restarted, flushed,
    /// another node) is sent its text, once.
    pub(super) async fn run(&self, link: &Link) -> Result<Value, Fault> {
        match link.call(&self.command).await {
            Err(fault) if fault.no_script => link.call(&self.with_text()).await,
            answer => answer,
        }
    }

    /// Runs it and asks in the same breath how many replicas have it.
    pub(super) async fn run_replicated(&self, link: &Link, wait: &Cmd) -> Result<(Value, Value), Fault> {
        match link.call_both(&self.command, wait).await {
            Err(fault) if fault.no_script => link.call_both(&self.with_text(), wait).await,
            answer => answer,
        }
    }

    /// The same call with the script's text instead of its digest.
    fn with_text(&self) -> Cmd {
        let mut command = redis::cmd("EVAL");
        command.arg(&self.script.text);
        for arg in self.command.args_iter().skip(2) {
            if let redis::Arg::Simple(bytes) = arg {
                command.arg(bytes);
            }
        }
        command
    }
}
