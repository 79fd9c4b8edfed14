//! Nothing is forgotten too early, and no call forgets too much.

use windlass::broker::{Decision, DecisionAction, OutboxEntry};
use windlass::event_log::{DeadLetterFilter, EventFilter, EventLog};
use windlass::protocol::task::DeadLetter;

use super::place::{Place, all_events, at, entry, entry_of, letter, queue, task};

async fn events_go_in_bounded_batches_and_never_before_their_time(place: &Place) {
    let log = place.log().await;
    let other = "shop/letters".parse().expect("valid");
    log.record(&queue(), &entry_of("a", 100)).await.expect("recorded");
    log.record(&other, &entry_of("a", 100)).await.expect("recorded");
    let mut deleted = Vec::new();
    while let count @ 1.. = log.delete_events_before(&queue(), at(50), 20).await.expect("answered") {
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
    let old = log.dead_letters_before(&queue(), at(ms), limit).await.expect("answered");
    let deleted = log.delete_dead_letters(&queue(), &old, at(ms)).await.expect("answered");
    assert_eq!(deleted, old.len());
    deleted
}

/// Between asking for what is old and deleting it somebody may have decided.
async fn a_dead_letter_that_is_decided_on_meanwhile_stays(place: &Place) {
    let log = place.log().await;
    let dead = DeadLetter { failed_at: at(10), ..letter("a", "no") };
    log.record_dead_letter(&queue(), &dead).await.expect("recorded");
    let old = log.dead_letters_before(&queue(), at(100), 10).await.expect("answered");
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
    assert_eq!(log.delete_events_before(&queue(), at(400), 10).await.expect("answered"), 2);
    assert_eq!(log.history(&queue(), &task("a-1")).await.expect("answered").len(), 1);
    assert_eq!(forget(&log, 600, 10).await, 1);
    assert_eq!(log.delete_events_before(&queue(), at(400), 10).await.expect("answered"), 1);
}

suite!(
    a_dead_letter_that_is_decided_on_meanwhile_stays,
    the_events_of_a_task_stay_as_long_as_its_dead_letter,
    events_go_in_bounded_batches_and_never_before_their_time,
    a_dead_letter_is_kept_for_its_time_after_it_failed_and_after_it_was_decided_on,
);
