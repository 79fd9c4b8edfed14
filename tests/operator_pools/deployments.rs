//! What a pool is in the cluster.

use kube::ResourceExt;
use serde_json::{Value, json};

use super::ground::{Ground, replicas};

/// Who owns which field of a Deployment, by manager.
fn owners(deployment: &k8s_openapi::api::apps::v1::Deployment, pointer: &str) -> Vec<String> {
    let managed = deployment.managed_fields().iter();
    let owning = managed.filter(|entry| {
        let fields = entry.fields_v1.as_ref().map(|fields| fields.0.clone()).unwrap_or(Value::Null);
        fields.pointer(pointer).is_some()
    });
    owning.map(|entry| entry.manager.clone().unwrap_or_default()).collect()
}

#[tokio::test]
async fn an_http_pool_is_a_deployment_whose_worker_is_the_main_container() {
    let ground = Ground::new().await;
    ground.queue("emails").await;
    let template = json!({
        "metadata": {"labels": {"team": "mail"}, "annotations": {"note": "kept"}},
        "spec": {
            "initContainers": [{"name": "migrate", "image": "migrate:1"}],
            "containers": [{"name": "app", "image": "app:1", "ports": [{"containerPort": 8080}]}],
            "priorityClassName": "system-cluster-critical",
        },
    });
    ground.pool("mailers", "emails", json!({"replicas": 2, "template": template, "drainTimeoutSeconds": 30})).await;
    let made = ground.replicas("mailers", 2).await;
    let spec = made.spec.clone().expect("a spec");
    let pod = spec.template.spec.expect("pods");
    assert_eq!(pod.containers.iter().map(|one| one.name.as_str()).collect::<Vec<_>>(), ["windlass-worker"]);
    let init = pod.init_containers.expect("sidecars");
    assert_eq!(init.iter().map(|one| one.name.as_str()).collect::<Vec<_>>(), ["migrate", "app"]);
    assert_eq!(init.iter().map(|one| one.restart_policy.as_deref()).collect::<Vec<_>>(), [None, Some("Always")]);
    assert_eq!(
        (pod.termination_grace_period_seconds, pod.priority_class_name.as_deref()),
        (Some(45), Some("system-cluster-critical"))
    );
    let labels = spec.template.metadata.clone().and_then(|meta| meta.labels).expect("labels");
    assert_eq!((labels["team"].as_str(), labels["windlass.dev/pool"].as_str()), ("mail", "mailers"));

    let pool = ground.pools().get("mailers").await.expect("it is there");
    let owner = &made.owner_references()[0];
    assert_eq!((Some(owner.uid.clone()), owner.controller), (pool.uid(), Some(true)));
    for field in ["/f:spec/f:replicas", "/f:spec/f:template", "/f:spec/f:selector"] {
        assert_eq!(owners(&made, field), ["windlass-operator"], "{field}");
    }
    ground.condition("mailers", "QueueResolved", "True", "QueueFound").await;
    ground.condition("mailers", "TemplateAccepted", "True", "TemplateAccepted").await;
    let message = ground.condition("mailers", "Available", "False", "PodsNotReady").await;
    assert_eq!(message, "0 of 2 pods are ready", "there are no nodes");
    let shown = ground.cluster.kubectl(&["-n", &ground.namespace, "get", "wp", "mailers"]).await;
    assert!(shown.contains("PodsNotReady") || shown.contains("emails"), "{shown}");
}

#[tokio::test]
async fn an_exec_pool_gets_the_worker_on_a_volume_and_an_sdk_pool_its_environment() {
    let ground = Ground::new().await;
    ground.queue("q").await;
    ground.pool("exec", "q", json!({"handler": {"type": "Exec", "exec": {"command": ["./run"]}}})).await;
    ground.pool("sdk", "q", json!({"handler": {"type": "SDK"}, "taskTypes": ["a", "b"]})).await;
    let pod_of =
        |made: k8s_openapi::api::apps::v1::Deployment| made.spec.and_then(|spec| spec.template.spec).expect("pods");
    let exec = pod_of(ground.replicas("exec", 1).await);
    assert_eq!(exec.init_containers.expect("one")[0].name, "windlass-install");
    let command = exec.containers[0].command.clone().expect("a command");
    assert_eq!((command[0].as_str(), command.last().map(String::as_str)), ("/windlass/windlass", Some("./run")));
    let sdk = pod_of(ground.replicas("sdk", 1).await);
    let types = sdk.containers[0].env.iter().flatten().find(|one| one.name == "WINDLASS_TASK_TYPES").expect("told");
    assert_eq!((types.value.as_deref(), sdk.init_containers), (Some("a,b"), None));
}

