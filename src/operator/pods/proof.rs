//! What of a pod's status proves that a worker in it is dead.
//!
//! Pure. A container that ended is a proof, and so is a pod that failed. What
//! proves nothing: that a pod is asked to end (it may drain for its whole grace),
//! or that its node is silent. A pod that vanished while it ran may run on for
//! seconds: its worker is fenced off, its tasks come back, and no crash is counted.
//!
//! A container that ends starts again in the same pod, so its end says nothing
//! about whoever runs in it now. Which worker it was is told by time: of the
//! container's end and of the worker's start, both by the clock of the pod's
//! machine. A container's end is told in whole seconds; who started in an earlier
//! second is dead, who started in that second or later may be the next one, and
//! supersedes the one before it when it registers.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod};

use crate::broker::WorkerRecord;
use crate::protocol::state::RetryReason;

/// How far the clocks of a machine and of Redis may be apart. Only of workers that do not tell
/// when they started by the clock of their own machine.
const CLOCKS_APART: Duration = Duration::from_secs(60);

/// An end that a pod's status tells of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Death {
    /// A container ended.
    Container {
        /// Which.
        name: String,
        /// When, in whole seconds; unknown to a runtime that lost track of it.
        at: Option<Timestamp>,
        /// As the kubelet tells it.
        words: String,
    },
    /// The pod failed, and everything in it.
    Pod {
        /// As the kubelet tells it.
        words: String,
    },
}

/// How a pod was when it was last seen, before it vanished.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Gone {
    /// All of it had ended.
    Ended {
        /// As the kubelet told it.
        words: String,
    },
    /// It ran, for all that is known.
    WhileRunning,
}

/// Why a worker is taken for dead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Proof {
    pub(super) reason: RetryReason,
    pub(super) words: String,
}

impl Proof {
    /// Its pod vanished, and all of it had ended.
    pub(super) fn of_ended(words: &str) -> Self {
        Self { reason: RetryReason::PodGone, words: words.to_owned() }
    }

    /// Its pod vanished while it ran, for all that is known: nobody crashed.
    pub(super) fn of_vanished(words: &str) -> Self {
        Self { reason: RetryReason::PodForceDeleted, words: words.to_owned() }
    }
}

/// Every end that a pod's status tells of.
pub(super) fn deaths(pod: &Pod) -> Vec<Death> {
    let mut all = Vec::new();
    if phase(pod) == "Failed" {
        all.push(Death::Pod { words: words_of_pod(pod) });
    }
    for status in containers(pod) {
        let states = [&status.state, &status.last_state].into_iter().flatten();
        for ended in states.filter_map(|state| state.terminated.as_ref()) {
            all.push(Death::Container {
                name: status.name.clone(),
                at: ended.finished_at.as_ref().map(|time| time.0),
                words: words_of(ended),
            });
        }
    }
    all
}

/// How a pod was that has vanished.
pub(super) fn gone(pod: &Pod) -> Gone {
    let ended = |status: &ContainerStatus| status.state.as_ref().is_some_and(|state| state.terminated.is_some());
    let mut main = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten()).peekable();
    let over = matches!(phase(pod), "Failed" | "Succeeded");
    if over || (main.peek().is_some() && main.all(ended)) {
        Gone::Ended { words: words_of_pod(pod) }
    } else {
        Gone::WhileRunning
    }
}

/// Whether a worker of the pod is dead by its status.
pub(super) fn judge(worker: &WorkerRecord, deaths: &[Death]) -> Option<Proof> {
    let dead = deaths.iter().find(|death| match death {
        Death::Pod { .. } => true,
        Death::Container { name, at, .. } => {
            worker.info.container.as_deref() == Some(name) && at.is_some_and(|at| started_before(worker, at))
        }
    })?;
    let (Death::Container { words, .. } | Death::Pod { words }) = dead;
    Some(Proof::of_ended(words))
}

fn started_before(worker: &WorkerRecord, end: Timestamp) -> bool {
    match worker.info.started {
        Some(started) => started.as_second() < end.as_second(),
        None => worker.started_at.saturating_add(CLOCKS_APART).is_ok_and(|started| started < end),
    }
}

fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

fn containers(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    let status = pod.status.iter();
    status.flat_map(|status| {
        status.container_statuses.iter().flatten().chain(status.init_container_statuses.iter().flatten())
    })
}

/// The pod's own reason, like Evicted, or how its first failed container ended.
fn words_of_pod(pod: &Pod) -> String {
    if let Some(reason) = pod.status.as_ref().and_then(|status| status.reason.clone()).filter(|word| !word.is_empty()) {
        return reason;
    }
    let ends = || containers(pod).filter_map(|status| status.state.as_ref()?.terminated.as_ref());
    let worst = ends().find(|end| end.exit_code != 0).or_else(|| ends().next());
    worst.map_or_else(|| phase(pod).to_owned(), words_of)
}

