//! One manifest means the same to the operator and to `windlass dev`, and explains itself.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Child;

use super::ground::{Ground, queue};
use crate::support::servers::process::{Told, spawn_told};
use crate::support::servers::{Flavor, Server};

/// Ends with the test.
struct Dev(Child);

impl Drop for Dev {
    fn drop(&mut self) {
        let _ = self.0.kill().and_then(|()| self.0.wait().map(drop));
    }
}

/// A queue's policy as it is in Redis, field by field.
async fn policy(ground: &Ground, redis: &Server, queue: &str) -> BTreeMap<String, Vec<u8>> {
    let key = ground.broker_on(redis, queue).keys().policy();
    redis.query(&["HGETALL", &key]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_operator_and_windlass_dev_write_the_same_policy() {
    let ground = Ground::new().await;
    let other = Server::builder(Flavor::Redis70).aof_always().start().await;
    let dir = tempfile::tempdir().expect("a directory");
    let url = format!("sqlite://{}", dir.path().join("events.db").display());
    // Both keep history: whether somebody does is a part of the policy.
    let _operator = ground.operator_with(&[("WINDLASS_EVENT_LOG_URL", &url)]).await;
    let full = "{mode: Paused, visibilityTimeoutSeconds: 90, heartbeatPeriodSeconds: 20, timeoutSeconds: 33, \
        reclaim: {causes: [VisibilityTimeout], workerLostAfterSeconds: 77}, \
        retry: {maxRetries: 9, maxCrashes: 8, maxReleases: 7, deadlineSeconds: 6543, \
                backoff: {strategy: Schedule, delaysMilliseconds: [60000, 300000], jitter: {kind: None}}}, \
        priority: {default: 4, min: 2, max: 8, order: LowestFirst}, \
        idempotency: {source: ContentHash, requirement: Optional, scope: Retained}, \
        taskTypes: [{name: render, timeoutSeconds: 12}], \
        retention: {succeededSeconds: 5, failedSeconds: 6, resultMaxEntries: 7, resultMaxMebibytes: 8}, \
        deadLetter: {discard: {approvals: 2}}, limits: {payloadKibibytes: 3, resultKibibytes: 4}}";
    let specs = [("plain", "{}"), ("full", full)];
    let manifests: Vec<String> = specs.iter().map(|(name, spec)| queue(name, spec)).collect();
    let file = dir.path().join("manifest.yaml");
    let here = format!("metadata: {{namespace: {}, name", &*ground.namespace);
    std::fs::write(&file, manifests.join("---\n").replace("metadata: {name", &here)).expect("written");
    let arguments = ["dev", "-f", file.to_str().expect("UTF-8"), "--redis-url", &other.url(), "--data-dir"];
    let mut arguments: Vec<String> = arguments.iter().map(|&word| word.to_owned()).collect();
    arguments.push(dir.path().join("data").to_str().expect("UTF-8").to_owned());
    let log = dir.path().join("dev.log");
    let _dev = Dev(spawn_told(Told::Nothing, None, Path::new(env!("CARGO_BIN_EXE_windlass")), &arguments, &log));
    ground.cluster.apply(&ground.namespace, &manifests.join("---\n")).await;
    for (name, _) in specs {
        ground.ready(name).await;
        ground
            .until("windlass dev to write the policy", async || match policy(&ground, &other, name).await {
                found if found.is_empty() => Err(std::fs::read_to_string(&log).unwrap_or_default()),
                _ => Ok(()),
            })
            .await;
        let (ours, theirs) = (policy(&ground, &ground.redis, name).await, policy(&ground, &other, name).await);
        let readable = |policy: &BTreeMap<String, Vec<u8>>| -> Vec<String> {
            policy.iter().map(|(field, value)| format!("{field}: {}", String::from_utf8_lossy(value))).collect()
        };
        assert_eq!(readable(&ours), readable(&theirs), "{name}");
        assert_eq!(ours, theirs, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_explains_what_people_write() {
    let ground = Ground::new().await;
    for (path, words) in [
        ("taskqueue.spec.retry", "maxCrashes"),
        ("tq.spec.deletionPolicy", "TaskQueue of the same name"),
        ("taskqueue.spec.broker.redis.urlSecretRef", "Secret"),
        ("wp.spec.handler.exec.entrypoint", "worker takes its place"),
        ("workerpool.spec.autoscaling", "scaleDownAfterSeconds"),
        ("workerpool.status", "desiredReplicas"),
    ] {
        let said = ground.cluster.kubectl(&["explain", path]).await;
        let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(said.contains(words), "{path}: {said}");
        assert!(!said.contains("<no description>"), "{path}: {said}");
    }
    let all = ground.cluster.kubectl(&["-n", &ground.namespace, "get", "windlass"]).await;
    assert_eq!(all, "", "both kinds are in the category, and there is none");
}
