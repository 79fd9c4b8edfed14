//! The documents: what they name is there, what they show is accepted, and no condition is missing in them.

#[path = "docs/commands.rs"]
mod commands;
#[path = "docs/fields.rs"]
mod fields;
#[path = "docs/install.rs"]
mod install;
#[path = "docs/links.rs"]
mod links;
#[path = "docs/manifests.rs"]
mod manifests;
#[path = "docs/markdown.rs"]
mod markdown;
#[path = "docs/reasons.rs"]
mod reasons;
#[path = "docs/rust.rs"]
mod rust;
