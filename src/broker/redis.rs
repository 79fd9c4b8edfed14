//! The broker on Redis Streams.
//!
//! Owns: the packed records, the scripts and the connection. Nothing outside
//! this module names the `redis` crate.
//!
//! Main flow: every operation of [`Broker`] is one call of one script under
//! `lua/`, with its arguments flattened here and its answer read in `reply`.
//! Rules that every script keeps are written in ARCHITECTURE.md.

mod connection;
mod directory;
mod error;
mod gather;
mod lifecycle;
mod looks;
mod notices;
mod policy;
mod reply;
mod script;
mod server;
mod sleeper;
mod token;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use redis::Value;

use self::connection::{Endpoint, Link};
pub use self::connection::{ReclaimWith, RedisOptions, ReplicaAck, address_behind};
pub use self::directory::QueueRecord;
use self::error::{FENCED, Fault};
use self::gather::Gather;
pub use self::lifecycle::{Inspection, Intact, Removal, Removed};
pub use self::looks::{Look, stirred};
use self::notices::RedisNotices;
use self::reply::{Malformed, bytes, fields, list, number, parts, task_id, task_ids, text, texts, timestamp};
use self::script::{Call, SCRIPTS, Script};
pub use self::server::{Danger, ServerReport};
use self::sleeper::RedisSleeper;
use super::clock::Clock;
use super::{
    Broker, BrokerError, Cancelled, ClaimRequest, Claimed, ClaimedTask, DeadLetterView, Demand, DiscardRequest,
    Discarded, EffectAbandoned, EffectBegun, EffectCommitted, EffectRequest, Enqueued, Extended, Glance, Lease,
    ListCursor, MAX_BATCH, Notices, OutboxEntry, Outcome, Owner, Page, PendingDeadLetters, Promoted, QueueCounts,
    ReclaimCursor, Reclaimed, Recorded, Registered, ReplayRequest, Replayed, Result, RetainCursor, Retained,
    SettleReply, Settled, Settlement, Sleeper, Standing, SweepCursor, Swept, Takeover, WorkerInfo, WorkerRecord,
    sentences,
};
use crate::protocol::DATA_MODEL_VERSION;
use crate::protocol::keys::{Keys, NOTICES_CHANNEL};
use crate::protocol::names::{Capabilities, DeadLetterId, IdempotencyKey, TaskId, WorkerId};
use crate::protocol::policy::{Mode, Policy};
use crate::protocol::state::{RetryReason, State};
use crate::protocol::task::{Extras, NewTask, NotBefore, Payload, TaskView};

/// How many live tasks one step of a sweep looks at.
const SWEEP_PAGE: usize = 25;

/// How many tasks of a listing are asked for before the first answer has come.
const LOOKS_TOGETHER: usize = 50;

/// One Redis, and the connection to it that queues share.
#[derive(Clone)]
pub struct Redis {
    endpoint: Arc<Endpoint>,
    options: Arc<RedisOptions>,
    /// None on a Cluster, where each queue has its own server.
    shared: Option<Arc<Link>>,
}

impl Redis {
    /// The Redis that the options name. Connects when it is first used.
    pub fn new(options: RedisOptions) -> Result<Self> {
        let endpoint = Arc::new(Endpoint::parse(&options)?);
        let link = || Link::new(endpoint.clone(), String::new(), &options, options.response_timeout);
        let shared = (!endpoint.is_cluster()).then(|| Arc::new(link()));
        Ok(Self { endpoint, options: Arc::new(options), shared })
    }

    /// The queue with these keys.
    pub fn queue(&self, keys: Keys) -> Result<RedisBroker> {
        self.queue_with_clock(keys, Clock::Server)
    }

    fn queue_with_clock(&self, keys: Keys, clock: Clock) -> Result<RedisBroker> {
        if self.endpoint.is_cluster() {
            keys.check_for_cluster().map_err(|error| BrokerError::Invalid(error.to_string()))?;
        }
        let link = match &self.shared {
            Some(shared) => shared.clone(),
            None => Arc::new(self.link(keys.policy())),
        };
        let (endpoint, options) = (self.endpoint.clone(), self.options.clone());
        let confirmed = options.replicas.map(|ack| Confirmed {
            link: Link::new(
                endpoint.clone(),
                keys.policy(),
                &options,
                options.response_timeout.saturating_add(ack.timeout),
            ),
            ack,
            turn: tokio::sync::Mutex::default(),
        });
        Ok(RedisBroker { keys, endpoint, options, link, confirmed, clock, gather: Arc::default() })
    }

    /// What the scripts of all queues on it tell their leader.
    pub fn notices(&self) -> Box<dyn Notices> {
        // Every node of a Cluster hears what is published on any of them.
        Box::new(RedisNotices::new(self.link(NOTICES_CHANNEL.to_owned()), self.endpoint.shown.clone()))
    }

    fn link(&self, key: String) -> Link {
        Link::new(self.endpoint.clone(), key, &self.options, self.options.response_timeout)
    }
}

/// The operation that a script's digest stands for, as slow logs show it.
pub fn operation_of(digest: &str) -> Option<&'static str> {
    SCRIPTS.name_of(digest)
}

/// One queue on one Redis.
pub struct RedisBroker {
    keys: Keys,
    endpoint: Arc<Endpoint>,
    options: Arc<RedisOptions>,
    link: Arc<Link>,
    /// Where enqueues wait for replicas.
    confirmed: Option<Confirmed>,
    clock: Clock,
    gather: Arc<Gather>,
}

/// How an enqueue waits for replicas: on a connection of its own, because all that is sent behind a WAIT on the same
/// one, heartbeats for instance, waits with it.
struct Confirmed {
    link: Link,
    ack: ReplicaAck,
    /// One at a time: an answer is due from when its command can run.
    turn: tokio::sync::Mutex<()>,
}

/// What reclaiming needs to know of a server.
struct ServerFacts {
    /// The connection that leads to it. After another one these facts may be those of a server that is gone.
    connection: u64,
    run_id: String,
    has_autoclaim: bool,
}

impl RedisBroker {
    /// The queue with these keys on that Redis. Connects when it is first used.
    pub fn new(keys: Keys, options: RedisOptions) -> Result<Self> {
        Self::with_clock(keys, options, Clock::Server)
    }

    /// The same with another clock, for tests.
    pub fn with_clock(keys: Keys, options: RedisOptions, clock: Clock) -> Result<Self> {
        Redis::new(options)?.queue_with_clock(keys, clock)
    }

