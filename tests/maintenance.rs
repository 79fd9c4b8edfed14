//! The leader's loops on real servers that die, and in processes that are killed.

#![allow(clippy::print_stdout, reason = "what was seen is part of the result")]

mod support;

mod maintenance {
    mod bounds;
    mod databases;
    mod decisions;
    mod faults;
    mod idle;
    mod metrics;
    mod needs;
    mod outbox;
    mod protocol;
    mod reclaim;
    mod retention;
}
