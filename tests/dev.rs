//! One-machine mode: what it refuses, and what it carries out, with a real redis-server and real workers.

mod support;

#[path = "dev/demo.rs"]
mod demo;
#[path = "dev/edits.rs"]
mod edits;
#[path = "dev/ground.rs"]
mod ground;
#[path = "dev/handlers.rs"]
mod handlers;
#[path = "dev/read.rs"]
mod read;
#[path = "dev/readme.rs"]
mod readme;
#[path = "dev/refused.rs"]
mod refused;
#[path = "dev/restarts.rs"]
mod restarts;
#[path = "dev/work.rs"]
mod work;
