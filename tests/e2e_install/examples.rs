//! The examples in pods, as their comments and the examples' README say, where Restricted is enforced.

use futures::{StreamExt, stream};
use tokio::sync::OnceCell;

use super::scene::{IMAGE, Scene};
use crate::kubernetes::{Image, Kubernetes};
use crate::support::ground::example as program;
use crate::tree::{Example, Try, examples, project, shown, text};

/// Where the profiles of systems that were there before find their Redis.
const STREAMS: &str = "streams";

/// Where Debian's Node.js has modules of its own that it does not start without.
const NODE_MODULES: &str = "/usr/share/nodejs";

/// How many examples run side by side: each has pods that have to start before its tasks are waited for in vain.
const AT_ONCE: usize = 4;

/// How a person waits for what was enqueued.
const ENDS: &str = r#"
ends() { grep -o '"id": *"[^"]*"' | cut -d '"' -f 4 | while read -r task; do
  windlass task wait "$task" -q "$1" --timeout 2m </dev/null || true; done; }
"#;

/// This machine's Node.js, whatever its version, and the worker that the example in Rust has people build.
async fn load_images(cluster: &Kubernetes) {
    static LOADED: OnceCell<()> = OnceCell::const_new();
    let load = async || {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let found = std::env::split_paths(&path).map(|folder| folder.join("node")).find(|node| node.is_file());
        let node = found.expect("there is no node: run `make servers`");
        let mut image = Image::new("node").shell().program(node, "/usr/bin/node");
        for entry in std::fs::read_dir(NODE_MODULES).into_iter().flatten().flatten() {
            let (path, at) = (entry.path(), format!("{NODE_MODULES}/{}", entry.file_name().to_string_lossy()));
            // Some are links to elsewhere, some of them to nothing.
            match path.canonicalize() {
                Ok(real) if real.is_dir() => image = image.tree(real, &at),
                Ok(real) => image = image.file(real, &at),
                Err(_) => {}
            }
        }
        let image = image.load(cluster).await;
        cluster.name_image(&image, "docker.io/library/node:22-slim").await;

        let small = tempfile::NamedTempFile::new().expect("a temporary file");
        let mut strip = tokio::process::Command::new("strip");
        strip.arg("-o").arg(small.path()).arg(program("worker"));
        assert!(strip.status().await.expect("strip starts").success());
        let image = Image::new("worker").shell().program(small.path(), "/usr/bin/worker").load(cluster).await;
        cluster.name_image(&image, "registry.example.com/shop/worker:1.0").await;
    };
    LOADED.get_or_init(load).await;
}

/// Which Redis a queue is on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Store {
    Operators,
    /// One that its manifest names.
    Streams,
}

impl Store {
    fn of(example: &Example) -> Self {
        let names_its_own = text(&example.file).contains(&format!("redis.{STREAMS}.svc"));
        if names_its_own { Self::Streams } else { Self::Operators }
    }
}

/// What the examples' README has people define for a cluster, by where their queue is.
fn defined(store: Store, system: &str) -> String {
    let readme = text(&project().join("examples/README.md"));
    let named = store == Store::Streams;
    let mut blocks = readme.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next());
    let fits = |block: &&str| block.contains("kubectl exec") && block.contains("--redis-url") == named;
    let block = blocks.find(fits).expect("the README has a block for it");
    let defines = block.lines().filter(|line| line.contains("() {") || line.starts_with("export "));
    defines.collect::<Vec<_>>().join("\n").replace("windlass-system", system) + ENDS
}

/// Types one line of what there is to try.
async fn type_it(scene: &Scene, defined: &str, namespace: &str, example: &Example, Try { command, ends }: &Try) {
    let queue = command.split_whitespace().skip_while(|word| *word != "-q").nth(1).unwrap_or_default();
    let there = format!("{namespace}/{queue}");
    let typed = command.replace(&format!("-q {queue}"), &format!("-q {there}"));
    let typed = typed.replace("{default/", &format!("{{{namespace}/"));
    let Some(state) = ends else {
        scene.types(&format!("{defined}\n{typed}")).await;
        return;
    };
    let enqueues = command.contains("task enqueue");
    let wait = if enqueues { format!("{typed} -o json | ends {there}") } else { format!("{typed} || true") };
    let said = scene.types(&format!("{defined}\n{wait}")).await;
    let number = command.split_once("-n ").map_or(1, |(_, rest)| rest.trim().parse().expect("a number"));
    eprintln!("{}: {command}: {number} {state}", shown(&example.file));
    assert_eq!(said.matches(state.as_str()).count(), number, "{}: {command}\n{said}", shown(&example.file));
}

