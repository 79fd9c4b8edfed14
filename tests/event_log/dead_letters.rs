//! Dead letters: kept whole, read as causes, decided on once.

use windlass::broker::{ErrorClass, ListCursor};
use windlass::event_log::{
    Action, DeadLetterFilter, Decision, EventFilter, EventLog, RecordedDeadLetter, Review, Reviewed,
};
use windlass::protocol::names::DeadLetterId;
use windlass::protocol::task::{Attempt, DeadLetter, Extras};

use super::place::{Place, all_events, at, letter, queue, task};

/// Dead letters of three causes, none of which says the same twice.
fn letters_of_three_causes(count: usize) -> Vec<DeadLetter> {
    let error = |i: usize| match i % 10 {
        0..=5 => format!("connect to 10.0.{}.{}:5432 timed out after {}ms", i % 200, i % 90, 3000 + i),
        6..=8 => format!("user '{i}@shop' has no address (order {})", uuid::Uuid::now_v7()),
        _ => format!("HTTP 503 from https://api.example.com/v1/users/{i}?try={i}"),
    };
    (0..count).map(|i| DeadLetter { failed_at: at(i as i64), ..letter(&format!("t{i}"), &error(i)) }).collect()
}

async fn record_all(log: &EventLog, letters: &[DeadLetter]) {
    for letter in letters {
        log.record_dead_letter(&queue(), letter).await.expect("recorded");
    }
}

async fn all(log: &EventLog, filter: &DeadLetterFilter) -> Vec<RecordedDeadLetter> {
    let (mut found, mut cursor) = (Vec::new(), Some(ListCursor::default()));
    while let Some(from) = cursor {
        let page = log.dead_letters(&queue(), filter, from, 7).await.expect("answered");
        found.extend(page.items);
        cursor = page.next;
    }
    found
}

fn review(id: &DeadLetterId, action: Action) -> Review {
    Review {
        dead_letter: id.clone(),
        action,
        person: "ada".to_owned(),
        reason: "it is hopeless".to_owned(),
        new_task: (action == Action::Replayed).then(|| task("new")),
        at: at(5000),
    }
}

async fn decide(log: &EventLog, review: &Review) -> Reviewed {
    log.record_review(&queue(), review).await.expect("answered")
}

async fn a_dead_letter_is_kept_whole_and_once(place: &Place) {
    let log = place.log().await;
    let attempt = Attempt {
        epoch: 4,
        at_ms: 1_700_000_000_500,
        outcome: "failure".to_owned(),
        code: "failed".to_owned(),
        error: "tail \0 of it".to_owned(),
        worker: "w-1".to_owned(),
    };
    let full = DeadLetter {
        idempotency_key: Some("order 7".parse().expect("valid")),
        tenant_id: Some("acme".parse().expect("valid")),
        trace_id: Some("trace-1".parse().expect("valid")),
        max_retries: Some(9),
        crash_count: 1,
        release_count: 2,
        extras: Extras {
            labels: [("team".to_owned(), "söhne".to_owned())].into(),
            parent_id: Some(task("parent")),
            timeout_ms: Some(1500),
            replay_of: Some("old#3".to_owned()),
        },
        history: vec![attempt; 20],
        ..letter("a#b", &"it went wrong, ".repeat(270))
    };
    log.record_dead_letter(&queue(), &full).await.expect("recorded");
    let changed = DeadLetter { error: "something else".to_owned(), ..full.clone() };
    log.record_dead_letter(&queue(), &changed).await.expect("the second time changes nothing");
    let found = log.dead_letter(&queue(), &full.id).await.expect("answered").expect("it is there");
    assert_eq!(found.letter, full);
    assert_eq!((found.decision, found.decided_at, found.replayed_as), (Decision::Open, None, None));
    assert_eq!(all(&log, &DeadLetterFilter::default()).await.len(), 1);
    let other = "shop/letters".parse().expect("valid");
    assert_eq!(log.dead_letter(&other, &full.id).await.expect("answered"), None);
}

