//! The local API: round trips from the examples in Python and Node, and what it refuses.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use reqwest::{Client, Method};
use serde_json::{Value, json};
use windlass::broker::{Broker, EffectBegun, Standing};
use windlass::protocol::names::{TenantId, TraceId};
use windlass::protocol::state::RetryReason;
use windlass::worker::api::LocalApi;
use windlass::worker::exec::{ExecHandler, ExecOptions};
use windlass::worker::http::{HttpHandler, HttpOptions};
use windlass::{Handler, NewTask, State, TaskView};

use super::ground::{Ground, example, interpreter, kind, lines, shell_options, task};
use crate::support::servers::Wait;

/// The example that is a Python program.
async fn python_program(bank: &Path) -> Box<dyn Handler> {
    let mut options = ExecOptions::new([interpreter("python3").into(), example("exec_handler.py")]);
    options.environment = vec![("BANK".into(), bank.into())];
    options.api = Some(LocalApi::start().await.expect("loopback is there"));
    Box::new(ExecHandler::new(options).expect("the example is there"))
}

/// An example that is a server, which ends with this value.
struct Site {
    process: Child,
    url: String,
}

impl Site {
    async fn start(interpreted_by: &str, name: &str, bank: &Path) -> Self {
        let output = bank.with_extension("log");
        let process = Command::new(interpreter(interpreted_by))
            .arg(example(name))
            .arg("0")
            .env("BANK", bank)
            .stdin(Stdio::null())
            .stdout(std::fs::File::create(&output).expect("a file for its output"))
            .spawn()
            .expect("the example starts");
        let said = lines(&output, 1).await.remove(0);
        let port = said.strip_prefix("listening on ").expect("it says where it listens");
        Self { process, url: format!("http://127.0.0.1:{port}/tasks") }
    }

