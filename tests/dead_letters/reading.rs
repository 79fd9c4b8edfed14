//! Thousands of dead letters read as a few causes, wherever they are read from.

use windlass::broker::{ClaimedTask, ListCursor};
use windlass::dead_letters::{DeadLetterFilter, Discard, Entry, Replay, Selection, Verdict};
use windlass::maintenance::archivist::Archivist;
use windlass::maintenance::sampler::Sampler;
use windlass::maintenance::{Chore, Queue};
use windlass::protocol::policy::Policy;
use windlass::protocol::task::Payload;
use windlass::{NewTask, TaskId};

use super::rig::{Rig, send};

/// Three causes, none of which says the same twice.
fn error_of(task: &ClaimedTask) -> String {
    let n: u64 = task.payload.parse::<serde_json::Value>().expect("JSON")["n"].as_u64().expect("a number");
    match n % 10 {
        0..=5 => format!("connect to 10.0.{}.{}:5432 timed out after {}ms", n % 200, n % 90, 3000 + n),
        6..=8 => format!("user '{n}@shop' has no address (order {})", TaskId::generate()),
        _ => format!("HTTP 503 from https://api.example.com/v1/users/{n}?try={n}"),
    }
}

fn tenant_of(n: usize) -> Option<windlass::protocol::names::TenantId> {
    (!n.is_multiple_of(3)).then(|| format!("tenant-{}", n % 30).parse().expect("valid"))
}

