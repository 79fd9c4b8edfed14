//! Which ends of a pod take tasks from its workers, and which do not.

use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;
use windlass::State;
use windlass::broker::{Broker, ClaimRequest, Outcome, Settled, Settlement};
use windlass::protocol::backoff::Dice;
use windlass::protocol::names::{Capabilities, WorkerId};
use windlass::protocol::state::RetryReason;

use super::ground::Ground;

/// A moment from now, as a kubelet writes it: whole seconds.
fn moment(seconds: i64) -> String {
    jiff::Timestamp::from_second(jiff::Timestamp::now().as_second() + seconds).expect("a time").to_string()
}

fn ended(reason: &str, code: i32) -> serde_json::Value {
    json!({"terminated": {"reason": reason, "exitCode": code, "startedAt": moment(-60), "finishedAt": moment(2)}})
}

fn running() -> serde_json::Value {
    json!({"state": {"running": {"startedAt": moment(-60)}}, "ready": true})
}

/// A ground with a queue and a pool of so many pods.
async fn ground(pods: u32) -> Ground {
    let ground = Ground::new().await;
    ground.queue("q").await;
    ground.pool("p", "q", json!({"replicas": pods})).await;
    ground
}

#[tokio::test]
async fn a_container_that_ended_loses_its_tasks_with_the_kubelets_reason() {
    let ground = ground(2).await;
    let pods = ground.pods_of("p", 2).await;
    let dead = ground.worker("q", &pods[0], "p", 3).await;
    let alive = ground.worker("q", &pods[1], "p", 2).await;
    ground.kubelet_says(&pods[0], "Running", running()).await;
    ground.kubelet_says(&pods[0], "Running", json!({"state": ended("OOMKilled", 137)})).await;
    for task in &dead.held {
        let seen = ground.task("q", &task.lease.task, "to come back", |seen| seen.state == State::Retrying).await;
        assert_eq!((seen.retry_reason, seen.crash_count, seen.retry_count), (Some(RetryReason::PodGone), 1, 0));
    }
    for task in &alive.held {
        assert_eq!(ground.view("q", &task.lease.task).await.state, State::Running, "the other pod keeps its own");
    }
    // Whoever claims it next is told why, and so is its history.
    let next = WorkerId::new("next").expect("valid");
    let request = ClaimRequest { worker: &next, capabilities: &Capabilities::any(), limit: 3, recover: None };
    let again = ground.broker("q").claim(request).await.expect("claimed").tasks;
    let event = ground.history("q", &again[0].lease.task, "task.reclaimed").await;
    let detail = event.detail.expect("a detail");
    assert!(detail.contains("OOMKilled, exit code 137") && detail.contains(dead.id.as_str()), "{detail}");
    let late = Settlement { lease: dead.held[0].lease.clone(), outcome: Outcome::success(), dice: Dice(0) };
    let nothing = ClaimRequest { worker: &dead.id, capabilities: &Capabilities::any(), limit: 0, recover: None };
    let answer = ground.broker("q").settle(&[late], nothing).await.expect("answered");
    assert_eq!(answer.settled, [Settled::LeaseLost], "the dead one's word does not count any more");
}

