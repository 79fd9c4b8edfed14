//! What documents show as YAML is taken: manifests by their definitions, values by the chart.

use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use windlass::crd::check::check;
use windlass::crd::{API_VERSION, Kind, TaskQueueSpec, WorkerPoolSpec};
use windlass::protocol::policy::EventRecording;

use super::markdown::{all, guides, text};

/// A YAML document, and where it was found.
struct Shown {
    place: String,
    value: Value,
}

/// YAML documents of the blocks of README and guides, and those that commands of any document hand on.
fn shown() -> Vec<Shown> {
    let (mut whole, mut found) = (guides(), Vec::new());
    whole.push("README.md".to_owned());
    for document in all() {
        for block in &document.blocks {
            let texts = match block.language.as_str() {
                "yaml" if whole.contains(&document.path) => vec![block.text.clone()],
                "sh" => here_documents(&block.text).into_iter().filter(|text| text.contains("apiVersion:")).collect(),
                _ => Vec::new(),
            };
            found.extend(texts.iter().flat_map(|text| read(&block.place, text)));
        }
    }
    found
}

fn read(place: &str, text: &str) -> Vec<Shown> {
    let documents = serde_yaml::Deserializer::from_str(text).map(|document| {
        let value = Value::deserialize(document).unwrap_or_else(|error| panic!("{place}: {error}"));
        Shown { place: place.to_owned(), value }
    });
    documents.filter(|shown| !shown.value.is_null()).collect()
}

/// What stands between `<<'EOF'` and `EOF`.
fn here_documents(script: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut lines = script.lines();
    while let Some(line) = lines.next() {
        if line.contains("<<'EOF'") {
            found.push(lines.by_ref().take_while(|line| *line != "EOF").collect::<Vec<_>>().join("\n"));
        }
    }
    found
}

/// What is wrong with something that is shown, if anything.
fn refused(value: &Value) -> Option<String> {
    let Some(kind) = value["kind"].as_str() else { return refused_values(value) };
    match (value["apiVersion"].as_str().unwrap_or_default(), kind) {
        (API_VERSION, _) => refused_resource(kind, value),
        ("autoscaling/v2", "HorizontalPodAutoscaler") => misread::<HorizontalPodAutoscaler>(value),
        ("policy/v1", "PodDisruptionBudget") => misread::<PodDisruptionBudget>(value),
        ("v1", "Secret") => misread::<Secret>(value),
        ("v1", "ConfigMap") => misread::<ConfigMap>(value),
        ("v1", "Namespace") => misread::<Namespace>(value),
        (version, kind) => Some(format!("nobody here can judge a {kind} of {version}: teach this test")),
    }
}

/// As the API server would judge it, and then as the operator reads it.
fn refused_resource(kind: &str, value: &Value) -> Option<String> {
    let Some(known) = Kind::named(kind) else { return Some(format!("there is no kind {kind}")) };
    let whole = match check(known, value, None) {
        Ok(whole) => whole,
        Err(problems) => {
            return Some(
                problems.iter().map(|one| format!("{}: {}", one.path, one.sentence)).collect::<Vec<_>>().join("; "),
            );
        }
    };
    let spec = whole["spec"].clone();
    match known {
        Kind::TaskQueue => {
            let spec: TaskQueueSpec = serde_json::from_value(spec).map_err(|error| error.to_string()).expect("a spec");
            let name = format!("docs/{}", value["metadata"]["name"].as_str().unwrap_or_default());
            let name = match name.parse() {
                Ok(name) => name,
                Err(error) => return Some(format!("metadata.name: {error}")),
            };
            spec.policy(EventRecording::On)
                .map(drop)
                .and_then(|()| spec.keys(&name).map(drop))
                .err()
                .map(|e| e.to_string())
        }
        Kind::WorkerPool => {
            let spec: WorkerPoolSpec = serde_json::from_value(spec).map_err(|error| error.to_string()).expect("a spec");
            spec.template.check().err()
        }
    }
}

/// A type of Kubernetes gives back all that it was given, or there was a field that it does not know.
fn misread<T: DeserializeOwned + Serialize>(value: &Value) -> Option<String> {
    match serde_json::from_value::<T>(value.clone()) {
        Err(error) => Some(error.to_string()),
        Ok(read) => {
            let back = serde_json::to_value(read).expect("plain data");
            (back != *value).then(|| format!("Kubernetes knows less of it: {back}"))
        }
    }
}

/// What has no kind is a file of values.
fn refused_values(value: &Value) -> Option<String> {
    let defaults: Value = serde_yaml::from_str(&text("charts/windlass/values.yaml")).expect("YAML");
    let mut todo = vec![(String::new(), value, &defaults)];
    while let Some((path, given, known)) = todo.pop() {
        match (given, known) {
            // A map or a list that is empty by default takes what Kubernetes takes there.
            (Value::Object(given), Value::Object(known)) if !known.is_empty() => {
                for (name, value) in given {
                    let path = format!("{path}.{name}");
                    match known.get(name) {
                        Some(known) => todo.push((path, value, known)),
                        None => return Some(format!("values.yaml has no {}", &path[1..])),
                    }
                }
            }
            (given, known) if same_shape(given, known) => {}
            (given, known) => return Some(format!("{}: {given}, where values.yaml has {known}", &path[1..])),
        }
    }
    None
}

fn same_shape(given: &Value, known: &Value) -> bool {
    given.is_null() || known.is_null() || std::mem::discriminant(given) == std::mem::discriminant(known)
}

#[test]
fn every_manifest_and_every_value_that_is_shown_is_taken() {
    let all = shown();
    let wrong: Vec<String> =
        all.iter().filter_map(|one| refused(&one.value).map(|why| format!("{}: {why}", one.place))).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    for kind in ["TaskQueue", "WorkerPool", "HorizontalPodAutoscaler"] {
        assert!(all.iter().any(|one| one.value["kind"] == kind), "no {kind} was found");
    }
    assert!(all.iter().any(|one| one.value.get("kind").is_none()), "no values were found");
}

#[test]
fn what_is_wrong_is_seen() {
    let one = |text: &str| refused(&read("here", text)[0].value);
    let queue = "apiVersion: windlass.dev/v1alpha1\nkind: TaskQueue\nmetadata: {name: q}\nspec: ";
    assert_eq!(one(&format!("{queue}{{mode: Paused}}")), None);
    assert!(one(&format!("{queue}{{mode: Asleep}}")).is_some());
    assert!(one(&format!("{queue}{{modus: Paused}}")).is_some_and(|why| why.contains("modus")));
    assert!(one(&format!("{queue}{{heartbeatPeriodSeconds: 200}}")).is_some(), "rules are judged");
    assert!(one("redis: {existingSecert: x}").is_some_and(|why| why.contains("redis.existingSecert")));
    assert!(one("replicaCount: two").is_some());
    assert_eq!(one("nodeSelector: {disk: ssd}"), None);
    let budget = "apiVersion: policy/v1\nkind: PodDisruptionBudget\nspec: ";
    assert!(one(&format!("{budget}{{minAvailible: 1}}")).is_some());
}