    /// The queue's keys.
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// What about the server's settings puts the queue's data at risk, in sentences.
    pub async fn check_server(&self) -> Result<Vec<String>> {
        Ok(self.server_report().await?.dangers().into_iter().map(|danger| danger.to_string()).collect())
    }

    /// What the queue's server tells of itself.
    pub async fn server_report(&self) -> Result<ServerReport> {
        Ok(ServerReport::read(&self.info("").await?))
    }

    fn call<'a>(&self, script: &'a Script) -> Call<'a> {
        script.call(&self.keys, self.clock.now_ms().unwrap_or(0))
    }

    /// Runs a script that may be repeated: a connection that broke while it
    /// was idle costs the caller nothing.
    async fn run(&self, call: Call<'_>) -> Result<Value> {
        match call.run(&self.link).await {
            Err(fault) if matches!(fault.error, BrokerError::Unreachable { .. }) => self.run_once(call).await,
            answer => answer.map_err(|fault| self.name_queue(fault)),
        }
    }

    /// Runs a script that claims: its caller must know when an answer was lost.
    async fn run_once(&self, call: Call<'_>) -> Result<Value> {
        call.run(&self.link).await.map_err(|fault| self.name_queue(fault))
    }

    async fn command(&self, command: &redis::Cmd) -> Result<Value> {
        match self.link.call(command).await {
            Err(fault) if matches!(fault.error, BrokerError::Unreachable { .. }) => self.link.call(command).await,
            answer => answer,
        }
        .map_err(|fault| self.name_queue(fault))
    }

    /// The same, and says which connection it went over.
    async fn numbered(&self, command: &redis::Cmd) -> Result<(u64, Value)> {
        match self.link.call_numbered(command).await {
            Err(fault) if matches!(fault.error, BrokerError::Unreachable { .. }) => {
                self.link.call_numbered(command).await
            }
            answer => answer,
        }
        .map_err(|fault| self.name_queue(fault))
    }

    /// Runs a script that judges by the server's clock on that server, or not at all: on another one, whose clock is
    /// new, leases would seem to be over that nobody could renew.
    async fn run_on(&self, server: &ServerFacts, call: Call<'_>) -> Result<Value> {
        call.run_over(&self.link, server.connection).await.map_err(|fault| self.name_queue(fault))
    }

    /// Runs one of the steps that go through a server's lanes. Where one does not do, the walk begins anew on a server
    /// that is named: what a step says of where to go on may pass lanes over on another one, after a failover.
    async fn run_stepwise(&self, server: Option<&ServerFacts>, call: Call<'_>) -> Result<Value> {
        match server {
            Some(server) => self.run_on(server, call).await,
            None => self.run(call).await,
        }
    }

    /// Errors about the queue say which one.
    fn name_queue(&self, fault: Fault) -> BrokerError {
        match fault.error {
            BrokerError::NoQueue(_) => BrokerError::NoQueue(self.keys.queue().to_string()),
            error => error,
        }
    }

    async fn info(&self, section: &str) -> Result<String> {
        let mut command = redis::cmd("INFO");
        if !section.is_empty() {
            command.arg(section);
        }
        text(self.command(&command).await?).map_err(|m| m.during("INFO"))
    }

    /// Asked again each time: a failover brings another server.
    async fn server(&self) -> Result<ServerFacts> {
        let (connection, info) = self.numbered(redis::cmd("INFO").arg("server")).await?;
        let info = text(info).map_err(|m| m.during("INFO"))?;
        let version = info_field(&info, "redis_version").unwrap_or("0");
        let mut numbers = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
        let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        Ok(ServerFacts {
            connection,
            run_id: info_field(&info, "run_id").unwrap_or_default().to_owned(),
            has_autoclaim: version >= (6, 2),
        })
    }

    /// Changes the policy in force: what others changed meanwhile stays.
    pub async fn change_policy(&self, change: impl Fn(&mut Policy) + Send) -> Result<Policy> {
        const TURNS: usize = 10;
        for _ in 0..TURNS {
            let mut read = redis::cmd("HGET");
            read.arg(self.keys.policy()).arg(policy::WHOLE);
            let spec = bytes(self.command(&read).await?).map_err(|m| m.during("change_policy"))?;
            let (mut policy, owner) = (self.read_policy(&spec)?, self.owner().await?.unwrap_or_default());
            change(&mut policy);
            let condition = [b"=", spec.as_slice()].concat();
            if let Provisioned::Done = self.provision_if(&owner, &condition, &policy).await? {
                return Ok(policy);
            }
        }
        Err(BrokerError::Busy(format!("others changed the policy {TURNS} times meanwhile")))
    }

    /// Who provisioned the queue; `None` if nobody did.
    pub async fn owner(&self) -> Result<Option<String>> {
        let mut read = redis::cmd("HGET");
        read.arg(self.keys.meta()).arg(directory::OWNER);
        let owner = text(self.command(&read).await?).map_err(|m| m.during("owner"))?;
        Ok((!owner.is_empty()).then_some(owner))
    }

    /// Writes the policy, on a condition as the script takes it.
    async fn provision_if(&self, owner: &str, condition: &[u8], policy: &Policy) -> Result<Provisioned> {
        policy.validate().map_err(|error| BrokerError::Invalid(error.to_string()))?;
        let mut call = self.call(&SCRIPTS.provision).arg(owner).arg(condition);
        for (name, value) in policy::fields(policy) {
            call.push(name).push(value);
        }
        let malformed = |m: Malformed| m.during("provision");
        let (word, mut rest) = word_and_rest(self.run(call).await?).map_err(malformed)?;
        let detail = text(rest.next().unwrap_or(Value::Nil)).map_err(malformed)?;
        match word.as_str() {
            "ok" => Ok(Provisioned::Done),
            "changed" => Ok(Provisioned::Changed),
            "owned" => Err(BrokerError::Owned { queue: self.keys.queue().to_string(), owner: detail }),
            "version" => Err(BrokerError::Version { found: detail, known: DATA_MODEL_VERSION }),
            "type" => Err(BrokerError::Invalid(sentences::not_a_stream(&detail))),
            other => Err(Malformed(format!("answer {other:?}")).during("provision")),
        }
    }

    fn read_policy(&self, spec: &[u8]) -> Result<Policy> {
        if spec.is_empty() {
            return Err(BrokerError::NoQueue(self.keys.queue().to_string()));
        }
        serde_json::from_slice(spec).map_err(|error| Malformed(format!("the policy: {error}")).during("policy"))
    }

    /// The arguments that every claim begins with.
    fn claim_args(call: &mut Call<'_>, request: &ClaimRequest<'_>) {
        call.push(request.worker.as_str())
            .push(request.capabilities.class())
            .push(request.capabilities.joined())
            .push(request.limit)
            .push(if request.recover.is_some() { "recover" } else { "" });
    }

    /// One call for these tasks.
    async fn enqueue_alone(&self, tasks: &[NewTask]) -> Result<Vec<Enqueued>> {
        let mut answer = self.enqueue_with(tasks, Hashes::Omit).await?;
        if matches!(answer.first(), Some(Value::BulkString(word)) if word == b"hash") {
            answer = self.enqueue_with(tasks, Hashes::Send).await?;
        }
        self.enqueued(tasks, answer)
    }

    async fn enqueue_with(&self, tasks: &[NewTask], hashes: Hashes) -> Result<Vec<Value>> {
        let mut call = self.call(&SCRIPTS.enqueue).arg(tasks.len());
        for task in tasks {
            let due = match task.not_before {
                NotBefore::Now => String::new(),
                NotBefore::After(delay) => format!("+{}", delay.as_millis()),
                NotBefore::At(time) => format!("@{}", time.as_millisecond().max(0)),
            };
            let hash = match hashes {
                Hashes::Omit => String::new(),
                Hashes::Send => sentences::content_hash(task)?.to_string(),
            };
            let traits = token::pack(&(
                task.task_type.as_str(),
                task.priority.map_or(-1, i16::from),
                due.as_str(),
                task.idempotency_key.as_ref().map_or("", |key| key.as_str()),
                task.tenant_id.as_ref().map_or("", |tenant| tenant.as_str()),
                task.trace_id.as_ref().map_or("", |trace| trace.as_str()),
                task.max_retries.map_or(-1, i64::from),
                hash.as_str(),
            ));
            call.push(task.id.as_str())
                .push(task.payload.as_str())
                .push(token::encode_extras(&task.extras))
                .push(traits);
        }
        let answer = match &self.confirmed {
            None => self.run(call).await?,
            Some(confirmed) => self.run_confirmed(call, confirmed).await?,
        };
        list(answer).map_err(|m| m.during("enqueue"))
    }

    /// Runs a call and waits until replicas have it.
    async fn run_confirmed(&self, call: Call<'_>, Confirmed { link, ack, turn }: &Confirmed) -> Result<Value> {
        let mut wait = redis::cmd("WAIT");
        // Redis takes 0 for "as long as it takes".
        wait.arg(ack.count).arg(ack.timeout.as_millis().max(1) as u64);
        let turn = turn.lock().await;
        let replicated = call.run_replicated(link, &wait, was_taken).await;
        drop(turn);
        let (answer, confirmed) = replicated.map_err(|fault| self.name_queue(fault))?;
        // What was refused was not written: there is nothing that replicas could have, and nothing to repeat.
        let Some(confirmed) = confirmed else { return Ok(answer) };
        let confirmed = number(confirmed).map_err(|m| m.during("WAIT"))?;
        if confirmed < u64::from(ack.count) {
            return Err(BrokerError::NotReplicated { confirmed, wanted: ack.count.into() });
        }
        Ok(answer)
    }

    /// Reads {'ok', letters, known} of an enqueue, or why it was refused.
    fn enqueued(&self, tasks: &[NewTask], answer: Vec<Value>) -> Result<Vec<Enqueued>> {
        let malformed = |m: Malformed| m.during("enqueue");
        let mut answer = answer.into_iter();
        let mut next = || answer.next().unwrap_or(Value::Nil);
        match text(next()).map_err(malformed)?.as_str() {
            "ok" => {
                let letters: Vec<char> = text(next()).map_err(malformed)?.chars().collect();
                let mut known = texts(next()).map_err(malformed)?.into_iter();
                let one = |(task, pair): (&NewTask, &[char])| {
                    let state = State::from_letter(pair[1]).ok_or_else(|| Malformed(format!("state {:?}", pair[1])))?;
                    let created = pair[0] == '+';
                    let id = if created { task.id.clone() } else { task_id(known.next().unwrap_or_default())? };
                    Ok(Enqueued { id, state, created })
                };
                tasks
                    .iter()
                    .zip(letters.chunks_exact(2))
                    .map(one)
                    .collect::<std::result::Result<_, _>>()
                    .map_err(malformed)
            }
            "closed" => Err(BrokerError::Closed(self.keys.queue().to_string())),
            "outbox" => Err(BrokerError::OutboxFull(self.keys.queue().to_string())),
            "invalid" => {
                let number = number(next()).map_err(malformed)?;
                let what = text(next()).map_err(malformed)?;
                let detail = text(next()).map_err(malformed)?;
                let task =
                    tasks.get(number as usize - 1).ok_or_else(|| Malformed("no such task".into()).during("enqueue"))?;
                Err(sentences::refused(task, &what, &detail))
            }
            other => Err(Malformed(format!("answer {other:?}")).during("enqueue")),
        }
    }

    /// Takes all tasks from a worker, in bounded steps.
    async fn evict(&self, worker: &WorkerId, reason: RetryReason, counts: &str, words: &str) -> Result<Reclaimed> {
        let (mut all, mut from, mut server) = (Reclaimed::default(), "0".to_owned(), None);
        loop {
            let call = self.call(&SCRIPTS.evict).arg(worker.as_str()).arg(reason.as_str());
            let call = call.arg(counts).arg(sentences::cut_words(words)).arg(&from);
            let answer = self.run_stepwise(server.as_ref(), call).await?;
            let [requeued, dead, rest] = parts(answer).map_err(|m| m.during("evict"))?;
            all.requeued.extend(task_ids(requeued).map_err(|m| m.during("evict"))?);
            all.dead.extend(task_ids(dead).map_err(|m| m.during("evict"))?);
            from = text(rest).map_err(|m| m.during("evict"))?;
            if from.is_empty() {
                return Ok(all);
            }
            if server.is_none() {
                (server, from) = (Some(self.server().await?), "0".to_owned());
            }
        }
    }

    /// A small hash is scanned in one page whatever its size, so the cursor
    /// also says how much of its page was seen.
    async fn list_live(&self, state: State, cursor: &str, limit: usize) -> Result<Page<TaskView>> {
        let malformed = |m: Malformed| m.during("list");
        let mut place =
            ScanPlace::read(cursor).ok_or_else(|| BrokerError::Invalid(format!("{cursor:?} is no cursor")))?;
        if let Some(from) = place.next.take_if(|_| place.found.is_empty()) {
            let mut scan = redis::cmd("HSCAN");
            scan.arg(self.keys.live()).arg(from).arg("COUNT").arg(limit);
            let [next, found] = parts(self.command(&scan).await?).map_err(malformed)?;
            place.next = Some(text(next).map_err(malformed)?).filter(|next| next != "0");
            for pair in list(found).map_err(malformed)?.chunks_exact(2) {
                let token = bytes(pair[1].clone()).map_err(malformed)?;
                if token::Token::decode(&token).and_then(|token| token.state()).map_err(malformed)? == state {
                    place.found.push(text(pair[0].clone()).and_then(task_id).map_err(malformed)?);
                }
            }
        }
        let rest = place.found.split_off(limit.min(place.found.len()));
        let ids = std::mem::replace(&mut place.found, rest);
        // Looked at again as a whole: a task may have moved on since.
        let mut items = Vec::with_capacity(ids.len());
        for together in ids.chunks(LOOKS_TOGETHER) {
            let views = futures::future::try_join_all(together.iter().map(|id| self.get(id))).await?;
            items.extend(views.into_iter().flatten().filter(|view| view.state == state));
        }
        Ok(Page { items, next: place.cursor() })
    }

    async fn list_finished(&self, state: State, cursor: &str, limit: usize) -> Result<Page<TaskView>> {
        let malformed = |m: Malformed| m.during("list");
        let mut range = redis::cmd("XREVRANGE");
        let from = if cursor.is_empty() { "+".to_owned() } else { format!("({cursor}") };
        range.arg(&self.keys.result).arg(from).arg("-").arg("COUNT").arg(limit);
        let entries = list(self.command(&range).await?).map_err(malformed)?;
        let full = entries.len() == limit;
        let (mut items, mut last) = (Vec::new(), None);
        for entry in entries {
            let [message, entry] = parts(entry).map_err(malformed)?;
            last = Some(text(message).map_err(malformed)?);
            let entry = fields(entry).map_err(malformed)?;
            let id = entry.get("task_id").map(|id| String::from_utf8_lossy(id).into_owned()).unwrap_or_default();
            // Entries that others wrote to an adopted stream, or for a raw producer's other id, are no tasks.
            if entry.contains_key("token") && !entry.contains_key("duplicate_of") {
                let view = reply::done_view(task_id(id).map_err(malformed)?, &entry).map_err(malformed)?;
                items.extend((view.state == state).then_some(view));
            }
        }
        Ok(Page { items, next: last.filter(|_| full).map(ListCursor) })
    }
}

