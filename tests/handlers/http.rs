//! What an answer over HTTP means, and what happens when there is none.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use windlass::broker::MAX_ERROR_BYTES;
use windlass::protocol::names::{IdempotencyKey, TraceId};
use windlass::protocol::state::RetryReason;
use windlass::worker::http::{HttpHandler, HttpOptions};
use windlass::{NewTask, State, TaskView};

use super::ground::{Ground, task};

/// A request as it came in: its head in lower case, and its body.
struct Request {
    head: String,
    body: Vec<u8>,
}

/// A server that answers each request with what a function gives, byte for byte.
struct Site {
    url: String,
    connections: Arc<AtomicUsize>,
    serving: tokio::task::JoinHandle<()>,
}

impl Drop for Site {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Site {
    async fn new(answer: impl Fn(Request) -> String + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}/tasks?x=1", listener.local_addr().expect("bound"));
        let connections = Arc::new(AtomicUsize::new(0));
        let (counter, answer) = (connections.clone(), Arc::new(answer));
        let serving = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                counter.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(converse(stream, answer.clone()));
            }
        });
        Self { url, connections, serving }
    }

    fn handler(&self) -> HttpHandler {
        HttpHandler::new(HttpOptions::new(&self.url)).expect("a usable address")
    }
}

async fn converse(stream: TcpStream, answer: Arc<impl Fn(Request) -> String + Send + Sync + 'static>) {
    let mut stream = BufReader::new(stream);
    while let Some(request) = read(&mut stream).await {
        let text = answer(request);
        if stream.write_all(text.as_bytes()).await.is_err() {
            return;
        }
        if !is_whole(&text) {
            return;
        }
    }
}

/// Whether an answer ends where it says: else only the end of the connection ends it.
fn is_whole(answer: &str) -> bool {
    let Some((head, body)) = answer.split_once("\r\n\r\n") else { return false };
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
    length.is_some_and(|length| length == body.len().to_string())
}

async fn read(stream: &mut BufReader<TcpStream>) -> Option<Request> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head).await.ok()? == 0 {
            return None;
        }
    }
    let head = head.to_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "))?.trim().parse().ok()?;
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    Some(Request { head, body })
}

fn response(status: u16, headers: &str, body: &str) -> String {
    format!("HTTP/1.1 {status} X\r\n{headers}Content-Length: {}\r\n\r\n{body}", body.len())
}

/// Runs one task against a server that always answers this.
async fn answered(answer: String) -> TaskView {
    let site = Site::new(move |_| answer.clone()).await;
    Ground::new().await.run(site.handler(), task(json!(1))).await
}

fn error(view: &TaskView) -> (&str, &str) {
    (view.error_code.as_deref().unwrap_or_default(), view.error.as_deref().unwrap_or_default())
}

fn result(view: &TaskView) -> Option<Value> {
    view.result.as_ref().map(|result| result.parse().expect("JSON"))
}

#[tokio::test]
async fn the_status_decides_and_few_are_permanent() {
    use State::{DlqPending, Retrying, Succeeded};
    for (status, state) in [
        (200, Succeeded),
        (201, Succeeded),
        (202, Succeeded),
        (204, Succeeded),
        (299, Succeeded),
        (301, Retrying),
        (302, Retrying),
        (304, Retrying),
        (400, DlqPending),
        (401, Retrying),
        (403, Retrying),
        // closes: a 404 during a rollout fills the DLQ
        (404, Retrying),
        (405, Retrying),
        (408, Retrying),
        (409, Retrying),
        (413, DlqPending),
        (415, DlqPending),
        (422, DlqPending),
        (500, Retrying),
        (501, Retrying),
        (502, Retrying),
        (503, Retrying),
        (504, Retrying),
    ] {
        let body = if status == 204 || status == 304 { "" } else { "why" };
        let view = answered(response(status, "", body)).await;
        assert_eq!(view.state, state, "{status}: {view:?}");
        if state != Succeeded {
            let (code, said) = error(&view);
            assert_eq!(code, format!("http_{status}"));
            assert!(said.contains(&format!("answered {status}")) && said.ends_with(body), "{said}");
        }
        if state == Retrying {
            assert_eq!(view.retry_reason, Some(RetryReason::Failure), "{status}");
            assert_eq!((view.retry_count, view.release_count), (1, 0), "{status}");
        }
    }
}

#[tokio::test]
async fn the_body_of_a_success_is_the_result() {
    for (body, expected) in [
        ("{\"a\": 1}", Some(json!({"a": 1}))),
        ("plain words\n", Some(json!("plain words"))),
        ("", None),
        ("null", Some(json!(null))),
    ] {
        assert_eq!(result(&answered(response(200, "", body)).await), expected, "{body:?}");
    }
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n[1,\r\n2\r\n2]\r\n0\r\n\r\n";
    assert_eq!(result(&answered(chunked.to_owned()).await), Some(json!([1, 2])));
}

