//! Names, parsed once at the edge.
//!
//! Each type here can only hold a value that is safe in a Redis key, a packed
//! record and a log line, so nothing further in has to check again.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Why a name was refused, in a sentence that says what is allowed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} {value:?} is not allowed: {rule}")]
pub struct InvalidName {
    /// Which kind of name it was meant to be.
    pub what: &'static str,
    /// What was given, cut to a length that fits a log line.
    pub value: String,
    /// What would be accepted.
    pub rule: &'static str,
}

impl InvalidName {
    fn new(what: &'static str, value: &str, rule: &'static str) -> Self {
        Self { what, value: value.chars().take(80).collect(), rule }
    }
}

/// Declares a string type whose values obey one rule.
macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident, $what:literal, $rule:literal, $check:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// What this type accepts, for messages.
            pub const RULE: &'static str = $rule;

            /// Checks and takes a name.
            pub fn new(value: impl Into<String>) -> Result<Self, InvalidName> {
                let value = value.into();
                let check: fn(&str) -> bool = $check;
                if check(&value) { Ok(Self(value)) } else { Err(InvalidName::new($what, &value, $rule)) }
            }

            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidName;
            fn try_from(value: String) -> Result<Self, InvalidName> {
                Self::new(value)
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.0
            }
        }

        impl FromStr for $name {
            type Err = InvalidName;
            fn from_str(value: &str) -> Result<Self, InvalidName> {
                Self::new(value)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

/// True for 1 to `max` printable ASCII characters without spaces.
fn graphic(value: &str, max: usize) -> bool {
    (1..=max).contains(&value.len()) && value.bytes().all(|b| b.is_ascii_graphic())
}

/// True for 1 to `max` bytes of text without control characters.
fn text(value: &str, max: usize) -> bool {
    (1..=max).contains(&value.len()) && !value.chars().any(char::is_control)
}

/// True for a Kubernetes label name: what a namespace or a resource may be called.
fn dns_label(value: &str) -> bool {
    let edge = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    (1..=63).contains(&value.len())
        && value.bytes().all(|b| edge(&b) || b == b'-')
        && value.as_bytes().first().is_some_and(edge)
        && value.as_bytes().last().is_some_and(edge)
}

/// True for a task type: it becomes part of a lane's key, so separators that a
/// key or a list of types uses are left out.
fn task_type(value: &str) -> bool {
    (1..=100).contains(&value.len())
        && value.as_bytes()[0].is_ascii_alphanumeric()
        && value.bytes().all(|b| b.is_ascii_alphanumeric() || b"._/:-".contains(&b))
}

name_type!(
    /// The id of one task. Clients make it, so that an enqueue can be repeated safely.
    TaskId,
    "task id",
    "use 1 to 128 printable ASCII characters without spaces",
    |v| graphic(v, 128)
);

impl TaskId {
    /// A new id that sorts by the time it was made (UUID version 7).
    pub fn generate() -> Self {
        Self(uuid::Uuid::now_v7().to_string())
    }
}

name_type!(
    /// What kind of work a task is; workers name the types that they can do.
    TaskType,
    "task type",
    "use 1 to 100 letters, digits or . _ / : - and begin with a letter or digit",
    task_type
);

impl TaskType {
    /// The type of raw entries that name none.
    pub const DEFAULT: &'static str = "default";
}

impl Default for TaskType {
    fn default() -> Self {
        Self(Self::DEFAULT.to_owned())
    }
}

name_type!(
    /// One start of one worker process. Never used again: a restarted worker has another.
    WorkerId,
    "worker id",
    "use 1 to 200 printable ASCII characters without spaces",
    |v| graphic(v, 200)
);

name_type!(
    /// On whose behalf a task runs.
    TenantId,
    "tenant id",
    "use 1 to 128 bytes without control characters",
    |v| text(v, 128)
);

name_type!(
    /// The caller's own name for a piece of work that must be done once.
    IdempotencyKey,
    "idempotency key",
    "use 1 to 512 bytes without control characters",
    |v| text(v, 512)
);

name_type!(
    /// Follows a task from its producer to its handler (a `traceparent` fits).
    TraceId,
    "trace id",
    "use 1 to 128 printable ASCII characters without spaces",
    |v| graphic(v, 128)
);

/// A queue: the namespace and name of its `TaskQueue`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QueueName {
    namespace: String,
    name: String,
}

impl QueueName {
    /// The namespace of a queue that is given by its name alone.
    pub const DEFAULT_NAMESPACE: &'static str = "default";
    const RULE: &'static str = "use NAME or NAMESPACE/NAME, each 1 to 63 lower-case letters, digits or -, beginning and ending with a letter or digit";

    /// Checks and takes a queue's namespace and name.
    pub fn new(namespace: &str, name: &str) -> Result<Self, InvalidName> {
        if dns_label(namespace) && dns_label(name) {
            Ok(Self { namespace: namespace.to_owned(), name: name.to_owned() })
        } else {
            Err(InvalidName::new("queue", &format!("{namespace}/{name}"), Self::RULE))
        }
    }

    /// The namespace that the queue lives in.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The queue's name inside its namespace.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl FromStr for QueueName {
    type Err = InvalidName;
    fn from_str(value: &str) -> Result<Self, InvalidName> {
        let (namespace, name) = value.split_once('/').unwrap_or((Self::DEFAULT_NAMESPACE, value));
        Self::new(namespace, name).map_err(|_| InvalidName::new("queue", value, Self::RULE))
    }
}

impl fmt::Display for QueueName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Number of a claim on one task: it goes up by one with each, and fences off
/// every earlier holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(pub u64);

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Names one dead letter: the task and the epoch at which it died, so that
/// recording it twice is recording it once.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeadLetterId {
    /// The task that died.
    pub task: TaskId,
    /// Its last claim.
    pub epoch: Epoch,
}

