//! What the pods of a pool are told: which queue, on which Redis, and who they are.

use serde_json::{Value, json};

use crate::crd::{Redis, SecretKeyRef, Topology};
use crate::protocol::names::QueueName;

/// The Secret, in the pool's namespace, that pods take the address of the
/// operator's own Redis from where it holds a password: the operator's is never
/// handed on.
pub(crate) const DEFAULT_SECRET: &str = "windlass-redis";
/// The key in it.
pub(crate) const DEFAULT_SECRET_KEY: &str = "url";

/// Where a value of the environment comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum From {
    /// It is no secret.
    Plain(String),
    /// A Secret of the pool's namespace.
    Secret(SecretKeyRef),
}

/// How pods reach the Redis of their queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Access {
    pub(super) url: From,
    /// What the URL alone does not tell, where it comes from a Secret.
    pub(super) topology: Topology,
    pub(super) master: Option<String>,
    /// The certificate authority to trust, in PEM.
    pub(super) authority: Option<From>,
}

impl Access {
    /// To the Redis that a queue names itself.
    pub(super) fn to(redis: &Redis) -> Self {
        let authority = redis.tls.as_ref().map(|tls| From::Secret(tls.ca_secret_ref.clone()));
        match (&redis.url_secret_ref, &redis.url) {
            (Some(secret), _) => Self {
                url: From::Secret(secret.clone()),
                topology: redis.topology,
                master: redis.sentinel.as_ref().map(|sentinel| sentinel.master_name.clone()),
                authority,
            },
            // The address says it all.
            (None, url) => Self {
                url: From::Plain(redis.engine_url(url.as_deref().unwrap_or_default())),
                topology: Topology::Standalone,
                master: None,
                authority,
            },
        }
    }

    /// To the operator's own Redis.
    pub(super) fn to_default(url: &str, ca_pem: Option<&[u8]>) -> Self {
        let secret = || SecretKeyRef { name: DEFAULT_SECRET.to_owned(), key: DEFAULT_SECRET_KEY.to_owned() };
        Self {
            url: if holds_credentials(url) { From::Secret(secret()) } else { From::Plain(url.to_owned()) },
            topology: Topology::Standalone,
            master: None,
            // A certificate is no secret.
            authority: ca_pem.map(|pem| From::Plain(String::from_utf8_lossy(pem).into_owned())),
        }
    }

    /// The Secrets that they are told of by reference.
    pub(super) fn secrets(&self) -> impl Iterator<Item = &SecretKeyRef> {
        let all = std::iter::once(&self.url).chain(&self.authority);
        all.filter_map(|source| match source {
            From::Secret(secret) => Some(secret),
            From::Plain(_) => None,
        })
    }
}

fn holds_credentials(url: &str) -> bool {
    url.contains('@')
}

/// Who a container is told that it is.
#[derive(Debug, Clone)]
pub(super) struct Identity<'a> {
    pub(super) queue: &'a QueueName,
    pub(super) pool_uid: &'a str,
    pub(super) access: &'a Access,
    pub(super) task_types: &'a [String],
    pub(super) concurrency: u32,
}

/// The variables of a container, in the order in which they can build on each other.
pub(super) fn variables(identity: &Identity<'_>, container: &str) -> Vec<Value> {
    let access = identity.access;
    let mut all = vec![
        plain("WINDLASS_QUEUE", &identity.queue.to_string()),
        from("WINDLASS_REDIS_URL", &access.url),
        field("WINDLASS_POD_NAME", "metadata.name"),
        field("WINDLASS_POD_NAMESPACE", "metadata.namespace"),
        field("WINDLASS_POD_UID", "metadata.uid"),
        plain("WINDLASS_CONTAINER", container),
        plain("WINDLASS_POOL_UID", identity.pool_uid),
        plain("WINDLASS_CONCURRENCY", &identity.concurrency.to_string()),
    ];
    if !identity.task_types.is_empty() {
        all.push(plain("WINDLASS_TASK_TYPES", &identity.task_types.join(",")));
    }
    match access.topology {
        Topology::Standalone => {}
        Topology::Cluster => all.push(plain("WINDLASS_REDIS_TOPOLOGY", "cluster")),
        Topology::Sentinel => {
            all.push(plain("WINDLASS_REDIS_TOPOLOGY", "sentinel"));
            all.push(plain("WINDLASS_REDIS_MASTER", access.master.as_deref().unwrap_or_default()));
        }
    }
    all.extend(access.authority.as_ref().map(|authority| from("WINDLASS_REDIS_CA", authority)));
    all
}

