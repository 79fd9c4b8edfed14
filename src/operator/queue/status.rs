//! Status: what a TaskQueue's status says, made from what was found and counted.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::apply::Applied;
use super::plan::{Obstacle, Side};
use crate::broker::QueueCounts;
use crate::broker::redis::{Danger, ServerReport};
use crate::crd::TaskQueueStatus;
use crate::operator::conditions::{Holds, Judgement, conditions};
use crate::operator::connections::Health;
use crate::operator::history::History;
use crate::operator::reasons::{ConditionType, Reason};
use crate::operator::status::Status;

/// The part of the outbox's bound from which on the queue is in danger.
const OUTBOX_WARNING: f64 = 0.8;

/// What the last look at a queue found, apart from its counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Findings {
    pub(super) obstacle: Option<Obstacle>,
    pub(super) server: Option<ServerReport>,
    /// At how many entries of the outbox enqueues are refused.
    pub(super) outbox_bound: Option<u64>,
    pub(super) generation: Option<i64>,
}

impl Findings {
    pub(super) fn new(applied: &Applied, server: Option<ServerReport>, generation: Option<i64>) -> Self {
        let obstacle = match applied {
            Applied::Held(obstacle) => Some(obstacle.clone()),
            Applied::Kept | Applied::Provisioned(_) => None,
        };
        Self { obstacle, server, outbox_bound: None, generation }
    }

    /// Whether the server is still as it was found.
    pub(super) fn agrees_with(&self, health: &Health) -> bool {
        let away = self.is_away();
        match health {
            Ok(report) => !away && self.server.as_ref() == Some(report),
            Err(_) => away,
        }
    }

    fn is_away(&self) -> bool {
        matches!(&self.obstacle, Some(Obstacle { side: Side::Broker, .. }))
    }

    fn broker(&self) -> Judgement {
        let is = ConditionType::BrokerConnected;
        match &self.obstacle {
            Some(Obstacle { side: Side::Broker, reason, message, .. }) => Judgement::no(is, *reason, message),
            Some(_) if self.server.is_none() => {
                Judgement::unknown(is, Reason::NotSampled, "Redis was not asked, because the spec is not usable")
            }
            _ => {
                let version = self.server.as_ref().map_or("", |server| server.version.as_str());
                Judgement::yes(is, Reason::Connected, format!("Redis {version} answers"))
            }
        }
    }

    fn provisioned(&self) -> Judgement {
        let is = ConditionType::Provisioned;
        match &self.obstacle {
            None => Judgement::yes(is, Reason::Provisioned, "keys, groups and policy are in place"),
            Some(Obstacle { side: Side::Queue, reason, message, .. }) => Judgement::no(is, *reason, message),
            Some(_) => {
                Judgement::unknown(is, Reason::BrokerNotConnected, "what is in Redis is not known while it is away")
            }
        }
    }

    fn degraded(&self, counts: Option<&QueueCounts>, history: &History) -> Judgement {
        let is = ConditionType::Degraded;
        let mut found: Vec<(Reason, String)> = Vec::new();
        for danger in self.server.iter().flat_map(ServerReport::dangers) {
            let reason = match danger {
                Danger::Eviction(_) => Reason::EvictionPolicy,
                Danger::NotPersistent => Reason::NotPersistent,
            };
            found.push((reason, danger.to_string()));
        }
        if let (Some(counts), Some(bound)) = (counts, self.outbox_bound)
            && counts.outbox as f64 > OUTBOX_WARNING * bound as f64
        {
            let message = format!(
                "the outbox is filling: at {bound} entries new tasks are refused, until the event log has caught up"
            );
            found.push((Reason::OutboxFilling, message));
        }
        if let History::Unavailable(why) = history {
            found.push((Reason::EventLogUnavailable, format!("the event log cannot be written: {why}")));
        }
        match found.first() {
            None => Judgement::no(is, Reason::AsExpected, "nothing puts tasks at risk"),
            Some((reason, _)) => {
                let all: Vec<&str> = found.iter().map(|(_, message)| message.as_str()).collect();
                Judgement::yes(is, *reason, all.join("; "))
            }
        }
    }
}

fn workers(counts: Option<&QueueCounts>) -> Judgement {
    let is = ConditionType::WorkersAvailable;
    match counts.map(|counts| counts.workers) {
        None => Judgement::unknown(is, Reason::NotSampled, "workers were not counted yet"),
        Some(0) => Judgement::no(is, Reason::NoWorkers, "no worker is registered: tasks wait until one is"),
        Some(_) => Judgement::yes(is, Reason::WorkersRegistered, "workers are registered"),
    }
}

