//! Outside effects happen at most once, and how far an attempt has come can be seen.

use std::time::Duration;

use serde_json::json;
use windlass::broker::{
    BrokerError, ClaimedTask, Doubt, EffectAbandoned, EffectBegun, EffectCommitted, EffectMark, EffectRequest,
    ErrorClass, Extended, MAX_PROGRESS_BYTES, Standing,
};
use windlass::protocol::names::{DeadLetterId, IdempotencyKey, TenantId};
use windlass::protocol::policy::EventRecording;
use windlass::{NewTask, Payload};

use super::fixture::{Fixture, failure, permanent, success, task, worker_id};

fn key(name: &str) -> IdempotencyKey {
    name.parse().expect("a valid key")
}

fn answer(n: u32) -> Payload {
    json!({ "n": n }).into()
}

async fn begin(fx: &Fixture, task: &ClaimedTask, name: &str) -> EffectBegun {
    begin_as(fx, task, name, Standing::Own).await
}

async fn begin_as(fx: &Fixture, task: &ClaimedTask, name: &str, standing: Standing<'_>) -> EffectBegun {
    let (key, mark) = (key(name), EffectMark::generate());
    let request = EffectRequest { lease: &task.lease, key: &key, mark: &mark, standing };
    fx.broker.begin_effect(&request).await.expect("answered")
}

async fn commit(fx: &Fixture, task: &ClaimedTask, name: &str, n: u32) -> EffectCommitted {
    commit_as(fx, task, name, n, Standing::Own).await
}

async fn commit_as(fx: &Fixture, task: &ClaimedTask, name: &str, n: u32, standing: Standing<'_>) -> EffectCommitted {
    fx.broker.commit_effect(&task.lease, &key(name), &answer(n), standing).await.expect("answered")
}

async fn doubt(fx: &Fixture, task: &ClaimedTask, name: &str) -> Doubt {
    match begin(fx, task, name).await {
        EffectBegun::InDoubt(doubt) => doubt,
        other => panic!("{other:?} is no doubt"),
    }
}

/// An attempt that began an effect and died, and the next attempt at the same task.
async fn died_in_the_middle(fx: &Fixture, name: &str) -> (ClaimedTask, ClaimedTask) {
    fx.add("a").await;
    let first = fx.claim_one_as("old").await;
    assert_eq!(begin(fx, &first, name).await, EffectBegun::Begin);
    fx.expire_all().await;
    (first, fx.claim_one_as("new").await)
}

async fn an_effect_begins_once_and_its_answer_is_replayed(fx: &Fixture) {
    let task = fx.running("a").await;
    assert_eq!(begin(fx, &task, "charge").await, EffectBegun::Begin);
    assert_eq!(commit(fx, &task, "charge", 1).await, EffectCommitted::Committed);
    let kept = EffectCommitted::AlreadyCommitted { answer: answer(1) };
    assert_eq!(commit(fx, &task, "charge", 2).await, kept, "the first answer stays");
    fx.fail_and_wait(&task).await;
    let again = fx.claim_one().await;
    assert_eq!(begin(fx, &again, "charge").await, EffectBegun::Done { answer: answer(1) });
    assert_eq!(begin(fx, &again, "mail").await, EffectBegun::Begin, "another effect");
    fx.succeed(&again).await;
    let other = fx.running("b").await;
    let done = EffectBegun::Done { answer: answer(1) };
    assert_eq!(begin(fx, &other, "charge").await, done, "the key holds in the whole queue");
}

/// The question can be repeated after a lost answer without casting doubt on itself.
async fn a_repeated_question_is_answered_as_before(fx: &Fixture) {
    let task = fx.running("a").await;
    let (key, mark) = (key("charge"), EffectMark::generate());
    let request = EffectRequest { lease: &task.lease, key: &key, mark: &mark, standing: Standing::Own };
    for _ in 0..3 {
        assert_eq!(fx.broker.begin_effect(&request).await.expect("answered"), EffectBegun::Begin);
    }
    let doubt = doubt(fx, &task, "charge").await;
    assert_eq!((&doubt.task, doubt.epoch), (&task.lease.task, task.lease.epoch), "but another call is another call");
}

async fn an_attempt_that_died_in_the_middle_leaves_a_doubt(fx: &Fixture) {
    let (first, second) = died_in_the_middle(fx, "charge").await;
    let doubt = doubt(fx, &second, "charge").await;
    assert_eq!((&doubt.task, doubt.epoch), (&first.lease.task, first.lease.epoch));
    assert_eq!(doubt.worker, Some(worker_id("old")));
    assert!(doubt.since < fx.now());
    assert!(matches!(begin(fx, &second, "charge").await, EffectBegun::InDoubt(_)), "asking does not resolve it");
}

