//! The Deployment of a pool: what is applied, and what can be told from one that exists.
//!
//! Pure. A Deployment has its pool's name. Its selector, which cannot be changed,
//! tells ours from a stranger's, also after somebody removed labels or the owner.

use k8s_openapi::api::apps::v1::Deployment;
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};

use super::template::Built;
use crate::crd::{Broker, WorkerPool};

/// The label that pods and Deployments of pools carry: the pool's name.
pub(crate) const POOL_LABEL: &str = "windlass.dev/pool";
/// The label that names the queue.
pub(crate) const QUEUE_LABEL: &str = "windlass.dev/queue";
/// On a pod: changes with the Secrets from which it takes address, credentials and authority of its Redis.
pub(crate) const CONNECTION: &str = "windlass.dev/connection";
/// On a Deployment: a digest of what its owner asked for.
pub(crate) const ASKED: &str = "windlass.dev/asked-digest";
/// On a Deployment: a digest of the pods that were made of it.
pub(crate) const TEMPLATE: &str = "windlass.dev/template-digest";
/// How many digits of a digest are kept: enough to differ.
const DIGITS: usize = 16;
/// Old ReplicaSets that are kept. Whoever wants an old state changes the pool.
const KEPT_REVISIONS: u32 = 2;

/// What pods are connected with.
#[derive(Debug, Clone, Copy)]
pub(super) struct Footing<'a> {
    /// The Redis that the queue asks for, if it asks for one.
    pub(super) broker: Option<&'a Broker>,
    /// Of the Secrets that pods read when they start.
    pub(super) versions: &'a [String],
}

/// What a Deployment is made of, and what it is known by.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Draft {
    /// The pod template, labels and annotations included.
    pub(super) template: Value,
    /// Of what the owners of pool and queue asked for: a change of it rolls at once.
    pub(super) asked: String,
    /// Of the template: differs also where only Windlass itself changed, or what many pools share.
    pub(super) digest: String,
}

impl Draft {
    /// The Deployment of a pool with pods like these, on that footing.
    pub(super) fn new(pool: &WorkerPool, built: &Built, footing: Footing<'_>) -> Self {
        let mut template = built.template.clone();
        set(&mut template, "labels", POOL_LABEL, &pool.name_any());
        set(&mut template, "labels", QUEUE_LABEL, &pool.spec.queue_ref.name);
        set(&mut template, "annotations", CONNECTION, &digest(&json!(footing.versions)));
        // What does not change a pod is left out: the number of them, and what scales them.
        let spec = &pool.spec;
        let asked = json!([
            spec.queue_ref,
            spec.task_types,
            spec.concurrency,
            spec.handler,
            spec.worker,
            spec.drain_timeout_seconds,
            spec.template,
            footing.broker,
        ]);
        Self { asked: digest(&asked), digest: digest(&template), template }
    }
}

/// A pod template that is kept as it is, for as long as a newer one may not be rolled out.
pub(super) fn kept(live: &Deployment) -> Option<Draft> {
    let template = serde_json::to_value(&live.spec.as_ref()?.template).expect("invariant: a template is plain data");
    let known = |name: &str| live.annotations().get(name).cloned().unwrap_or_default();
    Some(Draft { template, asked: known(ASKED), digest: known(TEMPLATE) })
}

/// What is applied.
pub(super) fn manifest(pool: &WorkerPool, draft: &Draft, replicas: i32) -> Value {
    let name = pool.name_any();
    let owner = pool.controller_owner_ref(&()).map(|mut owner| {
        // Nobody has to wait for the Deployment when a pool is deleted, and it needs no further right.
        owner.block_owner_deletion = None;
        owner
    });
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": name,
            "namespace": pool.namespace(),
            "labels": {
                "app.kubernetes.io/managed-by": "windlass",
                POOL_LABEL: name,
                QUEUE_LABEL: pool.spec.queue_ref.name,
            },
            "annotations": { ASKED: draft.asked, TEMPLATE: draft.digest },
            "ownerReferences": owner.into_iter().collect::<Vec<_>>(),
        },
        "spec": {
            "replicas": replicas,
            "revisionHistoryLimit": KEPT_REVISIONS,
            "selector": { "matchLabels": { POOL_LABEL: name } },
            "template": draft.template,
        },
    })
}

