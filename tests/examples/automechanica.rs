//! What AutoMechanica's task queue asks for, of `examples/profiles/automechanica`.

use windlass::broker::{Broker, Extended, ReplayRequest, Replayed};
use windlass::{NewTask, State, TaskId};

use super::profile::{LEAST, MOST, Profile, failure, task, worker};

async fn open() -> Profile {
    Profile::open("automechanica").await
}

#[tokio::test]
async fn the_protocol_holds() {
    open().await.conforms().await;
}

/// §5: attempts² · 5 s.
#[tokio::test]
async fn three_attempts_wait_5_and_20_seconds_and_45_where_there_are_four() {
    let queue = open().await;
    let id = queue.add("generate_fitment").await;
    assert_eq!(queue.waits(&failure(), MOST, 9).await, [5000, 20_000], "no jitter");
    queue.record().await;
    assert_eq!(queue.view(&id).await.state, State::Failed, "max_attempts is 3");
    queue.enqueue(NewTask { max_retries: Some(3), ..task("generate_fitment") }).await;
    assert_eq!(queue.waits(&failure(), LEAST, 9).await, [5000, 20_000, 45_000]);
}

/// §4: ORDER BY priority, created_at.
#[tokio::test]
async fn the_lower_number_goes_first_and_then_the_older_task() {
    let queue = open().await;
    let plan = [("low", Some(3)), ("none", None), ("medium", Some(2)), ("critical", Some(0)), ("high", Some(1))];
    for (id, priority) in plan {
        let id = id.parse().expect("an id");
        queue.enqueue(NewTask { id, priority, ..task("generate_fitment") }).await;
        queue.seconds(1);
    }
    assert_eq!(queue.drain().await, ["critical", "high", "none", "medium", "low"]);
}

/// §4: a lease of 30 s, for as long as it is renewed.
#[tokio::test]
async fn a_lease_lasts_30_seconds_unless_it_is_renewed() {
    let queue = open().await;
    let id = queue.add("generate_fitment").await;
    let leased = queue.claim_as("host-7").await;
    for _ in 0..3 {
        queue.pass(queue.policy.heartbeat_period);
        let renewed = queue.broker.extend(&worker("host-7"), &[leased.lease.clone()]).await.expect("answered");
        assert_eq!(renewed, [Extended::Renewed]);
    }
    queue.seconds(29);
    assert!(queue.reclaim().await.is_empty());
    queue.seconds(1);
    assert_eq!(queue.reclaim().await, [id.clone()]);
    let again = queue.claim_as("host-8").await;
    assert_eq!(again.lease.task, id, "eligible again at once");
    let lost = queue.broker.extend(&worker("host-7"), &[leased.lease]).await.expect("answered");
    assert_eq!(lost, [Extended::Lost], "no task is processed twice");
    assert_eq!(queue.view(&id).await.worker, Some(worker("host-8")), "lease_owner");
}

/// §2, §8.
#[tokio::test]
async fn a_dead_task_shows_what_it_was_and_is_revived_as_a_new_one() {
    let queue = open().await;
    let mut new = task("generate_fitment");
    for (name, value) in [("agent", "FitmentAgent"), ("workflow", "w-1")] {
        new.extras.labels.insert(name.to_owned(), value.to_owned());
    }
    queue.enqueue(new).await;
    queue.waits(&failure(), LEAST, 9).await;
    let dead_letter = queue.record().await.remove(0);
    let shown = queue.broker.dead_letter(&dead_letter).await.expect("answered").expect("recorded").letter;
    assert_eq!((shown.task_type.as_str(), shown.error.as_str()), ("generate_fitment", "it broke"));
    assert_eq!((shown.payload.as_str(), shown.history.len()), (r#"{"n":1}"#, 3), "payload and attempts");
    assert_eq!(shown.extras.labels["agent"], "FitmentAgent");

    let new_id = TaskId::generate();
    let person = "ada".to_owned();
    let request = ReplayRequest { dead_letter, new_id: new_id.clone(), payload: None, person, reason: None };
    let revived = queue.broker.replay(&request).await.expect("answered");
    assert_eq!(revived, Replayed::Done { task: new_id.clone() });
    let task = queue.claim_one().await;
    assert_eq!((task.lease.task.clone(), task.retry_count), (new_id, 0));
    assert_eq!(task.extras.labels["workflow"], "w-1", "it keeps what it carried");
    queue.succeed(&task).await;
}
