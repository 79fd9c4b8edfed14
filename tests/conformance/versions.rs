//! Old clients and new data, new clients and old data: one version apart they work, further apart they say so.

use windlass::broker::{BrokerError, ErrorClass};
use windlass::protocol::DATA_MODEL_VERSION;
use windlass::protocol::policy::Policy;

use super::fixture::{Fixture, owner, success, task};

async fn write_version(fx: &Fixture, version: u32) {
    for key in [fx.keys().policy(), fx.keys().meta()] {
        let _: u64 = fx.redis(&["HSET", &key, "version", &version.to_string()]).await;
    }
}

async fn data_of_a_neighbouring_version_is_worked_with(fx: &Fixture) {
    for version in [DATA_MODEL_VERSION - 1, DATA_MODEL_VERSION, DATA_MODEL_VERSION + 1] {
        write_version(fx, version).await;
        let running = fx.running("a").await;
        fx.fail_and_wait(&running).await;
        let again = fx.claim_one().await;
        assert_eq!(fx.settle(&again, success()).await, windlass::broker::Settled::Succeeded);
        fx.counts().await;
        fx.sweep().await;
        fx.reclaim().await;
        fx.promote(10).await;
        fx.set(|policy| policy.retry.max_retries = 2).await;
        for key in [fx.keys().policy(), fx.keys().meta()] {
            let kept: u32 = fx.redis(&["HGET", &key, "version"]).await;
            assert_eq!(kept, version, "provisioning does not change the data's version");
        }
    }
}

/// closes: bullmq#1207, bullmq#2638 (old clients meet a new data model)
async fn data_of_a_distant_version_is_refused_and_left_alone(fx: &Fixture) {
    fx.add("a").await;
    let distant = DATA_MODEL_VERSION + 2;
    write_version(fx, distant).await;
    let before: Vec<u8> = fx.redis(&["DUMP", &fx.keys().live()]).await;
    let worker = super::fixture::worker_id("w1");
    let capabilities = Default::default();
    let request =
        windlass::broker::ClaimRequest { worker: &worker, capabilities: &capabilities, limit: 1, recover: None };
    let refusals = [
        fx.broker.enqueue(&[task("a")]).await.err(),
        fx.broker.claim(request).await.err(),
        fx.broker.promote(10).await.err(),
        fx.broker.sweep(Default::default()).await.err(),
        fx.broker.counts().await.err(),
        fx.broker.provision(&owner(), &Policy::default()).await.err(),
    ];
    for refused in refusals {
        let refused = refused.expect("refused");
        assert!(
            matches!(&refused, BrokerError::Version { found, known } if *found == distant.to_string() && *known == DATA_MODEL_VERSION),
            "{refused:?}"
        );
        assert_eq!(refused.class(), ErrorClass::Invalid);
        assert!(refused.to_string().contains("upgrade the older side"), "{refused}");
    }
    let after: Vec<u8> = fx.redis(&["DUMP", &fx.keys().live()]).await;
    assert_eq!(after, before);
    write_version(fx, DATA_MODEL_VERSION).await;
    fx.claim_one().await;
}

async fn a_queue_that_was_never_made_is_said_to_be_missing(fx: &Fixture) {
    let _: u64 = fx.redis(&["DEL", &fx.keys().policy()]).await;
    let refused = fx.broker.enqueue(&[task("a")]).await.expect_err("no queue");
    assert!(matches!(&refused, BrokerError::NoQueue(queue) if *queue == fx.queue.to_string()), "{refused}");
    let refused = fx.broker.policy().await.expect_err("no queue");
    assert!(matches!(refused, BrokerError::NoQueue(_)));
}

redis_suite! {
    data_of_a_neighbouring_version_is_worked_with,
    data_of_a_distant_version_is_refused_and_left_alone,
    a_queue_that_was_never_made_is_said_to_be_missing,
}
