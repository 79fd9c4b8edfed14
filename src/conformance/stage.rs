//! What the checks stand on: a worker that hands each check its tasks, and a
//! [`Case`] that notes what is seen of one task.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::{Check, Conformance, ConformanceError};
use crate::broker::{
    Broker, BrokerError, ClaimRequest, ClaimedTask, Extended, Lease, Outcome, ReplayRequest, Replayed, Settled,
    Settlement, WorkerInfo, WorkerRecord,
};
use crate::event_log::{EventLog, RecordedEvent};
use crate::protocol::backoff::Dice;
use crate::protocol::names::{
    Capabilities, DeadLetterId, IdempotencyKey, QueueName, TaskId, TaskType, TraceId, WorkerId,
};
use crate::protocol::policy::{EventRecording, Mode, Policy};
use crate::protocol::state::State;
use crate::protocol::task::{NewTask, TaskView};

/// The type of the checks' tasks.
pub(super) const TYPE: &str = "windlass-conformance";
/// The type of tasks whose worker is lost on purpose.
pub(super) const LOST_TYPE: &str = "windlass-conformance-lost";

/// How long the worker sleeps at most, and how often a state is looked at.
const NAP: Duration = Duration::from_millis(200);
/// How often the worker gives a sign of life.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// In whose name dead letters are replayed.
const PERSON: &str = "windlass conformance";

/// What went wrong in a check, as it is told.
pub(super) type Seen<T> = Result<T, String>;

/// A queue with a worker of our own.
pub(super) struct Stage {
    pub(super) queue: QueueName,
    pub(super) broker: Arc<dyn Broker>,
    pub(super) policy: Policy,
    log: Option<EventLog>,
    /// Tells this run's tasks from all others.
    pub(super) nonce: String,
    worker: WorkerId,
    capabilities: Capabilities,
    mailboxes: Mutex<HashMap<TaskId, mpsc::UnboundedSender<ClaimedTask>>>,
    mode: watch::Sender<Mode>,
    made: Mutex<Vec<TaskId>>,
    workers: Mutex<Vec<WorkerId>>,
    deadline: Instant,
    limit: Duration,
}

fn types(name: &str) -> Capabilities {
    let one = TaskType::new(name).expect("invariant: the name is a type");
    Capabilities::of([one]).expect("invariant: one type is few")
}

impl Stage {
    /// Looks whether the run can be alone with its tasks, and registers its worker.
    pub(super) async fn set(
        conformance: Conformance,
        policy: Policy,
        limit: Duration,
    ) -> Result<Self, ConformanceError> {
        let Conformance { queue, broker, log, .. } = conformance;
        let now = broker.counts().await?.sampled_at;
        let lives = |worker: &&WorkerRecord| {
            let silence = Duration::try_from(now.duration_since(worker.heartbeat_at)).unwrap_or_default();
            silence <= policy.reclaim.worker_lost_after
        };
        let others = broker.workers().await?;
        for other in others.iter().filter(lives) {
            if other.info.types.is_empty() {
                return Err(ConformanceError::Thief(other.info.id.clone()));
            }
            if other.info.types.iter().any(|kind| kind.as_str() == TYPE) {
                return Err(ConformanceError::Another(other.info.id.clone()));
            }
        }
        let nonce = format!("{:08x}", fastrand::u32(..));
        let worker = worker_id(&nonce, "worker");
        broker.register(&worker_info(&worker, TYPE, None)).await?;
        Ok(Self {
            queue,
            broker,
            policy,
            log,
            nonce,
            workers: Mutex::new(vec![worker.clone()]),
            worker,
            capabilities: types(TYPE),
            mailboxes: Mutex::default(),
            mode: watch::Sender::new(Mode::Running),
            made: Mutex::default(),
            deadline: Instant::now() + limit,
            limit,
        })
    }

    /// Claims tasks and hands them to their checks, until it is dropped.
    pub(super) async fn work(&self) -> Infallible {
        let mut heard = Instant::now();
        loop {
            if let Err(error) = self.turn(&mut heard).await {
                tracing::warn!(%error, "the check's worker could not claim");
                tokio::time::sleep(NAP).await;
            }
        }
    }

    async fn turn(&self, heard: &mut Instant) -> Result<(), BrokerError> {
        if heard.elapsed() >= HEARTBEAT {
            *heard = Instant::now();
            self.broker.extend(&self.worker, &[]).await?;
        }
        let claimed = self.broker.claim(self.request(&self.worker, &self.capabilities, 16)).await?;
        self.mode.send_replace(claimed.mode);
        if claimed.tasks.is_empty() {
            let mut bed = self.broker.sleeper(&self.capabilities).await?;
            bed.sleep(claimed.mode, NAP).await?;
            return Ok(());
        }
        for task in claimed.tasks {
            let id = task.lease.task.clone();
            let mailbox = self.mailboxes.lock().expect("invariant: no panic while held").get(&id).cloned();
            if mailbox.is_none_or(|mailbox| mailbox.send(task).is_err()) {
                self.broker.cancel(&id, "left by an earlier check that was killed").await?;
            }
        }
        Ok(())
    }

