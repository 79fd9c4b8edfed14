//! How every Redis key of a queue is spelt. Nothing else spells one.
//!
//! All keys of a queue carry one hash tag, so that it lives in one slot of a
//! Redis Cluster and every script on it is legal there.

use super::names::QueueName;

/// Names that a queue takes over from a system that was there before.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AdoptedKeys {
    /// The stream that producers write to.
    pub task: Option<String>,
    /// The stream of final results.
    pub result: Option<String>,
    /// The stream of dead letters.
    pub dead_letter: Option<String>,
    /// The consumer group on the task stream.
    pub group: Option<String>,
}

impl AdoptedKeys {
    fn streams(&self) -> impl Iterator<Item = &str> {
        [&self.task, &self.result, &self.dead_letter].into_iter().flatten().map(String::as_str)
    }
}

/// Why adopted names cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidKeys {
    /// A name that no stream can have.
    #[error("adopted key {0:?} is not allowed: use 1 to 200 printable characters without spaces")]
    Name(String),
    /// A name that may be another queue's own, or ours.
    #[error(
        "adopted key {0:?} is not allowed: keys adopts streams of another system, and names that begin with windlass: \
         are queues' own: leave such a name out"
    )]
    Own(String),
    /// One stream for two purposes.
    #[error("adopted keys must differ from each other: {0:?} is used twice")]
    Twice(String),
    /// Names that a Redis Cluster would put on different nodes.
    #[error(
        "the adopted keys have no hash tag in common, so a Redis Cluster keeps them on different nodes: \
         give them one, like {{orders}}:tasks and {{orders}}:results, or use a standalone Redis"
    )]
    NoCommonTag,
}

/// The names of a queue's streams and of its group of workers, as its provisioning recorded them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedNames {
    /// The stream that producers write to.
    pub task: String,
    /// The stream of final results.
    pub result: String,
    /// The stream of dead letters.
    pub dead_letter: String,
    /// The consumer group on every lane.
    pub group: String,
}

/// The keys of one queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keys {
    queue: QueueName,
    prefix: String,
    /// Where producers that know nothing of Windlass write.
    pub task: String,
    /// Final results: exactly one a task.
    pub result: String,
    /// Dead letters.
    pub dead_letter: String,
    /// The consumer group of workers, on every lane.
    pub group: String,
}

impl Keys {
    /// Longest name of an adopted key or group.
    const LONGEST: usize = 200;
    /// What every key begins with that was not adopted.
    const OWN: &str = "windlass:";

    /// The keys of a queue with names of its own.
    pub fn new(queue: &QueueName) -> Self {
        let prefix = format!("windlass:{{{queue}}}:");
        Self {
            task: format!("{prefix}task"),
            result: format!("{prefix}result"),
            dead_letter: format!("{prefix}dlq"),
            group: "workers".to_owned(),
            queue: queue.clone(),
            prefix,
        }
    }

    /// The keys of a queue that goes on using names that exist already.
    ///
    /// Where the adopted names share a hash tag, all other keys follow it.
    pub fn adopting(queue: &QueueName, adopted: &AdoptedKeys) -> Result<Self, InvalidKeys> {
        let mut seen = std::collections::BTreeSet::new();
        for name in adopted.streams().chain(adopted.group.as_deref()) {
            if name.is_empty() || name.len() > Self::LONGEST || !name.bytes().all(|b| b.is_ascii_graphic()) {
                return Err(InvalidKeys::Name(name.chars().take(80).collect()));
            }
        }
        for name in adopted.streams() {
            // Nobody records whose those are but the queue itself, so two could read one stream.
            if name.starts_with(Self::OWN) {
                return Err(InvalidKeys::Own(name.to_owned()));
            }
            if !seen.insert(name) {
                return Err(InvalidKeys::Twice(name.to_owned()));
            }
        }
        let mut keys = Self::new(queue);
        if let Some(tag) = common_tag(adopted.streams()) {
            keys.prefix = format!("windlass:{{{tag}}}{queue}:");
        }
        let own = |name: &str| format!("{}{name}", keys.prefix);
        keys.task = adopted.task.clone().unwrap_or_else(|| own("task"));
        keys.result = adopted.result.clone().unwrap_or_else(|| own("result"));
        keys.dead_letter = adopted.dead_letter.clone().unwrap_or_else(|| own("dlq"));
        keys.group = adopted.group.clone().unwrap_or(keys.group);
        Ok(keys)
    }

    /// What the policies of all queues match, for a server to look for them.
    pub const ANY_POLICY: &str = "windlass:{*}*:policy";

