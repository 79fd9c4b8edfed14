//! What only a server can suffer.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use windlass::broker::ErrorClass;
use windlass::event_log::{EventLog, EventLogError};

use super::place::{Place, entry_of, queue, task};
use crate::support::servers::{Postgres, Wait};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_stopped_or_crashes_delays_events_and_loses_none() {
    let server = Postgres::start().await;
    let log = EventLog::connect(&server.url()).await.expect("connected");
    log.record(&queue(), &entry_of("before", 10)).await.expect("recorded");
    for name in ["stopped", "crashed"] {
        match name {
            "stopped" => server.stop().await,
            _ => server.crash().await,
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

/// A network between the log and its server that can swallow what it is given.
struct Network {
    port: u16,
    /// Connections that were made before this one get nothing through.
    dead_before: watch::Sender<u64>,
}

impl Network {
    async fn to(server: &Postgres) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let (port, target) = (listener.local_addr().expect("bound").port(), server.port());
        let (dead_before, dead) = watch::channel(0);
        tokio::spawn(async move {
            for number in 0.. {
                let Ok((client, _)) = listener.accept().await else { return };
                let Ok(server) = TcpStream::connect(("127.0.0.1", target)).await else { continue };
                let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
                tokio::spawn(pass(from_client, to_server, number, dead.clone()));
                tokio::spawn(pass(from_server, to_client, number, dead.clone()));
            }
        });
        Self { port, dead_before }
    }
}

/// Passes bytes on while the connection of that number is alive.
async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, number: u64, mut dead_before: watch::Receiver<u64>) {
    let mut bytes = [0; 8192];
    while let Ok(read @ 1..) = from.read(&mut bytes).await {
        if dead_before.wait_for(|dead| *dead <= number).await.is_err() || to.write_all(&bytes[..read]).await.is_err() {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_does_not_answer_is_given_up_on_and_used_again_when_it_does() {
    let place = Place::postgres().await;
    let Place::Postgres { server, url } = &place else { unreachable!("it is PostgreSQL") };
    let network = Network::to(server).await;
    let url = url.replace(&server.port().to_string(), &network.port.to_string());
    let log = EventLog::connect(&url).await.expect("connected");
    log.record(&queue(), &entry_of("before", 1)).await.expect("recorded");
    network.dead_before.send_replace(u64::MAX);
    for _ in 0..2 {
        let error = log.record(&queue(), &entry_of("a", 1)).await.expect_err("no answer");
        assert_eq!(error.class(), ErrorClass::Transient, "{error}");
    }
    network.dead_before.send_replace(0);
    log.record(&queue(), &entry_of("a", 1)).await.expect("it answers");
    assert_eq!(log.history(&queue(), &task("a-0")).await.expect("answered").len(), 1);
}

/// A connection that a firewall forgot says nothing for a quarter of an hour; its place in the pool must not wait that long.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_went_dead_in_the_middle_of_a_call_are_replaced() {
    let place = Place::postgres().await;
    let Place::Postgres { server, url } = &place else { unreachable!("it is PostgreSQL") };
    let network = Network::to(server).await;
    let url = url.replace(&server.port().to_string(), &network.port.to_string());
    let log = EventLog::connect(&url).await.expect("connected");
    // Four calls at work on the pool's four connections, held up by a lock.
    let lock = Lock::on("event_log", &place).await;
    let calls: Vec<_> = (0..4).map(|i| spawn_record(&log, format!("c{i}"))).collect();
    let waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted";
    let mut wait = Wait::new("four calls to wait for the lock");
    while place.query(waiting).expect("answered") != "4" {
        wait.again("fewer").await;
    }
    network.dead_before.send_replace(1000);
    for call in calls {
        let error = call.await.expect("no panic").expect_err("cut off");
        assert_eq!(error.class(), ErrorClass::Transient, "{error}");
    }
    lock.release(&place).await;
    // From here on, new connections work and the old ones never will.
    network.dead_before.send_replace(4);
    let mut wait = Wait::new("the dead connections to be replaced");
    while let Err(error) = log.record(&queue(), &entry_of("a", 1)).await {
        assert_eq!(error.class(), ErrorClass::Transient, "{error}");
        wait.again(error).await;
    }
}

fn spawn_record(log: &EventLog, name: String) -> JoinHandle<Result<usize, EventLogError>> {
    let log = log.clone();
    tokio::spawn(async move { log.record(&queue(), &entry_of(&name, 1)).await })
}

/// Somebody who holds a table.
struct Lock {
    pid: String,
    holder: JoinHandle<Result<String, String>>,
}

impl Lock {
    async fn on(table: &str, place: &Place) -> Self {
        let Place::Postgres { server, url } = place else { unreachable!("it is PostgreSQL") };
        let (server, url) = (server.clone(), url.clone());
        let lock = format!("BEGIN; LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(300)");
        let holder = tokio::task::spawn_blocking(move || server.query_at(&url, &lock));
        let locks = format!(
            "SELECT pid FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND relation = '{table}'::regclass AND granted"
        );
        let mut wait = Wait::new("the table to be locked");
        loop {
            match place.query(&locks).expect("answered") {
                pid if pid.is_empty() => wait.again("no lock").await,
                pid => return Self { pid, holder },
            }
        }
    }

    async fn release(self, place: &Place) {
        place.query(&format!("SELECT pg_terminate_backend({})", self.pid)).expect("answered");
        self.holder.await.expect("no panic").expect_err("it was ended");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_that_somebody_locks_is_given_up_on_and_used_again_when_it_is_free() {
    let place = Place::postgres().await;
    let log = place.log().await;
    let lock = Lock::on("event_log", &place).await;
    let error = log.record(&queue(), &entry_of("a", 1)).await.expect_err("locked");
    assert!(matches!(error, EventLogError::Busy { .. }), "{error}");
    lock.release(&place).await;
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_cannot_hold_every_text_is_refused_before_it_holds_up_anything() {
    let place = Place::postgres().await;
    let name = format!("l{:016x}", fastrand::u64(..));
    place.query(&format!("CREATE DATABASE {name} ENCODING 'LATIN1' TEMPLATE template0")).expect("made");
    let Place::Postgres { server, .. } = &place else { unreachable!("it is PostgreSQL") };
    let error = EventLog::connect(&server.url_of(&name)).await.expect_err("not UTF-8");
    assert_eq!(error.class(), ErrorClass::Invalid);
    assert!(error.to_string().contains("ENCODING 'UTF8'"), "{error}");
}
