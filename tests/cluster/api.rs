//! What the API level serves.

use futures::StreamExt;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{
    Api, ApiResource, DynamicObject, GroupVersionKind, ListParams, ObjectMeta, Patch, PatchParams, PostParams,
    WatchEvent, WatchParams,
};
use kube::runtime::watcher;
use kube::{Client, ResourceExt};
use serde_json::json;

use crate::kubernetes::Kubernetes;

/// A definition with everything that the operator's own definitions use.
const GADGETS: &str = r#"
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: gadgets.tests.windlass.dev}
spec:
  group: tests.windlass.dev
  scope: Namespaced
  names: {kind: Gadget, plural: gadgets, singular: gadget}
  versions:
  - name: v1
    served: true
    storage: true
    subresources:
      status: {}
      scale: {specReplicasPath: .spec.replicas, statusReplicasPath: .status.replicas, labelSelectorPath: .status.selector}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            x-kubernetes-validations:
            - {rule: self.replicas <= self.maximum, message: more replicas than the maximum}
            properties:
              replicas: {type: integer}
              maximum: {type: integer, default: 5}
              mode: {type: string, default: Fast, x-kubernetes-validations: [{rule: self == oldSelf, message: mode cannot change}]}
          status:
            type: object
            properties: {replicas: {type: integer}, selector: {type: string}}
"#;

fn gadget(name: &str, replicas: u32) -> String {
    format!(
        "{{apiVersion: tests.windlass.dev/v1, kind: Gadget, metadata: {{name: {name}}}, spec: {{replicas: {replicas}}}}}"
    )
}

/// Defines gadgets (any number of tests may at once) and gives access to those of a namespace.
async fn gadgets(cluster: &Kubernetes, namespace: &str) -> Api<DynamicObject> {
    cluster.apply("default", GADGETS).await;
    let client = cluster.client().await;
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    cluster
        .wait(&definitions, "gadgets.tests.windlass.dev", "to be established", |found| {
            let conditions = found.and_then(|found| found.status.as_ref()?.conditions.as_ref());
            conditions.is_some_and(|all| all.iter().any(|one| one.type_ == "Established" && one.status == "True"))
        })
        .await;
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("tests.windlass.dev", "v1", "Gadget"));
    let gadgets = Api::namespaced_with(client, namespace, &kind);
    // The handler of a new kind follows its condition by a moment.
    cluster
        .wait_for(namespace, "gadgets to be served", async || {
            gadgets.list(&ListParams::default()).await.map_err(|error| error.to_string())
        })
        .await;
    gadgets
}

/// The code of a refusal.
fn refusal<T: std::fmt::Debug>(result: kube::Result<T>) -> (u16, String) {
    match result {
        Err(kube::Error::Api(status)) => (status.code, status.message),
        other => panic!("a refusal was expected, not {other:?}"),
    }
}

#[tokio::test]
async fn a_custom_resource_gets_its_defaults_and_its_rules_hold() {
    let cluster = Kubernetes::api().await;
    let namespace = cluster.namespace().await;
    let gadgets = gadgets(cluster, &namespace).await;

    cluster.apply(&namespace, &gadget("one", 2)).await;
    let made = gadgets.get("one").await.expect("it was made");
    assert_eq!(made.data["spec"], json!({ "replicas": 2, "maximum": 5, "mode": "Fast" }));

    let refused = cluster.try_apply(&namespace, &gadget("two", 9)).await.expect_err("9 is more than 5");
    assert!(refused.contains("more replicas than the maximum"), "{refused}");

    let change = Patch::Merge(json!({ "spec": { "mode": "Slow" } }));
    let (code, message) = refusal(gadgets.patch("one", &PatchParams::default(), &change).await);
    assert_eq!(code, 422, "{message}");
    assert!(message.contains("mode cannot change"), "{message}");
}

#[tokio::test]
async fn status_and_scale_are_resources_of_their_own() {
    let cluster = Kubernetes::api().await;
    let namespace = cluster.namespace().await;
    let gadgets = gadgets(cluster, &namespace).await;
    cluster.apply(&namespace, &gadget("one", 1)).await;

    let status = Patch::Merge(json!({ "status": { "replicas": 1, "selector": "app=one" }, "spec": { "replicas": 4 } }));
    let patched = gadgets.patch_status("one", &PatchParams::default(), &status).await.expect("it is patched");
    assert_eq!(patched.data["status"]["replicas"], 1);
    assert_eq!(patched.data["spec"]["replicas"], 1, "a status write leaves the spec alone");
    assert_eq!(patched.metadata.generation, Some(1), "and is no new generation");

    let three = Patch::Merge(json!({ "spec": { "replicas": 3 } }));
    let scale = gadgets.patch_scale("one", &PatchParams::default(), &three).await.expect("it is scaled");
    assert_eq!(scale.status.and_then(|status| status.selector).as_deref(), Some("app=one"));
    let scaled = gadgets.get("one").await.expect("it is there");
    assert_eq!((scaled.data["spec"]["replicas"].as_u64(), scaled.metadata.generation), (Some(3), Some(2)));

    let fifty = Patch::Merge(json!({ "spec": { "replicas": 50 } }));
    let (code, message) = refusal(gadgets.patch_scale("one", &PatchParams::default(), &fifty).await);
    assert_eq!(code, 422, "rules hold for /scale as well: {message}");
}

