//! Containers that claim their tasks themselves, with nothing but the environment that they are given.

use serde_json::json;

use super::stage::{Stage, Watch};

/// Claims, runs and settles by what the environment says: queue, Redis, concurrency, types, who it is.
const CLAIMS: &str = "exec /opt/windlass worker --concurrency $WINDLASS_CONCURRENCY --types $WINDLASS_TASK_TYPES --exec -- /bin/sh -c \
    'cat >/dev/null; echo \"{\\\"pod\\\": \\\"$WINDLASS_POD_NAME\\\"}\"'";

#[tokio::test]
async fn a_container_with_a_library_of_its_own_needs_only_its_environment() {
    let Some(stage) = Stage::shared().await else { return };
    stage.queue(json!({})).await;
    let image = crate::kubernetes::Image::new("sdk").shell().program(env!("CARGO_BIN_EXE_windlass"), "/opt/windlass");
    let image = image.load(stage.cluster).await;
    let app = json!({"name": "app", "image": image, "command": ["/bin/sh", "-c", CLAIMS]});
    let fields = json!({"handler": {"type": "SDK"}, "taskTypes": ["work"], "concurrency": 4, "replicas": 2,
        "template": {"spec": {"containers": [app]}}});
    stage.pool("sdk", fields).await;
    stage.ready("sdk", 2).await;
    let watch = Watch::start();
    stage.enqueue(20, 0.0).await;
    for task in stage.all_done(20).await {
        let result = task["result"].to_string();
        assert!(result.contains("sdk-"), "the pod told its name: {task}");
    }
    watch.read("20 tasks through the containers of an SDK pool");
    stage.until("both workers to be known", |seen| seen["workers"] == 2).await;
    // They are told apart by pod, so one that is killed loses exactly its own.
    stage.enqueue(1, 0.0).await;
    stage.all_done(21).await;
}
