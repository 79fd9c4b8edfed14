//! What every broker refuses before it looks at a queue, and the sentences in
//! which any of them refuses.
//!
//! Each sentence says what was wrong and what to do. They are built here, so
//! that the same mistake reads the same whichever broker noticed it.

use std::fmt::Display;

use super::{
    BrokerError, DiscardRequest, MAX_BATCH, MAX_ERROR_BYTES, MAX_PROGRESS_BYTES, MAX_WORDS_BYTES, ReplayRequest, Result,
};
use crate::protocol::names::IdempotencyKey;
use crate::protocol::task::{NewTask, Payload};

/// The highest retry limit that a task may bring along; raw entries are held to the same.
const MOST_RETRIES: u32 = 1000;

/// The longest name of a person that is kept.
const LONGEST_PERSON: usize = 512;

/// Checks what can be said of new tasks without their queue's policy.
pub(crate) fn check_new(tasks: &[NewTask]) -> Result<()> {
    if tasks.is_empty() {
        return Err(BrokerError::Invalid(empty_batch()));
    }
    check_batch(tasks.len())?;
    for task in tasks {
        task.extras.validate().map_err(|error| BrokerError::Invalid(error.to_string()))?;
        if let Some(given) = task.max_retries.filter(|given| *given > MOST_RETRIES) {
            return Err(BrokerError::Invalid(too_many_retries(given)));
        }
    }
    Ok(())
}

/// Checks how many tasks one call names or asks for; none is fine.
pub(crate) fn check_batch(size: usize) -> Result<()> {
    if size > MAX_BATCH { Err(BrokerError::Invalid(batch_too_large(size))) } else { Ok(()) }
}

/// Checks that a replay says who.
pub(crate) fn check_replay(request: &ReplayRequest) -> Result<()> {
    if request.person.trim().is_empty() {
        return Err(BrokerError::Invalid("a replay needs a person: say who runs the dead letter again".to_owned()));
    }
    check_person(&request.person)
}

fn check_person(person: &str) -> Result<()> {
    match person.len() {
        0..=LONGEST_PERSON => Ok(()),
        bytes => Err(BrokerError::Invalid(format!(
            "the person's name has {bytes} bytes, more than {LONGEST_PERSON}: give the name that people sign in with"
        ))),
    }
}

/// Checks the size of a report of progress.
pub(crate) fn check_progress(progress: &Payload) -> Result<()> {
    match progress.as_str().len() {
        0..=MAX_PROGRESS_BYTES => Ok(()),
        bytes => Err(BrokerError::Invalid(format!(
            "the progress has {bytes} bytes and at most {MAX_PROGRESS_BYTES} are kept: tell how far it is, not what came of it"
        ))),
    }
}

/// The answer of an effect is over the queue's bound for results.
pub(crate) fn answer_too_large(bytes: usize, max: impl Display) -> String {
    format!(
        "the answer of the effect has {bytes} bytes and this queue keeps at most {max}: \
         keep a reference to it, or raise the queue's limit"
    )
}

/// A reason as it is kept: cut like an error, and none where nothing was said.
pub(crate) fn kept_reason(reason: Option<&str>) -> Option<String> {
    reason.filter(|reason| !reason.trim().is_empty()).map(cut_error)
}

/// Checks that a discard says who and why.
pub(crate) fn check_discard(request: &DiscardRequest) -> Result<()> {
    if request.person.trim().is_empty() {
        return Err(BrokerError::Invalid("a discard needs a person: say who gives the dead letter up".to_owned()));
    }
    check_person(&request.person)?;
    if request.reason.trim().is_empty() {
        return Err(BrokerError::Invalid("a discard needs a reason: say why the dead letter is given up".to_owned()));
    }
    Ok(())
}

/// The part of a text that is kept: [`MAX_ERROR_BYTES`] at most, and no half characters.
pub(crate) fn cut_error(text: &str) -> String {
    text[..text.floor_char_boundary(MAX_ERROR_BYTES)].to_owned()
}

/// The part of the words on a worker's end that is kept.
pub(crate) fn cut_words(words: &str) -> &str {
    &words[..words.floor_char_boundary(MAX_WORDS_BYTES)]
}

/// The key that a task's content gives it, where the queue goes by content.
pub(crate) fn content_hash(task: &NewTask) -> Result<IdempotencyKey> {
    task.payload.content_hash(&task.task_type).map_err(|error| BrokerError::Invalid(error.to_string()))
}

/// A new task that breaks a rule of its queue's policy, as a script names rule and bound.
pub(crate) fn refused(task: &NewTask, rule: &str, bound: &str) -> BrokerError {
    let (min, max) = bound.split_once(" to ").unwrap_or((bound, bound));
    BrokerError::Invalid(match rule {
        "priority" => priority_out_of_range(task.priority, min, max),
        "payload" => payload_too_large(task.payload.as_str().len(), bound),
        "key" => key_required(),
        "due" => due_after_deadline(bound),
        "lanes" => too_many_lanes(bound),
        _ => format!("the queue refuses the task: {rule} {bound}"),
    })
}

/// The priority is not one of the queue's.
pub(crate) fn priority_out_of_range(given: Option<u8>, min: impl Display, max: impl Display) -> String {
    let given = given.map_or_else(|| "the queue's default priority".to_owned(), |given| format!("priority {given}"));
    format!("{given} is out of range: use {min} to {max}, or none for the queue's default")
}

