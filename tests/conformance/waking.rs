//! Idle workers sleep without polling, and whatever makes work ready wakes one that can do it.

use std::time::Duration;

use windlass::broker::{ClaimedTask, Sleeper, Wake};
use windlass::protocol::names::Capabilities;
use windlass::protocol::policy::Mode;
use windlass::{NewTask, NotBefore};

use super::fixture::{Fixture, released, task, types};

/// Long enough for any ring to come; only a test that fails waits for it.
const LONG: Duration = Duration::from_secs(20);
/// Long enough to notice a ring that should not be there.
const SHORT: Duration = Duration::from_millis(50);

/// A worker that has found nothing and sleeps with nothing left over to wake it.
async fn idle(fx: &Fixture, capabilities: &Capabilities, mode: Mode) -> Box<dyn Sleeper> {
    let mut sleeper = fx.broker.sleeper(capabilities).await.expect("a bed");
    loop {
        assert!(fx.claim_with("sleepy", capabilities, 1).await.tasks.is_empty());
        if sleeper.sleep(mode, SHORT).await.expect("slept") == Wake::TimedOut {
            return sleeper;
        }
    }
}

async fn wakes(sleeper: &mut Box<dyn Sleeper>, mode: Mode) {
    assert_eq!(sleeper.sleep(mode, LONG).await.expect("slept"), Wake::Rung);
}

async fn sleeps_on(sleeper: &mut Box<dyn Sleeper>, mode: Mode) {
    assert_eq!(sleeper.sleep(mode, SHORT).await.expect("slept"), Wake::TimedOut);
}

async fn a_new_task_wakes_a_sleeper(fx: &Fixture) {
    let mut sleeper = idle(fx, &Capabilities::any(), Mode::Running).await;
    let asleep = tokio::spawn(async move {
        wakes(&mut sleeper, Mode::Running).await;
    });
    tokio::time::sleep(SHORT).await;
    fx.add("a").await;
    asleep.await.expect("woken");
    fx.claim_one().await;
}

async fn a_raw_entry_wakes_a_sleeper(fx: &Fixture) {
    let mut sleeper = idle(fx, &Capabilities::any(), Mode::Running).await;
    fx.raw(&[("task_id", "t"), ("payload", "{}")]).await;
    wakes(&mut sleeper, Mode::Running).await;
    fx.claim_one().await;
}

async fn a_task_that_the_sleeper_cannot_do_lets_it_sleep(fx: &Fixture) {
    let mut renders = idle(fx, &types(&["render"]), Mode::Running).await;
    fx.add("send").await;
    sleeps_on(&mut renders, Mode::Running).await;
    fx.add("render").await;
    wakes(&mut renders, Mode::Running).await;
}

async fn what_comes_back_wakes_a_sleeper(fx: &Fixture) {
    let running = fx.running("a").await;
    let mut sleeper = idle(fx, &Capabilities::any(), Mode::Running).await;
    fx.settle(&running, released()).await;
    wakes(&mut sleeper, Mode::Running).await;
    fx.claim_one().await;
    let mut sleeper = idle(fx, &Capabilities::any(), Mode::Running).await;
    fx.expire_all().await;
    wakes(&mut sleeper, Mode::Running).await;
}

async fn what_becomes_due_wakes_a_sleeper_when_it_is_promoted(fx: &Fixture) {
    let later = NotBefore::After(Duration::from_secs(5));
    let mut sleeper = idle(fx, &Capabilities::any(), Mode::Running).await;
    fx.enqueue(NewTask { not_before: later, ..task("a") }).await;
    sleeps_on(&mut sleeper, Mode::Running).await;
    fx.advance(Duration::from_secs(5));
    fx.promote(10).await;
    wakes(&mut sleeper, Mode::Running).await;
}

async fn a_paused_queue_wakes_nobody_and_its_resumption_does(fx: &Fixture) {
    fx.set(|policy| policy.mode = Mode::Paused).await;
    let mut sleeper = idle(fx, &Capabilities::any(), Mode::Paused).await;
    fx.add("a").await;
    fx.raw(&[("task_id", "t"), ("payload", "{}")]).await;
    sleeps_on(&mut sleeper, Mode::Paused).await;
    fx.set(|policy| policy.mode = Mode::Running).await;
    wakes(&mut sleeper, Mode::Paused).await;
}

