//! Which task a worker gets: by priority, then what ran before, then what waits longest.

use std::time::Duration;

use windlass::broker::{Cancelled, Settled};
use windlass::protocol::policy::{Priorities, PriorityOrder};
use windlass::{NewTask, TaskId};

use super::fixture::{Fixture, released, task, types};

const MS: Duration = Duration::from_millis(1);

async fn add(fx: &Fixture, kind: &str, priority: u8) -> TaskId {
    let id = fx.enqueue(NewTask { priority: Some(priority), ..task(kind) }).await.id;
    fx.advance(MS);
    id
}

async fn lowest_first(fx: &Fixture) {
    fx.set(|policy| {
        policy.priority = Priorities { default: 5, min: 0, max: 9, order: PriorityOrder::LowestFirst };
    })
    .await;
}

async fn the_highest_priority_goes_first(fx: &Fixture) {
    let (three, ten, five) = (add(fx, "a", 3).await, add(fx, "a", 10).await, fx.add("a").await);
    assert_eq!(fx.drain_ids().await, [ten, five, three], "and the default is in the middle");
}

async fn the_lowest_priority_goes_first_where_the_policy_says_so(fx: &Fixture) {
    lowest_first(fx).await;
    let (nine, zero, five) = (add(fx, "a", 9).await, add(fx, "a", 0).await, fx.add("a").await);
    assert_eq!(fx.drain_ids().await, [zero, five, nine]);
}

async fn a_batch_is_in_the_same_order(fx: &Fixture) {
    let (low, high) = (add(fx, "a", 2).await, add(fx, "b", 9).await);
    let (lower, higher) = (add(fx, "a", 1).await, add(fx, "b", 10).await);
    let batch: Vec<TaskId> = fx.claim(10).await.into_iter().map(|task| task.lease.task).collect();
    assert_eq!(batch, [higher, high, low, lower]);
}

async fn within_a_priority_the_longest_waiting_goes_first_whatever_its_type(fx: &Fixture) {
    let mut expected = Vec::new();
    for kind in ["a", "b", "c", "a", "c", "b", "a"] {
        expected.push(add(fx, kind, 5).await);
    }
    assert_eq!(fx.drain_ids().await, expected);
}

async fn a_cancelled_task_gives_its_place_up(fx: &Fixture) {
    let (gone, second, third) = (add(fx, "a", 5).await, add(fx, "b", 5).await, add(fx, "a", 5).await);
    assert!(matches!(fx.broker.cancel(&gone, "not needed").await, Ok(Cancelled::Done { .. })));
    assert_eq!(fx.drain_ids().await, [second, third]);
}

async fn what_ran_before_goes_before_what_is_new(fx: &Fixture) {
    let again = add(fx, "a", 5).await;
    let running = fx.claim_one().await;
    let new = add(fx, "a", 5).await;
    assert!(matches!(fx.settle(&running, released()).await, Settled::Retrying { .. }));
    assert_eq!(fx.drain_ids().await, [again, new]);
}

async fn what_ran_before_does_not_go_before_what_is_more_urgent(fx: &Fixture) {
    let again = add(fx, "a", 5).await;
    let running = fx.claim_one().await;
    let urgent = add(fx, "b", 6).await;
    assert!(matches!(fx.settle(&running, released()).await, Settled::Retrying { .. }));
    assert_eq!(fx.drain_ids().await, [urgent, again]);
}

async fn a_worker_gets_only_types_that_it_can_do(fx: &Fixture) {
    let (send, render) = (add(fx, "send", 5).await, add(fx, "render", 9).await);
    let claimed = fx.claim_with("sender", &types(&["send"]), 10).await.tasks;
    assert_eq!(claimed.iter().map(|task| &task.lease.task).collect::<Vec<_>>(), [&send]);
    assert!(fx.claim_with("sender", &types(&["send", "print"]), 10).await.tasks.is_empty());
    let rest = fx.claim_with("renderer", &types(&["render", "print"]), 10).await.tasks;
    assert_eq!(rest.iter().map(|task| &task.lease.task).collect::<Vec<_>>(), [&render]);
}

