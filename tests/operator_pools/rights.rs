//! The chart grants what pools need, and no more.

use std::collections::BTreeSet;

use kube::ResourceExt;
use serde_json::{Value, json};
use windlass::broker::{Broker, WorkerInfo};

use super::ground::{Ground, Right, chart};

const fn right(resource: &'static str, verb: &'static str) -> Right {
    Right { resource, verb }
}

/// What pools use; queues, the Lease and Events have a test of their own.
const RIGHTS: [Right; 14] = [
    right("taskqueues", "get"),
    right("workerpools", "list"),
    right("workerpools", "watch"),
    right("workerpools/status", "patch"),
    right("deployments", "get"),
    right("deployments", "list"),
    right("deployments", "watch"),
    right("deployments", "create"),
    right("deployments", "patch"),
    right("pods", "get"),
    right("pods", "list"),
    right("pods", "watch"),
    right("pods", "patch"),
    // An Event that repeats within minutes is counted, and not written again.
    right("events", "patch"),
];

#[tokio::test]
async fn without_any_one_right_something_fails() {
    for missing in RIGHTS {
        let ground = Ground::with_rights(Some(missing)).await;
        ground.start_operator("windlass:one");
        ground.queue("q").await;
        ground.pool("p", "q", json!({"replicas": 2})).await;
        let refused = format!("cannot {} resource \"{}\"", missing.verb, missing.resource);
        if missing.resource == "pods" && ["get", "patch"].contains(&missing.verb) {
            use_pods(&ground).await;
        }
        if missing.resource == "events" {
            for number in [2, 1, 2, 1] {
                let replicas = format!("--replicas={number}");
                ground.cluster.kubectl(&["-n", &ground.namespace, "scale", "workerpool/p", &replicas]).await;
                ground.replicas("p", number).await;
            }
        }
        ground
            .cluster
            .wait_for(&ground.namespace, &format!("something to fail without {missing:?}"), async || {
                // In its log, or where people look first.
                let pool = ground.pools().get("p").await.map_err(|error| error.to_string())?;
                let told =
                    pool.status.iter().flat_map(|status| &status.conditions).any(|one| one.message.contains(&refused));
                let said = ground.said();
                if told || said.contains(&refused) { Ok(()) } else { Err(said) }
            })
            .await;
        eprintln!("missed: {} {}", missing.verb, missing.resource);
    }
}

/// The test of queues takes every right but these away, one by one.
#[tokio::test]
async fn no_right_of_pools_is_without_use() {
    let ground = Ground::without_operator().await;
    let documents = chart(ground.cluster, &ground.namespace, &[&ground.namespace]).await;
    let rules = documents.iter().filter_map(|document| document["rules"].as_array()).flatten();
    let words = |rule: &Value, field: &str| -> Vec<String> {
        rule[field].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let granted: BTreeSet<(String, String)> = rules
        .flat_map(|rule| {
            let verbs = words(rule, "verbs");
            let pairs =
                |resource: String| verbs.iter().map(|verb| (resource.clone(), verb.clone())).collect::<Vec<_>>();
            words(rule, "resources").into_iter().flat_map(pairs).collect::<Vec<_>>()
        })
        .filter(|(resource, verb)| {
            matches!(resource.as_str(), "workerpools" | "workerpools/status" | "deployments" | "pods")
                || matches!((resource.as_str(), verb.as_str()), ("taskqueues", "get") | ("events", "patch"))
        })
        .collect();
    let used: BTreeSet<_> = RIGHTS.iter().map(|right| (right.resource.to_owned(), right.verb.to_owned())).collect();
    assert_eq!(granted, used);
}

/// Makes the operator look for a pod that it does not know, and say what pods are worth.
async fn use_pods(ground: &Ground) {
    let pods = ground.pods_of("p", 2).await;
    let busy = ground.worker("q", &pods[0], "p", 2).await;
    let ghost = WorkerInfo {
        id: format!("{}-ghost", busy.id).parse().expect("valid"),
        host: "h".to_owned(),
        pid: 1,
        pod: Some("ghost".to_owned()),
        pod_uid: Some("ghost".to_owned()),
        container: None,
        version: "1".to_owned(),
        types: Vec::new(),
        pool: ground.pools().get("p").await.expect("there").uid(),
        started: None,
    };
    ground.broker("q").register(&ghost).await.expect("registered");
    ground.cluster.kubectl(&["-n", &ground.namespace, "scale", "workerpool/p", "--replicas=1"]).await;
}
