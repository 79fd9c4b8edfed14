//! What is finished is kept for as long as the policy says, and never taken from somebody who has yet to read it.

use std::time::Duration;

use serde_json::json;
use windlass::broker::{Discarded, Outcome, QueueCounts, Replayed, RetainCursor, Settled};
use windlass::protocol::keys::AdoptedKeys;
use windlass::protocol::policy::{IdempotencyScope, Policy};
use windlass::{NewTask, State, TaskId};

use super::fixture::{Fixture, Kind, permanent, replay_of, success, task, task_id};

const DAY: Duration = Duration::from_secs(86_400);
const SECOND: Duration = Duration::from_secs(1);

fn keyed(key: &str) -> NewTask {
    NewTask { idempotency_key: Some(key.parse().expect("a key")), ..task("a") }
}

async fn succeeded(fx: &Fixture) -> TaskId {
    let running = fx.running("a").await;
    fx.succeed(&running).await;
    running.lease.task
}

async fn cancelled(fx: &Fixture) -> TaskId {
    let id = fx.add("a").await;
    fx.broker.cancel(&id, "not needed").await.expect("answered");
    id
}

fn days(succeeded: u32, failed: u32) -> impl FnOnce(&mut Policy) {
    move |policy| (policy.retention.succeeded, policy.retention.failed) = (DAY * succeeded, DAY * failed)
}

async fn each_state_is_kept_for_its_own_time(fx: &Fixture) {
    fx.set(days(1, 3)).await;
    let (good, gone, dead) = (succeeded(fx).await, cancelled(fx).await, fx.dead(task("a")).await);
    let known = async || [fx.knows(&good).await, fx.knows(&gone).await, fx.knows(&dead.task).await];
    let step = fx.retain().await;
    assert_eq!((step.results, step.dead_letters, step.next_in), (0, 0, Some(DAY)));
    fx.advance(DAY - SECOND);
    let step = fx.retain().await;
    assert_eq!((step.results, step.next_in), (0, Some(SECOND)));
    assert_eq!(known().await, [true; 3]);
    fx.advance(SECOND);
    let step = fx.retain().await;
    assert_eq!((step.results, step.dead_letters, step.next_in), (2, 0, Some(DAY * 2)));
    assert_eq!(known().await, [false, false, true]);
    assert!(fx.broker.dead_letter(&dead).await.expect("answered").is_some(), "kept until its time");
    fx.advance(DAY * 2);
    let step = fx.retain().await;
    assert_eq!((step.results, step.dead_letters, step.next_in), (1, 1, None));
    assert_eq!(known().await, [false; 3]);
    assert_eq!(fx.broker.dead_letter(&dead).await.expect("answered"), None);
    let counts = fx.counts().await;
    assert_eq!((counts.finished, counts.dead_lettered), (0, 0));
    assert_eq!(fx.retain().await.results, 0, "once");
}

async fn where_failures_are_kept_shorter_they_go_first(fx: &Fixture) {
    fx.set(days(3, 1)).await;
    let (good, dead) = (succeeded(fx).await, fx.dead(task("a")).await);
    fx.advance(DAY);
    let step = fx.retain().await;
    assert_eq!((step.results, step.dead_letters, step.next_in), (1, 1, Some(DAY * 2)));
    assert_eq!((fx.knows(&good).await, fx.knows(&dead.task).await), (true, false));
}

async fn what_is_kept_longer_holds_up_nothing_behind_it(fx: &Fixture) {
    fx.set(days(1, 5)).await;
    let mut step = fx.retain().await;
    for _ in 0..4 {
        let (dead, good) = (fx.dead(task("a")).await, succeeded(fx).await);
        fx.advance(DAY);
        step = fx.retain_from(step.cursor).await;
        assert_eq!((fx.knows(&dead.task).await, fx.knows(&good).await), (true, false));
    }
    for left in (0..4).rev() {
        fx.advance(DAY);
        step = fx.retain_from(step.cursor).await;
        assert_eq!((step.results, step.dead_letters), (1, 1), "each at its own time");
        assert_eq!(fx.counts().await.finished, left);
    }
    assert_eq!(step.next_in, None);
}

