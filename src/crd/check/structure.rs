//! Fields, types, bounds and defaults: what a structural schema says.

use kube::core::cel::cel::{Context, Program, Value as CelValue};
use serde_json::{Map, Value};

use super::path::FieldPath;
use super::suggest;
use super::{Place, Problem};

/// What every object has besides its schema's own fields.
const ENVELOPE: [&str; 3] = ["apiVersion", "kind", "metadata"];

/// Fills in the defaults of fields that are left out, and below them; a field
/// that is null and has a default counts as left out.
pub(super) fn fill_in(schema: &Value, value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, schema) in properties(schema) {
                let absent = fields.get(name).is_none_or(Value::is_null);
                if let Some(default) = schema.get("default").filter(|_| absent) {
                    fields.insert(name.clone(), default.clone());
                }
                fields.get_mut(name).into_iter().for_each(|value| fill_in(schema, value));
            }
            if let Some(each) = schema.get("additionalProperties").filter(|schema| schema.is_object()) {
                let own = |name: &String| properties(schema).all(|(known, _)| known != name);
                fields.iter_mut().filter(|(name, _)| own(name)).for_each(|(_, value)| fill_in(each, value));
            }
        }
        Value::Array(items) => {
            if let Some(each) = schema.get("items") {
                items.iter_mut().for_each(|item| fill_in(each, item));
            }
        }
        _ => {}
    }
}

/// All that the schema does not allow.
pub(super) fn check(schema: &Value, object: &Value) -> Vec<Problem> {
    let mut look = Look { root: schema, problems: Vec::new() };
    look.at(schema, object, &FieldPath::default());
    look.problems
}

struct Look<'a> {
    root: &'a Value,
    problems: Vec<Problem>,
}

impl Look<'_> {
    fn at(&mut self, schema: &Value, value: &Value, path: &FieldPath) {
        if let Err(sentence) = right_type(schema, value) {
            return self.found(path, Place::Value, sentence);
        }
        match value {
            Value::Object(fields) => self.object(schema, fields, path),
            Value::Array(items) => self.list(schema, items, path),
            Value::String(text) => self.text(schema, text, path),
            Value::Number(number) => self.number(schema, number, path),
            Value::Bool(_) | Value::Null => {}
        }
    }

    fn object(&mut self, schema: &Value, fields: &Map<String, Value>, path: &FieldPath) {
        let keeps_unknown = schema.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(true));
        let each = schema.get("additionalProperties").filter(|schema| schema.is_object());
        for (name, value) in fields {
            match schema.get("properties").and_then(|known| known.get(name)) {
                Some(schema) => self.at(schema, value, &path.field(name)),
                None if keeps_unknown || self.is_envelope(path, name) => {}
                None if let Some(each) = each => self.at(each, value, &path.field(name)),
                None => self.unknown(schema, name, path),
            }
        }
        for name in strings(schema, "required") {
            if !fields.contains_key(name) {
                let sentence = format!("{name} is required{}", described(schema, name));
                self.found(path, Place::Name, sentence);
            }
        }
    }

    fn is_envelope(&self, path: &FieldPath, name: &str) -> bool {
        path.steps().is_empty() && ENVELOPE.contains(&name)
    }

    fn unknown(&mut self, schema: &Value, name: &str, path: &FieldPath) {
        let known = properties(schema).map(|(name, _)| name.as_str());
        let sentence = match suggest::closest(name, known.clone()) {
            None if let Some(home) = suggest::home_of(name, self.root, "") => {
                format!("there is no field {name} here; it is a field of {home}")
            }
            _ => format!("there is no field {name} here; {}", suggest::instead(name, known)),
        };
        self.found(&path.field(name), Place::Name, sentence);
    }

    fn list(&mut self, schema: &Value, items: &[Value], path: &FieldPath) {
        if let Some(least) = number(schema, "minItems").filter(|least| (items.len() as f64) < *least) {
            self.found(path, Place::Value, format!("has {} items and needs at least {least}", items.len()));
        }
        if let Some(most) = number(schema, "maxItems").filter(|most| items.len() as f64 > *most) {
            self.found(path, Place::Value, format!("has {} items and may have at most {most}", items.len()));
        }
        if let Some(each) = schema.get("items") {
            for (index, item) in items.iter().enumerate() {
                self.at(each, item, &path.item(index));
            }
        }
        self.twice(schema, items, path);
    }

    /// Sets hold each item once, list-maps each key.
    fn twice(&mut self, schema: &Value, items: &[Value], path: &FieldPath) {
        let kind = schema.get("x-kubernetes-list-type").and_then(Value::as_str);
        let keys: Vec<&str> = strings(schema, "x-kubernetes-list-map-keys").collect();
        let identity = |item: &Value| match kind {
            Some("set") => Some(vec![item.clone()]),
            Some("map") => keys.iter().map(|key| item.get(key).cloned()).collect(),
            _ => None,
        };
        let identities: Vec<_> = items.iter().map(identity).collect();
        for (index, own) in identities.iter().enumerate() {
            if let Some(own) = own
                && identities[..index].contains(&Some(own.clone()))
            {
                let shown = own.iter().map(Value::to_string).collect::<Vec<_>>().join(", ");
                self.found(&path.item(index), Place::Value, format!("{shown} is listed twice"));
            }
        }
    }

    fn text(&mut self, schema: &Value, text: &str, path: &FieldPath) {
        let allowed: Vec<&str> = strings(schema, "enum").collect();
        if !allowed.is_empty() && !allowed.contains(&text) {
            let instead = suggest::instead(text, allowed.iter().copied());
            return self.found(path, Place::Value, format!("{} is not allowed; {instead}", shown(text)));
        }
        let length = text.chars().count() as f64;
        if let Some(least) = number(schema, "minLength").filter(|least| length < *least) {
            self.found(path, Place::Value, format!("{} is too short: at least {least} characters", shown(text)));
        }
        if let Some(most) = number(schema, "maxLength").filter(|most| length > *most) {
            self.found(path, Place::Value, format!("{} is too long: at most {most} characters", shown(text)));
        }
        if let Some(pattern) = schema.get("pattern").and_then(Value::as_str).filter(|pattern| !matches(text, pattern)) {
            self.found(path, Place::Value, format!("{} does not match {pattern}", shown(text)));
        }
    }

    fn number(&mut self, schema: &Value, value: &serde_json::Number, path: &FieldPath) {
        let (least, most) = (number(schema, "minimum"), number(schema, "maximum"));
        let Some(float) = value.as_f64() else { return };
        if least.is_some_and(|least| float < least) || most.is_some_and(|most| float > most) {
            let range = match (least, most) {
                (Some(least), Some(most)) => format!("between {least} and {most}"),
                (Some(least), None) => format!("at least {least}"),
                (_, most) => format!("at most {}", most.unwrap_or_default()),
            };
            self.found(path, Place::Value, format!("{value} is out of range: it must be {range}"));
        }
    }

    fn found(&mut self, path: &FieldPath, place: Place, sentence: String) {
        self.problems.push(Problem { path: path.clone(), place, sentence });
    }
}

