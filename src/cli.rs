//! The command line: one subcommand a role.
//!
//! Owns: what people and scripts type, how data is printed, and exit codes
//! (0 done, 1 failed, 2 usage, 3 not found, 4 conflict or invalid transition).
//! Must not know: how a broker or the event log work inside.
//!
//! Main flow: [`main`] parses, sets up logging and runs one command; a command
//! finds its queue ([`connection`]), does one thing and prints it ([`output`]);
//! what goes wrong is one [`error::CliError`] with its exit code.

mod conformance;
pub mod connection;
mod crd;
mod dev;
mod dlq;
pub mod error;
mod events;
mod explain;
mod install;
mod operator;
pub mod output;
mod progress;
mod queue;
mod task;
pub mod units;
mod worker;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use self::error::{CliError, without_credentials};
use self::output::{Colours, Tone, remark};
use crate::bench;
use crate::telemetry::{self, Verbosity};

/// Task queues on Redis Streams, native to Kubernetes.
#[derive(Debug, Parser)]
#[command(
    name = "windlass",
    version,
    arg_required_else_help = true,
    after_help = "Environment:\n  \
        WINDLASS_REDIS_URL      the Redis of the queues\n  \
        WINDLASS_EVENT_LOG_URL  the event log (postgres://… or sqlite://…)\n  \
        WINDLASS_QUEUE          the queue, where -q is not given\n  \
        WINDLASS_LOG            filter of the logs, like info or windlass=debug,warn\n  \
        WINDLASS_LOG_FORMAT     text or json\n  \
        NO_COLOR                no colours\n\n\
        `windlass dev` has a Redis and an event log of its own and does not heed the first two.\n\n\
        Exit status: 0 done, 1 failed, 2 wrong usage, 3 not found, 4 conflict or invalid transition."
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The roles of the binary.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Enqueue, see, cancel, await and explain tasks.
    Task(task::Args),
    /// See, watch, pause and resume queues.
    Queue(queue::Args),
    /// Read, replay and discard dead letters.
    Dlq(dlq::Args),
    /// Show what happened, from the event log.
    Events(events::Args),
    /// Run the tasks of a queue with a program, or by posting them to an address.
    Worker(worker::Args),
    /// Check a live queue against the protocol: RP-001 to RP-005 and the acceptance criteria.
    Conformance(conformance::Args),
    /// Measure the broker beside bare Redis commands, BullMQ and asynq.
    Bench(bench::Args),
    /// Print the CustomResourceDefinitions as YAML.
    Crd(crd::Args),
    /// Run TaskQueues and WorkerPools on this machine, with no Kubernetes.
    Dev(dev::Args),
    /// Look after the TaskQueues and WorkerPools of a Kubernetes cluster.
    Operator(operator::Args),
    /// Run a program that ends when standard input closes.
    #[command(hide = true)]
    Guard(crate::dev::guard::Args),
    /// Put this program where another container finds it.
    #[command(hide = true)]
    Install(install::Args),
    /// Print a completion script for a shell.
    #[command(after_help = "Examples:\n  \
        windlass completion bash > /etc/bash_completion.d/windlass\n  \
        windlass completion zsh > ~/.zfunc/_windlass\n  \
        windlass completion fish > ~/.config/fish/completions/windlass.fish")]
    Completion {
        /// The shell to print it for.
        shell: clap_complete::Shell,
    },
}

impl Command {
    /// How much the role logs where nothing else was asked for.
    fn verbosity(&self) -> Verbosity {
        match self {
            Command::Worker(_) | Command::Operator(_) => Verbosity::Service,
            _ => Verbosity::Command,
        }
    }

    async fn run(self) -> Result<(), CliError> {
        match self {
            Command::Task(args) => task::run(args).await,
            Command::Queue(args) => queue::run(args).await,
            Command::Dlq(args) => dlq::run(args).await,
            Command::Events(args) => events::run(args).await,
            Command::Worker(args) => worker::run(args).await,
            Command::Conformance(args) => conformance::run(args).await,
            Command::Bench(args) => Ok(bench::run(args).await?),
            Command::Crd(args) => Ok(crd::run(&args)?),
            Command::Dev(args) => dev::run(args).await,
            Command::Operator(args) => operator::run(args).await,
            Command::Guard(args) => Ok(crate::dev::guard::run(args).await?),
            Command::Install(args) => install::run(&args),
            Command::Completion { shell } => complete(shell),
        }
    }
}

/// Runs the command that the arguments name, and says how the process should end.
pub async fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) => return refuse(&error),
    };
    let outcome = match telemetry::init(cli.command.verbosity()) {
        // In a box: the futures of all commands, one in the other, are deeper than the compiler follows.
        Ok(()) => Box::pin(cli.command.run()).await,
        Err(error) => Err(CliError::usage(error.to_string())),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let sentence = without_credentials(&error.to_string());
            if !sentence.is_empty() {
                remark(&format!("{} {sentence}", Colours::of_stderr().paint(Tone::Bad, "error:")));
            }
            error.exit_code()
        }
    }
}

/// Who runs the command, as far as the system knows.
fn person() -> String {
    let set = |name| std::env::var(name).ok().filter(|name| !name.trim().is_empty());
    set("USER").or_else(|| set("LOGNAME")).unwrap_or_else(|| "somebody on the command line".to_owned())
}

/// Says what is wrong with the arguments; or prints the help, if that was asked for.
fn refuse(error: &clap::Error) -> ExitCode {
    let shown = error.render();
    if !error.use_stderr() {
        let text = if Colours::of_stdout().are_on() { shown.ansi().to_string() } else { shown.to_string() };
        return if output::print(&text).is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let text = if Colours::of_stderr().are_on() { shown.ansi().to_string() } else { shown.to_string() };
    // What was typed is quoted, and may be a URL in the wrong place.
    remark(without_credentials(&text).trim_end());
    ExitCode::from(error::Kind::Usage.code())
}

fn complete(shell: clap_complete::Shell) -> Result<(), CliError> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "windlass", &mut script);
    output::print(&String::from_utf8_lossy(&script))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_of_all_commands_fit_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_has_examples_in_its_help() {
        fn check(command: &clap::Command, path: &str) {
            let path = format!("{path} {}", command.get_name());
            let leaf = command.get_subcommands().next().is_none();
            let examples = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            // The benchmark is for those who work on Windlass, what is hidden for nobody.
            let exempt = path.ends_with("bench") || command.is_hide_set();
            assert!(!leaf || exempt || examples.contains("Example"), "{path} has no examples");
            command.get_subcommands().filter(|sub| sub.get_name() != "help").for_each(|sub| check(sub, &path));
        }
        check(&Cli::command(), "");
    }
}
