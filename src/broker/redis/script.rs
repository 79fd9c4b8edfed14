//! The Lua scripts: one file an operation, each put together from its parts.

use std::sync::LazyLock;

use redis::{Cmd, Value};

use super::connection::Link;
use super::error::Fault;
use crate::protocol::keys::Keys;

/// What a script is put together from.
enum Part {
    /// Text that stands in every call's way: what the hot paths need.
    Inline(&'static str),
    /// Files that together return a table of functions, made when it is first
    /// used: `moves()` in a script. Making functions is most of what a small call costs.
    Module(&'static str, &'static [&'static str]),
}

macro_rules! lua {
    ($name:literal) => {
        include_str!(concat!("lua/part/", $name, ".lua"))
    };
}

const HEAD: Part = Part::Inline(lua!("head"));
const TOKEN: Part = Part::Inline(lua!("token"));
const LANES: Part = Part::Inline(lua!("lanes"));
const BELLS: Part = Part::Inline(lua!("bells"));
const GROUP: Part = Part::Inline(lua!("group"));
const STREAMS: Part = Part::Inline(lua!("streams"));
const CREATE: Part = Part::Inline(lua!("create"));
const CLAIMING: Part = Part::Inline(lua!("claiming"));
const CLOCK: Part = Part::Inline(lua!("clock"));
const DECIDE: Part = Part::Inline(lua!("decide"));
const GROUPS: Part = Part::Inline(lua!("groups"));
const EVICT: Part = Part::Inline(lua!("evict"));
const PLACES: Part = Part::Module("places", &[lua!("places")]);
const MOVES: Part = Part::Module("moves", &[lua!("moves")]);
const INTAKE: Part = Part::Module("intake", &[lua!("group"), lua!("streams"), lua!("create"), lua!("intake")]);
const DUE: Part = Part::Module("due", &[lua!("due")]);
const RECOVERY: Part = Part::Module("recovery", &[lua!("recovery")]);
const LEASES: Part = Part::Module("leases", &[lua!("group"), lua!("streams"), lua!("leases")]);
const FAILING: Part = Part::Module("failing", &[lua!("failing")]);

impl Part {
    fn text(&self) -> String {
        match self {
            Part::Inline(text) => (*text).to_owned(),
            Part::Module(name, files) => format!(
                "local {name}_made\nlocal function {name}()\nif not {name}_made then\n\
                 {name}_made = (function()\n{}\nend)()\nend\nreturn {name}_made\nend",
                files.join("\n")
            ),
        }
    }
}

macro_rules! scripts {
    ($($name:ident: [$($part:ident),*];)*) => {
        /// Every script that the broker runs.
        pub(super) struct Scripts {
            $(pub(super) $name: Script,)*
        }

        impl Scripts {
            fn load() -> Self {
                Self {
                    $($name: Script::new(&[$($part),*], include_str!(concat!("lua/", stringify!($name), ".lua"))),)*
                }
            }

            /// The operation whose script has this digest.
            pub(super) fn name_of(&self, digest: &str) -> Option<&'static str> {
                $(if self.$name.digest == digest {
                    return Some(stringify!($name));
                })*
                None
            }
        }
    };
}

scripts! {
    provision: [GROUP];
    inspect: [];
    destroy: [GROUP];
    enqueue: [HEAD, TOKEN, LANES, PLACES, BELLS, CREATE];
    claim: [HEAD, TOKEN, LANES, PLACES, BELLS, MOVES, INTAKE, DUE, RECOVERY, CLAIMING];
    settle: [HEAD, TOKEN, LANES, PLACES, BELLS, MOVES, INTAKE, DUE, RECOVERY, CLAIMING, FAILING];
    rouse: [HEAD, TOKEN, LANES, PLACES, BELLS];
    extend: [HEAD, TOKEN, LANES, LEASES];
    report_progress: [HEAD];
    begin_effect: [HEAD];
    end_effect: [HEAD];
    promote: [HEAD, TOKEN, LANES, PLACES, BELLS, MOVES, INTAKE, DUE];
    reclaim: [HEAD, TOKEN, LANES, PLACES, BELLS, MOVES, INTAKE, CLOCK];
    evict: [HEAD, TOKEN, LANES, PLACES, BELLS, MOVES, EVICT];
    register: [HEAD, TOKEN, LANES, PLACES, BELLS, MOVES, EVICT];
    cancel: [HEAD, TOKEN, LANES, PLACES, GROUP, STREAMS, MOVES];
    record_dead_letter: [HEAD, TOKEN, LANES, MOVES];
    replay: [HEAD, TOKEN, LANES, PLACES, BELLS, CREATE, DECIDE];
    discard: [HEAD, DECIDE];
    retain: [HEAD, GROUP, STREAMS];
    sweep: [HEAD, TOKEN, LANES, PLACES, BELLS, GROUP, STREAMS, MOVES, CLOCK, EVICT];
    pending_dead_letters: [HEAD];
    dead_letters: [HEAD];
    get: [HEAD, TOKEN, LANES];
    counts: [HEAD, TOKEN, LANES, PLACES, GROUP, GROUPS];
    demand: [HEAD, GROUP, GROUPS];
}

/// The scripts, put together once.
pub(super) static SCRIPTS: LazyLock<Scripts> = LazyLock::new(Scripts::load);

/// How often a call gives a server its script: it may be flushed, or another
/// server may have taken over, between the loading and the call.
const MOST_LOADS: usize = 3;

/// One script and the digest that names it on the server.
pub(super) struct Script {
    text: String,
    digest: String,
}

impl Script {
    fn new(parts: &[Part], operation: &str) -> Self {
        let mut text: String = parts.iter().map(|part| part.text() + "\n").collect();
        text.push_str(operation);
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
    /// another node) is given it first, in a command of its own: reading a
    /// script takes Redis about as long as running it.
    pub(super) async fn run(&self, link: &Link) -> Result<Value, Fault> {
        for _ in 0..MOST_LOADS {
            match link.call(&self.command).await {
                Err(fault) if fault.no_script => self.load(link).await?,
                answer => return answer,
            }
        }
        link.call(&self.command).await
    }

    /// Runs it over that connection or not at all.
    pub(super) async fn run_over(&self, link: &Link, number: u64) -> Result<Value, Fault> {
        for _ in 0..MOST_LOADS {
            match link.call_over(number, &self.command).await {
                Err(fault) if fault.no_script => self.load(link).await?,
                answer => return answer,
            }
        }
        link.call_over(number, &self.command).await
    }

    /// Runs it, and then, if that answer asks for it, asks on the same connection how many replicas have it. Not in
    /// one breath: a server without the script would wait for replicas before it says so.
    pub(super) async fn run_replicated(
        &self,
        link: &Link,
        wait: &Cmd,
        is_due: fn(&Value) -> bool,
    ) -> Result<(Value, Option<Value>), Fault> {
        for _ in 0..MOST_LOADS {
            match link.call_in_turn(&self.command, wait, is_due).await {
                Err(fault) if fault.no_script => self.load(link).await?,
                answer => return answer,
            }
        }
        link.call_in_turn(&self.command, wait, is_due).await
    }

    async fn load(&self, link: &Link) -> Result<(), Fault> {
        link.call(redis::cmd("SCRIPT").arg("LOAD").arg(&self.script.text)).await.map(drop)
    }
}
