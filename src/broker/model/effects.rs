//! Outside effects, and how far attempts have come.

use super::record::{Claim, created_and_tenant, epoch_of, time};
use super::state::Step;
use crate::broker::{
    BrokerError, Doubt, EffectAbandoned, EffectBegun, EffectCommitted, EffectMark, EffectRequest, Extended, Lease,
    Result, Standing, sentences,
};
use crate::protocol::names::{Epoch, IdempotencyKey, TaskId, WorkerId};
use crate::protocol::state::State;
use crate::protocol::task::Payload;

/// The longest that an effect is remembered, as in the scripts.
const LONGEST_MS: u64 = 3_155_760_000_000;

/// An effect that somebody began.
#[derive(Debug)]
pub(super) struct Effect {
    mark: EffectMark,
    task: TaskId,
    epoch: u64,
    worker: String,
    since_ms: u64,
    kept_until_ms: u64,
    /// What came of it, once that is known.
    answer: Option<Payload>,
}

impl Effect {
    fn doubt(&self) -> Doubt {
        Doubt {
            since: time(self.since_ms),
            task: self.task.clone(),
            epoch: Epoch(self.epoch),
            worker: WorkerId::new(self.worker.clone()).ok(),
            mark: self.mark.clone(),
        }
    }

    /// Whether a caller with this lease and standing may end it.
    fn is_for(&self, lease: &Lease, standing: Standing<'_>) -> bool {
        match standing {
            Standing::Own => self.task == lease.task && self.epoch == epoch_of(lease),
            Standing::Checked(doubt) => self.mark == doubt.mark,
        }
    }
}

/// Where the effects of a lease's task are kept.
fn place(lease: &Lease, key: &IdempotencyKey) -> (String, String) {
    (created_and_tenant(lease).1, key.as_str().to_owned())
}

impl Step<'_> {
    /// Keeps how far an attempt has come.
    pub(super) fn report_progress(self, lease: &Lease, progress: &Payload) -> Extended {
        match self.queue.live.get(&lease.task) {
            Some(record) if record.is_held_by(lease) => {
                self.queue.progress.insert(lease.task.clone(), progress.clone());
                Extended::Renewed
            }
            Some(_) => Extended::Lost,
            None => {
                let finished = self.queue.done.get(&lease.task);
                let cancelled = finished.is_some_and(|finished| finished.state == State::Cancelled);
                if cancelled { Extended::Cancelled } else { Extended::Lost }
            }
        }
    }

    /// Hands out the right to begin an effect, once.
    pub(super) fn begin_effect(self, request: &EffectRequest<'_>) -> EffectBegun {
        let EffectRequest { lease, key, mark, standing } = request;
        let held = self.queue.live.get(&lease.task).filter(|record| record.is_held_by(lease));
        let Some(worker) = held.map(|record| record.holder.clone()) else { return EffectBegun::LeaseLost };
        let place = place(lease, key);
        if let Some(effect) = self.queue.effects.get(&place).filter(|effect| effect.kept_until_ms > self.now) {
            match (&effect.answer, standing) {
                (Some(answer), _) => return EffectBegun::Done { answer: answer.clone() },
                (None, _) if effect.mark == **mark => return EffectBegun::Begin,
                (None, Standing::Checked(doubt)) if effect.mark == doubt.mark => {}
                (None, _) => return EffectBegun::InDoubt(effect.doubt()),
            }
        }
        let effect = Effect {
            mark: EffectMark::clone(mark),
            task: lease.task.clone(),
            epoch: epoch_of(lease),
            worker,
            since_ms: self.now,
            kept_until_ms: self.keep_effect_until(lease),
            answer: None,
        };
        self.queue.effects.insert(place, effect);
        EffectBegun::Begin
    }

    /// Keeps the answer of an effect that happened.
    pub(super) fn commit_effect(
        mut self,
        lease: &Lease,
        key: &IdempotencyKey,
        answer: &Payload,
        standing: Standing<'_>,
    ) -> Result<EffectCommitted> {
        let (now, kept_until_ms) = (self.now, self.keep_effect_until(lease));
        let (bytes, most) = (answer.as_str().len(), self.policy.limits.result_bytes);
        let effect = self.queue.effects.get_mut(&place(lease, key)).filter(|effect| effect.kept_until_ms > now);
        let Some(effect) = effect else { return Ok(EffectCommitted::Unknown) };
        if let Some(answer) = &effect.answer {
            return Ok(EffectCommitted::AlreadyCommitted { answer: answer.clone() });
        }
        if !effect.is_for(lease, standing) {
            return Ok(EffectCommitted::Superseded);
        }
        if bytes as u64 > most {
            return Err(BrokerError::Invalid(sentences::answer_too_large(bytes, most)));
        }
        effect.answer = Some(answer.clone());
        effect.kept_until_ms = kept_until_ms;
        if let Some(claim) = Claim::of(lease) {
            self.emit_effect(claim.effect(&lease.task, key, now));
        }
        self.end();
        Ok(EffectCommitted::Committed)
    }

    /// Forgets the beginning of an effect that did not happen.
    pub(super) fn abandon_effect(self, lease: &Lease, key: &IdempotencyKey) -> EffectAbandoned {
        let place = place(lease, key);
        let ours = self.queue.effects.get(&place).is_some_and(|effect| {
            effect.kept_until_ms > self.now && effect.answer.is_none() && effect.is_for(lease, Standing::Own)
        });
        if !ours {
            return EffectAbandoned::NotOurs;
        }
        self.queue.effects.remove(&place);
        EffectAbandoned::Abandoned
    }

    /// For as long as results are kept, and at least while the task may run.
    fn keep_effect_until(&self, lease: &Lease) -> u64 {
        let kept = u64::try_from(self.policy.retention.succeeded.as_millis()).unwrap_or(u64::MAX);
        let may_run = self.deadline_of(created_and_tenant(lease).0).saturating_sub(self.now);
        self.now.saturating_add(kept.max(may_run).clamp(1, LONGEST_MS))
    }
}