async fn only_who_has_checked_goes_on_after_a_doubt(fx: &Fixture) {
    let (_, second) = died_in_the_middle(fx, "charge").await;
    let doubt = doubt(fx, &second, "charge").await;
    assert_eq!(begin_as(fx, &second, "charge", Standing::Checked(&doubt)).await, EffectBegun::Begin);
    let again = begin_as(fx, &second, "charge", Standing::Checked(&doubt)).await;
    assert!(matches!(again, EffectBegun::InDoubt(_)), "one check, one beginning: {again:?}");
    assert_eq!(commit(fx, &second, "charge", 2).await, EffectCommitted::Committed);
}

async fn a_check_that_found_the_effect_done_keeps_its_answer(fx: &Fixture) {
    let (first, second) = died_in_the_middle(fx, "charge").await;
    assert_eq!(commit(fx, &second, "charge", 9).await, EffectCommitted::Superseded, "it has begun nothing");
    let doubt = doubt(fx, &second, "charge").await;
    let checked = commit_as(fx, &second, "charge", 1, Standing::Checked(&doubt)).await;
    assert_eq!(checked, EffectCommitted::Committed);
    let kept = EffectCommitted::AlreadyCommitted { answer: answer(1) };
    assert_eq!(commit(fx, &first, "charge", 7).await, kept, "a late answer changes nothing");
    assert_eq!(begin(fx, &second, "charge").await, EffectBegun::Done { answer: answer(1) });
}

async fn a_commit_counts_though_the_lease_is_lost(fx: &Fixture) {
    let (first, second) = died_in_the_middle(fx, "charge").await;
    assert_eq!(commit(fx, &first, "charge", 1).await, EffectCommitted::Committed, "it did happen");
    assert_eq!(begin(fx, &second, "charge").await, EffectBegun::Done { answer: answer(1) });
    fx.succeed(&second).await;
    assert!(matches!(commit(fx, &first, "charge", 1).await, EffectCommitted::AlreadyCommitted { .. }));
}

async fn a_commit_after_somebody_else_began_is_superseded(fx: &Fixture) {
    let (first, second) = died_in_the_middle(fx, "charge").await;
    let doubt = doubt(fx, &second, "charge").await;
    begin_as(fx, &second, "charge", Standing::Checked(&doubt)).await;
    assert_eq!(commit(fx, &first, "charge", 1).await, EffectCommitted::Superseded);
    let stale = commit_as(fx, &first, "charge", 1, Standing::Checked(&doubt)).await;
    assert_eq!(stale, EffectCommitted::Superseded, "a doubt that was resolved resolves nothing");
    assert_eq!(commit(fx, &second, "charge", 2).await, EffectCommitted::Committed);
}

/// closes: taskiq-redis#101, dapr#4599 (two at the same work)
async fn who_lost_the_lease_begins_nothing(fx: &Fixture) {
    let lost = fx.running("a").await;
    fx.expire_all().await;
    assert_eq!(begin(fx, &lost, "charge").await, EffectBegun::LeaseLost);
    let fresh = fx.claim_one_as("new").await;
    assert_eq!(begin(fx, &lost, "charge").await, EffectBegun::LeaseLost);
    assert_eq!(begin(fx, &fresh, "charge").await, EffectBegun::Begin);
    assert_eq!(begin(fx, &lost, "charge").await, EffectBegun::LeaseLost, "nor does it learn of a doubt");
    let nothing = fx.running("b").await;
    assert_eq!(commit(fx, &nothing, "mail", 1).await, EffectCommitted::Unknown, "nothing was begun");
}

async fn an_effect_that_did_not_happen_begins_anew(fx: &Fixture) {
    let task = fx.running("a").await;
    let give_up =
        async |task: &ClaimedTask| fx.broker.abandon_effect(&task.lease, &key("charge")).await.expect("answered");
    assert_eq!(give_up(&task).await, EffectAbandoned::NotOurs, "nothing was begun");
    begin(fx, &task, "charge").await;
    assert_eq!(give_up(&task).await, EffectAbandoned::Abandoned);
    assert_eq!(begin(fx, &task, "charge").await, EffectBegun::Begin);
    let other = fx.running("b").await;
    assert_eq!(give_up(&other).await, EffectAbandoned::NotOurs);
    commit(fx, &task, "charge", 1).await;
    assert_eq!(give_up(&task).await, EffectAbandoned::NotOurs, "what is done stays done");
}

