//! Commands that held our server for too long, by name.

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
pub(super) const NOTES: [&str; 1] =
    ["The slow log goes by the clock: a server that others drive off its core has slow \
     commands that are none. How often that happened is said beside them; on a quiet machine it is next to never."];

/// How often one command was slow, and how slow at worst.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Slow {
    times: u64,
    worst_ms: f64,
}

impl SlowLog {
    /// From the answer to SLOWLOG GET, without what the client `own` sent.
    pub(super) fn read(log: &Reply, own: &str, preempted: u64) -> Self {
        let mut slow = Self { preempted, ..Self::default() };
        for entry in log.items() {
            let [_, _, took, words, client, ..] = entry.items() else { continue };
            if client.text().ends_with(own) {
                continue;
            }
            let words: Vec<&str> = words.items().iter().take(2).map(Reply::text).collect();
            let ms = took.number().unwrap_or(0) as f64 / 1000.0;
            slow.put(&name(&words), Slow { times: 1, worst_ms: ms });
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
    fn sentence(&self) -> Option<String> {
        let one = |(name, slow): (&String, &Slow)| {
            format!("{name}: {}, at worst {} ms", show(slow.times as f64), show(slow.worst_ms))
        };
        let commands: Vec<String> = self.commands.iter().map(one).collect();
        let preempted = || format!("the server was preempted {} times", show(self.preempted as f64));
        (!commands.is_empty()).then(|| format!("{}; {}", commands.join("; "), preempted()))
    }

    /// A line of the table.
    pub(super) fn row(&self, during: &str) -> Row {
        Row::new(format!("commands over {} ms, {during}", SLOW_MICROSECONDS / 1000))
            .value(System::Windlass, &[self.times() as f64])
            .note(self.sentence())
            .judged("none", Some(self.commands.is_empty()))
    }
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
        let mut slow = SlowLog::read(&log, ":77", 5);
        let more = Reply::List(vec![entry(2500, &["xrange", "a"], "127.0.0.1:6")]);
        slow.add(SlowLog::read(&more, ":77", 2));
        assert_eq!(slow.times(), 4);
        let sentence = slow.sentence().expect("there are some");
        assert_eq!(
            sentence,
            "EVALSHA 01234567: 2, at worst 4 ms; XRANGE: 1, at worst 2.50 ms; \
             the loading of a script: 1, at worst 3 ms; the server was preempted 7 times"
        );
        let row = serde_json::to_value(slow.row("x")).expect("a JSON form");
        assert_eq!((&row["budget"]["met"], &row["note"]), (&false.into(), &sentence.into()));
    }

    #[test]
    fn nothing_slow_keeps_the_budget() {
        let row = serde_json::to_value(SlowLog::default().row("x")).expect("a JSON form");
        assert_eq!((&row["budget"]["met"], &row["note"]), (&true.into(), &serde_json::Value::Null));
    }
}
