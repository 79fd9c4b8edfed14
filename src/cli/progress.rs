//! How far a long command has come: a bar in a terminal, now and then a line elsewhere.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use super::output::remark;
use super::units::spoken;

/// How often a line is written where there is no terminal. What ends sooner writes none.
const LINE_EVERY: Duration = Duration::from_secs(2);

/// How far a command has come. Writes to stderr.
pub(super) struct Progress {
    bar: ProgressBar,
    what: &'static str,
    total: Option<u64>,
    began: Instant,
    last_line: Instant,
    lines: bool,
}

impl Progress {
    /// Nothing is done yet of so many, where that is known. `what` is what is counted, like "tasks enqueued".
    pub(super) fn new(total: Option<u64>, what: &'static str) -> Self {
        use std::io::IsTerminal;
        let terminal = std::io::stderr().is_terminal();
        // A single step needs no bar.
        let bar = if terminal && total != Some(1) { ProgressBar::no_length() } else { ProgressBar::hidden() };
        let template = match total {
            Some(_) => "{bar:30} {pos}/{len} {msg}, {per_sec}, {eta} left",
            None => "{spinner} {pos} {msg}, {per_sec}",
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        if let Some(total) = total {
            bar.set_length(total);
        }
        bar.set_message(what);
        let now = Instant::now();
        Self { bar, what, total, began: now, last_line: now, lines: !terminal }
    }

    /// So many are done.
    pub(super) fn at(&mut self, done: u64) {
        self.bar.set_position(done);
        if self.lines && self.last_line.elapsed() >= LINE_EVERY {
            self.last_line = Instant::now();
            let of = self.total.map(|total| format!(" of {total}")).unwrap_or_default();
            remark(&format!("{done}{of} {} after {}", self.what, spoken(self.began.elapsed())));
        }
    }

    /// Takes the bar away while something else is written.
    pub(super) fn aside<T>(&self, write: impl FnOnce() -> T) -> T {
        self.bar.suspend(write)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