fn event_log(history: &History) -> Judgement {
    let is = ConditionType::EventLogRecording;
    match history {
        History::Recorded => Judgement::yes(is, Reason::Recording, "what happens is written to the event log"),
        History::NotConfigured => Judgement::no(
            is,
            Reason::NotConfigured,
            "the operator has no event log: start it with WINDLASS_EVENT_LOG_URL to keep history",
        ),
        History::Unavailable(why) => Judgement::no(
            is,
            Reason::EventLogUnavailable,
            format!("the event log cannot be written, events wait in the outbox: {why}"),
        ),
    }
}

/// Ready when nothing is in the way; else with the reason of what is.
fn ready(judged: &[Judgement]) -> Judgement {
    let is = ConditionType::Ready;
    match judged.iter().find(|judgement| judgement.holds != Holds::True) {
        None => Judgement::yes(is, Reason::Ready, "the queue takes and gives tasks as its mode says"),
        Some(why) => Judgement::no(is, why.reason, why.message.clone()),
    }
}

/// The whole status. `counts` is what the loops saw last.
pub(super) fn compose(
    findings: &Findings,
    counts: Option<&QueueCounts>,
    history: &History,
    before: Option<&TaskQueueStatus>,
) -> TaskQueueStatus {
    // What was counted before Redis went away is not known to be so any more.
    let away = findings.is_away();
    let counts = counts.filter(|_| !away);
    let (broker, provisioned) = (findings.broker(), findings.provisioned());
    // What Redis said matters before what it is to hold.
    let essential = [provisioned.clone(), broker.clone()];
    let order = if away { [broker.clone(), provisioned.clone()] } else { essential };
    let judged =
        [ready(&order), broker, provisioned, workers(counts), event_log(history), findings.degraded(counts, history)];
    let known = before.map(|status| status.conditions.as_slice()).unwrap_or_default();
    let status = TaskQueueStatus {
        observed_generation: findings.generation,
        conditions: conditions(&judged, known, findings.generation),
        ..TaskQueueStatus::default()
    };
    match counts {
        Some(counts) => with_counts(status, counts),
        None => status,
    }
}

/// A status that says nothing but why the object is not looked after.
pub(super) fn alone(
    reason: Reason,
    message: &str,
    generation: Option<i64>,
    before: Option<&TaskQueueStatus>,
) -> TaskQueueStatus {
    let known = before.map(|status| status.conditions.as_slice()).unwrap_or_default();
    let judged = [Judgement::no(ConditionType::Ready, reason, message)];
    TaskQueueStatus {
        observed_generation: generation,
        conditions: conditions(&judged, known, generation),
        ..TaskQueueStatus::default()
    }
}

fn with_counts(status: TaskQueueStatus, counts: &QueueCounts) -> TaskQueueStatus {
    let number = |count: u64| Some(i64::try_from(count).unwrap_or(i64::MAX));
    TaskQueueStatus {
        backlog: number(counts.backlog),
        running: number(counts.running),
        delayed: number(counts.delayed),
        retrying: number(counts.retrying),
        blocked: number(counts.blocked),
        waiting_approval: number(counts.waiting_approval),
        dead_lettered: number(counts.dead_lettered),
        oldest_task_time: counts.oldest_task_time.and_then(whole_seconds),
        workers: number(counts.workers),
        ..status
    }
}

/// The API server keeps seconds; what is finer would differ from what is stored, always.
fn whole_seconds(time: Timestamp) -> Option<Time> {
    Timestamp::from_second(time.as_second()).ok().map(Time)
}

impl Status for TaskQueueStatus {
    fn conditions_mut(&mut self) -> &mut Vec<Condition> {
        &mut self.conditions
    }

