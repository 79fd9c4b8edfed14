//! A hundred thousand entries that nobody would send: none stops the queue, none is lost.

use std::time::Instant;

use futures::{StreamExt, stream};
use windlass::TaskId;
use windlass::broker::{Broker, ClaimRequest, Outcome, Recorded, Settlement};
use windlass::protocol::backoff::Dice;
use windlass::protocol::names::Capabilities;
use windlass::protocol::policy::EventRecording;

use super::refusal::{Queue, worker};
use crate::support::servers::{Flavor, Server};

/// The same entries each time; a failure can be repeated.
const SEED: u64 = 20_240_229;

/// Names that the intake reads, and some that it does not.
const NAMES: [&str; 30] = [
    "task_id",
    "taskId",
    "id",
    "job_id",
    "jobId",
    "tool_name",
    "toolName",
    "type",
    "task_type",
    "taskType",
    "job_type",
    "kind",
    "payload",
    "payload_json",
    "priority",
    "idempotency_key",
    "idempotencyKey",
    "tenant_id",
    "tenantId",
    "trace_id",
    "traceId",
    "traceparent",
    "max_retries",
    "maxRetries",
    "delay_ms",
    "delayMs",
    "",
    "token",
    "meta",
    "\0",
];

/// Values that are right for some field, nearly right, or right for none.
const VALUES: [&str; 42] = [
    "",
    " ",
    "0",
    "1",
    "5",
    "10",
    "11",
    "-1",
    "-5",
    "1.5",
    "1e1",
    "1e999",
    "0x5",
    "nan",
    "inf",
    "-inf",
    "null",
    "true",
    "{}",
    "[]",
    "{\"a\":1}",
    "[1,2,{\"b\":null}]",
    "\"text\"",
    "{oops",
    "[NaN]",
    "NaN",
    "Infinity",
    "[1e400]",
    "a",
    "send",
    "a b",
    "a:5",
    "a+",
    "a\nb",
    ":",
    "{x}",
    "\0",
    "ü",
    "😀",
    "\u{7f}",
    "\u{85}",
    "99999999999999999999999",
];

type Entry = Vec<(Vec<u8>, Vec<u8>)>;

fn random_bytes(rng: &mut fastrand::Rng, longest: usize) -> Vec<u8> {
    let length = rng.usize(0..=longest);
    std::iter::repeat_with(|| rng.u8(..)).take(length).collect()
}

fn random_value(rng: &mut fastrand::Rng) -> Vec<u8> {
    match rng.u8(..) {
        0..128 => rng.choice(VALUES).expect("some").as_bytes().to_vec(),
        128..200 => random_bytes(rng, 20),
        200..220 => format!("{}", rng.i64(-20..20)).into_bytes(),
        220..250 => format!("{{\"n\":{}}}", rng.u32(..)).into_bytes(),
        250..=254 => random_bytes(rng, 2000),
        _ => "x".repeat(rng.usize(0..20_000)).into_bytes(),
    }
}

/// Any fields with any values; a third of them with a good id, payload and little else.
fn random_entry(rng: &mut fastrand::Rng, number: usize) -> Entry {
    let mut entry = Entry::new();
    let mut add = |name: &[u8], value: Vec<u8>| entry.push((name.to_vec(), value));
    match rng.u8(0..6) {
        0 => {
            add(b"task_id", format!("good{number}").into_bytes());
            add(b"payload", b"{}".to_vec());
        }
        1 => {
            add(b"task_id", format!("twin{}", rng.usize(0..500)).into_bytes());
            add(b"payload", b"[1]".to_vec());
            add(b"idempotency_key", format!("key{}", rng.usize(0..500)).into_bytes());
        }
        2 => {
            add(b"taskId", format!("near{number}").into_bytes());
            add(b"payload", random_value(rng));
            add(rng.choice(NAMES).expect("some").as_bytes(), random_value(rng));
        }
        _ => {
            for _ in 0..rng.usize(1..8) {
                let name = match rng.u8(0..4) {
                    0 => random_bytes(rng, 10),
                    _ => rng.choice(NAMES).expect("some").as_bytes().to_vec(),
                };
                add(&name, random_value(rng));
            }
        }
    }
    if rng.usize(0..20_000) == 0 {
        entry.push((b"payload".to_vec(), vec![b'7'; 3 << 20]));
    }
    entry
}

/// The id under which an entry must be found: its own if it has a usable one, else one made from its message.
fn expected_id(entry: &Entry, message: &str) -> TaskId {
    let field = |name: &str| entry.iter().rev().find(|(field, _)| field == name.as_bytes()).map(|(_, value)| value);
    let ids = ["task_id", "taskId", "id", "job_id", "jobId"];
    let sent = ids.into_iter().filter_map(field).find(|value| !value.is_empty());
    let sent = sent.and_then(|value| String::from_utf8(value.clone()).ok()).and_then(|id| TaskId::new(id).ok());
    sent.unwrap_or_else(|| TaskId::new(format!("raw-{message}")).expect("a valid id"))
}

