//! From `kubectl apply` to the first task that is done.

use serde_json::json;

use super::stage::{Stage, Watch};

#[tokio::test]
async fn two_manifests_are_all_that_a_user_needs() {
    let Some(stage) = Stage::shared().await else { return };
    let watch = Watch::start();
    tokio::join!(stage.queue(json!({})), stage.pool("p", json!({"concurrency": 4})));
    stage.enqueue(1, 0.0).await;
    stage.all_done(1).await;
    watch.read("from kubectl apply of both resources to the first task done");
    stage.ready("p", 1).await;
    let shown = stage.cluster.kubectl(&["-n", &stage.namespace, "get", "workerpools"]).await;
    eprintln!("{shown}");
}

#[tokio::test]
async fn a_program_runs_a_task_in_the_users_own_image() {
    let Some(stage) = Stage::shared().await else { return };
    stage.queue(json!({})).await;
    // The worker of these tests is linked with the machine's libraries: the image needs those as well.
    let image = crate::kubernetes::Image::new("exec").shell().program(env!("CARGO_BIN_EXE_windlass"), "/opt/windlass");
    let image = image.load(stage.cluster).await;
    for (name, entrypoint, command) in [("replace", "Replace", json!(null)), ("keep", "Keep", json!(["/bin/env"]))] {
        let mut app = json!({"name": "app", "image": image});
        if !command.is_null() {
            app["command"] = command;
        }
        let script = "cat > /tmp/task; echo \"{\\\"pod\\\": \\\"$WINDLASS_POD_NAME\\\", \\\"pid\\\": \\\"$$\\\"}\"";
        let exec = json!({"command": ["/bin/sh", "-c", script], "entrypoint": entrypoint});
        stage.pool(name, json!({"handler": {"type": "Exec", "exec": exec}, "taskTypes": [name], "template": {"spec": {"containers": [app]}}})).await;
    }
    for (name, number) in [("replace", 1), ("keep", 2)] {
        stage.ready(name, 1).await;
        let queue = format!("{}/q", &*stage.namespace);
        stage.windlass(&["task", "enqueue", "-q", &queue, "--type", name, "--payload", "{}"]).await;
        stage.all_done(number).await;
    }
    for task in stage.tasks("succeeded").await {
        let result = task["result"].to_string();
        assert!(!result.contains("$"), "a $ reaches the program as it was written: {result}");
    }
}
