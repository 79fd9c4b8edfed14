//! The whole queue as one value, and one operation on it under way.
//!
//! [`Queue`] holds what the keys of one queue hold in Redis; [`Step`] holds
//! what a script keeps in local variables until it ends. The operations are
//! methods of `Step`, spread over the files beside this one by concern.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use super::dead_letters::Letter;
use super::effects::Effect;
use super::intake::RawEntry;
use super::lane::{Body, Entry, History, Lane, LaneName, Message};
use super::record::{Finished, Record, Trail};
use super::retention::{LetterEntry, ResultEntry};
use super::time_set::TimeSet;
use crate::broker::{
    BrokerError, Decision, EffectEvent, Event, OutboxEntry, Owner, Result, Review, Takeover, Voice, WorkerInfo,
};
use crate::protocol::names::{Capabilities, QueueName, TaskId, TaskType, WorkerId};
use crate::protocol::policy::{EventRecording, Mode, Policy};
use crate::protocol::state::State;
use crate::protocol::task::Payload;

/// The class of workers that can do every type.
pub(super) const ALL: &str = "all";

/// Above any time in milliseconds, as in `part/lanes.lua`.
const RAN_BEFORE: u64 = 1 << 42;

/// Work that has become ready, or was found to be gone.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Bell {
    /// Wakes one sleeper of this class.
    Ring(String),
    /// What was rung for this class so far was for work that is gone.
    Hush(String),
    /// A raw entry wakes one sleeper of any class.
    Raw,
}

/// When a class that was marked is rung for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ring {
    /// If there is work for it.
    IfReady,
    /// In any case: work for it may not have been made ready yet.
    Always,
}

/// A worker in the registry.
#[derive(Debug)]
pub(super) struct Worker {
    /// Pod and container; empty where they are not known.
    pub(super) place: String,
    pub(super) info: WorkerInfo,
    pub(super) started_ms: u64,
}

/// Everything about one queue.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) name: QueueName,
    pub(super) policy: Option<Arc<Policy>>,
    pub(super) owner: Option<String>,
    pub(super) live: BTreeMap<TaskId, Record>,
    /// Of live tasks that are in no lane.
    pub(super) parked: HashMap<TaskId, Body>,
    pub(super) delayed: TimeSet<TaskId>,
    pub(super) retrying: TimeSet<TaskId>,
    pub(super) dlq_pending: TimeSet<TaskId>,
    /// Every lane that was used since a sweep found it empty.
    pub(super) lanes: BTreeMap<LaneName, Lane>,
    /// Lanes that hold work that nobody has read, by score.
    ///
    /// A class's own index in Redis needs no twin here: it is made from this
    /// one with its scores, and every addition, removal and new score that
    /// this one gets, that one gets in the same step.
    pub(super) ready: BTreeMap<LaneName, u64>,
    /// Classes of workers, other than all, that have asked for work.
    pub(super) classes: BTreeMap<String, Capabilities>,
    pub(super) trails: HashMap<TaskId, Trail>,
    /// How far live tasks have come, where their handlers told.
    pub(super) progress: HashMap<TaskId, Payload>,
    /// Outside effects, by tenant and key.
    pub(super) effects: HashMap<(String, String), Effect>,
    pub(super) done: BTreeMap<TaskId, Finished>,
    /// Tenant and key to the task that they stand for.
    pub(super) keys: HashMap<(String, String), TaskId>,
    /// Ids that raw producers sent for work that was known under another.
    pub(super) aliases: HashMap<TaskId, TaskId>,
    /// Of live tasks, the other ids whose producers wait for their result.
    pub(super) awaited: HashMap<TaskId, Vec<TaskId>>,
    /// The result stream: by number, what was told.
    pub(super) results: BTreeMap<u64, ResultEntry>,
    /// The stream of dead letters.
    pub(super) dlq: BTreeMap<u64, LetterEntry>,
    /// Recorded dead letters.
    pub(super) letters: HashMap<TaskId, Letter>,
    /// Dead letters that nobody has decided on.
    pub(super) dead: BTreeSet<TaskId>,
    pub(super) reviewed: HashMap<TaskId, Review>,
    /// Who asked first for a discard that needs two.
    pub(super) discards: HashMap<TaskId, Voice>,
    pub(super) raw: VecDeque<RawEntry>,
    pub(super) workers: BTreeMap<WorkerId, Worker>,
    /// Workers that get no more tasks, and since when.
    pub(super) fenced: HashMap<WorkerId, u64>,
    pub(super) heartbeats: TimeSet<WorkerId>,
    pub(super) places: HashMap<String, WorkerId>,
    pub(super) outbox: VecDeque<OutboxEntry>,
    pub(super) invalid_transitions: u64,
    /// Bells that wait to be rung, in their order.
    pub(super) bells: Vec<Bell>,
    /// The last number given to an entry of any kind.
    last_number: u64,
}

