//! The process between `windlass dev` and each program that it starts.
//!
//! A guard holds its standard input open to its parent. When that closes,
//! because the parent asks for it or because it is gone (`kill -9`), the guard
//! ends its program gracefully and then by force. However its program ends, what
//! that left behind is killed before the guard ends: the guard is who orphans
//! among its descendants are given to, so that also a handler in a group or a
//! session of its own is found. (Where the system has no such thing, which is
//! anything but Linux, only the program's own group is.) So nothing that was
//! started outlives `windlass dev`, and no handler its worker.
//!
//! While it lives, a guard holds a shared lock on a file: whoever can lock that
//! file alone knows that all are gone. Redis waits for that, so that workers can
//! still say what became of their tasks.

use std::fs::File;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, kill_process_group, wait};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::process::{ChildStderr, ChildStdout};
use tokio::signal::unix::{self, SignalKind, signal};
use tokio::sync::oneshot;

/// How often a lock is tried again, and what is left behind looked for.
const POLL: Duration = Duration::from_millis(50);
/// How long what a program said last may take to be passed on.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// How long the programs before this one may take to end.
const PATIENCE: Duration = Duration::from_secs(600);
/// How long a program has when there is no time for grace: a worker gives its
/// tasks back within it, also where its Redis is away.
const HURRY: Duration = Duration::from_secs(5);
/// How often it is asked meanwhile: one who is asked again knows that there is no time.
const ASK_AGAIN: Duration = Duration::from_millis(250);
/// How long what was left behind may take to be gone: what is killed and still there hangs in the kernel.
const CLEANUP: Duration = Duration::from_secs(10);

/// Run a program that ends when standard input closes. For `windlass dev` itself.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  windlass guard --grace-ms 5000 -- redis-server --port 0")]
pub struct Args {
    /// How long the program has after it was asked to end, in milliseconds.
    #[arg(long, default_value_t = 10_000)]
    pub grace_ms: u64,
    /// Ask all processes of the program's group, not only the first.
    #[arg(long)]
    pub group: bool,
    /// Hold a shared lock on this file.
    #[arg(long, value_name = "FILE")]
    pub hold: Option<PathBuf>,
    /// Before ending the program, wait until nobody holds a lock on this file.
    #[arg(long, value_name = "FILE")]
    pub after: Option<PathBuf>,
    /// The program and its arguments.
    #[arg(last = true, required = true)]
    pub command: Vec<String>,
}

/// Runs the program, and ends this process as that ended.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let lock = args.hold.as_deref().map(File::open).transpose()?;
    if let Some(lock) = &lock {
        lock.lock_shared()?;
    }
    let mut terminated = signal(SignalKind::terminate())?;
    let mut interrupted = signal(SignalKind::interrupt())?;
    let parent = parent_gone();
    let mut program = Program::start(&args)?;
    let out = tokio::spawn(pass_on(program.out.take(), tokio::io::stdout()));
    let err = tokio::spawn(pass_on(program.err.take(), tokio::io::stderr()));
    let status = tokio::select! {
        status = program.ended() => status,
        () = parent => tokio::select! {
            status = program.end(&args) => status,
            _ = terminated.recv() => program.hurry(&args).await,
        },
        _ = terminated.recv() => program.hurry(&args).await,
        _ = interrupted.recv() => program.end(&args).await,
    };
    program.clear_away().await;
    let _ = tokio::time::timeout(LAST_WORDS, futures::future::join(out, err)).await;
    std::process::exit(code_of(status));
}

/// The program, and whatever it starts.
struct Program {
    /// Its process, which leads a group of its own.
    id: Pid,
    out: Option<ChildStdout>,
    err: Option<ChildStderr>,
    /// Somebody has ended: the program, or an orphan that is ours.
    deaths: unix::Signal,
}

