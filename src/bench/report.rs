//! What is printed in the end: a table, or the same as JSON.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Serialize;

use super::machine::Machine;
use super::stats::Spread;

/// Whose number it is; a column of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum System {
    /// This project.
    Windlass,
    /// Bare commands, with an XACK and an XDEL a task.
    Bare,
    /// Bare commands, with one XACK and one XDEL a batch.
    #[serde(rename = "bare_variadic")]
    BareVariadic,
    /// BullMQ.
    Bullmq,
    /// asynq.
    Asynq,
}

impl System {
    /// In the order of the columns.
    pub(super) const ALL: [Self; 5] = [Self::Windlass, Self::Bare, Self::BareVariadic, Self::Bullmq, Self::Asynq];

    /// Whether it is bare commands, and no queue.
    pub(super) fn is_bare(self) -> bool {
        matches!(self, Self::Bare | Self::BareVariadic)
    }

    /// As it is written in the table.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Windlass => "windlass",
            Self::Bare => "bare",
            Self::BareVariadic => "bare, variadic",
            Self::Bullmq => "BullMQ",
            Self::Asynq => "asynq",
        }
    }
}

/// A line of the table.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Row {
    /// What was measured, with its unit.
    pub(super) measure: String,
    /// What came out.
    pub(super) values: BTreeMap<System, Spread>,
    /// Windlass's median over another one.
    ratios: Vec<Ratio>,
    /// What else is to be said.
    note: Option<String>,
    /// What was hoped for.
    budget: Option<Verdict>,
}

#[derive(Debug, Clone, Serialize)]
struct Ratio {
    /// Over what.
    over: String,
    value: f64,
}

/// Whether a budget was kept.
#[derive(Debug, Clone, Serialize)]
struct Verdict {
    budget: String,
    /// `None` where what it is compared with was not measured.
    met: Option<bool>,
}

impl Row {
    /// An empty line.
    pub(super) fn new(measure: impl Into<String>) -> Self {
        Self { measure: measure.into(), values: BTreeMap::new(), ratios: Vec::new(), note: None, budget: None }
    }

    /// Adds what the runs of a system gave; nothing if there were none.
    pub(super) fn value(mut self, system: System, runs: &[f64]) -> Self {
        self.values.extend(Spread::of(runs).map(|spread| (system, spread)));
        self
    }

    /// A system's median.
    pub(super) fn median(&self, system: System) -> Option<f64> {
        self.values.get(&system).map(|spread| spread.median)
    }

    /// Adds the ratio of Windlass to another system, where both were measured.
    pub(super) fn ratio_to(self, system: System) -> Self {
        let other = self.median(system);
        self.ratio(system.name(), other)
    }

    /// Adds the ratio of Windlass to something else.
    pub(super) fn ratio(mut self, over: &str, other: Option<f64>) -> Self {
        if let (Some(own), Some(other)) = (self.median(System::Windlass), other)
            && other != 0.0
        {
            self.ratios.push(Ratio { over: over.to_owned(), value: own / other });
        }
        self
    }

    /// Adds a remark.
    pub(super) fn note(mut self, note: Option<String>) -> Self {
        self.note = note;
        self
    }

    /// Sets the budget: every ratio, of which there must be so many, has to keep it.
    pub(super) fn budget(mut self, budget: &str, ratios: usize, keeps: impl Fn(f64) -> bool) -> Self {
        let met = (self.ratios.len() >= ratios).then(|| self.ratios.iter().all(|ratio| keeps(ratio.value)));
        self.budget = Some(Verdict { budget: budget.to_owned(), met });
        self
    }

    /// Sets the budget, judged by the caller.
    pub(super) fn judged(mut self, budget: &str, met: Option<bool>) -> Self {
        self.budget = Some(Verdict { budget: budget.to_owned(), met });
        self
    }

    fn cells(&self) -> Vec<String> {
        let mut cells = vec![self.measure.clone()];
        cells.extend(System::ALL.map(|system| self.values.get(&system).map(show_spread).unwrap_or_default()));
        let ratio = |ratio: &Ratio| {
            let digits = if ratio.value < 0.1 { 3 } else { 2 };
            format!("{:.digits$}× {}", ratio.value, ratio.over)
        };
        let beside: Vec<String> = self.ratios.iter().map(ratio).chain(self.note.clone()).collect();
        cells.push(beside.join(", "));
        cells.push(self.budget.as_ref().map(show_verdict).unwrap_or_default());
        cells
    }
}

fn show_verdict(verdict: &Verdict) -> String {
    let met = match verdict.met {
        Some(true) => "met",
        Some(false) => "**not met**",
        None => "not judged",
    };
    format!("{}: {met}", verdict.budget)
}

/// The median, and the range where the runs differ.
fn show_spread(spread: &Spread) -> String {
    let (median, min, max) = (show(spread.median), show(spread.min), show(spread.max));
    if min == max { median } else { format!("{median} ({min}–{max})") }
}

