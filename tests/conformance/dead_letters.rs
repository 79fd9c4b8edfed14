//! Dead letters: recorded once, in order, and then run again or given up.

use std::time::Duration;

use serde_json::json;
use windlass::broker::{
    DeadLetterView, Decision, DecisionAction, DiscardRequest, Discarded, ErrorClass, ListCursor, Recorded,
    ReplayRequest, Replayed, Review, Settled, Voice,
};
use windlass::protocol::names::{DeadLetterId, Epoch};
use windlass::protocol::policy::{EventRecording, IdempotencyScope};
use windlass::{NewTask, State, TaskId};

use super::fixture::{Fixture, permanent, replay_of, task, task_id};

fn keyed(key: &str) -> NewTask {
    NewTask { idempotency_key: Some(key.parse().expect("a key")), ..task("a") }
}

async fn replay_as(fx: &Fixture, dead_letter: &DeadLetterId, new_id: &TaskId) -> Replayed {
    fx.broker.replay(&replay_of(dead_letter, new_id.clone())).await.expect("answered")
}

/// Replays a dead letter and returns the new task.
async fn replay(fx: &Fixture, dead_letter: &DeadLetterId) -> TaskId {
    let new_id = TaskId::generate();
    assert_eq!(replay_as(fx, dead_letter, &new_id).await, Replayed::Done { task: new_id.clone() });
    new_id
}

async fn discard(fx: &Fixture, dead_letter: &DeadLetterId, person: &str) -> Discarded {
    let request = DiscardRequest { dead_letter: dead_letter.clone(), person: person.into(), reason: "obsolete".into() };
    fx.broker.discard(&request).await.expect("answered")
}

async fn dead_letters_are_recorded_oldest_first_and_once(fx: &Fixture) {
    let mut expected = Vec::new();
    for _ in 0..3 {
        let running = fx.running("a").await;
        assert_eq!(fx.settle(&running, permanent()).await, Settled::Dead);
        expected.push(DeadLetterId { task: running.lease.task, epoch: running.lease.epoch });
        fx.advance(Duration::from_millis(5));
    }
    let pending = fx.broker.pending_dead_letters(2).await.expect("answered");
    assert_eq!(pending.iter().map(|letter| letter.id.clone()).collect::<Vec<_>>(), expected[..2]);
    for id in &expected {
        assert_eq!(fx.broker.dead_letter(id).await.expect("answered"), None, "not recorded yet");
        assert_eq!(fx.broker.record_dead_letter(id).await.expect("answered"), Recorded::Done);
        assert_eq!(fx.broker.record_dead_letter(id).await.expect("answered"), Recorded::AlreadyRecorded);
        assert!(fx.broker.dead_letter(id).await.expect("answered").is_some());
        assert_eq!(fx.results(&id.task).await, 1, "recording twice is recording once");
    }
    assert!(fx.broker.pending_dead_letters(10).await.expect("answered").is_empty());
    let counts = fx.counts().await;
    assert_eq!((counts.dlq_pending, counts.dead_lettered, counts.finished), (0, 3, 3));
    assert_eq!(counts.invalid_transitions, 0);
}

async fn a_task_fails_only_after_its_dead_letter_is_recorded(fx: &Fixture) {
    let running = fx.running("a").await;
    let id = running.lease.task.clone();
    fx.settle(&running, permanent()).await;
    assert_eq!((fx.state(&id).await, fx.results(&id).await), (State::DlqPending, 0));
    let letter = DeadLetterId { task: id.clone(), epoch: running.lease.epoch };
    fx.broker.record_dead_letter(&letter).await.expect("answered");
    let path = fx.path(&id).await;
    assert_eq!(path[2..], [State::DlqPending, State::DlqRecorded, State::Failed]);
    let view = fx.view(&id).await;
    assert_eq!((view.state, view.dlq_id), (State::Failed, Some(letter.to_string())));
    assert_eq!((view.error.as_deref(), view.error_code.as_deref()), (Some("it can never work"), Some("impossible")));
}

