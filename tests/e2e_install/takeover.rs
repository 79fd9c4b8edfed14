//! The leader's end and new passwords, while work goes on, in a release for work that matters.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::Api;

use super::production::Production;
use super::scene::{Place, Scene, Watch};

const OPERATORS: &str = "app.kubernetes.io/component=operator";

fn holder(lease: Option<&Lease>) -> Option<String> {
    let holder = lease?.spec.as_ref()?.holder_identity.clone();
    holder.filter(|holder| !holder.is_empty())
}

/// Who leads: the name by which it holds the Lease, and its pod.
async fn leader(scene: &Scene, place: &Place) -> (String, Pod) {
    let leases: Api<Lease> = Api::namespaced(scene.client.clone(), &place.system);
    let held = scene.cluster.wait(&leases, "windlass", "to be held", |found| holder(found).is_some()).await;
    let name = holder(held.as_ref()).expect("it was waited for");
    let pods = scene.pods(&place.system, OPERATORS).await;
    let pod = pods.into_iter().find(|pod| name.starts_with(&pod.name_any()));
    (name, pod.expect("the leader has a pod"))
}

/// Waits until somebody else leads.
async fn taken_over(scene: &Scene, place: &Place, from: &str, watch: &Watch, what: &str) {
    let leases: Api<Lease> = Api::namespaced(scene.client.clone(), &place.system);
    let another = |found: Option<&Lease>| holder(found).is_some_and(|name| name != from);
    scene.cluster.wait(&leases, "windlass", "to be held by another", another).await;
    watch.read(&format!("{what}: until another one leads"));
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
    let (name, pod) = leader(&scene, place).await;
    let watch = Watch::start();
    let (system, pod) = (&*place.system, pod.name_any());
    scene.types(&format!("kubectl delete pod -n {system} {pod} --grace-period=0 --force")).await;
    taken_over(&scene, place, &name, &watch, "the leader's pod deleted by force").await;
    producing.goes_on(20).await;
    two_are_ready(&scene, place).await;
    production.withdraw(&scene, &before).await;

    // This one has no time to give the Lease back.
    let (name, pod) = leader(&scene, place).await;
    let watch = Watch::start();
    scene.kill9(&pod, "operator").await;
    taken_over(&scene, place, &name, &watch, "kill -9 of the leader").await;
    producing.goes_on(20).await;
    let ended = Timestamp::now();

    let account = producing.stop().await.all_done().await;
    account.claims_went_on(began, ended, "while leaders died and passwords changed");
    two_are_ready(&scene, place).await;
    production.remembers(&scene, &account).await;
}
