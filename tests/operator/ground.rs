//! A namespace, a Redis and operators that look after the one on the other.

use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use serde_json::Value;
use tokio::sync::OnceCell;
use windlass::QueueName;
use windlass::broker::redis::{RedisBroker, RedisOptions};
use windlass::crd::TaskQueue;
use windlass::protocol::keys::Keys;

use crate::kubernetes::{Kubernetes, LIMIT, TestNamespace};
use crate::support::servers::process::{Told, signal, spawn_told};
use crate::support::servers::{Flavor, Server};

/// How the chart calls the ServiceAccount and the Lease of a release named windlass.
pub(crate) const RELEASE: &str = "windlass";

/// Where a test takes place.
pub(crate) struct Ground {
    pub(crate) cluster: &'static Kubernetes,
    pub(crate) namespace: TestNamespace<'static>,
    pub(crate) redis: Server,
    pub(crate) client: Client,
}

impl Ground {
    /// A namespace of its own on the shared API server, with the chart's rights, and a fresh Redis.
    pub(crate) async fn new() -> Self {
        Self::with(Server::builder(Flavor::Redis70).aof_always().start().await).await
    }

    pub(crate) async fn with(redis: Server) -> Self {
        static DEFINED: OnceCell<()> = OnceCell::const_new();
        let cluster = Kubernetes::api().await;
        DEFINED.get_or_init(|| define(cluster)).await;
        let namespace = cluster.namespace().await;
        grant(cluster, &namespace, Some(&namespace), |_| true).await;
        let client = cluster.client().await;
        Self { cluster, namespace, redis, client }
    }

    /// Starts an operator for this namespace with this Redis as its default.
    pub(crate) async fn operator(&self) -> Operator {
        self.operator_with(&[]).await
    }

    /// The same, with more settings; an empty one takes a setting away.
    pub(crate) async fn operator_with(&self, settings: &[(&str, &str)]) -> Operator {
        let url = self.redis.url();
        let usual = [("WINDLASS_REDIS_URL", url.as_str()), ("WINDLASS_NAMESPACES", &self.namespace)];
        let settings: Vec<_> = usual.iter().chain(settings).copied().collect();
        Operator::start(self.cluster, &self.namespace, &settings).await
    }

    pub(crate) fn queues(&self) -> Api<TaskQueue> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub(crate) fn leases(&self) -> Api<Lease> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Applies a TaskQueue with that spec, in YAML on one line.
    pub(crate) async fn apply(&self, name: &str, spec: &str) {
        self.cluster.apply(&self.namespace, &queue(name, spec)).await;
    }

    pub(crate) fn name(&self, queue: &str) -> QueueName {
        format!("{}/{queue}", &*self.namespace).parse().expect("a valid name")
    }

    /// The queue as producers and workers find it.
    pub(crate) fn broker(&self, queue: &str) -> RedisBroker {
        self.broker_on(&self.redis, queue)
    }

    pub(crate) fn broker_on(&self, redis: &Server, queue: &str) -> RedisBroker {
        let keys = Keys::new(&self.name(queue));
        RedisBroker::new(keys, RedisOptions::new(redis.url())).expect("a usable URL")
    }

    /// Waits until a condition of a queue has that status and reason.
    pub(crate) async fn shows(&self, queue: &str, condition: &str, status: &str, reason: &str) -> TaskQueue {
        let what = format!("to say {condition}={status} ({reason})");
        let wanted = |found: Option<&TaskQueue>| {
            let found = found.and_then(|queue| condition_of(queue, condition));
            found.is_some_and(|found| (found.status.as_str(), found.reason.as_str()) == (status, reason))
        };
        self.cluster.wait(&self.queues(), queue, &what, wanted).await.expect("it was there")
    }

    /// Waits until a queue is ready.
    pub(crate) async fn ready(&self, queue: &str) -> TaskQueue {
        self.shows(queue, "Ready", "True", "Ready").await
    }

