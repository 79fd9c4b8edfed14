//! Handlers that are programs: one process a task.
//!
//! The task is JSON on standard input and the facts that scripts need are in
//! the environment. The exit status says how it went:
//!
//! | status | meaning |
//! |---|---|
//! | 0 | done; standard output is the result, JSON if it parses |
//! | 65 | failed for good |
//! | 75 | rate limited; `retry-after: N` on standard error says for how long |
//! | any other, or a signal | failed, may work next time |
//!
//! The end of standard error is the error. The process leads a group of its
//! own: whatever it starts ends with the attempt, at the latest. Only a process
//! that makes itself a new session (`setsid`) leaves the group. What a worker
//! leaves behind that is itself killed is for its container to end, or for the
//! guard of `windlass dev`.

mod group;
mod pipes;

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use async_trait::async_trait;
use futures::future::{Either, select};
use tokio::process::Command;

use self::group::Group;
use self::pipes::{Output, Pipes};
use super::Handler;
use super::api::LocalApi;
use super::context::{CancelReason, TaskContext};
use super::foreign::{self, ResultBound, Told, UnusableHandler};
use crate::broker::Outcome;

/// Exit status of a failure that will not go away (`EX_DATAERR`).
const PERMANENT: i32 = 65;

/// Exit status of a rate limit (`EX_TEMPFAIL`).
const RATE_LIMITED: i32 = 75;

/// How long output may go on after the process has ended, from one that it left behind.
const LINGER: Duration = Duration::from_secs(1);

/// Credentials of the worker that are not the handler's: it has the local API.
const WITHHELD: [&str; 2] = ["WINDLASS_REDIS_URL", "WINDLASS_EVENT_LOG_URL"];

/// Which program to run, and how.
#[derive(Clone)]
pub struct ExecOptions {
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// Where it runs; where the worker runs, if absent.
    pub directory: Option<PathBuf>,
    /// Added to the worker's own environment.
    pub environment: Vec<(OsString, OsString)>,
    /// How long it may take to end when it is asked to (5 s).
    pub kill_after: Duration,
    /// The largest result.
    pub result_bound: ResultBound,
    /// How it reaches its worker while it runs.
    pub api: Option<LocalApi>,
}

impl ExecOptions {
    /// The usual settings for a command.
    pub fn new(command: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        Self {
            command: command.into_iter().map(Into::into).collect(),
            directory: None,
            environment: Vec::new(),
            kill_after: Duration::from_secs(5),
            result_bound: ResultBound::default(),
            api: None,
        }
    }
}

/// Runs each task as a process.
pub struct ExecHandler {
    options: ExecOptions,
    /// Where the program was when the worker started.
    program: PathBuf,
}

/// Why a process is not waited for any longer.
enum Ending {
    /// It ended by itself.
    Exited,
    /// It wrote more than a result may hold.
    TooMuch,
    /// It was asked to end.
    Asked(CancelReason),
}

impl ExecHandler {
    /// Finds the program; a handler that cannot run is better found out before tasks are claimed for it.
    pub fn new(options: ExecOptions) -> Result<Self, UnusableHandler> {
        if let Some(directory) = options.directory.as_deref().filter(|directory| !directory.is_dir()) {
            return Err(UnusableHandler::NoDirectory { directory: directory.display().to_string() });
        }
        let name = options.command.first().ok_or(UnusableHandler::NoCommand)?;
        let program = find(name, options.directory.as_deref())?;
        Ok(Self { options, program })
    }

