//! The process between `windlass dev` and each program that it starts.
//!
//! A guard holds its standard input open to its parent. When that closes,
//! because the parent asks for it or because it is gone (`kill -9`), the guard
//! ends its program gracefully and then by force. So nothing that was started
//! outlives `windlass dev`, however that ends.
//!
//! While it lives, a guard holds a shared lock on a file: whoever can lock that
//! file alone knows that all are gone. Redis waits for that, so that workers can
//! still say what became of their tasks.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

/// How often a lock is tried again.
const POLL: Duration = Duration::from_millis(50);
/// How long what a program said last may take to be passed on.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// How long the programs before this one may take to end.
const PATIENCE: Duration = Duration::from_secs(600);

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
    let (program, arguments) = args.command.split_first().expect("invariant: clap requires a program");
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => anyhow::bail!("{program} cannot be started: {error}"),
    };
    let out = tokio::spawn(pass_on(child.stdout.take(), tokio::io::stdout()));
    let err = tokio::spawn(pass_on(child.stderr.take(), tokio::io::stderr()));
    let group = child.id().and_then(|id| Pid::from_raw(id as i32)).expect("invariant: not waited for yet");
    let status = tokio::select! {
        status = child.wait() => status?,
        () = parent => tokio::select! {
            status = end(&mut child, group, &args) => status?,
            _ = terminated.recv() => kill(&mut child, group).await?,
        },
        _ = terminated.recv() => kill(&mut child, group).await?,
        _ = interrupted.recv() => end(&mut child, group, &args).await?,
    };
    if args.group {
        // What its first process left behind.
        let _ = kill_process_group(group, Signal::KILL);
    }
    // A grandchild may hold them open.
    let _ = tokio::time::timeout(LAST_WORDS, futures::future::join(out, err)).await;
    std::process::exit(code_of(status));
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

/// Asks the program to end, and makes it end when its time is over.
async fn end(child: &mut Child, group: Pid, args: &Args) -> std::io::Result<ExitStatus> {
    if let Some(file) = &args.after {
        tokio::select! {
            status = child.wait() => return status,
            () = free(file) => {}
        }
    }
    // A program that is gone already is waited for all the same.
    let _ = if args.group { kill_process_group(group, Signal::TERM) } else { kill_process(group, Signal::TERM) };
    match tokio::time::timeout(Duration::from_millis(args.grace_ms), child.wait()).await {
        Ok(status) => status,
        Err(_) => kill(child, group).await,
    }
}

async fn kill(child: &mut Child, group: Pid) -> std::io::Result<ExitStatus> {
    let _ = kill_process_group(group, Signal::KILL);
    child.wait().await
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
fn code_of(status: ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    let signal = status.signal().map(|signal| 128 + signal);
    status.code().or(signal).unwrap_or(1)
}
