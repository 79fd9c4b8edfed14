//! Dead letters run again: what was asked for, once, and not in circles.

use std::collections::HashSet;
use std::num::NonZeroU32;
use std::time::Duration;

use tokio::time::Instant;
use windlass::broker::{ErrorClass, Outcome, Review};
use windlass::dead_letters::{DeadLetterFilter, Guard, Replay, ReplayCounts, ReplayOutcome, Run, Selection, Verdict};
use windlass::protocol::names::DeadLetterId;
use windlass::protocol::policy::{IdempotencyScope, Mode, Policy};
use windlass::protocol::state::State;
use windlass::protocol::task::{Extras, NewTask, Payload};

use super::rig::{Rig, send, tasks};

fn all() -> Selection {
    Selection::Matching(DeadLetterFilter::default())
}

async fn replay(rig: &Rig, replay: &Replay) -> (ReplayCounts, Vec<(DeadLetterId, ReplayOutcome)>) {
    let mut told = Vec::new();
    let letters = rig.letters();
    let report = letters.replay(replay, |step| {
        told.push((step.id.clone(), step.outcome.clone()));
        assert_eq!(step.done, told.len());
        assert!(step.done <= step.total);
    });
    let report = report.await.expect("it began");
    assert!(report.stopped.is_none(), "{:?}", report.stopped);
    rig.lead().await;
    (report.counts, told)
}

