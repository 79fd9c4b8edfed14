//! `helm uninstall`, and what is left.

use std::time::Duration;

use serde_json::Value;

use super::scene::{IMAGE, Scene, Watch};

/// Runs `windlass` where the operator is.
fn windlass(system: &str) -> String {
    format!("windlass() {{ kubectl exec -n {system} deploy/windlass -- windlass \"$@\"; }}\n")
}

/// Makes a queue with a task that waits for its time, one that is done and one that is a dead letter.
fn kept(system: &str, jobs: &str) -> String {
    let renamed = "s/{name: work}/{name: kept}/; s/name: workers/name: keepers/";
    windlass(system)
        + &format!(
            "sed -e '{renamed}' tests/e2e_install/work.yaml | kubectl apply -n {jobs} -f -
             kubectl wait -n {jobs} --for=condition=Ready taskqueue/kept workerpool/keepers --timeout=3m
             enqueue() {{ windlass task enqueue -q {jobs}/kept --type work \"$@\" | awk 'END {{print $1}}'; }}
             enqueue --payload '{{}}' --delay 6h
             windlass task wait \"$(enqueue --payload '{{}}')\" -q {jobs}/kept --timeout 2m
             ! windlass task wait \"$(enqueue --payload '{{\"fails\": \"always\"}}')\" -q {jobs}/kept --timeout 2m"
        )
}

/// Its tasks, by their states.
async fn tasks(scene: &Scene, system: &str, jobs: &str) -> Vec<Value> {
    let said = scene.types(&(windlass(system) + &format!("windlass task list -q {jobs}/kept -o json"))).await;
    let mut all: Vec<Value> = serde_json::from_str(&said).expect("JSON");
    all.sort_by_key(|task| task["state"].to_string());
    all
}

/// Its dead letters.
async fn letters(scene: &Scene, system: &str, jobs: &str) -> Vec<Value> {
    let said = scene.types(&(windlass(system) + &format!("windlass dlq list -q {jobs}/kept --all -o json"))).await;
    serde_json::from_str(&said).expect("JSON")
}

#[tokio::test]
async fn what_people_made_survives_the_release_workers_go_on_without_it_and_the_next_ones_take_it_up() {
    let Some(scene) = Scene::enter().await else { return };
    let place = scene.place().await;
    let (system, jobs) = (&*place.system, &*place.jobs);
    scene.install(&place, "").await;
    let work = scene.work(&place).await;
    let identities = format!(
        "kubectl get -n {jobs} taskqueue/work workerpool/workers deployment/workers \
           crd/taskqueues.windlass.dev crd/workerpools.windlass.dev \
           -o 'jsonpath={{range .items[*]}}{{.kind}} {{.metadata.name}} {{.metadata.uid}}{{\"\\n\"}}{{end}}'"
    );
    let before = scene.types(&identities).await;
    assert_eq!(before.lines().count(), 5, "{before}");
    scene.types(&kept(system, jobs)).await;
    let (tasks, letters) = (tasks(&scene, system, jobs).await, letters(&scene, system, jobs).await);
    let states: Vec<_> = tasks.iter().map(|task| task["state"].as_str().unwrap_or_default()).collect();
    assert_eq!((states, letters.len()), (vec!["failed", "scheduled", "succeeded"], 1), "{tasks:#?} {letters:#?}");

    let said = scene.types(&format!("helm uninstall windlass -n {system} --wait --timeout 3m")).await;
    assert!(said.contains("taskqueues.windlass.dev"), "it says what was kept: {said}");
    scene.types(&format!("kubectl wait -n {system} --for=delete pod --all --timeout=3m")).await;
    let asked = format!("kubectl get lease -n {system} windlass -o 'jsonpath={{.spec.holderIdentity}}'");
    eprintln!("after helm uninstall the Lease is held by {:?}", scene.types(&asked).await);
    assert_eq!(scene.types(&identities).await, before, "all that people made is there");

    // Redis is somebody else's, and workers need nobody to tell them to work.
    let producing = work.begin(Duration::from_millis(50));
    work.has_finished(40).await;
    let produced = producing.stop().await;
    // A person goes on as well.
    let queue = "{apiVersion: windlass.dev/v1alpha1, kind: TaskQueue, metadata: {name: meanwhile}, spec: {}}";
    scene.types(&format!("echo '{queue}' | kubectl apply -n {jobs} -f -")).await;

    let watch = Watch::start();
    scene.install(&place, "").await;
    scene
        .types(&format!(
            "kubectl wait -n {jobs} --for=condition=Ready taskqueue/meanwhile taskqueue/work workerpool/workers \
               --timeout=3m"
        ))
        .await;
    watch.read("from the next helm install until all that was there is ready");
    assert_eq!(scene.types(&identities).await, before, "nothing was made anew");
    assert_eq!(self::tasks(&scene, system, jobs).await, tasks, "what waited waits, and what has ended is known");
    assert_eq!(self::letters(&scene, system, jobs).await, letters);
    produced.all_done().await;
    watch.read("from the next helm install until all that had waited for a leader is done");

    // One of another name, elsewhere, has to say that it takes the definitions over.
    let other = scene.namespace().await;
    scene.types(&format!("helm uninstall windlass -n {system} --wait --timeout 3m")).await;
    let install = format!(
        "helm install other charts/windlass -n {} --wait --timeout 3m {IMAGE} --set image.tag=test --set {}",
        &*other,
        place.redis()
    );
    let refused = scene.tries(&install).await.expect_err("the definitions are another release's");
    assert!(refused.contains("invalid ownership metadata"), "{refused}");
    let queue = queue.replace("meanwhile", "later");
    scene
        .types(&format!(
            "{install} --take-ownership
             echo '{queue}' | kubectl apply -n {jobs} -f -
             kubectl wait -n {jobs} --for=condition=Ready taskqueue/later taskqueue/work workerpool/workers --timeout=3m"
        ))
        .await;
    assert_eq!(scene.types(&identities).await, before, "nothing was made anew");
    // What is delayed needs a leader.
    let said = scene
        .types(&format!(
            "windlass() {{ kubectl exec -n {} deploy/other-windlass -- windlass \"$@\"; }}
             task=$(windlass task enqueue -q {jobs}/work --type work --payload '{{}}' --delay 1s | awk 'END {{print $1}}')
             windlass task wait \"$task\" -q {jobs}/work --timeout 60s",
            &*other
        ))
        .await;
    assert!(said.contains("succeeded"), "{said}");
}
