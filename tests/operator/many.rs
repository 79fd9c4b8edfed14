//! A thousand queues and two hundred pools: all become ready, and while nothing happens nothing is written.

use std::time::{Duration, Instant};

use kube::Api;
use windlass::crd::{TaskQueue, WorkerPool};

use super::ground::{Operator, condition_of, define, grant, queue};
use crate::kubernetes::Kubernetes;
use crate::support::servers::{Flavor, Server};

/// Ten thousand queues instead of a thousand (`WINDLASS_STRESS=full`).
fn is_long() -> bool {
    std::env::var("WINDLASS_STRESS").is_ok_and(|value| value == "full")
}

/// Pools, on the first of the queues. There are no nodes: a pool that is ready is one that needs no pods.
const POOLS: usize = 200;

fn pool(number: usize) -> String {
    format!(
        "{{apiVersion: windlass.dev/v1alpha1, kind: WorkerPool, metadata: {{name: p{number}}}, spec: {{queueRef: {{name: q{number}}}, \
         handler: {{type: HTTP, http: {{port: 8080}}}}, autoscaling: {{minReplicas: 0, maxReplicas: 3}}, \
         template: {{spec: {{containers: [{{name: app, image: \"app:1\"}}]}}}}}}}}\n"
    )
}

/// How long it is watched that nothing is written: longer than any of the operator's rounds but the look at idle queues.
const WATCHED: Duration = Duration::from_secs(45);

/// What the operator may ask of Redis meanwhile, in commands a second, and the memory that it may hold, in MiB.
const MOST_COMMANDS: f64 = 200.0;
const MOST_MEMORY: u64 = 128;

/// How much of a core it may take, in percent. The long version is held to what is promised; the short one is not
/// optimised and shares its core with other tests.
fn most_work() -> f64 {
    if is_long() { 3.0 } else { 6.0 }
}

/// How many requests the API server has had that write what the operator may write, but for its Lease.
async fn writes(cluster: &Kubernetes) -> f64 {
    let text = cluster.kubectl(&["get", "--raw", "/metrics"]).await;
    let resources = ["taskqueues", "workerpools", "events", "deployments", "pods", "secrets"];
    let counted = |line: &&str| {
        line.starts_with("apiserver_request_total{")
            && ["PATCH", "APPLY", "POST", "PUT", "DELETE"].iter().any(|verb| line.contains(&format!("verb=\"{verb}\"")))
            && resources.iter().any(|resource| line.contains(&format!("resource=\"{resource}\"")))
    };
    text.lines().filter(counted).filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_queues_and_two_hundred_pools_become_ready_and_idle_ones_cost_no_write() {
    let cluster = Kubernetes::start_api().await;
    define(&cluster).await;
    let namespace = cluster.namespace().await;
    grant(&cluster, &namespace, None, |_| true).await;
    let redis = Server::builder(Flavor::Redis70).aof_always().config("appendfsync", "everysec").start().await;
    let url = redis.url();
    let operator =
        Operator::start(&cluster, &namespace, &[("WINDLASS_REDIS_URL", &url), ("WINDLASS_LOG", "info")]).await;
    let count = if is_long() { 10_000 } else { 1000 };
    let manifests = (0..count).map(|number| queue(&format!("q{number}"), "{}"));
    let manifests: Vec<String> = manifests.chain((0..POOLS).map(pool)).collect();
    let began = Instant::now();
    cluster.apply(&namespace, &manifests.join("---\n")).await;
    eprintln!("{count} queues and {POOLS} pools applied after {:?}", began.elapsed());
    let queues: Api<TaskQueue> = Api::namespaced(cluster.client().await, &namespace);
    let settled = |queue: &TaskQueue| {
        condition_of(queue, "Ready").is_some_and(|one| one.status == "True")
            && condition_of(queue, "WorkersAvailable").is_some_and(|one| one.reason == "NoWorkers")
    };
    let pools: Api<WorkerPool> = Api::namespaced(cluster.client().await, &namespace);
    let is_ready = |pool: &WorkerPool| {
        let mut conditions = pool.status.iter().flat_map(|status| &status.conditions);
        conditions.any(|one| one.type_ == "Ready" && one.status == "True")
    };
    cluster
        .wait_for(&namespace, "all queues to be ready and counted, and all pools to be ready", async || {
            let all = queues.list(&Default::default()).await.map_err(|error| error.to_string())?;
            let ready = all.items.iter().filter(|queue| settled(queue)).count();
            let all = pools.list(&Default::default()).await.map_err(|error| error.to_string())?;
            let made = all.items.iter().filter(|pool| is_ready(pool)).count();
            tokio::time::sleep(Duration::from_secs(1)).await;
            let told = format!("{ready} of {count} queues, {made} of {POOLS} pools");
            if (ready, made) == (count, POOLS) { Ok(()) } else { Err(told) }
        })
        .await;
    eprintln!("{count} queues and {POOLS} pools ready after {:?}", began.elapsed());

    // What follows from making them has to end first. With ten thousand queues it is so slow that it may go on.
    let forgotten = async || {
        let runs = operator.metric("windlass_loop_runs_total{loop=\"retainer\"}").await.unwrap_or_default();
        if is_long() || runs >= count as f64 { Ok(()) } else { Err(format!("{runs} of {count}")) }
    };
    cluster.wait_for(&namespace, "each queue to have been looked at for what is old", forgotten).await;
    cluster
        .wait_for(&namespace, "everything to be quiet", async || {
            let before = writes(&cluster).await;
            tokio::time::sleep(Duration::from_secs(5)).await;
            if writes(&cluster).await == before { Ok(()) } else { Err("something is written".to_owned()) }
        })
        .await;
    let commands = async || redis.info("stats").await["total_commands_processed"].parse::<f64>().expect("a number");
    let (before, asked) = (writes(&cluster).await, commands().await);
    let written = operator.metric("windlass_operator_statuses_written_total").await;
    let (worked, _) = operator.usage();
    // Nothing to wait for: that nothing happens is the claim.
    tokio::time::sleep(WATCHED).await;
    let (after, asked) = (writes(&cluster).await, commands().await - asked);
    assert_eq!(operator.metric("windlass_operator_statuses_written_total").await, written, "no status is written");
    assert_eq!(after - before, 0.0, "no request that writes");
    let rate = asked / WATCHED.as_secs_f64();
    let (work, memory) = operator.usage();
    let share = 100.0 * (work - worked).as_secs_f64() / WATCHED.as_secs_f64();
    eprintln!(
        "{count} idle queues and {POOLS} pools for {WATCHED:?}: 0 writes to the API server, {rate:.0} Redis commands a second, \
         {share:.1} % of a core, {memory} MiB"
    );
    assert!(rate < MOST_COMMANDS, "{rate:.0} commands a second");
    assert!(memory < MOST_MEMORY, "{memory} MiB");
    assert!(share < most_work(), "{share:.1} % of a core");
}
