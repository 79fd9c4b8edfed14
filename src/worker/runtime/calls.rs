//! Claims and settlements: what is said to the broker, and what it answers.

use tokio::time::Instant;

use super::Runtime;
use crate::broker::session::{Session, SessionReply};
use crate::broker::{BrokerError, ClaimedTask, ErrorClass, MAX_BATCH, Outcome, Result, Settled, Settlement};
use crate::worker::metrics::answer_word;
use crate::worker::slots::SlotId;

/// The most tasks that one call settles and claims. Redis is held for less than
/// a millisecond by so many, and while it deals with them, the handlers of
/// others run.
pub(super) const LARGEST_CALL: usize = MAX_BATCH / 2;

/// A queue whose tasks may be given back less often than this is one in which
/// nothing is claimed ahead: what is claimed ahead may have to be given back.
const SPARE_RELEASES: u32 = 10;

/// A settlement that the broker does not know of yet.
pub(super) struct Ready {
    pub(super) slot: SlotId,
    pub(super) settlement: Settlement,
}

/// A call that was answered, or was not.
pub(super) struct Answered {
    session: Session,
    asked: Instant,
    /// How many tasks were asked for.
    limit: usize,
    said: Said,
}

enum Said {
    Claim(Result<Vec<ClaimedTask>>),
    Settle { slots: Vec<SlotId>, settlements: Vec<Settlement>, reply: Result<SessionReply> },
}

impl Runtime {
    /// Sends what is to be said to the broker, unless something is under way.
    pub(super) fn next_call(&mut self, now: Instant) {
        if self.call_not_before.is_some_and(|at| now < at) {
            return;
        }
        // The pause is over, also where there is nothing to be said.
        self.call_not_before = None;
        let Some(mut session) = self.session.take() else { return };
        for lease in self.lost.drain(..) {
            session.forget(&lease);
        }
        if !self.ready.is_empty() {
            let batch: Vec<Ready> = self.ready.drain(..self.ready.len().min(self.batch)).collect();
            let limit = self.room(now, batch.len());
            let (slots, settlements): (Vec<_>, Vec<_>) =
                batch.into_iter().map(|ready| (ready.slot, ready.settlement)).unzip();
            self.call = Some(Box::pin(async move {
                let reply = session.settle(&settlements, limit).await;
                Answered { session, asked: now, limit, said: Said::Settle { slots, settlements, reply } }
            }));
        } else if let Some(limit) = self.claim_of_its_own(now) {
            self.pass_on = false;
            self.call = Some(Box::pin(async move {
                let claimed = session.claim(limit).await;
                Answered { session, asked: now, limit, said: Said::Claim(claimed) }
            }));
        } else {
            self.session = Some(session);
        }
    }

    /// How many tasks to claim with a call that settles nothing; `None` if there is no reason for one.
    fn claim_of_its_own(&self, now: Instant) -> Option<usize> {
        if self.hungry {
            let room = self.room(now, 0);
            // What waits is asked for in time, and not task by task.
            let runs_low = || {
                let waiting = self.slots.open().saturating_sub(self.crew.capacity());
                waiting <= self.ahead(now) / 2
            };
            if room > 0 && (self.free() > 0 || runs_low()) {
                return Some(room);
            }
        }
        self.pass_on.then_some(0)
    }

    /// How many tasks may be asked for, when so many are settled by the same call.
    fn room(&self, now: Instant, settled: usize) -> usize {
        if self.drain.is_some() {
            return 0;
        }
        let stay = self.slots.held() - settled;
        (self.crew.capacity() + self.ahead(now)).saturating_sub(stay).min(LARGEST_CALL)
    }

    /// How many tasks it may hold that cannot be started at once.
    fn ahead(&self, now: Instant) -> usize {
        // A task that may have killed a worker must not take others with it.
        let suspects = self.wary || self.slots.suspects() > 0;
        let hardly_may_release = self.policy.retry.max_releases < SPARE_RELEASES;
        if suspects || hardly_may_release || self.pace.ahead(self.crew.capacity()) == 0 {
            return 0;
        }
        self.pace.ahead(self.crew.brisk(now))
    }

    pub(super) fn answered(&mut self, answered: Answered) {
        let Answered { session, asked, limit, said } = answered;
        self.session = Some(session);
        let claimed = match said {
            Said::Claim(claimed) => claimed,
            Said::Settle { slots, settlements, reply } => match reply {
                Ok(SessionReply { settled, next }) => {
                    self.settled(slots, settlements, settled);
                    next
                }
                Err(error) => {
                    self.say_again(slots, settlements, error.class());
                    Err(error)
                }
            },
        };
        match claimed {
            Ok(tasks) => {
                self.served();
                self.metrics.add_claimed(tasks.len(), asked.elapsed());
                if limit > 0 {
                    self.hungry = tasks.len() >= limit || self.rung_meanwhile;
                    self.wary = tasks.iter().any(|task| task.crash_count > 0);
                }
                self.rung_meanwhile = false;
                self.admit(tasks, asked);
                self.uncertain = false;
            }
            Err(error) => {
                self.hungry = true;
                self.uncertain = true;
                self.metrics.add_broker_error();
                self.pause_calls();
                self.refused(&error);
            }
        }
    }

