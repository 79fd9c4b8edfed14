//! New tasks: all of them, or none.

use std::collections::HashSet;

use super::lane::Body;
use super::moves::Birth;
use super::record::Record;
use super::state::Step;
use crate::broker::{BrokerError, Enqueued, Result, sentences};
use crate::protocol::names::{TaskId, TaskType};
use crate::protocol::policy::{EventRecording, IdempotencyRequirement, IdempotencySource, Mode};
use crate::protocol::state::State;
use crate::protocol::task::{NewTask, NotBefore, Payload};

/// What the policy makes of a new task.
struct Wanted {
    priority: u8,
    due_ms: u64,
    key: String,
}

impl Step<'_> {
    pub(super) fn enqueue(mut self, tasks: &[NewTask]) -> Result<Vec<Enqueued>> {
        self.check_intake()?;
        let mut lanes = HashSet::new();
        let mut wanted = Vec::with_capacity(tasks.len());
        for task in tasks {
            let one = self.wanted(task)?;
            let most = self.policy.limits.lanes as usize;
            if self.is_new_lane(&task.task_type, one.priority)
                && lanes.insert((&task.task_type, one.priority))
                && self.lanes_counted() + lanes.len() > most
            {
                return Err(BrokerError::Invalid(sentences::too_many_lanes(most)));
            }
            wanted.push(one);
        }
        let answers = tasks.iter().zip(wanted).map(|(task, wanted)| self.enqueue_one(task, wanted)).collect();
        self.announce();
        self.end();
        Ok(answers)
    }

    /// Whether the queue takes tasks at all.
    pub(super) fn check_intake(&self) -> Result<()> {
        let name = self.queue.name.to_string();
        if self.policy.mode == Mode::Closed {
            return Err(BrokerError::Closed(name));
        }
        if self.is_outbox_full() {
            return Err(BrokerError::OutboxFull(name));
        }
        Ok(())
    }

    /// Whether the outbox is at its bound.
    pub(super) fn is_outbox_full(&self) -> bool {
        let bound = self.policy.limits.outbox_entries;
        self.policy.events == EventRecording::On && self.queue.outbox.len() as u64 >= bound
    }

    /// Whether a payload is within the queue's bound.
    pub(super) fn check_payload(&self, payload: &Payload) -> Result<()> {
        let (bytes, most) = (payload.as_str().len(), self.policy.limits.payload_bytes);
        if bytes as u64 > most {
            return Err(BrokerError::Invalid(sentences::payload_too_large(bytes, most)));
        }
        Ok(())
    }

    fn wanted(&self, task: &NewTask) -> Result<Wanted> {
        let range = &self.policy.priority;
        let refuse = |sentence| Err(BrokerError::Invalid(sentence));
        let priority = task.priority.unwrap_or(range.default);
        if !(range.min..=range.max).contains(&priority) {
            return refuse(sentences::priority_out_of_range(task.priority, range.min, range.max));
        }
        self.check_payload(&task.payload)?;
        let key = match self.policy.idempotency.source {
            IdempotencySource::ContentHash => sentences::content_hash(task)?.to_string(),
            IdempotencySource::Key => task.idempotency_key.as_ref().map(ToString::to_string).unwrap_or_default(),
        };
        if key.is_empty() && self.policy.idempotency.requirement == IdempotencyRequirement::Required {
            return refuse(sentences::key_required());
        }
        let due_ms = match task.not_before {
            NotBefore::Now => self.now,
            NotBefore::After(wait) => self.after(wait),
            NotBefore::At(time) => u64::try_from(time.as_millisecond()).unwrap_or(0),
        };
        if due_ms > self.deadline_of(self.now) {
            return refuse(sentences::due_after_deadline(self.policy.retry.deadline.as_millis()));
        }
        Ok(Wanted { priority, due_ms, key })
    }

    fn enqueue_one(&mut self, task: &NewTask, wanted: Wanted) -> Enqueued {
        let tenant = task.tenant_id.as_ref().map(ToString::to_string).unwrap_or_default();
        let by_key = || self.queue.holder_of(&tenant, &wanted.key).filter(|_| !wanted.key.is_empty());
        let first = if self.queue.knows(&task.id) { Some(&task.id) } else { by_key() };
        if let Some(first) = first.cloned() {
            return Enqueued { state: self.state_of(&first), id: first, created: false };
        }
        let trace = task.trace_id.as_ref().map(ToString::to_string).unwrap_or_default();
        let named = Names { key: wanted.key, tenant, trace };
        let record = self.new_record(&task.task_type, wanted.priority, named, task.max_retries);
        let body = Body { payload: task.payload.as_str().to_owned(), extras: task.extras.clone() };
        let state = self.create(Birth { id: task.id.clone(), record, due_ms: wanted.due_ms, body });
        Enqueued { id: task.id.clone(), state, created: true }
    }

    /// The record of a task that nobody has claimed.
    pub(super) fn new_record(&self, kind: &TaskType, priority: u8, names: Names, max_retries: Option<u32>) -> Record {
        Record {
            state: State::Queued,
            epoch: 0,
            retries: 0,
            crashes: 0,
            releases: 0,
            created_ms: self.now,
            since_ms: self.now,
            kind: kind.clone(),
            priority,
            message: None,
            holder: String::new(),
            key: names.key,
            tenant: names.tenant,
            trace: names.trace,
            max_retries,
        }
    }

    /// The state of a task that is known.
    fn state_of(&self, id: &TaskId) -> State {
        let done = || self.queue.done.get(id).map(|finished| finished.state);
        let live = self.queue.live.get(id).map(|record| record.state);
        live.or_else(done).expect("invariant: the task is known")
    }
}

