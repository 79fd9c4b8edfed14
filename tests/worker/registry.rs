//! Who workers say they are, how they wait, and what they show.

use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use prometheus_client::registry::Registry;
use windlass::broker::Broker;
use windlass::worker::{WorkerPlace, probes};
use windlass::{Outcome, State, Worker, WorkerOptions};

use super::ground::{Does, Gauge, Ground, broker_at, hasty, new_task, options};
use crate::support::servers::Wait;
use windlass::protocol::policy::Policy;

fn in_pod(uid: &str, container: &str) -> WorkerOptions {
    let place = WorkerPlace {
        host: "node".to_owned(),
        pod: Some("emailers-7".to_owned()),
        pod_uid: Some(uid.to_owned()),
        container: Some(container.to_owned()),
        pool: Some("pool-uid".into()),
    };
    WorkerOptions { place, ..options(5) }
}

/// closes: a reused worker id blocks recovery (apalis#507); a killed container restarts under the same pod UID
#[tokio::test]
async fn a_restarted_container_takes_its_predecessors_tasks_over_at_once() {
    let ground = Ground::new(Policy::default()).await;
    let ids = ground.add(5).await;
    let first = ground.work(Does(|_| std::future::pending()), in_pod("uid-1", "main"));
    first.until_running(5).await;
    let other_place = ground.work(Does(|_| async { Outcome::success() }), in_pod("uid-1", "other"));
    let first_id = first.id.clone();
    assert!(first_id.as_str().starts_with("emailers-7-"));
    first.crash().await;
    let second = ground.work(Does(|_| async { Outcome::success() }), in_pod("uid-1", "main"));
    assert_ne!(second.id, first_id);
    ground.until_finished(5).await;
    for id in &ids {
        let view = ground.view(id).await;
        assert_eq!((view.state, view.crash_count), (State::Succeeded, 1), "long before its lease expired");
    }
    let known: Vec<_> =
        ground.broker.workers().await.expect("answered").into_iter().map(|known| known.info.id).collect();
    assert!(known.contains(&second.id) && known.contains(&other_place.id) && !known.contains(&first_id), "{known:?}");
    second.drain().await;
    other_place.drain().await;
}

#[tokio::test]
async fn a_worker_claims_only_what_it_can_do() {
    let ground = Ground::new(hasty()).await;
    let capabilities = windlass::protocol::names::Capabilities::of(["mail".parse().expect("a type")]).expect("few");
    let mailer = WorkerOptions { capabilities, ..options(5) };
    let worker = ground.work(Does(|_| async { Outcome::success() }), mailer);
    let other = ground.add(3).await;
    let mail = windlass::NewTask::new("mail".parse().expect("a type"), serde_json::json!({}));
    let mail = ground.add_one(mail).await;
    ground.until(&mail, State::Succeeded).await;
    for id in &other {
        assert_eq!(ground.view(id).await.state, State::Queued);
    }
    let told = ground.broker.workers().await.expect("answered").remove(0).info;
    assert_eq!((told.types.len(), told.pid, told.version.as_str()), (1, std::process::id(), env!("CARGO_PKG_VERSION")));
    worker.drain().await;
}

/// Whatever a worker holds, a heartbeat is one renewal of all of it and a look at the policy.
#[tokio::test]
async fn one_heartbeat_renews_every_lease() {
    const HELD: usize = 100;
    const BEATS: u64 = 5;
    let ground = Ground::new(Policy { heartbeat_period: Duration::from_millis(300), ..Policy::default() }).await;
    ground.add(HELD).await;
    let worker = ground.work(Does(|_| std::future::pending()), options(HELD));
    worker.until_running(HELD).await;
    let renewals = || async {
        let info: String = ground.server.query(&["INFO", "commandstats"]).await;
        calls_of(&info, "evalsha")
    };
    let heard = || async { ground.broker.workers().await.expect("answered").remove(0).heartbeat_at };
    let (mut last, mut beats, before) = (heard().await, 0, renewals().await);
    let began = last;
    let mut wait = Wait::new(format!("{BEATS} heartbeats"));
    while beats < BEATS {
        let now = heard().await;
        beats += u64::from(now != last);
        last = now;
        wait.again(format!("{beats} so far")).await;
    }
    let made = renewals().await - before;
    assert!(made <= (BEATS + 1) * 4, "{made} scripts for {BEATS} heartbeats with {HELD} leases");
    // How long ago each lease was renewed: less than the time since the first of those heartbeats.
    let lanes: Vec<String> = ground.server.query(&["KEYS", &format!("{}lane:*", ground.keys().prefix())]).await;
    let mut leases = 0;
    for lane in &lanes {
        let group = ground.keys().group.as_str();
        let pending: Vec<(String, String, i64, i64)> =
            ground.server.query(&["XPENDING", lane, group, "-", "+", "1000"]).await;
        let (seconds, micros): (i64, i64) = ground.server.query(&["TIME"]).await;
        let since = seconds * 1000 + micros / 1000 - began.as_millisecond();
        assert!(pending.iter().all(|(_, _, idle, _)| *idle < since), "not renewed in {since} ms: {pending:?}");
        leases += pending.len();
    }
    assert_eq!(leases, HELD);
    worker.crash().await;
}

