//! The definitions that a cluster is given.

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use windlass::crd::{self, Kind};

#[test]
fn the_committed_definitions_are_what_the_types_say() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("crds");
    for kind in Kind::ALL {
        let path = folder.join(kind.file_name());
        let committed = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(committed == crd::yaml(kind), "{} is out of date: run `make crds`", path.display());
    }
}

#[test]
fn the_command_prints_both_definitions() {
    let output = Command::new(env!("CARGO_BIN_EXE_windlass")).arg("crd").output().expect("the command runs");
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).expect("YAML is text");
    let names: Vec<&str> = text.lines().filter(|line| line.starts_with("  name: ")).collect();
    assert_eq!(names, ["  name: taskqueues.windlass.dev", "  name: workerpools.windlass.dev"]);
    assert_eq!(text, Kind::ALL.map(crd::yaml).join("---\n"));
}

/// Every schema in a schema, with its path.
fn walk(path: &str, schema: &Value, visit: &mut dyn FnMut(&str, &Value)) {
    visit(path, schema);
    for (name, below) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
        walk(&format!("{path}.{name}"), below, visit);
    }
    for place in ["items", "additionalProperties"] {
        if let Some(below) = schema.get(place).filter(|below| below.is_object()) {
            walk(&format!("{path}[]"), below, visit);
        }
    }
}

#[test]
fn every_field_is_explained() {
    for kind in Kind::ALL {
        walk(kind.as_str(), kind.schema(), &mut |path, schema| {
            let described = schema.get("description").and_then(Value::as_str).is_some_and(|text| !text.is_empty());
            assert!(described || path.ends_with("[]"), "{path} has no description");
        });
    }
}

#[test]
fn everything_that_people_write_is_bounded() {
    for kind in Kind::ALL {
        walk(kind.as_str(), &kind.schema()["properties"]["spec"], &mut |path, schema| {
            let bounds: &[&str] = match schema.get("type").and_then(Value::as_str) {
                Some("string") if schema.get("enum").is_none() => &["maxLength"],
                Some("integer") => &["minimum", "maximum"],
                Some("array") => &["maxItems", "x-kubernetes-list-type"],
                _ => &[],
            };
            for bound in bounds {
                assert!(schema.get(bound).is_some(), "{path} has no {bound}");
            }
        });
    }
}

#[test]
fn only_what_kubernetes_knows_is_in_a_schema() {
    for kind in Kind::ALL {
        walk(kind.as_str(), kind.schema(), &mut |path, schema| {
            for unwanted in ["nullable", "$ref", "oneOf", "anyOf", "title", "uniqueItems"] {
                assert!(schema.get(unwanted).is_none(), "{path} has {unwanted}");
            }
            let format = schema.get("format").and_then(Value::as_str);
            assert!(matches!(format, None | Some("int32" | "int64" | "date-time")), "{path} is {format:?}");
            assert_ne!(schema.get("type"), Some(&Value::from("boolean")), "{path}: say it with a word");
        });
    }
}

/// YAML 1.1, which kubectl reads, takes `on`, `off`, `yes`, `no`, `y` and `n` for true and false, also as keys.
#[test]
fn no_field_or_value_has_a_name_that_yaml_takes_for_a_boolean() {
    let booleans = ["on", "off", "yes", "no", "y", "n", "true", "false"];
    let harmless = |word: &str| !booleans.contains(&word.to_lowercase().as_str());
    for kind in Kind::ALL {
        walk(kind.as_str(), kind.schema(), &mut |path, schema| {
            assert!(harmless(path.rsplit('.').next().expect("a name")), "{path}");
            for word in schema.get("enum").and_then(Value::as_array).into_iter().flatten() {
                assert!(harmless(word.as_str().expect("an enum of words")), "{path}: {word}");
            }
        });
    }
}

#[test]
fn scaling_status_short_names_and_columns_are_there() {
    let queue = serde_json::to_value(crd::definition(Kind::TaskQueue)).expect("plain data");
    let pool = serde_json::to_value(crd::definition(Kind::WorkerPool)).expect("plain data");
    assert_eq!(queue["spec"]["names"]["shortNames"], serde_json::json!(["tq"]));
    assert_eq!(pool["spec"]["names"]["shortNames"], serde_json::json!(["wp"]));
    for definition in [&queue, &pool] {
        assert_eq!(definition["spec"]["scope"], "Namespaced");
        assert_eq!(definition["spec"]["names"]["categories"], serde_json::json!(["windlass"]));
        assert!(definition["spec"]["versions"][0]["subresources"].get("status").is_some());
        let columns = definition["spec"]["versions"][0]["additionalPrinterColumns"].as_array().expect("columns");
        assert_eq!((&columns[0]["name"], &columns[columns.len() - 1]["name"]), (&"Ready".into(), &"Age".into()));
    }
    let scale = &pool["spec"]["versions"][0]["subresources"]["scale"];
    assert_eq!(scale["specReplicasPath"], ".spec.replicas");
    assert_eq!(scale["labelSelectorPath"], ".status.selector");
}
