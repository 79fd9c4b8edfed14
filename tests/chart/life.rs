//! A release's life on an API server of its own: installed, upgraded, removed, and installed again.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::Api;
use windlass::crd::TaskQueue;

use super::ground::{RELEASE, chart};
use crate::kubernetes::Kubernetes;

const QUEUE: &str = "{apiVersion: windlass.dev/v1alpha1, kind: TaskQueue, metadata: {name: emails}, spec: {}}";

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

    helm(&["uninstall", RELEASE]).await;
    let client = cluster.client().await;
    let queues: Api<TaskQueue> = Api::namespaced(client.clone(), &namespace);
    let before = queues.get("emails").await.expect("the queue is still there");
    helm(&["install", RELEASE, &chart]).await;
    let after = queues.get("emails").await.expect("the queue is still there");
    assert_eq!(before.metadata.uid, after.metadata.uid);

    helm(&["upgrade", RELEASE, &chart, "--set", "crds.keep=false"]).await;
    helm(&["uninstall", RELEASE]).await;
    let definitions: Api<CustomResourceDefinition> = Api::all(client);
    cluster.wait(&definitions, "taskqueues.windlass.dev", "to be gone", |found| found.is_none()).await;
}
