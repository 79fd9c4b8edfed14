//! The custom resources `TaskQueue` and `WorkerPool` (`windlass.dev/v1alpha1`).
//!
//! Owns: their Rust types, the definitions that a cluster is given, and what a
//! manifest may say. Must not know: how a manifest is carried out, Redis, files.
//!
//! Main flow: [`definition`] makes the CRD of a [`Kind`] from its type;
//! [`check`](mod@check) judges a manifest by that same schema (fields, types,
//! bounds, defaults, CEL rules), as the API server would; the types read what
//! passed; [`TaskQueueSpec::policy`] and [`TaskQueueSpec::keys`] compile it into
//! what the engine takes.
//!
//! The doc comments of the types are what `kubectl explain` prints.

mod backoff;
mod broker;
pub mod check;
mod compile;
mod schema;
mod task_queue;
mod template;
mod worker_pool;

use std::sync::OnceLock;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde_json::Value;

pub use backoff::{Backoff, BackoffStrategy, Jitter, JitterKind};
pub use broker::{Broker, BrokerType, Redis, RedisTls, SecretKeyRef, Sentinel, Topology};
pub use compile::InvalidSpec;
pub use task_queue::{
    DeadLetter, DeletionPolicy, Discard, Idempotency, Keys, Limits, Priority, RateLimit, Reclaim, Retention, Retry,
    TaskQueue, TaskQueueSpec, TaskQueueStatus, TaskType,
};
pub use template::{Container, LocalProcess, PodSpec, PodTemplate};
pub use worker_pool::{
    Autoscaling, Entrypoint, ExecHandler, Handler, HandlerType, HttpHandler, QueueRef, SdkHandler, WorkerPool,
    WorkerPoolSpec, WorkerPoolStatus, WorkerSettings,
};

/// The group and version of both resources.
pub const API_VERSION: &str = "windlass.dev/v1alpha1";

/// Which of the two resources.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A queue.
    TaskQueue,
    /// The workers of a queue.
    WorkerPool,
}

impl Kind {
    /// Both.
    pub const ALL: [Self; 2] = [Self::TaskQueue, Self::WorkerPool];

    /// As a manifest spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::TaskQueue => "TaskQueue",
            Self::WorkerPool => "WorkerPool",
        }
    }

    /// The kind that a manifest names.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }

    /// How a definition's file is called.
    pub fn file_name(self) -> &'static str {
        match self {
            Self::TaskQueue => "taskqueues.windlass.dev.yaml",
            Self::WorkerPool => "workerpools.windlass.dev.yaml",
        }
    }

    /// The schema of its objects, as JSON.
    pub fn schema(self) -> &'static Value {
        static SCHEMAS: OnceLock<[Value; 2]> = OnceLock::new();
        let schemas = SCHEMAS.get_or_init(|| Self::ALL.map(|kind| schema::of(&definition(kind))));
        &schemas[self as usize]
    }
}

/// The definition of a resource, as a cluster is given it.
pub fn definition(kind: Kind) -> CustomResourceDefinition {
    schema::tidy(match kind {
        Kind::TaskQueue => TaskQueue::crd(),
        Kind::WorkerPool => WorkerPool::crd(),
    })
}

/// The definition of a resource as YAML, ready for `kubectl apply`.
pub fn yaml(kind: Kind) -> String {
    let body = serde_yaml::to_string(&schema::plain(&definition(kind))).expect("invariant: a definition is plain data");
    format!("# Made by `windlass crd` from the types in src/crd; edit those.\n{body}")
}
