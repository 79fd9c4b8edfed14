//! WorkerPools with pods that run: from `kubectl apply` to a task that is done, and what becomes of tasks when pods
//! are killed, deleted, evicted, starved and scaled away.
//!
//! Everything is the real thing, inside the cluster: the operator as the chart installs it, Redis, the worker beside
//! an application in Python. A test prints what it measured. What is promised is judged by the best of three tries, because
//! the machine is shared.

mod support;

#[path = "support/kubernetes.rs"]
mod kubernetes;

mod e2e_pools {
    mod ends;
    mod first;
    mod gone;
    mod outage;
    mod partition;
    mod sdk;
    mod sizes;
    mod stage;
}
