//! From the API server's report of a death to tasks that are back: how long it takes, and whose they are.

use std::time::{Duration, Instant};

use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use windlass::State;
use windlass::broker::{Broker, ClaimRequest, WorkerInfo};
use windlass::protocol::names::{Capabilities, WorkerId};
use windlass::protocol::state::RetryReason;

use super::ground::{Ground, task};

/// What is promised: so long after the report the tasks are back.
const IN_TIME: Duration = Duration::from_secs(1);

/// A container's status, as a kubelet writes it.
fn status(name: &str, state: Value) -> Value {
    json!({"name": name, "image": "i", "imageID": "i", "ready": false, "restartCount": 0, "state": state})
}

fn running() -> Value {
    json!({"running": {"startedAt": jiff::Timestamp::now().to_string()}})
}

fn ended(code: i32) -> Value {
    let moment = jiff::Timestamp::from_second(jiff::Timestamp::now().as_second() + 2).expect("a time").to_string();
    json!({"terminated": {"reason": "Error", "exitCode": code, "startedAt": moment, "finishedAt": moment}})
}

#[tokio::test]
async fn tasks_are_back_soon_after_the_report_with_reason_and_exit_code() {
    let ground = Ground::new().await;
    // What came back from one pod may be claimed by the next one, and come back again.
    let spec = json!({"retry": {"maxCrashes": 100}});
    ground.apply(json!({"kind": "TaskQueue", "metadata": {"name": "q"}, "spec": spec})).await;
    ground.ready_queue("q").await;
    ground.pool("p", "q", json!({"replicas": 5})).await;
    let (broker, mut late) = (ground.broker("q"), Vec::new());
    for (round, pod) in ground.pods_of("p", 5).await.iter().enumerate() {
        ground.kubelet_says(pod, "Running", json!({"state": running()})).await;
        let worker = ground.worker("q", pod, "p", 20).await;
        let end = Patch::Merge(json!({"status": {"containerStatuses": [status("windlass-worker", ended(3))]}}));
        ground.pods().patch_status(&pod.name_any(), &PatchParams::default(), &end).await.expect("patched");
        let reported = Instant::now();
        let last = &worker.held.last().expect("it holds some").lease.task;
        let back = loop {
            let seen = broker.get(last).await.expect("answered").expect("known");
            if seen.state != State::Running {
                break seen;
            }
            assert!(reported.elapsed() < crate::kubernetes::LIMIT, "it never comes back: {seen:?}\n{}", ground.said());
            tokio::time::sleep(Duration::from_millis(2)).await;
        };
        let took = reported.elapsed();
        eprintln!("measured: {round}: from the API server's report until 20 tasks were back: {took:?}");
        late.extend((took > IN_TIME).then_some(took));
        assert!(back.crash_count >= 1 && back.retry_count == 0, "it counts as a crash: {back:?}");
        let error = back.error.unwrap_or_default();
        assert!(error.contains("Error, exit code 3"), "{error}");
    }
    // A machine that is busy with something else may be late; a promise that does not hold is broken each time.
    assert!(late.len() < 3, "tasks were back only after {late:?}");
}

#[tokio::test]
async fn an_end_that_came_while_nobody_led_takes_the_tasks_with_its_reason() {
    let ground = Ground::new().await;
    ground.queue("q").await;
    ground.pool("p", "q", json!({"replicas": 2})).await;
    let pods = ground.pods_of("p", 2).await;
    for pod in &pods {
        ground.kubelet_says(pod, "Running", json!({"state": running()})).await;
    }
    let (dead, alive) = (ground.worker("q", &pods[0], "p", 3).await, ground.worker("q", &pods[1], "p", 1).await);
    ground.stop_operator();
    let end = Patch::Merge(json!({"status": {"containerStatuses": [status("windlass-worker", ended(7))]}}));
    ground.pods().patch_status(&pods[0].name_any(), &PatchParams::default(), &end).await.expect("patched");
    ground.start_operator("windlass:one");
    for one in &dead.held {
        let seen = ground.task("q", &one.lease.task, "to come back", |seen| seen.state == State::Retrying).await;
        assert_eq!((seen.retry_reason, seen.crash_count), (Some(RetryReason::PodGone), 1), "{seen:?}");
        assert!(seen.error.as_ref().is_some_and(|error| error.contains("exit code 7")), "{seen:?}");
    }
    assert_eq!(ground.view("q", &alive.held[0].lease.task).await.state, State::Running, "the other one keeps its own");
}

#[tokio::test]
async fn of_two_workers_in_one_pod_only_the_one_that_ended_loses_its_tasks() {
    let ground = Ground::new().await;
    ground.queue("q").await;
    let both =
        json!({"spec": {"containers": [{"name": "left", "image": "app:1"}, {"name": "right", "image": "app:1"}]}});
    ground.pool("p", "q", json!({"handler": {"type": "SDK"}, "template": both})).await;
    let pod = ground.pods_of("p", 1).await.remove(0);
    let says = async |left: Value, right: Value| {
        let statuses = json!([status("left", left), status("right", right)]);
        let patch = Patch::Merge(json!({"status": {"phase": "Running", "containerStatuses": statuses}}));
        ground.pods().patch_status(&pod.name_any(), &PatchParams::default(), &patch).await.expect("patched");
    };
    says(running(), running()).await;
    let (broker, any) = (ground.broker("q"), Capabilities::any());
    let owner = ground.pools().get("p").await.expect("there").uid();
    let mut held = Vec::new();
    for container in ["left", "right"] {
        let id = WorkerId::new(format!("{}-{container}", pod.name_any())).expect("valid");
        let info = WorkerInfo {
            id: id.clone(),
            host: "node".to_owned(),
            pid: 1,
            pod: Some(pod.name_any()),
            pod_uid: pod.uid(),
            container: Some(container.to_owned()),
            version: "1".to_owned(),
            types: Vec::new(),
            pool: owner.clone(),
            started: Some(jiff::Timestamp::now()),
        };
        broker.register(&info).await.expect("registered");
        broker.enqueue(&[task(1), task(2)]).await.expect("enqueued");
        let request = ClaimRequest { worker: &id, capabilities: &any, limit: 2, recover: None };
        held.push(broker.claim(request).await.expect("claimed").tasks);
    }
    says(ended(1), running()).await;
    for one in &held[0] {
        ground.task("q", &one.lease.task, "of the left one to come back", |seen| seen.state == State::Retrying).await;
    }
    for one in &held[1] {
        assert_eq!(ground.view("q", &one.lease.task).await.state, State::Running, "the right one keeps its own");
    }
}