    fn request<'a>(&self, worker: &'a WorkerId, capabilities: &'a Capabilities, limit: usize) -> ClaimRequest<'a> {
        ClaimRequest { worker, capabilities, limit, recover: None }
    }

    /// A task of this run.
    pub(super) fn new_task(&self, check: &str, kind: &str) -> NewTask {
        let kind = TaskType::new(kind).expect("invariant: the name is a type");
        let payload = serde_json::json!({"check": check, "run": self.nonce});
        let mut task = NewTask::new(kind, payload);
        let name = format!("conformance-{}-{check}", self.nonce);
        task.idempotency_key = IdempotencyKey::new(&*name).ok();
        task.trace_id = TraceId::new(name).ok();
        task.max_retries = Some(3);
        task
    }

    /// Settles one attempt.
    async fn settle(&self, worker: &WorkerId, lease: Lease, outcome: Outcome) -> Seen<Settled> {
        let settlement = Settlement { lease, outcome, dice: Dice::throw() };
        let nothing = Capabilities::any();
        let reply = self.broker.settle(&[settlement], self.request(worker, &nothing, 0)).await;
        let reply = reply.map_err(|error| error.to_string())?;
        reply.settled.first().copied().ok_or_else(|| "the broker did not answer for the attempt".to_owned())
    }

    /// Registers one more worker.
    pub(super) async fn register(&self, word: &str, place: Option<&str>) -> Seen<WorkerId> {
        let worker = worker_id(&self.nonce, word);
        self.workers.lock().expect("invariant: no panic while held").push(worker.clone());
        let told = self.broker.register(&worker_info(&worker, LOST_TYPE, place)).await;
        told.map(|_| worker).map_err(|error| error.to_string())
    }

    /// Claims one task as a worker of the other type, for as long as the run may take.
    pub(super) async fn claim_as(&self, worker: &WorkerId, task: &TaskId, why: &str) -> Seen<ClaimedTask> {
        let capabilities = types(LOST_TYPE);
        loop {
            let claimed = self.broker.claim(self.request(worker, &capabilities, 1)).await;
            let claimed = claimed.map_err(|error| error.to_string())?;
            for found in claimed.tasks {
                if found.lease.task == *task {
                    return Ok(found);
                }
                let left = "left by an earlier check that was killed";
                drop(self.broker.cancel(&found.lease.task, left).await);
            }
            if claimed.mode != Mode::Running {
                return Err(not_running(claimed.mode));
            }
            // Counts as its heartbeat.
            drop(self.broker.extend(worker, &[]).await);
            self.nap(why).await?;
        }
    }

    pub(super) async fn settle_as(&self, worker: &WorkerId, lease: Lease, outcome: Outcome) -> Seen<Settled> {
        self.settle(worker, lease, outcome).await
    }

    /// Tries to renew a lease of the run's worker.
    pub(super) async fn renew(&self, lease: &Lease) -> Seen<Extended> {
        let renewed = self.broker.extend(&self.worker, std::slice::from_ref(lease)).await;
        let renewed = renewed.map_err(|error| error.to_string())?;
        renewed.first().copied().ok_or_else(|| "the broker did not answer for the lease".to_owned())
    }

    /// Waits a moment, unless the time is up: then says for what it was waited.
    async fn nap(&self, why: &str) -> Seen<()> {
        if Instant::now() >= self.deadline {
            return Err(format!("gave up after {:?}: {why}", self.limit));
        }
        tokio::time::sleep(NAP).await;
        Ok(())
    }

    /// Waits until a task is final.
    pub(super) async fn until_final(&self, task: &TaskId) -> Seen<TaskView> {
        loop {
            let view = self.broker.get(task).await.map_err(|error| error.to_string())?;
            let view = view.ok_or_else(|| format!("task {task} is gone"))?;
            if view.state.is_final() {
                return Ok(view);
            }
            let why = match view.state {
                State::DlqPending => {
                    "the task stays in dlq_pending, because nobody records its dead letter; check that \
                     `windlass operator` or `windlass dev` runs and reaches its event log"
                        .to_owned()
                }
                state => format!("the task stays in {state}"),
            };
            self.nap(&why).await?;
        }
    }