/// Closes: pg-boss#874, a replay that loses options.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replay_keeps_every_option_and_resets_the_counters() {
    let mut policy = Policy::default();
    policy.idempotency.scope = IdempotencyScope::Live;
    let rig = Rig::new(policy).await;
    let old = NewTask {
        payload: Payload::from_json(r#"{ "odd":  1.00000000000000000001 }"#).expect("JSON"),
        priority: Some(9),
        idempotency_key: Some("order 7".parse().expect("valid")),
        tenant_id: Some("acme".parse().expect("valid")),
        trace_id: Some("00-4bf92f-01".parse().expect("valid")),
        max_retries: Some(7),
        extras: Extras {
            labels: [("team".to_owned(), "söhne".to_owned())].into(),
            parent_id: Some("parent".parse().expect("valid")),
            timeout_ms: Some(1500),
            replay_of: None,
        },
        ..NewTask::new("render".parse().expect("valid"), serde_json::json!(null))
    };
    rig.die(std::slice::from_ref(&old), |_| "no".to_owned()).await;
    let id = rig.ids().await.remove(0);
    let request = Replay { reason: Some("the printer is back".to_owned()), ..Replay::new(all(), "ada") };
    let (counts, told) = replay(&rig, &request).await;
    assert_eq!(counts, ReplayCounts { selected: 1, replayed: 1, ..ReplayCounts::default() });
    let ReplayOutcome::Replayed { task } = &told[0].1 else { panic!("{told:?}") };
    let new = rig.broker().get(task).await.expect("answered").expect("it is there");
    assert_eq!(
        (&new.task_type, new.payload.as_ref(), Some(new.priority)),
        (&old.task_type, Some(&old.payload), old.priority)
    );
    assert_eq!((&new.idempotency_key, &new.tenant_id), (&old.idempotency_key, &old.tenant_id));
    assert_eq!((&new.trace_id, new.max_retries), (&old.trace_id, old.max_retries));
    assert_eq!(new.extras, Extras { replay_of: Some(id.to_string()), ..old.extras });
    assert_eq!((new.state, new.retry_count, new.crash_count, new.epoch.0), (State::Queued, 0, 0, 0));

    // The old one says what it was replayed as, and who did it; and so does the history.
    assert_eq!(rig.broker().get(&old.id).await.expect("answered").expect("there").replayed_as.as_ref(), Some(task));
    let entry = rig.letters().show(&id).await.expect("answered").expect("there");
    let Review::Replayed { task: noted, by } = entry.review else { panic!("{:?}", entry.review) };
    assert_eq!((&noted, by.person.as_str(), by.reason.as_deref()), (task, "ada", Some("the printer is back")));
    let last = rig.history(&old.id).await.pop().expect("events");
    assert_eq!((last.event_type.as_str(), last.trace_id.as_ref()), ("dlq.replayed", old.trace_id.as_ref()));
    let recorded = rig.log().dead_letter(&rig.ground.name, &id).await.expect("answered").expect("there");
    assert_eq!((recorded.decision, recorded.replayed_as.as_ref()), (Verdict::Replayed, Some(task)));
    let said = rig.log().reviews(&rig.ground.name, &id).await.expect("answered");
    assert_eq!((said.len(), said[0].decision.new_task.as_ref()), (1, Some(task)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dry_run_says_what_would_be_done_and_changes_nothing() {
    for rig in [Rig::new(Policy::default()).await, Rig::without_log(Policy::default()).await] {
        rig.die(&tasks(50), |_| "no".to_owned()).await;
        let ids = rig.ids().await;
        let real = Replay { limit: Some(10), ..Replay::new(all(), "ada") };
        assert_eq!(replay(&rig, &real).await.0.replayed, 10);
        let before = (rig.broker().counts().await.expect("counted"), rig.ids().await);
        let dump: u64 = rig.server.query(&["DBSIZE"]).await;
        let dry = Replay { run: Run::Dry, ..Replay::new(Selection::Ids(ids.clone()), "ada") };
        let (counts, told) = replay(&rig, &dry).await;
        let expected = ReplayCounts { selected: 50, would_replay: 40, already_replayed: 10, ..ReplayCounts::default() };
        assert_eq!(counts, expected);
        let mut after = rig.broker().counts().await.expect("counted");
        after.sampled_at = before.0.sampled_at;
        after.longest_silence = before.0.longest_silence;
        assert_eq!((after, rig.ids().await), before);
        assert_eq!(rig.server.query::<u64>(&["DBSIZE"]).await, dump);
        // What it said is what happens.
        let (counts, really) = replay(&rig, &Replay { run: Run::Real, ..dry }).await;
        assert_eq!((counts.replayed, counts.already_replayed), (40, 10));
        for ((id, would), (same, did)) in told.iter().zip(&really) {
            assert_eq!(id, same);
            if let (ReplayOutcome::WouldReplay { task: a }, ReplayOutcome::Replayed { task: b }) = (would, did) {
                assert_eq!(a, b);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_filter_replays_what_it_lets_through_oldest_first_and_up_to_the_limit() {
    for rig in [Rig::new(Policy::default()).await, Rig::without_log(Policy::default()).await] {
        let odd = |task: &windlass::broker::ClaimedTask| {
            let n = task.payload.parse::<serde_json::Value>().expect("JSON")["n"].as_u64().expect("a number");
            if n % 2 == 1 { "the odd cause".to_owned() } else { "the even cause".to_owned() }
        };
        rig.die(&tasks(40), odd).await;
        let causes =
            rig.letters().causes(&DeadLetterFilter::default(), Default::default(), 10).await.expect("answered");
        let cause = causes.items.iter().find(|cause| cause.sample_error.contains("odd")).expect("there");
        let filter = DeadLetterFilter { fingerprint: Some(cause.fingerprint.clone()), ..DeadLetterFilter::default() };
        let request = Replay { limit: Some(5), ..Replay::new(Selection::Matching(filter.clone()), "ada") };
        let (counts, told) = replay(&rig, &request).await;
        assert_eq!((counts.selected, counts.replayed), (5, 5));
        let mut oldest: Vec<_> =
            rig.all(&rig.letters(), &filter).await.into_iter().map(|entry| entry.letter.id).collect();
        oldest.reverse();
        assert_eq!(told.iter().map(|(id, _)| id).collect::<Vec<_>>(), oldest[..5].iter().collect::<Vec<_>>());
        // Without a limit, the rest; those before are decided on and not meant.
        let (counts, _) = replay(&rig, &Replay { limit: None, ..request }).await;
        assert_eq!((counts.selected, counts.replayed), (15, 15));
        assert_eq!(rig.broker().counts().await.expect("counted").dead_lettered, 20, "the even ones stay");
    }
}

/// Closes: a replay by filter that turns in circles.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_failed_again_the_same_way_is_left_alone_unless_forced() {
    for rig in [Rig::new(Policy::default()).await, Rig::without_log(Policy::default()).await] {
        rig.die(&tasks(6), |task| format!("user {} has no address", task.lease.task)).await;
        assert_eq!(replay(&rig, &Replay::new(all(), "ada")).await.0.replayed, 6);
        // Half of them fail as before, half of something new.
        let count = std::sync::atomic::AtomicUsize::new(0);
        let died = rig.work(|task| {
            let n = count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let new = format!("HTTP 500 from {}", task.lease.task);
            let old = format!("user {} has no address", task.lease.task);
            Outcome::permanent("failed", if n.is_multiple_of(2) { old } else { new })
        });
        assert_eq!(died.await, 6);
        let dry = Replay { run: Run::Dry, ..Replay::new(all(), "ada") };
        assert_eq!(replay(&rig, &dry).await.0.failed_again, 3, "a dry run tells as well");
        let (counts, told) = replay(&rig, &Replay::new(all(), "ada")).await;
        assert_eq!((counts.selected, counts.replayed, counts.failed_again), (6, 3, 3));
        let guarded = told.iter().filter(|(_, outcome)| matches!(outcome, ReplayOutcome::FailedAgain { times: 1 }));
        let guarded: Vec<_> = guarded.map(|(id, _)| id.clone()).collect();
        assert_eq!(guarded.len(), 3);
        // Those three, replayed, die of their first cause: an ancestor died of it.
        assert_eq!(
            rig.work(|task| Outcome::permanent("failed", format!("user {} has no address", task.lease.task))).await,
            3
        );
        let (counts, _) = replay(&rig, &Replay::new(all(), "ada")).await;
        assert_eq!((counts.selected, counts.failed_again), (6, 6));
        // A corrected payload is something new; and force is force.
        let payload = Some(Payload::from_json(r#"{"n":0,"address":"here"}"#).expect("JSON"));
        let corrected =
            Replay { payload: payload.clone(), ..Replay::new(Selection::Ids(vec![guarded[0].clone()]), "ada") };
        let (counts, told) = replay(&rig, &corrected).await;
        assert_eq!(counts.replayed, 1);
        let ReplayOutcome::Replayed { task } = &told[0].1 else { panic!("{told:?}") };
        assert_eq!(rig.broker().get(task).await.expect("answered").expect("there").payload, payload);
        let forced = Replay { guard: Guard::Off, ..Replay::new(all(), "ada") };
        assert_eq!(replay(&rig, &forced).await.0.replayed, 5);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replay_that_makes_no_sense_is_refused_and_changes_nothing() {
    let rig = Rig::without_log(Policy::default()).await;
    rig.die(&tasks(2), |_| "no".to_owned()).await;
    let payload = Some(Payload::from_json("1").expect("JSON"));
    let ids = rig.ids().await;
    for bad in [
        Replay { payload: payload.clone(), ..Replay::new(all(), "ada") },
        Replay { payload, ..Replay::new(Selection::Ids(ids.clone()), "ada") },
        Replay::new(all(), " "),
    ] {
        let error = rig.letters().replay(&bad, |_| ()).await.expect_err("refused");
        assert_eq!(error.class(), ErrorClass::Invalid, "{error}");
    }
    // What stops it half way is told, with what was done before.
    rig.broker()
        .provision(
            &crate::support::owner(),
            &Policy { mode: Mode::Closed, ..rig.broker().policy().await.expect("read") },
        )
        .await
        .expect("closed");
    let report = rig.letters().replay(&Replay::new(all(), "ada"), |_| ()).await.expect("it began");
    assert!(report.stopped.is_some_and(|error| error.class() == ErrorClass::Invalid));
    assert_eq!(rig.broker().counts().await.expect("counted").dead_lettered, 2);
    // Named twice, or not there.
    let twice = Selection::Ids(vec![ids[0].clone(), ids[0].clone(), "gone#1".parse().expect("valid")]);
    rig.broker()
        .provision(
            &crate::support::owner(),
            &Policy { mode: Mode::Running, ..rig.broker().policy().await.expect("read") },
        )
        .await
        .expect("open");
    let (counts, _) = replay(&rig, &Replay::new(twice, "ada")).await;
    assert_eq!((counts.selected, counts.replayed, counts.unknown), (2, 1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_another_live_task_holds_is_told_and_the_letter_stays() {
    let rig = Rig::new(Policy::default()).await;
    let keyed = |n| NewTask { idempotency_key: Some("order 7".parse().expect("valid")), ..send(n) };
    rig.die(&[keyed(1)], |_| "no".to_owned()).await;
    let holder = keyed(2);
    rig.broker().enqueue(std::slice::from_ref(&holder)).await.expect("taken");
    let (counts, told) = replay(&rig, &Replay::new(all(), "ada")).await;
    assert_eq!((counts.taken, &told[0].1), (1, &ReplayOutcome::KeyTaken { by: holder.id }));
    assert_eq!(rig.broker().counts().await.expect("counted").dead_lettered, 1);
}

/// The time is a lower bound only: a slow machine passes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rate_limit_spreads_new_tasks_over_time() {
    let rig = Rig::without_log(Policy::default()).await;
    rig.die(&tasks(20), |_| "no".to_owned()).await;
    let since = Instant::now();
    let mut moments = Vec::new();
    let slow = Replay { per_second: NonZeroU32::new(20), ..Replay::new(all(), "ada") };
    let report = rig.letters().replay(&slow, |_| moments.push(since.elapsed())).await.expect("it began");
    assert_eq!(report.counts.replayed, 20);
    for (n, moment) in moments.iter().enumerate() {
        let earliest = Duration::from_millis(50 * n as u64).saturating_sub(Duration::from_millis(5));
        assert!(*moment >= earliest, "the {n}th came after {moment:?}");
    }
}

/// Who replays may die anywhere: the same call again goes on and makes nothing twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replay_that_is_cut_off_and_repeated_by_many_makes_each_task_once() {
    for rig in [Rig::new(Policy::default()).await, Rig::without_log(Policy::default()).await] {
        rig.die(&tasks(400), |_| "no".to_owned()).await;
        let ids = rig.ids().await;
        let (mut cuts, mut made) = (0, 0);
        loop {
            let request = Replay::new(Selection::Ids(ids.clone()), "ada");
            let moment = Duration::from_millis(fastrand::u64(1..120));
            let people = (0..3)
                .map(|_| async { tokio::time::timeout(moment, rig.letters().replay(&request, |_| ())).await.ok() });
            let reports = futures::future::join_all(people).await;
            if reports.iter().all(Option::is_none) && cuts < 50 {
                cuts += 1;
                continue;
            }
            for report in reports.into_iter().flatten() {
                let report = report.expect("it began");
                assert!(report.stopped.is_none(), "{:?}", report.stopped);
                let counts = report.counts;
                assert_eq!(counts.replayed + counts.already_replayed, 400, "{counts:?}");
                made += 1;
            }
            if made > 0 || cuts >= 50 {
                break;
            }
        }
        let (counts, told) = replay(&rig, &Replay::new(Selection::Ids(ids.clone()), "bob")).await;
        assert_eq!(counts.replayed + counts.already_replayed, 400);
        let new: HashSet<_> = told
            .iter()
            .map(|(_, outcome)| match outcome {
                ReplayOutcome::Replayed { task } | ReplayOutcome::AlreadyReplayed { task } => task.clone(),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(new.len(), 400);
        assert_eq!(rig.broker().counts().await.expect("counted").backlog, 400, "each runs once");
        if let Some(log) = &rig.log {
            let mut decided = 0;
            for id in &ids {
                decided += log.reviews(&rig.ground.name, id).await.expect("answered").len();
            }
            assert_eq!(decided, 400, "and each decision is recorded once");
        }
        println!("cut {cuts} times");
    }
}

/// What dies while the replay runs is not replayed by it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replay_by_filter_ends_though_everything_dies_again_at_once() {
    let rig = std::sync::Arc::new(Rig::new(Policy::default()).await);
    rig.die(&tasks(100), |_| "no".to_owned()).await;
    let killer = tokio::spawn({
        let rig = rig.clone();
        async move {
            loop {
                rig.work(|_| Outcome::permanent("failed", "no")).await;
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    });
    let forced = Replay { guard: Guard::Off, ..Replay::new(all(), "ada") };
    let report = rig.letters().replay(&forced, |_| ()).await.expect("it began");
    killer.abort();
    assert_eq!((report.counts.selected, report.counts.replayed), (100, 100));
}

#[tokio::test]
async fn a_replay_can_be_spawned() {
    fn sendable<T: Send>(_: &T) {}
    let rig = Rig::without_log(Policy::default()).await;
    let letters = rig.letters();
    let request = Replay::new(all(), "ada");
    sendable(&letters.replay(&request, |_| ()));
    sendable(&letters.discard(&windlass::dead_letters::Discard::new(all(), "ada", "no"), |_| ()));
    sendable(&letters.causes(&DeadLetterFilter::default(), Default::default(), 1));
}
