//! The metrics table.

use std::collections::BTreeMap;
use std::time::Duration;

use windlass::event_log::Sample;

use super::place::{Place, at, queue};

fn sample(ms: i64) -> Sample {
    Sample {
        at: at(ms),
        created: 10,
        completed: 7,
        failed: 2,
        average_latency: Some(Duration::from_millis(1234)),
        heartbeat_delay: None,
        retrying_ratio: 0.25,
        invalid_transitions: 1,
        error_rates: [("send".parse().expect("valid"), 0.125)].into(),
        dead_letter_growth: [("acme".parse().expect("valid"), 3)].into(),
    }
}

async fn samples_are_kept_once_a_time_and_read_in_order(place: &Place) {
    let log = place.log().await;
    for ms in [300, 100, 200, 100] {
        log.record_sample(&queue(), &sample(ms)).await.expect("recorded");
    }
    log.record_sample(&queue(), &Sample { created: 99, ..sample(200) }).await.expect("the first one stays");
    let found = log.samples(&queue(), at(100), at(300)).await.expect("answered");
    assert_eq!(found, [sample(100), sample(200)]);
    assert_eq!(log.delete_metrics_before(&queue(), at(300), 1).await.expect("answered"), 1);
    assert_eq!(log.samples(&queue(), at(0), at(1000)).await.expect("answered"), [sample(200), sample(300)]);
}

async fn a_ratio_of_nothing_to_nothing_is_none(place: &Place) {
    let log = place.log().await;
    let rates = BTreeMap::from([("send".parse().expect("valid"), f64::NAN)]);
    let odd = Sample { retrying_ratio: f64::INFINITY, error_rates: rates, ..sample(1) };
    log.record_sample(&queue(), &odd).await.expect("recorded");
    let found = log.samples(&queue(), at(0), at(10)).await.expect("answered");
    assert_eq!((found[0].retrying_ratio, found[0].error_rates.values().sum::<f64>()), (0.0, 0.0));
}

suite!(samples_are_kept_once_a_time_and_read_in_order, a_ratio_of_nothing_to_nothing_is_none);
