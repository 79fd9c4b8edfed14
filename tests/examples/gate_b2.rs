//! What Gate B-2 asks for, of `examples/profiles/gate-b2`.

use windlass::broker::{Broker, DiscardRequest, Discarded, ReplayRequest, Replayed, Settled};
use windlass::protocol::names::DeadLetterId;
use windlass::{NewTask, Outcome, State, TaskId};

use super::profile::{LEAST, MOST, Profile, failure, task};

async fn open() -> Profile {
    Profile::open("gate-b2").await
}

/// §6, §8: RP-001 to RP-005 pass.
#[tokio::test]
async fn the_replays_pass() {
    open().await.conforms().await;
}

/// §4: min(30 s, 1 s · 2ⁿ⁻¹) + 0 … 300 ms.
#[tokio::test]
async fn the_waits_are_the_frozen_formula() {
    let queue = open().await;
    for (dice, jitter) in [(LEAST, 0), (MOST, 300)] {
        let id = queue.add("report").await;
        assert_eq!(queue.waits(&failure(), dice, 9).await, [1000 + jitter, 2000 + jitter, 4000 + jitter]);
        assert_eq!(queue.view(&id).await.retry_count, 4, "the fourth failure is the last");
        queue.enqueue(NewTask { max_retries: Some(7), ..task("report") }).await;
        let capped = [1000, 2000, 4000, 8000, 16_000, 30_000, 30_000].map(|wait| wait + jitter);
        assert_eq!(queue.waits(&failure(), dice, 9).await, capped);
    }
}

/// §4.1: what cannot be retried is not.
#[tokio::test]
async fn only_what_is_retryable_is_retried() {
    let queue = open().await;
    let id = queue.add("report").await;
    let refused = Outcome::permanent("invalid", "it can never work");
    assert_eq!(queue.settle(&queue.claim_one().await, refused, LEAST).await, Settled::Dead);
    assert_eq!(queue.view(&id).await.state, State::DlqPending);
}

/// §2, §4.3: the job keeps its id, and each execution has a key of its own.
#[tokio::test]
async fn a_job_is_known_by_its_own_names_and_each_retry_by_job_and_count() {
    let queue = open().await;
    let fields = [("job_id", "job-1"), ("job_type", "report"), ("payload_json", r#"{"month": 2}"#)];
    queue.xadd(&[&fields[..], &[("tenant_id", "acme"), ("trace_id", "tr-1")]].concat()).await;
    for retries in 0..=3 {
        let job = queue.claim_one().await;
        assert_eq!(job.execution_key(), format!("job-1:{retries}"));
        let names = (job.tenant_id.as_ref().map(|id| id.as_str()), job.trace_id.as_ref().map(|id| id.as_str()));
        assert_eq!((job.task_type.as_str(), names), ("report", (Some("acme"), Some("tr-1"))));
        queue.settle(&job, failure(), LEAST).await;
        queue.seconds(30);
    }
    let letter = queue.record().await.remove(0);
    let dead = queue.broker.dead_letter(&letter).await.expect("answered").expect("recorded").letter;
    assert_eq!((dead.id.task.as_str(), dead.retry_count), ("job-1", 4));
    assert_eq!(dead.payload.as_str(), r#"{"month": 2}"#);
}

async fn dead(queue: &Profile) -> DeadLetterId {
    queue.add("report").await;
    let refused = Outcome::permanent("invalid", "it can never work");
    assert_eq!(queue.settle(&queue.claim_one().await, refused, LEAST).await, Settled::Dead);
    queue.record().await.remove(0)
}

/// §5.2.
#[tokio::test]
async fn requeue_makes_a_new_job_that_names_its_dead_letter() {
    let queue = open().await;
    let dead_letter = dead(&queue).await;
    let new_id = TaskId::generate();
    let (person, reason) = ("ada".to_owned(), Some("mended".to_owned()));
    let request =
        ReplayRequest { dead_letter: dead_letter.clone(), new_id: new_id.clone(), payload: None, person, reason };
    let replayed = queue.broker.replay(&request).await.expect("answered");
    assert_eq!(replayed, Replayed::Done { task: new_id.clone() });
    let new = queue.view(&new_id).await;
    assert_eq!((new.state, new.retry_count), (State::Queued, 0));
    assert_eq!(new.extras.replay_of, Some(dead_letter.to_string()));
    assert_eq!(queue.view(&dead_letter.task).await.replayed_as, Some(new_id));
}

/// §5.2.
#[tokio::test]
async fn discard_wants_a_reason_and_two_people() {
    let queue = open().await;
    let dead_letter = dead(&queue).await;
    let discard = async |person: &str, reason: &str| {
        let (dead_letter, person, reason) = (dead_letter.clone(), person.to_owned(), reason.to_owned());
        queue.broker.discard(&DiscardRequest { dead_letter, person, reason }).await
    };
    discard("ada", "").await.expect_err("no reason");
    assert_eq!(discard("ada", "a test").await.expect("answered"), Discarded::AwaitingSecond);
    assert_eq!(discard("ada", "really").await.expect("answered"), Discarded::SamePerson);
    assert_eq!(discard("bob", "I agree").await.expect("answered"), Discarded::Done);
}
