//! What pods can rely on at the node level.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, EvictParams, ListParams, LogParams};

use crate::kubernetes::{Image, Kubernetes, TestNamespace};

/// Two web servers that tell their pod's name, are ready while `/www/ready` is there and alive while
/// `/www/sick` is not; and a Service before them.
const WEB: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: web
        image: localhost/busybox:test
        command: [sh, -c, 'mkdir /www; hostname >/www/index.html; touch /www/ready; echo serving; exec httpd -f -p 8080 -h /www']
        readinessProbe: {exec: {command: [cat, /www/ready]}, periodSeconds: 1, timeoutSeconds: 10, failureThreshold: 1}
        livenessProbe: {exec: {command: [test, '!', -e, /www/sick]}, periodSeconds: 1, timeoutSeconds: 10, failureThreshold: 1}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
";

/// A pod that runs one command line.
fn pod(name: &str, command: &str, more: &str) -> String {
    let command = serde_json::json!(command);
    format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, spec: {{restartPolicy: Never, terminationGracePeriodSeconds: 1, \
         containers: [{{name: one, image: 'localhost/busybox:test', command: [sh, -c, {command}] {more}}}]}}}}"
    )
}

/// Puts the web servers there and waits for them; returns their pods.
async fn web(cluster: &Kubernetes, namespace: &TestNamespace<'_>) -> Vec<String> {
    cluster.apply(namespace, WEB).await;
    let client = cluster.client().await;
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), namespace);
    cluster.wait(&deployments, "web", "to have two available replicas", |found| available(found) == Some(2)).await;
    let pods: Api<Pod> = Api::namespaced(client, namespace);
    let found = pods.list(&ListParams::default().labels("app=web")).await.expect("pods are listed");
    found.iter().map(ResourceExt::name_any).collect()
}

fn available(found: Option<&Deployment>) -> Option<i32> {
    found?.status.as_ref()?.available_replicas
}

fn is_ready(found: Option<&Pod>) -> Option<bool> {
    let conditions = found?.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|one| one.type_ == "Ready").map(|one| one.status == "True")
}

/// What a pod printed once it has ended.
async fn printed(cluster: &Kubernetes, namespace: &str, name: &str) -> String {
    let pods: Api<Pod> = Api::namespaced(cluster.client().await, namespace);
    let ended = |found: Option<&Pod>| {
        let phase = found.and_then(|found| found.status.as_ref()?.phase.as_deref());
        matches!(phase, Some("Succeeded" | "Failed"))
    };
    cluster.wait(&pods, name, "to end", ended).await;
    pods.logs(name, &LogParams::default()).await.expect("it has a log")
}

#[tokio::test]
async fn a_deployment_becomes_ready_and_its_pods_have_logs_and_can_be_entered() {
    let Some(cluster) = Kubernetes::nodes().await else { return };
    let namespace = cluster.namespace().await;
    let pods = web(cluster, &namespace).await;
    let api: Api<Pod> = Api::namespaced(cluster.client().await, &namespace);
    assert_eq!(api.logs(&pods[0], &LogParams::default()).await.expect("a log"), "serving\n");
    let said = cluster.kubectl(&["-n", &namespace, "exec", &pods[1], "--", "sh", "-c", "echo in $(hostname)"]).await;
    assert_eq!(said.trim(), format!("in {}", pods[1]));
}

#[tokio::test]
async fn a_rolling_update_replaces_every_pod() {
    let Some(cluster) = Kubernetes::nodes().await else { return };
    let namespace = cluster.namespace().await;
    let before = web(cluster, &namespace).await;
    cluster.kubectl(&["-n", &namespace, "set", "env", "deployment/web", "VERSION=2"]).await;
    cluster.kubectl(&["-n", &namespace, "rollout", "status", "deployment/web", "--timeout=180s"]).await;
    let pods: Api<Pod> = Api::namespaced(cluster.client().await, &namespace);
    for old in &before {
        cluster.wait(&pods, old, "to be gone", |found| found.is_none()).await;
    }
    let new = pods.list(&ListParams::default().labels("app=web")).await.expect("pods are listed");
    assert_eq!(new.iter().filter(|pod| is_ready(Some(pod)) == Some(true)).count(), 2);
}

#[tokio::test]
async fn an_eviction_waits_for_the_disruption_budget() {
    let Some(cluster) = Kubernetes::nodes().await else { return };
    let namespace = cluster.namespace().await;
    let web_pods = web(cluster, &namespace).await;
    let budget = |least: u32| {
        format!(
            "{{apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: {{name: web}}, spec: {{minAvailable: {least}, selector: {{matchLabels: {{app: web}}}}}}}}"
        )
    };
    cluster.apply(&namespace, &budget(2)).await;
    let client = cluster.client().await;
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(client.clone(), &namespace);
    let counted = |found: Option<&PodDisruptionBudget>| found.is_some_and(|found| found.status.is_some());
    cluster.wait(&budgets, "web", "to be counted", counted).await;

    // None of two may be missing …
    let pods: Api<Pod> = Api::namespaced(client, &namespace);
    match pods.evict(&web_pods[0], &EvictParams::default()).await {
        Err(kube::Error::Api(status)) => assert_eq!(status.code, 429, "{}", status.message),
        other => panic!("an eviction against the budget must be refused, not {other:?}"),
    }
    // … and then one may.
    cluster.apply(&namespace, &budget(1)).await;
    cluster
        .wait_for(&namespace, "the eviction to be granted", async || {
            pods.evict(&web_pods[0], &EvictParams::default()).await.map_err(|error| error.to_string())
        })
        .await;
    cluster.wait(&pods, &web_pods[0], "to be gone", |found| found.is_none()).await;
}

