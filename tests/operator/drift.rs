//! What strangers, flushes and failovers do to a queue in Redis is put right.

use std::time::Duration;

use windlass::broker::Broker;
use windlass::protocol::policy::Mode;

use super::ground::Ground;

/// Twice as long as drift may take to be repaired.
const SOON: Duration = Duration::from_secs(60);

/// Whether the queue is whole: owner, policy and groups.
async fn is_whole(ground: &Ground, queue: &str) -> Result<(), String> {
    let broker = ground.broker(queue);
    let policy = broker.policy().await.map_err(|error| error.to_string())?;
    if policy.mode != Mode::Running {
        return Err(format!("{:?}", policy.mode));
    }
    let groups: Vec<Vec<redis::Value>> =
        ground.redis.try_query(&["XINFO", "GROUPS", &broker.keys().task]).await.map_err(|error| error.to_string())?;
    if groups.len() == 2 { Ok(()) } else { Err(format!("{} groups", groups.len())) }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_that_a_stranger_changed_is_put_right() {
    let ground = Ground::new().await;
    let _operator = ground.operator().await;
    ground.apply("emails", "{}").await;
    ground.ready("emails").await;
    let policy = ground.broker("emails").keys().policy();
    for field in ["mode", "spec", "hot"] {
        ground.redis.command(&["HSET", &policy, field, "nonsense"]).await;
        let right = async || {
            is_whole(&ground, "emails").await?;
            let mode: Option<String> = ground.redis.query(&["HGET", &policy, "mode"]).await;
            let hot: Vec<u8> = ground.redis.query(&["HGET", &policy, "hot"]).await;
            if mode.as_deref() == Some("Running") && hot != b"nonsense" { Ok(()) } else { Err(format!("{mode:?}")) }
        };
        let took = ground.until("the policy to be put right", right).await;
        eprintln!("{field} changed by a stranger, put right after {took:?}");
        assert!(took < SOON, "{took:?}");
    }
    ground.told("emails", "Repaired").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_was_deleted_comes_back() {
    let ground = Ground::new().await;
    let _operator = ground.operator().await;
    ground.apply("emails", "{}").await;
    ground.ready("emails").await;
    let broker = ground.broker("emails");
    ground.redis.command(&["XGROUP", "DESTROY", &broker.keys().task, &broker.keys().group]).await;
    let took = ground.until("the group to be back", async || is_whole(&ground, "emails").await).await;
    eprintln!("group deleted, back after {took:?}");
    assert!(took < SOON, "{took:?}");
    ground.redis.command(&["DEL", &broker.keys().task]).await;
    let took = ground.until("stream and groups to be back", async || is_whole(&ground, "emails").await).await;
    eprintln!("task stream deleted, back after {took:?}");
    assert!(took < SOON, "{took:?}");
}

/// closes: messaging-topology-operator#708, nack#95 (a group that is gone is never made again)
#[tokio::test(flavor = "multi_thread")]
async fn queues_are_back_after_a_flush() {
    let ground = Ground::new().await;
    let _operator = ground.operator().await;
    for number in 0..20 {
        ground.apply(&format!("q{number}"), "{}").await;
    }
    for number in 0..20 {
        ground.ready(&format!("q{number}")).await;
    }
    ground.redis.command(&["FLUSHALL"]).await;
    let all = async || {
        for number in 0..20 {
            is_whole(&ground, &format!("q{number}")).await?;
        }
        Ok(())
    };
    let took = ground.until("all queues to be back", all).await;
    eprintln!("20 queues back {took:?} after FLUSHALL");
    assert!(took < SOON, "{took:?}");
    ground.ready("q7").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_goes_and_comes_back_empty_gets_its_queues_again() {
    let ground =
        Ground::with(crate::support::servers::Server::start(crate::support::servers::Flavor::Redis70).await).await;
    let _operator = ground.operator().await;
    ground.apply("emails", "{}").await;
    ground.ready("emails").await;
    ground.shows("emails", "Degraded", "True", "NotPersistent").await;
    ground.redis.kill9();
    let away = ground.shows("emails", "Ready", "False", "BrokerUnreachable").await;
    let status = away.status.expect("a status");
    assert_eq!((status.backlog, status.workers), (None, None), "what is not known is not said");
    ground.shows("emails", "Provisioned", "Unknown", "BrokerNotConnected").await;
    ground.told("emails", "BrokerUnreachable").await;
    ground.redis.restart().await;
    ground.ready("emails").await;
    ground.until("the queue to be back", async || is_whole(&ground, "emails").await).await;
}