async fn a_shorter_time_counts_at_once(fx: &Fixture) {
    let (dead, good) = (fx.dead(task("a")).await, succeeded(fx).await);
    fx.advance(DAY);
    let step = fx.retain().await;
    assert_eq!(step.results, 0);
    fx.set(days(7, 1)).await;
    let step = fx.retain_from(step.cursor).await;
    assert_eq!((step.results, step.dead_letters), (1, 1));
    fx.set(days(0, 1)).await;
    assert_eq!(fx.retain_from(step.cursor).await.results, 1);
    assert_eq!((fx.knows(&dead.task).await, fx.knows(&good).await), (false, false));
}

async fn above_the_bound_the_oldest_go_whatever_their_state(fx: &Fixture) {
    fx.set(|policy| policy.retention.result_max_entries = 3).await;
    let dead = fx.dead(task("a")).await;
    let mut ids = vec![dead.task.clone()];
    for _ in 0..3 {
        ids.push(succeeded(fx).await);
        ids.push(cancelled(fx).await);
    }
    let step = fx.retain().await;
    assert_eq!((step.results, step.dead_letters), (4, 0));
    let mut known = Vec::new();
    for id in &ids {
        known.push(fx.knows(id).await);
    }
    assert_eq!(known, [false, false, false, false, true, true, true]);
    assert!(fx.broker.dead_letter(&dead).await.expect("answered").is_some(), "a dead letter stays to be decided on");
    let answer = fx.broker.replay(&replay_of(&dead, task_id("again"))).await.expect("answered");
    assert_eq!(answer, Replayed::Done { task: task_id("again") });
    fx.succeed(&fx.claim_one().await).await;
    assert_eq!(fx.retain_from(step.cursor).await.results, 1, "and so it goes on");
    assert!(!fx.knows(&ids[4]).await);
}

async fn a_bound_of_none_keeps_none(fx: &Fixture) {
    fx.set(|policy| policy.retention.result_max_entries = 0).await;
    let id = succeeded(fx).await;
    assert_eq!(fx.retain().await.results, 1);
    assert!(!fx.knows(&id).await);
}

async fn above_the_bound_in_bytes_the_oldest_go(fx: &Fixture) {
    fx.set(|policy| policy.retention.result_max_mebibytes = 1).await;
    let mut ids = Vec::new();
    for _ in 0..30 {
        let running = fx.running("a").await;
        let result = Some(json!("x".repeat(100_000)).into());
        assert_eq!(fx.settle(&running, Outcome::Success { result }).await, Settled::Succeeded);
        ids.push(running.lease.task);
    }
    let step = fx.retain().await;
    assert!((18..=24).contains(&step.results), "{} of 30 went", step.results);
    let memory: u64 = fx.redis(&["MEMORY", "USAGE", &fx.keys().result]).await;
    assert!(memory < 1_200_000, "{memory} bytes are left");
    assert!(memory > 600_000, "{memory} bytes are left");
    assert!(!fx.knows(&ids[0]).await && fx.knows(&ids[29]).await, "the oldest go");
    assert!(fx.retain_from(step.cursor).await.results <= 2, "what is within the bound stays");
}

async fn a_key_is_free_when_its_task_is_forgotten(fx: &Fixture) {
    fx.set(|policy| policy.idempotency.scope = IdempotencyScope::Retained).await;
    let mut firsts = Vec::new();
    for (key, outcome) in [("s", success()), ("f", permanent())] {
        let first = fx.enqueue(keyed(key)).await.id;
        let running = fx.claim_one().await;
        if fx.settle(&running, outcome).await == Settled::Dead {
            let letter = fx.broker.pending_dead_letters(1).await.expect("answered").remove(0).id;
            fx.broker.record_dead_letter(&letter).await.expect("answered");
        }
        firsts.push(first);
    }
    assert_eq!(fx.enqueue(keyed("s")).await.id, firsts[0]);
    fx.advance(DAY * 7);
    assert_eq!(fx.retain().await.results, 2);
    for (key, first) in ["s", "f"].iter().zip(&firsts) {
        let again = fx.enqueue(keyed(key)).await;
        assert!(again.created && again.id != *first, "{key}");
    }
    if fx.kind != Kind::Model {
        let held: Vec<String> = fx.redis(&["HVALS", &fx.key("idem")]).await;
        assert!(held.iter().all(|id| !firsts.iter().any(|first| first.as_str() == id)), "{held:?}");
    }
}

