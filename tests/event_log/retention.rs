//! Nothing is forgotten too early, and no call forgets too much.

use windlass::broker::{Decision, DecisionAction, ListCursor, OutboxEntry};
use windlass::event_log::{DeadLetterFilter, EventFilter, EventLog, OldEvents};
use windlass::protocol::state::State;
use windlass::protocol::task::DeadLetter;

use super::place::{Place, all_events, at, created, entry, entry_of, letter, moved, queue, task};

/// Whatever they are about.
fn all_before(ms: i64) -> OldEvents {
    OldEvents { ended: at(ms), all: at(ms) }
}

async fn events_go_in_bounded_batches_and_never_before_their_time(place: &Place) {
    let log = place.log().await;
    let other = "shop/letters".parse().expect("valid");
    log.record(&queue(), &entry_of("a", 100)).await.expect("recorded");
    log.record(&other, &entry_of("a", 100)).await.expect("recorded");
    let mut deleted = Vec::new();
    while let count @ 1.. = log.delete_events_before(&queue(), all_before(50), 20).await.expect("answered") {
        deleted.push(count);
    }
    assert_eq!(deleted, [20, 20, 10]);
    let left = all_events(&log, &EventFilter::default(), 1000).await;
    assert_eq!((left.len(), left[0].occurred_at), (50, at(50)));
    assert_eq!(log.history(&other, &task("a-0")).await.expect("answered").len(), 1, "another queue's stay");
}

