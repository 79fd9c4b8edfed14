//! What is known of the pods of all pools.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Mutex, MutexGuard};

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use tokio::sync::Notify;

use super::proof::{Death, Gone, deaths, gone};
use crate::operator::pool::{POOL_LABEL, QUEUE_LABEL};
use crate::protocol::names::QueueName;

/// How cheap it is to lose a pod: the ReplicaSet controller takes the cheapest first.
pub(crate) const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";

/// A pod of a pool.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct KnownPod {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) pool: String,
    /// What it costs to lose it, as it says itself.
    pub(crate) deletion_cost: i64,
    queue: Option<QueueName>,
    deaths: Vec<Death>,
    /// How it was when it vanished, if it did.
    gone: Option<Gone>,
    /// Whether it was asked to end.
    leaving: bool,
    /// Which watch it was seen by.
    watch: usize,
}

/// The pods, by UID, and the queues whose workers are to be looked at.
#[derive(Default)]
pub(crate) struct PodBook {
    inner: Mutex<Inner>,
    due: Notify,
}

#[derive(Default)]
struct Inner {
    pods: HashMap<String, KnownPod>,
    /// What a watch that lists anew has seen so far.
    listed: HashMap<usize, HashSet<String>>,
    due: BTreeSet<QueueName>,
    /// Which watches have told of everything at least once.
    complete: BTreeSet<usize>,
    /// The UIDs of the pools that are looked after here.
    pools: HashSet<String>,
}

/// What is known of one pod's end.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Ends {
    pub(super) deaths: Vec<Death>,
    pub(super) gone: Option<Gone>,
}

impl PodBook {
    /// A watch begins to list what there is.
    pub(super) fn begin(&self, watch: usize) {
        self.lock().listed.insert(watch, HashSet::new());
    }

    /// A pod that is there.
    pub(super) fn list(&self, watch: usize, pod: &Pod) {
        if let (Some(uid), Some(listed)) = (pod.uid(), self.lock().listed.get_mut(&watch)) {
            listed.insert(uid);
        }
        self.see(watch, pod);
    }

    /// The list is complete: who is not on it has vanished, and nobody saw how.
    pub(super) fn end(&self, watch: usize) {
        let mut inner = self.lock();
        let listed = inner.listed.remove(&watch).unwrap_or_default();
        inner.pods.retain(|uid, pod| pod.watch != watch || pod.queue.is_some() || listed.contains(uid));
        let mut due = Vec::new();
        for (uid, pod) in &mut inner.pods {
            if pod.watch == watch && pod.gone.is_none() && !listed.contains(uid) {
                pod.gone = Some(Gone::WhileRunning);
                due.extend(pod.queue.clone());
            }
        }
        inner.due.extend(due);
        inner.complete.insert(watch);
        drop(inner);
        self.due.notify_one();
    }

    /// A pod is there, or has changed.
    pub(super) fn see(&self, watch: usize, pod: &Pod) {
        let Some((uid, known)) = read(watch, pod) else { return };
        let mut inner = self.lock();
        let before = inner.pods.get(&uid).map_or(&[][..], |before| &before.deaths);
        if known.deaths.iter().any(|death| !before.contains(death)) {
            inner.due.extend(known.queue.clone());
            self.due.notify_one();
        }
        inner.pods.insert(uid, known);
    }

    /// A pod has vanished, or lost its label.
    pub(super) fn bury(&self, pod: &Pod) {
        let Some((uid, mut known)) = read(0, pod) else { return };
        known.gone = Some(gone(pod));
        let mut inner = self.lock();
        let Some(queue) = known.queue.clone() else {
            // Nobody has to be told, so nobody would ever forget it.
            inner.pods.remove(&uid);
            return;
        };
        inner.due.insert(queue);
        inner.pods.insert(uid, known);
        self.due.notify_one();
    }

    /// Makes a queue due: it is looked after from now on, or a worker was seen whose pod is not in the book.
    pub(crate) fn look_at(&self, queue: &QueueName) {
        self.lock().due.insert(queue.clone());
        self.due.notify_one();
    }

    /// Waits for queues that are due.
    pub(super) async fn due(&self) -> BTreeSet<QueueName> {
        loop {
            let due = std::mem::take(&mut self.lock().due);
            if !due.is_empty() {
                return due;
            }
            self.due.notified().await;
        }
    }

    /// The ends of a queue's pods, by UID; those that live are there with none.
    pub(super) fn ends(&self, queue: &QueueName) -> BTreeMap<String, Ends> {
        let of_queue = |(uid, pod): (&String, &KnownPod)| {
            let ends = Ends { deaths: pod.deaths.clone(), gone: pod.gone.clone() };
            (pod.queue.as_ref() == Some(queue)).then(|| (uid.clone(), ends))
        };
        self.lock().pods.iter().filter_map(of_queue).collect()
    }

    /// Forgets pods that have vanished and whose workers are dealt with.
    pub(super) fn forget(&self, uids: &[String]) {
        let mut inner = self.lock();
        for uid in uids {
            if inner.pods.get(uid).is_some_and(|pod| pod.gone.is_some()) {
                inner.pods.remove(uid);
            }
        }
    }

    /// A pool that is looked after here.
    pub(crate) fn know_pool(&self, uid: &str) {
        let mut inner = self.lock();
        if !inner.pools.contains(uid) {
            inner.pools.insert(uid.to_owned());
        }
    }