/// What a task is known by besides its id; empty where there is none.
#[derive(Default)]
pub(super) struct Names {
    pub(super) key: String,
    pub(super) tenant: String,
    pub(super) trace: String,
}

#[cfg(test)]
mod tests {
    use super::super::fixture::*;
    use crate::broker::{Broker, BrokerError, Outcome, Settled};
    use crate::protocol::names::{IdempotencyKey, TenantId};
    use crate::protocol::policy::{
        EventRecording, IdempotencyRequirement, IdempotencyScope, IdempotencySource, Mode, Policy,
    };
    use crate::protocol::state::State;
    use crate::protocol::task::{NewTask, NotBefore, Payload};
    use std::time::Duration;

    fn keyed(name: &str, key: &str) -> NewTask {
        NewTask { idempotency_key: Some(IdempotencyKey::new(key).expect("valid")), ..task(name) }
    }

    fn of_tenant(task: NewTask, tenant: &str) -> NewTask {
        NewTask { tenant_id: Some(TenantId::new(tenant).expect("valid")), ..task }
    }

    async fn refusal(rig: &Rig, tasks: &[NewTask]) -> String {
        rig.try_enqueue(tasks).await.expect_err("refused").to_string()
    }

    #[tokio::test]
    async fn a_task_is_ready_at_once_or_when_its_time_has_come() {
        let rig = Rig::new(Policy::default()).await;
        let later = NewTask { not_before: NotBefore::After(Duration::from_secs(5)), ..task("later") };
        let past =
            NewTask { not_before: NotBefore::At("1999-12-31T00:00:00Z".parse().expect("a time")), ..task("past") };
        let made = rig.try_enqueue(&[task("now"), later, past]).await.expect("taken");
        let states: Vec<_> = made.iter().map(|task| (task.state, task.created)).collect();
        assert_eq!(states, [(State::Queued, true), (State::Scheduled, true), (State::Queued, true)]);
        assert_eq!(rig.get("later").await.due_at, Some(super::super::record::time(START_MS + 5000)));
        let first = ["now new queued - -", "later new scheduled - -", "past new queued - -"];
        assert_eq!(rig.moves().await, [first], "one entry an operation");
    }

    #[tokio::test]
    async fn a_repeated_enqueue_is_the_same_task() {
        let rig = Rig::new(Policy::default()).await;
        rig.enqueue(task("a")).await;
        let lease = rig.claim_one("w").await;
        let again = rig.enqueue(task("a")).await;
        assert_eq!((again.state, again.created), (State::Running, false));
        rig.settle(&lease, success()).await;
        assert_eq!(rig.enqueue(task("a")).await.state, State::Succeeded);
        let batch = rig.try_enqueue(&[task("b"), task("b"), keyed("c", "k"), keyed("d", "k")]).await.expect("taken");
        assert_eq!(batch.iter().map(|task| task.created).collect::<Vec<_>>(), [true, false, true, false]);
        assert_eq!(batch[3].id, id("c"));
    }

    #[tokio::test]
    async fn a_key_stands_for_its_first_task_within_its_tenant() {
        let rig = Rig::new(Policy::default()).await;
        rig.enqueue(of_tenant(keyed("a", "k"), "t1")).await;
        assert_eq!(rig.enqueue(of_tenant(keyed("b", "k"), "t1")).await.id, id("a"));
        assert!(rig.enqueue(of_tenant(keyed("c", "k"), "t2")).await.created);
        assert!(rig.enqueue(keyed("d", "k")).await.created);
    }

