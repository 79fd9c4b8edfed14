//! How many handlers run, for how long, and what happens to those that misbehave.

use std::time::Duration;

use serde_json::json;
use windlass::broker::Broker;
use windlass::worker::CancelReason;
use windlass::{Outcome, State, TaskContext};

use super::ground::{Does, Gauge, Ground, hasty, new_task, options};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn never_more_handlers_run_than_the_concurrency_allows() {
    let ground = Ground::new(hasty()).await;
    ground.add(200).await;
    let gauge = Gauge::default();
    let (seen, bound) = (gauge.clone(), 7);
    let worker = ground.work(
        Does(move |_| {
            let inside = seen.enter();
            async move {
                tokio::time::sleep(Duration::from_millis(fastrand::u64(0..5))).await;
                drop(inside);
                Outcome::success()
            }
        }),
        options(bound),
    );
    ground.until_finished(200).await;
    assert_eq!(gauge.entered(), 200, "each task ran once");
    assert_eq!(gauge.most(), bound, "all places were used, and no more");
    let summary = worker.drain().await;
    assert_eq!((summary.settled, summary.refused, summary.unsettled), (200, 0, 0));
}

#[tokio::test]
async fn results_and_errors_are_told_as_the_handler_gave_them() {
    let ground = Ground::new(hasty()).await;
    let worker = ground.work(
        Does(|task: TaskContext| async move {
            match task.payload::<String>().expect("a word").as_str() {
                "sum" => Outcome::result(json!({ "sum": 3 })),
                "fail" => Outcome::failure("unlucky", "not this time"),
                _ => Outcome::permanent("hopeless", "never"),
            }
        }),
        options(2),
    );
    let sum = ground.add_one(new_task(json!("sum"))).await;
    let hopeless = ground.add_one(new_task(json!("hopeless"))).await;
    let mut failing = new_task(json!("fail"));
    failing.max_retries = Some(2);
    let failing = ground.add_one(failing).await;
    let done = ground.until(&sum, State::Succeeded).await;
    assert_eq!(done.result.expect("a result").as_str(), r#"{"sum":3}"#);
    let dead = ground.until(&hopeless, State::DlqPending).await;
    assert_eq!((dead.error_code.as_deref(), dead.retry_count), (Some("hopeless"), 0));
    let dead = ground.until(&failing, State::DlqPending).await;
    assert_eq!((dead.error_code.as_deref(), dead.retry_count), (Some("unlucky"), 3));
    worker.drain().await;
}

#[tokio::test]
async fn a_result_over_the_bound_is_a_permanent_error() {
    let ground = Ground::new(hasty()).await;
    ground.set(|policy| policy.limits.result_bytes = 100).await;
    let worker = ground.work(Does(|_| async { Outcome::result(json!("x".repeat(200))) }), options(2));
    let id = ground.add(1).await.remove(0);
    let dead = ground.until(&id, State::DlqPending).await;
    assert_eq!(dead.error_code.as_deref(), Some("result_too_large"));
    let summary = worker.drain().await;
    assert_eq!((summary.settled, summary.unsettled), (1, 0));
}

#[tokio::test]
async fn a_panic_is_a_failure_of_its_task_alone() {
    let ground = Ground::new(hasty()).await;
    ground.set(|policy| policy.retry.max_retries = 0).await;
    let worker = ground.work(
        Does(|task: TaskContext| async move {
            assert!(task.payload::<u32>().expect("a number") != 7, "seven is too much");
            Outcome::success()
        }),
        options(3),
    );
    let mut ids = Vec::new();
    for n in 0..10 {
        ids.push(ground.add_one(new_task(json!(n))).await);
    }
    ground.until_finished(9).await;
    let dead = ground.until(&ids[7], State::DlqPending).await;
    assert_eq!(dead.error_code.as_deref(), Some("panic"));
    assert!(dead.error.as_deref().is_some_and(|error| error.contains("seven is too much")), "{dead:?}");
    assert_eq!(worker.drain().await.settled, 10);
}

#[tokio::test]
async fn a_handler_that_takes_too_long_is_asked_to_end_and_its_attempt_has_failed() {
    let ground = Ground::new(hasty()).await;
    let worker = ground.work(
        Does(|task: TaskContext| async move {
            let reason = task.cancelled().await;
            Outcome::failure("stopped", format!("{reason:?}"))
        }),
        options(2),
    );
    let mut task = new_task(json!(1));
    (task.extras.timeout_ms, task.max_retries) = (Some(50), Some(0));
    let id = ground.add_one(task).await;
    let dead = ground.until(&id, State::DlqPending).await;
    assert_eq!(dead.error_code.as_deref(), Some("timeout"));
    assert!(dead.error.as_deref().is_some_and(|error| error.contains("TimedOut")), "{dead:?}");
    worker.drain().await;
}

/// closes: a handler that ignores cancellation is active for ever (asynq users)
#[tokio::test]
async fn a_handler_that_does_not_end_when_asked_is_dropped_and_its_task_runs_again() {
    let ground = Ground::new(hasty()).await;
    ground.set(|policy| policy.timeout = Some(Duration::from_millis(50))).await;
    let gauge = Gauge::default();
    let seen = gauge.clone();
    let deaf = move |task: TaskContext| {
        let inside = seen.enter();
        async move {
            let _inside = inside;
            if task.task().retry_count > 0 {
                return Outcome::success();
            }
            std::future::pending().await
        }
    };
    let mut options = options(1);
    options.kill_grace = Duration::from_millis(100);
    let worker = ground.work(Does(deaf), options);
    let id = ground.add(1).await.remove(0);
    let done = ground.until(&id, State::Succeeded).await;
    assert_eq!((done.retry_count, done.crash_count, gauge.entered()), (1, 0, 2));
    assert_eq!(gauge.inside(), 0, "the first handler is gone");
    assert_eq!(worker.handle.health().stuck(), 0);
    worker.drain().await;
}

/// A thread that is blocked cannot be taken back; the task can.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_handler_that_never_yields_costs_its_place_but_not_its_task() {
    let ground = Ground::new(hasty()).await;
    let (free, blocked) = std::sync::mpsc::channel::<()>();
    let blocked = std::sync::Mutex::new(Some(blocked));
    let handler = Does(move |task: TaskContext| {
        let blocked = blocked.lock().expect("no panic while held").take();
        async move {
            if let Some(blocked) = blocked {
                // What no handler should do.
                let _ = blocked.recv();
            }
            Outcome::result(json!(task.task().retry_count))
        }
    });
    let mut options = options(2);
    options.kill_grace = Duration::from_millis(50);
    let worker = ground.work(handler, options);
    let mut task = new_task(json!(1));
    task.extras.timeout_ms = Some(50);
    let id = ground.add_one(task).await;
    let done = ground.until(&id, State::Succeeded).await;
    assert_eq!(done.result.expect("a result").as_str(), "1", "in its second attempt");
    let health = worker.handle.health();
    assert_eq!((health.stuck(), health.why_not_live()), (1, None), "one place is left");
    drop(free);
    let mut wait = crate::support::servers::Wait::new("the place to come back".to_owned());
    while worker.handle.health().stuck() > 0 {
        wait.again("it is still blocked").await;
    }
    worker.drain().await;
}

