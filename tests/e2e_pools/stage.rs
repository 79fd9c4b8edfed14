//! A namespace in which a Redis and an operator run.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use windlass::crd::TaskQueue;

use crate::kubernetes::{Kubernetes, TestNamespace};

/// An application that sleeps for as long as a task says. It is alive until somebody makes it sick, and
/// writes what a task tells it to.
const APPLICATION: &str = r#"
import http.server, json, os, time
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        self.answer(500 if os.path.exists("/tmp/sick") else 200, b"{}")
    def do_POST(self):
        task = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        payload = task["payload"]
        time.sleep(payload.get("sleep", 0))
        self.answer(200, json.dumps({"pod": os.environ.get("HOSTNAME")}).encode())
    def answer(self, status, body):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass
class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 1024
    daemon_threads = True
Server(("0.0.0.0", 8080), Handler).serve_forever()
"#;

/// What one test stands on.
pub(super) struct Stage<'a> {
    pub(super) cluster: &'a Kubernetes,
    pub(super) namespace: TestNamespace<'a>,
    pub(super) client: Client,
}

impl<'a> Stage<'a> {
    /// Redis and an operator, ready, on the shared cluster; `None` where pods cannot run.
    pub(super) async fn shared() -> Option<Stage<'static>> {
        Some(Stage::on(Kubernetes::nodes().await?).await)
    }

    /// The same for a test that does what only a cluster of ours may suffer; `None` on somebody's own as well.
    pub(super) async fn ours() -> Option<Stage<'static>> {
        Some(Stage::on(Kubernetes::our_nodes().await?).await)
    }

    /// The same on a cluster of the test's own. All that must not be cut off is on node1.
    pub(super) async fn on(cluster: &'a Kubernetes) -> Stage<'a> {
        let images = [cluster.redis_image().await, cluster.windlass_image().await, cluster.python_image().await];
        let client = cluster.client().await;
        Guests::arrive(cluster);
        define(cluster, &client).await;
        let namespace = cluster.namespace().await;
        let stage = Stage { cluster, namespace, client };
        stage.apply(&redis(images[0])).await;
        let chart = stage.chart().await;
        cluster.apply(&stage.namespace, &chart).await;
        for name in ["redis", "windlass"] {
            stage.deployment(name, "to be available", |found| available(found) >= 1).await;
        }
        stage
    }

    /// The chart, with the images of the tests.
    async fn chart(&self) -> String {
        let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("charts/windlass");
        let mut helm = tokio::process::Command::new(self.cluster.program("helm"));
        helm.args(["template", "windlass", "--skip-tests"]).arg(chart).args(["--namespace", &self.namespace]);
        for setting in [
            format!("watchNamespaces={{{}}}", &*self.namespace),
            "image.registry=".to_owned(),
            "image.repository=localhost/windlass".to_owned(),
            "image.tag=test".to_owned(),
            "redis.url=redis://redis:6379".to_owned(),
            "nodeSelector.kubernetes\\.io/hostname=node1".to_owned(),
            "resources.limits=null".to_owned(),
        ] {
            helm.args(["--set", &setting]);
        }
        let rendered = helm.output().await.expect("helm runs");
        assert!(rendered.status.success(), "{}", String::from_utf8_lossy(&rendered.stderr));
        String::from_utf8(rendered.stdout).expect("UTF-8")
    }

    pub(super) async fn apply(&self, object: &Value) {
        self.cluster.apply(&self.namespace, &object.to_string()).await;
    }

    /// A queue with these settings, ready for tasks.
    pub(super) async fn queue(&self, spec: Value) {
        let queue = json!({"apiVersion": "windlass.dev/v1alpha1", "kind": "TaskQueue", "metadata": {"name": "q"}, "spec": spec});
        self.apply(&queue).await;
        let queues: Api<TaskQueue> = Api::namespaced(self.client.clone(), &self.namespace);
        let is_ready = |found: Option<&TaskQueue>| {
            let status = found.and_then(|queue| queue.status.as_ref());
            let mut conditions = status.iter().flat_map(|status| &status.conditions);
            conditions.any(|one| one.type_ == "Ready" && one.status == "True")
        };
        self.cluster.wait(&queues, "q", "to be ready", is_ready).await;
    }

    /// A pool in front of the application, with these fields besides.
    pub(super) async fn pool(&self, name: &str, fields: Value) {
        let mut spec = json!({
            "queueRef": {"name": "q"},
            "handler": {"type": "HTTP", "http": {"port": 8080}},
            "template": {"spec": {"containers": [application()]}},
        });
        for (name, value) in fields.as_object().expect("fields") {
            spec[name] = value.clone();
        }
        let pool = json!({"apiVersion": "windlass.dev/v1alpha1", "kind": "WorkerPool", "metadata": {"name": name}, "spec": spec});
        self.apply(&pool).await;
    }

    pub(super) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub(super) async fn deployment(&self, name: &str, what: &str, like: impl Fn(&Deployment) -> bool) -> Deployment {
        let deployments: Api<Deployment> = Api::namespaced(self.client.clone(), &self.namespace);
        let found = self.cluster.wait(&deployments, name, what, |found| found.is_some_and(&like)).await;
        found.expect("it was waited for")
    }

    /// Waits until so many pods of a pool are ready.
    pub(super) async fn ready(&self, pool: &str, number: i32) {
        let what = format!("to have {number} ready pods");
        self.deployment(pool, &what, |found| available(found) == number).await;
    }

    /// The pods of a pool that were not asked to end.
    pub(super) async fn pods_of(&self, pool: &str) -> Vec<Pod> {
        let selected = ListParams::default().labels(&format!("windlass.dev/pool={pool}"));
        let found = self.pods().list(&selected).await.expect("pods are listed").items;
        found.into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()).collect()
    }

    /// Runs `windlass` where the operator is, and returns what it printed.
    pub(super) async fn windlass(&self, arguments: &[&str]) -> String {
        self.try_windlass(arguments).await.unwrap_or_else(|said| panic!("windlass {arguments:?}: {said}"))
    }

    async fn try_windlass(&self, arguments: &[&str]) -> Result<String, String> {
        let mut all = vec!["-n", &self.namespace, "exec", "deploy/windlass", "--", "/usr/bin/windlass"];
        all.extend(arguments);
        self.cluster.try_kubectl(&all, "").await
    }

    fn name(&self) -> String {
        format!("{}/q", &*self.namespace)
    }

    /// Adds tasks that take so many seconds.
    pub(super) async fn enqueue(&self, number: usize, seconds: f64) {
        let payload = json!({"sleep": seconds}).to_string();
        let (queue, number) = (self.name(), number.to_string());
        self.windlass(&["task", "enqueue", "-q", &queue, "--type", "work", "--payload", &payload, "-n", &number]).await;
    }

    /// The queue in numbers.
    pub(super) async fn counts(&self) -> Value {
        let queue = self.name();
        match self.try_windlass(&["queue", "get", "-q", &queue, "-o", "json"]).await {
            Ok(said) => serde_json::from_str(&said).expect("JSON"),
            Err(said) => json!({"error": said}),
        }
    }

    /// Waits for numbers like these.
    pub(super) async fn until(&self, what: &str, like: impl Fn(&Value) -> bool) -> Value {
        self.cluster
            .wait_for(&self.namespace, what, async || {
                let seen = self.counts().await;
                if like(&seen) { Ok(seen) } else { Err(seen.to_string()) }
            })
            .await
    }

    /// Waits until so many tasks run at once.
    pub(super) async fn running(&self, number: u64) {
        self.until(&format!("{number} running tasks"), |seen| seen["running"] == number).await;
    }

    /// How many tasks each pod holds, by the name that its workers' ids begin with.
    pub(super) async fn held(&self) -> BTreeMap<String, usize> {
        let mut held = BTreeMap::new();
        for task in self.tasks("running").await {
            let worker = task["worker"].as_str().unwrap_or_default();
            let pod = worker.rsplit_once('-').map_or(worker, |(pod, _)| pod);
            *held.entry(pod.to_owned()).or_default() += 1;
        }
        held
    }

    /// All tasks in a state.
    pub(super) async fn tasks(&self, state: &str) -> Vec<Value> {
        let queue = self.name();
        let said =
            self.windlass(&["task", "list", "-q", &queue, "--state", state, "--limit", "1000", "-o", "json"]).await;
        serde_json::from_str(&said).unwrap_or_else(|_| {
            said.lines().map(|line| serde_json::from_str(line).expect("one object a line")).collect()
        })
    }

    /// Waits until all is done, and checks that nothing was lost and that each task has one final result.
    pub(super) async fn all_done(&self, number: usize) -> Vec<Value> {
        let wanted = number as u64;
        self.until("all tasks to be done", |seen| {
            seen["finished"] == wanted && seen["running"] == 0 && seen["backlog"] == 0 && seen["retrying"] == 0
        })
        .await;
        let done = self.tasks("succeeded").await;
        assert_eq!(done.len(), number, "every task succeeded");
        let key = format!("windlass:{{{}}}:result", self.name());
        let results = self.redis(&["XLEN", &key]).await;
        assert_eq!(results.trim(), number.to_string(), "one result each");
        done
    }

    pub(super) async fn redis(&self, command: &[&str]) -> String {
        let mut all = vec!["-n", &self.namespace, "exec", "deploy/redis", "--", "/usr/bin/redis-cli"];
        all.extend(command);
        self.cluster.kubectl(&all).await
    }

    /// What the operator logged.
    pub(super) async fn said(&self) -> String {
        self.cluster.kubectl(&["-n", &self.namespace, "logs", "deploy/windlass", "--tail=-1"]).await
    }

    /// Kills the first process of a pod's container, from its node.
    pub(super) async fn kill9(&self, pod: &Pod, container: &str) {
        let (node, id) = place_of(pod, container);
        self.cluster.kill9(&node, &id).await;
    }

    /// Has the first process of a pod's container killed for want of memory, from its node.
    pub(super) async fn exhaust_memory(&self, pod: &Pod, container: &str) {
        let (node, id) = place_of(pod, container);
        self.cluster.exhaust_memory(&node, &id).await;
    }
}

