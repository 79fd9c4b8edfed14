//! Servers die, fail over, move slots and run out of memory under load.

#![allow(clippy::print_stdout, reason = "what was seen is part of the result")]

mod support;

use std::sync::Arc;
use std::time::Duration;

use support::load::{LedBy, Load, hasty_policy};
use support::servers::{Cluster, Flavor, Sentinel, Server, key_slot};
use support::{fresh_queue, owner};
use windlass::NewTask;
use windlass::broker::redis::{RedisBroker, RedisOptions, ReplicaAck};
use windlass::broker::session::Session;
use windlass::broker::{Broker, BrokerError, Cancelled, ErrorClass, Extended, Outcome, Settled, Settlement};
use windlass::protocol::backoff::Dice;
use windlass::protocol::keys::Keys;
use windlass::protocol::names::{Capabilities, WorkerId};
use windlass::protocol::policy::Policy;

/// A load on the queue with these keys at that Redis.
fn load(tasks: usize, keys: &Keys, options: &RedisOptions) -> Load {
    let (keys, options) = (keys.clone(), options.clone());
    let connect = move || Arc::new(RedisBroker::new(keys.clone(), options.clone()).expect("usable options"));
    Load { tasks, workers: 8, producers: 2, cut_percent: 2, led_by: LedBy::TheLoad, connect: Box::new(connect) }
}

async fn provisioned(keys: &Keys, options: &RedisOptions, policy: &Policy) -> RedisBroker {
    let broker = RedisBroker::new(keys.clone(), options.clone()).expect("usable options");
    broker.provision(&owner(), policy).await.expect("the queue is made");
    broker
}

/// Closes: "NOSCRIPT", "blocked read dead after failover" (bullmq#648, celery#8030).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_when_redis_with_an_aof_is_killed() {
    let server = Arc::new(Server::builder(Flavor::Redis70).aof_always().start().await);
    let (keys, options) = (Keys::new(&fresh_queue()), RedisOptions::new(server.url()));
    let broker = provisioned(&keys, &options, &hasty_policy()).await;
    let killer = tokio::spawn({
        let server = server.clone();
        async move {
            for _ in 0..4 {
                tokio::time::sleep(Duration::from_millis(fastrand::u64(500..1500))).await;
                server.kill9();
                server.restart().await;
            }
        }
    });
    let account = load(15_000, &keys, &options).run().await;
    killer.await.expect("Redis starts again each time");
    account.check(&broker).await;
    println!(
        "4 kills: {} tasks, {} answers lost, {} workers died",
        account.accepted.len(),
        account.cuts,
        account.deaths
    );
}

/// Every task whose enqueue waited for a replica survives a failover. What was
/// done on the old master after it last spoke to the replica may be done again:
/// settles do not wait. Closes: redis#6062.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_replica_confirmed_survives_a_sentinel_failover() {
    let sentinel = Arc::new(Sentinel::start().await);
    let hosts: Vec<String> = sentinel.sentinel_urls().iter().map(|url| host_of(url)).collect();
    let options = RedisOptions {
        response_timeout: Duration::from_secs(3),
        replicas: Some(ReplicaAck { count: 1, timeout: Duration::from_secs(1) }),
        ..RedisOptions::new(format!("redis+sentinel://{}/{}", hosts.join(","), sentinel.master_name()))
    };
    let keys = Keys::new(&fresh_queue());
    // A lease that the new master knows and its worker does not has to run out.
    let policy = Policy {
        visibility_timeout: Duration::from_secs(3),
        heartbeat_period: Duration::from_secs(1),
        ..hasty_policy()
    };
    let broker = provisioned(&keys, &options, &policy).await;
    let killer = tokio::spawn({
        let sentinel = sentinel.clone();
        async move {
            tokio::time::sleep(Duration::from_millis(700)).await;
            sentinel.kill_master().await;
            sentinel.wait_for_new_master().await;
            sentinel.revive().await;
        }
    });
    let account = load(10_000, &keys, &options).run().await;
    killer.await.expect("another master is chosen");
    account.check_nothing_lost(&broker).await;
    let finals = account.events.iter().filter(|event| event.to.is_final()).count();
    let again = finals.saturating_sub(account.accepted.len());
    println!("failover: {} confirmed tasks, none lost; {again} were done again", account.accepted.len());
}

/// Host and port of a URL.
fn host_of(url: &str) -> String {
    url.trim_start_matches("redis://").trim_end_matches('/').to_owned()
}

