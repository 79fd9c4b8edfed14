//! The Helm chart: what it renders is taken by a real API server, and what cannot work is refused.

mod support;

#[path = "support/kubernetes.rs"]
mod kubernetes;

#[allow(dead_code, reason = "the ground of the operator's tests; only what starts an operator is used here")]
#[path = "operator/ground.rs"]
mod operator_ground;

mod chart {
    mod definitions;
    mod ground;
    mod life;
    mod matrix;
    mod monitoring;
    mod network;
    mod notes;
    mod pods;
    mod pools;
    mod refused;
    mod roles;
    mod schema;
    mod security;
}