impl Drop for Stage<'_> {
    fn drop(&mut self) {
        // While there is an operator that takes finalizers away.
        if !self.cluster.is_ours() {
            blocking_kubectl(
                self.cluster,
                &["delete", "taskqueues,workerpools", "--all", "--timeout=60s", "-n", &self.namespace],
            );
        }
        Guests::leave(self.cluster);
    }
}

/// The stages on somebody's own cluster: what they define there goes with the last of them, unless it was there before.
struct Guests {
    number: usize,
    definitions_are_ours: bool,
}

static GUESTS: Mutex<Guests> = Mutex::new(Guests { number: 0, definitions_are_ours: false });
const DEFINITIONS: [&str; 2] = ["taskqueues.windlass.dev", "workerpools.windlass.dev"];

impl Guests {
    fn arrive(cluster: &Kubernetes) {
        if cluster.is_ours() {
            return;
        }
        let mut guests = GUESTS.lock().expect("nobody panics with it");
        if guests.number == 0 {
            let there = blocking_kubectl(
                cluster,
                &[&["get", "crd", "--ignore-not-found", "-o", "name"], &DEFINITIONS[..]].concat(),
            );
            guests.definitions_are_ours = there.is_some_and(|names| names.trim().is_empty());
        }
        guests.number += 1;
    }

