//! How a Redis is found and reached: standalone, behind Sentinels, or a Cluster.
//!
//! A queue lives in one slot, so one connection to one server is enough in
//! every topology. It is opened when it is needed, shared by all callers, and
//! replaced when it breaks or when the server stops being the right one.

use std::borrow::Cow;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use redis::aio::{MultiplexedConnection, PubSub};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo, Value,
};
use tokio::time::Instant;

use super::error::{Fault, classify};
use crate::broker::{BrokerError, Result};

/// How to reach a Redis.
#[derive(Clone)]
pub struct RedisOptions {
    /// `redis://[user:password@]host:port[/db]`, `rediss://…` with TLS;
    /// `redis+sentinel://host:port,host:port/MASTER` and
    /// `redis+cluster://host:port,host:port` (or `rediss+…`) name several servers;
    /// `file:///path` names a file that holds one of these.
    pub url: String,
    /// The certificate authority to trust instead of the system's, in PEM.
    pub ca_pem: Option<Vec<u8>>,
    /// How long opening a connection may take.
    pub connect_timeout: Duration,
    /// How long an answer may take. Above this the connection is given up:
    /// a server that is frozen or gone must not hold its clients.
    pub response_timeout: Duration,
    /// How many replicas must have an enqueued task before it counts as accepted.
    pub replicas: Option<ReplicaAck>,
    /// How expired leases are found.
    pub reclaim_with: ReclaimWith,
}

/// What an enqueue waits for on a replicated Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplicaAck {
    /// How many replicas.
    pub count: u32,
    /// For how long. Nothing but other such enqueues of the same queue waits meanwhile.
    pub timeout: Duration,
}

/// Which commands find expired leases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReclaimWith {
    /// XAUTOCLAIM where the server has it (6.2 and later), else XPENDING and XCLAIM.
    Detect,
    /// XPENDING and XCLAIM, whatever the server has.
    PendingAndClaim,
}

impl RedisOptions {
    /// The usual settings for a URL.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            ca_pem: None,
            connect_timeout: Duration::from_secs(5),
            response_timeout: Duration::from_secs(10),
            replicas: None,
            reclaim_with: ReclaimWith::Detect,
        }
    }
}

/// The address itself, where `url` names a file that holds it.
pub fn address_behind(url: &str) -> Result<Cow<'_, str>> {
    let Some(path) = url.strip_prefix("file://") else { return Ok(Cow::Borrowed(url)) };
    let read = std::fs::read_to_string(path);
    let read = read.map_err(|error| BrokerError::Invalid(format!("the file {path} with the Redis URL: {error}")))?;
    Ok(Cow::Owned(read.trim().to_owned()))
}

/// Where the servers are.
pub(super) struct Endpoint {
    seeds: Vec<ConnectionInfo>,
    kind: Kind,
    ca_pem: Option<Vec<u8>>,
    /// The address without credentials, for messages.
    pub(super) shown: String,
}

/// A server that was found, and a connection to it.
type Reached = (ConnectionInfo, MultiplexedConnection);

enum Kind {
    Standalone,
    Sentinel { master: String },
    Cluster,
}