#[tokio::test]
async fn server_side_apply_tells_of_conflicts() {
    let cluster = Kubernetes::api().await;
    let namespace = cluster.namespace().await;
    let maps: Api<ConfigMap> = Api::namespaced(cluster.client().await, &namespace);
    let map = |value: &str| {
        let metadata = ObjectMeta { name: Some("shared".to_owned()), ..Default::default() };
        Patch::Apply(ConfigMap {
            metadata,
            data: Some([("key".to_owned(), value.to_owned())].into()),
            ..Default::default()
        })
    };
    maps.patch("shared", &PatchParams::apply("first"), &map("a")).await.expect("the first owns it");
    let (code, message) = refusal(maps.patch("shared", &PatchParams::apply("second"), &map("b")).await);
    assert_eq!(code, 409, "{message}");
    assert!(message.contains("first"), "the conflict names the owner: {message}");
    let forced = maps.patch("shared", &PatchParams::apply("second").force(), &map("b")).await.expect("force takes it");
    assert_eq!(forced.data.expect("it has data")["key"], "b");
}

#[tokio::test]
async fn strict_validation_refuses_fields_that_do_not_exist() {
    let cluster = Kubernetes::api().await;
    let namespace = cluster.namespace().await;
    gadgets(cluster, &namespace).await;
    let misspelt = gadget("one", 1).replace("replicas", "replicsa: 1, replicas");
    let refused = cluster.try_apply(&namespace, &misspelt).await.expect_err("a field that does not exist");
    assert!(refused.contains("replicsa"), "{refused}");
}

#[tokio::test]
async fn a_watch_streams_the_list_and_bookmarks_its_end() {
    let cluster = Kubernetes::api().await;
    let namespace = cluster.namespace().await;
    let gadgets = gadgets(cluster, &namespace).await;
    cluster.apply(&namespace, &gadget("one", 1)).await;

    // As the operator watches.
    let config = watcher::Config::default().streaming_lists();
    let mut seen = Box::pin(watcher(gadgets.clone(), config));
    let mut listed = Vec::new();
    loop {
        match seen.next().await.expect("a watcher does not end").expect("a watch list is served") {
            watcher::Event::InitApply(one) => listed.push(one.name_any()),
            watcher::Event::InitDone => break,
            _ => {}
        }
    }
    assert_eq!(listed, ["one"]);

    // And by hand, to see the bookmark itself.
    let watch = WatchParams::default().initial_events();
    let mut events = Box::pin(gadgets.watch(&watch, "0").await.expect("a watch begins"));
    let ended = loop {
        if let WatchEvent::Bookmark(mark) = events.next().await.expect("it goes on").expect("an event") {
            break mark.metadata.annotations;
        }
    };
    assert_eq!(ended.get("k8s.io/initial-events-end").map(String::as_str), Some("true"));
}

#[tokio::test]
async fn a_service_account_is_who_it_says_and_may_do_what_it_was_given() {
    let cluster = Kubernetes::api().await;
    let namespace = cluster.namespace().await;
    let name = &*namespace;
    cluster
        .apply(
            name,
            "{apiVersion: v1, kind: ServiceAccount, metadata: {name: reader}}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {name: reader}, rules: [{apiGroups: [''], resources: [configmaps], verbs: [list]}]}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: reader}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reader}, subjects: [{kind: ServiceAccount, name: reader}]}",
        )
        .await;
    let user = format!("system:serviceaccount:{name}:reader");
    let admin = cluster.client().await;

    // A token is reviewed …
    let token = cluster.kubectl(&["--namespace", name, "create", "token", "reader"]).await;
    let review = TokenReview {
        spec: TokenReviewSpec { token: token.trim().to_owned(), ..Default::default() },
        ..Default::default()
    };
    let reviews: Api<TokenReview> = Api::all(admin.clone());
    let status = reviews.create(&PostParams::default(), &review).await.expect("it is reviewed").status;
    let status = status.expect("a review has a status");
    assert_eq!(status.authenticated, Some(true));
    assert_eq!(status.user.and_then(|user| user.username), Some(user.clone()));

    // … its holder's rights are told …
    for (verb, expected) in [("list", true), ("delete", false)] {
        let asked = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: Some(user.clone()),
                resource_attributes: Some(ResourceAttributes {
                    namespace: Some(name.to_owned()),
                    resource: Some("configmaps".to_owned()),
                    verb: Some(verb.to_owned()),
                    ..Default::default()
                }),
                ..Default::default()
            },
            ..Default::default()
        };
        let reviews: Api<SubjectAccessReview> = Api::all(admin.clone());
        // The authoriser learns of new roles by a watch of its own.
        cluster
            .wait_for(name, "the new role to be known", async || {
                let answer = reviews.create(&PostParams::default(), &asked).await.map_err(|error| error.to_string())?;
                let allowed = answer.status.map(|status| status.allowed);
                if allowed == Some(expected) { Ok(()) } else { Err(format!("{verb}: {allowed:?}")) }
            })
            .await;
    }

    // … and are the rights that it has.
    let reader: Client = cluster.client_as(name, "reader").await;
    let maps: Api<ConfigMap> = Api::namespaced(reader.clone(), name);
    assert!(!maps.list(&ListParams::default()).await.expect("it may list").items.is_empty());
    let pods: Api<Pod> = Api::namespaced(reader, name);
    let (code, message) = refusal(pods.list(&ListParams::default()).await);
    assert_eq!(code, 403);
    assert!(message.contains(&user), "{message}");
}