fn right_type(schema: &Value, value: &Value) -> Result<(), String> {
    if schema.get("x-kubernetes-int-or-string") == Some(&Value::Bool(true)) {
        let fits = value.is_string() || value.is_i64() || value.is_u64();
        return if fits { Ok(()) } else { Err(format!("must be a number or a text, not {}", kind_of(value))) };
    }
    let Some(wanted) = schema.get("type").and_then(Value::as_str) else { return Ok(()) };
    let (fits, name) = match wanted {
        "object" => (value.is_object(), "a group of fields"),
        "array" => (value.is_array(), "a list"),
        "string" => (value.is_string(), "a text"),
        "integer" => (value.is_i64() || value.is_u64(), "a whole number"),
        "number" => (value.is_number(), "a number"),
        "boolean" => (value.is_boolean(), "true or false"),
        _ => (true, ""),
    };
    match value {
        _ if fits => Ok(()),
        Value::Null => Err(format!("has no value: give it one ({name}) or remove the line")),
        _ => Err(format!("must be {name}, not {}", kind_of(value))),
    }
}

fn kind_of(value: &Value) -> String {
    match value {
        Value::Object(_) => "a group of fields".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::String(text) => format!("the text {}", shown(text)),
        Value::Null => "nothing".to_owned(),
        other => other.to_string(),
    }
}

/// A text in quotes, cut to what fits a line.
fn shown(text: &str) -> String {
    const LONGEST: usize = 60;
    let cut: String = text.chars().take(LONGEST).collect();
    if cut.len() < text.len() { format!("{cut:?}…") } else { format!("{cut:?}") }
}

/// What the schema says about a field, as the end of a sentence.
fn described(schema: &Value, name: &str) -> String {
    let description = schema.pointer(&format!("/properties/{name}/description")).and_then(Value::as_str);
    let first = description.and_then(|text| text.split(". ").next()).map(|text| text.trim_end_matches('.'));
    first.map_or_else(String::new, |text| format!(": {}{}", text[..1].to_lowercase(), &text[1..]))
}

/// Patterns are the API server's: RE2, found anywhere unless anchored. CEL's `matches` is the same.
fn matches(text: &str, pattern: &str) -> bool {
    let mut context = Context::default();
    context.add_variable_from_value("text", CelValue::from(text));
    context.add_variable_from_value("pattern", CelValue::from(pattern));
    let answer = Program::compile("text.matches(pattern)").map(|program| program.execute(&context));
    matches!(answer, Ok(Ok(CelValue::Bool(true))))
}

fn properties(schema: &Value) -> impl Iterator<Item = (&String, &Value)> + Clone {
    schema.get("properties").and_then(Value::as_object).into_iter().flatten()
}

fn strings<'a>(schema: &'a Value, keyword: &str) -> impl Iterator<Item = &'a str> {
    schema.get(keyword).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
}

fn number(schema: &Value, keyword: &str) -> Option<f64> {
    schema.get(keyword).and_then(Value::as_f64)
}
