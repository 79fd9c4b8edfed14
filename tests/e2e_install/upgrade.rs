//! `helm upgrade` while work goes on.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;

use super::load::GAP;
use super::scene::{IMAGE, Place, Scene, Watch};

/// A later version of the chart: its definition of TaskQueue has a field more. Returns where it is.
fn later_chart(folder: &Path) -> String {
    let chart = folder.join("windlass");
    let mut copy = std::process::Command::new("cp");
    copy.args(["-r", "charts/windlass"]).arg(&chart).current_dir(env!("CARGO_MANIFEST_DIR"));
    assert!(copy.status().expect("cp starts").success());
    change(&chart.join("Chart.yaml"), |about| about["version"] = "99.0.0".into());
    change(&chart.join("files/crds/taskqueues.windlass.dev.yaml"), |definition| {
        let schema = &mut definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        let note = serde_json::json!({"type": "string", "maxLength": 100, "description": "Whose queue it is."});
        schema["properties"]["spec"]["properties"]["note"] = note;
    });
    chart.to_str().expect("UTF-8").to_owned()
}

fn change(path: &Path, how: impl FnOnce(&mut Value)) {
    let text = fs::read_to_string(path).expect("it can be read");
    let mut value = serde_yaml::from_str(&text).expect("YAML");
    how(&mut value);
    fs::write(path, serde_yaml::to_string(&value).expect("YAML")).expect("it can be written");
}

/// The images, by their digests, that operators and workers run.
async fn images(scene: &Scene, place: &Place) -> BTreeSet<String> {
    let mut pods = scene.pods(&place.system, "app.kubernetes.io/component=operator").await;
    pods.extend(scene.pods(&place.jobs, "windlass.dev/pool=workers").await);
    let statuses = pods.iter().filter_map(|pod| pod.status.as_ref()?.container_statuses.as_ref()).flatten();
    let ours = statuses.filter(|one| ["operator", "windlass-worker"].contains(&one.name.as_str()));
    let found: BTreeSet<String> = ours.map(|one| one.image_id.clone()).filter(|id| !id.is_empty()).collect();
    assert!(!found.is_empty(), "something runs");
    found
}

#[tokio::test]
async fn an_upgrade_of_image_values_and_definitions_under_load_loses_nothing_and_claiming_goes_on() {
    let Some(scene) = Scene::enter().await else { return };
    let place = scene.place().await;
    scene.install(&place, "").await;
    let work = scene.work(&place).await;
    let producing = work.begin(Duration::from_millis(100));
    work.has_finished(20).await;

    let before = images(&scene, &place).await;
    let later = tempfile::tempdir().expect("a temporary directory");
    let chart = later_chart(later.path());
    let (watch, began) = (Watch::start(), Timestamp::now());
    let (system, jobs, redis) = (&*place.system, &*place.jobs, place.redis());
    scene
        .types(&format!(
            "helm upgrade windlass {chart} -n {system} --wait --timeout 3m {IMAGE} --set image.tag=next --set {redis} \
               --set replicaCount=2,logging.level=debug,resources.requests.memory=48Mi"
        ))
        .await;
    watch.read("helm upgrade, until both operators are ready");
    // Pools follow a new image by themselves, while the tasks of the old pods end.
    let followed = async || {
        let pods = scene.pods(jobs, "windlass.dev/pool=workers").await;
        let new = |pod: &k8s_openapi::api::core::v1::Pod| {
            let image = pod.spec.as_ref().and_then(|spec| spec.containers[0].image.as_deref());
            let ready = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
            let ready = ready.is_some_and(|all| all.iter().any(|one| one.type_ == "Ready" && one.status == "True"));
            image == Some("localhost/windlass:next") && ready
        };
        if pods.len() == 2 && pods.iter().all(new) { Ok(()) } else { Err(format!("{} pods", pods.len())) }
    };
    scene.cluster.wait_for(jobs, "the pool to have the new image", followed).await;
    watch.read("helm upgrade, until the pool's pods are of the new image");
    let after = images(&scene, &place).await;
    assert!(after.is_disjoint(&before), "all run another image: {before:?}, then {after:?}");
    let ended = Timestamp::now();
    producing.goes_on(20).await;
    let account = producing.stop().await.all_done().await;
    // Workers claim with or without a leader, so the gap has nothing to do with a leader's handover, which takes the new
    // one half a second where the old one gives the Lease back, and 15 s where it cannot. It is the promise all the same.
    account.claims_went_on(began, ended, GAP, "during the upgrade");

    let said = scene
        .types(&format!(
            "kubectl patch -n {jobs} taskqueue/work --type=merge -p '{{\"spec\": {{\"note\": \"ours\"}}}}'
             kubectl get -n {jobs} taskqueue/work -o 'jsonpath={{.spec.note}}'
             kubectl wait -n {jobs} --for=condition=Ready taskqueue/work workerpool/workers --timeout=3m"
        ))
        .await;
    assert!(said.contains("\nours"), "the definition is the new one: {said}");
}
