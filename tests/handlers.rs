//! Handlers in every language: real processes, real HTTP, the real binary.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod support;

mod handlers {
    mod api;
    mod command;
    mod exec;
    mod ground;
    mod groups;
    mod http;
    mod init;
}
