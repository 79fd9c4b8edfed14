//! The leader's end and new passwords, while work goes on, in a release for work that matters.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::Api;

use super::load::GAP;
use super::production::Production;
use super::scene::{Place, Scene};

const OPERATORS: &str = "app.kubernetes.io/component=operator";
/// Within what another one leads.
const IN_TIME: SignedDuration = SignedDuration::from_secs(17);
/// How often another one has to lead in time, and how often it may be late meanwhile.
const IN_TIME_AT_LEAST: usize = 2;
const LATE_AT_MOST: usize = 1;

fn holder(lease: Option<&Lease>) -> Option<String> {
    let holder = lease?.spec.as_ref()?.holder_identity.clone();
    holder.filter(|holder| !holder.is_empty())
}

/// Who leads: the name by which it holds the Lease, when it renewed that last, and its pod.
async fn leader(scene: &Scene, place: &Place) -> (String, Timestamp, Pod) {
    let leases: Api<Lease> = Api::namespaced(scene.client.clone(), &place.system);
    let held = scene.cluster.wait(&leases, "windlass", "to be held", |found| holder(found).is_some()).await;
    let name = holder(held.as_ref()).expect("it was waited for");
    let renewed = held.and_then(|lease| lease.spec?.renew_time).expect("who holds it has renewed it").0;
    let pods = scene.pods(&place.system, OPERATORS).await;
    let pod = pods.into_iter().find(|pod| name.starts_with(&pod.name_any()));
    (name, renewed, pod.expect("the leader has a pod"))
}

/// Waits until somebody else leads than `from`, and returns how long nobody did, as the Lease itself tells: from the last
/// renewal that was seen until it was taken. The first one was seen before the end, because the next leader may be quicker than
/// the first look.
async fn taken_over(scene: &Scene, place: &Place, from: &str, mut renewed: Timestamp) -> SignedDuration {
    let leases: Api<Lease> = Api::namespaced(scene.client.clone(), &place.system);
    scene
        .cluster
        .wait_for(&place.system, "another one to lead", async || {
            let lease = leases.get("windlass").await.map_err(|error| error.to_string())?;
            let spec = lease.spec.clone().unwrap_or_default();
            if holder(Some(&lease)).is_some_and(|name| name != from) {
                let taken = spec.acquire_time.expect("it says since when").0;
                return Ok(taken.duration_since(renewed));
            }
            renewed = spec.renew_time.as_ref().map_or(renewed, |time| time.0);
            Err(format!("{spec:?}"))
        })
        .await
}

/// Ends the leader in some way and sees to it that another one leads in time, two times of three at the least: on a machine
/// that is busy with something else it may be late once.
async fn hands_over(scene: &Scene, place: &Place, what: &str, end: impl AsyncFn(&Pod)) {
    let (mut in_time, mut late) = (0, Vec::new());
    while in_time < IN_TIME_AT_LEAST {
        two_are_ready(scene, place).await;
        let (name, renewed, pod) = leader(scene, place).await;
        end(&pod).await;
        let took = taken_over(scene, place, &name, renewed).await;
        eprintln!("measured: {what}: nobody led for {:.1} s", took.as_secs_f64());
        match took <= IN_TIME {
            true => in_time += 1,
            false => late.push(took),
        }
        assert!(late.len() <= LATE_AT_MOST, "{what}: nobody led for {late:?}");
    }
}

async fn two_are_ready(scene: &Scene, place: &Place) {
    let rollout = format!("kubectl rollout status -n {} deployment/windlass --timeout=3m", &*place.system);
    scene.types(&rollout).await;
}

#[tokio::test]
async fn nothing_is_lost_when_leaders_are_killed_and_passwords_rotated_and_another_leader_remembers_all_of_it() {
    let Some(scene) = Scene::enter().await else { return };
    let production = Production::install(&scene).await;
    let place = &production.place;
    let work = production.work(&scene).await;
    let producing = work.begin(Duration::from_millis(100));
    work.has_finished(10).await;
    let began = Timestamp::now();

    // The leader looks again at a Secret of pods after a minute; the next one has not seen it yet.
    let before = production.template(&scene).await;
    production.rotate(&scene).await;
    let system = &*place.system;
    hands_over(&scene, place, "the leader's pod deleted by force", async |pod| {
        scene.types(&format!("kubectl delete pod -n {system} {} --grace-period=0 --force", pod.name_any())).await;
    })
    .await;
    producing.goes_on(20).await;
    two_are_ready(&scene, place).await;
    production.withdraw(&scene, &before).await;

    // This one has no time to give the Lease back.
    hands_over(&scene, place, "kill -9 of the leader", async |pod| scene.kill9(pod, "operator").await).await;
    producing.goes_on(20).await;
    let ended = Timestamp::now();

    let account = producing.stop().await.all_done().await;
    account.claims_went_on(began, ended, GAP, "while leaders died and passwords changed");
    two_are_ready(&scene, place).await;
    production.remembers(&scene, &account).await;
}
