//! How many pods a pool should have.
//!
//! Pure: what was asked for, what is there and what there is to do in, a number
//! out. What is not known is not guessed: the number stays.

use std::time::{Duration, Instant};

use crate::broker::Demand;
use crate::crd::{Autoscaling, WorkerPoolSpec};
use crate::protocol::policy::Mode;

/// Why there are as many pods as there are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Because {
    /// `spec.replicas` says so.
    Asked,
    /// The work says so.
    Demand {
        /// Tasks that wait, run or are due.
        tasks: u64,
    },
    /// The work would want more than there may be.
    AtMost {
        /// How many the work wants.
        wanted: u64,
    },
    /// Fewer would do, but not for long enough yet.
    Settling,
    /// The queue gives out no work: nobody knows how many will be needed.
    Paused,
    /// The queue could not be asked.
    Unknown,
}

/// A number of pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Scale {
    pub(super) replicas: i32,
    pub(super) because: Because,
}

/// Since when fewer pods would have been enough, and how many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slack {
    since: Instant,
    /// The most that were needed at any time since.
    enough: u32,
}

/// What a decision is made from.
#[derive(Debug)]
pub(super) struct Situation<'a> {
    pub(super) spec: &'a WorkerPoolSpec,
    /// What the Deployment asks for now; `None` if there is none.
    pub(super) current: Option<i32>,
    /// `None` if the queue could not be asked.
    pub(super) demand: Option<&'a Demand>,
    /// How many of its pods hold tasks.
    pub(super) busy: u32,
    pub(super) slack: Option<Slack>,
    pub(super) now: Instant,
}

/// How many pods there should be, and what to remember until the next decision.
pub(super) fn decide(situation: &Situation<'_>) -> (Scale, Option<Slack>) {
    let Some(autoscaling) = &situation.spec.autoscaling else {
        return (scale(situation.spec.replicas, Because::Asked), None);
    };
    let current = situation.current.map_or(autoscaling.min_replicas, |now| u32::try_from(now).unwrap_or(0));
    // The bounds are the owner's word, which needs no further knowledge.
    let current = current.clamp(autoscaling.min_replicas, autoscaling.max_replicas.max(autoscaling.min_replicas));
    match situation.demand {
        None => (scale(current, Because::Unknown), None),
        Some(demand) if demand.mode != Mode::Running => (scale(current, Because::Paused), None),
        Some(demand) => follow(autoscaling, current, demand, situation),
    }
}

fn follow(
    autoscaling: &Autoscaling,
    current: u32,
    demand: &Demand,
    situation: &Situation<'_>,
) -> (Scale, Option<Slack>) {
    let tasks = demand.total();
    let needed = tasks.div_ceil(autoscaling.tasks_per_replica.max(1).into());
    let bounded = needed.clamp(autoscaling.min_replicas.into(), autoscaling.max_replicas.into());
    let wanted = u32::try_from(bounded).unwrap_or(autoscaling.max_replicas);
    // Few tasks may run in many pods, and one that goes with its tasks may have to give them back: none goes before
    // it is done. The owner's bound is in what there is now.
    let wanted = wanted.max(situation.busy.min(current));
    if wanted >= current {
        let because = if needed > bounded { Because::AtMost { wanted: needed } } else { Because::Demand { tasks } };
        return (scale(wanted, because), None);
    }
    let slack = situation.slack.unwrap_or(Slack { since: situation.now, enough: wanted });
    let slack = Slack { enough: slack.enough.max(wanted).min(current), ..slack };
    let patience = Duration::from_secs(autoscaling.scale_down_after_seconds.into());
    if situation.now.saturating_duration_since(slack.since) < patience {
        return (scale(current, Because::Settling), Some(slack));
    }
    // The most that was needed in that time; what is needed less than that has to prove itself anew.
    (scale(slack.enough, Because::Demand { tasks }), None)
}