    /// What a queue's policy matches if the queue adopted names with a hash tag of their own.
    pub fn adopted_policy(queue: &QueueName) -> String {
        format!("windlass:{{*}}{queue}:policy")
    }

    /// The keys of the queue whose policy has that key; `None` if no queue's policy is called so.
    /// Names that nobody recorded are the queue's own.
    pub fn of_policy(key: &str, names: Option<RecordedNames>) -> Option<Self> {
        let prefix = key.strip_suffix("policy")?;
        let (tag, rest) = prefix.strip_prefix("windlass:{")?.strip_suffix(':')?.split_once('}')?;
        let queue: QueueName = if rest.is_empty() { tag } else { rest }.parse().ok()?;
        let mut keys = Self::new(&queue);
        keys.prefix = prefix.to_owned();
        if let Some(RecordedNames { task, result, dead_letter, group }) = names {
            keys = Self { task, result, dead_letter, group, ..keys };
        }
        Some(keys)
    }

    /// Whether a Redis Cluster would keep all keys in one slot.
    pub fn check_for_cluster(&self) -> Result<(), InvalidKeys> {
        let tag = hash_tag(&self.prefix);
        let together = [&self.task, &self.result, &self.dead_letter].into_iter().all(|key| hash_tag(key) == tag);
        if together { Ok(()) } else { Err(InvalidKeys::NoCommonTag) }
    }

    /// Whether a stream of it has a name that was there before.
    pub fn adopts(&self) -> bool {
        [&self.task, &self.result, &self.dead_letter].iter().any(|stream| !stream.starts_with(&self.prefix))
    }

    /// Whether another queue with those keys would use a stream of this one.
    pub fn share_a_stream(&self, other: &Self) -> bool {
        let theirs = [&other.task, &other.result, &other.dead_letter];
        [&self.task, &self.result, &self.dead_letter].iter().any(|ours| theirs.contains(ours))
    }

    /// The queue whose keys these are.
    pub fn queue(&self) -> &QueueName {
        &self.queue
    }

    /// What all keys begin with that were not adopted.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The policy; a script derives the rest of the queue's keys from it.
    pub fn policy(&self) -> String {
        self.own("policy")
    }

    /// Data-model version and owner.
    pub fn meta(&self) -> String {
        self.own("meta")
    }

    /// Live tasks: id to packed record.
    pub fn live(&self) -> String {
        self.own("live")
    }

    /// Lanes that hold work that nobody has read.
    pub fn ready(&self) -> String {
        self.own("ready")
    }

    /// Tasks that wait for their time.
    pub fn delayed(&self) -> String {
        self.own("delayed")
    }

    /// Dead tasks whose dead letter is not recorded yet.
    pub fn dlq_pending(&self) -> String {
        self.own("dlq_pending")
    }

    /// Dead letters that nobody has decided on.
    pub fn dead(&self) -> String {
        self.own("dead")
    }

    /// Outbox to the event log.
    pub fn events(&self) -> String {
        self.own("events")
    }

    /// Registered workers.
    pub fn workers(&self) -> String {
        self.own("workers")
    }

    /// Workers by last heartbeat.
    pub fn heartbeats(&self) -> String {
        self.own("heartbeats")
    }

    /// Counters.
    pub fn stats(&self) -> String {
        self.own("stats")
    }

    /// Every lane that exists.
    pub fn lanes(&self) -> String {
        self.own("lanes")
    }

    /// The stream that is rung for idle workers of a class.
    pub fn wake(&self, class: &str) -> String {
        self.own(&format!("wake:{class}"))
    }

    fn own(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }
}

/// The consumer group through which idle workers are woken, one a ring.
pub const BELL_GROUP: &str = "bell";

/// Where scripts publish what a queue's leader should look at: the queue's
/// prefix and a word.
pub const NOTICES_CHANNEL: &str = "windlass:notices";

/// The part of a key that a Redis Cluster hashes, where braces mark one.
fn hash_tag(key: &str) -> Option<&str> {
    let (_, rest) = key.split_once('{')?;
    let (tag, _) = rest.split_once('}')?;
    (!tag.is_empty()).then_some(tag)
}

