//! The pods of all pools, and the tasks of those that died.
//!
//! Owns: what is known of the pods, and taking tasks back from workers that the
//! API server proves to be dead. Must not know: what a pool wants, how a task runs.
//!
//! Main flow: one watch keeps a [`book`] of the pods. A pod whose status tells of
//! an end that was not known before, or that vanished, makes its queue due, and so
//! does beginning to look after a queue: its pods may have died before. A queue
//! that is due has its registry of workers compared with the book, and exactly
//! those whose end is [proven](proof) lose their tasks. The comparison is of all
//! that is known, so it can be repeated, and is after every failure.

pub(crate) mod book;
mod proof;
mod reaper;

use std::sync::Arc;

use futures::StreamExt;
use futures::stream::select_all;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch};

use self::book::PodBook;
use super::context::Context;
use super::pool::POOL_LABEL;

/// Watches pods until the term ends.
pub(super) async fn run(context: Arc<Context>) {
    let term = context.term.clone();
    tokio::select! {
        () = term.cancelled() => {}
        () = keep_book(&context, &context.pods) => {}
        () = reaper::run(&context) => {}
    }
}

/// Keeps the book true. Each API has a watch of its own, so that one that restarts
/// does not take the other namespaces' pods for gone.
async fn keep_book(context: &Context, book: &PodBook) {
    let config = watcher::Config::default().labels(POOL_LABEL);
    let watches =
        context.apis::<Pod>().into_iter().enumerate().map(|(number, api)| {
            watch(api, config.clone()).default_backoff().map(move |event| (number, event)).boxed()
        });
    let mut events = select_all(watches);
    while let Some((number, event)) = events.next().await {
        match event {
            Ok(Event::Init) => book.begin(number),
            Ok(Event::InitApply(pod)) => book.list(number, &pod),
            Ok(Event::InitDone) => book.end(number),
            Ok(Event::Apply(pod)) => book.see(number, &pod),
            Ok(Event::Delete(pod)) => book.bury(&pod),
            Err(error) => {
                tracing::warn!(%error, "pods cannot be watched: what dies is found when its worker falls silent")
            }
        }
    }
}
