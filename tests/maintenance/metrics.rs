//! What Prometheus scrapes and what the metrics table holds tell the same story.

use std::collections::HashMap;
use std::time::Duration;

use jiff::Timestamp;
use prometheus_client::registry::Registry;
use tokio::time::{Instant, sleep};
use windlass::broker::session::Session;
use windlass::broker::{Broker, ClaimedTask, Outcome, Settled, Settlement, WorkerInfo};
use windlass::maintenance::metrics::LoopMetrics;
use windlass::maintenance::recorder::Recorder;
use windlass::maintenance::sampler::Sampler;
use windlass::maintenance::{Chore, Next, Queue};
use windlass::protocol::backoff::Dice;
use windlass::protocol::names::{Capabilities, WorkerId};
use windlass::protocol::policy::{Mode, Policy};
use windlass::{NewTask, State};

use super::faults::sqlite;
use crate::support::ground::Ground;
use crate::support::load::hasty_policy;
use crate::support::owner;
use crate::support::servers::{Flavor, Server};

/// Between the creation of the tasks and the first claim.
const WAIT: Duration = Duration::from_millis(200);

/// Ten that succeed, four that fail once and then succeed, three dead letters of two tenants, one that waits for a
/// retry, one cancelled, one refused move, one that waits.
async fn happenings(ground: &Ground) {
    let kind = |name: &str, tenant: Option<&str>| NewTask {
        tenant_id: tenant.map(|tenant| tenant.parse().expect("valid")),
        ..NewTask::new(name.parse().expect("valid"), serde_json::json!(1))
    };
    let mut tasks: Vec<_> = (0..10).map(|_| kind("good", None)).collect();
    tasks.extend((0..4).map(|_| kind("shaky", None)));
    tasks.extend([kind("bad", Some("acme")), kind("bad", Some("acme")), kind("bad", Some("shop"))]);
    ground.broker.enqueue(&tasks).await.expect("taken");
    let limited = kind("limited", None);
    ground.broker.enqueue(&[limited]).await.expect("taken");
    sleep(WAIT).await;
    let worker = WorkerId::new("w").expect("valid");
    let info = WorkerInfo {
        id: worker.clone(),
        host: "here".to_owned(),
        pid: 1,
        pod: None,
        pod_uid: None,
        container: None,
        version: "1".to_owned(),
        types: Vec::new(),
        pool: None,
        started: None,
    };
    ground.broker.register(&info).await.expect("registered");
    let mut session = Session::new(ground.broker.clone(), worker, Capabilities::any());
    let (mut ended, mut last) = (0, None);
    while ended < tasks.len() {
        let claimed = session.claim(50).await.expect("claimed");
        let end = |task: &ClaimedTask| match (task.task_type.as_str(), task.retry_count) {
            ("shaky", 0) => Outcome::failure("test", "not yet"),
            ("bad", _) => Outcome::permanent("test", "never"),
            ("limited", _) => {
                let (retry_after, error) = (Some(Duration::from_secs(600)), "later".to_owned());
                Outcome::RateLimited { retry_after, error }
            }
            _ => Outcome::success(),
        };
        let settlements: Vec<_> = claimed
            .iter()
            .map(|task| Settlement { lease: task.lease.clone(), outcome: end(task), dice: Dice(0) })
            .collect();
        if settlements.is_empty() {
            sleep(Duration::from_millis(5)).await;
            continue;
        }
        let settled = session.settle(&settlements, 0).await.expect("settled").settled;
        ended += settled.iter().filter(|settled| matches!(settled, Settled::Succeeded | Settled::Dead)).count();
        let over = |settled: &Settled| matches!(settled, Settled::Succeeded | Settled::Dead);
        let over = settlements.into_iter().zip(&settled).filter(|(_, settled)| over(settled));
        last = over.map(|(settlement, _)| settlement).next_back().or(last);
    }
    // A final state is final, whatever somebody says later.
    let again = Settlement { outcome: Outcome::permanent("late", "no"), ..last.expect("some") };
    assert_eq!(session.settle(&[again], 0).await.expect("answered").settled, [Settled::InvalidTransition]);
    let unwanted = kind("good", None);
    ground.broker.enqueue(&[unwanted.clone(), kind("good", None)]).await.expect("taken");
    ground.broker.cancel(&unwanted.id, "not needed").await.expect("cancelled");
}