async fn an_error_that_no_database_holds_does_not_hold_up_a_dead_letter(place: &Place) {
    let log = place.log().await;
    let odd = DeadLetter { error: "a\0b".to_owned(), ..letter("a", "") };
    log.record_dead_letter(&queue(), &odd).await.expect("recorded");
    let found = log.dead_letter(&queue(), &odd.id).await.expect("answered").expect("it is there");
    assert_eq!(found.letter.error, "a\u{fffd}b");
}

async fn two_thousand_dead_letters_read_as_three_causes(place: &Place) {
    let log = place.log().await;
    let letters = letters_of_three_causes(2000);
    record_all(&log, &letters).await;
    decide(&log, &review(&letters[9].id, Action::Discarded)).await;
    let any = DeadLetterFilter::default();
    let causes = log.causes(&queue(), &any, ListCursor::default(), 100).await.expect("answered");
    let counts: Vec<_> = causes.items.iter().map(|cause| (cause.count, cause.open)).collect();
    assert_eq!(counts, [(1200, 1200), (600, 600), (200, 199)]);
    assert_eq!(causes.next, None);
    let first = &causes.items[0];
    assert_eq!((first.first_failed_at, first.last_failed_at), (at(0), at(1995)));
    assert_eq!(first.sample_error, letters[1995].error);
    assert_eq!((first.task_type.as_str(), first.error_code.as_str()), ("send", "failed"));

    let (mut paged, mut cursor) = (Vec::new(), Some(ListCursor::default()));
    while let Some(from) = cursor {
        let page = log.causes(&queue(), &any, from, 1).await.expect("answered");
        paged.extend(page.items);
        cursor = page.next;
    }
    assert_eq!(paged, causes.items);
    let only = DeadLetterFilter { fingerprint: Some(first.fingerprint.clone()), ..any };
    assert_eq!(log.count_dead_letters(&queue(), &only).await.expect("answered"), 1200);
}

async fn dead_letters_are_found_by_each_of_their_traits(place: &Place) {
    let log = place.log().await;
    record_all(&log, &letters_of_three_causes(50)).await;
    let special = DeadLetter {
        task_type: "pay".parse().expect("valid"),
        error_code: "timeout".to_owned(),
        tenant_id: Some("acme".parse().expect("valid")),
        failed_at: at(90_000),
        ..letter("special", "no such thing")
    };
    log.record_dead_letter(&queue(), &special).await.expect("recorded");
    decide(&log, &review(&special.id, Action::Discarded)).await;
    let any = DeadLetterFilter::default();
    let fingerprint = log.dead_letter(&queue(), &special.id).await.expect("answered").expect("there").fingerprint;
    for filter in [
        DeadLetterFilter { ids: vec![special.id.clone(), letter("nobody", "").id], ..any.clone() },
        DeadLetterFilter { fingerprint: Some(fingerprint), ..any.clone() },
        DeadLetterFilter { task_type: Some(special.task_type), ..any.clone() },
        DeadLetterFilter { error_code: Some(special.error_code), ..any.clone() },
        DeadLetterFilter { tenant: special.tenant_id, ..any.clone() },
        DeadLetterFilter { failed_after: Some(at(90_000)), ..any.clone() },
        DeadLetterFilter { decision: Some(Decision::Discarded), ..any.clone() },
    ] {
        let found = all(&log, &filter).await;
        assert_eq!(found.iter().map(|found| &found.letter.id).collect::<Vec<_>>(), [&special.id], "{filter:?}");
        assert_eq!(log.count_dead_letters(&queue(), &filter).await.expect("answered"), 1, "{filter:?}");
        let causes = log.causes(&queue(), &filter, ListCursor::default(), 10).await.expect("answered");
        assert_eq!(causes.items.len(), 1, "{filter:?}");
    }
    let window = DeadLetterFilter { failed_after: Some(at(10)), failed_before: Some(at(20)), ..any.clone() };
    assert_eq!(all(&log, &window).await.len(), 10);
    assert_eq!(all(&log, &any).await.len(), 51);

    let many = DeadLetterFilter { ids: vec![special.id; 1001], ..any };
    let error = log.count_dead_letters(&queue(), &many).await.expect_err("too many");
    assert_eq!(error.class(), ErrorClass::Invalid);
}

