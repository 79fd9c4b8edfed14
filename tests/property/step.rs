//! One step of a sequence: an operation with all its arguments, or time that passes.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use windlass::broker::{DiscardRequest, Outcome, Owner, ReplayRequest, WorkerInfo};
use windlass::protocol::backoff::Dice;
use windlass::protocol::names::{Capabilities, DeadLetterId, Epoch, IdempotencyKey, WorkerId};
use windlass::protocol::policy::Policy;
use windlass::protocol::state::RetryReason;
use windlass::{NewTask, TaskId};

use super::draw::{Draw, Field, task_id};
use super::known::{Held, Known};

#[derive(Debug)]
pub(crate) enum Step {
    Provision(Owner, Box<Policy>),
    Enqueue(Vec<NewTask>),
    Raw(Vec<Vec<Field>>),
    Claim(Claiming),
    Settle(Vec<Ending>, Claiming),
    Extend(WorkerId, Vec<Arc<Held>>),
    Progress(Arc<Held>, usize),
    Effect(Arc<Held>, IdempotencyKey, Acting),
    Promote(usize),
    Reclaim(Walk),
    ReclaimFrom(WorkerId, RetryReason),
    Cancel(TaskId),
    Record(DeadLetterId),
    Replay(ReplayRequest),
    Discard(DiscardRequest),
    /// So many entries a call, and on from where the walk stands or from the beginning.
    Retain(usize, Walk, From),
    Sweep,
    Register(WorkerInfo),
    Deregister(WorkerId),
    TrimOutbox(usize),
    Wait(Duration),
}

/// A claim, or the claim at the end of a settle.
#[derive(Debug)]
pub(crate) struct Claiming {
    pub(crate) worker: WorkerId,
    pub(crate) capabilities: Capabilities,
    pub(crate) limit: usize,
    /// What the worker says it holds, after an answer was lost.
    pub(crate) recover: Option<Vec<Arc<Held>>>,
}

#[derive(Debug)]
pub(crate) struct Ending {
    pub(crate) held: Arc<Held>,
    pub(crate) outcome: Outcome,
    pub(crate) dice: Dice,
}

/// What an attempt does about an outside effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Acting {
    Begin(Right),
    Commit(Right, usize),
    Abandon,
}

/// With what right, as the sequence knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Right {
    Own,
    /// Its own, and the call stands for the last one, whose answer was lost.
    Repeated,
    /// By the last doubt that was met, if there is one.
    Checked,
}

/// How far a walk through expired leases goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Walk {
    /// One call.
    OneCall,
    /// To the end.
    WholeRound,
}

/// Where a walk through results begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum From {
    /// Where the last call ended.
    LastCall,
    /// At the beginning, as a new leader does.
    Beginning,
}

/// What a step may come back to, and how much it does at once.
pub(crate) struct Situation<'a> {
    pub(crate) known: &'a Known,
    /// The number of the step, which makes new names.
    pub(crate) number: usize,
    pub(crate) now_ms: u64,
    pub(crate) bulk: usize,
}

impl Step {
    /// Any step; the first one mostly makes the queue.
    pub(crate) fn draw(draw: &mut Draw, at: &Situation<'_>) -> Self {
        let known = at.known;
        if at.number == 0 && !draw.one_in(20) {
            return Self::Provision(draw.owner(), Box::new(draw.policy()));
        }
        if !known.pending.is_empty() && draw.one_in(6) {
            return at.record(draw);
        }
        if !known.letters.is_empty() && draw.one_in(5) {
            return if draw.one_in(2) { Self::Replay(at.replay(draw)) } else { Self::Discard(at.discard(draw)) };
        }
        // An effect takes several steps: begun, ended, asked for again.
        if known.mark.is_some() && !known.held.is_empty() && draw.one_in(5) {
            return at.act(draw);
        }
        match draw.below(100) {
            0..16 => Self::Enqueue(at.new_tasks(draw)),
            16..22 => Self::Raw(at.raw_entries(draw)),
            22..36 => Self::Claim(at.claiming(draw)),
            36..54 if !known.held.is_empty() => Self::Settle(at.endings(draw), at.claiming(draw)),
            54..56 if !known.held.is_empty() => at.extend(draw),
            56..60 if !known.held.is_empty() => at.act(draw),
            60..63 => Self::Promote(draw.below(5 * at.bulk)),
            63..69 if !known.held.is_empty() => {
                Self::Reclaim(if draw.one_in(2) { Walk::OneCall } else { Walk::WholeRound })
            }
            69..71 if !known.held.is_empty() => {
                let reasons = [RetryReason::PodGone, RetryReason::PodForceDeleted, RetryReason::WorkerLost];
                Self::ReclaimFrom(draw.worker(), *draw.pick(&reasons).expect("there are some"))
            }
            71..75 if !known.ids().is_empty() => Self::Cancel(at.some_id(draw)),
            75..76 => at.record(draw),
            76..78 => Self::Sweep,
            78..82 => Self::Register(draw.worker_info()),
            82..84 => Self::Deregister(draw.worker()),
            84..86 => Self::Provision(draw.owner(), Box::new(draw.policy())),
            86..87 => Self::TrimOutbox(draw.between(1..=10)),
            87..94 => Self::Wait(draw.wait()),
            94..98 => at.retain(draw),
            _ if draw.one_in(3) => Self::Enqueue(at.new_tasks(draw)),
            _ => Self::Claim(at.claiming(draw)),
        }
    }
}