    fn leave(cluster: &Kubernetes) {
        if cluster.is_ours() {
            return;
        }
        // One that panicked while it had this has said so.
        let Ok(mut guests) = GUESTS.lock() else { return };
        guests.number -= 1;
        if guests.number == 0 && guests.definitions_are_ours {
            blocking_kubectl(cluster, &[&["delete", "crd", "--timeout=60s"], &DEFINITIONS[..]].concat());
        }
    }
}

/// Runs `kubectl` where nobody can be awaited; `None` if it fails.
fn blocking_kubectl(cluster: &Kubernetes, arguments: &[&str]) -> Option<String> {
    let mut kubectl = std::process::Command::new(cluster.program("kubectl"));
    let output = kubectl.arg("--kubeconfig").arg(cluster.kubeconfig()).args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The node of a pod, and the id of a container there.
fn place_of(pod: &Pod, container: &str) -> (String, String) {
    let status = pod.status.as_ref().expect("a status");
    let all = status.container_statuses.iter().chain(&status.init_container_statuses).flatten();
    let of = |one: &&k8s_openapi::api::core::v1::ContainerStatus| one.name == container;
    let id = all.into_iter().find(of).and_then(|one| one.container_id.clone()).expect("it runs");
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).expect("a node");
    (node, id.trim_start_matches("containerd://").to_owned())
}

