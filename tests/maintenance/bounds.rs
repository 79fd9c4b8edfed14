//! The bounds of what is kept hold while work goes on, whatever becomes of the database.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use windlass::NewTask;
use windlass::broker::session::Session;
use windlass::broker::{Broker, Outcome, Settlement};
use windlass::maintenance::LoopName;
use windlass::maintenance::metrics::LoopMetrics;
use windlass::protocol::backoff::Dice;
use windlass::protocol::names::{Capabilities, WorkerId};
use windlass::protocol::policy::Policy;

use crate::support::ground::Ground;
use crate::support::servers::{Flavor, Server};

const BOUND: u64 = 200;

/// Runs so many tasks.
async fn run(session: &mut Session, ground: &Ground, count: usize) {
    let task = |n| NewTask::new("send".parse().expect("valid"), serde_json::json!({ "n": n }));
    ground.broker.enqueue(&(0..count).map(task).collect::<Vec<_>>()).await.expect("taken");
    let mut left = count;
    while left > 0 {
        let claimed = session.claim(left).await.expect("claimed");
        left -= claimed.len();
        let end = |lease| Settlement { lease, outcome: Outcome::success(), dice: Dice(0) };
        let settlements: Vec<_> = claimed.into_iter().map(|task| end(task.lease)).collect();
        session.settle(&settlements, 0).await.expect("settled");
    }
}

/// Closes: "a week at a thousand tasks a second is hundreds of gigabytes".
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn results_come_down_to_their_bound_again_and_again_while_work_goes_on_and_the_database_is_away() {
    let server = Server::start(Flavor::Redis70).await;
    let mut policy = Policy::default();
    policy.retention.result_max_entries = BOUND;
    let ground = Ground::new(&server, "postgres://nobody@127.0.0.1:1/nothing".to_owned(), &policy).await;
    let metrics = LoopMetrics::default();
    let _runner = ground.lead_and_count(metrics.clone()).await;
    // It begins to rest while there is nothing to do.
    let since = Instant::now();
    while metrics.steps(LoopName::Retainer).0 == 0 {
        assert!(since.elapsed() < Duration::from_secs(60), "nobody looked");
        sleep(Duration::from_millis(20)).await;
    }
    let mut session = Session::new(ground.broker.clone(), WorkerId::new("w").expect("valid"), Capabilities::any());
    for _ in 0..3 {
        let mut most = 0;
        loop {
            run(&mut session, &ground, 50).await;
            let length: u64 = server.query(&["XLEN", &ground.keys.result]).await;
            most = most.max(length);
            // What came since the walk ended is above it.
            if most > BOUND + 500 && length < BOUND + 200 {
                break;
            }
            assert!(since.elapsed() < Duration::from_secs(400), "{length} results are kept, and {most} were");
            sleep(Duration::from_millis(50)).await;
        }
    }
    assert_eq!(metrics.steps(LoopName::Retainer).1, 0, "the database is not asked here");
    assert!(metrics.steps(LoopName::Recorder).1 > 0, "it is away, and somebody says so");
}