/// From creation to success, on average, as the history tells it.
async fn average_latency(ground: &Ground) -> Duration {
    let (mut created, mut took) = (HashMap::new(), Vec::new());
    for event in ground.events().await {
        match (event.from, event.to) {
            (None, Some(_)) => {
                created.insert(event.task_id, event.occurred_at);
            }
            (_, Some(State::Succeeded)) => {
                took.push(
                    Duration::try_from(event.occurred_at.duration_since(created[&event.task_id])).expect("later"),
                );
            }
            _ => {}
        }
    }
    took.iter().sum::<Duration>() / u32::try_from(took.len()).expect("a few")
}

/// Series by name and labels, without the queue's.
fn scrape(registry: &Registry, queue: &str) -> HashMap<String, f64> {
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, registry).expect("it can be written");
    assert!(text.ends_with("# EOF\n"), "a whole answer");
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let (series, value) = line.rsplit_once(' ').expect("a series and its value");
            let own = format!("queue=\"{queue}\"");
            let series = series.replace(&format!("{own},"), "").replace(&format!(",{own}"), "");
            let series = series.replace(&format!("{{{own}}}"), "");
            (series, value.parse().expect("a number"))
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scrape_tells_what_happened_with_units_totals_and_bounded_labels() {
    let server = Server::start(Flavor::Redis70).await;
    let dir = tempfile::tempdir().expect("a directory");
    let ground = Ground::new(&server, sqlite(&dir), &hasty_policy()).await;
    let (metrics, mut registry) = (LoopMetrics::default(), Registry::default());
    metrics.register(&mut registry);
    let _runner = ground.lead_and_count(metrics).await;
    happenings(&ground).await;
    let queue = ground.name.to_string();
    let since = Instant::now();
    // Until the leader has recorded and looked.
    let seen = loop {
        let seen = scrape(&registry, &queue);
        let at = |series: &str| seen.get(series).copied();
        if at("windlass_tasks_failed_total") == Some(3.0)
            && at("windlass_queue_dead_lettered") == Some(3.0)
            && at("windlass_invalid_transitions_total") == Some(1.0)
            && at("windlass_tasks_created_total") == Some(20.0)
            && at("windlass_tasks_cancelled_total") == Some(1.0)
            && at("windlass_queue_backlog") == Some(1.0)
        {
            break seen;
        }
        assert!(since.elapsed() < Duration::from_secs(60), "{seen:#?}");
        sleep(Duration::from_millis(50)).await;
    };
    for (series, value) in [
        ("windlass_tasks_created_total", 20.0),
        ("windlass_tasks_succeeded_total", 14.0),
        ("windlass_tasks_failed_total", 3.0),
        ("windlass_tasks_cancelled_total", 1.0),
        ("windlass_task_latency_seconds_count", 14.0),
        (r#"windlass_task_latency_seconds_bucket{le="+Inf"}"#, 14.0),
        (r#"windlass_attempts_total{type="good"}"#, 10.0),
        (r#"windlass_attempts_total{type="shaky"}"#, 8.0),
        (r#"windlass_attempts_failed_total{type="shaky"}"#, 4.0),
        (r#"windlass_attempts_failed_total{type="bad"}"#, 3.0),
        (r#"windlass_retries_total{reason="failure"}"#, 4.0),
        (r#"windlass_retries_total{reason="rate_limited"}"#, 1.0),
        (r#"windlass_dead_letters_total{tenant="acme"}"#, 2.0),
        (r#"windlass_dead_letters_total{tenant="shop"}"#, 1.0),
        ("windlass_invalid_transitions_total", 1.0),
        ("windlass_queue_backlog", 1.0),
        ("windlass_queue_running", 0.0),
        ("windlass_queue_retrying", 1.0),
        ("windlass_queue_retrying_ratio", 0.5),
        ("windlass_queue_paused", 0.0),
        ("windlass_queue_workers", 1.0),
        ("windlass_queue_history_recorded", 1.0),
    ] {
        assert_eq!(seen.get(series), Some(&value), "{series} in {seen:#?}");
    }
    let latency = seen["windlass_task_latency_seconds_sum"];
    let told = average_latency(&ground).await.as_secs_f64() * 14.0;
    assert!(latency >= 14.0 * WAIT.as_secs_f64() && (latency - told).abs() < 0.014, "{latency} and {told}");
    for present in [
        "windlass_queue_oldest_task_age_seconds",
        "windlass_queue_heartbeat_delay_seconds",
        "windlass_queue_outbox",
        r#"windlass_loop_runs_total{loop="recorder"}"#,
        r#"windlass_loop_handled_total{loop="recorder"}"#,
        r#"windlass_loop_lateness_seconds_count{loop="sampler"}"#,
    ] {
        assert!(seen.get(present).is_some_and(|value| *value >= 0.0), "{present} in {seen:#?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_of_the_metrics_table_tells_the_same() {
    let server = Server::start(Flavor::Redis70).await;
    let dir = tempfile::tempdir().expect("a directory");
    let ground = Ground::new(&server, sqlite(&dir), &hasty_policy()).await;
    happenings(&ground).await;
    let queue = Queue::new(ground.name.clone(), ground.broker.clone(), Some(ground.log()));
    let mut loops: [Box<dyn Chore>; 2] =
        [Box::<windlass::maintenance::dead_letter_router::DeadLetterRouter>::default(), Box::new(Recorder)];
    for chore in &mut loops {
        while chore.run_once(&queue).await.expect("a step").next != Next::WhenNeeded {}
    }
    // Since it was heard last.
    sleep(WAIT).await;
    let mut sampler = Sampler::default();
    sampler.run_once(&queue).await.expect("a sample");
    let rows = ground.log().samples(&ground.name, Timestamp::UNIX_EPOCH, Timestamp::MAX).await.expect("answered");
    let [row] = &rows[..] else { panic!("one row: {rows:?}") };
    // A move that was refused before anybody looked is no news.
    assert_eq!((row.created, row.completed, row.failed, row.invalid_transitions), (20, 14, 3, 0));
    assert!(row.heartbeat_delay.is_some_and(|delay| delay >= WAIT), "{row:?}");
    let told = average_latency(&ground).await;
    let latency = row.average_latency.expect("some succeeded");
    assert!(latency >= WAIT && latency.abs_diff(told) <= Duration::from_millis(1), "{latency:?} and {told:?}");
    let rate = |kind: &str| row.error_rates[&kind.parse().expect("valid")];
    assert_eq!((rate("good"), rate("shaky"), rate("bad")), (0.0, 0.5, 1.0));
    let grown = |tenant: &str| row.dead_letter_growth[&tenant.parse().expect("valid")];
    assert_eq!((grown("acme"), grown("shop")), (2, 1));
    assert!((row.retrying_ratio - 0.5).abs() < f64::EPSILON, "{row:?}");
}

/// Where there is no history, what is counted from it is absent instead of zero.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_an_event_log_a_scrape_says_so_and_counts_no_events() {
    let server = Server::start(Flavor::Redis70).await;
    let ground = Ground::new(&server, String::new(), &Policy::default()).await;
    let (metrics, mut registry) = (LoopMetrics::default(), Registry::default());
    metrics.register(&mut registry);
    let runner = windlass::maintenance::runner::Runner::start(metrics);
    runner.add(ground.keys.prefix(), Queue::new(ground.name.clone(), ground.broker.clone(), None)).await;
    let since = Instant::now();
    loop {
        let seen = scrape(&registry, &ground.name.to_string());
        if seen.get("windlass_queue_history_recorded") == Some(&0.0) {
            assert!(!seen.contains_key("windlass_tasks_created_total"), "{seen:#?}");
            break;
        }
        assert!(since.elapsed() < Duration::from_secs(60), "{seen:#?}");
        sleep(Duration::from_millis(20)).await;
    }
}

/// What waits in such a queue is no sign that workers are missing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scrape_tells_of_a_queue_that_gives_out_no_work_on_purpose() {
    let server = Server::start(Flavor::Redis70).await;
    let ground = Ground::new(&server, String::new(), &Policy::default()).await;
    let (metrics, mut registry) = (LoopMetrics::default(), Registry::default());
    metrics.register(&mut registry);
    let runner = windlass::maintenance::runner::Runner::start(metrics);
    runner.add(ground.keys.prefix(), Queue::new(ground.name.clone(), ground.broker.clone(), None)).await;
    for (mode, paused) in [(Mode::Running, 0.0), (Mode::Paused, 1.0), (Mode::Running, 0.0), (Mode::Closed, 1.0)] {
        ground.broker.provision(&owner(), &Policy { mode, ..Policy::default() }).await.expect("the policy is taken");
        runner.look(ground.keys.prefix()).await;
        let since = Instant::now();
        while scrape(&registry, &ground.name.to_string()).get("windlass_queue_paused") != Some(&paused) {
            assert!(since.elapsed() < Duration::from_secs(60), "{mode:?}");
            sleep(Duration::from_millis(20)).await;
        }
    }
}
