//! Handlers behind HTTP: the task is posted, the answer is the outcome.
//!
//! | answer | meaning |
//! |---|---|
//! | 2xx | done; the body is the result, JSON if it parses |
//! | 400, 413, 415, 422 | failed for good |
//! | 429, or 503 with `Retry-After` | rate limited |
//! | any other, a broken answer, nobody there for long | failed, may work next time |
//!
//! Few codes are permanent: a 401 or a 404 in the middle of a rollout must not
//! fill the dead letters. A handler that knows better says so in the header
//! `Windlass-Outcome: permanent | retry | rate-limited`.

use std::error::Error as _;
use std::time::Duration;

use async_trait::async_trait;
use axum::body::Bytes;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use reqwest::{Client, Response, StatusCode, Url};
use tokio::time::Instant;

use super::Handler;
use super::api::LocalApi;
use super::context::TaskContext;
use super::foreign::{self, ResultBound, Told, UnusableHandler};
use crate::broker::{MAX_ERROR_BYTES, Outcome};

/// How a handler overrides what its status says.
const OUTCOME: HeaderName = HeaderName::from_static("windlass-outcome");

/// How long an idle connection is kept. Shorter than common servers keep
/// theirs (2 s and 5 s), so that no task is sent into a connection that its
/// server closes in the same moment.
const KEEP_IDLE: Duration = Duration::from_millis(1500);

/// How soon a handler that was not there is tried again.
const KNOCK_AGAIN: Duration = Duration::from_millis(200);

/// Where to post tasks, and how.
#[derive(Clone)]
pub struct HttpOptions {
    /// `http://…` or `https://…`.
    pub url: String,
    /// How long opening a connection may take (5 s).
    pub connect_timeout: Duration,
    /// How long a task waits for a handler that cannot be connected to (30 s):
    /// one that is being restarted should cost no attempts. Nothing was sent
    /// yet, so nothing is repeated.
    pub patience: Duration,
    /// The largest result.
    pub result_bound: ResultBound,
    /// How it reaches its worker while it runs.
    pub api: Option<LocalApi>,
}

impl HttpOptions {
    /// The usual settings for an address.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            connect_timeout: Duration::from_secs(5),
            patience: Duration::from_secs(30),
            result_bound: ResultBound::default(),
            api: None,
        }
    }
}

/// Posts each task to an address.
pub struct HttpHandler {
    client: Client,
    url: Url,
    patience: Duration,
    result_bound: ResultBound,
    api: Option<LocalApi>,
}

/// What the handler says in [`OUTCOME`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Permanent,
    Retry,
    RateLimited,
}

impl HttpHandler {
    /// Checks the address; nothing is sent yet.
    pub fn new(options: HttpOptions) -> Result<Self, UnusableHandler> {
        let url = parse(&options.url)?;
        // Somebody may have installed one before; any will do.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut builder = Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .connect_timeout(options.connect_timeout)
            .tcp_keepalive(Duration::from_secs(30))
            .pool_idle_timeout(KEEP_IDLE);
        if url.scheme() == "http" {
            // Without TLS no certificates are needed, and a small image has none.
            builder = builder.tls_certs_only([]);
        }
        let client = builder.build().map_err(|error| UnusableHandler::NoClient { reason: whole(&error) })?;
        let HttpOptions { patience, result_bound, api, .. } = options;
        Ok(Self { client, url, patience, result_bound, api })
    }

    async fn post(&self, told: Told) -> Outcome {
        let (headers, document) = (headers(&told), Bytes::from(told.document));
        let until = Instant::now() + self.patience;
        loop {
            let request = self.client.post(self.url.clone()).headers(headers.clone()).body(document.clone());
            match request.send().await {
                Ok(response) => return self.outcome(response).await,
                Err(error) if error.is_connect() && Instant::now() < until => {
                    tracing::debug!(error = whole(&error.without_url()), "handler is not there yet");
                    tokio::time::sleep_until((Instant::now() + KNOCK_AGAIN).min(until)).await;
                }
                Err(error) => return unreached(error),
            }
        }
    }

    async fn outcome(&self, response: Response) -> Outcome {
        let status = response.status();
        let verdict = verdict(response.headers());
        let wait = response.headers().get(RETRY_AFTER).and_then(|wait| foreign::retry_after(wait.to_str().ok()?));
        if status.is_success() && verdict.is_none() {
            let bound = self.result_bound.get();
            return match read(response, bound).await {
                Ok(Body::Whole(body)) => foreign::success(&body, bound),
                Ok(Body::Cut(_)) => foreign::too_large(bound),
                Err(error) => unreached(error),
            };
        }
        // An error may be cut, and a broken connection does not change what the status said.
        let said = match read(response, MAX_ERROR_BYTES).await {
            Ok(Body::Whole(body) | Body::Cut(body)) => String::from_utf8_lossy(&body).trim().to_owned(),
            Err(_) => String::new(),
        };
        let code = format!("http_{}", status.as_u16());
        let error = match said.as_str() {
            "" => format!("the handler answered {status}"),
            said => format!("the handler answered {status}: {said}"),
        };
        match verdict.unwrap_or_else(|| usual(status, wait)) {
            Verdict::Permanent => Outcome::Permanent { error, code },
            Verdict::Retry => Outcome::Failure { error, code },
            Verdict::RateLimited => Outcome::RateLimited { retry_after: wait, error },
        }
    }
}

