//! Dead letters: kept whole, read as causes, decided on once.

use windlass::State;
use windlass::broker::{Decision, DecisionAction, ErrorClass, Event, ListCursor, OutboxEntry};
use windlass::event_log::{DeadLetterFilter, EventFilter, EventLog, RecordedDeadLetter, Verdict};
use windlass::protocol::names::DeadLetterId;
use windlass::protocol::task::{Attempt, DeadLetter, Extras};

use super::place::{Place, all_events, at, created, entry, letter, queue, task};

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

fn said(id: &DeadLetterId, action: DecisionAction) -> Decision {
    Decision {
        dead_letter: id.clone(),
        action,
        person: "ada".to_owned(),
        reason: Some("it is hopeless".to_owned()),
        new_task: (action == DecisionAction::Replayed).then(|| task("new")),
        at: at(5000),
    }
}

/// Records a decision as it comes with the outbox: with the moves that it made.
async fn decide(log: &EventLog, said: &Decision) {
    let events = said.new_task.iter().map(|new| created(new.as_str(), 5000)).collect();
    let entry = OutboxEntry { events, decisions: vec![said.clone()], ..entry([]) };
    log.record(&queue(), &entry).await.expect("recorded");
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
    assert_eq!((found.decision, found.decided_at, found.replayed_as), (Verdict::Open, None, None));
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
    decide(&log, &said(&letters[9].id, DecisionAction::Discarded)).await;
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
    decide(&log, &said(&special.id, DecisionAction::Discarded)).await;
    let any = DeadLetterFilter::default();
    let fingerprint = log.dead_letter(&queue(), &special.id).await.expect("answered").expect("there").fingerprint;
    for filter in [
        DeadLetterFilter { ids: vec![special.id.clone(), letter("nobody", "").id], ..any.clone() },
        DeadLetterFilter { fingerprint: Some(fingerprint), ..any.clone() },
        DeadLetterFilter { task_type: Some(special.task_type), ..any.clone() },
        DeadLetterFilter { error_code: Some(special.error_code), ..any.clone() },
        DeadLetterFilter { tenant: special.tenant_id, ..any.clone() },
        DeadLetterFilter { failed_after: Some(at(90_000)), ..any.clone() },
        DeadLetterFilter { decision: Some(Verdict::Discarded), ..any.clone() },
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
    let open = DeadLetterFilter { decision: Some(Verdict::Open), ..DeadLetterFilter::default() };
    let (mut seen, mut cursor) = (0, Some(ListCursor::default()));
    while let Some(from) = cursor {
        let page = log.dead_letters(&queue(), &open, from, 9).await.expect("answered");
        for (i, found) in page.items.iter().enumerate() {
            seen += 1;
            // Some stay open, and must not come again.
            if i % 3 != 0 {
                decide(&log, &said(&found.letter.id, DecisionAction::Discarded)).await;
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
    let asked = said(&dead.id, DecisionAction::DiscardRequested);
    let agreed = Decision { person: "bob".to_owned(), at: at(6000), ..said(&dead.id, DecisionAction::Discarded) };
    decide(&log, &asked).await;
    let found = log.dead_letter(&queue(), &dead.id).await.expect("answered").expect("there");
    assert_eq!(found.decision, Verdict::Open, "one of two people has agreed");
    // The entry comes again, because the outbox could not be trimmed behind it.
    for _ in 0..3 {
        decide(&log, &agreed).await;
    }

    let found = log.dead_letter(&queue(), &dead.id).await.expect("answered").expect("there");
    assert_eq!((found.decision, found.decided_at), (Verdict::Discarded, Some(at(6000))));
    let kept = log.reviews(&queue(), &dead.id).await.expect("answered");
    assert_eq!(kept.into_iter().map(|kept| kept.decision).collect::<Vec<_>>(), [asked, agreed]);
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
    decide(&log, &said(&dead.id, DecisionAction::Replayed)).await;
    decide(&log, &said(&dead.id, DecisionAction::Discarded)).await;
    let found = log.dead_letter(&queue(), &dead.id).await.expect("answered").expect("there");
    assert_eq!((found.decision, found.replayed_as), (Verdict::Replayed, Some(task("new"))));
    assert_eq!(log.reviews(&queue(), &dead.id).await.expect("answered").len(), 2, "it was said");
}

/// Retention was faster, or the database came later: history goes on, and nothing waits behind it.
async fn a_decision_about_a_letter_that_is_not_here_holds_nothing_up(place: &Place) {
    let log = place.log().await;
    let gone = letter("gone", "no");
    let replayed = said(&gone.id, DecisionAction::Replayed);
    for _ in 0..2 {
        decide(&log, &replayed).await;
    }
    let kept = log.reviews(&queue(), &gone.id).await.expect("answered");
    assert_eq!(kept.into_iter().map(|kept| kept.decision).collect::<Vec<_>>(), [replayed]);
    let events = all_events(&log, &EventFilter::default(), 10).await;
    let told: Vec<_> = events.iter().map(|event| event.event_type.as_str()).collect();
    assert_eq!(told, ["task.created", "dlq.replayed"]);
    assert_eq!(log.dead_letter(&queue(), &gone.id).await.expect("answered"), None);
    assert_eq!(log.delete_dead_letters(&queue(), &[], at(5000)).await.expect("answered"), 0);
    assert_eq!(log.reviews(&queue(), &gone.id).await.expect("answered").len(), 1, "not before its time");
    assert_eq!(log.delete_dead_letters(&queue(), &[], at(5001)).await.expect("answered"), 0);
    assert!(log.reviews(&queue(), &gone.id).await.expect("answered").is_empty(), "and not for ever");
}

/// A log that is added later is shown dead letters after what was said about them.
async fn a_decision_that_came_before_its_letter_holds_and_is_told_once(place: &Place) {
    let log = place.log().await;
    let late = letter("late", "no");
    let replayed = said(&late.id, DecisionAction::Replayed);
    decide(&log, &replayed).await;
    log.record_dead_letter(&queue(), &late).await.expect("recorded");
    decide(&log, &replayed).await;
    let verdict = async || log.dead_letter(&queue(), &late.id).await.expect("answered").expect("there").decision;
    assert_eq!(verdict().await, Verdict::Replayed);
    assert_eq!(log.reviews(&queue(), &late.id).await.expect("answered").len(), 1);
    let told = EventFilter { event_type: Some("dlq.replayed".to_owned()), ..EventFilter::default() };
    assert_eq!(all_events(&log, &told, 10).await.len(), 1);
    // The id died again, and the entry comes once more.
    let again = DeadLetter { created_at: at(6000), failed_at: at(7000), ..late.clone() };
    log.record_dead_letter(&queue(), &again).await.expect("recorded");
    decide(&log, &replayed).await;
    assert_eq!(verdict().await, Verdict::Open, "that was about the first one");
}

/// Closes: what a driver that is cut while a transaction begins leaves in its pool, a connection whose
/// later writes are acknowledged and never committed.
async fn moves_and_decision_of_an_entry_are_there_together_or_not_at_all(place: &Place) {
    let log = place.log().await;
    let (mut cut, mut entries) = (0, 0);
    while cut < 20 && entries < 2000 {
        let dead = letter(&format!("dead-{entries}"), "no");
        log.record_dead_letter(&queue(), &dead).await.expect("recorded");
        let new = task(format!("new-{entries}"));
        let replayed = Decision { new_task: Some(new.clone()), ..said(&dead.id, DecisionAction::Replayed) };
        entries += 1;
        // Enough moves to last for some ticks of the clock.
        let moves = (0..300).map(|i| created(&format!("new-{entries}-{i}"), 5000));
        let whole =
            OutboxEntry { decisions: vec![replayed], ..entry([created(new.as_str(), 5000)].into_iter().chain(moves)) };
        let moment = std::time::Duration::from_micros(fastrand::u64(0..8000));
        if tokio::time::timeout(moment, log.record(&queue(), &whole)).await.is_ok() {
            continue;
        }
        cut += 1;
        // One statement: what was cut may still be committed by the server between two.
        let count = |rows: String| format!("(SELECT count(*) FROM {rows})");
        let counts = [
            count(format!("event_log WHERE task_id = '{new}'")),
            count(format!("event_log WHERE task_id = '{}'", dead.id.task)),
            count(format!("dlq_reviews WHERE dlq_id = '{}'", dead.id)),
        ];
        let there = place.query(&format!("SELECT {}", counts.join(", "))).expect("answered");
        assert!(there == "0|0|0" || there == "1|1|1", "{there}");
        log.record(&queue(), &whole).await.expect("recorded");
    }
    assert!(cut >= 20, "only {cut} of {entries} were cut");
    for table in ["dlq_reviews", "dlq_items WHERE decision = 'replayed'", "event_log WHERE event_type = 'dlq.replayed'"]
    {
        let count = place.query(&format!("SELECT count(*) FROM {table}")).expect("answered");
        assert_eq!(count, entries.to_string(), "{table}");
    }
}

async fn eight_recorders_of_one_decision_record_it_once(place: &Place) {
    let log = place.log().await;
    let dead = letter("a", "no");
    log.record_dead_letter(&queue(), &dead).await.expect("recorded");
    let mut calls = Vec::new();
    for _ in 0..8 {
        let (log, said) = (log.clone(), said(&dead.id, DecisionAction::Discarded));
        calls.push(tokio::spawn(async move { decide(&log, &said).await }));
    }
    for call in calls {
        call.await.expect("no panic");
    }
    assert_eq!(log.reviews(&queue(), &dead.id).await.expect("answered").len(), 1);
    assert_eq!(all_events(&log, &EventFilter::default(), 100).await.len(), 1);
}

async fn a_word_that_no_database_holds_does_not_hold_up_a_decision(place: &Place) {
    let log = place.log().await;
    let dead = letter("a", "no");
    log.record_dead_letter(&queue(), &dead).await.expect("recorded");
    let odd = Decision {
        person: "a\0da".to_owned(),
        reason: Some("because \0 ".repeat(10_000)),
        ..said(&dead.id, DecisionAction::Discarded)
    };
    decide(&log, &odd).await;
    let kept = log.reviews(&queue(), &dead.id).await.expect("answered");
    assert_eq!(kept[0].decision.person, "a\u{fffd}da");
}

/// An id may come back after its queue has forgotten it: that is another task.
async fn an_id_that_is_used_again_has_a_history_and_a_dead_letter_of_its_own(place: &Place) {
    let log = place.log().await;
    let (first, second) =
        (letter("a", "no"), DeadLetter { created_at: at(90_000), failed_at: at(91_000), ..letter("a", "never") });
    let life = |start: i64| {
        [(None, State::Queued), (Some(State::Queued), State::DlqPending)].map(|(from, to)| Event {
            from,
            to,
            created_at: at(start),
            ..created("a", start + 1)
        })
    };
    for (start, letter) in [(0, &first), (90_000, &second)] {
        assert_eq!(log.record(&queue(), &entry(life(start))).await.expect("recorded"), 2);
        log.record_dead_letter(&queue(), letter).await.expect("recorded");
        decide(&log, &Decision { at: letter.failed_at, ..said(&letter.id, DecisionAction::Discarded) }).await;
    }
    assert_eq!(log.record(&queue(), &entry(life(0))).await.expect("recorded"), 0, "it comes again");
    log.record_dead_letter(&queue(), &first).await.expect("the older one changes nothing");
    let found = log.dead_letter(&queue(), &first.id).await.expect("answered").expect("there");
    assert_eq!((found.letter, found.decision, found.decided_at), (second, Verdict::Discarded, Some(at(91_000))));
    let history = log.history(&queue(), &task("a")).await.expect("answered");
    let told: Vec<_> = history.iter().map(|event| event.event_type.as_str()).collect();
    // Some of it in one millisecond, so in any order within a life.
    for life in [&told[..3], &told[3..]] {
        let once = ["task.created", "task.dlq_pending", "dlq.discarded"];
        assert!(life.len() == 3 && once.iter().all(|kind| life.contains(kind)), "{told:?}");
    }
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
    a_decision_about_a_letter_that_is_not_here_holds_nothing_up,
    a_decision_that_came_before_its_letter_holds_and_is_told_once,
    moves_and_decision_of_an_entry_are_there_together_or_not_at_all,
    eight_recorders_of_one_decision_record_it_once,
    a_word_that_no_database_holds_does_not_hold_up_a_decision,
    an_id_that_is_used_again_has_a_history_and_a_dead_letter_of_its_own,
    a_replay_that_failed_the_same_way_again_is_known,
);