/// Selects the pods of a pool, for `/scale`.
pub(super) fn selector(pool: &WorkerPool) -> String {
    format!("{POOL_LABEL}={}", pool.name_any())
}

/// Whose a Deployment of the pool's name is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owned {
    /// The pool's, or nobody's and made for a pool of this name.
    Ours,
    /// Somebody else's.
    Foreign,
}

/// Whether a Deployment may be taken for the pool's.
pub(super) fn owned(live: &Deployment, pool: &WorkerPool) -> Owned {
    let controller = live.owner_references().iter().find(|owner| owner.controller == Some(true));
    let selector = live.spec.as_ref().and_then(|spec| spec.selector.match_labels.as_ref());
    let made_for_pool = selector.is_some_and(|labels| {
        labels.len() == 1 && labels.get(POOL_LABEL).map(String::as_str) == Some(pool.name_any().as_str())
    });
    match controller {
        Some(owner) if pool.meta().uid.as_deref() == Some(owner.uid.as_str()) => Owned::Ours,
        None if made_for_pool => Owned::Ours,
        _ => Owned::Foreign,
    }
}

/// All of a Deployment that an apply of ours could change, in one word: as long as
/// it stays the same, so does what we applied.
pub(super) fn fingerprint(live: &Deployment) -> String {
    let ours = |name: &&str| live.annotations().get(*name).cloned();
    let annotations: Vec<_> = [ASKED, TEMPLATE].iter().map(ours).collect();
    digest(&json!([live.spec, live.labels(), live.owner_references(), annotations]))
}

/// Whether all pods are of the newest template and ready.
pub(super) fn is_rolled_out(live: &Deployment) -> bool {
    let wanted = live.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    let Some(status) = &live.status else { return wanted == 0 };
    let seen = status.observed_generation >= live.metadata.generation;
    let updated = status.updated_replicas.unwrap_or(0);
    seen && updated >= wanted
        && status.replicas.unwrap_or(0) <= updated
        && status.available_replicas.unwrap_or(0) >= wanted
}

/// Whether a rollout has taken so long that Kubernetes gave up on it.
pub(super) fn is_stuck(live: &Deployment) -> bool {
    condition(live, "Progressing")
        .is_some_and(|(status, reason, _)| status == "False" && reason == "ProgressDeadlineExceeded")
}

/// Whether somebody holds up what would roll.
pub(super) fn is_paused(live: &Deployment) -> bool {
    live.spec.as_ref().and_then(|spec| spec.paused) == Some(true)
}

/// Why pods could not even be made, where that is so.
pub(super) fn replica_failure(live: &Deployment) -> Option<String> {
    condition(live, "ReplicaFailure").filter(|(status, ..)| status == "True").map(|(_, _, message)| message)
}

fn condition(live: &Deployment, type_: &str) -> Option<(String, String, String)> {
    let all = live.status.as_ref()?.conditions.as_ref()?;
    let found = all.iter().find(|condition| condition.type_ == type_)?.clone();
    Some((found.status, found.reason.unwrap_or_default(), found.message.unwrap_or_default()))
}

fn set(template: &mut Value, map: &str, key: &str, value: &str) {
    if !template["metadata"].is_object() {
        template["metadata"] = json!({});
    }
    if !template["metadata"][map].is_object() {
        template["metadata"][map] = json!({});
    }
    template["metadata"][map][key] = value.into();
}

fn short(digest: &str) -> String {
    digest.chars().take(DIGITS).collect()
}

