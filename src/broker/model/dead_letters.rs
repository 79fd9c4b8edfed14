//! Dead letters: recorded, then replayed or given up.

use super::enqueue::Names;
use super::lane::Body;
use super::moves::{Birth, Ending};
use super::record::{Record, time};
use super::retention::LetterEntry;
use super::state::{Queue, Step};
use crate::broker::{
    BrokerError, DeadLetterView, Decision, DecisionAction, DiscardRequest, Discarded, ListCursor, Page,
    PendingDeadLetters, Recorded, ReplayRequest, Replayed, Result, Review, Voice, sentences,
};
use crate::protocol::names::{DeadLetterId, TaskId};
use crate::protocol::policy::IdempotencySource;
use crate::protocol::state::State;
use crate::protocol::task::{DeadLetter, Extras};

/// A dead letter that was recorded.
#[derive(Debug)]
pub(super) struct Letter {
    pub(super) shown: DeadLetter,
    /// The task's last record.
    record: Record,
    recorded_ms: u64,
    /// Its place among all dead letters.
    pub(super) number: u64,
}

/// How many bytes of payloads end a page of pending dead letters.
const PENDING_BYTES: usize = 1 << 20;

impl Queue {
    /// Dead tasks whose dead letter is to be recorded, oldest first.
    pub(super) fn pending_dead_letters(&self, after: Option<&TaskId>, limit: usize) -> PendingDeadLetters {
        let ids: Vec<_> = self.dlq_pending.iter().map(|(_, id)| id).collect();
        let place = after.and_then(|after| ids.iter().position(|id| *id == after));
        let (mut letters, mut bytes) = (Vec::new(), 0);
        for id in &ids[place.map_or(0, |place| place + 1)..] {
            if letters.len() == limit || bytes > PENDING_BYTES {
                return PendingDeadLetters { letters, more: true };
            }
            let letter = self.dead_letter_of(id);
            bytes += letter.payload.as_str().len();
            letters.push(letter);
        }
        PendingDeadLetters { letters, more: false }
    }

    /// A dead letter that was recorded.
    pub(super) fn dead_letter(&self, id: &DeadLetterId) -> Option<&DeadLetter> {
        self.letters.get(&id.task).map(|letter| &letter.shown).filter(|letter| letter.id == *id)
    }

    /// The same, with what was decided about it.
    pub(super) fn dead_letter_view(&self, id: &DeadLetterId) -> Option<DeadLetterView> {
        self.letters.get(&id.task).filter(|letter| letter.shown.id == *id).map(|letter| self.view_of(letter))
    }

    fn view_of(&self, letter: &Letter) -> DeadLetterView {
        let id = &letter.shown.id.task;
        let asked = || self.discards.get(id).cloned().map(Review::DiscardRequested);
        let review = self.reviewed.get(id).cloned().or_else(asked).unwrap_or(Review::Open);
        DeadLetterView { letter: letter.shown.clone(), recorded_at: time(letter.recorded_ms), review }
    }

    /// Recorded dead letters, the newest first.
    pub(super) fn dead_letters(&self, cursor: &ListCursor, limit: usize) -> Page<DeadLetterView> {
        let before: u64 = cursor.0.parse().unwrap_or(u64::MAX);
        let mut letters: Vec<_> = self.letters.values().filter(|letter| letter.number < before).collect();
        letters.sort_by_key(|letter| std::cmp::Reverse(letter.number));
        let next = letters.get(limit).and(letters.get(limit - 1)).map(|last| ListCursor(last.number.to_string()));
        Page { items: letters.into_iter().take(limit).map(|letter| self.view_of(letter)).collect(), next }
    }

    fn dead_letter_of(&self, id: &TaskId) -> DeadLetter {
        let record = self.live.get(id).expect("invariant: a dead task lives until it is recorded");
        let body = self.parked.get(id).expect("invariant: a dead task is parked");
        record.dead_letter(id, body, self.trails.get(id))
    }
}

