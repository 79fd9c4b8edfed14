//! What the harness itself promises: an explanation when something does not come, one sentence where no pods can run,
//! a cluster of somebody's own on request, and never the one that KUBECONFIG names.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output};

use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{Api, ListParams};
use rustix::process::geteuid;

use crate::kubernetes::{Kubernetes, OWN_CLUSTER};

/// Runs one of these tests in a process of its own, with these variables besides.
fn run(test: &str, variables: &[(&str, &Path)]) -> Output {
    let mut child = Command::new(std::env::current_exe().expect("a test has a program"));
    child.args(["--exact", test, "--nocapture"]).envs(variables.iter().copied());
    child.output().expect("it starts")
}

#[tokio::test]
async fn when_something_does_not_come_it_is_told_what_a_person_would_look_at() {
    let cluster = Kubernetes::api().await;
    let namespace = cluster.namespace().await;
    let deployment = "{apiVersion: apps/v1, kind: Deployment, metadata: {name: web}, spec: {selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: web}}, spec: {containers: [{name: one, image: none}]}}}}";
    cluster.apply(&namespace, deployment).await;
    let pods: Api<Pod> = Api::namespaced(cluster.client().await, &namespace);
    let told = cluster
        .wait_for(&namespace, "the pod and its event to be told of", async || {
            let found = pods.list(&ListParams::default()).await.map_err(|error| error.to_string())?.items;
            let name = found.first().and_then(|pod| pod.metadata.name.clone()).ok_or("no pod")?;
            let told = cluster.explain(Some(&namespace)).await;
            if told.contains(&format!("Created pod: {name}")) { Ok(told) } else { Err(told) }
        })
        .await;
    for part in
        ["ReplicaSet/web-", "--- pod web-", "Pending", "--- log of web-", "--- kube-apiserver.log", "--- etcd.log"]
    {
        assert!(told.contains(part), "{part} is missing: {told}");
    }
}

#[test]
fn a_machine_that_cannot_run_pods_is_told_so_in_one_sentence() {
    // Another user is on a machine like that. The files are copied to where such a one may read them.
    let dir = tempfile::tempdir().expect("a directory");
    let files = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cluster");
    let copied = Command::new("cp").arg("-r").arg(&files).arg(dir.path()).status().expect("cp starts");
    assert!(copied.success());
    let opened = Command::new("chmod").args(["-R", "a+rX"]).arg(dir.path()).status().expect("chmod starts");
    assert!(opened.success());
    let script = dir.path().join("cluster/cluster.py");
    let mut check = match geteuid().is_root() {
        true => {
            let mut other = Command::new("setpriv");
            other.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]).arg(script);
            other
        }
        false => Command::new(script),
    };
    let output = check.arg("check").output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let words =
        "cluster: This machine cannot run pods (that needs root), so the tests that need running pods are left out.";
    assert_eq!(said.trim_end(), words);
}

/// A kubeconfig that leads to somebody who counts who comes.
fn bait(dir: &Path) -> (TcpListener, std::path::PathBuf) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.set_nonblocking(true).expect("it does not wait");
    let address = listener.local_addr().expect("an address");
    let config = format!(
        "{{apiVersion: v1, kind: Config, current-context: it, contexts: [{{name: it, context: {{cluster: it, user: it}}}}], \
         clusters: [{{name: it, cluster: {{server: 'http://{address}'}}}}], users: [{{name: it, user: {{token: t}}}}]}}"
    );
    let path = dir.join("production");
    std::fs::write(&path, config).expect("written");
    (listener, path)
}

#[tokio::test]
async fn a_plain_kubeconfig_is_never_used() {
    let dir = tempfile::tempdir().expect("a directory");
    let (listener, config) = bait(dir.path());
    let test = "cluster::api::helm_installs_and_removes_a_chart";
    let child = tokio::task::spawn_blocking(move || run(test, &[("KUBECONFIG", &config)])).await.expect("it ends");
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
    let came = listener.accept().expect_err("nobody comes");
    assert_eq!(came.kind(), std::io::ErrorKind::WouldBlock);
}

#[tokio::test]
async fn a_cluster_of_somebodys_own_is_used_where_it_is_named_and_left_clean() {
    let Some(cluster) = Kubernetes::nodes().await.filter(|cluster| cluster.is_ours()) else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let (listener, config) = bait(dir.path());
    let ours = cluster.kubeconfig().to_owned();
    let test = "cluster::nodes::a_rolling_update_replaces_every_pod";
    let child = tokio::task::spawn_blocking(move || run(test, &[(OWN_CLUSTER, &ours), ("KUBECONFIG", &config)]));
    let id = std::process::id();
    let child = child.await.expect("it ends");
    let said = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success() && said.contains("1 passed"), "{said}{}", String::from_utf8_lossy(&child.stderr));
    listener.accept().expect_err("nobody comes to the other one");
    // It made a namespace there, and has deleted it.
    let namespaces: Api<Namespace> = Api::all(cluster.client().await);
    cluster
        .wait_for("default", "the other process's namespace to be gone", async || {
            let all = namespaces.list(&ListParams::default()).await.map_err(|error| error.to_string())?.items;
            let names: Vec<String> = all.into_iter().filter_map(|one| one.metadata.name).collect();
            let theirs = |name: &&String| name.starts_with("test-") && !name.starts_with(&format!("test-{id}-"));
            let left: Vec<_> = names.iter().filter(theirs).collect();
            if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
        })
        .await;
}

#[tokio::test]
async fn a_cluster_that_is_named_and_is_not_there_fails_the_tests_and_skips_none() {
    let test = "cluster::nodes::nothing_leaves_the_machine";
    let child = run(test, &[(OWN_CLUSTER, Path::new("/nowhere/kubeconfig"))]);
    let said = String::from_utf8_lossy(&child.stderr);
    assert!(!child.status.success() && said.contains("/nowhere/kubeconfig, which is no file"), "{said}");
}