async fn a_dead_letter_is_kept_for_its_time_after_it_failed_and_after_it_was_decided_on(place: &Place) {
    let log = place.log().await;
    let dead = |id: &str, ms| DeadLetter { failed_at: at(ms), ..letter(id, "no") };
    let (open, decided, young) = (dead("open", 10), dead("decided", 10), dead("young", 200));
    for letter in [&open, &decided, &young] {
        log.record_dead_letter(&queue(), letter).await.expect("recorded");
    }
    let said = Decision {
        dead_letter: decided.id.clone(),
        action: DecisionAction::Discarded,
        person: "ada".to_owned(),
        reason: Some("hopeless".to_owned()),
        new_task: None,
        at: at(150),
    };
    let entry = OutboxEntry { decisions: vec![said], ..entry([]) };
    log.record(&queue(), &entry).await.expect("recorded");
    let left = async || {
        let page = log.dead_letters(&queue(), &DeadLetterFilter::default(), Default::default(), 10).await;
        page.expect("answered").items.iter().map(|found| found.letter.id.task.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(forget(&log, 10, 10).await, 0);
    assert_eq!(forget(&log, 100, 10).await, 1);
    assert_eq!(left().await, ["young", "decided"]);
    assert_eq!(log.reviews(&queue(), &decided.id).await.expect("answered").len(), 1);
    assert_eq!(forget(&log, 300, 1).await, 1, "one at a time");
    assert_eq!(left().await, ["young"], "the oldest first");
    assert!(log.reviews(&queue(), &decided.id).await.expect("answered").is_empty(), "what was said goes with it");
    let events = all_events(&log, &EventFilter::default(), 10).await;
    assert_eq!(events.len(), 1, "events have their own retention");
}

/// Deletes the oldest of those dead letters that are that old.
async fn forget(log: &EventLog, ms: i64, limit: usize) -> usize {
    let old = log.dead_letters_before(&queue(), at(ms), ListCursor::default(), limit).await.expect("answered").items;
    let deleted = log.delete_dead_letters(&queue(), &old, at(ms)).await.expect("answered");
    assert_eq!(deleted, old.len());
    deleted
}

/// Between asking for what is old and deleting it somebody may have decided.
async fn a_dead_letter_that_is_decided_on_meanwhile_stays(place: &Place) {
    let log = place.log().await;
    let dead = DeadLetter { failed_at: at(10), ..letter("a", "no") };
    log.record_dead_letter(&queue(), &dead).await.expect("recorded");
    let old = log.dead_letters_before(&queue(), at(100), ListCursor::default(), 10).await.expect("answered").items;
    assert_eq!(old, std::slice::from_ref(&dead.id));
    let said = Decision {
        dead_letter: dead.id.clone(),
        action: DecisionAction::Discarded,
        person: "ada".to_owned(),
        reason: None,
        new_task: None,
        at: at(150),
    };
    log.record(&queue(), &OutboxEntry { decisions: vec![said], ..entry([]) }).await.expect("recorded");
    assert_eq!(log.delete_dead_letters(&queue(), &old, at(100)).await.expect("answered"), 0);
}

async fn the_events_of_a_task_stay_as_long_as_its_dead_letter(place: &Place) {
    let log = place.log().await;
    log.record(&queue(), &entry_of("a", 3)).await.expect("recorded");
    let dead = DeadLetter { failed_at: at(500), ..letter("a-1", "no") };
    log.record_dead_letter(&queue(), &dead).await.expect("recorded");
    assert_eq!(log.delete_events_before(&queue(), all_before(400), 10).await.expect("answered"), 2);
    assert_eq!(log.history(&queue(), &task("a-1")).await.expect("answered").len(), 1);
    assert_eq!(forget(&log, 600, 10).await, 1);
    assert_eq!(log.delete_events_before(&queue(), all_before(400), 10).await.expect("answered"), 1);
}

/// A task may live for longer than events are kept.
async fn the_events_of_a_live_task_stay_until_it_has_ended_for_so_long(place: &Place) {
    let log = place.log().await;
    let (claim, end) = ((State::Queued, State::Running), (State::Running, State::Succeeded));
    let moves = [created("done", 0), moved("done", claim, 1, 10), moved("done", end, 1, 20), created("live", 0)];
    log.record(&queue(), &entry(moves)).await.expect("recorded");
    let forget = async |ended, all| {
        let old = OldEvents { ended: at(ended), all: at(all) };
        log.delete_events_before(&queue(), old, 10).await.expect("answered")
    };
    assert_eq!(forget(20, 0).await, 0, "its end is not old, so its beginning stays");
    assert_eq!(forget(21, 0).await, 3);
    assert_eq!(log.history(&queue(), &task("live")).await.expect("answered").len(), 1);
    log.record(&queue(), &entry([moved("live", claim, 1, 500), moved("live", end, 1, 600)])).await.expect("recorded");
    assert_eq!(forget(600, 0).await, 0);
    assert_eq!(forget(601, 0).await, 3);
    log.record(&queue(), &entry([created("lost", 0)])).await.expect("recorded");
    assert_eq!(forget(601, 1).await, 1, "no task lives for so long");
}

/// An id may be used again: the end of the first task is not that of the second.
async fn the_end_of_an_earlier_task_of_its_id_takes_no_events_of_a_live_one(place: &Place) {
    let log = place.log().await;
    let end = moved("again", (State::Queued, State::Cancelled), 0, 10);
    let second = windlass::broker::Event { created_at: at(50), ..created("again", 50) };
    log.record(&queue(), &entry([created("again", 0), end, second])).await.expect("recorded");
    let old = OldEvents { ended: at(100), all: at(0) };
    assert_eq!(log.delete_events_before(&queue(), old, 10).await.expect("answered"), 2);
    assert_eq!(all_events(&log, &EventFilter::default(), 10).await[0].occurred_at, at(50));
}

async fn old_dead_letters_come_in_pages_the_oldest_first(place: &Place) {
    let log = place.log().await;
    for n in 0..7 {
        // Some of them failed in the same moment.
        let letter = DeadLetter { failed_at: at(n / 3), ..letter(&format!("a-{n}"), "no") };
        log.record_dead_letter(&queue(), &letter).await.expect("recorded");
    }
    let (mut seen, mut cursor) = (Vec::new(), Some(ListCursor::default()));
    while let Some(from) = cursor {
        let page = log.dead_letters_before(&queue(), at(2), from, 2).await.expect("answered");
        assert!(page.items.len() <= 2);
        seen.extend(page.items.into_iter().map(|id| id.task.to_string()));
        cursor = page.next;
    }
    assert_eq!(seen, ["a-0", "a-1", "a-2", "a-3", "a-4", "a-5"]);
}

suite!(
    a_dead_letter_that_is_decided_on_meanwhile_stays,
    the_events_of_a_task_stay_as_long_as_its_dead_letter,
    the_events_of_a_live_task_stay_until_it_has_ended_for_so_long,
    the_end_of_an_earlier_task_of_its_id_takes_no_events_of_a_live_one,
    old_dead_letters_come_in_pages_the_oldest_first,
    events_go_in_bounded_batches_and_never_before_their_time,
    a_dead_letter_is_kept_for_its_time_after_it_failed_and_after_it_was_decided_on,
);
