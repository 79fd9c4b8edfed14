//! Somebody broke the keys: nothing is lost silently, and what can be put back is.

use std::time::Duration;

use windlass::broker::{ClaimRequest, ClaimedTask, Extended, Settled, Settlement};
use windlass::protocol::backoff::Dice;
use windlass::protocol::names::Capabilities;
use windlass::protocol::state::RetryReason;
use windlass::{NewTask, NotBefore, Outcome, State, TaskId};

use super::fixture::{Fixture, failure, permanent, released, task, types, worker_id};

const LANE: &str = "lane:a:5";

/// Exactly this task was found wrong, once.
async fn repaired(fx: &Fixture, id: &TaskId) {
    let swept = fx.sweep().await;
    assert_eq!(swept.repaired.iter().map(|(id, _)| id).collect::<Vec<_>>(), [id], "{:?}", swept.repaired);
    assert_eq!(fx.sweep().await.repaired, [], "a second look finds nothing");
}

/// The task died with the reason that its data is gone: not lost silently.
async fn died_of_missing_data(fx: &Fixture, id: &TaskId) {
    assert_eq!(fx.state(id).await, State::DlqPending);
    let letters = fx.broker.pending_dead_letters(10).await.expect("answered");
    assert_eq!((letters.len(), &letters[0].id.task), (1, id));
    assert_eq!(letters[0].error_code, "entry_missing");
    fx.broker.record_dead_letter(&letters[0].id).await.expect("answered");
    assert_eq!((fx.state(id).await, fx.results(id).await), (State::Failed, 1));
}

async fn destroy_group(fx: &Fixture, lane: &str) {
    let destroyed: u64 = fx.redis(&["XGROUP", "DESTROY", &fx.key(lane), &fx.keys().group]).await;
    assert_eq!(destroyed, 1);
}

/// closes: messaging-topology-operator#708, nack#95 (a group gone and never re-made)
async fn a_lost_group_loses_no_task(fx: &Fixture) {
    let running = fx.running("a").await;
    let waiting = [fx.add("a").await, fx.add("a").await];
    destroy_group(fx, LANE).await;
    assert_eq!(fx.drain_ids().await, waiting, "what waits is given out, what runs is not given out twice");
    let renewed = fx.broker.extend(&worker_id("w1"), std::slice::from_ref(&running.lease)).await.expect("answered");
    assert_eq!(renewed, [Extended::Renewed]);
    fx.succeed(&running).await;
}

async fn a_lost_group_ends_no_lease(fx: &Fixture) {
    let running = fx.running("a").await;
    destroy_group(fx, LANE).await;
    let renewed = fx.broker.extend(&worker_id("w1"), std::slice::from_ref(&running.lease)).await.expect("answered");
    assert_eq!(renewed, [Extended::Renewed], "heartbeats go on");
    assert_eq!(fx.sweep().await.repaired, [], "and so the lease is good");
    fx.succeed(&running).await;
}

async fn a_lost_group_lets_a_task_be_settled(fx: &Fixture) {
    let (one, other) = (fx.running("a").await, fx.running("a").await);
    destroy_group(fx, LANE).await;
    fx.succeed(&one).await;
    fx.fail_and_wait(&other).await;
    assert_eq!(fx.claim_one().await.lease.task, other.lease.task);
}

async fn a_lost_group_and_a_lost_worker_lose_no_task(fx: &Fixture) {
    let running = fx.running("a").await;
    destroy_group(fx, LANE).await;
    repaired(fx, &running.lease.task).await;
    let view = fx.view(&running.lease.task).await;
    assert_eq!((view.retry_reason, view.crash_count), (Some(RetryReason::Repaired), 0));
    let again = fx.claim_one_as("w2").await;
    assert_eq!(fx.settle(&running, failure()).await, Settled::LeaseLost);
    fx.succeed(&again).await;
}

/// All of these end in one call of worker `w1`.
async fn succeed_together(fx: &Fixture, tasks: &[ClaimedTask]) {
    let success =
        |task: &ClaimedTask| Settlement { lease: task.lease.clone(), outcome: Outcome::success(), dice: Dice(0) };
    let settlements: Vec<_> = tasks.iter().map(success).collect();
    let (worker, capabilities) = (worker_id("w1"), Capabilities::any());
    let next = ClaimRequest { worker: &worker, capabilities: &capabilities, limit: 0, recover: None };
    let settled = fx.broker.settle(&settlements, next).await.expect("answered").settled;
    assert_eq!(settled, vec![Settled::Succeeded; tasks.len()]);
}

