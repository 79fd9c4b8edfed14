//! What strangers, flushes and failovers do to a queue in Redis is put right.

use std::time::Duration;

use windlass::broker::Broker;
use windlass::protocol::policy::Mode;

use super::ground::Ground;

/// How long drift may take to be repaired.
const IN_TIME: Duration = Duration::from_secs(30);

/// Damages something and waits until it is whole again. A machine that is busy with something else may be late once; a
/// promise that does not hold is broken each time.
async fn in_time(what: &str, mut damage_and_repair: impl AsyncFnMut() -> Duration) {
    let mut late = Vec::new();
    while late.len() < 3 {
        let took = damage_and_repair().await;
        eprintln!("{what}: put right after {took:?}");
        if took <= IN_TIME {
            return;
        }
        late.push(took);
    }
    panic!("{what}: put right only after {late:?}");
}

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
        let change = async || {
            ground.redis.command(&["HSET", &policy, field, "nonsense"]).await;
            let right = async || {
                is_whole(&ground, "emails").await?;
                let mode: Option<String> = ground.redis.query(&["HGET", &policy, "mode"]).await;
                let hot: Vec<u8> = ground.redis.query(&["HGET", &policy, "hot"]).await;
                if mode.as_deref() == Some("Running") && hot != b"nonsense" { Ok(()) } else { Err(format!("{mode:?}")) }
            };
            ground.until("the policy to be put right", right).await
        };
        in_time(&format!("{field} changed by a stranger"), change).await;
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
    let destroy = ["XGROUP", "DESTROY", &broker.keys().task, &broker.keys().group];
    for (what, damage) in [("group deleted", &destroy[..]), ("task stream deleted", &["DEL", &broker.keys().task][..])]
    {
        in_time(what, async || {
            ground.redis.command(damage).await;
            ground.until("stream and groups to be back", async || is_whole(&ground, "emails").await).await
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_of_the_owner_that_was_deleted_comes_back() {
    let ground = Ground::new().await;
    let _operator = ground.operator().await;
    ground.apply("emails", "{}").await;
    ground.ready("emails").await;
    let broker = ground.broker("emails");
    let owner = broker.owner().await.expect("answered");
    in_time("record of the owner deleted", async || {
        ground.redis.command(&["DEL", &broker.keys().meta()]).await;
        let back = async || match broker.owner().await {
            Ok(found) if found == owner => Ok(()),
            other => Err(format!("{other:?}")),
        };
        ground.until("the owner to be recorded again", back).await
    })
    .await;
}

/// With many queues each has its turn as soon as with one.
#[tokio::test(flavor = "multi_thread")]
async fn policies_of_many_queues_that_a_stranger_changed_are_put_right() {
    let ground = Ground::new().await;
    let _operator = ground.operator().await;
    let names: Vec<String> = (0..100).map(|number| format!("q{number}")).collect();
    let manifests: Vec<String> = names.iter().map(|name| super::ground::queue(name, "{}")).collect();
    ground.cluster.apply(&ground.namespace, &manifests.join("---\n")).await;
    for name in &names {
        ground.ready(name).await;
    }
    let change = async || {
        for name in &names {
            ground.redis.command(&["HSET", &ground.broker(name).keys().policy(), "max_retries", "77"]).await;
        }
        let right = async || {
            for name in &names {
                let key = ground.broker(name).keys().policy();
                let retries: Option<String> = ground.redis.query(&["HGET", &key, "max_retries"]).await;
                if retries.as_deref() == Some("77") {
                    return Err(format!("{name} is as the stranger left it"));
                }
            }
            Ok(())
        };
        ground.until("all policies to be put right", right).await
    };
    in_time("100 policies changed by a stranger", change).await;
}

/// The event log takes its time to say that it is not there; that is nothing to Redis.
#[tokio::test(flavor = "multi_thread")]
async fn groups_come_back_while_the_event_log_hangs() {
    let ground = Ground::new().await;
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("postgres://windlass@{}/windlass", silent.local_addr().expect("an address"));
    let _operator = ground.operator_with(&[("WINDLASS_EVENT_LOG_URL", &url)]).await;
    let names: Vec<String> = (0..8).map(|number| format!("q{number}")).collect();
    for name in &names {
        ground.apply(name, "{}").await;
    }
    for name in &names {
        ground.shows(name, "Degraded", "True", "EventLogUnavailable").await;
    }
    in_time("groups of 8 queues deleted", async || {
        for name in &names {
            let keys = ground.broker(name).keys().clone();
            ground.redis.command(&["XGROUP", "DESTROY", &keys.task, &keys.group]).await;
        }
        let back = async || {
            for name in &names {
                is_whole(&ground, name).await?;
            }
            Ok(())
        };
        ground.until("the groups to be back", back).await
    })
    .await;
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
    in_time("FLUSHALL with 20 queues", async || {
        ground.redis.command(&["FLUSHALL"]).await;
        let all = async || {
            for number in 0..20 {
                is_whole(&ground, &format!("q{number}")).await?;
            }
            Ok(())
        };
        ground.until("all queues to be back", all).await
    })
    .await;
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
