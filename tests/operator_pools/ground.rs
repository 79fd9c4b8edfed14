//! One namespace, one Redis, one operator.

use std::path::Path;
use std::process::Child;
use std::sync::{Arc, Mutex};

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::OnceCell;
use windlass::broker::redis::{RedisBroker, RedisOptions};
use windlass::broker::{Broker, ClaimRequest, ClaimedTask, WorkerInfo};
use windlass::crd::{WorkerPool, WorkerPoolStatus};
use windlass::event_log::{EventLog, RecordedEvent};
use windlass::protocol::keys::Keys;
use windlass::protocol::names::{Capabilities, WorkerId};
use windlass::{NewTask, QueueName, TaskId, TaskView};

use crate::kubernetes::{Kubernetes, TestNamespace};
use crate::support::servers::process::{Told, signal, spawn_told};
use crate::support::servers::{Flavor, Server};

/// The release's name, and therefore that of its ServiceAccount and its Lease.
const RELEASE: &str = "windlass";

/// What one test stands on.
pub(super) struct Ground {
    pub(super) cluster: &'static Kubernetes,
    pub(super) namespace: TestNamespace<'static>,
    pub(super) redis: Server,
    pub(super) client: Client,
    folder: tempfile::TempDir,
    kubeconfig: tempfile::NamedTempFile,
    operator: Mutex<Option<Child>>,
}

impl Ground {
    /// With an operator that runs.
    pub(super) async fn new() -> Self {
        let ground = Self::without_operator().await;
        ground.start_operator("windlass:one");
        ground
    }

    /// With everything but the operator.
    pub(super) async fn without_operator() -> Self {
        Self::with_rights(None).await
    }

    /// The same, with all of the chart's rights but one.
    pub(super) async fn with_rights(missing: Option<Right>) -> Self {
        static DEFINED: OnceCell<()> = OnceCell::const_new();
        let cluster = Kubernetes::api().await;
        DEFINED.get_or_init(|| define(cluster)).await;
        Self::on(cluster, missing).await
    }

