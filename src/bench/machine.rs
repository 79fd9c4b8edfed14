//! The machine that is measured on, and which of its cores does what.

use std::process::Stdio;

use anyhow::{Result, ensure};
use serde::Serialize;
use tokio::process::Command;

use super::info::field;

/// The machine, in the report's words.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Machine {
    /// Cores that this process may use.
    pub(super) cores: usize,
    /// Memory, in gibibytes.
    pub(super) memory_gib: f64,
    /// The processor's name.
    pub(super) cpu: String,
}

impl Machine {
    /// This one.
    pub(super) fn here() -> Self {
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        Self {
            cores: allowed_cores().len(),
            memory_gib: memory_gib(&read("/proc/meminfo")),
            cpu: cpu_model(&read("/proc/cpuinfo")),
        }
    }
}

fn memory_gib(meminfo: &str) -> f64 {
    let kibibytes = field(meminfo, "MemTotal").and_then(|value| value.split_whitespace().next()?.parse::<f64>().ok());
    kibibytes.unwrap_or(0.0) / (1024.0 * 1024.0)
}

fn cpu_model(cpuinfo: &str) -> String {
    let model = |line: &str| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == "model name").then(|| value.trim().to_owned())
    };
    cpuinfo.lines().find_map(model).unwrap_or_else(|| "unknown processor".to_owned())
}

/// Processor time of this process and of those that it has started and seen the end of.
pub(super) fn client_cpu_seconds() -> f64 {
    cpu_seconds(&std::fs::read_to_string("/proc/self/stat").unwrap_or_default())
}

/// What a process uses.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct ProcessUsage {
    /// Processor time so far.
    pub(super) cpu_seconds: f64,
    /// Memory that it has in RAM.
    pub(super) resident_mebibytes: f64,
}

/// What another process uses, if it is there.
pub(super) fn process_usage(pid: u32) -> Option<ProcessUsage> {
    let read = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).ok();
    Some(ProcessUsage {
        cpu_seconds: cpu_seconds(&read("stat")?),
        resident_mebibytes: resident_mebibytes(&read("status")?)?,
    })
}

/// How often a process had to leave its core though it could have gone on. The
/// thread that it began with counts.
pub(super) fn preemptions(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    field(&status, "nonvoluntary_ctxt_switches").and_then(|value| value.parse().ok()).unwrap_or(0)
}

fn resident_mebibytes(status: &str) -> Option<f64> {
    let kibibytes: f64 = field(status, "VmRSS")?.split_whitespace().next()?.parse().ok()?;
    Some(kibibytes / 1024.0)
}

/// From a line of /proc/PID/stat. The program's name, in parentheses, may hold anything.
fn cpu_seconds(stat: &str) -> f64 {
    // The unit is fixed, whatever the kernel's own ticks are.
    const TICKS_A_SECOND: f64 = 100.0;
    // utime, stime, cutime and cstime, counted from behind the name.
    const PLACES: std::ops::Range<usize> = 11..15;
    let words: Vec<&str> = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
    let ticks = words.get(PLACES).unwrap_or_default().iter().filter_map(|word| word.parse::<f64>().ok());
    ticks.sum::<f64>() / TICKS_A_SECOND
}

/// Reads a list of cores like `0-1,4`.
fn core_list(list: &str) -> Vec<usize> {
    let part = |part: &str| {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        Some(from.trim().parse::<usize>().ok()?..=to.trim().parse().ok()?)
    };
    list.split(',').filter_map(part).flatten().collect()
}

fn allowed_cores() -> Vec<usize> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    core_list(field(&status, "Cpus_allowed_list").unwrap_or_default())
}

/// Which core serves and which one asks, so that neither takes time from the other.
#[derive(Debug, Clone)]
pub(super) enum Pinning {
    /// Each has its own.
    Pinned {
        /// The server's.
        server: usize,
        /// Everybody else's.
        clients: usize,
    },
    /// They share what there is.
    Unpinned {
        /// Why.
        why: String,
    },
}

impl Pinning {
    /// Pins this process and all that it will start, if that can be done: to
    /// the cores that were named for the server and for everybody else, or to the first two.
    pub(super) async fn apply(named: Option<(u16, u16)>) -> Result<Self> {
        let cores = allowed_cores();
        let (server, clients) = match (named, &cores[..]) {
            (Some((server, clients)), _) => (server.into(), clients.into()),
            (None, [server, clients, ..]) => (*server, *clients),
            (None, _) => return Ok(Self::Unpinned { why: "there is only one core".to_owned() }),
        };
        ensure!(server != clients, "--server-core and --client-core are both {server}: give two different cores");
        for core in [server, clients] {
            ensure!(
                cores.contains(&core),
                "core {core} cannot be used here: choose two of {cores:?} with --server-core and --client-core"
            );
        }
        let pid = std::process::id().to_string();
        let pinned = Command::new("taskset")
            .args(["--all-tasks", "--cpu-list", "--pid", &clients.to_string(), &pid])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .await;
        Ok(match pinned {
            Ok(status) if status.success() => Self::Pinned { server, clients },
            Ok(status) => Self::Unpinned { why: format!("taskset failed with {status}") },
            Err(error) => Self::Unpinned { why: format!("taskset did not start: {error}") },
        })
    }

    /// A command that runs a program on the server's core.
    pub(super) fn server_command(&self, program: &std::path::Path) -> Command {
        match self {
            Self::Unpinned { .. } => Command::new(program),
            Self::Pinned { server, .. } => {
                let mut command = Command::new("taskset");
                command.args(["--cpu-list", &server.to_string()]).arg(program);
                command
            }
        }
    }

    /// In a sentence for the report.
    pub(super) fn sentence(&self) -> String {
        match self {
            Self::Pinned { server, clients } => {
                format!("Server pinned to core {server}, all clients to core {clients}.")
            }
            Self::Unpinned { why } => format!("NOT pinned to cores ({why}): server and clients disturb each other."),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_cores_is_read() {
        assert_eq!(core_list("0-2,5"), [0, 1, 2, 5]);
        assert_eq!(core_list("3"), [3]);
        assert_eq!(core_list("what, -"), Vec::<usize>::new());
    }

    #[test]
    fn processor_time_is_read_behind_the_name() {
        let stat = "77 (a) b (c)) R 1 2 3 4 5 6 7 8 9 10 150 50 20 30 20 0 1 0";
        assert_eq!(cpu_seconds(stat), 2.5);
        assert_eq!(cpu_seconds("nonsense"), 0.0);
    }

    #[test]
    fn a_process_is_asked_what_it_uses() {
        assert_eq!(resident_mebibytes("VmPeak:\t9 kB\nVmRSS:\t  2048 kB\n"), Some(2.0));
        assert_eq!(resident_mebibytes("a kernel thread has none"), None);
        let own = process_usage(std::process::id()).expect("this process is there");
        assert!(own.resident_mebibytes > 0.0);
    }

    #[test]
    fn the_machine_is_described_from_what_the_kernel_says() {
        assert_eq!(memory_gib("MemTotal:       16777216 kB\nMemFree: 1 kB\n"), 16.0);
        assert_eq!(cpu_model("processor\t: 0\nmodel name\t: Fast One\n"), "Fast One");
        assert_eq!(cpu_model("processor: 0\n"), "unknown processor");
    }
}
