//! Nothing is lost and nothing is done twice, whatever dies in between.

#![allow(clippy::print_stdout, reason = "what was seen is part of the result")]

mod support;

use std::sync::Arc;

use support::load::{LedBy, Load, hasty_policy};
use support::servers::{Flavor, Server};
use support::{fresh_queue, owner};
use windlass::NewTask;
use windlass::broker::clock::Clock;
use windlass::broker::redis::{RedisBroker, RedisOptions};
use windlass::broker::{Broker, ClaimRequest, MAX_BATCH, SweepCursor, WorkerInfo};
use windlass::protocol::keys::Keys;
use windlass::protocol::names::Capabilities;
use windlass::protocol::policy::Policy;
use windlass::protocol::state::RetryReason;

/// 16 clients on one queue, answers lost and workers dying all the time.
/// Closes: "the reply to a claim is lost, the task waits for the timeout".
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_thousand_tasks_survive_clients_that_are_cut_off_and_die() {
    let server = Server::start(Flavor::Redis70).await;
    let url = server.url();
    let keys = Keys::new(&fresh_queue());
    let connect = move || Arc::new(RedisBroker::new(keys.clone(), RedisOptions::new(&url)).expect("a usable URL"));
    let broker = connect();
    broker.provision(&owner(), &hasty_policy()).await.expect("the queue is made");
    // `make stress` runs ten times as many.
    let tasks = if std::env::var("WINDLASS_STRESS").is_ok_and(|how| how == "full") { 1_000_000 } else { 100_000 };
    let load =
        Load { tasks, workers: 16, producers: 4, cut_percent: 5, led_by: LedBy::TheLoad, connect: Box::new(connect) };
    let account = load.run().await;
    account.check(&broker).await;
    println!("{} answers lost, {} workers died", account.cuts, account.deaths);
    assert!(account.cuts > 100 && account.deaths > 5, "the load did its worst");
}

/// As many lanes as a queue may have by default, each with what one worker holds.
const LANES: usize = 1000;

/// The most commands of one script: a page of lanes, twenty tasks that are moved, and what else a sweep looks at.
const MOST_COMMANDS: u64 = 1500;

/// A queue whose tasks are each in a lane of their own, and who works on it.
struct Wide {
    server: Server,
    broker: RedisBroker,
    clock: Clock,
    policy: Policy,
}

impl Wide {
    async fn new() -> Self {
        let (server, clock) = (Server::start(Flavor::Redis70).await, Clock::manual(1_700_000_000_000));
        let options = RedisOptions::new(server.url());
        let broker = RedisBroker::with_clock(Keys::new(&fresh_queue()), options, clock.clone()).expect("a usable URL");
        let policy = hasty_policy();
        broker.provision(&owner(), &policy).await.expect("the queue is made");
        let tasks: Vec<_> = (0..LANES)
            .map(|n| NewTask::new(format!("type-{n}").parse().expect("valid"), serde_json::json!(n)))
            .collect();
        for batch in tasks.chunks(MAX_BATCH) {
            broker.enqueue(batch).await.expect("taken");
        }
        Self { server, broker, clock, policy }
    }

    /// A worker comes, whom it supersedes goes; it claims so many tasks.
    async fn worker(&self, name: &str, pod_uid: &str, tasks: usize) -> usize {
        let info = WorkerInfo {
            id: name.parse().expect("valid"),
            host: "host".to_owned(),
            pid: 7,
            pod: Some("pod".to_owned()),
            pod_uid: Some(pod_uid.to_owned()),
            container: None,
            version: "1".to_owned(),
            types: vec![],
            pool: None,
            started: None,
        };
        let registered = self.broker.register(&info).await.expect("registered");
        for _ in 0..tasks / MAX_BATCH {
            let request =
                ClaimRequest { worker: &info.id, capabilities: &Capabilities::any(), limit: MAX_BATCH, recover: None };
            assert_eq!(self.broker.claim(request).await.expect("answered").tasks.len(), MAX_BATCH);
        }
        registered.requeued.len()
    }

    /// How many commands and scripts the server has run.
    async fn commands(&self) -> (u64, u64) {
        let stats = self.server.info("commandstats").await;
        let calls = |stat: &String| -> u64 {
            let calls = stat.split(',').find_map(|part| part.strip_prefix("calls="));
            calls.expect("it says how often").parse().expect("a number")
        };
        (stats.values().map(calls).sum(), stats.get("cmdstat_evalsha").map_or(0, calls))
    }

    /// How many commands a script had, on average, since then.
    async fn commands_a_script(&self, (commands, scripts): (u64, u64)) -> u64 {
        let now = self.commands().await;
        let each = (now.0 - commands) / (now.1 - scripts).max(1);
        println!("{} scripts of {each} commands", now.1 - scripts);
        each
    }
}

/// Closes: a worker's end that holds Redis for as long as it takes to look at thousands of lanes.
#[tokio::test]
async fn the_end_of_a_worker_takes_short_steps_however_many_lanes_there_are() {
    let wide = Wide::new().await;
    wide.worker("first", "pod", LANES).await;
    let before = wide.commands().await;
    let gone = wide.broker.reclaim_from(&"first".parse().expect("valid"), RetryReason::PodGone).await;
    assert_eq!(gone.expect("taken back").requeued.len(), LANES);
    assert!(wide.commands_a_script(before).await <= MOST_COMMANDS, "a pod that is gone");

    wide.worker("second", "pod", LANES).await;
    let before = wide.commands().await;
    assert_eq!(wide.worker("third", "pod", 0).await, LANES, "all come back");
    assert!(wide.commands_a_script(before).await <= MOST_COMMANDS, "a worker that is superseded");

    for number in 0..5 {
        wide.worker(&format!("silent-{number}"), &format!("pod-{number}"), LANES / 5).await;
    }
    wide.clock.advance(wide.policy.reclaim.worker_lost_after * 2);
    let (mut lost, mut cursor, mut steps) = (0, SweepCursor::default(), 0);
    while lost < 6 {
        let before = wide.commands().await;
        let swept = wide.broker.sweep(cursor).await.expect("the sweep runs");
        assert_eq!(swept.repaired, []);
        assert!(wide.commands_a_script(before).await <= MOST_COMMANDS, "workers that fell silent");
        (lost, cursor, steps) = (lost + swept.workers_lost.len(), swept.next.unwrap_or_default(), steps + 1);
        assert!(steps < 1000, "it comes to an end");
    }
    let counts = wide.broker.counts().await.expect("answered");
    assert_eq!((counts.backlog as usize, counts.running, counts.workers), (LANES, 0, 0));
}