    /// A cluster of the test's own, for what would be felt by others, with the definitions.
    pub(super) async fn own_cluster() -> &'static Kubernetes {
        // It ends with this process, as the shared one does.
        let cluster = Box::leak(Box::new(Kubernetes::start_api().await));
        define(cluster).await;
        cluster
    }

    /// Everything but the operator, on a cluster with the definitions.
    pub(super) async fn on(cluster: &'static Kubernetes, missing: Option<Right>) -> Self {
        let namespace = cluster.namespace().await;
        for document in rights(cluster, &namespace, missing).await {
            cluster.apply(&namespace, &document.to_string()).await;
        }
        let kubeconfig = cluster.kubeconfig_as(&namespace, RELEASE).await;
        let folder = tempfile::tempdir().expect("a folder");
        let redis = Server::start(Flavor::Redis70).await;
        let client = cluster.client().await;
        Self { cluster, namespace, redis, client, folder, kubeconfig, operator: Mutex::new(None) }
    }

    /// Starts the operator, with this image for workers.
    pub(super) fn start_operator(&self, image: &str) {
        self.start_operator_on(&self.redis.url(), image);
    }

    /// Starts the operator with this Redis for queues that name none.
    pub(super) fn start_operator_on(&self, redis: &str, image: &str) {
        self.start_operator_for(Some(&self.namespace), redis, image);
    }

    /// Starts the operator for these namespaces, or for all.
    pub(super) fn start_operator_for(&self, namespaces: Option<&str>, redis: &str, image: &str) {
        let binary = env!("CARGO_BIN_EXE_windlass");
        let namespace = self.namespace.to_string();
        let mut arguments = vec![
            "-i".to_owned(),
            format!("KUBECONFIG={}", self.kubeconfig.path().display()),
            "WINDLASS_LOG=windlass=debug,info".to_owned(),
            binary.to_owned(),
        ];
        let event_log = self.event_log_url();
        for word in [
            "operator",
            "--lease-namespace",
            &namespace,
            "--lease-name",
            RELEASE,
            "--listen",
            "127.0.0.1:0",
            "--redis-url",
            redis,
            "--worker-image",
            image,
            "--event-log",
            &event_log,
        ] {
            arguments.push(word.to_owned());
        }
        arguments.extend(namespaces.into_iter().flat_map(|some| ["--namespaces".to_owned(), some.to_owned()]));
        let output = self.folder.path().join("operator.log");
        let operator = spawn_told(Told::Nothing, None, Path::new("/usr/bin/env"), &arguments, &output);
        *self.operator.lock().expect("nobody panics with it") = Some(operator);
    }

    /// Ends the operator, and waits until it has.
    pub(super) fn stop_operator(&self) {
        let operator = self.operator.lock().expect("nobody panics with it").take();
        if let Some(mut operator) = operator {
            signal(operator.id(), "TERM");
            operator.wait().expect("it is our child");
        }
    }

    /// Kills the operator, and gives its Lease back: the next one would wait for its whole length.
    pub(super) async fn kill_operator(&self) {
        let operator = self.operator.lock().expect("nobody panics with it").take();
        let mut operator = operator.expect("one was started");
        operator.kill().expect("it was running");
        operator.wait().expect("it is our child");
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), &self.namespace);
        let free = Patch::Merge(json!({"spec": {"holderIdentity": ""}}));
        // One that was killed early never made a Lease.
        drop(leases.patch(RELEASE, &PatchParams::default(), &free).await);
    }

    fn event_log_url(&self) -> String {
        format!("sqlite://{}", self.folder.path().join("events.db").display())
    }

    /// Everything that the operator said.
    pub(super) fn said(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("operator.log")).unwrap_or_default()
    }

    /// Makes a queue with reclaim by pods alone among what is quick, and waits until it is ready.
    pub(super) async fn queue(&self, name: &str) {
        self.apply(json!({"kind": "TaskQueue", "metadata": {"name": name}, "spec": {}})).await;
        self.ready_queue(name).await;
    }

    pub(super) async fn ready_queue(&self, name: &str) {
        let queues: Api<windlass::crd::TaskQueue> = Api::namespaced(self.client.clone(), &self.namespace);
        let ready = |queue: Option<&windlass::crd::TaskQueue>| {
            let conditions = queue.and_then(|queue| queue.status.as_ref()).map(|status| &status.conditions);
            conditions.is_some_and(|all| all.iter().any(|one| one.type_ == "Ready" && one.status == "True"))
        };
        self.cluster.wait(&queues, name, "to be ready", ready).await;
    }

    /// Applies a TaskQueue or a WorkerPool.
    pub(super) async fn apply(&self, object: Value) {
        self.try_apply(object).await.unwrap_or_else(|said| panic!("it was refused: {said}"));
    }

    pub(super) async fn try_apply(&self, mut object: Value) -> Result<String, String> {
        object["apiVersion"] = json!("windlass.dev/v1alpha1");
        self.cluster.try_apply(&self.namespace, &object.to_string()).await
    }

    /// Makes a pool, with these fields of its spec besides queue, handler and template.
    pub(super) async fn pool(&self, name: &str, queue: &str, fields: Value) {
        self.apply(pool(name, queue, fields)).await;
    }

    pub(super) fn pools(&self) -> Api<WorkerPool> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub(super) fn deployments(&self) -> Api<Deployment> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub(super) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Waits for a Deployment that is like this.
    pub(super) async fn deployment(&self, name: &str, what: &str, like: impl Fn(&Deployment) -> bool) -> Deployment {
        let found = self.cluster.wait(&self.deployments(), name, what, |found| found.is_some_and(&like)).await;
        found.expect("it was waited for")
    }

    /// Waits for a number of replicas.
    pub(super) async fn replicas(&self, name: &str, number: i32) -> Deployment {
        self.deployment(name, &format!("to want {number} pods"), |found| replicas(found) == number).await
    }

    /// Waits until a condition of a pool has that status and reason; returns its message.
    pub(super) async fn condition(&self, pool: &str, type_: &str, status: &str, reason: &str) -> String {
        let what = format!("to have the condition {type_} {status} because of {reason}");
        let is_so = |found: Option<&WorkerPool>| {
            let seen = found.and_then(|pool| condition(pool.status.as_ref()?, type_));
            seen.is_some_and(|(is, why, _)| is == status && why == reason)
        };
        let found = self.cluster.wait(&self.pools(), pool, &what, is_so).await.expect("it was waited for");
        condition(found.status.as_ref().expect("a status"), type_).expect("a condition").2
    }

    /// Waits for so many pods of a pool.
    pub(super) async fn pods_of(&self, pool: &str, number: usize) -> Vec<Pod> {
        let selected = ListParams::default().labels(&format!("windlass.dev/pool={pool}"));
        let (pods, what) = (self.pods(), format!("{number} pods of {pool}"));
        self.cluster
            .wait_for(&self.namespace, &what, async || {
                let found = pods.list(&selected).await.map_err(|error| error.to_string())?.items;
                if found.len() == number { Ok(found) } else { Err(format!("{} pods", found.len())) }
            })
            .await
    }

    /// Says of a pod's worker container what a kubelet would.
    pub(super) async fn kubelet_says(&self, pod: &Pod, phase: &str, container: Value) {
        let mut status =
            json!({"name": "windlass-worker", "image": "i", "imageID": "i", "ready": false, "restartCount": 0});
        for (name, value) in container.as_object().expect("fields") {
            status[name] = value.clone();
        }
        let patch = Patch::Merge(json!({"status": {"phase": phase, "containerStatuses": [status]}}));
        self.pods().patch_status(&pod.name_any(), &PatchParams::default(), &patch).await.expect("patched");
    }

    /// The queue, as anybody with its URL has it.
    pub(super) fn broker(&self, queue: &str) -> Arc<RedisBroker> {
        let keys = Keys::new(&self.queue_name(queue));
        Arc::new(RedisBroker::new(keys, RedisOptions::new(self.redis.url())).expect("a usable URL"))
    }

    pub(super) fn queue_name(&self, queue: &str) -> QueueName {
        QueueName::new(&self.namespace, queue).expect("valid")
    }

    /// A worker of a pod, as `windlass worker` in it would register, that holds so many new tasks.
    pub(super) async fn worker(&self, queue: &str, pod: &Pod, pool: &str, tasks: usize) -> Working {
        let owner = self.pools().get(pool).await.expect("the pool is there").uid().expect("a UID");
        let broker = self.broker(queue);
        let id = WorkerId::new(format!("{}-{:x}", pod.name_any(), fastrand::u64(..))).expect("valid");
        let info = WorkerInfo {
            id: id.clone(),
            host: "node".to_owned(),
            pid: 1,
            pod: Some(pod.name_any()),
            pod_uid: pod.uid(),
            container: Some("windlass-worker".to_owned()),
            version: "1".to_owned(),
            types: Vec::new(),
            pool: Some(owner),
            started: Some(jiff::Timestamp::now()),
        };
        broker.register(&info).await.expect("registered");
        let tasks: Vec<NewTask> = (0..tasks).map(task).collect();
        if !tasks.is_empty() {
            broker.enqueue(&tasks).await.expect("enqueued");
        }
        let request =
            ClaimRequest { worker: &id, capabilities: &Capabilities::any(), limit: tasks.len(), recover: None };
        let held = broker.claim(request).await.expect("claimed").tasks;
        assert_eq!(held.len(), tasks.len());
        Working { id, held }
    }

    pub(super) async fn view(&self, queue: &str, task: &TaskId) -> TaskView {
        self.broker(queue).get(task).await.expect("answered").expect("it is known")
    }

    /// Waits until a task is like this.
    pub(super) async fn task(
        &self,
        queue: &str,
        task: &TaskId,
        what: &str,
        like: impl Fn(&TaskView) -> bool,
    ) -> TaskView {
        self.cluster
            .wait_for(&self.namespace, &format!("a task {what}"), async || {
                let seen = self.view(queue, task).await;
                if like(&seen) { Ok(seen) } else { Err(format!("{seen:?}\n{}", self.said())) }
            })
            .await
    }

    /// What happened to a task, once an event of that type is among it.
    pub(super) async fn history(&self, queue: &str, task: &TaskId, type_: &str) -> RecordedEvent {
        let log = EventLog::connect(&self.event_log_url()).await.expect("the event log opens");
        let name = self.queue_name(queue);
        self.cluster
            .wait_for(&self.namespace, type_, async || {
                let events = log.history(&name, task).await.map_err(|error| error.to_string())?;
                events.iter().rfind(|event| event.event_type == type_).cloned().ok_or_else(|| format!("{events:?}"))
            })
            .await
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- the operator said:\n{}", tail(&self.said(), 60));
        }
        if let Some(mut operator) = self.operator.lock().ok().and_then(|mut operator| operator.take()) {
            let _ = operator.kill().and_then(|()| operator.wait().map(drop));
        }
    }
}

