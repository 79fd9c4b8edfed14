//! The tables are made once, by whoever comes first.

use futures::future::join_all;
use windlass::broker::ErrorClass;
use windlass::event_log::EventLog;

use super::place::{Place, entry_of, queue, task};

/// How many migrations there are.
const MIGRATIONS: &str = "2";

async fn tables_are_made_once_and_keep_what_they_hold(place: &Place) {
    let log = place.log().await;
    log.record(&queue(), &entry_of("a", 1)).await.expect("recorded");
    let again = place.log().await;
    assert_eq!(again.history(&queue(), &task("a-0")).await.expect("answered").len(), 1);
    assert_eq!(place.query("SELECT max(version) FROM windlass_migrations").expect("answered"), MIGRATIONS);
}

async fn eight_processes_that_start_at_once_make_the_tables_once(place: &Place) {
    let url = place.url();
    let starts = (0..8).map(|_| {
        let url = url.clone();
        tokio::spawn(async move { EventLog::connect(&url).await.map(|_| ()) })
    });
    for start in join_all(starts).await {
        start.expect("no panic").expect("connected");
    }
    assert_eq!(place.query("SELECT count(*) FROM windlass_migrations").expect("answered"), MIGRATIONS);
}

async fn a_start_that_is_cut_off_leaves_nothing_half_made(place: &Place) {
    for micros in [0, 500, 1000, 2000, 4000, 8000, 16000] {
        let moment = std::time::Duration::from_micros(micros);
        let _ = tokio::time::timeout(moment, EventLog::connect(&place.url())).await;
    }
    let log = place.log().await;
    assert_eq!(log.record(&queue(), &entry_of("a", 3)).await.expect("recorded"), 3);
}

async fn tables_that_somebody_removed_are_made_again(place: &Place) {
    let log = place.log().await;
    log.record(&queue(), &entry_of("a", 1)).await.expect("recorded");
    for table in ["event_log", "dlq_items", "dlq_reviews", "task_queue_metrics", "windlass_migrations"] {
        place.query(&format!("DROP TABLE {table}")).expect("dropped");
    }
    let error = log.record(&queue(), &entry_of("a", 1)).await.expect_err("there are no tables");
    assert_eq!(error.class(), ErrorClass::Transient, "{error}");
    assert_eq!(log.record(&queue(), &entry_of("a", 1)).await.expect("they were made"), 1);
    assert_eq!(log.history(&queue(), &task("a-0")).await.expect("answered").len(), 1);
}

/// The unique index that the task-queue protocol asks for: one outside effect a key.
async fn a_second_outside_effect_of_one_key_is_refused_by_the_database(place: &Place) {
    let _log = place.log().await;
    let effect = |task: &str, tenant: &str, key: &str| {
        place.query(&format!(
            "INSERT INTO event_log (queue, event_type, task_id, epoch, task_type, retry_count, tenant_id, \
             idempotency_key, occurred_at) VALUES ('shop/emails', 'effect.done', '{task}', 1, 'send', 0, {tenant}, \
             '{key}', '2024-01-01T00:00:00.000Z')"
        ))
    };
    effect("a", "NULL", "charge-7").expect("the first");
    let refused = effect("b", "NULL", "charge-7").expect_err("the second");
    assert!(refused.to_ascii_lowercase().contains("unique"), "{refused}");
    effect("a", "'acme'", "charge-7").expect("another tenant's");
    effect("a", "NULL", "charge-8").expect("another key");
}

suite!(
    tables_are_made_once_and_keep_what_they_hold,
    eight_processes_that_start_at_once_make_the_tables_once,
    a_start_that_is_cut_off_leaves_nothing_half_made,
    tables_that_somebody_removed_are_made_again,
    a_second_outside_effect_of_one_key_is_refused_by_the_database,
);