impl fmt::Display for DeadLetterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.task, self.epoch)
    }
}

impl FromStr for DeadLetterId {
    type Err = InvalidName;
    fn from_str(value: &str) -> Result<Self, InvalidName> {
        let invalid = || InvalidName::new("dead letter id", value, "use TASK_ID#EPOCH as `dlq list` prints it");
        let (task, epoch) = value.rsplit_once('#').ok_or_else(invalid)?;
        let epoch = epoch.parse().map_err(|_| invalid())?;
        Ok(Self { task: TaskId::new(task).map_err(|_| invalid())?, epoch: Epoch(epoch) })
    }
}

/// The set of task types that a worker can do; empty means every type.
///
/// Workers with the same set form a *class*: they sleep on the same bell and
/// share one index of lanes with work for them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Capabilities(std::collections::BTreeSet<TaskType>);

impl Capabilities {
    /// The most types that one worker may name.
    pub const MAX_TYPES: usize = 64;

    /// Every type.
    pub fn any() -> Self {
        Self::default()
    }

    /// Just these types.
    pub fn of(types: impl IntoIterator<Item = TaskType>) -> Result<Self, InvalidName> {
        let types: std::collections::BTreeSet<_> = types.into_iter().collect();
        if types.len() > Self::MAX_TYPES {
            let rule = "name at most 64 types, or none to accept every type";
            return Err(InvalidName::new("set of capabilities", &format!("{} types", types.len()), rule));
        }
        Ok(Self(types))
    }

    /// Whether a worker of this class may run tasks of that type.
    pub fn cover(&self, task_type: &TaskType) -> bool {
        self.0.is_empty() || self.0.contains(task_type)
    }

    /// The types, in order; empty for every type.
    pub fn types(&self) -> impl Iterator<Item = &TaskType> {
        self.0.iter()
    }

    /// The class's name: `all`, the types themselves where they are short, else a digest of them.
    pub fn class(&self) -> String {
        const LONGEST_READABLE: usize = 64;
        if self.0.is_empty() {
            return "all".to_owned();
        }
        let joined = self.joined();
        if joined.len() <= LONGEST_READABLE {
            return format!("={joined}");
        }
        format!("#{}", &sha1_smol::Sha1::from(joined).digest().to_string()[..16])
    }

    /// The types as one comma-separated word, as scripts take them.
    pub fn joined(&self) -> String {
        self.0.iter().map(TaskType::as_str).collect::<Vec<_>>().join(",")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_without_a_namespace_is_in_default() {
        let queue: QueueName = "emails".parse().expect("a plain name");
        assert_eq!(queue.to_string(), "default/emails");
        assert_eq!("shop/emails".parse::<QueueName>().expect("both").namespace(), "shop");
    }

    #[test]
    fn names_that_would_break_a_key_are_refused_with_a_sentence() {
        for bad in ["", "a b", "Shop/x", "a/b/c", "x{y}", "-a", "a-"] {
            let error = bad.parse::<QueueName>().expect_err(bad);
            assert!(error.to_string().contains("use NAME or NAMESPACE/NAME"), "{error}");
        }
        for bad in ["", "a\nb", "a b", "a,b", "a+b", "{a}", ":a", &"x".repeat(101)] {
            assert!(TaskType::new(bad).is_err(), "{bad:?}");
        }
        for bad in ["", "a b", "a\n", &"x".repeat(129)] {
            assert!(TaskId::new(bad).is_err(), "{bad:?}");
        }
        assert!(IdempotencyKey::new("order 7, ünïcode").is_ok());
        assert!(IdempotencyKey::new("a\0b").is_err());
    }

    #[test]
    fn a_dead_letter_id_survives_printing_even_when_the_task_id_holds_its_separator() {
        let id = DeadLetterId { task: TaskId::new("a#b").expect("valid"), epoch: Epoch(4) };
        assert_eq!(id.to_string().parse::<DeadLetterId>().expect("round trip"), id);
        assert!("nothing".parse::<DeadLetterId>().is_err());
    }

    #[test]
    fn a_class_is_the_same_whatever_the_order_of_its_types() {
        let types =
            |names: &[&str]| Capabilities::of(names.iter().map(|n| TaskType::new(*n).expect("valid"))).expect("few");
        assert_eq!(types(&["b", "a"]).class(), types(&["a", "b"]).class());
        assert_ne!(types(&["all"]).class(), Capabilities::any().class());
        let many: Vec<String> = (0..40).map(|i| format!("type-{i}")).collect();
        let many = types(&many.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(many.class().len(), 17);
    }
}
