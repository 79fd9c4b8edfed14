//! A new Windlass reaches pools a few at a time.

use k8s_openapi::api::apps::v1::Deployment;
use serde_json::json;

use super::ground::Ground;

fn image(deployment: &Deployment) -> String {
    let pod = deployment.spec.as_ref().and_then(|spec| spec.template.spec.as_ref()).expect("pods");
    pod.containers[0].image.clone().unwrap_or_default()
}

#[tokio::test]
async fn a_new_worker_image_reaches_a_few_pools_at_a_time_and_an_owners_change_does_not_wait() {
    let ground = Ground::new().await;
    ground.queue("q").await;
    let names = ["a", "b", "c", "d", "e"];
    for name in names {
        ground.pool(name, "q", json!({})).await;
    }
    for name in names {
        ground.replicas(name, 1).await;
    }
    ground.stop_operator();
    ground.start_operator("windlass:two");
    // No pod ever becomes ready here, so the first few are not done before somebody says so.
    let newer = async || {
        let mut newer = Vec::new();
        for name in names {
            if image(&ground.deployments().get(name).await.expect("there")) == "windlass:two" {
                newer.push(name);
            }
        }
        newer
    };
    let waiting = async || {
        let mut waiting = Vec::new();
        for name in names {
            let pool = ground.pools().get(name).await.expect("there");
            let told = pool.status.as_ref().and_then(|status| super::ground::condition(status, "Available"));
            if told.is_some_and(|(.., message)| message.contains("a newer worker image follows")) {
                waiting.push(name);
            }
        }
        waiting
    };
    let (first, rest) = ground
        .cluster
        .wait_for(&ground.namespace, "three pools to roll and two to wait", async || {
            let (newer, waiting) = (newer().await, waiting().await);
            if newer.len() == 3 && waiting.len() == 2 {
                Ok((newer, waiting))
            } else {
                Err(format!("{newer:?} {waiting:?}"))
            }
        })
        .await;
    assert!(rest.iter().all(|name| !first.contains(name)));

    // An owner's change of one that waits is applied at once, with the new image.
    let patch = kube::api::Patch::Merge(json!({"spec": {"concurrency": 3}}));
    ground.pools().patch(rest[0], &Default::default(), &patch).await.expect("patched");
    ground.deployment(rest[0], "to have the new image", |found| image(found) == "windlass:two").await;
    assert_eq!(newer().await.len(), 4);

    // One without pods is done: the next may go.
    for name in first {
        ground.pool(name, "q", json!({"replicas": 0})).await;
    }
    ground.deployment(rest[1], "to have the new image", |found| image(found) == "windlass:two").await;
}

#[tokio::test]
async fn a_changed_template_rolls_the_pods_and_an_unchanged_one_does_not() {
    let ground = Ground::new().await;
    ground.queue("q").await;
    let template = |image: &str| json!({"template": {"spec": {"containers": [{"name": "app", "image": image}]}}});
    ground.pool("p", "q", template("app:1")).await;
    let before = ground.replicas("p", 1).await;
    let app = |found: &Deployment| {
        let pod = found.spec.as_ref().and_then(|spec| spec.template.spec.clone()).expect("pods");
        pod.init_containers.into_iter().flatten().find(|one| one.name == "app").and_then(|one| one.image)
    };
    assert_eq!(app(&before).as_deref(), Some("app:1"));
    ground.pool("p", "q", template("app:2")).await;
    let after = ground.deployment("p", "to have the new image", |found| app(found).as_deref() == Some("app:2")).await;
    assert_ne!(after.spec.expect("a spec").template, before.spec.expect("a spec").template);
    // How many pods there are is no part of a pod.
    let template = ground.deployments().get("p").await.expect("there").spec.expect("a spec").template;
    ground.cluster.kubectl(&["-n", &ground.namespace, "scale", "workerpool/p", "--replicas=3"]).await;
    assert_eq!(ground.replicas("p", 3).await.spec.expect("a spec").template, template);
}
