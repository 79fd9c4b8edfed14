//! What is called in a round, in such an order that every round does the same.

use std::sync::LazyLock;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::Book;
use crate::bench::Bench;
use crate::bench::delivery::Body;
use crate::bench::scale::{LANES, fill_lanes, lane_type};
use crate::bench::windlass::{Dress, Queue, drain_outbox, enqueue, new_task, noop, worker_info};
use crate::bench::wire::{Pipeline, Shared};
use crate::broker::{
    Broker, ClaimRequest, ClaimedTask, Lease, MAX_BATCH, Outcome, Owner, ReclaimCursor, RetainCursor, Settled,
    Settlement, SweepCursor, Takeover, WorkerInfo,
};
use crate::maintenance::promoter;
use crate::protocol::backoff::{Backoff, Dice, Jitter, Strategy};
use crate::protocol::keys::Keys;
use crate::protocol::names::{Capabilities, TaskType, WorkerId};
use crate::protocol::policy::Policy;
use crate::protocol::task::NotBefore;

/// What it is called where nothing of ours is called.
pub(super) const BARE: &str = "a bare XADD";
/// Calls of an operation in a round, where their number is free.
const CALLS: usize = 10;
/// How long leases last.
const LEASE: Duration = Duration::from_secs(1);
/// How long what is to be due soon is delayed.
const SOON: Duration = Duration::from_millis(1);
/// How many entries the leader's retainer looks at in a step.
const RETAINED_AT_ONCE: usize = 50;
/// Types of a worker that can do some.
const TYPES: usize = 10;

/// Makes calls alone, and writes down what they took.
struct Meter<'a> {
    bench: &'a mut Bench,
    book: &'a mut Book,
}

impl Meter<'_> {
    async fn call<T, E>(&mut self, operation: &'static str, call: impl Future<Output = Result<T, E>>) -> Result<T>
    where
        anyhow::Error: From<E>,
    {
        let (value, hold) = self.bench.server.alone(async { Ok(call.await?) }).await?;
        self.book.add(operation, hold);
        Ok(value)
    }
}

/// As many tasks a call as a call may have.
pub(super) async fn batches(bench: &mut Bench, book: &mut Book) -> Result<()> {
    let queue = Queue::make(bench.server.port, "bench/holds").await?;
    let broker = queue.broker.clone();
    let owner = Owner { name: "bench".to_owned(), takeover: Takeover::Respect };
    let mut policy = Policy { visibility_timeout: LEASE, heartbeat_period: LEASE / 4, ..Policy::default() };
    policy.retry.backoff = Backoff { strategy: Strategy::Fixed { base_ms: 1 }, max_ms: 1, jitter: Jitter::None };
    policy.retention.result_max_entries = 1;
    broker.provision(&owner, &policy).await?;
    let worker = WorkerId::new("bench-holder")?;
    let raw = Shared::connect(bench.server.port).await?;
    let mut meter = Meter { bench, book };

    for call in 0..3 * CALLS {
        meter.call("enqueue of 100", enqueue(&*broker, &new_tasks(call * MAX_BATCH, NotBefore::Now)?)).await?;
    }
    let mut held = Vec::new();
    for _ in 0..CALLS {
        held.push(full(meter.call("claim of 100", broker.claim(request(&worker))).await?.tasks)?);
    }
    drain_outbox(&*broker).await?;
    for tasks in &mut held {
        let settlements = settlements(tasks, Outcome::success());
        let reply = meter.call("settle and claim of 100", broker.settle(&settlements, request(&worker))).await?;
        ensure!(reply.settled.iter().all(|settled| *settled == Settled::Succeeded), "a task was lost");
        *tasks = full(reply.claimed?.tasks)?;
    }
    for tasks in &held[..CALLS / 2] {
        let failures = settlements(tasks, Outcome::failure("bench", "it did not work out"));
        let nothing = ClaimRequest { limit: 0, ..request(&worker) };
        // A worker settles as many in one call, at most.
        for half in failures.chunks(MAX_BATCH / 2) {
            let reply = meter.call("settle of 50 failures", broker.settle(half, nothing.clone())).await?;
            ensure!(reply.settled.iter().all(|settled| matches!(settled, Settled::Retrying { .. })), "a task was lost");
        }
    }
    promote(&mut meter, &*broker, &raw, &queue).await?;
    tokio::time::sleep(LEASE * 2).await;
    let left = (CALLS - CALLS / 2) * MAX_BATCH;
    let taken = reclaim(&mut meter, &*broker, "reclaim step").await?;
    ensure!(taken == left, "{taken} tasks came back instead of {left}");
    retain(&mut meter, &*broker).await?;
    drain_outbox(&*broker).await
}