/// A number with as many digits as say something.
pub(super) fn show(value: f64) -> String {
    match value.abs() {
        size if size >= 999.5 => grouped(value),
        size if size >= 99.95 => format!("{value:.0}"),
        // A count has nothing behind the point.
        size if size.fract() == 0.0 => format!("{value:.0}"),
        size if size >= 9.995 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

fn grouped(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = if value < 0.0 { "-".to_owned() } else { String::new() };
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Everything that is printed.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// When it was measured.
    pub(super) date: String,
    /// Where.
    pub(super) machine: Machine,
    /// What runs on which core.
    pub(super) pinning: String,
    /// The server and the peers.
    pub(super) versions: Vec<String>,
    /// How often, and how much.
    pub(super) settings: String,
    /// The numbers.
    pub(super) rows: Vec<Row>,
    /// What they do not say by themselves.
    pub(super) notes: Vec<&'static str>,
}

impl Report {
    /// As Markdown.
    pub(super) fn markdown(&self) -> String {
        let Machine { cores, memory_gib, cpu } = &self.machine;
        let cores = if *cores == 1 { "1 core".to_owned() } else { format!("{cores} cores") };
        let mut text = format!("{}. {cores} ({cpu}), {memory_gib:.0} GiB of memory.\n", self.date);
        let lines = [&self.pinning, &format!("{}.", self.versions.join("; ")), &self.settings];
        for line in lines {
            // Writing to a string does not fail.
            let _ = writeln!(text, "{line}");
        }
        text.push('\n');
        text.push_str(&table(&self.rows));
        for note in &self.notes {
            let _ = write!(text, "\n{note}\n");
        }
        text
    }

    /// As JSON.
    pub(super) fn json(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(self).map(|text| text + "\n")
    }
}

/// A Markdown table whose columns are as wide as their longest cell.
fn table(rows: &[Row]) -> String {
    let mut lines: Vec<Vec<String>> = vec![vec!["measure".to_owned()]];
    lines[0].extend(System::ALL.map(|system| system.name().to_owned()));
    lines[0].extend(["ratio".to_owned(), "budget".to_owned()]);
    lines.extend(rows.iter().map(Row::cells));
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..lines[0].len()).map(width).collect();
    let show_line = |cells: &[String]| {
        let padded = cells.iter().zip(&widths).map(|(cell, width)| format!(" {cell:<width$} "));
        format!("|{}|\n", padded.collect::<Vec<_>>().join("|"))
    };
    let rule: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
    let body: String = lines[1..].iter().map(|line| show_line(line)).collect();
    show_line(&lines[0]) + &show_line(&rule) + &body
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_as_many_digits_as_say_something() {
        let shown = [1_234_567.8, 999.6, 1000.0, 99.96, 12.34, 1.234, 0.001, 0.0, 4.0, -1234.0].map(show);
        assert_eq!(shown, ["1,234,568", "1,000", "1,000", "100", "12.3", "1.23", "0.00", "0", "4", "-1,234"]);
    }

    #[test]
    fn a_row_shows_medians_ranges_ratios_and_the_verdict() {
        let row = Row::new("tasks/s")
            .value(System::Windlass, &[9000.0, 9100.0, 8900.0])
            .value(System::Bullmq, &[3000.0])
            .value(System::Asynq, &[])
            .ratio_to(System::Bullmq)
            .ratio_to(System::Asynq);
        let kept = row.clone().budget("≥ 3×", 1, |ratio| ratio >= 3.0);
        let cells = ["tasks/s", "9,000 (8,900–9,100)", "", "", "3,000", "", "3.00× BullMQ", "≥ 3×: met"];
        assert_eq!(kept.cells(), cells);
        let broken = row.clone().budget("≥ 4×", 1, |ratio| ratio >= 4.0);
        assert_eq!(broken.cells()[7], "≥ 4×: **not met**");
        let unknown = row.note(Some("so far".to_owned())).budget("≥ 3× both", 2, |ratio| ratio >= 3.0);
        assert_eq!(unknown.cells()[6..], ["3.00× BullMQ, so far", "≥ 3× both: not judged"]);
    }

    #[test]
    fn a_table_is_markdown() {
        let rows = [Row::new("a").value(System::Windlass, &[1.0]), Row::new("longer").value(System::Bare, &[2.5])];
        let text = table(&rows);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "| measure | windlass | bare | bare, variadic | BullMQ | asynq | ratio | budget |");
        assert_eq!(lines[1], "| ------- | -------- | ---- | -------------- | ------ | ----- | ----- | ------ |");
        assert_eq!(lines[2], "| a       | 1        |      |                |        |       |       |        |");
        assert_eq!(lines[3], "| longer  |          | 2.50 |                |        |       |       |        |");
    }

    #[test]
    fn the_report_begins_with_where_it_was_made() {
        let machine = Machine { cores: 2, memory_gib: 15.6, cpu: "Fast One".to_owned() };
        let report = Report {
            date: "2025-01-02".to_owned(),
            machine,
            pinning: "Not pinned.".to_owned(),
            versions: vec!["Redis 7.0.15".to_owned(), "asynq 0.25".to_owned()],
            settings: "1 run.".to_owned(),
            rows: vec![Row::new("a").value(System::Windlass, &[1.0])],
            notes: vec!["Mind the gap."],
        };
        let text = report.markdown();
        assert!(text.starts_with("2025-01-02. 2 cores (Fast One), 16 GiB of memory.\nNot pinned.\nRedis 7.0.15; asynq 0.25.\n1 run.\n\n| measure"));
        assert!(text.ends_with("|\n\nMind the gap.\n"), "{text}");
        assert!(report.json().expect("has a JSON form").contains("\"windlass\""));
    }
}
