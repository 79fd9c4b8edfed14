//! Who may name what: the map of the crate, checked against its sources.
//!
//! The rules are read off the text, not off the compiler: a rule that can only
//! be broken by code that does not build protects nothing.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// A source file: its path inside the crate, and its text.
struct Source {
    path: String,
    text: String,
}

impl Source {
    fn is_under(&self, places: &[&str]) -> bool {
        places.iter().any(|place| self.path.starts_with(place))
    }
}

/// A rule that a line of a file breaks.
#[derive(PartialEq, Eq)]
struct Breach {
    path: String,
    line: usize,
    rule: String,
}

impl fmt::Debug for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.rule)
    }
}

/// A crate that only some files may name.
struct OnlyIn {
    name: &'static str,
    places: &'static [&'static str],
}

/// Where SQL is spoken.
const SQL: &[&str] = &["src/event_log.rs", "src/event_log/", "src/broker/postgres"];

const CRATES: [OnlyIn; 5] = [
    OnlyIn { name: "redis", places: &["src/broker/redis.rs", "src/broker/redis/"] },
    OnlyIn { name: "kube", places: &["src/operator", "src/crd"] },
    OnlyIn { name: "k8s_openapi", places: &["src/operator", "src/crd"] },
    OnlyIn { name: "sqlx", places: SQL },
    OnlyIn { name: "jiff_sqlx", places: SQL },
];

/// The pure part, and what it must not name.
const PURE: &str = "src/protocol";
const IMPURE: [&str; 6] = ["tokio", "redis", "kube", "k8s_openapi", "sqlx", "jiff_sqlx"];

/// The part that knows SQL, and what it must not name.
const EVENT_LOG: &[&str] = &["src/event_log.rs", "src/event_log/"];
const BEHIND_THE_BROKER: [&str; 3] = ["broker::redis", "broker::model", "broker::session"];

/// The part that knows Kubernetes, and what it must not reach for: Redis commands, worker and handlers, SQL.
const OPERATOR: &[&str] = &["src/operator.rs", "src/operator/"];
const BEYOND_THE_OPERATOR: [&str; 5] =
    ["crate::worker", "crate::dev", "crate::cli", "crate::conformance", "broker::model"];

/// The parts that Kubernetes is nothing to, though they carry what the operator needs.
const BELOW_THE_OPERATOR: &[&str] = &["src/broker", "src/maintenance", "src/protocol", "src/event_log", "src/worker"];

/// How every key of a queue begins.
const KEY_PREFIX: &str = "windlass:{";

/// The only file that spells keys in Rust.
const KEYS: &str = "src/protocol/keys.rs";

/// Every breach of every rule.
fn breaches(sources: &[Source]) -> Vec<Breach> {
    sources.iter().flat_map(breaches_of).collect()
}

fn breaches_of(source: &Source) -> Vec<Breach> {
    if source.path.ends_with(".lua") {
        return breaches_of_script(source);
    }
    let mut found = Vec::new();
    for (index, line) in source.text.lines().enumerate() {
        let code = code_of(line);
        let mut breach = |rule: String| found.push(Breach { path: source.path.clone(), line: index + 1, rule });
        for only in &CRATES {
            if names_crate(code, only.name) && !source.is_under(only.places) {
                breach(format!("only {} may name the crate {}", only.places.join(" and "), only.name));
            }
        }
        if source.is_under(&[PURE]) {
            for impure in IMPURE {
                if names_crate(code, impure) {
                    breach(format!("the protocol is pure and must not name {impure}"));
                }
            }
            if names_broker(code) {
                breach("the protocol must not know the broker".to_owned());
            }
        }
        if source.is_under(EVENT_LOG) && BEHIND_THE_BROKER.iter().any(|module| code.contains(module)) {
            breach("the event log knows the broker's events, not how a broker works".to_owned());
        }
        if source.is_under(OPERATOR) && BEYOND_THE_OPERATOR.iter().any(|module| code.contains(module)) {
            breach("the operator knows queues and objects, not how a task is run or typed".to_owned());
        }
        if source.is_under(BELOW_THE_OPERATOR) && code.contains("crate::operator") {
            breach("what the operator stands on must not know it".to_owned());
        }
        if line.replace("{{", "{").contains(KEY_PREFIX) && source.path != KEYS {
            breach(format!("only {KEYS} spells keys"));
        }
    }
    found
}

/// One operation a file, and its header says what it takes and gives.
fn breaches_of_script(source: &Source) -> Vec<Breach> {
    if source.path.contains("/part/") {
        return Vec::new();
    }
    let header: Vec<&str> = source.text.lines().take_while(|line| line.starts_with("--")).collect();
    let says = |word: &str| header.iter().any(|line| line.split(|c: char| !c.is_alphanumeric()).any(|w| w == word));
    // A script that takes nothing of its own has no ARGV to name; the head's are named in the head.
    let takes = source.text.contains("ARGV[");
    let missing = [("ARGV", takes), ("RETURNS", true)].into_iter().filter(|(word, wanted)| *wanted && !says(word));
    missing
        .map(|(word, _)| Breach {
            path: source.path.clone(),
            line: 1,
            rule: format!("the header of a script names its {word}"),
        })
        .collect()
}

