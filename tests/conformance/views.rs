//! What can be seen of a queue: its numbers, its tasks, its moves.

use std::collections::BTreeSet;
use std::time::Duration;

use windlass::broker::{ListCursor, QueueCounts, Settled};
use windlass::protocol::names::Capabilities;
use windlass::protocol::policy::Mode;
use windlass::{NewTask, NotBefore, State, TaskId};

use super::fixture::{Fixture, failure, permanent, released, task, task_id, worker_id, worker_info};

const SECOND: Duration = Duration::from_secs(1);

/// One task in every state, and its id.
async fn one_of_each(fx: &Fixture) -> Vec<(State, TaskId)> {
    let failed = fx.dead(task("a")).await.task;
    let dead = fx.running("a").await;
    assert_eq!(fx.settle(&dead, permanent()).await, Settled::Dead);
    let retrying = fx.running("a").await;
    assert!(matches!(fx.settle(&retrying, failure()).await, Settled::Retrying { .. }));
    let succeeded = fx.running("a").await;
    fx.succeed(&succeeded).await;
    let cancelled = fx.add("a").await;
    fx.broker.cancel(&cancelled, "not needed").await.expect("answered");
    let scheduled = fx.enqueue(NewTask { not_before: NotBefore::After(60 * SECOND), ..task("a") }).await.id;
    let running = fx.running("a").await;
    let queued = fx.add("a").await;
    vec![
        (State::Failed, failed),
        (State::DlqPending, dead.lease.task),
        (State::Retrying, retrying.lease.task),
        (State::Succeeded, succeeded.lease.task),
        (State::Cancelled, cancelled),
        (State::Scheduled, scheduled),
        (State::Running, running.lease.task),
        (State::Queued, queued),
    ]
}

async fn an_empty_queue_counts_nothing(fx: &Fixture) {
    assert_eq!(fx.counts().await, QueueCounts { sampled_at: fx.now(), ..QueueCounts::default() });
}

async fn every_task_is_counted_where_it_is(fx: &Fixture) {
    one_of_each(fx).await;
    fx.raw(&[("task_id", "raw"), ("payload", "{}")]).await;
    fx.broker.register(&worker_info("w1", None, None)).await.expect("answered");
    let counts = fx.counts().await;
    let expected = QueueCounts {
        backlog: 2,
        running: 1,
        raw_taken: 0,
        delayed: 1,
        retrying: 1,
        blocked: 0,
        waiting_approval: 0,
        dlq_pending: 1,
        dead_lettered: 1,
        finished: 3,
        oldest_task_time: Some(fx.now()),
        workers: 1,
        outbox: fx.outbox().await.len() as u64,
        invalid_transitions: 0,
        longest_silence: Some(Duration::ZERO),
        sampled_at: fx.now(),
    };
    assert_eq!(counts, expected);
}

async fn demand_is_what_workers_of_some_types_could_do_and_who_does_some(fx: &Fixture) {
    let of = |types: &[&str]| Capabilities::of(types.iter().map(|name| name.parse().expect("valid"))).expect("few");
    let empty = fx.broker.demand(&of(&[])).await.expect("answered");
    assert_eq!((empty.total(), empty.held.len(), empty.mode), (0, 0, Mode::Running));
    fx.running("a").await;
    fx.add("a").await;
    fx.add("b").await;
    fx.enqueue(NewTask { not_before: NotBefore::After(SECOND), ..task("c") }).await;
    let all = fx.broker.demand(&of(&[])).await.expect("answered");
    assert_eq!((all.backlog, all.running, all.due), (2, 1, 0), "what is not due yet is no work yet");
    assert_eq!(all.held.into_iter().collect::<Vec<_>>(), [(worker_id("w1"), 1)]);
    let some = fx.broker.demand(&of(&["b"])).await.expect("answered");
    assert_eq!((some.backlog, some.running), (1, 0));
    assert_eq!(some.held.len(), 1, "who holds what does not depend on who asks");
    fx.advance(SECOND);
    fx.raw(&[("task_id", "raw"), ("payload", "{}")]).await;
    let later = fx.broker.demand(&of(&["z"])).await.expect("answered");
    assert_eq!((later.backlog, later.due), (1, 1), "of these nobody knows the type yet");
    fx.set(|policy| policy.mode = Mode::Paused).await;
    assert_eq!(fx.broker.demand(&of(&[])).await.expect("answered").mode, Mode::Paused);
}

async fn a_retry_that_is_ready_is_backlog(fx: &Fixture) {
    let running = fx.running("a").await;
    fx.settle(&running, released()).await;
    let counts = fx.counts().await;
    assert_eq!((counts.backlog, counts.retrying, counts.running), (1, 0, 0));
}

async fn the_oldest_task_is_the_one_that_waits_longest(fx: &Fixture) {
    assert_eq!(fx.counts().await.oldest_task_time, None);
    let first = fx.now();
    fx.add("a").await;
    fx.advance(SECOND);
    let second = fx.now();
    fx.add("a").await;
    fx.advance(SECOND);
    fx.enqueue(NewTask { priority: Some(9), ..task("b") }).await;
    assert_eq!(fx.counts().await.oldest_task_time, Some(first), "an urgent one does not hide it");
    fx.claim(2).await;
    assert_eq!(fx.counts().await.oldest_task_time, Some(second));
    fx.claim(1).await;
    assert_eq!(fx.counts().await.oldest_task_time, None);
}

