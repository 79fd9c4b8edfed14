//! Keeps one program running: starts it, starts it again when it dies, ends it gracefully.
//!
//! A keeper is a place that one program has at a time: a changed recipe waits
//! until the program before it has ended.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::screen::{Screen, Tone};
use super::speech::Speech;

/// How long a program that died waits before it is started again, at first and at most.
const FIRST_WAIT: Duration = Duration::from_millis(500);
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// A program that ran for so long is taken for a healthy one.
const HEALTHY: Duration = Duration::from_secs(20);
/// How often a port is tried.
const POLL: Duration = Duration::from_millis(100);
/// The longest line that is passed on whole.
const LONGEST_LINE: usize = 8192;

/// What says how a Redis is reached, besides its URL. A shell's is about some other Redis, never about the one whose
/// URL we give.
const OF_ANOTHER_REDIS: [&str; 4] =
    ["WINDLASS_REDIS_TOPOLOGY", "WINDLASS_REDIS_MASTER", "WINDLASS_REDIS_CA", "WINDLASS_REDIS_CA_FILE"];

/// Which processes are asked to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ask {
    /// The program alone: it knows what to do with its own children.
    Program,
    /// Its whole group.
    Group,
}

/// What a program has to do with a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Port {
    /// Nothing that we know of.
    None,
    /// It listens there: it is not started while somebody else does.
    Own(u16),
    /// It sends there: it is started when the program that it was made beside listens.
    Beside(u16),
    /// It sends there: it is started when anybody listens.
    Anybodys(u16),
}

/// How a program is run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Recipe {
    /// The program and its arguments.
    pub(super) command: Vec<String>,
    /// What it finds in its environment besides ours.
    pub(super) environment: BTreeMap<String, String>,
    /// Where it runs.
    pub(super) folder: PathBuf,
    /// How long it has to end.
    pub(super) grace: Duration,
    /// Who is asked to end.
    pub(super) ask: Ask,
    /// Where it listens, or sends to.
    pub(super) port: Port,
    /// What its lines mean.
    pub(super) speech: Speech,
    /// A lock that it waits for before it ends.
    pub(super) after: Option<PathBuf>,
    /// The lock that it holds.
    pub(super) hold: PathBuf,
}

/// What a keeper should do.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Want {
    Run(Recipe),
    Rest,
}

/// What keepers share.
#[derive(Clone)]
pub(super) struct Household {
    pub(super) screen: Screen,
    /// This binary, which is also the guard.
    pub(super) program: PathBuf,
    /// Set when there is no time for grace.
    pub(super) hurry: CancellationToken,
}

/// Keeps one program running.
pub(super) struct Keeper {
    want: watch::Sender<Want>,
    deaths: watch::Receiver<u32>,
    runs: watch::Receiver<bool>,
    task: JoinHandle<()>,
}

impl Keeper {
    /// A place for a program; `name` is what its lines begin with.
    pub(super) fn new(name: String, household: Household) -> Self {
        Self::at(name, household, None)
    }

    /// A place for a program that needs this one's.
    pub(super) fn beside(&self, name: String, household: Household) -> Self {
        Self::at(name, household, Some(self.runs.clone()))
    }

    fn at(name: String, household: Household, beside: Option<watch::Receiver<bool>>) -> Self {
        let (want, wanted) = watch::channel(Want::Rest);
        let (died, deaths) = watch::channel(0);
        let (running, runs) = watch::channel(false);
        let place = Place { name, household, wanted, died, running, beside };
        Self { want, deaths, runs, task: tokio::spawn(place.keep()) }
    }

    /// Runs this program from now on; one that runs otherwise ends first.
    pub(super) fn run(&self, recipe: Recipe) {
        self.set(Want::Run(recipe));
    }

    /// Runs nothing from now on.
    pub(super) fn rest(&self) {
        self.set(Want::Rest);
    }

    /// How often the program died by itself.
    pub(super) fn deaths(&self) -> u32 {
        *self.deaths.borrow()
    }

    /// Ends the program and waits until it is gone.
    pub(super) async fn leave(self) {
        drop(self.want);
        // A panic in it was told already.
        let _ = self.task.await;
    }

    fn set(&self, want: Want) {
        self.want.send_if_modified(|current| {
            let changed = *current != want;
            *current = want;
            changed
        });
    }
}

struct Place {
    name: String,
    household: Household,
    wanted: watch::Receiver<Want>,
    died: watch::Sender<u32>,
    running: watch::Sender<bool>,
    /// Whether the program beside it runs.
    beside: Option<watch::Receiver<bool>>,
}