    fn take_counts(&mut self, other: &Self) {
        let own = std::mem::take(self);
        *self = Self { observed_generation: own.observed_generation, conditions: own.conditions, ..other.clone() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operator::conditions::holds;
    use crate::operator::queue::plan::Passes;

    fn fine() -> Findings {
        let server = ServerReport {
            version: "7.0.15".into(),
            run_id: "r".into(),
            eviction_policy: "noeviction".into(),
            append_only: true,
        };
        Findings { obstacle: None, server: Some(server), outbox_bound: Some(100), generation: Some(3) }
    }

    fn obstacle(side: Side, reason: Reason) -> Obstacle {
        Obstacle { side, reason, message: "so it is".into(), passes: Passes::ByItself }
    }

    fn shown(status: &TaskQueueStatus, condition: ConditionType) -> (String, String) {
        let found =
            status.conditions.iter().find(|one| one.type_ == condition.as_str()).expect("every condition is there");
        (found.status.clone(), found.reason.clone())
    }

    fn pair(status: &str, reason: &str) -> (String, String) {
        (status.to_owned(), reason.to_owned())
    }

    #[test]
    fn a_healthy_queue_without_workers_is_ready() {
        let counts = QueueCounts { backlog: 4, ..QueueCounts::default() };
        let status = compose(&fine(), Some(&counts), &History::Recorded, None);
        let types: Vec<&str> = status.conditions.iter().map(|one| one.type_.as_str()).collect();
        assert_eq!(types, ConditionType::OF_QUEUES.map(ConditionType::as_str));
        assert_eq!(shown(&status, ConditionType::Ready), pair("True", "Ready"));
        assert_eq!(shown(&status, ConditionType::WorkersAvailable), pair("False", "NoWorkers"));
        assert_eq!(shown(&status, ConditionType::Degraded), pair("False", "AsExpected"));
        assert_eq!((status.backlog, status.observed_generation), (Some(4), Some(3)));
    }

    #[test]
    fn a_redis_that_is_away_leaves_nothing_known() {
        let away = Findings { obstacle: Some(obstacle(Side::Broker, Reason::BrokerUnreachable)), ..fine() };
        let status = compose(&away, Some(&QueueCounts::default()), &History::Recorded, None);
        assert_eq!(shown(&status, ConditionType::Ready), pair("False", "BrokerUnreachable"));
        assert_eq!(shown(&status, ConditionType::BrokerConnected), pair("False", "BrokerUnreachable"));
        assert_eq!(shown(&status, ConditionType::Provisioned), pair("Unknown", "BrokerNotConnected"));
        assert_eq!(shown(&status, ConditionType::WorkersAvailable), pair("Unknown", "NotSampled"));
        assert_eq!(status.backlog, None);
    }

    #[test]
    fn keys_of_another_owner_leave_the_broker_connected() {
        let owned = Findings { obstacle: Some(obstacle(Side::Queue, Reason::OwnedByAnother)), ..fine() };
        let status = compose(&owned, None, &History::Recorded, None);
        assert_eq!(shown(&status, ConditionType::BrokerConnected), pair("True", "Connected"));
        assert_eq!(shown(&status, ConditionType::Provisioned), pair("False", "OwnedByAnother"));
        assert_eq!(shown(&status, ConditionType::Ready), pair("False", "OwnedByAnother"));
    }

    #[test]
    fn every_danger_degrades_and_none_makes_unready() {
        let risky =
            ServerReport { eviction_policy: "allkeys-lru".into(), append_only: false, ..fine().server.expect("one") };
        let findings = Findings { server: Some(risky), ..fine() };
        let filling = QueueCounts { outbox: 90, ..QueueCounts::default() };
        let status = compose(&findings, Some(&filling), &History::Unavailable("no route".into()), None);
        assert_eq!(holds(&status.conditions, ConditionType::Ready), Some(true));
        assert_eq!(shown(&status, ConditionType::Degraded), pair("True", "EvictionPolicy"));
        let message = &status.conditions.last().expect("degraded").message;
        for part in ["noeviction", "appendonly", "outbox", "no route"] {
            assert!(message.contains(part), "{part} is missing in {message}");
        }
        assert_eq!(shown(&status, ConditionType::EventLogRecording), pair("False", "EventLogUnavailable"));
    }

    #[test]
    fn a_status_that_was_stored_is_the_same_status() {
        let time: Timestamp = "2026-01-02T03:04:05.678Z".parse().expect("a time");
        let counts = QueueCounts { oldest_task_time: Some(time), ..QueueCounts::default() };
        let status = compose(&fine(), Some(&counts), &History::Recorded, None);
        let stored: TaskQueueStatus =
            serde_json::from_value(serde_json::to_value(&status).expect("JSON")).expect("it reads back");
        let again = compose(&fine(), Some(&counts), &History::Recorded, Some(&stored));
        assert_eq!(again, stored);
    }
}