/// The payload is over the queue's bound.
pub(crate) fn payload_too_large(bytes: usize, max: impl Display) -> String {
    format!(
        "the payload has {bytes} bytes and this queue takes at most {max}: \
         store it elsewhere and send a reference, or raise the queue's limit"
    )
}

/// The queue wants an idempotency key and the task has none.
pub(crate) fn key_required() -> String {
    "this queue requires an idempotency key: give each piece of work a key of its own".to_owned()
}

/// The task would wait longer than it may live.
pub(crate) fn due_after_deadline(deadline_ms: impl Display) -> String {
    format!(
        "the task would first run after its deadline, {deadline_ms} ms from now: \
         choose an earlier time, or raise the queue's deadline"
    )
}

/// The task's type and priority would make one lane too many.
pub(crate) fn too_many_lanes(max: impl Display) -> String {
    format!(
        "the queue has {max} lanes (types times priorities), as many as it may have: \
         use a type and priority that are in use, or raise the queue's limit"
    )
}

/// More tasks than one call takes.
pub(crate) fn batch_too_large(size: usize) -> String {
    format!("{size} tasks in one call are too many: use at most {MAX_BATCH}, in several calls if need be")
}

/// An enqueue of nothing.
pub(crate) fn empty_batch() -> String {
    format!("there is no task to enqueue: give 1 to {MAX_BATCH}")
}

/// A retry limit that is none.
pub(crate) fn too_many_retries(given: u32) -> String {
    format!("max_retries {given} is too high: use 0 to {MOST_RETRIES}, or none for the queue's own limit")
}

/// An adopted name that something else uses.
pub(crate) fn not_a_stream(key: &str) -> String {
    format!("the key {key} is there and is no stream: adopt another name, or move what is there out of the way")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::names::{DeadLetterId, TaskType};
    use serde_json::json;

    fn task() -> NewTask {
        NewTask::new(TaskType::default(), json!({}))
    }

    fn sentence(result: Result<()>) -> String {
        result.expect_err("refused").to_string()
    }

    #[test]
    fn a_batch_has_one_to_a_hundred_tasks() {
        assert!(sentence(check_new(&[])).contains("give 1 to 100"));
        assert!(sentence(check_new(&vec![task(); 101])).contains("use at most 100"));
        check_new(&vec![task(); 100]).expect("fits");
        check_batch(0).expect("a claim of nothing passes a wake-up on");
    }

    #[test]
    fn labels_and_retry_limits_are_checked_before_any_queue_is_asked() {
        let mut bad = task();
        bad.extras.labels.insert(String::new(), "v".into());
        assert!(sentence(check_new(&[task(), bad])).contains("labels refused"));
        let stubborn = NewTask { max_retries: Some(1001), ..task() };
        assert!(sentence(check_new(&[stubborn])).contains("use 0 to 1000"));
    }

    #[test]
    fn a_discard_says_who_and_why() {
        let dead_letter: DeadLetterId = "a#1".parse().expect("valid");
        let request = |person: &str, reason: &str| DiscardRequest {
            dead_letter: dead_letter.clone(),
            person: person.into(),
            reason: reason.into(),
        };
        assert!(sentence(check_discard(&request("ada", " "))).contains("needs a reason"));
        assert!(sentence(check_discard(&request("", "obsolete"))).contains("needs a person"));
        assert!(sentence(check_discard(&request(&"x".repeat(513), "obsolete"))).contains("513 bytes"));
        check_discard(&request("ada", "obsolete")).expect("both are there");
    }

    #[test]
    fn a_replay_says_who_and_may_say_why() {
        let request = |person: &str| ReplayRequest {
            dead_letter: "a#1".parse().expect("valid"),
            new_id: "b".parse().expect("valid"),
            payload: None,
            person: person.into(),
            reason: None,
        };
        assert!(sentence(check_replay(&request(" "))).contains("needs a person"));
        assert!(sentence(check_replay(&request(&"x".repeat(513)))).contains("more than 512"));
        check_replay(&request("ada")).expect("a reason is not asked for");
        assert_eq!(kept_reason(Some(" ")), None);
        assert_eq!(kept_reason(Some("fixed")).as_deref(), Some("fixed"));
    }

    #[test]
    fn a_long_error_is_cut_between_characters() {
        let long = "é".repeat(MAX_ERROR_BYTES);
        assert_eq!(cut_error(&long).len(), MAX_ERROR_BYTES);
        assert_eq!(cut_error(&format!("x{long}")).len(), MAX_ERROR_BYTES - 1);
        assert_eq!(cut_error("short"), "short");
    }

    #[test]
    fn every_rule_of_the_scripts_has_a_sentence_that_says_what_to_do() {
        let urgent = NewTask { priority: Some(12), ..task() };
        for (rule, bound, expected) in [
            ("priority", "1 to 10", "priority 12 is out of range: use 1 to 10"),
            ("payload", "1", "2 bytes and this queue takes at most 1"),
            ("key", "", "requires an idempotency key"),
            ("due", "5000", "after its deadline, 5000 ms"),
            ("lanes", "7", "7 lanes"),
        ] {
            let said = refused(&urgent, rule, bound).to_string();
            assert!(said.contains(expected), "{said}");
        }
    }
}
