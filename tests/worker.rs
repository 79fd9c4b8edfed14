//! The worker on real servers: what runs, what is stopped, and what is left when something dies.

mod support;

mod worker {
    mod ahead;
    mod chaos;
    mod drain;
    mod ground;
    mod leases;
    mod limits;
    mod once;
    mod outage;
    mod registry;
}
