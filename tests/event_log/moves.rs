//! Moves of tasks come into the log exactly once, whatever happens on the way.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use windlass::broker::redis::{RedisBroker, RedisOptions};
use windlass::broker::{Broker, EffectEvent, Event, OutboxEntry};
use windlass::event_log::{EventFilter, EventLog};
use windlass::protocol::keys::Keys;
use windlass::protocol::state::State;

use super::place::{Place, all_events, at, created, entry, entry_of, moved, queue, task};
use crate::support::load::{LedBy, Load, hasty_policy};
use crate::support::servers::{Flavor, Server};
use crate::support::{fresh_queue, owner};

/// Closes: "stream id issued twice after a failover".
async fn an_entry_is_recorded_once_however_often_and_under_whatever_id_it_comes(place: &Place) {
    let log = place.log().await;
    let first = entry_of("a", 10);
    assert_eq!(log.record(&queue(), &first).await.expect("recorded"), 10);
    assert_eq!(log.record(&queue(), &first).await.expect("recorded"), 0);
    let again = OutboxEntry { id: "2-0".to_owned(), ..first.clone() };
    let more = entry([created("a-3", 3), moved("a-3", (State::Queued, State::Running), 1, 9)]);
    let same_id = OutboxEntry { events: vec![created("b", 5)], ..first };
    let progress = log.record_many(&queue(), &[again, more, same_id, entry([])]).await;
    assert!(progress.stopped.is_none(), "{progress:?}");
    assert_eq!((progress.entries, progress.new), (4, 2));
    assert_eq!(all_events(&log, &EventFilter::default(), 1000).await.len(), 12);
}

/// An outside effect, as the outbox tells of it.
fn effect(of: &str, key: &str) -> EffectEvent {
    let Event { task, epoch, at, created_at, task_type, retry_count, tenant_id, trace_id, .. } =
        moved(of, (State::Queued, State::Running), 1, 7);
    let (key, consumer) = (key.parse().expect("valid"), Some("w-1".to_owned()));
    EffectEvent { key, task, epoch, consumer, at, created_at, task_type, retry_count, tenant_id, trace_id }
}

/// Closes: "the same key has its effect twice, and nobody can say so".
async fn an_outside_effect_is_recorded_once_a_key_whoever_tells_of_it(place: &Place) {
    let log = place.log().await;
    let acme = |effect: EffectEvent| EffectEvent { tenant_id: Some("acme".parse().expect("valid")), ..effect };
    let done = OutboxEntry { effects: vec![effect("a", "charge-7")], ..entry([created("a", 3)]) };
    assert_eq!(log.record(&queue(), &done).await.expect("recorded"), 2);
    assert_eq!(log.record(&queue(), &done).await.expect("recorded"), 0, "the same entry again");
    let effects = vec![effect("b", "charge-7"), effect("b", "charge-8"), acme(effect("b", "charge-7"))];
    let again = OutboxEntry { id: "2-0".to_owned(), effects, ..OutboxEntry::default() };
    assert_eq!(log.record(&queue(), &again).await.expect("recorded"), 2, "another key, and another tenant's");
    let filter = EventFilter { event_type: Some("effect.done".to_owned()), ..EventFilter::default() };
    let told = all_events(&log, &filter, 1000).await;
    let keys = |of: &str| -> Vec<_> {
        let of = told.iter().filter(|event| event.task_id == task(of));
        of.map(|event| event.idempotency_key.as_ref().expect("a key").as_str()).collect()
    };
    assert_eq!((keys("a"), keys("b")), (vec!["charge-7"], vec!["charge-8", "charge-7"]));
    let first = told.iter().find(|event| event.task_id == task("a")).expect("it is there");
    assert_eq!((first.from, first.to, first.epoch.0, first.consumer.as_deref()), (None, None, 1, Some("w-1")));
    assert_eq!((first.occurred_at, log.history(&queue(), &task("a")).await.expect("answered").len()), (at(7), 2));
}

async fn the_same_move_of_another_claim_or_another_queue_is_another_move(place: &Place) {
    let log = place.log().await;
    let run = |epoch| moved("a", (State::Retrying, State::Running), epoch, epoch as i64);
    let other = "shop/letters".parse().expect("valid");
    assert_eq!(log.record(&queue(), &entry([run(1), run(2), run(1)])).await.expect("recorded"), 2);
    assert_eq!(log.record(&other, &entry([run(1)])).await.expect("recorded"), 1);
    assert_eq!(log.history(&queue(), &task("a")).await.expect("answered").len(), 2);
    assert_eq!(log.history(&other, &task("a")).await.expect("answered").len(), 1);
}