    /// Waits until an Event with that reason is on a queue, and returns its note.
    pub(crate) async fn told(&self, queue: &str, reason: &str) -> String {
        let events: Api<k8s_openapi::api::events::v1::Event> = Api::namespaced(self.client.clone(), &self.namespace);
        let look = async || {
            let all = events.list(&Default::default()).await.map_err(|error| error.to_string())?;
            let about = |event: &&k8s_openapi::api::events::v1::Event| {
                let name = event.regarding.as_ref().and_then(|object| object.name.as_deref());
                name == Some(queue) && event.reason.as_deref() == Some(reason)
            };
            let found = all.items.iter().find(about).and_then(|event| event.note.clone());
            found.ok_or_else(|| format!("{} other events", all.items.len()))
        };
        self.cluster.wait_for(&self.namespace, &format!("an Event {reason} on {queue}"), look).await
    }

    /// Waits until something on the Redis is as it should be.
    pub(crate) async fn until(&self, what: &str, mut look: impl AsyncFnMut() -> Result<(), String>) -> Duration {
        let started = Instant::now();
        self.cluster.wait_for(&self.namespace, what, async || look().await).await;
        started.elapsed()
    }

    /// Waits until an object is gone.
    pub(crate) async fn gone(&self, queue: &str) {
        self.cluster.wait(&self.queues(), queue, "to be gone", |found| found.is_none()).await;
    }

    pub(crate) async fn merge(&self, queue: &str, patch: Value) {
        let patched = self.queues().patch(queue, &PatchParams::default(), &Patch::Merge(patch)).await;
        patched.expect("the object takes the change");
    }
}

/// A condition of a queue.
pub(crate) fn condition_of<'a>(queue: &'a TaskQueue, condition: &str) -> Option<&'a Condition> {
    queue.status.as_ref()?.conditions.iter().find(|one| one.type_ == condition)
}

/// A manifest with that spec, in YAML on one line.
pub(crate) fn queue(name: &str, spec: &str) -> String {
    format!("{{apiVersion: windlass.dev/v1alpha1, kind: TaskQueue, metadata: {{name: {name}}}, spec: {spec}}}\n")
}

/// Installs the definitions, and waits until they are served.
pub(crate) async fn define(cluster: &Kubernetes) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let crds = root.join("crds");
    cluster.kubectl(&["apply", "--server-side", "-f", crds.to_str().expect("UTF-8")]).await;
    let names = ["crd/taskqueues.windlass.dev", "crd/workerpools.windlass.dev"];
    let wait = ["wait", "--for=condition=Established", "--timeout=120s"];
    cluster.kubectl(&[&wait[..], &names[..]].concat()).await;
}

/// The chart's manifests for a release in that namespace, one document each.
pub(crate) async fn chart(cluster: &Kubernetes, namespace: &str, settings: &[&str]) -> Vec<Value> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut helm = tokio::process::Command::new(cluster.program("helm"));
    helm.args(["template", RELEASE, "--skip-tests", "--namespace", namespace]).arg(root.join("charts/windlass"));
    for setting in settings {
        helm.args(["--set", setting]);
    }
    let output = helm.output().await.expect("helm starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let documents = text.split("\n---").map(|document| serde_yaml::from_str(document).expect("YAML"));
    documents.filter(|document: &Value| !document.is_null()).collect()
}

/// Gives the ServiceAccount of a release the chart's rights, for one namespace or for all; only rules that `keep` keeps.
pub(crate) async fn grant(cluster: &Kubernetes, namespace: &str, watched: Option<&str>, keep: impl Fn(&Value) -> bool) {
    let setting = watched.map(|watched| format!("watchNamespaces={{{watched}}}"));
    let settings: Vec<&str> = setting.iter().map(String::as_str).collect();
    for mut document in chart(cluster, namespace, &settings).await {
        if document["kind"] == "Deployment" {
            continue;
        }
        if let Some(rules) = document.get_mut("rules").and_then(Value::as_array_mut) {
            rules.retain(|rule| keep(rule));
        }
        install(cluster, &document).await;
    }
}

/// Applies a manifest of the chart, which names its namespace itself.
pub(crate) async fn install(cluster: &Kubernetes, document: &Value) {
    let arguments = ["apply", "--server-side", "--force-conflicts", "--field-manager=helm", "-f", "-"];
    let applied = cluster.try_kubectl(&arguments, &document.to_string()).await;
    applied.unwrap_or_else(|said| panic!("{said}\n{document}"));
}

/// An operator in a process of its own, which ends with this value.
pub(crate) struct Operator {
    child: Mutex<Child>,
    log: PathBuf,
    _kubeconfig: tempfile::NamedTempFile,
    _dir: tempfile::TempDir,
}

