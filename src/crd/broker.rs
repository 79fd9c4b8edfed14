//! Where a queue's tasks are kept.

#![allow(unreachable_pub, reason = "the schema is derived from copies of the types inside functions")]

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which kind of store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum BrokerType {
    /// Redis Streams.
    Redis,
}

/// The store that keeps a queue's tasks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.type == 'Redis' ? has(self.redis) : !has(self.redis)")
        .message("redis belongs to the type Redis: set it with that type"),
)]
pub struct Broker {
    /// Which kind of store: Redis.
    #[serde(rename = "type")]
    pub type_: BrokerType,
    /// Which Redis, and how it is reached. With the type Redis.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redis: Option<Redis>,
}

/// How a Redis is laid out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Topology {
    /// One server.
    #[default]
    Standalone,
    /// A master that Sentinels know.
    Sentinel,
    /// A Redis Cluster.
    Cluster,
}

/// Which Redis, and how it is reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.url) != has(self.urlSecretRef)")
        .message("say where Redis is in exactly one way: url, or urlSecretRef for a URL with credentials"),
    validation = Rule::new("self.topology == 'Sentinel' ? has(self.sentinel) : !has(self.sentinel)")
        .message("sentinel belongs to the topology Sentinel: set sentinel.masterName with that topology, and with no other"),
    validation = Rule::new("!has(self.tls) || !has(self.url) || self.url.startsWith('rediss://')")
        .message("tls needs a URL that begins with rediss://"),
)]
pub struct Redis {
    /// redis://HOST:PORT, with rediss:// for TLS; several HOST:PORT with commas between them name the nodes of a
    /// Cluster or the Sentinels. Without user and password: keep a URL that has them in a Secret and name it in `urlSecretRef`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024), regex(pattern = r"^rediss?://[^/\s]+(/[0-9]{1,3})?$"))]
    #[x_kube(validation = Rule::new("!self.contains('@')")
        .message("a URL in a manifest holds no user or password: put the whole URL into a Secret and name it in urlSecretRef"))]
    pub url: Option<String>,
    /// The Secret, in the queue's namespace, that holds the URL; there it may carry user and password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url_secret_ref: Option<SecretKeyRef>,
    /// How the Redis is laid out: Standalone, Sentinel or Cluster.
    #[serde(default)]
    pub topology: Topology,
    /// What the Sentinels are asked for. With the topology Sentinel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sentinel: Option<Sentinel>,
    /// How the server's certificate is checked; the system's authorities if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<RedisTls>,
}

/// What Sentinels are asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Sentinel {
    /// The name under which the Sentinels watch the master.
    #[schemars(length(min = 1, max = 128), regex(pattern = r"^[A-Za-z0-9._-]+$"))]
    pub master_name: String,
}

/// How a server's certificate is checked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RedisTls {
    /// The Secret that holds the certificate authority to trust, in PEM.
    pub ca_secret_ref: SecretKeyRef,
}

/// A value in a Secret of the same namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretKeyRef {
    /// The Secret's name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// The key in it.
    #[schemars(length(min = 1, max = 253))]
    pub key: String,
}

impl Redis {
    /// The URL that the engine takes, made from the one in the manifest or in the Secret.
    ///
    /// A URL that names its topology itself (`redis+cluster://…`) stays as it is.
    pub fn engine_url(&self, url: &str) -> String {
        let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
        if scheme.contains('+') {
            return url.to_owned();
        }
        let hosts = rest.split('/').next().unwrap_or(rest);
        match (self.topology, &self.sentinel) {
            (Topology::Cluster, _) => format!("{scheme}+cluster://{hosts}"),
            (Topology::Sentinel, Some(sentinel)) => format!("{scheme}+sentinel://{hosts}/{}", sentinel.master_name),
            _ => url.to_owned(),
        }
    }
}
