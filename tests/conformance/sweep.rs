//! A healthy queue passes its own inspection, whatever happened in it.

use std::time::Duration;

use windlass::State;
use windlass::broker::Settled;

use super::fixture::{Fixture, failure, permanent, released, task, types};

/// closes: asynq#1051, asynq#1144 (a second index diverges)
async fn a_healthy_queue_has_nothing_to_repair(fx: &Fixture) {
    let batch: Vec<_> = (0..100).map(|number| task(&format!("t{}", number % 7))).collect();
    for round in 0..3 {
        let batch: Vec<_> =
            batch.iter().map(|task| windlass::NewTask { id: windlass::TaskId::generate(), ..task.clone() }).collect();
        fx.broker.enqueue(&batch).await.expect("taken");
        fx.claim_with("some", &types(&["t1", "t2"]), 10).await;
        for (number, task) in fx.claim(40).await.iter().enumerate() {
            match number % 6 {
                0 => fx.succeed(task).await,
                1 => assert!(matches!(fx.settle(task, failure()).await, Settled::Retrying { .. })),
                2 => assert!(matches!(fx.settle(task, released()).await, Settled::Retrying { .. })),
                3 => assert_eq!(fx.settle(task, permanent()).await, Settled::Dead),
                4 => drop(fx.broker.cancel(&task.lease.task, "not needed").await.expect("answered")),
                _ => {}
            }
        }
        assert_eq!(fx.sweep().await.repaired, [], "round {round}");
        fx.advance(Duration::from_millis(700));
        fx.promote(5).await;
        fx.expire_all().await;
        assert_eq!(fx.sweep().await.repaired, [], "round {round}, after a reclaim");
    }
}

async fn a_sweep_looks_at_every_live_task(fx: &Fixture) {
    for _ in 0..3 {
        let batch: Vec<_> = (0..100).map(|_| task("a")).collect();
        fx.broker.enqueue(&batch).await.expect("taken");
    }
    fx.claim(100).await;
    assert!(fx.sweep().await.checked >= 300);
}

async fn an_empty_queue_is_healthy(fx: &Fixture) {
    let swept = fx.sweep().await;
    assert_eq!((swept.checked, swept.repaired.len(), swept.workers_lost.len()), (0, 0, 0));
}

/// closes: watermill-redisstream#24, redis#9745 (a consumer is deleted with what is pending for it)
async fn a_sweep_takes_nothing_from_a_worker_that_is_not_registered(fx: &Fixture) {
    let running = fx.running("a").await;
    for _ in 0..3 {
        fx.advance(Duration::from_secs(80));
        fx.sweep().await;
    }
    assert_eq!(fx.state(&running.lease.task).await, State::Running);
    fx.succeed(&running).await;
}

suite! {
    a_healthy_queue_has_nothing_to_repair,
    a_sweep_looks_at_every_live_task,
    an_empty_queue_is_healthy,
    a_sweep_takes_nothing_from_a_worker_that_is_not_registered,
}