async fn tenants_do_not_share_effects(fx: &Fixture) {
    let tenant = |name: &str| Some(TenantId::new(name).expect("a valid tenant"));
    for name in ["one", "two", "three words"] {
        fx.enqueue(NewTask { tenant_id: tenant(name), ..task("a") }).await;
    }
    fx.add("a").await;
    for (n, task) in fx.claim(4).await.iter().enumerate() {
        assert_eq!(begin(fx, task, "charge").await, EffectBegun::Begin);
        assert_eq!(commit(fx, task, "charge", n as u32).await, EffectCommitted::Committed);
        assert_eq!(begin(fx, task, "charge").await, EffectBegun::Done { answer: answer(n as u32) });
    }
}

async fn an_effect_is_remembered_for_as_long_as_results_and_while_its_task_may_run(fx: &Fixture) {
    fx.set(|policy| {
        policy.retention.succeeded = Duration::from_secs(10);
        policy.retry.deadline = Duration::from_secs(1000);
    })
    .await;
    let task = fx.running("a").await;
    begin(fx, &task, "charge").await;
    commit(fx, &task, "charge", 1).await;
    fx.succeed(&task).await;
    fx.advance(Duration::from_secs(999));
    let later = fx.running("b").await;
    assert!(matches!(begin(fx, &later, "charge").await, EffectBegun::Done { .. }), "a late attempt could still come");
    fx.advance(Duration::from_secs(1));
    assert_eq!(begin(fx, &later, "charge").await, EffectBegun::Begin);
    fx.set(|policy| policy.retry.deadline = Duration::from_secs(1)).await;
    commit(fx, &later, "charge", 2).await;
    fx.advance(Duration::from_secs(9));
    let other = fx.running("c").await;
    assert!(matches!(begin(fx, &other, "charge").await, EffectBegun::Done { .. }), "as results are");
    fx.advance(Duration::from_secs(1));
    assert_eq!(commit(fx, &later, "charge", 3).await, EffectCommitted::Unknown);
}

async fn an_answer_over_the_bound_is_refused_with_a_sentence(fx: &Fixture) {
    fx.set(|policy| policy.limits.result_bytes = 10).await;
    let task = fx.running("a").await;
    begin(fx, &task, "charge").await;
    let large: Payload = json!("a long answer").into();
    let refused = fx.broker.commit_effect(&task.lease, &key("charge"), &large, Standing::Own).await;
    let Err(error @ BrokerError::Invalid(_)) = refused else { panic!("{refused:?}") };
    assert!(error.to_string().contains("has 15 bytes and this queue keeps at most 10"), "{error}");
    assert!(matches!(begin(fx, &task, "charge").await, EffectBegun::InDoubt(_)), "nothing was kept");
}

async fn progress_is_seen_while_the_task_lives(fx: &Fixture) {
    let report =
        async |task: &ClaimedTask, n: u32| fx.broker.report_progress(&task.lease, &answer(n)).await.expect("answered");
    let first = fx.running("a").await;
    let id = &first.lease.task;
    assert_eq!(fx.view(id).await.progress, None);
    assert_eq!(report(&first, 1).await, Extended::Renewed);
    assert_eq!(report(&first, 2).await, Extended::Renewed);
    assert_eq!(fx.view(id).await.progress, Some(answer(2)));
    fx.fail_and_wait(&first).await;
    assert_eq!(fx.view(id).await.progress, Some(answer(2)), "what was told last");
    assert_eq!(report(&first, 3).await, Extended::Lost);
    let second = fx.claim_one().await;
    assert_eq!(report(&second, 4).await, Extended::Renewed);
    assert_eq!(report(&first, 5).await, Extended::Lost, "a late worker tells nothing");
    assert_eq!(fx.view(id).await.progress, Some(answer(4)));
    fx.succeed(&second).await;
    assert_eq!(fx.view(id).await.progress, None, "a result takes its place");
    assert_eq!(report(&second, 6).await, Extended::Lost);
}