/// Many messages are cut off their lane at once: not where a group that was made
/// again has yet to read what others hold.
async fn a_lost_group_and_a_settlement_of_many_lose_no_task(fx: &Fixture) {
    let lost = fx.running("a").await;
    let mut others = Vec::new();
    for _ in 0..5 {
        others.push(fx.running("a").await);
    }
    destroy_group(fx, LANE).await;
    let _: String = fx.redis(&["XGROUP", "CREATE", &fx.key(LANE), &fx.keys().group, "0"]).await;
    succeed_together(fx, &others).await;
    repaired(fx, &lost.lease.task).await;
    let again = fx.claim_one_as("w2").await;
    assert_eq!(again.lease.task, lost.lease.task, "its entry was not cut off with the others");
    fx.succeed(&again).await;
    assert_eq!(fx.stream(&fx.key(LANE)).await.len(), 0, "and those of the others are gone");
}

/// A heartbeat puts the leases of others back as well: what is pending was read in order, as the cut needs it.
async fn a_lost_group_a_heartbeat_and_a_settlement_of_many_lose_no_task(fx: &Fixture) {
    fx.add("a").await;
    let first = fx.claim_one_as("w2").await;
    let mut mine = Vec::new();
    for _ in 0..15 {
        mine.push(fx.running("a").await);
    }
    fx.add("a").await;
    let last = fx.claim_one_as("w2").await;
    let waiting = fx.add("a").await;
    destroy_group(fx, LANE).await;
    let leases: Vec<_> = mine.iter().map(|task| task.lease.clone()).collect();
    let renewed = fx.broker.extend(&worker_id("w1"), &leases).await.expect("answered");
    assert_eq!(renewed, vec![Extended::Renewed; mine.len()]);
    succeed_together(fx, &mine).await;
    assert_eq!(fx.stream(&fx.key(LANE)).await.len(), 3, "only what is done is cut off");
    assert_eq!(fx.sweep().await.repaired, [], "everybody's lease is good");
    assert_eq!(fx.drain_ids().await, [waiting], "what is leased is not given out twice");
    let renewed = fx.broker.extend(&worker_id("w2"), &[first.lease.clone(), last.lease.clone()]).await;
    assert_eq!(renewed.expect("answered"), [Extended::Renewed, Extended::Renewed]);
    fx.succeed(&first).await;
    fx.fail_and_wait(&last).await;
    assert_eq!(fx.claim_one().await.lease.task, last.lease.task);
}

async fn a_lost_bell_and_raw_group_are_made_again(fx: &Fixture) {
    let _: u64 = fx.redis(&["DEL", &fx.keys().task, &fx.keys().wake("all")]).await;
    fx.raw(&[("task_id", "t"), ("payload", "{}")]).await;
    assert_eq!(fx.claim_one().await.lease.task.as_str(), "t");
}

/// closes: redis#7021, redis#10227 (entries deleted under the pending list)
async fn a_deleted_entry_of_a_waiting_task_is_a_dead_letter(fx: &Fixture) {
    let id = fx.add("a").await;
    let entry = fx.stream(&fx.key(LANE)).await.remove(0).id;
    let _: u64 = fx.redis(&["XDEL", &fx.key(LANE), &entry]).await;
    assert!(fx.claim(1).await.is_empty());
    repaired(fx, &id).await;
    died_of_missing_data(fx, &id).await;
}

async fn a_deleted_entry_of_a_running_task_does_not_stop_its_success(fx: &Fixture) {
    let running = fx.running("a").await;
    let entry = fx.stream(&fx.key(LANE)).await.remove(0).id;
    let _: u64 = fx.redis(&["XDEL", &fx.key(LANE), &entry]).await;
    fx.succeed(&running).await;
    assert_eq!(fx.sweep().await.repaired, []);
}

async fn a_deleted_entry_of_a_failing_task_is_a_dead_letter(fx: &Fixture) {
    let running = fx.running("a").await;
    let entry = fx.stream(&fx.key(LANE)).await.remove(0).id;
    let _: u64 = fx.redis(&["XDEL", &fx.key(LANE), &entry]).await;
    assert_eq!(fx.settle(&running, failure()).await, Settled::Dead, "there is nothing left to run again");
    died_of_missing_data(fx, &running.lease.task).await;
}