/// Puts variables before those that a container has. Ours win: a pod that gives
/// itself another name than its own would lose its tasks to nobody's benefit.
pub(super) fn add_variables(container: &mut Value, ours: Vec<Value>) {
    let name_of = |variable: &Value| variable["name"].as_str().map(str::to_owned);
    let taken: Vec<_> = ours.iter().filter_map(name_of).collect();
    let theirs = match container.get_mut("env").map(Value::take) {
        Some(Value::Array(theirs)) => theirs,
        _ => Vec::new(),
    };
    let kept = theirs.into_iter().filter(|variable| name_of(variable).is_none_or(|name| !taken.contains(&name)));
    container["env"] = ours.into_iter().chain(kept).collect();
}

fn plain(name: &str, value: &str) -> Value {
    // Kubernetes puts other variables in where it finds $(NAME); a doubled $ stands for itself.
    json!({ "name": name, "value": value.replace('$', "$$") })
}

fn from(name: &str, source: &From) -> Value {
    match source {
        From::Plain(value) => plain(name, value),
        From::Secret(SecretKeyRef { name: secret, key }) => {
            json!({ "name": name, "valueFrom": { "secretKeyRef": { "name": secret, "key": key } } })
        }
    }
}

fn field(name: &str, path: &str) -> Value {
    json!({ "name": name, "valueFrom": { "fieldRef": { "fieldPath": path } } })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crd::{RedisTls, Sentinel};

    fn secret(name: &str) -> SecretKeyRef {
        SecretKeyRef { name: name.to_owned(), key: "url".to_owned() }
    }

    fn redis(url: Option<&str>) -> Redis {
        let url_secret_ref = url.is_none().then(|| secret("redis"));
        Redis { url: url.map(str::to_owned), url_secret_ref, topology: Topology::Standalone, sentinel: None, tls: None }
    }

    fn named<'a>(all: &'a [Value], name: &str) -> Option<&'a Value> {
        all.iter().find(|variable| variable["name"] == name)
    }

    fn told(access: &Access) -> Vec<Value> {
        let queue = "shop/emails".parse().expect("valid");
        let identity = Identity { queue: &queue, pool_uid: "u", access, task_types: &[], concurrency: 2 };
        variables(&identity, "worker")
    }

    #[test]
    fn a_password_reaches_pods_by_reference_alone() {
        let all = told(&Access::to(&redis(None)));
        let url = named(&all, "WINDLASS_REDIS_URL").expect("told");
        assert_eq!(url["valueFrom"]["secretKeyRef"], json!({"name": "redis", "key": "url"}));
        assert!(url.get("value").is_none());
        let own = Access::to_default("redis://user:secret@redis:6379", None);
        assert_eq!(own.url, From::Secret(secret(DEFAULT_SECRET)), "the operator's password stays with the operator");
        let open = Access::to_default("redis://redis:6379", Some(b"PEM"));
        assert_eq!(open.url, From::Plain("redis://redis:6379".into()));
        assert_eq!(open.authority, Some(From::Plain("PEM".into())));
    }

    #[test]
    fn what_an_address_in_a_secret_does_not_tell_is_told_beside_it() {
        let sentinel = Sentinel { master_name: "main".into() };
        let tls = RedisTls { ca_secret_ref: secret("ca") };
        let watched = Redis { topology: Topology::Sentinel, sentinel: Some(sentinel), tls: Some(tls), ..redis(None) };
        let all = told(&Access::to(&watched));
        assert_eq!(named(&all, "WINDLASS_REDIS_TOPOLOGY").expect("told")["value"], "sentinel");
        assert_eq!(named(&all, "WINDLASS_REDIS_MASTER").expect("told")["value"], "main");
        assert_eq!(named(&all, "WINDLASS_REDIS_CA").expect("told")["valueFrom"]["secretKeyRef"]["name"], "ca");
        let plain = Redis { topology: Topology::Cluster, ..redis(Some("redis://a:1,b:2")) };
        let all = told(&Access::to(&plain));
        assert_eq!(named(&all, "WINDLASS_REDIS_URL").expect("told")["value"], "redis+cluster://a:1,b:2");
        assert!(named(&all, "WINDLASS_REDIS_TOPOLOGY").is_none());
    }

    #[test]
    fn a_containers_own_variables_stay_but_for_those_that_say_who_it_is() {
        let mut container = json!({"env": [{"name": "A", "value": "1"}, {"name": "WINDLASS_QUEUE", "value": "other"}]});
        add_variables(&mut container, vec![plain("WINDLASS_QUEUE", "a$b")]);
        let expected = json!([{"name": "WINDLASS_QUEUE", "value": "a$$b"}, {"name": "A", "value": "1"}]);
        assert_eq!(container["env"], expected);
    }
}