    async fn handler(&self) -> Box<dyn Handler> {
        let mut options = HttpOptions::new(&self.url);
        options.api = Some(LocalApi::start().await.expect("loopback is there"));
        Box::new(HttpHandler::new(options).expect("a usable address"))
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

fn invoice(order: u32) -> NewTask {
    NewTask::new(kind("invoice"), json!({"order": order}))
}

fn result(view: &TaskView) -> Value {
    view.result.as_ref().unwrap_or_else(|| panic!("no result: {view:?}")).parse().expect("JSON")
}

fn ledger(bank: &Path) -> String {
    std::fs::read_to_string(bank).unwrap_or_default()
}

/// An attempt that began to charge the order and died.
async fn died_charging(ground: &Ground, order: u32) {
    ground.enqueue(&[task(json!("dies"))]).await;
    let context = ground.claim().await;
    let key = format!("charge:{order}").parse().expect("valid");
    let begun = context.begin_once(&key, Standing::Own).await.expect("Redis is there");
    assert_eq!(begun, EffectBegun::Begin);
}

/// What both examples that charge must do.
async fn charges_once(handler: Box<dyn Handler>, bank: &Path) {
    let (ground, handler) = (Ground::new().await, Lent(handler.into()));

    // The first time it happens, and a receipt follows.
    let mut first = invoice(1);
    first.tenant_id = Some(TenantId::new("acme").expect("valid"));
    first.trace_id = Some(TraceId::new("trace-1").expect("valid"));
    let view = ground.run(handler.clone(), first.clone()).await;
    assert_eq!(result(&view)["charged"], json!(1), "{view:?}");
    assert_eq!(ledger(bank), "charged 1\n");
    let receipt = result(&view)["receipt"].as_str().expect("an id").parse().expect("valid");
    let follow_up = ground.view(&receipt).await;
    assert_eq!((follow_up.state, follow_up.task_type.as_str()), (State::Queued, "receipt"));
    assert_eq!(follow_up.extras.parent_id.as_ref(), Some(&first.id));
    assert_eq!((&follow_up.tenant_id, &follow_up.trace_id), (&first.tenant_id, &first.trace_id));
    ground.broker.cancel(&receipt, "out of the way").await.expect("cancelled");

    // The second time its answer is remembered. The tenant is another one's, so another effect.
    let mut again = invoice(1);
    again.tenant_id = first.tenant_id.clone();
    let view = ground.run(handler.clone(), again).await;
    assert_eq!(result(&view)["charged"], json!(1));
    assert_eq!(ledger(bank), "charged 1\n", "it happened once");
    let receipt = result(&view)["receipt"].as_str().expect("an id").parse().expect("valid");
    ground.broker.cancel(&receipt, "out of the way").await.expect("cancelled");

    // In doubt, and it had happened.
    died_charging(&ground, 2).await;
    std::fs::write(bank, "charged 2\n").expect("written");
    let view = ground.run(handler.clone(), invoice(2)).await;
    assert_eq!(result(&view)["charged"], json!(2));
    assert_eq!(ledger(bank), "charged 2\n", "it is found, not done again");
    let receipt = result(&view)["receipt"].as_str().expect("an id").parse().expect("valid");
    ground.broker.cancel(&receipt, "out of the way").await.expect("cancelled");

    // In doubt, and it had not happened.
    died_charging(&ground, 3).await;
    let view = ground.run(handler.clone(), invoice(3)).await;
    assert_eq!(result(&view)["charged"], json!(3));
    assert_eq!(ledger(bank), "charged 2\ncharged 3\n", "it is done now");
    let receipt = result(&view)["receipt"].as_str().expect("an id").parse().expect("valid");
    ground.broker.cancel(&receipt, "out of the way").await.expect("cancelled");

    // What will never work.
    let view = ground.run(handler, NewTask::new(kind("invoice"), json!({}))).await;
    assert_eq!(view.state, State::DlqPending, "{view:?}");
    assert!(view.error.expect("a reason").contains("the payload names no order"));
}

#[derive(Clone)]
struct Lent(std::sync::Arc<dyn Handler>);

#[async_trait::async_trait]
impl Handler for Lent {
    async fn handle(&self, task: &windlass::TaskContext) -> windlass::Outcome {
        self.0.handle(task).await
    }
}

#[tokio::test]
async fn a_python_program_charges_once_through_crashes_and_enqueues_a_follow_up() {
    let place = tempfile::tempdir().expect("a directory");
    let bank = place.path().join("bank.txt");
    charges_once(python_program(&bank).await, &bank).await;
}

#[tokio::test]
async fn a_node_server_charges_once_through_crashes_and_enqueues_a_follow_up() {
    let place = tempfile::tempdir().expect("a directory");
    let bank = place.path().join("bank.txt");
    let site = Site::start("node", "http_handler.mjs", &bank).await;
    charges_once(site.handler().await, &bank).await;
}

#[tokio::test]
async fn the_python_program_asks_for_patience() {
    let place = tempfile::tempdir().expect("a directory");
    let handler = python_program(&place.path().join("bank.txt")).await;
    let busy = NewTask::new(kind("invoice"), json!({"order": 1, "busy": true}));
    let view = Ground::new().await.run(Lent(handler.into()), busy).await;
    assert_eq!((view.state, view.retry_reason), (State::Retrying, Some(RetryReason::RateLimited)), "{view:?}");
}

#[tokio::test]
async fn a_python_server_reports_progress_and_answers_every_way() {
    let place = tempfile::tempdir().expect("a directory");
    let site = Site::start("python3", "http_handler.py", &place.path().join("none")).await;
    let (ground, handler) = (Ground::new().await, Lent(site.handler().await.into()));
    let pages = |pages: Value| NewTask::new(kind("report"), json!({"pages": pages}));

    let view = ground.run(handler.clone(), pages(json!(["a", "b", "c"]))).await;
    assert_eq!(result(&view), json!({"pages": 3, "attempt": 1}));
    let view = ground.run(handler.clone(), pages(json!(["a", "slow down"]))).await;
    assert_eq!((view.state, view.retry_reason), (State::Retrying, Some(RetryReason::RateLimited)), "{view:?}");
    let progress = view.progress.expect("what it told last");
    assert_eq!(progress.parse::<Value>().expect("JSON"), json!({"page": 2, "of": 2}));
    let view = ground.run(handler, pages(json!("none"))).await;
    assert_eq!((view.state, view.error_code.as_deref()), (State::DlqPending, Some("http_422")));
}

#[tokio::test]
async fn a_shell_script_is_a_handler() {
    let handler = || ExecHandler::new(ExecOptions::new([example("exec_handler.sh")])).expect("it is executable");
    let ground = Ground::new().await;
    let run = |name: &str| ground.run(handler(), NewTask::new(kind(name), json!({"page": "x"})));
    assert!(result(&run("size").await).is_u64());
    assert!(result(&run("checksum").await).is_u64());
    assert_eq!(run("limited").await.retry_reason, Some(RetryReason::RateLimited));
    let view = run("dance").await;
    assert_eq!((view.state, view.error_code.as_deref()), (State::DlqPending, Some("exit_65")));
    assert!(view.error.expect("a reason").ends_with("no such type: dance"));
}

/// A handler that goes on until the test ends it, and its way to the local API.
struct Door {
    ground: Ground,
    place: tempfile::TempDir,
    client: Client,
    url: String,
    token: String,
    running: tokio::task::JoinHandle<TaskView>,
}

impl Door {
    async fn open() -> Self {
        let place = tempfile::tempdir().expect("a directory");
        let (api, stop) = (place.path().join("api"), place.path().join("stop"));
        let script = format!(
            "trap '' TERM; echo $WINDLASS_API $WINDLASS_API_TOKEN > {}; until [ -e {} ]; do sleep 0.02; done",
            api.display(),
            stop.display()
        );
        let mut options = shell_options(&script);
        // It goes on when its task is cancelled: the test decides when it ends.
        options.kill_after = Duration::from_secs(3600);
        options.api = Some(LocalApi::start().await.expect("loopback is there"));
        let handler = ExecHandler::new(options).expect("there is a shell");
        let ground = Ground::new().await;
        let same = ground.clone();
        let running = tokio::spawn(async move { same.run(handler, task(json!(1))).await });
        let told = lines(&api, 1).await.remove(0);
        let (url, token) = told.split_once(' ').expect("both are told");
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = Client::builder().tls_certs_only([]).no_proxy().build().expect("a client");
        Self { ground, place, client, url: url.to_owned(), token: token.to_owned(), running }
    }

    async fn call(&self, method: Method, path: &str, body: impl Into<String>) -> (u16, Value) {
        self.call_as(&format!("Bearer {}", self.token), method, path, body).await
    }

    async fn post(&self, path: &str, body: Value) -> (u16, Value) {
        self.call(Method::POST, path, body.to_string()).await
    }

    async fn call_as(&self, who: &str, method: Method, path: &str, body: impl Into<String>) -> (u16, Value) {
        let request = self.client.request(method, format!("{}{path}", self.url)).header("authorization", who);
        let answer = request.body(body.into()).send().await.expect("the API answers");
        let status = answer.status().as_u16();
        let text = answer.text().await.expect("it answers to the end");
        (status, serde_json::from_str(&text).unwrap_or_else(|_| panic!("{status} is not JSON: {text}")))
    }

    /// Ends the handler; its way in ends with it.
    async fn close(&mut self) -> TaskView {
        std::fs::write(self.place.path().join("stop"), "").expect("written");
        (&mut self.running).await.expect("the handler ended")
    }
}

fn sentence(answer: &Value) -> &str {
    answer["error"].as_str().unwrap_or_else(|| panic!("no sentence in {answer}"))
}

#[tokio::test]
async fn only_the_token_of_an_attempt_that_goes_on_opens_the_api() {
    let mut door = Door::open().await;
    let (status, answer) = door.call(Method::GET, "/v1/cancelled", "").await;
    assert_eq!((status, answer), (200, json!({"cancelled": false, "reason": null})));
    let basic = format!("Basic {}", door.token);
    for who in ["", "Bearer", "Bearer ", "Bearer nonsense", &basic, &format!("Bearer {}0", door.token)] {
        let (status, answer) = door.call_as(who, Method::GET, "/v1/cancelled", "").await;
        assert_eq!(status, 401, "{who:?}");
        assert!(sentence(&answer).contains("token"), "{answer}");
    }
    assert_eq!(door.close().await.state, State::Succeeded);
    for (method, path) in [(Method::GET, "/v1/cancelled"), (Method::POST, "/v1/tasks"), (Method::POST, "/v1/extend")] {
        let mut wait = Wait::new("the API to end with its handler");
        // The server itself ends with its last handler: a refused connection is as good as a refusal.
        let url = format!("{}{path}", door.url);
        loop {
            let answer = door.client.request(method.clone(), &url).bearer_auth(&door.token).body("{}").send().await;
            match answer {
                Err(_) => break,
                Ok(answer) => assert_eq!(answer.status().as_u16(), 410),
            }
            wait.again("it still answers").await;
        }
    }
}

#[tokio::test]
async fn an_effect_is_begun_committed_doubted_and_resolved() {
    let mut door = Door::open().await;
    let once = |what: &str| format!("/v1/once/{what}");
    let key = json!({"key": "letter:7"});
    let committed = json!({"key": "letter:7", "answer": {"sent": 1.50}});

    let (status, answer) = door.post(&once("commit"), committed.clone()).await;
    assert_eq!((status, answer["code"].as_str()), (409, Some("not_begun")), "{answer}");
    let (status, answer) = door.post(&once("resolve"), key.clone()).await;
    assert_eq!((status, answer["code"].as_str()), (409, Some("no_doubt")), "{answer}");
    assert_eq!(door.post(&once("begin"), key.clone()).await, (200, json!({"state": "begin"})));

    // Who begins twice may have acted in between.
    let (status, answer) = door.post(&once("begin"), key.clone()).await;
    assert_eq!((status, answer["state"].as_str()), (200, Some("in-doubt")), "{answer}");
    assert!(answer["doubt"]["since"].is_string(), "{answer}");
    assert_eq!(door.post(&once("resolve"), key.clone()).await, (200, json!({"state": "begin"})));
    let (status, answer) = door.post(&once("commit"), committed.clone()).await;
    assert_eq!((status, &answer), (200, &json!({"state": "done", "answer": {"sent": 1.50}})));
    assert_eq!(door.post(&once("begin"), key.clone()).await, (200, answer.clone()));
    let other = json!({"key": "letter:7", "answer": "another"});
    assert_eq!(door.post(&once("commit"), other).await, (200, answer), "the first answer stays");

    // What did not happen may begin anew.
    let key = json!({"key": "letter:8"});
    assert_eq!(door.post(&once("begin"), key.clone()).await, (200, json!({"state": "begin"})));
    assert_eq!(door.post(&once("abandon"), key.clone()).await, (200, json!({"state": "abandoned"})));
    assert_eq!(door.post(&once("begin"), key.clone()).await, (200, json!({"state": "begin"})));
    let (status, answer) = door.post(&once("abandon"), json!({"key": "letter:9"})).await;
    assert_eq!((status, answer["code"].as_str()), (409, Some("not_begun")));

    // A doubt may turn out to have happened.
    assert_eq!(door.post(&once("begin"), key.clone()).await.1["state"], json!("in-doubt"));
    let (status, answer) = door.post(&once("commit"), json!({"key": "letter:8"})).await;
    assert_eq!((status, answer), (200, json!({"state": "done", "answer": null})));
    door.close().await;
}

#[tokio::test]
async fn progress_and_extend_say_whether_the_task_is_still_wanted() {
    let mut door = Door::open().await;
    let fine = json!({"cancelled": false, "reason": null});
    for report in [json!({"percent": 10}), json!("half way"), json!(null)] {
        assert_eq!(door.post("/v1/progress", report).await, (200, fine.clone()));
    }
    assert_eq!(door.call(Method::POST, "/v1/extend", "").await, (200, fine));
    let (status, answer) = door.post("/v1/progress", json!("x".repeat(10_000))).await;
    assert_eq!(status, 422, "{answer}");
    assert!(sentence(&answer).contains("4096"), "{answer}");

    let waiting = door.call(Method::GET, "/v1/cancelled?waitSeconds=60", "");
    let ground = &door.ground;
    let cancelling = async {
        let id = ground.running().await;
        ground.broker.cancel(&id, "not needed").await.expect("cancelled");
        door.call(Method::POST, "/v1/extend", "").await
    };
    let (waited, extended) = tokio::join!(waiting, cancelling);
    let over = (200, json!({"cancelled": true, "reason": "cancelled"}));
    assert_eq!((&waited, &extended), (&over, &over));
    assert_eq!(door.call(Method::GET, "/v1/cancelled", "").await, over);
    door.close().await;
}

#[tokio::test]
async fn a_follow_up_carries_what_it_was_given() {
    let mut door = Door::open().await;
    let asked = json!({
        "id": "follow-up-1", "type": "render", "payload": {"a": 1}, "priority": 9, "delaySeconds": 3600,
        "idempotencyKey": "k", "tenantId": "t", "traceId": "x", "maxRetries": 7, "timeoutSeconds": 1.5,
        "labels": {"team": "a"},
    });
    let (status, made) = door.post("/v1/tasks", asked.clone()).await;
    let queue = door.ground.queue.to_string();
    let expected = json!({"id": "follow-up-1", "queue": queue, "state": "scheduled", "created": true});
    assert_eq!((status, made), (201, expected));
    let (status, made) = door.post("/v1/tasks", asked).await;
    assert_eq!((status, &made["created"], &made["id"]), (200, &json!(false), &json!("follow-up-1")));
    let view = door.ground.view(&"follow-up-1".parse().expect("valid")).await;
    assert_eq!((view.task_type.as_str(), view.priority, view.max_retries), ("render", 9, Some(7)));
    assert_eq!(view.extras.timeout_ms, Some(1500));
    assert_eq!(view.extras.labels["team"], "a");
    assert_eq!(view.extras.parent_id, Some(door.ground.running().await));

    let (status, made) = door.post("/v1/tasks", json!({"type": "plain", "at": "2020-01-01T00:00:00Z"})).await;
    assert_eq!((status, &made["state"]), (201, &json!("queued")), "{made}");

    for (bad, says) in [
        (json!({"payload": 1}), "missing field `type`"),
        (json!({"type": "two words"}), "use 1 to 100 letters"),
        (json!({"type": "a", "delaySeconds": 1, "at": "2020-01-01T00:00:00Z"}), "not both"),
        (json!({"type": "a", "delaySeconds": -1}), "no duration"),
        (json!({"type": "a", "prioritty": 1}), "unknown field `prioritty`"),
        (json!({"type": "a", "priority": 99}), "priority"),
        (json!([1]), "the body is not what this path takes"),
        (json!({"type": "a", "payload": "x".repeat(2 << 20)}), "bytes"),
    ] {
        let (status, answer) = door.post("/v1/tasks", bad).await;
        assert_eq!(status, 422, "{answer}");
        assert!(sentence(&answer).contains(says), "{says}: {answer}");
    }
    door.close().await;
}

#[tokio::test]
async fn what_the_api_does_not_know_is_refused_with_a_sentence() {
    let mut door = Door::open().await;
    let (status, answer) = door.call(Method::GET, "/v1/nothing", "").await;
    assert_eq!(status, 404);
    assert!(sentence(&answer).contains("/v1/once/begin"), "{answer}");
    let (status, answer) = door.call(Method::GET, "/v1/tasks", "").await;
    assert_eq!(status, 405);
    assert!(sentence(&answer).contains("POST for the others"), "{answer}");
    let (status, answer) = door.call(Method::POST, "/v1/tasks", "x".repeat(5 << 20)).await;
    assert_eq!(status, 413);
    assert!(sentence(&answer).contains("less than 4 MiB"), "{answer}");
    for bad in ["", "{", "nonsense", "{\"key\": \"\"}", "{\"key\": 1}", "{}"] {
        let (status, answer) = door.call(Method::POST, "/v1/once/begin", bad).await;
        assert_eq!(status, 422, "{bad:?}");
        assert!(sentence(&answer).contains("the body is not what this path takes"), "{answer}");
    }
    for bad in ["-1", "x", "NaN"] {
        let (status, answer) = door.call(Method::GET, &format!("/v1/cancelled?waitSeconds={bad}"), "").await;
        assert_eq!(status, 422, "{answer}");
    }
    door.close().await;
}
