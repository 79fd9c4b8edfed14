//! Raw entries, of producers that know nothing of Windlass, become tasks.
//!
//! Numbers in them are plain digits.
//!
//! One thing differs from the scripts: the fields of an entry that could not be
//! read are kept in the order of their names, not in the order of a Lua table.

use std::collections::BTreeMap;

use super::enqueue::Names;
use super::lane::Body;
use super::moves::{Birth, Mishap};
use super::retention::ResultEntry;
use super::state::Step;
use crate::protocol::names::{TaskId, TaskType, TraceId};
use crate::protocol::policy::{IdempotencyRequirement, IdempotencySource};
use crate::protocol::state::State;
use crate::protocol::task::Extras;

const ID: [&str; 5] = ["task_id", "taskId", "id", "job_id", "jobId"];
const KEY: [&str; 2] = ["idempotency_key", "idempotencyKey"];
const TENANT: [&str; 2] = ["tenant_id", "tenantId"];
const KIND: [&str; 7] = ["tool_name", "toolName", "type", "task_type", "taskType", "job_type", "kind"];
const MOST_RETRIES: u64 = 1000;

/// The most digits that a number may have: above, not every number is exact in Lua.
const MOST_DIGITS: usize = 15;

/// An entry of the task stream.
#[derive(Debug)]
pub(super) struct RawEntry {
    message: String,
    fields: BTreeMap<String, Vec<u8>>,
}

/// A number that is none.
#[derive(Debug, PartialEq, Eq)]
struct NotDigits;

/// What a good entry asks for.
struct Wish {
    names: Names,
    payload: String,
    delay_ms: u64,
    max_retries: Option<u32>,
}

impl RawEntry {
    /// Of a field that is there twice, the last one counts.
    pub(super) fn new(message: &str, fields: Vec<(String, Vec<u8>)>) -> Self {
        Self { message: message.to_owned(), fields: fields.into_iter().collect() }
    }

    /// The first of these fields that is there and not empty.
    fn one_of(&self, names: &[&str]) -> Option<&[u8]> {
        let values = names.iter().filter_map(|name| self.fields.get(*name));
        values.map(Vec::as_slice).find(|value| !value.is_empty())
    }

    /// A field with a number, if it is there.
    fn number(&self, names: &[&str]) -> Result<Option<u64>, NotDigits> {
        self.one_of(names).map(number).transpose()
    }

    /// A field with plain text of a bounded length.
    fn text(&self, names: &[&str], longest: usize) -> Option<String> {
        let text = std::str::from_utf8(self.one_of(names).unwrap_or_default()).ok()?;
        let plain = text.len() <= longest && !text.chars().any(char::is_control);
        plain.then(|| text.to_owned())
    }

    /// The trace, empty where there is none.
    fn trace(&self) -> Option<String> {
        match self.one_of(&["trace_id", "traceId", "traceparent"]) {
            None => Some(String::new()),
            Some(trace) => TraceId::new(std::str::from_utf8(trace).ok()?).ok().map(String::from),
        }
    }

    fn payload(&self) -> Option<&[u8]> {
        self.fields.get("payload").or_else(|| self.fields.get("payload_json")).map(Vec::as_slice)
    }

    fn id(&self) -> Option<TaskId> {
        TaskId::new(std::str::from_utf8(self.one_of(&ID)?).ok()?).ok()
    }

    /// What a task without a usable id is called.
    fn stand_in_id(&self) -> TaskId {
        let message: String = self.message.chars().filter(char::is_ascii_graphic).take(100).collect();
        TaskId::new(format!("raw-{message}")).expect("invariant: short and printable")
    }

    fn kind(&self) -> Option<TaskType> {
        match self.one_of(&KIND) {
            None => Some(TaskType::default()),
            Some(kind) => TaskType::new(std::str::from_utf8(kind).ok()?).ok(),
        }
    }

    /// What a dead letter keeps of an entry that was refused, as JSON: its
    /// payload, as a string where it is not JSON, or all fields where there is no legible one.
    fn as_json(&self, most_bytes: u64) -> String {
        let is_json =
            |text: &str| text.len() as u64 <= most_bytes && serde_json::from_str::<serde_json::Value>(text).is_ok();
        match self.payload().map(std::str::from_utf8) {
            Some(Ok(payload)) if is_json(payload) => payload.to_owned(),
            Some(Ok(payload)) if !payload.is_empty() => json_string(payload),
            _ => {
                let fields: Vec<String> = self
                    .fields
                    .iter()
                    .map(|(name, value)| format!("{}:{}", json_string(name), json_string(&legible(value))))
                    .collect();
                format!("{{\"fields\":{{{}}}}}", fields.join(","))
            }
        }
    }
}

