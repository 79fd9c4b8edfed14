//! How much work a run is given, and in which portions.

use std::sync::atomic::{AtomicUsize, Ordering};

/// The work of one throughput run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Load {
    /// Tasks.
    pub(super) tasks: usize,
    /// Tasks a call.
    pub(super) batch: usize,
    /// Calls under way at once, on each side.
    pub(super) in_flight: usize,
}

impl Load {
    /// With as many calls under way as the batches leave sensible: each of
    /// them holds a whole batch.
    pub(super) fn new(tasks: usize, batch: usize, concurrency: usize) -> Self {
        const FEWEST: usize = 4;
        let in_flight = (concurrency / batch.max(1)).max(FEWEST.min(concurrency));
        Self { tasks, batch, in_flight }
    }
}

/// Deals out task numbers in batches to several producers.
pub(super) struct Numbers {
    next: AtomicUsize,
    end: usize,
    batch: usize,
}

impl Numbers {
    /// The numbers from `first` on, as many as the load has tasks.
    pub(super) fn new(first: usize, load: Load) -> Self {
        Self { next: AtomicUsize::new(first), end: first + load.tasks, batch: load.batch }
    }

    /// The next batch; `None` when all were dealt.
    pub(super) fn deal(&self) -> Option<std::ops::Range<usize>> {
        let from = self.next.fetch_add(self.batch, Ordering::Relaxed);
        (from < self.end).then(|| from..(from + self.batch).min(self.end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_dealt_once() {
        let numbers = Numbers::new(5, Load::new(7, 3, 32));
        let dealt: Vec<_> = std::iter::from_fn(|| numbers.deal()).collect();
        assert_eq!(dealt, [5..8, 8..11, 11..12]);
    }

    #[test]
    fn larger_batches_are_fewer_at_once() {
        let in_flight = |batch, concurrency| Load::new(1, batch, concurrency).in_flight;
        assert_eq!((in_flight(1, 32), in_flight(10, 32), in_flight(100, 32)), (32, 4, 4));
        assert_eq!((in_flight(1, 1), in_flight(100, 2)), (1, 2));
    }
}
