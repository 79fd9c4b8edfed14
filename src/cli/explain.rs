//! Why a task is where it is, and what would move it.
//!
//! Owns: the judgement, on plain values. Must not know: where they come from.

use jiff::Timestamp;

use super::output::{gist, shortened};
use super::task::view::attempt;
use super::units::{since, spoken};
use crate::broker::{QueueCounts, Review, Voice, WorkerRecord};
use crate::protocol::names::{Capabilities, QueueName};
use crate::protocol::policy::{Mode, Policy};
use crate::protocol::state::{RetryReason, State};
use crate::protocol::task::TaskView;

/// What is known of a task and its queue.
pub(super) struct Situation<'a> {
    pub(super) queue: &'a QueueName,
    pub(super) task: &'a TaskView,
    pub(super) policy: &'a Policy,
    pub(super) counts: &'a QueueCounts,
    pub(super) workers: &'a [WorkerRecord],
    /// What was decided about its dead letter, while that is kept.
    pub(super) review: Option<&'a Review>,
}

/// Two halves of a sentence that begins with the task.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Explanation {
    /// Why the task is where it is.
    pub(super) why: String,
    /// What would move it.
    pub(super) next: String,
}

fn because(why: impl Into<String>, next: impl Into<String>) -> Explanation {
    Explanation { why: why.into(), next: next.into() }
}

/// Says why a task is where it is.
pub(super) fn explain(at: &Situation<'_>) -> Explanation {
    match at.task.state {
        State::Scheduled => scheduled(at),
        State::Blocked => because("waits for the tasks that it depends on", "it is queued when all of them succeed"),
        State::WaitingApproval => because("waits for a person's approval", "somebody has to approve or reject it"),
        State::Queued => ready(at, "is ready"),
        State::Running => running(at),
        State::Retrying => retrying(at),
        State::DlqPending | State::DlqRecorded => dying(at),
        State::Succeeded => succeeded(at),
        State::Failed => failed(at),
        State::Cancelled => cancelled(at),
    }
}

fn now(at: &Situation<'_>) -> Timestamp {
    at.counts.sampled_at
}

/// `in 40s`, or `3s ago`.
fn when(at: &Situation<'_>, time: Timestamp) -> String {
    if time > now(at) {
        format!("in {}", spoken(since(time, now(at))))
    } else {
        format!("{} ago", spoken(since(now(at), time)))
    }
}

fn last_error(task: &TaskView) -> String {
    match (&task.error_code, &task.error) {
        (Some(code), Some(error)) => format!("{code}: {}", gist(error, 200)),
        (Some(word), None) | (None, Some(word)) => shortened(word, 200),
        (None, None) => "an error that is not known any more".to_owned(),
    }
}

fn attempts(task: &TaskView) -> String {
    match attempt(task) {
        1 => "1 attempt".to_owned(),
        several => format!("{several} attempts"),
    }
}

/// What stands in the way of any task of the queue.
fn stopped(at: &Situation<'_>) -> Option<Explanation> {
    let resume = format!("`windlass queue resume -q {}`, or mode: Running in its TaskQueue, lets it run", at.queue);
    match at.policy.mode {
        Mode::Running => None,
        Mode::Paused => Some(because("but the queue is paused and gives out no work", resume)),
        Mode::Closed => Some(because("but the queue is closed and neither takes nor gives out work", resume)),
    }
}

