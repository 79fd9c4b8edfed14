//! `windlass dev`: one-machine mode.

use std::path::PathBuf;

use super::error::CliError;
use crate::dev::{self, Refused, Settings};

/// Run TaskQueues and WorkerPools on this machine, with no Kubernetes.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
        windlass dev -f examples/demo\n  \
        windlass dev -f queues.yaml -f workers.yaml --data-dir /tmp/mine\n\n\
        WINDLASS_REDIS_URL and WINDLASS_EVENT_LOG_URL are not heeded: what an earlier `windlass dev` printed for this \
        terminal is its own. Give --redis-url and --event-log to use others.\n\n\
        Ctrl-C lets workers finish what they hold; once more, they give it back at once.")]
pub struct Args {
    /// A manifest, or a folder of them; may be repeated.
    #[arg(short, long = "file", value_name = "FILE|DIR", required = true, num_args = 1..)]
    pub files: Vec<PathBuf>,
    /// Use this Redis instead of starting one.
    // Not from the environment: what an earlier `windlass dev` printed there is its own server.
    #[arg(long, value_name = "URL")]
    pub redis_url: Option<String>,
    /// Where what survives a restart is kept.
    #[arg(long, value_name = "DIR", default_value = ".windlass")]
    pub data_dir: PathBuf,
    /// Use this event log (postgres://… or sqlite://…) instead of the one in the data directory.
    #[arg(long, value_name = "URL")]
    pub event_log: Option<String>,
}

/// Runs until it is told to end.
pub(super) async fn run(args: Args) -> Result<(), CliError> {
    let Args { files, redis_url, data_dir, event_log } = args;
    let ran = dev::run(Settings { files, redis_url, data_dir, event_log }).await;
    ran.map_err(|error| match error.downcast::<Refused>() {
        Ok(refused) => CliError::usage(refused.to_string()),
        Err(other) => other.into(),
    })
}