async fn eight_recorders_of_the_same_entries_record_each_move_once(place: &Place) {
    let entries: Arc<Vec<_>> = Arc::new((0..40).map(|i| entry_of(&format!("e{i}"), 25)).collect());
    let shared = place.log().await;
    let mut recorders = Vec::new();
    for i in 0..8 {
        // Half of them are another process, as far as the database can tell.
        let log = if i % 2 == 0 { shared.clone() } else { place.log().await };
        let entries = entries.clone();
        recorders.push(tokio::spawn(async move { record_all(&log, &entries).await }));
    }
    let mut new = 0;
    for recorder in recorders {
        new += recorder.await.expect("no recorder panics");
    }
    assert_eq!(new, 1000);
    assert_eq!(place.query("SELECT count(*) FROM event_log").expect("answered"), "1000");
}

/// Records as the recorder does: goes on behind what is recorded, until all is. Says how many were new.
async fn record_all(log: &EventLog, entries: &[OutboxEntry]) -> usize {
    let (mut done, mut new) = (0, 0);
    while done < entries.len() {
        let progress = log.record_many(&queue(), &entries[done..]).await;
        if let Some(error) = &progress.stopped {
            assert_eq!(error.class(), windlass::broker::ErrorClass::Transient, "{error}");
        }
        done += progress.entries;
        new += progress.new;
    }
    new
}

async fn a_recorder_that_dies_half_way_leaves_an_entry_whole_or_not_at_all(place: &Place) {
    let log = place.log().await;
    let (mut cut, mut entries) = (0, 0);
    // Until enough were cut, however fast the machine is.
    while cut < 20 && entries < 2000 {
        let name = format!("e{entries}");
        let moves = entry_of(&name, 100);
        entries += 1;
        let moment = Duration::from_micros(fastrand::u64(0..4000));
        if tokio::time::timeout(moment, log.record(&queue(), &moves)).await.is_err() {
            cut += 1;
        }
        let count = format!("SELECT count(*) FROM event_log WHERE task_id LIKE '{name}-%'");
        if cut % 5 == 1 {
            let there = place.query(&count).expect("answered");
            assert!(there == "0" || there == "100", "{there} of 100");
        }
        log.record(&queue(), &moves).await.expect("recorded");
    }
    assert!(cut >= 20, "only {cut} of {entries} were cut");
    assert_eq!(place.query("SELECT count(*) FROM event_log").expect("answered"), (entries * 100).to_string());
}

async fn an_entry_may_hold_more_moves_than_a_statement_holds_values(place: &Place) {
    let log = place.log().await;
    assert_eq!(log.record(&queue(), &entry_of("a", 6000)).await.expect("recorded"), 6000);
}