impl Queue {
    /// A queue that is not provisioned.
    pub(super) fn new(name: QueueName) -> Self {
        Self {
            name,
            policy: None,
            owner: None,
            live: BTreeMap::new(),
            parked: HashMap::new(),
            delayed: TimeSet::default(),
            retrying: TimeSet::default(),
            dlq_pending: TimeSet::default(),
            lanes: BTreeMap::new(),
            ready: BTreeMap::new(),
            classes: BTreeMap::new(),
            trails: HashMap::new(),
            progress: HashMap::new(),
            effects: HashMap::new(),
            done: BTreeMap::new(),
            keys: HashMap::new(),
            aliases: HashMap::new(),
            awaited: HashMap::new(),
            results: BTreeMap::new(),
            dlq: BTreeMap::new(),
            letters: HashMap::new(),
            dead: BTreeSet::new(),
            reviewed: HashMap::new(),
            discards: HashMap::new(),
            raw: VecDeque::new(),
            workers: BTreeMap::new(),
            fenced: HashMap::new(),
            heartbeats: TimeSet::default(),
            places: HashMap::new(),
            outbox: VecDeque::new(),
            invalid_transitions: 0,
            bells: Vec::new(),
            last_number: 0,
        }
    }

    /// The policy in force.
    pub(super) fn policy(&self) -> Result<&Arc<Policy>> {
        self.policy.as_ref().ok_or_else(|| BrokerError::NoQueue(self.name.to_string()))
    }

    /// Begins an operation.
    pub(super) fn step(&mut self, now: u64) -> Result<Step<'_>> {
        let policy = self.policy()?.clone();
        Ok(Step {
            queue: self,
            policy,
            now,
            touched: BTreeSet::new(),
            rings: BTreeMap::new(),
            moves: Vec::new(),
            decisions: Vec::new(),
            effects: Vec::new(),
        })
    }

    /// Whether a task of this id lives or has ended.
    pub(super) fn knows(&self, id: &TaskId) -> bool {
        self.live.contains_key(id) || self.done.contains_key(id)
    }

    /// The task that a key stands for, if that task is still known.
    pub(super) fn holder_of(&self, tenant: &str, key: &str) -> Option<&TaskId> {
        let holder = self.keys.get(&(tenant.to_owned(), key.to_owned()));
        holder.filter(|id| self.knows(id))
    }

    /// The lane of a task that is in one.
    pub(super) fn lane_mut(&mut self, name: &LaneName) -> &mut Lane {
        self.lanes.get_mut(name).expect("invariant: a lane that holds a task exists")
    }

    pub(super) fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// Makes the queue if it is not there, and puts its policy in force.
    pub(super) fn provision(&mut self, owner: &Owner, policy: &Policy) -> Result<()> {
        let may_take = |from: &String| match &owner.takeover {
            Takeover::Respect => false,
            Takeover::From(named) => named == from,
            Takeover::Force => true,
        };
        if let Some(other) = self.owner.as_ref().filter(|known| **known != owner.name)
            && !may_take(other)
        {
            return Err(BrokerError::Owned { queue: self.name.to_string(), owner: other.clone() });
        }
        self.owner = Some(owner.name.clone());
        self.policy = Some(Arc::new(policy.clone()));
        for (lane, score) in &mut self.ready {
            *score = u64::from(policy.priority.rank(lane.priority)) * 2 * RAN_BEFORE + *score % (2 * RAN_BEFORE);
        }
        if policy.mode == Mode::Running {
            let classes = self.classes.keys().map(String::as_str).chain([ALL]);
            self.bells.extend(classes.map(|class| Bell::Ring(class.to_owned())));
        }
        Ok(())
    }

    /// Since when the first task of a lane is ready that nobody has read.
    pub(super) fn head_since(&self, lane: &LaneName) -> Option<u64> {
        let head = self.lanes.get(lane)?.first_unread()?;
        self.live.get(&head.task).map(|record| record.since_ms)
    }

    /// Since when the oldest ready task waits.
    pub(super) fn oldest_ready(&self) -> Option<u64> {
        self.ready.keys().filter_map(|lane| self.head_since(lane)).min()
    }

    /// The oldest entries of the outbox.
    pub(super) fn outbox(&self, limit: usize) -> Vec<OutboxEntry> {
        self.outbox.iter().take(limit).cloned().collect()
    }

    /// Forgets these outbox entries.
    pub(super) fn trim_outbox(&mut self, read: &[OutboxEntry]) {
        let read: HashSet<&str> = read.iter().map(|entry| entry.id.as_str()).collect();
        self.outbox.retain(|entry| !read.contains(entry.id.as_str()));
    }
}