fn words_of(end: &ContainerStateTerminated) -> String {
    let reason = end.reason.as_deref().filter(|word| !word.is_empty()).unwrap_or("Ended");
    format!("{reason}, exit code {}", end.exit_code)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(status: Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "p", "uid": "u"}, "status": status})).expect("a pod")
    }

    fn ended(reason: &str, code: i32, at: &str) -> Value {
        json!({"terminated": {"reason": reason, "exitCode": code, "finishedAt": at}})
    }

    fn running_again(last: Value) -> Pod {
        pod(json!({"phase": "Running", "containerStatuses": [{
            "name": "worker", "image": "i", "imageID": "", "ready": true, "restartCount": 1,
            "state": {"running": {"startedAt": "2026-01-01T00:00:10Z"}}, "lastState": last,
        }]}))
    }

    fn in_state(state: Value) -> Pod {
        pod(json!({"phase": "Running", "containerStatuses": [{
            "name": "worker", "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": state,
        }]}))
    }

    /// A worker in the container, started at that time of its machine.
    fn worker(started: Option<&str>) -> WorkerRecord {
        let info = serde_json::from_value(json!({
            "id": "w", "host": "h", "pid": 1, "pod": "p", "pod_uid": "u", "container": "worker", "version": "1",
            "types": [], "started": started,
        }))
        .expect("a worker");
        let registered = "2026-01-01T00:00:00Z".parse().expect("a time");
        WorkerRecord { info, started_at: registered, heartbeat_at: registered }
    }

    fn verdict(pod: &Pod, started: &str) -> Option<Proof> {
        judge(&worker(Some(started)), &deaths(pod))
    }

    #[test]
    fn a_container_that_ended_proves_that_its_worker_is_dead_and_says_why() {
        let pod = in_state(ended("OOMKilled", 137, "2026-01-01T00:00:09Z"));
        let proof = verdict(&pod, "2026-01-01T00:00:01.5Z").expect("dead");
        assert_eq!(proof, Proof { reason: RetryReason::PodGone, words: "OOMKilled, exit code 137".into() });
    }

    #[test]
    fn a_restarted_container_does_not_take_the_new_workers_tasks() {
        let pod = running_again(ended("Error", 1, "2026-01-01T00:00:09Z"));
        assert!(verdict(&pod, "2026-01-01T00:00:08.999Z").is_some(), "the old one");
        assert_eq!(verdict(&pod, "2026-01-01T00:00:09.6Z"), None, "started in the second in which the old one ended");
        assert_eq!(verdict(&pod, "2026-01-01T00:00:10.2Z"), None, "the new one");
    }

    #[test]
    fn another_containers_end_proves_nothing() {
        let mut pod = in_state(ended("Error", 1, "2026-01-01T00:00:09Z"));
        pod.status.as_mut().and_then(|status| status.container_statuses.as_mut()).expect("statuses")[0].name =
            "app".into();
        assert_eq!(verdict(&pod, "2026-01-01T00:00:01Z"), None);
    }

    #[test]
    fn a_pod_that_failed_proves_it_for_all_of_it_whatever_the_time() {
        let evicted = pod(json!({"phase": "Failed", "reason": "Evicted", "message": "low on memory"}));
        let proof = verdict(&evicted, "2030-01-01T00:00:00Z").expect("dead");
        assert_eq!(proof.words, "Evicted");
    }

    #[test]
    fn being_asked_to_end_or_a_silent_node_prove_nothing() {
        let mut leaving = in_state(json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}}));
        leaving.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:05Z")).expect("a time");
        assert_eq!(deaths(&leaving), []);
        let unreachable = pod(json!({
            "phase": "Running", "reason": "NodeLost",
            "conditions": [{"type": "Ready", "status": "False", "reason": "NodeNotReady"}],
        }));
        assert_eq!(deaths(&unreachable), []);
    }

    #[test]
    fn a_pod_that_vanished_while_it_ran_crashed_for_nobody() {
        let ran = in_state(json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}}));
        assert_eq!(gone(&ran), Gone::WhileRunning);
        assert_eq!(Proof::of_vanished("so").reason, RetryReason::PodForceDeleted);
        assert_eq!(gone(&pod(json!({}))), Gone::WhileRunning);
        let over = in_state(ended("Completed", 0, "2026-01-01T00:00:09Z"));
        assert_eq!(gone(&over), Gone::Ended { words: "Completed, exit code 0".into() });
    }

    #[test]
    fn of_a_worker_that_does_not_tell_its_start_only_what_is_long_ago_counts() {
        let old = worker(None);
        let soon = deaths(&in_state(ended("Error", 1, "2026-01-01T00:00:30Z")));
        let late = deaths(&in_state(ended("Error", 1, "2026-01-01T00:02:00Z")));
        assert_eq!((judge(&old, &soon), judge(&old, &late).is_some()), (None, true));
    }
}
