//! Random sequences of operations through the model in memory and through
//! Redis, by one clock: both give the same answers, and after every step both
//! hold the same tasks.
//!
//! A sequence is determined by its seed. `tests/property_regressions.txt`
//! lists seeds that once failed; they run first. `WINDLASS_PROPERTY_SEED` sets
//! the first seed of every test here and `WINDLASS_PROPERTY_CASES` how many
//! seeds follow each other, so a failure is repeated with its seed and 1.

mod support;

mod property {
    pub(crate) mod apply;
    pub(crate) mod compare;
    pub(crate) mod draw;
    pub(crate) mod known;
    pub(crate) mod run;
    pub(crate) mod step;
    pub(crate) mod tally;
    pub(crate) mod twins;
}

use property::run::{Shape, hold};
use property::twins::Target;
use support::servers::{Flavor, Server};
use windlass::broker::redis::ReclaimWith;

/// What a user's day looks like: a few tasks, a few workers, everything compared after every step.
const SHORT: Shape = Shape { steps: 5..=25, bulk: 1, looks: usize::MAX };

/// Many tasks at once, so that what a call does in bounded portions takes several.
const LONG: Shape = Shape { steps: 300..=300, bulk: 25, looks: 20 };

#[tokio::test]
async fn ten_thousand_sequences_go_on_redis_7_0_as_in_the_model() {
    let server = Server::start(Flavor::Redis70).await;
    let tally = hold(&Target::new(&server, ReclaimWith::Detect), &SHORT, 1, 10_000).await;
    tally.check(&[
        "enqueue made a task",
        "enqueue knew the task",
        "enqueue refused",
        "abandon Abandoned",
        "abandon NotOurs",
        "begin Begin",
        "begin Done",
        "begin InDoubt",
        "begin LeaseLost",
        "cancel AlreadyCancelled",
        "cancel Done",
        "cancel InvalidTransition",
        "cancel Unknown",
        "claim handed back",
        "commit AlreadyCommitted",
        "commit Committed",
        "commit Superseded",
        "commit Unknown",
        "commit refused",
        "discard AlreadyDiscarded",
        "discard AlreadyReplayed",
        "discard AwaitingSecond",
        "discard Done",
        "discard SamePerson",
        "discard Unknown",
        "extend Cancelled",
        "extend Lost",
        "extend Renewed",
        "progress Cancelled",
        "progress Lost",
        "progress Renewed",
        "progress refused",
        "provision refused",
        "reclaim dead",
        "reclaim requeued",
        "reclaim_from dead",
        "reclaim_from requeued",
        "record AlreadyRecorded",
        "record Done",
        "record InvalidTransition",
        "record Unknown",
        "register superseded",
        "replay AlreadyReplayed",
        "replay Discarded",
        "replay Done",
        "replay IdTaken",
        "replay KeyTaken",
        "replay Unknown",
        "replay refused",
        "retain dead letters",
        "retain rests for a time",
        "retain results",
        "retain went on",
        "settle AlreadySettled",
        "settle Cancelled",
        "settle Dead",
        "settle InvalidTransition",
        "settle LeaseLost",
        "settle ResultTooLarge",
        "settle Retrying",
        "settle Succeeded",
        "settle Unknown",
        "sweep lost a worker",
        "trim entries",
    ]);
}

#[tokio::test]
async fn sequences_in_bulk_go_on_redis_7_0_as_in_the_model() {
    let server = Server::start(Flavor::Redis70).await;
    let tally = hold(&Target::new(&server, ReclaimWith::Detect), &LONG, 2_000_000, 30).await;
    tally.check(&[
        "raw over 32",
        "reclaim went on",
        "reclaim_from over 100",
        "retain over 25",
        "sweep of several pages",
    ]);
}

#[tokio::test]
async fn sequences_go_by_pending_and_claim_as_in_the_model() {
    let server = Server::start(Flavor::Redis70).await;
    let target = Target::new(&server, ReclaimWith::PendingAndClaim);
    hold(&target, &SHORT, 3_000_000, 300).await;
    hold(&target, &LONG, 3_500_000, 2).await;
}

#[tokio::test]
async fn sequences_go_on_redis_6_2_as_in_the_model() {
    let server = Server::start(Flavor::Redis62).await;
    hold(&Target::new(&server, ReclaimWith::Detect), &SHORT, 4_000_000, 300).await;
}

#[tokio::test]
async fn sequences_go_on_valkey_9_1_as_in_the_model() {
    let server = Server::start(Flavor::Valkey91).await;
    hold(&Target::new(&server, ReclaimWith::Detect), &SHORT, 5_000_000, 300).await;
}