/// The part of a line that is code: not its comment.
fn code_of(line: &str) -> &str {
    // A `//` inside a string (a URL) has no space or line begin before it.
    let comment = line.match_indices("//").find(|(at, _)| *at == 0 || line[..*at].ends_with(char::is_whitespace));
    comment.map_or(line, |(at, _)| &line[..at])
}

/// Whether code names an external crate, as opposed to a module of the same name.
///
/// `redis::x`, `use redis;` and `use redis as r` do. `crate::broker::redis::x`,
/// `super::redis`, `self::redis`, `mod redis;` and `use super::{redis, …}` do not, nor
/// does `some_redis::x` or a `redis://` URL.
fn names_crate(code: &str, name: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(name).any(|(at, _)| {
        let (before, after) = (&code[..at], &code[at + name.len()..]);
        if before.ends_with(is_word) || after.starts_with(is_word) {
            return false;
        }
        let before = before.trim_end();
        if let Some(module) = before.strip_suffix("::") {
            // `::redis::x` from the root of all crates, or `module::redis::x`.
            return !module.ends_with(is_word) && after.starts_with("::");
        }
        let imported = before.ends_with("use") || before.ends_with("extern crate");
        let alone = after.trim_start().starts_with([';', ',']) || after.trim_start().starts_with("as ");
        after.starts_with("::") || (imported && alone)
    })
}

/// Whether code of the protocol reaches for the broker.
fn names_broker(code: &str) -> bool {
    ["crate::broker", "super::broker", "super::super::broker", "windlass::broker"]
        .iter()
        .any(|path| code.contains(path))
}

/// Every file under `dir` with one of these endings.
fn read(root: &Path, dir: &Path, endings: &[&str], found: &mut Vec<Source>) {
    let entries = fs::read_dir(dir).unwrap_or_else(|error| panic!("{} cannot be read: {error}", dir.display()));
    for entry in entries {
        let path: PathBuf = entry.expect("a readable entry").path();
        if path.is_dir() {
            read(root, &path, endings, found);
        } else if endings.iter().any(|ending| path.extension().is_some_and(|extension| extension == *ending)) {
            let inside = path.strip_prefix(root).expect("a path inside the crate");
            let text = fs::read_to_string(&path).expect("a source is text");
            found.push(Source { path: inside.to_str().expect("UTF-8").replace('\\', "/"), text });
        }
    }
}

fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    read(root, &root.join("src"), &["rs", "lua"], &mut found);
    found
}

#[test]
fn every_source_keeps_to_the_map() {
    let sources = sources();
    for expected in
        ["src/broker.rs", "src/event_log/database.rs", "src/protocol/keys.rs", "src/broker/redis/lua/claim.lua"]
    {
        assert!(sources.iter().any(|source| source.path == expected), "{expected} was not looked at");
    }
    let breaches = breaches(&sources);
    assert!(breaches.is_empty(), "{breaches:#?}");
}

#[test]
fn the_places_that_the_rules_allow_are_used() {
    // A rule whose allowed place does not name the crate either has the wrong place.
    let sources = sources();
    let used = |only: &OnlyIn| {
        let named = |source: &&Source| source.text.lines().any(|line| names_crate(code_of(line), only.name));
        sources.iter().filter(|source| source.is_under(only.places)).any(|source| named(&source))
    };
    for name in ["redis", "kube", "k8s_openapi", "sqlx", "jiff_sqlx"] {
        assert!(CRATES.iter().any(|only| only.name == name && used(only)), "{name} is named where it may be");
    }
    assert!(sources.iter().any(|source| source.path == KEYS && source.text.contains("windlass:{{{")));
}

/// How many rules a made-up file breaks.
fn broken(path: &str, text: &str) -> usize {
    breaches(&[Source { path: path.to_owned(), text: text.to_owned() }]).len()
}