    /// Settlements that were not answered.
    fn say_again(&mut self, slots: Vec<SlotId>, settlements: Vec<Settlement>, class: ErrorClass) {
        let again = slots.into_iter().zip(settlements).map(|(slot, settlement)| Ready { slot, settlement });
        if class == ErrorClass::Bug {
            // One of them may be what the broker stumbles over. One that is it
            // must not hold up the others, nor the next claim.
            self.batch = 1;
            if again.len() == 1 {
                self.set_aside.extend(again);
                return;
            }
        }
        for ready in again.rev() {
            self.ready.push_front(ready);
        }
    }

    fn settled(&mut self, slots: Vec<SlotId>, settlements: Vec<Settlement>, answers: Vec<Settled>) {
        // By and by: what the broker stumbles over may still be among them.
        self.batch = (self.batch * 2).min(LARGEST_CALL);
        for ((slot, settlement), answer) in slots.into_iter().zip(settlements).zip(answers) {
            self.metrics.add_settled(&answer);
            if answer == Settled::ResultTooLarge {
                let error = "the result is over the queue's bound: store it elsewhere and give a reference, or raise \
                             the queue's limit";
                let outcome = Outcome::permanent("result_too_large", error);
                self.ready.push_back(Ready { slot, settlement: Settlement { outcome, ..settlement } });
                continue;
            }
            match answer {
                Settled::Succeeded | Settled::Retrying { .. } | Settled::Dead | Settled::AlreadySettled => {
                    self.summary.settled += 1;
                    if matches!(settlement.outcome, Outcome::Released { .. }) {
                        self.summary.released += 1;
                    }
                }
                refused => {
                    self.summary.refused += 1;
                    let (task, answer) = (&settlement.lease.task, answer_word(&refused));
                    tracing::warn!(task_id = %task, answer, "the attempt came too late and was not counted");
                }
            }
            self.slots.vacate(slot);
        }
    }

    /// The broker answers.
    fn served(&mut self) {
        self.call_pauses.reset();
        self.call_not_before = None;
        if self.health.set_connected(true) {
            tracing::info!(worker = %self.info.id, "the broker answers");
        }
    }

    /// The broker did not do what was asked.
    pub(super) fn refused(&mut self, error: &BrokerError) {
        if !matches!(error, BrokerError::Fenced) {
            self.unserved(error);
        } else if self.drain.is_none() {
            tracing::warn!(%error, worker = %self.info.id, "the worker was taken for gone: it ends");
            self.drain_now();
        }
    }

    pub(super) fn unserved(&self, error: &BrokerError) {
        if self.health.set_connected(false) {
            tracing::warn!(%error, worker = %self.info.id, "the broker does not serve; handlers go on, their ends are kept");
        } else {
            tracing::debug!(%error, "the broker does not serve yet");
        }
    }

