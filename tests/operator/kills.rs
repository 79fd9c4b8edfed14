//! The operator killed at any moment leaves nothing half done for good.

use std::time::Duration;

use kube::api::DeleteParams;
use windlass::broker::{Broker, BrokerError};
use windlass::protocol::policy::Mode;

use super::ground::Ground;

/// How often it is killed: 50 times in the long version (`WINDLASS_CHAOS=full`).
fn kills() -> usize {
    if std::env::var("WINDLASS_CHAOS").is_ok_and(|value| value == "full") { 50 } else { 12 }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_killed_at_random_moments_ends_with_everything_right() {
    let ground = Ground::new().await;
    let mut alive: Vec<usize> = Vec::new();
    let mut next = 0;
    let mut gone: Vec<usize> = Vec::new();
    for round in 0..kills() {
        let operator = ground.operator().await;
        // A Lease that its holder cannot release any more would cost each round its whole length.
        let lease = serde_json::json!({"spec": {"holderIdentity": ""}});
        let patch = kube::api::Patch::Merge(&lease);
        drop(ground.leases().patch(super::ground::RELEASE, &Default::default(), &patch).await);
        for _ in 0..4 {
            ground.apply(&format!("q{next}"), "{deletionPolicy: Delete}").await;
            alive.push(next);
            next += 1;
        }
        for number in alive.iter().filter(|number| *number % 3 == round % 3) {
            ground.apply(&format!("q{number}"), "{deletionPolicy: Delete, mode: Paused}").await;
        }
        if alive.len() > 6 {
            for number in alive.drain(..3) {
                ground.queues().delete(&format!("q{number}"), &DeleteParams::default()).await.expect("deleted");
                gone.push(number);
            }
        }
        tokio::time::sleep(Duration::from_millis(fastrand::u64(0..1500))).await;
        operator.kill9();
    }
    let _operator = ground.operator().await;
    for number in &alive {
        ground.apply(&format!("q{number}"), "{deletionPolicy: Delete, mode: Running, retry: {maxRetries: 9}}").await;
    }
    for number in &gone {
        ground.gone(&format!("q{number}")).await;
    }
    for number in &alive {
        let broker = ground.broker(&format!("q{number}"));
        let right = async || match broker.policy().await {
            Ok(policy) if policy.mode == Mode::Running && policy.retry.max_retries == 9 => Ok(()),
            other => Err(format!("{other:?}")),
        };
        ground.until("the last edit to hold", right).await;
        ground.ready(&format!("q{number}")).await;
    }
    for number in &gone {
        let broker = ground.broker(&format!("q{number}"));
        assert!(matches!(broker.policy().await, Err(BrokerError::NoQueue(_))), "q{number} left something behind");
        let left: Vec<String> = ground.redis.query(&["KEYS", &format!("{}*", broker.keys().prefix())]).await;
        assert!(left.is_empty(), "{left:?}");
    }
    eprintln!("{} kills, {} queues made, {} deleted", kills(), next, gone.len());
}