/// Brings up what is due, with as much of each kind as a step takes: retries, delayed tasks and raw entries.
async fn promote(meter: &mut Meter<'_>, broker: &dyn Broker, raw: &Shared, queue: &Queue) -> Result<()> {
    let stream = Keys::new(&queue.name()?).task;
    let (mut promoted, mut filed) = (0, 0);
    for call in 0..CALLS / 2 {
        enqueue(broker, &new_tasks(call * MAX_BATCH, NotBefore::After(SOON))?).await?;
        let mut entries = Pipeline::default();
        for n in 0..MAX_BATCH {
            let id = call * MAX_BATCH + n;
            let (task, payload) = (format!("raw-{id}"), Body { id, at: 0 }.json());
            entries.add(["XADD", &stream, "*", "task_id", &task, "type", "noop", "payload", &payload].iter());
        }
        raw.call(entries).await?;
        tokio::time::sleep(SOON * 10).await;
        loop {
            let step = meter.call("promote step", broker.promote(promoter::AT_ONCE)).await?;
            (promoted, filed) = (promoted + step.promoted, filed + step.filed);
            if step.promoted + step.filed < promoter::AT_ONCE {
                break;
            }
        }
        drain_outbox(broker).await?;
    }
    let batches = CALLS / 2 * MAX_BATCH;
    ensure!((promoted, filed) == (2 * batches, batches), "not all that was due came up: {promoted} and {filed}");
    Ok(())
}

/// One walk; returns how many tasks came back.
async fn reclaim(meter: &mut Meter<'_>, broker: &dyn Broker, operation: &'static str) -> Result<usize> {
    let (mut taken, mut cursor) = (0, Some(ReclaimCursor::default()));
    while let Some(from) = cursor {
        let reclaimed = meter.call(operation, broker.reclaim(from)).await?;
        taken += reclaimed.requeued.len() + reclaimed.dead.len();
        cursor = reclaimed.next;
    }
    Ok(taken)
}

/// Removes the results that are more than the policy keeps.
async fn retain(meter: &mut Meter<'_>, broker: &dyn Broker) -> Result<()> {
    let (mut removed, mut cursor) = (0, RetainCursor::default());
    loop {
        let retained = meter.call("retain step", broker.retain(cursor, RETAINED_AT_ONCE)).await?;
        removed += retained.results;
        cursor = retained.cursor;
        if retained.next_in != Some(Duration::ZERO) {
            break;
        }
    }
    ensure!(removed + 1 == CALLS * MAX_BATCH, "{removed} results were removed");
    Ok(())
}

/// Whatever walks through lanes, of which there are many that hold tasks.
pub(super) async fn lanes(bench: &mut Bench, book: &mut Book) -> Result<()> {
    let queue = Queue::make(bench.server.port, "bench/holds-lanes").await?;
    let broker = queue.broker.clone();
    let first = in_place("bench-first")?;
    broker.register(&first).await?;
    // In each lane one is claimed, and one waits.
    fill_lanes(&queue, LANES).await?;
    claim_all(&*broker, &first.id).await?;
    fill_lanes(&queue, LANES).await?;

    let mut meter = Meter { bench, book };
    // The answers to all its claims were lost.
    for _ in 0..CALLS {
        let nothing_held: &[Lease] = &[];
        let lost = ClaimRequest { recover: Some(nothing_held), ..request(&first.id) };
        let found = meter.call("recovery of lost claims, 500 lanes", broker.claim(lost)).await?;
        ensure!(found.tasks.len() >= MAX_BATCH, "{} tasks were recovered", found.tasks.len());
    }
    for _ in 0..CALLS {
        meter.call("queue counts, 500 lanes", broker.counts()).await?;
        meter.call("demand, 500 lanes", broker.demand(&Capabilities::any())).await?;
    }
    reclaim(&mut meter, &*broker, "reclaim step, 500 lanes").await?;
    sweep(&mut meter, &*broker).await?;
    workers(&mut meter, &*broker, &first).await?;
    drain_outbox(&*broker).await
}

