//! Logs: what is written, and how.
//!
//! Owns: the process-wide subscriber. Logs go to stderr, so that what a command
//! prints can be piped.

use std::fmt;

use tracing_subscriber::EnvFilter;

/// The filter of logs, like `info` or `windlass=debug,warn`.
pub const FILTER: &str = "WINDLASS_LOG";
/// How logs are written: `text` or `json`.
pub const FORMAT: &str = "WINDLASS_LOG_FORMAT";

/// Why logging could not be set up.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TelemetryError {
    /// The filter does not parse.
    #[error("{FILTER}={0:?} is no filter: write a level like info, or levels by module like windlass=debug,warn")]
    Filter(String),
    /// The format is unknown.
    #[error("{FORMAT}={0:?} is no format: use text or json")]
    Format(String),
}

/// How much a role logs where nothing else was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verbosity {
    /// A command for people: only what went wrong.
    Command,
    /// A role that runs for long: what happens.
    Service,
}

impl fmt::Display for Verbosity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Verbosity::Command => "error",
            Verbosity::Service => "info",
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Style {
    Text,
    Json,
}

/// Sets up logging by the environment. Has an effect once a process.
pub fn init(verbosity: Verbosity) -> Result<(), TelemetryError> {
    let set = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    let filter = filter(set(FILTER), verbosity)?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // A second subscriber is refused, and the first one stays: that is what is wanted.
    drop(match style(set(FORMAT))? {
        Style::Text => builder.with_ansi(crate::cli::output::Colours::of_stderr().are_on()).try_init(),
        Style::Json => builder.json().flatten_event(true).try_init(),
    });
    Ok(())
}

fn filter(asked: Option<String>, verbosity: Verbosity) -> Result<EnvFilter, TelemetryError> {
    let words = asked.unwrap_or_else(|| verbosity.to_string());
    EnvFilter::try_new(&words).map_err(|_| TelemetryError::Filter(words))
}

fn style(asked: Option<String>) -> Result<Style, TelemetryError> {
    match asked.as_deref() {
        None | Some("text") => Ok(Style::Text),
        Some("json") => Ok(Style::Json),
        Some(other) => Err(TelemetryError::Format(other.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_setting_is_refused_with_a_sentence() {
        assert!(style(Some("xml".into())).expect_err("unknown").to_string().contains("use text or json"));
        assert_eq!(style(None), Ok(Style::Text));
        assert!(filter(Some("windlass=nonsense".into()), Verbosity::Command).is_err());
        assert!(filter(Some("windlass=debug,warn".into()), Verbosity::Service).is_ok());
        assert_eq!(filter(None, Verbosity::Service).expect("a default").to_string(), "info");
    }
}