/// How far a listing of live tasks has come. What a scan found and a page had
/// no room for goes along: the same scan, repeated while the table grows, gives
/// its entries in another order.
struct ScanPlace {
    /// Where the scan goes on, unless it is over.
    next: Option<String>,
    found: Vec<TaskId>,
}

impl ScanPlace {
    /// How a cursor says that the scan is over.
    const OVER: &str = "-";

    fn read(cursor: &str) -> Option<Self> {
        let mut words = cursor.split_ascii_whitespace();
        let next = match words.next().unwrap_or("0") {
            Self::OVER => None,
            next if next.bytes().all(|byte| byte.is_ascii_digit()) => Some(next.to_owned()),
            _ => return None,
        };
        let found = words.map(|id| TaskId::new(id).ok()).collect::<Option<_>>()?;
        Some(Self { next, found })
    }

    /// `None` when nothing is left.
    fn cursor(self) -> Option<ListCursor> {
        if self.next.is_none() && self.found.is_empty() {
            return None;
        }
        let next = self.next.as_deref().unwrap_or(Self::OVER);
        Some(ListCursor(self.found.iter().fold(next.to_owned(), |cursor, id| format!("{cursor} {id}"))))
    }
}

/// What became of writing a policy on a condition.
enum Provisioned {
    Done,
    /// The spec in force is not the one that was expected.
    Changed,
}

