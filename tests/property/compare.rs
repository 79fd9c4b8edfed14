//! What must be equal, what may differ, and the first difference.

use std::fmt::{self, Debug, Write as _};

use windlass::broker::{
    Claimed, ClaimedTask, DeadLetterView, Decision, Event, OutboxEntry, Result, SettleReply, Settled,
};
use windlass::protocol::task::DeadLetter;
use windlass::{Payload, TaskView};

/// An answer with its error in words, which are part of what is compared.
pub(crate) type Told<T> = std::result::Result<T, String>;

pub(crate) fn told<T>(answer: Result<T>) -> Told<T> {
    answer.map_err(|error| error.to_string())
}

/// Where the two brokers part.
#[derive(Debug)]
pub(crate) struct Difference {
    pub(crate) what: String,
    model: String,
    redis: String,
}

pub(crate) type Compared<T = ()> = std::result::Result<T, Box<Difference>>;

/// Checks that two answers are one, and gives that.
pub(crate) fn agree<T: PartialEq + Debug>(what: impl fmt::Display, model: T, redis: T) -> Compared<T> {
    if model == redis {
        return Ok(model);
    }
    let (model, redis) = (format!("{model:#?}"), format!("{redis:#?}"));
    Err(Box::new(Difference { what: what.to_string(), model, redis }))
}

impl Difference {
    /// A broker that did not answer at all.
    pub(crate) fn panic(message: &str) -> Self {
        Self { what: "a panic".to_owned(), model: message.to_owned(), redis: String::new() }
    }
}

impl fmt::Display for Difference {
    /// The first lines that differ, and a few around them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const BEFORE: usize = 6;
        const FROM_THERE: usize = 8;
        let (model, redis): (Vec<_>, Vec<_>) = (self.model.lines().collect(), self.redis.lines().collect());
        let first = model.iter().zip(&redis).take_while(|(one, other)| one == other).count();
        let start = first.saturating_sub(BEFORE);
        for (name, lines) in [("model", &model), ("redis", &redis)] {
            let part = &lines[start.min(lines.len())..(first + FROM_THERE).min(lines.len())];
            writeln!(f, "  {name}, from line {} of {} on:", start + 1, lines.len())?;
            part.iter().try_for_each(|line| writeln!(f, "    {}", beginning(line, 300)))?;
        }
        Ok(())
    }
}

/// The beginning of a text that may be long.
pub(crate) fn beginning(text: &str, longest: usize) -> String {
    let mut short: String = text.chars().take(longest).collect();
    if short.len() < text.len() {
        write!(short, "… ({} bytes)", text.len()).expect("writing to a string cannot fail");
    }
    short
}

/// Leases hold each broker's own record. Where two name the same claim, one takes the other's place.
pub(crate) fn alike_claimed(claimed: &Claimed, model: &Claimed) -> Claimed {
    let mut leases = model.tasks.iter().map(|task| &task.lease);
    let alike = |task: &ClaimedTask| {
        let same = leases.next().filter(|lease| lease.task == task.lease.task && lease.epoch == task.lease.epoch);
        let lease = same.unwrap_or(&task.lease).clone();
        ClaimedTask { lease, payload: sorted(task.payload.clone()), ..task.clone() }
    };
    Claimed { tasks: claimed.tasks.iter().map(alike).collect(), mode: claimed.mode }
}

/// The settlements and, if that worked, the claim.
pub(crate) fn parts(reply: Told<SettleReply>) -> Told<(Vec<Settled>, Told<Claimed>)> {
    reply.map(|reply| (reply.settled, told(reply.claimed)))
}

/// The fields of a raw entry that was refused come in the order of a Lua table.
fn sorted(payload: Payload) -> Payload {
    if !payload.as_str().starts_with("{\"fields\"") {
        return payload;
    }
    payload.parse::<serde_json::Value>().map_or(payload, Payload::from)
}

pub(crate) fn alike_view(view: TaskView) -> TaskView {
    TaskView { payload: view.payload.map(sorted), ..view }
}

pub(crate) fn alike_letter(letter: DeadLetter) -> DeadLetter {
    DeadLetter { payload: sorted(letter.payload), ..letter }
}

pub(crate) fn alike_letter_view(view: DeadLetterView) -> DeadLetterView {
    DeadLetterView { letter: alike_letter(view.letter), ..view }
}

/// Moves without the ids of messages, which are each broker's own, and decisions.
pub(crate) fn alike_moves(entries: Vec<OutboxEntry>) -> Vec<(Vec<Event>, Vec<Decision>)> {
    let alike = |event: Event| Event {
        message_id: event.message_id.map(|_| "one".to_owned()),
        detail: event.detail.map(without_message),
        ..event
    };
    entries.into_iter().map(|entry| (entry.events.into_iter().map(alike).collect(), entry.decisions)).collect()
}

/// The claim of a reclaimed task says which message it had.
fn without_message(detail: String) -> String {
    match serde_json::from_str::<serde_json::Value>(&detail) {
        Ok(mut value) if value.get("message").is_some_and(|message| message != "") => {
            value["message"] = "one".into();
            value.to_string()
        }
        _ => detail,
    }
}