fn mixed(count: usize) -> Vec<NewTask> {
    (0..count)
        .map(|n| NewTask {
            tenant_id: tenant_of(n),
            task_type: if n % 10 == 9 { "fetch" } else { "send" }.parse().expect("valid"),
            ..send(n)
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_thousand_dead_letters_read_as_three_causes_from_the_log_and_from_the_queue() {
    let rig = Rig::on_postgres(Policy::default()).await;
    rig.die(&mixed(2000), error_of).await;
    let discard = Discard::new(Selection::Ids(vec![rig.ids().await[0].clone()]), "ada", "hopeless");
    assert_eq!(rig.letters().discard(&discard, |_| ()).await.expect("done").counts.discarded, 1);
    rig.lead().await;
    let any = DeadLetterFilter::default();
    let from_log = rig.letters().causes(&any, ListCursor::default(), 100).await.expect("answered");
    let walked = rig.letters_by_walking().causes(&any, ListCursor::default(), 100).await.expect("answered");
    let counts: Vec<_> = from_log.items.iter().map(|cause| cause.count).collect();
    assert_eq!((counts, from_log.next), (vec![1200, 600, 200], None));
    assert_eq!(from_log.items.iter().map(|cause| cause.open).sum::<u64>(), 1999);
    for (a, b) in from_log.items.iter().zip(&walked.items) {
        assert_eq!((&a.fingerprint, a.count, a.open), (&b.fingerprint, b.count, b.open));
        assert_eq!((&a.task_type, &a.error_code), (&b.task_type, &b.error_code));
        assert_eq!((a.first_failed_at, a.last_failed_at), (b.first_failed_at, b.last_failed_at));
        assert_eq!((&a.tenants, a.tenant_count), (&b.tenants, b.tenant_count));
        assert!(a.tenants.len() <= 10 && a.tenant_count > 1, "{a:?}");
        let sample = rig.letters().show(&a.sample_id).await.expect("answered").expect("there");
        assert_eq!((&sample.fingerprint, &sample.letter.error), (&a.fingerprint, &a.sample_error));
    }
    // In pages it is the same, from either.
    for letters in [rig.letters(), rig.letters_by_walking()] {
        let (mut paged, mut cursor) = (Vec::new(), Some(ListCursor::default()));
        while let Some(from) = cursor {
            let page = letters.causes(&any, from, 1).await.expect("answered");
            paged.extend(page.items.into_iter().map(|cause| cause.count));
            cursor = page.next;
        }
        assert_eq!(paged, [1200, 600, 200]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_filter_finds_the_same_in_the_log_and_in_the_queue() {
    let rig = Rig::new(Policy { discard_approvals: 2, ..Policy::default() }).await;
    rig.die(&mixed(150), error_of).await;
    let ids = rig.ids().await;
    // One replayed, one asked to be given up, one given up by two.
    let letters = rig.letters();
    let one = |n: usize| Selection::Ids(vec![ids[n].clone()]);
    let replayed = letters.replay(&Replay::new(one(10), "ada"), |_| ()).await.expect("done");
    assert_eq!(replayed.counts.replayed, 1);
    for (n, person) in [(20, "ada"), (30, "ada"), (30, "bob")] {
        let report = letters.discard(&Discard::new(one(n), person, "hopeless"), |_| ()).await.expect("done");
        assert!(report.stopped.is_none());
    }
    rig.lead().await;
    let any = DeadLetterFilter::default();
    let all = rig.all(&letters, &any).await;
    assert_eq!(all.len(), 150);
    let middle = &all[75];
    let filters = [
        any.clone(),
        DeadLetterFilter { ids: ids[3..9].to_vec(), ..any.clone() },
        DeadLetterFilter { fingerprint: Some(middle.fingerprint.clone()), ..any.clone() },
        DeadLetterFilter { task_type: Some("fetch".parse().expect("valid")), ..any.clone() },
        DeadLetterFilter { error_code: Some("failed".to_owned()), ..any.clone() },
        DeadLetterFilter { error_code: Some("other".to_owned()), ..any.clone() },
        DeadLetterFilter { tenant: tenant_of(1), ..any.clone() },
        DeadLetterFilter { failed_after: Some(middle.letter.failed_at), ..any.clone() },
        DeadLetterFilter { failed_before: Some(middle.letter.failed_at), ..any.clone() },
        DeadLetterFilter { decision: Some(Verdict::Open), ..any.clone() },
        DeadLetterFilter { decision: Some(Verdict::Replayed), ..any.clone() },
        DeadLetterFilter { decision: Some(Verdict::Discarded), ..any.clone() },
    ];
    let mut sizes = Vec::new();
    for filter in &filters {
        let (mut log, mut walked) = (rig.all(&letters, filter).await, rig.all(&rig.letters_by_walking(), filter).await);
        for entries in [&mut log, &mut walked] {
            entries.sort_by(|a, b| a.letter.id.cmp(&b.letter.id));
        }
        sizes.push(log.len());
        assert_eq!(log.len(), walked.len(), "{filter:?}");
        for (a, b) in log.iter().zip(&walked) {
            assert_eq!((&a.letter, &a.fingerprint, &a.review), (&b.letter, &b.fingerprint, &b.review), "{filter:?}");
        }
    }
    assert_eq!((sizes[0], sizes[1], sizes[3], sizes[4], sizes[5]), (150, 6, 15, 150, 0));
    assert_eq!((sizes[9], sizes[10], sizes[11]), (148, 1, 1));
    assert_eq!(sizes[7] + sizes[8], 150, "a window leaves nothing between");
    let gone = "gone#1".parse().expect("valid");
    assert!(letters.show(&gone).await.expect("answered").is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_letter_that_the_queue_has_lost_can_still_be_read_from_the_log() {
    let rig = Rig::new(Policy::default()).await;
    rig.die(&[send(1)], |_| "no".to_owned()).await;
    let id = rig.ids().await.remove(0);
    let before = rig.letters().show(&id).await.expect("answered").expect("there");
    rig.server.command(&["FLUSHALL"]).await;
    rig.broker().provision(&crate::support::owner(), &Policy::default()).await.expect("made again");
    let after = rig.letters().show(&id).await.expect("answered").expect("the log has it");
    assert_eq!((after.letter, after.review), (before.letter, before.review));
    let report = rig.letters().replay(&Replay::new(Selection::Ids(vec![id]), "ada"), |_| ()).await.expect("done");
    assert_eq!(report.counts.unknown, 1, "what the queue does not have cannot run again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_letter_s_json_has_the_names_that_tasks_have() {
    let rig = Rig::without_log(Policy::default()).await;
    let task = NewTask {
        payload: Payload::from_json(r#"{"big":123456789012345678901234567890}"#).expect("JSON"),
        tenant_id: Some("acme".parse().expect("valid")),
        ..send(0)
    };
    rig.die(&[task], |_| "no".to_owned()).await;
    let id = rig.ids().await.remove(0);
    let entry: Entry = rig.letters().show(&id).await.expect("answered").expect("there");
    let text = serde_json::to_string(&entry).expect("it has a JSON form");
    assert!(text.contains(r#""payload":{"big":123456789012345678901234567890}"#), "byte for byte: {text}");
    let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    for name in [
        "dlqId",
        "taskId",
        "type",
        "payload",
        "priority",
        "error",
        "errorCode",
        "fingerprint",
        "retryCount",
        "crashCount",
        "releaseCount",
        "tenantId",
        "traceId",
        "idempotencyKey",
        "labels",
        "createdAt",
        "failedAt",
        "recordedAt",
        "history",
        "review",
    ] {
        assert!(json.get(name).is_some(), "{name} in {text}");
    }
    assert_eq!((&json["dlqId"], &json["review"]["state"]), (&id.to_string().into(), &"open".into()));
    assert_eq!(json["history"][0]["outcome"], "permanent");
    assert_eq!(json["failedAt"], entry.letter.failed_at.to_string());
}

/// Closes: "the history was switched on, and what had died before it is gone".
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_log_that_is_added_later_shows_what_died_and_was_decided_before_it() {
    let rig = Rig::without_log(Policy::default()).await;
    rig.die(&mixed(120), error_of).await;
    let ids = rig.ids().await;
    let discard = Discard::new(Selection::Ids(ids[..1].to_vec()), "ada", "hopeless");
    assert_eq!(rig.letters().discard(&discard, |_| ()).await.expect("done").counts.discarded, 1);
    let replay = Replay::new(Selection::Ids(ids[1..2].to_vec()), "bob");
    assert_eq!(rig.letters().replay(&replay, |_| ()).await.expect("done").counts.replayed, 1);
    let rig = rig.with_log();
    let queue = Queue::new(rig.ground.name.clone(), rig.ground.broker.clone(), rig.log.clone());
    let mut sampler = Sampler::default();
    sampler.run_once(&queue).await.expect("a look");
    // Two leaders that know nothing of each other, and then a third one.
    let mut leaders = [Archivist::default(), Archivist::default(), Archivist::default()];
    for step in 0..30 {
        let leader = if step < 20 { step % 2 } else { 2 };
        leaders[leader].run_once(&queue).await.expect("a step");
    }
    let any = DeadLetterFilter::default();
    let (recorded, walked) = (rig.all(&rig.letters(), &any).await, rig.all(&rig.letters_by_walking(), &any).await);
    let told = |entries: &[Entry]| {
        let told = |entry: &Entry| (entry.letter.clone(), entry.fingerprint.clone(), entry.review.clone());
        let mut told: Vec<_> = entries.iter().map(told).collect();
        told.sort_by_key(|(letter, ..)| letter.id.to_string());
        told
    };
    assert_eq!(recorded.len(), 120);
    assert_eq!(told(&recorded), told(&walked));
    assert_eq!(rig.log().reviews(&rig.ground.name, &ids[0]).await.expect("answered").len(), 1, "it was said once");
}