/// Whether content hashes go with an enqueue; only queues that ask get them.
#[derive(Clone, Copy)]
enum Hashes {
    Omit,
    Send,
}

/// Whether an enqueue was taken, by its answer.
fn was_taken(answer: &Value) -> bool {
    matches!(answer, Value::Array(parts) if matches!(parts.first(), Some(Value::BulkString(word)) if word == b"ok"))
}

/// A line of INFO.
fn info_field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// Reads {id, payload, meta, token, …}.
fn claimed_tasks(value: Value) -> std::result::Result<Vec<ClaimedTask>, Malformed> {
    let mut values = list(value)?.into_iter();
    let mut tasks = Vec::with_capacity(values.len() / 4);
    while let (Some(id), Some(payload), Some(extras), Some(token)) =
        (values.next(), values.next(), values.next(), values.next())
    {
        tasks.push(token::claimed(text(id)?, bytes(payload)?, bytes(extras)?, bytes(token)?)?);
    }
    Ok(tasks)
}

fn mode_of(value: Value) -> std::result::Result<Mode, Malformed> {
    let word = text(value)?;
    policy::mode_from(&word).ok_or_else(|| Malformed(format!("mode {word:?}")))
}

/// The letter and the words that a settlement's outcome is sent as:
/// outcome, result or error, code, wait in milliseconds.
fn outcome_words(outcome: &Outcome) -> (&'static str, String, String, String) {
    let cut = sentences::cut_error;
    match outcome {
        Outcome::Success { result } => {
            let body = result.as_ref().map(|result| result.as_str().to_owned()).unwrap_or_default();
            ("s", body, String::new(), String::new())
        }
        Outcome::Failure { error, code } => ("f", cut(error), cut(code), String::new()),
        Outcome::Permanent { error, code } => ("p", cut(error), cut(code), String::new()),
        Outcome::RateLimited { retry_after, error } => {
            let wait = retry_after.map(|wait| wait.as_millis().to_string()).unwrap_or_default();
            ("l", cut(error), "rate_limited".to_owned(), wait)
        }
        Outcome::Released { delay } => ("r", String::new(), "released".to_owned(), delay.as_millis().to_string()),
    }
}

fn settled_from(letter: char, dues: &mut impl Iterator<Item = Value>) -> std::result::Result<Settled, Malformed> {
    Ok(match letter {
        's' => Settled::Succeeded,
        'T' => Settled::Retrying { due_at: timestamp(number(dues.next().unwrap_or(Value::Nil))?) },
        'P' => Settled::Dead,
        'A' => Settled::AlreadySettled,
        'L' => Settled::LeaseLost,
        'c' => Settled::Cancelled,
        'I' => Settled::InvalidTransition,
        'N' => Settled::Unknown,
        'B' => Settled::ResultTooLarge,
        other => return Err(Malformed(format!("settlement {other:?}"))),
    })
}

