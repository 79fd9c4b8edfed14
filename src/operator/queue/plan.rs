//! Plan: what to do about a TaskQueue, decided from what was read and from nothing else.

use super::observe::Observed;
use crate::broker::redis::{Inspection, Intact};
use crate::broker::{BrokerError, Takeover};
use crate::operator::connections::Unresolved;
use crate::operator::reasons::Reason;
use crate::operator::secrets::SecretProblem;

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Plan {
    /// Everything is as it should be.
    Keep,
    /// Write policy, groups and owner.
    Provision {
        /// From whom it may be taken.
        takeover: Takeover,
        /// What led to it.
        cause: Cause,
    },
    /// Nothing can be done now.
    Hold(Obstacle),
}

/// Why a queue is provisioned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Cause {
    /// Nobody has it yet.
    New,
    /// An object of the same name had it before, and left it.
    Inherited,
    /// The annotation says so.
    TakenOver {
        /// Who had it.
        from: String,
    },
    /// The policy is another one than is written down, or groups are gone.
    Differs,
}

/// What stands in the way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Obstacle {
    /// Which condition fails for it.
    pub(super) side: Side,
    /// Why.
    pub(super) reason: Reason,
    /// What to do about it.
    pub(super) message: String,
    /// Whether time alone may mend it.
    pub(super) passes: Passes,
}

/// On which side an obstacle is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// The broker does not serve us.
    Broker,
    /// The broker does, but the queue cannot be made there.
    Queue,
}

/// Whether time alone may mend something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Passes {
    /// It may: try again soon.
    ByItself,
    /// Somebody has to do something.
    NotByItself,
}

impl Obstacle {
    fn new(side: Side, reason: Reason, message: impl ToString, passes: Passes) -> Self {
        Self { side, reason, message: message.to_string(), passes }
    }

    fn unresolved(error: &Unresolved) -> Self {
        let reason = match error {
            Unresolved::NoDefault => Reason::NoDefaultBroker,
            Unresolved::Secret(SecretProblem::NotFound(_)) => Reason::SecretNotFound,
            Unresolved::Secret(SecretProblem::NoKey { .. }) => Reason::SecretKeyMissing,
            Unresolved::Secret(SecretProblem::NotText { .. }) | Unresolved::Url(_) => Reason::InvalidUrl,
            Unresolved::Secret(SecretProblem::Unreadable { .. }) => Reason::SecretUnreadable,
        };
        // Nobody tells us when a Secret comes or changes, so it is looked for again soon.
        let passes = if matches!(error, Unresolved::NoDefault) { Passes::NotByItself } else { Passes::ByItself };
        Self::new(Side::Broker, reason, error, passes)
    }

    /// What an error of the broker means to a queue.
    pub(super) fn of(error: &BrokerError) -> Self {
        use Passes::{ByItself, NotByItself};
        let (side, reason, passes) = match error {
            BrokerError::Unreachable { .. } => (Side::Broker, Reason::BrokerUnreachable, ByItself),
            BrokerError::Busy(_) | BrokerError::NotReplicated { .. } => (Side::Broker, Reason::BrokerBusy, ByItself),
            BrokerError::Denied(_) => (Side::Broker, Reason::AccessDenied, ByItself),
            BrokerError::OutOfMemory(_) => (Side::Queue, Reason::OutOfMemory, ByItself),
            BrokerError::Owned { .. } => (Side::Queue, Reason::OwnedByAnother, NotByItself),
            BrokerError::Version { .. } => (Side::Queue, Reason::DataModelVersion, NotByItself),
            BrokerError::Invalid(_) => (Side::Queue, Reason::NotAStream, NotByItself),
            BrokerError::NoQueue(_)
            | BrokerError::Closed(_)
            | BrokerError::OutboxFull(_)
            | BrokerError::Fenced
            | BrokerError::Unexpected { .. } => (Side::Queue, Reason::Failed, ByItself),
        };
        Self::new(side, reason, error, passes)
    }

    /// Somebody else has the keys.
    pub(super) fn owned(by: &str) -> Self {
        let message = format!(
            "the keys belong to {by}: give the queue other keys, or annotate it with {TAKE_OVER_FROM}: {by} to take \
             them over"
        );
        Self::new(Side::Queue, Reason::OwnedByAnother, message, Passes::NotByItself)
    }
}

/// The annotation by which a queue takes keys over: its value names who they are taken from, so that two queues
/// cannot take them from each other for ever.
pub const TAKE_OVER_FROM: &str = "windlass.dev/take-over-from";