/// The hash tag that all these keys have, if they have one in common.
fn common_tag<'a>(keys: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let mut tags = keys.map(hash_tag);
    let first = tags.next()??;
    tags.all(|tag| tag == Some(first)).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue() -> QueueName {
        "shop/emails".parse().expect("valid")
    }

    #[test]
    fn every_key_of_a_queue_carries_its_hash_tag() {
        let keys = Keys::new(&queue());
        for key in [keys.policy(), keys.wake("all"), keys.task.clone(), keys.result.clone(), keys.dead_letter.clone()] {
            assert_eq!(hash_tag(&key), Some("shop/emails"), "{key}");
        }
        keys.check_for_cluster().expect("own names are always together");
    }

    #[test]
    fn keys_are_found_again_by_the_policy_and_the_recorded_names() {
        let own = Keys::new(&queue());
        assert_eq!(Keys::of_policy(&own.policy(), None), Some(own));
        let tagged = AdoptedKeys { task: Some("{ade}:tasks".into()), ..AdoptedKeys::default() };
        let plain = AdoptedKeys { result: Some("stream:result".into()), ..AdoptedKeys::default() };
        for adopted in [tagged, plain] {
            let keys = Keys::adopting(&queue(), &adopted).expect("valid");
            let Keys { task, result, dead_letter, group, .. } = keys.clone();
            let names = RecordedNames { task, result, dead_letter, group };
            assert_eq!(Keys::of_policy(&keys.policy(), Some(names)), Some(keys));
        }
        for odd in ["", "policy", "windlass:{shop/emails}:live", "windlass:{}:policy", "windlass:{a b}:policy"] {
            assert_eq!(Keys::of_policy(odd, None), None, "{odd:?}");
        }
    }

    #[test]
    fn adopted_names_bring_their_own_tag() {
        let adopted = AdoptedKeys {
            task: Some("{ade}:queue:tasks".into()),
            result: Some("{ade}:results".into()),
            ..AdoptedKeys::default()
        };
        let keys = Keys::adopting(&queue(), &adopted).expect("valid");
        assert_eq!(hash_tag(&keys.policy()), Some("ade"));
        assert!(keys.policy().contains("shop/emails"), "two queues under one tag stay apart");
        keys.check_for_cluster().expect("one tag");
    }

    #[test]
    fn crossslot_adopted_names_without_a_common_tag_are_refused_on_a_cluster() {
        let adopted = AdoptedKeys {
            task: Some("stream:task".into()),
            result: Some("stream:result".into()),
            dead_letter: Some("stream:dlq".into()),
            group: Some("cg:workers".into()),
        };
        let keys = Keys::adopting(&queue(), &adopted).expect("fine on a standalone Redis");
        assert_eq!((keys.task.as_str(), keys.group.as_str()), ("stream:task", "cg:workers"));
        let error = keys.check_for_cluster().expect_err("three slots");
        assert!(error.to_string().contains("{orders}:tasks"), "{error}");
    }

    #[test]
    fn queues_that_adopt_one_stream_for_whatever_share_it() {
        let with = |name: &str, task: &str, result: &str| {
            let adopted =
                AdoptedKeys { task: Some(task.into()), result: Some(result.into()), ..AdoptedKeys::default() };
            Keys::adopting(&name.parse().expect("valid"), &adopted).expect("valid")
        };
        let first = with("shop/first", "a", "b");
        assert!(
            first.share_a_stream(&with("shop/second", "b", "c"))
                && !first.share_a_stream(&with("shop/second", "c", "d"))
        );
        assert!(!first.share_a_stream(&Keys::new(&queue())));
        assert!(first.adopts() && !Keys::new(&queue()).adopts());
    }

    #[test]
    fn the_own_names_of_queues_are_not_adopted() {
        for task in ["windlass:{shop/emails}:task", "windlass:{shop/letters}:lane:send:5", "windlass:adopted:s"] {
            let adopted = AdoptedKeys { task: Some(task.into()), ..AdoptedKeys::default() };
            assert_eq!(Keys::adopting(&queue(), &adopted), Err(InvalidKeys::Own(task.into())));
        }
        let ours =
            AdoptedKeys { task: Some("windlass".into()), group: Some("windlass:g".into()), ..Default::default() };
        Keys::adopting(&queue(), &ours).expect("neither is a key of ours");
    }

    #[test]
    fn one_stream_cannot_serve_two_purposes() {
        let twice = AdoptedKeys { task: Some("s".into()), result: Some("s".into()), ..AdoptedKeys::default() };
        assert_eq!(Keys::adopting(&queue(), &twice), Err(InvalidKeys::Twice("s".into())));
        let spaces = AdoptedKeys { task: Some("a b".into()), ..AdoptedKeys::default() };
        assert!(matches!(Keys::adopting(&queue(), &spaces), Err(InvalidKeys::Name(_))));
    }
}
