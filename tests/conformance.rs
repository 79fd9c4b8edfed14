//! One suite for every broker: each test is a claim about the queue, and holds
//! on the model in memory, on Redis 7.0 (with both ways to find expired
//! leases), on Redis 6.2, on Valkey 9.1 and on a Redis Cluster of three nodes.
//!
//! A claim is an `async fn(&Fixture)`. The `suite!` at the end of each module
//! makes it a test on every broker, `redis_suite!` on every broker but the
//! model: those look at the keys themselves, or break them on purpose.

#![allow(clippy::cloned_ref_to_slice_refs, reason = "a list of one is compared, and read more easily as one")]

mod support;

mod conformance {
    #[macro_use]
    mod fixture;

    mod acceptance;
    mod adopted;
    mod bounds;
    mod cancel;
    mod carried;
    mod damage;
    mod dead_letters;
    mod effects;
    mod fencing;
    mod idempotency;
    mod lifecycle;
    mod order;
    mod policy;
    mod raw;
    mod recovery;
    mod retention;
    mod sweep;
    mod time;
    mod versions;
    mod views;
    mod waking;
    mod workers;
}