impl Endpoint {
    /// Reads a URL of any of the topologies.
    pub(super) fn parse(options: &RedisOptions) -> Result<Self> {
        let invalid = |why: &str| {
            BrokerError::Invalid(format!(
                "the Redis URL is not usable: {why}; write redis://HOST:PORT, redis+sentinel://HOST:PORT,…/MASTER \
                 or redis+cluster://HOST:PORT,… (rediss for TLS)"
            ))
        };
        let url = address_behind(&options.url)?;
        let (scheme, rest) = url.split_once("://").ok_or_else(|| invalid("it has no scheme"))?;
        let (scheme, topology) = scheme.split_once('+').unwrap_or((scheme, ""));
        // First the credentials: a slash in a password must not make a part of it a host.
        let (credentials, rest) = match rest.rsplit_once('@') {
            Some((credentials, rest)) => (format!("{credentials}@"), rest),
            None => (String::new(), rest),
        };
        let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (kind, path) = match topology {
            "" => (Kind::Standalone, path),
            "cluster" => (Kind::Cluster, ""),
            "sentinel" if path.is_empty() => return Err(invalid("it names no master, like …/mymaster")),
            "sentinel" => (Kind::Sentinel { master: path.to_owned() }, ""),
            _ => return Err(invalid("the part after + is neither sentinel nor cluster")),
        };
        let several = !matches!(kind, Kind::Standalone);
        let hosts: Vec<&str> = if several { hosts.split(',').collect() } else { vec![hosts] };
        let seed = |host: &&str| {
            format!("{scheme}://{credentials}{host}/{path}")
                .into_connection_info()
                .map_err(|error| invalid(error.detail().unwrap_or("it cannot be parsed")))
        };
        let seeds = hosts.iter().map(seed).collect::<Result<Vec<_>>>()?;
        Ok(Self { seeds, kind, ca_pem: options.ca_pem.clone(), shown: hosts.join(",") })
    }

    /// Whether all of a queue's keys must be in one slot.
    pub(super) fn is_cluster(&self) -> bool {
        matches!(self.kind, Kind::Cluster)
    }

    /// Connects to the server that has `key`.
    async fn open(&self, key: &str, config: &AsyncConnectionConfig) -> redis::RedisResult<MultiplexedConnection> {
        Ok(self.reach(key, config).await?.1)
    }

    /// Opens a connection that listens, to the server that has `key`.
    pub(super) async fn listen(&self, key: &str, config: &AsyncConnectionConfig) -> redis::RedisResult<PubSub> {
        let (info, _) = self.reach(key, config).await?;
        self.client(info)?.get_async_pubsub().await
    }

    /// Where the server is that has `key`, and a connection to it.
    async fn reach(&self, key: &str, config: &AsyncConnectionConfig) -> redis::RedisResult<Reached> {
        if let Kind::Standalone = self.kind {
            return self.connect(self.seeds[0].clone(), config).await;
        }
        self.first_answer(|seed| self.open_through(seed, key, config)).await
    }

