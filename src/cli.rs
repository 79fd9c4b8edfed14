//! The command line: one subcommand a role.

mod crd;
mod dev;

use std::io::Write;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use crate::bench;

/// Task queues on Redis Streams, native to Kubernetes.
#[derive(Debug, Parser)]
#[command(name = "windlass", version, arg_required_else_help = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The roles of the binary.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Measure the broker beside bare Redis commands, BullMQ and asynq.
    Bench(bench::Args),
    /// Print the CustomResourceDefinitions as YAML.
    Crd(crd::Args),
    /// Run TaskQueues and WorkerPools on this machine, with no Kubernetes.
    Dev(dev::Args),
    /// Run a program that ends when standard input closes.
    #[command(hide = true)]
    Guard(crate::dev::guard::Args),
    /// Print a completion script for a shell.
    Completion {
        /// The shell to print it for.
        shell: clap_complete::Shell,
    },
}

/// Runs a command; the exit code is 0 when it is done, 1 when it failed.
pub async fn run(cli: Cli) -> ExitCode {
    let outcome = match cli.command {
        Command::Bench(args) => bench::run(args).await,
        Command::Crd(args) => crd::run(&args),
        Command::Dev(args) => dev::run(args).await,
        Command::Guard(args) => match crate::dev::guard::run(args).await {
            Ok(code) => return code,
            Err(error) => Err(error),
        },
        Command::Completion { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "windlass", &mut std::io::stdout());
            Ok(())
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nothing more can be done if even this cannot be written.
            let _ = writeln!(std::io::stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
