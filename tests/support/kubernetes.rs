//! A real Kubernetes for the integration tests.
//!
//! Owns: starting and ending clusters, and what a test does with one from outside: clients as anybody,
//! manifests, waiting. Must not know: Windlass' own resources, Redis.
//!
//! A test file that wants it says so, because it would cost every other one its compile time:
//!
//! ```no_run
//! mod support;
//! #[path = "support/kubernetes.rs"]
//! mod kubernetes;
//!
//! let cluster = Kubernetes::api().await;      // shared by the tests of this process
//! let namespace = cluster.namespace().await;  // one a test
//! let client = cluster.client().await;
//! ```
//!
//! # Levels
//!
//! *API level* ([`Kubernetes::api`]): etcd, apiserver and controller manager on free loopback ports, in
//! seconds and without root. Deployments get ReplicaSets and Pods; the Pods stay Pending. *Node level*
//! ([`Kubernetes::nodes`]): two nodes that run pods, in namespaces of their own; needs root.
//!
//! # Where it comes from, and where it goes
//!
//! `tests/cluster/cluster.py` starts both, as it does for `make cluster`, with the programs that
//! `make kubernetes` built. It ends with this process, however that ends, and cleans up behind itself.

#![allow(dead_code, unused_imports, reason = "each test file uses a part of this")]
#![allow(unreachable_pub, reason = "`pub` marks what tests may use")]

#[path = "kubernetes/images.rs"]
mod images;
#[path = "kubernetes/nodes.rs"]
mod nodes;
#[path = "kubernetes/waiting.rs"]
mod waiting;

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use kube::api::{Api, ObjectMeta, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::sync::OnceCell;

pub use images::{BUILT_IMAGE, Image};
pub use nodes::NODES_REQUIRED;
use nodes::Node;

use crate::support::servers::process::{Berth, Told, signal, spawn_told};

/// How long a cluster may take to start, and any condition to come. Only ever reached by a test that
/// fails.
pub const LIMIT: Duration = Duration::from_secs(180);

/// How often a condition is asked for again.
pub const POLL: Duration = Duration::from_millis(100);

/// Names a cluster of somebody's own. A plain `KUBECONFIG` is never read: it may be production.
pub const OWN_CLUSTER: &str = "WINDLASS_TEST_KUBECONFIG";

/// A cluster that is up.
#[derive(Debug)]
pub struct Kubernetes {
    /// `None`: somebody else's, which is left running.
    keeper: Option<Keeper>,
    kubeconfig: PathBuf,
    bin: PathBuf,
    /// The first process inside, by its number out here.
    init: Option<u32>,
    nodes: Vec<Node>,
    /// What tests had put on its nodes.
    images: images::Loaded,
}

/// The process that runs a cluster, and its place.
#[derive(Debug)]
struct Keeper {
    process: Mutex<Child>,
    berth: Berth,
}

/// What `cluster.py` tells once the cluster is up.
#[derive(Debug, Deserialize)]
struct Ready {
    kubeconfig: PathBuf,
    bin: PathBuf,
    init: Option<u32>,
    nodes: Vec<Node>,
}

/// How much of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    Api,
    Node,
}