async fn a_key_that_stands_for_a_newer_task_is_left_alone(fx: &Fixture) {
    let dead = fx.dead(keyed("k")).await;
    let newer = fx.enqueue(keyed("k")).await;
    assert!(newer.created);
    fx.advance(DAY * 7);
    assert_eq!(fx.retain().await.results, 1);
    assert!(!fx.knows(&dead.task).await);
    assert_eq!(fx.enqueue(keyed("k")).await.id, newer.id);
}

async fn a_raw_producers_other_id_is_free_when_its_answer_is_forgotten(fx: &Fixture) {
    let sent = |id: &'static str| [("task_id", id), ("payload", "{}"), ("idempotency_key", "k")];
    fx.raw(&sent("first")).await;
    fx.raw(&sent("twin")).await;
    fx.succeed(&fx.claim_one().await).await;
    fx.advance(DAY);
    fx.raw(&sent("late")).await;
    fx.promote(10).await;
    assert_eq!(fx.view(&task_id("late")).await.id.as_str(), "first");
    fx.advance(DAY * 6);
    assert_eq!(fx.retain().await.results, 3, "one entry an id");
    for id in ["first", "twin", "late"] {
        assert!(!fx.knows(&task_id(id)).await, "{id}");
    }
    fx.raw(&sent("twin")).await;
    assert_eq!(fx.claim_one().await.lease.task.as_str(), "twin", "now it is a task of its own");
    if fx.kind != Kind::Model {
        let left: u64 = fx.redis(&["EXISTS", &fx.key("alias"), &fx.key("done")]).await;
        assert_eq!(left, 0);
    }
}

async fn an_id_that_was_forgotten_is_a_new_task(fx: &Fixture) {
    let first = fx.enqueue(NewTask { id: task_id("t"), ..keyed("k") }).await;
    let lease = fx.claim_one().await;
    fx.succeed(&lease).await;
    fx.advance(DAY * 7);
    fx.retain().await;
    assert_eq!(fx.settle(&lease, success()).await, Settled::Unknown, "the old lease is worth nothing");
    let again = fx.enqueue(NewTask { id: first.id.clone(), ..keyed("k") }).await;
    assert!(again.created);
    let newer = fx.claim_one().await;
    assert_eq!((&newer.lease.task, newer.lease.epoch), (&first.id, lease.lease.epoch));
    assert_eq!(fx.settle(&lease, success()).await, Settled::LeaseLost, "also when the numbers are the same");
    fx.succeed(&newer).await;
    assert_eq!(fx.results(&first.id).await, 1);
    assert_eq!(fx.retain().await.results, 0, "the newer one has its own time");
}

async fn a_dead_letter_whose_id_is_used_again_does_not_speak_for_the_newer_task(fx: &Fixture) {
    fx.set(|policy| policy.retention.result_max_entries = 0).await;
    let named = || NewTask { id: task_id("t"), ..task("a") };
    let first = fx.dead(named()).await;
    assert_eq!(
        fx.broker.replay(&replay_of(&first, task_id("r"))).await.expect("answered"),
        Replayed::Done { task: task_id("r") }
    );
    fx.succeed(&fx.claim_one().await).await;
    fx.retain().await;
    fx.enqueue(named()).await;
    fx.succeed(&fx.claim_one().await).await;
    let view = fx.view(&task_id("t")).await;
    assert_eq!((view.state, view.payload, view.replayed_as), (State::Succeeded, None, None));
    fx.retain().await;
    fx.advance(SECOND);
    let second = fx.dead(named()).await;
    assert_eq!(fx.view(&task_id("t")).await.replayed_as, None);
    let all = fx.broker.dead_letters(Default::default(), 10).await.expect("answered").items;
    assert_eq!(all.len(), 1, "the newer letter takes the older one's place");
    let answer = fx.broker.replay(&replay_of(&second, task_id("r2"))).await.expect("answered");
    assert_eq!(answer, Replayed::Done { task: task_id("r2") }, "and can be decided on");
    fx.advance(DAY * 7 - SECOND);
    assert_eq!(fx.retain().await.dead_letters, 1, "the older one at its time");
    assert!(fx.broker.dead_letter(&second).await.expect("answered").is_some());
    fx.advance(SECOND);
    assert_eq!(fx.retain().await.dead_letters, 1);
    assert_eq!(fx.broker.dead_letter(&second).await.expect("answered"), None);
}

