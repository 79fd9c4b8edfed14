//! A policy holds from the very next call on, for every client.

use std::time::Duration;

use serde_json::json;
use windlass::broker::{BrokerError, ErrorClass, Extended, Outcome, Owner, Settled, Takeover};
use windlass::protocol::backoff::{Backoff, Dice, Jitter, Strategy};
use windlass::protocol::policy::{EventRecording, IdempotencyScope, Mode, Policy, PriorityOrder};
use windlass::{NewTask, State};

use super::fixture::{Fixture, failure, owner, settlement, success, task, worker_id};

async fn set_mode(fx: &Fixture, mode: Mode) {
    fx.set(|policy| policy.mode = mode).await;
}

async fn the_policy_that_was_written_is_the_policy_that_is_read(fx: &Fixture) {
    let mut policy = Policy::default();
    policy.retry.max_retries = 9;
    policy.retry.backoff.strategy = Strategy::Schedule { delays_ms: vec![1, 2, 3] };
    policy.mode = Mode::Paused;
    fx.broker.provision(&owner(), &policy).await.expect("written");
    assert_eq!(fx.broker.policy().await.expect("read"), policy);
}

async fn a_paused_queue_takes_work_and_gives_none(fx: &Fixture) {
    let running = fx.running("a").await;
    fx.add("a").await;
    set_mode(fx, Mode::Paused).await;
    let nothing = fx.claim_with("w1", &Default::default(), 10).await;
    assert_eq!((nothing.tasks.len(), nothing.mode), (0, Mode::Paused));
    assert!(fx.enqueue(task("a")).await.created);
    fx.raw(&[("task_id", "raw"), ("payload", "{}")]).await;
    assert_eq!(fx.counts().await.backlog, 3);

    let renewed = fx.broker.extend(&worker_id("w1"), std::slice::from_ref(&running.lease)).await.expect("answered");
    assert_eq!(renewed, [Extended::Renewed], "what runs goes on");
    let reply = fx.settle_with(settlement(&running, success()), 10).await;
    assert_eq!(reply.settled, [Settled::Succeeded]);
    let next = reply.claimed.expect("answered");
    assert_eq!((next.tasks.len(), next.mode), (0, Mode::Paused));

    set_mode(fx, Mode::Running).await;
    assert_eq!(fx.claim(10).await.len(), 3, "and nothing was lost");
}

async fn a_closed_queue_takes_no_work_either(fx: &Fixture) {
    let running = fx.running("a").await;
    let failing = fx.running("a").await;
    set_mode(fx, Mode::Closed).await;
    let refused = fx.broker.enqueue(&[task("a")]).await.expect_err("closed");
    assert!(matches!(refused, BrokerError::Closed(_)), "{refused}");
    assert!(refused.to_string().contains(&fx.queue.to_string()), "{refused}");
    assert_eq!(refused.class(), ErrorClass::Invalid);
    fx.raw(&[("task_id", "raw"), ("payload", "{}")]).await;
    let nothing = fx.claim_with("w1", &Default::default(), 10).await;
    assert_eq!((nothing.tasks.len(), nothing.mode), (0, Mode::Closed));
    assert_eq!(fx.promote(10).await.filed, 0, "raw entries wait where they are");

    assert_eq!(fx.settle(&running, success()).await, Settled::Succeeded);
    fx.fail_and_wait(&failing).await;
    fx.promote(10).await;
    assert!(fx.claim(10).await.is_empty());
    set_mode(fx, Mode::Running).await;
    let ids: Vec<String> = fx.claim(10).await.into_iter().map(|task| task.lease.task.to_string()).collect();
    assert_eq!(ids, [failing.lease.task.to_string(), "raw".to_owned()], "what was there is still there");
}

async fn expired_leases_come_back_in_every_mode(fx: &Fixture) {
    for mode in [Mode::Paused, Mode::Closed] {
        set_mode(fx, Mode::Running).await;
        let task = fx.running("a").await;
        set_mode(fx, mode).await;
        assert_eq!(fx.expire_all().await.requeued, [task.lease.task.clone()]);
        set_mode(fx, Mode::Running).await;
        fx.succeed(&fx.claim_one().await).await;
    }
}

async fn a_new_retry_limit_holds_for_the_very_next_settle(fx: &Fixture) {
    let (one, other) = (fx.running("a").await, fx.running("a").await);
    fx.set(|policy| policy.retry.max_retries = 0).await;
    assert_eq!(fx.settle(&one, failure()).await, Settled::Dead);
    fx.set(|policy| policy.retry.max_retries = 1).await;
    assert!(matches!(fx.settle(&other, failure()).await, Settled::Retrying { .. }));
}

async fn a_new_backoff_holds_for_the_very_next_settle(fx: &Fixture) {
    let task = fx.running("a").await;
    fx.set(|policy| {
        policy.retry.backoff =
            Backoff { strategy: Strategy::Fixed { base_ms: 77 }, max_ms: 1000, jitter: Jitter::None };
    })
    .await;
    assert_eq!(fx.settle(&task, failure()).await, Settled::Retrying { due_at: fx.in_ms(77) });
}