    /// The next call comes later.
    pub(super) fn pause_calls(&mut self) {
        let until = Instant::now() + self.call_pauses.next();
        self.call_not_before = Some(until);
        self.arm(until);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use async_trait::async_trait;
    use tokio::sync::watch;

    use super::*;
    use crate::broker::clock::Clock;
    use crate::broker::model::Model;
    use crate::broker::{Owner, Takeover, Wake};
    use crate::protocol::backoff::Dice;
    use crate::protocol::policy::Policy;
    use crate::protocol::task::{NewTask, Payload};
    use crate::worker::context::Home;
    use crate::worker::drain::DrainLevel;
    use crate::worker::health::WorkerHealth;
    use crate::worker::metrics::WorkerMetrics;
    use crate::worker::runtime::Parts;
    use crate::worker::{Handler, TaskContext, WorkerOptions, WorkerPlace};

    struct Idle;

    #[async_trait]
    impl Handler for Idle {
        async fn handle(&self, _: &TaskContext) -> Outcome {
            Outcome::success()
        }
    }

    fn runtime() -> Runtime {
        let info = WorkerPlace::default().introduce(Vec::new());
        let model = Arc::new(Model::new("a/b".parse().expect("a queue"), Clock::Server));
        let options = WorkerOptions::default();
        Runtime::new(Parts {
            home: Home::new("a/b".parse().expect("a queue"), info.id.clone(), model),
            handler: Arc::new(Idle),
            health: Arc::new(WorkerHealth::new(options.concurrency)),
            options,
            info,
            metrics: WorkerMetrics::default(),
            drain: watch::channel(DrainLevel::None).1,
            policy: Policy::default(),
        })
    }

    /// A claim that was answered with nothing.
    fn nothing(session: Session) -> Answered {
        Answered { session, asked: Instant::now(), limit: 1, said: Said::Claim(Ok(Vec::new())) }
    }

    /// A broker of two tasks that were claimed and have succeeded, ready to be said.
    async fn with_two_ends() -> Runtime {
        let mut runtime = runtime();
        let broker = runtime.home.broker.clone();
        let tasks = [(); 2].map(|()| NewTask::new("work".parse().expect("a type"), Payload::default()));
        broker
            .provision(&Owner { name: "test".to_owned(), takeover: Takeover::Respect }, &Policy::default())
            .await
            .expect("made");
        broker.enqueue(&tasks).await.expect("taken");
        broker.register(&runtime.info).await.expect("registered");
        let mut session = runtime.session.take().expect("it is here");
        for task in session.claim(2).await.expect("claimed") {
            let lease = task.lease.clone();
            let slot = runtime.slots.add(TaskContext::new(&runtime.home, task, Instant::now(), None));
            runtime.slots.end(slot);
            let settlement = Settlement { lease, outcome: Outcome::success(), dice: Dice(0) };
            runtime.ready.push_back(Ready { slot, settlement });
        }
        runtime.session = Some(session);
        runtime
    }

    /// The next call is answered with an error that waiting does not cure; says how many ends it told of.
    fn stumbles(runtime: &mut Runtime) -> usize {
        let session = runtime.session.take().expect("it is here");
        let said: Vec<Ready> = runtime.ready.drain(..runtime.ready.len().min(runtime.batch)).collect();
        let (slots, settlements): (Vec<_>, Vec<_>) = said.into_iter().map(|one| (one.slot, one.settlement)).unzip();
        let (count, error) = (slots.len(), BrokerError::Unexpected { operation: "settle", detail: "?".to_owned() });
        let said = Said::Settle { slots, settlements, reply: Err(error) };
        runtime.answered(Answered { session, asked: Instant::now(), limit: 0, said });
        count
    }

    /// What is to be said is said, and answered.
    async fn says(runtime: &mut Runtime) {
        runtime.call_not_before = None;
        runtime.next_call(Instant::now());
        let answered = runtime.call.take().expect("there is a call").await;
        runtime.answered(answered);
    }

    #[tokio::test]
    async fn an_end_that_the_broker_stumbles_over_holds_up_no_other_and_no_claim() {
        let mut runtime = with_two_ends().await;
        assert_eq!(stumbles(&mut runtime), 2);
        assert_eq!(stumbles(&mut runtime), 1, "from now on one at a time, to find it");
        says(&mut runtime).await;
        assert_eq!((runtime.summary.settled, runtime.slots.held()), (1, 1), "the other one is settled");
        assert!(runtime.ready.is_empty(), "so that the next call claims");
        runtime.next_heartbeat(runtime.next_beat);
        let beat = runtime.beat.take().expect("it is time").await;
        runtime.beaten(beat);
        says(&mut runtime).await;
        assert_eq!((runtime.summary.settled, runtime.slots.held()), (2, 0), "it is said again with each heartbeat");
    }

    /// Whatever is waited for wakes the loop by itself.
    #[tokio::test]
    async fn a_call_or_a_heartbeat_that_is_not_answered_does_not_keep_the_loop_busy() {
        let mut runtime = runtime();
        let now = Instant::now();
        runtime.pause_calls();
        runtime.next_beat = now;
        let over = now + Duration::from_secs(10);
        runtime.next_call(over);
        assert!(runtime.call.is_some(), "a claim is under way");
        runtime.next_heartbeat(over);
        runtime.look_around();
        assert!(runtime.next_look > now + Duration::from_millis(500), "{:?}", runtime.next_look - now);
    }

    #[tokio::test]
    async fn a_ring_that_overtakes_the_answer_of_an_empty_claim_is_heard() {
        let mut runtime = runtime();
        let session = runtime.session.take().expect("it is here");
        runtime.call = Some(Box::pin(std::future::pending()));
        runtime.slept(None, Ok(Wake::Rung));
        runtime.call = None;
        runtime.answered(nothing(session));
        assert!(runtime.hungry, "the work that it was rung for came after the claim");
        let session = runtime.session.take().expect("it is back");
        runtime.answered(nothing(session));
        assert!(!runtime.hungry, "and it is heard once");
    }
}
