//! Every example: its manifests are accepted by a real API server and by the operator, it does on one machine what its own
//! comment says, and each profile keeps what the system asks for that it stands in for.

#![allow(clippy::cloned_ref_to_slice_refs, reason = "a list of one is compared, and read more easily as one")]

mod support;

#[path = "support/kubernetes.rs"]
mod kubernetes;

#[allow(dead_code, reason = "the ground of the pools' tests; here manifests of people stand on it")]
#[path = "operator_pools/ground.rs"]
mod operator_ground;

mod examples {
    mod accepted;
    mod ade;
    mod automechanica;
    mod gate_b2;
    mod loki;
    mod operated;
    mod pods;
    mod profile;
    mod protocol;
    mod told;
    mod tree;
    mod tried;
}