async fn a_deleted_entry_under_a_dead_worker_is_a_dead_letter(fx: &Fixture) {
    let running = fx.running("a").await;
    let entry = fx.stream(&fx.key(LANE)).await.remove(0).id;
    let _: u64 = fx.redis(&["XDEL", &fx.key(LANE), &entry]).await;
    fx.expire_all().await;
    fx.sweep().await;
    died_of_missing_data(fx, &running.lease.task).await;
    assert_eq!(fx.counts().await.running, 0, "nothing stays pending for ever");
}

async fn a_lane_that_is_missing_from_the_index_is_found(fx: &Fixture) {
    let id = fx.add("a").await;
    let _: u64 = fx.redis(&["ZREM", &fx.key("ready"), "a:5"]).await;
    assert!(fx.claim(1).await.is_empty());
    repaired(fx, &id).await;
    assert_eq!(fx.claim_one().await.lease.task, id);
}

async fn a_lane_that_is_missing_from_a_classs_index_is_found(fx: &Fixture) {
    let some = types(&["a"]);
    assert!(fx.claim_with("w", &some, 1).await.tasks.is_empty());
    let id = fx.add("a").await;
    let _: u64 = fx.redis(&["ZREM", &fx.key(&format!("ready:{}", some.class())), "a:5"]).await;
    assert!(fx.claim_with("w", &some, 1).await.tasks.is_empty());
    repaired(fx, &id).await;
    assert_eq!(fx.claim_with("w", &some, 1).await.tasks[0].lease.task, id);
}

async fn a_lane_that_is_missing_from_the_list_of_lanes_is_found(fx: &Fixture) {
    let running = fx.running("a").await;
    let _: u64 = fx.redis(&["SREM", &fx.keys().lanes(), "a:5"]).await;
    assert_eq!(fx.sweep().await.repaired.len(), 1);
    assert_eq!(fx.counts().await.running, 1);
    assert_eq!(fx.expire_all().await.requeued, [running.lease.task], "its expired leases too");
}

async fn a_task_that_fell_behind_where_its_lane_was_read_is_found(fx: &Fixture) {
    let id = fx.add("a").await;
    let _: redis::Value = fx.redis(&["XGROUP", "SETID", &fx.key(LANE), &fx.keys().group, "$"]).await;
    assert!(fx.claim(1).await.is_empty());
    repaired(fx, &id).await;
    assert_eq!(fx.claim_one().await.lease.task, id);
}

/// What a person does who only wants to look: it counts as read, and is pending for nobody who works.
async fn read_by_a_stranger(fx: &Fixture) {
    let (lane, group) = (fx.key(LANE), fx.keys().group.clone());
    let _: redis::Value = fx.redis(&["XREADGROUP", "GROUP", &group, "stranger", "STREAMS", &lane, ">"]).await;
    let now = fx.clock.now_ms().expect("manual").to_string();
    for entry in fx.stream(&lane).await {
        let lease = ["XCLAIM", &lane, &group, "stranger", "0", &entry.id, "TIME", &now, "JUSTID"];
        let _: redis::Value = fx.redis(&lease).await;
    }
}

