//! Dead letters are given up with a reason and, where the policy says so, by two people.

use windlass::broker::{ErrorClass, Review};
use windlass::dead_letters::{
    DeadLetterFilter, Discard, DiscardCounts, DiscardOutcome, Replay, Run, Selection, Verdict,
};
use windlass::protocol::policy::Policy;

use super::rig::{Rig, tasks};

fn all() -> Selection {
    Selection::Matching(DeadLetterFilter::default())
}

fn two_people() -> Policy {
    Policy { discard_approvals: 2, ..Policy::default() }
}

async fn discard(rig: &Rig, discard: &Discard) -> DiscardCounts {
    let mut told = 0;
    let letters = rig.letters();
    let report = letters.discard(discard, |step| {
        told += 1;
        assert_eq!(step.done, told);
    });
    let report = report.await.expect("it began");
    assert!(report.stopped.is_none(), "{:?}", report.stopped);
    rig.lead().await;
    assert_eq!(told, report.counts.selected);
    report.counts
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_different_people_must_agree_and_the_second_sees_what_the_first_asked_for() {
    for rig in [Rig::new(two_people()).await, Rig::without_log(two_people()).await] {
        rig.die(&tasks(3), |_| "no".to_owned()).await;
        let none = DiscardCounts { selected: 3, ..DiscardCounts::default() };
        let ada = Discard::new(all(), "ada", "the shop is closed");
        let dry = Discard { run: Run::Dry, ..ada.clone() };
        assert_eq!(discard(&rig, &dry).await, DiscardCounts { would_request: 3, ..none });
        assert_eq!(discard(&rig, &ada).await, DiscardCounts { awaiting_second: 3, ..none });
        assert_eq!(discard(&rig, &ada).await, DiscardCounts { same_person: 3, ..none });
        assert_eq!(discard(&rig, &dry).await, DiscardCounts { same_person: 3, ..none });
        // Bob sees who asked for what, in the list and in the letter.
        for entry in rig.all(&rig.letters(), &DeadLetterFilter::default()).await {
            let Review::DiscardRequested(voice) = &entry.review else { panic!("{:?}", entry.review) };
            assert_eq!((voice.person.as_str(), voice.reason.as_deref()), ("ada", Some("the shop is closed")));
            let shown = rig.letters().show(&entry.letter.id).await.expect("answered").expect("there");
            assert_eq!(shown.review, entry.review);
        }
        let bob = Discard::new(all(), "bob", "agreed");
        assert_eq!(
            discard(&rig, &Discard { run: Run::Dry, ..bob.clone() }).await,
            DiscardCounts { would_discard: 3, ..none }
        );
        assert_eq!(discard(&rig, &bob).await, DiscardCounts { discarded: 3, ..none });
        for entry in rig.all(&rig.letters(), &DeadLetterFilter::default()).await {
            let Review::Discarded { by, requested } = &entry.review else { panic!("{:?}", entry.review) };
            assert_eq!(
                (by.person.as_str(), requested.as_ref().map(|voice| voice.person.as_str())),
                ("bob", Some("ada"))
            );
        }
        assert_eq!(discard(&rig, &bob).await.selected, 0, "nobody means what is decided");
        let ids = Selection::Ids(rig.ids().await);
        assert_eq!(discard(&rig, &Discard::new(ids.clone(), "eve", "no")).await.already_discarded, 3);
        let replay = rig.letters().replay(&Replay::new(ids, "eve"), |_| ()).await.expect("it began");
        assert_eq!(replay.counts.discarded, 3, "a final word is final");
    }
}

/// Both voices are in `dlq_reviews` and in the event log, in their order, and once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_voices_are_recorded_once() {
    let rig = Rig::on_postgres(two_people()).await;
    rig.die(&tasks(1), |_| "no".to_owned()).await;
    let id = rig.ids().await.remove(0);
    for (person, reason) in [("ada", "the shop is closed"), ("ada", "really"), ("bob", "agreed"), ("bob", "agreed")] {
        let one = Discard::new(Selection::Ids(vec![id.clone()]), person, reason);
        let report = rig.letters().discard(&one, |_| ()).await.expect("it began");
        assert_eq!(report.counts.selected, 1);
        rig.lead().await;
    }
    let said = rig.log().reviews(&rig.ground.name, &id).await.expect("answered");
    let said: Vec<_> = said
        .iter()
        .map(|said| (said.decision.action.as_str(), said.decision.person.as_str(), said.decision.reason.as_deref()))
        .collect();
    assert_eq!(said, [("discard_requested", "ada", Some("the shop is closed")), ("discarded", "bob", Some("agreed"))]);
    let history = rig.history(&id.task).await;
    let told: Vec<_> =
        history.iter().map(|event| event.event_type.as_str()).filter(|kind| kind.starts_with("dlq.")).collect();
    assert_eq!(told, ["dlq.discard_requested", "dlq.discarded"]);
    let recorded = rig.log().dead_letter(&rig.ground.name, &id).await.expect("answered").expect("there");
    assert_eq!((recorded.decision, recorded.replayed_as), (Verdict::Discarded, None));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_person_is_enough_where_the_policy_says_so_and_a_reason_is_always_needed() {
    let rig = Rig::new(Policy::default()).await;
    rig.die(&tasks(2), |_| "no".to_owned()).await;
    for bad in [Discard::new(all(), "ada", " "), Discard::new(all(), "", "no")] {
        let error = rig.letters().discard(&bad, |_| ()).await.expect_err("refused");
        assert_eq!(error.class(), ErrorClass::Invalid, "{error}");
    }
    assert_eq!(rig.broker().counts().await.expect("counted").dead_lettered, 2);
    let mut outcomes = Vec::new();
    let one = Discard { limit: Some(1), ..Discard::new(all(), "ada", "hopeless") };
    let report = rig.letters().discard(&one, |step| outcomes.push(step.outcome.clone())).await.expect("it began");
    assert_eq!((report.counts.discarded, outcomes), (1, vec![DiscardOutcome::Discarded]));
    assert_eq!(rig.broker().counts().await.expect("counted").dead_lettered, 1);
}
