//! A queue that goes on using the streams and the group of a system that was there before it.

use std::time::Duration;

use windlass::broker::ErrorClass;
use windlass::broker::redis::{RedisBroker, RedisOptions};
use windlass::protocol::keys::{AdoptedKeys, Keys};
use windlass::protocol::policy::{Priorities, PriorityOrder};
use windlass::{State, TaskId};

use super::fixture::{Fixture, failure, task_id};
use crate::support::fresh_queue;

/// The names of the stream protocol.
fn stream_protocol() -> AdoptedKeys {
    AdoptedKeys {
        task: Some("stream:task".into()),
        result: Some("stream:result".into()),
        dead_letter: Some("stream:dlq".into()),
        group: Some("cg:workers".into()),
    }
}

/// The names of the agent environment's queue.
fn agent_queue() -> AdoptedKeys {
    AdoptedKeys {
        task: Some("ade:queue:tasks".into()),
        result: None,
        dead_letter: None,
        group: Some("ade-workers".into()),
    }
}

async fn adopted(fx: &Fixture, names: &AdoptedKeys) -> Fixture {
    let adopted = fx.adopting(names).await;
    adopted.set(|_| {}).await;
    adopted
}

/// How many entries of the adopted stream are pending in its group.
async fn pending(fx: &Fixture) -> u64 {
    let (count, _, _, _): (u64, redis::Value, redis::Value, redis::Value) =
        fx.redis(&["XPENDING", &fx.keys().task, &fx.keys().group]).await;
    count
}

/// A message's id and its fields.
type Message = (String, Vec<String>);

/// What a consumer of the system before does: reads one entry and, perhaps, never ends.
async fn foreign_read(fx: &Fixture, consumer: &str, count: usize) -> Vec<String> {
    let (task, group) = (&fx.keys().task, &fx.keys().group);
    let mut read = redis::cmd("XREADGROUP");
    read.arg("GROUP").arg(group).arg(consumer).arg("COUNT").arg(count).arg("STREAMS").arg(task).arg(">");
    let read: Option<Vec<(String, Vec<Message>)>> = fx.command(read).await;
    let messages: Vec<String> =
        read.unwrap_or_default().into_iter().flat_map(|(_, entries)| entries).map(|(id, _)| id).collect();
    // Its leases begin by the test's clock.
    let now = fx.clock.now_ms().expect("manual").to_string();
    for chunk in messages.chunks(100) {
        let mut claim = redis::cmd("XCLAIM");
        claim.arg(task).arg(group).arg(consumer).arg(0).arg(chunk).arg("TIME").arg(&now).arg("JUSTID");
        let _: redis::Value = fx.command(claim).await;
    }
    messages
}

