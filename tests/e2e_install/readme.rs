//! The README's two blocks, as they are.

use std::path::Path;

use jiff::Timestamp;
use serde_json::Value;

use super::scene::{Scene, Watch};

/// A block of the README, by the marker above it.
fn block(marker: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    let text = std::fs::read_to_string(path).expect("the README can be read");
    let (_, after) = text.split_once(&format!("<!-- test: {marker} -->\n```sh\n")).expect("it has the marker");
    let (block, _) = after.split_once("\n```").expect("the block ends");
    block.to_owned()
}

#[tokio::test]
async fn what_the_readme_says_brings_a_task_to_its_end_in_pods_and_goes_without_a_trace() {
    let Some(scene) = Scene::enter().await else { return };
    let image = concat!("ghcr.io/windlass-dev/windlass:", env!("CARGO_PKG_VERSION"));
    scene.cluster.name_image(scene.cluster.windlass_image().await, image).await;
    // As they are in a cluster that enforces the level everywhere.
    for namespace in ["windlass-system", "hello"] {
        scene.namespace_named(namespace).await;
    }
    let (watch, began) = (Watch::start(), Timestamp::now());
    let install = block("install");
    assert!(!install.contains("--set") && !install.contains("-f "), "with the chart's own values: {install}");
    let said = scene.types(&install).await;
    watch.read("helm install, until the operator and its Redis are ready");
    assert!(said.contains("FOR TRYING IT OUT"), "{said}");

    let said = scene.types(&block("first-queue")).await;
    watch.read("from helm install to the end of the README's steps");
    assert!(said.contains("failed, as it should"), "{said}");
    let first = tasks(&scene).await.iter().filter_map(finished_at).min().expect("a task has ended");
    let took = first.duration_since(began).as_secs_f64();
    eprintln!("measured: from helm install to the first task done in a pod: {took:.1} s");

    // The last step does not wait for what it ran again.
    let wait = async || {
        let all = tasks(&scene).await;
        let mut states: Vec<_> = all.iter().map(|task| task["state"].as_str().unwrap_or_default()).collect();
        states.sort_unstable();
        if states == ["failed", "succeeded", "succeeded"] { Ok(()) } else { Err(format!("{all:?}")) }
    };
    scene.cluster.wait_for("hello", "the mended task to be done", wait).await;

    let said = scene.types("helm test windlass -n windlass-system").await;
    assert!(said.contains("Succeeded"), "{said}");

    let watch = Watch::start();
    scene.types("kubectl delete namespace hello --timeout=3m").await;
    watch.read("kubectl delete namespace hello");
    scene.types("helm uninstall windlass -n windlass-system --wait").await;
    is_gone(&scene).await;
    scene.types("kubectl delete namespace windlass-system").await;
}

/// Waits until of all that the release was made of, and of what that made, nothing is left in any namespace or outside of
/// them but the definitions, which `crds.keep` keeps.
async fn is_gone(scene: &Scene) {
    let kinds = "kubectl api-resources --verbs=list -o name | paste -sd , -";
    for label in ["app.kubernetes.io/instance=windlass", "app.kubernetes.io/part-of=windlass"] {
        let listed = format!("kubectl get $({kinds}) -A -l {label} --ignore-not-found -o name");
        let only_definitions = async || {
            let left = scene.types(&listed).await;
            let mut names: Vec<_> = left.lines().filter_map(|name| name.split_once('/')).collect();
            names.sort_unstable();
            let kept = ["taskqueues.windlass.dev", "workerpools.windlass.dev"];
            let kept = kept.map(|name| ("customresourcedefinition.apiextensions.k8s.io", name));
            if names == kept { Ok(()) } else { Err(left) }
        };
        scene.cluster.wait_for("windlass-system", &format!("what has {label} to be gone"), only_definitions).await;
    }
}

async fn tasks(scene: &Scene) -> Vec<Value> {
    let list = "windlass task list -q hello/greetings -o json";
    let said = scene.types(&format!("kubectl exec -n windlass-system deploy/windlass -- {list}")).await;
    let all = serde_json::Deserializer::from_str(&said).into_iter::<Value>().map(|one| one.expect("JSON"));
    // A list, or one after the other.
    all.flat_map(|one| if let Value::Array(all) = one { all } else { vec![one] }).collect()
}

fn finished_at(task: &Value) -> Option<Timestamp> {
    task["finishedAt"].as_str()?.parse().ok()
}
