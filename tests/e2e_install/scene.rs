//! A cluster without Windlass, and a person who types.

use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::{Mutex, MutexGuard, OnceCell};

use super::load::Work;
use crate::kubernetes::{BUILT_IMAGE, Image, Kubernetes, TestNamespace};

/// Whose turn it is: definitions and ClusterRoles are the whole cluster's.
static TURN: Mutex<()> = Mutex::const_new(());

/// What a namespace says so that pods which are not Restricted are refused.
const RESTRICTED: &str = "pod-security.kubernetes.io/enforce=restricted";

/// What points the chart to the image that the nodes have.
pub(super) const IMAGE: &str = "--set image.registry=localhost --set image.repository=windlass";

/// What one test stands on, for as long as it is its turn.
pub(super) struct Scene {
    pub(super) cluster: &'static Kubernetes,
    pub(super) client: Client,
    /// What Helm keeps of its own.
    home: tempfile::TempDir,
    _turn: MutexGuard<'static, ()>,
}

/// Where a release, its users and their Redis are: a namespace each.
pub(super) struct Place {
    pub(super) system: TestNamespace<'static>,
    pub(super) jobs: TestNamespace<'static>,
    pub(super) store: TestNamespace<'static>,
}

impl Scene {
    /// A cluster on which nothing is installed; `None` where pods cannot run, or where the cluster is somebody's own,
    /// which is then said.
    pub(super) async fn enter() -> Option<Self> {
        let cluster = Kubernetes::our_nodes().await?;
        let turn = TURN.lock().await;
        load_images(cluster).await;
        let home = tempfile::tempdir().expect("a temporary directory");
        let scene = Self { cluster, client: cluster.client().await, home, _turn: turn };
        scene.clear().await;
        Some(scene)
    }

    /// Removes what the test before left, however it ended.
    async fn clear(&self) {
        let releases = self.types("helm list -A -o json").await;
        for release in serde_json::from_str::<Vec<Value>>(&releases).expect("JSON") {
            let of = |field: &str| release[field].as_str().expect("a text").to_owned();
            self.types(&format!("helm uninstall {} -n {} --ignore-not-found", of("name"), of("namespace"))).await;
        }
        // No operator is there any more to take finalizers away. What one before was still removing may go meanwhile.
        self.types(
            "if kubectl get crd taskqueues.windlass.dev >/dev/null 2>&1; then
               kubectl get taskqueues -A --no-headers -o custom-columns=A:.metadata.namespace,B:.metadata.name |
                 while read -r namespace name; do
                   kubectl patch -n $namespace taskqueue/$name --type=merge -p '{\"metadata\": {\"finalizers\": null}}' ||
                     [[ -z $(kubectl get -n $namespace taskqueue/$name --ignore-not-found -o name) ]]
                 done
               kubectl delete crd taskqueues.windlass.dev workerpools.windlass.dev --ignore-not-found
             fi
             kubectl get namespaces -o name | sed -e '/kube-/d' -e '/default/d' |
               xargs -r kubectl delete --wait=false --ignore-not-found",
        )
        .await;
    }

    /// Runs what a person types, in the project's folder; any command that fails ends it.
    ///
    /// # Panics
    ///
    /// If it fails, with what it said and what there is to see.
    pub(super) async fn types(&self, text: &str) -> String {
        match self.tries(text).await {
            Ok(said) => said,
            Err(said) => panic!("{text}\n{said}\n{}", self.look_around().await),
        }
    }

    /// The same; `Err` is everything that it said when it failed.
    pub(super) async fn tries(&self, text: &str) -> Result<String, String> {
        let programs = self.cluster.program("kubectl").parent().map(Path::to_owned).expect("a folder");
        let others = std::env::var_os("PATH").unwrap_or_default();
        let path = std::iter::once(programs).chain(std::env::split_paths(&others));
        let output = tokio::process::Command::new("bash")
            .args(["-euo", "pipefail", "-c", text])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .env("PATH", std::env::join_paths(path).expect("folders without colons"))
            .env("KUBECONFIG", self.cluster.kubeconfig())
            .envs(["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"].map(|name| (name, self.home.path())))
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .expect("bash starts");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (said, complained) = (text(&output.stdout), text(&output.stderr));
        if output.status.success() { Ok(said) } else { Err(said + &complained) }
    }

    async fn look_around(&self) -> String {
        let mut told = String::new();
        for namespace in
            self.tries("kubectl get namespaces -o name | sed -e /kube-/d").await.unwrap_or_default().lines()
        {
            let name = namespace.trim_start_matches("namespace/");
            told += &format!("=== {name}\n{}\n", self.cluster.explain(Some(name)).await);
        }
        told
    }