fn scale(replicas: u32, because: Because) -> Scale {
    Scale { replicas: i32::try_from(replicas).unwrap_or(i32::MAX), because }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn spec(autoscaling: bool) -> WorkerPoolSpec {
        let mut spec: WorkerPoolSpec = serde_json::from_value(json!({
            "queueRef": {"name": "q"}, "handler": {"type": "SDK"}, "replicas": 3,
            "template": {"spec": {"containers": [{"name": "app", "image": "a"}]}},
        }))
        .expect("a spec");
        spec.autoscaling = autoscaling.then_some(Autoscaling {
            min_replicas: 0,
            max_replicas: 10,
            tasks_per_replica: 20,
            scale_down_after_seconds: 60,
        });
        spec
    }

    fn work(backlog: u64, running: u64, due: u64) -> Demand {
        Demand { backlog, running, due, ..Demand::default() }
    }

    /// The pool at these moments (in seconds), with this demand at each: the numbers that come of it.
    fn over_time(current: i32, steps: &[(u64, Option<Demand>)]) -> Vec<i32> {
        let steps: Vec<_> = steps.iter().map(|(second, demand)| (*second, demand.clone(), 0)).collect();
        with_busy_pods(current, &steps)
    }

    /// The same, with so many pods that hold tasks at each moment.
    fn with_busy_pods(mut current: i32, steps: &[(u64, Option<Demand>, u32)]) -> Vec<i32> {
        let (spec, start, mut slack, mut seen) = (spec(true), Instant::now(), None, Vec::new());
        for (second, demand, busy) in steps {
            let (now, demand) = (start + Duration::from_secs(*second), demand.as_ref());
            let situation = Situation { spec: &spec, current: Some(current), demand, busy: *busy, slack, now };
            let (scale, next) = decide(&situation);
            (current, slack) = (scale.replicas, next);
            seen.push(current);
        }
        seen
    }

    #[test]
    fn without_autoscaling_the_spec_decides_whatever_the_work() {
        let spec = spec(false);
        let situation = Situation {
            spec: &spec,
            current: Some(7),
            demand: Some(&work(900, 0, 0)),
            busy: 0,
            slack: None,
            now: Instant::now(),
        };
        assert_eq!(decide(&situation).0, Scale { replicas: 3, because: Because::Asked });
    }

    /// closes: keda#6478, keda#7835 (one message does not wake zero workers)
    #[test]
    fn any_task_wakes_an_empty_pool_at_once() {
        for demand in [work(1, 0, 0), work(0, 1, 0), work(0, 0, 1)] {
            assert_eq!(over_time(0, &[(0, Some(demand))]), [1]);
        }
        assert_eq!(over_time(0, &[(0, Some(work(41, 0, 0)))]), [3]);
        assert_eq!(over_time(0, &[(0, Some(work(4000, 0, 0)))]), [10], "no more than there may be");
    }

    /// closes: keda#7368, #3674, #2901 (scaled in on backlog 0 while tasks run)
    #[test]
    fn running_and_due_tasks_keep_pods() {
        assert_eq!(over_time(2, &[(0, Some(work(0, 30, 0))), (600, Some(work(0, 30, 0)))]), [2, 2]);
        assert_eq!(over_time(1, &[(0, Some(work(0, 0, 1))), (600, Some(work(0, 0, 1)))]), [1, 1]);
    }

    /// closes: keda#7368 (few long tasks in many pods: the pods that go are busy ones)
    #[test]
    fn a_pod_that_holds_tasks_is_not_scaled_away_however_few_they_are() {
        // A hundred tasks that take long, in five pods: with twenty left, one pod would be enough for them.
        let long = |left| Some(work(0, left, 0));
        let steps = [(0, long(100), 5), (60, long(20), 5), (600, long(20), 5), (700, long(12), 3), (760, long(12), 3)];
        assert_eq!(with_busy_pods(5, &steps), [5, 5, 5, 5, 3], "idle ones go, and only those");
        let done = [(0, long(5), 2), (59, long(1), 1), (60, long(1), 1), (120, long(1), 1), (180, long(0), 0)];
        assert_eq!(with_busy_pods(3, &done), [3, 3, 2, 2, 1], "the last one goes when nothing is left for a while");
        assert_eq!(with_busy_pods(50, &[(0, long(50), 50)]), [10], "the owner's bound is the owner's word");
        assert_eq!(with_busy_pods(1, &[(0, long(20), 7)]), [1], "pods that are leaving bring no others");
    }

    /// closes: KEDA's lag NULL read as zero; keda#7239, #4098 (an outage scales workers away)
    #[test]
    fn what_is_not_known_changes_nothing_and_begins_the_wait_anew() {
        let none = || Some(work(0, 0, 0));
        assert_eq!(over_time(5, &[(0, None), (600, None)]), [5, 5]);
        assert_eq!(
            over_time(5, &[(0, none()), (59, None), (61, none()), (120, none()), (121, none())]),
            [5, 5, 5, 5, 0]
        );
    }

    #[test]
    fn fewer_pods_must_have_been_enough_for_a_while_and_the_most_that_was_needed_stays() {
        let steps = [
            (0, Some(work(20, 0, 0))),
            (30, Some(work(60, 0, 0))),
            (59, Some(work(0, 0, 0))),
            (60, Some(work(0, 0, 0))),
        ];
        assert_eq!(over_time(5, &steps), [5, 5, 5, 3]);
        let again = [(0, Some(work(20, 0, 0))), (30, Some(work(100, 0, 0))), (61, Some(work(20, 0, 0)))];
        assert_eq!(over_time(5, &again), [5, 5, 5], "a moment of need begins the wait anew");
    }

    #[test]
    fn a_paused_queue_is_no_reason_to_change_anything() {
        let paused = Demand { mode: Mode::Paused, ..work(4000, 0, 0) };
        assert_eq!(over_time(2, &[(0, Some(paused.clone())), (600, Some(paused))]), [2, 2]);
    }

    #[test]
    fn the_bounds_hold_also_when_nothing_is_known() {
        assert_eq!(over_time(50, &[(0, None)]), [10]);
        let spec = spec(true);
        let now = Instant::now();
        let situation = Situation { spec: &spec, current: None, demand: None, busy: 0, slack: None, now };
        assert_eq!(decide(&situation).0.replicas, 0, "a pool that begins, begins at its minimum");
    }
}