async fn dead_letters_go_with_what_was_decided_about_them(fx: &Fixture) {
    fx.set(|policy| policy.discard_approvals = 2).await;
    let mut letters = Vec::new();
    for _ in 0..4 {
        letters.push(fx.dead(task("a")).await);
    }
    let discard = async |id: &windlass::protocol::names::DeadLetterId, person: &str| {
        let (dead_letter, person, reason) = (id.clone(), person.to_owned(), "obsolete".to_owned());
        let request = windlass::broker::DiscardRequest { dead_letter, person, reason };
        fx.broker.discard(&request).await.expect("answered")
    };
    discard(&letters[0], "ada").await;
    discard(&letters[1], "ada").await;
    assert_eq!(discard(&letters[1], "bob").await, Discarded::Done);
    fx.broker.replay(&replay_of(&letters[2], task_id("r"))).await.expect("answered");
    fx.advance(DAY * 7 - SECOND);
    assert_eq!(fx.retain().await.dead_letters, 0, "never before");
    fx.advance(SECOND);
    assert_eq!(fx.retain().await.dead_letters, 4);
    for letter in &letters {
        assert_eq!(fx.broker.dead_letter(letter).await.expect("answered"), None);
        assert_eq!(discard(letter, "eve").await, Discarded::Unknown);
        let answer = fx.broker.replay(&replay_of(letter, task_id("r2"))).await.expect("answered");
        assert_eq!(answer, Replayed::Unknown);
    }
    assert!(fx.broker.dead_letters(Default::default(), 10).await.expect("answered").items.is_empty());
    assert!(fx.knows(&task_id("r")).await, "what was replayed lives on");
    if fx.kind != Kind::Model {
        let keys = ["dead", "reviewed", "discards"].map(|name| fx.key(name));
        let left: u64 = fx.redis(&["EXISTS", &keys[0], &keys[1], &keys[2]]).await;
        assert_eq!(left, 0);
    }
}

async fn a_call_looks_at_no_more_than_it_may_and_the_walk_ends(fx: &Fixture) {
    for _ in 0..25 {
        cancelled(fx).await;
    }
    for _ in 0..5 {
        fx.dead(task("a")).await;
    }
    fx.advance(DAY * 7);
    let (mut cursor, mut removed, mut calls) = (RetainCursor::default(), (0, 0), 0);
    loop {
        let step = fx.broker.retain(cursor, 7).await.expect("answered");
        assert!(step.results + step.dead_letters <= 7);
        removed = (removed.0 + step.results, removed.1 + step.dead_letters);
        (cursor, calls) = (step.cursor, calls + 1);
        if step.next_in != Some(Duration::ZERO) {
            assert_eq!(step.next_in, None);
            break;
        }
    }
    assert_eq!((removed, calls), ((30, 5), 6));
    assert_eq!(fx.broker.retain(cursor, usize::MAX).await.expect("answered").next_in, None, "and rests");
}

async fn two_leaders_remove_everything_once(fx: &Fixture) {
    for _ in 0..60 {
        cancelled(fx).await;
    }
    for _ in 0..10 {
        fx.dead(task("a")).await;
    }
    let kept = {
        fx.advance(DAY * 7);
        succeeded(fx).await
    };
    let leader = async || {
        let (mut cursor, mut removed) = (RetainCursor::default(), (0, 0));
        loop {
            let step = fx.broker.retain(cursor, 3).await.expect("answered");
            removed = (removed.0 + step.results, removed.1 + step.dead_letters);
            cursor = step.cursor;
            if step.next_in != Some(Duration::ZERO) {
                return removed;
            }
        }
    };
    let (one, other) = futures::join!(leader(), leader());
    assert_eq!((one.0 + other.0, one.1 + other.1), (70, 10));
    assert!(fx.knows(&kept).await);
}