/// What to do about what was read. `asked` is the value of the annotation.
pub(super) fn plan(seen: &Observed, asked: Option<&str>) -> Plan {
    let inspection = match standing(seen) {
        Ok(inspection) => inspection,
        Err(obstacle) => return Plan::Hold(obstacle),
    };
    match &inspection.owner {
        // After a flush nothing is recorded, and whoever came first would have it: whose it was goes first.
        None => match &seen.rival {
            Some(rival) => match takeover_from(rival, &seen.owner.name, asked) {
                Some(cause) => Plan::Provision { takeover: Takeover::Respect, cause },
                None => Plan::Hold(Obstacle::owned(rival)),
            },
            None => Plan::Provision { takeover: Takeover::Respect, cause: Cause::New },
        },
        Some(owner) if *owner == seen.owner.name => {
            let intact = (inspection.policy, inspection.groups) == (Intact::Yes, Intact::Yes);
            match intact && !inspection.removal_begun {
                true => Plan::Keep,
                false => Plan::Provision { takeover: Takeover::Respect, cause: Cause::Differs },
            }
        }
        Some(owner) => match takeover_from(owner, &seen.owner.name, asked) {
            Some(cause) => Plan::Provision { takeover: Takeover::From(owner.clone()), cause },
            None => Plan::Hold(Obstacle::owned(owner)),
        },
    }
}

/// How the queue stands in Redis, or what keeps us from knowing.
fn standing(seen: &Observed) -> Result<&Inspection, Obstacle> {
    if let Err(invalid) = &seen.compiled {
        return Err(Obstacle::new(Side::Queue, Reason::InvalidSpec, invalid, Passes::NotByItself));
    }
    if let Err(unresolved) = &seen.connection {
        return Err(Obstacle::unresolved(unresolved));
    }
    match &seen.health {
        Some(Err(error)) => return Err(Obstacle::of(error)),
        Some(Ok(server)) if !server.is_supported() => {
            let message = format!("Redis {} is too old: use Redis 6.2 or later, or Valkey", server.version);
            return Err(Obstacle::new(Side::Broker, Reason::VersionUnsupported, message, Passes::NotByItself));
        }
        _ => {}
    }
    if let Some(Err(error)) = &seen.broker {
        return Err(Obstacle::new(Side::Queue, Reason::NoCommonHashTag, error, Passes::NotByItself));
    }
    match &seen.inspection {
        Some(Ok(inspection)) => Ok(inspection),
        Some(Err(error)) => Err(Obstacle::of(error)),
        None => Err(Obstacle::new(Side::Broker, Reason::Failed, "the queue was not looked at", Passes::ByItself)),
    }
}

