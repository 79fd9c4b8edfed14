//! How data is printed: tables for people, JSON and YAML for programs.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write};

use clap::ValueEnum;
use serde::Serialize;
use serde_json::value::RawValue;

use super::error::CliError;
use crate::protocol::state::State;
use crate::protocol::task::Payload;

/// The form in which data is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    Table,
    /// camelCase, times in RFC 3339 and UTC.
    Json,
    /// The same as YAML.
    Yaml,
}

/// How to print.
#[derive(Debug, Clone, Copy, clap::Args)]
#[command(next_help_heading = "Output")]
pub struct OutputArgs {
    /// How to print data: table, json or yaml.
    #[arg(
        short = 'o',
        long = "output",
        value_enum,
        default_value_t = Format::Table,
        value_name = "FORMAT",
        hide_possible_values = true
    )]
    pub format: Format,
}

impl OutputArgs {
    /// Prints one thing.
    pub(super) fn one<T: Serialize>(self, value: &T, table: impl FnOnce() -> String) -> Result<(), CliError> {
        match self.format {
            Format::Table => print(&table()),
            Format::Json => print(&(json(value)? + "\n")),
            Format::Yaml => print(&yaml(value)?),
        }
    }

    /// Prints one thing of many that come one by one: a line of JSON, or a document of YAML.
    pub(super) fn line<T: Serialize>(self, value: &T, table: impl FnOnce() -> String) -> Result<(), CliError> {
        match self.format {
            Format::Table => print(&table()),
            Format::Json => print(&(serde_json::to_string(value).map_err(no_form)? + "\n")),
            Format::Yaml => print(&format!("---\n{}", yaml(value)?)),
        }
    }
}

/// Writes to stdout, at once.
pub(super) fn print(text: &str) -> Result<(), CliError> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}

/// Says something on stderr.
pub(super) fn remark(text: &str) {
    // Nobody has to read it.
    let _ = writeln!(std::io::stderr(), "{text}");
}

fn json<T: Serialize>(value: &T) -> Result<String, CliError> {
    serde_json::to_string_pretty(value).map_err(no_form)
}

/// Through JSON, because payloads are JSON texts: they become values here.
fn yaml<T: Serialize>(value: &T) -> Result<String, CliError> {
    let text = serde_json::to_string(value).map_err(no_form)?;
    // In the order in which it was written.
    let value: serde_yaml::Value = serde_json::from_str(&text).map_err(no_form)?;
    serde_yaml::to_string(&value).map_err(no_form)
}

fn no_form(error: impl std::fmt::Display) -> CliError {
    CliError::failed(format!("the answer has no such form: {error}; try -o json"))
}

/// A payload or result as the JSON that it is; a raw producer's text that is none, as a string.
pub(super) fn json_of(payload: &Payload) -> Box<RawValue> {
    RawValue::from_string(payload.as_str().to_owned()).unwrap_or_else(|_| {
        let text = serde_json::to_string(payload.as_str()).expect("invariant: text has a JSON form");
        RawValue::from_string(text).expect("invariant: a JSON string is JSON")
    })
}

/// What a cell means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tone {
    Plain,
    Good,
    Busy,
    Bad,
    Faint,
    Strong,
}

impl Tone {
    fn code(self) -> &'static str {
        match self {
            Tone::Plain => "",
            Tone::Good => "\x1b[32m",
            Tone::Busy => "\x1b[33m",
            Tone::Bad => "\x1b[31m",
            Tone::Faint => "\x1b[2m",
            Tone::Strong => "\x1b[1m",
        }
    }

    /// How a state reads.
    pub(super) fn of(state: State) -> Self {
        match state {
            State::Succeeded => Tone::Good,
            State::Running | State::Retrying | State::WaitingApproval => Tone::Busy,
            State::Failed | State::DlqPending | State::DlqRecorded => Tone::Bad,
            State::Cancelled => Tone::Faint,
            State::Scheduled | State::Blocked | State::Queued => Tone::Plain,
        }
    }
}