impl Step<'_> {
    /// Files waiting raw entries into their lanes, unless the outbox is at its bound; returns how many there were.
    pub(super) fn file_raw(&mut self, limit: usize) -> usize {
        if self.is_outbox_full() {
            return 0;
        }
        let count = limit.min(self.queue.raw.len());
        for _ in 0..count {
            let entry = self.queue.raw.pop_front().expect("invariant: counted");
            self.file(&entry);
        }
        count
    }

    fn file(&mut self, entry: &RawEntry) {
        let range = self.policy.priority;
        let mut problem = None;
        let id = entry.id().unwrap_or_else(|| {
            problem = Some("task_id is missing or is not 1 to 128 printable characters".to_owned());
            entry.stand_in_id()
        });
        if self.queue.knows(&id) {
            return;
        }
        let kind = entry.kind().unwrap_or_else(|| {
            problem.get_or_insert_with(|| "tool_name may hold letters, digits and . _ / : - only".to_owned());
            TaskType::default()
        });
        let given = entry.number(&["priority"]).map(|given| given.unwrap_or(range.default.into()));
        let given = given.ok().and_then(|given| u8::try_from(given).ok());
        let priority = given.filter(|given| (range.min..=range.max).contains(given)).unwrap_or_else(|| {
            let rule = || format!("priority must be a whole number from {} to {}", range.min, range.max);
            problem.get_or_insert_with(rule);
            range.default
        });
        let wish = problem.map_or_else(|| self.wish(entry, &kind, priority), Err);
        match wish {
            Ok(wish) => self.accept(id, &kind, priority, wish),
            Err(problem) => self.refuse(id, &kind, priority, entry, &problem),
        }
    }

    /// Reads the rest of an entry whose id, type and priority are good.
    fn wish(&self, entry: &RawEntry, kind: &TaskType, priority: u8) -> Result<Wish, String> {
        let payload = entry.payload().ok_or("payload is missing")?;
        let payload = std::str::from_utf8(payload).map_err(|_| "payload is not UTF-8")?;
        let (bytes, most) = (payload.len() as u64, self.policy.limits.payload_bytes);
        if bytes > most {
            return Err(format!("payload has {bytes} bytes, more than {most}"));
        }
        serde_json::from_str::<serde_json::Value>(payload).map_err(|_| "payload is not JSON")?;
        let text = |names: &[&str], longest| {
            entry.text(names, longest).ok_or("idempotency_key or tenant_id is too long or not plain text")
        };
        let mut names = Names {
            key: text(&KEY, 512)?,
            tenant: text(&TENANT, 128)?,
            trace: entry.trace().ok_or("trace_id is not 1 to 128 printable characters without spaces")?,
        };
        let (max_retries, delay_ms) = self.numbers(entry)?;
        if self.policy.idempotency.source == IdempotencySource::ContentHash {
            names.key = sha1_smol::Sha1::from(format!("{kind}\n{payload}")).digest().to_string();
        }
        if names.key.is_empty() && self.policy.idempotency.requirement == IdempotencyRequirement::Required {
            return Err("idempotency_key is missing, and this queue requires one".to_owned());
        }
        if self.is_new_lane(kind, priority) && self.lanes_counted() >= self.policy.limits.lanes as usize {
            return Err("the queue has as many lanes (types times priorities) as it may have".to_owned());
        }
        Ok(Wish { names, payload: payload.to_owned(), delay_ms, max_retries })
    }

    /// The entry's own retry limit, if it has one, and its delay.
    fn numbers(&self, entry: &RawEntry) -> Result<(Option<u32>, u64), String> {
        let max_retries = entry.number(&["max_retries", "maxRetries"]);
        let delay = entry.number(&["delay_ms", "delayMs"]).map(|given| given.unwrap_or(0));
        let longest = self.policy.retry.deadline.as_millis() as u64;
        match (max_retries, delay) {
            (Ok(retries), Ok(delay)) if retries.unwrap_or(0) <= MOST_RETRIES && delay <= longest => {
                Ok((retries.map(|retries| retries as u32), delay))
            }
            _ => Err("max_retries or delay_ms is not a number, or not in range".to_owned()),
        }
    }

    /// Makes the task, unless its key names one that is known: then the id is
    /// another name for that one.
    fn accept(&mut self, id: TaskId, kind: &TaskType, priority: u8, wish: Wish) {
        let Wish { names, payload, delay_ms, max_retries } = wish;
        if !names.key.is_empty()
            && let Some(first) = self.queue.holder_of(&names.tenant, &names.key).cloned()
        {
            self.is_also(id, first);
            return;
        }
        let record = self.new_record(kind, priority, names, max_retries);
        let body = Body { payload, extras: Extras::default() };
        self.create(Birth { id, record, due_ms: self.now + delay_ms, body });
    }

    /// Another id for work that is known: its producer finds the result under it.
    fn is_also(&mut self, id: TaskId, first: TaskId) {
        if self.queue.aliases.get(&id) == Some(&first) {
            return;
        }
        self.queue.aliases.insert(id.clone(), first.clone());
        match self.queue.done.get(&first).map(|finished| ResultEntry::for_alias(&id, &first, finished)) {
            Some(entry) => {
                let number = self.queue.next_number();
                self.queue.results.insert(number, entry);
            }
            None => self.queue.awaited.entry(first).or_default().push(id),
        }
    }

    /// Dead on arrival: it has an id, a result and a dead letter like any other, and
    /// keeps what could be read of it.
    fn refuse(&mut self, id: TaskId, kind: &TaskType, priority: u8, entry: &RawEntry, problem: &str) {
        let by_key = self.policy.idempotency.source == IdempotencySource::Key;
        let key = entry.text(&KEY, 512).filter(|_| by_key);
        let names = Names {
            key: key.unwrap_or_default(),
            tenant: entry.text(&TENANT, 128).unwrap_or_default(),
            trace: entry.trace().unwrap_or_default(),
        };
        let record = self.new_record(kind, priority, names, None);
        self.emit(&id, None, State::Queued, &record, "");
        let body = Body { payload: entry.as_json(self.policy.limits.payload_bytes), extras: Extras::default() };
        self.die(&id, record, body, &Mishap { outcome: "permanent", code: "invalid_input", error: problem });
    }
}

