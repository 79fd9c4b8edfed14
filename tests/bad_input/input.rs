//! What producers, workers and people may get wrong.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;
use windlass::broker::redis::{RedisBroker, RedisOptions};
use windlass::broker::{
    Broker, ClaimRequest, DiscardRequest, Discarded, ErrorClass, MAX_BATCH, Outcome, Recorded, ReplayRequest, Replayed,
    Settled,
};
use windlass::protocol::keys::{AdoptedKeys, Keys};
use windlass::protocol::names::{Capabilities, DeadLetterId, Epoch, IdempotencyKey, TenantId, TraceId, WorkerId};
use windlass::protocol::policy::Mode;
use windlass::{NewTask, NotBefore, Payload, QueueName, State, TaskId, TaskType};

use super::refusal::{Queue, is_refusal, permanent, shared_server, success, task, worker};
use crate::support::{fresh_queue, owner};

const INVALID: ErrorClass = ErrorClass::Invalid;

#[test]
fn an_unknown_word_for_a_state_is_refused() {
    for word in ["sleeping", "", "Queued", "queued "] {
        let error = word.parse::<State>().expect_err(word);
        assert!(error.to_string().contains("use one of scheduled, blocked"), "{error}");
    }
}

#[test]
fn a_name_that_breaks_a_rule_is_refused_with_the_rule() {
    let long = "x".repeat(129);
    for name in ["", "a b", "a\nb", "ü", &long] {
        let error = TaskId::new(name).expect_err(name);
        assert!(error.to_string().contains("use 1 to 128 printable ASCII"), "{error}");
        assert!(error.to_string().len() < 300, "a long name is not repeated whole: {error}");
        assert!(TraceId::new(name).is_err(), "{name:?}");
    }
    for name in ["", "a\nb", "a\0", "\u{85}"] {
        assert!(IdempotencyKey::new(name).is_err(), "{name:?}");
        assert!(TenantId::new(name).is_err(), "{name:?}");
    }
    assert!(WorkerId::new("a b").is_err());
    for name in ["", "Shop", "a/b/c", "a_b", "{a}", "a:b"] {
        assert!(name.parse::<QueueName>().is_err(), "{name:?}");
    }
}

#[test]
fn a_type_that_would_break_a_lanes_name_is_refused() {
    for name in ["", " ", "a b", "a\nb", "a,b", "a+", "{a}", ":a", "a\0b", "ä", "a*", &"x".repeat(101)] {
        let error = TaskType::new(name).expect_err(name);
        assert!(error.to_string().contains("use 1 to 100 letters, digits"), "{error}");
    }
    let many = (0..65).map(|number| TaskType::new(format!("t{number}")).expect("valid"));
    assert!(Capabilities::of(many).expect_err("65").to_string().contains("at most 64 types"));
}

#[test]
fn what_is_not_json_is_refused_before_it_is_sent() {
    for text in ["", "NaN", "{\"a\": NaN}", "[Infinity]", "-Infinity", "{oops", "'a'", "{} {}", "\u{feff}{}"] {
        let error = Payload::from_json(text).expect_err(text);
        assert!(error.to_string().contains("is not JSON"), "{error}");
    }
    for number in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let error = Payload::encode(&json!({}).as_object().map(|_| vec![1.0, number])).expect_err("no JSON form");
        assert!(error.to_string().contains("NaN or infinite; send null or a string"), "{error}");
    }
}

#[test]
fn a_url_that_cannot_be_used_is_refused_without_its_password() {
    for url in ["", "localhost:6379", "http://localhost", "redis+ring://a:1", "redis://user:hunter2@:x"] {
        let error = RedisBroker::new(Keys::new(&fresh_queue()), RedisOptions::new(url)).err().expect(url);
        is_refusal(&error, INVALID, "write redis://HOST:PORT");
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }
}

#[tokio::test]
async fn a_payload_of_two_mebibytes_is_refused() {
    let queue = Queue::new().await;
    let large = NewTask { payload: json!("x".repeat(2 << 20)).into(), ..task() };
    let sentence = "the payload has 2097154 bytes and this queue takes at most 1048576";
    queue.refuses(queue.broker.enqueue(&[task(), large]), INVALID, sentence).await;
}

