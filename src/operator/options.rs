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
    /// When nodes pull that image; as Kubernetes does by itself where nothing is said.
    pub worker_image_pull_policy: Option<PullPolicy>,
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

/// When a node pulls an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "PascalCase")]
pub enum PullPolicy {
    /// At every start of a container.
    Always,
    /// Where the node does not have it.
    IfNotPresent,
    /// Not at all: it has to be there.
    Never,
}

impl PullPolicy {
    /// As it stands in a pod.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Always => "Always",
            Self::IfNotPresent => "IfNotPresent",
            Self::Never => "Never",
        }
    }

    /// What Kubernetes does with an image of which nothing is said.
    pub fn by_default(image: &str) -> Self {
        let (name, digest) = image.split_once('@').map_or((image, false), |(name, _)| (name, true));
        // A colon before a slash is that of a registry's port.
        let tag = name.rsplit('/').next().and_then(|last| last.split_once(':')).map(|(_, tag)| tag);
        let moves = tag.map_or(!digest, |tag| tag == "latest");
        if moves { Self::Always } else { Self::IfNotPresent }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_may_change_under_its_name_is_pulled_again() {
        for image in ["windlass", "windlass:latest", "registry:5000/windlass", "windlass:latest@sha256:0"] {
            assert_eq!(PullPolicy::by_default(image), PullPolicy::Always, "{image}");
        }
        for image in ["windlass:1", "registry:5000/a/windlass:1", "registry:5000/windlass@sha256:0"] {
            assert_eq!(PullPolicy::by_default(image), PullPolicy::IfNotPresent, "{image}");
        }
    }
}