async fn work_is_never_touched(fx: &Fixture) {
    fx.set(|policy| {
        days(0, 0)(policy);
        policy.retention.result_max_entries = 0;
    })
    .await;
    let (queued, running) = (fx.add("b").await, fx.claim_one().await);
    let waiting = fx.add("a").await;
    let dying = fx.claim_one().await;
    fx.settle(&dying, permanent()).await;
    fx.raw(&[("task_id", "raw"), ("payload", "{}")]).await;
    let before = fx.counts().await;
    fx.advance(DAY * 30);
    let after = QueueCounts { sampled_at: fx.now(), ..before };
    assert_eq!((fx.retain().await.results, fx.counts().await), (0, after));
    assert!(fx.knows(&queued).await && fx.knows(&waiting).await);
    fx.succeed(&running).await;
}

/// A group of somebody who reads a stream, from its beginning.
async fn group(fx: &Fixture, key: &str, name: &str) {
    let _: redis::Value = fx.redis(&["XGROUP", "CREATE", key, name, "0", "MKSTREAM"]).await;
}

/// Reads so many entries as a group; their ids.
async fn read(fx: &Fixture, key: &str, name: &str, count: usize) -> Vec<String> {
    let count = count.to_string();
    let read: redis::Value = fx.redis(&["XREADGROUP", "GROUP", name, "c", "COUNT", &count, "STREAMS", key, ">"]).await;
    let redis::Value::Array(streams) = read else { return Vec::new() };
    let redis::Value::Array(stream) = &streams[0] else { panic!("a stream and its entries") };
    let entries: Vec<(String, redis::Value)> = redis::from_redis_value(stream[1].clone()).expect("entries");
    entries.into_iter().map(|(id, _)| id).collect()
}

async fn ack(fx: &Fixture, key: &str, name: &str, ids: &[String]) {
    for id in ids {
        let _: u64 = fx.redis(&["XACK", key, name, id]).await;
    }
}

async fn what_a_group_has_not_acknowledged_stays(fx: &Fixture) {
    let inbox = fx.keys().result.clone();
    let mut ids = Vec::new();
    for _ in 0..6 {
        ids.push(succeeded(fx).await);
    }
    group(fx, &inbox, "billing").await;
    group(fx, &inbox, "mail").await;
    fx.advance(DAY * 8);
    let step = fx.retain().await;
    assert_eq!((step.results, step.next_in), (0, None), "nothing was delivered");
    assert!(step.held_by.is_some());
    let billing = read(fx, &inbox, "billing", 6).await;
    let mail = read(fx, &inbox, "mail", 4).await;
    ack(fx, &inbox, "mail", &mail).await;
    ack(fx, &inbox, "billing", &billing[..1]).await;
    ack(fx, &inbox, "billing", &billing[2..]).await;
    let step = fx.retain_from(step.cursor).await;
    assert_eq!(step.results, 3, "the second is pending, the fifth and sixth were not delivered to both");
    let mut known = Vec::new();
    for id in &ids {
        known.push(fx.knows(id).await);
    }
    assert_eq!(known, [false, true, false, false, true, true]);
    ack(fx, &inbox, "billing", &billing).await;
    let rest = read(fx, &inbox, "mail", 10).await;
    assert_eq!(rest.len(), 2, "nobody's inbox lost anything");
    ack(fx, &inbox, "mail", &rest).await;
    let step = fx.retain_from(step.cursor).await;
    assert_eq!((step.results, step.held_by), (3, None), "groups that caught up protect nothing");
}

async fn a_group_that_lags_is_stronger_than_every_bound(fx: &Fixture) {
    fx.set(|policy| {
        policy.retention.result_max_entries = 2;
        policy.retention.result_max_mebibytes = 0;
    })
    .await;
    let inbox = fx.keys().result.clone();
    group(fx, &inbox, "billing").await;
    for _ in 0..5 {
        succeeded(fx).await;
    }
    let step = fx.retain().await;
    assert_eq!((step.results, step.held_by.as_deref(), step.next_in), (0, Some("billing"), None));
    let ids = read(fx, &inbox, "billing", 3).await;
    ack(fx, &inbox, "billing", &ids).await;
    let step = fx.retain_from(step.cursor).await;
    assert_eq!((step.results, step.held_by.as_deref()), (3, Some("billing")));
    let ids = read(fx, &inbox, "billing", 3).await;
    assert_eq!(fx.retain_from(step.cursor.clone()).await.results, 0, "pending is not acknowledged");
    ack(fx, &inbox, "billing", &ids).await;
    assert_eq!(fx.retain_from(step.cursor).await.results, 2);
}

