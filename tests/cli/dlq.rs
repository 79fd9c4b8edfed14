//! `windlass dlq`.

use serde_json::{Value, json};
use windlass::broker::Broker;
use windlass::event_log::EventLog;
use windlass::protocol::policy::Policy;

use super::ground::{Ground, hasty};
use crate::support::servers::Wait;

/// A queue with three causes of death, the commonest with five dead letters.
async fn three_causes(policy: &Policy) -> Ground {
    let ground = Ground::new(policy).await;
    for (count, error) in [(5, "no route to host"), (2, "mailbox is full"), (1, "no such user")] {
        for _ in 0..count {
            ground.enqueued(&["--tenant", "acme"]).await;
        }
        assert_eq!(ground.let_die(error).await, count);
    }
    ground
}

fn list(value: &Value) -> &Vec<Value> {
    value.as_array().expect("a list")
}

#[tokio::test]
async fn dead_letters_read_as_causes_and_one_by_one() {
    let ground = three_causes(&hasty()).await;
    let causes = ground.run(&["dlq", "list", "-o", "json"]).await.json();
    let counts: Vec<_> = list(&causes).iter().map(|cause| cause["count"].as_u64().expect("a number")).collect();
    assert_eq!(counts, [5, 2, 1]);
    assert_eq!(causes[0]["sampleError"], "no route to host");
    ground.run(&["dlq", "list"]).await.said(&["FINGERPRINT", "no route to host", "mailbox is full", "no such user"]);
    let all = ground.run(&["dlq", "list", "--all", "-o", "json"]).await.json();
    assert_eq!(list(&all).len(), 8);
    let fingerprint = causes[1]["fingerprint"].as_str().expect("a fingerprint");
    let full = ground.run(&["dlq", "list", "--fingerprint", fingerprint, "-o", "json"]).await.json();
    assert_eq!(list(&full).len(), 2);
    assert!(
        list(&full).iter().all(|letter| letter["error"] == "mailbox is full" && letter["review"]["state"] == "open")
    );
    let none = ground.run(&["dlq", "list", "--all", "--since", "2090-01-01T00:00:00Z"]).await;
    none.said(&["No dead letters found."]);
    ground.run(&["dlq", "list", "--type", "other", "-o", "json"]).await.said(&["[]"]);
}

/// A program's last words begin with how it came there; two causes must not read as one.
#[tokio::test]
async fn causes_with_tracebacks_are_told_apart_by_their_errors() {
    let ground = Ground::new(&hasty()).await;
    let frames = "  File \"greet.py\", line 3, in <module>\n    print(task[\"payload\"][\"name\"])\n".repeat(3);
    for error in ["KeyError: 'name'", "OSError: [Errno 28] No space left on device"] {
        let id = ground.enqueued(&[]).await;
        ground.let_die(&format!("Traceback (most recent call last):\n{frames}{error}")).await;
        for shown in [&["dlq", "list"][..], &["dlq", "list", "--all"], &["task", "list"], &["task", "explain", &id]] {
            ground.run(shown).await.said(&[&format!("… {error}")]);
        }
        ground.run(&["dlq", "show", &id]).await.said(&["Traceback", "line 3", error]);
    }
    let causes = ground.run(&["dlq", "list", "-o", "json"]).await.json();
    assert_eq!(list(&causes).len(), 2);
}

#[tokio::test]
async fn a_dead_letter_is_shown_whole_by_its_own_name_or_its_task_s() {
    let ground = three_causes(&hasty()).await;
    let all = ground.run(&["dlq", "list", "--all", "-o", "json"]).await.json();
    let (id, task) = (all[0]["dlqId"].as_str().expect("an id"), all[0]["taskId"].as_str().expect("an id"));
    let by_id = ground.run(&["dlq", "show", id, "-o", "json"]).await.json();
    let by_task = ground.run(&["dlq", "show", task, "-o", "json"]).await.json();
    assert_eq!(by_id, by_task);
    assert_eq!((&by_id["errorCode"], &by_id["history"][0]["worker"]), (&json!("broken"), &json!("w1")));
    ground.run(&["dlq", "show", id]).await.said(&["Decision:", "open", "OUTCOME", "permanent"]);
    ground.run(&["dlq", "show", "nobody"]).await.refused(3, &["no dead letter of task nobody"]);
    ground.run(&["dlq", "show", "nobody#1"]).await.refused(3, &["has no dead letter nobody#1"]);
    let live = ground.enqueued(&[]).await;
    ground.run(&["dlq", "show", &live]).await.refused(3, &["no dead letter of task"]);
}

