//! A pool's status, composed from what was found and done.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::deployment::selector;
use super::observe::Work;
use crate::crd::{WorkerPool, WorkerPoolStatus};
use crate::operator::conditions::{Judgement, conditions};
use crate::operator::status::Status;

impl Status for WorkerPoolStatus {
    fn conditions_mut(&mut self) -> &mut Vec<Condition> {
        &mut self.conditions
    }

    fn take_counts(&mut self, other: &Self) {
        (self.workers, self.running, self.ready_replicas) = (other.workers, other.running, other.ready_replicas);
        // What a condition says in numbers changes with them.
        for condition in &mut self.conditions {
            let same = |known: &&Condition| {
                (&known.type_, &known.status, &known.reason) == (&condition.type_, &condition.status, &condition.reason)
            };
            if let Some(known) = other.conditions.iter().find(same) {
                condition.message.clone_from(&known.message);
            }
        }
    }
}

/// The status of a pool. What is not known stays as it was told last.
pub(super) fn compose(
    pool: &WorkerPool,
    judged: &[Judgement],
    live: Option<&Deployment>,
    desired: i32,
    work: Option<&Work>,
) -> WorkerPoolStatus {
    let before = pool.status.clone().unwrap_or_default();
    let counted = live.and_then(|live| live.status.as_ref());
    let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
    WorkerPoolStatus {
        observed_generation: pool.metadata.generation,
        conditions: conditions(judged, &before.conditions, pool.metadata.generation),
        replicas: Some(counted.and_then(|status| status.replicas).unwrap_or(0)),
        ready_replicas: Some(counted.and_then(|status| status.ready_replicas).unwrap_or(0)),
        desired_replicas: Some(desired),
        selector: Some(selector(pool)),
        workers: work.map(|work| number(work.workers.len())).or(before.workers),
        running: work.map(|work| i64::try_from(work.held()).unwrap_or(i64::MAX)).or(before.running),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operator::conditions::Judgement;
    use crate::operator::reasons::{ConditionType, Reason};

    fn status(ready: i32, judged: Judgement) -> WorkerPoolStatus {
        let conditions = conditions(&[judged], &[], Some(1));
        WorkerPoolStatus { ready_replicas: Some(ready), conditions, ..Default::default() }
    }

    /// Whether they differ in counts alone, which are not written as often as they change.
    fn counts_alone(before: &WorkerPoolStatus, mut after: WorkerPoolStatus) -> bool {
        let mut times = before.conditions.iter().map(|known| known.last_transition_time.clone());
        for condition in &mut after.conditions {
            condition.last_transition_time = times.next().expect("as many");
        }
        after.take_counts(before);
        after == *before
    }

    #[test]
    fn a_condition_that_says_the_same_in_other_numbers_is_no_more_than_a_count() {
        let too_few = |ready: i32| {
            let message = format!("{ready} of 5 pods are ready");
            status(ready, Judgement::no(ConditionType::Available, Reason::PodsNotReady, message))
        };
        let enough = Judgement::yes(ConditionType::Available, Reason::PodsReady, "5 of 5 pods are ready");
        assert!(counts_alone(&too_few(1), too_few(2)));
        assert!(!counts_alone(&too_few(4), status(5, enough)));
        assert!(!counts_alone(
            &WorkerPoolStatus::default().clone(),
            WorkerPoolStatus { replicas: Some(1), ..Default::default() }
        ));
    }
}