async fn a_claim_that_leaves_work_behind_wakes_the_next_sleeper(fx: &Fixture) {
    let mut sleeper = idle(fx, &Capabilities::any(), Mode::Running).await;
    fx.broker.enqueue(&[task("a"), task("a")]).await.expect("taken");
    wakes(&mut sleeper, Mode::Running).await;
    fx.claim_one().await;
    wakes(&mut sleeper, Mode::Running).await;
    fx.claim_one().await;
    sleeps_on(&mut sleeper, Mode::Running).await;
}

async fn a_ring_for_work_that_is_gone_wakes_nobody_after_an_empty_claim(fx: &Fixture) {
    let mut sleeper = idle(fx, &Capabilities::any(), Mode::Running).await;
    fx.add("a").await;
    fx.raw(&[("task_id", "t"), ("payload", "{}")]).await;
    assert_eq!(fx.claim(10).await.len(), 2, "somebody who was awake took it");
    assert!(fx.claim_with("sleepy", &Capabilities::any(), 1).await.tasks.is_empty());
    sleeps_on(&mut sleeper, Mode::Running).await;
}

/// closes: one message does not wake zero workers (a worker dies between bell and claim)
async fn a_promotion_rings_again_for_work_that_nobody_came_for(fx: &Fixture) {
    let mut died = idle(fx, &Capabilities::any(), Mode::Running).await;
    let mut other = idle(fx, &Capabilities::any(), Mode::Running).await;
    fx.add("a").await;
    wakes(&mut died, Mode::Running).await;
    sleeps_on(&mut other, Mode::Running).await;
    fx.promote(1).await;
    wakes(&mut other, Mode::Running).await;
}

async fn a_worker_that_ends_passes_its_ring_on(fx: &Fixture) {
    let mut leaving = idle(fx, &Capabilities::any(), Mode::Running).await;
    let mut other = idle(fx, &Capabilities::any(), Mode::Running).await;
    fx.add("a").await;
    wakes(&mut leaving, Mode::Running).await;
    assert!(fx.claim(0).await.is_empty());
    wakes(&mut other, Mode::Running).await;
}

/// A raw entry rings one worker alone; nothing else would wake the others before their time.
async fn a_worker_without_room_passes_the_ring_of_a_raw_entry_on(fx: &Fixture) {
    let (sends, renders) = (types(&["send"]), types(&["render"]));
    let mut full = idle(fx, &renders, Mode::Running).await;
    let mut other = idle(fx, &sends, Mode::Running).await;
    fx.raw(&[("task_id", "t"), ("type", "send"), ("payload", "{}")]).await;
    wakes(&mut full, Mode::Running).await;
    assert!(fx.claim_with("full", &renders, 0).await.tasks.is_empty());
    wakes(&mut other, Mode::Running).await;
    assert_eq!(fx.claim_with("other", &sends, 1).await.tasks.len(), 1);
}

/// closes: of all who slept while the queue was paused one is woken, and the others hear no raw entry
async fn a_resumption_wakes_every_sleeper_of_every_class(fx: &Fixture) {
    fx.set(|policy| policy.mode = Mode::Paused).await;
    let mut asleep = Vec::new();
    for capabilities in [Capabilities::any(), types(&["send"]), Capabilities::any(), Capabilities::any()] {
        asleep.push(idle(fx, &capabilities, Mode::Paused).await);
    }
    let asleep = asleep.into_iter().map(|mut sleeper| async move { wakes(&mut sleeper, Mode::Paused).await });
    tokio::join!(futures::future::join_all(asleep), fx.set(|policy| policy.mode = Mode::Running));
}

/// closes: a ring that goes round for ever among those who may not claim
async fn a_ring_that_comes_while_the_queue_is_paused_again_wakes_one(fx: &Fixture) {
    fx.set(|policy| policy.mode = Mode::Paused).await;
    let mut first = idle(fx, &Capabilities::any(), Mode::Paused).await;
    let mut second = idle(fx, &Capabilities::any(), Mode::Paused).await;
    fx.set(|policy| policy.mode = Mode::Running).await;
    fx.set(|policy| policy.mode = Mode::Paused).await;
    wakes(&mut first, Mode::Paused).await;
    sleeps_on(&mut second, Mode::Paused).await;
    sleeps_on(&mut first, Mode::Paused).await;
}

