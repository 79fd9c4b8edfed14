//! The other queues: their drivers, which run as processes of their own.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use tokio::process::Command;

use super::delayed::Dues;
use super::load::Load;
use super::stats::Waits;

/// Tasks that BullMQ's driver runs before its clock starts. The server works
/// for these too.
const BULLMQ_WARM_UP: usize = 500;

/// Which of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Peer {
    /// BullMQ, on Node.js.
    Bullmq,
    /// asynq, in Go.
    Asynq,
    /// asynq that looks for work every millisecond instead of as often as it likes.
    AsynqTuned,
}

impl Peer {
    /// What its driver works for the server besides the tasks that it is told to.
    pub(super) fn warm_up(self) -> usize {
        if self == Self::Bullmq { BULLMQ_WARM_UP } else { 0 }
    }
}

/// The drivers, found.
pub(super) struct Peers {
    bullmq: PathBuf,
    asynq: PathBuf,
    /// Names and versions, for the report.
    pub(super) versions: Vec<String>,
}

/// The line that a driver prints; each mode has its own fields.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Line {
    tasks: usize,
    seconds: f64,
    handled: usize,
    duplicates: usize,
    early: usize,
    p50_ms: f64,
    p99_ms: f64,
    max_ms: f64,
}

impl Line {
    fn all_done_once(&self, peer: Peer, tasks: usize) -> Result<()> {
        let Self { handled, duplicates, .. } = self;
        ensure!(
            *handled == tasks && *duplicates == 0,
            "{peer:?} did {handled} of {tasks} tasks, {duplicates} of them twice"
        );
        Ok(())
    }

    fn waits(&self) -> Waits {
        Waits { p50: self.p50_ms, p99: self.p99_ms, max: self.max_ms, early: self.early }
    }
}

impl Peers {
    /// Looks for the drivers that `make bench` puts into the cache.
    pub(super) async fn find(cache: &Path) -> Result<Self> {
        let (bullmq, asynq) = (cache.join("peers/bullmq"), cache.join("peers/asynq/asynq-bench"));
        for file in [bullmq.join("bench.mjs"), bullmq.join("node_modules/bullmq/package.json"), asynq.clone()] {
            ensure!(
                file.is_file(),
                "{} is missing: run `make bench`, which gets the peers first, or leave them out with --no-peers",
                file.display()
            );
        }
        let node = Command::new("node").arg("--version").output().await.context(
            "node did not start, and BullMQ needs it: install Node.js, or leave the peers out with --no-peers",
        )?;
        let package = std::fs::read_to_string(bullmq.join("node_modules/bullmq/package.json"))?;
        let node = String::from_utf8_lossy(&node.stdout).trim().to_owned();
        let versions = vec![
            format!("BullMQ {} on Node.js {node}", package_version(&package)),
            format!("asynq {}", module_version(&std::fs::read(&asynq)?)),
        ];
        Ok(Self { bullmq: bullmq.join("bench.mjs"), asynq, versions })
    }

    /// Sends and does all tasks; returns how many seconds that took.
    pub(super) async fn throughput(&self, peer: Peer, port: u16, load: Load, concurrency: usize) -> Result<f64> {
        let options = [("tasks", load.tasks), ("batch", load.batch), ("concurrency", concurrency)];
        let line = self.run(peer, "throughput", port, &options).await?;
        line.all_done_once(peer, load.tasks)?;
        Ok(line.seconds)
    }

    /// The same one task a call, with a worker of so many handlers.
    pub(super) async fn whole_path(&self, peer: Peer, port: u16, load: Load, handlers: usize) -> Result<f64> {
        let options = [("tasks", load.tasks), ("producers", load.in_flight), ("concurrency", handlers)];
        let line = self.run(peer, "throughput", port, &options).await?;
        line.all_done_once(peer, load.tasks)?;
        Ok(line.seconds)
    }

    /// How long tasks wait that come at an even rate.
    pub(super) async fn latency(
        &self,
        peer: Peer,
        port: u16,
        rate: usize,
        seconds: usize,
        concurrency: usize,
    ) -> Result<Waits> {
        let options = [("rate", rate), ("seconds", seconds), ("concurrency", concurrency)];
        let line = self.run(peer, "latency", port, &options).await?;
        ensure!(line.tasks == rate * seconds, "{peer:?} did {} of {} tasks", line.tasks, rate * seconds);
        Ok(line.waits())
    }