    /// What the event log has of a task, once that ends with a final state; `None` if no log is checked.
    pub(super) async fn history(&self, task: &TaskId) -> Seen<Option<Vec<RecordedEvent>>> {
        let Some(log) = &self.log else { return Ok(None) };
        if self.policy.events == EventRecording::Off {
            return Err("the queue records no events, but an event log was given to check".to_owned());
        }
        loop {
            let history = log.history(&self.queue, task).await.map_err(|error| error.to_string())?;
            if history.last().and_then(|event| event.to).is_some_and(State::is_final) {
                return Ok(Some(history));
            }
            let names: Vec<_> = history.iter().map(|event| event.event_type.as_str()).collect();
            self.nap(&format!("the event log has only {names:?}; check that the queue's leader records into it"))
                .await?;
        }
    }

    /// Runs a dead letter again and lets it succeed, so that nobody has to decide on it.
    pub(super) async fn bury(&self, dead_letter: DeadLetterId) -> Seen<TaskId> {
        let new_id = TaskId::generate();
        let mut mailbox = self.mailbox(&new_id);
        self.made.lock().expect("invariant: no panic while held").push(new_id.clone());
        let reason = Some("a check of the protocol let it die on purpose".to_owned());
        let request = ReplayRequest { dead_letter, new_id, payload: None, person: PERSON.to_owned(), reason };
        match self.broker.replay(&request).await.map_err(|error| error.to_string())? {
            Replayed::Done { task } => {
                let claimed = self.delivered(&mut mailbox).await?;
                match self.settle(&self.worker, claimed.lease, Outcome::success()).await? {
                    Settled::Succeeded => Ok(task),
                    other => Err(format!("the replay of the dead letter ended as {other:?}")),
                }
            }
            other => Err(format!("the dead letter could not be replayed: {other:?}")),
        }
    }

    fn mailbox(&self, task: &TaskId) -> mpsc::UnboundedReceiver<ClaimedTask> {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.mailboxes.lock().expect("invariant: no panic while held").insert(task.clone(), sender);
        receiver
    }

    /// The next claim of a task.
    async fn delivered(&self, mailbox: &mut mpsc::UnboundedReceiver<ClaimedTask>) -> Seen<ClaimedTask> {
        let mut mode = self.mode.subscribe();
        tokio::select! {
            biased;
            Some(task) = mailbox.recv() => Ok(task),
            Ok(stopped) = mode.wait_for(|mode| *mode != Mode::Running) => Err(not_running(*stopped)),
            () = tokio::time::sleep_until(self.deadline) => {
                Err(format!("gave up after {:?}: the task was not handed out", self.limit))
            }
        }
    }

    /// Clears away what the run made: its tasks that are not over, and its workers.
    pub(super) async fn clear(self) {
        for task in self.made.into_inner().expect("invariant: no panic while held") {
            if let Err(error) = self.broker.cancel_unless_final(&task).await {
                tracing::warn!(%error, %task, "a task of the check is left behind");
            }
        }
        for worker in self.workers.into_inner().expect("invariant: no panic while held") {
            if let Err(error) = self.broker.deregister(&worker).await {
                tracing::warn!(%error, %worker, "a worker of the check is left behind");
            }
        }
    }
}

/// Cancelling what is over would count as a refused move.
trait CancelUnlessFinal {
    async fn cancel_unless_final(&self, task: &TaskId) -> Result<(), BrokerError>;
}

impl CancelUnlessFinal for Arc<dyn Broker> {
    async fn cancel_unless_final(&self, task: &TaskId) -> Result<(), BrokerError> {
        if self.get(task).await?.is_some_and(|view| !view.state.is_final() && view.state != State::DlqPending) {
            self.cancel(task, "the check of the protocol is over").await?;
        }
        Ok(())
    }
}

fn not_running(mode: Mode) -> String {
    format!("the queue is {mode:?} and gives out no work")
}

fn worker_id(nonce: &str, word: &str) -> WorkerId {
    WorkerId::new(format!("conformance-{nonce}-{word}")).expect("invariant: short and printable")
}

fn worker_info(id: &WorkerId, kind: &str, place: Option<&str>) -> WorkerInfo {
    WorkerInfo {
        id: id.clone(),
        host: "conformance".to_owned(),
        pid: std::process::id(),
        pod: place.map(str::to_owned),
        pod_uid: place.map(str::to_owned),
        container: place.map(|_| "worker".to_owned()),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        types: types(kind).types().cloned().collect(),
        pool: None,
        started: None,
    }
}

/// One task of a check, and what is seen of it.
pub(super) struct Case<'a> {
    pub(super) stage: &'a Stage,
    pub(super) task: TaskId,
    mailbox: mpsc::UnboundedReceiver<ClaimedTask>,
    check: &'a mut Check,
}