/// A number in plain digits.
fn number(text: &[u8]) -> Result<u64, NotDigits> {
    let digits = text.iter().all(u8::is_ascii_digit) && (1..=MOST_DIGITS).contains(&text.len());
    let text = std::str::from_utf8(text).ok().filter(|_| digits);
    text.and_then(|digits| digits.parse().ok()).ok_or(NotDigits)
}

/// Text as it is, else with bytes above ASCII spelt out.
fn legible(value: &[u8]) -> String {
    match std::str::from_utf8(value) {
        Ok(text) => text.to_owned(),
        Err(_) => value
            .iter()
            .map(|byte| if byte.is_ascii() { char::from(*byte).to_string() } else { format!("\\x{byte:02x}") })
            .collect(),
    }
}

/// A JSON string, escaped as `cjson` does it.
fn json_string(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '/' => out.push_str("\\/"),
            '\x08' => out.push_str("\\b"),
            '\x0c' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c.is_ascii_control() => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::super::fixture::*;
    use super::{NotDigits, json_string, number};
    use crate::broker::Broker;
    use crate::protocol::names::Capabilities;
    use crate::protocol::policy::{IdempotencyRequirement, Policy};
    use crate::protocol::state::State;

    fn add(rig: &Rig, message: &str, fields: &[(&str, &str)]) {
        let fields = fields.iter().map(|(name, value)| ((*name).to_owned(), value.as_bytes().to_vec())).collect();
        rig.model.raw_add(message, fields);
    }

    async fn file(rig: &Rig) -> usize {
        rig.model.promote(100).await.expect("a promotion").filed
    }

    #[tokio::test]
    async fn a_raw_entry_becomes_a_task_in_its_lane() {
        let rig = Rig::new(Policy::default()).await;
        rig.enqueue(task("calm")).await;
        add(
            &rig,
            "1-0",
            &[("taskId", "r1"), ("type", "render"), ("payload", "[1]"), ("priority", "9"), ("maxRetries", "2")],
        );
        assert_eq!(rig.model.counts().await.expect("counts").backlog, 2, "it counts before it is filed");
        let claimed = rig.claim("w", 2).await;
        assert_eq!(ids(&claimed), ["r1", "calm"]);
        assert_eq!((claimed[0].task_type.as_str(), claimed[0].payload.as_str()), ("render", "[1]"));
        assert_eq!(rig.get("r1").await.max_retries, Some(2));
        add(&rig, "2-0", &[("task_id", "r1"), ("payload", "[1]")]);
        assert_eq!(file(&rig).await, 1);
        assert!(rig.claim("w", 1).await.is_empty(), "an id that is known is the same task");
    }

    #[tokio::test]
    async fn the_id_of_a_duplicate_is_another_name_for_the_first() {
        let rig = Rig::new(Policy::default()).await;
        for name in ["r1", "r2"] {
            add(&rig, name, &[("task_id", name), ("payload", "1"), ("idempotency_key", "k")]);
        }
        let lease = rig.claim_one("w").await;
        rig.settle(&lease, success()).await;
        let view = rig.get("r2").await;
        assert_eq!((view.id, view.state), (id("r1"), State::Succeeded));
        assert!(rig.claim("w", 1).await.is_empty());
    }

    #[tokio::test]
    async fn an_entry_that_cannot_be_read_is_a_dead_letter_that_says_why() {
        let mut policy = Policy::default();
        policy.limits.payload_bytes = 30;
        policy.idempotency.requirement = IdempotencyRequirement::Required;
        let rig = Rig::new(policy).await;
        let good = [("task_id", "x"), ("payload", "{}"), ("idempotency_key", "k")];
        let long = format!("\"{}\"", "x".repeat(30));
        let cases: [(&str, &str, &str); 11] = [
            ("task_id", "a b", "task_id is missing or is not 1 to 128 printable characters"),
            ("tool_name", "a b", "tool_name may hold letters, digits and . _ / : - only"),
            ("priority", "5.5", "priority must be a whole number from 1 to 10"),
            ("payload", "{nope", "payload is not JSON"),
            ("payload", "[NaN]", "payload is not JSON"),
            ("payload", &long, "payload has 32 bytes, more than 30"),
            ("tenant_id", "a\u{85}b", "idempotency_key or tenant_id is too long or not plain text"),
            ("traceId", "a b", "trace_id is not 1 to 128 printable characters without spaces"),
            ("max_retries", "-2", "max_retries or delay_ms is not a number, or not in range"),
            ("delay_ms", "soon", "max_retries or delay_ms is not a number, or not in range"),
            ("idempotency_key", "", "idempotency_key is missing, and this queue requires one"),
        ];
        for (n, (field, value, expected)) in cases.into_iter().enumerate() {
            let (message, name) = (format!("{n}-0"), format!("r{n}"));
            let fields: Vec<_> = good.into_iter().chain([("task_id", name.as_str()), (field, value)]).collect();
            add(&rig, &message, &fields);
            file(&rig).await;
            let dead = rig.model.pending_dead_letters(100).await.expect("letters");
            let wanted = if field == "task_id" { format!("raw-{message}") } else { name };
            let found = dead.iter().find(|letter| letter.id.task.as_str() == wanted).expect("it is dead");
            assert_eq!((found.error.as_str(), found.error_code.as_str()), (expected, "invalid_input"));
        }
        assert_eq!(rig.moves().await[0], ["raw-0-0 new queued - -", "raw-0-0 queued dlq_pending invalid_input -"]);
    }

    #[tokio::test]
    async fn what_could_not_be_read_is_kept_as_json() {
        let rig = Rig::new(Policy::default()).await;
        add(&rig, "1-0", &[("task_id", "r1"), ("payload", "a/b")]);
        rig.model.raw_add("2-0", vec![("id".into(), b"r2".to_vec()), ("payload".into(), b"\xff!".to_vec())]);
        file(&rig).await;
        let dead = rig.model.pending_dead_letters(9).await.expect("letters");
        assert_eq!(dead[0].payload.as_str(), r#""a\/b""#);
        assert_eq!(dead[1].payload.as_str(), r#"{"fields":{"id":"r2","payload":"\\xff!"}}"#);
        assert_eq!(dead[1].error, "payload is not UTF-8");
    }

    #[tokio::test]
    async fn a_claim_files_thirty_two_entries_at_most() {
        let rig = Rig::new(Policy::default()).await;
        for n in 0..40 {
            add(&rig, &n.to_string(), &[("task_id", &format!("r{n}")), ("payload", "1")]);
        }
        let nothing = Capabilities::of([kind("other")]).expect("few");
        rig.claim_as("w", &nothing, 1).await;
        assert_eq!(file(&rig).await, 8);
    }

    #[test]
    fn numbers_are_plain_digits() {
        for (text, value) in [("5", 5), ("007", 7), ("999999999999999", 999_999_999_999_999)] {
            assert_eq!(number(text.as_bytes()), Ok(value), "{text:?}");
        }
        for bad in ["", " ", " 7", "abc", "1 2", "0x1", "1e1", "-1", "+1", "5.0", "5\0", "1000000000000000", "٣"] {
            assert_eq!(number(bad.as_bytes()), Err(NotDigits), "{bad:?}");
        }
    }

    #[test]
    fn strings_are_escaped_as_cjson_escapes_them() {
        assert_eq!(json_string("a/\"\\\n\u{1}\u{7f}é"), r#""a\/\"\\\n\u0001\u007fé""#);
    }
}
