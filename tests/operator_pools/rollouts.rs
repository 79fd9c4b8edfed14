//! What many pools share reaches them a few at a time.

use k8s_openapi::api::apps::v1::Deployment;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use serde_json::json;
use windlass::crd::TaskQueue;

use super::ground::Ground;

fn image(deployment: &Deployment) -> String {
    let pod = deployment.spec.as_ref().and_then(|spec| spec.template.spec.as_ref()).expect("pods");
    pod.containers[0].image.clone().unwrap_or_default()
}

/// Waits until three of the pools have something new and the others wait for it; which ones those are. No pod ever
/// becomes ready here, so the first few are not done before somebody says so.
async fn three_roll_and_two_wait(
    ground: &Ground,
    names: [&'static str; 5],
    is_new: impl Fn(&Deployment) -> bool,
) -> (Vec<&'static str>, Vec<&'static str>) {
    let both = async || {
        let (mut newer, mut waiting) = (Vec::new(), Vec::new());
        for name in names {
            if is_new(&ground.deployments().get(name).await.expect("there")) {
                newer.push(name);
            } else if waits(ground, name).await {
                waiting.push(name);
            }
        }
        if (newer.len(), waiting.len()) == (3, 2) {
            Ok((newer, waiting))
        } else {
            Err(format!("{newer:?} {waiting:?}"))
        }
    };
    ground.cluster.wait_for(&ground.namespace, "three pools to roll and two to wait", both).await
}

/// Whether a pool says that it waits for its turn.
async fn waits(ground: &Ground, pool: &str) -> bool {
    let pool = ground.pools().get(pool).await.expect("there");
    let told = pool.status.as_ref().and_then(|status| super::ground::condition(status, "Available"));
    told.is_some_and(|(.., message)| message.contains("a newer worker image or connection follows"))
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
    let (first, rest) = three_roll_and_two_wait(&ground, names, |found| image(found) == "windlass:two").await;

    // An owner's change of one that waits is applied at once, with the new image.
    let patch = Patch::Merge(json!({"spec": {"concurrency": 3}}));
    ground.pools().patch(rest[0], &Default::default(), &patch).await.expect("patched");
    ground.deployment(rest[0], "to have the new image", |found| image(found) == "windlass:two").await;
    let other = ground.deployments().get(rest[1]).await.expect("there");
    assert_eq!(image(&other), "windlass:one", "the other one still waits");

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

#[tokio::test]
async fn another_address_of_the_operators_redis_reaches_a_few_pools_at_a_time() {
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
    let same = format!("{}/0", ground.redis.url());
    ground.start_operator_on(&same, "windlass:one");
    let told = |found: &Deployment| serde_json::to_string(found).expect("plain data").contains(&format!("\"{same}\""));
    let (first, rest) = three_roll_and_two_wait(&ground, names, told).await;
    for name in first {
        ground.pool(name, "q", json!({"replicas": 0})).await;
    }
    for name in rest {
        ground.deployment(name, "to name the new address", told).await;
    }
}

/// Has the API server refuse Deployments of these names with that image, as a policy of the cluster would.
async fn refuse(ground: &Ground, names: &[&str], new: &str) {
    let namespace = &*ground.namespace;
    let expression = format!(
        "!(object.metadata.name in {names:?}) || object.spec.template.spec.containers.all(one, one.image != '{new}')"
    );
    let rules = json!([{"apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["deployments"]}]);
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": {"name": namespace},
        "spec": {"matchConstraints": {"resourceRules": rules}, "validations": [{"expression": expression, "message": "not this image"}]},
    });
    let here = json!({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}});
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": namespace},
        "spec": {"policyName": namespace, "validationActions": ["Deny"], "matchResources": here},
    });
    ground.cluster.apply(namespace, &format!("{policy}\n---\n{binding}")).await;
    let change = Patch::Strategic(
        json!({"spec": {"template": {"spec": {"containers": [{"name": "windlass-worker", "image": new}]}}}}),
    );
    let in_force = async || {
        let answer = ground.deployments().patch(names[0], &PatchParams::default().dry_run(), &change).await;
        answer.map_or_else(|_| Ok(()), |_| Err("it is taken".to_owned()))
    };
    ground.cluster.wait_for(namespace, "the policy to be in force", in_force).await;
}

#[tokio::test]
async fn pools_that_cannot_roll_keep_no_other_from_its_turn() {
    let ground = Ground::new().await;
    let (refused, rolling) = (["a", "b", "c"], ["d", "e", "f"]);
    for (queue, pools) in [("first", &refused[..]), ("second", &rolling[..]), ("third", &["g"][..])] {
        ground.queue(queue).await;
        for name in pools {
            ground.pool(name, queue, json!({})).await;
            ground.replicas(name, 1).await;
        }
    }
    let queues: Api<TaskQueue> = Api::namespaced(ground.client.clone(), &ground.namespace);
    let delete = async |queue: &str, pool: &str| {
        queues.delete(queue, &DeleteParams::default()).await.expect("deleted");
        ground.condition(pool, "QueueResolved", "False", "QueueNotFound").await;
    };
    delete("second", "d").await;
    delete("third", "g").await;
    ground.stop_operator();
    refuse(&ground, &refused, "windlass:two").await;
    ground.start_operator("windlass:two");
    for name in refused {
        ground.condition(name, "TemplateAccepted", "False", "TemplateRefused").await;
    }
    ground.queue("second").await;
    for name in rolling {
        ground.deployment(name, "to have the new image", |found| image(found) == "windlass:two").await;
    }

    // The three roll until their pods are ready, which they never are here, or until their queue is gone.
    ground.queue("third").await;
    ground
        .cluster
        .wait_for(&ground.namespace, "the last one to wait for its turn", async || {
            if waits(&ground, "g").await { Ok(()) } else { Err("it does not".to_owned()) }
        })
        .await;
    delete("second", "d").await;
    ground.deployment("g", "to have the new image", |found| image(found) == "windlass:two").await;
}