async fn every_strategy_waits_as_its_formula_says(fx: &Fixture) {
    let strategies = [
        Strategy::Exponential { base_ms: 1000 },
        Strategy::Quadratic { base_ms: 5000 },
        Strategy::Fixed { base_ms: 250 },
        Strategy::Schedule { delays_ms: vec![60_000, 300_000, 900_000] },
    ];
    let jitters = [
        Jitter::None,
        Jitter::Additive { milliseconds: 300 },
        Jitter::Proportional { percent: 10 },
        Jitter::Symmetric { percent: 10 },
    ];
    for strategy in strategies {
        for jitter in jitters {
            let backoff = Backoff { strategy: strategy.clone(), max_ms: 300_000, jitter };
            fx.set(|policy| policy.retry.backoff = backoff.clone()).await;
            fx.set(|policy| policy.retry.max_retries = 100).await;
            let id = fx.add("a").await;
            for (retry, dice) in (1..=6).zip([0, 65_535, 32_768, 1, 12_345, 54_321]) {
                let task = fx.claim_one().await;
                let mut end = settlement(&task, failure());
                end.dice = Dice(dice);
                let wait = backoff.delay(retry, end.dice);
                let due_at = fx.in_ms(i64::try_from(wait.as_millis()).expect("short"));
                let settled = fx.settle_with(end, 0).await.settled;
                assert_eq!(settled, [Settled::Retrying { due_at }], "{backoff:?}, retry {retry}, dice {dice}");
                fx.advance(wait);
            }
            fx.broker.cancel(&id, "seen enough").await.expect("answered");
        }
    }
}

async fn a_new_order_of_priorities_holds_for_tasks_that_wait_already(fx: &Fixture) {
    let mut ids = Vec::new();
    for priority in [3, 9, 5] {
        ids.push(fx.enqueue(NewTask { priority: Some(priority), ..task("a") }).await.id);
    }
    fx.set(|policy| policy.priority.order = PriorityOrder::LowestFirst).await;
    assert_eq!(fx.claim_one().await.lease.task, ids[0]);
    fx.set(|policy| policy.priority.order = PriorityOrder::HighestFirst).await;
    assert_eq!(fx.drain_ids().await, [ids[1].clone(), ids[2].clone()]);
}

async fn a_new_order_holds_for_workers_of_some_types_too(fx: &Fixture) {
    let some = super::fixture::types(&["a"]);
    assert!(fx.claim_with("w", &some, 1).await.tasks.is_empty());
    for priority in [3, 9] {
        fx.enqueue(NewTask { priority: Some(priority), ..task("a") }).await;
    }
    fx.set(|policy| policy.priority.order = PriorityOrder::LowestFirst).await;
    assert_eq!(fx.claim_with("w", &some, 1).await.tasks[0].priority, 3);
}

async fn tasks_outside_a_narrowed_range_of_priorities_are_still_served(fx: &Fixture) {
    for priority in [1, 5, 10] {
        fx.enqueue(NewTask { priority: Some(priority), ..task("a") }).await;
    }
    fx.set(|policy| (policy.priority.min, policy.priority.max) = (4, 6)).await;
    let refused = fx.broker.enqueue(&[NewTask { priority: Some(10), ..task("a") }]).await.expect_err("out of range");
    assert!(refused.to_string().contains("use 4 to 6"), "{refused}");
    let order: Vec<u8> = fx.claim(10).await.into_iter().map(|task| task.priority).collect();
    assert_eq!(order, [10, 5, 1]);
}

async fn a_new_result_bound_holds_for_the_very_next_settle(fx: &Fixture) {
    let task = fx.running("a").await;
    fx.set(|policy| policy.limits.result_bytes = 10).await;
    let large = Outcome::Success { result: Some(json!("longer than ten bytes").into()) };
    assert_eq!(fx.settle(&task, large.clone()).await, Settled::ResultTooLarge);
    assert_eq!(fx.state(&task.lease.task).await, State::Running, "nothing was changed");
    fx.set(|policy| policy.limits.result_bytes = 100).await;
    assert_eq!(fx.settle(&task, large).await, Settled::Succeeded, "the lease was still good");
}

async fn a_new_visibility_timeout_holds_for_leases_that_run(fx: &Fixture) {
    let task = fx.running("a").await;
    fx.advance(Duration::from_secs(100));
    assert!(fx.reclaim().await.requeued.is_empty());
    fx.set(|policy| {
        policy.visibility_timeout = Duration::from_secs(90);
        policy.heartbeat_period = Duration::from_secs(30);
    })
    .await;
    assert_eq!(fx.reclaim().await.requeued, [task.lease.task]);
}

async fn a_new_scope_holds_for_the_very_next_end(fx: &Fixture) {
    let keyed = || NewTask { idempotency_key: Some("k".parse().expect("a key")), ..task("a") };
    fx.enqueue(keyed()).await;
    let running = fx.claim_one().await;
    fx.set(|policy| policy.idempotency.scope = IdempotencyScope::Live).await;
    fx.succeed(&running).await;
    assert!(fx.enqueue(keyed()).await.created, "a finished task holds no key any more");
}