#[tokio::test]
async fn a_retry_after_in_seconds_or_as_a_date_is_kept_to() {
    let wait = |view: &TaskView| view.due_at.expect("a time").duration_since(view.updated_at).as_secs();
    for status in [429, 503] {
        let view = answered(response(status, "Retry-After: 1200\r\n", "slow down")).await;
        assert_eq!((view.state, view.retry_reason), (State::Retrying, Some(RetryReason::RateLimited)), "{view:?}");
        assert_eq!((view.retry_count, view.release_count), (0, 1), "a rate limit costs no attempt");
        assert_eq!(wait(&view), 1200);
        assert!(error(&view).1.ends_with("slow down"), "{view:?}");

        let at = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(7200));
        let view = answered(response(status, &format!("retry-after: {at}\r\n"), "")).await;
        assert_eq!(view.retry_reason, Some(RetryReason::RateLimited));
        assert!((7000..=7200).contains(&wait(&view)), "{view:?}");
    }
    let view = answered(response(429, "", "")).await;
    assert_eq!(view.retry_reason, Some(RetryReason::RateLimited), "a 429 is one without a wait as well");
    let view = answered(response(503, "Retry-After: soon\r\n", "")).await;
    assert_eq!(view.retry_reason, Some(RetryReason::Failure), "a 503 is one only with a wait");
    let view = answered(response(500, "Retry-After: 10\r\n", "")).await;
    assert_eq!(view.retry_reason, Some(RetryReason::Failure));
}

