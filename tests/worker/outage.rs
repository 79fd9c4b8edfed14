//! The broker is away for a while.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::sync::Notify;
use windlass::broker::Broker;
use windlass::protocol::policy::Policy;
use windlass::worker::CancelReason;
use windlass::{Outcome, State, TaskContext};

use super::ground::{Does, Ground, Line, broker_at, hasty, options};
use crate::support::logged::Logged;
use crate::support::servers::{Flavor, Server, Wait};

/// A policy with quick heartbeats and leases that outlast the test.
fn patient() -> Policy {
    Policy { heartbeat_period: Duration::from_millis(200), ..Policy::default() }
}

/// Handlers that end when the test says so.
fn held(gate: &Arc<Notify>) -> impl windlass::Handler {
    let gate = gate.clone();
    Does(move |task: TaskContext| {
        let gate = gate.clone();
        async move {
            tokio::select! {
                () = gate.notified() => Outcome::result(json!("done")),
                reason = task.cancelled() => Outcome::failure("stopped", format!("{reason:?}")),
            }
        }
    })
}

async fn until_it_notices(worker: &super::ground::Running) {
    let mut wait = Wait::new("the worker to notice that the broker is away".to_owned());
    while worker.handle.health().is_connected() {
        wait.again("it believes that it is there").await;
    }
}

#[tokio::test]
async fn handlers_go_on_while_redis_hangs_and_settle_when_it_is_back() {
    let ground = Ground::new(patient()).await;
    let gate = Arc::new(Notify::new());
    let worker = ground.work(held(&gate), options(5));
    let ids = ground.add(5).await;
    worker.until_running(5).await;
    ground.server.freeze().await;
    until_it_notices(&worker).await;
    assert_eq!(worker.handle.health().running(), 5, "many heartbeats were missed, and nothing was stopped");
    gate.notify_waiters();
    worker.until_running(0).await;
    assert_eq!(worker.handle.health().why_not_live(), None, "a restart would not help");
    assert_eq!(worker.handle.health().why_not_ready(), Some("the broker does not answer"));
    ground.server.thaw().await;
    for id in &ids {
        let done = ground.until(id, State::Succeeded).await;
        assert_eq!((done.retry_count, done.crash_count), (0, 0));
    }
    let more = ground.add(1).await.remove(0);
    worker.until_running(1).await;
    gate.notify_waiters();
    ground.until(&more, State::Succeeded).await;
    let summary = worker.drain().await;
    assert_eq!((summary.settled, summary.refused, summary.unsettled), (6, 0, 0));
}

#[tokio::test]
async fn what_ended_while_redis_was_killed_is_settled_when_it_runs_again() {
    for flavor in [Flavor::Redis70, Flavor::Valkey91] {
        let ground = Ground::on(Server::builder(flavor).aof_always().start().await, patient()).await;
        let gate = Arc::new(Notify::new());
        let worker = ground.work(held(&gate), options(20));
        let ids = ground.add(20).await;
        worker.until_running(20).await;
        ground.server.kill9();
        until_it_notices(&worker).await;
        gate.notify_waiters();
        worker.until_running(0).await;
        ground.server.restart().await;
        for id in &ids {
            let done = ground.until(id, State::Succeeded).await;
            assert_eq!((done.retry_count, done.crash_count), (0, 0), "{flavor:?}");
        }
        let summary = worker.drain().await;
        assert_eq!((summary.settled, summary.refused, summary.unsettled), (20, 0, 0), "{flavor:?}");
    }
}

/// It may be somebody else's by now; as it turns out, it is not.
#[tokio::test]
async fn a_worker_that_could_not_renew_for_too_long_stops_its_handlers() {
    let ground = Ground::new(hasty()).await;
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let worker = ground.work(
        Does(move |task: TaskContext| {
            let tell = tell.clone();
            async move {
                let reason = task.cancelled().await;
                tell.send(reason).expect("the test listens");
                Outcome::result(json!("just in time"))
            }
        }),
        options(1),
    );
    let id = ground.add(1).await.remove(0);
    worker.until_running(1).await;
    ground.server.freeze().await;
    assert_eq!(told.recv().await, Some(CancelReason::LeaseLost));
    ground.server.thaw().await;
    let done = ground.until(&id, State::Succeeded).await;
    assert_eq!((done.epoch.0, done.retry_count), (1, 0), "nobody else had it, so its result counts");
    assert_eq!(worker.drain().await.settled, 1);
}

