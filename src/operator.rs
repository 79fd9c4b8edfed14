//! The operator: `TaskQueue` and `WorkerPool` objects, made true.
//!
//! Owns: the controllers, who leads, and what is written to the API server.
//! Must not know: how a broker keeps its tasks, how a worker runs one, SQL.
//!
//! Main flow: [`run`] waits until this process leads; then each controller
//! watches its objects and takes each through observe (reads), plan (pure),
//! apply (writes) and status (only when it changed). The maintenance loops of all queues
//! run beside them. When the term ends, everything of it ends.
//!
//! A step is safe to repeat and safe to cut off: what it knows it finds in the
//! objects and in Redis, never in what it did before.

pub mod apply;
pub mod conditions;
pub mod connections;
pub mod context;
pub mod directory;
mod election;
pub mod error;
pub mod events;
pub mod history;
mod loops;
pub mod metrics;
pub mod options;
mod pods;
mod pool;
mod probes;
pub mod queue;
pub mod reasons;
pub mod requeue;
pub mod said;
pub mod secrets;
pub mod status;

use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client, ResourceExt};
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use self::context::{Context, Standing};
use self::election::{Election, Held};
use self::error::OperatorError;
use self::metrics::OperatorMetrics;
pub use self::options::{DefaultRedis, LeaseName, Namespaces, Options, PullPolicy};
use self::probes::Pulse;
use crate::event_log::EventLog;
use crate::maintenance::metrics::LoopMetrics;

/// How long to wait before the API server is asked again who it is.
const ASK_AGAIN: Duration = Duration::from_secs(2);
/// What the end of a term may take before the Lease is released: somebody waits for it.
const END_OF_TERM: Duration = Duration::from_millis(500);

/// Runs until `shutdown`.
pub async fn run(options: Options, shutdown: CancellationToken) -> Result<(), OperatorError> {
    let listen = options.listen;
    let refused = |error| {
        OperatorError::Start(format!("probes cannot be served on {listen}: {error}; give --listen another address"))
    };
    let listener = TcpListener::bind(listen).await.map_err(refused)?;
    tracing::info!(address = %listener.local_addr().map_err(refused)?, "probes and metrics are served");
    let event_log = options.event_log_url.as_deref().map(EventLog::open).transpose();
    let event_log = event_log.map_err(|error| OperatorError::Start(error.to_string()))?;
    let client = client().await?;

    let (loop_metrics, metrics, pulse) = (LoopMetrics::default(), OperatorMetrics::default(), Pulse::new());
    let mut registry = Registry::default();
    loop_metrics.register(&mut registry);
    metrics.register(&mut registry);
    // What runs beside the terms ends with this function.
    let mut beside = JoinSet::new();
    beside.spawn(probes::serve(listener, pulse.clone(), registry));

    let cluster = tokio::select! {
        cluster = cluster_id(&client, &options, &pulse) => cluster,
        () = shutdown.cancelled() => return Ok(()),
    };
    tracing::info!(cluster, instance = options.instance, namespaces = ?options.namespaces, "operator started");
    let standing = Standing { client, options, cluster, event_log, loop_metrics, metrics };
    let ended = serve_terms(&standing, &pulse, &shutdown).await;
    tracing::info!("operator ended");
    ended
}

/// Leads whenever this process holds the Lease, until `shutdown`, or until a part of it breaks.
async fn serve_terms(standing: &Standing, pulse: &Pulse, shutdown: &CancellationToken) -> Result<(), OperatorError> {
    let Options { lease, instance, .. } = &standing.options;
    let mut election = Election::new(standing.client.clone(), lease, instance);
    let mut said = false;
    loop {
        let beat = |trouble: Option<&OperatorError>| {
            tell(pulse, trouble);
            if let Some(error) = trouble.filter(|_| !said) {
                tracing::warn!(%error, "the Lease could not be looked at");
            }
            said = trouble.is_some();
        };
        let held = tokio::select! {
            held = election.acquire(beat) => held,
            () = shutdown.cancelled() => return Ok(()),
        };
        tracing::info!("leading");
        standing.metrics.set_leads(true);
        let (ended, held) = serve_term(standing, &election, held, pulse, shutdown).await;
        standing.metrics.set_leads(false);
        standing.loop_metrics.forget_queues();
        match ended {
            End::Lost(error) => tracing::warn!(%error, "no longer leading"),
            End::Shutdown => {
                release(&election, held).await;
                return Ok(());
            }
            // What is broken in this process may work in another one, or in the next one here.
            End::Broken(error) => {
                release(&election, held).await;
                return Err(error);
            }
        }
    }
}

async fn release(election: &Election, held: Held) {
    match election.release(held).await {
        Ok(()) => tracing::info!("leadership released"),
        Err(error) => tracing::warn!(%error, "leadership could not be released: others wait until it expires"),
    }
}

/// The process goes on, with the API server or without it.
fn tell(pulse: &Pulse, trouble: Option<&OperatorError>) {
    match trouble {
        None => pulse.well(),
        Some(error) => pulse.troubled(error.to_string()),
    }
}