/// Sends them, and returns the ids under which they must be found.
async fn send(queue: &Queue<'_>, number: usize) -> Vec<TaskId> {
    let mut rng = fastrand::Rng::with_seed(SEED);
    let mut connection = queue.server.connect().await.expect("the server is there");
    let mut ids = Vec::with_capacity(number);
    for start in (0..number).step_by(1000) {
        let entries: Vec<Entry> =
            (start..number.min(start + 1000)).map(|number| random_entry(&mut rng, number)).collect();
        let mut pipeline = redis::pipe();
        for entry in &entries {
            let mut add = redis::cmd("XADD");
            add.arg(&queue.broker.keys().task).arg("*");
            for (name, value) in entry {
                add.arg(name).arg(value);
            }
            pipeline.add_command(add);
        }
        let messages: Vec<String> = pipeline.query_async(&mut connection).await.expect("added");
        ids.extend(entries.iter().zip(&messages).map(|(entry, message)| expected_id(entry, message)));
    }
    ids
}

/// Claims, settles, promotes and records until nothing is left; returns how many succeeded and how many died.
async fn drain(queue: &Queue<'_>) -> (usize, usize) {
    let (worker, any) = (worker(), Capabilities::any());
    let (mut succeeded, mut died) = (0, 0);
    let mut settlements: Vec<Settlement> = Vec::new();
    loop {
        let promoted = queue.broker.promote(100).await.expect("a promotion never fails");
        let next = ClaimRequest { worker: &worker, capabilities: &any, limit: 100, recover: None };
        let reply = queue.broker.settle(&settlements, next).await.expect("a settle never fails");
        succeeded += settlements.len();
        let end = |task: windlass::broker::ClaimedTask| Settlement {
            lease: task.lease,
            outcome: Outcome::Success { result: None },
            dice: Dice(0),
        };
        settlements = reply.claimed.expect("a claim never fails").tasks.into_iter().map(end).collect();
        let dead = queue.broker.pending_dead_letters(100).await.expect("dead letters can always be read");
        let recorded = stream::iter(&dead).map(|letter| queue.broker.record_dead_letter(&letter.id));
        let recorded: Vec<_> = recorded.buffer_unordered(100).collect().await;
        for outcome in recorded {
            assert_eq!(outcome.expect("a record never fails"), Recorded::Done);
        }
        died += dead.len();
        if promoted.filed == 0 && settlements.is_empty() && dead.is_empty() {
            return (succeeded, died);
        }
    }
}

/// Readers of results and dead letters may take every field for UTF-8; says how many entries there are.
async fn readable(queue: &Queue<'_>, stream: &str) -> usize {
    let (mut seen, mut from) = (0, "-".to_owned());
    loop {
        let page: Vec<(String, Vec<Vec<u8>>)> =
            queue.server.query(&["XRANGE", stream, &from, "+", "COUNT", "1000"]).await;
        let Some((last, _)) = page.last() else { return seen };
        from = format!("({last}");
        seen += page.len();
        for (id, fields) in &page {
            let broken = fields.iter().find(|field| std::str::from_utf8(field).is_err());
            assert!(broken.is_none(), "{stream} {id}: {:?}", broken.map(|field| String::from_utf8_lossy(field)));
        }
    }
}

async fn survives(flavor: Flavor, number: usize) {
    let server = Server::start(flavor).await;
    let queue = Queue::on(&server).await;
    queue.set(|policy| policy.events = EventRecording::Off).await;
    let started = Instant::now();
    let ids = send(&queue, number).await;
    let sent = started.elapsed();
    let (succeeded, died) = drain(&queue).await;
    let drained = started.elapsed();

    let waiting: u64 = server.query(&["XLEN", &queue.broker.keys().task]).await;
    assert_eq!(waiting, 0, "the stream is empty");
    let counts = queue.broker.counts().await.expect("answered");
    assert_eq!((counts.backlog, counts.running, counts.retrying, counts.dlq_pending), (0, 0, 0, 0));
    let unique: std::collections::HashSet<&TaskId> = ids.iter().collect();
    let looks = stream::iter(unique).map(|id| async { (id.clone(), queue.broker.get(id).await.expect("answered")) });
    let looks: Vec<_> = looks.buffer_unordered(100).collect().await;
    let (mut scheduled, mut aliases) = (0, 0);
    for (id, view) in &looks {
        let view = view.as_ref().unwrap_or_else(|| panic!("{id} was sent and is nowhere"));
        assert!(view.state.is_final() || view.state == windlass::State::Scheduled, "{id} is {}", view.state);
        scheduled += usize::from(view.state == windlass::State::Scheduled);
        aliases += usize::from(view.id != *id);
    }
    assert_eq!(
        succeeded + died + scheduled + aliases,
        looks.len(),
        "each is a task, a dead letter or a known duplicate"
    );
    assert_eq!(counts.finished as usize, succeeded + died);
    assert_eq!(queue.broker.sweep(Default::default()).await.expect("answered").repaired, []);
    let keys = queue.broker.keys();
    assert_eq!(readable(&queue, &keys.dead_letter).await, died);
    assert!(
        readable(&queue, &keys.result).await >= succeeded + died,
        "a result each, and one for each known duplicate"
    );
    assert!(succeeded > number / 10 && died > number / 10 && aliases > 0, "{succeeded} {died} {aliases}");
    let all = started.elapsed();
    eprintln!(
        "{flavor:?}: {number} entries, {succeeded} done, {died} dead, {aliases} known; {sent:.1?}, {drained:.1?}, {all:.1?}"
    );
}

#[tokio::test]
async fn a_hundred_thousand_random_entries_stop_nothing_and_none_is_lost() {
    survives(Flavor::Redis70, 100_000).await;
}

#[tokio::test]
async fn five_thousand_random_entries_stop_nothing_on_the_other_servers() {
    survives(Flavor::Redis62, 5_000).await;
    survives(Flavor::Valkey91, 5_000).await;
}
