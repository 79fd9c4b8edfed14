//! The operator killed at any moment: each pool ends with the one Deployment that was last asked for, and nothing
//! else is left.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use serde_json::{Value, json};
use windlass::broker::Broker;
use windlass::crd::TaskQueue;

use super::ground::{Ground, condition, pool, replicas, task};

/// On a pod: the name of its pool.
const POOL: &str = "windlass.dev/pool";

/// How often it is killed: 50 times in the long version (`WINDLASS_CHAOS=full`).
fn kills() -> usize {
    if std::env::var("WINDLASS_CHAOS").is_ok_and(|value| value == "full") { 50 } else { 20 }
}

/// What a pool is to be, by its number: every third one follows 25 tasks, ten a pod.
fn fields(number: usize, size: usize, concurrency: usize) -> Value {
    match number % 3 {
        0 => json!({"concurrency": concurrency, "autoscaling": {
            "minReplicas": 0, "maxReplicas": 5, "tasksPerReplica": 10, "scaleDownAfterSeconds": 1}}),
        1 => json!({"concurrency": concurrency, "replicas": size}),
        _ => {
            json!({"concurrency": concurrency, "replicas": size, "handler": {"type": "Exec", "exec": {"command": ["x"]}}})
        }
    }
}

/// The pools and queues of a test, which are made, changed and deleted without waiting for anything.
struct Fleet<'a> {
    ground: &'a Ground,
    queues: Api<TaskQueue>,
    made: usize,
    alive: Vec<usize>,
    gone: Vec<usize>,
}

impl Fleet<'_> {
    async fn make(&mut self) {
        let number = self.made;
        self.made += 1;
        let queue = json!({"apiVersion": "windlass.dev/v1alpha1", "kind": "TaskQueue",
            "metadata": {"name": format!("q{number}")}, "spec": {"deletionPolicy": "Delete"}});
        let pool = pool(&format!("p{number}"), &format!("q{number}"), fields(number, 1, 1));
        // Either may be there first.
        let both = if number.is_multiple_of(2) { [queue, pool] } else { [pool, queue] };
        let both = both.map(|object| object.to_string()).join("\n---\n");
        self.ground.cluster.apply(&self.ground.namespace, &both).await;
        self.alive.push(number);
    }

    async fn change(&self, number: usize, size: usize, concurrency: usize) {
        // An apply would be refused for replicas, which belong to whoever scaled.
        let change = Patch::Merge(json!({ "spec": fields(number, size, concurrency) }));
        let pools = self.ground.pools();
        pools.patch(&format!("p{number}"), &PatchParams::default(), &change).await.expect("it is changed");
    }

    async fn scale(&self, number: usize, size: usize) {
        let scale = Patch::Merge(json!({"spec": {"replicas": size}}));
        let pools = self.ground.pools();
        pools.patch_scale(&format!("p{number}"), &PatchParams::default(), &scale).await.expect("it is scaled");
    }

    async fn delete(&mut self) {
        for number in self.alive.drain(..2) {
            let params = DeleteParams::default();
            self.ground.pools().delete(&format!("p{number}"), &params).await.expect("deleted");
            self.queues.delete(&format!("q{number}"), &params).await.expect("deleted");
            self.gone.push(number);
        }
    }
}

