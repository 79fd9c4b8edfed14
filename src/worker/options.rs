//! How a worker is set up, and who it is.

use std::time::Duration;

use jiff::Timestamp;

use crate::broker::{BrokerError, Result, WorkerInfo};
use crate::protocol::names::{Capabilities, TaskType, WorkerId};

/// How a worker runs. Everything that a queue's owner decides (heartbeats,
/// timeouts, retries) is in the queue's policy instead.
#[derive(Debug, Clone)]
pub struct WorkerOptions {
    /// The most handlers at a time (10). With handlers that take longer than a
    /// few milliseconds also the most tasks: a finished one counts until the
    /// broker knows that it is, and nothing is claimed ahead.
    pub concurrency: usize,
    /// The types that it can do (every type).
    pub capabilities: Capabilities,
    /// How long a drain may take from its beginning to its end (30 s). Handlers
    /// are asked to end in the last quarter of it (5 s at most), and what is
    /// not done then is given back in time.
    pub drain_timeout: Duration,
    /// How long a handler may go on after it was asked to end, before it is dropped (10 s).
    pub kill_grace: Duration,
    /// Where it runs.
    pub place: WorkerPlace,
}

impl Default for WorkerOptions {
    fn default() -> Self {
        Self {
            concurrency: 10,
            capabilities: Capabilities::any(),
            drain_timeout: Duration::from_secs(30),
            kill_grace: Duration::from_secs(10),
            place: WorkerPlace::from_environment(),
        }
    }
}

impl WorkerOptions {
    /// The most tasks that one worker may have at a time.
    pub const MOST_CONCURRENT: usize = 10_000;

    /// Checks what single fields cannot say.
    pub(super) fn validate(&self) -> Result<()> {
        if !(1..=Self::MOST_CONCURRENT).contains(&self.concurrency) {
            let most = Self::MOST_CONCURRENT;
            let given = self.concurrency;
            return Err(BrokerError::Invalid(format!("a worker cannot do {given} tasks at a time: use 1 to {most}")));
        }
        Ok(())
    }
}

/// Where a worker runs. It goes into the registry, so that a worker that died
/// can be told from one that is slow.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WorkerPlace {
    /// The machine.
    pub host: String,
    /// The pod's name, in a cluster.
    pub pod: Option<String>,
    /// The pod's UID, in a cluster.
    pub pod_uid: Option<String>,
    /// The container in the pod. With the pod's UID it is the place that only
    /// one worker has at a time: a new one supersedes the one before.
    pub container: Option<String>,
    /// The UID of the WorkerPool that it belongs to, in a cluster.
    pub pool: Option<String>,
}

impl WorkerPlace {
    /// What the environment tells: `WINDLASS_POD_NAME`, `WINDLASS_POD_UID`,
    /// `WINDLASS_CONTAINER` and `WINDLASS_POOL_UID` (the operator sets them in a
    /// pool's pods), and the host's name.
    pub fn from_environment() -> Self {
        let told = |name: &str| std::env::var(name).ok().filter(|value| !value.trim().is_empty());
        let kernel = || std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
        let host = told("HOSTNAME").or_else(kernel).unwrap_or_else(|| "localhost".to_owned());
        Self {
            host: host.trim().to_owned(),
            pod: told("WINDLASS_POD_NAME"),
            pod_uid: told("WINDLASS_POD_UID"),
            container: told("WINDLASS_CONTAINER"),
            pool: told("WINDLASS_POOL_UID"),
        }
    }

    /// A worker that starts here now: its id is the pod's name, or host and
    /// process, and a number that no other start has.
    pub(super) fn introduce(&self, types: Vec<TaskType>) -> WorkerInfo {
        WorkerInfo {
            id: self.new_id(),
            host: self.host.clone(),
            pid: std::process::id(),
            pod: self.pod.clone(),
            pod_uid: self.pod_uid.clone(),
            container: self.container.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            types,
            pool: self.pool.clone(),
            started: Some(Timestamp::now()),
        }
    }

    fn new_id(&self) -> WorkerId {
        /// Leaves room for process and nonce in the longest id.
        const LONGEST: usize = 150;
        let printable = |c: &char| c.is_ascii_graphic();
        let short = |name: &str| name.chars().filter(printable).take(LONGEST).collect::<String>();
        let name = match &self.pod {
            Some(pod) => short(pod),
            None => format!("{}-{}", short(&self.host), std::process::id()),
        };
        let id = format!("{name}-{:016x}", fastrand::u64(..));
        WorkerId::new(id).expect("invariant: printable ASCII of a bounded length is a valid worker id")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// closes: reused worker id blocks recovery (apalis#507)
    #[test]
    fn every_start_has_an_id_of_its_own_that_says_where_it_runs() {
        let pod = WorkerPlace { pod: Some("emailers-7".to_owned()), ..WorkerPlace::default() };
        let (first, second) = (pod.introduce(vec![]), pod.introduce(vec![]));
        assert!(first.id.as_str().starts_with("emailers-7-"), "{}", first.id);
        assert_ne!(first.id, second.id);
        let odd = WorkerPlace { host: format!("a host\n{}", "ü".repeat(300)), ..WorkerPlace::default() };
        assert!(odd.introduce(vec![]).id.as_str().starts_with("ahost-"));
    }

    #[test]
    fn a_worker_that_could_do_nothing_is_refused() {
        let idle = WorkerOptions { concurrency: 0, ..WorkerOptions::default() };
        assert!(idle.validate().expect_err("nothing").to_string().contains("use 1 to 10000"));
        WorkerOptions::default().validate().expect("the defaults are fine");
    }
}
