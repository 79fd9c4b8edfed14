//! Alerts and the dashboard use what the operator really exports, and every alert has a section that says what to do.
//!
//! There is no Prometheus here: that it takes an expression, and that an alert fires when it should, is not tried. What is
//! compared are metrics and labels, and whether brackets are in pairs.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::ground::{cluster, objects, of_kind, text};
use crate::operator_ground::Ground;

/// The rules of the chart's PrometheusRule.
async fn rules() -> Vec<Value> {
    rules_with("prometheusRule: {enabled: true}").await
}

async fn rules_with(values: &str) -> Vec<Value> {
    let objects = objects(cluster().await, "here", values).await;
    let rule = of_kind(&objects, "PrometheusRule")[0];
    let groups = rule["spec"]["groups"].as_array().expect("groups");
    groups.iter().flat_map(|group| group["rules"].as_array().expect("rules").clone()).collect()
}

/// Every expression of the dashboard, and what its choices are made from.
fn dashboard() -> Vec<String> {
    let dashboard: Value = serde_json::from_str(&text("charts/windlass/files/dashboards/windlass.json")).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().cloned().unwrap_or_default());
    let choices = dashboard["templating"]["list"].as_array().expect("choices");
    let choices = choices.iter().filter_map(|choice| choice["query"]["query"].as_str().map(str::to_owned));
    targets.map(|target| target["expr"].as_str().expect("an expression").to_owned()).chain(choices).collect()
}

/// The metrics that an expression names.
fn metrics_in(expression: &str) -> BTreeSet<String> {
    let words = expression.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words.filter(|word| word.starts_with("windlass_")).map(str::to_owned).collect()
}

/// The names of series by an exposition's descriptors.
fn series_of(exposition: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for line in exposition.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let (name, kind) = line.split_once(' ').expect("a name and a type");
        let endings: &[&str] = match kind {
            "counter" => &["_total"],
            "histogram" => &["_bucket", "_sum", "_count"],
            _ => &[""],
        };
        names.extend(endings.iter().map(|ending| format!("{name}{ending}")));
    }
    names
}

/// What Prometheus itself puts on every series that it scrapes.
const SCRAPED: [&str; 4] = ["job", "namespace", "service", "pod"];

/// The labels that an expression names: behind `by` and `on`, in selectors, and as a choice of the dashboard.
fn labels_in(expression: &str) -> BTreeSet<String> {
    let inside = |opens: &'static str, closes| {
        let behind = expression.match_indices(opens).map(move |(at, _)| &expression[at + opens.len()..]);
        behind.filter_map(move |rest| rest.split_once(closes)).map(|(inside, _)| inside)
    };
    let grouped = inside("by (", ')').chain(inside("on (", ')')).flat_map(|list| list.split(','));
    let matched = inside("{", '}').flat_map(|list| list.split(',')).filter_map(|one| one.split(['=', '!']).next());
    let chosen = inside("label_values(", ')').filter_map(|list| list.rsplit(',').next());
    grouped.chain(matched).chain(chosen).map(|label| label.trim().to_owned()).collect()
}

/// The labels of the samples of an exposition, by the names of their series.
fn labels_of(exposition: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in exposition.lines().filter(|line| !line.starts_with('#')) {
        let name: String = line.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
        // A label's name ends where its value begins; no value here has such a beginning in it.
        let labels = line.match_indices("=\"").map(|(end, _)| line[..end].rsplit(['{', ',']).next().unwrap_or(""));
        found.entry(name).or_default().extend(labels.map(str::to_owned));
    }
    found
}

/// Which labels of an expression none of its metrics has. One that has no sample yet may have any.
fn strange_labels(expression: &str, known: &BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    let seen: Option<Vec<_>> = metrics_in(expression).iter().map(|metric| known.get(metric)).collect();
    let Some(seen) = seen else { return Vec::new() };
    let strange = |label: &String| !SCRAPED.contains(&label.as_str()) && !seen.iter().any(|has| has.contains(label));
    labels_in(expression).into_iter().filter(strange).collect()
}

