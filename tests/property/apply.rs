//! Does one step on both brokers and compares what they say.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use windlass::TaskId;
use windlass::broker::{
    Broker, ClaimRequest, Claimed, EffectBegun, EffectMark, EffectRequest, Extended, Lease, ReclaimCursor, Reclaimed,
    Recorded, Replayed, RetainCursor, Retained, Settled, Settlement, Standing, SweepCursor, Swept,
};

use windlass::protocol::names::IdempotencyKey;

use super::compare::{Compared, Told, agree, alike_claimed, alike_moves, parts, told};
use super::draw::Field;
use super::known::Held;
use super::step::{Acting, Claiming, Ending, From, Right, Step, Walk};
use super::twins::Twins;

impl Twins {
    /// Does a step on both, and compares what they say.
    pub(crate) async fn apply(&mut self, step: &Step) -> Compared {
        match step {
            Step::Provision(owner, policy) => {
                let answer = self.ask("provision", async |broker| broker.provision(owner, policy).await).await?;
                self.tally.met_if("provision refused", answer.is_err());
            }
            Step::Enqueue(tasks) => {
                let answer = self.ask("enqueue", async |broker| broker.enqueue(tasks).await).await?;
                self.tally.met_if("enqueue refused", answer.is_err());
                for one in answer.unwrap_or_default() {
                    self.tally.met(if one.created { "enqueue made a task" } else { "enqueue knew the task" });
                    self.known.meet(&one.id);
                }
            }
            Step::Raw(entries) => self.raw(entries).await,
            Step::Claim(claiming) => {
                let model = told(self.model.claim(request(claiming, &own(claiming, of_model))).await);
                let redis = told(self.redis.claim(request(claiming, &own(claiming, of_redis))).await);
                self.agree_claimed("claim", claiming, model, redis)?;
            }
            Step::Settle(endings, claiming) => self.settle(endings, claiming).await?,
            Step::Extend(worker, held) => {
                let model = told(self.model.extend(worker, &leases(held, of_model)).await);
                let redis = told(self.redis.extend(worker, &leases(held, of_redis)).await);
                let answers = agree("extend", model, redis)?.unwrap_or_default();
                for (held, one) in held.iter().zip(answers) {
                    self.tally.met_answer("extend", &one);
                    if one != Extended::Renewed {
                        self.known.end(held);
                    }
                }
            }
            Step::Progress(held, bytes) => {
                let progress = json!("x".repeat(*bytes)).into();
                let model = told(self.model.report_progress(&held.model, &progress).await);
                let redis = told(self.redis.report_progress(&held.redis, &progress).await);
                let answer = agree("progress", model, redis)?;
                self.tally.met_told("progress", &answer);
            }
            Step::Effect(held, key, acting) => self.act(held, key, *acting).await?,
            Step::Promote(limit) => {
                self.ask("promote", async |broker| broker.promote(*limit).await).await.map(drop)?;
            }
            Step::Reclaim(walk) => self.reclaim(*walk).await?,
            Step::ReclaimFrom(worker, reason) => {
                let answer =
                    self.ask("reclaim_from", async |broker| broker.reclaim_from(worker, *reason).await).await?;
                let answer = answer.unwrap_or_default();
                self.tally.met_if("reclaim_from requeued", !answer.requeued.is_empty());
                self.tally.met_if("reclaim_from dead", !answer.dead.is_empty());
                self.tally.met_if("reclaim_from over 100", answer.requeued.len() + answer.dead.len() > 100);
            }
            Step::Cancel(id) => {
                let answer = self.ask("cancel", async |broker| broker.cancel(id, "not needed").await).await?;
                self.tally.met_told("cancel", &answer);
            }
            Step::Record(letter) => {
                let answer = self.ask("record", async |broker| broker.record_dead_letter(letter).await).await?;
                self.tally.met_told("record", &answer);
                if answer == Ok(Recorded::Done) {
                    self.known.letters.push(letter.clone());
                }
            }
            Step::Replay(request) => {
                let answer = self.ask("replay", async |broker| broker.replay(request).await).await?;
                self.tally.met_told("replay", &answer);
                if let Ok(Replayed::Done { task }) = answer {
                    self.known.meet(&task);
                }
            }
            Step::Discard(request) => {
                let answer = self.ask("discard", async |broker| broker.discard(request).await).await?;
                self.tally.met_told("discard", &answer);
            }
            Step::Retain(limit, walk, from) => self.retain(*limit, *walk, *from).await?,
            Step::Sweep => self.sweep().await?,
            Step::Register(info) => {
                let answer = self.ask("register", async |broker| broker.register(info).await).await?;
                self.tally.met_if("register superseded", answer.is_ok_and(|answer| answer.superseded.is_some()));
            }
            Step::Deregister(worker) => {
                self.ask("deregister", async |broker| broker.deregister(worker).await).await.map(drop)?;
            }
            Step::TrimOutbox(count) => self.trim_outbox(*count).await?,
            Step::Wait(time) => self.clock.advance(*time),
        }
        Ok(())
    }

