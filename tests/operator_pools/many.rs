//! Two hundred pools that have nothing to do.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use kube::ResourceExt;
use kube::api::ListParams;
use serde_json::json;
use windlass::NewTask;
use windlass::broker::Broker;

use super::ground::{Ground, condition, task};

const POOLS: usize = 200;
/// For how long nothing happens.
const WINDOW: Duration = Duration::from_secs(20);

async fn commands(ground: &Ground) -> u64 {
    ground.redis.info("stats").await["total_commands_processed"].parse().expect("a number")
}

#[tokio::test]
async fn two_hundred_pools_at_rest_cost_next_to_nothing_and_wake_all_the_same() {
    let ground = Ground::new().await;
    let scaled = json!({"minReplicas": 0, "maxReplicas": 3, "scaleDownAfterSeconds": 1});
    let mut all = String::new();
    for number in 0..POOLS {
        let queue = json!({"apiVersion": "windlass.dev/v1alpha1", "kind": "TaskQueue", "metadata": {"name": format!("q{number}")}, "spec": {}});
        let fields = json!({"autoscaling": scaled, "taskTypes": ["work"]});
        let pool = super::ground::pool(&format!("p{number}"), &format!("q{number}"), fields);
        all += &format!("{queue}\n---\n{pool}\n---\n");
    }
    let began = Instant::now();
    ground.cluster.apply(&ground.namespace, &all).await;
    let versions = async || {
        let pools = ground.pools().list(&ListParams::default()).await.expect("listed").items;
        let ready = |pool: &windlass::crd::WorkerPool| {
            pool.status.as_ref().and_then(|status| condition(status, "Ready")).is_some_and(|(is, ..)| is == "True")
        };
        let count = pools.iter().filter(|pool| ready(pool)).count();
        let versions: BTreeMap<_, _> = pools.iter().map(|pool| (pool.name_any(), pool.resource_version())).collect();
        let deployments = ground.deployments().list(&ListParams::default()).await.expect("listed").items;
        let deployments: BTreeMap<_, _> =
            deployments.iter().map(|one| (one.name_any(), one.resource_version())).collect();
        (count, versions, deployments)
    };
    ground
        .cluster
        .wait_for(&ground.namespace, "all pools to be ready", async || {
            let (ready, _, deployments) = versions().await;
            if ready == POOLS && deployments.len() == POOLS { Ok(()) } else { Err(format!("{ready} are")) }
        })
        .await;
    eprintln!("measured: {POOLS} queues and pools ready after {:.1} s", began.elapsed().as_secs_f64());
    // What follows from making them has to end first: a first window in which nothing changes.
    ground
        .cluster
        .wait_for(&ground.namespace, "everything to be quiet", async || {
            let before = versions().await;
            tokio::time::sleep(Duration::from_secs(5)).await;
            if versions().await == before { Ok(()) } else { Err("it changes".to_owned()) }
        })
        .await;
    let (before, sent) = (versions().await, commands(&ground).await);
    tokio::time::sleep(WINDOW).await;
    let rate = (commands(&ground).await - sent) as f64 / WINDOW.as_secs_f64();
    eprintln!("measured: {POOLS} pools at rest: {rate:.1} Redis commands a second, scripts' own calls included");
    assert_eq!(versions().await, before, "nothing was written");
    assert!(rate < 200.0, "{rate} commands a second");

    // In one queue there is work, and not for this pool: it rests on, and costs the others nothing.
    let theirs = NewTask::new("theirs".parse().expect("valid"), json!({}));
    ground.broker("q77").enqueue(&[theirs]).await.expect("enqueued");
    tokio::time::sleep(Duration::from_secs(5)).await;
    let sent = commands(&ground).await;
    tokio::time::sleep(WINDOW).await;
    let beside = (commands(&ground).await - sent) as f64 / WINDOW.as_secs_f64();
    eprintln!("measured: with others' work in one queue: {beside:.1} Redis commands a second");
    // What else is looked at comes in waves; a look at each pool by itself would be hundreds a second.
    assert!(beside < rate + 250.0, "{beside} commands a second, {rate} without");

    let began = Instant::now();
    ground.broker("q77").enqueue(&[task(1)]).await.expect("enqueued");
    ground.replicas("p77", 1).await;
    eprintln!("measured: one of them was asked for a pod after {:.2} s", began.elapsed().as_secs_f64());
}