/// closes: apalis#507 (a killed container restarts under the same pod UID)
#[tokio::test]
async fn a_container_that_starts_again_never_loses_its_new_tasks_to_the_end_of_the_old() {
    let ground = ground(1).await;
    let pod = ground.pods_of("p", 1).await.remove(0);
    let old = ground.worker("q", &pod, "p", 2).await;
    // The new one is there, with tasks, before the API server hears of the old one's end.
    tokio::time::sleep(std::time::Duration::from_millis(2100)).await;
    let before_new = moment(-1);
    let new = ground.worker("q", &pod, "p", 0).await;
    let request = ClaimRequest { worker: &new.id, capabilities: &Capabilities::any(), limit: 2, recover: None };
    let held = ground.broker("q").claim(request).await.expect("claimed").tasks;
    assert_eq!(held.len(), 2, "the old one's tasks came back when the new one registered");
    let last = json!({"terminated": {"reason": "Error", "exitCode": 1, "finishedAt": before_new}});
    let again =
        json!({"state": {"running": {"startedAt": moment(0)}}, "lastState": last, "restartCount": 1, "ready": true});
    ground.kubelet_says(&pod, "Running", again).await;
    // Another pod's end is dealt with after it: by then the first was looked at.
    ground.cluster.kubectl(&["-n", &ground.namespace, "scale", "workerpool/p", "--replicas=2"]).await;
    let both = ground.pods_of("p", 2).await;
    let second = both.iter().find(|one| one.uid() != pod.uid()).expect("another one");
    let mark = ground.worker("q", second, "p", 1).await;
    ground.kubelet_says(second, "Running", json!({"state": ended("Error", 1)})).await;
    ground
        .task("q", &mark.held[0].lease.task, "of the other pod to come back", |seen| seen.state == State::Retrying)
        .await;
    for task in &held {
        let seen = ground.view("q", &task.lease.task).await;
        assert_eq!((seen.state, seen.crash_count), (State::Running, 1), "superseded once, and not taken again");
    }
    drop(old);
}

#[tokio::test]
async fn an_evicted_pod_loses_its_tasks() {
    let ground = ground(1).await;
    let pod = ground.pods_of("p", 1).await.remove(0);
    let dead = ground.worker("q", &pod, "p", 1).await;
    let evicted = Patch::Merge(json!({"status": {"phase": "Failed", "reason": "Evicted", "message": "low on memory"}}));
    ground.pods().patch_status(&pod.name_any(), &PatchParams::default(), &evicted).await.expect("patched");
    let task = &dead.held[0].lease.task;
    let seen = ground.task("q", task, "to come back", |seen| seen.state == State::Retrying).await;
    assert_eq!((seen.retry_reason, seen.crash_count), (Some(RetryReason::PodGone), 1));
    assert!(seen.error.is_some_and(|error| error.contains("Evicted")));
}

#[tokio::test]
async fn a_pod_deleted_by_force_loses_its_tasks_and_nobody_crashed() {
    let ground = ground(1).await;
    let pod = ground.pods_of("p", 1).await.remove(0);
    ground.kubelet_says(&pod, "Running", running()).await;
    let dead = ground.worker("q", &pod, "p", 2).await;
    let force = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    ground.pods().delete(&pod.name_any(), &force).await.expect("deleted");
    for task in &dead.held {
        let seen = ground.task("q", &task.lease.task, "to come back", |seen| seen.state == State::Retrying).await;
        assert_eq!((seen.retry_reason, seen.crash_count), (Some(RetryReason::PodForceDeleted), 0));
    }
    assert!(ground.broker("q").workers().await.expect("answered").iter().all(|known| known.info.id != dead.id));
}

#[tokio::test]
async fn a_pod_that_loses_its_label_keeps_its_tasks_until_it_ends() {
    let ground = ground(2).await;
    let pods = ground.pods_of("p", 2).await;
    ground.kubelet_says(&pods[0], "Running", running()).await;
    let kept = ground.worker("q", &pods[0], "p", 2).await;
    // To a watch of pods with that label it is as if the pod was deleted.
    let bare = Patch::Merge(json!({"metadata": {"labels": {"windlass.dev/pool": null}}}));
    ground.pods().patch(&pods[0].name_any(), &PatchParams::default(), &bare).await.expect("patched");
    let mark = ground.worker("q", &pods[1], "p", 1).await;
    ground.kubelet_says(&pods[1], "Running", json!({"state": ended("Error", 1)})).await;
    let task = &mark.held[0].lease.task;
    ground.task("q", task, "of the other pod to come back", |seen| seen.state == State::Retrying).await;
    for task in &kept.held {
        let seen = ground.view("q", &task.lease.task).await;
        assert_eq!((seen.state, seen.release_count), (State::Running, 0), "it runs on: {seen:?}");
    }
    let request = ClaimRequest { worker: &kept.id, capabilities: &Capabilities::any(), limit: 1, recover: None };
    let more = ground.broker("q").claim(request).await.expect("it is not fenced off").tasks;

    ground.kubelet_says(&pods[0], "Running", json!({"state": ended("Error", 3)})).await;
    for task in kept.held.iter().chain(&more) {
        let seen = ground.task("q", &task.lease.task, "to come back", |seen| seen.state == State::Retrying).await;
        assert_eq!(seen.retry_reason, Some(RetryReason::PodGone));
    }
}