    async fn act(&mut self, held: &Held, key: &IdempotencyKey, acting: Acting) -> Compared {
        let doubt = self.known.doubt.clone();
        let standing = |right: Right| match (right, &doubt) {
            (Right::Checked, Some(doubt)) => Standing::Checked(doubt),
            _ => Standing::Own,
        };
        match acting {
            Acting::Begin(right) => {
                let known = self.known.mark.clone().filter(|_| right == Right::Repeated);
                let mark = known.unwrap_or_else(EffectMark::generate);
                let request = |lease| EffectRequest { lease, key, mark: &mark, standing: standing(right) };
                let model = told(self.model.begin_effect(&request(&held.model)).await);
                let redis = told(self.redis.begin_effect(&request(&held.redis)).await);
                let answer = agree("begin an effect", model, redis)?;
                self.tally.met_told("begin", &answer);
                if let Ok(EffectBegun::InDoubt(doubt)) = answer {
                    self.known.doubt = Some(doubt);
                }
                self.known.mark = Some(mark);
            }
            Acting::Commit(right, bytes) => {
                let answer = json!("x".repeat(bytes)).into();
                let model = self.model.commit_effect(&held.model, key, &answer, standing(right)).await;
                let redis = self.redis.commit_effect(&held.redis, key, &answer, standing(right)).await;
                let answer = agree("commit an effect", told(model), told(redis))?;
                self.tally.met_told("commit", &answer);
            }
            Acting::Abandon => {
                let model = told(self.model.abandon_effect(&held.model, key).await);
                let redis = told(self.redis.abandon_effect(&held.redis, key).await);
                let answer = agree("abandon an effect", model, redis)?;
                self.tally.met_told("abandon", &answer);
            }
        }
        Ok(())
    }

    /// What producers do that know nothing of Windlass.
    async fn raw(&mut self, entries: &[Vec<Field>]) {
        let mut pipeline = redis::pipe();
        for entry in entries {
            let add = pipeline.cmd("XADD").arg(&self.redis.keys().task).arg("*");
            for (name, value) in entry {
                add.arg(name).arg(value);
            }
        }
        let messages: Vec<String> = pipeline.query_async(&mut self.connection).await.expect("the entries are added");
        for (message, entry) in messages.iter().zip(entries) {
            self.known.meet(&filed_as(entry, message));
            self.model.raw_add(message, entry.clone());
        }
        self.tally.met_if("raw over 32", entries.len() > 32);
    }

    fn agree_claimed(
        &mut self,
        what: &str,
        claiming: &Claiming,
        model: Told<Claimed>,
        redis: Told<Claimed>,
    ) -> Compared {
        let (Ok(model), Ok(redis)) = (&model, &redis) else { return agree(what, model, redis).map(drop) };
        agree(what, alike_claimed(model, model), alike_claimed(redis, model))?;
        self.tally.met_if("claim handed back", claiming.limit == 0 && !model.tasks.is_empty());
        self.known.hold(model, redis, &claiming.worker);
        Ok(())
    }