async fn only_a_dead_task_has_a_dead_letter_to_record(fx: &Fixture) {
    let queued = fx.add("a").await;
    let letter = |task: &TaskId, epoch| DeadLetterId { task: task.clone(), epoch: Epoch(epoch) };
    let record = async |id: DeadLetterId| fx.broker.record_dead_letter(&id).await.expect("answered");
    assert_eq!(record(letter(&queued, 0)).await, Recorded::InvalidTransition);
    let running = fx.claim_one().await;
    assert_eq!(record(letter(&queued, 1)).await, Recorded::InvalidTransition);
    fx.settle(&running, permanent()).await;
    assert_eq!(record(letter(&queued, 2)).await, Recorded::InvalidTransition, "an epoch at which it did not die");
    assert_eq!(record(letter(&task_id("nobody"), 1)).await, Recorded::Unknown);
    assert_eq!(fx.state(&queued).await, State::DlqPending);
    assert_eq!(fx.counts().await.invalid_transitions, 3);
    assert_eq!(record(letter(&queued, 1)).await, Recorded::Done);
}

async fn a_replay_is_a_new_task_that_is_linked_both_ways(fx: &Fixture) {
    let letter = fx.dead(task("a")).await;
    let new_id = replay(fx, &letter).await;
    assert_eq!(fx.view(&letter.task).await.replayed_as, Some(new_id.clone()));
    assert_eq!(fx.state(&letter.task).await, State::Failed, "a final event is final");
    let view = fx.view(&new_id).await;
    assert_eq!((view.state, view.extras.replay_of), (State::Queued, Some(letter.to_string())));
    assert_eq!(view.created_at, fx.now());
    let counts = fx.counts().await;
    assert_eq!((counts.dead_lettered, counts.backlog), (0, 1), "somebody decided on it");
    fx.succeed(&fx.claim_one().await).await;
    assert_eq!((fx.results(&letter.task).await, fx.results(&new_id).await), (1, 1));
    assert_eq!(fx.path(&new_id).await, [State::Queued, State::Running, State::Succeeded]);
}

async fn a_dead_letter_is_replayed_once(fx: &Fixture) {
    let letter = fx.dead(task("a")).await;
    let first = replay(fx, &letter).await;
    for new_id in [first.clone(), TaskId::generate()] {
        let again = replay_as(fx, &letter, &new_id).await;
        assert_eq!(again, Replayed::AlreadyReplayed { task: first.clone() }, "the answer may have been lost");
    }
    assert_eq!(fx.claim(10).await.len(), 1);
}

async fn a_replay_that_dies_again_is_a_dead_letter_of_its_own_and_no_loop(fx: &Fixture) {
    let mut letter = fx.dead(task("a")).await;
    let mut chain = vec![letter.to_string()];
    for _ in 0..3 {
        let new_id = replay(fx, &letter).await;
        let running = fx.claim_one().await;
        assert_eq!(running.lease.task, new_id);
        let next = fx.bury(&running).await;
        let written = fx.letter(&next).await.letter;
        assert_eq!(written.extras.replay_of, Some(letter.to_string()), "it names the one before it");
        let again = replay_as(fx, &letter, &TaskId::generate()).await;
        assert_eq!(again, Replayed::AlreadyReplayed { task: new_id }, "the one before it cannot be run again");
        chain.push(next.to_string());
        letter = next;
    }
    assert_eq!(fx.counts().await.dead_lettered, 1, "of a chain only the last one waits for a decision");
    assert_eq!(fx.list(State::Failed).await.len(), chain.len());
}