    #[tokio::test]
    async fn a_key_is_released_as_the_scope_says() {
        let kept_after = [
            (IdempotencyScope::Live, [false, false]),
            (IdempotencyScope::LiveAndSucceeded, [true, false]),
            (IdempotencyScope::Retained, [true, true]),
        ];
        for (scope, [success_keeps, cancel_keeps]) in kept_after {
            let mut policy = Policy::default();
            policy.idempotency.scope = scope;
            let rig = Rig::new(policy).await;
            rig.enqueue(keyed("done", "k1")).await;
            let lease = rig.claim_one("w").await;
            assert_eq!(rig.settle(&lease, success()).await, Settled::Succeeded);
            rig.enqueue(keyed("cancelled", "k2")).await;
            rig.cancel("cancelled").await;
            assert_eq!(rig.enqueue(keyed("x", "k1")).await.created, !success_keeps, "{scope:?} after a success");
            assert_eq!(rig.enqueue(keyed("y", "k2")).await.created, !cancel_keeps, "{scope:?} after a cancel");
        }
    }

    #[tokio::test]
    async fn where_content_counts_keys_do_not() {
        let mut policy = Policy::default();
        policy.idempotency.source = IdempotencySource::ContentHash;
        policy.idempotency.requirement = IdempotencyRequirement::Required;
        let rig = Rig::new(policy).await;
        let text = |name: &str, json: &str| NewTask { payload: Payload::from_json(json).expect("JSON"), ..task(name) };
        rig.enqueue(text("a", r#"{"x":1,"y":2}"#)).await;
        assert_eq!(rig.enqueue(text("b", r#"{ "y": 2, "x": 1 }"#)).await.id, id("a"));
        assert!(rig.enqueue(text("c", "{}")).await.created);
        assert!(refusal(&rig, &[text("d", "1e999")]).await.contains("is not JSON"));
    }

    #[tokio::test]
    async fn one_bad_task_keeps_the_whole_batch_out() {
        let mut policy = Policy::default();
        policy.limits.payload_bytes = 20;
        policy.idempotency.requirement = IdempotencyRequirement::Required;
        let rig = Rig::new(policy).await;
        let good = || keyed("good", "k");
        let urgent = NewTask { priority: Some(11), ..keyed("bad", "l") };
        assert!(refusal(&rig, &[good(), urgent]).await.contains("use 1 to 10"));
        let large = NewTask { payload: serde_json::json!("x".repeat(30)).into(), ..keyed("bad", "l") };
        assert!(refusal(&rig, &[good(), large]).await.contains("32 bytes"));
        assert!(refusal(&rig, &[good(), task("bad")]).await.contains("requires an idempotency key"));
        let late = NewTask { not_before: NotBefore::After(Duration::MAX), ..keyed("bad", "l") };
        assert!(refusal(&rig, &[good(), late]).await.contains("after its deadline"));
        assert!(rig.model.get(&id("good")).await.expect("an answer").is_none());
        assert!(rig.moves().await.is_empty());
    }

    #[tokio::test]
    async fn lanes_are_bounded_and_those_that_exist_stay_open() {
        let mut policy = Policy::default();
        policy.limits.lanes = 2;
        let rig = Rig::new(policy.clone()).await;
        let of_type = |name: &str| NewTask { task_type: kind(name), ..task(name) };
        assert!(refusal(&rig, &[of_type("a"), of_type("b"), of_type("c")]).await.contains("2 lanes"));
        rig.try_enqueue(&[of_type("a"), of_type("b")]).await.expect("taken");
        assert!(refusal(&rig, &[of_type("c")]).await.contains("2 lanes"));
        assert!(rig.enqueue(NewTask { id: id("more"), ..of_type("a") }).await.created);
        policy.limits.lanes = 3;
        rig.provision(&policy).await;
        let lease = rig.claim_one("w").await;
        rig.settle(&lease, Outcome::Released { delay: Duration::ZERO }).await;
        assert!(rig.enqueue(of_type("c")).await.created, "what ran before takes nobody's place");
    }

    #[tokio::test]
    async fn a_closed_queue_or_a_full_outbox_takes_nothing() {
        let mut policy = Policy { mode: Mode::Closed, ..Policy::default() };
        let rig = Rig::new(policy.clone()).await;
        let closed = rig.try_enqueue(&[task("a")]).await.expect_err("closed");
        assert!(matches!(&closed, BrokerError::Closed(queue) if queue == "shop/emails"), "{closed}");
        policy.mode = Mode::Paused;
        policy.limits.outbox_entries = 1;
        rig.provision(&policy).await;
        rig.enqueue(task("a")).await;
        assert!(matches!(rig.try_enqueue(&[task("b")]).await, Err(BrokerError::OutboxFull(_))));
        policy.events = EventRecording::Off;
        rig.provision(&policy).await;
        rig.enqueue(task("b")).await;
        assert_eq!(rig.moves().await.len(), 1, "nothing is recorded any more");
    }
}