fn extended_from(letter: Option<char>) -> Extended {
    match letter {
        Some('R') => Extended::Renewed,
        Some('c') => Extended::Cancelled,
        _ => Extended::Lost,
    }
}

/// Which beginning a caller has asked the other side about; empty where it has not.
fn checked_mark<'a>(standing: Standing<'a>) -> &'a str {
    match standing {
        Standing::Own => "",
        Standing::Checked(doubt) => doubt.mark.as_str(),
    }
}

/// Reads {word, more…}: the word, and what follows it.
fn word_and_rest(value: Value) -> std::result::Result<(String, std::vec::IntoIter<Value>), Malformed> {
    let mut values = list(value)?.into_iter();
    Ok((text(values.next().unwrap_or(Value::Nil))?, values))
}

#[async_trait]
impl Broker for RedisBroker {
    fn address(&self) -> &str {
        &self.endpoint.shown
    }

    async fn provision(&self, owner: &Owner, policy: &Policy) -> Result<()> {
        let condition = match &owner.takeover {
            Takeover::Respect => String::new(),
            Takeover::From(other) => format!("<{other}"),
            Takeover::Force => "force".to_owned(),
        };
        match self.provision_if(&owner.name, condition.as_bytes(), policy).await? {
            Provisioned::Done => Ok(()),
            Provisioned::Changed => Err(Malformed("a change was reported".to_owned()).during("provision")),
        }
    }

    async fn policy(&self) -> Result<Policy> {
        let mut read = redis::cmd("HGET");
        read.arg(self.keys.policy()).arg(policy::WHOLE);
        self.read_policy(&bytes(self.command(&read).await?).map_err(|m| m.during("policy"))?)
    }

    async fn enqueue(&self, tasks: &[NewTask]) -> Result<Vec<Enqueued>> {
        sentences::check_new(tasks)?;
        self.enqueue_together(tasks).await
    }

    async fn claim(&self, request: ClaimRequest<'_>) -> Result<Claimed> {
        sentences::check_batch(request.limit)?;
        let mut call = self.call(&SCRIPTS.claim);
        Self::claim_args(&mut call, &request);
        for held in request.recover.unwrap_or_default() {
            call.push(held.task.as_str()).push(held.epoch.0);
        }
        let read = |value| -> std::result::Result<Claimed, Malformed> {
            let [mode, tasks] = parts(value)?;
            Ok(Claimed { mode: mode_of(mode)?, tasks: claimed_tasks(tasks)? })
        };
        read(self.run_once(call).await?).map_err(|m| m.during("claim"))
    }

    async fn settle(&self, settlements: &[Settlement], next: ClaimRequest<'_>) -> Result<SettleReply> {
        sentences::check_batch(settlements.len())?;
        sentences::check_batch(next.limit)?;
        let mut call = self.call(&SCRIPTS.settle);
        Self::claim_args(&mut call, &next);
        let held = next.recover.unwrap_or_default();
        call.push(held.len());
        for lease in held {
            call.push(lease.task.as_str()).push(lease.epoch.0);
        }
        call.push(settlements.len());
        for Settlement { lease, outcome, dice } in settlements {
            let (letter, body, code, wait) = outcome_words(outcome);
            let special = if letter == "s" { Vec::new() } else { token::pack(&(code, dice.0, wait)) };
            call.push(lease.task.as_str()).push(&lease.token).push(letter).push(body).push(&lease.extras).push(special);
        }
        let read = |value| -> std::result::Result<SettleReply, Malformed> {
            let [letters, dues, mode, claimed, problem] = parts(value)?;
            let mut dues = list(dues)?.into_iter();
            let letters = text(letters)?;
            let settled =
                letters.chars().map(|letter| settled_from(letter, &mut dues)).collect::<std::result::Result<_, _>>()?;
            let claimed = match text(problem)?.as_str() {
                "" => Ok(Claimed { mode: mode_of(mode)?, tasks: claimed_tasks(claimed)? }),
                problem if problem.contains(FENCED) => Err(BrokerError::Fenced),
                problem => Err(BrokerError::Busy(problem.to_owned())),
            };
            Ok(SettleReply { settled, claimed })
        };
        read(self.run_once(call).await?).map_err(|m| m.during("settle"))
    }

    async fn extend(&self, worker: &WorkerId, leases: &[Lease]) -> Result<Vec<Extended>> {
        let mut answers = Vec::with_capacity(leases.len());
        let chunks = leases.chunks(MAX_BATCH);
        for chunk in chunks.chain((leases.is_empty()).then_some(leases)) {
            let mut call = self.call(&SCRIPTS.extend).arg(worker.as_str()).arg(chunk.len());
            for lease in chunk {
                call.push(lease.task.as_str()).push(&lease.token);
            }
            let letters = text(self.run(call).await?).map_err(|m| m.during("extend"))?;
            answers.extend(letters.chars().map(|letter| extended_from(Some(letter))));
        }
        Ok(answers)
    }

    async fn report_progress(&self, lease: &Lease, progress: &Payload) -> Result<Extended> {
        sentences::check_progress(progress)?;
        let call = self.call(&SCRIPTS.report_progress).arg(lease.task.as_str()).arg(&lease.token);
        let letter = text(self.run(call.arg(progress.as_str())).await?).map_err(|m| m.during("report_progress"))?;
        Ok(extended_from(letter.chars().next()))
    }

    async fn begin_effect(&self, request: &EffectRequest<'_>) -> Result<EffectBegun> {
        let EffectRequest { lease, key, mark, standing } = request;
        let call = self.call(&SCRIPTS.begin_effect).arg(lease.task.as_str()).arg(&lease.token);
        let call = call.arg(key.as_str()).arg(mark.as_str()).arg(checked_mark(*standing));
        reply::effect_begun(self.run(call).await?).map_err(|m| m.during("begin_effect"))
    }

    async fn commit_effect(
        &self,
        lease: &Lease,
        key: &IdempotencyKey,
        answer: &Payload,
        standing: Standing<'_>,
    ) -> Result<EffectCommitted> {
        let call = self.call(&SCRIPTS.end_effect).arg(lease.task.as_str()).arg(&lease.token).arg(key.as_str());
        let call = call.arg("commit").arg(answer.as_str()).arg(checked_mark(standing));
        let malformed = |m: Malformed| m.during("commit_effect");
        let (word, mut rest) = word_and_rest(self.run(call).await?).map_err(malformed)?;
        let detail = text(rest.next().unwrap_or(Value::Nil)).map_err(malformed)?;
        match word.as_str() {
            "committed" => Ok(EffectCommitted::Committed),
            "done" => Ok(EffectCommitted::AlreadyCommitted { answer: Payload::unchecked(detail) }),
            "other" => Ok(EffectCommitted::Superseded),
            "unknown" => Ok(EffectCommitted::Unknown),
            "large" => Err(BrokerError::Invalid(sentences::answer_too_large(answer.as_str().len(), detail))),
            other => Err(malformed(Malformed(format!("answer {other:?}")))),
        }
    }