#[tokio::test]
async fn too_much_memory_is_told_as_oom_killed() {
    let Some(cluster) = Kubernetes::nodes().await else { return };
    let namespace = cluster.namespace().await;
    let greedy = pod("greedy", "tail /dev/zero", ", resources: {limits: {memory: 20Mi}}");
    cluster.apply(&namespace, &greedy).await;
    let pods: Api<Pod> = Api::namespaced(cluster.client().await, &namespace);
    let end = |found: Option<&Pod>| {
        let statuses = found?.status.as_ref()?.container_statuses.as_ref()?;
        let ended = statuses.first()?.state.as_ref()?.terminated.as_ref()?;
        Some((ended.exit_code, ended.reason.clone().unwrap_or_default()))
    };
    let ended = cluster.wait(&pods, "greedy", "to end", |found| end(found).is_some()).await;
    assert_eq!(end(ended.as_ref()), Some((137, "OOMKilled".to_owned())));
}

#[tokio::test]
async fn readiness_takes_a_pod_out_of_its_service_and_back() {
    let Some(cluster) = Kubernetes::nodes().await else { return };
    let namespace = cluster.namespace().await;
    let pods = web(cluster, &namespace).await;
    let ready_endpoints = async || {
        let path = "jsonpath={range .items[*].endpoints[?(@.conditions.ready==true)]}{.targetRef.name} {end}";
        let slices = ["-n", &namespace, "get", "endpointslices", "-l", "kubernetes.io/service-name=web", "-o", path];
        cluster.kubectl(&slices).await
    };
    let both = async |wanted: bool| {
        cluster
            .wait_for(&namespace, "the endpoints to follow readiness", async || {
                let seen = ready_endpoints().await;
                if seen.contains(&pods[0]) == wanted && seen.contains(&pods[1]) { Ok(()) } else { Err(seen) }
            })
            .await;
    };
    both(true).await;
    cluster.kubectl(&["-n", &namespace, "exec", &pods[0], "--", "rm", "/www/ready"]).await;
    both(false).await;
    cluster.kubectl(&["-n", &namespace, "exec", &pods[0], "--", "touch", "/www/ready"]).await;
    both(true).await;
}

#[tokio::test]
async fn a_container_that_is_not_alive_is_restarted_in_its_pod() {
    let Some(cluster) = Kubernetes::nodes().await else { return };
    let namespace = cluster.namespace().await;
    let names = web(cluster, &namespace).await;
    cluster.kubectl(&["-n", &namespace, "exec", &names[0], "--", "touch", "/www/sick"]).await;
    let pods: Api<Pod> = Api::namespaced(cluster.client().await, &namespace);
    let restarts =
        |found: Option<&Pod>| Some(found?.status.as_ref()?.container_statuses.as_ref()?.first()?.restart_count);
    let again = |found: Option<&Pod>| restarts(found) >= Some(1) && is_ready(found) == Some(true);
    cluster.wait(&pods, &names[0], "to be restarted and ready", again).await;
}

#[tokio::test]
async fn a_pod_speaks_to_the_apiserver_with_its_own_token() {
    let Some(cluster) = Kubernetes::nodes().await else { return };
    let namespace = cluster.namespace().await;
    cluster.python_image().await;
    // As a client in a pod does it: by the Service's name, with the mounted authority and token.
    let script = "
import json, ssl, urllib.error, urllib.request
place = '/var/run/secrets/kubernetes.io/serviceaccount/'
token = open(place + 'token').read()
asked = urllib.request.Request('https://kubernetes.default.svc/api/v1/namespaces', headers={'Authorization': 'Bearer ' + token})
try:
    urllib.request.urlopen(asked, context=ssl.create_default_context(cafile=place + 'ca.crt'))
except urllib.error.HTTPError as refused:
    print(refused.code, json.load(refused)['message'])
";
    let manifest = serde_json::json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "asks" },
        "spec": { "restartPolicy": "Never", "containers": [
            { "name": "one", "image": "localhost/python:test", "args": ["-c", script] }
        ] },
    });
    cluster.apply(&namespace, &manifest.to_string()).await;
    let said = printed(cluster, &namespace, "asks").await;
    let user = format!("system:serviceaccount:{}:default", &*namespace);
    assert!(said.starts_with("403 ") && said.contains(&user), "known, and without rights: {said}");
}

