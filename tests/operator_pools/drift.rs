//! What others do to what is ours, and to what is not.

use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::ground::{Ground, condition, replicas};

#[tokio::test]
async fn what_is_changed_by_hand_is_put_right_and_what_is_not_ours_stays() {
    let ground = Ground::new().await;
    ground.queue("q").await;
    ground.pool("p", "q", json!({"replicas": 2})).await;
    let made = ground.replicas("p", 2).await;
    let image = |made: &k8s_openapi::api::apps::v1::Deployment| {
        let pod = made.spec.as_ref().and_then(|spec| spec.template.spec.as_ref()).expect("pods").clone();
        pod.containers[0].image.clone().unwrap_or_default()
    };
    assert_eq!(image(&made), "windlass:one");
    let edited = Patch::Strategic(json!({
        "metadata": {"annotations": {"theirs": "kept"}},
        "spec": {"replicas": 9, "template": {"spec": {"containers": [{"name": "windlass-worker", "image": "other"}]}}},
    }));
    ground.deployments().patch("p", &PatchParams::default(), &edited).await.expect("edited");
    let put_right =
        |found: &k8s_openapi::api::apps::v1::Deployment| replicas(found) == 2 && image(found) == "windlass:one";
    let repaired = ground.deployment("p", "to be put right", put_right).await;
    assert_eq!(repaired.annotations().get("theirs").map(String::as_str), Some("kept"));

    let bare = Patch::Json::<()>(
        serde_json::from_value(json!([
            {"op": "remove", "path": "/metadata/ownerReferences"}, {"op": "remove", "path": "/metadata/labels"},
        ]))
        .expect("a patch"),
    );
    ground.deployments().patch("p", &PatchParams::default(), &bare).await.expect("edited");
    let whole = |found: &k8s_openapi::api::apps::v1::Deployment| {
        found.owner_references().len() == 1 && found.labels().contains_key("windlass.dev/pool")
    };
    ground.deployment("p", "to have its owner and labels again", whole).await;

    ground.deployments().delete("p", &Default::default()).await.expect("deleted");
    ground.deployment("p", "to be made again", |found| found.uid() != made.uid() && replicas(found) == 2).await;
}

#[tokio::test]
async fn a_status_that_somebody_wrote_over_is_written_again() {
    let ground = Ground::new().await;
    ground.queue("q").await;
    ground.pool("p", "q", json!({})).await;
    ground.condition("p", "Available", "False", "PodsNotReady").await;
    let wrong = Patch::Merge(json!({"status": {"desiredReplicas": 77, "conditions": []}}));
    ground.pools().patch_status("p", &PatchParams::default(), &wrong).await.expect("written over");
    let right = |found: Option<&windlass::crd::WorkerPool>| {
        let status = found.and_then(|pool| pool.status.as_ref());
        status.is_some_and(|status| status.desired_replicas == Some(1) && condition(status, "Ready").is_some())
    };
    ground.cluster.wait(&ground.pools(), "p", "to have its own status again", right).await;
}

#[tokio::test]
async fn nothing_is_written_while_nothing_happens() {
    let ground = Ground::new().await;
    ground.queue("q").await;
    ground.pool("p", "q", json!({"replicas": 2})).await;
    ground.pods_of("p", 2).await;
    // It is quiet once status and Deployment have not changed between two looks that lie apart.
    let versions = async || {
        let deployment = ground.deployments().get("p").await.expect("there").resource_version();
        (deployment, ground.pools().get("p").await.expect("there").resource_version())
    };
    let quiet = ground
        .cluster
        .wait_for(&ground.namespace, "the pool to be quiet", async || {
            let before = versions().await;
            tokio::time::sleep(std::time::Duration::from_secs(3)).await;
            if versions().await == before { Ok(before) } else { Err("it changes".to_owned()) }
        })
        .await;
    // A touch makes the operator look; what it finds is as it should be, so it writes nothing.
    let looked = ground.said().matches("applied a Deployment").count();
    let touch = Patch::Merge(json!({"metadata": {"annotations": {"touched": "yes"}}}));
    let touched = ground.pools().patch("p", &PatchParams::default(), &touch).await.expect("touched");
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    assert_eq!(versions().await, (quiet.0, touched.resource_version()), "Deployment and pool are as they were");
    assert_eq!(ground.said().matches("applied a Deployment").count(), looked, "and was not even applied again");
}