    async fn abandon_effect(&self, lease: &Lease, key: &IdempotencyKey) -> Result<EffectAbandoned> {
        let call = self.call(&SCRIPTS.end_effect).arg(lease.task.as_str()).arg(&lease.token).arg(key.as_str());
        let (word, _) = word_and_rest(self.run(call.arg("abandon").arg("").arg("")).await?)
            .map_err(|m| m.during("abandon_effect"))?;
        match word.as_str() {
            "abandoned" => Ok(EffectAbandoned::Abandoned),
            "done" | "other" | "unknown" => Ok(EffectAbandoned::NotOurs),
            other => Err(Malformed(format!("answer {other:?}")).during("abandon_effect")),
        }
    }

    async fn promote(&self, limit: usize) -> Result<Promoted> {
        let call = self.call(&SCRIPTS.promote).arg(limit.clamp(1, MAX_BATCH));
        let read = |value| -> std::result::Result<Promoted, Malformed> {
            let [promoted, filed, wait] = parts(value)?;
            let next_in = match wait {
                Value::Nil => None,
                wait => Some(Duration::from_millis(number(wait)?)),
            };
            Ok(Promoted { promoted: number(promoted)? as usize, filed: number(filed)? as usize, next_in })
        };
        read(self.run(call).await?).map_err(|m| m.during("promote"))
    }

    async fn reclaim(&self, cursor: ReclaimCursor) -> Result<Reclaimed> {
        let server = self.server().await?;
        let with = match self.options.reclaim_with {
            ReclaimWith::Detect if server.has_autoclaim => "auto",
            _ => "pending",
        };
        let (lane, message) = cursor.0.split_once('\n').unwrap_or(("", "0"));
        let call = self.call(&SCRIPTS.reclaim).arg(lane).arg(message).arg(&server.run_id).arg(with);
        let read = |value| -> std::result::Result<Reclaimed, Malformed> {
            let [word, lane, message, requeued, dead] = parts(value)?;
            let (lane, message) = (text(lane)?, text(message)?);
            Ok(Reclaimed {
                requeued: task_ids(requeued)?,
                dead: task_ids(dead)?,
                next: (!lane.is_empty()).then(|| ReclaimCursor(format!("{lane}\n{message}"))),
                held: text(word)? == "held",
            })
        };
        read(self.run_on(&server, call).await?).map_err(|m| m.during("reclaim"))
    }

    async fn take_back(&self, worker: &WorkerId, reason: RetryReason, words: &str) -> Result<Reclaimed> {
        // A pod that was deleted by force may have gone on running: nothing says that it crashed.
        let counts = if reason == RetryReason::PodForceDeleted { "" } else { "crash" };
        self.evict(worker, reason, counts, words).await
    }

    async fn cancel(&self, task: &TaskId, reason: &str) -> Result<Cancelled> {
        let call = self.call(&SCRIPTS.cancel).arg(task.as_str()).arg(sentences::cut_error(reason));
        let read = |value| -> std::result::Result<Cancelled, Malformed> {
            let (word, mut rest) = word_and_rest(value)?;
            let letter = text(rest.next().unwrap_or(Value::Nil))?.chars().next();
            let state = letter.and_then(State::from_letter);
            match (word.as_str(), state) {
                ("done", Some(from)) => Ok(Cancelled::Done { from }),
                ("cancelled", _) => Ok(Cancelled::AlreadyCancelled),
                ("invalid", Some(state)) => Ok(Cancelled::InvalidTransition { state }),
                ("unknown", _) => Ok(Cancelled::Unknown),
                (other, _) => Err(Malformed(format!("answer {other:?}"))),
            }
        };
        read(self.run(call).await?).map_err(|m| m.during("cancel"))
    }

    async fn pending_dead_letters_after(&self, after: Option<&TaskId>, limit: usize) -> Result<PendingDeadLetters> {
        let call = self.call(&SCRIPTS.pending_dead_letters).arg(after.map_or("", TaskId::as_str));
        let call = call.arg(limit.clamp(1, MAX_BATCH));
        let read = |value| -> std::result::Result<PendingDeadLetters, Malformed> {
            let [letters, more] = parts(value)?;
            let letters = list(letters)?.into_iter().map(reply::dead_letter).collect::<std::result::Result<_, _>>()?;
            Ok(PendingDeadLetters { letters, more: number(more)? == 1 })
        };
        read(self.run(call).await?).map_err(|m| m.during("pending_dead_letters"))
    }

    async fn record_dead_letter(&self, dead_letter: &DeadLetterId) -> Result<Recorded> {
        let call = self.call(&SCRIPTS.record_dead_letter).arg(dead_letter.task.as_str()).arg(dead_letter.epoch.0);
        let word = text(self.run(call).await?).map_err(|m| m.during("record_dead_letter"))?;
        match word.as_str() {
            "done" => Ok(Recorded::Done),
            "before" => Ok(Recorded::AlreadyRecorded),
            "invalid" => Ok(Recorded::InvalidTransition),
            "unknown" => Ok(Recorded::Unknown),
            other => Err(Malformed(format!("answer {other:?}")).during("record_dead_letter")),
        }
    }

    async fn dead_letter(&self, dead_letter: &DeadLetterId) -> Result<Option<DeadLetterView>> {
        let call = self.call(&SCRIPTS.dead_letters).arg(dead_letter.task.as_str()).arg("").arg(1);
        let page = reply::dead_letter_page(self.run(call).await?).map_err(|m| m.during("dead_letter"))?;
        Ok(page.items.into_iter().find(|view| view.letter.id == *dead_letter))
    }

    async fn dead_letters(&self, cursor: ListCursor, limit: usize) -> Result<Page<DeadLetterView>> {
        let call = self.call(&SCRIPTS.dead_letters).arg("").arg(&cursor.0).arg(limit.clamp(1, MAX_BATCH));
        reply::dead_letter_page(self.run(call).await?).map_err(|m| m.during("dead_letters"))
    }