#[tokio::test]
async fn a_result_of_two_mebibytes_is_refused_and_the_task_goes_on() {
    let queue = Queue::new().await;
    queue.enqueue(task()).await;
    let running = queue.claim(1).await.remove(0);
    let before = queue.snapshot().await;
    let large = Outcome::Success { result: Some(json!("x".repeat(2 << 20)).into()) };
    assert_eq!(queue.settle(&running, large).await, Settled::ResultTooLarge);
    assert_eq!(queue.snapshot().await, before);
    assert_eq!(queue.settle(&running, success()).await, Settled::Succeeded);
}

#[tokio::test]
async fn a_priority_out_of_range_is_refused() {
    let queue = Queue::new().await;
    for priority in [0, 11, 255] {
        let urgent = NewTask { priority: Some(priority), ..task() };
        let sentence = format!("priority {priority} is out of range: use 1 to 10");
        queue.refuses(queue.broker.enqueue(&[task(), urgent]), INVALID, &sentence).await;
    }
}

#[tokio::test]
async fn a_batch_of_none_or_too_many_is_refused() {
    let queue = Queue::new().await;
    queue.refuses(queue.broker.enqueue(&[]), INVALID, "give 1 to 100").await;
    let many = vec![task(); MAX_BATCH + 1];
    queue.refuses(queue.broker.enqueue(&many), INVALID, "101 tasks in one call are too many").await;
    let (worker, any) = (worker(), Capabilities::any());
    let greedy = ClaimRequest { worker: &worker, capabilities: &any, limit: MAX_BATCH + 1, recover: None };
    queue.refuses(queue.broker.claim(greedy.clone()), INVALID, "use at most 100").await;
    queue.refuses(queue.broker.settle(&[], greedy), INVALID, "use at most 100").await;
}

#[tokio::test]
async fn options_beyond_their_bounds_are_refused() {
    let queue = Queue::new().await;
    let stubborn = NewTask { max_retries: Some(1001), ..task() };
    queue.refuses(queue.broker.enqueue(&[stubborn]), INVALID, "max_retries 1001 is too high: use 0 to 1000").await;
    let mut labelled = task();
    labelled.extras.labels = (0..33).map(|number| (number.to_string(), String::new())).collect();
    queue.refuses(queue.broker.enqueue(&[labelled]), INVALID, "33 labels; use at most 32").await;
    let mut labelled = task();
    labelled.extras.labels.insert("key".into(), "v".repeat(257));
    queue.refuses(queue.broker.enqueue(&[labelled]), INVALID, "a value of at most 256").await;
    let late = NewTask { not_before: NotBefore::After(Duration::from_secs(700_000)), ..task() };
    queue.refuses(queue.broker.enqueue(&[late]), INVALID, "after its deadline").await;
    let never = NewTask { not_before: NotBefore::After(Duration::MAX), ..task() };
    queue.refuses(queue.broker.enqueue(&[never]), INVALID, "after its deadline").await;
    let far = NewTask { not_before: NotBefore::At(Timestamp::MAX), ..task() };
    queue.refuses(queue.broker.enqueue(&[far]), INVALID, "after its deadline").await;
}

#[tokio::test]
async fn a_lane_too_many_is_refused() {
    let queue = Queue::new().await;
    queue.set(|policy| policy.limits.lanes = 2).await;
    let of = |kind: &str| NewTask { task_type: kind.parse().expect("valid"), ..task() };
    queue.enqueue(of("a")).await;
    queue.enqueue(of("b")).await;
    queue.refuses(queue.broker.enqueue(&[of("a"), of("c")]), INVALID, "use a type and priority that are in use").await;
    queue.enqueue(of("a")).await;
}

#[tokio::test]
async fn a_closed_queue_refuses_new_tasks() {
    let queue = Queue::new().await;
    queue.set(|policy| policy.mode = Mode::Closed).await;
    queue.refuses(queue.broker.enqueue(&[task()]), INVALID, "is closed and takes no tasks").await;
}

#[tokio::test]
async fn a_queue_that_does_not_exist_refuses_everything() {
    let server = shared_server().await;
    let queue = Queue::unprovisioned(server, RedisOptions::new(server.url()));
    let sentence = format!("queue {} does not exist here", queue.broker.keys().queue());
    queue.refuses(queue.broker.enqueue(&[task()]), INVALID, &sentence).await;
    queue.refuses(queue.broker.promote(1), INVALID, &sentence).await;
    queue.refuses(queue.broker.counts(), INVALID, &sentence).await;
    queue.refuses(queue.broker.policy(), INVALID, &sentence).await;
    queue.refuses(queue.broker.sweep(Default::default()), INVALID, &sentence).await;
    assert!(queue.snapshot().await.is_empty());
}