/// What stands in the way of a task that may run.
fn ready(at: &Situation<'_>, is_ready: &str) -> Explanation {
    if let Some(stopped) = stopped(at) {
        return because(format!("{is_ready}, {}", stopped.why), stopped.next);
    }
    let task_type = &at.task.task_type;
    if at.workers.is_empty() {
        let start = format!("start one, for instance `windlass worker -q {} --exec -- COMMAND`", at.queue);
        return because(format!("{is_ready}, but no worker is registered"), start);
    }
    let able: Vec<_> = at.workers.iter().filter(|worker| can_do(worker, at)).collect();
    if able.is_empty() {
        let count = at.workers.len();
        return because(
            format!("{is_ready}, but none of the {count} registered workers takes the type {task_type}"),
            format!("start a worker for {task_type}, or add the type to a WorkerPool's taskTypes"),
        );
    }
    let alive = able.iter().filter(|worker| !is_silent(worker, at)).count();
    if alive == 0 {
        let last = able.iter().map(|worker| worker.heartbeat_at).max().unwrap_or_default();
        return because(
            format!("{is_ready}, but no worker that takes the type {task_type} has been heard since {last}"),
            "check that those workers still run",
        );
    }
    let workers = if alive == 1 { "1 worker takes".to_owned() } else { format!("{alive} workers take") };
    match at.counts.backlog.saturating_sub(1) {
        0 => because(format!("{is_ready} and next"), format!("{workers} its type; one claims it when it has room")),
        before => because(
            format!("{is_ready}, with at most {before} tasks before it"),
            format!("{workers} its type; one claims it when those are done"),
        ),
    }
}

fn can_do(worker: &WorkerRecord, at: &Situation<'_>) -> bool {
    let capabilities = Capabilities::of(worker.info.types.iter().cloned()).unwrap_or_default();
    capabilities.cover(&at.task.task_type)
}

fn is_silent(worker: &WorkerRecord, at: &Situation<'_>) -> bool {
    since(now(at), worker.heartbeat_at) > at.policy.reclaim.worker_lost_after
}

fn scheduled(at: &Situation<'_>) -> Explanation {
    match at.task.due_at {
        Some(due) if due > now(at) => {
            because(format!("waits for its time, {due}"), format!("it is queued {}", when(at, due)))
        }
        _ => ready(at, "has just become due"),
    }
}

fn running(at: &Situation<'_>) -> Explanation {
    let task = at.task;
    let Some(worker) = &task.worker else { return because("runs", "it ends when its handler does") };
    let since_when = task.started_at.map(|start| format!(" since {start} ({})", when(at, start))).unwrap_or_default();
    let attempt = format!("runs on worker {worker}{since_when}, attempt {}", attempt(task));
    let visibility = spoken(at.policy.visibility_timeout);
    match at.workers.iter().find(|record| record.info.id == *worker) {
        None => because(
            format!("{attempt}, but that worker is not registered any more"),
            format!("it is taken back at the latest {visibility} after its last renewal, and runs again"),
        ),
        Some(record) if is_silent(record, at) => because(
            format!("{attempt}, but the worker was last heard {}", when(at, record.heartbeat_at)),
            format!("it is taken back as lost, at the latest after {visibility}, and runs again"),
        ),
        Some(record) => because(
            format!("{attempt}; the worker was last heard {}", when(at, record.heartbeat_at)),
            "it ends when its handler does",
        ),
    }
}

fn retrying(at: &Situation<'_>) -> Explanation {
    let (task, retry) = (at.task, &at.policy.retry);
    let most = task.max_retries.unwrap_or(retry.max_retries);
    let why = match task.retry_reason {
        Some(RetryReason::Failure) | None => {
            format!("waits for retry {} of {most} after {}", task.retry_count, last_error(task))
        }
        Some(RetryReason::Released) => {
            format!("was given back unfinished (release {} of at most {})", task.release_count, retry.max_releases)
        }
        Some(RetryReason::RateLimited) => format!(
            "was rate limited (release {} of at most {}): {}",
            task.release_count,
            retry.max_releases,
            last_error(task)
        ),
        Some(reason) => {
            let from = task.worker.as_ref().map(|worker| format!(" {worker}")).unwrap_or_default();
            format!("was taken from its worker{from} ({reason}, crash {} of {})", task.crash_count, retry.max_crashes)
        }
    };
    match task.due_at {
        Some(due) if due > now(at) => {
            let paused = stopped(at).map(|stopped| format!(", {}", stopped.why)).unwrap_or_default();
            because(why, format!("it may run again {}, at {due}{paused}", when(at, due)))
        }
        _ => ready(at, &format!("{why} and is ready again")),
    }
}

