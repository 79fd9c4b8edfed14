//! Every example in the hands of a real operator: its queues become ready on a real Redis, its pools' pods are accepted.

use serde_json::{Value, json};

use super::accepted::kustomized;
use super::tree::{documents, examples, kustomizations, name, of_kind, shown, text};
use crate::operator_ground::{Ground, condition};

/// All sets of objects that people apply, with what they are called.
async fn applied(ground: &Ground) -> Vec<(String, Vec<Value>)> {
    let mut all = Vec::new();
    for folder in kustomizations() {
        all.push((shown(&folder), documents(&kustomized(ground.cluster, &folder).await)));
    }
    for example in examples().iter().filter(|example| example.cluster.iter().any(|line| line.contains("apply -f"))) {
        all.push((shown(&example.file), documents(&text(&example.file))));
    }
    all
}

/// A Service that is named without its namespace is looked for in that of the operator, and then in that of the pods.
fn leads_there_from_everywhere(url: &str) {
    let host = url.strip_prefix("redis://").and_then(|rest| rest.split(':').next()).unwrap_or_default();
    let labels: Vec<&str> = host.split('.').collect();
    assert!(matches!(labels[..], [_, _, "svc"]), "{url} does not name a Service with its namespace");
}

/// The object in the test's namespace, where each set has names of its own, on a Redis that is there.
fn here(mut object: Value, number: usize, redis: &str) -> Value {
    object["metadata"].as_object_mut().expect("metadata").remove("namespace");
    if object["apiVersion"] == "windlass.dev/v1alpha1" {
        for place in ["/metadata/name", "/spec/queueRef/name"] {
            if let Some(name) = object.pointer_mut(place) {
                *name = json!(format!("{}-{number}", name.as_str().expect("a name")));
            }
        }
    }
    if let Some(url) = object.pointer_mut("/spec/broker/redis/url") {
        leads_there_from_everywhere(url.as_str().expect("a text"));
        *url = json!(redis);
    }
    object
}

#[tokio::test(flavor = "multi_thread")]
async fn queues_become_ready_and_pods_are_accepted() {
    let ground = Ground::new().await;
    let redis = ground.redis.url();
    // What the overlay for production expects to find.
    let secret =
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "redis"}, "stringData": {"url": redis}});
    ground.cluster.apply(&ground.namespace, &secret.to_string()).await;
    let (mut queues, mut pools) = (0, 0);
    for (number, (place, objects)) in applied(&ground).await.into_iter().enumerate() {
        let objects: Vec<Value> = objects.into_iter().map(|object| here(object, number, &redis)).collect();
        let text: Vec<String> =
            objects.iter().filter(|object| object["kind"] != "Namespace").map(Value::to_string).collect();
        ground.cluster.apply(&ground.namespace, &text.join("\n---\n")).await;
        for queue in of_kind(&objects, "TaskQueue") {
            ground.ready_queue(name(queue)).await;
            queues += 1;
        }
        for pool in of_kind(&objects, "WorkerPool") {
            let accepted = |found: Option<&windlass::crd::WorkerPool>| {
                let seen = found.and_then(|pool| condition(pool.status.as_ref()?, "TemplateAccepted"));
                seen.is_some_and(|(status, ..)| status == "True")
            };
            let what = format!("of {place} to have a template that is accepted");
            let found = ground.cluster.wait(&ground.pools(), name(pool), &what, accepted).await;
            let status = found.expect("it was waited for").status.expect("a status");
            let (_, reason, message) = condition(&status, "TemplateAccepted").expect("a condition");
            assert_eq!(reason, "TemplateAccepted", "{place}: {message}");
            pools += 1;
        }
    }
    eprintln!("{queues} queues ready, {pools} pools accepted");
    assert!(queues >= 13 && pools >= 17, "{queues} queues, {pools} pools");
}