    fn command(&self, told: &Told) -> Command {
        let mut command = Command::new(&self.program);
        let (name, arguments) = self.options.command.split_first().expect("invariant: there is a program");
        command.arg0(name).args(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        if let Some(directory) = &self.options.directory {
            command.current_dir(directory);
        }
        for name in WITHHELD {
            command.env_remove(name);
        }
        let facts = told.facts.iter().map(|(name, value)| (variable(name), value));
        for (name, value) in facts.chain([("TRACEPARENT".to_owned(), &told.traceparent)]) {
            // What the worker itself was started with is not the task's.
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.envs(self.options.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Waits for the process, or for a reason not to.
    async fn watch(
        &self,
        group: &mut Group,
        task: &TaskContext,
        output: &tokio_util::sync::CancellationToken,
    ) -> Ending {
        let reason = tokio::select! {
            biased;
            _ = group.exited() => return Ending::Exited,
            () = output.cancelled() => {
                group.kill();
                return Ending::TooMuch;
            }
            reason = task.cancelled() => reason,
        };
        group.terminate();
        if tokio::time::timeout(self.options.kill_after, group.exited()).await.is_err() {
            group.kill();
        }
        // What cannot even be killed (a dead disk) is left to the hard deadline.
        let _ = group.exited().await;
        Ending::Asked(reason)
    }

    fn outcome(ending: Ending, status: ExitStatus, output: &Output) -> Outcome {
        let said = foreign::tail(&output.stderr);
        match ending {
            Ending::Asked(reason) => foreign::cut_short(reason, &said),
            Ending::TooMuch => foreign::too_large(output.bound),
            Ending::Exited if output.overflow.is_cancelled() => foreign::too_large(output.bound),
            Ending::Exited => Self::outcome_of_status(status, said, output),
        }
    }

    fn outcome_of_status(status: ExitStatus, said: String, output: &Output) -> Outcome {
        let (code, silent) = match (status.code(), status.signal()) {
            (Some(0), _) => return foreign::success(&output.stdout, output.bound),
            (Some(code), _) => (format!("exit_{code}"), format!("the handler exited with status {code}")),
            (None, Some(signal)) => (format!("signal_{signal}"), format!("the handler was killed by signal {signal}")),
            (None, None) => ("exit_unknown".to_owned(), "the handler ended in an unknown way".to_owned()),
        };
        let retry_after = said.lines().rev().find_map(asked_wait);
        let error = if said.is_empty() { silent } else { said };
        match status.code() {
            Some(PERMANENT) => Outcome::Permanent { error, code },
            Some(RATE_LIMITED) => Outcome::RateLimited { retry_after, error },
            _ => Outcome::Failure { error, code },
        }
    }
}

#[async_trait]
impl Handler for ExecHandler {
    async fn handle(&self, task: &TaskContext) -> Outcome {
        // The pass ends with this attempt, also when this future is dropped.
        let pass = self.options.api.as_ref().map(|api| api.admit(task));
        let mut told = Told::new(task, pass.as_ref());
        // Shells read lines.
        told.document.push('\n');
        let mut group = match Group::spawn(&mut self.command(&told)) {
            Ok(group) => group,
            Err(error) => return not_started(&self.options.command[0], &error),
        };
        let mut output = Output::new(self.options.result_bound.get());
        let ending = {
            let pipes = Pipes::of(group.leader());
            let overflow = output.overflow.clone();
            let id = task.task().lease.task.clone();
            let pumping = pin!(pipes.pump(told.document, id, &mut output));
            let watching = pin!(self.watch(&mut group, task, &overflow));
            match select(watching, pumping).await {
                Either::Left((ending, pumping)) => {
                    // Somebody may still hold the pipes; what came in time counts.
                    let _ = tokio::time::timeout(LINGER, pumping).await;
                    ending
                }
                Either::Right(((), watching)) => watching.await,
            }
        };
        match group.end().await {
            Ok(status) => Self::outcome(ending, status, &output),
            Err(error) => Outcome::failure("handler_lost", format!("the handler's end was not seen: {error}")),
        }
    }
}

/// `task-id` as an environment variable.
fn variable(fact: &str) -> String {
    format!("WINDLASS_{}", fact.to_uppercase().replace('-', "_"))
}

/// The wait in a line like `retry-after: 30`.
fn asked_wait(line: &str) -> Option<Duration> {
    let (name, value) = line.split_once(':')?;
    name.trim().eq_ignore_ascii_case("retry-after").then(|| foreign::retry_after(value)).flatten()
}

/// The program was there when the worker started; it may be there again later.
fn not_started(name: &OsStr, error: &io::Error) -> Outcome {
    let name = name.to_string_lossy();
    let (code, why) = match error.kind() {
        io::ErrorKind::NotFound => ("handler_not_found", "it, its interpreter or its directory is not there"),
        io::ErrorKind::PermissionDenied => ("handler_not_executable", "it may not be run"),
        _ => ("handler_not_started", "the system refused"),
    };
    Outcome::failure(code, format!("the handler {name:?} did not start: {why} ({error})"))
}

/// Where a program is: a path as it is, seen from `directory`; a plain name in PATH.
fn find(name: &OsStr, directory: Option<&Path>) -> Result<PathBuf, UnusableHandler> {
    let program = name.to_string_lossy().into_owned();
    let candidates: Vec<PathBuf> = if name.as_encoded_bytes().contains(&b'/') {
        vec![directory.unwrap_or(Path::new("")).join(name)]
    } else {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).map(|place| place.join(name)).collect()
    };
    let there: Vec<&PathBuf> = candidates.iter().filter(|candidate| candidate.exists()).collect();
    let Some(found) = there.iter().find(|candidate| is_executable(candidate)) else {
        return Err(match there.is_empty() {
            true => UnusableHandler::NotFound { program },
            false => UnusableHandler::NotExecutable { program },
        });
    };
    std::path::absolute(found).map_err(|_| UnusableHandler::NotFound { program })
}

fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_found_among_other_lines() {
        let said = "connecting\nRetry-After: 30\nslow down\n";
        assert_eq!(said.lines().rev().find_map(asked_wait), Some(Duration::from_secs(30)));
        assert_eq!(asked_wait("retry-after 30"), None);
        assert_eq!(asked_wait("please retry-after: 30"), None);
    }

    #[test]
    fn what_cannot_run_is_refused_with_a_sentence() {
        let refused = |command: &[&str]| match ExecHandler::new(ExecOptions::new(command.iter().copied())) {
            Ok(_) => panic!("{command:?} was accepted"),
            Err(error) => error.to_string(),
        };
        assert!(refused(&[]).contains("no command"));
        assert!(refused(&["no-such-program-anywhere"]).contains("was not found"));
        assert!(refused(&["./no/such/file"]).contains("was not found"));
        assert!(refused(&["/"]).contains("is not executable"));
        assert!(refused(&["/etc/passwd"]).contains("chmod +x"));
        assert!(ExecHandler::new(ExecOptions::new(["sh"])).is_ok());
    }

    #[test]
    fn a_relative_path_is_seen_from_the_handlers_directory() {
        let found = find(OsStr::new("./sh"), Some(Path::new("/bin"))).expect("there is a shell");
        assert!(found.is_absolute() && found.ends_with("sh"), "{}", found.display());
    }
}
