//! What is said about a pool: from what was found to its conditions.
//!
//! Pure. Each condition answers one question, in the order in which somebody who
//! looks for a fault would ask them; `Ready` is the first no.

use k8s_openapi::api::apps::v1::Deployment;

use super::deployment::{is_rolled_out, replica_failure};
use super::scaling::{Because, Scale};
use crate::operator::conditions::{Holds, Judgement};
use crate::operator::reasons::{ConditionType, Reason};

/// What was found out about the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum QueueFound {
    /// It is there and provisioned.
    Yes,
    /// There is none of that name.
    Missing,
    /// It is there; its Redis is not reached or not provisioned yet.
    NotReady(String),
    /// It is being deleted.
    Deleting,
    /// Its Redis needs a password that pods cannot have.
    NoCredentials(String),
}

/// What was found out about the pods' template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TemplateFound {
    /// Nobody asked yet: there is no queue to make pods for.
    NotJudged,
    /// The API server takes it.
    Accepted(Vec<String>),
    /// It was judged before, and nothing has changed since.
    AsBefore(Judgement),
    /// It is not taken.
    Refused(String),
    /// The API server, or a webhook that it asks, cannot say.
    Unanswered(String),
    /// A Deployment of the pool's name is somebody else's.
    NameTaken,
}

/// All that was found.
#[derive(Debug)]
pub(super) struct Findings<'a> {
    pub(super) queue_name: &'a str,
    pub(super) queue: QueueFound,
    pub(super) template: TemplateFound,
    pub(super) live: Option<&'a Deployment>,
    pub(super) scale: &'a Scale,
    /// Whether it waits for its turn to take on what other pools have to take on, too.
    pub(super) waits_for_turn: bool,
}

/// The conditions of a pool, in the order in which they are shown.
pub(super) fn judge(found: &Findings<'_>) -> Vec<Judgement> {
    let queue = queue(found);
    let template = template(found);
    let available = available(found);
    let scaling = scaling(found.scale);
    let no = [&queue, &template, &available].into_iter().find(|judged| judged.holds != Holds::True);
    let ready = match no {
        None => Judgement::yes(ConditionType::Ready, Reason::Ready, available.message.clone()),
        Some(no) => Judgement { condition: ConditionType::Ready, holds: Holds::False, ..no.clone() },
    };
    vec![ready, queue, template, available, scaling]
}

fn queue(found: &Findings<'_>) -> Judgement {
    use ConditionType::QueueResolved;
    let name = found.queue_name;
    match &found.queue {
        QueueFound::Yes => Judgement::yes(QueueResolved, Reason::QueueFound, format!("TaskQueue {name} is there")),
        QueueFound::Missing => Judgement::no(
            QueueResolved,
            Reason::QueueNotFound,
            format!("there is no TaskQueue {name} in this namespace: create it, or name another one in queueRef"),
        ),
        QueueFound::NotReady(why) => {
            Judgement::no(QueueResolved, Reason::QueueNotReady, format!("TaskQueue {name} is not ready: {why}"))
        }
        QueueFound::Deleting => {
            Judgement::no(QueueResolved, Reason::QueueDeleting, format!("TaskQueue {name} is being deleted"))
        }
        QueueFound::NoCredentials(why) => Judgement::no(QueueResolved, Reason::NoCredentials, why.clone()),
    }
}

fn template(found: &Findings<'_>) -> Judgement {
    use ConditionType::TemplateAccepted;
    let failure = found.live.and_then(replica_failure);
    match (&found.template, failure) {
        (TemplateFound::Refused(why), _) => Judgement::no(TemplateAccepted, Reason::TemplateRefused, why.clone()),
        (TemplateFound::NameTaken, _) => Judgement::no(
            TemplateAccepted,
            Reason::NameTaken,
            "a Deployment of the pool's name belongs to somebody else: delete or rename it, or rename the pool",
        ),
        (_, Some(why)) => Judgement::no(TemplateAccepted, Reason::PodsRefused, why),
        (TemplateFound::Unanswered(why), None) => Judgement::unknown(TemplateAccepted, Reason::NotJudged, why.clone()),
        (TemplateFound::NotJudged, None) => {
            Judgement::unknown(TemplateAccepted, Reason::NotJudged, "pods are made when the queue is there")
        }
        (TemplateFound::AsBefore(before), None) => before.clone(),
        (TemplateFound::Accepted(warnings), None) if warnings.is_empty() => {
            Judgement::yes(TemplateAccepted, Reason::TemplateAccepted, "the API server takes pods like these")
        }
        (TemplateFound::Accepted(warnings), None) => {
            Judgement::yes(TemplateAccepted, Reason::AcceptedWithWarnings, warnings.join("; "))
        }
    }
}

fn available(found: &Findings<'_>) -> Judgement {
    use ConditionType::Available;
    let Some(live) = found.live else {
        return Judgement::no(Available, Reason::NotDeployed, "there is no Deployment yet");
    };
    let wanted = found.scale.replicas;
    let ready = live.status.as_ref().and_then(|status| status.ready_replicas).unwrap_or(0);
    let counted = format!("{ready} of {wanted} pods are ready");
    if wanted == 0 {
        Judgement::yes(Available, Reason::ScaledToZero, "no pods are wanted")
    } else if found.waits_for_turn {
        let counted = format!("{counted}; a newer worker image or connection follows when other pools are done");
        if ready >= wanted {
            Judgement::yes(Available, Reason::WaitsForTurn, counted)
        } else {
            Judgement::no(Available, Reason::PodsNotReady, counted)
        }
    } else if ready >= wanted && is_rolled_out(live) {
        Judgement::yes(Available, Reason::PodsReady, counted)
    } else if ready >= wanted {
        Judgement::yes(Available, Reason::RollingOut, format!("{counted}, and newer ones replace them"))
    } else {
        Judgement::no(Available, Reason::PodsNotReady, counted)
    }
}

