//! The custom resources: their definitions, what they refuse, and what they compile to.

#[path = "crd/compiled.rs"]
mod compiled;
#[path = "crd/definitions.rs"]
mod definitions;
#[path = "crd/rules.rs"]
mod rules;