#[tokio::test]
async fn being_asked_to_end_and_a_silent_node_take_nothing() {
    let ground = ground(3).await;
    let pods = ground.pods_of("p", 3).await;
    let mut kept = Vec::new();
    for pod in &pods[..2] {
        ground.kubelet_says(pod, "Running", running()).await;
        kept.extend(ground.worker("q", pod, "p", 1).await.held);
    }
    // As the node controller says of a node that it does not hear from.
    let silent = Patch::Merge(json!({"status": {"reason": "NodeLost", "conditions": [
        {"type": "Ready", "status": "False", "reason": "NodeNotReady"}]}}));
    ground.pods().patch_status(&pods[0].name_any(), &PatchParams::default(), &silent).await.expect("patched");
    // A finalizer keeps the other one where a node would: asked to end, and still there.
    let stays = Patch::Merge(json!({"metadata": {"finalizers": ["windlass.dev/test"]}}));
    ground.pods().patch(&pods[1].name_any(), &PatchParams::default(), &stays).await.expect("patched");
    ground.pods().delete(&pods[1].name_any(), &DeleteParams::default()).await.expect("asked to end");
    let mark = ground.worker("q", &pods[2], "p", 1).await;
    ground.kubelet_says(&pods[2], "Running", json!({"state": ended("Error", 1)})).await;
    ground
        .task("q", &mark.held[0].lease.task, "of the third pod to come back", |seen| seen.state == State::Retrying)
        .await;
    for task in &kept {
        assert_eq!(ground.view("q", &task.lease.task).await.state, State::Running);
    }
    let gone = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    ground.pods().patch(&pods[1].name_any(), &PatchParams::default(), &gone).await.expect("patched");
}

#[tokio::test]
async fn a_pod_that_vanished_while_no_operator_ran_is_found_by_the_next_one() {
    let ground = ground(1).await;
    let pod = ground.pods_of("p", 1).await.remove(0);
    ground.kubelet_says(&pod, "Running", running()).await;
    let dead = ground.worker("q", &pod, "p", 1).await;
    ground.stop_operator();
    let force = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    ground.pods().delete(&pod.name_any(), &force).await.expect("deleted");
    // Nobody of another cluster that works on the same queue is taken for one of ours.
    let stranger = json!({"id": "stranger", "host": "h", "pid": 1, "pod": "their-pod", "pod_uid": "their-uid",
        "container": "windlass-worker", "version": "1", "types": [], "pool": "their-pool"});
    let stranger: windlass::broker::WorkerInfo = serde_json::from_value(stranger).expect("a worker");
    ground.broker("q").register(&stranger).await.expect("registered");
    ground.start_operator("windlass:one");
    let task = &dead.held[0].lease.task;
    let seen = ground.task("q", task, "to come back", |seen| seen.state == State::Retrying).await;
    assert_eq!((seen.retry_reason, seen.crash_count), (Some(RetryReason::PodForceDeleted), 0));
    let left = ground.broker("q").workers().await.expect("answered");
    assert!(left.iter().any(|known| known.info.id == stranger.id), "{left:?}");
}
