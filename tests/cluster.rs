//! The harness's own tests: what the operator's tests rely on holds on the Kubernetes that they are given.

mod support;

#[path = "support/kubernetes.rs"]
mod kubernetes;

mod cluster {
    mod api;
    mod harness;
    mod lifecycle;
    mod nodes;
    mod partition;
}
