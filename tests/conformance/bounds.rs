//! Every way to run again is counted by itself, and every count has an end.

use std::time::Duration;

use windlass::broker::{Outcome, Settled};
use windlass::protocol::backoff::{Dice, Strategy};
use windlass::protocol::state::RetryReason;
use windlass::{NewTask, State, TaskId, TaskView};

use super::fixture::{Fixture, failure, permanent, released, settlement, task, worker_id};

fn rate_limited(retry_after: Option<Duration>) -> Outcome {
    Outcome::RateLimited { retry_after, error: "429 slow down".to_owned() }
}

fn counts(view: &TaskView) -> (u32, u32, u32) {
    (view.retry_count, view.crash_count, view.release_count)
}

async fn code_of_the_only_dead_letter(fx: &Fixture) -> String {
    let letters = fx.broker.pending_dead_letters(10).await.expect("answered");
    assert_eq!(letters.len(), 1);
    letters[0].error_code.clone()
}

async fn failures_are_bounded(fx: &Fixture) {
    fx.set(|policy| policy.retry.max_retries = 2).await;
    let id = fx.add("a").await;
    for retry in 1..=2 {
        fx.fail_and_wait(&fx.claim_one().await).await;
        let view = fx.view(&id).await;
        assert_eq!((counts(&view), view.retry_reason), ((retry, 0, 0), Some(RetryReason::Failure)));
        assert_eq!((view.error.as_deref(), view.error_code.as_deref()), (Some("it broke"), Some("broken")));
    }
    assert_eq!(fx.settle(&fx.claim_one().await, failure()).await, Settled::Dead);
    assert_eq!(counts(&fx.view(&id).await), (3, 0, 0));
    assert_eq!(code_of_the_only_dead_letter(fx).await, "broken");
}

/// closes: sidekiq#4633 (a poison task kills its worker in a loop)
async fn lost_workers_are_counted_apart_and_bounded(fx: &Fixture) {
    fx.set(|policy| policy.retry.max_crashes = 2).await;
    let id = fx.add("a").await;
    for crash in 1..=2 {
        fx.claim_one().await;
        assert_eq!(fx.expire_all().await.requeued, [id.clone()]);
        let view = fx.view(&id).await;
        assert_eq!((counts(&view), view.retry_reason), ((0, crash, 0), Some(RetryReason::VisibilityTimeout)));
    }
    fx.claim_one().await;
    let reclaimed = fx.expire_all().await;
    assert_eq!((reclaimed.requeued, reclaimed.dead), (vec![], vec![id.clone()]));
    assert_eq!(fx.state(&id).await, State::DlqPending);
    assert_eq!(code_of_the_only_dead_letter(fx).await, "worker_lost");
    assert!(fx.claim(1).await.is_empty());
}

async fn releases_are_counted_apart_and_bounded(fx: &Fixture) {
    fx.set(|policy| policy.retry.max_releases = 2).await;
    let id = fx.add("a").await;
    for release in 1..=2 {
        let settled = fx.settle(&fx.claim_one().await, released()).await;
        assert_eq!(settled, Settled::Retrying { due_at: fx.now() }, "at once");
        let view = fx.view(&id).await;
        assert_eq!((counts(&view), view.retry_reason), ((0, 0, release), Some(RetryReason::Released)));
    }
    assert_eq!(fx.settle(&fx.claim_one().await, released()).await, Settled::Dead);
    assert_eq!(code_of_the_only_dead_letter(fx).await, "too_many_releases");
}

/// closes: sidekiq#6163 (free retries for ever on "429")
async fn rate_limits_cost_no_attempt_and_are_bounded_too(fx: &Fixture) {
    fx.set(|policy| (policy.retry.max_releases, policy.retry.max_retries) = (3, 0)).await;
    let id = fx.add("a").await;
    for release in 1..=3 {
        let wait = Duration::from_secs(7);
        let settled = fx.settle(&fx.claim_one().await, rate_limited(Some(wait))).await;
        assert_eq!(settled, Settled::Retrying { due_at: fx.in_ms(7000) }, "as long as was said");
        let view = fx.view(&id).await;
        assert_eq!((counts(&view), view.retry_reason), ((0, 0, release), Some(RetryReason::RateLimited)));
        fx.advance(wait);
    }
    assert_eq!(fx.settle(&fx.claim_one().await, rate_limited(None)).await, Settled::Dead);
    assert_eq!(code_of_the_only_dead_letter(fx).await, "too_many_releases");
    assert_eq!(counts(&fx.view(&id).await), (0, 0, 4));
}

async fn a_rate_limit_without_a_time_waits_as_the_policy_says(fx: &Fixture) {
    let limit = fx.broker.policy().await.expect("a policy").retry.rate_limit;
    fx.add("a").await;
    for (release, dice) in (1..=8).zip([0, 65_535, 1, 2, 3, 500, 60_000, 0]) {
        let mut end = settlement(&fx.claim_one().await, rate_limited(None));
        end.dice = Dice(dice);
        let wait = limit.delay(release, end.dice);
        let due_at = fx.in_ms(i64::try_from(wait.as_millis()).expect("short"));
        assert_eq!(fx.settle_with(end, 0).await.settled, [Settled::Retrying { due_at }]);
        fx.advance(wait);
    }
}

