//! values.yaml and values.schema.json tell of the same values in the same words.

use serde_json::Value;

use super::ground::text;

/// Every value of a schema, with its path.
fn walk<'a>(path: &str, schema: &'a Value, found: &mut Vec<(String, &'a Value)>) {
    for (name, below) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
        let path = if path.is_empty() { name.clone() } else { format!("{path}/{name}") };
        found.push((path.clone(), below));
        walk(&path, below, found);
    }
}

fn schema() -> Value {
    serde_json::from_str(&text("charts/windlass/values.schema.json")).expect("JSON")
}

/// What Kubernetes says of resources is known here, and is no value of ours.
fn is_ours(path: &str) -> bool {
    let inner = ["requests", "limits", "claims"];
    path != "global" && !inner.iter().any(|word| path.ends_with(&format!("resources/{word}")))
}

#[test]
fn every_value_is_in_both() {
    let values: Value = serde_yaml::from_str(&text("charts/windlass/values.yaml")).expect("YAML");
    let schema = schema();
    let mut found = Vec::new();
    walk("", &schema, &mut found);
    assert!(found.len() > 100);
    for (path, _) in found.iter().filter(|(path, _)| is_ours(path)) {
        assert!(values.pointer(&format!("/{path}")).is_some(), "values.yaml does not tell of {path}");
    }
    let known = |path: &str| found.iter().any(|(known, _)| known == path);
    let mut groups = vec![(String::new(), &values)];
    while let Some((path, group)) = groups.pop() {
        for (name, value) in group.as_object().expect("a map") {
            let path = if path.is_empty() { name.clone() } else { format!("{path}/{name}") };
            assert!(known(&path), "the schema does not tell of {path}");
            let has_parts = found.iter().any(|(known, _)| known.starts_with(&format!("{path}/")));
            if has_parts && value.is_object() && !path.ends_with("resources") {
                groups.push((path, value));
            }
        }
    }
}

#[test]
fn descriptions_are_those_of_the_values_and_groups_are_closed() {
    let comments: Vec<String> = text("charts/windlass/values.yaml")
        .lines()
        .map(|line| line.trim())
        .filter_map(|line| line.strip_prefix("# -- ").or_else(|| line.strip_prefix("# ")).map(str::to_owned))
        .collect();
    let comments = comments.join(" ");
    let schema = schema();
    assert_eq!(schema["additionalProperties"], false);
    let mut found = Vec::new();
    walk("", &schema, &mut found);
    for (path, value) in found.iter().filter(|(path, _)| is_ours(path)) {
        let described = value["description"].as_str().unwrap_or_default();
        assert!(!described.is_empty(), "{path} has no description");
        if value.get("properties").is_some() {
            assert_eq!(value["additionalProperties"], false, "{path} takes anything");
        } else {
            assert!(comments.contains(described), "{path} is described in other words in values.yaml: {described}");
        }
    }
}
