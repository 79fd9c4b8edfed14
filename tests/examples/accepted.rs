//! Every manifest, applied to a real API server with strict validation.

use std::path::Path;

use tokio::sync::OnceCell;

use super::tree::{documents, kustomizations, manifests, name, project, shown, text};
use crate::kubernetes::Kubernetes;

/// The shared API server, which knows the definitions.
async fn cluster() -> &'static Kubernetes {
    static DEFINED: OnceCell<()> = OnceCell::const_new();
    let cluster = Kubernetes::api().await;
    let define = async || {
        let crds = project().join("crds");
        cluster.kubectl(&["apply", "--server-side", "-f", crds.to_str().expect("UTF-8")]).await;
        cluster.kubectl(&["wait", "--for=condition=Established", "--timeout=120s", "crd", "--all"]).await;
    };
    DEFINED.get_or_init(define).await;
    cluster
}

/// What kustomize makes of a folder.
pub(super) async fn kustomized(cluster: &Kubernetes, folder: &Path) -> String {
    cluster.kubectl(&["kustomize", folder.to_str().expect("UTF-8")]).await
}

/// Applies a file or a folder as people would, in a namespace where nothing else is; says which objects it made.
async fn apply(cluster: &Kubernetes, how: [&str; 2], made: &str) -> Vec<String> {
    let strict = ["apply", "--server-side", "--validate=strict", how[0], how[1], "-o", "name"];
    let objects = documents(made);
    // Whoever names a namespace brings it along.
    let brought = objects.iter().any(|object| object["metadata"]["namespace"].is_string());
    let here = cluster.namespace().await;
    let mut arguments = strict.to_vec();
    if !brought {
        arguments.extend(["--namespace", &here]);
    }
    let said = cluster.kubectl(&arguments).await;
    let said: Vec<String> = said.lines().map(str::to_owned).collect();
    assert_eq!(said.len(), objects.len(), "{how:?}: {said:?}");
    for object in &objects {
        assert!(
            said.iter().any(|line| line.ends_with(name(object))),
            "{how:?}: {} is not among {said:?}",
            name(object)
        );
    }
    said
}

#[tokio::test(flavor = "multi_thread")]
async fn every_manifest_is_accepted_as_it_stands() {
    let cluster = cluster().await;
    let mut accepted = Vec::new();
    for file in manifests() {
        let text = text(&file);
        let objects = documents(&text);
        // `told` finds out who uses what has no kind.
        let is_object = objects.iter().all(|object| object["kind"].is_string() && object["kind"] != "Kustomization");
        if is_object {
            accepted.extend(apply(cluster, ["-f", file.to_str().expect("UTF-8")], &text).await);
        }
    }
    assert!(accepted.len() >= 30, "only {accepted:?}");
    eprintln!("{} objects accepted", accepted.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_kustomize_makes_is_accepted() {
    let cluster = cluster().await;
    for folder in kustomizations() {
        let made = kustomized(cluster, &folder).await;
        let accepted = apply(cluster, ["-k", folder.to_str().expect("UTF-8")], &made).await;
        eprintln!("{}: {} objects accepted", shown(&folder), accepted.len());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn environments_differ_as_their_overlays_say() {
    let cluster = cluster().await;
    let overlay = async |environment: &str| {
        let folder = project().join("examples/gitops/overlays").join(environment);
        documents(&kustomized(cluster, &folder).await)
    };
    let (staging, production) = (overlay("staging").await, overlay("production").await);
    let of = |objects: &[serde_json::Value], kind: &str| {
        super::tree::of_kind(objects, kind).next().unwrap_or_else(|| panic!("no {kind}")).clone()
    };
    let queue = of(&production, "TaskQueue");
    assert_eq!(queue["spec"]["broker"]["redis"]["urlSecretRef"]["name"], "redis", "no hash: broker is immutable");
    assert_eq!((&queue["spec"]["retry"]["maxRetries"], queue["spec"].get("deletionPolicy")), (&5.into(), None));
    assert_eq!(of(&staging, "TaskQueue")["spec"]["deletionPolicy"], "Delete");
    assert_eq!(of(&staging, "TaskQueue")["spec"].get("broker"), None);
    assert_eq!(of(&production, "WorkerPool")["spec"]["autoscaling"]["maxReplicas"], 20);
    for objects in [&staging, &production] {
        let code = of(objects, "ConfigMap");
        let volume = &of(objects, "WorkerPool")["spec"]["template"]["spec"]["volumes"][0];
        assert_eq!(volume["configMap"]["name"], code["metadata"]["name"], "the generated name reaches the pool");
        assert!(objects.iter().all(|one| one["kind"] == "Namespace" || one["metadata"]["namespace"].is_string()));
    }
}
