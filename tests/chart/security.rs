//! Pods of the chart where the Restricted level of Pod Security is enforced.

use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::ground::{cluster, objects};

/// A Pod like those that an object makes.
fn pod_of(object: &Value) -> Option<Value> {
    let (metadata, spec) = match object["kind"].as_str()? {
        "Deployment" => (&object["spec"]["template"]["metadata"], &object["spec"]["template"]["spec"]),
        "Pod" => (&object["metadata"], &object["spec"]),
        _ => return None,
    };
    let name = &object["metadata"]["name"];
    let metadata = json!({ "name": name, "labels": metadata["labels"] });
    Some(json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec }))
}

#[tokio::test(flavor = "multi_thread")]
async fn every_pod_passes_where_restricted_is_enforced() {
    let cluster = cluster().await;
    let namespace = cluster.namespace().await;
    let client = cluster.client().await;
    let enforced = json!({ "metadata": { "labels": { "pod-security.kubernetes.io/enforce": "restricted" } } });
    let namespaces: Api<Namespace> = Api::all(client.clone());
    namespaces.patch(&namespace, &PatchParams::default(), &Patch::Merge(enforced)).await.expect("it takes the label");

    let pods: Api<Pod> = Api::namespaced(client, &namespace);
    let dry = PostParams { dry_run: true, ..Default::default() };
    let values = "{replicaCount: 2, redis: {caExistingSecret: ca}}";
    let objects = objects(cluster, &namespace, values).await;
    let account = objects.iter().find(|one| one["kind"] == "ServiceAccount").expect("a ServiceAccount");
    cluster.apply(&namespace, &account.to_string()).await;
    let rendered: Vec<Value> = objects.iter().filter_map(pod_of).collect();
    let names: Vec<&str> = rendered.iter().filter_map(|pod| pod["metadata"]["name"].as_str()).collect();
    assert_eq!(names, ["windlass", "windlass-redis", "windlass-test"]);
    for pod in rendered {
        let made = serde_json::from_value(pod.clone()).expect("a Pod");
        pods.create(&dry, &made).await.unwrap_or_else(|error| panic!("{error}\n{pod}"));

        // The same pods with a little more are refused, so the level is really enforced.
        let mut looser = pod;
        looser["spec"]["containers"][0]["securityContext"]["capabilities"] = json!({ "add": ["NET_ADMIN"] });
        let looser = serde_json::from_value(looser).expect("a Pod");
        let error = pods.create(&dry, &looser).await.expect_err("it asks for too much");
        assert!(error.to_string().contains("violates PodSecurity \"restricted"), "{error}");
    }
}
