//! `windlass worker`: runs the tasks of a queue with a handler in any language.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;

use super::connection::QueueArgs;
use super::error::CliError;
use super::units::parse_duration;
use crate::broker::redis::{Redis, RedisBroker};
use crate::broker::{Broker, BrokerError, ErrorClass};
use crate::protocol::names::{Capabilities, TaskType};
use crate::worker::api::LocalApi;
use crate::worker::exec::{ExecHandler, ExecOptions};
use crate::worker::http::{HttpHandler, HttpOptions};
use crate::worker::{Handler, ResultBound, UnusableHandler, Worker, WorkerHandle, WorkerOptions, init, probes};

/// How long to wait before the queue is looked for again.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// After how many looks the log is reminded of what is missing.
const REMIND_EVERY: u32 = 60;

/// How much later than its own grace a handler is dropped that does not end.
const HARD_DEADLINE_MARGIN: Duration = Duration::from_secs(5);

/// How often it is looked whether the queue's bound of results has changed.
const LOOK_AT_POLICY: Duration = Duration::from_secs(30);

/// Arguments of `windlass worker`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  \
        windlass worker -q shop/emails --exec -- python3 handle.py\n  \
        windlass worker -q shop/emails --concurrency 8 --http http://127.0.0.1:8080/tasks\n  \
        windlass worker -q shop/emails --types send,render --exec -- ./handle.sh --fast\n\n\
        A program gets the task as JSON on standard input and WINDLASS_TASK_ID, WINDLASS_TYPE, WINDLASS_ATTEMPT, … in \
        its environment. Exit status 0 is success, with standard output as the result; 65 is a permanent failure; 75 is \
        a rate limit (write `retry-after: SECONDS` to standard error); any other is tried again.\n\n\
        An address gets the task as a POST. 2xx is success, with the body as the result; 400, 413, 415 and 422 are \
        permanent; 429, or 503 with Retry-After, is a rate limit; any other is tried again.\n\n\
        SIGTERM drains: no more claims, and what runs may finish. A second one gives everything back at once.",
    group = clap::ArgGroup::new("handler").args(["exec", "http"]).required(true)
)]
pub struct Args {
    /// Run the command after `--` for each task.
    #[arg(long, requires = "command")]
    exec: bool,
    /// Post each task to this address.
    #[arg(long, value_name = "URL")]
    http: Option<String>,
    /// Only claim tasks of these types (every type unless given).
    #[arg(long, value_name = "TYPE,…", value_delimiter = ',')]
    types: Vec<TaskType>,
    /// The most tasks at a time.
    #[arg(long, value_name = "N", default_value_t = WorkerOptions::default().concurrency)]
    concurrency: usize,
    /// How long what runs may go on after SIGTERM, before it is given back.
    #[arg(long, value_parser = parse_duration, default_value = "60s", value_name = "DURATION")]
    drain_timeout: Duration,
    /// How long a program may take to end when it is asked to, before it is killed.
    #[arg(long, value_parser = parse_duration, default_value = "5s", value_name = "DURATION")]
    kill_after: Duration,
    /// How long a task waits for an address that nobody listens on, before that costs an attempt.
    #[arg(long, value_parser = parse_duration, default_value = "30s", value_name = "DURATION", conflicts_with = "exec")]
    patience: Duration,
    /// Where the command runs (here unless given).
    #[arg(long, value_name = "DIRECTORY", conflicts_with = "http")]
    directory: Option<PathBuf>,
    /// Serve /livez, /readyz and /metrics on this address, like 0.0.0.0:9464; port 0 takes a free one.
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// The command and its arguments.
    #[arg(last = true, value_name = "COMMAND", requires = "exec")]
    command: Vec<OsString>,
    // Last, because what follows its heading would be printed under it.
    #[command(flatten)]
    queue: QueueArgs,
}

impl From<UnusableHandler> for CliError {
    fn from(error: UnusableHandler) -> Self {
        Self::usage(error.to_string())
    }
}

/// Runs until it is told to end.
pub(super) async fn run(args: Args) -> Result<(), CliError> {
    if init::is_first_process() {
        let failed = |error| CliError::failed(format!("the worker could not start itself as a child: {error}"));
        let status = init::run().await.map_err(failed)?;
        std::process::exit(status.into());
    }
    // What is wrong with the arguments is said before anything is waited for.
    let options = args.options()?;
    let redis = args.queue.redis.open()?;
    let bound = ResultBound::default();
    let api =
        LocalApi::start().await.map_err(|error| CliError::failed(format!("no port for the local API: {error}")))?;
    let handler = args.handler(api, bound.clone())?;
    let mut stops = Stops::listen()?;
    let probes = args.listen.map(Probes::bind).transpose()?;

    let mut waiting = JoinSet::new();
    if let Some(probes) = &probes {
        waiting.spawn(probes.show_waiting()?);
    }
    let broker = tokio::select! {
        found = wait_for_queue(&args, &redis) => Arc::new(found?),
        () = stops.next() => return Ok(()),
    };
    drop(waiting);
    let worker = Worker::new(args.queue.queue.clone(), broker.clone(), handler, options)?;
    // What runs beside the worker ends with it.
    let mut beside = JoinSet::new();
    if let Some(probes) = probes {
        beside.spawn(probes.show(&worker)?);
    }
    beside.spawn(follow_bound(broker, bound));
    let handle = worker.handle();
    beside.spawn(async move {
        loop {
            stops.next().await;
            handle.drain();
        }
    });
    let summary = worker.run().await?;
    tracing::info!(
        settled = summary.settled,
        released = summary.released,
        refused = summary.refused,
        unsettled = summary.unsettled,
        "worker ended"
    );
    match summary.unsettled {
        0 => Ok(()),
        count => Err(CliError::failed(format!(
            "{count} tasks could not be given back, because Redis was away or did not take them: they run again when \
             their lease expires"
        ))),
    }
}