#[tokio::test]
async fn a_wrong_epoch_names_no_dead_letter() {
    let queue = Queue::new().await;
    queue.enqueue(task()).await;
    let running = queue.claim(1).await.remove(0);
    queue.settle(&running, permanent()).await;
    let right = DeadLetterId { task: running.lease.task.clone(), epoch: running.lease.epoch };
    let wrong = DeadLetterId { epoch: Epoch(right.epoch.0 + 1), ..right.clone() };
    assert_eq!(queue.broker.record_dead_letter(&wrong).await.expect("answered"), Recorded::InvalidTransition);
    assert_eq!(queue.broker.record_dead_letter(&right).await.expect("answered"), Recorded::Done);
    let before = queue.snapshot().await;
    assert_eq!(queue.broker.dead_letter(&wrong).await.expect("answered"), None);
    let replay = ReplayRequest {
        dead_letter: wrong.clone(),
        new_id: TaskId::generate(),
        payload: None,
        person: "ada".into(),
        reason: None,
    };
    assert_eq!(queue.broker.replay(&replay).await.expect("answered"), Replayed::Unknown);
    let nobody = ReplayRequest { dead_letter: right, person: " ".into(), ..replay };
    queue.refuses(queue.broker.replay(&nobody), ErrorClass::Invalid, "a replay needs a person").await;
    let discard = DiscardRequest { dead_letter: wrong, person: "ada".into(), reason: "obsolete".into() };
    assert_eq!(queue.broker.discard(&discard).await.expect("answered"), Discarded::Unknown);
    assert_eq!(queue.snapshot().await, before);
    for id in ["", "task", "task#", "task#x", "task#-1", "#1"] {
        let error = id.parse::<DeadLetterId>().expect_err(id);
        assert!(error.to_string().contains("use TASK_ID#EPOCH"), "{error}");
    }
}

#[tokio::test]
async fn a_time_in_the_past_is_now() {
    let queue = Queue::new().await;
    for ms in [-62_000_000_000_000, -5, 0, 5] {
        let past = NotBefore::At(Timestamp::from_millisecond(ms).expect("a time"));
        let enqueued = queue.broker.enqueue(&[NewTask { not_before: past, ..task() }]).await.expect("taken");
        assert_eq!(enqueued[0].state, State::Queued);
    }
    assert_eq!(queue.claim(10).await.len(), 4);
}

/// Arrays in each other, as many as half the bytes.
const fn nested<const BYTES: usize>() -> [u8; BYTES] {
    let mut text = [b'['; BYTES];
    let mut at = BYTES / 2;
    while at < BYTES {
        text[at] = b']';
        at += 1;
    }
    text
}

/// What a raw entry may get wrong, and a word of what its dead letter says.
const RAW: [(&str, &[u8], &str); 37] = [
    ("payload", b"", "not JSON"),
    ("payload", b"NaN", "not JSON"),
    ("payload", b"{\"a\": NaN}", "not JSON"),
    ("payload", b"[Infinity, -Infinity]", "not JSON"),
    ("payload", b"[nan]", "not JSON"),
    ("payload", b"{\"a\": 1e999}", "not JSON"),
    ("payload", b"{oops", "not JSON"),
    ("payload", b"{} {}", "not JSON"),
    ("payload", b"0x10", "not JSON"),
    ("payload", b"[-0X1p3]", "not JSON"),
    ("payload", b"[1, -01]", "not JSON"),
    ("payload", b"00", "not JSON"),
    ("payload", b"[+1]", "not JSON"),
    ("payload", b"{\"a\":1.}", "not JSON"),
    ("payload", b"[-.5]", "not JSON"),
    ("payload", b"{} \0 oops", "not JSON"),
    ("payload", b"[\"a\x01\"]", "not JSON"),
    ("payload", b"{\"a\": \"tab\there\"}", "not JSON"),
    ("payload", b"[\"fine\", \"two\nlines\"]", "not JSON"),
    ("payload", &nested::<256>(), "not JSON"),
    ("payload", &nested::<1000>(), "not JSON"),
    ("payload", b"\xff\xfe{}", "not UTF-8"),
    ("payload", b"\"\xc3\x28\"", "not UTF-8"),
    ("payload", b"\"\xed\xa0\x80\"", "not UTF-8"),
    ("payload", b"\"\xf5\x80\x80\x80\"", "not UTF-8"),
    ("tool_name", b"a b", "tool_name"),
    ("tool_name", b"a:5\nb", "tool_name"),
    ("tool_name", b"a\0", "tool_name"),
    ("tool_name", b"a+", "tool_name"),
    ("tool_name", b":a", "tool_name"),
    ("tool_name", b"\xff", "tool_name"),
    ("priority", b"0", "from 1 to 10"),
    ("priority", b"11", "from 1 to 10"),
    ("priority", b"5.5", "from 1 to 10"),
    ("priority", b"nan", "from 1 to 10"),
    ("delay_ms", b"-5", "not in range"),
    ("delay_ms", b"inf", "not in range"),
];

