//! Where a command finds its queue and its event log.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::error::CliError;
use super::units::parse_duration;
use crate::broker::BrokerError;
use crate::broker::redis::{Redis, RedisBroker, RedisOptions};
use crate::crd::{Sentinel, Topology};
use crate::event_log::EventLog;
use crate::protocol::names::QueueName;

/// How to reach a Redis.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Connection")]
pub struct RedisArgs {
    /// The Redis that the queue is on.
    #[arg(
        long,
        help = "The Redis that the queue is on: redis://[USER:PASSWORD@]HOST:PORT[/DB], rediss:// for TLS, \
                redis+sentinel://HOST:PORT,…/MASTER, redis+cluster://HOST:PORT,…, or file:///PATH of a file that says it",
        env = "WINDLASS_REDIS_URL",
        hide_env_values = true,
        default_value = "redis://127.0.0.1:6379",
        value_name = "URL"
    )]
    pub redis_url: String,
    /// How the Redis is laid out, where the URL does not tell: standalone, sentinel or cluster.
    #[arg(long, env = "WINDLASS_REDIS_TOPOLOGY", value_parser = parse_topology, value_name = "LAYOUT")]
    pub redis_topology: Option<Topology>,
    /// The name of the master, where the URL names Sentinels.
    #[arg(long, env = "WINDLASS_REDIS_MASTER", value_name = "NAME")]
    pub redis_master: Option<String>,
    /// The certificate authority itself (PEM), instead of a file with it.
    #[arg(
        long,
        env = "WINDLASS_REDIS_CA",
        hide_env_values = true,
        value_name = "PEM",
        conflicts_with = "redis_ca_file"
    )]
    pub redis_ca: Option<String>,
    /// A file with the certificate authority (PEM) to trust instead of the public ones.
    #[arg(long, env = "WINDLASS_REDIS_CA_FILE", value_name = "FILE")]
    pub redis_ca_file: Option<PathBuf>,
    /// How long to wait for the connection and for each answer.
    // A command says within 5 s that Redis is not there, so this is a little less.
    #[arg(long, value_parser = parse_duration, default_value = "4s", value_name = "DURATION")]
    pub connect_timeout: Duration,
}

impl RedisArgs {
    /// The Redis that the options name. Connects when it is first used.
    pub fn open(&self) -> Result<Redis, CliError> {
        let mut options = RedisOptions::new(self.url()?);
        options.connect_timeout = self.connect_timeout;
        options.response_timeout = self.connect_timeout;
        if let Some(file) = &self.redis_ca_file {
            let read = std::fs::read(file).map_err(|error| {
                CliError::usage(format!("the certificate file {} cannot be read: {error}", file.display()))
            })?;
            options.ca_pem = Some(read);
        }
        if let Some(pem) = &self.redis_ca {
            options.ca_pem = Some(pem.clone().into_bytes());
        }
        Ok(Redis::new(options)?)
    }

    /// The URL with the layout in it.
    fn url(&self) -> Result<String, CliError> {
        let Some(topology) = self.redis_topology else { return Ok(self.redis_url.clone()) };
        let sentinel = self.redis_master.clone().map(|master_name| Sentinel { master_name });
        if topology == Topology::Sentinel && sentinel.is_none() {
            return Err(CliError::usage("--redis-topology sentinel needs the name of the master: give --redis-master"));
        }
        let redis = crate::crd::Redis { url: None, url_secret_ref: None, topology, sentinel, tls: None };
        Ok(redis.engine_url(self.redis_url.trim()))
    }

    /// Does the first thing that needs the server, which has to come within the time for a connection.
    pub async fn first<T>(&self, work: impl Future<Output = Result<T, BrokerError>>) -> Result<T, CliError> {
        match tokio::time::timeout(self.connect_timeout, work).await {
            Ok(answer) => Ok(answer?),
            Err(_) => Err(CliError::failed(format!(
                "Redis did not answer within {}: check that it runs and that --redis-url is right, or raise \
                 --connect-timeout",
                super::units::spoken(self.connect_timeout)
            ))),
        }
    }
}

fn parse_topology(word: &str) -> Result<Topology, String> {
    match word.to_ascii_lowercase().as_str() {
        "standalone" => Ok(Topology::Standalone),
        "sentinel" => Ok(Topology::Sentinel),
        "cluster" => Ok(Topology::Cluster),
        _ => Err("use standalone, sentinel or cluster".to_owned()),
    }
}

/// Which queue, on which Redis.
#[derive(Debug, Clone, clap::Args)]
pub struct QueueArgs {
    /// The queue: NAME, or NAMESPACE/NAME where it is not in the namespace `default`.
    #[arg(short = 'q', long, env = "WINDLASS_QUEUE", value_name = "QUEUE", help_heading = None::<&str>)]
    pub queue: QueueName,
    /// Where it is.
    #[command(flatten)]
    pub redis: RedisArgs,
}

/// A queue that was found.
pub struct FoundQueue {
    /// Its name.
    pub name: QueueName,
    /// Its operations.
    pub broker: Arc<RedisBroker>,
    /// Who provisioned it, if that is recorded.
    pub owner: Option<String>,
}

impl QueueArgs {
    /// Finds the queue; says so if it is not there.
    pub async fn find(&self) -> Result<FoundQueue, CliError> {
        let redis = self.redis.open()?;
        let found = match self.redis.first(redis.find_own(&self.queue)).await? {
            Some(found) => Some(found),
            None => match redis.find_adopted(&self.queue).await {
                // Whoever may not look for other names has a queue with names of its own, or none.
                Err(BrokerError::Denied(_)) => None,
                found => found?,
            },
        };
        let Some(found) = found else {
            return Err(CliError::not_found(format!(
                "queue {} is not on this Redis: create its TaskQueue (or run `windlass dev` with its manifest), or see \
                 `windlass queue list` for those that are",
                self.queue
            )));
        };
        let broker = Arc::new(redis.queue(found.keys)?);
        Ok(FoundQueue { name: self.queue.clone(), broker, owner: found.owner })
    }
}

/// Where history is kept.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Connection")]
pub struct EventLogArgs {
    /// The event log: postgres://USER:PASSWORD@HOST:PORT/DATABASE or sqlite://PATH.
    #[arg(long, env = "WINDLASS_EVENT_LOG_URL", hide_env_values = true, value_name = "URL")]
    pub event_log: Option<String>,
}

impl EventLogArgs {
    /// The event log, if one was named. A command that reads does not make a new one.
    pub fn open(&self) -> Result<Option<EventLog>, CliError> {
        let Some(url) = self.event_log.as_deref().filter(|url| !url.is_empty()) else { return Ok(None) };
        if let Some(file) = url.strip_prefix("sqlite://").map(|path| path.split('?').next().unwrap_or(path))
            && !file.is_empty()
            && !std::path::Path::new(file).exists()
        {
            return Err(CliError::not_found(format!(
                "there is no event log at {file}: check --event-log; `windlass dev` prints where its own is"
            )));
        }
        Ok(Some(EventLog::open(url)?))
    }
}
