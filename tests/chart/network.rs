//! NetworkPolicies and Services fit the pods that they are about. That a network carries them out is not tried: the tests' own
//! enforces no policies.

use serde_json::Value;

use super::ground::{cluster, objects, of_kind};

/// The Deployments that a selector finds by the labels of their pods.
fn found<'a>(objects: &'a [Value], selector: &Value) -> Vec<&'a Value> {
    let wanted = selector.as_object().expect("labels");
    assert!(!wanted.is_empty(), "it would find every pod");
    let fits = |labels: &Value| wanted.iter().all(|(name, value)| labels[name] == *value);
    let all = of_kind(objects, "Deployment").into_iter();
    all.filter(|one| fits(&one["spec"]["template"]["metadata"]["labels"])).collect()
}

/// The number of a port that the pods of a Deployment give a name to.
fn port(deployment: &Value, name: &Value) -> u64 {
    let containers = deployment["spec"]["template"]["spec"]["containers"].as_array().expect("containers");
    let mut ports = containers.iter().flat_map(|one| one["ports"].as_array().into_iter().flatten());
    let found = ports.find(|port| port["name"] == *name && port["protocol"].as_str().is_none_or(|tcp| tcp == "TCP"));
    found.unwrap_or_else(|| panic!("no port {name} in {deployment}"))["containerPort"].as_u64().expect("a number")
}

/// Whose pods each object of a kind is about, and the only port that it is about.
fn about(objects: &[Value], kind: &str, selector: &str, ports: &str, name: &str) -> Vec<(String, u64)> {
    let one = |object: &&Value| {
        let to = found(objects, object.pointer(selector).expect("a selector"));
        assert_eq!(to.len(), 1, "{object}");
        let ports = object.pointer(ports).and_then(Value::as_array).expect("ports");
        assert_eq!(ports.len(), 1, "{object}");
        (to[0]["metadata"]["name"].as_str().expect("a name").to_owned(), port(to[0], &ports[0][name]))
    };
    of_kind(objects, kind).iter().map(one).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn policies_and_services_are_about_the_ports_of_the_pods_that_they_select() {
    // Labels of one's own must not take a pod away from them.
    let values = "{networkPolicy: {enabled: true}, nameOverride: tasks, podLabels: {team: a}, commonLabels: {team: b}}";
    for values in ["networkPolicy: {enabled: true}", values] {
        let objects = objects(cluster().await, "here", values).await;
        let names: Vec<_> = of_kind(&objects, "Deployment").iter().map(|one| one["metadata"]["name"].clone()).collect();
        let name = |at: usize| names[at].as_str().expect("a name").to_owned();
        assert_eq!(names.len(), 2, "{names:?}");
        let expected = vec![(name(0), 8080), (name(1), 6379)];
        let (ingress, selector) = ("/spec/ingress/0/ports", "/spec/podSelector/matchLabels");
        let mut policies = about(&objects, "NetworkPolicy", selector, ingress, "port");
        let mut services = about(&objects, "Service", "/spec/selector", "/spec/ports", "targetPort");
        policies.sort();
        services.sort();
        assert_eq!((&policies, &services), (&expected, &expected));
        for policy in of_kind(&objects, "NetworkPolicy") {
            assert_eq!(policy["spec"]["ingress"].as_array().map(Vec::len), Some(1), "{policy}");
        }
    }
}