    /// A fresh namespace that refuses pods which are not Restricted.
    pub(super) async fn namespace(&self) -> TestNamespace<'static> {
        let made = self.cluster.namespace().await;
        self.types(&format!("kubectl label namespace {} {RESTRICTED}", &*made)).await;
        made
    }

    /// The same, with a name that somebody's manifests give it.
    pub(super) async fn namespace_named(&self, name: &str) {
        self.types(&format!("kubectl create namespace {name}; kubectl label namespace {name} {RESTRICTED}")).await;
    }

    /// Three namespaces, and a Redis of the test in one of them, whose data outlives its pod.
    pub(super) async fn place(&self) -> Place {
        let (system, jobs, store) = (self.namespace().await, self.namespace().await, self.namespace().await);
        let place = Place { system, jobs, store };
        self.store(&place.store).await;
        place
    }

    /// A Redis of the test in a namespace, whose data outlives its pod.
    pub(super) async fn store(&self, store: &str) {
        // A folder of one node, because nodes have each their own; made here, because a kubelet gives it to root alone.
        let folder = format!("/var/lib/windlass-{store}");
        self.cluster.on_node("node1", &["mkdir", "--mode=777", &folder]).await;
        let hostname = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": ["node1"]});
        let volume = json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": store},
            "spec": {
                "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
                "persistentVolumeReclaimPolicy": "Retain", "hostPath": {"path": folder},
                "claimRef": {"namespace": store, "name": "data-redis-0"},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [hostname]}]}},
            },
        });
        self.cluster.apply(store, &volume.to_string()).await;
        self.types(&format!(
            "kubectl apply -n {store} -f tests/e2e_install/redis.yaml
             kubectl rollout status -n {store} statefulset/redis --timeout=3m"
        ))
        .await;
    }

    /// Installs a release for a place, with further arguments.
    pub(super) async fn install(&self, place: &Place, arguments: &str) {
        let (system, redis) = (&*place.system, place.redis());
        self.types(&format!(
            "helm install windlass charts/windlass -n {system} --wait --timeout 3m \
               {IMAGE} --set image.tag=test --set {redis} {arguments}"
        ))
        .await;
    }

    /// A queue and a pool in front of an application, ready.
    pub(super) async fn work(&self, place: &Place) -> Work {
        let (jobs, store) = (&*place.jobs, &*place.store);
        self.types(&format!(
            "kubectl apply -n {jobs} -f tests/e2e_install/work.yaml
             kubectl wait -n {jobs} --for=condition=Ready taskqueue/work workerpool/workers --timeout=3m"
        ))
        .await;
        let address =
            self.types(&format!("kubectl get service -n {store} redis -o 'jsonpath={{.spec.clusterIP}}'")).await;
        let queue = format!("{jobs}/work").parse().expect("a queue's name");
        Work { cluster: self.cluster, url: format!("redis://{address}:6379"), queue }
    }

    /// The pods with these labels that were not asked to end.
    pub(super) async fn pods(&self, namespace: &str, labels: &str) -> Vec<Pod> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let found = pods.list(&ListParams::default().labels(labels)).await.expect("pods are listed").items;
        found.into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()).collect()
    }

    /// Kills the first process of a pod's container, from its node.
    pub(super) async fn kill9(&self, pod: &Pod, container: &str) {
        let status = pod.status.as_ref().expect("a status");
        let all = status.container_statuses.iter().chain(&status.init_container_statuses).flatten();
        let id = all.into_iter().find(|one| one.name == container).and_then(|one| one.container_id.clone());
        let id = id.unwrap_or_else(|| panic!("{container} of {} does not run", pod.name_any()));
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).expect("a node");
        self.cluster.kill9(&node, id.trim_start_matches("containerd://")).await;
    }
}

impl Place {
    /// Points a release to the Redis of this place.
    pub(super) fn redis(&self) -> String {
        format!("redis.url=redis://redis.{}.svc:6379", &*self.store)
    }
}

/// What manifests of the README and the examples call images. They hold what this machine has: its Python and a shell;
/// and unless the image is the real one the libraries of the program that the operator brings, because a test's is not
/// linked statically.
async fn load_images(cluster: &Kubernetes) {
    static LOADED: OnceCell<()> = OnceCell::const_new();
    let load = async || {
        cluster.windlass_image().await;
        cluster.next_windlass_image().await;
        cluster.name_image(cluster.redis_image().await, "docker.io/library/redis:7.2").await;
        let handlers = Image::new("handlers").shell().python();
        let handlers = if std::env::var_os(BUILT_IMAGE).is_some() {
            handlers.load(cluster).await
        } else {
            let small = tempfile::NamedTempFile::new().expect("a temporary file");
            let mut strip = tokio::process::Command::new("strip");
            strip.arg("-o").arg(small.path()).arg(env!("CARGO_BIN_EXE_windlass"));
            assert!(strip.status().await.expect("strip starts").success());
            handlers.program(small.path(), "/opt/windlass").load(cluster).await
        };
        for name in ["python:3.13-slim", "busybox:1.37"] {
            cluster.name_image(&handlers, &format!("docker.io/library/{name}")).await;
        }
    };
    LOADED.get_or_init(load).await;
}

/// A clock that a test reads out.
pub(super) struct Watch(Instant);

impl Watch {
    pub(super) fn start() -> Self {
        Self(Instant::now())
    }

    /// Prints how long something took.
    pub(super) fn read(&self, what: &str) {
        eprintln!("measured: {what}: {:.1} s", self.0.elapsed().as_secs_f64());
    }
}
