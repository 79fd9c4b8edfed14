//! One lane: a stream and its group of workers, as far as the scripts use them.

use std::collections::BTreeMap;
use std::fmt;

use crate::protocol::names::{TaskId, TaskType, WorkerId};
use crate::protocol::task::Extras;

/// Names an entry of a lane. One counter for all lanes: ids grow within each, as in Redis.
pub(super) type Message = u64;

/// A lane's name, in the order that Redis gives it: by the bytes of its text.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LaneName {
    text: String,
    pub(super) kind: TaskType,
    pub(super) priority: u8,
    pub(super) history: History,
}

/// Whether a lane's tasks have been claimed before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum History {
    /// Never.
    New,
    /// They have, and go first within their priority.
    RanBefore,
}

impl LaneName {
    pub(super) fn new(kind: &TaskType, priority: u8, history: History) -> Self {
        let mark = if history == History::RanBefore { "+" } else { "" };
        Self { text: format!("{kind}:{priority}{mark}"), kind: kind.clone(), priority, history }
    }

    pub(super) fn as_str(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for LaneName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// What a task carries while no result has come of it.
#[derive(Debug, Clone)]
pub(super) struct Body {
    pub(super) payload: String,
    pub(super) extras: Extras,
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) task: TaskId,
    pub(super) body: Body,
}

/// An entry that a worker has read and not acknowledged.
#[derive(Debug)]
struct Pending {
    worker: WorkerId,
    since_ms: u64,
}

#[derive(Debug, Default)]
pub(super) struct Lane {
    entries: BTreeMap<Message, Entry>,
    pending: BTreeMap<Message, Pending>,
    read_up_to: Message,
}

/// What of a lane's pending list has expired.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Expired {
    pub(super) messages: Vec<Message>,
    /// Where to go on; `None` when the whole list was seen.
    pub(super) next: Option<Message>,
}

impl Lane {
    /// XADD.
    pub(super) fn add(&mut self, message: Message, entry: Entry) {
        self.entries.insert(message, entry);
    }

    /// XREADGROUP: what nobody has read goes to this worker.
    pub(super) fn read(&mut self, worker: &WorkerId, limit: usize, now: u64) -> Vec<(Message, TaskId)> {
        let unread = self.entries.range(self.read_up_to + 1..).take(limit);
        let read: Vec<_> = unread.map(|(message, entry)| (*message, entry.task.clone())).collect();
        for (message, _) in &read {
            self.read_up_to = *message;
            self.pending.insert(*message, Pending { worker: worker.clone(), since_ms: now });
        }
        read
    }

    /// XRANGE of one entry.
    pub(super) fn entry(&self, message: Message) -> Option<&Entry> {
        self.entries.get(&message)
    }

    /// XACK and XDEL.
    pub(super) fn remove(&mut self, message: Message) -> Option<Entry> {
        self.pending.remove(&message);
        self.entries.remove(&message)
    }

    /// The next entry that a read would give.
    pub(super) fn first_unread(&self) -> Option<&Entry> {
        self.entries.range(self.read_up_to + 1..).next().map(|(_, entry)| entry)
    }

    /// XCLAIM: the lease begins again.
    pub(super) fn renew(&mut self, message: Message, now: u64) {
        if let Some(pending) = self.pending.get_mut(&message) {
            pending.since_ms = now;
        }
    }

    /// XPENDING of one worker.
    pub(super) fn pending_of(&self, worker: &WorkerId, limit: usize) -> Vec<Message> {
        let of_worker = self.pending.iter().filter(|(_, pending)| pending.worker == *worker);
        of_worker.map(|(message, _)| *message).take(limit).collect()
    }

    /// XPENDING: whose the pending entries are, one name an entry.
    pub(super) fn holders(&self) -> impl Iterator<Item = &WorkerId> {
        self.pending.values().map(|pending| &pending.worker)
    }

    /// XAUTOCLAIM: up to `limit` entries that nobody has renewed since
    /// `not_since`. It looks at ten times as many, then says where to go on.
    pub(super) fn expired(&self, from: Message, not_since: u64, limit: usize) -> Expired {
        let mut found = Expired::default();
        for (seen, (message, pending)) in self.pending.range(from..).enumerate() {
            if seen == limit * 10 || found.messages.len() == limit {
                found.next = Some(*message);
                break;
            }
            if pending.since_ms <= not_since {
                found.messages.push(*message);
            }
        }
        found
    }

    /// XLEN.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// How many entries are pending.
    pub(super) fn running(&self) -> usize {
        self.pending.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker(name: &str) -> WorkerId {
        WorkerId::new(name).expect("valid")
    }

    fn lane_of(messages: std::ops::RangeInclusive<Message>) -> Lane {
        let mut lane = Lane::default();
        for message in messages {
            let body = Body { payload: "null".into(), extras: Extras::default() };
            lane.add(message, Entry { task: TaskId::new(format!("t{message}")).expect("valid"), body });
        }
        lane
    }

    #[test]
    fn lanes_sort_by_their_text_and_not_by_their_number() {
        let lane = |priority, history| LaneName::new(&TaskType::new("send").expect("valid"), priority, history);
        assert!(lane(10, History::New) < lane(5, History::New));
        assert!(lane(5, History::New) < lane(5, History::RanBefore));
        assert_eq!(lane(5, History::RanBefore).as_str(), "send:5+");
    }

    #[test]
    fn an_entry_is_read_once_and_pending_until_it_is_removed() {
        let mut lane = lane_of(1..=3);
        assert_eq!(lane.read(&worker("a"), 2, 10).len(), 2);
        assert_eq!(lane.read(&worker("b"), 2, 10).len(), 1);
        assert!(lane.first_unread().is_none());
        assert_eq!((lane.pending_of(&worker("a"), 9), lane.running()), (vec![1, 2], 3));
        lane.remove(1);
        assert_eq!((lane.pending_of(&worker("a"), 9), lane.len()), (vec![2], 2));
    }

    #[test]
    fn a_walk_through_expired_leases_is_bounded_and_goes_on_where_it_stopped() {
        let mut lane = lane_of(1..=30);
        lane.read(&worker("a"), 30, 10);
        lane.renew(2, 20);
        assert_eq!(lane.expired(0, 9, 3), Expired { messages: vec![], next: None });
        assert_eq!(lane.expired(0, 10, 2), Expired { messages: vec![1, 3], next: Some(4) });
        assert_eq!(lane.expired(29, 10, 2), Expired { messages: vec![29, 30], next: None });
        assert_eq!(lane.expired(0, 9, 2), Expired { messages: vec![], next: Some(21) }, "twenty were looked at");
    }
}
