//! An outside effect happens at most once, whatever dies in its middle.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::json;
use tokio::sync::Notify;
use windlass::broker::{Broker, EffectBegun, Standing};
use windlass::protocol::state::RetryReason;
use windlass::worker::{EFFECT_IN_DOUBT, EffectError, OnceError};
use windlass::{Outcome, State, TaskContext};

use super::ground::{Does, Ground, Line, hasty, options};
use crate::support::servers::Wait;

/// The other side: what it was asked to do, and how often.
#[derive(Clone, Default)]
struct Bank(Arc<AtomicUsize>);

impl Bank {
    fn charge(&self) -> usize {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }

    fn charges(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

fn ended(answer: Result<usize, OnceError<String>>) -> Outcome {
    match answer {
        Ok(number) => Outcome::result(json!(number)),
        Err(error) => error.into(),
    }
}

/// Where a worker dies: before the other side has acted, or after.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dies {
    Before,
    After,
}

/// A worker that charges and dies in the middle, and is known to be gone.
async fn crash_in_the_middle(ground: &Ground, bank: &Bank, dies: Dies) -> windlass::TaskId {
    let (acting, other_side) = (Arc::new(Notify::new()), bank.clone());
    let reached = acting.clone();
    let worker = ground.work(
        Does(move |task: TaskContext| {
            let (bank, reached) = (other_side.clone(), reached.clone());
            async move {
                let charge = || async move {
                    if dies == Dies::After {
                        bank.charge();
                    }
                    reached.notify_one();
                    std::future::pending::<Result<usize, EffectError<String>>>().await
                };
                ended(task.once(&task.effect_key("charge"), charge).await)
            }
        }),
        options(1),
    );
    let id = ground.add(1).await.remove(0);
    acting.notified().await;
    let gone = worker.id.clone();
    worker.crash().await;
    let taken = ground.broker.reclaim_from(&gone, RetryReason::PodGone).await.expect("answered");
    assert_eq!(taken.requeued.first(), Some(&id));
    id
}

#[tokio::test]
async fn an_effect_whose_answer_is_known_is_not_repeated_by_a_retry() {
    let ground = Ground::new(hasty()).await;
    let bank = Bank::default();
    let other_side = bank.clone();
    let worker = ground.work(
        Does(move |task: TaskContext| {
            let bank = other_side.clone();
            async move {
                let answer = task.once(&task.effect_key("charge"), || async { Ok(bank.charge()) }).await;
                if task.task().retry_count < 2 {
                    return Outcome::failure("unlucky", "after the charge");
                }
                ended(answer)
            }
        }),
        options(1),
    );
    let id = ground.add(1).await.remove(0);
    let done = ground.until(&id, State::Succeeded).await;
    assert_eq!((bank.charges(), done.retry_count), (1, 2));
    assert_eq!(done.result.expect("a result").as_str(), "1", "the stored answer");
    worker.drain().await;
}

#[tokio::test]
async fn a_doubt_that_nobody_can_resolve_is_a_dead_letter_that_says_what_to_do() {
    for dies in [Dies::Before, Dies::After] {
        let ground = Ground::new(hasty()).await;
        let bank = Bank::default();
        let id = crash_in_the_middle(&ground, &bank, dies).await;
        let (seen, other_side) = (bank.charges(), bank.clone());
        let worker = ground.work(
            Does(move |task: TaskContext| {
                let bank = other_side.clone();
                async move { ended(task.once(&task.effect_key("charge"), || async { Ok(bank.charge()) }).await) }
            }),
            options(1),
        );
        let dead = ground.until(&id, State::DlqPending).await;
        assert_eq!(dead.error_code.as_deref(), Some(EFFECT_IN_DOUBT));
        assert!(dead.error.as_deref().is_some_and(|error| error.contains("check with the other side")), "{dead:?}");
        assert_eq!(bank.charges(), seen, "{dies:?}: it was not tried again");
        worker.drain().await;
    }
}

#[tokio::test]
async fn a_doubt_is_resolved_by_asking_the_other_side_and_the_effect_happens_exactly_once() {
    for dies in [Dies::Before, Dies::After] {
        let ground = Ground::new(hasty()).await;
        let bank = Bank::default();
        let id = crash_in_the_middle(&ground, &bank, dies).await;
        let other_side = bank.clone();
        let worker = ground.work(
            Does(move |task: TaskContext| {
                let (bank, asked) = (other_side.clone(), other_side.clone());
                async move {
                    let check = |_| async move { Ok(Some(asked.charges()).filter(|charges| *charges > 0)) };
                    let charge = || async move { Ok(bank.charge()) };
                    ended(task.once_checked(&task.effect_key("charge"), check, charge).await)
                }
            }),
            options(1),
        );
        let done = ground.until(&id, State::Succeeded).await;
        assert_eq!((bank.charges(), done.crash_count), (1, 1), "{dies:?}");
        assert_eq!(done.result.expect("a result").as_str(), "1");
        worker.drain().await;
    }
}

#[tokio::test]
async fn an_effect_that_surely_did_not_happen_is_tried_again_by_a_retry() {
    let ground = Ground::new(hasty()).await;
    let bank = Bank::default();
    let other_side = bank.clone();
    let worker = ground.work(
        Does(move |task: TaskContext| {
            let (bank, retries) = (other_side.clone(), task.task().retry_count);
            async move {
                let charge = || async move {
                    if retries == 0 { Err(EffectError::NotDone("refused".to_owned())) } else { Ok(bank.charge()) }
                };
                ended(task.once(&task.effect_key("charge"), charge).await)
            }
        }),
        options(1),
    );
    let id = ground.add(1).await.remove(0);
    let done = ground.until(&id, State::Succeeded).await;
    assert_eq!((bank.charges(), done.retry_count), (1, 1));
    worker.drain().await;
}

/// The effect has happened; Redis is away when its answer is to be kept.
#[tokio::test]
async fn an_answer_is_kept_though_redis_was_away_when_it_came() {
    let ground = Ground::new(windlass::protocol::policy::Policy {
        heartbeat_period: Duration::from_millis(200),
        ..windlass::protocol::policy::Policy::default()
    })
    .await;
    let (begun, go_on, bank) = (Arc::new(Notify::new()), Arc::new(Notify::new()), Bank::default());
    let (tell, wait, other_side) = (begun.clone(), go_on.clone(), bank.clone());
    let worker = ground.work(
        Does(move |task: TaskContext| {
            let (tell, wait, bank) = (tell.clone(), wait.clone(), other_side.clone());
            async move {
                let charge = || async move {
                    tell.notify_one();
                    wait.notified().await;
                    Ok(bank.charge())
                };
                ended(task.once(&task.effect_key("charge"), charge).await)
            }
        }),
        options(1),
    );
    let id = ground.add(1).await.remove(0);
    begun.notified().await;
    ground.server.freeze().await;
    let mut noticed = Wait::new("the worker to notice");
    while worker.handle.health().is_connected() {
        noticed.again("not yet").await;
    }
    go_on.notify_one();
    while bank.charges() == 0 {
        noticed.again("no charge yet").await;
    }
    ground.server.thaw().await;
    let done = ground.until(&id, State::Succeeded).await;
    assert_eq!((done.result.expect("a result").as_str(), bank.charges()), ("1", 1));
    worker.drain().await;
}

/// The effect has happened; its attempt lost the lease and was dropped before its answer could be kept.
#[tokio::test]
async fn an_answer_is_kept_though_its_attempt_was_dropped_while_redis_was_away() {
    let ground = Ground::new(hasty()).await;
    let line = Line::to(&ground.server).await;
    let (begun, go_on, bank) = (Arc::new(Notify::new()), Arc::new(Notify::new()), Bank::default());
    let (tell, wait, other_side) = (begun.clone(), go_on.clone(), bank.clone());
    let worker = ground.work_at(
        &line.url(),
        Does(move |task: TaskContext| {
            let (tell, wait, bank) = (tell.clone(), wait.clone(), other_side.clone());
            async move {
                let key = task.effect_key("charge");
                // The next attempt acts no more: it waits for what the first one knows.
                while bank.charges() > 0 {
                    if let Ok(EffectBegun::Done { answer }) = task.begin_once(&key, Standing::Own).await {
                        return Outcome::result(answer);
                    }
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                let charge = || async move {
                    tell.notify_one();
                    wait.notified().await;
                    Ok(bank.charge())
                };
                ended(task.once(&key, charge).await)
            }
        }),
        windlass::WorkerOptions { kill_grace: Duration::from_millis(100), ..options(1) },
    );
    let id = ground.add(1).await.remove(0);
    begun.notified().await;
    // Not frozen: a frozen server would still take what was sent to it meanwhile.
    line.cut();
    let mut wait = Wait::new("the charge");
    go_on.notify_one();
    while bank.charges() == 0 {
        wait.again("none yet").await;
    }
    worker.until_running(0).await;
    line.mend();
    let done = ground.until(&id, State::Succeeded).await;
    assert_eq!((done.result.expect("a result").as_str(), bank.charges()), ("1", 1));
    assert_eq!((done.epoch.0, done.retry_count), (2, 0), "the first attempt was dropped");
    worker.drain().await;
}
