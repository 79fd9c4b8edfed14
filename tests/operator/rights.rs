//! The chart grants what the operator uses, and no more.

use serde_json::{Value, json};

use super::ground::{Ground, chart, grant, install};

/// One right: a rule cut down to one resource and one verb.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Right {
    group: String,
    resource: String,
    verb: String,
}

fn words(rule: &Value, field: &str) -> Vec<String> {
    let list = rule[field].as_array().map(Vec::as_slice).unwrap_or_default();
    list.iter().map(|word| word.as_str().expect("a word").to_owned()).collect()
}

fn rights_of(rule: &Value) -> Vec<Right> {
    let mut rights = Vec::new();
    for group in words(rule, "apiGroups") {
        for resource in words(rule, "resources") {
            for verb in words(rule, "verbs") {
                rights.push(Right { group: group.clone(), resource: resource.clone(), verb });
            }
        }
    }
    rights
}

#[tokio::test(flavor = "multi_thread")]
async fn no_right_is_a_wildcard_and_secrets_are_neither_listed_nor_watched() {
    let ground = Ground::new().await;
    for settings in [&[][..], &["watchNamespaces={a,b}"][..]] {
        let documents = chart(ground.cluster, "somewhere", settings).await;
        let rules = documents.iter().filter_map(|document| document["rules"].as_array()).flatten();
        let rights: Vec<Right> = rules.flat_map(rights_of).collect();
        assert!(rights.len() > 10);
        for right in &rights {
            let Right { group, resource, verb } = right;
            assert!([group, resource, verb].iter().all(|word| !word.contains('*')), "{right:?}");
            assert!(resource != "secrets" || verb == "get", "{right:?}");
        }
        let namespaced = !settings.is_empty();
        let cluster_roles = documents.iter().any(|document| document["kind"] == "ClusterRole");
        assert_eq!(cluster_roles, !namespaced, "a chart for namespaces renders Roles only");
    }
}

/// What queues need, from the Lease to an Event. Pools have theirs in a test of their own.
fn needed_for_queues(right: &Right) -> bool {
    !matches!(right.resource.as_str(), "workerpools" | "workerpools/status" | "deployments" | "pods")
        // A pool looks at the one queue that it names.
        && *right != Right { group: "windlass.dev".into(), resource: "taskqueues".into(), verb: "get".into() }
        // Written only when an Event repeats within minutes.
        && *right != Right { group: "events.k8s.io".into(), resource: "events".into(), verb: "patch".into() }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_any_one_right_something_fails() {
    let ground = Ground::new().await;
    let documents = chart(ground.cluster, "somewhere", &["watchNamespaces={somewhere}"]).await;
    let rules: Vec<&Value> = documents.iter().filter_map(|document| document["rules"].as_array()).flatten().collect();
    let mut rights: Vec<Right> = rules.into_iter().flat_map(rights_of).filter(needed_for_queues).collect();
    rights.dedup();
    assert!(rights.len() >= 9, "{rights:?}");
    for right in rights {
        let place = ground.cluster.namespace().await;
        let without = |rule: &Value| !rights_of(rule).contains(&right) || words(rule, "verbs").len() > 1;
        grant(ground.cluster, &place, Some(&place), without).await;
        // What is left of the rule without that verb.
        lessen(&ground, &place, &right).await;
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "redis"}, "stringData": {"url": ground.redis.url()}});
        ground.cluster.apply(&place, &secret.to_string()).await;
        let spec = "{deletionPolicy: Delete, broker: {type: Redis, redis: {urlSecretRef: {name: redis, key: url}}}}";
        ground.cluster.apply(&place, &super::ground::queue("emails", spec)).await;
        let operator = super::ground::Operator::start(
            ground.cluster,
            &place,
            &[("WINDLASS_NAMESPACES", &*place), ("WINDLASS_REDIS_URL", "")],
        )
        .await;
        let plain = right.resource.split('/').next().unwrap_or_default();
        let said = async || {
            let log = operator.log();
            let refused =
                |line: &&str| line.contains("forbidden") && line.contains(plain) && line.contains(&right.verb);
            let queues: kube::Api<windlass::crd::TaskQueue> = kube::Api::namespaced(ground.client.clone(), &place);
            let shown =
                queues.get("emails").await.map(|queue| serde_json::to_string(&queue.status).unwrap_or_default());
            let told = shown.is_ok_and(|status| status.contains("forbidden") && status.contains(plain));
            if told || log.lines().any(|line| refused(&line)) { Ok(()) } else { Err(log) }
        };
        ground.cluster.wait_for(&place, &format!("something to fail without {right:?}"), said).await;
        eprintln!("missed: {} {} {}", right.verb, right.resource, right.group);
    }
}

/// Takes one verb out of the rules that were granted in a namespace.
async fn lessen(ground: &Ground, namespace: &str, right: &Right) {
    let watched = format!("watchNamespaces={{{namespace}}}");
    for mut document in chart(ground.cluster, namespace, &[&watched]).await {
        let Some(rules) = document.get_mut("rules").and_then(Value::as_array_mut) else { continue };
        for rule in rules.iter_mut() {
            if rights_of(rule).contains(right) {
                let verbs = words(rule, "verbs").into_iter().filter(|verb| *verb != right.verb);
                rule["verbs"] = verbs.collect::<Vec<_>>().into();
            }
        }
        rules.retain(|rule| !words(rule, "verbs").is_empty());
        install(ground.cluster, &document).await;
    }
}
