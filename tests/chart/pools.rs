//! What the chart says of the pods of WorkerPools, beside the pods that an operator with its settings makes.

use k8s_openapi::api::apps::v1::Deployment;
use kube::api::Api;
use serde_json::{Value, json};

use super::ground::{objects, of_kind};
use crate::operator_ground::Ground;

const POOL: &str = "{apiVersion: windlass.dev/v1alpha1, kind: WorkerPool, metadata: {name: emailers}, spec: {queueRef: \
                    {name: emails}, handler: {type: Exec, exec: {command: [send]}}, template: {spec: {containers: \
                    [{name: app, image: app}]}}}}";

/// The pod template that an operator makes of a pool, with the settings for it that the chart renders.
async fn pods_of_a_pool(ground: &Ground, chart: &[Value]) -> Value {
    let environment = &of_kind(chart, "Deployment")[0]["spec"]["template"]["spec"]["containers"][0]["env"];
    let setting = |name: &str| {
        let found = environment.as_array().expect("a list").iter().find(|one| one["name"] == name);
        found.and_then(|one| one["value"].as_str()).unwrap_or_else(|| panic!("no {name}"))
    };
    let names = ["WINDLASS_WORKER_IMAGE", "WINDLASS_WORKER_IMAGE_PULL_POLICY"];
    let _operator = ground.operator_with(&names.map(|name| (name, setting(name)))).await;
    ground.apply("emails", "{}").await;
    ground.cluster.apply(&ground.namespace, POOL).await;
    let deployments: Api<Deployment> = Api::namespaced(ground.client.clone(), &ground.namespace);
    let made = ground.cluster.wait(&deployments, "emailers", "to be made", |found| found.is_some()).await;
    serde_json::to_value(made.expect("it was there").spec.expect("a spec").template).expect("plain data")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_monitor_finds_the_pods_of_pools_and_their_port() {
    let ground = Ground::new().await;
    let values = "{redis: {enabled: false}, podMonitor: {enabled: true}}";
    let chart = objects(ground.cluster, &ground.namespace, values).await;
    let template = pods_of_a_pool(&ground, &chart).await;
    let monitor = of_kind(&chart, "PodMonitor")[0];
    assert_eq!(monitor["spec"]["namespaceSelector"], json!({"any": true}));
    for selected in monitor["spec"]["selector"]["matchExpressions"].as_array().expect("a list") {
        assert_eq!(selected["operator"], "Exists");
        assert!(template["metadata"]["labels"][selected["key"].as_str().expect("a label")].is_string(), "{template}");
    }
    for label in monitor["spec"]["podTargetLabels"].as_array().expect("a list") {
        assert!(template["metadata"]["labels"][label.as_str().expect("a label")].is_string(), "{template}");
    }
    let port = &monitor["spec"]["podMetricsEndpoints"][0]["port"];
    let ports = template["spec"]["containers"][0]["ports"].as_array().expect("ports").iter();
    assert_eq!(ports.filter(|one| one["name"] == *port).count(), 1, "{template}");

    let watched = objects(ground.cluster, "here", "{watchNamespaces: [shop, mail], podMonitor: {enabled: true}}").await;
    let selector = &of_kind(&watched, "PodMonitor")[0]["spec"]["namespaceSelector"];
    assert_eq!(*selector, json!({"matchNames": ["shop", "mail"]}));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_worker_is_pulled_as_the_operator_is() {
    let ground = Ground::new().await;
    let values = "{redis: {enabled: false}, image: {pullPolicy: Never}}";
    let chart = objects(ground.cluster, &ground.namespace, values).await;
    let template = pods_of_a_pool(&ground, &chart).await;
    let installer = &template["spec"]["initContainers"][0];
    assert_eq!((&installer["name"], &installer["imagePullPolicy"]), (&json!("windlass-install"), &json!("Never")));
    assert_eq!(template["spec"]["containers"][0]["imagePullPolicy"], "Always", "the owner's own, which has no tag");
}
