//! The task-queue protocol, field by field: a run of its acceptance criteria under its own names, and then what its
//! readers find in `stream:result`, `stream:dlq` and `event_log`.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use tokio::time::sleep;
use windlass::Payload;
use windlass::broker::session::Session;
use windlass::broker::{
    Broker, ClaimedTask, EffectBegun, EffectCommitted, EffectMark, EffectRequest, Outcome, Settled, Settlement,
    Standing,
};
use windlass::event_log::RecordedEvent;
use windlass::protocol::backoff::{Backoff, Dice, Jitter, Strategy};
use windlass::protocol::keys::{AdoptedKeys, Keys};
use windlass::protocol::names::{Capabilities, WorkerId};
use windlass::protocol::policy::{IdempotencyRequirement, Policy, ReclaimCause};

use super::faults::until;
use crate::support::fresh_queue;
use crate::support::ground::Ground;
use crate::support::servers::{Flavor, Postgres, Server};

const MAX_RETRIES: u32 = 3;

/// The protocol's numbers, with seconds for minutes.
fn policy() -> Policy {
    let mut policy = Policy {
        // Long enough that a test which is not let run does not lose what it holds.
        visibility_timeout: Duration::from_secs(10),
        heartbeat_period: Duration::from_secs(1),
        ..Policy::default()
    };
    policy.reclaim.on = [ReclaimCause::VisibilityTimeout].into();
    policy.retry.max_retries = MAX_RETRIES;
    let delays_ms = vec![100, 500, 1500];
    policy.retry.backoff = Backoff { strategy: Strategy::Schedule { delays_ms }, max_ms: 60_000, jitter: Jitter::None };
    policy.idempotency.requirement = IdempotencyRequirement::Required;
    policy
}

/// The names of the protocol, on a Redis of its own.
async fn ground(server: &Server, postgres: &Postgres) -> Ground {
    let adopted = AdoptedKeys {
        task: Some("stream:task".into()),
        result: Some("stream:result".into()),
        dead_letter: Some("stream:dlq".into()),
        group: Some("cg:workers".into()),
    };
    let name = fresh_queue();
    let keys = Keys::adopting(&name, &adopted).expect("usable names");
    Ground::with_keys(server, postgres.fresh_database(), &policy(), keys, name).await
}

/// What an orchestrator does that knows nothing of us.
async fn send(server: &Server, id: &str, tool: &str, payload: &str, key: &str) {
    let entry = [
        "XADD",
        "stream:task",
        "*",
        "task_id",
        id,
        "tool_name",
        tool,
        "payload",
        payload,
        "idempotency_key",
        key,
        "trace_id",
        &format!("trace-{id}"),
    ];
    server.command(&entry).await;
}

/// Waits for the next task.
async fn next(session: &mut Session) -> ClaimedTask {
    for _ in 0..6000 {
        if let Some(task) = session.claim(1).await.expect("claimed").pop() {
            return task;
        }
        sleep(Duration::from_millis(10)).await;
    }
    panic!("no task came in a minute");
}

async fn end(session: &mut Session, task: &ClaimedTask, outcome: Outcome) -> Settled {
    let settlement = Settlement { lease: task.lease.clone(), outcome, dice: Dice(0) };
    session.settle(&[settlement], 0).await.expect("settled").settled[0]
}

type Fields = BTreeMap<String, String>;

