//! The pods of the examples: what they mount is there, and what they run is where they say.

use std::path::{Component, Path, PathBuf};

use serde_json::Value;

use super::accepted::kustomized;
use super::tree::{documents, examples, kustomizations, name, of_kind, project, shown, text};
use crate::kubernetes::Kubernetes;

/// Where a relative path leads in a container.
fn resolved(folder: &str, path: &str) -> PathBuf {
    let mut at = PathBuf::new();
    for part in Path::new(folder).join(path).components() {
        match part {
            Component::ParentDir => drop(at.pop()),
            part => at.push(part),
        }
    }
    at
}

fn list<'a>(value: &'a Value, field: &str) -> impl Iterator<Item = &'a Value> {
    value[field].as_array().into_iter().flatten()
}

/// The words that a pool runs in a container.
fn words<'a>(pool: &'a Value, container: &'a Value) -> Vec<&'a str> {
    let exec = list(&pool["spec"]["handler"]["exec"], "command");
    exec.chain(list(container, "command")).chain(list(container, "args")).filter_map(Value::as_str).collect()
}

/// Looks at one pool; says which files of ConfigMaps it runs.
fn check(place: &str, pool: &Value, objects: &[Value]) -> Vec<PathBuf> {
    let pod = &pool["spec"]["template"]["spec"];
    let mut run = Vec::new();
    for container in list(pod, "containers") {
        let image = container["image"].as_str().expect("an image");
        assert!(image.contains(':'), "{place}: {image} has no tag, so it would change by itself");
        let words = words(pool, container);
        assert!(!words.is_empty(), "{place}: {} runs nothing of its own", name(pool));
        for mount in list(container, "volumeMounts") {
            let volume = list(pod, "volumes").find(|volume| volume["name"] == mount["name"]);
            let volume = volume.unwrap_or_else(|| panic!("{place}: no volume {}", mount["name"]));
            let wanted = volume["configMap"]["name"].as_str().expect("a ConfigMap");
            let map = of_kind(objects, "ConfigMap").find(|map| name(map) == wanted);
            let map = map.unwrap_or_else(|| panic!("{place}: {} mounts {wanted}, which is not there", name(pool)));
            let at = Path::new(mount["mountPath"].as_str().expect("a path"));
            let folder = container["workingDir"].as_str().expect("relative paths need a folder");
            // A name with an ending is a file; others are programs of the image, and options.
            let files = words
                .iter()
                .filter(|word| word.contains('.'))
                .map(|word| resolved(folder, word))
                .filter(|path| path.starts_with(at));
            let files: Vec<PathBuf> = files.collect();
            assert!(!files.is_empty(), "{place}: {} mounts {wanted} and runs nothing of it: {words:?}", name(pool));
            for file in &files {
                let key = file.strip_prefix(at).expect("below it").to_str().expect("UTF-8");
                assert!(map["data"][key].is_string(), "{place}: {} is not in {wanted}", file.display());
            }
            run.extend(files);
        }
    }
    run
}

#[tokio::test(flavor = "multi_thread")]
async fn every_pod_finds_what_it_mounts_and_what_it_runs() {
    let cluster = Kubernetes::api().await;
    let mut pools = 0;
    for folder in kustomizations() {
        let objects = documents(&kustomized(cluster, &folder).await);
        for pool in of_kind(&objects, "WorkerPool") {
            let run = check(&shown(&folder), pool, &objects);
            eprintln!("{}: {} runs {run:?}", shown(&folder), name(pool));
            pools += 1;
        }
    }
    for example in examples().iter().filter(|example| example.cluster.iter().any(|line| line.contains("apply -f"))) {
        let path = example.cluster.iter().find_map(|line| line.split_once("apply -f ")).expect("it was found").1;
        let path = project().join(path.split_whitespace().next().expect("a path"));
        assert!(path.exists(), "{} is not there", path.display());
        let objects = documents(&text(&example.file));
        for pool in of_kind(&objects, "WorkerPool") {
            assert!(check(&shown(&example.file), pool, &objects).is_empty());
            pools += 1;
        }
    }
    assert!(pools >= 15, "only {pools} pools were found");
}

/// What a comment says for a cluster names what is there.
#[test]
fn commands_for_a_cluster_name_what_is_there() {
    for example in examples() {
        let named = example.cluster.iter().flat_map(|line| line.split_whitespace());
        let paths: Vec<&str> = named.filter(|word| word.starts_with("examples/")).collect();
        assert!(!paths.is_empty(), "{example:?}");
        for path in paths {
            assert!(project().join(path).exists(), "{}: {path} is not there", shown(&example.file));
        }
    }
}
