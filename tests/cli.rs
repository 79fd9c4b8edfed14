//! The real binary against real servers: every command, and every kind of wrong usage.

mod support;

mod cli {
    mod conformance;
    mod dlq;
    mod enqueue;
    mod events;
    mod ground;
    mod progress;
    mod queues;
    mod tasks;
    mod usage;
}
