//! One worker's side of the protocol: what it holds, and what it is not sure of.
//!
//! A call whose answer is lost (a broken connection, a dropped future) may have
//! leased tasks that the worker knows nothing of. A session notices, and its
//! next claim asks for them: nothing waits for a timeout that need not.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::{Broker, ClaimRequest, ClaimedTask, Extended, Lease, Result, Settled, Settlement, Sleeper, Wake};
use crate::protocol::names::{Capabilities, TaskId, WorkerId};
use crate::protocol::policy::Mode;

/// A worker's dealings with one queue.
pub struct Session {
    broker: Arc<dyn Broker>,
    worker: WorkerId,
    capabilities: Capabilities,
    held: HashMap<TaskId, Lease>,
    /// Whether every call so far was answered.
    certain: bool,
    mode: Mode,
    sleeper: Option<Box<dyn Sleeper>>,
}

/// What a settle gave.
pub struct SessionReply {
    /// One answer a settlement, in their order.
    pub settled: Vec<Settled>,
    /// The next tasks, if they were asked for.
    pub next: Result<Vec<ClaimedTask>>,
}

impl Session {
    /// A worker that holds nothing yet.
    pub fn new(broker: Arc<dyn Broker>, worker: WorkerId, capabilities: Capabilities) -> Self {
        let held = HashMap::new();
        Self { broker, worker, capabilities, held, certain: true, mode: Mode::Running, sleeper: None }
    }

    /// Who this is.
    pub fn worker(&self) -> &WorkerId {
        &self.worker
    }

    /// How many tasks it holds.
    pub fn holds(&self) -> usize {
        self.held.len()
    }

    /// Leases up to `limit` tasks.
    pub async fn claim(&mut self, limit: usize) -> Result<Vec<ClaimedTask>> {
        let held = self.uncertain_holdings();
        self.certain = false;
        let request = self.request(limit, held.as_deref());
        let claimed = self.broker.claim(request).await?;
        self.certain = true;
        self.mode = claimed.mode;
        self.take(&claimed.tasks);
        Ok(claimed.tasks)
    }

    /// Ends attempts and leases up to `limit` further tasks.
    ///
    /// When this fails, repeat it with the same settlements: those that were
    /// made answer [`Settled::AlreadySettled`].
    pub async fn settle(&mut self, settlements: &[Settlement], limit: usize) -> Result<SessionReply> {
        let held = self.uncertain_holdings();
        self.certain = false;
        let request = self.request(limit, held.as_deref());
        let reply = self.broker.settle(settlements, request).await?;
        for (settlement, settled) in settlements.iter().zip(&reply.settled) {
            if *settled != Settled::ResultTooLarge {
                self.held.remove(&settlement.lease.task);
            }
        }
        let next = match reply.claimed {
            Ok(claimed) => {
                self.certain = true;
                self.mode = claimed.mode;
                self.take(&claimed.tasks);
                Ok(claimed.tasks)
            }
            Err(error) => Err(error),
        };
        Ok(SessionReply { settled: reply.settled, next })
    }

    /// Renews all leases; returns those that are gone, which should be stopped.
    pub async fn extend(&mut self) -> Result<Vec<(TaskId, Extended)>> {
        let leases: Vec<Lease> = self.held.values().cloned().collect();
        let answers = self.broker.extend(&self.worker, &leases).await?;
        let mut gone = Vec::new();
        for (lease, answer) in leases.into_iter().zip(answers) {
            if answer != Extended::Renewed {
                self.held.remove(&lease.task);
                gone.push((lease.task, answer));
            }
        }
        Ok(gone)
    }

    /// Forgets a lease that is known to be gone.
    pub fn forget(&mut self, lease: &Lease) {
        if self.held.get(&lease.task).is_some_and(|held| held.epoch == lease.epoch) {
            self.held.remove(&lease.task);
        }
    }

    /// Sleeps until there may be work, but no longer than `limit`. Only after
    /// a claim that gave nothing.
    pub async fn sleep(&mut self, limit: Duration) -> Result<Wake> {
        if self.sleeper.is_none() {
            self.sleeper = Some(self.broker.sleeper(&self.capabilities).await?);
        }
        match &mut self.sleeper {
            Some(sleeper) => sleeper.sleep(self.mode, limit).await,
            None => Ok(Wake::TimedOut),
        }
    }

    /// Passes a wake-up on that this worker cannot use, because it ends.
    pub async fn pass_on(&mut self) -> Result<()> {
        self.claim(0).await.map(drop)
    }

    /// Whether the queue gave out work when it was last asked.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    fn request<'a>(&'a self, limit: usize, recover: Option<&'a [Lease]>) -> ClaimRequest<'a> {
        ClaimRequest { worker: &self.worker, capabilities: &self.capabilities, limit, recover }
    }

    fn uncertain_holdings(&self) -> Option<Vec<Lease>> {
        (!self.certain).then(|| self.held.values().cloned().collect())
    }

    fn take(&mut self, tasks: &[ClaimedTask]) {
        self.held.extend(tasks.iter().map(|task| (task.lease.task.clone(), task.lease.clone())));
    }
}