/// Judges a promise of time by attempts that tell how long it took, or nothing where it cannot be tried. A machine that
/// is busy with something else may be late; a promise that does not hold is broken each time.
pub(super) async fn in_time(promised: Duration, mut attempt: impl AsyncFnMut() -> Option<Duration>) {
    let mut late = Vec::new();
    while late.len() < 3 {
        match attempt().await {
            Some(took) if took > promised => late.push(took),
            _ => return,
        }
    }
    panic!("it is to take {promised:?} at most, and took {late:?}");
}

/// A clock that a test reads out.
pub(super) struct Watch(Instant);

impl Watch {
    pub(super) fn start() -> Self {
        Self(Instant::now())
    }

    /// Prints how long something took.
    pub(super) fn read(&self, what: &str) -> Duration {
        let took = self.0.elapsed();
        eprintln!("measured: {what}: {:.1} s", took.as_secs_f64());
        took
    }
}

/// The application's container.
pub(super) fn application() -> Value {
    json!({
        "name": "app", "image": "localhost/python:test", "args": ["-c", APPLICATION],
        "readinessProbe": {"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 1, "timeoutSeconds": 10},
    })
}

/// A Redis that keeps what it has, on the node that is never cut off.
fn redis(image: &str) -> Value {
    let pod = json!({
        "nodeSelector": {"kubernetes.io/hostname": "node1"},
        "containers": [{"name": "redis", "image": image, "args": ["--appendonly", "yes", "--dir", "/tmp", "--bind", "0.0.0.0", "--protected-mode", "no"],
            "readinessProbe": {"exec": {"command": ["/usr/bin/redis-cli", "ping"]}, "periodSeconds": 1, "timeoutSeconds": 10}}],
    });
    json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "redis"}, "spec": {"selector": {"app": "redis"}, "ports": [{"port": 6379}]}},
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "redis"}, "spec": {
            "selector": {"matchLabels": {"app": "redis"}},
            "template": {"metadata": {"labels": {"app": "redis"}}, "spec": pod}}},
    ]})
}

fn available(deployment: &Deployment) -> i32 {
    deployment.status.as_ref().and_then(|status| status.available_replicas).unwrap_or(0)
}

/// Whether a pod is the one of that name.
pub(super) fn named<'p>(pods: &'p [Pod], name: &str) -> &'p Pod {
    pods.iter().find(|pod| pod.name_any() == name).expect("there is such a pod")
}

async fn define(cluster: &Kubernetes, client: &Client) {
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    for kind in windlass::crd::Kind::ALL {
        cluster.apply("default", &windlass::crd::yaml(kind)).await;
        let established = |found: Option<&CustomResourceDefinition>| {
            let conditions = found.and_then(|found| found.status.as_ref()?.conditions.as_ref());
            conditions.is_some_and(|all| all.iter().any(|one| one.type_ == "Established" && one.status == "True"))
        };
        cluster.wait(&definitions, kind.file_name().trim_end_matches(".yaml"), "to be established", established).await;
    }
}