/// A worker and what it holds.
pub(super) struct Working {
    pub(super) id: WorkerId,
    pub(super) held: Vec<ClaimedTask>,
}

/// A task that has nothing to say.
pub(super) fn task(number: usize) -> NewTask {
    NewTask::new("work".parse().expect("valid"), json!({ "n": number }))
}

/// A pool with an HTTP handler, unless the fields say otherwise.
pub(super) fn pool(name: &str, queue: &str, fields: Value) -> Value {
    let mut spec = json!({
        "queueRef": {"name": queue},
        "handler": {"type": "HTTP", "http": {"port": 8080}},
        "template": {"spec": {"containers": [{"name": "app", "image": "app:1"}]}},
    });
    for (name, value) in fields.as_object().expect("fields") {
        spec[name] = value.clone();
    }
    json!({"apiVersion": "windlass.dev/v1alpha1", "kind": "WorkerPool", "metadata": {"name": name}, "spec": spec})
}

/// What a Deployment wants.
pub(super) fn replicas(deployment: &Deployment) -> i32 {
    deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(-1)
}

/// Status, reason and message of a condition.
pub(super) fn condition(status: &WorkerPoolStatus, type_: &str) -> Option<(String, String, String)> {
    let found = status.conditions.iter().find(|one| one.type_ == type_)?.clone();
    Some((found.status, found.reason, found.message))
}