#[tokio::test]
async fn an_operator_killed_at_random_moments_leaves_one_right_deployment_a_pool_and_no_orphan() {
    let ground = Ground::without_operator().await;
    let queues: Api<TaskQueue> = Api::namespaced(ground.client.clone(), &ground.namespace);
    let mut fleet = Fleet { ground: &ground, queues, made: 0, alive: Vec::new(), gone: Vec::new() };
    for round in 0..kills() {
        ground.start_operator("windlass:one");
        fleet.make().await;
        fleet.make().await;
        for number in fleet.alive.iter().filter(|number| *number % 4 == round % 4) {
            fleet.change(*number, 1 + round % 3, 1 + round % 5).await;
        }
        for number in fleet.alive.iter().filter(|number| *number % 3 != 0 && *number % 4 == (round + 1) % 4) {
            fleet.scale(*number, round % 4).await;
        }
        if fleet.alive.len() > 6 {
            fleet.delete().await;
        }
        tokio::time::sleep(Duration::from_millis(fastrand::u64(0..1500))).await;
        ground.kill_operator().await;
    }

    // What is asked for last, some of it while nobody is there.
    let size = |number: usize| number % 4;
    for number in &fleet.alive {
        fleet.change(*number, size(*number), 7).await;
    }
    ground.start_operator("windlass:one");
    for number in fleet.alive.iter().filter(|number| *number % 3 == 0) {
        ground.ready_queue(&format!("q{number}")).await;
        let tasks: Vec<_> = (0..25).map(task).collect();
        ground.broker(&format!("q{number}")).enqueue(&tasks).await.expect("enqueued");
    }
    let wanted: BTreeMap<String, i32> = fleet
        .alive
        .iter()
        .map(|number| {
            (format!("p{number}"), if number % 3 == 0 { 3 } else { i32::try_from(size(*number)).expect("small") })
        })
        .collect();
    ends_as(&ground, &wanted).await;
    let left: Vec<String> = ground.redis.query(&["KEYS", "windlass:*"]).await;
    for number in &fleet.gone {
        let of = format!("/q{number}}}");
        assert!(!left.iter().any(|key| key.contains(&of)), "q{number} left something behind: {left:?}");
    }
    eprintln!("{} kills, {} pools made, {} deleted", kills(), fleet.made, fleet.gone.len());
}

/// Waits until there are exactly these pools, each with one Deployment of that size, its own and up to date.
async fn ends_as(ground: &Ground, wanted: &BTreeMap<String, i32>) {
    let seen = async || {
        let all = ListParams::default();
        let deployments = ground.deployments().list(&all).await.map_err(|error| error.to_string())?.items;
        let pools = ground.pools().list(&all).await.map_err(|error| error.to_string())?.items;
        let sizes: BTreeMap<String, i32> = deployments.iter().map(|one| (one.name_any(), replicas(one))).collect();
        if sizes != *wanted {
            return Err(format!("{sizes:?} instead of {wanted:?}"));
        }
        for pool in &pools {
            let name = pool.name_any();
            let deployment = deployments.iter().find(|one| one.name_any() == name).ok_or(name.clone())?;
            let owners: Vec<&str> = deployment.owner_references().iter().map(|owner| owner.uid.as_str()).collect();
            let spec = serde_json::to_string(&deployment.spec).expect("plain data");
            let is_new = spec.contains(r#"{"name":"WINDLASS_CONCURRENCY","value":"7"}"#);
            let status = pool.status.clone().unwrap_or_default();
            let accepted = condition(&status, "TemplateAccepted").is_some_and(|(is, ..)| is == "True");
            let told = status.observed_generation == pool.metadata.generation && accepted;
            if owners != [pool.uid().unwrap_or_default()] || !is_new || !told {
                return Err(format!("{name}: owners {owners:?}, new {is_new}, status {status:?}"));
            }
        }
        if pools.len() == wanted.len() { Ok(()) } else { Err(format!("{} pools", pools.len())) }
    };
    ground.cluster.wait_for(&ground.namespace, "everything to be as it was last asked for", seen).await;
    // A rollout waits for pods that become ready, of which there are none here: old ones may stay. None is without a pool.
    ground
        .cluster
        .wait_for(&ground.namespace, "no pod of a pool that is gone", async || {
            let pods = ground.pods().list(&ListParams::default()).await.map_err(|error| error.to_string())?.items;
            let of = |pod: &&Pod| pod.labels().get(POOL).is_none_or(|pool| wanted.get(pool) <= Some(&0));
            let orphans: Vec<_> = pods.iter().filter(of).map(ResourceExt::name_any).collect();
            if orphans.is_empty() { Ok(()) } else { Err(format!("{orphans:?}")) }
        })
        .await;
}