/// Whether every bracket is closed by its own kind.
fn is_paired(expression: &str) -> bool {
    let mut open = Vec::new();
    for c in expression.chars() {
        match c {
            '(' => open.push(')'),
            '[' => open.push(']'),
            '{' => open.push('}'),
            ')' | ']' | '}' if open.pop() != Some(c) => return false,
            _ => {}
        }
    }
    open.is_empty()
}

#[test]
fn a_label_that_no_metric_has_and_a_bracket_that_stays_open_are_seen() {
    let known = labels_of("# TYPE a gauge\nwindlass_a{queue=\"x/y\",le=\"1,5\"} 1\nwindlass_b 2\n");
    assert_eq!(known["windlass_a"], ["le", "queue"].map(str::to_owned).into());
    let strange = |expression| strange_labels(expression, &known);
    assert_eq!(strange("sum by (queue, le) (windlass_a{job=\"x\"}) / on (queue) windlass_b"), Vec::<String>::new());
    assert_eq!(strange("sum by (queue, tenant) (windlass_a{kin=~\"x\"})"), ["kin", "tenant"]);
    assert_eq!(strange("label_values(windlass_b, queue)"), ["queue"]);
    assert!(is_paired("sum(rate(a{b=\"c\"}[5m]))") && !is_paired("sum(a[5m)]") && !is_paired("sum(a"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_operator_exports_every_metric_and_label_that_alerts_and_the_dashboard_use() {
    let rules = rules().await;
    let expressions = rules.iter().map(|rule| rule["expr"].as_str().expect("an expression").to_owned());
    let expressions: Vec<String> = expressions.chain(dashboard()).collect();
    let torn: Vec<_> = expressions.iter().filter(|one| !is_paired(one)).collect();
    assert!(torn.is_empty(), "{torn:#?}");
    let used: BTreeSet<String> = expressions.iter().flat_map(|one| metrics_in(one)).collect();
    assert!(used.len() > 20, "{used:?}");

    let ground = Ground::new().await;
    let folder = tempfile::tempdir().expect("a directory");
    let log = format!("sqlite://{}/events.db", folder.path().display());
    let operator = ground.operator_with(&[("WINDLASS_EVENT_LOG_URL", &log)]).await;
    ground.apply("emails", "{}").await;
    ground.ready("emails").await;
    let mut exported = BTreeSet::new();
    let mut see = async |wanted: &dyn Fn(&str) -> bool| {
        let look = async || {
            exported.extend(series_of(&operator.page("/metrics").await.1));
            let missing: Vec<_> = used.iter().filter(|name| wanted(name) && !exported.contains(*name)).collect();
            if missing.is_empty() { Ok(()) } else { Err(format!("missing: {missing:?}")) }
        };
        ground.cluster.wait_for(&ground.namespace, "the metrics to be exported", look).await;
    };
    // A counter of errors is there once there was one.
    let of_errors = |name: &str| name == "windlass_loop_errors_total";
    see(&|name| !of_errors(name)).await;
    // The loops of an idle queue rest for minutes, those of a queue with a task for seconds: once they know of it.
    let mut enqueue = tokio::process::Command::new(env!("CARGO_BIN_EXE_windlass"));
    enqueue.args(["task", "enqueue", "--type", "send", "--payload", "1", "--delay", "1h", "--queue"]);
    enqueue.arg(ground.name("emails").to_string()).args(["--redis-url", &ground.redis.url()]);
    assert!(enqueue.output().await.expect("it starts").status.success());
    let known = format!("windlass_queue_delayed{{queue=\"{}\"}} 1", ground.name("emails"));
    let look = async || {
        let page = operator.page("/metrics").await.1;
        page.contains(&known).then_some(()).ok_or_else(|| format!("no {known}"))
    };
    ground.cluster.wait_for(&ground.namespace, "the task to be known", look).await;
    let known = labels_of(&operator.page("/metrics").await.1);
    let strange =
        |one: &String| Some((one.clone(), strange_labels(one, &known))).filter(|(_, labels)| !labels.is_empty());
    let strange: Vec<_> = expressions.iter().filter_map(strange).collect();
    assert!(strange.is_empty(), "{strange:#?}");
    let compared = expressions.iter().filter(|one| metrics_in(one).iter().all(|metric| known.contains_key(metric)));
    assert!(compared.count() > 20, "{known:?}");
    ground.redis.kill9();
    see(&of_errors).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_alert_says_what_is_wrong_and_has_a_section_that_says_what_to_do() {
    let rules = rules().await;
    let document = text("docs/alerts.md");
    let sections: BTreeSet<&str> = document.lines().filter_map(|line| line.strip_prefix("### ")).collect();
    let names: BTreeSet<&str> = rules.iter().map(|rule| rule["alert"].as_str().expect("a name")).collect();
    assert_eq!(names, sections);
    assert_eq!(names.len(), rules.len(), "a name is there once");
    let schema: Value = serde_json::from_str(&text("charts/windlass/values.schema.json")).expect("JSON");
    let choices = schema.pointer("/properties/prometheusRule/properties/disabled/items/enum").expect("choices");
    let choices: BTreeSet<&str> = choices.as_array().expect("a list").iter().filter_map(Value::as_str).collect();
    assert_eq!(names, choices, "what can be disabled is what there is");
    for rule in &rules {
        let name = rule["alert"].as_str().expect("a name");
        for annotation in ["summary", "description"] {
            assert!(
                rule["annotations"][annotation].as_str().is_some_and(|text| text.len() > 20),
                "{name}: {annotation}"
            );
        }
        assert_eq!(rule["annotations"]["runbook"], format!("docs/alerts.md#{}", name.to_lowercase()));
        assert!(["warning", "critical"].iter().any(|severity| rule["labels"]["severity"] == *severity), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_place_for_runbooks_makes_links_of_them() {
    let wiki = "https://wiki.example.com/alerts#";
    let rules = rules_with(&format!("prometheusRule: {{enabled: true, runbookUrlPrefix: '{wiki}'}}")).await;
    for rule in rules {
        let name = rule["alert"].as_str().expect("a name").to_lowercase();
        let annotations = &rule["annotations"];
        assert_eq!(
            (&annotations["runbook_url"], &annotations["runbook"]),
            (&Value::from(format!("{wiki}{name}")), &Value::Null)
        );
    }
}

/// Nobody is to be woken because somebody paused a queue.
#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_is_paused_on_purpose_raises_no_alert_about_what_waits() {
    let rules = rules().await;
    let about = |name: &str| rules.iter().find(|rule| rule["alert"] == name).expect(name)["expr"].clone();
    for name in ["WindlassNoWorkers", "WindlassTaskWaitsTooLong"] {
        let expression = about(name);
        let ends = expression
            .as_str()
            .expect("text")
            .ends_with("unless on (queue) max by (queue) (windlass_queue_paused) == 1");
        assert!(ends, "{expression}");
    }
}

#[test]
fn panels_stand_side_by_side_and_each_has_a_description() {
    let dashboard: Value = serde_json::from_str(&text("charts/windlass/files/dashboards/windlass.json")).expect("JSON");
    let mut places: BTreeMap<(u64, u64), String> = BTreeMap::new();
    let mut ids = BTreeSet::new();
    for panel in dashboard["panels"].as_array().expect("panels") {
        let title = panel["title"].as_str().expect("a title").to_owned();
        assert!(ids.insert(panel["id"].as_u64()), "{title}");
        assert!(panel["type"] == "row" || panel["description"].is_string(), "{title}");
        let at = |field: &str| panel["gridPos"][field].as_u64().expect("a number");
        assert!(at("x") + at("w") <= 24, "{title}");
        for (x, y) in (at("x")..at("x") + at("w")).flat_map(|x| (at("y")..at("y") + at("h")).map(move |y| (x, y))) {
            let other = places.insert((x, y), title.clone());
            assert_eq!(other, None, "{title} is on top of another");
        }
    }
}
