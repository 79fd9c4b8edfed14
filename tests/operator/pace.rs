//! How often a busy queue's status is written.

use std::time::{Duration, Instant};

use serde_json::json;
use windlass::broker::Broker;
use windlass::{NewTask, TaskType};

use super::ground::{Ground, condition_of};

/// For how long the counts change.
const BUSY: Duration = Duration::from_secs(35);

#[tokio::test(flavor = "multi_thread")]
async fn counts_that_change_all_the_time_are_written_once_in_ten_seconds() {
    let ground = Ground::new().await;
    let operator = ground.operator().await;
    ground.apply("emails", "{}").await;
    ground.ready("emails").await;
    let broker = ground.broker("emails");
    let task = || NewTask::new(TaskType::new("send").expect("a type"), json!({}));
    let mut added = 0_i64;
    ground
        .until("the queue to have been counted", async || {
            broker.enqueue(&[task()]).await.map_err(|error| error.to_string())?;
            added += 1;
            let queue = ground.queues().get("emails").await.map_err(|error| error.to_string())?;
            let no_workers = condition_of(&queue, "WorkersAvailable").is_some_and(|one| one.reason == "NoWorkers");
            let backlog = queue.status.and_then(|status| status.backlog);
            if no_workers && backlog > Some(0) { Ok(()) } else { Err(format!("{backlog:?}")) }
        })
        .await;
    let written = async || operator.metric("windlass_operator_statuses_written_total").await.unwrap_or(0.0);
    let (before, began) = (written().await, Instant::now());
    while began.elapsed() < BUSY {
        broker.enqueue(&[task()]).await.expect("taken");
        added += 1;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let writes = written().await - before;
    eprintln!("{added} tasks in {:?}: the status was written {writes} times", began.elapsed());
    assert!((1.0..=began.elapsed().as_secs_f64() / 10.0 + 1.0).contains(&writes), "{writes} writes");
    // And the last of them tells the whole truth in the end.
    let all = |found: Option<&windlass::crd::TaskQueue>| {
        found.and_then(|queue| queue.status.as_ref()).and_then(|status| status.backlog) == Some(added)
    };
    ground.cluster.wait(&ground.queues(), "emails", "to tell of all tasks", all).await;
}
