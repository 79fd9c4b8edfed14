//! The local API: what a handler in any language can do while it runs.
//!
//! Owns: a server on loopback, and the tokens that open it, one an attempt. A
//! token ends with its attempt, however that ends. Must not know: how the
//! handler is reached, Redis.
//!
//! | request | does |
//! |---|---|
//! | `POST /v1/once/begin {key}` | may this effect happen? `{state: begin \| in-doubt \| done, answer}` |
//! | `POST /v1/once/commit {key, answer}` | it happened |
//! | `POST /v1/once/resolve {key}` | after a doubt: it did not happen, begin anew |
//! | `POST /v1/once/abandon {key}` | what this attempt began did not happen |
//! | `POST /v1/progress {…}` | tells how far the task is |
//! | `POST /v1/extend` | renews the lease now |
//! | `GET /v1/cancelled[?waitSeconds=N]` | should the handler end? `{cancelled, reason}` |
//! | `POST /v1/tasks {type, payload, …}` | enqueues a follow-up |
//!
//! Every request carries `Authorization: Bearer TOKEN`. Every answer is JSON;
//! a refusal is `{code, error}` with a sentence.

mod desk;
mod effects;
mod refusal;
mod routes;

use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::task::AbortHandle;

use self::desk::Desk;
use super::context::TaskContext;

/// A server on loopback for the handlers of one worker. Clones are the same
/// server; it ends with the last of them.
#[derive(Clone)]
pub struct LocalApi {
    desk: Arc<Desk>,
    url: Arc<str>,
    _serving: Arc<Serving>,
}

struct Serving(AbortHandle);

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl LocalApi {
    /// Starts to serve on a free port of loopback.
    pub async fn start() -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let url = format!("http://{}", listener.local_addr()?).into();
        let desk = Arc::new(Desk::default());
        let app = routes::router(desk.clone());
        let serving = tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, app).await {
                tracing::error!(%error, "local API ended");
            }
        });
        Ok(Self { desk, url, _serving: Arc::new(Serving(serving.abort_handle())) })
    }

    /// Lets the handler of an attempt in, for as long as the pass is kept.
    pub(super) fn admit(&self, task: &TaskContext) -> Pass {
        let token = self.desk.admit(task.clone());
        Pass { desk: self.desk.clone(), url: self.url.clone(), token }
    }
}

/// An attempt's way to the local API. Dropping it ends the token.
pub(super) struct Pass {
    desk: Arc<Desk>,
    url: Arc<str>,
    token: String,
}

impl Pass {
    /// Where the API is.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// What opens it.
    pub(super) fn token(&self) -> &str {
        &self.token
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.desk.dismiss(&self.token);
    }
}
