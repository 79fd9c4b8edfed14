//! Conditions: what is judged, and how it becomes a part of an object's status.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::reasons::{ConditionType, Reason};

/// The longest message that a condition takes; the API server refuses more.
const LONGEST_MESSAGE: usize = 32_768;

/// Whether a condition holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holds {
    /// It does.
    True,
    /// It does not.
    False,
    /// Nobody knows.
    Unknown,
}

impl Holds {
    fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

/// What was found out about one condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judgement {
    /// Which condition.
    pub condition: ConditionType,
    /// Whether it holds.
    pub holds: Holds,
    /// Why, in one stable word.
    pub reason: Reason,
    /// Why, for people. Never with a credential or a payload in it.
    pub message: String,
}

impl Judgement {
    /// It holds.
    pub fn yes(condition: ConditionType, reason: Reason, message: impl Into<String>) -> Self {
        Self { condition, holds: Holds::True, reason, message: message.into() }
    }

    /// It does not hold.
    pub fn no(condition: ConditionType, reason: Reason, message: impl Into<String>) -> Self {
        Self { condition, holds: Holds::False, reason, message: message.into() }
    }

    /// Nobody knows.
    pub fn unknown(condition: ConditionType, reason: Reason, message: impl Into<String>) -> Self {
        Self { condition, holds: Holds::Unknown, reason, message: message.into() }
    }
}

/// Judgements as conditions. One that holds as before keeps the time since when it does.
pub fn conditions(judged: &[Judgement], before: &[Condition], generation: Option<i64>) -> Vec<Condition> {
    let now = Timestamp::now();
    judged.iter().map(|judgement| condition(judgement, before, generation, now)).collect()
}

fn condition(judged: &Judgement, before: &[Condition], generation: Option<i64>, now: Timestamp) -> Condition {
    let (type_, status) = (judged.condition.as_str(), judged.holds.as_str());
    let same = before.iter().find(|known| known.type_ == type_ && known.status == status);
    let mut message = judged.message.clone();
    message.truncate(message.floor_char_boundary(LONGEST_MESSAGE));
    Condition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        reason: judged.reason.as_str().to_owned(),
        message,
        observed_generation: generation,
        last_transition_time: same.map_or(Time(now), |known| known.last_transition_time.clone()),
    }
}

/// The conditions of these types, in their order: what others wrote beside ours is not ours to compare.
pub fn ours(all: &[Condition], like: &[Condition]) -> Vec<Condition> {
    like.iter().filter_map(|wanted| all.iter().find(|one| one.type_ == wanted.type_).cloned()).collect()
}

/// Whether a condition of an object holds; `None` if it is not there.
pub fn holds(all: &[Condition], condition: ConditionType) -> Option<bool> {
    all.iter().find(|one| one.type_ == condition.as_str()).map(|one| one.status == Holds::True.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready(holds: Holds, reason: Reason) -> Vec<Judgement> {
        vec![Judgement { condition: ConditionType::Ready, holds, reason, message: "so".into() }]
    }

    #[test]
    fn the_time_of_a_transition_moves_only_with_the_status() {
        let long_ago = Time(Timestamp::from_second(1).expect("a time"));
        let mut before = conditions(&ready(Holds::False, Reason::BrokerUnreachable), &[], Some(1));
        before[0].last_transition_time = long_ago.clone();
        let same = conditions(&ready(Holds::False, Reason::AccessDenied), &before, Some(2));
        assert_eq!((&same[0].last_transition_time, same[0].observed_generation), (&long_ago, Some(2)));
        assert_eq!(same[0].reason, "AccessDenied");
        let other = conditions(&ready(Holds::True, Reason::Ready), &before, Some(2));
        assert_ne!(other[0].last_transition_time, long_ago);
    }

    #[test]
    fn conditions_that_others_wrote_are_not_compared() {
        let ours_now = conditions(&ready(Holds::True, Reason::Ready), &[], Some(1));
        let mut all = vec![Condition { type_: "Foreign".into(), ..ours_now[0].clone() }];
        all.extend(ours_now.clone());
        assert_eq!(ours(&all, &ours_now), ours_now);
    }
}
