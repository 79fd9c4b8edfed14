//! What the lines of a program mean: those of our own workers are logs, the others are as they are.

use serde_json::{Map, Value};

use super::screen::Tone;

/// How a program speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Speech {
    /// In lines.
    Plain,
    /// In logs of ours, as JSON.
    Logs,
}

/// What a log's line has besides what it is about.
const FRAME: [&str; 6] = ["timestamp", "level", "target", "message", "span", "spans"];
/// What a worker says when its handler wrote something.
const HANDLER_WROTE: &str = "handler wrote";

impl Speech {
    /// A line as a person would like to read it.
    pub(super) fn read(self, line: &str) -> (Tone, String) {
        let log = match self {
            Self::Logs => serde_json::from_str::<Map<String, Value>>(line).ok(),
            Self::Plain => None,
        };
        log.as_ref().and_then(told).unwrap_or_else(|| (Tone::Plain, line.to_owned()))
    }
}

fn told(log: &Map<String, Value>) -> Option<(Tone, String)> {
    let text = |name: &str| log.get(name).and_then(Value::as_str);
    let (level, message) = (text("level")?, text("message")?);
    if message == HANDLER_WROTE {
        return Some((Tone::Plain, format!("{}: {}", short(text("task_id")?), text("line")?)));
    }
    let tone = if matches!(level, "ERROR" | "WARN") { Tone::Bad } else { Tone::Faint };
    let fields = log.iter().filter(|(name, value)| !FRAME.contains(&name.as_str()) && *value != "");
    let fields = fields.map(|(name, value)| match value {
        Value::String(text) => format!(" {name}={text}"),
        other => format!(" {name}={other}"),
    });
    Some((tone, format!("{message}{}", fields.collect::<String>())))
}

/// The end of an id, where ids of one time differ.
pub(super) fn short(id: &str) -> &str {
    const LENGTH: usize = 12;
    if id.is_ascii() && id.len() > LENGTH { &id[id.len() - LENGTH..] } else { id }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_reads_as_a_sentence_and_a_strangers_line_as_it_is() {
        let log =
            r#"{"timestamp":"t","level":"WARN","message":"no answer","target":"x","worker":"w-1","held":2,"of":""}"#;
        assert_eq!(Speech::Logs.read(log), (Tone::Bad, "no answer held=2 worker=w-1".to_owned()));
        let wrote = r#"{"level":"INFO","message":"handler wrote","task_id":"0193-abcdefghijkl","line":"hello"}"#;
        assert_eq!(Speech::Logs.read(wrote), (Tone::Plain, "abcdefghijkl: hello".to_owned()));
        for line in ["panicked at x", "[1]", r#"{"level":3}"#] {
            assert_eq!(Speech::Logs.read(line), (Tone::Plain, line.to_owned()));
        }
        assert_eq!(Speech::Plain.read(wrote).1, wrote);
    }
}