/// One operation under way.
pub(super) struct Step<'q> {
    pub(super) queue: &'q mut Queue,
    pub(super) policy: Arc<Policy>,
    pub(super) now: u64,
    /// Lanes that were pushed to and are not among the ready ones yet.
    touched: BTreeSet<LaneName>,
    /// Classes to be rung for when the step ends.
    pub(super) rings: BTreeMap<String, Ring>,
    moves: Vec<Event>,
    decisions: Vec<Decision>,
    effects: Vec<EffectEvent>,
}

impl Step<'_> {
    /// Records a move, to be written with the others of this step.
    pub(super) fn emit(&mut self, id: &TaskId, from: Option<State>, to: State, record: &Record, detail: &str) {
        self.moves.push(record.event(id, from, to, self.now, detail));
    }

    /// The same for a task that may have run before: the move names who gave it up.
    pub(super) fn emit_after(&mut self, id: &TaskId, before: &Record, record: &Record, detail: &str) {
        let event = record.event(id, Some(before.state), record.state, self.now, detail);
        self.moves.push(Event { consumer: before.worker(), ..event });
    }

    /// Records what a person decided, to be written with the moves of this step.
    pub(super) fn emit_decision(&mut self, decision: Decision) {
        self.decisions.push(decision);
    }

    /// Records that an outside effect happened.
    pub(super) fn emit_effect(&mut self, effect: EffectEvent) {
        self.effects.push(effect);
    }

    /// Appends a task to its lane and returns the message.
    pub(super) fn push(&mut self, id: &TaskId, record: &Record, body: Body) -> Message {
        let name = record.lane();
        let message = self.queue.next_number();
        let lane = self.queue.lanes.entry(name.clone()).or_default();
        lane.add(message, Entry { task: id.clone(), body });
        self.touched.insert(name);
        message
    }

    /// Puts every lane that was pushed to among the ready ones. A lane that is
    /// there keeps its score.
    pub(super) fn announce(&mut self) {
        for lane in std::mem::take(&mut self.touched) {
            if self.queue.ready.contains_key(&lane) {
                continue;
            }
            self.ring_if_ready(ALL);
            let covering = self.queue.classes.iter().filter(|(_, types)| types.cover(&lane.kind));
            for class in covering.map(|(class, _)| class.clone()).collect::<Vec<_>>() {
                self.ring_if_ready(&class);
            }
            let score = self.score(&lane, self.now);
            self.queue.ready.insert(lane, score);
        }
    }

    /// Marks a class to be rung for, if it has work when the step ends.
    pub(super) fn ring_if_ready(&mut self, class: &str) {
        self.rings.entry(class.to_owned()).or_insert(Ring::IfReady);
    }

    /// Where a lane stands among the ready ones: by priority, then what ran
    /// before, then the time since its head is ready.
    pub(super) fn score(&self, lane: &LaneName, since_ms: u64) -> u64 {
        let rank = u64::from(self.policy.priority.rank(lane.priority));
        let history = if lane.history == History::RanBefore { 0 } else { RAN_BEFORE };
        rank * 2 * RAN_BEFORE + history + since_ms
    }

    /// The lane that a class of workers is served from next.
    pub(super) fn first_ready(&self, capabilities: &Capabilities) -> Option<LaneName> {
        let covered = self.queue.ready.iter().filter(|(lane, _)| capabilities.cover(&lane.kind));
        covered.min_by_key(|(lane, score)| (**score, *lane)).map(|(lane, _)| lane.clone())
    }

    /// Makes a class of workers known.
    pub(super) fn add_class(&mut self, capabilities: &Capabilities) {
        let class = capabilities.class();
        if class != ALL {
            self.queue.classes.entry(class).or_insert_with(|| capabilities.clone());
        }
    }

    /// Whether tasks of this type and priority have no lane yet.
    pub(super) fn is_new_lane(&self, kind: &TaskType, priority: u8) -> bool {
        !self.queue.lanes.contains_key(&LaneName::new(kind, priority, History::New))
    }

    /// How many lanes count towards the bound. One of what has run before costs nobody a place.
    pub(super) fn lanes_counted(&self) -> usize {
        self.queue.lanes.keys().filter(|lane| lane.history == History::New).count()
    }

    /// So long after now, as policies and callers give it.
    pub(super) fn after(&self, wait: std::time::Duration) -> u64 {
        self.now.saturating_add(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX))
    }

    /// When a task that was created then must have had its last attempt.
    pub(super) fn deadline_of(&self, created_ms: u64) -> u64 {
        created_ms.saturating_add(self.policy.retry.deadline.as_millis() as u64)
    }

    /// Ends the step: its moves become one entry of the outbox, and one sleeper
    /// is woken for each class that was marked and still has work, or may have.
    pub(super) fn end(self) {
        let entry = OutboxEntry {
            events: self.moves,
            decisions: self.decisions,
            effects: self.effects,
            ..OutboxEntry::default()
        };
        if entry != OutboxEntry::default() && self.policy.events == EventRecording::On {
            let id = format!("{}-0", self.queue.next_number());
            self.queue.outbox.push_back(OutboxEntry { id, ..entry });
        }
        if self.policy.mode != Mode::Running {
            return;
        }
        for (class, ring) in self.rings {
            let (queue, any) = (&mut *self.queue, Capabilities::any());
            let capabilities = if class == ALL { Some(&any) } else { queue.classes.get(&class) };
            let ready = || capabilities.is_some_and(|types| queue.ready.keys().any(|lane| types.cover(&lane.kind)));
            if ring == Ring::Always || ready() {
                queue.bells.push(Bell::Ring(class));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::*;
    use crate::broker::{Broker, BrokerError, Owner, Takeover};
    use crate::protocol::policy::Policy;

    #[tokio::test]
    async fn a_queue_exists_once_it_is_provisioned_and_keeps_its_owner() {
        let clock = crate::broker::clock::Clock::manual(START_MS);
        let model = super::super::Model::new("shop/emails".parse().expect("valid"), clock);
        assert!(matches!(model.policy().await, Err(BrokerError::NoQueue(queue)) if queue == "shop/emails"));
        let owner = |name: &str, takeover| Owner { name: name.to_owned(), takeover };
        let policy = Policy::default();
        model.provision(&owner("a", Takeover::Respect), &policy).await.expect("made");
        let refused = model.provision(&owner("b", Takeover::Respect), &policy).await;
        assert!(matches!(refused, Err(BrokerError::Owned { owner, .. }) if owner == "a"));
        let refused = model.provision(&owner("b", Takeover::From("c".to_owned())), &policy).await;
        assert!(matches!(refused, Err(BrokerError::Owned { owner, .. }) if owner == "a"), "it is not c's");
        model.provision(&owner("c", Takeover::From("a".to_owned())), &policy).await.expect("taken from a");
        model.provision(&owner("b", Takeover::Force), &policy).await.expect("taken over");
        let contradiction = Policy { discard_approvals: 3, ..policy.clone() };
        let refused = model.provision(&owner("b", Takeover::Respect), &contradiction).await;
        assert!(matches!(refused, Err(BrokerError::Invalid(_))));
        assert_eq!(model.policy().await.expect("in force"), policy);
    }

    #[tokio::test]
    async fn those_entries_of_the_outbox_are_forgotten_that_were_read() {
        let rig = Rig::new(Policy::default()).await;
        for name in ["a", "b", "c"] {
            rig.enqueue(task(name)).await;
        }
        let entries = rig.model.outbox(2).await.expect("entries");
        rig.model.trim_outbox(&entries[1..]).await.expect("trimmed");
        assert_eq!(rig.moves().await, [["a new queued - -"], ["c new queued - -"]]);
    }
}