async fn a_replay_may_bring_a_corrected_payload(fx: &Fixture) {
    let letter = fx.dead(task("a")).await;
    let new_id = TaskId::generate();
    let payload = Some(json!({"n": 2}).into());
    let request = ReplayRequest { payload, ..replay_of(&letter, new_id) };
    fx.broker.replay(&request).await.expect("answered");
    assert_eq!(fx.claim_one().await.payload.as_str(), r#"{"n":2}"#);
    let kept = fx.letter(&letter).await;
    assert_eq!(kept.letter.payload.as_str(), r#"{"n":1}"#, "the dead letter keeps what it was");
}

async fn a_replay_takes_the_key_up_again(fx: &Fixture) {
    let letter = fx.dead(keyed("k")).await;
    let new_id = replay(fx, &letter).await;
    let known = fx.enqueue(keyed("k")).await;
    assert_eq!((known.id, known.created), (new_id, false));
}

async fn a_replay_does_not_double_work_that_was_sent_again(fx: &Fixture) {
    let letter = fx.dead(keyed("k")).await;
    let again = fx.enqueue(keyed("k")).await;
    assert!(again.created);
    let taken = replay_as(fx, &letter, &TaskId::generate()).await;
    assert_eq!(taken, Replayed::KeyTaken { by: again.id.clone() });
    assert_eq!(fx.counts().await.dead_lettered, 1, "it is still to be decided on");
    fx.broker.cancel(&again.id, "not needed").await.expect("answered");
    replay(fx, &letter).await;
}

async fn a_replay_takes_over_a_key_that_is_held_as_long_as_the_dead_task_is_kept(fx: &Fixture) {
    fx.set(|policy| policy.idempotency.scope = IdempotencyScope::Retained).await;
    let letter = fx.dead(keyed("k")).await;
    assert_eq!(fx.enqueue(keyed("k")).await.id, letter.task, "sent again it is still the dead one");
    let new_id = replay(fx, &letter).await;
    assert_eq!(fx.enqueue(keyed("k")).await.id, new_id, "until somebody decides to run it");
}

async fn there_is_no_replay_of_what_is_no_dead_letter(fx: &Fixture) {
    let nobody = DeadLetterId { task: task_id("nobody"), epoch: Epoch(1) };
    assert_eq!(replay_as(fx, &nobody, &TaskId::generate()).await, Replayed::Unknown);
    assert_eq!(discard(fx, &nobody, "ada").await, Discarded::Unknown);
    let letter = fx.dead(task("a")).await;
    let wrong = DeadLetterId { epoch: Epoch(letter.epoch.0 + 1), ..letter.clone() };
    assert_eq!(replay_as(fx, &wrong, &TaskId::generate()).await, Replayed::Unknown, "wrong epoch");
    assert_eq!(discard(fx, &wrong, "ada").await, Discarded::Unknown, "wrong epoch");
    let running = fx.running("a").await;
    fx.settle(&running, permanent()).await;
    let pending = DeadLetterId { task: running.lease.task.clone(), epoch: running.lease.epoch };
    assert_eq!(replay_as(fx, &pending, &TaskId::generate()).await, Replayed::Unknown, "not recorded yet");
    assert_eq!(discard(fx, &pending, "ada").await, Discarded::Unknown, "not recorded yet");
    assert_eq!(fx.counts().await.dead_lettered, 1);
}

async fn one_person_can_give_a_dead_letter_up(fx: &Fixture) {
    let letter = fx.dead(task("a")).await;
    assert_eq!(discard(fx, &letter, "ada").await, Discarded::Done);
    assert_eq!(discard(fx, &letter, "ada").await, Discarded::AlreadyDiscarded);
    assert_eq!(replay_as(fx, &letter, &TaskId::generate()).await, Replayed::Discarded);
    assert_eq!(fx.counts().await.dead_lettered, 0);
    assert_eq!(fx.state(&letter.task).await, State::Failed, "the task stays what it was");
    assert!(fx.broker.dead_letter(&letter).await.expect("answered").is_some(), "and its letter can still be read");
}

async fn two_different_people_give_a_dead_letter_up_where_two_must_agree(fx: &Fixture) {
    fx.set(|policy| policy.discard_approvals = 2).await;
    let letter = fx.dead(task("a")).await;
    assert_eq!(discard(fx, &letter, "ada").await, Discarded::AwaitingSecond);
    assert_eq!(discard(fx, &letter, "ada").await, Discarded::SamePerson);
    assert_eq!(fx.counts().await.dead_lettered, 1);
    assert_eq!(discard(fx, &letter, "bob").await, Discarded::Done);
    assert_eq!(discard(fx, &letter, "eve").await, Discarded::AlreadyDiscarded);
    assert_eq!(fx.counts().await.dead_lettered, 0);
}

async fn a_replay_ends_a_discard_that_waits_for_its_second(fx: &Fixture) {
    fx.set(|policy| policy.discard_approvals = 2).await;
    let letter = fx.dead(task("a")).await;
    assert_eq!(discard(fx, &letter, "ada").await, Discarded::AwaitingSecond);
    let new_id = replay(fx, &letter).await;
    assert_eq!(discard(fx, &letter, "bob").await, Discarded::AlreadyReplayed { task: new_id });
}

async fn a_discard_says_who_and_why(fx: &Fixture) {
    let letter = fx.dead(task("a")).await;
    for (person, reason, expected) in [("", "obsolete", "needs a person"), ("ada", " ", "needs a reason")] {
        let request = DiscardRequest { dead_letter: letter.clone(), person: person.into(), reason: reason.into() };
        let refused = fx.broker.discard(&request).await.expect_err("refused");
        assert!(refused.to_string().contains(expected), "{refused}");
        assert_eq!(refused.class(), ErrorClass::Invalid);
    }
    assert_eq!(fx.counts().await.dead_lettered, 1);
    assert_eq!(fx.decisions().await, []);
}

async fn a_replay_says_who(fx: &Fixture) {
    let letter = fx.dead(task("a")).await;
    let request = ReplayRequest { person: " ".into(), ..replay_of(&letter, TaskId::generate()) };
    let refused = fx.broker.replay(&request).await.expect_err("refused");
    assert!(refused.to_string().contains("a replay needs a person: say who"), "{refused}");
    assert_eq!(refused.class(), ErrorClass::Invalid);
    assert_eq!((fx.counts().await.backlog, fx.letter(&letter).await.review), (0, Review::Open));
}

fn voice(fx: &Fixture, person: &str, reason: &str) -> Voice {
    Voice { person: person.into(), reason: Some(reason.into()), at: fx.now() }
}

async fn a_replay_is_decided_and_moved_in_one_entry_of_the_outbox(fx: &Fixture) {
    let letter = fx.dead(task("a")).await;
    let new_id = TaskId::generate();
    fx.advance(Duration::from_secs(5));
    let request = ReplayRequest { reason: Some("the address was fixed".into()), ..replay_of(&letter, new_id.clone()) };
    for _ in 0..3 {
        fx.broker.replay(&request).await.expect("answered");
    }
    let last = fx.outbox().await.pop().expect("an entry");
    assert_eq!(last.events.iter().map(|event| (&event.task, event.to)).collect::<Vec<_>>(), [(&new_id, State::Queued)]);
    let expected = Decision {
        dead_letter: letter.clone(),
        action: DecisionAction::Replayed,
        person: "ada".into(),
        reason: Some("the address was fixed".into()),
        new_task: Some(new_id.clone()),
        at: fx.now(),
    };
    assert_eq!(last.decisions, [expected]);
    assert_eq!(fx.decisions().await.len(), 1, "a repeated call decides nothing");
    let by = voice(fx, "ada", "the address was fixed");
    assert_eq!(fx.letter(&letter).await.review, Review::Replayed { task: new_id, by });
}

async fn a_replay_may_come_without_a_reason(fx: &Fixture) {
    for reason in [None, Some(" ".to_owned())] {
        let letter = fx.dead(task("a")).await;
        let request = ReplayRequest { reason, ..replay_of(&letter, TaskId::generate()) };
        fx.broker.replay(&request).await.expect("answered");
        assert_eq!(fx.decisions().await.last().expect("one").reason, None);
        let Review::Replayed { by, .. } = fx.letter(&letter).await.review else { panic!("it was replayed") };
        assert_eq!(by.reason, None);
        fx.succeed(&fx.claim_one().await).await;
    }
}

async fn who_asks_for_a_discard_and_who_agrees_are_both_recorded(fx: &Fixture) {
    fx.set(|policy| policy.discard_approvals = 2).await;
    let letter = fx.dead(task("a")).await;
    assert_eq!(fx.letter(&letter).await.review, Review::Open);
    assert_eq!(discard(fx, &letter, "ada").await, Discarded::AwaitingSecond);
    assert_eq!(discard(fx, &letter, "ada").await, Discarded::SamePerson);
    let asked = voice(fx, "ada", "obsolete");
    assert_eq!(fx.letter(&letter).await.review, Review::DiscardRequested(asked.clone()));
    fx.advance(Duration::from_secs(60));
    let request = DiscardRequest { dead_letter: letter.clone(), person: "bob".into(), reason: "I agree: ü".into() };
    for _ in 0..2 {
        fx.broker.discard(&request).await.expect("answered");
    }
    let (by, requested) = (voice(fx, "bob", "I agree: ü"), Some(asked.clone()));
    assert_eq!(fx.letter(&letter).await.review, Review::Discarded { by: by.clone(), requested });
    let decision = |action, Voice { person, reason, at }| {
        let (dead_letter, new_task) = (letter.clone(), None);
        Decision { dead_letter, action, person, reason, new_task, at }
    };
    let expected = [decision(DecisionAction::DiscardRequested, asked), decision(DecisionAction::Discarded, by)];
    assert_eq!(fx.decisions().await, expected);
    for entry in fx.outbox().await.iter().filter(|entry| !entry.decisions.is_empty()) {
        assert_eq!(entry.events, [], "the task stays what it was");
    }
}

async fn where_nothing_is_recorded_decisions_leave_the_outbox_alone(fx: &Fixture) {
    fx.set(|policy| policy.events = EventRecording::Off).await;
    let (one, other) = (fx.dead(task("a")).await, fx.dead(task("a")).await);
    replay(fx, &one).await;
    assert_eq!(discard(fx, &other, "ada").await, Discarded::Done);
    assert!(fx.outbox().await.is_empty());
    let Review::Discarded { by, requested } = fx.letter(&other).await.review else { panic!("it was given up") };
    assert_eq!((by.person.as_str(), requested), ("ada", None));
}

/// All pages of dead letters, so many a page.
async fn listed(fx: &Fixture, limit: usize) -> Vec<DeadLetterView> {
    let (mut all, mut cursor) = (Vec::new(), Some(ListCursor::default()));
    while let Some(from) = cursor {
        let page = fx.broker.dead_letters(from, limit).await.expect("answered");
        assert!(page.items.len() <= limit, "{} on a page of {limit}", page.items.len());
        all.extend(page.items);
        cursor = page.next;
    }
    all
}

async fn recorded_dead_letters_are_listed_newest_first_with_their_decisions(fx: &Fixture) {
    assert_eq!(listed(fx, 10).await, []);
    fx.set(|policy| policy.discard_approvals = 2).await;
    let mut letters = Vec::new();
    for number in 0..7 {
        letters.push(fx.dead(task("a")).await);
        if number == 2 {
            replay(fx, &letters[2]).await;
            fx.succeed(&fx.claim_one().await).await;
        }
        fx.advance(Duration::from_millis(5));
    }
    discard(fx, &letters[0], "ada").await;
    discard(fx, &letters[0], "bob").await;
    discard(fx, &letters[1], "ada").await;
    let running = fx.running("a").await;
    fx.settle(&running, permanent()).await;
    let mut expected = Vec::new();
    for id in letters.iter().rev() {
        expected.push(fx.letter(id).await);
    }
    for limit in [1, 3, 7, 100] {
        assert_eq!(listed(fx, limit).await, expected, "{limit} a page");
    }
    assert!(matches!(expected[6].review, Review::Discarded { .. }));
    assert!(matches!(expected[5].review, Review::DiscardRequested(_)));
    assert!(matches!(expected[4].review, Review::Replayed { .. }));
    assert!(expected[..4].iter().all(|view| view.review == Review::Open));
    assert!(expected.iter().all(|view| view.recorded_at == view.letter.failed_at), "recorded as soon as they died");
}

async fn large_dead_letters_make_short_pages(fx: &Fixture) {
    for _ in 0..6 {
        let payload = json!("x".repeat(900_000)).into();
        fx.dead(NewTask { payload, ..task("a") }).await;
    }
    let page = fx.broker.dead_letters(ListCursor::default(), 100).await.expect("answered");
    if fx.kind != super::fixture::Kind::Model {
        assert_eq!(page.items.len(), 2, "more than a mebibyte is enough for one answer");
    }
    assert_eq!(listed(fx, 100).await.len(), 6);
}

/// Letters that wait to be recorded, a page at a time: their ids, and how many were on each page.
async fn pending_pages(fx: &Fixture, limit: usize) -> (Vec<DeadLetterId>, Vec<usize>) {
    let (mut ids, mut sizes) = (Vec::<DeadLetterId>::new(), Vec::new());
    loop {
        let after = ids.last().map(|id| &id.task);
        let page = fx.broker.pending_dead_letters_after(after, limit).await.expect("answered");
        sizes.push(page.letters.len());
        ids.extend(page.letters.into_iter().map(|letter| letter.id));
        if !page.more {
            return (ids, sizes);
        }
    }
}

async fn large_dead_letters_wait_in_short_pages(fx: &Fixture) {
    let mut expected = Vec::new();
    for _ in 0..6 {
        let payload = json!("x".repeat(900_000)).into();
        fx.enqueue(NewTask { payload, ..task("a") }).await;
        let running = fx.claim_one().await;
        assert_eq!(fx.settle(&running, permanent()).await, Settled::Dead);
        expected.push(DeadLetterId { task: running.lease.task, epoch: running.lease.epoch });
        fx.advance(Duration::from_millis(5));
    }
    assert_eq!(pending_pages(fx, 100).await, (expected.clone(), vec![2, 2, 2]));
    assert_eq!(pending_pages(fx, 1).await, (expected.clone(), vec![1; 6]), "there is always one");
    // Behind one that waits no more it begins anew.
    fx.broker.record_dead_letter(&expected[0]).await.expect("answered");
    let page = fx.broker.pending_dead_letters_after(Some(&expected[0].task), 1).await.expect("answered");
    assert_eq!((&page.letters[0].id, page.more), (&expected[1], true));
    fx.broker.record_dead_letter(&expected[5]).await.expect("answered");
    let last = fx.broker.pending_dead_letters_after(Some(&expected[3].task), 1).await.expect("answered");
    assert_eq!((last.letters.len(), last.more), (1, false), "a full page may be the last");
}

async fn every_task_ends_with_exactly_one_result(fx: &Fixture) {
    fx.set(|policy| policy.retry.max_retries = 0).await;
    let mut ids = Vec::new();
    for number in 0..30 {
        let id = fx.add("a").await;
        match number % 3 {
            0 => drop(fx.broker.cancel(&id, "not needed").await.expect("answered")),
            1 => fx.succeed(&fx.claim_one().await).await,
            _ => drop(fx.bury(&fx.claim_one().await).await),
        }
        ids.push(id);
    }
    for id in &ids {
        assert_eq!(fx.results(id).await, 1);
        let finals = fx.events(id).await.iter().filter(|event| event.to.is_final()).count();
        assert_eq!(finals, 1, "and one final event");
    }
    assert_eq!(fx.counts().await.finished, 30);
}

suite! {
    dead_letters_are_recorded_oldest_first_and_once,
    a_task_fails_only_after_its_dead_letter_is_recorded,
    only_a_dead_task_has_a_dead_letter_to_record,
    a_replay_is_a_new_task_that_is_linked_both_ways,
    a_dead_letter_is_replayed_once,
    a_replay_that_dies_again_is_a_dead_letter_of_its_own_and_no_loop,
    a_replay_may_bring_a_corrected_payload,
    a_replay_takes_the_key_up_again,
    a_replay_does_not_double_work_that_was_sent_again,
    a_replay_takes_over_a_key_that_is_held_as_long_as_the_dead_task_is_kept,
    there_is_no_replay_of_what_is_no_dead_letter,
    one_person_can_give_a_dead_letter_up,
    two_different_people_give_a_dead_letter_up_where_two_must_agree,
    a_replay_ends_a_discard_that_waits_for_its_second,
    a_discard_says_who_and_why,
    a_replay_says_who,
    a_replay_is_decided_and_moved_in_one_entry_of_the_outbox,
    a_replay_may_come_without_a_reason,
    who_asks_for_a_discard_and_who_agrees_are_both_recorded,
    where_nothing_is_recorded_decisions_leave_the_outbox_alone,
    recorded_dead_letters_are_listed_newest_first_with_their_decisions,
    large_dead_letters_make_short_pages,
    large_dead_letters_wait_in_short_pages,
    every_task_ends_with_exactly_one_result,
}
