//! Commands that held our server for too long, by who sent them and by name.

use std::collections::BTreeMap;

use super::report::{Row, System, show};
use super::wire::Reply;
use crate::broker::redis::operation_of;

/// A command that held the server for longer is in its slow log.
pub(super) const SLOW_MICROSECONDS: u64 = 2000;

/// What slow logs held.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct SlowLog {
    commands: BTreeMap<String, Slow>,
    /// How often the server had to leave its core meanwhile. Its slow log goes
    /// by the clock, so each time may have made a quick command slow.
    preempted: u64,
}

/// What the table cannot say by itself.
pub(super) const NOTES: [&str; 1] = [
    "The slow log goes by the clock: a server that is driven off its core has slow commands that are none. So the same \
     is counted for bare commands and peers in the same turns, and how often the server was preempted is said beside \
     them (what the host of a virtual machine takes is not seen). Commands over 2 ms are not judged where the server \
     was preempted at least as often, or where bare commands were slow as well: \"holds Redis\" judges by what is left \
     without the machine.",
];

/// The slow logs of all who did the same work.
#[derive(Debug, Clone, Default)]
pub(super) struct SlowLogs(BTreeMap<System, SlowLog>);

impl From<SlowLog> for SlowLogs {
    /// Of a measurement that has nobody beside us.
    fn from(own: SlowLog) -> Self {
        Self([(System::Windlass, own)].into())
    }
}

impl SlowLogs {
    /// Adds what a run of somebody left.
    pub(super) fn add(&mut self, who: System, log: SlowLog) {
        self.0.entry(who).or_default().add(log);
    }

    /// A line of the table.
    pub(super) fn row(&self, during: &str) -> Row {
        let own = self.0.get(&System::Windlass).cloned().unwrap_or_default();
        let row = Row::new(format!("commands over {} ms, {during}", SLOW_MICROSECONDS / 1000))
            .value(System::Windlass, &[own.times() as f64]);
        let row = self.0.iter().fold(row, |row, (who, log)| row.value(*who, &[log.times() as f64]));
        row.note(self.sentence()).judged("none", self.verdict(&own))
    }

    /// Everybody's, if anybody's commands were slow: who was not disturbed says something too.
    fn sentence(&self) -> Option<String> {
        let parts: Vec<String> =
            self.0.iter().map(|(who, log)| format!("{}: {}", who.name(), log.sentence())).collect();
        self.0.values().any(|log| log.times() > 0).then(|| parts.join(" / "))
    }

    /// `None` where it may have been the machine.
    fn verdict(&self, own: &SlowLog) -> Option<bool> {
        let bare_is_slow = self.0.iter().any(|(who, log)| who.is_bare() && log.times() > 0);
        match own.times() {
            0 => Some(true),
            slow if own.preempted >= slow || bare_is_slow => None,
            _ => Some(false),
        }
    }
}

/// How often one command was slow, and how slow at worst.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Slow {
    times: u64,
    worst_ms: f64,
}

impl SlowLog {
    /// From the answer to SLOWLOG GET, without what the client `own` sent and what was not slow.
    pub(super) fn read(log: &Reply, own: &str, preempted: u64) -> Self {
        let mut slow = Self { preempted, ..Self::default() };
        for (took, words) in entries(log, own) {
            if took > SLOW_MICROSECONDS {
                slow.put(&name(&words), Slow { times: 1, worst_ms: took as f64 / 1000.0 });
            }
        }
        slow
    }

    /// Adds what another run left.
    pub(super) fn add(&mut self, other: Self) {
        self.preempted += other.preempted;
        for (name, slow) in other.commands {
            self.put(&name, slow);
        }
    }

    fn put(&mut self, name: &str, slow: Slow) {
        let known = self.commands.entry(name.to_owned()).or_default();
        known.times += slow.times;
        known.worst_ms = known.worst_ms.max(slow.worst_ms);
    }

    fn times(&self) -> u64 {
        self.commands.values().map(|slow| slow.times).sum()
    }

    /// Which commands, how slow each was at worst, and what may have made them so.
    fn sentence(&self) -> String {
        let one = |(name, slow): (&String, &Slow)| {
            format!("{name}: {}, at worst {} ms", show(slow.times as f64), show(slow.worst_ms))
        };
        let commands: Vec<String> = self.commands.iter().map(one).collect();
        let commands = if commands.is_empty() { "none".to_owned() } else { commands.join("; ") };
        format!("{commands}; the server was preempted {} times", show(self.preempted as f64))
    }
}

