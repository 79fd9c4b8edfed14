//! The Redis that is measured: started here, and stopped here.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::process::Child;

use super::info::{self, Usage};
use super::machine::{self, Pinning};
use super::slow_log::{SLOW_MICROSECONDS, SlowLog, longest_ms};
use super::wire::Wire;

/// A Redis of our own, on a free port of the loopback.
pub(super) struct Server {
    child: Child,
    /// Where it listens.
    pub(super) port: u16,
    /// Its name and version.
    pub(super) version: String,
    control: Wire,
    /// How often it had been preempted when the slow log was emptied.
    preemptions: u64,
}

/// What is shorter is not looked for: were all of them logged, the commands inside a script, which are logged too,
/// would take longer by that.
const LOGGED_MICROSECONDS: u64 = 100;

/// How long a call held the server.
#[derive(Debug, Clone, Default)]
pub(super) struct Hold {
    /// Its longest command, by the clock; [`LOGGED_MICROSECONDS`] if it is shorter.
    pub(super) clock_ms: f64,
    /// Processor time of all that the server did for it.
    pub(super) cpu_ms: f64,
    /// What the slow log would hold of it.
    pub(super) slow: SlowLog,
}

impl Hold {
    /// The most that its longest command can have taken without the machine: neither more than by the clock,
    /// nor more than the processor time of all its commands, which does not grow while others have the core.
    pub(super) fn most_ms(&self) -> f64 {
        // A kernel that counts in ticks may say that it took nothing.
        if self.cpu_ms > 0.0 { self.cpu_ms.min(self.clock_ms) } else { self.clock_ms }
    }
}

impl Server {
    /// Starts one.
    pub(super) async fn start(program: &Path, pinning: &Pinning) -> Result<Self> {
        // Between looking for a free port and using it somebody else may take it.
        const TRIES: usize = 3;
        let mut tries = 0;
        loop {
            tries += 1;
            match Self::start_once(program, pinning).await {
                Err(error) if tries == TRIES => return Err(error),
                Err(_) => {}
                started => return started,
            }
        }
    }