async fn workers(meter: &mut Meter<'_>, broker: &dyn Broker, first: &WorkerInfo) -> Result<()> {
    for n in 0..CALLS {
        let info = worker_info(WorkerId::new(format!("bench-some-{n}"))?, types_from(n * TYPES + 1)?);
        meter.call("register of a new class, 500 lanes", broker.register(&info)).await?;
        meter.call("deregister, 500 lanes", broker.deregister(&info.id)).await?;
    }
    // What it holds comes back a portion a call.
    let second = in_place("bench-second")?;
    let registered = meter.call("register in the place of one that holds 500, 500 lanes", broker.register(&second));
    let registered = registered.await?;
    ensure!(
        registered.superseded.as_ref() == Some(&first.id) && registered.requeued.len() >= LANES,
        "{} tasks came back from the worker before",
        registered.requeued.len()
    );
    drain_outbox(broker).await?;
    claim_all(broker, &second.id).await?;
    meter.call("deregister of one that holds 500, 500 lanes", broker.deregister(&second.id)).await
}

async fn sweep(meter: &mut Meter<'_>, broker: &dyn Broker) -> Result<()> {
    let mut cursor = Some(SweepCursor::default());
    while let Some(from) = cursor {
        let swept = meter.call("sweep step, 500 lanes", broker.sweep(from)).await?;
        ensure!(swept.repaired.is_empty(), "a sweep found something wrong: {:?}", swept.repaired);
        cursor = swept.next;
    }
    Ok(())
}

/// What the machine does to a command that is nothing by itself, and what measuring adds.
pub(super) async fn bare(bench: &mut Bench, book: &mut Book) -> Result<()> {
    let wire = Shared::connect(bench.server.port).await?;
    let mut meter = Meter { bench, book };
    for id in 0..CALLS * CALLS {
        let mut pipeline = Pipeline::default();
        pipeline.add(["XADD", "bench", "*", "p", &Body { id, at: 0 }.json()].iter());
        meter.call(BARE, wire.call(pipeline)).await?;
    }
    Ok(())
}

fn new_tasks(first: usize, not_before: NotBefore) -> Result<Vec<crate::protocol::task::NewTask>> {
    let task = |id: usize| {
        let mut task = new_task(noop()?, &Body { id, at: 0 }, Dress::Plain)?;
        task.not_before = not_before;
        Ok(task)
    };
    (first..first + MAX_BATCH).map(task).collect()
}

fn any() -> &'static Capabilities {
    static ANY: LazyLock<Capabilities> = LazyLock::new(Capabilities::any);
    &ANY
}

fn request(worker: &WorkerId) -> ClaimRequest<'_> {
    ClaimRequest { worker, capabilities: any(), limit: MAX_BATCH, recover: None }
}

fn full(tasks: Vec<ClaimedTask>) -> Result<Vec<ClaimedTask>> {
    ensure!(tasks.len() == MAX_BATCH, "a claim gave {} tasks", tasks.len());
    Ok(tasks)
}

fn settlements(tasks: &[ClaimedTask], outcome: Outcome) -> Vec<Settlement> {
    let one = |task: &ClaimedTask| Settlement { lease: task.lease.clone(), outcome: outcome.clone(), dice: Dice(0) };
    tasks.iter().map(one).collect()
}

/// A worker in a container, the same for all of them.
fn in_place(id: &str) -> Result<WorkerInfo> {
    let (uid, container) = (Some("bench-pod".to_owned()), Some("worker".to_owned()));
    Ok(WorkerInfo { pod_uid: uid, container, ..worker_info(WorkerId::new(id)?, Vec::new()) })
}

fn types_from(first: usize) -> Result<Vec<TaskType>> {
    (first..first + TYPES).map(lane_type).collect()
}

/// Claims one task of each lane: those that are alone in theirs.
async fn claim_all(broker: &dyn Broker, worker: &WorkerId) -> Result<()> {
    for _ in 0..LANES / MAX_BATCH {
        full(broker.claim(request(worker)).await?.tasks)?;
    }
    drain_outbox(broker).await
}