async fn a_task_that_a_stranger_read_is_found_by_a_sweep(fx: &Fixture) {
    let id = fx.add("a").await;
    read_by_a_stranger(fx).await;
    assert!(fx.claim(1).await.is_empty());
    repaired(fx, &id).await;
    let task = fx.claim_one().await;
    assert_eq!((task.lease.task, task.payload.as_str()), (id, r#"{"n":1}"#));
}

async fn a_task_that_a_stranger_read_and_left_is_not_lost_to_a_reclaim(fx: &Fixture) {
    let fresh = fx.add("a").await;
    read_by_a_stranger(fx).await;
    fx.expire_all().await;
    fx.sweep().await;
    let task = fx.claim_one().await;
    assert_eq!((task.lease.task, task.payload.as_str(), task.crash_count), (fresh, r#"{"n":1}"#, 0));
    assert_eq!(fx.sweep().await.repaired, []);
}

async fn a_raw_entry_whose_lane_is_broken_holds_nobody_up(fx: &Fixture) {
    let _: String = fx.redis(&["SET", &fx.key("lane:broken:5"), "no stream"]).await;
    fx.raw(&[("task_id", "one"), ("tool_name", "broken"), ("payload", "{}")]).await;
    fx.raw(&[("task_id", "two"), ("payload", "{}")]).await;
    assert_eq!(fx.claim(10).await.iter().map(|task| task.lease.task.as_str()).collect::<Vec<_>>(), ["two"]);
    let letters = fx.broker.pending_dead_letters(10).await.expect("answered");
    assert_eq!(letters.len(), 1, "it is dead, and not lost");
    assert!(letters[0].error.contains("could not be filed"), "{}", letters[0].error);
    assert_eq!(fx.stream(&fx.keys().task).await.len(), 0);
    assert!(fx.claim(1).await.is_empty(), "its lane is not offered to anybody");
}

/// closes: river#1318 (what cannot be rescued hides what can)
async fn entries_that_are_no_leases_hide_nothing_from_who_takes_back_a_lost_workers_tasks(fx: &Fixture) {
    let (lane, group) = (fx.key(LANE), fx.keys().group.clone());
    for _ in 0..50 {
        fx.add("a").await;
    }
    let read = ["XREADGROUP", "GROUP", &group, "w1", "COUNT", "45", "STREAMS", &lane, ">"];
    let _: redis::Value = fx.redis(&read).await;
    let mut leased: Vec<_> = fx.claim(5).await.into_iter().map(|task| task.lease.task).collect();
    leased.sort();
    let mut back = fx.broker.reclaim_from(&worker_id("w1"), RetryReason::PodGone).await.expect("answered").requeued;
    back.sort();
    assert_eq!(back, leased);
    assert_eq!(fx.claim_as("w2", 100).await.len(), 50, "and what only was read waits again");
    assert_eq!(fx.sweep().await.repaired, []);
}

async fn a_running_task_that_nobody_has_is_run_again(fx: &Fixture) {
    let running = fx.running("a").await;
    let entry = fx.stream(&fx.key(LANE)).await.remove(0).id;
    let _: u64 = fx.redis(&["XACK", &fx.key(LANE), &fx.keys().group, &entry]).await;
    repaired(fx, &running.lease.task).await;
    let again = fx.claim_one().await;
    assert_eq!((again.lease.task.clone(), again.crash_count), (running.lease.task, 0));
    fx.succeed(&again).await;
}

async fn a_task_that_is_missing_from_the_delayed_ones_is_found(fx: &Fixture) {
    let later = NotBefore::After(Duration::from_secs(60));
    let id = fx.enqueue(NewTask { not_before: later, ..task("a") }).await.id;
    let _: u64 = fx.redis(&["ZREM", &fx.keys().delayed(), id.as_str()]).await;
    repaired(fx, &id).await;
    fx.advance(Duration::from_secs(60));
    assert_eq!(fx.claim_one().await.lease.task, id);
}

async fn a_task_that_is_missing_from_the_retrying_ones_is_found(fx: &Fixture) {
    let running = fx.running("a").await;
    fx.settle(&running, failure()).await;
    let _: u64 = fx.redis(&["ZREM", &fx.key("retrying"), running.lease.task.as_str()]).await;
    repaired(fx, &running.lease.task).await;
    fx.advance(Duration::from_secs(2));
    assert_eq!(fx.claim_one().await.lease.task, running.lease.task);
}

async fn a_task_that_is_missing_from_the_dead_ones_is_found(fx: &Fixture) {
    let running = fx.running("a").await;
    fx.settle(&running, permanent()).await;
    let _: u64 = fx.redis(&["ZREM", &fx.keys().dlq_pending(), running.lease.task.as_str()]).await;
    assert!(fx.broker.pending_dead_letters(10).await.expect("answered").is_empty());
    repaired(fx, &running.lease.task).await;
    assert_eq!(fx.broker.pending_dead_letters(10).await.expect("answered").len(), 1);
}

async fn a_parked_task_whose_payload_is_gone_is_a_dead_letter(fx: &Fixture) {
    let later = NotBefore::After(Duration::from_secs(60));
    let id = fx.enqueue(NewTask { not_before: later, ..task("a") }).await.id;
    let _: u64 = fx.redis(&["HDEL", &fx.key("parked"), id.as_str()]).await;
    fx.sweep().await;
    died_of_missing_data(fx, &id).await;
}

async fn a_parked_task_whose_payload_went_before_it_was_due_is_a_dead_letter(fx: &Fixture) {
    let later = NotBefore::After(Duration::from_secs(60));
    let id = fx.enqueue(NewTask { not_before: later, ..task("a") }).await.id;
    let _: u64 = fx.redis(&["HDEL", &fx.key("parked"), id.as_str()]).await;
    fx.advance(Duration::from_secs(61));
    assert!(fx.claim(1).await.is_empty());
    fx.sweep().await;
    died_of_missing_data(fx, &id).await;
}

async fn a_stranger_in_a_lane_is_dropped_and_holds_nobody_up(fx: &Fixture) {
    fx.add("a").await;
    let lane = fx.key(LANE);
    let _: String = fx.redis(&["XADD", &lane, "*", "stranger", "{}"]).await;
    let _: String = fx.redis(&["XADD", &lane, "*", "what", "is this"]).await;
    let second = fx.add("a").await;
    let ids = fx.drain_ids().await;
    assert_eq!((ids.len(), &ids[1]), (2, &second));
    assert_eq!(fx.counts().await.running, 2);
}

async fn leftovers_of_finished_tasks_in_a_lane_are_dropped(fx: &Fixture) {
    let running = fx.running("a").await;
    let entry = fx.stream(&fx.key(LANE)).await.remove(0);
    fx.succeed(&running).await;
    let mut again = vec!["XADD".to_owned(), fx.key(LANE), "*".to_owned()];
    again.extend(entry.fields.into_iter().flat_map(|(name, value)| [name, value]));
    let again: Vec<&str> = again.iter().map(String::as_str).collect();
    let _: String = fx.redis(&again).await;
    let next = fx.add("a").await;
    assert_eq!(fx.drain_ids().await, [next], "a finished task is not run again");
}

/// closes: clock skew between hosts (a failover may bring another clock)
async fn after_a_change_of_server_no_lease_expires_for_a_heartbeat_period(fx: &Fixture) {
    let running = fx.running("a").await;
    assert!(!fx.reclaim().await.held);
    fx.advance(Duration::from_secs(301));
    let _: u64 = fx.redis(&["HSET", &fx.keys().stats(), "run_id", "another-server"]).await;
    let held = fx.reclaim().await;
    assert!(held.held && held.requeued.is_empty());
    fx.broker.register(&super::fixture::worker_info("w1", None, None)).await.expect("answered");
    fx.advance(Duration::from_secs(29));
    assert!(fx.reclaim().await.held);
    fx.advance(Duration::from_secs(1));
    assert_eq!(fx.reclaim().await.requeued, [running.lease.task]);
    let again = fx.claim_one().await;
    assert_eq!(again.crash_count, 0, "nobody could renew it: that is no crash");
    fx.advance(Duration::from_secs(300));
    assert_eq!(fx.reclaim().await.requeued, [again.lease.task], "now somebody could have");
    assert_eq!(fx.claim_one().await.crash_count, 1);
}

async fn after_a_change_of_server_who_could_not_be_heard_did_not_crash(fx: &Fixture) {
    fx.broker.register(&super::fixture::worker_info("w1", None, None)).await.expect("answered");
    let (id, other) = (fx.running("a").await.lease.task, fx.running("b").await.lease.task);
    assert_eq!(fx.sweep().await.workers_lost, []);
    fx.advance(Duration::from_secs(301));
    let _: u64 = fx.redis(&["HSET", &fx.keys().stats(), "run_id", "another-server"]).await;
    assert_eq!(fx.sweep().await.workers_lost, [], "it may come back");
    fx.advance(Duration::from_secs(30));
    assert_eq!(fx.sweep().await.workers_lost, [worker_id("w1")]);
    for task in [&id, &other] {
        let view = fx.view(task).await;
        assert_eq!((view.retry_reason, view.crash_count), (Some(RetryReason::WorkerLost), 0));
    }
}

/// closes: safe-decoder-service#329 (finished entries are never deleted)
async fn what_is_finished_leaves_nothing_behind_but_its_result(fx: &Fixture) {
    for round in 0..2 {
        let keyed = |key: &str| NewTask { idempotency_key: Some(key.parse().expect("a key")), ..task("a") };
        fx.enqueue(keyed(&format!("cancelled-{round}"))).await;
        fx.settle(&fx.claim_one().await, failure()).await;
        let waiting = fx.list(State::Retrying).await.remove(0).id;
        fx.broker.cancel(&waiting, "not needed").await.expect("answered");
        fx.enqueue(keyed(&format!("dead-{round}"))).await;
        fx.fail_and_wait(&fx.claim_one().await).await;
        fx.claim_one().await;
        fx.expire_all().await;
        fx.bury(&fx.claim_one().await).await;
        let sent = format!("raw-{round}");
        for id in [&sent, &format!("twin-{round}")] {
            fx.raw(&[("task_id", id), ("payload", "{}"), ("idempotency_key", &sent)]).await;
        }
        fx.fail_and_wait(&fx.claim_one().await).await;
        fx.succeed(&fx.claim_one().await).await;
        let later = NotBefore::After(Duration::from_secs(5));
        fx.enqueue(NewTask { not_before: later, ..task("a") }).await;
        fx.advance(Duration::from_secs(5));
        fx.succeed(&fx.claim_one().await).await;
    }
    for gone in ["live", "parked", "delayed", "retrying", "dlq_pending", "ready", "aliases"] {
        let left: u64 = fx.redis(&["EXISTS", &fx.key(gone)]).await;
        assert_eq!(left, 0, "{gone} is empty");
    }
    let keys: Vec<String> = fx.redis(&["KEYS", &fx.key("*")]).await;
    for key in keys {
        let name = key.strip_prefix(fx.keys().prefix()).expect("the queue's own");
        assert!(!name.starts_with("x:"), "{name}");
        if name.starts_with("lane:") || name == "task" {
            assert_eq!(fx.stream(&key).await.len(), 0, "{name}");
            let (pending, _, _, _): (u64, redis::Value, redis::Value, redis::Value) =
                fx.redis(&["XPENDING", &key, &fx.keys().group]).await;
            assert_eq!(pending, 0, "{name}");
        }
    }
    let held: Vec<String> = fx.redis(&["HKEYS", &fx.key("idem")]).await;
    assert_eq!(held.len(), 2, "only successes keep their keys: {held:?}");
}

async fn keys_of_other_queues_are_left_alone(fx: &Fixture) {
    let other = Fixture::new(fx.kind).await;
    let theirs = other.running("a").await;
    other.add("a").await;
    let before = (other.counts().await, other.view(&theirs.lease.task).await);
    let running = fx.running("a").await;
    fx.settle(&running, released()).await;
    fx.expire_all().await;
    fx.sweep().await;
    fx.promote(100).await;
    fx.drain_ids().await;
    assert_eq!((other.counts().await, other.view(&theirs.lease.task).await), before);
}

redis_suite! {
    a_lost_group_loses_no_task,
    a_lost_group_ends_no_lease,
    a_lost_group_lets_a_task_be_settled,
    a_lost_group_and_a_lost_worker_lose_no_task,
    a_lost_group_and_a_settlement_of_many_lose_no_task,
    a_lost_group_a_heartbeat_and_a_settlement_of_many_lose_no_task,
    a_lost_bell_and_raw_group_are_made_again,
    a_deleted_entry_of_a_waiting_task_is_a_dead_letter,
    a_deleted_entry_of_a_running_task_does_not_stop_its_success,
    a_deleted_entry_of_a_failing_task_is_a_dead_letter,
    a_deleted_entry_under_a_dead_worker_is_a_dead_letter,
    a_lane_that_is_missing_from_the_index_is_found,
    a_lane_that_is_missing_from_a_classs_index_is_found,
    a_lane_that_is_missing_from_the_list_of_lanes_is_found,
    a_task_that_fell_behind_where_its_lane_was_read_is_found,
    a_task_that_a_stranger_read_is_found_by_a_sweep,
    a_task_that_a_stranger_read_and_left_is_not_lost_to_a_reclaim,
    a_raw_entry_whose_lane_is_broken_holds_nobody_up,
    entries_that_are_no_leases_hide_nothing_from_who_takes_back_a_lost_workers_tasks,
    a_running_task_that_nobody_has_is_run_again,
    a_task_that_is_missing_from_the_delayed_ones_is_found,
    a_task_that_is_missing_from_the_retrying_ones_is_found,
    a_task_that_is_missing_from_the_dead_ones_is_found,
    a_parked_task_whose_payload_is_gone_is_a_dead_letter,
    a_parked_task_whose_payload_went_before_it_was_due_is_a_dead_letter,
    a_stranger_in_a_lane_is_dropped_and_holds_nobody_up,
    leftovers_of_finished_tasks_in_a_lane_are_dropped,
    after_a_change_of_server_no_lease_expires_for_a_heartbeat_period,
    after_a_change_of_server_who_could_not_be_heard_did_not_crash,
    what_is_finished_leaves_nothing_behind_but_its_result,
    keys_of_other_queues_are_left_alone,
}
