//! The first process of a container: passes signals on and buries the dead.
//!
//! A process whose parent ends becomes a child of process 1, and stays a zombie
//! until that one asks for it. A worker that is process 1 itself cannot ask for
//! everybody: it would take its own handlers' ends away from those who wait for
//! them. So it starts itself once more as a child, does nothing but this, and
//! ends as the child ends, which ends everything else in the container.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process, wait};
use tokio::signal::unix::{SignalKind, signal};

/// What a container's runtime may send.
const PASSED_ON: [Signal; 6] = [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2];

/// Whether this process is the first one where it lives.
pub fn is_first_process() -> bool {
    getpid() == Pid::INIT
}

/// Runs this program again as a child and ends with its status. Nothing else
/// in this process may start children or wait for them.
pub async fn run() -> io::Result<u8> {
    // Before the child is there, so that no signal and no end is missed.
    let mut ends = signal(SignalKind::child())?;
    let (sender, mut signals) = tokio::sync::mpsc::unbounded_channel();
    for kind in PASSED_ON {
        let mut stream = signal(SignalKind::from_raw(kind.as_raw()))?;
        let sender = sender.clone();
        tokio::spawn(async move { while stream.recv().await.is_some() && sender.send(kind).is_ok() {} });
    }
    let child = start()?;
    loop {
        if let Some(status) = bury(child) {
            return Ok(exit_code(status));
        }
        tokio::select! {
            _ = ends.recv() => {}
            Some(kind) = signals.recv() => {
                // It may have ended in this moment.
                let _ = kill_process(child, kind);
            }
        }
    }
}

/// Starts this program again with the same arguments.
fn start() -> io::Result<Pid> {
    let mut arguments = std::env::args_os();
    let name = arguments.next();
    let mut command = Command::new(std::env::current_exe()?);
    if let Some(name) = name {
        command.arg0(name);
    }
    // A terminal's Ctrl-C would reach it twice if it were in our group: once
    // from the terminal, once from us.
    let child = command.args(arguments).process_group(0).spawn()?;
    Ok(Pid::from_child(&child))
}

/// Asks for everybody who has ended; the child's status if it is among them.
fn bury(child: Pid) -> Option<WaitStatus> {
    let mut ended = None;
    // An error means that there is no child at all.
    while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
        if pid == child {
            ended = Some(status);
        }
    }
    ended
}

/// As a shell would tell it: 128 and the signal.
fn exit_code(status: WaitStatus) -> u8 {
    let killed = || status.terminating_signal().map_or(1, |signal| signal.saturating_add(128));
    u8::try_from(status.exit_status().unwrap_or_else(killed)).unwrap_or(1)
}