/// Every entry of a stream, by the task that it is about.
async fn entries(server: &Server, stream: &str) -> HashMap<String, Vec<Fields>> {
    let all: Vec<(String, Vec<Vec<u8>>)> = server.query(&["XRANGE", stream, "-", "+"]).await;
    // Many clients take every field for UTF-8, and fail on one that is not.
    let text = |bytes: &Vec<u8>| String::from_utf8(bytes.clone()).expect("a field that every reader can decode");
    let mut by_task: HashMap<String, Vec<Fields>> = HashMap::new();
    for (_, fields) in all {
        let fields: Fields = fields.chunks(2).map(|pair| (text(&pair[0]), text(&pair[1]))).collect();
        by_task.entry(fields["task_id"].clone()).or_default().push(fields);
    }
    by_task
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_of_the_acceptance_criteria_leaves_exactly_what_the_protocol_asks_for() {
    let server = Server::builder(Flavor::Redis70).start().await;
    let postgres = Postgres::start().await;
    let ground = ground(&server, &postgres).await;
    let _runner = ground.lead().await;
    let worker =
        |name: &str| Session::new(ground.broker.clone(), WorkerId::new(name).expect("valid"), Capabilities::any());
    let mut one = worker("worker-1");

    // 1. A task that succeeds.
    send(&server, "good", "web.search", r#"{"q":1}"#, "k-good").await;
    let task = next(&mut one).await;
    assert_eq!(end(&mut one, &task, Outcome::result(serde_json::json!({"hits": 3}))).await, Settled::Succeeded);

    // 2. A task that fails until it goes to the dead letters.
    send(&server, "bad", "web.fetch", r#"{"url":"x"}"#, "k-bad").await;
    for attempt in 0..=MAX_RETRIES {
        let task = next(&mut one).await;
        assert_eq!(task.retry_count, attempt);
        end(&mut one, &task, Outcome::failure("http_500", format!("attempt {attempt} failed"))).await;
    }
    // And one whose input cannot be mended: it lacks a required field.
    send(&server, "broken", "web.fetch", "{}", "").await;

    // 3. A worker that stops, and another one that takes over after the visibility timeout.
    send(&server, "lost", "web.search", "{}", "k-lost").await;
    let before = next(&mut one).await;
    let mut two = worker("worker-2");
    let task = next(&mut two).await;
    assert_eq!(task.lease.task, before.lease.task);
    assert_eq!(end(&mut two, &task, Outcome::success()).await, Settled::Succeeded);
    assert_eq!(end(&mut one, &before, Outcome::success()).await, Settled::LeaseLost, "the late one changes nothing");

    // 4. The same work sent twice, with an effect outside.
    for id in ["twin-a", "twin-b"] {
        send(&server, id, "shop.order", r#"{"item":7}"#, "k-order").await;
    }
    let task = next(&mut two).await;
    let (key, mark) = (task.idempotency_key.as_ref().expect("it has a key"), EffectMark::generate());
    let answer = Payload::from(serde_json::json!({"order": 1}));
    let asked = EffectRequest { lease: &task.lease, key, mark: &mark, standing: Standing::Own };
    assert_eq!(ground.broker.begin_effect(&asked).await.expect("answered"), EffectBegun::Begin);
    for expected in [EffectCommitted::Committed, EffectCommitted::AlreadyCommitted { answer: answer.clone() }] {
        let committed = ground.broker.commit_effect(&task.lease, key, &answer, Standing::Own).await;
        assert_eq!(committed.expect("answered"), expected);
    }
    assert_eq!(end(&mut two, &task, Outcome::result(serde_json::json!({"order": 1}))).await, Settled::Succeeded);
    assert!(two.claim(1).await.expect("claimed").is_empty(), "there is no second one");

    until(&ground, "an empty queue and a written history", |counts| {
        counts.backlog + counts.running + counts.retrying + counts.dlq_pending + counts.outbox == 0
    })
    .await;
    check_pending(&server).await;
    check_results(&server).await;
    check_dead_letters(&server).await;
    check_events(&ground).await;
}

/// §3, §9.1: all is acknowledged.
async fn check_pending(server: &Server) {
    let (pending, ..): (u64, redis::Value, redis::Value, redis::Value) =
        server.query(&["XPENDING", "stream:task", "cg:workers"]).await;
    let left: u64 = server.query(&["XLEN", "stream:task"]).await;
    assert_eq!((pending, left), (0, 0));
}

/// §2: every task has one final event, and its status is final.
async fn check_results(server: &Server) {
    let results = entries(server, "stream:result").await;
    let times: Vec<_> = results.values().map(Vec::len).collect();
    assert_eq!(times, vec![1; 6], "one final event each: {results:?}");
    let expected = [
        ("good", "web.search", "succeeded", 0, Some(r#"{"hits":3}"#)),
        ("bad", "web.fetch", "failed", MAX_RETRIES + 1, None),
        ("broken", "web.fetch", "failed", 0, None),
        ("lost", "web.search", "succeeded", 0, Some("")),
        ("twin-a", "shop.order", "succeeded", 0, Some(r#"{"order":1}"#)),
        ("twin-b", "shop.order", "succeeded", 0, Some(r#"{"order":1}"#)),
    ];
    for (id, tool, status, retries, result) in expected {
        let fields = &results[id][0];
        assert_eq!((&fields["tool_name"][..], &fields["status"][..]), (tool, status), "{id}");
        assert_eq!(fields["retry_count"], retries.to_string(), "{id}");
        assert_eq!(fields.get("result").map(String::as_str), result, "{id}");
        assert!(fields["finished_at"].parse::<u64>().is_ok(), "{fields:?}");
        let failed = status == "failed";
        for field in ["error", "error_code", "dlq_id"] {
            assert_eq!(fields.get(field).is_some_and(|text| !text.is_empty()), failed, "{id}: {field}");
        }
        // Nothing else but what is ours: the token and, where there is any, the meta.
        let known = [
            "task_id",
            "tool_name",
            "status",
            "result",
            "error",
            "error_code",
            "dlq_id",
            "retry_count",
            "finished_at",
            "token",
            "meta",
            "duplicate_of",
        ];
        assert!(fields.keys().all(|field| known.contains(&field.as_str())), "{fields:?}");
    }
    assert_eq!(results["bad"][0]["error"], format!("attempt {MAX_RETRIES} failed"));
    assert_eq!(results["twin-b"][0]["duplicate_of"], "twin-a");
    assert!(!results["twin-a"][0].contains_key("duplicate_of"));
}

/// §7: task_id, tool_name, payload, error, retry_count, failed_at.
async fn check_dead_letters(server: &Server) {
    let letters = entries(server, "stream:dlq").await;
    assert_eq!(letters.len(), 2, "{letters:?}");
    // What they ask for, what is ours, and nothing else.
    let known = [
        "task_id",
        "tool_name",
        "payload",
        "error",
        "error_code",
        "retry_count",
        "failed_at",
        "dlq_id",
        "token",
        "meta",
        "history",
        "recorded_at",
    ];
    for fields in letters.values().flatten() {
        let (mut told, mut expected) = (fields.keys().map(String::as_str).collect::<Vec<_>>(), known);
        told.sort_unstable();
        expected.sort_unstable();
        assert_eq!(told, expected, "{fields:?}");
    }
    let bad = &letters["bad"][0];
    assert_eq!((letters["bad"].len(), letters["broken"].len()), (1, 1));
    assert_eq!((&bad["tool_name"][..], &bad["payload"][..]), ("web.fetch", r#"{"url":"x"}"#));
    assert_eq!(bad["error"], format!("attempt {MAX_RETRIES} failed"));
    assert_eq!(bad["retry_count"], (MAX_RETRIES + 1).to_string());
    let time: (u64, u64) = server.query(&["TIME"]).await;
    let failed_at: u64 = bad["failed_at"].parse().expect("milliseconds");
    assert!(failed_at / 1000 <= time.0 && failed_at / 1000 + 600 > time.0, "{failed_at} at {time:?}");
    let broken = &letters["broken"][0];
    assert!(broken["error"].contains("idempotency"), "it says what is missing: {broken:?}");
    assert_eq!(
        (&broken["tool_name"][..], &broken["payload"][..], &broken["retry_count"][..]),
        ("web.fetch", "{}", "0")
    );
}

/// §8, and §5: what a reclaim has to tell.
async fn check_events(ground: &Ground) {
    let mut by_task: HashMap<String, Vec<RecordedEvent>> = HashMap::new();
    let (effects, moves): (Vec<_>, Vec<_>) =
        ground.events().await.into_iter().partition(|event| event.idempotency_key.is_some());
    // §6: one outside effect a key, in a column whose index is unique.
    let [effect] = &effects[..] else { panic!("{effects:?}") };
    assert_eq!(effect.idempotency_key.as_ref().map(|key| key.as_str()), Some("k-order"));
    assert_eq!((effect.event_type.as_str(), effect.task_id.as_str()), ("effect.done", "twin-a"));
    assert_eq!(effect.trace_id.as_ref().map(|trace| trace.as_str()), Some("trace-twin-a"));
    assert_eq!(effect.consumer.as_deref(), Some("worker-2"));
    for event in moves {
        by_task.entry(event.task_id.to_string()).or_default().push(event);
    }
    let retry = ["task.claimed", "task.retrying"];
    let dead = ["task.dlq_pending", "task.dlq", "task.failed"];
    let mut bad = vec!["task.created"];
    bad.extend(std::iter::repeat_n(retry, MAX_RETRIES as usize).flatten());
    bad.push("task.claimed");
    bad.extend(dead);
    let expected: [(&str, Vec<&str>); 5] = [
        ("good", vec!["task.created", "task.claimed", "task.succeeded"]),
        ("bad", bad),
        ("broken", [&["task.created"][..], &dead].concat()),
        ("lost", vec!["task.created", "task.claimed", "task.retrying", "task.reclaimed", "task.succeeded"]),
        ("twin-a", vec!["task.created", "task.claimed", "task.succeeded"]),
    ];
    assert_eq!(by_task.len(), expected.len(), "a second sending of the same work is no task: {:?}", by_task.keys());
    for (id, kinds) in expected {
        let events = &by_task[id];
        assert_eq!(events.iter().map(|event| event.event_type.as_str()).collect::<Vec<_>>(), kinds, "{id}");
        for pair in events.windows(2) {
            assert_eq!(pair[1].from, pair[0].to, "{id}");
        }
        for event in events {
            assert_eq!(
                event.trace_id.as_ref().map(|trace| trace.to_string()),
                Some(format!("trace-{id}")),
                "{event:?}"
            );
            let runs = matches!(event.event_type.as_str(), "task.claimed" | "task.reclaimed" | "task.succeeded");
            assert_eq!(
                event.consumer.is_some(),
                runs || event.event_type == "task.retrying" || (event.event_type == "task.dlq_pending" && id == "bad"),
                "{event:?}"
            );
            assert!(!runs || event.message_id.is_some(), "{event:?}");
        }
    }
    // retry_count: +1 a failure, and a lost worker is none.
    let counts: Vec<_> = by_task["bad"]
        .iter()
        .filter(|event| event.event_type == "task.claimed")
        .map(|event| event.retry_count)
        .collect();
    assert_eq!(counts, [0, 1, 2, 3]);
    let [.., taken, reclaimed, succeeded] = &by_task["lost"][..] else { unreachable!("five events") };
    assert_eq!((taken.retry_count, taken.consumer.as_deref()), (0, Some("worker-1")));
    // The one before, the new one, and the message.
    assert_eq!((reclaimed.consumer.as_deref(), succeeded.consumer.as_deref()), (Some("worker-2"), Some("worker-2")));
    let claimed = &by_task["lost"][1];
    let detail: serde_json::Value = serde_json::from_str(reclaimed.detail.as_deref().expect("a detail")).expect("JSON");
    assert_eq!((&detail["from"], &detail["reason"]), (&"worker-1".into(), &"visibility_timeout".into()));
    assert_eq!(detail["message"].as_str(), claimed.message_id.as_deref(), "the message that was taken back");
}
