//! Workers and Redis die while there is work: nothing is lost, and everything ends once.

use std::collections::HashMap;
use std::time::Duration;

use serde_json::json;
use windlass::broker::redis::{Redis, RedisOptions};
use windlass::maintenance::Queue;
use windlass::maintenance::metrics::LoopMetrics;
use windlass::maintenance::runner::Runner;
use windlass::worker::WorkerPlace;
use windlass::{Outcome, TaskContext, WorkerOptions};

use super::ground::{Does, Ground, Running, hasty, new_task, options};
use crate::support::servers::{Flavor, Server, Wait};

const TASKS: usize = 3000;

/// Runs for a moment, and now and then fails.
async fn moody(task: TaskContext) -> Outcome {
    let time = Duration::from_millis(fastrand::u64(0..60));
    tokio::select! {
        () = tokio::time::sleep(time) => {}
        reason = task.cancelled() => return Outcome::failure("stopped", format!("{reason:?}")),
    }
    if fastrand::u8(..) < 12 { Outcome::failure("moody", "not now") } else { Outcome::result(json!("done")) }
}

fn start(ground: &Ground, pod: usize) -> Running {
    let place = WorkerPlace {
        host: "node".to_owned(),
        pod: Some(format!("pod-{pod}")),
        pod_uid: Some(format!("uid-{pod}")),
        container: Some("main".to_owned()),
        pool: None,
    };
    let drain_timeout = Duration::from_secs(2);
    ground.work(Does(moody), WorkerOptions { place, drain_timeout, ..options(8) })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_and_everything_ends_once_while_workers_and_redis_die() {
    let mut policy = hasty();
    (policy.retry.max_retries, policy.retry.max_crashes) = (1000, 1000);
    (policy.retry.max_releases, policy.reclaim.worker_lost_after) = (1000, Duration::from_secs(1));
    let ground = Ground::on(Server::builder(Flavor::Redis70).aof_always().start().await, policy).await;
    let mut leader = Runner::start(LoopMetrics::default());
    // Without notices an idle queue, as this one is at first, would be looked at again minutes later.
    leader.listen(Redis::new(RedisOptions::new(ground.server.url())).expect("a usable URL").notices());
    leader.add(ground.keys().prefix(), Queue::new(ground.name.clone(), ground.broker.clone(), None)).await;

    let tasks: Vec<_> = (0..TASKS).map(|n| new_task(json!({ "n": n }))).collect();
    ground.producer.enqueue_all(&tasks).await.expect("the tasks are taken");
    let mut workers: HashMap<usize, Running> = (0..4).map(|pod| (pod, start(&ground, pod))).collect();
    for round in 0..24 {
        tokio::time::sleep(Duration::from_millis(fastrand::u64(20..120))).await;
        let pod = fastrand::usize(0..4);
        let worker = workers.remove(&pod).expect("each pod has a worker");
        match fastrand::u8(0..3) {
            0 => drop(tokio::spawn(worker.drain())),
            _ => worker.crash().await,
        }
        workers.insert(pod, start(&ground, pod));
        match round {
            8 | 16 => ground.server.restart().await,
            12 => {
                ground.server.freeze().await;
                tokio::time::sleep(Duration::from_millis(1700)).await;
                ground.server.thaw().await;
            }
            _ => {}
        }
    }
    let mut wait = Wait::new(format!("all {TASKS} tasks to be finished"));
    while ground.counts().await.finished < TASKS as u64 {
        wait.again(format!("{:?}", ground.counts().await)).await;
    }
    for (_, worker) in workers {
        worker.drain().await;
    }
    let counts = ground.counts().await;
    assert_eq!((counts.finished, counts.backlog, counts.running, counts.retrying), (TASKS as u64, 0, 0, 0));
    let results: usize = ground.server.query(&["XLEN", &ground.keys().result]).await;
    assert_eq!(results, TASKS, "exactly one final result a task");
    for task in &tasks {
        assert_eq!(ground.view(&task.id).await.state, windlass::State::Succeeded);
    }
    drop(leader);
}
