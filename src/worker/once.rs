//! Outside effects that happen at most once: charging a card, sending a letter.

use std::fmt::Display;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::TaskContext;
use crate::broker::{
    BrokerError, Doubt, EffectAbandoned, EffectBegun, EffectCommitted, EffectMark, EffectRequest, ErrorClass, Outcome,
    Result, Standing,
};
use crate::protocol::names::IdempotencyKey;
use crate::protocol::task::{InvalidPayload, Payload};

/// The code of a task that died because nobody knows whether its effect happened.
pub const EFFECT_IN_DOUBT: &str = "effect_in_doubt";

/// How an effect went wrong. `?` makes an error [`EffectError::Unsure`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EffectError<E> {
    /// It did not happen, for sure: the connection was refused, the request was
    /// rejected. It may begin anew.
    NotDone(E),
    /// Nobody knows: the answer was lost, the time was up. It stays in doubt.
    Unsure(E),
}

impl<E> From<E> for EffectError<E> {
    fn from(error: E) -> Self {
        Self::Unsure(error)
    }
}

/// Why an effect has no answer.
#[derive(Debug, Clone, thiserror::Error)]
pub enum OnceError<E> {
    /// An attempt began the effect and never said how it ended.
    #[error(
        "effect {key:?} was begun at {} by task {} and may have happened: check with the other side, then replay the \
         dead letter with the effect made harmless or done; a handler that can check uses once_checked", .doubt.since,
         .doubt.task
    )]
    InDoubt {
        /// Which effect.
        key: String,
        /// Who began it.
        doubt: Doubt,
    },
    /// The lease is gone: whoever has the task now decides about its effects.
    #[error("the lease was lost before the effect could begin")]
    LeaseLost,
    /// The effect itself, or the check, failed.
    #[error("{0}")]
    Effect(E),
    /// The answer is not of the expected form, or has no JSON form.
    #[error("the answer of the effect: {0}")]
    Answer(InvalidPayload),
    /// The broker did not remember the effect.
    #[error("the effect could not be recorded: {0}")]
    Broker(BrokerError),
}

impl<E: Display> From<OnceError<E>> for Outcome {
    /// A doubt is permanent: trying again would not know more.
    fn from(error: OnceError<E>) -> Self {
        let text = error.to_string();
        match error {
            OnceError::InDoubt { .. } => Self::permanent(EFFECT_IN_DOUBT, text),
            OnceError::LeaseLost => Self::failure("lease_lost", text),
            OnceError::Effect(_) => Self::failure("effect_failed", text),
            OnceError::Answer(_) => Self::permanent("effect_answer", text),
            OnceError::Broker(broker) => match broker.class() {
                ErrorClass::Invalid => Self::permanent("effect_refused", text),
                _ => Self::failure("effect_not_recorded", text),
            },
        }
    }
}

impl TaskContext {
    /// Runs an outside effect at most once for a key, and gives its answer; an
    /// attempt after it is given the stored answer instead.
    ///
    /// The key holds in the queue and the task's tenant ([`Self::effect_key`]
    /// makes one for this task). If an attempt dies between effect and answer,
    /// the next is told [`OnceError::InDoubt`], which as an outcome is a dead
    /// letter; where the other side can be asked, use [`Self::once_checked`].
    pub async fn once<T, E, F>(
        &self,
        key: &IdempotencyKey,
        effect: impl FnOnce() -> F + Send,
    ) -> std::result::Result<T, OnceError<E>>
    where
        T: Serialize + DeserializeOwned + Send,
        E: Send,
        F: Future<Output = std::result::Result<T, EffectError<E>>> + Send,
    {
        match self.begin_once(key, Standing::Own).await.map_err(OnceError::Broker)? {
            EffectBegun::Begin => self.act(key, effect).await,
            EffectBegun::Done { answer } => answer.parse().map_err(OnceError::Answer),
            EffectBegun::LeaseLost => Err(OnceError::LeaseLost),
            EffectBegun::InDoubt(doubt) => Err(OnceError::InDoubt { key: key.to_string(), doubt }),
        }
    }