fn scaling(scale: &Scale) -> Judgement {
    use ConditionType::ScalingActive;
    let number = scale.replicas;
    match &scale.because {
        Because::Asked => {
            Judgement::no(ScalingActive, Reason::FixedReplicas, "autoscaling is not set: replicas decides")
        }
        Because::Demand { .. } => {
            Judgement::yes(ScalingActive, Reason::FollowsDemand, format!("{number} pods are what the work needs"))
        }
        // How many it would want changes with every task, and is no news.
        Because::Settling => Judgement::yes(
            ScalingActive,
            Reason::FollowsDemand,
            format!("fewer pods would do: {number} stay until that has been so for scaleDownAfterSeconds"),
        ),
        Because::AtMost { .. } => Judgement::yes(
            ScalingActive,
            Reason::AtMaximum,
            format!("there is work for more than {number} pods: raise autoscaling.maxReplicas to go on"),
        ),
        Because::Paused => Judgement::no(
            ScalingActive,
            Reason::QueuePaused,
            format!("the queue gives out no work: {number} pods stay until its mode is Running again"),
        ),
        Because::Unknown => Judgement::unknown(
            ScalingActive,
            Reason::DemandUnknown,
            format!("the queue could not be asked how much there is to do: {number} pods stay"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn live(ready: i32, status: serde_json::Value) -> Deployment {
        let mut whole = json!({
            "metadata": {"name": "d", "generation": 1},
            "spec": {"replicas": 3, "selector": {}, "template": {}},
            "status": {"observedGeneration": 1, "replicas": 3, "updatedReplicas": 3, "availableReplicas": ready, "readyReplicas": ready},
        });
        for (key, value) in status.as_object().expect("fields") {
            whole["status"][key] = value.clone();
        }
        serde_json::from_value(whole).expect("a Deployment")
    }

    /// The reasons of all conditions.
    fn reasons(change: impl FnOnce(&mut Findings<'_>)) -> Vec<&'static str> {
        let (live, scale) = (live(3, json!({})), Scale { replicas: 3, because: Because::Asked });
        let mut found = Findings {
            queue_name: "emails",
            queue: QueueFound::Yes,
            template: TemplateFound::Accepted(Vec::new()),
            live: Some(&live),
            scale: &scale,
            waits_for_turn: false,
        };
        change(&mut found);
        judge(&found).into_iter().map(|judged| judged.reason.as_str()).collect()
    }

    #[test]
    fn a_pool_is_ready_when_everything_is() {
        assert_eq!(reasons(|_| {}), ["Ready", "QueueFound", "TemplateAccepted", "PodsReady", "FixedReplicas"]);
    }

    #[test]
    fn ready_gives_the_first_reason_why_not() {
        assert_eq!(reasons(|found| found.queue = QueueFound::Missing)[..2], ["QueueNotFound", "QueueNotFound"]);
        let both = |found: &mut Findings<'_>| {
            found.template = TemplateFound::Refused("no".into());
            found.live = None;
        };
        assert_eq!(reasons(both), ["TemplateRefused", "QueueFound", "TemplateRefused", "NotDeployed", "FixedReplicas"]);
    }

    #[test]
    fn a_template_that_nobody_can_judge_is_not_ready_and_says_why() {
        let seen = reasons(|found| found.template = TemplateFound::Unanswered("a webhook is away".into()));
        assert_eq!(seen[..3], ["NotJudged", "QueueFound", "NotJudged"]);
    }

    #[test]
    fn pods_that_cannot_be_made_are_the_templates_fault() {
        let failing = json!({"conditions": [{"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "forbidden"}]});
        let failing = live(0, failing);
        let scale = Scale { replicas: 3, because: Because::Asked };
        let found = Findings {
            queue_name: "emails",
            queue: QueueFound::Yes,
            template: TemplateFound::Accepted(Vec::new()),
            live: Some(&failing),
            scale: &scale,
            waits_for_turn: false,
        };
        let judged = judge(&found);
        assert_eq!((judged[2].reason, judged[2].message.as_str()), (Reason::PodsRefused, "forbidden"));
        assert_eq!(judged[0].reason, Reason::PodsRefused);
    }

    #[test]
    fn scaled_to_zero_is_not_unready() {
        let none = Scale { replicas: 0, because: Because::Demand { tasks: 0 } };
        let judged = judge(&Findings {
            queue_name: "emails",
            queue: QueueFound::Yes,
            template: TemplateFound::Accepted(Vec::new()),
            live: Some(&live(0, json!({}))),
            scale: &none,
            waits_for_turn: false,
        });
        assert_eq!((judged[0].holds, judged[3].reason), (Holds::True, Reason::ScaledToZero));
    }

    #[test]
    fn a_queue_that_cannot_be_asked_leaves_scaling_unknown_and_the_pool_ready() {
        let unknown = Scale { replicas: 3, because: Because::Unknown };
        let judged = judge(&Findings {
            queue_name: "emails",
            queue: QueueFound::Yes,
            template: TemplateFound::Accepted(Vec::new()),
            live: Some(&live(3, json!({}))),
            scale: &unknown,
            waits_for_turn: false,
        });
        assert_eq!((judged[0].holds, judged[4].holds), (Holds::True, Holds::Unknown));
    }
}
