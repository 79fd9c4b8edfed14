//! What only a server can suffer.

use windlass::broker::ErrorClass;
use windlass::event_log::{EventLog, EventLogError};

use super::place::{Place, entry_of, queue, task};
use crate::support::servers::Postgres;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_stopped_or_killed_delays_events_and_loses_none() {
    let server = Postgres::start().await;
    let log = EventLog::connect(&server.url()).await.expect("connected");
    log.record(&queue(), &entry_of("before", 10)).await.expect("recorded");
    for (name, kill) in [("stopped", false), ("killed", true)] {
        if kill {
            server.kill9().await
        } else {
            server.stop().await
        }
        let error = log.record(&queue(), &entry_of(name, 10)).await.expect_err("nobody is there");
        assert_eq!(error.class(), ErrorClass::Transient, "{error}");
        assert!(!error.to_string().contains("p@ss"), "{error}");
        let progress = log.record_many(&queue(), &[entry_of(name, 10)]).await;
        assert_eq!((progress.entries, progress.new), (0, 0));
        assert_eq!(progress.stopped.map(|error| error.class()), Some(ErrorClass::Transient));
        server.restart().await;
        assert_eq!(log.record(&queue(), &entry_of(name, 10)).await.expect("it is back"), 10);
    }
    assert_eq!(server.query("SELECT count(*) FROM event_log").expect("answered"), "30");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_is_opened_while_its_server_is_down_works_once_it_is_up() {
    let server = Postgres::start().await;
    server.stop().await;
    let error = EventLog::connect(&server.url()).await.expect_err("nobody is there");
    assert!(matches!(error, EventLogError::Unreachable { .. }), "{error}");
    let log = EventLog::open(&server.url()).expect("a usable URL");
    let error = log.record(&queue(), &entry_of("a", 1)).await.expect_err("nobody is there");
    assert_eq!(error.class(), ErrorClass::Transient, "{error}");
    server.restart().await;
    assert_eq!(log.record(&queue(), &entry_of("a", 1)).await.expect("it is back"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_hangs_is_given_up_on_and_used_again_when_it_goes_on() {
    let server = Postgres::start().await;
    let log = EventLog::connect(&server.url()).await.expect("connected");
    log.record(&queue(), &entry_of("before", 1)).await.expect("recorded");
    server.freeze();
    for _ in 0..2 {
        let error = log.record(&queue(), &entry_of("a", 1)).await.expect_err("no answer");
        assert_eq!(error.class(), ErrorClass::Transient, "{error}");
    }
    server.thaw();
    log.record(&queue(), &entry_of("a", 1)).await.expect("it goes on");
    assert_eq!(log.history(&queue(), &task("a-0")).await.expect("answered").len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_that_somebody_locks_is_given_up_on_and_used_again_when_it_is_free() {
    let place = Place::postgres().await;
    let log = place.log().await;
    let lock = "BEGIN; LOCK TABLE event_log IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(60)";
    let Place::Postgres { server, url } = &place else { unreachable!("it is PostgreSQL") };
    let (server, url) = (server.clone(), url.clone());
    let holder = tokio::task::spawn_blocking(move || server.query_at(&url, lock));
    let locks = "SELECT pid FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND relation = 'event_log'::regclass \
                 AND granted";
    let mut wait = crate::support::servers::Wait::new("the table to be locked");
    let pid = loop {
        match place.query(locks).expect("answered") {
            pid if pid.is_empty() => wait.again("no lock").await,
            pid => break pid,
        }
    };
    let error = log.record(&queue(), &entry_of("a", 1)).await.expect_err("locked");
    assert!(matches!(error, EventLogError::Busy { .. }), "{error}");
    place.query(&format!("SELECT pg_terminate_backend({pid})")).expect("answered");
    holder.await.expect("no panic").expect_err("it was ended");
    assert_eq!(log.record(&queue(), &entry_of("a", 1)).await.expect("free again"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_password_or_database_is_said_so_without_the_password() {
    let place = Place::postgres().await;
    let url = place.url();
    for bad in [url.replace("test%2F", "hunter2"), format!("{url}-nowhere")] {
        let error = EventLog::connect(&bad).await.expect_err("refused");
        assert!(matches!(error, EventLogError::Denied { .. }), "{error}");
        assert_eq!(error.class(), ErrorClass::Invalid);
        let text = error.to_string();
        assert!(text.contains("check user, password") && !text.contains("hunter2") && !text.contains("p@ss"), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_who_may_not_change_tables_can_use_those_that_are_there() {
    let place = Place::postgres().await;
    let role = format!("writer_{:x}", fastrand::u64(..));
    let owner = place.log().await;
    owner.record(&queue(), &entry_of("a", 1)).await.expect("recorded");
    place.query(&format!("CREATE ROLE {role} LOGIN PASSWORD 'x'")).expect("made");
    let url = place.url().replace("windlass:test%2Fp%40ss", &format!("{role}:x"));
    let error = EventLog::connect(&url).await.expect_err("no rights at all");
    assert!(matches!(error, EventLogError::Denied { .. }), "{error}");
    place
        .query(&format!("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}"))
        .expect("given");
    let log = EventLog::connect(&url).await.expect("connected");
    assert_eq!(log.record(&queue(), &entry_of("a", 2)).await.expect("recorded"), 1);
}