#[tokio::test]
async fn a_cancelled_task_stops_its_handler() {
    let ground = Ground::new(hasty()).await;
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let worker = ground.work(
        Does(move |task: TaskContext| {
            let tell = tell.clone();
            async move {
                let reason = task.cancelled().await;
                tell.send(reason).expect("the test listens");
                Outcome::success()
            }
        }),
        options(1),
    );
    let id = ground.add(1).await.remove(0);
    worker.until_running(1).await;
    ground.producer.cancel(&id, "not needed").await.expect("answered");
    assert_eq!(told.recv().await, Some(CancelReason::Cancelled));
    assert_eq!(ground.view(&id).await.state, State::Cancelled);
    worker.until_running(0).await;
    let next = ground.add(1).await.remove(0);
    worker.until_running(1).await;
    ground.producer.cancel(&next, "not needed").await.expect("answered");
    assert_eq!(told.recv().await, Some(CancelReason::Cancelled), "the worker goes on");
    assert_eq!(worker.drain().await.unsettled, 0);
}

#[tokio::test]
async fn a_handler_tells_progress_and_makes_follow_ups() {
    let ground = Ground::new(hasty()).await;
    let worker = ground.work(
        Does(|task: TaskContext| async move {
            if task.task().extras.parent_id.is_some() {
                return Outcome::success();
            }
            task.progress(json!({ "percent": 50 })).await.expect("kept");
            let mut follow_up = new_task(json!("more"));
            follow_up.id = "child".parse().expect("a valid id");
            task.enqueue(follow_up).await.expect("taken");
            task.cancelled().await;
            Outcome::failure("stopped", "")
        }),
        options(2),
    );
    let mut task = new_task(json!(1));
    task.trace_id = Some("4bf92f3577b34da6a3ce929d0e0e4736".parse().expect("a valid trace"));
    task.tenant_id = Some("acme".parse().expect("a valid tenant"));
    let id = ground.add_one(task).await;
    let child = "child".parse().expect("a valid id");
    let mut wait = crate::support::servers::Wait::new("the follow-up".to_owned());
    while ground.broker.get(&child).await.expect("answered").is_none() {
        wait.again("it is not there").await;
    }
    let view = ground.view(&id).await;
    assert_eq!(view.progress.map(|told| told.as_str().to_owned()).as_deref(), Some(r#"{"percent":50}"#));
    let child = ground.until(&child, State::Succeeded).await;
    assert_eq!(child.extras.parent_id, Some(id));
    assert_eq!((child.trace_id, child.tenant_id), (view.trace_id, view.tenant_id));
    worker.handle.drain();
    assert_eq!(worker.drain().await.released, 1);
}