/// Closes: "a queue split in two while its slot moves", CROSSSLOT (bullmq#2589, sidekiq#6112).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_moves_back_and_forth_under_load_loses_nothing_and_splits_nothing() {
    let cluster = Arc::new(Cluster::start(Flavor::Redis70, 3).await);
    let hosts: Vec<String> = cluster.urls().iter().map(|url| host_of(url)).collect();
    let options = RedisOptions::new(format!("redis+cluster://{}", hosts.join(",")));
    let keys = Keys::new(&fresh_queue());
    let broker = provisioned(&keys, &options, &hasty_policy()).await;
    let slot = key_slot(keys.policy());
    let mover = tokio::spawn({
        let cluster = cluster.clone();
        async move {
            for _ in 0..6 {
                tokio::time::sleep(Duration::from_millis(400)).await;
                let from = cluster.node_of(slot).await;
                cluster.migrate_slot(slot, from, (from + 1) % 3, Duration::from_millis(20)).await;
            }
        }
    });
    let account = load(10_000, &keys, &options).run().await;
    mover.await.expect("the slot moves");
    account.check(&broker).await;
    let mut homes = 0;
    for node in cluster.nodes() {
        let found: Vec<String> = node.query(&["KEYS", "windlass:*"]).await;
        homes += usize::from(!found.is_empty());
    }
    assert_eq!(homes, 1, "the queue lives on one node");
    println!("6 moves: {} tasks, {} answers lost", account.accepted.len(), account.cuts);
}

/// Closes: "out of memory refuses the ack, so a full Redis never drains".
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_redis_refuses_new_tasks_and_drains_what_it_has() {
    for flavor in Flavor::ALL {
        let server = Server::builder(flavor).maxmemory("40mb", "noeviction").start().await;
        let (keys, options) = (Keys::new(&fresh_queue()), RedisOptions::new(server.url()));
        let broker = Arc::new(provisioned(&keys, &options, &hasty_policy()).await);
        let accepted = fill(&broker).await;
        assert!(accepted > 1000, "{accepted} tasks fit");
        let finished = drain(&broker).await;
        assert_eq!(finished, accepted, "{flavor:?}: everything that was accepted is done");
        println!("{flavor:?}: {accepted} tasks accepted, then refused; all drained while memory was full");
        let _ = server.command(&["CONFIG", "SET", "maxmemory", "0"]).await;
        broker
            .enqueue(&[NewTask::new("send".parse().expect("valid"), serde_json::json!(1))])
            .await
            .expect("room again");
    }
}

/// Enqueues until memory is full; returns how many were accepted.
async fn fill(broker: &RedisBroker) -> u64 {
    let mut accepted = 0;
    loop {
        let body = "x".repeat(500);
        let tasks: Vec<_> =
            (0..50).map(|_| NewTask::new("send".parse().expect("valid"), serde_json::json!(body))).collect();
        match broker.enqueue(&tasks).await {
            Ok(taken) => accepted += taken.len() as u64,
            Err(error) => {
                assert!(matches!(error, BrokerError::OutOfMemory(_)), "{error}");
                assert_eq!(error.class(), ErrorClass::Transient);
                assert!(error.to_string().contains("raise maxmemory"), "{error}");
                let counts = broker.counts().await.expect("reading is allowed");
                assert_eq!(counts.backlog, accepted, "a refused batch leaves nothing behind");
                return accepted;
            }
        }
    }
}

/// Works through everything, with every operation that a worker or a leader needs.
async fn drain(broker: &Arc<RedisBroker>) -> u64 {
    let worker = WorkerId::new("w").expect("valid");
    let mut session = Session::new(broker.clone(), worker.clone(), Capabilities::any());
    let mut tasks = session.claim(100).await.expect("claims go on");
    let leases = [tasks[0].lease.clone()];
    assert_eq!(broker.extend(&worker, &leases).await.expect("renewals go on"), [Extended::Renewed]);
    let cancelled = broker.cancel(&tasks[0].lease.task, "not needed").await.expect("cancelling goes on");
    assert!(matches!(cancelled, Cancelled::Done { .. }));
    let mut first = true;
    while !tasks.is_empty() {
        let end = |(n, task): (usize, &windlass::broker::ClaimedTask)| {
            let outcome = match (first, n) {
                (true, 1) => Outcome::Failure { error: "once".into(), code: "test".into() },
                (true, 2) => Outcome::Permanent { error: "never".into(), code: "test".into() },
                _ => Outcome::Success { result: None },
            };
            Settlement { lease: task.lease.clone(), outcome, dice: Dice(0) }
        };
        let settlements: Vec<_> = tasks.iter().enumerate().map(end).collect();
        let reply = session.settle(&settlements, 100).await.expect("settles go on");
        let expected = |n: usize, answer: &Settled| match (first, n) {
            (true, 0) => matches!(answer, Settled::Cancelled),
            (true, 1) => matches!(answer, Settled::Retrying { .. }),
            (true, 2) => matches!(answer, Settled::Dead),
            _ => matches!(answer, Settled::Succeeded),
        };
        assert!(reply.settled.iter().enumerate().all(|(n, answer)| expected(n, answer)), "{:?}", reply.settled);
        tasks = reply.next.expect("claims go on");
        first = false;
        if tasks.is_empty() {
            tokio::time::sleep(Duration::from_millis(50)).await;
            broker.promote(100).await.expect("promotion goes on");
            tasks = session.claim(100).await.expect("claims go on");
        }
        for letter in broker.pending_dead_letters(10).await.expect("reading is allowed") {
            broker.record_dead_letter(&letter.id).await.expect("dead letters are recorded");
        }
    }
    broker.counts().await.expect("reading is allowed").finished
}