#[tokio::test]
async fn a_lease_written_from_a_stale_version_is_refused() {
    let cluster = Kubernetes::api().await;
    let namespace = cluster.namespace().await;
    let leases: Api<Lease> = Api::namespaced(cluster.client().await, &namespace);
    let spec = |holder: &str| Some(LeaseSpec { holder_identity: Some(holder.to_owned()), ..Default::default() });
    let metadata = ObjectMeta { name: Some("leader".to_owned()), ..Default::default() };
    let first = Lease { metadata, spec: spec("a") };
    let first = leases.create(&PostParams::default(), &first).await.expect("the lease is made");

    let second = Lease { metadata: first.metadata.clone(), spec: spec("b") };
    leases.replace("leader", &PostParams::default(), &second).await.expect("the version is the last one");
    let third = Lease { metadata: first.metadata, spec: spec("c") };
    let (code, message) = refusal(leases.replace("leader", &PostParams::default(), &third).await);
    assert_eq!(code, 409, "{message}");
}

#[tokio::test]
async fn a_deployment_gets_pods_that_stay_pending() {
    let cluster = Kubernetes::api().await;
    let namespace = cluster.namespace().await;
    cluster
        .apply(
            &namespace,
            "{apiVersion: apps/v1, kind: Deployment, metadata: {name: web}, spec: {replicas: 2, selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: web}}, spec: {containers: [{name: web, image: none}]}}}}",
        )
        .await;
    let client = cluster.client().await;
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), &namespace);
    let counted = |found: Option<&Deployment>| found.and_then(|found| found.status.as_ref()?.replicas) == Some(2);
    cluster.wait(&deployments, "web", "to have two replicas", counted).await;
    let sets: Api<ReplicaSet> = Api::namespaced(client.clone(), &namespace);
    assert_eq!(sets.list(&ListParams::default()).await.expect("they are listed").items.len(), 1);
    let pods: Api<Pod> = Api::namespaced(client, &namespace);
    for pod in pods.list(&ListParams::default()).await.expect("they are listed") {
        assert_eq!(pod.status.and_then(|status| status.phase).as_deref(), Some("Pending"));
    }
}

#[tokio::test]
async fn helm_installs_and_removes_a_chart() {
    let cluster = Kubernetes::api().await;
    let namespace = cluster.namespace().await;
    let chart = tempfile::tempdir().expect("a temporary directory");
    let write = |file: &str, text: &str| std::fs::write(chart.path().join(file), text).expect("a file");
    write("Chart.yaml", "{apiVersion: v2, name: small, version: 0.1.0}");
    std::fs::create_dir(chart.path().join("templates")).expect("a directory");
    let template = "{apiVersion: v1, kind: ConfigMap, metadata: {name: small}, data: {of: {{ .Release.Name }}}}";
    write("templates/map.yaml", template);

    let path = chart.path().to_str().expect("a path of ours");
    cluster.try_helm(&["install", "-n", &namespace, "mine", path]).await.expect("it is installed");
    let maps: Api<ConfigMap> = Api::namespaced(cluster.client().await, &namespace);
    let map = maps.get("small").await.expect("the chart made it");
    assert_eq!(map.data.expect("it has data")["of"], "mine");
    cluster.try_helm(&["uninstall", "-n", &namespace, "mine"]).await.expect("it is removed");
    cluster.wait(&maps, "small", "to be gone", |found| found.is_none()).await;
}

#[tokio::test]
async fn clusters_stand_side_by_side_and_share_nothing() {
    let shared = Kubernetes::api().await;
    let own = Kubernetes::start_api().await;
    let namespace = own.namespace().await;
    assert_ne!(own.kubeconfig(), shared.kubeconfig());
    let said = shared.try_kubectl(&["get", "namespace", &namespace], "").await.expect_err("it is the other one's");
    assert!(said.contains("NotFound"), "{said}");
}