/// How often a command was run, by Redis' own count.
fn calls_of(commandstats: &str, name: &str) -> u64 {
    let line = commandstats.lines().find(|line| line.starts_with(&format!("cmdstat_{name}:calls=")));
    let number = line.and_then(|line| line.split(['=', ',']).nth(1)).unwrap_or("0");
    number.trim().parse().expect("a number")
}

/// Idle workers sleep: a look every few seconds in case a bell was lost, and a heartbeat.
#[tokio::test]
async fn idle_workers_do_not_poll() {
    let ground = Ground::new(Policy::default()).await;
    let workers: Vec<_> = (0..20).map(|_| ground.work(Does(|_| async { Outcome::success() }), options(10))).collect();
    let mut wait = Wait::new("all workers to register".to_owned());
    while ground.counts().await.workers < 20 {
        wait.again("not yet").await;
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    let calls = || async {
        let info: String = ground.server.query(&["INFO", "commandstats"]).await;
        calls_of(&info, "evalsha") + calls_of(&info, "xreadgroup")
    };
    let before = calls().await;
    tokio::time::sleep(Duration::from_secs(6)).await;
    let made = calls().await - before;
    // Twenty workers that sleep 2 to 5 s wake at most 3 times in 6 s: a read and a claim each, and what the claim runs.
    assert!(made <= 20 * 3 * 2 + 20, "{made} calls in 6 s by 20 idle workers");
    ground.add(40).await;
    ground.until_finished(40).await;
    for worker in workers {
        worker.handle.drain();
        worker.end().await;
    }
}

#[tokio::test]
async fn probes_tell_how_a_worker_is() {
    let ground = Ground::new(hasty()).await;
    let broker = Arc::new(broker_at(&ground.server.url(), &ground.name));
    let handler = Does(|_| async { Outcome::success() });
    let worker = Worker::new(ground.name.clone(), broker, handler, options(2)).expect("usable options");
    let (handle, mut registry) = (worker.handle(), Registry::default());
    worker.metrics().register(&mut registry);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let server = tokio::spawn(probes::serve(listener, handle.clone(), Arc::new(registry)));
    let get = |page: &'static str| async move { get(address, page).await };

    let (status, _) = get("/readyz").await;
    assert_eq!(status, 503, "it does not run yet");
    assert_eq!(get("/livez").await.0, 200);
    let running = tokio::spawn(worker.run());
    ground.add(3).await;
    ground.until_finished(3).await;
    assert_eq!(get("/readyz").await, (200, "ok\n".to_owned()));
    let (status, text) = get("/metrics").await;
    assert_eq!(status, 200);
    for line in ["windlass_worker_claimed_total 3", r#"windlass_worker_settled_total{answer="succeeded"} 3"#] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
    assert!(text.contains("windlass_worker_handler_seconds_count 3"), "{text}");
    handle.drain();
    running.await.expect("it does not panic").expect("it ends well");
    assert_eq!(get("/readyz").await.0, 503);
    server.abort();
}

/// Only a restart gives blocked threads back.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_worker_whose_places_are_all_blocked_is_not_live() {
    let ground = Ground::new(hasty()).await;
    let broker = Arc::new(broker_at(&ground.server.url(), &ground.name));
    let (free, blocked) = std::sync::mpsc::channel::<()>();
    let blocked = std::sync::Mutex::new(blocked);
    let (first, entered) = (std::sync::Mutex::new(vec![(), ()]), Gauge::default());
    let seen = entered.clone();
    let handler = Does(move |_| {
        let blocks = first.lock().expect("no panic while held").pop().is_some();
        seen.enter();
        if blocks {
            // What no handler should do: until the other end is gone.
            while blocked.lock().expect("no panic while held").recv_timeout(Duration::from_millis(5))
                != Err(RecvTimeoutError::Disconnected)
            {}
        }
        async { Outcome::success() }
    });
    let options = WorkerOptions { kill_grace: Duration::from_millis(50), ..options(2) };
    let worker = Worker::new(ground.name.clone(), broker, handler, options).expect("usable options");
    let handle = worker.handle();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let server = tokio::spawn(probes::serve(listener, handle.clone(), Arc::new(Registry::default())));
    let running = tokio::spawn(worker.run());
    for _ in 0..2 {
        let mut task = new_task(serde_json::json!(1));
        task.extras.timeout_ms = Some(50);
        ground.add_one(task).await;
    }
    entered.until_entered(2).await;
    let livez_is = |status| async move {
        let mut wait = Wait::new(format!("/livez to answer {status}"));
        loop {
            match get(address, "/livez").await {
                (seen, text) if seen == status => return text,
                seen => wait.again(format!("{seen:?}")).await,
            }
        }
    };
    let text = livez_is(503).await;
    assert!(text.contains("all 2 places are held by handlers that were dropped and do not yield"), "{text}");
    drop(free);
    ground.until_finished(2).await;
    livez_is(200).await;
    handle.drain();
    running.await.expect("it does not panic").expect("it ends well");
    server.abort();
}

/// A page, over HTTP/1.1 as plain as it gets.
async fn get(address: std::net::SocketAddr, page: &str) -> (u16, String) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(address).await.expect("the probes are served");
    let request = format!("GET {page} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("the request is sent");
    let mut text = String::new();
    stream.read_to_string(&mut text).await.expect("an answer");
    let status = text.split(' ').nth(1).and_then(|word| word.parse().ok()).expect("a status");
    let body = text.split_once("\r\n\r\n").expect("a body").1;
    (status, body.to_owned())
}
