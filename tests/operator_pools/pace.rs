//! How often the status of a pool is written whose work changes all the time.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use kube::ResourceExt;
use serde_json::json;
use windlass::broker::{Broker, ClaimRequest, Outcome, Settlement};
use windlass::protocol::backoff::Dice;
use windlass::protocol::names::Capabilities;

use super::ground::{Ground, task};

/// For how long the work changes.
const BUSY: Duration = Duration::from_secs(35);

#[tokio::test]
async fn a_pool_whose_work_changes_all_the_time_is_written_once_in_ten_seconds() {
    let ground = Ground::new().await;
    ground.queue("q").await;
    // Five pods stay, and how many would do is another number with every look.
    let scaled = json!({"minReplicas": 0, "maxReplicas": 5, "tasksPerReplica": 10, "scaleDownAfterSeconds": 600});
    ground.pool("p", "q", json!({"autoscaling": scaled})).await;
    let (broker, any) = (ground.broker("q"), Capabilities::any());
    let work = async |number: usize| {
        broker.enqueue(&(0..number).map(task).collect::<Vec<_>>()).await.expect("enqueued");
    };
    work(50).await;
    ground.replicas("p", 5).await;
    let pod = ground.pods_of("p", 5).await.remove(0);
    let worker = ground.worker("q", &pod, "p", 0).await;
    let claim = |limit| ClaimRequest { worker: &worker.id, capabilities: &any, limit, recover: None };
    let version = async || ground.pools().get("p").await.expect("there").resource_version();
    // All of the first work is done before what counts begins.
    let mut held = broker.claim(claim(50)).await.expect("claimed").tasks;
    let (mut seen, mut began) = (BTreeSet::from([version().await]), Instant::now());
    for round in 0.. {
        let done =
            held.into_iter().map(|task| Settlement { lease: task.lease, outcome: Outcome::success(), dice: Dice(0) });
        broker.settle(&done.collect::<Vec<_>>(), claim(0)).await.expect("settled");
        let number = 5 + 7 * (round % 6);
        work(number).await;
        held = broker.claim(claim(number)).await.expect("claimed").tasks;
        tokio::time::sleep(Duration::from_millis(50)).await;
        seen.insert(version().await);
        // What comes of the first fall of the work is not counted.
        if round == 40 {
            (seen, began) = (BTreeSet::from([version().await]), Instant::now());
        }
        if round > 40 && began.elapsed() > BUSY {
            break;
        }
    }
    let writes = seen.len() - 1;
    eprintln!("measured: the status was written {writes} times in {:?}", began.elapsed());
    assert!((1..=began.elapsed().as_secs() as usize / 10 + 1).contains(&writes), "{writes} writes");
}