async fn a_worker_of_some_types_sees_them_in_order(fx: &Fixture) {
    // Known before the tasks, so that its index is kept up; then again after them.
    let both = types(&["send", "render"]);
    assert!(fx.claim_with("w", &both, 1).await.tasks.is_empty());
    let (low, _other, high) = (add(fx, "send", 2).await, add(fx, "print", 10).await, add(fx, "render", 8).await);
    for expected in [high, low] {
        let task = fx.claim_with("w", &both, 1).await.tasks.remove(0);
        assert_eq!(task.lease.task, expected);
    }
    assert!(fx.claim_with("w", &both, 1).await.tasks.is_empty());
    assert_eq!(fx.claim(10).await.len(), 1, "what it cannot do is left for others");
}

async fn tasks_that_waited_before_a_class_was_known_are_seen_by_it(fx: &Fixture) {
    let mut ids = Vec::new();
    for priority in [1, 5, 9] {
        ids.push(add(fx, "send", priority).await);
        add(fx, "other", priority).await;
    }
    ids.reverse();
    let claimed = fx.claim_with("late", &types(&["send"]), 10).await.tasks;
    assert_eq!(claimed.into_iter().map(|task| task.lease.task).collect::<Vec<_>>(), ids);
}

async fn retries_stay_within_a_workers_types(fx: &Fixture) {
    let sender = types(&["send"]);
    add(fx, "send", 5).await;
    let task = fx.claim_with("w1", &sender, 1).await.tasks.remove(0);
    fx.fail_and_wait(&task).await;
    assert!(fx.claim_with("w2", &types(&["render"]), 1).await.tasks.is_empty());
    assert_eq!(fx.claim_with("w2", &sender, 1).await.tasks.len(), 1);
}

async fn a_type_that_looks_like_a_lane_is_still_a_type(fx: &Fixture) {
    let mut expected = Vec::new();
    for kind in ["a:5", "a", "a:5:5", "a:10"] {
        expected.push((add(fx, kind, 5).await, kind));
    }
    for (id, kind) in expected {
        let mut claimed = fx.claim_with("w", &types(&[kind]), 10).await.tasks;
        let task = claimed.remove(0);
        assert_eq!((task.lease.task, task.task_type.as_str(), task.priority), (id, kind, 5));
        assert!(claimed.is_empty(), "{kind} got what is another type's");
    }
}

async fn many_lanes_are_all_served_in_order(fx: &Fixture) {
    let mut expected = Vec::new();
    for number in 0..50 {
        for priority in [3, 7] {
            let id = fx.enqueue(NewTask { priority: Some(priority), ..task(&format!("t{number}")) }).await.id;
            expected.push((priority, number, id));
        }
        fx.advance(MS);
    }
    expected.sort_by_key(|(priority, number, _)| (10 - priority, *number));
    let ids: Vec<TaskId> = expected.into_iter().map(|(_, _, id)| id).collect();
    assert_eq!(fx.drain_ids().await, ids);
}

async fn a_claim_gives_no_more_than_was_asked_for(fx: &Fixture) {
    for kind in ["a", "b", "c"] {
        for _ in 0..5 {
            fx.add(kind).await;
        }
    }
    let mut seen = std::collections::HashSet::new();
    for expected in [7, 7, 1, 0] {
        let claimed = fx.claim(7).await;
        assert_eq!(claimed.len(), expected);
        seen.extend(claimed.into_iter().map(|task| task.lease.task));
    }
    assert_eq!(seen.len(), 15, "each task was given once");
    assert_eq!(fx.claim(0).await.len(), 0);
}

suite! {
    the_highest_priority_goes_first,
    the_lowest_priority_goes_first_where_the_policy_says_so,
    a_batch_is_in_the_same_order,
    within_a_priority_the_longest_waiting_goes_first_whatever_its_type,
    a_cancelled_task_gives_its_place_up,
    what_ran_before_goes_before_what_is_new,
    what_ran_before_does_not_go_before_what_is_more_urgent,
    a_worker_gets_only_types_that_it_can_do,
    a_worker_of_some_types_sees_them_in_order,
    tasks_that_waited_before_a_class_was_known_are_seen_by_it,
    retries_stay_within_a_workers_types,
    a_type_that_looks_like_a_lane_is_still_a_type,
    many_lanes_are_all_served_in_order,
    a_claim_gives_no_more_than_was_asked_for,
}
