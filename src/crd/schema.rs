//! From derived definitions to ones that read as if written by hand.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::{Map, Value, json};

/// The schema of the objects that a definition describes.
pub(super) fn of(definition: &CustomResourceDefinition) -> Value {
    let version = definition.spec.versions.first().expect("invariant: a definition has one version");
    let schema = version.schema.as_ref().and_then(|schema| schema.open_api_v3_schema.as_ref());
    whole_numbers(serde_json::to_value(schema).expect("invariant: a schema is plain data"))
}

/// Takes out what the derived schema says and Kubernetes does not want to hear.
pub(super) fn tidy(definition: CustomResourceDefinition) -> CustomResourceDefinition {
    let mut value = serde_json::to_value(definition).expect("invariant: a definition is plain data");
    let schema = value.pointer_mut("/spec/versions/0/schema/openAPIV3Schema");
    tidy_schema(schema.expect("invariant: a derived definition has a schema"));
    serde_json::from_value(value).expect("invariant: tidying keeps it a definition")
}

/// A definition as data, with bounds as `3` and not `3.0`.
pub(super) fn plain(definition: &CustomResourceDefinition) -> Value {
    whole_numbers(serde_json::to_value(definition).expect("invariant: a definition is plain data"))
}

fn tidy_schema(schema: &mut Value) {
    let Value::Object(schema) = schema else { return };
    // A field that may be left out need not take null as well.
    schema.remove("nullable");
    schema.remove("title");
    // Forbidden beside properties, and what a structural schema means anyway.
    if schema.get("additionalProperties") == Some(&Value::Bool(false)) {
        schema.remove("additionalProperties");
    }
    if let Some(format) = schema.get("format").and_then(Value::as_str).and_then(known_format) {
        schema.insert("format".to_owned(), json!(format));
    }
    if let Some(Value::String(description)) = schema.get_mut("description") {
        *description = unwrapped(description);
    }
    for place in ["items", "additionalProperties"] {
        schema.get_mut(place).into_iter().for_each(tidy_schema);
    }
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        properties.values_mut().for_each(tidy_schema);
    }
}

/// The format that Kubernetes has for what Rust calls otherwise.
fn known_format(format: &str) -> Option<&'static str> {
    match format {
        "uint8" | "uint16" | "uint32" | "int8" | "int16" => Some("int32"),
        "uint64" | "uint" | "int" => Some("int64"),
        _ => None,
    }
}

/// Lines of one paragraph as one line: `kubectl explain` wraps by itself.
fn unwrapped(text: &str) -> String {
    let paragraphs = text.split("\n\n").map(|paragraph| paragraph.lines().map(str::trim).collect::<Vec<_>>().join(" "));
    paragraphs.collect::<Vec<_>>().join("\n\n")
}

fn whole_numbers(value: Value) -> Value {
    match value {
        Value::Number(number) => match number.as_f64() {
            Some(float) if number.is_f64() && float.fract() == 0.0 && float.abs() < 9e15 => json!(float as i64),
            _ => Value::Number(number),
        },
        Value::Array(items) => items.into_iter().map(whole_numbers).collect(),
        Value::Object(fields) => {
            let fields: Map<_, _> = fields.into_iter().map(|(name, value)| (name, whole_numbers(value))).collect();
            Value::Object(fields)
        }
        other => other,
    }
}