impl Situation<'_> {
    fn some_id(&self, draw: &mut Draw) -> TaskId {
        let known = if draw.one_in(10) { None } else { draw.pick(self.known.ids()).cloned() };
        known.unwrap_or_else(|| task_id("nobody"))
    }

    fn new_tasks(&self, draw: &mut Draw) -> Vec<NewTask> {
        let count = draw.between(1..=3) * self.bulk;
        let task = |n| {
            let known = if draw.one_in(12) { draw.pick(self.known.ids()).cloned() } else { None };
            let id = known.unwrap_or_else(|| task_id(&format!("t{}-{n}", self.number)));
            draw.new_task(id, self.now_ms, 6 * self.bulk)
        };
        let mut tasks: Vec<_> = (0..count).map(task).collect();
        if draw.one_in(10) {
            draw.spoil(&mut tasks[0]);
        }
        if draw.one_in(10) {
            tasks.push(tasks[0].clone());
        }
        tasks
    }

    fn raw_entries(&self, draw: &mut Draw) -> Vec<Vec<Field>> {
        let count = draw.between(1..=2) * self.bulk;
        (0..count).map(|n| draw.raw_entry(&format!("r{}-{n}", self.number))).collect()
    }

    fn claiming(&self, draw: &mut Draw) -> Claiming {
        let limit = if draw.one_in(8) { 0 } else { draw.between(1..=4) * self.bulk };
        let worker = draw.worker();
        let recover = draw.one_in(10).then(|| self.some_open(draw, &worker));
        Claiming { worker, capabilities: draw.capabilities(), limit, recover }
    }

    /// Some of what a worker holds; now and then of what others hold.
    fn some_open(&self, draw: &mut Draw, worker: &WorkerId) -> Vec<Arc<Held>> {
        let foreign = draw.one_in(5);
        let counts = |held: &&Arc<Held>| (foreign || held.worker == *worker) && !draw.one_in(3);
        self.known.open.iter().filter(counts).cloned().collect()
    }

    /// Ends of attempts; now and then of one that has ended before.
    fn endings(&self, draw: &mut Draw) -> Vec<Ending> {
        let Known { held, open, .. } = self.known;
        let count = draw.between(1..=3) * self.bulk.div_ceil(2);
        let ending = |_| {
            let from = if open.is_empty() || draw.one_in(5) { held } else { open };
            let held = draw.pick(from).expect("there are claims").clone();
            Ending { held, outcome: draw.outcome(self.bulk), dice: draw.dice() }
        };
        (0..count).map(ending).collect()
    }

    fn extend(&self, draw: &mut Draw) -> Step {
        let worker = self.known.open.last().map_or_else(|| draw.worker(), |held| held.worker.clone());
        let held = self.some_open(draw, &worker);
        Step::Extend(worker, held)
    }

    /// Something that an attempt does while it runs, or believes that it does.
    fn act(&self, draw: &mut Draw) -> Step {
        let Known { held, open, .. } = self.known;
        let from = if open.is_empty() || draw.one_in(5) { held } else { open };
        // Often the same one again: an effect takes several steps.
        let last = from.last().filter(|_| draw.one_in(2));
        let held = last.or_else(|| draw.pick(from)).expect("there are claims").clone();
        if draw.one_in(4) {
            let bytes = if draw.one_in(9) { 5000 } else { draw.below(20) };
            return Step::Progress(held, bytes);
        }
        let key = (*draw.pick(&["charge", "charge", "charge", "mail"]).expect("there are some"))
            .parse()
            .expect("a valid key");
        let right = match draw.below(5) {
            0..3 => Right::Own,
            3 => Right::Repeated,
            _ => Right::Checked,
        };
        let acting = match draw.below(10) {
            0..5 => Acting::Begin(right),
            5..9 => Acting::Commit(right, if draw.one_in(9) { 300 } else { draw.below(9) }),
            _ => Acting::Abandon,
        };
        Step::Effect(held, key, acting)
    }

    fn record(&self, draw: &mut Draw) -> Step {
        let pending = if draw.one_in(5) { None } else { self.known.pending.first().cloned() };
        let guess = |draw: &mut Draw| DeadLetterId { task: self.some_id(draw), epoch: Epoch(draw.below(3) as u64) };
        Step::Record(pending.unwrap_or_else(|| guess(draw)))
    }

    fn retain(&self, draw: &mut Draw) -> Step {
        let limit = if draw.one_in(2) { 100 } else { draw.between(1..=4 * self.bulk) };
        let walk = if draw.one_in(2) { Walk::OneCall } else { Walk::WholeRound };
        Step::Retain(limit, walk, if draw.one_in(4) { From::Beginning } else { From::LastCall })
    }

    fn some_letter(&self, draw: &mut Draw) -> DeadLetterId {
        let mut letter = draw.pick(&self.known.letters).expect("there are letters").clone();
        letter.epoch.0 += u64::from(draw.one_in(10));
        letter
    }

    fn replay(&self, draw: &mut Draw) -> ReplayRequest {
        let dead_letter = self.some_letter(draw);
        let fresh = task_id(&format!("p{}", self.number));
        let new_id = if draw.one_in(6) { self.some_id(draw) } else { fresh };
        let payload = match draw.below(10) {
            0..5 => None,
            5 => Some(json!("x".repeat(300)).into()),
            _ => Some(json!({ "n": draw.below(6) }).into()),
        };
        let person = (*draw.pick(&["ada", "ada", "ada", "bob", ""]).expect("there are some")).to_owned();
        let reason = draw.pick(&[None, Some("fixed"), Some(" ")]).copied().flatten().map(str::to_owned);
        ReplayRequest { dead_letter, new_id, payload, person, reason }
    }

    fn discard(&self, draw: &mut Draw) -> DiscardRequest {
        let reason = if draw.one_in(9) { "" } else { "obsolete" };
        let person = if draw.one_in(2) { "ada" } else { "bob" };
        DiscardRequest { dead_letter: self.some_letter(draw), person: person.to_owned(), reason: reason.to_owned() }
    }
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{} of {}", self.model.task, self.model.epoch, self.worker)
    }
}