fn digest(value: &Value) -> String {
    short(&sha1_smol::Sha1::from(value.to_string()).digest().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool() -> WorkerPool {
        serde_json::from_value(json!({
            "apiVersion": "windlass.dev/v1alpha1", "kind": "WorkerPool",
            "metadata": {"name": "emailers", "namespace": "shop", "uid": "u1"},
            "spec": {"queueRef": {"name": "emails"}, "handler": {"type": "SDK"},
                     "template": {"spec": {"containers": [{"name": "app", "image": "a"}]}}},
        }))
        .expect("a pool")
    }

    fn draft(pool: &WorkerPool) -> Draft {
        let template = serde_json::to_value(&pool.spec.template).expect("plain data");
        Draft::new(pool, &Built { template, remarks: Vec::new() }, Footing { broker: None, versions: &[] })
    }

    fn live(pool: &WorkerPool) -> Deployment {
        serde_json::from_value(manifest(pool, &draft(pool), 3)).expect("a Deployment")
    }

    /// closes: replicas left out of an apply scale to 1
    #[test]
    fn the_number_of_pods_is_always_written() {
        let pool = pool();
        assert_eq!(live(&pool).spec.expect("a spec").replicas, Some(3));
        let stays = kept(&live(&pool)).expect("there is one");
        assert_eq!(manifest(&pool, &stays, 0)["spec"]["replicas"], 0, "also when the template is kept");
        assert_eq!((&stays.asked, &stays.digest), (&draft(&pool).asked, &draft(&pool).digest));
    }

    #[test]
    fn pods_carry_what_finds_them_and_what_rolls_them_when_a_secret_changes() {
        let pool = pool();
        let first = draft(&pool);
        assert_eq!(first.template["metadata"]["labels"], json!({POOL_LABEL: "emailers", QUEUE_LABEL: "emails"}));
        let built = Built { template: serde_json::to_value(&pool.spec.template).expect("plain"), remarks: Vec::new() };
        let rotated = Draft::new(&pool, &built, Footing { broker: None, versions: &["uid/2".into()] });
        assert_ne!(rotated.digest, first.digest);
        assert_eq!(rotated.asked, first.asked, "many pools may share it: not all of them at once");
        let own: Broker = serde_json::from_value(json!({"type": "Redis", "redis": {"url": "redis://r"}})).expect("one");
        let moved = Draft::new(&pool, &built, Footing { broker: Some(&own), versions: &[] });
        assert_ne!(moved.asked, first.asked, "its owner asked for another Redis");
    }

    #[test]
    fn how_many_pods_there_are_does_not_roll_them() {
        let mut pool = pool();
        let before = draft(&pool);
        pool.spec.replicas = 9;
        assert_eq!(draft(&pool), before);
        pool.spec.concurrency = 9;
        assert_ne!(draft(&pool).asked, before.asked);
    }

    #[test]
    fn ours_is_told_from_a_strangers_also_without_owner_and_labels() {
        let pool = pool();
        let mut found = live(&pool);
        assert_eq!(owned(&found, &pool), Owned::Ours);
        found.metadata.owner_references = None;
        found.metadata.labels = None;
        assert_eq!(owned(&found, &pool), Owned::Ours);
        let mut another = pool.clone();
        another.metadata.uid = Some("u2".into());
        assert_eq!(owned(&live(&another), &pool), Owned::Foreign, "a pool's of the same name that is being deleted");
        found.spec.as_mut().expect("a spec").selector.match_labels = Some([("app".into(), "x".into())].into());
        assert_eq!(owned(&found, &pool), Owned::Foreign);
    }

    #[test]
    fn a_change_by_hand_is_noticed_and_a_change_of_status_is_not() {
        let pool = pool();
        let before = live(&pool);
        let mut after = before.clone();
        after.status = Some(Default::default());
        after.metadata.resource_version = Some("9".into());
        after.annotations_mut().insert("deployment.kubernetes.io/revision".into(), "2".into());
        assert_eq!(fingerprint(&after), fingerprint(&before));
        after.spec.as_mut().expect("a spec").replicas = Some(1);
        assert_ne!(fingerprint(&after), fingerprint(&before));
        let mut without_owner = before.clone();
        without_owner.metadata.owner_references = None;
        assert_ne!(fingerprint(&without_owner), fingerprint(&before));
    }

    #[test]
    fn a_rollout_is_over_when_every_pod_is_new_and_ready() {
        let mut live = live(&pool());
        live.metadata.generation = Some(2);
        let status = |observed: i64, all: i32, updated: i32, available: i32| {
            serde_json::from_value(json!({
                "observedGeneration": observed, "replicas": all, "updatedReplicas": updated, "availableReplicas": available,
            }))
            .expect("a status")
        };
        for (given, over) in [
            (status(2, 3, 3, 3), true),
            (status(1, 3, 3, 3), false),
            (status(2, 4, 3, 3), false),
            (status(2, 3, 3, 2), false),
        ] {
            live.status = Some(given);
            assert_eq!(is_rolled_out(&live), over, "{:?}", live.status);
        }
    }
}
