//! Task queues on Redis Streams, native to Kubernetes.
//!
//! The crate is a library and a binary. Applications use [`Producer`] to put
//! tasks into a queue and [`Worker`] to run them; the binary carries the other
//! roles. ARCHITECTURE.md has the map.

pub mod bench;
pub mod broker;
pub mod cli;
pub mod conformance;
pub mod crd;
pub mod dead_letters;
pub mod dev;
pub mod event_log;
pub mod maintenance;
pub mod operator;
mod probes;
mod producer;
pub mod protocol;
pub mod telemetry;
pub mod worker;

pub use broker::Outcome;
pub use producer::Producer;
pub use protocol::names::{QueueName, TaskId, TaskType};
pub use protocol::state::State;
pub use protocol::task::{NewTask, NotBefore, Payload, TaskView};
pub use worker::{Handler, TaskContext, Worker, WorkerHandle, WorkerOptions};
