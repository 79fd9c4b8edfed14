//! The chart as a person uses it: installed, upgraded, removed, killed and worn, with `kubectl` and `helm` as they are
//! typed, in pods that run, on two nodes.
//!
//! A test prints what it measured, and asserts only times that the cluster itself tells, because the machine is shared.
//! Releases bring definitions that are the whole cluster's, so the tests share one cluster and take turns.

mod support;

#[path = "support/kubernetes.rs"]
mod kubernetes;

#[allow(dead_code, reason = "it reads all that the examples say; only what is for a cluster is used here")]
#[path = "examples/tree.rs"]
mod tree;

mod e2e_install {
    mod examples;
    mod load;
    mod production;
    mod readme;
    mod removal;
    mod scene;
    mod scope;
    mod soak;
    mod takeover;
    mod upgrade;
}