impl Program {
    fn start(args: &Args) -> anyhow::Result<Self> {
        // Before anything is started, so that no end and no orphan is missed.
        let deaths = signal(SignalKind::child())?;
        adopt_orphans()?;
        let (name, arguments) = args.command.split_first().expect("invariant: clap requires a program");
        let mut command = Command::new(name);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) => anyhow::bail!("{name} cannot be started: {error}"),
        };
        let out = child.stdout.take().map(ChildStdout::from_std).transpose()?;
        let err = child.stderr.take().map(ChildStderr::from_std).transpose()?;
        Ok(Self { id: Pid::from_child(&child), out, err, deaths })
    }

    /// Waits for its end.
    async fn ended(&mut self) -> WaitStatus {
        loop {
            if let Some(status) = self.bury() {
                return status;
            }
            self.deaths.recv().await;
        }
    }

    /// Asks for everybody who has ended; the program's status if it is among them.
    fn bury(&self) -> Option<WaitStatus> {
        let mut ended = None;
        // An error means that there is no child at all.
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            if pid == self.id {
                ended = Some(status);
            }
        }
        ended
    }

    /// Asks it to end, and makes it end when its time is over.
    async fn end(&mut self, args: &Args) -> WaitStatus {
        if let Some(file) = &args.after {
            tokio::select! {
                status = self.ended() => return status,
                () = free(file) => {}
            }
        }
        self.ask(args);
        match tokio::time::timeout(Duration::from_millis(args.grace_ms), self.ended()).await {
            Ok(status) => status,
            Err(_) => self.kill().await,
        }
    }

    /// Asks it to end at once: a worker that is asked a second time gives back
    /// what it holds. Makes it end soon after.
    async fn hurry(&mut self, args: &Args) -> WaitStatus {
        for _ in 0..HURRY.as_millis() / ASK_AGAIN.as_millis() {
            self.ask(args);
            if let Ok(status) = tokio::time::timeout(ASK_AGAIN, self.ended()).await {
                return status;
            }
        }
        self.kill().await
    }

    fn ask(&self, args: &Args) {
        // A program that is gone already is waited for all the same.
        let _ =
            if args.group { kill_process_group(self.id, Signal::TERM) } else { kill_process(self.id, Signal::TERM) };
    }

    async fn kill(&mut self) -> WaitStatus {
        let _ = kill_process_group(self.id, Signal::KILL);
        self.ended().await
    }

    /// Kills what the program has left behind. The children of who is killed
    /// become ours, so this goes on until there are none.
    async fn clear_away(&mut self) {
        if cfg!(not(target_os = "linux")) {
            // Orphans are not given to us.
            let _ = kill_process_group(self.id, Signal::KILL);
        }
        let all_gone = async {
            while let Ok(ended) = wait(WaitOptions::NOHANG) {
                if ended.is_some() {
                    continue;
                }
                for child in children() {
                    let _ = kill_process(child, Signal::KILL);
                }
                // One of them may have had children that are not ours yet.
                let _ = tokio::time::timeout(POLL, self.deaths.recv()).await;
            }
        };
        let _ = tokio::time::timeout(CLEANUP, all_gone).await;
    }
}

/// From now on, whoever loses its parent among our descendants becomes our child.
#[cfg(target_os = "linux")]
fn adopt_orphans() -> std::io::Result<()> {
    Ok(rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?)
}

#[cfg(not(target_os = "linux"))]
fn adopt_orphans() -> std::io::Result<()> {
    Ok(())
}

/// Our children. Nobody else can be meant by their numbers until we have asked for their end.
fn children() -> Vec<Pid> {
    let our = rustix::process::getpid().as_raw_pid();
    let is_ours = |id: &i32| {
        // "number (name) state parent …", where the name may hold anything.
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        let parent = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1)?.parse().ok());
        parent == Some(our)
    };
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    ids.filter(is_ours).filter_map(Pid::from_raw).collect()
}

/// Passes on what the program says. When nobody listens any more it is still
/// read: a program that ends because it cannot speak does not end gracefully.
async fn pass_on(from: Option<impl AsyncRead + Unpin>, mut to: impl AsyncWrite + Unpin) {
    let Some(mut from) = from else { return };
    let (mut buffer, mut heard) = (vec![0; 8192], true);
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        heard = heard && to.write_all(&buffer[..length]).await.is_ok() && to.flush().await.is_ok();
    }
}

/// Completes when standard input is closed. On a thread, which does not hold up the end of the process.
async fn parent_gone() {
    let (gone, told) = oneshot::channel::<()>();
    std::thread::spawn(move || {
        let mut byte = [0];
        while matches!(std::io::stdin().lock().read(&mut byte), Ok(1)) {}
        drop(gone);
    });
    // The sender only ever goes away.
    let _ = told.await;
}

/// Completes when nobody holds a lock on the file, or after [`PATIENCE`].
pub(super) async fn free(file: &Path) {
    let Ok(file) = File::open(file) else { return };
    let wait = async {
        while file.try_lock().is_err() {
            tokio::time::sleep(POLL).await;
        }
    };
    let _ = tokio::time::timeout(PATIENCE, wait).await;
}

/// The code that a shell would show.
fn code_of(status: WaitStatus) -> i32 {
    let signal = status.terminating_signal().map(|signal| 128 + signal);
    status.exit_status().or(signal).unwrap_or(1)
}
