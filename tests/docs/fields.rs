//! Fields and values that documents name in backticks are there.

use std::collections::BTreeSet;

use serde_json::Value;
use windlass::crd::Kind;

use super::markdown::{Document, all, rows, text};

fn values() -> Value {
    serde_yaml::from_str(&text("charts/windlass/values.yaml")).expect("YAML")
}

/// Whether the chart has a value of that path. Below what is empty by default, and in requests and limits, is what
/// Kubernetes takes there.
fn is_value(values: &Value, path: &str) -> bool {
    let mut here = values;
    for name in path.split('.') {
        match here.as_object() {
            Some(map) if map.is_empty() || map.contains_key("memory") => return true,
            Some(map) => match map.get(name) {
                Some(below) => here = below,
                None => return false,
            },
            None => return false,
        }
    }
    true
}

/// Whether objects have a field of that path. Below what keeps everything is what Kubernetes has there.
fn is_field(schema: &Value, path: &str) -> bool {
    let mut here = schema;
    for name in path.split('.') {
        let below = here.pointer("/items").unwrap_or(here);
        match below.pointer(&format!("/properties/{name}")) {
            Some(found) => here = found,
            None => return below["x-kubernetes-preserve-unknown-fields"] == true,
        }
    }
    true
}

/// A path of at least two names, if that is what a word in backticks is: `a.b.c`, or `a.b=VALUE`.
fn path_in(word: &str) -> Option<&str> {
    let path = word.split(['=', ':', ' ', '[']).next().unwrap_or_default();
    let names = || path.split('.');
    let is_name = |name: &str| {
        name.starts_with(|c: char| c.is_ascii_lowercase()) && name.chars().all(|c| c.is_ascii_alphanumeric())
    };
    (names().count() > 1 && names().all(is_name)).then_some(path)
}

/// The values that `--set` gives in a text.
fn set_values(text: &str) -> Vec<String> {
    let given = text.split("--set ").skip(1).filter_map(|rest| rest.split_whitespace().next());
    let each = given.flat_map(|given| given.trim_matches(['\'', '"', '`', ')', '.']).split(','));
    each.filter_map(|one| one.split_once('='))
        .map(|(path, _)| path.split('[').next().unwrap_or(path).to_owned())
        .collect()
}

fn texts(document: &Document) -> Vec<(String, String)> {
    let blocks = document.blocks.iter().map(|block| (block.place.clone(), block.text.clone()));
    let prose = document.prose.iter().map(|(line, text)| (format!("{}:{line}", document.path), text.clone()));
    blocks.chain(prose).collect()
}

#[test]
fn every_value_that_is_set_is_in_the_chart() {
    let values = values();
    let mut seen = BTreeSet::new();
    for document in all() {
        for (place, text) in texts(&document) {
            for path in set_values(&text) {
                assert!(is_value(&values, &path), "{place}: values.yaml has no {path}");
                seen.insert(path);
            }
        }
    }
    assert!(seen.len() > 1, "{seen:?}");
}

#[test]
fn every_field_and_value_in_backticks_is_one() {
    let values = values();
    let resources = Kind::ALL.map(|kind| kind.schema().pointer("/properties/spec").expect("a spec"));
    let objects = Kind::ALL.map(Kind::schema);
    let (mut wrong, mut seen) = (Vec::new(), BTreeSet::new());
    // Those who work on Windlass read of sources and scripts, too.
    let for_users = |document: &Document| !["ARCHITECTURE.md", "CONTRIBUTING.md"].contains(&document.path.as_str());
    for document in all().into_iter().filter(for_users) {
        for (line, word) in document.code() {
            let Some(path) = path_in(&word) else { continue };
            let first = path.split('.').next().unwrap_or_default();
            let starts = |schema: &Value| schema.pointer(&format!("/properties/{first}")).is_some();
            let known = if first == "spec" || first == "status" {
                objects.iter().any(|schema| is_field(schema, path))
            } else if values.get(first).is_some() || resources.iter().any(|schema| starts(schema)) {
                is_value(&values, path) || resources.iter().any(|schema| is_field(schema, path))
            } else {
                continue;
            };
            if !known {
                wrong.push(format!("{}:{line}: there is no {path}", document.path));
            }
            seen.insert(path.to_owned());
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(seen.len() > 20, "{seen:?}");
}

#[test]
fn a_field_that_is_not_there_is_seen() {
    let spec = Kind::WorkerPool.schema().pointer("/properties/spec").expect("a spec");
    assert!(is_field(spec, "autoscaling.maxReplicas") && is_field(spec, "template.spec.affinity"));
    assert!(!is_field(spec, "autoscaling.most") && !is_field(spec, "replicas.most"));
    assert!(is_value(&values(), "redis.existingSecret") && is_value(&values(), "nodeSelector.disk"));
    assert!(!is_value(&values(), "redis.secret") && !is_value(&values(), "replicaCount.x"));
    assert_eq!(path_in("crds.keep=false"), Some("crds.keep"));
    assert_eq!((path_in("docs/alerts.md"), path_in("keep")), (None, None));
    assert_eq!(set_values("x --set a.b=1,c=2 --set 'd={e}'"), ["a.b", "c", "d"]);
}

/// A figure that is quoted is the one that was measured last.
#[test]
fn figures_are_those_of_the_readme() {
    let readme = Document::read("README.md");
    let operations = Document::read("docs/operations.md");
    let section = |document: &Document, title: &str| {
        let headings = document.headings();
        let found = headings.iter().find(|heading| heading.title == title);
        rows(&document.below(found.unwrap_or_else(|| panic!("{} has no {title}", document.path))))
    };
    let measured = section(&readme, "Figures");
    let quoted = section(&operations, "Sizing");
    assert!(quoted.len() > 2);
    for row in quoted {
        let [_, figure, measure] = row.as_slice() else { panic!("{row:?}") };
        let number = figure.split(' ').next().expect("a number");
        let known = measured.iter().find(|row| row[0] == *measure);
        let known = known.unwrap_or_else(|| panic!("README.md has no figure {measure:?} any more"));
        assert_eq!(known[1].split(' ').next(), Some(number), "{measure}");
    }
}
