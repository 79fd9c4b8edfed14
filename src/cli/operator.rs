//! `windlass operator`: the controllers of a Kubernetes cluster.

use std::net::SocketAddr;
use std::path::PathBuf;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::error::CliError;
use crate::broker::redis::{Redis, RedisOptions};
use crate::operator::error::OperatorError;
use crate::operator::{self, DefaultRedis, LeaseName, Namespaces, Options, PullPolicy};

/// Where the namespace of the pod is written that this runs in.
const POD_NAMESPACE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

/// Arguments of `windlass operator`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    windlass operator --redis-url redis://redis.shop:6379\n  \
    windlass operator --namespaces shop,mail --lease-namespace windlass-system\n  \
    WINDLASS_REDIS_URL=redis://… WINDLASS_EVENT_LOG_URL=postgres://… windlass operator\n\n\
    The API server is found as kubectl finds it: by KUBECONFIG, or by the ServiceAccount of the pod. The Helm chart under \
    charts/windlass installs it with the rights that it needs.\n\n\
    SIGTERM ends it: what is under way is finished, and another operator takes over at once.")]
pub struct Args {
    /// The Redis of TaskQueues that name no broker of their own; file:///PATH is read again when the file changes.
    #[arg(long, env = "WINDLASS_REDIS_URL", hide_env_values = true, value_name = "URL")]
    redis_url: Option<String>,
    /// A file with the certificate authority (PEM) to trust for that Redis instead of the public ones.
    #[arg(long, env = "WINDLASS_REDIS_CA_FILE", value_name = "FILE")]
    redis_ca_file: Option<PathBuf>,
    /// Where history is kept: postgres://USER:PASSWORD@HOST:PORT/DATABASE or sqlite://PATH; nowhere unless given.
    #[arg(long, env = "WINDLASS_EVENT_LOG_URL", hide_env_values = true, value_name = "URL")]
    event_log: Option<String>,
    /// Only look after these namespaces (all unless given).
    #[arg(long, env = "WINDLASS_NAMESPACES", value_name = "NAMESPACE,…", value_delimiter = ',')]
    namespaces: Vec<String>,
    /// The Lease by which one of several operators leads.
    #[arg(long, env = "WINDLASS_LEASE_NAME", value_name = "NAME", default_value = "windlass-operator")]
    lease_name: String,
    /// The namespace of that Lease (the pod's own unless given).
    #[arg(long, env = "WINDLASS_LEASE_NAMESPACE", value_name = "NAMESPACE")]
    lease_namespace: Option<String>,
    /// The image that carries the worker into the pods of WorkerPools.
    #[arg(
        long,
        env = "WINDLASS_WORKER_IMAGE",
        value_name = "IMAGE",
        default_value = concat!("ghcr.io/windlass-dev/windlass:", env!("CARGO_PKG_VERSION"))
    )]
    worker_image: String,
    /// When nodes pull that image (as Kubernetes does by itself unless given).
    #[arg(long, env = "WINDLASS_WORKER_IMAGE_PULL_POLICY", value_name = "POLICY")]
    worker_image_pull_policy: Option<PullPolicy>,
    /// Serve /livez, /readyz and /metrics on this address; port 0 takes a free one.
    #[arg(long, env = "WINDLASS_LISTEN", value_name = "ADDRESS:PORT", default_value = "0.0.0.0:8080")]
    listen: SocketAddr,
}

impl From<OperatorError> for CliError {
    fn from(error: OperatorError) -> Self {
        Self::failed(error.to_string())
    }
}

/// Runs until it is told to end.
pub(super) async fn run(args: Args) -> Result<(), CliError> {
    let options = args.options()?;
    let shutdown = CancellationToken::new();
    let failed = |error| CliError::failed(format!("signals cannot be heard: {error}"));
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let stop = shutdown.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        stop.cancel();
    });
    Ok(operator::run(options, shutdown).await?)
}

impl Args {
    fn options(self) -> Result<Options, CliError> {
        let given = |value: Option<String>| value.filter(|value| !value.is_empty());
        let default_redis = match given(self.redis_url) {
            Some(url) => Some(default_redis(DefaultRedis { url, ca_file: self.redis_ca_file })?),
            None => None,
        };
        let namespace = given(self.lease_namespace)
            .or_else(|| given(std::fs::read_to_string(POD_NAMESPACE).ok()).map(|name| name.trim().to_owned()));
        let namespace = namespace.ok_or_else(|| {
            CliError::usage(
                "which namespace is the Lease in? This is no pod, so say --lease-namespace (or WINDLASS_LEASE_NAMESPACE)",
            )
        })?;
        for name in self.namespaces.iter().chain([&namespace, &self.lease_name]) {
            check_name(name)?;
        }
        Ok(Options {
            default_redis,
            event_log_url: given(self.event_log),
            namespaces: Namespaces::of(self.namespaces),
            lease: LeaseName { namespace, name: self.lease_name },
            worker_image: self.worker_image,
            worker_image_pull_policy: self.worker_image_pull_policy,
            listen: self.listen,
            instance: instance(),
        })
    }
}

/// What is wrong with the address is said at once, and not in the condition of every queue.
fn default_redis(default: DefaultRedis) -> Result<DefaultRedis, CliError> {
    let (url, _) = default.now()?;
    Redis::new(RedisOptions::new(url))?;
    Ok(default)
}

/// Namespaces and Leases have names like these; an empty one stands for a comma too many.
fn check_name(name: &str) -> Result<(), CliError> {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
    let end = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let fine = name.len() <= 253 && name.chars().all(inner) && name.starts_with(end) && name.ends_with(end);
    if fine || name.is_empty() {
        return Ok(());
    }
    Err(CliError::usage(format!(
        "{name:?} is no name of a namespace or Lease: use lower-case letters, digits and -, like shop"
    )))
}

/// The pod's name where there is one, and a nonce a start: a pod's container may start anew under the same name.
fn instance() -> String {
    let host = std::env::var("HOSTNAME").ok().filter(|name| !name.is_empty());
    format!("{}-{:08x}", host.unwrap_or_else(|| "operator".to_owned()), fastrand::u32(..))
}