    /// Asks the seeds in their order until one has answered well. The next is asked when one fails, and beside one
    /// that is silent: a seed that hangs, or whose packets are dropped, must not hide the others.
    async fn first_answer<'a, T, F>(&'a self, ask: impl Fn(&'a ConnectionInfo) -> F) -> redis::RedisResult<T>
    where
        F: Future<Output = redis::RedisResult<T>>,
    {
        let (mut seeds, mut asked, mut last) = (self.seeds.iter(), FuturesUnordered::new(), None);
        loop {
            asked.extend(seeds.next().map(&ask));
            let answer = if seeds.len() == 0 {
                Some(asked.next().await)
            } else {
                tokio::time::timeout(SILENCE, asked.next()).await.ok()
            };
            match answer {
                Some(Some(Ok(found))) => return Ok(found),
                Some(Some(Err(error))) => last = Some(error),
                Some(None) => return Err(last.expect("invariant: there is at least one seed")),
                None => {}
            }
        }
    }

    fn client(&self, info: ConnectionInfo) -> redis::RedisResult<Client> {
        match &self.ca_pem {
            Some(pem) => {
                let certificates = redis::TlsCertificates { client_tls: None, root_cert: Some(pem.clone()) };
                Client::build_with_tls(info, certificates)
            }
            None => Client::open(info),
        }
    }

    async fn connect(&self, info: ConnectionInfo, config: &AsyncConnectionConfig) -> redis::RedisResult<Reached> {
        let client = self.client(info.clone())?;
        Ok((info, client.get_multiplexed_async_connection_with_config(config).await?))
    }

    /// Asks one seed where to go, and goes there.
    async fn open_through(
        &self,
        seed: &ConnectionInfo,
        key: &str,
        config: &AsyncConnectionConfig,
    ) -> redis::RedisResult<Reached> {
        let (_, asked) = match (self.connect(seed.clone(), config).await, &self.kind) {
            // Many a Sentinel has no password, whatever its master has.
            (Err(error), Kind::Sentinel { .. }) if error.kind() == redis::ErrorKind::AuthenticationFailed => {
                self.connect(seed.clone().set_redis_settings(RedisConnectionInfo::default()), config).await?
            }
            (answer, _) => answer?,
        };
        let (host, port) = match &self.kind {
            Kind::Sentinel { master } => self.ask_sentinel(asked, master).await?,
            Kind::Standalone | Kind::Cluster => self.ask_node(asked, key).await?,
        };
        let host = if host.is_empty() { host_of(seed) } else { host };
        let (info, mut server) = self.connect(seed.clone().set_addr(moved_to(seed, host, port)), config).await?;
        self.check_role(&mut server).await?;
        Ok((info, server))
    }

    async fn ask_sentinel(
        &self,
        mut sentinel: MultiplexedConnection,
        master: &str,
    ) -> redis::RedisResult<(String, u16)> {
        let asked: Option<(String, u16)> =
            redis::cmd("SENTINEL").arg("get-master-addr-by-name").arg(master).query_async(&mut sentinel).await?;
        let unknown = || redis::RedisError::from((redis::ErrorKind::MasterNameNotFoundBySentinel, "unknown master"));
        asked.ok_or_else(unknown)
    }

    /// The servers that together hold all keys: one, or every master of a Cluster.
    pub(super) async fn masters(
        &self,
        config: &AsyncConnectionConfig,
    ) -> redis::RedisResult<Vec<MultiplexedConnection>> {
        if !self.is_cluster() {
            return Ok(vec![self.open("", config).await?]);
        }
        self.first_answer(|seed| self.masters_through(seed, config)).await
    }

    async fn masters_through(
        &self,
        seed: &ConnectionInfo,
        config: &AsyncConnectionConfig,
    ) -> redis::RedisResult<Vec<MultiplexedConnection>> {
        let (_, mut asked) = self.connect(seed.clone(), config).await?;
        let ranges: Vec<Vec<Value>> = redis::cmd("CLUSTER").arg("SLOTS").query_async(&mut asked).await?;
        let mut addresses = std::collections::BTreeSet::new();
        for range in &ranges {
            addresses.insert(master_of(range)?);
        }
        let mut masters = Vec::with_capacity(addresses.len());
        for (host, port) in addresses {
            let host = if host.is_empty() { host_of(seed) } else { host };
            masters.push(self.connect(seed.clone().set_addr(moved_to(seed, host, port)), config).await?.1);
        }
        Ok(masters)
    }

    async fn ask_node(&self, mut node: MultiplexedConnection, key: &str) -> redis::RedisResult<(String, u16)> {
        let slot: i64 = redis::cmd("CLUSTER").arg("KEYSLOT").arg(key).query_async(&mut node).await?;
        let ranges: Vec<Vec<Value>> = redis::cmd("CLUSTER").arg("SLOTS").query_async(&mut node).await?;
        let mine = |range: &&Vec<Value>| matches!(range[..], [Value::Int(from), Value::Int(to), ..] if (from..=to).contains(&slot));
        master_of(ranges.iter().find(mine).ok_or_else(nobody_serves)?)
    }

    /// A Sentinel may still name a master that has just been demoted.
    async fn check_role(&self, server: &mut MultiplexedConnection) -> redis::RedisResult<()> {
        if !matches!(self.kind, Kind::Sentinel { .. }) {
            return Ok(());
        }
        let role: Vec<Value> = redis::cmd("ROLE").query_async(server).await?;
        let word: String = role.first().map(redis::from_redis_value_ref).transpose()?.unwrap_or_default();
        if word == "master" {
            Ok(())
        } else {
            Err(redis::RedisError::from((redis::ErrorKind::Client, "READONLY the named master is a replica")))
        }
    }
}

fn nobody_serves() -> redis::RedisError {
    redis::RedisError::from((redis::ErrorKind::Client, "CLUSTERDOWN nobody serves the queue's slot"))
}

/// The master of a range of slots, as CLUSTER SLOTS names it.
fn master_of(range: &[Value]) -> redis::RedisResult<(String, u16)> {
    match range.get(2) {
        Some(Value::Array(parts)) if parts.len() >= 2 => {
            Ok((redis::from_redis_value_ref(&parts[0])?, redis::from_redis_value_ref(&parts[1])?))
        }
        _ => Err(nobody_serves()),
    }
}

fn host_of(info: &ConnectionInfo) -> String {
    match info.addr() {
        ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => host.clone(),
        _ => "localhost".to_owned(),
    }
}

/// The same way to connect, at another address.
fn moved_to(seed: &ConnectionInfo, host: String, port: u16) -> ConnectionAddr {
    match seed.addr() {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
            ConnectionAddr::TcpTls { host, port, insecure: *insecure, tls_params: tls_params.clone() }
        }
        _ => ConnectionAddr::Tcp(host, port),
    }
}