    async fn replay(&self, request: &ReplayRequest) -> Result<Replayed> {
        sentences::check_replay(request)?;
        let Some(view) = self.dead_letter(&request.dead_letter).await? else { return Ok(Replayed::Unknown) };
        let letter = view.letter;
        let extras = Extras { replay_of: Some(request.dead_letter.to_string()), ..letter.extras };
        let hash = match &request.payload {
            Some(payload) => {
                payload.content_hash(&letter.task_type).map_err(|e| BrokerError::Invalid(e.to_string()))?.to_string()
            }
            None => String::new(),
        };
        let call = self
            .call(&SCRIPTS.replay)
            .arg(request.dead_letter.task.as_str())
            .arg(request.dead_letter.epoch.0)
            .arg(request.new_id.as_str())
            .arg(request.payload.as_ref().map_or("", |payload| payload.as_str()))
            .arg(hash)
            .arg(token::encode_extras(&extras))
            .arg(&request.person)
            .arg(sentences::kept_reason(request.reason.as_deref()).unwrap_or_default());
        let malformed = |m: Malformed| m.during("replay");
        let (word, mut rest) = word_and_rest(self.run(call).await?).map_err(malformed)?;
        let detail = text(rest.next().unwrap_or(Value::Nil)).map_err(malformed)?;
        let id = || task_id(detail.clone()).map_err(malformed);
        let queue = || self.keys.queue().to_string();
        match word.as_str() {
            "done" => Ok(Replayed::Done { task: id()? }),
            "replayed" => Ok(Replayed::AlreadyReplayed { task: id()? }),
            "taken" => Ok(Replayed::KeyTaken { by: id()? }),
            "id" => Ok(Replayed::IdTaken { id: id()? }),
            "discarded" => Ok(Replayed::Discarded),
            "unknown" => Ok(Replayed::Unknown),
            "closed" => Err(BrokerError::Closed(queue())),
            "outbox" => Err(BrokerError::OutboxFull(queue())),
            "payload" => {
                let bytes = request.payload.as_ref().map_or(0, |payload| payload.as_str().len());
                Err(BrokerError::Invalid(sentences::payload_too_large(bytes, detail)))
            }
            other => Err(Malformed(format!("answer {other:?}")).during("replay")),
        }
    }

    async fn discard(&self, request: &DiscardRequest) -> Result<Discarded> {
        sentences::check_discard(request)?;
        let id = &request.dead_letter;
        let call = self.call(&SCRIPTS.discard).arg(id.task.as_str()).arg(id.epoch.0).arg(&request.person);
        let call = call.arg(sentences::cut_error(&request.reason));
        let read = |value| -> std::result::Result<Discarded, Malformed> {
            let (word, mut rest) = word_and_rest(value)?;
            let id = text(rest.next().unwrap_or(Value::Nil))?;
            match word.as_str() {
                "done" => Ok(Discarded::Done),
                "second" => Ok(Discarded::AwaitingSecond),
                "same" => Ok(Discarded::SamePerson),
                "replayed" => Ok(Discarded::AlreadyReplayed { task: task_id(id)? }),
                "discarded" => Ok(Discarded::AlreadyDiscarded),
                "unknown" => Ok(Discarded::Unknown),
                other => Err(Malformed(format!("answer {other:?}"))),
            }
        };
        read(self.run(call).await?).map_err(|m| m.during("discard"))
    }

    async fn retain(&self, cursor: RetainCursor, limit: usize) -> Result<Retained> {
        let call = self.call(&SCRIPTS.retain).arg(&cursor.0).arg(limit.clamp(1, MAX_BATCH));
        let read = |value| -> std::result::Result<Retained, Malformed> {
            let [results, dead_letters, cursor, wait, held_by] = parts(value)?;
            let (wait, held_by) = (text(wait)?, text(held_by)?);
            let next_in = match wait.as_str() {
                "" => None,
                wait => Some(Duration::from_millis(number(Value::SimpleString(wait.to_owned()))?)),
            };
            Ok(Retained {
                results: number(results)? as usize,
                dead_letters: number(dead_letters)? as usize,
                next_in,
                held_by: (!held_by.is_empty()).then_some(held_by),
                cursor: RetainCursor(text(cursor)?),
            })
        };
        read(self.run(call).await?).map_err(|m| m.during("retain"))
    }

    async fn sweep(&self, cursor: SweepCursor) -> Result<Swept> {
        let server = self.server().await?;
        let from = if cursor.0.is_empty() { "0" } else { &cursor.0 };
        let call = self.call(&SCRIPTS.sweep).arg(from).arg(SWEEP_PAGE).arg(&server.run_id);
        let read = |value| -> std::result::Result<Swept, Malformed> {
            let [next, checked, repaired, removed, lost, unfinished] = parts(value)?;
            let next = text(next)?;
            let mut words = texts(repaired)?.into_iter();
            let mut repaired = Vec::new();
            while let (Some(id), Some(what)) = (words.next(), words.next()) {
                repaired.push((task_id(id)?, what));
            }
            let lost = texts(lost)?.into_iter().map(WorkerId::new).collect::<std::result::Result<_, _>>();
            Ok(Swept {
                checked: number(checked)? as usize,
                repaired,
                consumers_removed: number(removed)? as usize,
                workers_lost: lost.map_err(|error| Malformed(error.to_string()))?,
                unfinished: number(unfinished)? == 1,
                next: (next != "0").then_some(SweepCursor(next)),
            })
        };
        read(self.run_on(&server, call).await?).map_err(|m| m.during("sweep"))
    }

    async fn register(&self, worker: &WorkerInfo) -> Result<Registered> {
        let capabilities =
            Capabilities::of(worker.types.iter().cloned()).map_err(|error| BrokerError::Invalid(error.to_string()))?;
        let place = match (&worker.pod_uid, &worker.container) {
            (Some(uid), container) => format!("{uid}/{}", container.as_deref().unwrap_or_default()),
            (None, _) => String::new(),
        };
        let told = serde_json::to_string(worker).expect("invariant: a worker's facts have a JSON form");
        let (mut all, mut before, mut from) = (Registered::default(), String::new(), "0".to_owned());
        let mut server = None;
        loop {
            let call = self.call(&SCRIPTS.register).arg(worker.id.as_str()).arg(&place).arg(&told);
            let call = call.arg(capabilities.class()).arg(capabilities.joined()).arg(&before).arg(&from);
            let read = |value| -> std::result::Result<(String, Vec<TaskId>, String), Malformed> {
                let [before, requeued, rest] = parts(value)?;
                Ok((text(before)?, task_ids(requeued)?, text(rest)?))
            };
            let requeued;
            let answer = self.run_stepwise(server.as_ref(), call).await?;
            (before, requeued, from) = read(answer).map_err(|m| m.during("register"))?;
            all.superseded = WorkerId::new(before.clone()).ok();
            all.requeued.extend(requeued);
            if from.is_empty() {
                return Ok(all);
            }
            if server.is_none() {
                (server, from) = (Some(self.server().await?), "0".to_owned());
            }
        }
    }

