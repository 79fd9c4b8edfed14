//! Ends tasks that are not needed any more.

use super::lane::Body;
use super::moves::Ending;
use super::record::Record;
use super::state::Step;
use crate::broker::{Cancelled, sentences};
use crate::protocol::names::TaskId;
use crate::protocol::state::State;

impl Step<'_> {
    /// Ends a task that is not needed any more.
    pub(super) fn cancel(mut self, id: &TaskId, reason: &str) -> Cancelled {
        let Some(record) = self.queue.live.get(id).cloned() else { return self.cancel_finished(id) };
        let from = record.state;
        if from == State::DlqPending {
            self.queue.invalid_transitions += 1;
            return Cancelled::InvalidTransition { state: from };
        }
        let body = if record.message.is_some() { self.leave_lane(&record) } else { self.leave_parking(id) };
        let reason = sentences::cut_error(reason);
        self.emit(id, Some(from), State::Cancelled, &record, &reason);
        let ending = Ending {
            state: State::Cancelled,
            extras: body.extras,
            result: None,
            error: reason,
            code: "cancelled".to_owned(),
            dlq_id: None,
        };
        self.finish(id, record, ending);
        self.end();
        Cancelled::Done { from }
    }

    fn cancel_finished(self, id: &TaskId) -> Cancelled {
        match self.queue.done.get(id).map(|finished| finished.state) {
            None => Cancelled::Unknown,
            Some(State::Cancelled) => Cancelled::AlreadyCancelled,
            Some(state) => {
                self.queue.invalid_transitions += 1;
                Cancelled::InvalidTransition { state }
            }
        }
    }

    /// Out of its lane, which then stands where its next task says.
    fn leave_lane(&mut self, record: &Record) -> Body {
        let (_, body) = self.take_out(record);
        if record.state != State::Running {
            self.rank_again(&record.lane());
        }
        body
    }

    fn leave_parking(&mut self, id: &TaskId) -> Body {
        self.queue.delayed.remove(id);
        self.queue.retrying.remove(id);
        self.queue.parked.remove(id).expect("invariant: a task in no lane is parked")
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::*;
    use crate::broker::{Broker, Cancelled, Settled};
    use crate::protocol::policy::Policy;
    use crate::protocol::state::State;
    use crate::protocol::task::{NewTask, NotBefore};
    use std::time::Duration;

    #[tokio::test]
    async fn whatever_has_not_ended_can_be_cancelled_but_not_the_dead() {
        let rig = Rig::new(Policy::default()).await;
        rig.dead(task("dead")).await;
        rig.try_enqueue(&[task("running"), task("retrying")]).await.expect("taken");
        let leases = rig.claim("w", 2).await;
        rig.settle(&leases[1].lease, failure()).await;
        let later = NotBefore::After(Duration::from_secs(1));
        rig.try_enqueue(&[task("queued"), NewTask { not_before: later, ..task("scheduled") }]).await.expect("taken");
        for state in [State::Running, State::Retrying, State::Queued, State::Scheduled] {
            assert_eq!(rig.cancel(state.as_str()).await, Cancelled::Done { from: state });
            assert_eq!(rig.cancel(state.as_str()).await, Cancelled::AlreadyCancelled);
        }
        assert_eq!(rig.cancel("dead").await, Cancelled::InvalidTransition { state: State::DlqPending });
        assert_eq!(rig.cancel("nobody").await, Cancelled::Unknown);
        assert_eq!(rig.settle(&leases[0].lease, success()).await, Settled::Cancelled);
        let counts = rig.model.counts().await.expect("counts");
        assert_eq!((counts.backlog, counts.running, counts.delayed, counts.retrying), (0, 0, 0, 0));
        assert_eq!((counts.finished, counts.invalid_transitions, counts.oldest_task_time), (4, 1, None));
        let view = rig.get("queued").await;
        assert_eq!((view.error.as_deref(), view.error_code.as_deref()), (Some("not needed"), Some("cancelled")));
    }
}