impl Place {
    async fn keep(mut self) {
        let mut failures = 0;
        loop {
            let want = self.wanted.borrow_and_update().clone();
            let Want::Run(recipe) = want else {
                if self.wanted.changed().await.is_err() {
                    return;
                }
                failures = 0;
                continue;
            };
            let started = Instant::now();
            let Some(ended) = self.run(&recipe).await else {
                failures = 0;
                if self.wanted.has_changed().is_err() {
                    return;
                }
                continue;
            };
            failures = if started.elapsed() >= HEALTHY { 0 } else { failures + 1 };
            self.died.send_modify(|deaths| *deaths += 1);
            let wait = FIRST_WAIT.saturating_mul(1 << failures.clamp(1, 7) >> 1).min(LONGEST_WAIT);
            let seconds = wait.as_secs_f32();
            self.household.screen.line(&self.name, Tone::Bad, &format!("{ended}; starts again in {seconds} s"));
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                left = self.wanted.changed() => if left.is_err() { return },
            }
        }
    }

    /// Runs the program until it dies (and says how) or something else is wanted.
    async fn run(&mut self, recipe: &Recipe) -> Option<String> {
        let (screen, name, beside) = (self.household.screen.clone(), self.name.clone(), self.beside.clone());
        let ready = async {
            match recipe.port {
                Port::None => {}
                Port::Own(port) => free(port, &screen, &name).await,
                Port::Beside(port) => listening(port, beside).await,
                Port::Anybodys(port) => listening(port, None).await,
            }
        };
        tokio::select! {
            () = ready => {}
            _ = self.wanted.changed() => return None,
        }
        let mut guarded = match self.household.start(&self.name, recipe) {
            Ok(guarded) => guarded,
            Err(error) => return Some(format!("cannot be started: {error}")),
        };
        self.running.send_replace(true);
        let ended = tokio::select! {
            status = guarded.child.wait() => Some(match status {
                Ok(status) => ended(status),
                Err(error) => format!("was lost: {error}"),
            }),
            _ = self.wanted.changed() => {
                guarded.end(&self.household.hurry).await;
                None
            }
        };
        self.running.send_replace(false);
        ended
    }
}

/// A guard that runs.
struct Guarded {
    child: Child,
    /// Closing it asks the guard to end. Held apart: waiting for a child closes what it holds itself.
    line: Option<ChildStdin>,
    output: [JoinHandle<()>; 2],
}

impl Household {
    fn start(&self, name: &str, recipe: &Recipe) -> std::io::Result<Guarded> {
        let mut command = Command::new(&self.program);
        command.args(["guard", "--grace-ms", &recipe.grace.as_millis().to_string(), "--hold"]).arg(&recipe.hold);
        if let Some(after) = &recipe.after {
            command.arg("--after").arg(after);
        }
        if recipe.ask == Ask::Group {
            command.arg("--group");
        }
        command.arg("--").args(&recipe.command).current_dir(&recipe.folder);
        for name in OF_ANOTHER_REDIS {
            command.env_remove(name);
        }
        command.envs(&recipe.environment);
        // A group of its own: Ctrl-C in the terminal is for us to pass on, in the right order.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let (line, out, err) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let pass = |stream: Option<Box<dyn AsyncRead + Send + Unpin>>| {
            let stream = stream.expect("invariant: it was asked for");
            let tongue = Tongue { name: name.to_owned(), speech: recipe.speech, screen: self.screen.clone() };
            tokio::spawn(tongue.pass_on(stream))
        };
        let output = [pass(out.map(|out| Box::new(out) as _)), pass(err.map(|err| Box::new(err) as _))];
        Ok(Guarded { child, line, output })
    }
}

impl Guarded {
    /// Closes the guard's standard input, which asks it to end its program, and waits.
    async fn end(&mut self, hurry: &CancellationToken) {
        drop(self.line.take());
        tokio::select! {
            _ = self.child.wait() => {}
            () = hurry.cancelled() => {
                if let Some(guard) = self.child.id().and_then(|id| Pid::from_raw(id as i32)) {
                    let _ = kill_process(guard, Signal::TERM);
                }
                let _ = self.child.wait().await;
            }
        }
        // Its last lines; a grandchild may hold them open.
        for output in &mut self.output {
            let _ = tokio::time::timeout(Duration::from_secs(1), output).await;
        }
    }
}

fn ended(status: ExitStatus) -> String {
    match status.code() {
        Some(code @ 129..=192) => format!("was killed by signal {}", code - 128),
        Some(code) => format!("ended with status {code}"),
        None => "was lost".to_owned(),
    }
}

/// Returns when somebody listens there; where it is known who should, when that program runs, too.
async fn listening(port: u16, beside: Option<watch::Receiver<bool>>) {
    let runs = || beside.as_ref().is_none_or(|runs| *runs.borrow());
    while !runs() || TcpStream::connect(("127.0.0.1", port)).await.is_err() {
        tokio::time::sleep(POLL).await;
    }
}

/// Returns when nobody listens there. Tasks that are sent there must not reach a stranger.
async fn free(port: u16, screen: &Screen, name: &str) {
    let mut said = false;
    while matches!(TcpListener::bind(("127.0.0.1", port)).await, Err(error) if error.kind() == ErrorKind::AddrInUse) {
        if !said {
            let text = format!(
                "port {port} is in use by another program: this starts when it is free (or give http.port another)"
            );
            screen.line(name, Tone::Bad, &text);
            said = true;
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Prints what a program prints, line by line.
struct Tongue {
    name: String,
    speech: Speech,
    screen: Screen,
}

impl Tongue {
    async fn pass_on(self, mut stream: Box<dyn AsyncRead + Send + Unpin>) {
        let mut buffer = Vec::new();
        loop {
            let more = stream.read_buf(&mut buffer).await.unwrap_or(0);
            while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = buffer.drain(..=end).collect();
                self.say(&line);
            }
            if !buffer.is_empty() && (more == 0 || buffer.len() >= LONGEST_LINE) {
                self.say(&buffer);
                buffer.clear();
            }
            if more == 0 {
                return;
            }
        }
    }

    fn say(&self, line: &[u8]) {
        let (tone, text) = self.speech.read(String::from_utf8_lossy(line).trim_end());
        self.screen.line(&self.name, tone, &text);
    }
}