impl Args {
    fn options(&self) -> Result<WorkerOptions, CliError> {
        let most = WorkerOptions::MOST_CONCURRENT;
        if !(1..=most).contains(&self.concurrency) {
            return Err(CliError::usage(format!("--concurrency {}: use 1 to {most}", self.concurrency)));
        }
        let capabilities =
            Capabilities::of(self.types.iter().cloned()).map_err(|error| CliError::usage(error.to_string()))?;
        Ok(WorkerOptions {
            concurrency: self.concurrency,
            capabilities,
            drain_timeout: self.drain_timeout,
            kill_grace: self.kill_after.saturating_add(HARD_DEADLINE_MARGIN),
            ..WorkerOptions::default()
        })
    }

    fn handler(&self, api: LocalApi, result_bound: ResultBound) -> Result<Arc<dyn Handler>, CliError> {
        if let Some(url) = &self.http {
            let options =
                HttpOptions { patience: self.patience, api: Some(api), result_bound, ..HttpOptions::new(url) };
            return Ok(Arc::new(HttpHandler::new(options)?));
        }
        Ok(Arc::new(ExecHandler::new(ExecOptions {
            directory: self.directory.clone(),
            kill_after: self.kill_after,
            api: Some(api),
            result_bound,
            ..ExecOptions::new(&self.command)
        })?))
    }
}

/// Waits until the queue is there: a pool may start before its queue, and before its Redis.
async fn wait_for_queue(args: &Args, redis: &Redis) -> Result<RedisBroker, CliError> {
    let queue = &args.queue.queue;
    let (mut said, mut looks) = (None, 0u32);
    loop {
        let missing = match redis.find(queue).await {
            Ok(Some(found)) => return Ok(redis.queue(found.keys)?),
            Ok(None) => BrokerError::NoQueue(queue.to_string()),
            Err(error) if error.class() == ErrorClass::Transient => error,
            Err(error) => return Err(error.into()),
        };
        let missing = missing.to_string();
        if looks.is_multiple_of(REMIND_EVERY) || said.as_ref() != Some(&missing) {
            tracing::warn!(%queue, reason = missing, "worker waits for its queue");
        }
        (said, looks) = (Some(missing), looks.wrapping_add(1));
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// Keeps the bound of results as the queue's policy has it.
async fn follow_bound(broker: Arc<RedisBroker>, bound: ResultBound) {
    loop {
        // A queue that cannot be asked keeps the bound that it had.
        if let Ok(policy) = broker.policy().await {
            bound.set(policy.limits.result_bytes);
        }
        tokio::time::sleep(LOOK_AT_POLICY).await;
    }
}

/// The signals that end a worker.
struct Stops {
    terminate: Signal,
    interrupt: Signal,
}

impl Stops {
    fn listen() -> Result<Self, CliError> {
        let listen = |kind| signal(kind).map_err(|error| CliError::failed(format!("signals cannot be heard: {error}")));
        Ok(Self { terminate: listen(SignalKind::terminate())?, interrupt: listen(SignalKind::interrupt())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Where probes are answered, before the worker is there and after.
struct Probes {
    listener: std::net::TcpListener,
}

impl Probes {
    fn bind(address: SocketAddr) -> Result<Self, CliError> {
        let failed = |error: std::io::Error| {
            CliError::failed(format!("probes cannot be served on {address}: {error}; give --listen another port"))
        };
        let listener = std::net::TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        tracing::info!(address = %listener.local_addr().map_err(failed)?, "probes are served");
        Ok(Self { listener })
    }

    /// Shows a worker that is alive and waits for its queue.
    fn show_waiting(&self) -> Result<impl Future<Output = ()> + use<>, CliError> {
        use axum::http::StatusCode;
        use axum::routing::get;

        let pages = axum::Router::new()
            .route("/livez", get(|| async { "ok\n" }))
            .fallback(|| async { (StatusCode::SERVICE_UNAVAILABLE, "the worker waits for its queue\n") });
        let listener = self.listener()?;
        Ok(async move {
            if let Err(error) = axum::serve(listener, pages).await {
                tracing::error!(%error, "probes ended");
            }
        })
    }

    /// Shows a worker.
    fn show(self, worker: &Worker) -> Result<impl Future<Output = ()> + use<>, CliError> {
        let mut registry = Registry::default();
        worker.metrics().register(&mut registry);
        let (listener, handle): (_, WorkerHandle) = (self.listener()?, worker.handle());
        Ok(async move {
            if let Err(error) = probes::serve(listener, handle, Arc::new(registry)).await {
                tracing::error!(%error, "probes ended");
            }
        })
    }

    fn listener(&self) -> Result<TcpListener, CliError> {
        let failed = |error| CliError::failed(format!("probes cannot be served: {error}"));
        self.listener.try_clone().and_then(TcpListener::from_std).map_err(failed)
    }
}