#[tokio::test]
async fn a_raw_entry_that_is_wrong_is_a_dead_letter_that_says_why() {
    let queue = Queue::new().await;
    for (number, (field, value, _)) in RAW.iter().enumerate() {
        let id = format!("t{number}");
        let mut fields: Vec<(&str, &[u8])> = vec![("task_id", id.as_bytes())];
        if *field != "payload" {
            fields.push(("payload", b"{}"));
        }
        fields.push((field, value));
        queue.raw(&fields).await;
    }
    assert_eq!(queue.broker.promote(100).await.expect("answered").filed, RAW.len());
    assert!(queue.claim(10).await.is_empty());
    let letters = queue.dead_letters().await;
    assert_eq!(letters.len(), RAW.len());
    for (number, (field, value, reason)) in RAW.iter().enumerate() {
        let id = format!("t{number}");
        let letter = letters.iter().find(|letter| letter.id.task.as_str() == id).expect("a dead letter");
        assert!(letter.error.contains(reason), "{field} {value:?}: {}", letter.error);
        assert_eq!(letter.error_code, "invalid_input");
        letter.payload.parse::<serde_json::Value>().expect("what was sent is kept as JSON");
    }
    let waiting: u64 = queue.server.query(&["XLEN", &queue.broker.keys().task]).await;
    let lanes: Vec<String> = queue.server.query(&["SMEMBERS", &queue.broker.keys().lanes()]).await;
    assert_eq!((waiting, lanes), (0, vec![]), "nothing is left behind, and no odd lane was made");
}

#[tokio::test]
async fn a_raw_payload_that_looks_odd_and_is_json_comes_as_it_is() {
    let queue = Queue::new().await;
    let payloads: [&[u8]; 7] = [
        b"[1e05,-0,0.10,1E+2,-1.5e-07,10,100.001]",
        b" \t\r\n{ \"a\" :\n[ ] }\n",
        b"\"01 0x10 1. .5 [[[ \\\" \\\\ \\u0000 \\t\"",
        b"{\"a\\\\\":\"\\\"\",\"\":{}}",
        b"\"\x7f\"",
        b"[true,false,null]",
        &nested::<254>(),
    ];
    for (number, payload) in payloads.iter().enumerate() {
        queue.raw(&[("task_id", format!("t{number}").as_bytes()), ("payload", payload)]).await;
    }
    let tasks = queue.claim(10).await;
    assert_eq!(tasks.len(), payloads.len(), "{:?}", queue.dead_letters().await);
    for (task, payload) in tasks.iter().zip(payloads) {
        assert_eq!(task.payload.as_str().as_bytes(), payload);
        task.payload.parse::<serde_json::Value>().expect("others read it as JSON, too");
    }
}

#[tokio::test]
async fn an_adopted_name_that_is_no_stream_is_refused() {
    let server = shared_server().await;
    let name = format!("a-string-{}", fresh_queue().name());
    server.command(&["SET", &name, "text"]).await;
    for adopted in [
        AdoptedKeys { task: Some(name.clone()), ..AdoptedKeys::default() },
        AdoptedKeys { result: Some(name.clone()), ..AdoptedKeys::default() },
        AdoptedKeys { dead_letter: Some(name.clone()), ..AdoptedKeys::default() },
    ] {
        let keys = Keys::adopting(&fresh_queue(), &adopted).expect("valid names");
        let prefix = keys.prefix().to_owned();
        let broker = RedisBroker::new(keys, RedisOptions::new(server.url())).expect("a usable URL");
        let error = broker.provision(&owner(), &Default::default()).await.expect_err("no stream");
        is_refusal(&error, INVALID, &name);
        let left: Vec<String> = server.query(&["KEYS", &format!("{prefix}*")]).await;
        assert_eq!(left, Vec::<String>::new(), "nothing changed");
    }
}