    /// How late delayed tasks come.
    pub(super) async fn delayed(&self, peer: Peer, port: u16, dues: Dues, concurrency: usize) -> Result<Waits> {
        let Dues { tasks, delay, spread } = dues;
        let (delay, spread) = (delay.as_millis() as usize, spread.as_millis() as usize);
        let options = [("tasks", tasks), ("delay-ms", delay), ("spread-ms", spread), ("concurrency", concurrency)];
        let line = self.run(peer, "delayed", port, &options).await?;
        ensure!(line.tasks == tasks, "{peer:?} did {} of {tasks} tasks", line.tasks);
        Ok(line.waits())
    }

    /// Does tasks that are there already with a worker of so many handlers;
    /// returns how many seconds passed between the first handler and the last.
    pub(super) async fn drain(&self, peer: Peer, port: u16, tasks: usize, concurrency: usize) -> Result<f64> {
        let line = self.run(peer, "drain", port, &[("tasks", tasks), ("concurrency", concurrency)]).await?;
        line.all_done_once(peer, tasks)?;
        Ok(line.seconds)
    }

    /// How long a task waits that an idle worker is sent. The next one comes
    /// once or twice the pause after it was done.
    pub(super) async fn pickup(&self, peer: Peer, port: u16, tasks: usize, pause: Duration) -> Result<Waits> {
        let pause = pause.as_millis() as usize;
        let line = self.run(peer, "pickup", port, &[("tasks", tasks), ("pause-ms", pause)]).await?;
        ensure!(line.tasks == tasks, "{peer:?} did {} of {tasks} tasks", line.tasks);
        Ok(line.waits())
    }

    /// Adds tasks that nobody does.
    pub(super) async fn fill(&self, peer: Peer, port: u16, load: Load) -> Result<()> {
        self.run(peer, "fill", port, &[("tasks", load.tasks), ("batch", load.batch)]).await.map(drop)
    }

    async fn run(&self, peer: Peer, mode: &str, port: u16, options: &[(&str, usize)]) -> Result<Line> {
        let mut command = match peer {
            Peer::Bullmq => {
                let mut node = Command::new("node");
                node.arg(&self.bullmq);
                node
            }
            Peer::Asynq | Peer::AsynqTuned => Command::new(&self.asynq),
        };
        command.arg(mode).args(["--port", &port.to_string()]);
        for (name, value) in options {
            command.args([format!("--{name}"), value.to_string()]);
        }
        if peer == Peer::AsynqTuned {
            command.args(["--check-interval-ms", "1"]);
        }
        let output = command.stdin(Stdio::null()).kill_on_drop(true).output().await;
        let output = output.with_context(|| format!("{peer:?}'s driver did not start"))?;
        if !output.status.success() {
            bail!("{peer:?}'s driver failed: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        serde_json::from_slice(&output.stdout)
            .with_context(|| format!("{peer:?}'s driver printed {:?}", String::from_utf8_lossy(&output.stdout)))
    }
}

fn package_version(package: &str) -> String {
    #[derive(Deserialize)]
    struct Package {
        version: String,
    }
    serde_json::from_str(package).map_or_else(|_| "of unknown version".to_owned(), |package: Package| package.version)
}

/// The version of asynq that a Go program was built with: Go writes it into
/// the program as a line of text.
fn module_version(program: &[u8]) -> String {
    const MARK: &[u8] = b"github.com/hibiken/asynq\tv";
    let found = program.windows(MARK.len()).position(|window| window == MARK);
    let version = found.map(|at| program[at + MARK.len()..].iter().take_while(|byte| byte.is_ascii_graphic()));
    version.map_or_else(|| "of unknown version".to_owned(), |bytes| bytes.map(|byte| char::from(*byte)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_where_the_peers_keep_them() {
        assert_eq!(package_version(r#"{"name": "bullmq", "version": "6.7.0"}"#), "6.7.0");
        assert_eq!(package_version("{}"), "of unknown version");
        assert_eq!(module_version(b"\0dep\tgithub.com/hibiken/asynq\tv0.25.1\th1:x\n"), "0.25.1");
        assert_eq!(module_version(b"nothing"), "of unknown version");
    }

    #[test]
    fn a_line_of_any_mode_is_read() {
        let line: Line =
            serde_json::from_str(r#"{"peer":"asynq","mode":"delayed","tasks":9,"early":2,"p50_ms":1.5,"p99_ms":3}"#)
                .expect("valid");
        assert_eq!(line.waits(), Waits { p50: 1.5, p99: 3.0, max: 0.0, early: 2 });
    }
}
