//! WorkerPools on a real API server: Deployments, scaling, and what happens to the tasks of pods that die.
//!
//! Every operator here is the real program, as the ServiceAccount that the chart makes, with the rights that
//! the chart gives and no others. There are no nodes: pods stay Pending, and a test that needs one to have run
//! says so to the API server, as a kubelet would.

mod support;

#[path = "support/kubernetes.rs"]
mod kubernetes;

mod operator_pools {
    mod deaths;
    mod deployments;
    mod drift;
    mod due;
    mod events;
    mod ground;
    mod kills;
    mod malformed;
    mod many;
    mod namespaces;
    mod neighbours;
    mod owners;
    mod pace;
    mod queues;
    mod reports;
    mod rights;
    mod rollouts;
    mod scaling;
    mod templates;
}