impl Step<'_> {
    /// Writes a dead letter, then fails the task.
    pub(super) fn record_dead_letter(mut self, dead_letter: &DeadLetterId) -> Recorded {
        let id = &dead_letter.task;
        let Some(record) = self.queue.live.get(id).cloned() else { return self.recorded_before(id) };
        if record.state != State::DlqPending || record.epoch != dead_letter.epoch.0 {
            self.queue.invalid_transitions += 1;
            return Recorded::InvalidTransition;
        }
        let shown = self.queue.dead_letter_of(id);
        let ending = Ending {
            state: State::Failed,
            extras: shown.extras.clone(),
            result: None,
            error: shown.error.clone(),
            code: shown.error_code.clone(),
            dlq_id: Some(dead_letter.to_string()),
        };
        self.queue.dlq_pending.remove(id);
        self.queue.parked.remove(id);
        self.emit(id, Some(State::DlqPending), State::DlqRecorded, &record, &dead_letter.to_string());
        self.emit(id, Some(State::DlqRecorded), State::Failed, &record, &shown.error_code);
        let (number, recorded_ms) = (self.queue.next_number(), self.now);
        self.queue.dlq.insert(number, LetterEntry { task: id.clone(), recorded_ms });
        self.queue.letters.insert(id.clone(), Letter { shown, record: record.clone(), recorded_ms, number });
        self.queue.dead.insert(id.clone());
        // What was decided about an earlier task of this id says nothing about this one.
        self.queue.reviewed.remove(id);
        self.queue.discards.remove(id);
        self.finish(id, record, ending);
        self.end();
        Recorded::Done
    }

    fn recorded_before(self, id: &TaskId) -> Recorded {
        match self.queue.done.get(id).map(|finished| finished.state) {
            None => Recorded::Unknown,
            Some(State::Failed) => Recorded::AlreadyRecorded,
            Some(_) => {
                self.queue.invalid_transitions += 1;
                Recorded::InvalidTransition
            }
        }
    }

    /// Runs a dead letter again as a new task.
    pub(super) fn replay(mut self, request: &ReplayRequest) -> Result<Replayed> {
        let (id, new_id) = (&request.dead_letter.task, &request.new_id);
        let Some(letter) = self.queue.dead_letter(&request.dead_letter).cloned() else { return Ok(Replayed::Unknown) };
        match self.queue.reviewed.get(id).cloned() {
            Some(Review::Replayed { task, .. }) => return Ok(Replayed::AlreadyReplayed { task }),
            Some(_) => return Ok(Replayed::Discarded),
            None => {}
        }
        self.check_intake()?;
        let old = self.queue.letters.get(id).expect("invariant: it was just found").record.clone();
        let mut key = old.key;
        if let Some(corrected) = &request.payload {
            self.check_payload(corrected)?;
            if self.policy.idempotency.source == IdempotencySource::ContentHash {
                let hash = corrected.content_hash(&old.kind);
                key = hash.map_err(|error| BrokerError::Invalid(error.to_string()))?.to_string();
            }
        }
        if self.queue.knows(new_id) {
            return Ok(Replayed::IdTaken { id: new_id.clone() });
        }
        let holder = self.queue.holder_of(&old.tenant, &key).filter(|_| !key.is_empty());
        if let Some(by) = holder.filter(|holder| *holder != id).cloned() {
            return Ok(Replayed::KeyTaken { by });
        }
        let names = Names { key, tenant: old.tenant, trace: old.trace };
        let record = self.new_record(&old.kind, old.priority, names, old.max_retries);
        let payload = request.payload.as_ref().unwrap_or(&letter.payload).as_str().to_owned();
        let extras = Extras { replay_of: Some(request.dead_letter.to_string()), ..letter.extras };
        let due_ms = self.now;
        self.create(Birth { id: new_id.clone(), record, due_ms, body: Body { payload, extras } });
        self.announce();
        let by = self.voice(&request.person, request.reason.as_deref());
        self.decide(&request.dead_letter, DecisionAction::Replayed, &by, Some(new_id));
        self.queue.reviewed.insert(id.clone(), Review::Replayed { task: new_id.clone(), by });
        self.queue.dead.remove(id);
        self.queue.discards.remove(id);
        self.end();
        Ok(Replayed::Done { task: new_id.clone() })
    }

    /// Gives a dead letter up, once as many people agree as the policy asks for.
    pub(super) fn discard(mut self, request: &DiscardRequest) -> Discarded {
        let id = &request.dead_letter.task;
        match self.queue.reviewed.get(id).cloned() {
            Some(Review::Replayed { task, .. }) => return Discarded::AlreadyReplayed { task },
            Some(_) => return Discarded::AlreadyDiscarded,
            None => {}
        }
        if self.queue.dead_letter(&request.dead_letter).is_none() {
            return Discarded::Unknown;
        }
        let by = self.voice(&request.person, Some(&request.reason));
        if self.policy.discard_approvals > 1 {
            match self.queue.discards.get(id) {
                None => {
                    self.decide(&request.dead_letter, DecisionAction::DiscardRequested, &by, None);
                    self.queue.discards.insert(id.clone(), by);
                    self.end();
                    return Discarded::AwaitingSecond;
                }
                Some(first) if first.person == request.person => return Discarded::SamePerson,
                Some(_) => {}
            }
        }
        self.decide(&request.dead_letter, DecisionAction::Discarded, &by, None);
        self.queue.dead.remove(id);
        let requested = self.queue.discards.remove(id);
        self.queue.reviewed.insert(id.clone(), Review::Discarded { by, requested });
        self.end();
        Discarded::Done
    }

    fn voice(&self, person: &str, reason: Option<&str>) -> Voice {
        Voice { person: person.to_owned(), reason: sentences::kept_reason(reason), at: time(self.now) }
    }

    /// Tells the outbox who decided what.
    fn decide(&mut self, dead_letter: &DeadLetterId, action: DecisionAction, by: &Voice, new_task: Option<&TaskId>) {
        let Voice { person, reason, at } = by.clone();
        let (dead_letter, new_task) = (dead_letter.clone(), new_task.cloned());
        self.emit_decision(Decision { dead_letter, action, person, reason, new_task, at });
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::*;
    use crate::broker::{Broker, BrokerError, DiscardRequest, Discarded, Recorded, ReplayRequest, Replayed, Review};
    use crate::protocol::names::{DeadLetterId, IdempotencyKey, TenantId};
    use crate::protocol::policy::{IdempotencyScope, IdempotencySource, Mode, Policy};
    use crate::protocol::state::State;
    use crate::protocol::task::{NewTask, Payload};

    fn keyed(name: &str) -> NewTask {
        let idempotency_key = Some(IdempotencyKey::new("k").expect("valid"));
        let tenant_id = Some(TenantId::new("t").expect("valid"));
        NewTask { idempotency_key, tenant_id, priority: Some(7), max_retries: Some(2), ..task(name) }
    }

    async fn record(rig: &Rig, id: &DeadLetterId) -> Recorded {
        rig.model.record_dead_letter(id).await.expect("an answer")
    }

    async fn replay(rig: &Rig, dead_letter: &DeadLetterId, new: &str, payload: Option<Payload>) -> Replayed {
        let (person, reason) = ("ada".to_owned(), None);
        let request = ReplayRequest { dead_letter: dead_letter.clone(), new_id: id(new), payload, person, reason };
        rig.model.replay(&request).await.expect("an answer")
    }

    async fn discard(rig: &Rig, dead_letter: &DeadLetterId, person: &str) -> Discarded {
        let (person, reason) = (person.to_owned(), "obsolete".to_owned());
        let request = DiscardRequest { dead_letter: dead_letter.clone(), person, reason };
        rig.model.discard(&request).await.expect("an answer")
    }

    #[tokio::test]
    async fn a_dead_task_fails_only_when_its_letter_is_recorded() {
        let rig = Rig::new(Policy::default()).await;
        let dead = rig.dead(task("a")).await;
        let pending = rig.model.pending_dead_letters(9).await.expect("letters");
        assert_eq!((pending[0].error.as_str(), pending[0].error_code.as_str()), ("no such address", "bad_address"));
        assert_eq!((pending[0].history[0].outcome.as_str(), pending[0].history[0].worker.as_str()), ("permanent", "w"));
        assert_eq!(record(&rig, &letter("a#7")).await, Recorded::InvalidTransition);
        assert_eq!(record(&rig, &dead).await, Recorded::Done);
        assert_eq!(record(&rig, &dead).await, Recorded::AlreadyRecorded);
        assert_eq!(record(&rig, &letter("nobody#1")).await, Recorded::Unknown);
        let recorded = rig.model.dead_letter(&dead).await.expect("an answer").expect("it is recorded");
        assert_eq!((&recorded.letter, recorded.review), (&pending[0], Review::Open));
        let view = rig.get("a").await;
        assert_eq!(
            (view.state, view.dlq_id.as_deref(), view.payload),
            (State::Failed, Some("a#1"), Some(pending[0].payload.clone()))
        );
        let last = rig.moves().await.pop().expect("moves");
        assert_eq!(last, ["a dlq_pending dlq_recorded a#1 -", "a dlq_recorded failed bad_address -"]);
    }

    #[tokio::test]
    async fn a_replay_keeps_every_option_and_happens_once() {
        let rig = Rig::new(Policy::default()).await;
        let dead = rig.dead(keyed("a")).await;
        assert_eq!(replay(&rig, &dead, "b", None).await, Replayed::Unknown, "it is not recorded yet");
        record(&rig, &dead).await;
        assert_eq!(replay(&rig, &letter("a#9"), "b", None).await, Replayed::Unknown);
        assert_eq!(replay(&rig, &dead, "b", None).await, Replayed::Done { task: id("b") });
        assert_eq!(replay(&rig, &dead, "c", None).await, Replayed::AlreadyReplayed { task: id("b") });
        assert_eq!(discard(&rig, &dead, "ada").await, Discarded::AlreadyReplayed { task: id("b") });
        let (old, new) = (rig.get("a").await, rig.get("b").await);
        assert_eq!(old.replayed_as, Some(id("b")));
        assert_eq!(new.extras.replay_of.as_deref(), Some("a#1"));
        assert_eq!((new.payload, new.priority, new.max_retries), (old.payload, 7, Some(2)));
        assert_eq!((new.idempotency_key, new.tenant_id), (old.idempotency_key, old.tenant_id));
        assert_eq!((new.state, new.epoch.0, new.retry_count), (State::Queued, 0, 0));
    }

    #[tokio::test]
    async fn a_replay_may_correct_the_payload_but_not_take_a_key_from_a_live_task() {
        let rig = Rig::new(Policy::default()).await;
        let dead = rig.dead(keyed("a")).await;
        record(&rig, &dead).await;
        rig.enqueue(keyed("holder")).await;
        assert_eq!(replay(&rig, &dead, "b", None).await, Replayed::KeyTaken { by: id("holder") });
        rig.cancel("holder").await;
        let fixed = Payload::from_json("\"fixed\"").expect("JSON");
        assert_eq!(replay(&rig, &dead, "b", Some(fixed.clone())).await, Replayed::Done { task: id("b") });
        assert_eq!(rig.get("b").await.payload, Some(fixed));
    }

    #[tokio::test]
    async fn a_replay_is_refused_where_an_enqueue_would_be() {
        let mut policy = Policy::default();
        policy.limits.payload_bytes = 20;
        let rig = Rig::new(policy.clone()).await;
        let dead = rig.dead(task("a")).await;
        record(&rig, &dead).await;
        let request = |payload| ReplayRequest {
            dead_letter: dead.clone(),
            new_id: id("b"),
            payload,
            person: "ada".to_owned(),
            reason: None,
        };
        let long = Payload::from_json(format!("\"{}\"", "x".repeat(30))).expect("JSON");
        let refused = rig.model.replay(&request(Some(long))).await.expect_err("too large");
        assert!(refused.to_string().contains("32 bytes"), "{refused}");
        policy.limits.outbox_entries = 1;
        rig.provision(&policy).await;
        assert!(matches!(rig.model.replay(&request(None)).await, Err(BrokerError::OutboxFull(_))));
        policy.mode = Mode::Closed;
        rig.provision(&policy).await;
        assert!(matches!(rig.model.replay(&request(None)).await, Err(BrokerError::Closed(_))));
        assert_eq!(rig.model.counts().await.expect("counts").dead_lettered, 1);
    }

    #[tokio::test]
    async fn a_replay_takes_no_id_that_is_known() {
        let rig = Rig::new(Policy::default()).await;
        let dead = rig.dead(task("a")).await;
        record(&rig, &dead).await;
        rig.enqueue(task("known")).await;
        for name in ["known", "a"] {
            assert_eq!(replay(&rig, &dead, name, None).await, Replayed::IdTaken { id: id(name) });
        }
        assert_eq!(replay(&rig, &dead, "b", None).await, Replayed::Done { task: id("b") });
        assert_eq!(replay(&rig, &dead, "b", None).await, Replayed::AlreadyReplayed { task: id("b") });
    }

    #[tokio::test]
    async fn where_content_counts_a_corrected_payload_has_a_key_of_its_own() {
        let mut policy = Policy::default();
        policy.idempotency.source = IdempotencySource::ContentHash;
        let rig = Rig::new(policy).await;
        let with = |name: &str, json: &str| NewTask { payload: Payload::from_json(json).expect("JSON"), ..task(name) };
        let dead = rig.dead(with("a", "1")).await;
        record(&rig, &dead).await;
        rig.enqueue(with("twin", "2")).await;
        let corrected = |json: &str| Some(Payload::from_json(json).expect("JSON"));
        assert_eq!(replay(&rig, &dead, "b", corrected("2")).await, Replayed::KeyTaken { by: id("twin") });
        assert_eq!(replay(&rig, &dead, "b", corrected("3")).await, Replayed::Done { task: id("b") });
        assert_eq!(rig.enqueue(with("c", "3")).await.id, id("b"));
        assert!(rig.enqueue(with("d", "1")).await.created);
    }

    #[tokio::test]
    async fn a_dead_letter_that_keeps_its_key_can_be_replayed_all_the_same() {
        let mut policy = Policy::default();
        policy.idempotency.scope = IdempotencyScope::Retained;
        let rig = Rig::new(policy).await;
        let dead = rig.dead(keyed("a")).await;
        record(&rig, &dead).await;
        assert!(!rig.enqueue(keyed("x")).await.created);
        assert_eq!(replay(&rig, &dead, "b", None).await, Replayed::Done { task: id("b") });
        assert_eq!(rig.enqueue(keyed("x")).await.id, id("b"), "the key stands for the new task");
    }

    #[tokio::test]
    async fn a_discard_may_need_two_different_people() {
        let rig = Rig::new(Policy { discard_approvals: 2, ..Policy::default() }).await;
        let dead = rig.dead(task("a")).await;
        assert_eq!(discard(&rig, &dead, "ada").await, Discarded::Unknown);
        record(&rig, &dead).await;
        assert_eq!(discard(&rig, &dead, "ada").await, Discarded::AwaitingSecond);
        assert_eq!(discard(&rig, &dead, "ada").await, Discarded::SamePerson);
        assert_eq!(rig.model.counts().await.expect("counts").dead_lettered, 1);
        assert_eq!(discard(&rig, &dead, "bob").await, Discarded::Done);
        assert_eq!(discard(&rig, &dead, "bob").await, Discarded::AlreadyDiscarded);
        assert_eq!(replay(&rig, &dead, "b", None).await, Replayed::Discarded);
        assert_eq!(rig.model.counts().await.expect("counts").dead_lettered, 0);
        assert!(rig.model.dead_letter(&dead).await.expect("an answer").is_some(), "it can still be read");
    }
}
