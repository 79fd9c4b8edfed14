//! A Redis that hangs holds up the pools on it, and no others.

use std::time::Instant;

use serde_json::json;
use windlass::broker::Broker;

use super::ground::{Ground, pool, task};
use crate::support::servers::{Flavor, Server};

/// Pools on the Redis that hangs: more than are looked at together.
const MANY: usize = 48;

#[tokio::test]
async fn pools_on_a_redis_that_hangs_do_not_keep_others_from_their_first_pod() {
    let ground = Ground::new().await;
    let other = Server::builder(Flavor::Redis70).aof_always().start().await;
    let scaled = json!({"minReplicas": 0, "maxReplicas": 3, "scaleDownAfterSeconds": 1});
    let broker = json!({"type": "Redis", "redis": {"url": other.url()}});
    let mut all = String::new();
    for number in 0..MANY {
        let queue = json!({"apiVersion": "windlass.dev/v1alpha1", "kind": "TaskQueue",
            "metadata": {"name": format!("q{number}")}, "spec": {"broker": broker}});
        let pool = pool(&format!("p{number}"), &format!("q{number}"), json!({"autoscaling": scaled}));
        all += &format!("{queue}\n---\n{pool}\n---\n");
    }
    ground.cluster.apply(&ground.namespace, &all).await;
    for number in 0..MANY {
        ground.replicas(&format!("p{number}"), 0).await;
    }
    for name in ["a", "b", "c", "d"] {
        ground.queue(name).await;
        ground.pool(name, name, json!({"autoscaling": scaled})).await;
        ground.replicas(name, 0).await;
    }
    let wakes = async |name: &str, when: &str| {
        let began = Instant::now();
        ground.broker(name).enqueue(&[task(1)]).await.expect("enqueued");
        ground.replicas(name, 1).await;
        eprintln!("measured: {when}: a pod was asked for after {:.2} s", began.elapsed().as_secs_f64());
    };
    wakes("a", "all is well").await;
    other.freeze().await;
    wakes("b", "another Redis has just begun to hang").await;
    for number in [0, MANY / 2, MANY - 1] {
        ground.condition(&format!("p{number}"), "ScalingActive", "Unknown", "DemandUnknown").await;
    }
    wakes("c", "another Redis hangs").await;
    other.thaw().await;
    for number in 0..MANY {
        ground.condition(&format!("p{number}"), "ScalingActive", "True", "FollowsDemand").await;
    }
    wakes("d", "the other Redis is back").await;
}
