//! Edits of manifests are applied while everything runs.

use serde_json::json;
use windlass::State;
use windlass::broker::Broker;
use windlass::protocol::policy::Mode;

use super::ground::{Ground, exec, manifest, queue};
use crate::support::servers::Wait;

#[tokio::test(flavor = "multi_thread")]
async fn mode_and_replicas_follow_the_file() {
    let first = manifest("[cat]");
    let ground = Ground::new(&first);
    let dev = ground.start().await;
    let on = ground.queue("q");
    on.workers(1).await;

    let paused = first.replace("{heartbeat", "{mode: Paused, heartbeat");
    ground.write("manifest.yaml", &paused.replace("replicas: 1", "replicas: 2"));
    on.workers(2).await;
    let mut wait = Wait::new("the queue to be paused");
    while on.broker.policy().await.expect("readable").mode != Mode::Paused {
        wait.again("not yet").await;
    }
    let id = on.enqueue("a", json!({})).await;

    ground.write("manifest.yaml", &first);
    on.reaches(&id, State::Succeeded).await;
    on.workers(1).await;
    dev.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edit_that_is_wrong_is_told_and_changes_nothing() {
    let first = manifest("[cat]");
    let ground = Ground::new(&first);
    let dev = ground.start().await;
    let on = ground.queue("q");
    let worker = on.workers(1).await[0].info.id.clone();

    ground.write(
        "manifest.yaml",
        &first.replace("{heartbeat", "{mode: Pauzed, heartbeat").replace("replicas: 1", "replicas: 3"),
    );
    ground.logged("did you mean Paused?").await;
    ground.logged("the edit is not applied").await;
    let id = on.enqueue("a", json!({})).await;
    on.reaches(&id, State::Succeeded).await;
    assert_eq!(on.workers(1).await[0].info.id, worker, "the worker goes on");

    ground.write("manifest.yaml", &first.replace("replicas: 1", "replicas: 2"));
    on.workers(2).await;
    dev.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manifest_that_is_deleted_is_told_and_changes_nothing() {
    let ground = Ground::new(&manifest("[cat]"));
    let dev = ground.start().await;
    std::fs::remove_file(ground.path("manifest.yaml")).expect("removed");
    ground.logged("manifest.yaml: cannot be read").await;
    let on = ground.queue("q");
    let id = on.enqueue("a", json!({})).await;
    on.reaches(&id, State::Succeeded).await;
    ground.write("manifest.yaml", &manifest("[cat]").replace("replicas: 1", "replicas: 2"));
    on.workers(2).await;
    dev.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_may_not_change_is_refused_as_in_a_cluster() {
    let broker = "broker: {type: Redis, redis: {url: 'redis://cache:6379'}}";
    let ground = Ground::new(&queue("q", &format!("{{{broker}}}")));
    let dev = ground.start().await;
    ground.logged("broker has no effect on one machine").await;
    ground.write("manifest.yaml", &queue("q", &format!("{{{}}}", broker.replace("cache", "other"))));
    ground.logged("broker is immutable").await;
    dev.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_and_a_queue_that_are_removed_stop_and_their_data_stays() {
    let first = manifest("[cat]");
    let ground = Ground::new(&first);
    let dev = ground.start().await;
    let on = ground.queue("q");
    on.workers(1).await;
    ground.write("manifest.yaml", &queue("other", "{}"));
    on.workers(0).await;
    ground.logged("its data stays").await;
    let id = on.enqueue("a", json!({})).await;
    assert_eq!(on.task(&id).await.state, State::Queued);
    ground.write("manifest.yaml", &format!("{first}---\n{}", queue("other", "{}")));
    on.reaches(&id, State::Succeeded).await;
    dev.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_handler_takes_over_when_the_old_one_has_finished() {
    let ground = Ground::new(&manifest("[sh, first.sh]"));
    ground.write("first.sh", "touch begun; sleep 2; echo first\n");
    let dev = ground.start().await;
    let on = ground.queue("q");
    let slow = on.enqueue("a", json!({})).await;
    ground.made("begun").await;
    let old = on.workers(1).await[0].info.id.clone();
    let spec = queue("q", "{heartbeatPeriodSeconds: 1, visibilityTimeoutSeconds: 30}");
    ground.write("manifest.yaml", &format!("{spec}---\n{}", exec("pool", "q", "[echo, second]")));
    ground.logged("pool changed").await;
    let slow = on.reaches(&slow, State::Succeeded).await;
    assert!(format!("{:?}", slow.result).contains("first"), "{slow:?}");
    assert_eq!(slow.crash_count + slow.release_count, 0, "{slow:?}");
    let mut wait = Wait::new("the next worker");
    while on.workers(1).await[0].info.id == old {
        wait.again(ground.log()).await;
    }
    let next = on.enqueue("a", json!({})).await;
    let next = on.reaches(&next, State::Succeeded).await;
    assert!(format!("{:?}", next.result).contains("second"), "{next:?}");
    dev.stop().await;
}
