//! What people decide while leaders die is recorded once.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::sleep;
use windlass::NewTask;
use windlass::broker::session::Session;
use windlass::broker::{Broker, ListCursor, Outcome, Review, Settlement};
use windlass::dead_letters::{DeadLetterFilter, DeadLetters, Discard, Replay, Selection, Verdict};
use windlass::event_log::EventFilter;
use windlass::protocol::backoff::Dice;
use windlass::protocol::names::{Capabilities, DeadLetterId, WorkerId};
use windlass::protocol::policy::Policy;

use super::faults::{ms, until};
use crate::support::ground::Ground;
use crate::support::load::hasty_policy;
use crate::support::servers::{Flavor, Postgres, Server};

/// Lets everything die but replays, until it is told to end.
async fn work(ground: Arc<Ground>, ended: Arc<AtomicBool>) {
    let worker = WorkerId::new("w").expect("valid");
    let mut session = Session::new(ground.broker.clone(), worker, Capabilities::any());
    while !ended.load(Ordering::SeqCst) {
        let claimed = session.claim(20).await.expect("claimed");
        if claimed.is_empty() {
            sleep(Duration::from_millis(5)).await;
            continue;
        }
        let end = |task: &windlass::broker::ClaimedTask| match task.extras.replay_of {
            Some(_) => Outcome::success(),
            None => Outcome::permanent("failed", "no"),
        };
        let settlements: Vec<_> = claimed
            .iter()
            .map(|task| Settlement { lease: task.lease.clone(), outcome: end(task), dice: Dice(0) })
            .collect();
        session.settle(&settlements, 0).await.expect("settled");
    }
}

/// Decides on what is open, half the time without waiting for an answer: replays a third, gives up a third.
async fn decide(letters: &DeadLetters) {
    let open = DeadLetterFilter { decision: Some(Verdict::Open), ..DeadLetterFilter::default() };
    let page = letters.list(&open, ListCursor::default(), 100).await.expect("listed");
    for entry in page.items {
        let id = entry.letter.id;
        let share = id.task.as_str().bytes().map(u32::from).sum::<u32>() % 3;
        let this = Selection::Ids(vec![id]);
        let decision = async {
            match share {
                0 => drop(letters.replay(&Replay::new(this, "ada"), |_| ()).await.expect("it began")),
                1 => {
                    for person in ["ada", "bob"] {
                        drop(
                            letters
                                .discard(&Discard::new(this.clone(), person, "hopeless"), |_| ())
                                .await
                                .expect("it began"),
                        );
                    }
                }
                _ => {}
            }
        };
        if fastrand::bool() {
            decision.await;
        } else {
            let _ = tokio::time::timeout(ms(0..5), decision).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn decisions_are_recorded_once_though_leaders_are_killed() {
    const TASKS: usize = 600;
    let server = Server::start(Flavor::Redis70).await;
    let postgres = Postgres::start().await;
    let policy = Policy { discard_approvals: 2, ..hasty_policy() };
    let ground = Arc::new(Ground::new(&server, postgres.fresh_database(), &policy).await);
    let letters = DeadLetters::new(ground.name.clone(), ground.broker.clone(), None);
    let ended = Arc::new(AtomicBool::new(false));
    let worker = tokio::spawn(work(ground.clone(), ended.clone()));
    let people = tokio::spawn({
        let (letters, ended) = (letters.clone(), ended.clone());
        async move {
            while !ended.load(Ordering::SeqCst) {
                decide(&letters).await;
            }
        }
    });
    let (mut kills, mut made) = (0, 0);
    while kills < 60 || made < TASKS {
        if made < TASKS {
            let batch: Vec<_> =
                (0..20).map(|n| NewTask::new("send".parse().expect("valid"), serde_json::json!({ "n": n }))).collect();
            ground.broker.enqueue(&batch).await.expect("taken");
            made += 20;
        }
        let mut leader = ground.lead_apart();
        sleep(ms(20..150)).await;
        leader.kill9();
        kills += 1;
    }
    let _leader = ground.lead_apart();
    until(&ground, "all to be dead or done", |counts| counts.backlog + counts.running + counts.dlq_pending == 0).await;
    ended.store(true, Ordering::SeqCst);
    people.await.expect("no panic");
    worker.await.expect("no panic");
    decide(&letters).await;
    until(&ground, "an empty outbox", |counts| counts.outbox == 0).await;
    check(&ground, TASKS).await;
    println!("{kills} kills");
}

/// The log says what the queue says, of every dead letter.
async fn check(ground: &Ground, tasks: usize) {
    let log = ground.log();
    let (mut cursor, mut seen, mut expected) = (Some(ListCursor::default()), 0, HashMap::new());
    while let Some(from) = cursor {
        let page = ground.broker.dead_letters(from, 100).await.expect("listed");
        for view in page.items {
            seen += 1;
            let id = view.letter.id;
            let recorded = log.dead_letter(&ground.name, &id).await.expect("answered").expect("it is recorded");
            let said = actions(ground, &id).await;
            let (verdict, actions): (Verdict, &[&str]) = match view.review {
                Review::Open => (Verdict::Open, &[]),
                Review::DiscardRequested(_) => (Verdict::Open, &["discard_requested"]),
                Review::Replayed { .. } if said.len() == 2 => (Verdict::Replayed, &["discard_requested", "replayed"]),
                Review::Replayed { .. } => (Verdict::Replayed, &["replayed"]),
                Review::Discarded { .. } => (Verdict::Discarded, &["discard_requested", "discarded"]),
            };
            assert_eq!((recorded.decision, &said[..]), (verdict, actions), "{id}");
            for action in said {
                *expected.entry(format!("dlq.{action}")).or_insert(0) += 1;
            }
        }
        cursor = page.next;
    }
    assert_eq!(seen, tasks);
    assert_eq!(expected.len(), 3, "all kinds of decisions were made: {expected:?}");
    for (kind, count) in &expected {
        let filter = EventFilter { event_type: Some(kind.clone()), ..EventFilter::default() };
        let events = log.events(&ground.name, &filter, ListCursor::default(), 1000).await.expect("answered").items;
        assert_eq!(events.len(), *count, "{kind}");
    }
    println!("{expected:?}");
}

async fn actions(ground: &Ground, id: &DeadLetterId) -> Vec<&'static str> {
    let said = ground.log().reviews(&ground.name, id).await.expect("answered");
    said.iter().map(|said| said.decision.action.as_str()).collect()
}
