//! The requests about outside effects that happen at most once.
//!
//! A handler begins, acts and commits. If an attempt died in between, the next
//! one is told `in-doubt`: it asks the other side, then either commits what it
//! found there, or resolves the doubt and acts itself. The desk remembers the
//! doubt for it.

use axum::Json;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::desk::Admitted;
use super::refusal::{Body, Refusal, payload, raw};
use crate::broker::{Doubt, EffectAbandoned, EffectBegun, EffectCommitted, Standing};
use crate::protocol::names::IdempotencyKey;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Key {
    key: IdempotencyKey,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Commit {
    key: IdempotencyKey,
    answer: Option<Box<RawValue>>,
}

/// Where an effect stands.
#[derive(Serialize)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub(super) enum Effect {
    /// The handler may act, and nobody else.
    Begin,
    /// An earlier attempt may have acted.
    InDoubt { doubt: Doubt },
    /// It happened.
    Done { answer: Box<RawValue> },
    /// It did not happen, and may begin anew.
    Abandoned,
}

type Answer = Result<Json<Effect>, Refusal>;

pub(super) async fn begin(admitted: Admitted, Body(asked): Body<Key>) -> Answer {
    let begun = admitted.task.begin_once(&asked.key, Standing::Own).await?;
    answer(&admitted, asked.key, begun)
}

pub(super) async fn resolve(admitted: Admitted, Body(asked): Body<Key>) -> Answer {
    let Some(doubt) = admitted.doubt(&asked.key) else {
        let sentence = "this attempt was told of no doubt about that key: call /v1/once/begin first";
        return Err(Refusal::new(StatusCode::CONFLICT, "no_doubt", sentence));
    };
    let begun = admitted.task.begin_once(&asked.key, Standing::Checked(&doubt)).await?;
    answer(&admitted, asked.key, begun)
}

pub(super) async fn commit(admitted: Admitted, Body(asked): Body<Commit>) -> Answer {
    let answer = asked.answer.map(payload).unwrap_or_default();
    let doubt = admitted.doubt(&asked.key);
    let standing = doubt.as_ref().map_or(Standing::Own, Standing::Checked);
    match admitted.task.commit_once(&asked.key, &answer, standing).await? {
        EffectCommitted::Committed => {
            admitted.forget_doubt(&asked.key);
            Ok(Json(Effect::Done { answer: raw(&answer) }))
        }
        EffectCommitted::AlreadyCommitted { answer } => {
            admitted.forget_doubt(&asked.key);
            Ok(Json(Effect::Done { answer: raw(&answer) }))
        }
        EffectCommitted::Superseded => {
            let sentence = "another attempt has begun this effect since: its answer will be kept, not this one";
            Err(Refusal::new(StatusCode::CONFLICT, "superseded", sentence))
        }
        EffectCommitted::Unknown => {
            let sentence = "nobody has begun this effect, or that was too long ago: call /v1/once/begin first";
            Err(Refusal::new(StatusCode::CONFLICT, "not_begun", sentence))
        }
    }
}

pub(super) async fn abandon(admitted: Admitted, Body(asked): Body<Key>) -> Answer {
    match admitted.task.abandon_once(&asked.key).await? {
        EffectAbandoned::Abandoned => Ok(Json(Effect::Abandoned)),
        EffectAbandoned::NotOurs => {
            let sentence = "this attempt has not begun that effect, or it is done: there is nothing to give up";
            Err(Refusal::new(StatusCode::CONFLICT, "not_begun", sentence))
        }
    }
}

fn answer(admitted: &Admitted, key: IdempotencyKey, begun: EffectBegun) -> Answer {
    match begun {
        EffectBegun::Begin => {
            admitted.forget_doubt(&key);
            Ok(Json(Effect::Begin))
        }
        EffectBegun::Done { answer } => {
            admitted.forget_doubt(&key);
            Ok(Json(Effect::Done { answer: raw(&answer) }))
        }
        EffectBegun::InDoubt(doubt) => {
            admitted.remember_doubt(key, doubt.clone())?;
            Ok(Json(Effect::InDoubt { doubt }))
        }
        EffectBegun::LeaseLost => {
            let sentence = "somebody else has the task now: end, and do no more for it";
            Err(Refusal::new(StatusCode::GONE, "lease_lost", sentence))
        }
    }
}
