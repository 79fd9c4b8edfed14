//! The one right that only an operator of all namespaces has.

use super::ground::{Operator, chart, define, install};
use crate::kubernetes::Kubernetes;

#[tokio::test(flavor = "multi_thread")]
async fn without_a_look_at_kube_system_an_operator_of_all_namespaces_does_not_begin() {
    // A cluster of its own: an operator of all namespaces would be felt by the other tests.
    let cluster = Kubernetes::start_api().await;
    define(&cluster).await;
    let namespace = cluster.namespace().await;
    let documents = chart(&cluster, &namespace, &[]).await;
    let is_look = |rule: &serde_json::Value| rule["resources"] == serde_json::json!(["namespaces"]);
    for mut document in documents.clone().into_iter().filter(|document| document["kind"] != "Deployment") {
        if let Some(rules) = document.get_mut("rules").and_then(serde_json::Value::as_array_mut) {
            rules.retain(|rule| !is_look(rule));
        }
        install(&cluster, &document).await;
    }
    let operator = Operator::start(&cluster, &namespace, &[]).await;
    operator.says("namespaces \\\"").await;
    assert!(operator.log().contains("forbidden") && !operator.log().contains("leading"), "{}", operator.log());
    for document in documents.into_iter().filter(|document| document["kind"] != "Deployment") {
        install(&cluster, &document).await;
    }
    operator.says("leading").await;
}