/// Whether colours are used: only in a terminal, and never with `NO_COLOR`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Colours(bool);

impl Colours {
    pub(super) fn of_stdout() -> Self {
        Self(std::io::stdout().is_terminal() && wanted())
    }

    pub(crate) fn of_stderr() -> Self {
        Self(std::io::stderr().is_terminal() && wanted())
    }

    #[cfg(test)]
    pub(super) const OFF: Self = Self(false);

    pub(crate) fn are_on(self) -> bool {
        self.0
    }

    /// A text in a tone.
    pub(super) fn paint(self, tone: Tone, text: &str) -> String {
        if self.0 && tone != Tone::Plain { format!("{}{text}\x1b[0m", tone.code()) } else { text.to_owned() }
    }
}

fn wanted() -> bool {
    let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    !set("NO_COLOR") && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// One cell: its text, without what would move the cursor, and its tone.
#[derive(Debug, Clone)]
pub(super) struct Cell(String, Tone);

impl Cell {
    pub(super) fn toned(text: impl std::fmt::Display, tone: Tone) -> Self {
        Self(clean(&text.to_string()), tone)
    }

    /// A number that is worth a look when it is not zero.
    pub(super) fn alarming(number: u64) -> Self {
        Self::toned(number, if number > 0 { Tone::Bad } else { Tone::Plain })
    }

    /// A state in its colour.
    pub(super) fn state(state: State) -> Self {
        Self::toned(state, Tone::of(state))
    }
}

impl<T: std::fmt::Display> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::toned(text, Tone::Plain)
    }
}

/// A text on one line, that cannot steer a terminal.
pub(super) fn clean(text: &str) -> String {
    let one = |c: char| if c.is_control() { ' ' } else { c };
    text.chars().map(one).collect::<String>().trim_end().to_owned()
}

/// The beginning of a text.
pub(super) fn shortened(text: &str, most: usize) -> String {
    let text = clean(text);
    if text.chars().count() <= most {
        return text;
    }
    text.chars().take(most.saturating_sub(1)).collect::<String>() + "…"
}

/// What an error comes to. A program's last words begin with how it came there, so of several lines
/// the one that names the error is worth most, and else the last one.
pub(super) fn gist(error: &str, most: usize) -> String {
    let whole = clean(error);
    if whole.chars().count() <= most {
        return whole;
    }
    let names_it = |line: &&str| {
        let begins = !line.starts_with(char::is_whitespace);
        begins && ["Error", "Exception", "error:", "panic"].iter().any(|word| line.contains(word))
    };
    let mut lines = error.lines().filter(|line| !line.trim().is_empty());
    let telling = lines.clone().rfind(names_it).or_else(|| lines.next_back()).unwrap_or_default();
    match clean(telling.trim()) {
        // All that there is, or where the text begins.
        line if whole.starts_with(&line) => shortened(&whole, most),
        line => format!("… {}", shortened(&line, most.saturating_sub(2))),
    }
}

/// A table without borders.
pub(super) struct Table {
    head: &'static [&'static str],
    rows: Vec<Vec<Cell>>,
}

impl Table {
    pub(super) fn new(head: &'static [&'static str]) -> Self {
        Self { head, rows: Vec::new() }
    }

    pub(super) fn row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// The table as text, for stdout.
    pub(super) fn shown(&self) -> String {
        self.painted(Colours::of_stdout())
    }

    pub(super) fn painted(&self, colours: Colours) -> String {
        let head: Vec<Cell> = self.head.iter().map(|name| Cell::toned(name, Tone::Strong)).collect();
        let lines: Vec<&Vec<Cell>> = std::iter::once(&head).chain(&self.rows).collect();
        let width = |column: usize| {
            let cells = lines.iter().filter_map(|line| line.get(column));
            cells.map(|cell| cell.0.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.head.len()).map(width).collect();
        let mut text = String::new();
        for line in lines {
            let last = line.len().saturating_sub(1);
            for (column, Cell(word, tone)) in line.iter().enumerate() {
                let gap = if column == last { 0 } else { widths.get(column).unwrap_or(&0) + 3 - word.chars().count() };
                // Writing to a String cannot fail.
                let _ = write!(text, "{}{}", colours.paint(*tone, word), " ".repeat(gap));
            }
            text.push('\n');
        }
        text
    }
}

