//! Nothing is lost and nothing is done twice, whatever dies in between.

#![allow(clippy::print_stdout, reason = "what was seen is part of the result")]

mod support;

use std::sync::Arc;

use support::load::{LedBy, Load, hasty_policy};
use support::servers::{Flavor, Server};
use support::{fresh_queue, owner};
use windlass::broker::Broker;
use windlass::broker::redis::{RedisBroker, RedisOptions};
use windlass::protocol::keys::Keys;

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