async fn every_field_survives(place: &Place) {
    let log = place.log().await;
    let full = Event {
        tenant_id: Some("acme & söhne".parse().expect("valid")),
        trace_id: Some("00-4bf92f-01".parse().expect("valid")),
        consumer: Some("pod-1 \"new\"".to_owned()),
        message_id: Some("1700000000000-7".to_owned()),
        detail: Some(r#"{"from":"pod-0","message":"1-0","reason":"worker_lost"}"#.to_owned()),
        retry_count: u32::MAX,
        ..moved("a", (State::Retrying, State::Running), u64::MAX, 123)
    };
    log.record(&queue(), &entry([created("a", 1), full.clone()])).await.expect("recorded");
    let history = log.history(&queue(), &task("a")).await.expect("answered");
    let told = &history[1];
    assert_eq!(told.event_type, "task.reclaimed");
    assert_eq!((told.from, told.to), (full.from, Some(full.to)));
    assert_eq!((&told.tenant_id, &told.trace_id), (&full.tenant_id, &full.trace_id));
    assert_eq!((&told.consumer, &told.message_id, &told.detail), (&full.consumer, &full.message_id, &full.detail));
    assert_eq!((&told.task_id, &told.task_type, told.occurred_at), (&full.task, &full.task_type, full.at));
    assert_eq!((told.retry_count, told.epoch.0), (u32::MAX, i64::MAX as u64), "cut to what a column holds");
    assert_eq!((&history[0].event_type[..], history[0].from), ("task.created", None));
}

/// One event that cannot be stored would hold up the outbox for ever.
async fn text_that_no_database_holds_does_not_hold_up_the_outbox(place: &Place) {
    let log = place.log().await;
    let odd = Event { detail: Some("a\0b \\u0000 \u{1}".to_owned()), ..created("a", 1) };
    log.record(&queue(), &entry([odd])).await.expect("recorded");
    let history = log.history(&queue(), &task("a")).await.expect("answered");
    assert_eq!(history[0].detail.as_deref(), Some("a\u{fffd}b \\u0000 \u{1}"));
}

async fn a_history_is_in_the_order_of_the_task_s_life(place: &Place) {
    use State::*;
    let log = place.log().await;
    // Recorded out of order, and several moves within one millisecond.
    let late = entry([moved("a", (Running, Retrying), 1, 5), moved("a", (Retrying, Running), 2, 5)]);
    let early = entry([created("a", 5), moved("a", (Queued, Running), 1, 5)]);
    let end = entry([
        moved("a", (Running, DlqPending), 2, 6),
        moved("a", (DlqPending, DlqRecorded), 2, 7),
        moved("a", (DlqRecorded, Failed), 2, 7),
    ]);
    for moves in [late, end, early] {
        log.record(&queue(), &moves).await.expect("recorded");
    }
    let history = log.history(&queue(), &task("a")).await.expect("answered");
    let path: Vec<State> = history.iter().filter_map(|event| event.to).collect();
    assert_eq!(path[0], Queued);
    assert_eq!(path[3..], [Running, DlqPending, DlqRecorded, Failed]);
    assert_eq!(HashSet::<_>::from_iter(&path[1..3]), HashSet::from([&Running, &Retrying]));
    assert!(log.history(&queue(), &task("b")).await.expect("answered").is_empty());
}

async fn events_are_found_by_each_of_their_traits_and_in_pages(place: &Place) {
    let log = place.log().await;
    let special = Event {
        task_type: "pay".parse().expect("valid"),
        tenant_id: Some("acme".parse().expect("valid")),
        trace_id: Some("trace-1".parse().expect("valid")),
        ..moved("x", (State::Running, State::Succeeded), 1, 50)
    };
    log.record(&queue(), &entry_of("a", 100)).await.expect("recorded");
    log.record(&queue(), &entry([special.clone()])).await.expect("recorded");
    let none = EventFilter::default();
    for filter in [
        EventFilter { event_type: Some("task.succeeded".to_owned()), ..none.clone() },
        EventFilter { task_type: Some(special.task_type), ..none.clone() },
        EventFilter { tenant: special.tenant_id, ..none.clone() },
        EventFilter { trace: special.trace_id, ..none.clone() },
    ] {
        let found = all_events(&log, &filter, 10).await;
        assert_eq!(found.iter().map(|event| event.task_id.as_str()).collect::<Vec<_>>(), ["x"], "{filter:?}");
    }
    let window = EventFilter { after: Some(at(20)), before: Some(at(30)), ..none.clone() };
    assert_eq!(all_events(&log, &window, 3).await.len(), 10);
    let pages = all_events(&log, &none, 7).await;
    assert_eq!(pages, all_events(&log, &none, 1000).await);
    assert_eq!(pages.len(), 101);
    assert!(pages.is_sorted_by_key(|event| event.occurred_at));
}

/// What the engine writes, not what we think it writes: queue, task, epoch and state name one move.
async fn every_move_of_a_load_that_goes_wrong_is_recorded_once(place: &Place) {
    let server = Server::start(Flavor::Redis70).await;
    let (url, keys) = (server.url(), Keys::new(&fresh_queue()));
    let connect = move || Arc::new(RedisBroker::new(keys.clone(), RedisOptions::new(&url)).expect("a usable URL"));
    connect().provision(&owner(), &hasty_policy()).await.expect("the queue is made");
    let load = Load {
        tasks: 2000,
        workers: 4,
        producers: 2,
        cut_percent: 5,
        led_by: LedBy::TheLoad,
        connect: Box::new(connect),
    };
    let events = load.run().await.events;
    let mut distinct: Vec<&Event> = Vec::new();
    let mut names = HashSet::new();
    for event in &events {
        if names.insert((&event.task, event.epoch, event.to)) {
            distinct.push(event);
        } else {
            assert!(distinct.contains(&event), "another move of the same name: {event:?}");
        }
    }
    let log = place.log().await;
    let entries: Vec<OutboxEntry> = events.chunks(100).map(|chunk| entry(chunk.iter().cloned())).collect();
    assert_eq!(record_all(&log, &entries).await, distinct.len());
    assert_eq!(record_all(&log, &entries).await, 0);
    let kinds = place.query("SELECT DISTINCT event_type FROM event_log").expect("answered");
    for kind in ["task.created", "task.claimed", "task.succeeded", "task.retrying", "task.failed", "task.dlq"] {
        assert!(kinds.lines().any(|line| line == kind), "{kind} is not among {kinds}");
    }
}

suite!(
    an_entry_is_recorded_once_however_often_and_under_whatever_id_it_comes,
    an_outside_effect_is_recorded_once_a_key_whoever_tells_of_it,
    the_same_move_of_another_claim_or_another_queue_is_another_move,
    eight_recorders_of_the_same_entries_record_each_move_once,
    a_recorder_that_dies_half_way_leaves_an_entry_whole_or_not_at_all,
    an_entry_may_hold_more_moves_than_a_statement_holds_values,
    every_field_survives,
    text_that_no_database_holds_does_not_hold_up_the_outbox,
    a_history_is_in_the_order_of_the_task_s_life,
    events_are_found_by_each_of_their_traits_and_in_pages,
    every_move_of_a_load_that_goes_wrong_is_recorded_once,
);
