//! The words that every part of Windlass shares: names, tasks, states, policy and delays.
//!
//! Owns: what a task is, which states it may pass through, what a queue's
//! policy says, how long a retry waits, and how every Redis key is spelt.
//! Must not know: Redis, Kubernetes, clocks, randomness or any other I/O;
//! everything here is a value or a pure function.
//!
//! Main flow: a producer fills in a [`task::NewTask`], a broker moves it
//! through [`state::State`]s as [`policy::Policy`] says, waiting between
//! attempts as [`backoff::Backoff`] computes, under the keys of [`keys::Keys`].

pub mod backoff;
pub mod fingerprint;
pub mod keys;
pub mod names;
pub mod policy;
pub mod state;
pub mod task;

/// Version of the data model that this build writes.
///
/// A client works with data that is one version older or newer, because
/// workers built into users' images live for months; further apart it refuses.
pub const DATA_MODEL_VERSION: u32 = 1;