async fn the_oldest_task_of_a_single_lane_is_the_one_that_waits_longest(fx: &Fixture) {
    let mut times = Vec::new();
    let mut ids = Vec::new();
    for _ in 0..4 {
        times.push(fx.now());
        ids.push(fx.add("a").await);
        fx.advance(SECOND);
    }
    fx.claim(1).await;
    assert_eq!(fx.counts().await.oldest_task_time, Some(times[1]), "after a claim");
    fx.broker.cancel(&ids[1], "not needed").await.expect("answered");
    assert_eq!(fx.counts().await.oldest_task_time, Some(times[2]), "after a cancel");
}

async fn tasks_are_listed_by_state(fx: &Fixture) {
    let tasks = one_of_each(fx).await;
    for (state, id) in &tasks {
        let listed = fx.list(*state).await;
        assert_eq!(listed.iter().map(|view| &view.id).collect::<Vec<_>>(), [id], "{state}");
        let view = fx.view(id).await;
        assert_eq!(view.state, *state);
        if !state.is_final() {
            assert_eq!(listed[0], view, "a listing shows what a look shows");
        }
    }
    for state in [State::Blocked, State::WaitingApproval, State::DlqRecorded] {
        assert!(fx.list(state).await.is_empty());
    }
}

async fn a_listing_goes_on_page_by_page(fx: &Fixture) {
    let mut expected = BTreeSet::new();
    for _ in 0..3 {
        let batch: Vec<_> = (0..100).map(|_| task("a")).collect();
        expected.extend(fx.broker.enqueue(&batch).await.expect("taken").into_iter().map(|answer| answer.id));
    }
    for state in [State::Queued, State::Running, State::Succeeded] {
        let mut seen = BTreeSet::new();
        let (mut cursor, mut pages) = (Some(ListCursor::default()), 0);
        while let Some(from) = cursor {
            let page = fx.broker.list(state, from, 7).await.expect("answered");
            assert!(page.items.len() <= 7, "{} {state} on a page of 7", page.items.len());
            seen.extend(page.items.into_iter().map(|view| view.id));
            (cursor, pages) = (page.next, pages + 1);
        }
        assert_eq!(seen, expected, "{state}");
        assert!(pages >= 300 / 7, "{pages} pages of {state}");
        for _ in 0..3 {
            if state == State::Queued {
                fx.claim(100).await;
            }
        }
        if state == State::Running {
            let worker = super::fixture::worker_id("w1");
            let capabilities = Default::default();
            let request = windlass::broker::ClaimRequest {
                worker: &worker,
                capabilities: &capabilities,
                limit: 0,
                recover: Some(&[]),
            };
            let all = fx.broker.claim(request).await.expect("answered").tasks;
            for task in &all {
                fx.succeed(task).await;
            }
        }
    }
}

async fn a_task_is_seen_as_it_is(fx: &Fixture) {
    let created = fx.now();
    let id = fx.add("a").await;
    fx.advance(SECOND);
    let running = fx.claim_one().await;
    assert_eq!((running.created_at, running.claimed_at), (created, fx.now()));
    let view = fx.view(&id).await;
    assert_eq!((view.created_at, view.started_at, view.updated_at), (created, Some(fx.now()), fx.now()));
    assert_eq!((view.worker.as_ref().map(|worker| worker.as_str()), view.finished_at), (Some("w1"), None));
    fx.advance(SECOND);
    fx.succeed(&running).await;
    let view = fx.view(&id).await;
    assert_eq!((view.finished_at, view.state), (Some(fx.now()), State::Succeeded));
    assert_eq!(view.worker.as_ref().map(|worker| worker.as_str()), Some("w1"), "who ran it last");
    assert_eq!(view.result.as_ref().map(|result| result.as_str()), Some(r#"{"ok":true}"#));
}

async fn what_nobody_knows_is_nothing(fx: &Fixture) {
    assert_eq!(fx.broker.get(&task_id("nobody")).await.expect("answered"), None);
}

async fn the_outbox_is_read_from_its_oldest_end_and_trimmed_behind_the_reader(fx: &Fixture) {
    let batch: Vec<_> = (0..5).map(|_| task("a")).collect();
    fx.broker.enqueue(&batch).await.expect("taken");
    let running = fx.claim_one().await;
    fx.succeed(&running).await;
    let all = fx.outbox().await;
    assert_eq!(all.len(), 3, "one entry an operation");
    assert_eq!(all[0].events.len(), 5, "with all its moves");
    assert_eq!(fx.broker.outbox(1).await.expect("answered"), all[..1]);
    fx.broker.trim_outbox(&all[..2]).await.expect("trimmed");
    assert_eq!(fx.outbox().await, all[2..]);
    fx.broker.trim_outbox(&all[..2]).await.expect("trimming again is trimming once");
    assert_eq!(fx.outbox().await, all[2..]);
    fx.broker.trim_outbox(&all[2..]).await.expect("trimmed");
    assert!(fx.outbox().await.is_empty());
    fx.broker.trim_outbox(&[]).await.expect("nothing to do");
}

async fn an_event_says_when(fx: &Fixture) {
    let id = fx.add("a").await;
    fx.advance(SECOND);
    fx.claim_one().await;
    let times: Vec<_> = fx.events(&id).await.iter().map(|event| event.at).collect();
    assert_eq!(times, [fx.in_ms(-1000), fx.now()]);
}

suite! {
    an_empty_queue_counts_nothing,
    every_task_is_counted_where_it_is,
    demand_is_what_workers_of_some_types_could_do_and_who_does_some,
    a_retry_that_is_ready_is_backlog,
    the_oldest_task_is_the_one_that_waits_longest,
    the_oldest_task_of_a_single_lane_is_the_one_that_waits_longest,
    tasks_are_listed_by_state,
    a_listing_goes_on_page_by_page,
    a_task_is_seen_as_it_is,
    what_nobody_knows_is_nothing,
    the_outbox_is_read_from_its_oldest_end_and_trimmed_behind_the_reader,
    an_event_says_when,
}
