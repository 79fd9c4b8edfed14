//! From a manifest to the engine's policy.

use std::time::Duration;

use serde_json::{Value, json};
use windlass::crd::check::check;
use windlass::crd::{Kind, Redis, TaskQueue, WorkerPool};
use windlass::protocol::backoff::{Jitter, Strategy};
use windlass::protocol::names::{QueueName, TaskType};
use windlass::protocol::policy::{EventRecording, Mode, Policy, PriorityOrder, ReclaimCause};

fn object(kind: &str, spec: Value) -> Value {
    json!({"apiVersion": "windlass.dev/v1alpha1", "kind": kind, "metadata": {"name": "q"}, "spec": spec})
}

fn queue(spec: Value) -> TaskQueue {
    let checked = check(Kind::TaskQueue, &object("TaskQueue", spec), None).expect("allowed");
    serde_json::from_value(checked).expect("what the schema allows the type can read")
}

fn policy(spec: Value) -> Policy {
    queue(spec).spec.policy(EventRecording::On).expect("compiles")
}

#[test]
fn an_empty_spec_is_the_default_policy() {
    assert_eq!(policy(json!({})), Policy::default());
    assert_eq!(queue(json!({})).spec, windlass::crd::TaskQueueSpec::default());
}

#[test]
fn defaults_reach_below_what_is_written() {
    let policy = policy(json!({"retry": {"maxRetries": 7}, "reclaim": {"causes": ["WorkerLost"]}}));
    assert_eq!((policy.retry.max_retries, policy.retry.max_crashes), (7, 3));
    assert_eq!(policy.reclaim.on, [ReclaimCause::WorkerLost].into());
    assert_eq!(policy.reclaim.worker_lost_after, Duration::from_secs(90));
    assert_eq!(policy.retry.backoff, Policy::default().retry.backoff);
}

#[test]
fn everything_that_can_be_written_is_compiled() {
    let policy = policy(json!({
        "mode": "Paused",
        "visibilityTimeoutSeconds": 60,
        "heartbeatPeriodSeconds": 5,
        "reclaim": {"causes": ["VisibilityTimeout"], "workerLostAfterSeconds": 30},
        "retry": {
            "maxRetries": 1, "maxCrashes": 2, "maxReleases": 3, "deadlineSeconds": 4,
            "backoff": {"strategy": "Schedule", "delaysMilliseconds": [60000, 300000], "jitter": {"kind": "Symmetric", "percent": 10}},
        },
        "rateLimit": {"backoff": {"strategy": "Quadratic", "baseMilliseconds": 5000}},
        "priority": {"default": 1, "min": 0, "max": 3, "order": "LowestFirst"},
        "idempotency": {"source": "ContentHash", "requirement": "Required", "scope": "Retained"},
        "timeoutSeconds": 3600,
        "taskTypes": [{"name": "deploy", "timeoutSeconds": 60}, {"name": "build"}],
        "retention": {"succeededSeconds": 1, "failedSeconds": 2, "resultMaxEntries": 3, "resultMaxMebibytes": 4},
        "deadLetter": {"discard": {"approvals": 2}},
        "limits": {"payloadKibibytes": 1, "resultKibibytes": 2},
        "deletionPolicy": "DeleteIfEmpty",
    }));
    assert_eq!(policy.mode, Mode::Paused);
    assert_eq!(policy.visibility_timeout, Duration::from_secs(60));
    let retry = &policy.retry;
    assert_eq!((retry.max_retries, retry.max_crashes, retry.max_releases), (1, 2, 3));
    assert_eq!(retry.deadline, Duration::from_secs(4));
    assert_eq!(retry.backoff.strategy, Strategy::Schedule { delays_ms: vec![60_000, 300_000] });
    assert_eq!((retry.backoff.max_ms, retry.backoff.jitter), (u64::MAX, Jitter::Symmetric { percent: 10 }));
    assert_eq!(retry.rate_limit.strategy, Strategy::Quadratic { base_ms: 5000 });
    assert_eq!(retry.rate_limit.jitter, Jitter::None);
    assert_eq!((policy.priority.max, policy.priority.order), (3, PriorityOrder::LowestFirst));
    assert_eq!(policy.retention.result_max_mebibytes, 4);
    assert_eq!((policy.discard_approvals, policy.limits.payload_bytes, policy.limits.result_bytes), (2, 1024, 2048));
    let timeout = |name: &str| policy.timeout_of(&TaskType::new(name).expect("valid")).map(|time| time.as_secs());
    assert_eq!((timeout("deploy"), timeout("build"), timeout("other")), (Some(60), Some(3600), Some(3600)));
}

#[test]
fn adopted_names_become_the_queues_keys() {
    let spec = json!({
        "broker": {"type": "Redis", "redis": {"url": "redis://a:1"}},
        "keys": {"task": "stream:task", "result": "stream:result", "deadLetter": "stream:dlq", "group": "cg:workers"},
    });
    let name: QueueName = "ops/tools".parse().expect("valid");
    let keys = queue(spec).spec.keys(&name).expect("usable");
    assert_eq!((keys.task.as_str(), keys.group.as_str()), ("stream:task", "cg:workers"));
}

#[test]
fn a_topology_becomes_a_part_of_the_url() {
    let url = |value: Value, url: &str| serde_json::from_value::<Redis>(value).expect("a Redis").engine_url(url);
    assert_eq!(url(json!({}), "redis://a:1/3"), "redis://a:1/3");
    assert_eq!(url(json!({"topology": "Cluster"}), "rediss://a:1,b:2"), "rediss+cluster://a:1,b:2");
    let sentinel = json!({"topology": "Sentinel", "sentinel": {"masterName": "main"}});
    assert_eq!(url(sentinel.clone(), "redis://u:p@a:1,b:2"), "redis+sentinel://u:p@a:1,b:2/main");
    assert_eq!(url(sentinel, "redis+sentinel://a:1/other"), "redis+sentinel://a:1/other");
}

#[test]
fn a_pool_keeps_the_parts_of_its_template_that_nobody_here_reads() {
    let template = json!({
        "metadata": {"labels": {"team": "shop"}},
        "spec": {
            "serviceAccountName": "mailer",
            "containers": [{"name": "app", "image": "app:1", "resources": {"limits": {"memory": "64Mi"}}}],
        },
    });
    let spec = json!({"queueRef": {"name": "q"}, "handler": {"type": "SDK"}, "template": template});
    let checked = check(Kind::WorkerPool, &object("WorkerPool", spec), None).expect("allowed");
    let pool: WorkerPool = serde_json::from_value(checked).expect("readable");
    assert_eq!((pool.spec.replicas, pool.spec.concurrency, pool.spec.drain_timeout_seconds), (1, 1, 60));
    assert_eq!(serde_json::to_value(&pool.spec.template).expect("plain data"), template);
}