    async fn settle(&mut self, endings: &[Ending], claiming: &Claiming) -> Compared {
        let settlements = |of: fn(&Held) -> &Lease| -> Vec<Settlement> {
            let settlement = |ending: &Ending| Settlement {
                lease: of(&ending.held).clone(),
                outcome: ending.outcome.clone(),
                dice: ending.dice,
            };
            endings.iter().map(settlement).collect()
        };
        let held = own(claiming, of_model);
        let model = parts(told(self.model.settle(&settlements(of_model), request(claiming, &held)).await));
        let held = own(claiming, of_redis);
        let redis = parts(told(self.redis.settle(&settlements(of_redis), request(claiming, &held)).await));
        let (settled, claims) = match (model, redis) {
            (Ok((model, one)), Ok((redis, other))) => ((Ok(model), Ok(redis)), Some((one, other))),
            (model, redis) => ((model.map(|(settled, _)| settled), redis.map(|(settled, _)| settled)), None),
        };
        let settled = agree("settle", settled.0, settled.1)?.unwrap_or_default();
        for (ending, one) in endings.iter().zip(settled) {
            self.tally.met_answer("settle", &one);
            if one != Settled::ResultTooLarge {
                self.known.end(&ending.held);
            }
        }
        match claims {
            Some((model, redis)) => self.agree_claimed("the claim after a settle", claiming, model, redis),
            None => Ok(()),
        }
    }

    /// By XPENDING and XCLAIM, Redis may need one more look to see that a
    /// round is at its end: whole rounds are compared then.
    async fn reclaim(&mut self, walk: Walk) -> Compared {
        let (model_from, redis_from) = std::mem::take(&mut self.known.reclaiming);
        if walk == Walk::WholeRound || self.by_pending {
            let (model, redis) = (round(&self.model).await, round(&self.redis).await);
            let (requeued, dead) = agree("a round of reclaim", model, redis)?.unwrap_or_default();
            self.tally.met_if("reclaim requeued", !requeued.is_empty());
            self.tally.met_if("reclaim dead", !dead.is_empty());
            return Ok(());
        }
        let model = told(self.model.reclaim(model_from).await);
        let redis = told(self.redis.reclaim(redis_from).await);
        let next = |answer: &Told<Reclaimed>| answer.as_ref().ok().and_then(|answer| answer.next.clone());
        let (model_next, redis_next) = (next(&model), next(&redis));
        // Where to go on is each broker's own way to say that it does.
        let alike = |answer: Reclaimed| Reclaimed { next: answer.next.map(|_| ReclaimCursor::default()), ..answer };
        agree("reclaim", model.map(alike), redis.map(alike)).map(drop)?;
        self.tally.met_if("reclaim went on", model_next.is_some());
        self.known.reclaiming = (model_next.unwrap_or_default(), redis_next.unwrap_or_default());
        Ok(())
    }

    /// Every call is compared; where to go on is each broker's own way to say so.
    async fn retain(&mut self, limit: usize, walk: Walk, from: From) -> Compared {
        if from == From::Beginning {
            self.known.retaining = Default::default();
        }
        loop {
            let (model_from, redis_from) = std::mem::take(&mut self.known.retaining);
            let model = told(self.model.retain(model_from, limit).await);
            let redis = told(self.redis.retain(redis_from, limit).await);
            let next =
                |answer: &Told<Retained>| answer.as_ref().map(|answer| answer.cursor.clone()).unwrap_or_default();
            let cursors = (next(&model), next(&redis));
            let alike = |answer: Retained| Retained { cursor: RetainCursor::default(), ..answer };
            let Ok(answer) = agree("retain", model.map(alike), redis.map(alike))? else { return Ok(()) };
            self.known.retaining = cursors;
            self.tally.met_if("retain results", answer.results > 0);
            self.tally.met_if("retain dead letters", answer.dead_letters > 0);
            self.tally.met_if("retain over 25", answer.results > 25);
            let goes_on = answer.next_in == Some(Duration::ZERO);
            self.tally.met_if("retain went on", goes_on);
            self.tally.met_if("retain rests for a time", answer.next_in.is_some_and(|wait| !wait.is_zero()));
            if walk == Walk::OneCall || !goes_on {
                return Ok(());
            }
        }
    }