async fn a_group_on_the_dead_letters_is_waited_for_as_well(fx: &Fixture) {
    let inbox = fx.keys().dead_letter.clone();
    let mut letters = Vec::new();
    for _ in 0..3 {
        letters.push(fx.dead(task("a")).await);
    }
    group(fx, &inbox, "alerts").await;
    fx.advance(DAY * 8);
    let step = fx.retain().await;
    assert_eq!((step.results, step.dead_letters, step.held_by.as_deref()), (3, 0, Some("alerts")));
    let ids = read(fx, &inbox, "alerts", 2).await;
    ack(fx, &inbox, "alerts", &ids[1..]).await;
    assert_eq!(fx.retain_from(step.cursor).await.dead_letters, 1);
    let known = async |n: usize| fx.broker.dead_letter(&letters[n]).await.expect("answered").is_some();
    assert_eq!([known(0).await, known(1).await, known(2).await], [true, false, true]);
    ack(fx, &inbox, "alerts", &ids).await;
    let rest = read(fx, &inbox, "alerts", 2).await;
    ack(fx, &inbox, "alerts", &rest).await;
    assert_eq!(fx.retain().await.dead_letters, 2);
}

async fn entries_deleted_under_their_readers_hold_up_nothing(fx: &Fixture) {
    let inbox = fx.keys().result.clone();
    let mut pipeline = redis::pipe();
    let first = cancelled(fx).await;
    for _ in 0..350 {
        pipeline.cmd("XADD").arg(&inbox).arg("*").arg("junk").arg("x").ignore();
    }
    fx.pipeline(pipeline).await;
    let last = cancelled(fx).await;
    group(fx, &inbox, "billing").await;
    let ids = read(fx, &inbox, "billing", 1000).await;
    assert_eq!(ids.len(), 352);
    ack(fx, &inbox, "billing", &[ids[0].clone(), ids[351].clone()]).await;
    let mut pipeline = redis::pipe();
    for id in &ids[1..351] {
        pipeline.cmd("XDEL").arg(&inbox).arg(id).ignore();
    }
    fx.pipeline(pipeline).await;
    fx.advance(DAY * 7);
    assert_eq!(fx.retain().await.results, 2);
    assert!(!fx.knows(&first).await && !fx.knows(&last).await);
}

async fn a_walk_through_much_that_stays_is_bounded_and_goes_on(fx: &Fixture) {
    let inbox = fx.keys().result.clone();
    group(fx, &inbox, "billing").await;
    for _ in 0..40 {
        cancelled(fx).await;
    }
    read(fx, &inbox, "billing", 40).await;
    let free = cancelled(fx).await;
    let ids = read(fx, &inbox, "billing", 1).await;
    ack(fx, &inbox, "billing", &ids).await;
    fx.advance(DAY * 7);
    for _ in 0..2 {
        let (mut cursor, mut calls, mut removed) = (RetainCursor::default(), 1, 0);
        loop {
            let step = fx.broker.retain(cursor, 9).await.expect("answered");
            removed += step.results;
            cursor = step.cursor;
            if step.next_in != Some(Duration::ZERO) {
                break;
            }
            calls += 1;
        }
        assert_eq!(calls, 5);
        assert!(removed <= 1);
    }
    assert!(!fx.knows(&free).await, "what stays holds up nothing");
    assert_eq!(fx.counts().await.finished, 40);
}

