//! A TaskQueue becomes a queue in Redis, and says how it is.

use std::time::Instant;

use kube::ResourceExt;
use serde_json::json;
use windlass::broker::{Broker, WorkerInfo};
use windlass::crd::TaskQueueStatus;
use windlass::protocol::policy::Mode;
use windlass::{NewTask, TaskType};

use super::ground::{Ground, condition_of};

fn task() -> NewTask {
    NewTask::new(TaskType::new("send").expect("a type"), json!({"to": "somebody"}))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_queue_becomes_ready_and_its_policy_is_in_redis() {
    let ground = Ground::new().await;
    let operator = ground.operator().await;
    operator.says("leading").await;
    let applied = Instant::now();
    ground.apply("emails", "{retry: {maxRetries: 7}}").await;
    let ready = ground.ready("emails").await;
    eprintln!("from kubectl apply to Ready: {:?}", applied.elapsed());
    let policy = ground.broker("emails").policy().await.expect("the queue is there");
    assert_eq!(policy.retry.max_retries, 7);
    let owner = ground.broker("emails").owner().await.expect("answered").expect("an owner");
    assert!(owner.starts_with("kubernetes:") && owner.ends_with(&ready.uid().expect("a UID")), "{owner}");

    let status = ready.status.clone().expect("a status");
    let types: Vec<&str> = status.conditions.iter().map(|one| one.type_.as_str()).collect();
    let all = ["Ready", "BrokerConnected", "Provisioned", "WorkersAvailable", "EventLogRecording", "Degraded"];
    assert_eq!(types, all);
    assert_eq!(status.observed_generation, ready.meta_generation());
    assert!(status.conditions.iter().all(|one| one.observed_generation == ready.meta_generation()));
    assert_eq!(condition_of(&ready, "EventLogRecording").map(|one| one.reason.as_str()), Some("NotConfigured"));
    ground.shows("emails", "Degraded", "False", "AsExpected").await;
    ground.shows("emails", "WorkersAvailable", "False", "NoWorkers").await;
    ground.told("emails", "Provisioned").await;
    assert!(ready.finalizers().is_empty(), "Retain needs no finalizer");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edit_holds_for_the_very_next_claim() {
    let ground = Ground::new().await;
    let _operator = ground.operator().await;
    ground.apply("emails", "{}").await;
    ground.ready("emails").await;
    ground.apply("emails", "{mode: Paused, visibilityTimeoutSeconds: 90}").await;
    let broker = ground.broker("emails");
    let took = ground
        .until("the policy to follow", async || match broker.policy().await {
            Ok(policy) if policy.mode == Mode::Paused && policy.visibility_timeout.as_secs() == 90 => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await;
    eprintln!("from an edit to the policy in Redis: {took:?}");
    ground.told("emails", "PolicyChanged").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn counts_workers_and_the_oldest_task_are_in_the_status() {
    let ground = Ground::new().await;
    let _operator = ground.operator().await;
    ground.apply("emails", "{}").await;
    ground.ready("emails").await;
    let broker = ground.broker("emails");
    broker.enqueue(&[task(), task(), task()]).await.expect("taken");
    let worker = WorkerInfo {
        id: "w-1".parse().expect("an id"),
        host: "here".into(),
        pid: 1,
        pod: None,
        pod_uid: None,
        container: None,
        version: "0".into(),
        types: Vec::new(),
        pool: None,
        started: None,
    };
    broker.register(&worker).await.expect("registered");
    let counted = |status: &TaskQueueStatus| {
        (status.backlog, status.running, status.workers) == (Some(3), Some(0), Some(1))
            && status.oldest_task_time.is_some()
    };
    let seen = ground
        .cluster
        .wait(&ground.queues(), "emails", "to tell of three tasks and a worker", |found| {
            found.and_then(|queue| queue.status.as_ref()).is_some_and(counted)
        })
        .await
        .expect("it was there");
    assert_eq!(condition_of(&seen, "WorkersAvailable").map(|one| one.status.as_str()), Some("True"));
    let table = ground.cluster.kubectl(&["--namespace", &ground.namespace, "get", "tq", "emails"]).await;
    assert!(table.contains("READY") && table.contains("BACKLOG") && table.contains("True"), "{table}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_status_that_somebody_overwrote_is_put_right_and_what_is_not_ours_stays() {
    let ground = Ground::new().await;
    let _operator = ground.operator().await;
    ground.apply("emails", "{}").await;
    ground.ready("emails").await;
    let foreign = json!({
        "apiVersion": "windlass.dev/v1alpha1", "kind": "TaskQueue", "metadata": {"name": "emails"},
        "status": {"conditions": [{
            "type": "Audited", "status": "True", "reason": "Seen", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
        }]},
    });
    let params = kube::api::PatchParams::apply("auditor");
    let patch = kube::api::Patch::Apply(&foreign);
    ground.queues().patch_status("emails", &params, &patch).await.expect("somebody else's condition");
    let lie = json!({"status": {"backlog": 4711, "conditions": [{
        "type": "Ready", "status": "False", "reason": "Lie", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
    }]}});
    let patch = kube::api::Patch::Merge(&lie);
    ground.queues().patch_status("emails", &Default::default(), &patch).await.expect("a lie");
    // The lie replaced the whole list, the foreign condition too: its author writes it again.
    let patch = kube::api::Patch::Apply(&foreign);
    ground.queues().patch_status("emails", &params.clone().force(), &patch).await.expect("written again");
    ground
        .cluster
        .wait(&ground.queues(), "emails", "to say the truth again", |found| {
            let Some(queue) = found else { return false };
            let ready = condition_of(queue, "Ready").is_some_and(|one| one.status == "True" && one.reason == "Ready");
            let backlog = queue.status.as_ref().and_then(|status| status.backlog);
            ready && backlog != Some(4711) && condition_of(queue, "Audited").is_some()
        })
        .await;
}

/// The generation of an object.
trait Generation {
    fn meta_generation(&self) -> Option<i64>;
}

impl Generation for windlass::crd::TaskQueue {
    fn meta_generation(&self) -> Option<i64> {
        self.metadata.generation
    }
}
