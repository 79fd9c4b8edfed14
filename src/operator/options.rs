//! What the operator is told when it starts.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;

use crate::broker::BrokerError;
use crate::broker::redis::address_behind;

/// The operator's settings, as the command line gives them.
#[derive(Clone)]
pub struct Options {
    /// The Redis of queues that name none; such queues are not ready without it.
    pub default_redis: Option<DefaultRedis>,
    /// Where history is recorded, if anywhere: `postgres://…` or `sqlite://…`.
    pub event_log_url: Option<String>,
    /// Where TaskQueues and WorkerPools are looked after.
    pub namespaces: Namespaces,
    /// The Lease by which one of several operators leads.
    pub lease: LeaseName,
    /// The image that carries the worker into pods.
    pub worker_image: String,
    /// Where probes and metrics are served.
    pub listen: SocketAddr,
    /// Names this process among its like: the pod's name and a nonce.
    pub instance: String,
}

/// The Redis of queues that name none.
#[derive(Clone)]
pub struct DefaultRedis {
    /// Where it is, with user and password if it needs them; or `file:///PATH`.
    pub url: String,
    /// The certificate authority to trust instead of the public ones, a file in PEM.
    pub ca_file: Option<PathBuf>,
}

impl DefaultRedis {
    /// Its address and the certificate authority at this moment: files are read
    /// anew, because what mounts Secrets into pods changes them in place.
    pub fn now(&self) -> Result<(String, Option<Vec<u8>>), BrokerError> {
        let url = address_behind(&self.url)?.into_owned();
        let read = |file: &PathBuf| {
            std::fs::read(file).map_err(|error| {
                BrokerError::Invalid(format!("the certificate file {} cannot be read: {error}", file.display()))
            })
        };
        Ok((url, self.ca_file.as_ref().map(read).transpose()?))
    }
}

/// Where objects are looked after.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Namespaces {
    /// In the whole cluster.
    All,
    /// In these alone; never empty.
    Some(BTreeSet<String>),
}

impl Namespaces {
    /// All namespaces where none is named.
    pub fn of(names: impl IntoIterator<Item = String>) -> Self {
        let names: BTreeSet<String> = names.into_iter().filter(|name| !name.is_empty()).collect();
        if names.is_empty() { Self::All } else { Self::Some(names) }
    }
}

/// Which Lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseName {
    /// The namespace of the operator itself.
    pub namespace: String,
    /// Its name there.
    pub name: String,
}