#[tokio::test]
async fn a_dead_letter_is_replayed_once_with_a_corrected_payload() {
    let ground = three_causes(&hasty()).await;
    let all = ground.run(&["dlq", "list", "--all", "-o", "json"]).await.json();
    let id = all[0]["dlqId"].as_str().expect("an id");
    let dry = ground.run(&["dlq", "replay", id, "--dry-run", "-o", "json"]).await.json();
    assert_eq!((&dry["counts"]["wouldReplay"], &dry["dryRun"]), (&json!(1), &json!(true)));
    let replay = ["dlq", "replay", id, "--payload", r#"{"mended":true}"#, "--reason", "mended", "--as", "grace"];
    let ran = ground.run(&[&replay[..], &["-o", "json"]].concat()).await.json();
    let task = ran["letters"][0]["task"].as_str().expect("a task");
    let got = ground.run(&["task", "get", task, "-o", "json"]).await.json();
    assert_eq!((&got["payload"], &got["replayOf"]), (&json!({"mended": true}), &json!(id)));
    ground.run(&["dlq", "replay", id]).await.said(&["was replayed before, as task", task]);
    let shown = ground.run(&["dlq", "show", id, "-o", "json"]).await.json();
    assert_eq!(
        (&shown["review"]["by"]["person"], &shown["review"]["by"]["reason"]),
        (&json!("grace"), &json!("mended"))
    );
    ground.run(&["dlq", "discard", id, "--reason", "x"]).await.refused(4, &["was replayed before"]);
    ground.run(&["dlq", "replay", "nobody#1"]).await.refused(3, &["dead letter nobody#1 is not there"]);
    let two = ["dlq", "replay", all[1]["dlqId"].as_str().expect("an id"), all[2]["dlqId"].as_str().expect("an id")];
    ground.run(&[&two[..], &["--payload", "1"]].concat()).await.refused(2, &["for one dead letter"]);
}

#[tokio::test]
async fn a_cause_is_replayed_as_a_whole_and_not_in_circles() {
    let ground = three_causes(&hasty()).await;
    let causes = ground.run(&["dlq", "list", "-o", "json"]).await.json();
    let fingerprint = causes[0]["fingerprint"].as_str().expect("a fingerprint");
    let replay = ["dlq", "replay", "--fingerprint", fingerprint, "--rate", "1000/s", "-o", "json"];
    let ran = ground.run(&replay).await.json();
    assert_eq!((&ran["counts"]["replayed"], list(&ran["letters"]).len()), (&json!(5), 5));
    assert_eq!(ground.let_die("no route to host").await, 5, "they die of the same again");
    let again = ground.run(&replay).await.json();
    assert_eq!((&again["counts"]["replayed"], &again["counts"]["failedAgain"]), (&json!(0), &json!(5)));
    let one = again["letters"][0]["dlqId"].as_str().expect("an id");
    ground.run(&["dlq", "replay", one]).await.refused(4, &["failed again the same way", "--force"]);
    let forced = ground.run(&[&replay[..], &["--force"]].concat()).await.json();
    assert_eq!(forced["counts"]["replayed"], json!(5));
    let rest = ground.run(&["dlq", "replay", "--all"]).await;
    rest.said(&["runs again as task"]);
    ground.run(&["dlq", "replay", "--all"]).await.said(&["No dead letters found."]);
}

#[tokio::test]
async fn a_discard_waits_for_a_second_person_where_the_policy_says_so() {
    let policy = Policy { discard_approvals: 2, ..hasty() };
    let ground = three_causes(&policy).await;
    let all = ground.run(&["dlq", "list", "--all", "-o", "json"]).await.json();
    let id = all[0]["dlqId"].as_str().expect("an id");
    let discard = ["dlq", "discard", id, "--reason", "customer is gone"];
    ground.run(&discard).await.said(&["when a second person says so too"]);
    ground.run(&discard).await.refused(4, &["waits for another person"]);
    ground.run(&[&discard[..], &["--as", "grace"]].concat()).await.said(&["is discarded"]);
    ground.run(&["dlq", "replay", id]).await.refused(4, &["was discarded before"]);
    let shown = ground.run(&["dlq", "show", id, "-o", "json"]).await.json();
    assert_eq!(shown["review"]["requested"]["person"], "ada", "from USER");
    let kept = ground.run(&["dlq", "list", "--all", "--decision", "discarded", "-o", "json"]).await.json();
    assert_eq!(list(&kept).len(), 1);
}

#[tokio::test]
async fn with_an_event_log_the_same_is_read_from_there() {
    let folder = tempfile::tempdir().expect("a folder");
    let url = format!("sqlite://{}/events.db", folder.path().display());
    let ground = Ground::new(&hasty()).await;
    let log = EventLog::connect(&url).await.expect("a log");
    let _leader = ground.lead(Some(log)).await;
    for _ in 0..3 {
        ground.enqueued(&[]).await;
    }
    for task in ground.claim().await {
        ground.settle(&task, windlass::Outcome::permanent("broken", "no route to host")).await;
    }
    let mut wait = Wait::new("three dead letters in the log");
    loop {
        let causes = ground.run(&["dlq", "list", "-o", "json", "--event-log", &url]).await.json();
        match list(&causes).first().map(|cause| cause["count"].clone()) {
            Some(count) if count == json!(3) => break,
            other => wait.again(format!("{other:?}")).await,
        }
    }
    assert_eq!(ground.broker.counts().await.expect("counted").backlog, 0);
    let ran = ground.run(&["dlq", "replay", "--all", "--event-log", &url, "-o", "json"]).await.json();
    assert_eq!(ran["counts"]["replayed"], json!(3));
}
