//! Ends attempts.

use std::collections::BTreeSet;
use std::time::Duration;

use super::lane::Body;
use super::moves::{Ending, Mishap};
use super::record::{Record, decode_extras, epoch_of, time};
use super::state::Step;
use crate::broker::{ClaimRequest, Outcome, SettleReply, Settled, Settlement, sentences};
use crate::protocol::state::{RetryReason, State};

/// An attempt's end that was accepted.
struct Accepted<'a> {
    /// Its place among the settlements.
    index: usize,
    settlement: &'a Settlement,
    record: Record,
    body: Body,
}

/// What is to become of an attempt that did not succeed.
enum Verdict {
    /// It runs again, for this reason and then.
    Again { reason: RetryReason, due_ms: u64 },
    /// It is dead, for this reason.
    Dead { code: String, error: String },
}

/// What an outcome other than success says.
struct Complaint {
    /// `None` for what will fail again.
    reason: Option<RetryReason>,
    error: String,
    code: String,
    /// For how long the task should rest, where that was said.
    wait: Option<Duration>,
}

impl Complaint {
    /// `None` for a success.
    fn of(outcome: &Outcome) -> Option<Self> {
        let (reason, error, code, wait) = match outcome {
            Outcome::Success { .. } => return None,
            Outcome::Failure { error, code } => (Some(RetryReason::Failure), error.as_str(), code.as_str(), None),
            Outcome::Permanent { error, code } => (None, error.as_str(), code.as_str(), None),
            Outcome::RateLimited { retry_after, error } => {
                (Some(RetryReason::RateLimited), error.as_str(), "rate_limited", *retry_after)
            }
            Outcome::Released { delay } => (Some(RetryReason::Released), "", "released", Some(*delay)),
        };
        Some(Self { reason, error: sentences::cut_error(error), code: sentences::cut_error(code), wait })
    }

    /// How the record of a task names it.
    fn word(&self) -> &'static str {
        self.reason.map_or("permanent", RetryReason::as_str)
    }

    /// The error, after what it led to.
    fn after(&self, what: String) -> String {
        if self.error.is_empty() { what } else { format!("{what}: {}", self.error) }
    }
}

