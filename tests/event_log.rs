//! The event log on a real PostgreSQL and a real SQLite.
//!
//! A claim that holds on both is an `async fn(&Place)`; the `suite!` at the end of each module makes
//! it a test on each. What only one of them can suffer is in a module of its own.

mod support;

mod event_log {
    #[macro_use]
    mod place;

    mod dead_letters;
    mod moves;
    mod postgres;
    mod retention;
    mod samples;
    mod schema;
    mod sqlite;
}
