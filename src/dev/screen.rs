//! What `windlass dev` prints: lines with the name of who speaks before them.

use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How a line is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tone {
    /// What happens.
    Plain,
    /// What went well.
    Good,
    /// What wants attention.
    Bad,
    /// What can be overlooked.
    Faint,
}

impl Tone {
    fn colour(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Good => "\x1b[32m",
            Self::Bad => "\x1b[31m",
            Self::Faint => "\x1b[2m",
        }
    }
}

/// Standard output. Clones are the same.
#[derive(Clone)]
pub(super) struct Screen {
    painted: bool,
    /// How wide names have been so far.
    width: Arc<AtomicUsize>,
}

/// How `windlass dev` itself is called.
const SELF: &str = "windlass";

impl Screen {
    /// Colours only in a terminal, and never where somebody asked for none.
    pub(super) fn new() -> Self {
        let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self { painted: std::io::stdout().is_terminal() && !unwanted, width: Arc::new(AtomicUsize::new(16)) }
    }

    /// A line of `windlass dev` itself.
    pub(super) fn say(&self, tone: Tone, text: impl AsRef<str>) {
        self.line(SELF, tone, text.as_ref());
    }

    /// A line of somebody.
    pub(super) fn line(&self, who: &str, tone: Tone, text: &str) {
        let width = self.width.fetch_max(who.chars().count(), Ordering::Relaxed).max(who.chars().count());
        let text = printable(text);
        let line = if self.painted {
            format!("\x1b[{}m{who:width$}\x1b[0m │ {}{text}\x1b[0m\n", colour_of(who), tone.colour())
        } else {
            format!("{who:width$} │ {text}\n")
        };
        // Whoever reads may have gone; that is no reason to stop the queues.
        let _ = std::io::stdout().lock().write_all(line.as_bytes());
    }
}

/// Each name its own colour, the same one every time.
fn colour_of(who: &str) -> u8 {
    const COLOURS: [u8; 6] = [36, 33, 35, 34, 32, 96];
    if who == SELF {
        return 1;
    }
    COLOURS[who.bytes().fold(0usize, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into())) % COLOURS.len()]
}

/// A program's line must not move the cursor or ring the bell; colours may stay.
fn printable(text: &str) -> String {
    text.trim_end().chars().filter(|c| !c.is_control() || matches!(c, '\t' | '\x1b')).collect()
}
