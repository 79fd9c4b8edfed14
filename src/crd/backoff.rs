//! How long a task waits before it is tried again.

#![allow(unreachable_pub, reason = "the schema is derived from copies of the types inside functions")]

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::compile::InvalidSpec;
use crate::protocol::backoff as engine;

/// How the wait grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum BackoffStrategy {
    /// base · 2ⁿ⁻¹.
    Exponential,
    /// base · n².
    Quadratic,
    /// base.
    Fixed,
    /// A list.
    Schedule,
}

/// How long a task waits before its next attempt. A backoff that is written replaces the default one as a
/// whole: without `maxMilliseconds` the wait has no cap, without `jitter` no random part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.strategy == 'Schedule' ? has(self.delaysMilliseconds) : !has(self.delaysMilliseconds)")
        .message("delaysMilliseconds belongs to the strategy Schedule: set it with Schedule, and with no other strategy"),
    validation = Rule::new("self.strategy == 'Schedule' ? !has(self.baseMilliseconds) : has(self.baseMilliseconds)")
        .message("baseMilliseconds belongs to the strategies Exponential, Quadratic and Fixed: set it with those, and not with Schedule"),
    validation = Rule::new("!has(self.maxMilliseconds) || self.strategy in ['Exponential', 'Quadratic']")
        .message("maxMilliseconds caps the strategies Exponential and Quadratic: leave it out with Fixed and Schedule"),
)]
pub struct Backoff {
    /// How the wait before retry number n grows: Exponential (base · 2ⁿ⁻¹), Quadratic (base · n²), Fixed (base) or
    /// Schedule (the n-th of `delaysMilliseconds`, of which the last repeats).
    pub strategy: BackoffStrategy,
    /// The first wait, in milliseconds. With Exponential, Quadratic and Fixed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 31_622_400_000u64))]
    pub base_milliseconds: Option<u64>,
    /// The most that the wait grows to before jitter, in milliseconds. With Exponential and Quadratic; no cap if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 31_622_400_000u64))]
    pub max_milliseconds: Option<u64>,
    /// The waits before the first, second, … retry, in milliseconds; the last one repeats. With Schedule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 100), inner(range(min = 0, max = 31_622_400_000u64)))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub delays_milliseconds: Option<Vec<u64>>,
    /// The random part of the wait, which keeps tasks that failed together from coming back together. None if left out.
    #[serde(default)]
    pub jitter: Jitter,
}

/// What kind of random part a wait has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum JitterKind {
    /// Nothing.
    #[default]
    None,
    /// 0 to so many milliseconds more.
    Additive,
    /// 0 to so many percent more.
    Proportional,
    /// Up to so many percent more or less.
    Symmetric,
}

/// The random part of a wait.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.kind == 'Additive' ? has(self.milliseconds) : !has(self.milliseconds)")
        .message("milliseconds belongs to the jitter Additive: set it with Additive, and with no other kind"),
    validation = Rule::new("self.kind in ['Proportional', 'Symmetric'] ? has(self.percent) : !has(self.percent)")
        .message("percent belongs to the jitters Proportional and Symmetric: set it with those, and with no other kind"),
)]
pub struct Jitter {
    /// None; Additive: 0 to `milliseconds` more; Proportional: 0 to `percent` more; Symmetric: up to `percent` more or less.
    pub kind: JitterKind,
    /// The most that is added, in milliseconds. With Additive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 86_400_000u64))]
    pub milliseconds: Option<u64>,
    /// The most that is added (or, with Symmetric, taken away), in percent of the wait. With Proportional and Symmetric.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub percent: Option<u8>,
}

impl Backoff {
    /// As the engine takes it. `field` is where it stands, for the sentence of a refusal.
    pub(super) fn compile(&self, field: &'static str) -> Result<engine::Backoff, InvalidSpec> {
        let missing = |what| InvalidSpec::new(field, format!("the strategy {:?} needs {what}", self.strategy));
        let base_ms = || self.base_milliseconds.ok_or_else(|| missing("baseMilliseconds"));
        let strategy = match self.strategy {
            BackoffStrategy::Exponential => engine::Strategy::Exponential { base_ms: base_ms()? },
            BackoffStrategy::Quadratic => engine::Strategy::Quadratic { base_ms: base_ms()? },
            BackoffStrategy::Fixed => engine::Strategy::Fixed { base_ms: base_ms()? },
            BackoffStrategy::Schedule => engine::Strategy::Schedule {
                delays_ms: self.delays_milliseconds.clone().ok_or_else(|| missing("delaysMilliseconds"))?,
            },
        };
        let max_ms = self.max_milliseconds.unwrap_or(u64::MAX);
        Ok(engine::Backoff { strategy, max_ms, jitter: self.jitter.compile(field)? })
    }
}

impl Jitter {
    fn compile(self, field: &'static str) -> Result<engine::Jitter, InvalidSpec> {
        let missing = |what| InvalidSpec::new(field, format!("the jitter {:?} needs {what}", self.kind));
        let percent = || self.percent.ok_or_else(|| missing("percent"));
        Ok(match self.kind {
            JitterKind::None => engine::Jitter::None,
            JitterKind::Additive => {
                engine::Jitter::Additive { milliseconds: self.milliseconds.ok_or_else(|| missing("milliseconds"))? }
            }
            JitterKind::Proportional => engine::Jitter::Proportional { percent: percent()? },
            JitterKind::Symmetric => engine::Jitter::Symmetric { percent: percent()? },
        })
    }
}
