//! Members by time, then by name: a sorted set of Redis.

use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug)]
pub(super) struct TimeSet<T> {
    by_time: BTreeSet<(u64, T)>,
    times: BTreeMap<T, u64>,
}

impl<T> Default for TimeSet<T> {
    fn default() -> Self {
        Self { by_time: BTreeSet::new(), times: BTreeMap::new() }
    }
}

impl<T: Ord + Clone> TimeSet<T> {
    /// ZADD: a member that is there already moves.
    pub(super) fn put(&mut self, member: &T, time: u64) {
        self.remove(member);
        self.by_time.insert((time, member.clone()));
        self.times.insert(member.clone(), time);
    }

    /// ZREM.
    pub(super) fn remove(&mut self, member: &T) {
        if let Some(time) = self.times.remove(member) {
            self.by_time.remove(&(time, member.clone()));
        }
    }

    /// ZSCORE.
    pub(super) fn time_of(&self, member: &T) -> Option<u64> {
        self.times.get(member).copied()
    }

    /// ZRANGEBYSCORE from the beginning: members whose time is not after `now`.
    pub(super) fn due(&self, now: u64, limit: usize) -> Vec<T> {
        self.iter().take_while(|(time, _)| *time <= now).take(limit).map(|(_, member)| member.clone()).collect()
    }

    /// Every member with its time, the first first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &(u64, T)> {
        self.by_time.iter()
    }

    /// The first member's time.
    pub(super) fn first_time(&self) -> Option<u64> {
        self.by_time.first().map(|(time, _)| *time)
    }

    /// ZCARD.
    pub(super) fn len(&self) -> usize {
        self.times.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_come_by_time_then_by_name_and_move_when_put_again() {
        let mut set = TimeSet::default();
        for (member, time) in [("b", 2), ("a", 2), ("c", 1), ("d", 9)] {
            set.put(&member, time);
        }
        assert_eq!(set.due(2, 10), ["c", "a", "b"]);
        assert_eq!(set.due(2, 1), ["c"]);
        set.put(&"c", 3);
        assert_eq!((set.first_time(), set.time_of(&"c"), set.len()), (Some(2), Some(3), 4));
        set.remove(&"a");
        assert_eq!(set.due(u64::MAX, 10), ["b", "c", "d"]);
    }
}
