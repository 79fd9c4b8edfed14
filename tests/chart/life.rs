//! A release's life on an API server of its own: installed, upgraded, removed, and installed again.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::Api;
use windlass::crd::TaskQueue;

use super::ground::{RELEASE, chart};
use crate::kubernetes::Kubernetes;

const QUEUE: &str = "{apiVersion: windlass.dev/v1alpha1, kind: TaskQueue, metadata: {name: emails}, spec: {}}";

fn is_to_go(queue: &TaskQueue) -> bool {
    queue.metadata.deletion_timestamp.is_some()
}

/// A history in a file, on a volume.
const SQLITE: &str = "eventLog.url=sqlite:///history/events.db,extraVolumes[0].name=history,\
                      extraVolumes[0].emptyDir.sizeLimit=1Gi,extraVolumeMounts[0].name=history,\
                      extraVolumeMounts[0].mountPath=/history";

#[tokio::test(flavor = "multi_thread")]
async fn queues_survive_the_removal_of_a_release_and_a_new_one_takes_them_up() {
    let cluster = Kubernetes::start_api().await;
    let namespace = cluster.namespace().await;
    let chart = chart();
    let helm = async |arguments: &[&str]| {
        let all = [arguments, &["--namespace", &namespace]].concat();
        cluster.try_helm(&all).await.unwrap_or_else(|said| panic!("helm {arguments:?}: {said}"))
    };
    let said = helm(&["install", RELEASE, &chart]).await;
    assert!(said.contains("FOR TRYING IT OUT") && said.contains("helm test windlass"), "{said}");
    cluster.kubectl(&["wait", "--for=condition=Established", "--timeout=120s", "crd/taskqueues.windlass.dev"]).await;
    cluster.apply(&namespace, QUEUE).await;

    let said = helm(&["upgrade", RELEASE, &chart, "--set", "redis.url=redis://redis:6379,replicaCount=2"]).await;
    assert!(!said.contains("FOR TRYING IT OUT") && said.contains("redis://redis:6379"), "{said}");
    let left = cluster.kubectl(&["get", "deployment,pdb", "-n", &namespace, "-o", "name"]).await;
    assert_eq!(left, "deployment.apps/windlass\npoddisruptionbudget.policy/windlass\n");

    // There and back: what the API server filled in for one strategy is refused with the other.
    let strategy = ["get", "deployment/windlass", "-n", &namespace, "-o", "jsonpath={.spec.strategy.type}"];
    helm(&["upgrade", RELEASE, &chart, "--set", SQLITE]).await;
    assert_eq!(cluster.kubectl(&strategy).await, "Recreate");
    helm(&["upgrade", RELEASE, &chart, "--reset-values"]).await;
    assert_eq!(cluster.kubectl(&strategy).await, "RollingUpdate");

    helm(&["uninstall", RELEASE]).await;
    let client = cluster.client().await;
    let queues: Api<TaskQueue> = Api::namespaced(client.clone(), &namespace);
    let before = queues.get("emails").await.expect("the queue is still there");
    helm(&["install", RELEASE, &chart]).await;
    let after = queues.get("emails").await.expect("the queue is still there");
    assert_eq!(before.metadata.uid, after.metadata.uid);

    // Why queues go first, while there is an operator: one that waits for it keeps the definition.
    let finalizers = async |all: &str| {
        let patch = format!(r#"{{"metadata": {{"finalizers": {all}}}}}"#);
        cluster.kubectl(&["patch", "tq/emails", "-n", &namespace, "--type=merge", "--patch", &patch]).await;
    };
    finalizers(r#"["windlass.dev/queue-data"]"#).await;
    helm(&["upgrade", RELEASE, &chart, "--set", "crds.keep=false"]).await;
    helm(&["uninstall", RELEASE]).await;
    let definitions: Api<CustomResourceDefinition> = Api::all(client);
    cluster.wait(&queues, "emails", "to be told to go", |found| found.is_some_and(is_to_go)).await;
    finalizers("[]").await;
    cluster.wait(&definitions, "taskqueues.windlass.dev", "to be gone", |found| found.is_none()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn definitions_that_are_there_already_are_taken_over_when_helm_is_told_so() {
    let cluster = Kubernetes::start_api().await;
    let (here, there) = (cluster.namespace().await, cluster.namespace().await);
    let chart = chart();
    let client = cluster.client().await;
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let owner = async || {
        let found = definitions.get("taskqueues.windlass.dev").await.expect("it is there");
        found.metadata.annotations.and_then(|all| all.get("meta.helm.sh/release-name").cloned()).unwrap_or_default()
    };
    let refused_then_taken = async |release: &str, namespace: &str| {
        let install = ["install", release, &chart, "--namespace", namespace];
        let said = cluster.try_helm(&install).await.expect_err("somebody else brought the definitions");
        assert!(said.contains("invalid ownership metadata"), "{said}");
        let taken = cluster.try_helm(&[&install[..], &["--take-ownership"]].concat()).await;
        taken.unwrap_or_else(|said| panic!("{said}"));
        assert_eq!(owner().await, release);
    };

    let said = cluster.try_helm(&["install", "a", &chart, "--namespace", &here]).await.expect("it is installed");
    assert!(said.contains("--take-ownership"), "{said}");
    cluster.kubectl(&["wait", "--for=condition=Established", "--timeout=120s", "crd/taskqueues.windlass.dev"]).await;
    cluster.apply(&here, QUEUE).await;
    let queues: Api<TaskQueue> = Api::namespaced(client, &here);
    let before = queues.get("emails").await.expect("it is there");
    cluster.try_helm(&["uninstall", "a", "--namespace", &here]).await.expect("it is removed");
    refused_then_taken("b", &there).await;
    assert_eq!(queues.get("emails").await.expect("it is still there").metadata.uid, before.metadata.uid);
    cluster.try_helm(&["uninstall", "b", "--namespace", &there]).await.expect("it is removed");

    cluster.kubectl(&["delete", "crd", "taskqueues.windlass.dev", "workerpools.windlass.dev"]).await;
    let printed = tokio::process::Command::new(env!("CARGO_BIN_EXE_windlass")).arg("crd").output().await;
    let printed = String::from_utf8(printed.expect("it starts").stdout).expect("UTF-8");
    cluster.try_kubectl(&["apply", "--server-side", "-f", "-"], &printed).await.expect("the definitions are taken");
    refused_then_taken("a", &here).await;
}