/// Installs the definitions.
async fn define(cluster: &Kubernetes) {
    let client = cluster.client().await;
    let definitions: Api<CustomResourceDefinition> = Api::all(client);
    for kind in windlass::crd::Kind::ALL {
        cluster.apply("default", &windlass::crd::yaml(kind)).await;
        let name = kind.file_name().trim_end_matches(".yaml");
        let established = |found: Option<&CustomResourceDefinition>| {
            let conditions = found.and_then(|found| found.status.as_ref()?.conditions.as_ref());
            conditions.is_some_and(|all| all.iter().any(|one| one.type_ == "Established" && one.status == "True"))
        };
        cluster.wait(&definitions, name, "to be established", established).await;
    }
}

/// Takes one right out of rules, which may grant others with it; says how often it was there.
fn take(rules: &mut Vec<Value>, missing: Right) -> usize {
    let has =
        |rule: &Value, field: &str, word: &str| rule[field].as_array().is_some_and(|all| all.contains(&json!(word)));
    let mut taken = 0;
    let mut left = Vec::new();
    for rule in rules.drain(..) {
        if !has(&rule, "resources", missing.resource) || !has(&rule, "verbs", missing.verb) {
            left.push(rule);
            continue;
        }
        taken += 1;
        let without = |field: &str, word: &str| -> Vec<Value> {
            rule[field].as_array().into_iter().flatten().filter(|one| **one != word).cloned().collect()
        };
        let (mut others, mut same) = (rule.clone(), rule.clone());
        others["resources"] = without("resources", missing.resource).into();
        same["resources"] = json!([missing.resource]);
        same["verbs"] = without("verbs", missing.verb).into();
        let is_empty =
            |rule: &Value| ["resources", "verbs"].iter().any(|of| rule[*of].as_array().is_some_and(Vec::is_empty));
        left.extend([others, same].into_iter().filter(|rule| !is_empty(rule)));
    }
    *rules = left;
    taken
}

fn rules_of(document: &mut Value) -> Option<&mut Vec<Value>> {
    document.get_mut("rules").and_then(Value::as_array_mut)
}

/// A verb on a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Right {
    pub(super) resource: &'static str,
    pub(super) verb: &'static str,
}

/// The chart's rights in one namespace, but for one.
async fn rights(cluster: &Kubernetes, namespace: &str, missing: Option<Right>) -> Vec<Value> {
    let mut documents = chart(cluster, namespace, &[namespace]).await;
    if let Some(missing) = missing {
        let taken: usize = documents.iter_mut().filter_map(rules_of).map(|rules| take(rules, missing)).sum();
        assert_eq!(taken, 1, "the chart grants {missing:?} once");
    }
    documents
}

/// What the chart grants to a release in a namespace: for these, or for all if none is named.
pub(super) async fn chart(cluster: &Kubernetes, namespace: &str, watched: &[&str]) -> Vec<Value> {
    let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("charts/windlass");
    let mut helm = tokio::process::Command::new(cluster.program("helm"));
    helm.args(["template", RELEASE, "--namespace", namespace, "--show-only", "templates/rbac.yaml"]).arg(chart);
    if !watched.is_empty() {
        helm.args(["--set", &format!("watchNamespaces={{{}}}", watched.join(","))]);
    }
    let rendered = helm.output().await.expect("helm runs");
    assert!(rendered.status.success(), "{}", String::from_utf8_lossy(&rendered.stderr));
    let text = String::from_utf8(rendered.stdout).expect("UTF-8");
    let documents = text.split("\n---").map(|document| serde_yaml::from_str(document).expect("YAML"));
    documents.filter(|document: &Value| !document.is_null()).collect()
}

fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}
