//! A server that is another one than a moment ago: what was asked of the first is not told to the second.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use windlass::State;
use windlass::broker::clock::Clock;
use windlass::broker::redis::{RedisBroker, RedisOptions};
use windlass::broker::{Broker, ClaimRequest, ErrorClass, WorkerInfo};
use windlass::protocol::keys::Keys;
use windlass::protocol::names::Capabilities;
use windlass::protocol::policy::Policy;

use super::refusal::{task, worker};
use crate::support::servers::{Flavor, Server};
use crate::support::{fresh_queue, owner};

/// Stands before a server. Once it is told to, it cuts the connection that next brings a script, and lets nobody
/// through until the server is another one.
struct Gate {
    port: u16,
    to_cut: Arc<AtomicBool>,
    open: watch::Sender<bool>,
}

impl Gate {
    async fn before(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let (to_cut, open) = (Arc::new(AtomicBool::new(false)), watch::Sender::new(true));
        let (shared, gate) = (to_cut.clone(), open.clone());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(pass(client, server, shared.clone(), gate.clone()));
            }
        });
        Self { port, to_cut, open }
    }

    fn cut_the_next_script(&self) {
        self.to_cut.store(true, Ordering::SeqCst);
    }

    async fn has_cut(&self) {
        self.open.subscribe().wait_for(|open| !open).await.expect("the gate is there");
    }

    fn let_through(&self) {
        self.open.send_replace(true);
    }
}

async fn pass(mut client: TcpStream, server: u16, to_cut: Arc<AtomicBool>, open: watch::Sender<bool>) {
    open.subscribe().wait_for(|open| *open).await.expect("the gate is there");
    let mut server = TcpStream::connect(("127.0.0.1", server)).await.expect("the server is there");
    let (mut asked, mut answered) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    loop {
        tokio::select! {
            read = client.read(&mut asked) => {
                let Ok(read @ 1..) = read else { return };
                let brings_script = asked[..read].windows(7).any(|word| word == b"EVALSHA");
                if brings_script && to_cut.swap(false, Ordering::SeqCst) {
                    open.send_replace(false);
                    return;
                }
                if server.write_all(&asked[..read]).await.is_err() {
                    return;
                }
            }
            read = server.read(&mut answered) => {
                let Ok(read @ 1..) = read else { return };
                if client.write_all(&answered[..read]).await.is_err() {
                    return;
                }
            }
        }
    }
}

/// What the leader asks of a server that it has just looked at.
#[derive(Debug, Clone, Copy)]
enum Question {
    Reclaim,
    Sweep,
}

impl Question {
    async fn put(self, broker: &RedisBroker) -> windlass::broker::Result<()> {
        match self {
            Self::Reclaim => broker.reclaim(Default::default()).await.map(drop),
            Self::Sweep => broker.sweep(Default::default()).await.map(drop),
        }
    }
}

/// closes: a lease that nobody could renew counts as a crash, because the question was meant for the server before
#[tokio::test]
async fn a_server_that_changes_before_it_is_asked_judges_nobody_by_its_new_clock() {
    for question in [Question::Reclaim, Question::Sweep] {
        let server = Server::builder(Flavor::Redis70).aof_always().start().await;
        let gate = Gate::before(server.port()).await;
        let clock = Clock::manual(1_700_000_000_000);
        let options = RedisOptions::new(format!("redis://127.0.0.1:{}", gate.port));
        let broker = RedisBroker::with_clock(Keys::new(&fresh_queue()), options, clock.clone()).expect("a URL");
        let policy = Policy::default();
        broker.provision(&owner(), &policy).await.expect("made");
        question.put(&broker).await.expect("the server becomes known");
        broker.register(&holder()).await.expect("registered");
        let id = broker.enqueue(&[task()]).await.expect("taken").remove(0).id;
        let (worker, any) = (worker(), Capabilities::any());
        let request = ClaimRequest { worker: &worker, capabilities: &any, limit: 1, recover: None };
        assert_eq!(broker.claim(request).await.expect("answered").tasks.len(), 1);
        clock.advance(policy.visibility_timeout.max(policy.reclaim.worker_lost_after) * 2);

        gate.cut_the_next_script();
        let ((), answer) = tokio::join!(
            async {
                gate.has_cut().await;
                server.kill9();
                server.restart().await;
                gate.let_through();
            },
            question.put(&broker)
        );
        let error = answer.expect_err("it was meant for another server");
        assert_eq!(error.class(), ErrorClass::Transient, "{question:?}: {error}");
        question.put(&broker).await.expect("asked anew");
        let view = broker.get(&id).await.expect("answered").expect("it is there");
        assert_eq!((view.state, view.crash_count), (State::Running, 0), "{question:?}: nobody could renew it");
    }
}

fn holder() -> WorkerInfo {
    WorkerInfo {
        id: worker(),
        host: "host".to_owned(),
        pid: 7,
        pod: None,
        pod_uid: None,
        container: None,
        version: "1".to_owned(),
        types: vec![],
        pool: None,
        started: None,
    }
}