async fn each_count_stays_its_own(fx: &Fixture) {
    let id = fx.add("a").await;
    fx.fail_and_wait(&fx.claim_one().await).await;
    fx.claim_one().await;
    fx.expire_all().await;
    fx.settle(&fx.claim_one().await, released()).await;
    fx.fail_and_wait(&fx.claim_one().await).await;
    let task = fx.claim_one().await;
    assert_eq!((task.retry_count, task.crash_count, task.release_count), (2, 1, 1));
    assert_eq!(task.lease.epoch.0, 5, "one a claim");
    fx.succeed(&task).await;
    assert_eq!(counts(&fx.view(&id).await), (2, 1, 1));
}

async fn a_tasks_own_retry_limit_goes_before_the_queues(fx: &Fixture) {
    let never = fx.enqueue(NewTask { max_retries: Some(0), ..task("a") }).await.id;
    assert_eq!(fx.settle(&fx.claim_one().await, failure()).await, Settled::Dead);
    assert_eq!(fx.state(&never).await, State::DlqPending);
    let often = fx.enqueue(NewTask { max_retries: Some(5), ..task("a") }).await.id;
    for _ in 0..5 {
        fx.fail_and_wait(&fx.claim_one().await).await;
    }
    assert_eq!(fx.settle(&fx.claim_one().await, failure()).await, Settled::Dead);
    assert_eq!(fx.view(&often).await.retry_count, 6);
}

async fn a_permanent_error_is_tried_no_more(fx: &Fixture) {
    let id = fx.add("a").await;
    assert_eq!(fx.settle(&fx.claim_one().await, permanent()).await, Settled::Dead);
    let view = fx.view(&id).await;
    assert_eq!((view.state, counts(&view)), (State::DlqPending, (0, 0, 0)));
    assert_eq!(code_of_the_only_dead_letter(fx).await, "impossible");
}

async fn a_retry_that_would_come_after_the_deadline_does_not_come(fx: &Fixture) {
    let deadline = Duration::from_secs(60);
    fx.set(|policy| policy.retry.deadline = deadline).await;
    for outcome in [
        failure(),
        rate_limited(Some(Duration::from_secs(2))),
        rate_limited(None),
        Outcome::Released { delay: Duration::from_secs(2) },
    ] {
        let fx = &Fixture::new(fx.kind).await;
        fx.set(|policy| policy.retry.deadline = deadline).await;
        let task = fx.running("a").await;
        fx.advance(deadline - Duration::from_millis(500));
        assert_eq!(fx.settle(&task, outcome.clone()).await, Settled::Dead, "{outcome:?}");
        assert_eq!(code_of_the_only_dead_letter(fx).await, "deadline_exceeded");
    }
}

async fn a_late_success_is_still_a_success(fx: &Fixture) {
    fx.set(|policy| policy.retry.deadline = Duration::from_secs(60)).await;
    let task = fx.running("a").await;
    fx.advance(Duration::from_secs(100));
    fx.succeed(&task).await;
}

async fn the_history_of_a_dead_letter_says_how_each_attempt_ended(fx: &Fixture) {
    let id = fx.add("a").await;
    fx.fail_and_wait(&fx.claim_one_as("first").await).await;
    fx.claim_one_as("second").await;
    fx.expire_all().await;
    fx.settle(&fx.claim_one_as("third").await, rate_limited(Some(Duration::ZERO))).await;
    let last = fx.claim_one_as("fourth").await;
    fx.settle(&last, permanent()).await;
    let letter = fx.broker.pending_dead_letters(1).await.expect("answered").remove(0);
    assert_eq!(letter.id.task, id);
    let rows: Vec<_> = letter
        .history
        .iter()
        .map(|attempt| (attempt.epoch, attempt.outcome.as_str(), attempt.worker.as_str()))
        .collect();
    let expected = [
        (1, "failure", "first"),
        (2, "visibility_timeout", "second"),
        (3, "rate_limited", "third"),
        (4, "permanent", "fourth"),
    ];
    assert_eq!(rows, expected);
    assert_eq!((letter.history[3].code.as_str(), letter.error.as_str()), ("impossible", "it can never work"));
}

async fn a_long_history_keeps_its_end(fx: &Fixture) {
    fx.set(|policy| policy.retry.max_retries = 40).await;
    let id: TaskId = fx.add("a").await;
    for _ in 0..30 {
        fx.fail_and_wait(&fx.claim_one().await).await;
    }
    fx.settle(&fx.claim_one().await, permanent()).await;
    let letter = fx.broker.pending_dead_letters(1).await.expect("answered").remove(0);
    assert_eq!((letter.id.task, letter.retry_count), (id, 30));
    let epochs: Vec<u64> = letter.history.iter().map(|attempt| attempt.epoch).collect();
    assert_eq!(epochs, (12..=31).collect::<Vec<_>>(), "the last twenty, oldest first");
}