fn dying(at: &Situation<'_>) -> Explanation {
    because(
        format!("has failed for good after {}, and its dead letter is not recorded yet", last_error(at.task)),
        "the leader records it: check that `windlass operator` or `windlass dev` runs and reaches its event log",
    )
}

fn failed(at: &Situation<'_>) -> Explanation {
    let task = at.task;
    let finished = task.finished_at.map(|end| format!(" {}", when(at, end))).unwrap_or_default();
    let id = task.dlq_id.clone().unwrap_or_else(|| task.id.to_string());
    let why = format!("failed{finished} after {}, of {}", attempts(task), last_error(task));
    if let Some(other) = &task.replayed_as {
        return because(why, format!("its dead letter was replayed as task {other}"));
    }
    let replay = format!("`windlass dlq replay '{id}' -q {}` runs it again as a new task", at.queue);
    let next = match at.review {
        None => "its dead letter is not kept any more; enqueue it again if it is needed".to_owned(),
        Some(Review::Open) => format!("its dead letter is {id}: {replay}"),
        Some(Review::Replayed { task, .. }) => format!("its dead letter was replayed as task {task}"),
        Some(Review::DiscardRequested(voice)) => {
            format!(
                "{} wants its dead letter {id} discarded{}: a second person has to agree, or {replay}",
                voice.person,
                reason(voice)
            )
        }
        Some(Review::Discarded { by, .. }) => {
            format!("its dead letter was discarded by {}{}; enqueue it again if it is needed", by.person, reason(by))
        }
    };
    because(why, next)
}

fn reason(voice: &Voice) -> String {
    voice.reason.as_deref().map(|reason| format!(" ({})", shortened(reason, 200))).unwrap_or_default()
}

fn succeeded(at: &Situation<'_>) -> Explanation {
    let task = at.task;
    let end = task.finished_at.map(|end| format!(" {}, at {end}", when(at, end))).unwrap_or_default();
    because(format!("succeeded{end}, after {}", attempts(task)), "nothing more will happen to it")
}

