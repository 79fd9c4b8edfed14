//! The `windlass` binary: parses the command line and runs the role that it names.

use std::process::ExitCode;

use clap::Parser;

#[tokio::main]
async fn main() -> ExitCode {
    windlass::cli::run(windlass::cli::Cli::parse()).await
}
