//! Servers die, fail over, move slots and run out of memory under load.

#![allow(clippy::print_stdout, reason = "what was seen is part of the result")]

mod support;

use std::sync::Arc;
use std::time::Duration;

use support::load::{LedBy, Load, hasty_policy};
use support::servers::{Cluster, Flavor, Sentinel, Server, Wait, key_slot};
use support::{fresh_queue, owner};
use windlass::NewTask;
use windlass::broker::redis::{RedisBroker, RedisOptions, ReplicaAck};
use windlass::broker::{Broker, BrokerError, ErrorClass};
use windlass::protocol::keys::Keys;
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
    let server = Server::builder(Flavor::Redis70).aof_always().start().await;
    let (keys, options) = (Keys::new(&fresh_queue()), RedisOptions::new(server.url()));
    let broker = provisioned(&keys, &options, &hasty_policy()).await;
    let kills = async {
        for _ in 0..4 {
            progress(&broker).await;
            tokio::time::sleep(Duration::from_millis(fastrand::u64(0..1000))).await;
            server.kill9();
            server.restart().await;
        }
        progress(&broker).await;
    };
    let account = load(15_000, &keys, &options).run_beside(kills).await;
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
    let sentinel = Sentinel::start().await;
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
    let failover = async {
        progress(&broker).await;
        sentinel.kill_master().await;
        sentinel.wait_for_new_master().await;
        progress(&broker).await;
        sentinel.revive().await;
    };
    let account = load(10_000, &keys, &options).run_beside(failover).await;
    account.check_accepted(&broker).await;
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
    let cluster = Cluster::start(Flavor::Redis70, 3).await;
    let hosts: Vec<String> = cluster.urls().iter().map(|url| host_of(url)).collect();
    let options = RedisOptions::new(format!("redis+cluster://{}", hosts.join(",")));
    let keys = Keys::new(&fresh_queue());
    let broker = provisioned(&keys, &options, &hasty_policy()).await;
    let slot = key_slot(keys.policy());
    let moves = async {
        for _ in 0..6 {
            progress(&broker).await;
            let from = cluster.node_of(slot).await;
            cluster.migrate_slot(slot, from, (from + 1) % 3, Duration::from_millis(20)).await;
        }
        progress(&broker).await;
    };
    let account = load(10_000, &keys, &options).run_beside(moves).await;
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
        let server = Server::builder(flavor).maxmemory("8mb", "noeviction").start().await;
        let (keys, options) = (Keys::new(&fresh_queue()), RedisOptions::new(server.url()));
        let broker = provisioned(&keys, &options, &hasty_policy()).await;
        let beside = provisioned(&Keys::new(&fresh_queue()), &options, &Policy::default()).await;
        let drained_while_full = async {
            let mut wait = Wait::new("all that was accepted to be done, and memory to be full all the same");
            loop {
                let counts = broker.counts().await.expect("reading is allowed");
                let live = counts.backlog + counts.running + counts.delayed + counts.retrying + counts.dlq_pending;
                if live == 0 && counts.finished > 1000 && is_full(&beside).await {
                    println!("{flavor:?}: {} tasks done while memory was full", counts.finished);
                    break;
                }
                wait.again(format!("{counts:?}")).await;
            }
            server.command(&["CONFIG", "SET", "maxmemory", "0"]).await;
        };
        let load = Load { producers: 4, ..load(25_000, &keys, &options) };
        let account = load.run_beside(drained_while_full).await;
        assert!(account.refusals > 0, "{flavor:?}");
        account.check(&broker).await;
    }
}

/// Whether a queue takes no task for lack of memory.
async fn is_full(broker: &RedisBroker) -> bool {
    match broker.enqueue(&[NewTask::new("send".parse().expect("valid"), serde_json::json!(1))]).await {
        Ok(_) => false,
        Err(error) => {
            assert!(matches!(error, BrokerError::OutOfMemory(_)), "{error}");
            assert!(error.to_string().contains("raise maxmemory"), "{error}");
            true
        }
    }
}

/// Waits until more is done than was before: the load runs, whatever was done to it.
async fn progress(broker: &RedisBroker) {
    let (mut wait, mut before) = (Wait::new("the work to go on"), None);
    loop {
        match (broker.counts().await, before) {
            (Ok(counts), None) => before = Some(counts.finished),
            (Ok(counts), Some(before)) if counts.finished > before => return,
            (Ok(counts), Some(_)) => wait.again(format!("{counts:?}")).await,
            (Err(error), _) => {
                assert_eq!(error.class(), ErrorClass::Transient, "{error}");
                wait.again(error).await;
            }
        }
    }
}