impl Kubernetes {
    /// The API level that the tests of this process share.
    pub async fn api() -> &'static Self {
        static SHARED: OnceCell<Kubernetes> = OnceCell::const_new();
        SHARED.get_or_init(Self::start_api).await
    }

    /// An API level of one's own, for tests that break it.
    pub async fn start_api() -> Self {
        Self::start(Level::Api).await
    }

    /// The cluster with nodes that the tests of this process share: two of our own, or somebody's own
    /// cluster if [`OWN_CLUSTER`] names one. `None` where no pods can run, which is then said; a test
    /// that needs them has nothing to do there. With [`NODES_REQUIRED`] it fails instead.
    pub async fn nodes() -> Option<&'static Self> {
        static SHARED: OnceCell<Option<Kubernetes>> = OnceCell::const_new();
        let shared = async || match std::env::var_os(OWN_CLUSTER).filter(|path| !path.is_empty()) {
            Some(path) => Some(Self::somebodys(PathBuf::from(path)).await),
            None if nodes::can_run() => Some(Self::start_nodes().await),
            None => None,
        };
        SHARED.get_or_init(shared).await.as_ref()
    }

    /// A cluster with two nodes of one's own, for tests that break it.
    pub async fn start_nodes() -> Self {
        Self::start(Level::Node).await
    }

    /// Somebody's own cluster.
    async fn somebodys(kubeconfig: PathBuf) -> Self {
        assert!(kubeconfig.is_file(), "{OWN_CLUSTER} names {}, which is no file", kubeconfig.display());
        let asked = tokio::process::Command::new(harness("build.sh")).arg("--where").output().await;
        let bin = String::from_utf8(asked.expect("build.sh starts").stdout).expect("a path");
        let bin = PathBuf::from(bin.trim());
        let cluster = Self { keeper: None, kubeconfig, bin, init: None, nodes: Vec::new(), images: Default::default() };
        cluster.load_shell_image().await;
        cluster
    }

    async fn start(level: Level) -> Self {
        let berth = Berth::claim();
        let level_name = if level == Level::Api { "api" } else { "node" };
        let arguments = [
            "up".to_owned(),
            format!("--level={level_name}"),
            format!("--dir={}", berth.dir().display()),
            format!("--port={}", berth.port()),
            format!("--etcd-port={}", berth.bus_port()),
        ];
        let output = berth.dir().join("cluster.log");
        let process = spawn_told(Told::ToEnd, None, &harness("cluster.py"), &arguments, &output);
        let keeper = Keeper { process: Mutex::new(process), berth };
        let ready = keeper.ready().await;
        Self {
            keeper: Some(keeper),
            kubeconfig: ready.kubeconfig,
            bin: ready.bin,
            init: ready.init,
            nodes: ready.nodes,
            images: Default::default(),
        }
    }

    /// The administrator's kubeconfig. Good for programs on this machine, not for pods.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// A client as administrator. Made anew for each test, because its connections belong to the runtime
    /// that made it.
    pub async fn client(&self) -> Client {
        client_of(Kubeconfig::read_from(&self.kubeconfig).expect("the kubeconfig can be read")).await
    }

    /// A client as a ServiceAccount, which must exist, with a token that the apiserver issued.
    pub async fn client_as(&self, namespace: &str, account: &str) -> Client {
        let config = self.config_as(namespace, account).await;
        client_of(Kubeconfig::from_yaml(&config.to_string()).expect("a kubeconfig")).await
    }

    /// The kubeconfig of a ServiceAccount, for programs.
    pub async fn kubeconfig_as(&self, namespace: &str, account: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        std::fs::write(file.path(), self.config_as(namespace, account).await.to_string()).expect("it can be written");
        file
    }

    async fn config_as(&self, namespace: &str, account: &str) -> Value {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client().await, namespace);
        let asked = TokenRequest {
            spec: Some(TokenRequestSpec { expiration_seconds: Some(3600), ..Default::default() }),
            ..Default::default()
        };
        let issued = accounts
            .create_token_request(account, &PostParams::default(), &asked)
            .await
            .unwrap_or_else(|error| panic!("no token for {namespace}/{account}: {error}"));
        let text = std::fs::read_to_string(&self.kubeconfig).expect("the kubeconfig can be read");
        let mut config: Value = serde_yaml::from_str(&text).expect("a kubeconfig");
        let token = issued.status.expect("a token request is answered in its status").token;
        config["users"] = json!([{ "name": account, "user": { "token": token } }]);
        for context in config["contexts"].as_array_mut().expect("a kubeconfig has contexts") {
            context["context"]["user"] = json!(account);
            context["context"]["namespace"] = json!(namespace);
        }
        config
    }

    /// A namespace that no other test uses, with its default ServiceAccount, without which pods are
    /// refused. In somebody's own cluster it is deleted when this value goes.
    pub async fn namespace(&self) -> TestNamespace<'_> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        // Somebody's own cluster outlives this process, and has seen others with its number.
        let name = format!("test-{}-{:04x}-{number}", std::process::id(), fastrand::u16(..));
        let client = self.client().await;
        let made =
            Namespace { metadata: ObjectMeta { name: Some(name.clone()), ..Default::default() }, ..Default::default() };
        let namespaces: Api<Namespace> = Api::all(client.clone());
        namespaces.create(&PostParams::default(), &made).await.expect("a namespace is made");
        let namespace = TestNamespace { cluster: self, name };
        let accounts: Api<ServiceAccount> = Api::namespaced(client, &namespace);
        self.wait(&accounts, "default", "to exist", |found| found.is_some()).await;
        namespace
    }

    /// Runs `kubectl` (the one that belongs to the cluster) as administrator and returns what it printed.
    ///
    /// # Panics
    ///
    /// If it fails, with what it said.
    pub async fn kubectl(&self, arguments: &[&str]) -> String {
        self.try_kubectl(arguments, "").await.unwrap_or_else(|said| panic!("kubectl {arguments:?}: {said}"))
    }

    /// Runs `kubectl` with something on its standard input; `Err` is what it said when it failed.
    pub async fn try_kubectl(&self, arguments: &[&str], input: &str) -> Result<String, String> {
        self.run("kubectl", arguments, input).await
    }

    /// Runs `helm` as administrator and returns what it printed; `Err` is what it said when it failed.
    pub async fn try_helm(&self, arguments: &[&str]) -> Result<String, String> {
        self.run("helm", arguments, "").await
    }

    async fn run(&self, program: &str, arguments: &[&str], input: &str) -> Result<String, String> {
        // What Helm keeps of its own is not kept.
        let own = tempfile::tempdir().expect("a temporary directory");
        let mut running = tokio::process::Command::new(self.program(program))
            .arg("--kubeconfig")
            .arg(&self.kubeconfig)
            .args(arguments)
            .envs(["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"].map(|name| (name, own.path())))
            .env_remove("KUBECONFIG")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap_or_else(|error| panic!("{program} cannot be started: {error}"));
        // One that gave up early does not read; what it says tells more than that.
        let _ = running.stdin.take().expect("it was asked for").write_all(input.as_bytes()).await;
        let output = running.wait_with_output().await.expect("it ends");
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }

    /// The path of a program that was built with the cluster (`kubectl`, `helm`).
    pub fn program(&self, name: &str) -> PathBuf {
        let program = self.bin.join(name);
        assert!(program.is_file(), "{} is missing: run `make kubernetes`", program.display());
        program
    }

    /// Applies manifests (YAML, any number of documents) to a namespace, on the server's side.
    ///
    /// # Panics
    ///
    /// If one is refused, with the reason.
    pub async fn apply(&self, namespace: &str, manifests: &str) {
        self.try_apply(namespace, manifests)
            .await
            .unwrap_or_else(|said| panic!("applying to {namespace} failed: {said}\n{manifests}"));
    }

    /// Applies manifests; `Err` is why one was refused.
    pub async fn try_apply(&self, namespace: &str, manifests: &str) -> Result<String, String> {
        let arguments = ["--namespace", namespace, "apply", "--server-side", "--field-manager=tests", "-f", "-"];
        self.try_kubectl(&arguments, manifests).await
    }

    /// The folder with the logs of the cluster's own programs, if it is ours.
    fn logs(&self) -> Option<PathBuf> {
        self.keeper.as_ref().map(|keeper| keeper.berth.dir().join("logs"))
    }
}