    /// A pool that is gone.
    pub(crate) fn forget_pool(&self, uid: &str) {
        self.lock().pools.remove(uid);
    }

    /// Whether a pool is looked after here.
    pub(super) fn knows_pool(&self, uid: &str) -> bool {
        self.lock().pools.contains(uid)
    }

    /// Whether every watch has told of everything at least once.
    pub(crate) fn is_complete(&self) -> bool {
        let inner = self.lock();
        !inner.complete.is_empty() && inner.listed.is_empty()
    }

    /// Whether a pod of that UID is known, dead or alive.
    pub(crate) fn knows(&self, uid: &str) -> bool {
        self.lock().pods.contains_key(uid)
    }

    /// Whether a pod is known to be on its way out, or gone.
    pub(crate) fn is_leaving(&self, uid: &str) -> bool {
        self.lock().pods.get(uid).is_some_and(|pod| pod.leaving || pod.gone.is_some())
    }

    /// The pods of a pool that are there, by UID.
    pub(crate) fn pods(&self, namespace: &str, pool: &str) -> Vec<(String, KnownPod)> {
        let inner = self.lock();
        let of_pool =
            inner.pods.iter().filter(|(_, pod)| pod.gone.is_none() && pod.namespace == namespace && pod.pool == pool);
        of_pool.map(|(uid, pod)| (uid.clone(), pod.clone())).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("invariant: no panic while held")
    }
}

fn read(watch: usize, pod: &Pod) -> Option<(String, KnownPod)> {
    let (uid, namespace) = (pod.uid()?, pod.namespace()?);
    let pool = pod.labels().get(POOL_LABEL)?.clone();
    // A pod without the label, or with one that is no queue's name, runs no worker of ours.
    let queue = pod.labels().get(QUEUE_LABEL).and_then(|name| QueueName::new(&namespace, name).ok());
    let deletion_cost = pod.annotations().get(DELETION_COST).and_then(|cost| cost.parse().ok()).unwrap_or(0);
    let known = KnownPod {
        namespace,
        name: pod.name_any(),
        pool,
        deletion_cost,
        queue,
        deaths: deaths(pod),
        gone: None,
        leaving: pod.metadata.deletion_timestamp.is_some(),
        watch,
    };
    Some((uid, known))
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use serde_json::{Value, json};

    fn pod(uid: &str, state: Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": format!("pod-{uid}"), "namespace": "shop", "uid": uid,
                         "labels": {POOL_LABEL: "emailers", QUEUE_LABEL: "emails"}},
            "status": {"phase": "Running", "containerStatuses": [
                {"name": "worker", "image": "i", "imageID": "", "ready": true, "restartCount": 0, "state": state}]},
        }))
        .expect("a pod")
    }

    fn running() -> Value {
        json!({"running": {}})
    }

    fn ended() -> Value {
        json!({"terminated": {"exitCode": 1, "finishedAt": "2026-01-01T00:00:00Z"}})
    }

    fn due(book: &PodBook) -> bool {
        book.due().now_or_never().is_some()
    }

    fn queue() -> QueueName {
        "shop/emails".parse().expect("valid")
    }

    #[test]
    fn only_an_end_that_is_new_makes_a_queue_due() {
        let book = PodBook::default();
        book.see(0, &pod("a", running()));
        assert!(!due(&book), "a pod that runs is no news");
        book.see(0, &pod("a", ended()));
        assert!(due(&book));
        book.see(0, &pod("a", ended()));
        assert!(!due(&book), "the same end again is none either");
    }

    #[test]
    fn a_pod_that_vanishes_is_remembered_until_its_workers_are_dealt_with() {
        let book = PodBook::default();
        book.see(0, &pod("a", running()));
        book.bury(&pod("a", running()));
        assert!(due(&book) && book.pods("shop", "emailers").is_empty());
        assert_eq!(book.ends(&queue())["a"].gone, Some(Gone::WhileRunning));
        book.forget(&["a".to_owned()]);
        assert!(!book.knows("a"));
    }

    #[test]
    fn a_pod_of_no_queue_leaves_nothing_behind() {
        let book = PodBook::default();
        let of_none = |uid: &str| {
            let mut pod = pod(uid, running());
            pod.labels_mut().remove(QUEUE_LABEL);
            pod
        };
        for uid in ["a", "b"] {
            book.see(0, &of_none(uid));
        }
        book.bury(&of_none("a"));
        assert!(!book.knows("a") && book.knows("b"));
        book.begin(0);
        book.end(0);
        assert!(!book.knows("b"), "nobody saw how it went");
    }

    #[test]
    fn a_watch_that_begins_anew_finds_who_vanished_meanwhile_and_nobody_of_another_watch() {
        let book = PodBook::default();
        for (watch, uid) in [(0, "a"), (0, "b"), (1, "c")] {
            book.see(watch, &pod(uid, running()));
        }
        book.begin(0);
        book.list(0, &pod("b", running()));
        book.end(0);
        let left: BTreeSet<_> = book.pods("shop", "emailers").into_iter().map(|(uid, _)| uid).collect();
        assert_eq!(left, ["b".to_owned(), "c".to_owned()].into());
        assert!(due(&book));
    }

    #[test]
    fn living_pods_are_not_forgotten() {
        let book = PodBook::default();
        book.see(0, &pod("a", running()));
        book.forget(&["a".to_owned()]);
        assert!(book.knows("a"));
    }
}