    /// The same where the other side can be asked: in doubt, `check` says
    /// whether the effect happened (with its answer) or not (`None`: then it
    /// begins anew). It is asked by an attempt whose lease is good; an earlier
    /// attempt that is not dead but slow can still act behind its back, unless
    /// the other side takes an idempotency key itself.
    pub async fn once_checked<T, E, C, F>(
        &self,
        key: &IdempotencyKey,
        check: impl FnOnce(Doubt) -> C + Send,
        effect: impl FnOnce() -> F + Send,
    ) -> std::result::Result<T, OnceError<E>>
    where
        T: Serialize + DeserializeOwned + Send,
        E: Send,
        C: Future<Output = std::result::Result<Option<T>, E>> + Send,
        F: Future<Output = std::result::Result<T, EffectError<E>>> + Send,
    {
        let doubt = match self.begin_once(key, Standing::Own).await.map_err(OnceError::Broker)? {
            EffectBegun::Begin => return self.act(key, effect).await,
            EffectBegun::Done { answer } => return answer.parse().map_err(OnceError::Answer),
            EffectBegun::LeaseLost => return Err(OnceError::LeaseLost),
            EffectBegun::InDoubt(doubt) => doubt,
        };
        if let Some(answer) = check(doubt.clone()).await.map_err(OnceError::Effect)? {
            return self.remember(key, answer, Standing::Checked(&doubt)).await;
        }
        match self.begin_once(key, Standing::Checked(&doubt)).await.map_err(OnceError::Broker)? {
            EffectBegun::Begin => self.act(key, effect).await,
            EffectBegun::Done { answer } => answer.parse().map_err(OnceError::Answer),
            EffectBegun::LeaseLost => Err(OnceError::LeaseLost),
            EffectBegun::InDoubt(doubt) => Err(OnceError::InDoubt { key: key.to_string(), doubt }),
        }
    }

    /// Asks whether an effect may begin; repeats the question while the broker
    /// is away. What follows [`EffectBegun::Begin`] is the caller's: act, then
    /// [`Self::commit_once`] or [`Self::abandon_once`].
    pub async fn begin_once(&self, key: &IdempotencyKey, standing: Standing<'_>) -> Result<EffectBegun> {
        let mark = EffectMark::generate();
        let request = EffectRequest { lease: &self.task().lease, key, mark: &mark, standing };
        let begun = self.patiently(|| self.home().broker.begin_effect(&request)).await?;
        if begun == EffectBegun::LeaseLost {
            self.cancel(super::CancelReason::LeaseLost);
        }
        Ok(begun)
    }

    /// Keeps the answer of an effect that happened. It goes on trying while the
    /// broker is away, also when the attempt was cancelled, and when this future
    /// is dropped, as a handler is that does not end in time: what happened must
    /// be known.
    pub async fn commit_once(
        &self,
        key: &IdempotencyKey,
        answer: &Payload,
        standing: Standing<'_>,
    ) -> Result<EffectCommitted> {
        let (task, key, answer) = (self.clone(), key.clone(), answer.clone());
        let doubt = match standing {
            Standing::Own => None,
            Standing::Checked(doubt) => Some(doubt.clone()),
        };
        let committing = tokio::spawn(async move {
            let standing = doubt.as_ref().map_or(Standing::Own, Standing::Checked);
            let mut pauses = super::backoff::Pauses::default();
            loop {
                match task.home().broker.commit_effect(&task.task().lease, &key, &answer, standing).await {
                    Err(error) if error.class() == ErrorClass::Transient => {
                        tracing::debug!(%error, "the answer of an effect will be sent again");
                        tokio::time::sleep(pauses.next()).await;
                    }
                    committed => return committed,
                }
            }
        });
        let ending = |_| BrokerError::Busy("the worker is ending".to_owned());
        committing.await.map_err(ending)?
    }

    /// Says that an effect that this attempt began did not happen: it may begin anew.
    pub async fn abandon_once(&self, key: &IdempotencyKey) -> Result<EffectAbandoned> {
        self.patiently(|| self.home().broker.abandon_effect(&self.task().lease, key)).await
    }

    async fn act<T, E, F>(
        &self,
        key: &IdempotencyKey,
        effect: impl FnOnce() -> F + Send,
    ) -> std::result::Result<T, OnceError<E>>
    where
        T: Serialize + DeserializeOwned,
        F: Future<Output = std::result::Result<T, EffectError<E>>> + Send,
    {
        match effect().await {
            Ok(answer) => self.remember(key, answer, Standing::Own).await,
            Err(EffectError::Unsure(error)) => Err(OnceError::Effect(error)),
            Err(EffectError::NotDone(error)) => {
                if let Err(error) = self.abandon_once(key).await {
                    tracing::warn!(%error, "an effect that did not happen stays in doubt");
                }
                Err(OnceError::Effect(error))
            }
        }
    }

    /// Keeps an answer. The first one that was kept counts.
    async fn remember<T, E>(
        &self,
        key: &IdempotencyKey,
        answer: T,
        standing: Standing<'_>,
    ) -> std::result::Result<T, OnceError<E>>
    where
        T: Serialize + DeserializeOwned,
    {
        let payload = Payload::encode(&answer).map_err(OnceError::Answer)?;
        match self.commit_once(key, &payload, standing).await.map_err(OnceError::Broker)? {
            EffectCommitted::Committed => Ok(answer),
            EffectCommitted::AlreadyCommitted { answer } => answer.parse().map_err(OnceError::Answer),
            EffectCommitted::Superseded | EffectCommitted::Unknown => {
                // It happened all the same; nobody after this will know.
                tracing::warn!(effect = %key, "the answer of an effect came too late to be kept");
                Ok(answer)
            }
        }
    }
}
