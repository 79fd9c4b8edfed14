//! What dead workers held comes back in steps that nobody feels.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use windlass::broker::session::Session;
use windlass::broker::{Broker, Extended, Lease};
use windlass::protocol::names::{Capabilities, WorkerId};
use windlass::protocol::policy::Policy;
use windlass::{NewTask, TaskType};

use crate::support::ground::Ground;
use crate::support::servers::{Flavor, Server};

/// How many leases the dead workers hold.
const PENDING: usize = 100_000;

/// Closes: "XAUTOCLAIM over a huge pending list blocks Redis".
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_thousand_leases_of_dead_workers_come_back_while_a_live_one_keeps_its_own() {
    let server = Server::start(Flavor::Redis70).await;
    let dir = tempfile::tempdir().expect("a directory");
    let policy = Policy {
        visibility_timeout: Duration::from_secs(3),
        heartbeat_period: Duration::from_secs(1),
        ..Policy::default()
    };
    let ground = Ground::new(&server, format!("sqlite://{}", dir.path().join("e.db").display()), &policy).await;
    let kind: TaskType = "send".parse().expect("valid");
    for _ in 0..PENDING / 100 {
        let batch: Vec<_> = (0..100).map(|n| NewTask::new(kind.clone(), serde_json::json!(n))).collect();
        ground.broker.enqueue(&batch).await.expect("taken");
    }
    for n in 0..10 {
        let mut dead = Session::new(ground.broker.clone(), worker(&format!("dead-{n}")), Capabilities::any());
        for _ in 0..PENDING / 1000 {
            assert_eq!(dead.claim(100).await.expect("claimed").len(), 100);
        }
    }
    let live = worker("live");
    let mine: Vec<Lease> = live_leases(&ground, &live, &kind).await;
    server.command(&["CONFIG", "SET", "slowlog-log-slower-than", "2000"]).await;
    server.command(&["CONFIG", "SET", "slowlog-max-len", "100000"]).await;
    server.command(&["SLOWLOG", "RESET"]).await;
    let _runner = ground.lead().await;
    let since = Instant::now();
    loop {
        let renewed = ground.broker.extend(&live, &mine).await.expect("renewed");
        assert!(renewed.iter().all(|answer| *answer == Extended::Renewed), "a live worker lost a task");
        let counts = ground.broker.counts().await.expect("counted");
        if counts.running as usize == mine.len() {
            assert_eq!(counts.backlog as usize, PENDING);
            break;
        }
        assert!(since.elapsed() < Duration::from_secs(300), "{counts:?}");
        sleep(Duration::from_millis(200)).await;
    }
    let slow: u64 = server.query(&["SLOWLOG", "LEN"]).await;
    println!("{PENDING} leases taken back in {:?}; {slow} commands held Redis for more than 2 ms", since.elapsed());
}

fn worker(name: &str) -> WorkerId {
    WorkerId::new(name).expect("valid")
}

async fn live_leases(ground: &Ground, live: &WorkerId, kind: &TaskType) -> Vec<Lease> {
    let batch: Vec<_> = (0..50).map(|n| NewTask::new(kind.clone(), serde_json::json!(n))).collect();
    ground.broker.enqueue(&batch).await.expect("taken");
    let mut session = Session::new(ground.broker.clone(), live.clone(), Capabilities::any());
    session.claim(50).await.expect("claimed").into_iter().map(|task| task.lease).collect()
}