/// A namespace of a test; derefs to its name.
#[derive(Debug)]
pub struct TestNamespace<'a> {
    cluster: &'a Kubernetes,
    name: String,
}

impl Deref for TestNamespace<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.name
    }
}

impl Drop for TestNamespace<'_> {
    fn drop(&mut self) {
        if self.cluster.keeper.is_none() {
            // A failure leaves a namespace behind; a panic here could hide the one that matters.
            let _ = std::process::Command::new(self.cluster.bin.join("kubectl"))
                .arg("--kubeconfig")
                .arg(&self.cluster.kubeconfig)
                .args(["delete", "namespace", &self.name, "--wait=false"])
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status();
        }
    }
}

impl Keeper {
    /// Waits until the cluster is up.
    ///
    /// # Panics
    ///
    /// If it does not come up, with what it said.
    async fn ready(&self) -> Ready {
        let dir = self.berth.dir();
        let said = || std::fs::read_to_string(dir.join("cluster.log")).unwrap_or_default();
        let started = Instant::now();
        loop {
            if let Ok(text) = std::fs::read(dir.join("ready.json")) {
                return serde_json::from_slice(&text).expect("cluster.py writes it whole");
            }
            let ended = self.process.lock().expect("nobody panics with it").try_wait().expect("it is our child");
            assert!(ended.is_none(), "the cluster did not start: {}", said());
            assert!(started.elapsed() < LIMIT, "the cluster did not start within {LIMIT:?}: {}", said());
            tokio::time::sleep(POLL).await;
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // Told, not killed: what it made has to go with it. It is waited for, because the directory and
        // the ports are given back right after.
        if let Ok(mut process) = self.process.lock() {
            if let Ok(None) = process.try_wait() {
                signal(process.id(), "TERM");
            }
            let _ = process.wait();
        }
    }
}

/// A file of the harness that starts clusters.
fn harness(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cluster").join(file)
}

/// A client for a kubeconfig.
async fn client_of(config: Kubeconfig) -> Client {
    // The other tests' clients install the same one; whoever is first wins.
    drop(rustls::crypto::ring::default_provider().install_default());
    let mut config =
        Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await.expect("a usable kubeconfig");
    // Whatever the environment says, a cluster on this machine is not reached through a proxy.
    config.proxy_url = None;
    // A test sees what the server answers; by itself a client repeats what was refused with 429.
    config.default_retry = false;
    Client::try_from(config).expect("a client")
}
