//! What the API server says to a template reaches the pool's conditions.

use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::ground::{Ground, replicas};

/// Has the API server refuse Deployments of more than two pods, as a policy of the cluster would, of the namespace's name.
async fn refuse_more_than_two(ground: &Ground) {
    let namespace = &*ground.namespace;
    let rules = json!([{"apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["deployments"]}]);
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": {"name": namespace},
        "spec": {"matchConstraints": {"resourceRules": rules},
                 "validations": [{"expression": "object.spec.replicas <= 2", "message": "two pods are enough"}]},
    });
    let here = json!({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}});
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": namespace},
        "spec": {"policyName": namespace, "validationActions": ["Deny"], "matchResources": here},
    });
    ground.cluster.apply(namespace, &format!("{policy}\n---\n{binding}")).await;
    let many = Patch::Merge(json!({"spec": {"replicas": 3}}));
    let in_force = async || {
        let answer = ground.deployments().patch("p", &PatchParams::default().dry_run(), &many).await;
        answer.map_or_else(|_| Ok(()), |_| Err("it is taken".to_owned()))
    };
    ground.cluster.wait_for(namespace, "the policy to be in force", in_force).await;
}

#[tokio::test]
async fn a_refusal_of_what_was_accepted_before_is_told_and_mended_by_itself() {
    let ground = Ground::new().await;
    ground.queue("q").await;
    ground.pool("p", "q", json!({"replicas": 1})).await;
    ground.replicas("p", 1).await;
    ground.condition("p", "TemplateAccepted", "True", "TemplateAccepted").await;
    refuse_more_than_two(&ground).await;
    let scale = ["-n", &*ground.namespace, "scale", "workerpool/p", "--replicas=5"];
    ground.cluster.kubectl(&scale).await;
    let message = ground.condition("p", "TemplateAccepted", "False", "TemplateRefused").await;
    assert!(message.contains("two pods are enough"), "{message}");
    let message = ground.condition("p", "Ready", "False", "TemplateRefused").await;
    assert!(message.contains("two pods are enough"), "{message}");
    assert_eq!(replicas(&ground.deployments().get("p").await.expect("there")), 1, "what is there stays");
    ground.cluster.kubectl(&["delete", "validatingadmissionpolicybinding", &*ground.namespace]).await;
    ground.replicas("p", 5).await;
    ground.condition("p", "TemplateAccepted", "True", "TemplateAccepted").await;
}

#[tokio::test]
async fn a_template_that_is_refused_says_why_and_what_is_there_goes_on() {
    let ground = Ground::new().await;
    ground.queue("q").await;
    ground.pool("p", "q", json!({"replicas": 2})).await;
    let before = ground.replicas("p", 2).await;
    let no_volume = json!({"spec": {"containers": [{
        "name": "app", "image": "app:1", "volumeMounts": [{"name": "nowhere", "mountPath": "/x"}]}]}});
    ground.pool("p", "q", json!({"replicas": 3, "template": no_volume})).await;
    let message = ground.condition("p", "TemplateAccepted", "False", "TemplateRefused").await;
    assert!(message.contains("nowhere") && message.contains("volumeMounts"), "{message}");
    let after = ground.replicas("p", 3).await;
    assert_eq!(
        after.spec.expect("a spec").template,
        before.spec.expect("a spec").template,
        "the pods stay as they are, and can be scaled"
    );

    let unknown = json!({"spec": {"containers": [{"name": "app", "image": "app:1"}], "hostNetwrok": true}});
    ground.pool("p", "q", json!({"replicas": 3, "template": unknown})).await;
    let named = |found: Option<&windlass::crd::WorkerPool>| {
        found
            .and_then(|pool| super::ground::condition(pool.status.as_ref()?, "TemplateAccepted"))
            .is_some_and(|(.., message)| message.contains("hostNetwrok"))
    };
    ground.cluster.wait(&ground.pools(), "p", "to name the field that does not exist", named).await;

    ground.pool("p", "q", json!({"replicas": 3})).await;
    ground.condition("p", "TemplateAccepted", "True", "TemplateAccepted").await;
}

#[tokio::test]
async fn a_name_that_windlass_uses_itself_is_refused_with_a_sentence() {
    let ground = Ground::new().await;
    ground.queue("q").await;
    let taken = json!({"spec": {"containers": [{"name": "windlass-worker", "image": "x"}]}});
    ground.pool("p", "q", json!({"template": taken})).await;
    let message = ground.condition("p", "TemplateAccepted", "False", "TemplateRefused").await;
    assert!(message.contains("give yours another one"), "{message}");
    assert!(ground.deployments().get_opt("p").await.expect("answered").is_none());
}

#[tokio::test]
async fn warnings_and_pods_that_are_refused_later_are_told() {
    let ground = Ground::new().await;
    let label = |mode: &str| format!("pod-security.kubernetes.io/{mode}=restricted");
    ground.cluster.kubectl(&["label", "namespace", &ground.namespace, &label("warn")]).await;
    ground.queue("q").await;
    ground.pool("p", "q", json!({})).await;
    let message = ground.condition("p", "TemplateAccepted", "True", "AcceptedWithWarnings").await;
    assert!(message.contains("PodSecurity") && message.contains("\"app\""), "{message}");
    assert!(!message.contains("windlass-worker"), "what Windlass adds is restricted: {message}");

    ground.cluster.kubectl(&["label", "namespace", &ground.namespace, &label("enforce")]).await;
    ground.cluster.kubectl(&["-n", &ground.namespace, "scale", "workerpool/p", "--replicas=2"]).await;
    let message = ground.condition("p", "TemplateAccepted", "False", "PodsRefused").await;
    assert!(message.contains("forbidden"), "{message}");
}

#[tokio::test]
async fn what_windlass_adds_is_taken_where_only_restricted_pods_are() {
    let ground = Ground::new().await;
    ground
        .cluster
        .kubectl(&["label", "namespace", &ground.namespace, "pod-security.kubernetes.io/enforce=restricted"])
        .await;
    ground.queue("q").await;
    let restricted = json!({"spec": {
        "securityContext": {"runAsNonRoot": true, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [{"name": "app", "image": "app:1", "securityContext": {
            "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}}]}});
    ground.pool("http", "q", json!({"template": restricted})).await;
    let exec = json!({"type": "Exec", "exec": {"command": ["x"]}});
    ground.pool("exec", "q", json!({"template": restricted, "handler": exec})).await;
    for pool in ["http", "exec"] {
        ground.pods_of(pool, 1).await;
    }
}

#[tokio::test]
async fn a_pool_whose_own_settings_were_wrong_goes_on_when_they_are_right() {
    let ground = Ground::new().await;
    ground.queue("q").await;
    let wrong = json!({"spec": {"containers": [{"name": "app", "image": "app:1", "command": "not a list"}]}});
    ground.pool("p", "q", json!({"template": wrong})).await;
    let message = ground.condition("p", "TemplateAccepted", "False", "TemplateRefused").await;
    assert!(message.starts_with("template: "), "{message}");
    let right =
        Patch::Merge(json!({"spec": {"template": {"spec": {"containers": [{"name": "app", "image": "app:1"}]}}}}));
    ground.pools().patch("p", &PatchParams::default(), &right).await.expect("mended");
    let made = ground.replicas("p", 1).await;
    assert_eq!(replicas(&made), 1);
    ground.condition("p", "TemplateAccepted", "True", "TemplateAccepted").await;
}