/// closes: late rescue overwrites a completion (river#1302, rq#2424)
#[tokio::test]
async fn a_result_that_comes_after_its_lease_was_taken_is_dropped_and_the_newer_claim_stands() {
    let logged = Logged::default();
    let _guard = logged.begin();
    let ground = Ground::new(hasty()).await;
    let line = Line::to(&ground.server).await;
    let gate = Arc::new(Notify::new());
    let deaf = gate.clone();
    let handler = Does(move |_| {
        let deaf = deaf.clone();
        async move {
            deaf.notified().await;
            Outcome::result(json!("late"))
        }
    });
    let cut_off = ground.work_at(&line.url(), handler, options(1));
    let id = ground.add(1).await.remove(0);
    cut_off.until_running(1).await;
    // Its network is gone, not its queue.
    line.cut();
    until_it_notices(&cut_off).await;
    assert_eq!(ground.reclaim_one().await, id);
    let fresh = ground.work(Does(|_| async { Outcome::result(json!("fresh")) }), options(1));
    let done = ground.until(&id, State::Succeeded).await;
    gate.notify_one();
    cut_off.until_running(0).await;
    line.mend();
    let summary = cut_off.drain().await;
    assert_eq!((summary.settled, summary.refused, summary.unsettled), (0, 1, 0));
    assert_eq!(ground.view(&id).await, done, "nothing changed");
    assert_eq!(done.result.expect("a result").as_str(), r#""fresh""#);
    assert_eq!(
        logged.times(&format!("the attempt came too late and was not counted task_id={id}")),
        1,
        "and it says so"
    );
    fresh.drain().await;
}

#[tokio::test]
async fn a_worker_starts_before_its_broker_and_its_queue() {
    let server = Server::start(Flavor::Redis70).await;
    let ground = Ground::on(server, patient()).await;
    ground.server.command(&["FLUSHALL"]).await;
    ground.server.kill9();
    let worker = ground.work(Does(|_| async { Outcome::success() }), options(1));
    assert!(worker.handle.health().why_not_ready().is_some());
    ground.server.restart().await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(worker.handle.health().why_not_ready().is_some(), "there is no queue yet");
    ground.broker.provision(&crate::support::owner(), &patient()).await.expect("the queue is made");
    ground.add(1).await;
    ground.until_finished(1).await;
    assert_eq!(worker.handle.health().why_not_ready(), None);
    worker.drain().await;
}

/// Silence costs a worker its place in the registry; it comes back by itself.
#[tokio::test]
async fn a_worker_that_was_given_up_registers_again() {
    let mut policy = patient();
    policy.reclaim.worker_lost_after = Duration::from_millis(700);
    let ground = Ground::new(policy).await;
    let line = Line::to(&ground.server).await;
    let worker = ground.work_at(&line.url(), Does(|_| async { Outcome::success() }), options(1));
    until_it_is_ready(&worker).await;
    // The worker cannot come back before it was given up: its network is gone, not its queue.
    line.cut();
    until_it_notices(&worker).await;
    // Nobody gives a worker up before it was silent for so long.
    tokio::time::sleep(Duration::from_millis(700)).await;
    ground.broker.deregister(&worker.id).await.expect("answered");
    line.mend();
    until_it_is_registered(&ground, &worker).await;
    ground.add(1).await;
    ground.until_finished(1).await;
    worker.drain().await;
}

/// A worker that was stopped for a while sees no error when it goes on.
#[tokio::test]
async fn a_worker_that_was_given_up_while_it_was_stopped_registers_again() {
    let mut policy = patient();
    policy.reclaim.worker_lost_after = Duration::from_millis(700);
    let ground = Ground::new(policy).await;
    let worker = ground.work(Does(|_| async { Outcome::success() }), options(1));
    until_it_is_ready(&worker).await;
    let (broker, id) = (broker_at(&ground.server.url(), &ground.name), worker.id.clone());
    let gives_up = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(1));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(broker.deregister(&id)).expect("answered");
    });
    // This blocks the only thread that the worker has, as if its process had been stopped.
    gives_up.join().expect("it was given up");
    until_it_is_registered(&ground, &worker).await;
    worker.drain().await;
}

async fn until_it_is_ready(worker: &super::ground::Running) {
    let mut wait = Wait::new("the worker to be ready".to_owned());
    while let Some(why) = worker.handle.health().why_not_ready() {
        wait.again(why).await;
    }
}

async fn until_it_is_registered(ground: &Ground, worker: &super::ground::Running) {
    let mut wait = Wait::new("the worker to register again".to_owned());
    while !ground.broker.workers().await.expect("answered").iter().any(|known| known.info.id == worker.id) {
        wait.again("not yet").await;
    }
}