    async fn deregister(&self, worker: &WorkerId) -> Result<()> {
        self.evict(worker, RetryReason::Released, "", "").await.map(drop)
    }

    async fn workers(&self) -> Result<Vec<WorkerRecord>> {
        let mut all = redis::cmd("HGETALL");
        all.arg(self.keys.workers());
        let records = fields(self.command(&all).await?).map_err(|m| m.during("workers"))?;
        let mut beats = redis::cmd("ZRANGE");
        beats.arg(self.keys.heartbeats()).arg(0).arg(-1).arg("WITHSCORES");
        let beats = fields(self.command(&beats).await?).map_err(|m| m.during("workers"))?;
        let read = |(id, packed): (&String, &Vec<u8>)| {
            let beat = beats.get(id).cloned().unwrap_or_else(|| b"0".to_vec());
            reply::worker_record(packed, number(Value::BulkString(beat))?)
        };
        let mut workers: Vec<_> = records
            .iter()
            .map(read)
            .collect::<std::result::Result<_, _>>()
            .map_err(|m: Malformed| m.during("workers"))?;
        workers.sort_by(|a, b| a.info.id.cmp(&b.info.id));
        Ok(workers)
    }

    async fn demand(&self, capabilities: &Capabilities) -> Result<Demand> {
        let call = self.call(&SCRIPTS.demand).arg(capabilities.joined());
        reply::demand(self.run(call).await?).map_err(|m| m.during("demand"))
    }

    async fn counts(&self) -> Result<QueueCounts> {
        let read = |value| -> std::result::Result<QueueCounts, Malformed> {
            let [
                backlog,
                running,
                raw_taken,
                delayed,
                retrying,
                dlq_pending,
                dead,
                finished,
                oldest,
                workers,
                outbox,
                invalid,
                heard,
                now,
            ] = parts(value)?;
            let (now, heard) = (number(now)?, text(heard)?);
            let oldest = text(oldest)?;
            Ok(QueueCounts {
                backlog: number(backlog)?,
                running: number(running)?,
                raw_taken: number(raw_taken)?,
                delayed: number(delayed)?,
                retrying: number(retrying)?,
                blocked: 0,
                waiting_approval: 0,
                dlq_pending: number(dlq_pending)?,
                dead_lettered: number(dead)?,
                finished: number(finished)?,
                oldest_task_time: oldest.parse().ok().map(timestamp),
                workers: number(workers)?,
                outbox: number(outbox)?,
                invalid_transitions: number(invalid)?,
                longest_silence: heard.parse::<u64>().ok().map(|at| Duration::from_millis(now.saturating_sub(at))),
                sampled_at: timestamp(now),
            })
        };
        read(self.run(self.call(&SCRIPTS.counts)).await?).map_err(|m| m.during("counts"))
    }

    /// Two commands, where counting takes a script with twenty.
    async fn glance(&self) -> Result<Option<Glance>> {
        let Keys { task, .. } = &self.keys;
        let (mut exist, mut length) = (redis::cmd("EXISTS"), redis::cmd("XLEN"));
        exist.arg(self.keys.policy()).arg(self.keys.live()).arg(self.keys.heartbeats()).arg(self.keys.dead());
        length.arg(task);
        let seen = self.link.call_both(&exist, &length).await.map_err(|fault| self.name_queue(fault))?;
        let read = |(keys, entries)| Ok(Glance { keys: number(keys)?, raw_entries: number(entries)? });
        read(seen).map(Some).map_err(|m: Malformed| m.during("glance"))
    }

    async fn get(&self, task: &TaskId) -> Result<Option<TaskView>> {
        let answer = list(self.run(self.call(&SCRIPTS.get).arg(task.as_str())).await?).map_err(|m| m.during("get"))?;
        if answer.is_empty() {
            return Ok(None);
        }
        let read = |answer: Vec<Value>| -> std::result::Result<TaskView, Malformed> {
            let parts: [Value; 8] = answer.try_into().map_err(|_| Malformed("not 8 parts".to_owned()))?;
            if matches!(&parts[0], Value::BulkString(word) if word == b"live") {
                reply::live_view(parts)
            } else {
                reply::finished_view(parts)
            }
        };
        read(answer).map(Some).map_err(|m| m.during("get"))
    }

    async fn list(&self, state: State, cursor: ListCursor, limit: usize) -> Result<Page<TaskView>> {
        let limit = limit.clamp(1, 1000);
        if state.is_final() {
            self.list_finished(state, &cursor.0, limit).await
        } else {
            self.list_live(state, &cursor.0, limit).await
        }
    }

    async fn outbox(&self, limit: usize) -> Result<Vec<OutboxEntry>> {
        let mut range = redis::cmd("XRANGE");
        range.arg(self.keys.events()).arg("-").arg("+").arg("COUNT").arg(limit);
        let (number, entries) = self.numbered(&range).await?;
        let read = |value| -> std::result::Result<Vec<OutboxEntry>, Malformed> {
            let entries = list(value)?.into_iter().map(reply::outbox_entry);
            entries.map(|entry| Ok(OutboxEntry { read_by: number, ..entry? })).collect()
        };
        read(entries).map_err(|m| m.during("outbox"))
    }

    /// By their ids and over the connection that read them: after a failover another
    /// entry, which nobody has read, may have an earlier place, or the very same.
    async fn trim_outbox(&self, read: &[OutboxEntry]) -> Result<()> {
        for together in read.chunk_by(|one, other| one.read_by == other.read_by).flat_map(|page| page.chunks(MAX_BATCH))
        {
            let mut delete = redis::cmd("XDEL");
            delete.arg(self.keys.events());
            for entry in together {
                delete.arg(&entry.id);
            }
            let deleted = self.link.call_over(together[0].read_by, &delete).await;
            deleted.map_err(|fault| self.name_queue(fault))?;
        }
        Ok(())
    }

    async fn sleeper(&self, capabilities: &Capabilities) -> Result<Box<dyn Sleeper>> {
        let own = Link::new(self.endpoint.clone(), self.keys.policy(), &self.options, sleeper::LONGEST_ANSWER);
        Ok(Box::new(RedisSleeper::new(own, self.link.clone(), &self.keys, capabilities.class())))
    }
}