/// How long the first attempt to connect may take, and each later one twice as long as the one before. Where a server
/// has moved behind its name, nobody answers at the old place, and the next attempt goes to the new one.
const FIRST_ATTEMPT: Duration = Duration::from_secs(1);

/// How long a seed may be silent before the next one is asked as well.
const SILENCE: Duration = Duration::from_millis(200);

/// One shared connection, opened when needed and replaced when broken.
pub(super) struct Link {
    endpoint: Arc<Endpoint>,
    /// A key of the queue, to find its server in a Cluster.
    key: String,
    config: AsyncConnectionConfig,
    connect_timeout: Duration,
    current: RwLock<Option<Current>>,
    opening: tokio::sync::Mutex<Pace>,
}

#[derive(Clone)]
struct Current {
    number: u64,
    connection: MultiplexedConnection,
}

/// Keeps many callers from storming a server that has just come back.
struct Pace {
    number: u64,
    failures: u32,
    not_before: Instant,
}

impl Pace {
    const SHORTEST: Duration = Duration::from_millis(20);
    const LONGEST: Duration = Duration::from_secs(2);

    fn failed(&mut self) {
        self.failures += 1;
        let ceiling = Self::SHORTEST.saturating_mul(1 << self.failures.min(8)).min(Self::LONGEST);
        self.not_before = Instant::now() + ceiling.mul_f64(0.5 + fastrand::f64() / 2.0);
    }
}