async fn what_others_wrote_to_an_adopted_stream_is_theirs(fx: &Fixture) {
    let adopted = AdoptedKeys {
        task: Some("stream:task".into()),
        result: Some("stream:result".into()),
        dead_letter: Some("stream:dlq".into()),
        group: None,
    };
    let fx = &fx.adopting(&adopted).await;
    fx.set(|policy| policy.retention.result_max_entries = 2).await;
    let (results, letters) = (fx.keys().result.clone(), fx.keys().dead_letter.clone());
    for key in [&results, &letters] {
        for n in 0..120 {
            let _: String = fx.redis(&["XADD", key, "*", "task_id", &format!("old-{n}"), "token", "secret"]).await;
        }
    }
    let (good, dead) = (succeeded(fx).await, fx.dead(task("a")).await);
    let step = fx.retain().await;
    assert_eq!((step.results, step.dead_letters), (0, 0), "history does not count towards the bound");
    let third = succeeded(fx).await;
    let step = fx.retain_from(step.cursor).await;
    assert_eq!((step.results, fx.knows(&good).await, fx.knows(&third).await), (1, false, true));
    fx.advance(DAY * 8);
    let step = fx.retain_from(step.cursor).await;
    assert_eq!((step.results, step.dead_letters), (2, 1));
    assert_eq!(fx.broker.dead_letter(&dead).await.expect("answered"), None);
    assert_eq!((fx.stream(&results).await.len(), fx.stream(&letters).await.len()), (120, 120));
}

async fn a_result_that_somebody_deleted_does_not_stop_the_walk(fx: &Fixture) {
    let (one, other) = (succeeded(fx).await, succeeded(fx).await);
    let entry = fx.stream(&fx.keys().result).await.remove(0).id;
    let _: u64 = fx.redis(&["XDEL", &fx.keys().result, &entry]).await;
    fx.advance(DAY * 8);
    assert_eq!(fx.retain().await.results, 1);
    assert!(!fx.knows(&other).await);
    drop(one);
}

async fn nothing_of_a_forgotten_task_is_left(fx: &Fixture) {
    fx.set(|policy| policy.idempotency.scope = IdempotencyScope::Retained).await;
    fx.enqueue(keyed("one")).await;
    fx.fail_and_wait(&fx.claim_one().await).await;
    fx.succeed(&fx.claim_one().await).await;
    let dead = fx.dead(keyed("two")).await;
    let _: u64 = fx.redis(&["HSET", &fx.key(&format!("x:{}", dead.task)), "error", "left over"]).await;
    fx.advance(DAY * 8);
    assert_eq!((fx.retain().await.results, fx.retain().await.results), (2, 0));
    let keys: Vec<String> = fx.redis(&["KEYS", &fx.key("*")]).await;
    for key in keys {
        let name = key.strip_prefix(fx.keys().prefix()).expect("the queue's own");
        let gone = ["done", "idem", "alias", "dead", "reviewed", "discards", "live", "parked"];
        assert!(!gone.contains(&name) && !name.starts_with("x:"), "{name} is left");
        if ["result", "dlq"].contains(&name) {
            assert_eq!(fx.stream(&key).await.len(), 0, "{name}");
        }
    }
}

suite! {
    each_state_is_kept_for_its_own_time,
    where_failures_are_kept_shorter_they_go_first,
    what_is_kept_longer_holds_up_nothing_behind_it,
    a_shorter_time_counts_at_once,
    above_the_bound_the_oldest_go_whatever_their_state,
    a_bound_of_none_keeps_none,
    a_key_is_free_when_its_task_is_forgotten,
    a_key_that_stands_for_a_newer_task_is_left_alone,
    a_raw_producers_other_id_is_free_when_its_answer_is_forgotten,
    an_id_that_was_forgotten_is_a_new_task,
    a_dead_letter_whose_id_is_used_again_does_not_speak_for_the_newer_task,
    dead_letters_go_with_what_was_decided_about_them,
    a_call_looks_at_no_more_than_it_may_and_the_walk_ends,
    two_leaders_remove_everything_once,
    work_is_never_touched,
}

mod on_keys {
    use super::*;
    redis_suite! {
        above_the_bound_in_bytes_the_oldest_go,
        what_a_group_has_not_acknowledged_stays,
        a_group_that_lags_is_stronger_than_every_bound,
        a_group_on_the_dead_letters_is_waited_for_as_well,
        entries_deleted_under_their_readers_hold_up_nothing,
        a_walk_through_much_that_stays_is_bounded_and_goes_on,
        what_others_wrote_to_an_adopted_stream_is_theirs,
        a_result_that_somebody_deleted_does_not_stop_the_walk,
        nothing_of_a_forgotten_task_is_left,
    }
}
