//! What both controllers share while this process leads.
//!
//! A context lives for one term of leadership: when the term ends, everything
//! in it ends, so nothing of an old term can write in a new one.

use std::sync::Arc;

use kube::api::Api;
use kube::core::NamespaceResourceScope;
use kube::{Client, Resource};
use tokio_util::sync::CancellationToken;

use super::connections::Connections;
use super::directory::Directory;
use super::election::Mandate;
use super::events::Events;
use super::history::HistoryKeeper;
use super::loops::Loops;
use super::metrics::OperatorMetrics;
use super::options::{Namespaces, Options};
use super::pods::book::PodBook;
use super::requeue::{Failures, Leaving};
use super::said::Said;
use super::secrets::Secrets;
use super::status::StatusWriter;
use crate::event_log::EventLog;
use crate::maintenance::metrics::LoopMetrics;

/// What both controllers share.
pub struct Context {
    /// The API server.
    pub client: Client,
    /// What the operator was told when it started.
    pub options: Options,
    /// Names the cluster: a UID that no other cluster has.
    pub cluster: String,
    /// Kubernetes Events.
    pub events: Events,
    /// Writes statuses.
    pub status: StatusWriter,
    /// How often each object failed in a row.
    pub failures: Failures,
    /// Since when objects are known to be on their way out.
    pub(super) leaving: Leaving,
    /// How Redis servers are reached.
    pub connections: Connections,
    /// The queues that are looked after.
    pub directory: Directory,
    /// What is known of the pods of all pools.
    pub(super) pods: PodBook,
    /// Where history goes, if anywhere.
    pub event_log: Option<EventLog>,
    /// Whether history is kept.
    pub history: HistoryKeeper,
    /// Values out of Secrets.
    pub(super) secrets: Arc<Secrets>,
    /// What the operator tells Prometheus about itself.
    pub metrics: OperatorMetrics,
    /// What was said about objects whose status cannot tell.
    pub said: Said,
    /// Ends when this process no longer leads.
    pub term: CancellationToken,
    pub(super) loops: Loops,
    mandate: Mandate,
}

/// What a process has for all of its terms.
#[derive(Clone)]
pub(super) struct Standing {
    pub(super) client: Client,
    pub(super) options: Options,
    pub(super) cluster: String,
    pub(super) event_log: Option<EventLog>,
    pub(super) loop_metrics: LoopMetrics,
    pub(super) metrics: OperatorMetrics,
}

impl Context {
    /// The context of a new term.
    pub(super) fn new(standing: &Standing, mandate: Mandate, term: CancellationToken) -> Arc<Self> {
        let Standing { client, options, cluster, event_log, loop_metrics, metrics } = standing.clone();
        let secrets = Arc::new(Secrets::new(client.clone()));
        Arc::new(Self {
            events: Events::new(client.clone(), &options.instance),
            status: StatusWriter::default(),
            failures: Failures::default(),
            leaving: Leaving::default(),
            connections: Connections::new(options.default_redis.clone(), secrets.clone()),
            directory: Directory::default(),
            pods: PodBook::default(),
            loops: Loops::start(loop_metrics),
            history: HistoryKeeper::new(event_log.clone()),
            said: Said::default(),
            secrets,
            metrics,
            mandate,
            client,
            options,
            cluster,
            event_log,
            term,
        })
    }

    /// Whether this process may still write. Ask before a step: a process that was stopped for a while finds out here
    /// that somebody else leads.
    pub fn leads(&self) -> bool {
        self.mandate.holds() && !self.term.is_cancelled()
    }

    /// One API a namespace that is watched, or one for all.
    pub fn apis<K>(&self) -> Vec<Api<K>>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        match &self.options.namespaces {
            Namespaces::All => vec![Api::all(self.client.clone())],
            Namespaces::Some(names) => names.iter().map(|name| Api::namespaced(self.client.clone(), name)).collect(),
        }
    }

    /// The API of one namespace.
    pub fn api<K>(&self, namespace: &str) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), namespace)
    }
}
