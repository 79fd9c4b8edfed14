//! A process with all that it starts: one process group, killed whole.

use std::io;
use std::process::ExitStatus;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::{Child, Command};

/// A running process and its group. Dropping it kills the group.
pub(super) struct Group {
    child: Child,
    id: Pid,
    /// Once the leader is reaped its number may become somebody else's.
    reaped: bool,
}

impl Group {
    /// Starts a command as the leader of a group of its own.
    pub(super) fn spawn(command: &mut Command) -> io::Result<Self> {
        let child = command.process_group(0).kill_on_drop(true).spawn()?;
        let id = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        let id = id.expect("invariant: a process that was just started has a number");
        Ok(Self { child, id, reaped: false })
    }

    /// The leader, to take its pipes from.
    pub(super) fn leader(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Asks every process of the group to end.
    pub(super) fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Ends every process of the group.
    pub(super) fn kill(&self) {
        self.signal(Signal::KILL);
    }

    /// Waits until the leader has ended. It stays unreaped where the kernel
    /// can tell without that: while it does, the group's number is its own.
    pub(super) async fn exited(&mut self) -> io::Result<()> {
        if self.reaped || exited_unreaped(self.id).await.is_ok() {
            return Ok(());
        }
        self.child.wait().await?;
        self.reaped = true;
        Ok(())
    }

    /// Kills what is left of the group and says how the leader ended.
    pub(super) async fn end(mut self) -> io::Result<ExitStatus> {
        self.kill();
        let status = self.child.wait().await;
        self.reaped = true;
        status
    }

    fn signal(&self, signal: Signal) {
        // A group that is gone needs no signal.
        let _ = kill_process_group(self.id, signal);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if !self.reaped {
            self.kill();
        }
    }
}

#[cfg(target_os = "linux")]
#[expect(deprecated, reason = "its successor is unsafe for the sake of handles that are not owned; this one is")]
async fn exited_unreaped(id: Pid) -> io::Result<()> {
    use tokio::io::Interest;
    use tokio::io::unix::AsyncFd;

    let handle = rustix::process::pidfd_open(id, rustix::process::PidfdFlags::empty())?;
    AsyncFd::with_interest(handle, Interest::READABLE)?.readable().await?.retain_ready();
    Ok(())
}

#[cfg(not(target_os = "linux"))]
async fn exited_unreaped(_: Pid) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