    async fn start_once(program: &Path, pinning: &Pinning) -> Result<Self> {
        let port = free_port()?;
        let mut command = pinning.server_command(program);
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
        command.args(["--maxmemory-policy", "noeviction", "--loglevel", "warning", "--daemonize", "no"]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().with_context(|| format!("{} did not start", program.display()))?;
        match connect(&mut child, port).await {
            Ok(mut control) => {
                let version = info::version(control.call(&["INFO", "server"]).await?.text());
                Ok(Self { child, port, version, control, preemptions: 0 })
            }
            Err(error) => {
                let _ = child.start_kill();
                let output = child.wait_with_output().await?;
                let said = [output.stdout, output.stderr].concat();
                bail!("{} did not come up ({error:#}): {}", program.display(), String::from_utf8_lossy(&said).trim());
            }
        }
    }

    /// Stops it.
    pub(super) async fn stop(mut self) -> Result<()> {
        // Ctrl-C reaches it too: it may have ended by itself.
        if self.child.try_wait()?.is_none() {
            self.child.kill().await.context("the benchmark's Redis could not be stopped")?;
        }
        Ok(())
    }

    /// Forgets all data.
    pub(super) async fn flush(&mut self) -> Result<()> {
        self.control.call(&["FLUSHALL", "SYNC"]).await.map(drop)
    }

    /// Where its counters stand.
    pub(super) async fn usage(&mut self) -> Result<Usage> {
        let all = self.control.call(&["INFO", "everything"]).await?;
        Ok(Usage::read(all.text()))
    }

    /// Empties the slow log and sets what counts as slow.
    pub(super) async fn reset_slow_log(&mut self) -> Result<()> {
        self.control.call(&["CONFIG", "SET", "slowlog-log-slower-than", &SLOW_MICROSECONDS.to_string()]).await?;
        self.control.call(&["CONFIG", "SET", "slowlog-max-len", "10000"]).await?;
        self.control.call(&["SLOWLOG", "RESET"]).await?;
        self.preemptions = self.preempted();
        Ok(())
    }

    fn preempted(&self) -> u64 {
        self.child.id().map_or(0, machine::preemptions)
    }

    /// What was slow since the reset.
    pub(super) async fn slow_log(&mut self) -> Result<SlowLog> {
        let log = self.control.call(&["SLOWLOG", "GET", "10000"]).await?;
        let preempted = self.preempted().saturating_sub(self.preemptions);
        Ok(SlowLog::read(&log, &format!(":{}", self.control.local_port()?), preempted))
    }

    /// Sets the slow log for [`Self::alone`].
    pub(super) async fn log_for_alone(&mut self) -> Result<()> {
        self.reset_slow_log().await?;
        let least = LOGGED_MICROSECONDS.to_string();
        self.control.call(&["CONFIG", "SET", "slowlog-log-slower-than", &least]).await.map(drop)
    }

    /// Makes one call while nothing else is done, and tells how long it held the server.
    pub(super) async fn alone<T>(&mut self, call: impl Future<Output = Result<T>>) -> Result<(T, Hold)> {
        // The server's time is counted when it goes to sleep.
        const REST: Duration = Duration::from_millis(1);
        self.control.call(&["SLOWLOG", "RESET"]).await?;
        self.preemptions = self.preempted();
        tokio::time::sleep(REST).await;
        let before = self.cpu_seconds().await?;
        let value = call.await?;
        tokio::time::sleep(REST).await;
        let cpu = self.cpu_seconds().await? - before;
        let log = self.control.call(&["SLOWLOG", "GET", "10000"]).await?;
        let own = format!(":{}", self.control.local_port()?);
        let slow = SlowLog::read(&log, &own, self.preempted().saturating_sub(self.preemptions));
        Ok((
            value,
            Hold { clock_ms: longest_ms(&log, &own).max(LOGGED_MICROSECONDS as f64 / 1e3), cpu_ms: cpu * 1e3, slow },
        ))
    }

    async fn cpu_seconds(&mut self) -> Result<f64> {
        Ok(Usage::read(self.control.call(&["INFO", "cpu"]).await?.text()).cpu)
    }

    /// Counts the commands that clients send from now on.
    pub(super) async fn count_commands(&self) -> Result<CommandCounter> {
        CommandCounter::start(self.port, self.control.local_port()?).await
    }
}

/// The program to start: the one that was named, the one on the path, or the
/// one that the tests use.
pub(super) fn find_program(named: Option<PathBuf>, cache: &Path) -> Result<PathBuf> {
    if let Some(named) = named {
        return Ok(named);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path =
        std::env::split_paths(&path).map(|directory| directory.join("redis-server")).find(|file| file.is_file());
    let cached = || Some(cache.join("servers/redis-7.0/redis-server")).filter(|file| file.exists());
    on_path.or_else(cached).context(
        "there is no redis-server on the PATH: name one with --redis-server PATH, or get one with `make servers`",
    )
}

fn free_port() -> Result<u16> {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).context("there is no free port on the loopback")?;
    Ok(listener.local_addr()?.port())
}

/// Waits until the server answers, as long as it lives.
async fn connect(child: &mut Child, port: u16) -> Result<Wire> {
    const PATIENCE: Duration = Duration::from_secs(10);
    let end = tokio::time::Instant::now() + PATIENCE;
    loop {
        if let Ok(mut wire) = Wire::connect(port).await
            && let Ok(reply) = wire.call(&["PING"]).await
            && reply.text() == "PONG"
        {
            return Ok(wire);
        }
        if let Some(status) = child.try_wait()? {
            bail!("it ended with {status}");
        }
        if tokio::time::Instant::now() > end {
            bail!("it did not answer within {PATIENCE:?}");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Watches which commands come from clients. The server's own counters do not
/// tell them from those that scripts call. Watching slows the server down, so
/// this is never done while time is measured.
pub(super) struct CommandCounter {
    watching: tokio::task::JoinHandle<Result<u64>>,
    port: u16,
}

const END_MARK: &str = "windlass-bench-end";

impl CommandCounter {
    async fn start(port: u16, own_port: u16) -> Result<Self> {
        let mut wire = Wire::connect(port).await?;
        wire.call(&["MONITOR"]).await?;
        let own = format!(":{own_port}]");
        let watching = tokio::spawn(async move {
            let mut commands = 0;
            loop {
                let line = wire.next().await?;
                match sender(line.text()) {
                    _ if line.text().contains(END_MARK) => return Ok(commands),
                    Some(sender) if sender != "lua]" && !sender.ends_with(&own) => commands += 1,
                    _ => {}
                }
            }
        });
        Ok(Self { watching, port })
    }

    /// How many there were.
    pub(super) async fn stop(self) -> Result<u64> {
        Wire::connect(self.port).await?.call(&["ECHO", END_MARK]).await?;
        self.watching.await.context("counting commands failed")?
    }
}

/// Who sent a command, from a line like `1700000000.1 [0 127.0.0.1:5] "get" …`.
fn sender(line: &str) -> Option<&str> {
    line.split_once(" [")?.1.split_whitespace().nth(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sender_of_a_command_is_told_from_a_script() {
        assert_eq!(sender("1700000000.1 [0 lua] \"get\" \"a [0 b]\""), Some("lua]"));
        assert_eq!(sender("1700000000.1 [0 127.0.0.1:5] \"get\""), Some("127.0.0.1:5]"));
        assert_eq!(sender("OK"), None);
    }
}