#[test]
fn a_crate_in_the_wrong_place_is_found() {
    for line in [
        "use redis::Value;",
        "    let mut command = redis::cmd(\"GET\");",
        "use redis as r;",
        "use ::redis::Client;",
        "use {anyhow::Result, redis::Cmd};",
        "fn f() -> redis::RedisResult<()> {",
        "extern crate redis;",
    ] {
        assert_eq!(broken("src/worker.rs", line), 1, "{line}");
        assert_eq!(broken("src/broker/redis.rs", line), 0, "{line}");
        assert_eq!(broken("src/broker/redis/error.rs", line), 0, "{line}");
        assert_eq!(broken("src/broker/redis_like.rs", line), 1, "{line}");
    }
    assert_eq!(broken("src/worker.rs", "use kube::Api;"), 1);
    assert_eq!(broken("src/operator/plan.rs", "use kube::Api;\nuse k8s_openapi::api::core::v1::Pod;"), 0);
    assert_eq!(broken("src/crd.rs", "use k8s_openapi::api::core::v1::Pod;"), 0);
    assert_eq!(broken("src/http.rs", "use k8s_openapi::api::core::v1::Pod;"), 1);
    assert_eq!(broken("src/broker/model.rs", "let row = sqlx::query(\"\");"), 1);
    assert_eq!(broken("src/broker/postgres/schema.rs", "let row = sqlx::query(\"\");"), 0);
    assert_eq!(broken("src/event_log.rs", "use sqlx::Row;"), 0);
    assert_eq!(broken("src/event_log/url.rs", "use jiff_sqlx::ToSqlx;"), 0);
    assert_eq!(broken("src/event_logger.rs", "use sqlx::Row;"), 1);
    assert_eq!(broken("src/maintenance.rs", "use jiff_sqlx::ToSqlx;"), 1);
}

#[test]
fn a_module_of_the_same_name_is_no_crate() {
    for line in [
        "use crate::broker::redis::RedisBroker;",
        "use super::redis::RedisBroker;",
        "use windlass::broker::redis::{RedisBroker, RedisOptions};",
        "pub mod redis;",
        "use super::{model, redis};",
        "let url = \"redis://127.0.0.1:6379\";",
        "/// Like `redis::cmd`, but typed.",
        "// redis::Value is what it was.",
        "let x = 1; // not redis::cmd",
        "use my_redis::Value;",
        "use redis_test::Value;",
        "bench_redis::run();",
    ] {
        assert_eq!(broken("src/cli.rs", line), 0, "{line}");
    }
}

#[test]
fn an_impure_protocol_is_found() {
    for line in ["use tokio::time::Instant;", "use crate::broker::Lease;", "use super::super::broker::Lease;"] {
        assert_eq!(broken("src/protocol/task.rs", line), 1, "{line}");
        assert_eq!(broken("src/worker.rs", line), 0, "{line}");
    }
    assert_eq!(broken("src/protocol.rs", "use redis::Value;"), 2, "by both rules");
    assert_eq!(broken("src/protocol.rs", "//! Where a broker and tokio are words."), 0);
}

#[test]
fn an_event_log_that_reaches_behind_the_broker_is_found() {
    let line = "use crate::broker::redis::RedisBroker;";
    assert_eq!(broken("src/event_log/events.rs", line), 1);
    assert_eq!(broken("src/event_log/events.rs", "use crate::broker::{Event, OutboxEntry};"), 0);
    assert_eq!(broken("src/maintenance.rs", line), 0);
}

#[test]
fn an_operator_that_runs_tasks_and_a_broker_that_knows_it_are_found() {
    assert_eq!(broken("src/operator/pool.rs", "use crate::worker::Worker;"), 1);
    assert_eq!(broken("src/operator.rs", "let code = crate::cli::error::Kind::Failed;"), 1);
    assert_eq!(broken("src/operator/queue/apply.rs", "use crate::broker::redis::RedisBroker;"), 0);
    assert_eq!(broken("src/operator/queue/apply.rs", "use redis::Cmd;"), 1);
    assert_eq!(broken("src/maintenance/runner.rs", "use crate::operator::context::Context;"), 1);
    assert_eq!(broken("src/cli/operator.rs", "use crate::operator::Options;"), 0);
}

#[test]
fn a_key_that_is_spelt_elsewhere_is_found() {
    let spelt = "let key = format!(\"windlass:{{{queue}}}:live\");";
    assert_eq!(broken("src/broker/redis.rs", spelt), 1);
    assert_eq!(broken("src/broker/redis.rs", "let key = \"windlass:{shop/emails}:live\";"), 1);
    assert_eq!(broken(KEYS, spelt), 0);
    assert_eq!(broken("src/broker/redis/lua/claim.lua", "-- ARGV[3] x\n-- RETURNS windlass:{x}\nreturn ARGV[3]"), 0);
}

#[test]
fn a_script_without_a_header_is_found() {
    let path = "src/broker/redis/lua/new.lua";
    assert_eq!(broken(path, "-- Does something.\nreturn ARGV[3]"), 2);
    assert_eq!(broken(path, "-- Does something.\n--\n-- ARGV[3] id\nreturn ARGV[3]"), 1);
    assert_eq!(broken(path, "-- Does something.\n--\n-- ARGV[3] id\n-- RETURNS it\nreturn ARGV[3]"), 0);
    assert_eq!(broken(path, "return 1\n-- ARGV and RETURNS too late"), 1);
    assert_eq!(broken("src/broker/redis/lua/part/some.lua", "return ARGV[3]"), 0, "a part has no header of its own");
}