/// Why a term ended.
#[derive(Debug)]
enum End {
    /// The Lease is lost, or may be.
    Lost(OperatorError),
    /// The process is to end.
    Shutdown,
    /// A part of the work ended by itself, so this process would lead and do nothing.
    Broken(OperatorError),
}

/// Does a leader's work for as long as the Lease is held. Nothing of it goes on afterwards.
async fn serve_term(
    standing: &Standing,
    election: &Election,
    mut held: Held,
    pulse: &Pulse,
    shutdown: &CancellationToken,
) -> (End, Held) {
    let term = CancellationToken::new();
    let context = Context::new(standing, held.mandate.clone(), term.clone());
    let mut work = JoinSet::new();
    work.spawn(election::guard(held.mandate.clone(), term.clone()));
    work.spawn(queue::run(context.clone()));
    work.spawn(pool::run(context));
    let keep = election.keep(&mut held, |trouble| tell(pulse, trouble));
    let ended = until_the_end(&mut work, keep, &term, shutdown).await;
    term.cancel();
    // What is under way gets a moment to end by itself; the rest is cut off, which every step survives.
    drop(tokio::time::timeout(END_OF_TERM, async { while work.join_next().await.is_some() {} }).await);
    work.shutdown().await;
    (ended, held)
}

/// Waits until a term ends. Its parts go on until then: one that panics, or takes itself for done, ends it.
async fn until_the_end(
    work: &mut JoinSet<()>,
    keep: impl Future<Output = OperatorError>,
    term: &CancellationToken,
    shutdown: &CancellationToken,
) -> End {
    let broken = async {
        let part = work.join_next().await;
        if term.is_cancelled() {
            // The parts end with their term, and that one says why.
            std::future::pending::<()>().await;
        }
        match part {
            Some(Err(error)) => error.to_string(),
            _ => "it took itself for done".to_owned(),
        }
    };
    tokio::select! {
        error = keep => End::Lost(error),
        () = term.cancelled() => End::Lost(OperatorError::LeaseLost("it could not be renewed in time".to_owned())),
        () = shutdown.cancelled() => End::Shutdown,
        why = broken => End::Broken(OperatorError::Broken(why)),
    }
}

/// The API server, as the pod's ServiceAccount or a kubeconfig names it.
async fn client() -> Result<Client, OperatorError> {
    let config = kube::Config::infer().await.map_err(|error| {
        OperatorError::Start(format!(
            "there is no API server to work with: run in a pod, or set KUBECONFIG to a file that names one ({error})"
        ))
    })?;
    Client::try_from(config).map_err(OperatorError::api("take us as a client"))
}

/// What tells this cluster from every other: the UID of `kube-system`, or of the operator's own namespace where only
/// that may be read.
async fn cluster_id(client: &Client, options: &Options, pulse: &Pulse) -> String {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    loop {
        let mut trouble = None;
        for name in ["kube-system", &options.lease.namespace] {
            match error::bounded(namespaces.get(name), "say which cluster this is").await {
                Ok(namespace) => return namespace.uid().unwrap_or_default(),
                // Not allowed to see it, or not there: the other one will do.
                Err(error) if matches!(error.code(), Some(403 | 404)) => trouble = Some(error),
                Err(error) => {
                    trouble = Some(error);
                    break;
                }
            }
        }
        if let Some(error) = trouble {
            tracing::warn!(%error, "the API server does not tell which cluster this is");
            pulse.troubled(error.to_string());
        }
        tokio::time::sleep(ASK_AGAIN).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How a term ends whose Lease is kept, with these parts.
    async fn end_of(part: impl Future<Output = ()> + Send + 'static, term: CancellationToken) -> End {
        let mut work = JoinSet::new();
        work.spawn(std::future::pending());
        work.spawn(part);
        let (kept, shutdown) = (std::future::pending(), CancellationToken::new());
        until_the_end(&mut work, kept, &term, &shutdown).await
    }

    #[tokio::test]
    async fn a_leader_does_not_outlive_a_part_of_its_work() {
        let panicked = end_of(async { panic!("out of its mind") }, CancellationToken::new()).await;
        assert!(matches!(&panicked, End::Broken(error) if error.to_string().contains("panicked")), "{panicked:?}");
        let done = end_of(async {}, CancellationToken::new()).await;
        assert!(matches!(done, End::Broken(_)), "{done:?}");
    }

    #[tokio::test]
    async fn parts_that_end_with_their_term_are_not_broken() {
        let term = CancellationToken::new();
        let part = {
            let term = term.clone();
            async move { term.cancel() }
        };
        let ended = end_of(part, term).await;
        assert!(matches!(ended, End::Lost(_)), "{ended:?}");
    }

    #[tokio::test]
    async fn a_term_ends_when_the_process_is_to_end() {
        let (mut work, term, shutdown) = (JoinSet::new(), CancellationToken::new(), CancellationToken::new());
        work.spawn(std::future::pending());
        shutdown.cancel();
        let ended = until_the_end(&mut work, std::future::pending(), &term, &shutdown).await;
        assert!(matches!(ended, End::Shutdown), "{ended:?}");
    }
}