/// How long each command took, in microseconds, and how it begins; without what the client `own` sent.
fn entries<'a>(log: &'a Reply, own: &str) -> impl Iterator<Item = (u64, Vec<&'a str>)> {
    log.items().iter().filter_map(move |entry| {
        let [_, _, took, words, client, ..] = entry.items() else { return None };
        let words = words.items().iter().take(2).map(Reply::text).collect();
        (!client.text().ends_with(own)).then(|| (took.number().unwrap_or(0).unsigned_abs(), words))
    })
}

/// The longest command in the answer to SLOWLOG GET, in milliseconds, without what the client `own` sent.
pub(super) fn longest_ms(log: &Reply, own: &str) -> f64 {
    entries(log, own).map(|(took, _)| took).max().unwrap_or(0) as f64 / 1000.0
}

/// What to call a command: the operation, where it is one of our scripts.
fn name(words: &[&str]) -> String {
    match words {
        [] => "an empty command".to_owned(),
        [command, digest] if command.eq_ignore_ascii_case("EVALSHA") => {
            operation_of(digest).map_or_else(|| format!("EVALSHA {:.8}", digest), str::to_owned)
        }
        [command, ..] if command.eq_ignore_ascii_case("SCRIPT") => "the loading of a script".to_owned(),
        [command, ..] => command.to_uppercase(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(took: i64, words: &[&str], client: &str) -> Reply {
        let text = |word: &str| Reply::Text(word.into());
        let words = words.iter().map(|word| text(word)).collect();
        let numbers = [1, 2, took].map(Reply::Number);
        Reply::List(numbers.into_iter().chain([Reply::List(words), text(client), text("")]).collect())
    }

    #[test]
    fn slow_commands_are_counted_by_name_without_our_own() {
        let log = Reply::List(vec![
            entry(2100, &["evalsha", "0123456789abcdef"], "127.0.0.1:5"),
            entry(4000, &["EVALSHA", "0123456789abcdef"], "127.0.0.1:5"),
            entry(3000, &["SCRIPT", "LOAD", "-- text"], "127.0.0.1:5"),
            entry(9000, &["FLUSHALL", "SYNC"], "127.0.0.1:77"),
            Reply::Nil,
        ]);
        assert_eq!(longest_ms(&log, ":77"), 4.0);
        let mut slow = SlowLogs::from(SlowLog::read(&log, ":77", 1));
        let more = Reply::List(vec![entry(2500, &["xrange", "a"], "127.0.0.1:6"), entry(2000, &["get", "a"], ":6")]);
        slow.add(System::Windlass, SlowLog::read(&more, ":77", 2));
        slow.add(System::Bare, SlowLog::default());
        let row = serde_json::to_value(slow.row("x")).expect("a JSON form");
        assert_eq!(
            row["note"],
            "windlass: EVALSHA 01234567: 2, at worst 4 ms; XRANGE: 1, at worst 2.50 ms; \
             the loading of a script: 1, at worst 3 ms; the server was preempted 3 times / \
             bare: none; the server was preempted 0 times"
        );
        let times = [&row["values"]["windlass"]["median"], &row["values"]["bare"]["median"]];
        assert_eq!((times, &row["budget"]["met"]), ([&4.0.into(), &0.0.into()], &false.into()));
        let quiet = serde_json::to_value(SlowLogs::default().row("x")).expect("a JSON form");
        assert_eq!((&quiet["budget"]["met"], &quiet["note"]), (&true.into(), &serde_json::Value::Null));
    }

    #[test]
    fn what_may_have_been_the_machine_is_not_judged() {
        let slow = |words: &[&str], preempted| {
            SlowLog::read(&Reply::List(vec![entry(3000, words, "127.0.0.1:6")]), ":77", preempted)
        };
        let met = |logs: &SlowLogs| serde_json::to_value(logs.row("x")).expect("a JSON form")["budget"]["met"].clone();
        assert_eq!(met(&slow(&["EVALSHA", "01234567"], 0).into()), false);
        assert_eq!(met(&slow(&["EVALSHA", "01234567"], 1).into()), serde_json::Value::Null);
        let mut beside = SlowLogs::from(slow(&["EVALSHA", "01234567"], 0));
        beside.add(System::Bullmq, slow(&["EVALSHA", "89abcdef"], 0));
        assert_eq!(met(&beside), false, "a peer's script may be slow by itself");
        beside.add(System::Bare, slow(&["XADD", "bench"], 0));
        assert_eq!(met(&beside), serde_json::Value::Null, "an XADD is not");
    }
}
