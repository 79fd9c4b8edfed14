//! Claiming ahead: only for fast handlers, and never at the cost of a task.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use tokio::sync::Notify;
use windlass::broker::Broker;
use windlass::broker::session::Session;
use windlass::protocol::names::{Capabilities, WorkerId};
use windlass::protocol::policy::Policy;
use windlass::protocol::state::RetryReason;
use windlass::{Outcome, TaskContext, TaskId, WorkerHandle};

use super::ground::{Does, Gauge, Ground, options};
use crate::support::servers::Wait;

/// How many tasks wait when a handler begins to misbehave.
const ENOUGH: usize = 5;

/// What ran how often, and the worker that runs it, for handlers that look at it.
#[derive(Clone, Default)]
struct Watch {
    runs: Arc<Mutex<HashMap<TaskId, usize>>>,
    worker: Arc<OnceLock<WorkerHandle>>,
    once: Arc<AtomicBool>,
}

impl Watch {
    fn ran(&self, task: &TaskContext) {
        *self.runs.lock().expect("no test panics here").entry(task.task().lease.task.clone()).or_default() += 1;
    }

    fn waiting(&self) -> usize {
        self.worker.get().map_or(0, |worker| worker.health().waiting())
    }

    /// True once, when enough tasks wait behind the one that asks.
    fn is_the_moment(&self) -> bool {
        self.waiting() >= ENOUGH && !self.once.swap(true, Ordering::SeqCst)
    }

    fn assert_each_ran_once(&self, tasks: usize) {
        let runs = self.runs.lock().expect("no test panics here");
        assert_eq!(runs.len(), tasks, "every task ran");
        assert!(runs.values().all(|runs| *runs == 1), "and none twice");
    }
}

/// Nothing here comes back by its visibility timeout within a test.
async fn ground() -> Ground {
    Ground::new(Policy::default()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_with_slow_handlers_holds_nothing_that_it_has_not_started() {
    let ground = ground().await;
    ground.add(100).await;
    let gauge = Gauge::default();
    let seen = gauge.clone();
    let slow = Does(move |_| {
        let inside = seen.enter();
        async move {
            tokio::time::sleep(Duration::from_millis(20)).await;
            drop(inside);
            Outcome::success()
        }
    });
    let worker = ground.work(slow, options(2));
    let mut counts = ground.counts().await;
    while counts.finished < 100 {
        assert!(counts.running <= 2, "{counts:?}");
        counts = ground.counts().await;
    }
    assert_eq!((gauge.entered(), gauge.most()), (100, 2));
    assert_eq!(worker.drain().await.released, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_behind_a_handler_that_hangs_is_given_back_and_done_by_others() {
    let ground = ground().await;
    let ids = ground.add(3000).await;
    let (watch, go_on) = (Watch::default(), Arc::new(Notify::new()));
    let (seen, gate) = (watch.clone(), go_on.clone());
    let hangs = Does(move |task: TaskContext| {
        let (seen, gate) = (seen.clone(), gate.clone());
        async move {
            seen.ran(&task);
            if seen.is_the_moment() {
                gate.notified().await;
            }
            Outcome::success()
        }
    });
    let first = ground.work(hangs, options(1));
    watch.worker.set(first.handle.clone()).ok().expect("set once");
    let mut wait = Wait::new("the handler to hang and what waits to be given back".to_owned());
    while !watch.once.load(Ordering::SeqCst) || ground.counts().await.running > 1 {
        wait.again(format!("{:?}", ground.counts().await)).await;
    }
    assert_eq!(first.handle.health().waiting(), 0, "and nothing is claimed ahead while it hangs");

    let seen = watch.clone();
    let second = ground.work(
        Does(move |task: TaskContext| {
            seen.ran(&task);
            async { Outcome::success() }
        }),
        options(4),
    );
    ground.until_finished(2999).await;
    assert_eq!(ground.counts().await.running, 1, "the one that hangs");
    go_on.notify_one();
    ground.until_finished(3000).await;
    let given_back = first.drain().await.released;
    assert!(given_back >= ENOUGH as u64, "{given_back} were");
    assert_eq!(second.drain().await.refused, 0);
    watch.assert_each_ran_once(ids.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_gives_back_what_waits_at_once() {
    let ground = ground().await;
    let ids = ground.add(3000).await;
    let watch = Watch::default();
    let seen = watch.clone();
    let drains = Does(move |task: TaskContext| {
        let seen = seen.clone();
        async move {
            seen.ran(&task);
            if seen.is_the_moment() {
                seen.worker.get().expect("there is a worker").drain();
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            Outcome::success()
        }
    });
    let first = ground.work(drains, options(1));
    watch.worker.set(first.handle.clone()).ok().expect("set once");
    let summary = first.end().await;
    assert!(summary.released >= 1 && summary.unsettled == 0, "{summary:?}");
    let counts = ground.counts().await;
    assert_eq!((counts.running, counts.workers), (0, 0), "nothing is left behind");
    assert_eq!(counts.backlog + counts.finished, 3000);

    let seen = watch.clone();
    let second = ground.work(
        Does(move |task: TaskContext| {
            seen.ran(&task);
            async { Outcome::success() }
        }),
        options(4),
    );
    ground.until_finished(3000).await;
    second.drain().await;
    watch.assert_each_ran_once(ids.len());
}

/// closes: poison task kills its worker in a loop (sidekiq#4633), and takes others with it
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_waits_beside_a_task_that_a_worker_was_lost_with() {
    let ground = ground().await;
    let ids = ground.add(40).await;
    let lost = WorkerId::new("lost").expect("a valid id");
    let mut session = Session::new(ground.broker.clone(), lost.clone(), Capabilities::any());
    assert_eq!(session.claim(40).await.expect("answered").len(), 40);
    ground.add(3000).await;

    let (watch, beside) = (Watch::default(), Arc::new(AtomicUsize::new(0)));
    let (seen, most, broker) = (watch.clone(), beside.clone(), ground.broker.clone());
    let looks = Does(move |task: TaskContext| {
        seen.ran(&task);
        if task.task().crash_count > 0 {
            most.fetch_max(seen.waiting(), Ordering::SeqCst);
        }
        let comes_back = seen.is_the_moment().then(|| (broker.clone(), lost.clone()));
        async move {
            // The worker is fast and claims ahead: now comes what the other one was lost with.
            if let Some((broker, lost)) = comes_back {
                let taken = broker.reclaim_from(&lost, RetryReason::PodGone).await.expect("answered");
                assert_eq!(taken.requeued.len(), 40);
            }
            Outcome::success()
        }
    });
    let worker = ground.work(looks, options(1));
    watch.worker.set(worker.handle.clone()).ok().expect("set once");
    ground.until_finished(3040).await;
    assert_eq!(beside.load(Ordering::SeqCst), 0, "none waited while one of them ran");
    for id in &ids {
        let view = ground.view(id).await;
        assert_eq!((view.crash_count, view.retry_count), (1, 0), "{view:?}");
        assert!(view.release_count <= 2, "it was not passed to and fro: {view:?}");
    }
    worker.drain().await;
    watch.assert_each_ran_once(3040);
}
