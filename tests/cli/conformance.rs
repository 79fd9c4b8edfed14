//! `windlass conformance` on queues that keep the protocol, and on some that do not.

use serde_json::{Value, json};
use windlass::broker::Broker;
use windlass::event_log::EventLog;
use windlass::protocol::policy::{
    IdempotencyScope, IdempotencySource, Mode, Policy, Priorities, PriorityOrder, ReclaimCause,
};

use super::ground::{Ground, Ran, hasty};

const CHECKS: [&str; 9] = ["RP-001", "RP-002", "RP-003", "RP-004", "RP-005", "TQP-1", "TQP-2", "TQP-3", "TQP-4"];

fn checks(ran: &Ran) -> Vec<Value> {
    let checks: Vec<Value> = serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {ran:?}"));
    let ids: Vec<_> = checks.iter().map(|check| check["id"].as_str().expect("an id").to_owned()).collect();
    assert_eq!(ids, CHECKS);
    checks
}

#[tokio::test]
async fn a_queue_with_the_default_policy_passes_and_is_left_clean() {
    let folder = tempfile::tempdir().expect("a folder");
    let url = format!("sqlite://{}/events.db", folder.path().display());
    let ground = Ground::new(&Policy::default()).await;
    let _leader = ground.lead(Some(EventLog::connect(&url).await.expect("a log"))).await;
    ground.register("other", &["send"]).await;
    let waiting = ground.enqueued(&[]).await;
    let ran = ground.run(&["conformance", "--event-log", &url, "-o", "json"]).await;
    let checks = checks(&ran);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(checks.iter().all(|check| check["passed"] == json!(true)), "{checks:#?}");
    let walk = |at: usize| checks[at]["statusTransition"].as_array().expect("states").len();
    assert_eq!((walk(0), walk(2), walk(3)), (3, 9, 11));
    assert_eq!((&checks[1]["retryCount"], &checks[2]["retryCount"]), (&json!(1), &json!(3)));
    assert!(checks[3]["seen"].as_str().expect("words").contains("dlq_recorded is inferred"), "{}", checks[3]);
    assert!(checks[7]["seen"].as_str().expect("words").contains("task.reclaimed from"), "{}", checks[7]);
    assert!(checks[8]["seen"].as_str().expect("words").contains("two attempts, one effect"), "{}", checks[8]);
    assert!(checks.iter().all(|check| check["traceId"].is_string() && check["jobId"].is_string()));

    let counts = ground.broker.counts().await.expect("counted");
    assert_eq!(
        (counts.backlog, counts.running, counts.dead_lettered),
        (1, 0, 0),
        "only the stranger waits: {counts:?}"
    );
    assert_eq!(counts.workers, 1, "its own workers are gone");
    assert_eq!(ground.run(&["task", "get", &waiting, "-o", "json"]).await.json()["state"], "queued");
}

#[tokio::test]
async fn without_an_event_log_the_results_are_checked() {
    let ground = Ground::new(&hasty()).await;
    let _leader = ground.lead(None).await;
    let ran = ground.run(&["conformance"]).await;
    ran.said(&["RP-001", "pass", "queued → running → succeeded", "no event log given to check", "WF_STATE_TRANSITION"]);
    assert!(!ran.stdout.contains("FAIL"), "{ran:?}");
}

/// The lost worker is found by its timeout alone, as the task-queue protocol has it.
#[tokio::test]
async fn a_queue_that_goes_by_the_visibility_timeout_alone_passes() {
    let mut policy = hasty();
    policy.heartbeat_period = std::time::Duration::from_millis(500);
    policy.visibility_timeout = std::time::Duration::from_millis(1500);
    policy.reclaim.on = [ReclaimCause::VisibilityTimeout].into();
    let ground = Ground::new(&policy).await;
    let _leader = ground.lead(None).await;
    let ran = ground.run(&["conformance", "-o", "json"]).await;
    let checks = checks(&ran);
    assert_eq!(ran.code, 0, "{checks:#?}");
}

/// Keys by content that are kept, two people for a discard, another order of priorities.
#[tokio::test]
async fn a_queue_with_other_rules_passes() {
    let mut policy = hasty();
    policy.idempotency.source = IdempotencySource::ContentHash;
    policy.idempotency.scope = IdempotencyScope::Retained;
    policy.discard_approvals = 2;
    policy.priority = Priorities { default: 0, min: 0, max: 9, order: PriorityOrder::LowestFirst };
    policy.retry.max_retries = 0;
    let ground = Ground::new(&policy).await;
    let _leader = ground.lead(None).await;
    let ran = ground.run(&["conformance", "-o", "json"]).await;
    assert_eq!(ran.code, 0, "{:#?}", checks(&ran));
    assert_eq!(ground.broker.counts().await.expect("counted").dead_lettered, 0);
}

#[tokio::test]
async fn a_paused_queue_fails_visibly() {
    let ground = Ground::new(&Policy { mode: Mode::Paused, ..hasty() }).await;
    let ran = ground.run(&["conformance", "-o", "json"]).await;
    ran.refused(1, &["9 of 9 checks failed"]);
    for check in checks(&ran) {
        assert!(check["seen"].as_str().expect("words").contains("Paused and gives out no work"), "{check}");
    }
    let counts = ground.broker.counts().await.expect("counted");
    assert_eq!((counts.backlog, counts.workers), (0, 0), "nothing is left behind");
    let closed = Ground::new(&Policy { mode: Mode::Closed, ..hasty() }).await;
    let ran = closed.run(&["conformance"]).await;
    ran.refused(1, &["9 of 9 checks failed"]);
    assert!(ran.stdout.contains("FAIL") && ran.stdout.contains("is closed and takes no tasks"), "{ran:?}");
}

#[tokio::test]
async fn a_queue_without_a_leader_says_what_is_missing() {
    let ground = Ground::new(&hasty()).await;
    let ran = ground.run(&["conformance", "--timeout", "3s", "-o", "json"]).await;
    ran.refused(1, &["2 of 9 checks failed"]);
    for check in checks(&ran) {
        let dead = ["RP-004", "TQP-2"].contains(&check["id"].as_str().expect("an id"));
        assert_eq!(check["passed"], json!(!dead), "{check}");
        assert!(!dead || check["seen"].as_str().expect("words").contains("stays in dlq_pending"), "{check}");
    }
}

#[tokio::test]
async fn a_worker_that_would_take_the_tasks_is_named() {
    let ground = Ground::new(&hasty()).await;
    ground.register("greedy", &[]).await;
    ground.run(&["conformance"]).await.refused(4, &["worker greedy takes every type", "stop it"]);
}

#[tokio::test]
async fn a_run_that_is_interrupted_clears_away_what_it_made() {
    let ground = Ground::new(&Policy::default()).await;
    let mut child = ground.command(&["conformance"]).spawn().expect("it starts");
    let mut wait = crate::support::servers::Wait::new("the checks to be under way");
    while ground.broker.counts().await.expect("counted").retrying == 0 {
        wait.again("no retries").await;
    }
    let told = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(told.expect("kill runs").success());
    let ended = tokio::task::spawn_blocking(move || child.wait()).await.expect("no panic").expect("it ends");
    assert_eq!(ended.code(), Some(1));
    let counts = ground.broker.counts().await.expect("counted");
    assert_eq!((counts.backlog, counts.running, counts.retrying, counts.workers), (0, 0, 0, 0), "{counts:?}");
}