async fn moves_are_recorded_from_when_the_policy_says_so(fx: &Fixture) {
    fx.set(|policy| policy.events = EventRecording::Off).await;
    let task = fx.running("a").await;
    assert!(fx.outbox().await.is_empty());
    fx.set(|policy| policy.events = EventRecording::On).await;
    fx.succeed(&task).await;
    let events = fx.events(&task.lease.task).await;
    assert_eq!(events.iter().map(|event| event.to).collect::<Vec<_>>(), [State::Succeeded]);
}

async fn a_full_outbox_refuses_new_tasks_and_nothing_else(fx: &Fixture) {
    let running = fx.running("a").await;
    fx.add("a").await;
    let bound = fx.outbox().await.len() as u64;
    fx.set(|policy| policy.limits.outbox_entries = bound).await;
    let refused = fx.broker.enqueue(&[task("a")]).await.expect_err("full");
    assert!(matches!(refused, BrokerError::OutboxFull(_)), "{refused}");
    assert_eq!(refused.class(), ErrorClass::Transient);
    fx.succeed(&running).await;
    fx.succeed(&fx.claim_one().await).await;
    fx.broker.trim_outbox(&fx.outbox().await).await.expect("trimmed");
    assert!(fx.enqueue(task("a")).await.created, "it caught up");
}

async fn a_contradictory_policy_is_refused_and_the_old_one_stays(fx: &Fixture) {
    let before = fx.broker.policy().await.expect("read");
    let hasty = Policy { visibility_timeout: Duration::from_secs(1), ..Policy::default() };
    let refused = fx.broker.provision(&owner(), &hasty).await.expect_err("too short");
    assert_eq!(refused.class(), ErrorClass::Invalid);
    assert!(refused.to_string().contains("three times the heartbeat"), "{refused}");
    assert_eq!(fx.broker.policy().await.expect("read"), before);
}

async fn another_owner_is_refused_until_it_takes_over_on_purpose(fx: &Fixture) {
    let id = fx.add("a").await;
    let mut paused = Policy { mode: Mode::Paused, ..Policy::default() };
    let rival = Owner { name: "rival".to_owned(), takeover: Takeover::Respect };
    let refused = fx.broker.provision(&rival, &paused).await.expect_err("owned");
    assert!(matches!(&refused, BrokerError::Owned { owner, .. } if owner == "conformance"), "{refused}");
    assert_eq!(refused.class(), ErrorClass::Conflict);
    assert_eq!(fx.broker.policy().await.expect("read").mode, Mode::Running, "the owner's policy stays");

    let wrong = Owner { takeover: Takeover::From("somebody".to_owned()), ..rival.clone() };
    let refused = fx.broker.provision(&wrong, &paused).await.expect_err("it is not somebody's");
    assert!(matches!(&refused, BrokerError::Owned { owner, .. } if owner == "conformance"), "{refused}");
    let heir = Owner { takeover: Takeover::From("conformance".to_owned()), name: "heir".to_owned() };
    fx.broker.provision(&heir, &Policy::default()).await.expect("taken from the one that was named");

    let force = Owner { takeover: Takeover::Force, ..rival.clone() };
    fx.broker.provision(&force, &paused).await.expect("taken over");
    assert_eq!(fx.broker.policy().await.expect("read").mode, Mode::Paused);
    let refused = fx.broker.provision(&owner(), &Policy::default()).await.expect_err("the first owner is out");
    assert!(matches!(&refused, BrokerError::Owned { owner, .. } if owner == "rival"), "{refused}");
    paused.mode = Mode::Running;
    fx.broker.provision(&rival, &paused).await.expect("the new owner needs no force any more");
    assert_eq!(fx.claim_one().await.lease.task, id, "the tasks were left alone");
}

suite! {
    the_policy_that_was_written_is_the_policy_that_is_read,
    a_paused_queue_takes_work_and_gives_none,
    a_closed_queue_takes_no_work_either,
    expired_leases_come_back_in_every_mode,
    a_new_retry_limit_holds_for_the_very_next_settle,
    a_new_backoff_holds_for_the_very_next_settle,
    every_strategy_waits_as_its_formula_says,
    a_new_order_of_priorities_holds_for_tasks_that_wait_already,
    a_new_order_holds_for_workers_of_some_types_too,
    tasks_outside_a_narrowed_range_of_priorities_are_still_served,
    a_new_result_bound_holds_for_the_very_next_settle,
    a_new_visibility_timeout_holds_for_leases_that_run,
    a_new_scope_holds_for_the_very_next_end,
    moves_are_recorded_from_when_the_policy_says_so,
    a_full_outbox_refuses_new_tasks_and_nothing_else,
    a_contradictory_policy_is_refused_and_the_old_one_stays,
    another_owner_is_refused_until_it_takes_over_on_purpose,
}