impl fmt::Display for Claiming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "claim {} for {} ({})", self.limit, self.worker, self.capabilities.class())?;
        match &self.recover {
            Some(held) => write!(f, " which lost an answer and holds [{}]", joined(held)),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Enqueue(tasks) => {
                write!(f, "enqueue {}:", tasks.len())?;
                tasks.iter().try_for_each(|task| {
                    let NewTask { id, task_type, payload, .. } = task;
                    let plain = NewTask { id: id.clone(), ..NewTask::new(task_type.clone(), payload.clone()) };
                    write!(f, " [{id} {task_type} {}{}]", payload.as_str(), unusual(task, &plain))
                })
            }
            Self::Raw(entries) => {
                write!(f, "raw {}:", entries.len())?;
                entries.iter().try_for_each(|entry| {
                    let field = |(name, value): &Field| format!("{name}={:?}", String::from_utf8_lossy(value));
                    write!(f, " [{}]", entry.iter().map(field).collect::<Vec<_>>().join(" "))
                })
            }
            Self::Claim(claiming) => write!(f, "{claiming}"),
            Self::Settle(endings, claiming) => {
                write!(f, "settle {}:", endings.len())?;
                endings.iter().try_for_each(|ending| write!(f, " [{}: {:?}]", ending.held, ending.outcome))?;
                write!(f, ", then {claiming}")
            }
            Self::Progress(held, bytes) => write!(f, "progress of {bytes} bytes by {held}"),
            Self::Effect(held, key, acting) => write!(f, "effect {key}, {acting:?} by {held}"),
            Self::Extend(worker, held) => write!(f, "extend for {worker}: {}", joined(held)),
            Self::Provision(owner, policy) => {
                write!(f, "provision for {} ({:?}):", owner.name, owner.takeover)?;
                write!(f, "{}", unusual(&**policy, &Policy::default()))
            }
            Self::Cancel(id) => write!(f, "cancel {id}"),
            Self::Record(letter) => write!(f, "record {letter}"),
            Self::Wait(time) => write!(f, "wait {time:?}"),
            other => write!(f, "{other:?}"),
        }
    }
}

fn joined(held: &[Arc<Held>]) -> String {
    held.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// The words that tell a value from a usual one.
fn unusual<T: fmt::Debug>(value: &T, usual: &T) -> String {
    let (value, usual) = (format!("{value:?}"), format!("{usual:?}"));
    let usual: HashSet<&str> = usual.split(", ").collect();
    value.split(", ").filter(|word| !usual.contains(word)).map(|word| format!(" {word}")).collect()
}
