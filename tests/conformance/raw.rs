//! Producers that know nothing of Windlass XADD straight into the task stream, and get full tasks.

use std::time::Duration;

use windlass::broker::{Cancelled, ReplayRequest, Replayed};
use windlass::protocol::policy::{IdempotencyRequirement, Mode, Priorities, PriorityOrder};
use windlass::protocol::task::DeadLetter;
use windlass::{NewTask, State, TaskId};

use super::fixture::{Fixture, replay_of, success, task, task_id};

async fn dead_letters(fx: &Fixture) -> Vec<DeadLetter> {
    fx.broker.pending_dead_letters(100).await.expect("answered")
}

async fn the_stream_protocols_fields_become_a_task(fx: &Fixture) {
    fx.raw(&[
        ("task_id", "t-1"),
        ("tool_name", "web.search"),
        ("payload", r#"{"q": "redis"}"#),
        ("idempotency_key", "k-1"),
        ("tenant_id", "ada"),
        ("trace_id", "trace-1"),
        ("max_retries", "1"),
    ])
    .await;
    assert_eq!(fx.counts().await.backlog, 1, "counted before anybody looks at it");
    let claimed = fx.claim_one().await;
    assert_eq!((claimed.lease.task.as_str(), claimed.task_type.as_str()), ("t-1", "web.search"));
    assert_eq!((claimed.payload.as_str(), claimed.priority), (r#"{"q": "redis"}"#, 5));
    assert_eq!(claimed.idempotency_key.as_ref().map(|key| key.as_str()), Some("k-1"));
    assert_eq!(claimed.tenant_id.as_ref().map(|tenant| tenant.as_str()), Some("ada"));
    assert_eq!(claimed.trace_id.as_ref().map(|trace| trace.as_str()), Some("trace-1"));
    assert_eq!(fx.view(&claimed.lease.task).await.max_retries, Some(1));
    fx.succeed(&claimed).await;
    assert_eq!(fx.path(&claimed.lease.task).await, [State::Queued, State::Running, State::Succeeded]);
    assert_eq!(fx.results(&claimed.lease.task).await, 1);
}

async fn a_camel_case_producers_fields_become_a_task_and_its_priority_holds(fx: &Fixture) {
    fx.set(|policy| {
        policy.priority = Priorities { default: 5, min: 0, max: 9, order: PriorityOrder::LowestFirst };
    })
    .await;
    for (id, priority) in [("last", "9"), ("first", "0"), ("third", ""), ("second", "4")] {
        fx.raw(&[("taskId", id), ("payload", "{}"), ("priority", priority), ("kind", "message")]).await;
    }
    let typed = fx.enqueue(NewTask { priority: Some(7), ..task("message") }).await.id;
    let order: Vec<String> = fx.drain_ids().await.into_iter().map(|id| id.to_string()).collect();
    assert_eq!(order, ["first", "second", "third", typed.as_str(), "last"], "raw and other tasks in one order");
}

async fn a_job_tables_fields_become_a_task(fx: &Fixture) {
    fx.raw(&[("job_id", "j"), ("job_type", "report"), ("payload_json", "[1]"), ("traceparent", "00-a-b-01")]).await;
    let claimed = fx.claim_one().await;
    assert_eq!((claimed.lease.task.as_str(), claimed.task_type.as_str()), ("j", "report"));
    assert_eq!((claimed.payload.as_str(), claimed.trace_id.expect("a trace").as_str()), ("[1]", "00-a-b-01"));
}

async fn an_entry_without_a_type_has_the_default_one(fx: &Fixture) {
    fx.raw(&[("task_id", "t"), ("tool_name", ""), ("payload", "null")]).await;
    assert_eq!(fx.claim_one().await.task_type.as_str(), "default");
}

async fn a_raw_delay_is_kept(fx: &Fixture) {
    fx.raw(&[("task_id", "t"), ("payload", "{}"), ("delay_ms", "5000")]).await;
    assert!(fx.claim(1).await.is_empty());
    assert_eq!(fx.state(&task_id("t")).await, State::Scheduled);
    fx.advance(Duration::from_secs(5));
    assert_eq!(fx.claim_one().await.lease.task.as_str(), "t");
}

async fn an_id_that_is_known_is_the_same_task(fx: &Fixture) {
    let known = fx.enqueue(NewTask { id: task_id("t"), ..task("a") }).await.id;
    for _ in 0..3 {
        fx.raw(&[("task_id", "t"), ("payload", r#"{"other": true}"#)]).await;
    }
    fx.raw(&[("task_id", "u"), ("payload", "{}")]).await;
    fx.raw(&[("task_id", "u"), ("payload", "{}")]).await;
    let claimed = fx.claim(10).await;
    assert_eq!(claimed.len(), 2);
    for task in &claimed {
        fx.succeed(task).await;
    }
    assert!(claimed.iter().any(|task| task.lease.task == known && task.payload.as_str() == r#"{"n":1}"#));
    fx.raw(&[("task_id", "t"), ("payload", "{}")]).await;
    assert!(fx.claim(10).await.is_empty(), "not after it is done either");
    assert_eq!(fx.results(&known).await, 1);
    assert!(dead_letters(fx).await.is_empty());
}

async fn a_key_that_is_known_is_the_same_task_and_found_under_the_id_that_was_sent(fx: &Fixture) {
    let sent = |id: &'static str| [("task_id", id), ("payload", "{}"), ("idempotency_key", "k")];
    fx.raw(&sent("first")).await;
    fx.raw(&sent("while-waiting")).await;
    let claimed = fx.claim(10).await;
    assert_eq!(claimed.len(), 1);
    fx.raw(&sent("while-running")).await;
    fx.promote(10).await;
    let look = fx.view(&task_id("while-running")).await;
    assert_eq!((look.id.as_str(), look.state), ("first", State::Running));
    fx.succeed(&claimed[0]).await;
    fx.raw(&sent("after")).await;
    assert!(fx.claim(10).await.is_empty());
    for id in ["while-waiting", "while-running", "after"] {
        let look = fx.view(&task_id(id)).await;
        assert_eq!((look.id.as_str(), look.state), ("first", State::Succeeded), "{id}");
        assert_eq!(look.result.map(|result| result.as_str().to_owned()).as_deref(), Some(r#"{"ok":true}"#));
    }
    assert_eq!(fx.list(State::Succeeded).await.len(), 1, "one task");
    assert_eq!(fx.counts().await.finished, 1);
}

async fn raw_and_other_producers_share_their_keys(fx: &Fixture) {
    let keyed = || NewTask { idempotency_key: Some("k".parse().expect("a key")), ..task("a") };
    let first = fx.enqueue(keyed()).await.id;
    fx.raw(&[("task_id", "raw"), ("payload", "{}"), ("idempotencyKey", "k")]).await;
    fx.raw(&[("task_id", "tenant"), ("payload", "{}"), ("idempotencyKey", "k"), ("tenantId", "ada")]).await;
    assert_eq!(fx.claim(10).await.len(), 2, "another tenant's key is another key");
    assert_eq!(fx.view(&task_id("raw")).await.id, first);
    fx.raw(&[("task_id", "other"), ("payload", "{}"), ("idempotencyKey", "later")]).await;
    fx.promote(10).await;
    let known = fx.enqueue(NewTask { idempotency_key: Some("later".parse().expect("a key")), ..task("a") }).await;
    assert_eq!((known.id.as_str(), known.created), ("other", false));
}

/// An entry that cannot be read, and a word of the reason.
const UNREADABLE: [(&[(&str, &str)], &str); 14] = [
    (&[("tool_name", "a"), ("payload", "{}")], "task_id"),
    (&[("task_id", "with space"), ("payload", "{}")], "task_id"),
    (&[("task_id", "b1")], "payload is missing"),
    (&[("task_id", "b2"), ("payload", "")], "not JSON"),
    (&[("task_id", "b3"), ("payload", "{oops")], "not JSON"),
    (&[("task_id", "b4"), ("payload", "{\"a\": NaN}")], "not JSON"),
    (&[("task_id", "b5"), ("payload", "{}"), ("tool_name", "a b")], "tool_name"),
    (&[("task_id", "b6"), ("payload", "{}"), ("tool_name", "a\nb")], "tool_name"),
    (&[("task_id", "b7"), ("payload", "{}"), ("tool_name", "a+")], "tool_name"),
    (&[("task_id", "b8"), ("payload", "{}"), ("priority", "11")], "priority"),
    (&[("task_id", "b9"), ("payload", "{}"), ("priority", "urgent")], "priority"),
    (&[("task_id", "b10"), ("payload", "{}"), ("delay_ms", "-5")], "delay_ms"),
    (&[("task_id", "b11"), ("payload", "{}"), ("max_retries", "many")], "max_retries"),
    (&[("task_id", "b12"), ("payload", "{}"), ("tenant_id", "a\u{1}b")], "tenant_id"),
];

async fn what_cannot_be_read_is_a_dead_letter_with_the_reason(fx: &Fixture) {
    for (entry, _) in UNREADABLE {
        fx.raw(entry).await;
    }
    fx.raw(&[("task_id", "good"), ("payload", "{}")]).await;
    let claimed = fx.claim(10).await;
    assert_eq!(claimed.iter().map(|task| task.lease.task.as_str()).collect::<Vec<_>>(), ["good"], "nothing is held up");
    let letters = dead_letters(fx).await;
    assert_eq!(letters.len(), UNREADABLE.len());
    for (entry, reason) in UNREADABLE {
        let id = entry.iter().find(|(name, value)| *name == "task_id" && !value.contains(' ')).map(|(_, value)| *value);
        let found = letters.iter().find(|letter| match id {
            Some(id) => letter.id.task.as_str() == id,
            None => letter.id.task.as_str().starts_with("raw-") && letter.error.contains(reason),
        });
        let letter = found.unwrap_or_else(|| panic!("{entry:?} is a dead letter"));
        assert!(letter.error.contains(reason), "{entry:?}: {}", letter.error);
        assert_eq!(letter.error_code, "invalid_input");
        letter.payload.parse::<serde_json::Value>().expect("what was sent is kept as JSON");
    }
    for letter in &letters {
        fx.broker.record_dead_letter(&letter.id).await.expect("answered");
        let path = fx.path(&letter.id.task).await;
        assert_eq!(path, [State::Queued, State::DlqPending, State::DlqRecorded, State::Failed]);
        assert_eq!(fx.results(&letter.id.task).await, 1, "it has a result like any other");
    }
    assert_eq!(fx.counts().await.backlog, 0);
}

async fn what_is_not_text_is_a_dead_letter_too(fx: &Fixture) {
    let bytes: &[u8] = &[0xff, 0xfe, 0x00, b'{'];
    fx.raw_bytes(&[("task_id", b"payload"), ("payload", bytes)]).await;
    fx.raw_bytes(&[("task_id", bytes), ("payload", b"{}")]).await;
    fx.raw_bytes(&[("task_id", b"type"), ("tool_name", bytes), ("payload", b"{}")]).await;
    fx.raw_bytes(&[("task_id", b"tenant"), ("tenant_id", bytes), ("payload", b"{}")]).await;
    assert!(fx.claim(10).await.is_empty());
    let letters = dead_letters(fx).await;
    assert_eq!(letters.len(), 4);
    for letter in letters {
        letter.payload.parse::<serde_json::Value>().expect("kept as JSON all the same");
        fx.broker.record_dead_letter(&letter.id).await.expect("answered");
    }
}

async fn a_payload_over_the_bound_is_a_dead_letter(fx: &Fixture) {
    let large = format!("\"{}\"", "x".repeat(2 << 20));
    fx.raw(&[("task_id", "t"), ("payload", &large)]).await;
    assert!(fx.claim(1).await.is_empty());
    let letters = dead_letters(fx).await;
    assert!(letters[0].error.contains("2097154 bytes, more than 1048576"), "{}", letters[0].error);
}

async fn trace_tenant_and_key_are_carried_or_refused_but_never_dropped(fx: &Fixture) {
    for word in ["with spaces", "ümlaut", "c1 \u{85}", "tab\t", "\u{7f}", "😀", "a,b;c=d"] {
        for field in ["trace_id", "tenant_id", "idempotency_key"] {
            let id = TaskId::generate();
            fx.raw(&[("task_id", id.as_str()), ("payload", "{}"), (field, word)]).await;
            match fx.claim(1).await.pop() {
                Some(task) => {
                    let carried = match field {
                        "trace_id" => task.trace_id.map(String::from),
                        "tenant_id" => task.tenant_id.map(String::from),
                        _ => task.idempotency_key.map(String::from),
                    };
                    assert_eq!(carried.as_deref(), Some(word), "{field}");
                }
                None => assert_eq!(fx.state(&id).await, State::DlqPending, "{field} {word:?}"),
            }
        }
    }
}

async fn a_missing_key_is_a_dead_letter_where_one_is_required(fx: &Fixture) {
    fx.set(|policy| policy.idempotency.requirement = IdempotencyRequirement::Required).await;
    fx.raw(&[("task_id", "t"), ("payload", "{}")]).await;
    assert!(fx.claim(1).await.is_empty());
    assert!(dead_letters(fx).await[0].error.contains("idempotency_key is missing"));
}

async fn a_dead_entry_can_be_replayed_with_a_corrected_payload(fx: &Fixture) {
    fx.raw(&[("task_id", "t"), ("tool_name", "a"), ("payload", "{oops")]).await;
    fx.promote(10).await;
    let letter = dead_letters(fx).await.remove(0);
    fx.broker.record_dead_letter(&letter.id).await.expect("answered");
    let payload = Some(serde_json::json!({"fixed": true}).into());
    let request = ReplayRequest { payload, ..replay_of(&letter.id, TaskId::generate()) };
    assert!(matches!(fx.broker.replay(&request).await.expect("answered"), Replayed::Done { .. }));
    let claimed = fx.claim_one().await;
    assert_eq!((claimed.task_type.as_str(), claimed.payload.as_str()), ("a", r#"{"fixed":true}"#));
    fx.succeed(&claimed).await;
}

async fn raw_entries_are_filed_by_the_leader_too(fx: &Fixture) {
    for number in 0..50 {
        fx.raw(&[("task_id", &format!("t{number}")), ("payload", "{}")]).await;
    }
    assert_eq!(fx.promote(20).await.filed, 20);
    assert_eq!(fx.promote(100).await.filed, 30);
    assert_eq!(fx.promote(100).await.filed, 0);
    assert_eq!(fx.counts().await.backlog, 50);
    assert_eq!(fx.list(State::Queued).await.len(), 50);
}

async fn raw_entries_wait_while_the_outbox_is_at_its_bound(fx: &Fixture) {
    fx.set(|policy| policy.limits.outbox_entries = 1).await;
    fx.raw(&[("task_id", "first"), ("payload", "{}")]).await;
    assert_eq!(fx.promote(10).await.filed, 1);
    fx.raw(&[("task_id", "second"), ("payload", "{}")]).await;
    assert_eq!(fx.promote(10).await.filed, 0, "the outbox is full");
    let claimed = fx.claim(10).await;
    assert_eq!(claimed.iter().map(|task| task.lease.task.as_str()).collect::<Vec<_>>(), ["first"], "work goes on");
    assert_eq!(fx.counts().await.backlog, 1, "it is not lost from sight");
    assert!(!fx.knows(&task_id("second")).await);
    let told = fx.outbox().await;
    fx.broker.trim_outbox(&told).await.expect("trimmed");
    assert_eq!(fx.claim_one().await.lease.task.as_str(), "second", "there is room");
}

async fn many_raw_entries_are_all_claimed_in_their_order(fx: &Fixture) {
    let ids: Vec<String> = (0..120).map(|number| format!("t{number}")).collect();
    for id in &ids {
        fx.raw(&[("task_id", id), ("payload", "{}")]).await;
    }
    let claimed: Vec<String> = fx.drain_ids().await.into_iter().map(|id| id.to_string()).collect();
    assert_eq!(claimed, ids);
}

async fn raw_entries_wait_while_the_queue_is_paused(fx: &Fixture) {
    fx.set(|policy| policy.mode = Mode::Paused).await;
    fx.raw(&[("task_id", "t"), ("payload", "{}")]).await;
    assert!(fx.claim(1).await.is_empty());
    assert_eq!(fx.state(&task_id("t")).await, State::Queued, "filed, so that it can be seen and cancelled");
    let cancelled = fx.broker.cancel(&task_id("t"), "not needed").await.expect("answered");
    assert_eq!(cancelled, Cancelled::Done { from: State::Queued });
}

async fn a_cancelled_first_task_lets_the_next_raw_one_be_a_task(fx: &Fixture) {
    fx.raw(&[("task_id", "first"), ("payload", "{}"), ("idempotency_key", "k")]).await;
    fx.promote(10).await;
    fx.broker.cancel(&task_id("first"), "not needed").await.expect("answered");
    fx.raw(&[("task_id", "second"), ("payload", "{}"), ("idempotency_key", "k")]).await;
    let claimed = fx.claim_one().await;
    assert_eq!(claimed.lease.task.as_str(), "second");
    assert_eq!(fx.settle(&claimed, success()).await, windlass::broker::Settled::Succeeded);
}

suite! {
    the_stream_protocols_fields_become_a_task,
    a_camel_case_producers_fields_become_a_task_and_its_priority_holds,
    a_job_tables_fields_become_a_task,
    an_entry_without_a_type_has_the_default_one,
    a_raw_delay_is_kept,
    an_id_that_is_known_is_the_same_task,
    a_key_that_is_known_is_the_same_task_and_found_under_the_id_that_was_sent,
    raw_and_other_producers_share_their_keys,
    what_cannot_be_read_is_a_dead_letter_with_the_reason,
    what_is_not_text_is_a_dead_letter_too,
    a_payload_over_the_bound_is_a_dead_letter,
    trace_tenant_and_key_are_carried_or_refused_but_never_dropped,
    a_missing_key_is_a_dead_letter_where_one_is_required,
    a_dead_entry_can_be_replayed_with_a_corrected_payload,
    raw_entries_are_filed_by_the_leader_too,
    raw_entries_wait_while_the_outbox_is_at_its_bound,
    many_raw_entries_are_all_claimed_in_their_order,
    raw_entries_wait_while_the_queue_is_paused,
    a_cancelled_first_task_lets_the_next_raw_one_be_a_task,
}