/// Whether keys may be taken from an owner, and why.
pub(super) fn takeover_from(owner: &str, me: &str, asked: Option<&str>) -> Option<Cause> {
    // kubernetes:CLUSTER/NAMESPACE/NAME/UID. A name is there once in a cluster, so an object of the same name with
    // another UID is gone; and a UID is there once at all, so the same UID is the same object, however the operator
    // came to call its cluster.
    let (place, uid) = me.rsplit_once('/')?;
    let inherited = owner.rsplit_once('/').is_some_and(|(theirs, _)| theirs == place);
    let same_object =
        owner.starts_with("kubernetes:") && owner.rsplit_once('/').is_some_and(|(_, theirs)| theirs == uid);
    if inherited || same_object {
        return Some(Cause::Inherited);
    }
    (asked == Some(owner)).then(|| Cause::TakenOver { from: owner.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::Owner;
    use crate::broker::redis::ServerReport;
    use crate::crd::{InvalidSpec, TaskQueueSpec};
    use crate::operator::connections::Connection;
    use crate::protocol::names::QueueName;
    use crate::protocol::policy::EventRecording;
    use std::sync::Arc;

    const ME: &str = "kubernetes:cluster-1/shop/emails/uid-1";

    fn inspection(owner: Option<&str>) -> Inspection {
        Inspection { owner: owner.map(str::to_owned), policy: Intact::Yes, groups: Intact::Yes, removal_begun: false }
    }

    fn server() -> ServerReport {
        ServerReport {
            version: "7.0.15".into(),
            run_id: "r".into(),
            eviction_policy: "noeviction".into(),
            append_only: true,
        }
    }

    fn seen(inspected: Option<Result<Inspection, BrokerError>>) -> Observed {
        let name: QueueName = "shop/emails".parse().expect("valid");
        let spec = TaskQueueSpec::default();
        let compiled = (spec.keys(&name).expect("valid"), spec.policy(EventRecording::On).expect("valid"));
        Observed {
            owner: Owner::kubernetes("cluster-1", &name, "uid-1"),
            name,
            compiled: Ok(compiled),
            connection: Ok(Arc::new(Connection::for_tests())),
            health: Some(Ok(server())),
            broker: None,
            rival: None,
            inspection: inspected,
        }
    }

    fn held(plan: Plan) -> Obstacle {
        match plan {
            Plan::Hold(obstacle) => obstacle,
            other => panic!("{other:?}"),
        }
    }

    fn provisioned_for(plan: Plan) -> (Takeover, Cause) {
        match plan {
            Plan::Provision { takeover, cause } => (takeover, cause),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_queue_that_is_as_it_should_be_is_left_alone() {
        assert_eq!(plan(&seen(Some(Ok(inspection(Some(ME))))), None), Plan::Keep);
    }

    #[test]
    fn what_is_missing_or_was_changed_is_written() {
        assert_eq!(provisioned_for(plan(&seen(Some(Ok(inspection(None)))), None)).1, Cause::New);
        let right = inspection(Some(ME));
        for wrong in [
            Inspection { policy: Intact::No, ..right.clone() },
            Inspection { groups: Intact::No, ..right.clone() },
            Inspection { removal_begun: true, ..right.clone() },
        ] {
            let (takeover, cause) = provisioned_for(plan(&seen(Some(Ok(wrong))), None));
            assert_eq!((takeover, cause), (Takeover::Respect, Cause::Differs));
        }
    }

    #[test]
    fn a_queue_of_another_owner_is_taken_on_purpose_only() {
        let theirs = "kubernetes:cluster-2/shop/emails/uid-9";
        let seen = seen(Some(Ok(inspection(Some(theirs)))));
        let obstacle = held(plan(&seen, None));
        assert_eq!((obstacle.side, obstacle.reason), (Side::Queue, Reason::OwnedByAnother));
        assert!(obstacle.message.contains(theirs) && obstacle.message.contains(TAKE_OVER_FROM), "{}", obstacle.message);
        held(plan(&seen, Some("somebody else")));
        let (takeover, cause) = provisioned_for(plan(&seen, Some(theirs)));
        assert_eq!(takeover, Takeover::From(theirs.to_owned()));
        assert_eq!(cause, Cause::TakenOver { from: theirs.to_owned() });
    }

    #[test]
    fn a_stream_that_nobody_is_recorded_to_have_is_left_to_who_had_it() {
        let theirs = "kubernetes:cluster-1/shop/first/uid-9";
        let flushed = Observed { rival: Some(theirs.to_owned()), ..seen(Some(Ok(inspection(None)))) };
        assert_eq!(held(plan(&flushed, None)), Obstacle::owned(theirs));
        let (takeover, cause) = provisioned_for(plan(&flushed, Some(theirs)));
        assert_eq!((takeover, cause), (Takeover::Respect, Cause::TakenOver { from: theirs.to_owned() }));
        let ours = Observed { rival: Some(theirs.to_owned()), ..seen(Some(Ok(inspection(Some(ME))))) };
        assert_eq!(plan(&ours, None), Plan::Keep, "what is recorded holds");
    }

    #[test]
    fn what_a_predecessor_of_the_same_name_left_is_inherited() {
        for left in ["kubernetes:cluster-1/shop/emails/uid-0", "kubernetes:other-name-of-cluster-1/shop/emails/uid-1"] {
            let (takeover, cause) = provisioned_for(plan(&seen(Some(Ok(inspection(Some(left))))), None));
            assert_eq!((takeover, cause), (Takeover::From(left.to_owned()), Cause::Inherited));
        }
        for other in ["kubernetes:cluster-1/shop/emails-2/uid-0", "dev:machine/uid-1", "somebody"] {
            held(plan(&seen(Some(Ok(inspection(Some(other))))), None));
        }
    }

    #[test]
    fn what_stands_in_the_way_is_told_on_its_side() {
        let unreachable = || BrokerError::Unreachable { address: "a:1".into(), reason: "gone".into() };
        let cases: [(Observed, Side, Reason); 8] = [
            (Observed { health: Some(Err(unreachable())), ..seen(None) }, Side::Broker, Reason::BrokerUnreachable),
            (
                Observed { health: Some(Err(BrokerError::Denied("no".into()))), ..seen(None) },
                Side::Broker,
                Reason::AccessDenied,
            ),
            (
                Observed { health: Some(Ok(ServerReport { version: "5.0.7".into(), ..server() })), ..seen(None) },
                Side::Broker,
                Reason::VersionUnsupported,
            ),
            (Observed { connection: Err(Unresolved::NoDefault), ..seen(None) }, Side::Broker, Reason::NoDefaultBroker),
            (
                Observed { connection: Err(Unresolved::Secret(SecretProblem::NotFound("redis".into()))), ..seen(None) },
                Side::Broker,
                Reason::SecretNotFound,
            ),
            (
                Observed {
                    compiled: Err(InvalidSpec { field: "keys", sentence: "no".into() }),
                    ..seen(Some(Ok(inspection(Some(ME)))))
                },
                Side::Queue,
                Reason::InvalidSpec,
            ),
            (
                Observed { broker: Some(Err(BrokerError::Invalid("tags".into()))), ..seen(None) },
                Side::Queue,
                Reason::NoCommonHashTag,
            ),
            (seen(Some(Err(BrokerError::OutOfMemory("full".into())))), Side::Queue, Reason::OutOfMemory),
        ];
        for (seen, side, reason) in cases {
            let obstacle = held(plan(&seen, None));
            assert_eq!((obstacle.side, obstacle.reason), (side, reason), "{}", obstacle.message);
            assert!(!obstacle.message.is_empty());
        }
    }
}
