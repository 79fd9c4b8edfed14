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
        (self.workers, self.running) = (other.workers, other.running);
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