impl Operator {
    /// Starts one as the ServiceAccount of a release in that namespace, and waits until it serves probes.
    pub(crate) async fn start(cluster: &Kubernetes, namespace: &str, settings: &[(&str, &str)]) -> Self {
        let kubeconfig = cluster.kubeconfig_as(namespace, RELEASE).await;
        let dir = tempfile::tempdir().expect("a directory");
        let log = dir.path().join("operator.log");
        let own = [
            ("KUBECONFIG", kubeconfig.path().to_str().expect("UTF-8")),
            ("WINDLASS_LEASE_NAMESPACE", namespace),
            ("WINDLASS_LEASE_NAME", RELEASE),
            ("WINDLASS_LISTEN", "127.0.0.1:0"),
            ("WINDLASS_LOG_FORMAT", "json"),
            ("WINDLASS_LOG", "info,windlass=debug"),
        ];
        let mut arguments: Vec<String> =
            own.iter().chain(settings).map(|(name, value)| format!("{name}={value}")).collect();
        arguments.extend([env!("CARGO_BIN_EXE_windlass").to_owned(), "operator".to_owned()]);
        let child = spawn_told(Told::Nothing, None, Path::new("env"), &arguments, &log);
        let operator = Self { child: Mutex::new(child), log, _kubeconfig: kubeconfig, _dir: dir };
        operator.says("probes and metrics are served").await;
        operator
    }

    /// What it has logged.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until it has logged something with these words in it.
    pub(crate) async fn says(&self, words: &str) -> Value {
        let started = Instant::now();
        loop {
            let found = self.log().lines().find(|line| line.contains(words)).map(str::to_owned);
            if let Some(line) = found {
                return serde_json::from_str(&line).unwrap_or(Value::Null);
            }
            assert!(started.elapsed() < LIMIT, "the operator never said {words:?}:\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// What a page of its server shows: status and text.
    pub(crate) async fn page(&self, path: &str) -> (u16, String) {
        let said = self.says("probes and metrics are served").await;
        let address = said["address"].as_str().expect("an address").to_owned();
        let answer = reqwest::Client::new().get(format!("http://{address}{path}")).send().await.expect("it answers");
        (answer.status().as_u16(), answer.text().await.expect("text"))
    }

    /// A value of its metrics.
    pub(crate) async fn metric(&self, name: &str) -> Option<f64> {
        let (_, text) = self.page("/metrics").await;
        let line = text.lines().find(|line| line.starts_with(name))?;
        line.rsplit(' ').next()?.parse().ok()
    }

    /// The processor time that it has taken, and the memory that it holds in MiB.
    pub(crate) fn usage(&self) -> (Duration, u64) {
        let id = self.child.lock().expect("nobody panics with it").id();
        let read = |name: &str| std::fs::read_to_string(format!("/proc/{id}/{name}")).expect("it is running");
        let stat = read("stat");
        let fields: Vec<&str> = stat.rsplit(')').next().expect("fields").split_whitespace().collect();
        let ticks = |field: usize| fields[field].parse::<u64>().expect("a number");
        // User and system time, in hundredths of a second; pages of 4 KiB.
        let resident = read("statm").split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok());
        (Duration::from_millis((ticks(11) + ticks(12)) * 10), resident.expect("a number") / 256)
    }

    pub(crate) fn kill9(&self) {
        let mut child = self.child.lock().expect("nobody panics with it");
        child.kill().expect("it was running");
        child.wait().expect("it ends");
    }

    pub(crate) fn signal(&self, name: &str) {
        signal(self.child.lock().expect("nobody panics with it").id(), name);
    }

    pub(crate) fn is_running(&self) -> bool {
        matches!(self.child.lock().expect("nobody panics with it").try_wait(), Ok(None))
    }

    /// Waits until it has ended by itself.
    pub(crate) async fn ended(&self) {
        let started = Instant::now();
        while self.is_running() {
            assert!(started.elapsed() < LIMIT, "the operator does not end:\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let tail: Vec<&str> = log.lines().rev().take(30).collect();
            eprintln!("--- operator\n{}", tail.into_iter().rev().collect::<Vec<_>>().join("\n"));
        }
        if self.is_running() {
            self.kill9();
        }
    }
}