    /// Redis sweeps page by page; the model is asked as often, because each page looks at silent workers too.
    pub(crate) async fn sweep(&mut self) -> Compared {
        let mut pages = 0;
        let mut cursor = Some(SweepCursor::default());
        while let Some(from) = cursor {
            let model = told(self.model.sweep(SweepCursor::default()).await);
            let redis = told(self.redis.sweep(from).await);
            cursor = redis.as_ref().ok().and_then(|swept| swept.next.clone());
            let shown = |swept: Told<Swept>| swept.map(|swept| (swept.repaired, swept.workers_lost));
            let lost = agree("sweep", shown(model), shown(redis))?.is_ok_and(|(_, lost)| !lost.is_empty());
            self.tally.met_if("sweep lost a worker", lost);
            pages += 1;
        }
        self.tally.met_if("sweep of several pages", pages > 1);
        Ok(())
    }

    /// What is forgotten is compared before.
    async fn trim_outbox(&mut self, count: usize) -> Compared {
        let (model, redis) = (told(self.model.outbox(count).await), told(self.redis.outbox(count).await));
        agree("the outbox", model.clone().map(alike_moves), redis.clone().map(alike_moves)).map(drop)?;
        if let (Ok(model), Ok(redis)) = (model, redis)
            && !model.is_empty()
        {
            self.tally.met("trim entries");
            agree("trim", told(self.model.trim_outbox(&model).await), told(self.redis.trim_outbox(&redis).await))
                .map(drop)?;
        }
        Ok(())
    }
}

/// The id under which a raw entry is filed: its own if it has a usable one, else one made from its message.
fn filed_as(entry: &[Field], message: &str) -> TaskId {
    let last = |name: &&str| entry.iter().rev().find(|(field, _)| field == name).map(|(_, value)| value);
    let sent = ["task_id", "taskId", "id", "job_id", "jobId"].iter().filter_map(last).find(|id| !id.is_empty());
    let sent = sent.and_then(|id| String::from_utf8(id.clone()).ok()?.parse().ok());
    sent.unwrap_or_else(|| format!("raw-{message}").parse().expect("a valid id"))
}

fn of_model(held: &Held) -> &Lease {
    &held.model
}

fn of_redis(held: &Held) -> &Lease {
    &held.redis
}

fn leases<'a>(held: impl IntoIterator<Item = &'a Arc<Held>>, of: fn(&Held) -> &Lease) -> Vec<Lease> {
    held.into_iter().map(|held| of(held).clone()).collect()
}

/// What a claim says the worker holds, as one of the brokers knows it.
fn own(claiming: &Claiming, of: fn(&Held) -> &Lease) -> Option<Vec<Lease>> {
    claiming.recover.as_ref().map(|held| leases(held, of))
}

fn request<'a>(claiming: &'a Claiming, recover: &'a Option<Vec<Lease>>) -> ClaimRequest<'a> {
    let Claiming { worker, capabilities, limit, .. } = claiming;
    ClaimRequest { worker, capabilities, limit: *limit, recover: recover.as_deref() }
}

/// Everything that one round of reclaiming takes back: requeued, and dead.
async fn round(broker: &dyn Broker) -> Told<(Vec<TaskId>, Vec<TaskId>)> {
    let (mut requeued, mut dead, mut cursor) = (Vec::new(), Vec::new(), Some(ReclaimCursor::default()));
    while let Some(from) = cursor {
        let step = told(broker.reclaim(from).await)?;
        requeued.extend(step.requeued);
        dead.extend(step.dead);
        cursor = step.next;
    }
    Ok((requeued, dead))
}