/// closes: temporal-worker-controller#529 (autoscaler and controller fight over replicas)
#[tokio::test]
async fn replicas_are_asked_for_by_kubectl_scale_and_by_an_autoscaler_and_nobody_fights() {
    let ground = Ground::new().await;
    ground.queue("q").await;
    ground.pool("p", "q", json!({})).await;
    ground.replicas("p", 1).await;
    ground.cluster.kubectl(&["-n", &ground.namespace, "scale", "workerpool/p", "--replicas=5"]).await;
    let scaled = ground.replicas("p", 5).await;
    assert_eq!(owners(&scaled, "/f:spec/f:replicas"), ["windlass-operator"]);

    // It raises to its minimum without metrics, of which there are none here.
    let autoscaler = json!({
        "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "p"},
        "spec": {
            "scaleTargetRef": {"apiVersion": "windlass.dev/v1alpha1", "kind": "WorkerPool", "name": "p"},
            "minReplicas": 7, "maxReplicas": 9,
            "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}}],
        },
    });
    ground.cluster.apply(&ground.namespace, &autoscaler.to_string()).await;
    let raised = ground.replicas("p", 7).await;
    assert_eq!(owners(&raised, "/f:spec/f:replicas"), ["windlass-operator"]);
    let pool = ground.pools().get("p").await.expect("it is there");
    assert_eq!(pool.spec.replicas, 7, "the autoscaler writes the pool, the operator the Deployment");
    let ours = pool.managed_fields().iter().filter(|entry| entry.manager.as_deref() == Some("windlass-operator"));
    for entry in ours {
        assert_eq!(entry.subresource.as_deref(), Some("status"), "the operator never writes a pool's spec");
    }
    let status = ground.pools().get("p").await.expect("it is there").status.expect("a status");
    assert_eq!(status.selector.as_deref(), Some("windlass.dev/pool=p"));

    // Each step is an Event with words of its own, though all have one reason.
    for note in ["made a Deployment of 1 pods", "from 1 to 5 pods", "from 5 to 7 pods"] {
        ground
            .cluster
            .wait_for(&ground.namespace, &format!("an Event that says {note:?}"), async || {
                let all = ["-n", &*ground.namespace, "get", "events", "--field-selector=reason=Scaled", "-o"];
                let seen = ground.cluster.kubectl(&[&all[..], &["jsonpath={.items[*].message}"]].concat()).await;
                if seen.contains(note) { Ok(()) } else { Err(seen) }
            })
            .await;
    }
}

#[tokio::test]
async fn a_deployment_of_the_same_name_that_is_somebody_elses_is_left_alone() {
    let ground = Ground::new().await;
    ground.queue("q").await;
    let theirs = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "p"},
        "spec": {"replicas": 4, "selector": {"matchLabels": {"app": "x"}},
                 "template": {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [{"name": "x", "image": "x"}]}}},
    });
    ground.cluster.apply(&ground.namespace, &theirs.to_string()).await;
    ground.pool("p", "q", json!({})).await;
    let message = ground.condition("p", "TemplateAccepted", "False", "NameTaken").await;
    assert!(message.contains("rename"), "{message}");
    let left = ground.deployments().get("p").await.expect("it is there");
    assert_eq!((replicas(&left), left.owner_references().len()), (4, 0));
    ground.deployments().delete("p", &Default::default()).await.expect("deleted");
    ground.replicas("p", 1).await;
}

#[tokio::test]
async fn a_pool_that_is_deleted_takes_its_deployment_with_it() {
    let ground = Ground::new().await;
    ground.queue("q").await;
    ground.pool("p", "q", json!({})).await;
    ground.replicas("p", 1).await;
    ground.pools().delete("p", &Default::default()).await.expect("deleted");
    ground.cluster.wait(&ground.deployments(), "p", "to be gone", |found| found.is_none()).await;
}
