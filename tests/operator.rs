//! The operator on a real API server and a real Redis, always as the ServiceAccount that the chart grants.

mod support;

#[path = "support/kubernetes.rs"]
mod kubernetes;

mod operator {
    mod broker;
    mod compiled;
    mod deletion;
    mod drift;
    mod ground;
    mod kills;
    mod many;
    mod ownership;
    mod pace;
    mod process;
    mod queues;
    mod refused;
    mod rights;
    mod rights_of_all;
    mod secrets;
    mod topologies;
}