/// Facts about one thing, a line each.
#[derive(Default)]
pub(super) struct Facts(Vec<(&'static str, Cell)>);

impl Facts {
    pub(super) fn add(&mut self, name: &'static str, value: impl Into<Cell>) {
        self.0.push((name, value.into()));
    }

    /// A fact that may not be known; then it is left out.
    pub(super) fn maybe(&mut self, name: &'static str, value: Option<impl Into<Cell>>) {
        if let Some(value) = value {
            self.add(name, value);
        }
    }

    pub(super) fn shown(&self) -> String {
        let colours = Colours::of_stdout();
        let width = self.0.iter().map(|(name, _)| name.len()).max().unwrap_or(0) + 1;
        let line = |(name, Cell(word, tone)): &(&str, Cell)| {
            let name = format!("{name}:");
            format!("{}  {}\n", colours.paint(Tone::Strong, &format!("{name:width$}")), colours.paint(*tone, word))
        };
        self.0.iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_under_their_heads_and_nothing_steers_the_terminal() {
        let mut table = Table::new(&["NAME", "ERROR"]);
        table.row(["a".into(), "two\nlines \x1b[31mred".into()]);
        table.row(["longer-name".into(), "".into()]);
        assert_eq!(
            table.painted(Colours::OFF),
            "NAME          ERROR\na             two lines  [31mred\nlonger-name   \n"
        );
        assert!(table.painted(Colours(true)).contains("\x1b[1mNAME\x1b[0m"));
    }

    #[test]
    fn an_error_of_many_lines_is_told_by_the_line_that_names_it() {
        let frames = "  File \"greet.py\", line 3, in <module>\n    print(task[\"payload\"][\"name\"])\n".repeat(3);
        let python = format!("Traceback (most recent call last):\n{frames}KeyError: 'name'\n");
        assert_eq!(gist(&python, 80), "… KeyError: 'name'");
        let node = "/app/handle.mjs:7\n  throw new TypeError('no order')\n        ^\n\nTypeError: no order\n    \
                    at run (file:///app/handle.mjs:7:9)\n    at async main (file:///app/handle.mjs:2:1)\n\nNode.js v20.20.2";
        assert_eq!(gist(node, 80), "… TypeError: no order");
        let java = "Exception in thread \"main\" java.lang.IllegalStateException: no order\n\tat Handle.main(Handle.java:9)\n\
                    Caused by: java.io.IOException: connection reset\n\tat Handle.read(Handle.java:17)\n\t... 1 more";
        assert_eq!(gist(java, 80), "… Caused by: java.io.IOException: connection reset");
        let go = "panic: no order\n\ngoroutine 1 [running]:\nmain.main()\n\t/app/main.go:8 +0x25\nexit status 2";
        assert_eq!(gist(go, 40), "panic: no order  goroutine 1 [running]:…");
        let shell = "reading the order\nasking the bank for its opinion\ncurl: (7) Failed to connect";
        assert_eq!(gist(shell, 60), "… curl: (7) Failed to connect");
        assert_eq!(gist(shell, 15), "… curl: (7) Fa…");
        assert_eq!(gist("no answer\nfrom smtp", 80), "no answer from smtp", "what fits is told whole");
        assert_eq!(gist(&"x".repeat(9), 5), "xxxx…");
        assert_eq!(gist("\n \n\n\n \n", 2), "");
    }

    #[test]
    fn payloads_are_json_byte_for_byte_and_other_text_is_a_string() {
        let exact = r#"{"n":12345678901234567890123456789.00}"#;
        let payload = Payload::from_json(exact).expect("JSON");
        assert_eq!(serde_json::to_string(&json_of(&payload)).expect("written"), exact);
        assert_eq!(json_of(&Payload::unchecked("not json".into())).get(), r#""not json""#);
    }
}