/// Closes: "a full batch of unrescuable rows hides the later ones".
async fn a_walk_that_decides_as_it_goes_sees_every_open_letter_once(place: &Place) {
    let log = place.log().await;
    record_all(&log, &letters_of_three_causes(100)).await;
    let open = DeadLetterFilter { decision: Some(Decision::Open), ..DeadLetterFilter::default() };
    let (mut seen, mut cursor) = (0, Some(ListCursor::default()));
    while let Some(from) = cursor {
        let page = log.dead_letters(&queue(), &open, from, 9).await.expect("answered");
        for (i, found) in page.items.iter().enumerate() {
            seen += 1;
            // Some stay open, and must not come again.
            if i % 3 != 0 {
                decide(&log, &review(&found.letter.id, Action::Discarded)).await;
            }
        }
        cursor = page.next;
    }
    assert_eq!(seen, 100);
}

async fn a_decision_is_kept_with_its_reasons_and_told_as_an_event(place: &Place) {
    let log = place.log().await;
    let dead = DeadLetter { trace_id: Some("trace-1".parse().expect("valid")), ..letter("a", "no") };
    log.record_dead_letter(&queue(), &dead).await.expect("recorded");
    let asked = review(&dead.id, Action::DiscardRequested);
    let agreed = Review { person: "bob".to_owned(), at: at(6000), ..review(&dead.id, Action::Discarded) };
    assert_eq!(decide(&log, &asked).await, Reviewed::Recorded);
    let found = log.dead_letter(&queue(), &dead.id).await.expect("answered").expect("there");
    assert_eq!(found.decision, Decision::Open, "one of two people has agreed");
    assert_eq!(decide(&log, &agreed).await, Reviewed::Recorded);
    // Repeated after an answer was lost, at another time.
    assert_eq!(decide(&log, &Review { at: at(7000), ..agreed.clone() }).await, Reviewed::Before);

    let found = log.dead_letter(&queue(), &dead.id).await.expect("answered").expect("there");
    assert_eq!((found.decision, found.decided_at), (Decision::Discarded, Some(at(6000))));
    let said = log.reviews(&queue(), &dead.id).await.expect("answered");
    assert_eq!(said.into_iter().map(|said| said.review).collect::<Vec<_>>(), [asked, agreed]);
    let events = all_events(&log, &EventFilter::default(), 10).await;
    let told: Vec<_> = events.iter().map(|event| (event.event_type.as_str(), event.occurred_at)).collect();
    assert_eq!(told, [("dlq.discard_requested", at(5000)), ("dlq.discarded", at(6000))]);
    assert_eq!((&events[1].task_id, &events[1].trace_id), (&dead.id.task, &dead.trace_id));
    let detail = events[1].detail.as_deref().expect("who and why");
    assert_eq!(detail, r#"{"dlq_id":"a#4","person":"bob","reason":"it is hopeless"}"#);
}

async fn the_first_decision_stands(place: &Place) {
    let log = place.log().await;
    let dead = letter("a", "no");
    log.record_dead_letter(&queue(), &dead).await.expect("recorded");
    assert_eq!(decide(&log, &review(&dead.id, Action::Replayed)).await, Reviewed::Recorded);
    assert_eq!(decide(&log, &review(&dead.id, Action::Discarded)).await, Reviewed::Recorded, "it was said");
    let found = log.dead_letter(&queue(), &dead.id).await.expect("answered").expect("there");
    assert_eq!((found.decision, found.replayed_as), (Decision::Replayed, Some(task("new"))));
}

async fn a_review_without_a_letter_a_person_or_a_reason_is_not_taken(place: &Place) {
    let log = place.log().await;
    let dead = letter("a", "no");
    let good = review(&dead.id, Action::Discarded);
    assert_eq!(decide(&log, &good).await, Reviewed::Unknown);
    log.record_dead_letter(&queue(), &dead).await.expect("recorded");
    for bad in [
        Review { person: " ".to_owned(), ..good.clone() },
        Review { reason: String::new(), ..good.clone() },
        Review { new_task: Some(task("b")), ..good.clone() },
        Review { action: Action::Replayed, ..good.clone() },
    ] {
        let error = log.record_review(&queue(), &bad).await.expect_err("incomplete");
        assert_eq!(error.class(), ErrorClass::Invalid, "{error}");
    }
    let empty = Review { reason: String::new(), ..review(&dead.id, Action::Replayed) };
    assert_eq!(decide(&log, &empty).await, Reviewed::Recorded, "a replay needs no reason");
    let long = Review { reason: "because ".repeat(10_000), ..good };
    assert_eq!(decide(&log, &long).await, Reviewed::Recorded, "a reason may be long");
}

async fn ten_people_who_say_the_same_at_once_are_ten_and_one_who_says_it_ten_times_is_one(place: &Place) {
    let log = place.log().await;
    let dead = letter("a", "no");
    log.record_dead_letter(&queue(), &dead).await.expect("recorded");
    let mut calls = Vec::new();
    for i in 0..20 {
        let person = if i < 10 { format!("p{i}") } else { "ada".to_owned() };
        let (log, said) = (log.clone(), Review { person, ..review(&dead.id, Action::Escalated) });
        calls.push(tokio::spawn(async move { decide(&log, &said).await }));
    }
    let mut recorded = 0;
    for call in calls {
        recorded += usize::from(call.await.expect("no panic") == Reviewed::Recorded);
    }
    assert_eq!(recorded, 11);
    assert_eq!(log.reviews(&queue(), &dead.id).await.expect("answered").len(), 11);
    assert_eq!(all_events(&log, &EventFilter::default(), 100).await.len(), 11);
}

async fn a_replay_that_failed_the_same_way_again_is_known(place: &Place) {
    let log = place.log().await;
    let replay = |id: &str, of: &str, error: &str| DeadLetter {
        extras: Extras { replay_of: Some(of.to_owned()), ..Extras::default() },
        ..letter(id, error)
    };
    let line = [
        letter("a", "no address for user 7"),
        replay("b", "a#4", "no address for user 8"),
        replay("c", "b#4", "no address for user 9"),
        replay("d", "c#4", "something else"),
        replay("e", "d#4", "something else"),
        replay("orphan", "gone#1", "no address for user 7"),
        replay("ring", "ring#4", "turns for ever"),
    ];
    record_all(&log, &line).await;
    let mut times = Vec::new();
    for dead in &line[..6] {
        times.push(log.failed_again_the_same_way(&queue(), &dead.id).await.expect("answered"));
    }
    assert_eq!(times, [0, 1, 2, 0, 1, 0]);
    assert!(log.failed_again_the_same_way(&queue(), &line[6].id).await.expect("answered") > 0, "and it ends");
    assert_eq!(log.failed_again_the_same_way(&queue(), &letter("nobody", "").id).await.expect("answered"), 0);
}

suite!(
    a_dead_letter_is_kept_whole_and_once,
    an_error_that_no_database_holds_does_not_hold_up_a_dead_letter,
    two_thousand_dead_letters_read_as_three_causes,
    dead_letters_are_found_by_each_of_their_traits,
    a_walk_that_decides_as_it_goes_sees_every_open_letter_once,
    a_decision_is_kept_with_its_reasons_and_told_as_an_event,
    the_first_decision_stands,
    a_review_without_a_letter_a_person_or_a_reason_is_not_taken,
    ten_people_who_say_the_same_at_once_are_ten_and_one_who_says_it_ten_times_is_one,
    a_replay_that_failed_the_same_way_again_is_known,
);