#[async_trait]
impl Handler for HttpHandler {
    async fn handle(&self, task: &TaskContext) -> Outcome {
        // The pass ends with this attempt, also when this future is dropped.
        let pass = self.api.as_ref().map(|api| api.admit(task));
        let told = Told::new(task, pass.as_ref());
        tokio::select! {
            biased;
            outcome = self.post(told) => outcome,
            // The request is dropped, and its connection with it: the server can see that.
            reason = task.cancelled() => foreign::cut_short(reason, ""),
        }
    }
}

/// What a status means when the handler says no more about it.
fn usual(status: StatusCode, wait: Option<Duration>) -> Verdict {
    match (status.as_u16(), wait) {
        (400 | 413 | 415 | 422, _) => Verdict::Permanent,
        (429, _) | (503, Some(_)) => Verdict::RateLimited,
        _ => Verdict::Retry,
    }
}

fn verdict(headers: &HeaderMap) -> Option<Verdict> {
    let word = headers.get(OUTCOME)?.to_str().unwrap_or_default().trim().to_ascii_lowercase();
    match word.as_str() {
        "permanent" => Some(Verdict::Permanent),
        "retry" => Some(Verdict::Retry),
        "rate-limited" => Some(Verdict::RateLimited),
        _ => {
            tracing::warn!(word, "handler answered an outcome that is none: use permanent, retry or rate-limited");
            None
        }
    }
}

/// The facts as headers. One that a header cannot hold is in the body alone.
fn headers(told: &Told) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let plain = |value: &str| {
        let ascii = value.bytes().all(|byte| (b' '..=b'~').contains(&byte));
        ascii.then(|| HeaderValue::from_str(value).ok()).flatten()
    };
    for (name, value) in &told.facts {
        let name = HeaderName::try_from(format!("windlass-{name}")).expect("invariant: facts have plain names");
        if let Some(value) = value.as_deref().and_then(plain) {
            headers.insert(name, value);
        }
    }
    if let Some(value) = told.traceparent.as_deref().and_then(plain) {
        headers.insert(HeaderName::from_static("traceparent"), value);
    }
    headers
}

enum Body {
    Whole(Vec<u8>),
    /// The beginning of a body that is larger than the bound.
    Cut(Vec<u8>),
}

async fn read(mut response: Response, bound: usize) -> reqwest::Result<Body> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        let room = bound - body.len();
        if chunk.len() > room {
            body.extend_from_slice(&chunk[..room]);
            return Ok(Body::Cut(body));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(Body::Whole(body))
}

/// No answer: it may come next time.
fn unreached(error: reqwest::Error) -> Outcome {
    let (code, what) = match () {
        () if error.is_timeout() => ("http_timeout", "the handler did not answer in time"),
        () if error.is_connect() => ("http_unreachable", "the handler was not reached"),
        () => ("http_broken", "the handler's answer broke off"),
    };
    // The address may hold a password.
    Outcome::failure(code, format!("{what}: {}", whole(&error.without_url())))
}

/// An error with its causes, which reqwest leaves out.
fn whole(error: &reqwest::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

fn parse(text: &str) -> Result<Url, UnusableHandler> {
    let bad = |reason: String| UnusableHandler::BadUrl { reason };
    let url = Url::parse(text).map_err(|error| bad(error.to_string()))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(bad(format!("{:?} is neither http nor https", url.scheme())));
    }
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_codes_are_permanent() {
        let permanent: Vec<u16> = (100..600)
            .filter(|code| usual(StatusCode::from_u16(*code).expect("a status"), None) == Verdict::Permanent)
            .collect();
        assert_eq!(permanent, [400, 413, 415, 422]);
        let wait = Some(Duration::from_secs(1));
        assert_eq!(usual(StatusCode::SERVICE_UNAVAILABLE, wait), Verdict::RateLimited);
        assert_eq!(usual(StatusCode::SERVICE_UNAVAILABLE, None), Verdict::Retry);
        assert_eq!(usual(StatusCode::TOO_MANY_REQUESTS, None), Verdict::RateLimited);
    }

    #[test]
    fn an_address_that_cannot_be_posted_to_is_refused_without_its_password() {
        for bad in ["", "localhost:8080", "ftp://x/", "/tasks", "http://", "ftp://user:secret@host/"] {
            let error = parse(bad).expect_err(bad).to_string();
            assert!(error.contains("write it like http://"), "{error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
