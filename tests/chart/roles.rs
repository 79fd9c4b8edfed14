//! The cluster's own roles view, edit and admin know both resources.

use super::ground::{cluster, objects, of_kind};
use crate::kubernetes::Kubernetes;

async fn may(cluster: &Kubernetes, namespace: &str, user: &str, verb: &str, resource: &str) -> bool {
    // A resource with a slash would be an object's name to kubectl.
    let (resource, part) = resource.split_once('/').unwrap_or((resource, ""));
    let (who, part) = (format!("--as={user}"), format!("--subresource={part}"));
    cluster.try_kubectl(&["auth", "can-i", verb, resource, &part, &who, "-n", namespace], "").await.is_ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn those_who_may_view_edit_or_administer_a_namespace_may_do_so_with_queues_and_pools() {
    let cluster = cluster().await;
    let namespace = cluster.namespace().await;
    let objects = objects(cluster, &namespace, "{}").await;
    for role in of_kind(&objects, "ClusterRole") {
        cluster.apply(&namespace, &role.to_string()).await;
    }
    for role in ["view", "edit", "admin"] {
        let names = [format!("--clusterrole={role}"), format!("--user={role}-user")];
        cluster.kubectl(&["create", "rolebinding", role, "-n", &namespace, &names[0], &names[1]]).await;
    }
    // The controller manager puts the rules together in its own time.
    cluster
        .wait_for(&namespace, "the roles to be put together", async || {
            let there = may(cluster, &namespace, "admin-user", "patch", "taskqueues/status").await
                && may(cluster, &namespace, "edit-user", "create", "taskqueues").await
                && may(cluster, &namespace, "view-user", "list", "taskqueues").await;
            there.then_some(()).ok_or_else(|| "not yet".to_owned())
        })
        .await;
    for resource in ["taskqueues", "workerpools"] {
        for (user, verb, allowed) in [
            ("view-user", "get", true),
            ("view-user", "create", false),
            ("view-user", "delete", false),
            ("edit-user", "watch", true),
            ("edit-user", "create", true),
            ("edit-user", "delete", true),
            ("admin-user", "list", true),
            ("admin-user", "patch", true),
            ("nobody", "get", false),
        ] {
            assert_eq!(may(cluster, &namespace, user, verb, resource).await, allowed, "{user} {verb} {resource}");
        }
    }
    for (user, allowed) in [("view-user", false), ("edit-user", true), ("admin-user", true)] {
        assert_eq!(may(cluster, &namespace, user, "update", "workerpools/scale").await, allowed, "{user}");
    }
    assert!(!may(cluster, &namespace, "edit-user", "patch", "taskqueues/status").await);
}