async fn progress_goes_with_its_task_whatever_its_end(fx: &Fixture) {
    let [done, dead, cancelled] = [fx.running("a").await, fx.running("b").await, fx.running("c").await];
    for task in [&done, &dead, &cancelled] {
        fx.broker.report_progress(&task.lease, &answer(1)).await.expect("answered");
    }
    fx.settle(&done, success()).await;
    fx.settle(&dead, permanent()).await;
    assert_eq!(fx.view(&dead.lease.task).await.progress, Some(answer(1)), "until it is recorded");
    let letter = DeadLetterId { task: dead.lease.task.clone(), epoch: dead.lease.epoch };
    fx.broker.record_dead_letter(&letter).await.expect("the dead letter is recorded");
    fx.broker.cancel(&cancelled.lease.task, "not needed").await.expect("answered");
    let late = fx.broker.report_progress(&cancelled.lease, &answer(2)).await.expect("answered");
    assert_eq!(late, Extended::Cancelled);
    for task in [&done, &dead, &cancelled] {
        assert_eq!(fx.view(&task.lease.task).await.progress, None);
    }
    let again = fx.running("a").await;
    fx.settle(&again, failure()).await;
    assert_eq!(fx.view(&again.lease.task).await.progress, None);
}

async fn progress_is_bounded_with_a_sentence(fx: &Fixture) {
    let task = fx.running("a").await;
    let of = |bytes: usize| Payload::from(json!("x".repeat(bytes - 2)));
    let most = fx.broker.report_progress(&task.lease, &of(MAX_PROGRESS_BYTES)).await;
    assert_eq!(most.expect("it fits"), Extended::Renewed);
    let error = fx.broker.report_progress(&task.lease, &of(MAX_PROGRESS_BYTES + 1)).await.expect_err("too long");
    assert_eq!(error.class(), ErrorClass::Invalid);
    assert!(error.to_string().contains("4097 bytes and at most 4096 are kept"), "{error}");
}

/// For whoever records: that it happened, once, on whose behalf.
async fn an_effect_that_happened_goes_to_the_outbox_once(fx: &Fixture) {
    let mut new = task("a");
    new.tenant_id = Some("acme".parse().expect("valid"));
    new.trace_id = Some("t-1".parse().expect("valid"));
    fx.enqueue(new).await;
    let first = fx.claim_one_as("old").await;
    begin(fx, &first, "charge").await;
    assert!(fx.effects().await.is_empty(), "a beginning is no effect");
    fx.broker.abandon_effect(&first.lease, &key("charge")).await.expect("answered");
    begin(fx, &first, "charge").await;
    fx.expire_all().await;
    let second = fx.claim_one_as("new").await;
    assert_eq!(commit(fx, &first, "charge", 1).await, EffectCommitted::Committed, "its lease is lost, and it happened");
    assert!(matches!(commit(fx, &first, "charge", 1).await, EffectCommitted::AlreadyCommitted { .. }));
    assert!(matches!(begin(fx, &second, "charge").await, EffectBegun::Done { .. }));
    let all = fx.effects().await;
    let [effect] = &all[..] else { panic!("{all:?}") };
    assert_eq!((&effect.key, &effect.task, effect.epoch), (&key("charge"), &first.lease.task, first.lease.epoch));
    assert_eq!(effect.consumer, Some(worker_id("old").to_string()));
    assert_eq!((&effect.task_type, effect.retry_count), (&first.task_type, 0));
    assert_eq!((&effect.tenant_id, &effect.trace_id), (&first.tenant_id, &first.trace_id));
    assert_eq!((effect.created_at, effect.at), (first.created_at, fx.now()));
    fx.set(|policy| policy.events = EventRecording::Off).await;
    begin(fx, &second, "mail").await;
    assert_eq!(commit(fx, &second, "mail", 2).await, EffectCommitted::Committed);
    assert_eq!(fx.effects().await.len(), 1, "nobody records");
}

suite! {
    an_effect_that_happened_goes_to_the_outbox_once,
    an_effect_begins_once_and_its_answer_is_replayed,
    a_repeated_question_is_answered_as_before,
    an_attempt_that_died_in_the_middle_leaves_a_doubt,
    only_who_has_checked_goes_on_after_a_doubt,
    a_check_that_found_the_effect_done_keeps_its_answer,
    a_commit_counts_though_the_lease_is_lost,
    a_commit_after_somebody_else_began_is_superseded,
    who_lost_the_lease_begins_nothing,
    an_effect_that_did_not_happen_begins_anew,
    tenants_do_not_share_effects,
    an_effect_is_remembered_for_as_long_as_results_and_while_its_task_may_run,
    an_answer_over_the_bound_is_refused_with_a_sentence,
    progress_is_seen_while_the_task_lives,
    progress_goes_with_its_task_whatever_its_end,
    progress_is_bounded_with_a_sentence,
}