#[tokio::test]
async fn a_service_is_reached_by_name_from_either_node() {
    let Some(cluster) = Kubernetes::nodes().await else { return };
    let namespace = cluster.namespace().await;
    let servers = web(cluster, &namespace).await;
    let nodes = cluster.kubectl(&["get", "nodes", "-o", "jsonpath={.items[*].metadata.name}"]).await;
    for node in nodes.split_whitespace() {
        // A node learns of a Service's pods a moment after they are ready.
        let get = format!("timeout 10 wget -qO- http://web.{}.svc", &*namespace);
        let ask = format!("until {get} >/dev/null; do sleep 0.2; done; for i in 1 2 3 4 5 6 7 8; do {get}; done");
        let name = format!("asks-{node}");
        let asks = pod(&name, &ask, "").replace("spec: {", &format!("spec: {{nodeName: {node}, "));
        cluster.apply(&namespace, &asks).await;
        let said = printed(cluster, &namespace, &name).await;
        assert_eq!(said.lines().count(), 8, "{said}");
        assert!(said.lines().all(|line| servers.iter().any(|server| server == line)), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_test_can_go_where_services_are() {
    let Some(cluster) = Kubernetes::our_nodes().await else { return };
    let namespace = cluster.namespace().await;
    let servers = web(cluster, &namespace).await;
    let services: Api<Service> = Api::namespaced(cluster.client().await, &namespace);
    let found = services.get("web").await.expect("it is there");
    let address = found.spec.and_then(|spec| spec.cluster_ip).expect("it has an address");
    // The node learns of the Service's pods a moment after they are ready.
    let said = cluster
        .wait_for(&namespace, "the Service to answer", async || {
            tokio::task::block_in_place(|| {
                cluster.in_network(|| {
                    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
                    runtime.block_on(async {
                        let answer =
                            reqwest::get(format!("http://{address}/")).await.map_err(|error| error.to_string())?;
                        answer.text().await.map_err(|error| error.to_string())
                    })
                })
            })
        })
        .await;
    assert!(servers.iter().any(|server| server == said.trim()), "{said}");
}

#[tokio::test]
async fn nothing_leaves_the_machine() {
    let Some(cluster) = Kubernetes::our_nodes().await else { return };
    // The nodes know no way that leads out …
    for node in ["node1", "node2"] {
        let routes = cluster.on_node(node, &["ip", "route", "show", "table", "all"]).await;
        assert!(!routes.contains("default"), "{node}: {routes}");
        let links = cluster.on_node(node, &["ip", "-oneline", "link"]).await;
        for link in links.lines().filter(|link| !link.contains("LOOPBACK")) {
            let ours = ["nodes", "cable2", "pods", "veth", "eth0"];
            let name = link.split_whitespace().nth(1).expect("a link has a name");
            assert!(ours.iter().any(|start| name.starts_with(start)), "{node}: {link}");
        }
    }
    // … a pod that tries finds none, and none that it could ask.
    let namespace = cluster.namespace().await;
    let tries = "nc -w 5 1.1.1.1 443 2>&1 || echo refused; nslookup example.com 2>&1 || echo unknown";
    cluster.apply(&namespace, &pod("tries", tries, "")).await;
    let said = printed(cluster, &namespace, "tries").await;
    assert!(said.contains("unreachable") && said.contains("refused"), "{said}");
    assert!(said.contains("NXDOMAIN") && said.contains("unknown"), "{said}");
}

#[tokio::test]
async fn images_of_windlass_redis_and_python_run() {
    let Some(cluster) = Kubernetes::nodes().await else { return };
    let namespace = cluster.namespace().await;
    let images = [
        (cluster.windlass_image().await, vec!["--version"], "windlass "),
        (cluster.redis_image().await, vec!["--version"], "v=7.0."),
        (cluster.python_image().await, vec!["-c", "import ssl, json, sqlite3, http.server; print('stands')"], "stands"),
    ];
    for (number, (image, arguments, expected)) in images.into_iter().enumerate() {
        let name = format!("one-{number}");
        let manifest = serde_json::json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
            "spec": { "restartPolicy": "Never", "containers": [{ "name": "one", "image": image, "args": arguments }] },
        });
        cluster.apply(&namespace, &manifest.to_string()).await;
        let said = printed(cluster, &namespace, &name).await;
        assert!(said.contains(expected), "{image}: {said}");
    }
    // One of a test's own.
    let dir = tempfile::tempdir().expect("a temporary directory");
    std::fs::write(dir.path().join("words"), "own words").expect("a file");
    let image = Image::new("own").shell().tree(dir.path(), "/words").entrypoint(&["/bin/cat", "/words/words"]);
    let name = image.load(cluster).await;
    cluster.apply(&namespace, &pod("own", "cat /words/words", "").replace("localhost/busybox:test", &name)).await;
    assert_eq!(printed(cluster, &namespace, "own").await, "own words");
    let pods: Api<Pod> = Api::namespaced(cluster.client().await, &namespace);
    pods.delete("own", &DeleteParams::default()).await.expect("it can be deleted");
}
