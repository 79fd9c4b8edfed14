//! Every condition and every reason that the operator gives, in one place.
//!
//! People, alerts and other programs go by these words, so they are stable:
//! words are added, and never change their meaning.

/// The conditions of both resources.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ConditionType {
    /// All is well enough to be used.
    Ready,
    /// TaskQueue: its Redis answers.
    BrokerConnected,
    /// TaskQueue: its keys, groups and policy are in place.
    Provisioned,
    /// TaskQueue: somebody works on it.
    WorkersAvailable,
    /// TaskQueue: its history is kept.
    EventLogRecording,
    /// TaskQueue: it works, and something puts its data at risk.
    Degraded,
    /// WorkerPool: its queue is there and ready.
    QueueResolved,
    /// WorkerPool: the API server takes pods like these.
    TemplateAccepted,
    /// WorkerPool: enough of its pods are ready.
    Available,
    /// WorkerPool: the number of pods follows the work.
    ScalingActive,
}

impl ConditionType {
    /// The conditions of a TaskQueue, in the order in which they are shown.
    pub const OF_QUEUES: [Self; 6] = [
        Self::Ready,
        Self::BrokerConnected,
        Self::Provisioned,
        Self::WorkersAvailable,
        Self::EventLogRecording,
        Self::Degraded,
    ];

    /// The conditions of a WorkerPool, in the order in which they are shown.
    pub const OF_POOLS: [Self; 5] =
        [Self::Ready, Self::QueueResolved, Self::TemplateAccepted, Self::Available, Self::ScalingActive];

    /// As it stands in an object's status.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "Ready",
            Self::BrokerConnected => "BrokerConnected",
            Self::Provisioned => "Provisioned",
            Self::WorkersAvailable => "WorkersAvailable",
            Self::EventLogRecording => "EventLogRecording",
            Self::Degraded => "Degraded",
            Self::QueueResolved => "QueueResolved",
            Self::TemplateAccepted => "TemplateAccepted",
            Self::Available => "Available",
            Self::ScalingActive => "ScalingActive",
        }
    }
}

macro_rules! reasons {
    ($($(#[doc = $meaning:literal])+ $name:ident,)*) => {
        /// Why a condition is as it is.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Reason {
            $($(#[doc = $meaning])+ $name,)*
        }

        impl Reason {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// As it stands in a condition.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                }
            }

            /// What it says, for documents.
            pub fn meaning(self) -> &'static str {
                match self {
                    $(Self::$name => concat!($($meaning,)+).trim_ascii(),)*
                }
            }
        }
    };
}

reasons! {
    // Of both resources.
    /// Everything that is asked for is there.
    Ready,
    /// The object cannot be read by this version of the operator.
    NotUnderstood,
    /// The spec contradicts itself.
    InvalidSpec,
    /// It was deleted, and what it leaves behind is being cleared away.
    Deleting,

    // Of TaskQueues: the broker.
    /// The queue's Redis answers.
    Connected,
    /// The queue's Redis was not reached.
    BrokerUnreachable,
    /// The queue's Redis cannot serve right now: it is loading, failing over or moving a slot.
    BrokerBusy,
    /// The queue's Redis refused the user, the password or a command.
    AccessDenied,
    /// The queue's Redis is older than what Windlass works with.
    VersionUnsupported,
    /// The queue names no broker, and the operator has no default Redis.
    NoDefaultBroker,
    /// A Secret that the queue names does not exist.
    SecretNotFound,
    /// A Secret that the queue names lacks the key.
    SecretKeyMissing,
    /// A Secret that the queue names could not be read.
    SecretUnreadable,
    /// The Redis URL, in the spec or in the Secret, is not one.
    InvalidUrl,

    // Of TaskQueues: keys, groups and policy.
    /// Keys, groups and policy are in place.
    Provisioned,
    /// The keys belong to another owner, in this cluster or another one.
    OwnedByAnother,
    /// A key that the queue adopts is no stream.
    NotAStream,
    /// The adopted names have no hash tag in common, and the Redis is a Cluster.
    NoCommonHashTag,
    /// The data was written by a version of Windlass that is too new or too old.
    DataModelVersion,
    /// The queue's Redis is out of memory.
    OutOfMemory,
    /// Redis was not reached, so nothing is known.
    BrokerNotConnected,
    /// It failed in a way that the message tells.
    Failed,

    // Of TaskQueues: workers, history, dangers.
    /// Workers are registered.
    WorkersRegistered,
    /// No worker is registered; that is no fault of the queue.
    NoWorkers,
    /// The queue was not counted yet.
    NotSampled,
    /// What happens is written to the event log.
    Recording,
    /// The operator has no event log.
    NotConfigured,
    /// The event log cannot be written; events wait in the queue's outbox.
    EventLogUnavailable,
    /// Nothing puts the queue's data at risk.
    AsExpected,
    /// Redis may delete tasks when its memory runs out.
    EvictionPolicy,
    /// Redis loses what came after its last snapshot when it ends.
    NotPersistent,
    /// The outbox comes near its bound, at which new tasks are refused.
    OutboxFilling,

    // Of WorkerPools: the queue.
    /// The pool's queue is there.
    QueueFound,
    /// There is no TaskQueue of that name.
    QueueNotFound,
    /// The queue is there, and cannot be worked on yet.
    QueueNotReady,
    /// The queue is being deleted.
    QueueDeleting,
    /// The queue's Redis needs a password, and there is no Secret that gives it to pods.
    NoCredentials,

    // Of WorkerPools: the template.
    /// The API server takes pods like these.
    TemplateAccepted,
    /// The API server takes pods like these, and warns of something.
    AcceptedWithWarnings,
    /// The API server does not take such a Deployment, or no pods can be made of the spec.
    TemplateRefused,
    /// The API server takes the Deployment, and refuses its pods.
    PodsRefused,
    /// A Deployment of the pool's name belongs to somebody else.
    NameTaken,
    /// The template was not judged yet.
    NotJudged,

    // Of WorkerPools: pods, and how many.
    /// As many pods as are wanted are ready.
    PodsReady,
    /// Fewer pods than are wanted are ready.
    PodsNotReady,
    /// Enough pods are ready, and newer ones replace them.
    RollingOut,
    /// Enough pods are ready; a newer worker image or connection waits until other pools have it.
    WaitsForTurn,
    /// No pods are wanted.
    ScaledToZero,
    /// There is no Deployment yet.
    NotDeployed,
    /// The pool is not scaled: its replicas decide.
    FixedReplicas,
    /// The number of pods follows the work.
    FollowsDemand,
    /// The work would want more pods than there may be.
    AtMaximum,
    /// The queue gives out no work, so the number of pods stays.
    QueuePaused,
    /// The queue could not be asked, so the number of pods stays.
    DemandUnknown,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_is_a_word_that_conditions_take_and_has_a_meaning() {
        for reason in Reason::ALL {
            let word = reason.as_str();
            assert!(word.starts_with(|c: char| c.is_ascii_uppercase()), "{word}");
            assert!(word.chars().all(|c| c.is_ascii_alphanumeric()), "{word}");
            assert!(reason.meaning().ends_with('.') && !reason.meaning().starts_with(' '), "{word}");
        }
    }
}
