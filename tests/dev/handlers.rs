//! Handlers behind HTTP, and programs that claim their tasks themselves.

use serde_json::json;
use windlass::State;

use super::ground::{Ground, queue};
use crate::support::servers::Wait;

const SERVER: &str = r#"
import http.server, json, os, sys, time
time.sleep(1)  # workers wait until it listens
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        task = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        body = json.dumps({"path": self.path, "hello": os.environ["NAME"], "got": task["payload"]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"#;

/// A port that was free a moment ago: what is to listen there cannot be handed a listener.
fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    listener.local_addr().expect("an address").port()
}

/// A pool behind HTTP whose server is started here.
fn web(port: u16) -> String {
    format!(
        "apiVersion: windlass.dev/v1alpha1\nkind: WorkerPool\nmetadata: {{name: web}}\nspec:\n  \
         queueRef: {{name: q}}\n  replicas: 2\n  handler: {{type: HTTP, http: {{port: {port}, path: /tasks}}}}\n  \
         template:\n    spec:\n      containers:\n      - name: app\n        image: python\n        \
         command: [python3, server.py]\n        args: [\"{port}\"]\n        resources: {{limits: {{cpu: 1}}}}\n        \
         env: [{{name: NAME, value: ada}}, {{name: TOKEN, valueFrom: {{secretKeyRef: {{name: s, key: k}}}}}}]\n"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_containers_command_is_started_and_tasks_are_posted_to_it() {
    let port = free_port();
    let pool = web(port);
    let ground = Ground::new(&format!("{}---\n{pool}", queue("q", "{}")));
    ground.write("server.py", SERVER);
    let dev = ground.start().await;
    ground.logged("only a cluster knows TOKEN").await;
    ground.logged("resources have no effect").await;
    let on = ground.queue("q");
    let id = on.enqueue("a", json!({"x": 1})).await;
    let task = on.reaches(&id, State::Succeeded).await;
    let result = format!("{:?}", task.result);
    assert!(result.contains("/tasks") && result.contains("ada"), "{result}");
    assert_eq!(task.retry_count, 0, "no worker posts before somebody listens");
    on.workers(2).await;
    dev.stop().await;
    assert!(std::net::TcpListener::bind(("127.0.0.1", port)).is_ok(), "the server is gone");
}

/// Nobody's tasks are sent to whoever happens to listen.
#[tokio::test(flavor = "multi_thread")]
async fn a_port_of_a_stranger_gets_no_tasks_and_is_waited_for() {
    let stranger = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let port = stranger.local_addr().expect("an address").port();
    let ground = Ground::new(&format!("{}---\n{}", queue("q", "{}"), web(port)));
    ground.write("server.py", SERVER);
    let dev = ground.start().await;
    ground.logged(&format!("port {port} is in use by another program")).await;
    let on = ground.queue("q");
    let id = on.enqueue("a", json!({"x": 1})).await;
    // As long as a worker takes to start, several times over.
    let called = tokio::time::timeout(std::time::Duration::from_secs(3), stranger.accept()).await;
    assert!(called.is_err(), "somebody called: {called:?}");
    assert_eq!(on.task(&id).await.state, State::Queued);
    drop(stranger);
    let task = on.reaches(&id, State::Succeeded).await;
    assert_eq!(task.retry_count, 0);
    dev.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_claims_itself_gets_what_it_needs() {
    let pool = "apiVersion: windlass.dev/v1alpha1\nkind: WorkerPool\nmetadata: {name: own}\nspec:\n  \
         queueRef: {name: q}\n  taskTypes: [a, b]\n  handler: {type: SDK}\n  \
         template: {spec: {containers: [{name: app, image: own, command: [sh, own.sh]}]}}\n";
    let ground = Ground::new(&format!("{}---\n{pool}", queue("q", "{}")));
    ground.write(
        "own.sh",
        "echo \"$WINDLASS_QUEUE $WINDLASS_TASK_TYPES $WINDLASS_CONCURRENCY $WINDLASS_REDIS_URL\" >facts; exec sleep 600\n",
    );
    let dev = ground.start().await;
    let mut wait = Wait::new("the program to have started");
    while !ground.read("facts").ends_with('\n') {
        wait.again(ground.log()).await;
    }
    assert_eq!(ground.read("facts"), format!("default/q a,b 1 {}\n", ground.redis_url()));
    dev.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_only_a_cluster_can_run_is_said() {
    let pool = "apiVersion: windlass.dev/v1alpha1\nkind: WorkerPool\nmetadata: {name: web}\nspec:\n  \
         queueRef: {name: q}\n  handler: {type: HTTP, http: {port: 9}}\n  autoscaling: {maxReplicas: 5}\n  \
         template: {spec: {containers: [{name: app, image: web:1}]}}\n---\n\
         apiVersion: v1\nkind: Service\nmetadata: {name: web}\n";
    let ground = Ground::new(&format!("{}---\n{pool}", queue("q", "{}")));
    let dev = ground.start().await;
    ground.logged("images are not run here: start what listens on 127.0.0.1:9 yourself").await;
    ground.logged("not scaled on one machine: 1 replicas, not 0 to 5").await;
    ground.logged("left alone: Service web").await;
    dev.stop().await;
}