impl Link {
    pub(super) fn new(
        endpoint: Arc<Endpoint>,
        key: String,
        options: &RedisOptions,
        response_timeout: Duration,
    ) -> Self {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(options.connect_timeout))
            .set_response_timeout(Some(response_timeout));
        Self {
            endpoint,
            key,
            config,
            connect_timeout: options.connect_timeout,
            current: RwLock::new(None),
            opening: tokio::sync::Mutex::new(Pace { number: 0, failures: 0, not_before: Instant::now() }),
        }
    }

    /// The address without credentials, for messages.
    pub(super) fn address(&self) -> &str {
        &self.endpoint.shown
    }

    /// Sends one command.
    pub(super) async fn call(&self, command: &Cmd) -> std::result::Result<Value, Fault> {
        self.send(self.connection().await?, command).await
    }

    /// The same, and says which connection it went over.
    pub(super) async fn call_numbered(&self, command: &Cmd) -> std::result::Result<(u64, Value), Fault> {
        let current = self.connection().await?;
        let number = current.number;
        self.send(current, command).await.map(|value| (number, value))
    }

    /// Sends one command over that connection or not at all.
    pub(super) async fn call_over(&self, number: u64, command: &Cmd) -> std::result::Result<Value, Fault> {
        let current = self.connection().await?;
        if current.number != number {
            let why = "the connection is another one than before".to_owned();
            return Err(Fault { error: BrokerError::Busy(why), connection_is_useless: false, no_script: false });
        }
        self.send(current, command).await
    }

    async fn send(&self, current: Current, command: &Cmd) -> std::result::Result<Value, Fault> {
        let Current { number, mut connection } = current;
        command.query_async(&mut connection).await.map_err(|error| self.judge(number, &error))
    }

    /// Sends two commands together, so that nothing comes between them.
    pub(super) async fn call_both(&self, first: &Cmd, second: &Cmd) -> std::result::Result<(Value, Value), Fault> {
        let Current { number, mut connection } = self.connection().await?;
        let mut pipeline = redis::pipe();
        pipeline.add_command(first.clone()).add_command(second.clone());
        pipeline.query_async(&mut connection).await.map_err(|error| self.judge(number, &error))
    }

    /// Sends a command and, if its answer makes it due, another on the very same connection.
    pub(super) async fn call_in_turn(
        &self,
        first: &Cmd,
        second: &Cmd,
        is_due: fn(&Value) -> bool,
    ) -> std::result::Result<(Value, Option<Value>), Fault> {
        let Current { number, mut connection } = self.connection().await?;
        let judge = |error| self.judge(number, &error);
        let answer = first.query_async(&mut connection).await.map_err(judge)?;
        if !is_due(&answer) {
            return Ok((answer, None));
        }
        let second = second.query_async(&mut connection).await.map_err(judge)?;
        Ok((answer, Some(second)))
    }

    /// What an error of a connection means; one that is of no more use is dropped.
    fn judge(&self, number: u64, error: &redis::RedisError) -> Fault {
        let fault = classify(error, &self.endpoint.shown);
        if fault.connection_is_useless {
            self.discard(number);
        }
        fault
    }

    fn current(&self) -> Option<Current> {
        self.current.read().expect("invariant: no panic while held").clone()
    }

    /// Drops the connection unless it was replaced already.
    fn discard(&self, number: u64) {
        let mut current = self.current.write().expect("invariant: no panic while held");
        if current.as_ref().is_some_and(|c| c.number == number) {
            *current = None;
        }
    }

    async fn connection(&self) -> std::result::Result<Current, Fault> {
        if let Some(current) = self.current() {
            return Ok(current);
        }
        let mut pace = self.opening.lock().await;
        if let Some(current) = self.current() {
            return Ok(current);
        }
        tokio::time::sleep_until(pace.not_before).await;
        match self.in_time(|| self.endpoint.open(&self.key, &self.config)).await {
            Ok(connection) => {
                pace.number += 1;
                pace.failures = 0;
                let current = Current { number: pace.number, connection };
                *self.current.write().expect("invariant: no panic while held") = Some(current.clone());
                Ok(current)
            }
            Err(fault) => {
                pace.failed();
                Err(fault)
            }
        }
    }

    /// Opens a connection that listens.
    pub(super) async fn listen(&self) -> std::result::Result<PubSub, Fault> {
        self.in_time(|| self.endpoint.listen(&self.key, &self.config)).await
    }

    /// Opens a connection for one caller alone.
    pub(super) async fn open_own(&self) -> std::result::Result<MultiplexedConnection, Fault> {
        self.in_time(|| self.endpoint.open(&self.key, &self.config)).await
    }

    /// Opens connections to all servers that hold keys, for one caller alone.
    pub(super) async fn open_all(&self) -> std::result::Result<Vec<MultiplexedConnection>, Fault> {
        self.in_time(|| self.endpoint.masters(&self.config)).await
    }

    /// Opens a connection, in as many attempts as there is time for.
    async fn in_time<T, F>(&self, open: impl Fn() -> F) -> std::result::Result<T, Fault>
    where
        F: Future<Output = redis::RedisResult<T>>,
    {
        let end = Instant::now() + self.connect_timeout;
        let mut attempt = FIRST_ATTEMPT;
        loop {
            let until = end.min(Instant::now() + attempt);
            match tokio::time::timeout_at(until, open()).await {
                Ok(opened) => return opened.map_err(|error| classify(&error, &self.endpoint.shown)),
                Err(_) if until < end => attempt *= 2,
                Err(_) => return Err(self.too_late()),
            }
        }
    }

    fn too_late(&self) -> Fault {
        let reason = format!("no connection within {:?}", self.connect_timeout);
        Fault {
            error: BrokerError::Unreachable { address: self.endpoint.shown.clone(), reason },
            connection_is_useless: true,
            no_script: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<Endpoint> {
        Endpoint::parse(&RedisOptions::new(url))
    }

    #[test]
    fn each_topology_has_its_url() {
        assert!(!parse("redis://127.0.0.1:6379/2").expect("standalone").is_cluster());
        let cluster = parse("redis+cluster://a:1,b:2").expect("cluster");
        assert!(cluster.is_cluster());
        assert_eq!(cluster.shown, "a:1,b:2");
        let sentinel = parse("rediss+sentinel://user:se%2Fcret@a:1,b:2/main").expect("sentinel");
        assert_eq!((sentinel.seeds.len(), sentinel.shown.as_str()), (2, "a:1,b:2"));
        assert!(matches!(sentinel.kind, Kind::Sentinel { master } if master == "main"));
    }

    #[test]
    fn an_address_may_be_in_a_file() {
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("url");
        let named = format!("file://{}", file.display());
        let Err(missing) = parse(&named) else { panic!("there is no such file") };
        assert!(missing.to_string().contains(&*file.to_string_lossy()), "{missing}");
        std::fs::write(&file, "redis+cluster://ada:hunter2@a:1,b:2\n").expect("written");
        assert_eq!(parse(&named).expect("it is there now").shown, "a:1,b:2");
        std::fs::write(&file, "hunter2").expect("written");
        let Err(wrong) = parse(&named) else { panic!("that is no address") };
        assert!(!wrong.to_string().contains("hunter2"), "{wrong}");
    }

    #[test]
    fn a_bad_url_gets_a_sentence_without_the_password() {
        for bad in [
            "",
            "nonsense",
            "http://x",
            "redis+ring://a:1",
            "redis+sentinel://a:1",
            "redis://u:hunter2@:x",
            "redis://u:hunter2/b@localhost",
            "redis+cluster://u:hunter2/b@localhost",
        ] {
            let Err(error) = parse(bad) else { panic!("{bad} was accepted") };
            assert!(error.to_string().contains("write redis://HOST:PORT"), "{error}");
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
    }

    /// Closes: a client that waits for the address of a pod that is gone while its Service has a new one.
    #[tokio::test]
    async fn an_attempt_that_nobody_answers_is_given_up_for_another_while_there_is_time() {
        let link = |limit| {
            let mut options = RedisOptions::new("redis://127.0.0.1:1");
            options.connect_timeout = limit;
            let endpoint = Arc::new(Endpoint::parse(&options).expect("a usable URL"));
            Link::new(endpoint, String::new(), &options, Duration::from_secs(1))
        };
        let attempts = std::cell::Cell::new(0);
        let second_is_answered = || {
            attempts.set(attempts.get() + 1);
            let number = attempts.get();
            async move {
                if number < 2 {
                    std::future::pending::<()>().await;
                }
                Ok(number)
            }
        };
        let opened = link(Duration::from_secs(60)).in_time(second_is_answered).await;
        assert_eq!(opened.ok(), Some(2));
        let too_late = link(Duration::from_millis(20)).in_time(std::future::pending::<redis::RedisResult<()>>).await;
        let Err(fault) = too_late else { panic!("nobody answers") };
        assert!(fault.error.to_string().contains("no connection within 20ms"), "{}", fault.error);
    }
}