#[tokio::test]
async fn a_handler_that_knows_better_overrides_its_status() {
    let with = |status, outcome: &str| answered(response(status, &format!("Windlass-Outcome: {outcome}\r\n"), "said"));
    let view = with(500, "permanent").await;
    assert_eq!((view.state, error(&view).0), (State::DlqPending, "http_500"));
    let view = with(200, "Permanent").await;
    assert_eq!(view.state, State::DlqPending);
    let view = with(422, "retry").await;
    assert_eq!((view.state, view.retry_reason), (State::Retrying, Some(RetryReason::Failure)));
    let view = with(500, "rate-limited\r\nRetry-After: 600").await;
    assert_eq!((view.state, view.retry_reason), (State::Retrying, Some(RetryReason::RateLimited)));
    assert_eq!(view.due_at.expect("a time").duration_since(view.updated_at).as_secs(), 600);
    let view = with(200, "nonsense").await;
    assert_eq!(view.state, State::Succeeded, "an unknown word changes nothing");
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let elsewhere = Site::new(|_| response(200, "", "\"stolen\"")).await;
    for status in [301, 302, 303, 307, 308] {
        let view = answered(response(status, &format!("Location: {}\r\n", elsewhere.url), "")).await;
        assert_eq!((view.state, error(&view).0), (State::Retrying, format!("http_{status}").as_str()));
    }
    assert_eq!(elsewhere.connections.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn the_task_is_posted_with_its_facts_in_headers() {
    let site = Site::new(|request| {
        let body: Value = serde_json::from_slice(&request.body).expect("JSON");
        let said = json!({"head": request.head, "body": body}).to_string();
        response(200, "", &said)
    })
    .await;
    let ground = Ground::new().await;
    let trace = "0af7651916cd43dd8448eb211c80319c";
    let mut new = task(json!({"n": 7}));
    new.idempotency_key = Some(IdempotencyKey::new("order 7").expect("valid"));
    new.trace_id = Some(TraceId::new(trace).expect("valid"));
    let id = new.id.clone();
    let seen = result(&ground.run(site.handler(), new).await).expect("a result");
    let head = seen["head"].as_str().expect("text");
    assert!(head.starts_with("post /tasks?x=1 http/1.1"), "{head}");
    for expected in [
        "content-type: application/json",
        &format!("windlass-task-id: {id}"),
        "windlass-type: test",
        "windlass-attempt: 1",
        "windlass-idempotency-key: order 7",
        &format!("windlass-execution-key: {id}:0"),
        &format!("windlass-trace-id: {trace}"),
        &format!("traceparent: 00-{trace}-"),
        &format!("windlass-queue: {}", ground.queue),
    ] {
        assert!(head.contains(expected), "{expected} in {head}");
    }
    assert_eq!(seen["body"]["payload"], json!({"n": 7}));
    assert_eq!(seen["body"]["id"], json!(id.as_str()));

    // A header holds ASCII; the body holds everything.
    let mut new = task(json!(1));
    new.idempotency_key = Some(IdempotencyKey::new("ünïcode").expect("valid"));
    let seen = result(&ground.run(site.handler(), new).await).expect("a result");
    assert!(!seen["head"].as_str().expect("text").contains("idempotency-key"));
    assert_eq!(seen["body"]["idempotencyKey"], json!("ünïcode"));
}

#[tokio::test]
async fn connections_are_kept_open_between_tasks() {
    let site = Site::new(|_| response(200, "", "1")).await;
    let (ground, handler) = (Ground::new().await, Arc::new(site.handler()));
    for _ in 0..20 {
        let view = ground.run(Shared(handler.clone()), task(json!(1))).await;
        assert_eq!(view.state, State::Succeeded);
    }
    // One, but for pauses on a busy machine that are longer than an idle one is kept.
    let made = site.connections.load(Ordering::Relaxed);
    assert!(made <= 5, "{made} connections for 20 tasks");
}

struct Shared(Arc<HttpHandler>);

#[async_trait::async_trait]
impl windlass::Handler for Shared {
    async fn handle(&self, task: &windlass::TaskContext) -> windlass::Outcome {
        self.0.handle(task).await
    }
}

#[tokio::test]
async fn an_answer_that_is_too_large_is_permanent_and_not_read_to_its_end() {
    let endless = format!("HTTP/1.1 200 OK\r\nContent-Length: 100000000000\r\n\r\n{}", "x".repeat(3 << 20));
    let view = answered(endless).await;
    assert_eq!((view.state, error(&view).0), (State::DlqPending, "result_too_large"), "{view:?}");
    let view = answered(response(200, "", &"y".repeat((1 << 20) - 2))).await;
    assert_eq!(view.state, State::Succeeded, "just within the bound, with its quotes");
    let view = answered(response(500, "", &"ü".repeat(1 << 20))).await;
    assert!(error(&view).1.len() <= MAX_ERROR_BYTES, "an error is cut");
}

#[tokio::test]
async fn a_broken_answer_is_worth_another_attempt() {
    for (answer, code) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf", "http_broken"),
        ("", "http_broken"),
        ("SSH-2.0-OpenSSH_9.6\r\n\r\n", "http_broken"),
    ] {
        let view = answered(answer.to_owned()).await;
        assert_eq!((view.state, error(&view).0), (State::Retrying, code), "{view:?}");
    }
}

#[tokio::test]
async fn a_handler_that_is_not_there_is_worth_another_attempt() {
    // Nobody listens there, and nobody else can have it.
    let nobody = tokio::net::TcpSocket::new_v4().expect("a socket");
    nobody.bind("127.0.0.1:0".parse().expect("an address")).expect("a free port");
    let port = nobody.local_addr().expect("bound").port();
    let mut options = HttpOptions::new(format!("http://me:hunter2@127.0.0.1:{port}/"));
    options.patience = Duration::from_millis(300);
    let handler = HttpHandler::new(options).expect("usable");
    let view = Ground::new().await.run(handler, task(json!(1))).await;
    assert_eq!((view.state, error(&view).0), (State::Retrying, "http_unreachable"), "{view:?}");
    assert!(!error(&view).1.contains("hunter2"), "{view:?}");
}

/// An app that restarts must not fill the dead letters with what it never saw.
#[tokio::test]
async fn a_handler_that_comes_back_soon_costs_no_attempt() {
    // Nobody listens there, and nobody else can have it.
    let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
    socket.bind("127.0.0.1:0".parse().expect("an address")).expect("a free port");
    let port = socket.local_addr().expect("bound").port();
    let handler = HttpHandler::new(HttpOptions::new(format!("http://127.0.0.1:{port}/"))).expect("usable");
    let ground = Ground::new().await;
    let coming_back = async move {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let listener = socket.listen(8).expect("it is back");
        let (stream, _) = listener.accept().await.expect("the task");
        converse(stream, Arc::new(|_| response(200, "", "1"))).await;
    };
    let coming_back = tokio::spawn(coming_back);
    let view = ground.run(handler, task(json!(1))).await;
    assert_eq!((view.state, view.retry_count), (State::Succeeded, 0), "{view:?}");
    coming_back.abort();
}

#[tokio::test]
async fn unicode_and_huge_tasks_arrive_whole() {
    let site = Site::new(|request| response(200, "", &request.body.len().to_string())).await;
    let ground = Ground::roomy().await;
    let new = NewTask::new("test".parse().expect("valid"), json!("ü".repeat(10_000_000)));
    let seen = result(&ground.run(site.handler(), new).await).expect("a result");
    assert!(seen.as_u64().is_some_and(|bytes| bytes > 20_000_000), "{seen}");
}