async fn a_long_error_is_cut_and_not_refused(fx: &Fixture) {
    let task = fx.running("a").await;
    let error = "ü".repeat(100_000);
    fx.settle(&task, Outcome::Failure { error, code: "long".to_owned() }).await;
    let kept = fx.view(&task.lease.task).await.error.expect("an error");
    assert!(kept.len() <= windlass::broker::MAX_ERROR_BYTES && kept.len() > 1000, "{}", kept.len());
    assert!(kept.chars().all(|letter| letter == 'ü'), "no half characters");
}

async fn a_long_error_does_not_break_the_dead_letter(fx: &Fixture) {
    for shift in ["", "x", "xx", "xxx"] {
        let task = fx.running("a").await;
        let error = format!("{shift}{}", "ü€😀".repeat(3000));
        fx.settle(&task, Outcome::Permanent { error: error.clone(), code: error }).await;
        let letter = fx.broker.pending_dead_letters(1).await.expect("answered").remove(0);
        assert!(letter.error.starts_with(shift) && letter.error.contains('😀'));
        assert!(!letter.history[0].error.contains('\u{fffd}'), "no half characters in its history");
        fx.broker.record_dead_letter(&letter.id).await.expect("answered");
        assert_eq!(fx.letter(&letter.id).await.letter, letter);
    }
}

async fn counts_go_on_past_every_size_of_a_number(fx: &Fixture) {
    fx.set(|policy| {
        (policy.retry.max_retries, policy.retry.max_releases) = (1000, 1000);
        policy.retry.max_crashes = 1000;
        policy.retry.backoff.strategy = Strategy::Fixed { base_ms: 0 };
        policy.retry.deadline = Duration::from_secs(1_000_000);
    })
    .await;
    let id = fx.add("a").await;
    for attempt in 1..=270 {
        let running = fx.claim_one().await;
        assert_eq!((running.lease.epoch.0, running.retry_count), (attempt, (attempt - 1) as u32));
        fx.fail_and_wait(&running).await;
    }
    for release in 1..=130 {
        let running = fx.claim_one().await;
        assert_eq!(running.release_count, release - 1);
        fx.settle(&running, released()).await;
    }
    for crash in 1..=130 {
        let running = fx.claim_one().await;
        assert_eq!(running.crash_count, crash - 1);
        fx.broker.reclaim_from(&worker_id("w1"), RetryReason::PodGone).await.expect("answered");
    }
    let last = fx.claim_one().await;
    assert_eq!(last.lease.epoch.0, 531);
    assert_eq!((last.retry_count, last.crash_count, last.release_count), (270, 130, 130));
    fx.succeed(&last).await;
    assert_eq!(counts(&fx.view(&id).await), (270, 130, 130));
}

/// A type may be named after a version or a customer: types come and go for ever.
async fn lanes_that_hold_nothing_any_more_cost_nobody_a_place(fx: &Fixture) {
    fx.set(|policy| policy.limits.lanes = 30).await;
    let fill = async |round: &str| {
        for number in 0..30 {
            fx.add(&format!("{round}-{number}")).await;
        }
        let refused = fx.broker.enqueue(&[task("one-too-many")]).await.expect_err("the lanes are many");
        assert!(refused.to_string().contains("30 lanes"), "{refused}");
    };
    fill("v1").await;
    fx.sweep().await;
    fx.broker.enqueue(&[task("still")]).await.expect_err("what waits keeps its lane");
    let tasks = fx.claim(30).await;
    fx.sweep().await;
    fx.broker.enqueue(&[task("still")]).await.expect_err("what runs keeps its lane");
    let (retried, rest) = tasks.split_first().expect("thirty");
    for task in rest {
        fx.succeed(task).await;
    }
    fx.settle(retried, released()).await;
    fx.sweep().await;
    fill("v2").await;
    assert_eq!(fx.drain_ids().await.len(), 31, "the one that was released first, and thirty more");
    let again = fx.broker.enqueue(&[task("v1-7")]).await;
    again.expect_err("what runs keeps its lane");
    fx.expire_all().await;
    for task in fx.claim(100).await {
        fx.succeed(&task).await;
    }
    fx.sweep().await;
    let id = fx.add("v1-7").await;
    assert_eq!(fx.claim_one().await.lease.task, id, "a lane that went is made again");
}

suite! {
    lanes_that_hold_nothing_any_more_cost_nobody_a_place,
    counts_go_on_past_every_size_of_a_number,
    failures_are_bounded,
    lost_workers_are_counted_apart_and_bounded,
    releases_are_counted_apart_and_bounded,
    rate_limits_cost_no_attempt_and_are_bounded_too,
    a_rate_limit_without_a_time_waits_as_the_policy_says,
    each_count_stays_its_own,
    a_tasks_own_retry_limit_goes_before_the_queues,
    a_permanent_error_is_tried_no_more,
    a_retry_that_would_come_after_the_deadline_does_not_come,
    a_late_success_is_still_a_success,
    the_history_of_a_dead_letter_says_how_each_attempt_ended,
    a_long_history_keeps_its_end,
    a_long_error_is_cut_and_not_refused,
    a_long_error_does_not_break_the_dead_letter,
}