impl<'a> Case<'a> {
    /// Enqueues the check's task.
    pub(super) async fn begin(stage: &'a Stage, check: &'a mut Check) -> Seen<Self> {
        let task = stage.new_task(check.id, TYPE);
        Self::begin_with(stage, check, task).await
    }

    /// Enqueues that task for the check.
    pub(super) async fn begin_with(stage: &'a Stage, check: &'a mut Check, task: NewTask) -> Seen<Self> {
        let mailbox = stage.mailbox(&task.id);
        stage.made.lock().expect("invariant: no panic while held").push(task.id.clone());
        (check.job_id, check.trace_id) = (Some(task.id.clone()), task.trace_id.clone());
        let id = task.id.clone();
        let enqueued = stage.broker.enqueue(&[task]).await.map_err(|error| error.to_string())?;
        let enqueued = enqueued.into_iter().next().ok_or("the broker did not answer for the task")?;
        let case = Self { stage, task: id, mailbox, check };
        case.check.status_transition.push(enqueued.state);
        if !enqueued.created || enqueued.state != State::Queued {
            return Err(format!("a new task was answered with {enqueued:?}"));
        }
        Ok(case)
    }

    /// Notes a state.
    pub(super) fn note(&mut self, state: State) {
        self.check.status_transition.push(state);
    }

    /// The next attempt begins.
    pub(super) async fn claim(&mut self) -> Seen<ClaimedTask> {
        let claimed = self.stage.delivered(&mut self.mailbox).await?;
        self.note(State::Running);
        self.check.retry_count = Some(claimed.retry_count);
        Ok(claimed)
    }

    /// The attempt ends.
    pub(super) async fn settle(&mut self, lease: Lease, outcome: Outcome) -> Seen<Settled> {
        let settled = self.stage.settle(&self.stage.worker, lease, outcome).await?;
        match settled {
            Settled::Succeeded => self.note(State::Succeeded),
            Settled::Retrying { .. } => self.note(State::Retrying),
            Settled::Dead => self.note(State::DlqPending),
            _ => {}
        }
        Ok(settled)
    }

    /// Fails so many attempts, each of which must lead to a retry.
    pub(super) async fn fail_times(&mut self, times: u32) -> Seen<()> {
        for failure in 1..=times {
            let claimed = self.claim().await?;
            match self.settle(claimed.lease, transient()).await? {
                Settled::Retrying { .. } => {}
                other => return Err(format!("failure {failure} was answered with {other:?}, not with a retry")),
            }
        }
        Ok(())
    }

    /// Succeeds, and waits until that is so.
    pub(super) async fn succeed(&mut self) -> Seen<(ClaimedTask, TaskView)> {
        let claimed = self.claim().await?;
        match self.settle(claimed.lease.clone(), Outcome::success()).await? {
            Settled::Succeeded => {}
            other => return Err(format!("the success was answered with {other:?}")),
        }
        let view = self.finished(State::Succeeded).await?;
        Ok((claimed, view))
    }

    /// The task when it is final, which must be in that state.
    pub(super) async fn finished(&mut self, state: State) -> Seen<TaskView> {
        let view = self.stage.until_final(&self.task).await?;
        self.check.retry_count = Some(view.retry_count);
        if view.state == state { Ok(view) } else { Err(format!("the task ended as {}, not as {state}", view.state)) }
    }

    /// Whether the event log has exactly these moves; says what was looked at.
    pub(super) async fn history_is(&self, expected: &[&str]) -> Seen<String> {
        let Some(history) = self.stage.history(&self.task).await? else {
            return Ok("no event log given to check".to_owned());
        };
        let names: Vec<_> = history.iter().map(|event| event.event_type.as_str()).collect();
        if names == expected {
            Ok(format!("event log complete, {} events", names.len()))
        } else {
            Err(format!("the event log has {names:?}, not {expected:?}"))
        }
    }

    /// Whether this is the walk that was seen.
    pub(super) fn walked(&self, expected: &[State]) -> Seen<()> {
        let seen = &self.check.status_transition;
        if seen == expected { Ok(()) } else { Err(format!("the states were {seen:?}, not {expected:?}")) }
    }

    /// Whether so many failures were counted.
    pub(super) fn retried(&self, expected: u32) -> Seen<()> {
        match self.check.retry_count {
            Some(count) if count == expected => Ok(()),
            other => Err(format!("retry_count is {other:?}, not {expected}")),
        }
    }
}

/// A failure that may be gone next time.
pub(super) fn transient() -> Outcome {
    Outcome::failure("conformance_transient", "a check of the protocol failed on purpose")
}
