//! What it costs Redis to take tasks back from workers that died.
//!
//! Ten workers claim everything and are heard of no more; when their leases are
//! over, one walk takes all of it back, step by step, as the leader's does.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::Bench;
use super::delivery::Body;
use super::report::{Row, System, show};
use super::slow_log::SlowLogs;
use super::windlass::{Dress, Queue, drain_outbox, enqueue, new_task, noop};
use crate::broker::session::Session;
use crate::broker::{Broker, MAX_BATCH, Owner, ReclaimCursor, Takeover};
use crate::protocol::names::{Capabilities, WorkerId};
use crate::protocol::policy::Policy;

/// Workers that die.
const WORKERS: usize = 10;
/// How long their leases last.
const LEASE: Duration = Duration::from_secs(1);

/// Steps that [`measure`] will report.
pub(super) fn steps(_: &Bench) -> usize {
    1
}

/// Measures.
pub(super) async fn measure(bench: &mut Bench) -> Result<Vec<Row>> {
    let tasks = bench.settings.reclaim_tasks;
    bench.progress(&format!("reclaim: {} tasks of workers that died", show(tasks as f64)));
    bench.server.flush().await?;
    let broker = held_by_the_dead(bench.server.port, tasks).await.context("making leases failed")?;
    tokio::time::sleep(LEASE * 2).await;
    bench.server.reset_slow_log().await?;
    let before = bench.server.usage().await?;
    let steps = take_back(&*broker, tasks).await.context("taking tasks back failed")?;
    let used = bench.server.usage().await?.since(before);
    let slow = SlowLogs::from(bench.server.slow_log().await?);
    let what = format!("reclaim of {}", show(tasks as f64));
    Ok(vec![
        Row::new(format!("{what}, steps")).value(System::Windlass, &[steps as f64]),
        Row::new(format!("{what}, Redis CPU, µs/step"))
            .value(System::Windlass, &[used.cpu * 1_000_000.0 / steps as f64]),
        slow.row(&what),
    ])
}

/// A queue whose tasks are all claimed by workers that do not renew them.
async fn held_by_the_dead(port: u16, tasks: usize) -> Result<Arc<dyn Broker>> {
    let broker = Queue::make(port, "bench/reclaim").await?.broker;
    let owner = Owner { name: "bench".to_owned(), takeover: Takeover::Respect };
    let policy = Policy { visibility_timeout: LEASE, heartbeat_period: LEASE / 4, ..Policy::default() };
    broker.provision(&owner, &policy).await?;
    for first in (0..tasks).step_by(MAX_BATCH) {
        let ids = first..tasks.min(first + MAX_BATCH);
        let batch = ids.map(|id| new_task(noop()?, &Body { id, at: 0 }, Dress::Plain)).collect::<Result<Vec<_>>>()?;
        enqueue(&*broker, &batch).await?;
    }
    let mut held = 0;
    for n in 0..WORKERS {
        // Not in the registry: it is their leases that tell.
        let mut dead = Session::new(broker.clone(), WorkerId::new(format!("dead-{n}"))?, Capabilities::any());
        let share = (tasks - held).div_ceil(WORKERS - n);
        let mut left = share;
        while left > 0 {
            let claimed = dead.claim(left.min(MAX_BATCH)).await?.len();
            ensure!(claimed > 0, "nothing was claimed though {left} tasks wait");
            left -= claimed;
        }
        held += share;
    }
    drain_outbox(&*broker).await?;
    Ok(broker)
}

/// Walks until everything is back; returns in how many steps.
async fn take_back(broker: &dyn Broker, tasks: usize) -> Result<usize> {
    let (mut steps, mut taken, mut cursor) = (0, 0, Some(ReclaimCursor::default()));
    while let Some(from) = cursor {
        let reclaimed = broker.reclaim(from).await?;
        steps += 1;
        taken += reclaimed.requeued.len() + reclaimed.dead.len();
        cursor = reclaimed.next;
    }
    ensure!(taken == tasks, "{taken} tasks came back instead of {tasks}");
    Ok(steps)
}