/// Waits until a pool has that many pods.
async fn has_pods(scene: &Scene, namespace: &str, pool: &str, number: u32) {
    let wait =
        format!("kubectl wait -n {namespace} workerpool/{pool} --timeout=3m --for=jsonpath='{{.status.replicas}}'");
    scene.types(&format!("{wait}={number}")).await;
    eprintln!("{pool} has {number} pods");
}

/// Applies one in a namespace of its own, and tries what it says.
async fn try_it(scene: &Scene, system: &str, example: &Example) {
    let command = example.cluster.iter().find(|line| line.starts_with("kubectl apply "));
    let command = command.unwrap_or_else(|| panic!("{example:?} does not say what a cluster is given"));
    // What brings its own namespace brings that along.
    let own = text(&example.file).contains("-q shop-staging/").then(|| "shop-staging".to_owned());
    let made = scene.namespace().await;
    let namespace = own.unwrap_or_else(|| made.to_string());
    scene
        .types(&format!(
            "export KUBECONFIG=$(mktemp); trap 'rm $KUBECONFIG' EXIT
             cat {config} >$KUBECONFIG
             kubectl config set-context --current --namespace={made} >/dev/null
             {command}
             kubectl wait -n {namespace} --for=condition=Ready taskqueue,workerpool --all --timeout=3m",
            config = scene.cluster.kubeconfig().display(),
            made = &*made,
        ))
        .await;
    let defined = defined(Store::of(example), system);
    let all = async {
        for one in &example.tries {
            type_it(scene, &defined, &namespace, example, one).await;
        }
    };
    if example.folder() == "autoscaling" {
        // As its comment says: from none to four, and back to none.
        has_pods(scene, &namespace, "nappers", 0).await;
        tokio::join!(all, has_pods(scene, &namespace, "nappers", 4));
        has_pods(scene, &namespace, "nappers", 0).await;
    } else {
        all.await;
    }
    scene.types(&format!("kubectl delete taskqueue,workerpool -n {namespace} --all --wait=false")).await;
    if example.folder() == "gitops" {
        try_production(scene, system, example).await;
    }
}

/// The overlay for production, which the example's comment only compares with a cluster: with the Secret that its own comment
/// has people make.
async fn try_production(scene: &Scene, system: &str, example: &Example) {
    let namespace = "shop-production";
    scene
        .types(&format!(
            "kubectl apply -f examples/gitops/overlays/production/namespace.yaml
             kubectl create secret generic redis -n {namespace} --from-literal=url=redis://redis.{STREAMS}.svc:6379
             kubectl apply -k examples/gitops/overlays/production
             kubectl wait -n {namespace} --for=condition=Ready taskqueue,workerpool --all --timeout=3m"
        ))
        .await;
    has_pods(scene, namespace, "thumbnailers", 2).await;
    let defined = defined(Store::Streams, system);
    for one in &example.tries {
        type_it(scene, &defined, namespace, example, one).await;
    }
    scene.types(&format!("kubectl delete taskqueue,workerpool -n {namespace} --all --wait=false")).await;
}

#[tokio::test]
async fn examples_do_in_pods_what_their_comments_say() {
    let Some(scene) = Scene::enter().await else { return };
    load_images(scene.cluster).await;
    let system = scene.namespace().await;
    scene.namespace_named(STREAMS).await;
    let install = format!(
        "helm install windlass charts/windlass -n {} --wait --timeout 3m {IMAGE} --set image.tag=test",
        &*system
    );
    tokio::join!(scene.store(STREAMS), scene.types(&install));
    let found = examples();
    let names: Vec<String> = found.iter().map(Example::folder).collect();
    for expected in [
        "autoscaling",
        "demo",
        "exec",
        "gitops",
        "http-node",
        "http-python",
        "profiles/ade",
        "profiles/automechanica",
        "profiles/gate-b2",
        "profiles/loki",
        "profiles/task-queue-protocol",
        "rust",
    ] {
        assert!(names.iter().any(|name| name == expected), "{expected} is not among {names:?}");
    }
    let (scene, system) = (&scene, &*system);
    stream::iter(&found).for_each_concurrent(AT_ONCE, |example| try_it(scene, system, example)).await;
}
