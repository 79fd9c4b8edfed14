//! The examples in pods, as their comments say.

use std::collections::BTreeSet;

use futures::future::join_all;
use tokio::sync::OnceCell;

use super::scene::{IMAGE, Scene};
use crate::kubernetes::{Image, Kubernetes};
use crate::tree::{Example, examples, shown, text};

/// The images that can be made of what this machine has, under the names that the examples give them.
const IMAGES: [&str; 3] = ["busybox:1.37", "node:22-slim", "python:3.13-slim"];

/// How the examples' README says that the command line is reached, and how a person waits for what was enqueued.
const PERSON: &str = r#"
windlass() { kubectl exec -i -n SYSTEM deploy/windlass -- windlass "$@" </dev/null; }
ends() { grep -o '"id": *"[^"]*"' | cut -d '"' -f 4 | while read -r task; do
  windlass task wait "$task" -q "$1" --timeout 2m || true; done; }
"#;

/// This machine's Node.js, whatever its version.
async fn load_node(cluster: &Kubernetes) {
    static LOADED: OnceCell<()> = OnceCell::const_new();
    let load = async || {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let found = std::env::split_paths(&path).map(|folder| folder.join("node")).find(|node| node.is_file());
        let node = found.expect("there is no node: run `make servers`");
        let image = Image::new("node").shell().program(node, "/usr/bin/node").load(cluster).await;
        cluster.name_image(&image, "docker.io/library/node:22-slim").await;
    };
    LOADED.get_or_init(load).await;
}

/// Those that need nothing but public images and the command line: no registry, no Redis or Secret of one's own.
fn that_can_run() -> Vec<Example> {
    let runs = |example: &Example| {
        let folder = example.file.parent().expect("a folder");
        let files = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
        let manifests = files.filter(|path| path.extension().is_some_and(|ending| ending == "yaml"));
        let texts: Vec<String> = manifests.map(|path| text(&path)).collect();
        let images: BTreeSet<&str> = texts
            .iter()
            .flat_map(|text| text.lines())
            .filter_map(|line| line.trim_start_matches([' ', '-']).strip_prefix("image: "))
            .collect();
        let typed = example.tries.iter().filter(|one| one.ends.is_some());
        images.iter().all(|image| IMAGES.contains(image))
            && typed.into_iter().all(|one| one.command.starts_with("windlass task enqueue "))
    };
    examples().into_iter().filter(runs).collect()
}

/// Applies one in a namespace of its own, and tries what it says.
async fn try_it(scene: &Scene, system: &str, example: &Example) {
    let command = example.cluster.first().expect("it says what a cluster is given");
    assert!(command.starts_with("kubectl apply "), "{command}");
    // What brings its own namespace brings that along.
    let own = text(&example.file).contains("-q shop-staging/").then(|| "shop-staging".to_owned());
    let made = scene.cluster.namespace().await;
    let namespace = own.unwrap_or_else(|| made.to_string());
    scene
        .types(&format!(
            "export KUBECONFIG=$(mktemp); trap 'rm $KUBECONFIG' EXIT
             cat {config} >$KUBECONFIG
             kubectl config set-context --current --namespace={made} >/dev/null
             {command}
             kubectl wait -n {namespace} --for=condition=Ready taskqueue --all --timeout=3m",
            config = scene.cluster.kubeconfig().display(),
            made = &*made,
        ))
        .await;
    for one in example.tries.iter().filter(|one| one.ends.is_some()) {
        let words = one.command.split_whitespace();
        let queue = words.skip_while(|word| *word != "-q").nth(1).expect("it names its queue");
        let there = format!("{namespace}/{queue}");
        let typed = one.command.replace(&format!("-q {queue}"), &format!("-q {there}"));
        let person = PERSON.replace("SYSTEM", system);
        let said = scene.types(&format!("{person}\n{typed} -o json | ends {there}")).await;
        let state = one.ends.expect("it was filtered by that");
        let number = one.command.split_once("-n ").map_or(1, |(_, rest)| rest.trim().parse().expect("a number"));
        eprintln!("{}: {}: {number} {state}", shown(&example.file), one.command);
        assert_eq!(said.matches(state.as_str()).count(), number, "{}: {}\n{said}", shown(&example.file), one.command);
    }
    scene.types(&format!("kubectl delete taskqueue,workerpool -n {namespace} --all --wait=false")).await;
}

#[tokio::test]
async fn examples_do_in_pods_what_their_comments_say() {
    let Some(scene) = Scene::enter().await else { return };
    load_node(scene.cluster).await;
    let system = scene.namespace().await;
    scene
        .types(&format!(
            "helm install windlass charts/windlass -n {} --wait --timeout 3m {IMAGE} --set image.tag=test",
            &*system
        ))
        .await;
    let found = that_can_run();
    let names: Vec<String> = found.iter().map(Example::folder).collect();
    for expected in ["autoscaling", "exec", "gitops", "http-node", "http-python"] {
        assert!(names.iter().any(|name| name == expected), "{expected} is not among {names:?}");
    }
    join_all(found.iter().map(|example| try_it(&scene, &system, example))).await;
}