async fn the_stream_protocol_runs_on_its_own_names(fx: &Fixture) {
    let fx = &adopted(fx, &stream_protocol()).await;
    let sent = [("task_id", "t-1"), ("tool_name", "web.search"), ("payload", r#"{"q":1}"#), ("idempotency_key", "k")];
    fx.raw(&sent).await;
    let running = fx.claim_one().await;
    fx.succeed(&running).await;
    assert_eq!(pending(fx).await, 0, "acknowledged");
    assert_eq!(fx.stream(&fx.keys().task).await.len(), 0, "and never left to grow");

    let results = fx.stream(&fx.keys().result).await;
    assert_eq!(results.len(), 1);
    assert_eq!(results[0].field("task_id"), Some("t-1"));
    assert_eq!(results[0].field("tool_name"), Some("web.search"));
    assert_eq!(results[0].field("status"), Some("succeeded"));
    assert_eq!(results[0].field("result"), Some(r#"{"ok":true}"#));
    assert_eq!(results[0].field("retry_count"), Some("0"));
}

async fn dead_letters_carry_the_stream_protocols_fields(fx: &Fixture) {
    let fx = &adopted(fx, &stream_protocol()).await;
    fx.set(|policy| policy.retry.max_retries = 1).await;
    fx.raw(&[("task_id", "t-1"), ("tool_name", "web.search"), ("payload", r#"{"q":1}"#)]).await;
    fx.fail_and_wait(&fx.claim_one().await).await;
    fx.settle(&fx.claim_one().await, failure()).await;
    let failed_at = fx.clock.now_ms().expect("manual").to_string();
    let letter = fx.broker.pending_dead_letters(1).await.expect("answered").remove(0);
    fx.broker.record_dead_letter(&letter.id).await.expect("answered");
    let written = fx.stream(&fx.keys().dead_letter).await;
    assert_eq!(written.len(), 1);
    for (field, value) in [
        ("task_id", "t-1"),
        ("tool_name", "web.search"),
        ("payload", r#"{"q":1}"#),
        ("error", "it broke"),
        ("retry_count", "2"),
        ("failed_at", &failed_at),
    ] {
        assert_eq!(written[0].field(field), Some(value), "{field}");
    }
    let results = fx.stream(&fx.keys().result).await;
    assert_eq!((results.len(), results[0].field("status")), (1, Some("failed")));
    assert_eq!(results[0].field("dlq_id"), Some("t-1#2"));
}

async fn the_agent_environments_queue_runs_on_its_own_names(fx: &Fixture) {
    let fx = &adopted(fx, &agent_queue()).await;
    fx.set(|policy| {
        policy.priority = Priorities { default: 5, min: 0, max: 9, order: PriorityOrder::LowestFirst };
    })
    .await;
    for (id, priority) in [("c", "9"), ("a", "0"), ("b", "5")] {
        fx.raw(&[("taskId", id), ("payload", r#"{"kind":"message"}"#), ("priority", priority)]).await;
    }
    let order: Vec<String> = fx.drain_ids().await.into_iter().map(|id| id.to_string()).collect();
    assert_eq!(order, ["a", "b", "c"]);
    assert_eq!(pending(fx).await, 0);
}

async fn each_duplicates_result_stands_once_under_the_id_that_was_sent(fx: &Fixture) {
    let fx = &adopted(fx, &stream_protocol()).await;
    let sent = |id: &'static str| [("task_id", id), ("payload", "{}"), ("idempotency_key", "k")];
    for id in ["first", "second", "second", "third"] {
        fx.raw(&sent(id)).await;
    }
    let running = fx.claim(10).await;
    assert_eq!(running.len(), 1);
    fx.raw(&sent("second")).await;
    fx.promote(10).await;
    fx.succeed(&running[0]).await;
    for id in ["second", "late", "late"] {
        fx.raw(&sent(id)).await;
    }
    fx.promote(10).await;
    for id in ["first", "second", "third", "late"] {
        assert_eq!(fx.results(&task_id(id)).await, 1, "{id}");
    }
    for entry in fx.stream(&fx.keys().result).await {
        assert_eq!((entry.field("status"), entry.field("result")), (Some("succeeded"), Some(r#"{"ok":true}"#)));
    }
}

async fn a_duplicate_of_a_task_that_dies_gets_its_failure(fx: &Fixture) {
    let fx = &adopted(fx, &stream_protocol()).await;
    for id in ["first", "second"] {
        fx.raw(&[("task_id", id), ("payload", "{}"), ("idempotency_key", "k")]).await;
    }
    let letter = fx.bury(&fx.claim_one().await).await;
    let results = fx.stream(&fx.keys().result).await;
    let of = |id: &str| results.iter().filter(|entry| entry.field("task_id") == Some(id)).collect::<Vec<_>>();
    for id in ["first", "second"] {
        let found = of(id);
        assert_eq!(found.len(), 1, "{id}");
        assert_eq!((found[0].field("status"), found[0].field("error")), (Some("failed"), Some("it can never work")));
        assert_eq!(found[0].field("dlq_id"), Some(letter.to_string().as_str()));
    }
    assert_eq!(of("second")[0].field("duplicate_of"), Some("first"), "and says whose it is");
}

async fn what_waited_in_the_stream_before_it_was_adopted_is_work(fx: &Fixture) {
    let fx = &fx.adopting(&stream_protocol()).await;
    for id in ["t1", "t2"] {
        fx.raw(&[("task_id", id), ("payload", "{}")]).await;
    }
    fx.set(|_| {}).await;
    assert_eq!(fx.counts().await.backlog, 2);
    assert_eq!(fx.drain_ids().await, [task_id("t1"), task_id("t2")]);
}

/// Entries that the system before has read and acknowledged but, as was its way, not deleted.
async fn with_history(fx: &Fixture) -> Fixture {
    let fx = fx.adopting(&stream_protocol()).await;
    for number in 0..5 {
        fx.raw(&[("task_id", &format!("old{number}")), ("payload", "{}")]).await;
    }
    let (task, group) = (fx.keys().task.clone(), fx.keys().group.clone());
    let _: redis::Value = fx.redis(&["XGROUP", "CREATE", &task, &group, "0"]).await;
    for message in foreign_read(&fx, "before", 5).await {
        let _: u64 = fx.redis(&["XACK", &task, &group, &message]).await;
    }
    fx.set(|_| {}).await;
    fx
}

async fn history_that_was_done_before_is_not_work(fx: &Fixture) {
    let fx = &with_history(fx).await;
    fx.raw(&[("task_id", "new"), ("payload", "{}")]).await;
    assert_eq!(fx.counts().await.backlog, 1);
    assert_eq!(fx.drain_ids().await, [task_id("new")]);
    assert_eq!(fx.stream(&fx.keys().task).await.len(), 5, "and is left alone");
}

/// closes: messaging-topology-operator#708, nack#95 (a group gone after a flush and never re-made)
async fn a_group_that_is_made_again_starts_after_what_it_had_delivered(fx: &Fixture) {
    for provisioned_again in [false, true] {
        let fx = &with_history(fx).await;
        fx.raw(&[("task_id", "new"), ("payload", "{}")]).await;
        assert_eq!(fx.drain_ids().await, [task_id("new")]);
        let _: u64 = fx.redis(&["XGROUP", "DESTROY", &fx.keys().task, &fx.keys().group]).await;
        fx.raw(&[("task_id", "newer"), ("payload", "{}")]).await;
        if provisioned_again {
            fx.set(|_| {}).await;
        }
        assert_eq!(fx.drain_ids().await, [task_id("newer")], "history is not run again");
    }
}

async fn what_was_delivered_since_the_queue_was_made_is_not_run_again_either(fx: &Fixture) {
    for provisioned_again in [false, true] {
        let fx = &with_history(fx).await;
        let (task, group) = (fx.keys().task.clone(), fx.keys().group.clone());
        // The system before still runs beside the new one for a while.
        fx.raw(&[("task_id", "theirs"), ("payload", "{}")]).await;
        for message in foreign_read(fx, "before", 1).await {
            let _: u64 = fx.redis(&["XACK", &task, &group, &message]).await;
        }
        fx.raw(&[("task_id", "ours"), ("payload", "{}")]).await;
        assert_eq!(fx.drain_ids().await, [task_id("ours")]);
        let _: u64 = fx.redis(&["XGROUP", "DESTROY", &task, &group]).await;
        fx.raw(&[("task_id", "new"), ("payload", "{}")]).await;
        if provisioned_again {
            fx.set(|_| {}).await;
        }
        assert_eq!(fx.drain_ids().await, [task_id("new")], "provisioned again: {provisioned_again}");
    }
}

async fn what_a_consumer_from_before_left_pending_is_taken_over(fx: &Fixture) {
    let fx = &fx.adopting(&stream_protocol()).await;
    let (task, group) = (fx.keys().task.clone(), fx.keys().group.clone());
    let _: redis::Value = fx.redis(&["XGROUP", "CREATE", &task, &group, "0", "MKSTREAM"]).await;
    for id in ["left", "also-left"] {
        fx.raw(&[("task_id", id), ("payload", "{}")]).await;
    }
    foreign_read(fx, "dead-before", 2).await;
    fx.set(|_| {}).await;
    assert!(fx.claim(10).await.is_empty(), "its lease may still be good");
    fx.advance(Duration::from_secs(290));
    fx.reclaim().await;
    assert!(fx.claim(10).await.is_empty());
    fx.advance(Duration::from_secs(11));
    fx.reclaim().await;
    assert_eq!(fx.drain_ids().await, [task_id("left"), task_id("also-left")]);
    assert_eq!(pending(fx).await, 0);
}

/// closes: river#1318 (a full batch that cannot be rescued hides the later ones)
async fn many_good_leases_do_not_hide_an_expired_one_behind_them(fx: &Fixture) {
    let fx = &fx.adopting(&stream_protocol()).await;
    let (task, group) = (fx.keys().task.clone(), fx.keys().group.clone());
    let _: redis::Value = fx.redis(&["XGROUP", "CREATE", &task, &group, "0", "MKSTREAM"]).await;
    let mut many = redis::pipe();
    for number in 0..1201 {
        let mut add = redis::cmd("XADD");
        add.arg(&task).arg("*").arg("task_id").arg(format!("t{number}")).arg("payload").arg("{}");
        many.add_command(add);
    }
    fx.pipeline(many).await;
    let busy: Vec<String> = foreign_read(fx, "busy", 1200).await;
    foreign_read(fx, "dead", 1).await;
    fx.set(|_| {}).await;
    fx.advance(Duration::from_secs(301));
    let now = fx.clock.now_ms().expect("manual").to_string();
    for chunk in busy.chunks(100) {
        let mut renew = redis::cmd("XCLAIM");
        renew.arg(&task).arg(&group).arg("busy").arg(0).arg(chunk).arg("TIME").arg(&now).arg("JUSTID");
        let _: redis::Value = fx.command(renew).await;
    }
    for _ in 0..5 {
        fx.reclaim().await;
    }
    assert_eq!(fx.drain_ids().await, [task_id("t1200")]);
}

/// closes: redis#7021, redis#10227 (entries deleted under the pending list)
async fn an_entry_that_was_deleted_under_a_dead_consumer_holds_nobody_up(fx: &Fixture) {
    let fx = &fx.adopting(&stream_protocol()).await;
    let (task, group) = (fx.keys().task.clone(), fx.keys().group.clone());
    let _: redis::Value = fx.redis(&["XGROUP", "CREATE", &task, &group, "0", "MKSTREAM"]).await;
    for number in 0..60 {
        fx.raw(&[("task_id", &format!("t{number}")), ("payload", "{}")]).await;
    }
    let messages = foreign_read(fx, "dead", 60).await;
    for message in &messages[..59] {
        let _: u64 = fx.redis(&["XDEL", &task, message]).await;
    }
    fx.set(|_| {}).await;
    fx.advance(Duration::from_secs(301));
    for _ in 0..3 {
        fx.reclaim().await;
    }
    assert_eq!(fx.drain_ids().await, [task_id("t59")], "what is left of it is done");
    fx.advance(Duration::from_secs(301));
    for _ in 0..3 {
        fx.reclaim().await;
    }
    assert_eq!(pending(fx).await, 0, "and nothing stays pending for ever");
}

async fn tasks_of_an_adopted_queue_live_like_any_other(fx: &Fixture) {
    let fx = &adopted(fx, &stream_protocol()).await;
    let id: TaskId = fx.add("a").await;
    fx.claim_one().await;
    fx.expire_all().await;
    fx.fail_and_wait(&fx.claim_one().await).await;
    fx.succeed(&fx.claim_one().await).await;
    assert_eq!(fx.state(&id).await, State::Succeeded);
    assert!(fx.sweep().await.repaired.is_empty());
}

redis_suite! {
    the_stream_protocol_runs_on_its_own_names,
    dead_letters_carry_the_stream_protocols_fields,
    the_agent_environments_queue_runs_on_its_own_names,
    each_duplicates_result_stands_once_under_the_id_that_was_sent,
    a_duplicate_of_a_task_that_dies_gets_its_failure,
    what_waited_in_the_stream_before_it_was_adopted_is_work,
    history_that_was_done_before_is_not_work,
    a_group_that_is_made_again_starts_after_what_it_had_delivered,
    what_was_delivered_since_the_queue_was_made_is_not_run_again_either,
    what_a_consumer_from_before_left_pending_is_taken_over,
    many_good_leases_do_not_hide_an_expired_one_behind_them,
    an_entry_that_was_deleted_under_a_dead_consumer_holds_nobody_up,
    tasks_of_an_adopted_queue_live_like_any_other,
}

/// closes: bullmq#2589, sidekiq#6112 (CROSSSLOT)
#[test]
fn names_without_a_common_hash_tag_are_refused_on_a_cluster() {
    let keys = Keys::adopting(&fresh_queue(), &stream_protocol()).expect("fine on a standalone Redis");
    let refused =
        RedisBroker::new(keys.clone(), RedisOptions::new("redis+cluster://127.0.0.1:1")).err().expect("three slots");
    assert_eq!(refused.class(), ErrorClass::Invalid);
    assert!(refused.to_string().contains("{orders}:tasks"), "{refused}");
    assert!(RedisBroker::new(keys, RedisOptions::new("redis://127.0.0.1:1")).is_ok());
}