/// Claims one task for as long as rings come, as an idle worker does; nothing but a ring may be needed.
async fn works_on(fx: &Fixture, sleeper: &mut Box<dyn Sleeper>, capabilities: &Capabilities) -> ClaimedTask {
    loop {
        if let Some(task) = fx.claim_with("sleepy", capabilities, 1).await.tasks.pop() {
            return task;
        }
        wakes(sleeper, Mode::Running).await;
    }
}

async fn unreadable_entries_do_not_let_a_worker_sleep_over_a_good_one(fx: &Fixture) {
    let mut sleeper = idle(fx, &Capabilities::any(), Mode::Running).await;
    for _ in 0..100 {
        fx.raw(&[("payload", "{}")]).await;
    }
    fx.raw(&[("task_id", "good"), ("payload", "{}")]).await;
    let task = works_on(fx, &mut sleeper, &Capabilities::any()).await;
    assert_eq!(task.lease.task.as_str(), "good");
}

async fn expired_tasks_do_not_let_a_worker_sleep_over_a_fresh_one(fx: &Fixture) {
    fx.set(|policy| policy.retry.deadline = Duration::from_secs(60)).await;
    let mut sleeper = idle(fx, &Capabilities::any(), Mode::Running).await;
    for _ in 0..3 {
        let batch: Vec<_> = (0..100).map(|_| task("a")).collect();
        fx.broker.enqueue(&batch).await.expect("taken");
    }
    fx.advance(Duration::from_secs(61));
    let fresh = fx.add("a").await;
    let task = works_on(fx, &mut sleeper, &Capabilities::any()).await;
    assert_eq!(task.lease.task, fresh);
    assert_eq!(fx.counts().await.dlq_pending, 300);
}

async fn what_is_due_for_others_does_not_let_a_worker_sleep_over_its_own(fx: &Fixture) {
    let renders = types(&["render"]);
    let mut sleeper = idle(fx, &renders, Mode::Running).await;
    let later = NotBefore::After(Duration::from_secs(5));
    let batch: Vec<_> = (0..60).map(|_| NewTask { not_before: later, ..task("send") }).collect();
    fx.broker.enqueue(&batch).await.expect("taken");
    fx.advance(Duration::from_millis(1));
    let own = fx.enqueue(NewTask { not_before: later, ..task("render") }).await.id;
    fx.advance(Duration::from_secs(5));
    let task = works_on(fx, &mut sleeper, &renders).await;
    assert_eq!(task.lease.task, own);
}

async fn a_raw_entry_that_another_class_filed_wakes_who_can_do_it(fx: &Fixture) {
    let (sends, renders) = (types(&["send"]), types(&["render"]));
    let mut sleeper = idle(fx, &sends, Mode::Running).await;
    fx.raw(&[("task_id", "t"), ("type", "send"), ("payload", "{}")]).await;
    assert!(fx.claim_with("renderer", &renders, 1).await.tasks.is_empty());
    wakes(&mut sleeper, Mode::Running).await;
    assert_eq!(fx.claim_with("sender", &sends, 1).await.tasks.len(), 1);
}

suite! {
    unreadable_entries_do_not_let_a_worker_sleep_over_a_good_one,
    expired_tasks_do_not_let_a_worker_sleep_over_a_fresh_one,
    what_is_due_for_others_does_not_let_a_worker_sleep_over_its_own,
    a_raw_entry_that_another_class_filed_wakes_who_can_do_it,
    a_new_task_wakes_a_sleeper,
    a_raw_entry_wakes_a_sleeper,
    a_task_that_the_sleeper_cannot_do_lets_it_sleep,
    what_comes_back_wakes_a_sleeper,
    what_becomes_due_wakes_a_sleeper_when_it_is_promoted,
    a_paused_queue_wakes_nobody_and_its_resumption_does,
    a_claim_that_leaves_work_behind_wakes_the_next_sleeper,
    a_ring_for_work_that_is_gone_wakes_nobody_after_an_empty_claim,
    a_promotion_rings_again_for_work_that_nobody_came_for,
    a_worker_that_ends_passes_its_ring_on,
    a_worker_without_room_passes_the_ring_of_a_raw_entry_on,
    a_resumption_wakes_every_sleeper_of_every_class,
    a_ring_that_comes_while_the_queue_is_paused_again_wakes_one,
}
