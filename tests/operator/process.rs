//! The process: who leads, what it shows, what it watches, and what it survives.

use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::Lease;
use serde_json::json;
use windlass::broker::Broker;

use super::ground::{Ground, Operator, RELEASE, define, grant, queue};
use crate::kubernetes::Kubernetes;

/// Within what another one leads after the leader's death.
const IN_TIME: jiff::SignedDuration = jiff::SignedDuration::from_secs(17);

/// Waits until somebody other than `before` holds the Lease.
async fn new_holder(ground: &Ground, before: Option<&str>) -> String {
    let holder = |lease: Option<&Lease>| {
        let holder = lease.and_then(|lease| lease.spec.as_ref()).and_then(|spec| spec.holder_identity.clone());
        holder.filter(|holder| !holder.is_empty() && Some(holder.as_str()) != before)
    };
    let found =
        ground.cluster.wait(&ground.leases(), RELEASE, "to have a new holder", |lease| holder(lease).is_some()).await;
    holder(found.as_ref()).expect("a holder")
}

#[tokio::test(flavor = "multi_thread")]
async fn leadership_passes_on_at_once_after_a_graceful_end_and_soon_after_a_crash() {
    let ground = Ground::new().await;
    let first = ground.operator().await;
    let holder = new_holder(&ground, None).await;
    let second = ground.operator().await;
    assert_eq!(first.metric("windlass_operator_leads").await, Some(1.0));
    assert_eq!(second.metric("windlass_operator_leads").await, Some(0.0));
    let (ready, _) = second.page("/readyz").await;
    assert_eq!(ready, 200, "who waits for its turn is ready, too");

    let ended = Instant::now();
    first.signal("TERM");
    let holder = new_holder(&ground, Some(&holder)).await;
    eprintln!("handover after SIGTERM: {:?}", ended.elapsed());
    first.ended().await;
    ground.apply("emails", "{}").await;
    ground.ready("emails").await;

    // A machine that is busy with something else may be late once; a promise that does not hold is broken each time.
    let (mut leading, mut holder, mut late) = (second, holder, Vec::new());
    while late.len() < 3 {
        let next = ground.operator().await;
        leading.kill9();
        let before = ground.leases().get(RELEASE).await.expect("the Lease").spec.expect("a spec");
        assert_eq!(before.holder_identity.as_deref(), Some(holder.as_str()));
        holder = new_holder(&ground, Some(&holder)).await;
        leading = next;
        let after = ground.leases().get(RELEASE).await.expect("the Lease").spec.expect("a spec");
        // As the Lease tells: from the last renewal until it was taken.
        let (renewed, taken) = (before.renew_time.expect("a time").0, after.acquire_time.expect("a time").0);
        let took = taken.duration_since(renewed);
        eprintln!("after kill -9 nobody led for {:.1} s", took.as_secs_f64());
        if took <= IN_TIME {
            break;
        }
        late.push(took);
    }
    assert!(late.len() < 3, "nobody led for {late:?}");
    ground.apply("letters", "{}").await;
    ground.ready("letters").await;
    drop(leading);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_was_stopped_for_long_does_not_write_when_it_comes_back() {
    let ground = Ground::new().await;
    let first = ground.operator().await;
    let holder = new_holder(&ground, None).await;
    first.signal("STOP");
    let second = ground.operator().await;
    new_holder(&ground, Some(&holder)).await;
    ground.apply("emails", "{}").await;
    ground.ready("emails").await;
    first.signal("CONT");
    first.says("no longer leading").await;
    assert_eq!(first.metric("windlass_operator_leads").await, Some(0.0));
    assert_eq!(second.metric("windlass_operator_leads").await, Some(1.0));
    let reconciled = first.metric("windlass_operator_reconciliations_total").await;
    assert_eq!(reconciled, None, "the queue came while it was stopped, and was never its own");
}

#[tokio::test(flavor = "multi_thread")]
async fn probes_and_metrics_are_served() {
    let ground = Ground::new().await;
    let operator = ground.operator().await;
    ground.apply("emails", "{}").await;
    ground.ready("emails").await;
    assert_eq!(operator.page("/livez").await.0, 200);
    assert_eq!(operator.page("/readyz").await.0, 200);
    let counted = async || {
        let (_, text) = operator.page("/metrics").await;
        let name = format!("windlass_queue_backlog{{queue=\"{}/emails\"}} 0", &*ground.namespace);
        if text.contains(&name) { Ok(()) } else { Err(text) }
    };
    ground.until("the queue's metrics", counted).await;
    let done = "windlass_operator_reconciliations_total{kind=\"TaskQueue\",outcome=\"done\"}";
    assert!(operator.metric(done).await.is_some_and(|count| count >= 1.0));
    for line in operator.log().lines() {
        serde_json::from_str::<serde_json::Value>(line)
            .unwrap_or_else(|_| panic!("a log line that is no JSON: {line}"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_namespaces_that_were_named_are_looked_after() {
    let ground = Ground::new().await;
    let (second, third) = (ground.cluster.namespace().await, ground.cluster.namespace().await);
    grant(ground.cluster, &ground.namespace, Some(&format!("{},{}", &*ground.namespace, &*second)), |_| true).await;
    let both = format!("{},{}", &*ground.namespace, &*second);
    let _operator = ground.operator_with(&[("WINDLASS_NAMESPACES", &both)]).await;
    for namespace in [&*ground.namespace, &*second, &*third] {
        ground.cluster.apply(namespace, &queue("emails", "{}")).await;
    }
    ground.ready("emails").await;
    let queues: kube::Api<windlass::crd::TaskQueue> = kube::Api::namespaced(ground.client.clone(), &second);
    let ready = |found: Option<&windlass::crd::TaskQueue>| {
        found.and_then(|queue| super::ground::condition_of(queue, "Ready")).is_some_and(|one| one.status == "True")
    };
    ground.cluster.wait(&queues, "emails", "to be ready", ready).await;
    let queues: kube::Api<windlass::crd::TaskQueue> = kube::Api::namespaced(ground.client.clone(), &third);
    assert_eq!(queues.get("emails").await.expect("there").status, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_object_that_cannot_be_read_does_not_stop_the_others() {
    // A cluster of its own, because the definition is bent: as an older or a newer version may have left it.
    let cluster = Kubernetes::start_api().await;
    define(&cluster).await;
    let namespace = cluster.namespace().await;
    grant(&cluster, &namespace, None, |_| true).await;
    let bent = json!([
        {"op": "replace", "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec",
         "value": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
    ]);
    let crd = ["patch", "crd", "taskqueues.windlass.dev", "--type=json", "-p"];
    cluster.kubectl(&[&crd[..], &[bent.to_string().as_str()][..]].concat()).await;
    let broken = queue("broken", "{mode: Sideways}");
    cluster
        .wait_for(&namespace, "the bent definition to be served", async || {
            cluster.try_apply(&namespace, &broken).await.map(drop)
        })
        .await;
    let redis = crate::support::servers::Server::start(crate::support::servers::Flavor::Redis70).await;
    let url = redis.url();
    let _operator = Operator::start(&cluster, &namespace, &[("WINDLASS_REDIS_URL", &url)]).await;
    let queues: kube::Api<windlass::crd::TaskQueue> = kube::Api::namespaced(cluster.client().await, &namespace);
    let defaults = "{mode: Running, visibilityTimeoutSeconds: 300}";
    cluster.apply(&namespace, &queue("fine", defaults)).await;
    let ready = |found: Option<&windlass::crd::TaskQueue>| {
        found.and_then(|queue| super::ground::condition_of(queue, "Ready")).is_some_and(|one| one.status == "True")
    };
    cluster.wait(&queues, "fine", "to be ready", ready).await;
    let said = async || {
        let arguments = ["--namespace", &namespace, "get", "tq", "broken", "-o", "jsonpath={.status.conditions[0]}"];
        let text = cluster.kubectl(&arguments).await;
        if text.contains("NotUnderstood") && text.contains("Sideways") { Ok(()) } else { Err(text) }
    };
    cluster.wait_for(&namespace, "the broken one to say so", said).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn loops_run_on_the_leader_alone() {
    let ground = Ground::new().await;
    let first = ground.operator().await;
    first.says("leading").await;
    let second = ground.operator().await;
    ground.apply("emails", "{}").await;
    ground.ready("emails").await;
    // A delayed task is moved by the leader's loop: no worker is there that would.
    let delayed = windlass::NewTask {
        not_before: windlass::NotBefore::After(Duration::from_millis(200)),
        ..windlass::NewTask::new(windlass::TaskType::new("send").expect("a type"), json!({}))
    };
    let broker = ground.broker("emails");
    broker.enqueue(&[delayed]).await.expect("taken");
    let moved = async || match broker.counts().await {
        Ok(counts) if counts.backlog == 1 && counts.delayed == 0 => Ok(()),
        other => Err(format!("{other:?}")),
    };
    ground.until("the delayed task to be moved", moved).await;
    let runs = "windlass_loop_runs_total{loop=\"promoter\"}";
    assert!(first.metric(runs).await.is_some_and(|count| count >= 1.0));
    assert_eq!(second.metric(runs).await, None);
}