fn cancelled(at: &Situation<'_>) -> Explanation {
    let task = at.task;
    let end = task.finished_at.map(|end| format!(" {}, at {end}", when(at, end))).unwrap_or_default();
    let reason = task.error.as_deref().map(|reason| format!(" ({})", shortened(reason, 200))).unwrap_or_default();
    because(format!("was cancelled{end}{reason}"), "nothing more will happen to it; enqueue it again if it is needed")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::broker::WorkerInfo;
    use crate::protocol::names::{Epoch, TaskId, WorkerId};
    use crate::protocol::task::Extras;

    fn moment(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).expect("a time")
    }

    fn task(state: State) -> TaskView {
        TaskView {
            id: TaskId::new("t1").expect("valid"),
            task_type: "send".parse().expect("valid"),
            state,
            priority: 5,
            payload: None,
            retry_count: 0,
            crash_count: 0,
            release_count: 0,
            epoch: Epoch(1),
            idempotency_key: None,
            trace_id: None,
            tenant_id: None,
            max_retries: None,
            extras: Extras::default(),
            created_at: moment(-100),
            updated_at: moment(-10),
            started_at: None,
            finished_at: None,
            due_at: None,
            worker: None,
            retry_reason: None,
            result: None,
            error: None,
            error_code: None,
            dlq_id: None,
            replayed_as: None,
            progress: None,
        }
    }

    fn worker(types: &[&str], heard: i64) -> WorkerRecord {
        WorkerRecord {
            info: WorkerInfo {
                id: WorkerId::new("w1").expect("valid"),
                host: "h".into(),
                pid: 1,
                pod: None,
                pod_uid: None,
                container: None,
                version: "1".into(),
                types: types.iter().map(|name| name.parse().expect("valid")).collect(),
                pool: None,
                started: None,
            },
            started_at: moment(-1000),
            heartbeat_at: moment(heard),
        }
    }

    /// The whole sentence.
    fn told(task: &TaskView, workers: &[WorkerRecord], change: impl FnOnce(&mut Policy, &mut QueueCounts)) -> String {
        told_with(task, workers, Some(&Review::Open), change)
    }

    fn told_with(
        task: &TaskView,
        workers: &[WorkerRecord],
        review: Option<&Review>,
        change: impl FnOnce(&mut Policy, &mut QueueCounts),
    ) -> String {
        let (mut policy, mut counts) = (Policy::default(), QueueCounts::default());
        (counts.backlog, counts.sampled_at) = (1, moment(0));
        change(&mut policy, &mut counts);
        let queue: QueueName = "shop/emails".parse().expect("valid");
        let told = explain(&Situation { queue: &queue, task, policy: &policy, counts: &counts, workers, review });
        format!("{}: {}", told.why, told.next)
    }

    #[track_caller]
    fn says(sentence: &str, parts: &[&str]) {
        for part in parts {
            assert!(sentence.contains(part), "{sentence:?} does not say {part:?}");
        }
    }

    #[test]
    fn a_task_before_its_time_says_when() {
        let mut early = task(State::Scheduled);
        early.due_at = Some(moment(40));
        says(&told(&early, &[], |_, _| ()), &["waits for its time, 2027-", "queued in 40s"]);
        early.due_at = Some(moment(-3));
        says(&told(&early, &[], |_, _| ()), &["has just become due", "no worker is registered"]);
    }

    #[test]
    fn a_ready_task_says_what_stands_in_its_way() {
        let ready = task(State::Queued);
        let any = [worker(&[], -5)];
        says(&told(&ready, &[], |_, _| ()), &["no worker is registered", "windlass worker -q shop/emails"]);
        says(
            &told(&ready, &any, |policy, _| policy.mode = Mode::Paused),
            &["is paused", "queue resume -q shop/emails"],
        );
        says(&told(&ready, &any, |policy, _| policy.mode = Mode::Closed), &["is closed"]);
        says(&told(&ready, &[worker(&["render"], -5)], |_, _| ()), &["none of the 1 registered workers", "type send"]);
        says(&told(&ready, &[worker(&["send"], -500)], |_, _| ()), &["has been heard since 2027-", "still run"]);
        says(&told(&ready, &any, |_, _| ()), &["is ready and next", "1 worker takes its type"]);
        says(&told(&ready, &any, |_, counts| counts.backlog = 812), &["at most 811 tasks before it"]);
    }

    #[test]
    fn a_running_task_names_its_worker_and_its_heartbeat() {
        let mut runs = task(State::Running);
        runs.worker = Some(WorkerId::new("w1").expect("valid"));
        runs.started_at = Some(moment(-12));
        says(
            &told(&runs, &[worker(&[], -3)], |_, _| ()),
            &["runs on worker w1 since 2027-", "(12s ago)", "heard 3s ago"],
        );
        says(&told(&runs, &[worker(&[], -200)], |_, _| ()), &["last heard 3m20s ago", "taken back as lost"]);
        says(&told(&runs, &[], |_, _| ()), &["not registered any more", "at the latest 5m"]);
    }

    #[test]
    fn a_retry_says_which_when_and_after_what() {
        let mut again = task(State::Retrying);
        (again.retry_count, again.due_at) = (2, Some(moment(40)));
        again.retry_reason = Some(RetryReason::Failure);
        (again.error_code, again.error) = (Some("timeout".into()), Some("no answer\nfrom smtp".into()));
        let told_now = told(&again, &[], |_, _| ());
        says(&told_now, &["waits for retry 2 of 3 after timeout: no answer from smtp", "in 40s"]);
        again.max_retries = Some(7);
        says(&told(&again, &[], |policy, _| policy.mode = Mode::Paused), &["retry 2 of 7", "but the queue is paused"]);
        again.due_at = None;
        says(&told(&again, &[], |_, _| ()), &["is ready again", "no worker is registered"]);
    }

    #[test]
    fn a_task_that_lost_its_worker_says_how_often_that_may_happen() {
        let mut lost = task(State::Retrying);
        (lost.crash_count, lost.retry_reason) = (1, Some(RetryReason::WorkerLost));
        lost.worker = Some(WorkerId::new("w0").expect("valid"));
        says(&told(&lost, &[worker(&[], 0)], |_, _| ()), &["taken from its worker w0 (worker_lost, crash 1 of 3)"]);
        lost.retry_reason = Some(RetryReason::Released);
        lost.release_count = 4;
        says(&told(&lost, &[], |_, _| ()), &["given back unfinished (release 4 of at most 100)"]);
        lost.retry_reason = Some(RetryReason::RateLimited);
        says(&told(&lost, &[], |_, _| ()), &["was rate limited (release 4 of at most 100)"]);
    }

    #[test]
    fn a_dead_task_gives_the_command_to_replay_it() {
        let mut dead = task(State::Failed);
        (dead.dlq_id, dead.error) = (Some("t1#4".into()), Some("bad address".into()));
        (dead.epoch, dead.finished_at) = (Epoch(4), Some(moment(-60)));
        says(
            &told(&dead, &[], |_, _| ()),
            &["failed 1m ago after 4 attempts, of bad address", "`windlass dlq replay 't1#4' -q shop/emails`"],
        );
        dead.replayed_as = Some(TaskId::new("t2").expect("valid"));
        says(&told(&dead, &[], |_, _| ()), &["was replayed as task t2"]);
        says(&told(&task(State::DlqPending), &[], |_, _| ()), &["not recorded yet", "windlass dev"]);
    }

    #[test]
    fn a_decision_about_a_dead_letter_is_told() {
        let mut dead = task(State::Failed);
        (dead.dlq_id, dead.error) = (Some("t1#4".into()), Some("bad address".into()));
        let voice = || Voice { person: "ada".into(), reason: Some("too old".into()), at: moment(-5) };
        let with = |review: Option<&Review>| told_with(&dead, &[], review, |_, _| ());
        let asked = with(Some(&Review::DiscardRequested(voice())));
        says(&asked, &["ada wants its dead letter t1#4 discarded (too old)", "a second person", "dlq replay 't1#4'"]);
        let given_up = with(Some(&Review::Discarded { by: voice(), requested: None }));
        says(&given_up, &["was discarded by ada (too old)", "enqueue it again"]);
        assert!(!given_up.contains("replay"), "{given_up}");
        let gone = with(None);
        assert!(gone.contains("is not kept any more") && !gone.contains("replay"), "{gone}");
    }

    #[test]
    fn a_finished_task_says_when_and_why() {
        let mut done = task(State::Succeeded);
        done.finished_at = Some(moment(-5));
        says(&told(&done, &[], |_, _| ()), &["succeeded 5s ago, at 2027-", "after 1 attempt"]);
        let mut ended = task(State::Cancelled);
        (ended.finished_at, ended.error) = (Some(moment(-5)), Some("order was withdrawn".into()));
        says(&told(&ended, &[], |_, _| ()), &["was cancelled 5s ago", "(order was withdrawn)"]);
    }

    #[test]
    fn every_state_has_a_reason_and_a_way_on() {
        for state in State::ALL {
            let sentence = told(&task(state), &[worker(&["send"], -5)], |_, _| ());
            let (why, next) = sentence.split_once(": ").expect("two halves");
            assert!(!why.is_empty() && !next.is_empty(), "{state}: {sentence}");
        }
        says(&told(&task(State::Blocked), &[], |_, _| ()), &["tasks that it depends on"]);
        says(&told(&task(State::WaitingApproval), &[], |_, _| ()), &["a person's approval"]);
    }

    #[test]
    fn silence_is_judged_by_the_policy() {
        let ready = task(State::Queued);
        let patient = |policy: &mut Policy, _: &mut QueueCounts| {
            policy.reclaim.worker_lost_after = Duration::from_secs(3600);
        };
        says(&told(&ready, &[worker(&["send"], -500)], patient), &["is ready and next"]);
    }
}