impl Step<'_> {
    /// Ends attempts, then claims the next tasks.
    pub(super) fn settle(mut self, settlements: &[Settlement], next: &ClaimRequest<'_>) -> SettleReply {
        let (mut answers, accepted) = self.judge_all(settlements);
        for attempt in accepted {
            let index = attempt.index;
            answers[index] = self.end_attempt(attempt);
        }
        let invalid = answers.iter().filter(|answer| **answer == Settled::InvalidTransition).count();
        self.queue.invalid_transitions += invalid as u64;
        self.announce();
        let claimed = self.claim_some(next);
        self.end();
        SettleReply { settled: answers, claimed }
    }

    /// Everything is judged before anything moves. Those that are accepted have
    /// a provisional answer: said twice in one call, it was settled before.
    fn judge_all<'a>(&mut self, settlements: &'a [Settlement]) -> (Vec<Settled>, Vec<Accepted<'a>>) {
        let (mut answers, mut accepted, mut seen) = (Vec::new(), Vec::new(), BTreeSet::new());
        for (index, settlement) in settlements.iter().enumerate() {
            let id = &settlement.lease.task;
            answers.push(Settled::AlreadySettled);
            if seen.contains(id) {
                continue;
            }
            let record = self.queue.live.get(id).filter(|record| record.is_held_by(&settlement.lease)).cloned();
            match record {
                None => answers[index] = self.judge(settlement),
                Some(_) if self.is_too_large(&settlement.outcome) => answers[index] = Settled::ResultTooLarge,
                Some(record) => {
                    seen.insert(id);
                    let (_, body) = self.take_out(&record);
                    accepted.push(Accepted { index, settlement, record, body });
                }
            }
        }
        (answers, accepted)
    }

    fn is_too_large(&self, outcome: &Outcome) -> bool {
        let bytes = match outcome {
            Outcome::Success { result: Some(result) } => result.as_str().len() as u64,
            _ => 0,
        };
        bytes > self.policy.limits.result_bytes
    }

    /// The lease does not match: says why, from what became of the task.
    fn judge(&self, settlement: &Settlement) -> Settled {
        let (id, mine) = (&settlement.lease.task, epoch_of(&settlement.lease));
        let complaint = Complaint::of(&settlement.outcome);
        if let Some(record) = self.queue.live.get(id) {
            let died = record.state == State::DlqPending && record.holder == "permanent";
            let same = |complaint: Complaint| died || complaint.reason.is_some() && record.holder == complaint.word();
            let same = record.epoch == mine && complaint.is_some_and(same);
            return if same { Settled::AlreadySettled } else { Settled::LeaseLost };
        }
        let Some(finished) = self.queue.done.get(id) else { return Settled::Unknown };
        let succeeded = finished.state == State::Succeeded;
        match finished.record.epoch {
            _ if finished.state == State::Cancelled => Settled::Cancelled,
            epoch if epoch > mine => Settled::LeaseLost,
            epoch if epoch == mine && succeeded == complaint.is_none() => Settled::AlreadySettled,
            _ => Settled::InvalidTransition,
        }
    }

    fn end_attempt(&mut self, attempt: Accepted<'_>) -> Settled {
        let Accepted { settlement, record, body, .. } = attempt;
        match Complaint::of(&settlement.outcome) {
            None => self.succeed(settlement, record),
            Some(complaint) => self.go_wrong(settlement, record, body, &complaint),
        }
    }

    fn succeed(&mut self, settlement: &Settlement, record: Record) -> Settled {
        let id = &settlement.lease.task;
        let result = match &settlement.outcome {
            Outcome::Success { result } => result.clone(),
            _ => None,
        };
        self.emit(id, Some(State::Running), State::Succeeded, &record, "");
        let ending = Ending {
            state: State::Succeeded,
            extras: decode_extras(&settlement.lease),
            result,
            error: String::new(),
            code: String::new(),
            dlq_id: None,
        };
        self.finish(id, record, ending);
        Settled::Succeeded
    }

    fn go_wrong(&mut self, settlement: &Settlement, mut record: Record, body: Body, complaint: &Complaint) -> Settled {
        let id = &settlement.lease.task;
        let outcome = complaint.word();
        match self.verdict(settlement, &mut record, complaint) {
            Verdict::Again { reason, due_ms } => {
                if reason != RetryReason::Released {
                    self.remember(id, &record, &Mishap { outcome, code: &complaint.code, error: &complaint.error });
                }
                self.run_again(id, record, body, reason, due_ms);
                Settled::Retrying { due_at: time(due_ms) }
            }
            Verdict::Dead { code, error } => {
                self.die(id, record, body, &Mishap { outcome, code: &code, error: &error });
                Settled::Dead
            }
        }
    }

    /// Counts the attempt and says whether another one follows.
    fn verdict(&self, settlement: &Settlement, record: &mut Record, complaint: &Complaint) -> Verdict {
        let retry = &self.policy.retry;
        let dead = |code: &str, error: String| Verdict::Dead { code: code.to_owned(), error };
        let (reason, due_ms) = match complaint.reason {
            None => return dead(&complaint.code, complaint.error.clone()),
            Some(reason @ RetryReason::Failure) => {
                record.retries += 1;
                if record.retries > record.max_retries.unwrap_or(retry.max_retries) {
                    return dead(&complaint.code, complaint.error.clone());
                }
                (reason, self.after(retry.backoff.delay(record.retries, settlement.dice)))
            }
            Some(reason) => {
                record.releases += 1;
                if record.releases > retry.max_releases {
                    let what = format!("was released or rate limited {} times", record.releases);
                    return dead("too_many_releases", complaint.after(what));
                }
                let wait = complaint.wait.unwrap_or_else(|| retry.rate_limit.delay(record.releases, settlement.dice));
                (reason, self.after(wait))
            }
        };
        if due_ms > self.deadline_of(record.created_ms) {
            let what = "its next attempt would come after its deadline".to_owned();
            return dead("deadline_exceeded", complaint.after(what));
        }
        Verdict::Again { reason, due_ms }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::*;
    use crate::broker::{Broker, Outcome, Settled};
    use crate::protocol::policy::Policy;
    use crate::protocol::state::{RetryReason, State};
    use crate::protocol::task::{NewTask, Payload};
    use std::time::Duration;

    fn retrying_in(ms: u64) -> Settled {
        Settled::Retrying { due_at: super::time(START_MS + ms) }
    }

    #[tokio::test]
    async fn a_failure_waits_as_the_policy_says_and_runs_again() {
        let rig = Rig::new(Policy::default()).await;
        rig.enqueue(task("a")).await;
        let lease = rig.claim_one("w").await;
        assert_eq!(rig.settle(&lease, failure()).await, retrying_in(1000));
        let view = rig.get("a").await;
        assert_eq!((view.state, view.retry_reason), (State::Retrying, Some(RetryReason::Failure)));
        assert_eq!((view.error.as_deref(), view.error_code.as_deref()), (Some("boom"), Some("oops")));
        assert_eq!(view.worker, Some(worker("w")), "who ran it last");
        rig.advance(999);
        assert!(rig.claim("w", 1).await.is_empty());
        rig.advance(1);
        assert_eq!(rig.claim("w", 1).await[0].retry_count, 1);
    }

    #[tokio::test]
    async fn the_failure_after_the_last_retry_is_the_end() {
        let rig = Rig::new(Policy::default()).await;
        rig.try_enqueue(&[NewTask { max_retries: Some(1), ..task("own") }, task("queues")]).await.expect("taken");
        let mut answers = Vec::new();
        for _ in 0..2 {
            let lease =
                rig.claim("w", 2).await.into_iter().find(|task| task.lease.task == id("own")).expect("ready").lease;
            answers.push(rig.settle(&lease, failure()).await);
            rig.advance(60_000);
        }
        assert_eq!(answers, [retrying_in(1000), Settled::Dead]);
        let dead = rig.model.pending_dead_letters(9).await.expect("letters");
        assert_eq!((dead[0].id.clone(), dead[0].retry_count, dead[0].history.len()), (letter("own#2"), 2, 2));
    }

    #[tokio::test]
    async fn success_is_final_and_said_once() {
        let rig = Rig::new(Policy::default()).await;
        rig.enqueue(task("a")).await;
        let lease = rig.claim_one("w").await;
        let result = Some(Payload::from_json("{\"sent\": 1}").expect("JSON"));
        assert_eq!(rig.settle(&lease, Outcome::Success { result: result.clone() }).await, Settled::Succeeded);
        assert_eq!(rig.settle(&lease, success()).await, Settled::AlreadySettled);
        assert_eq!(rig.settle(&lease, failure()).await, Settled::InvalidTransition);
        let view = rig.get("a").await;
        assert_eq!((view.state, view.result, view.payload), (State::Succeeded, result, None));
        assert_eq!(rig.model.counts().await.expect("counts").invalid_transitions, 1);
        assert_eq!(rig.moves().await[2], ["a running succeeded - w"]);
    }

    #[tokio::test]
    async fn a_repeated_settlement_is_told_from_a_lost_lease() {
        let rig = Rig::new(Policy::default()).await;
        rig.enqueue(task("a")).await;
        let first = rig.claim_one("w").await;
        rig.settle(&first, failure()).await;
        assert_eq!(rig.settle(&first, failure()).await, Settled::AlreadySettled);
        assert_eq!(rig.settle(&first, success()).await, Settled::LeaseLost);
        rig.advance(1000);
        let second = rig.claim_one("v").await;
        assert_eq!(rig.settle(&first, failure()).await, Settled::LeaseLost);
        rig.settle(&second, success()).await;
        assert_eq!(rig.settle(&first, success()).await, Settled::LeaseLost, "a later claim has ended it");
        let unknown = crate::broker::Lease { task: id("nobody"), ..first };
        assert_eq!(rig.settle(&unknown, success()).await, Settled::Unknown);
    }

    #[tokio::test]
    async fn who_lost_a_task_that_died_in_the_queue_has_not_settled_it() {
        let rig = Rig::new(Policy::default()).await;
        rig.enqueue(task("a")).await;
        let lease = rig.claim_one("w").await;
        rig.model.reclaim_from(&worker("w"), RetryReason::PodGone).await.expect("taken back");
        rig.advance(Policy::default().retry.deadline.as_millis() as u64 + 1);
        assert!(rig.claim("v", 1).await.is_empty());
        let dead = rig.model.pending_dead_letters(9).await.expect("letters").remove(0);
        let outcomes: Vec<_> = dead.history.iter().map(|attempt| attempt.outcome.as_str()).collect();
        assert_eq!(outcomes, ["pod_gone", "expired"]);
        assert_eq!(rig.settle(&lease, failure()).await, Settled::LeaseLost);
    }

    #[tokio::test]
    async fn two_settlements_of_one_task_in_one_call_are_one() {
        let rig = Rig::new(Policy::default()).await;
        rig.enqueue(task("a")).await;
        let lease = rig.claim_one("w").await;
        let released = Outcome::Released { delay: Duration::ZERO };
        let settle = |outcome| crate::broker::Settlement {
            lease: lease.clone(),
            outcome,
            dice: crate::protocol::backoff::Dice(0),
        };
        let (w, any) = (worker("w"), crate::protocol::names::Capabilities::any());
        let next = crate::broker::ClaimRequest { worker: &w, capabilities: &any, limit: 1, recover: None };
        let reply = rig.model.settle(&[settle(released), settle(success())], next).await.expect("a reply");
        assert_eq!(reply.settled, [retrying_in(0), Settled::AlreadySettled]);
        assert_eq!(ids(&reply.claimed.expect("claimed").tasks), ["a"], "settled and claimed in one step");
        assert_eq!(rig.moves().await[2], ["a running retrying released w", "a retrying running - w"]);
    }

    #[tokio::test]
    async fn releases_and_rate_limits_cost_no_retry_and_are_bounded() {
        let mut policy = Policy::default();
        policy.retry.max_releases = 2;
        let rig = Rig::new(policy).await;
        rig.enqueue(task("a")).await;
        let limited = |retry_after| Outcome::RateLimited { retry_after, error: "429".to_owned() };
        let lease = rig.claim_one("w").await;
        assert_eq!(rig.settle(&lease, limited(Some(Duration::ZERO))).await, retrying_in(0));
        let lease = rig.claim_one("w").await;
        assert_eq!(rig.settle(&lease, limited(None)).await, retrying_in(120_000), "the second one waits twice as long");
        rig.advance(120_000);
        let lease = rig.claim_one("w").await;
        assert_eq!(rig.settle(&lease, Outcome::Released { delay: Duration::ZERO }).await, Settled::Dead);
        let view = rig.get("a").await;
        assert_eq!((view.retry_count, view.release_count), (0, 3));
        assert_eq!(view.error.as_deref(), Some("was released or rate limited 3 times"));
        assert_eq!(view.error_code.as_deref(), Some("too_many_releases"));
    }

    #[tokio::test]
    async fn an_attempt_that_would_come_after_the_deadline_is_not_waited_for() {
        let mut policy = Policy::default();
        policy.retry.deadline = Duration::from_millis(500);
        let rig = Rig::new(policy).await;
        rig.enqueue(task("a")).await;
        let lease = rig.claim_one("w").await;
        assert_eq!(rig.settle(&lease, failure()).await, Settled::Dead);
        let view = rig.get("a").await;
        assert_eq!(view.error.as_deref(), Some("its next attempt would come after its deadline: boom"));
    }

    #[tokio::test]
    async fn a_result_over_the_bound_changes_nothing() {
        let mut policy = Policy::default();
        policy.limits.result_bytes = 4;
        let rig = Rig::new(policy).await;
        rig.enqueue(task("a")).await;
        let lease = rig.claim_one("w").await;
        let long = Outcome::Success { result: Some(Payload::from_json("12345").expect("JSON")) };
        assert_eq!(rig.settle(&lease, long).await, Settled::ResultTooLarge);
        assert_eq!(rig.settle(&lease, success()).await, Settled::Succeeded);
    }
}
