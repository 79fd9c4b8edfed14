//! YAML as data, and where in the text a field stands.
//!
//! The parser tells positions only with its errors. So a text is read once as
//! data; when something is wrong with a field, it is read again by a reader
//! that follows the field's path and gives up there, at the position it is after.

use std::collections::BTreeSet;
use std::fmt;

use serde::Deserializer as _;
use serde::de::{DeserializeSeed, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use crate::crd::check::{FieldPath, Place, Step};

/// A text that is no YAML.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Broken {
    pub(super) line: usize,
    pub(super) sentence: String,
}

impl Broken {
    fn new(error: &serde_yaml::Error) -> Self {
        let line = error.location().map_or(1, |location| location.line());
        let message = error.to_string();
        // The position is told apart, in the way that editors understand.
        let sentence = message.split(" at line ").next().unwrap_or(&message).to_owned();
        Self { line, sentence }
    }
}

/// The documents of a text. Empty ones are null.
pub(super) fn documents(text: &str) -> Result<Vec<Value>, Broken> {
    let mut documents = Vec::new();
    for document in serde_yaml::Deserializer::from_str(text) {
        documents.push(document.deserialize_any(Data).map_err(|error| Broken::new(&error))?);
    }
    Ok(documents)
}

/// The line of a field in the document of that number; of what is nearest to it, if it is not there.
pub(super) fn line_of(text: &str, document: usize, path: &FieldPath, place: Place) -> usize {
    let mut shorter = path.clone();
    loop {
        if let Some(line) = line_of_exactly(text, document, &shorter, place) {
            return line;
        }
        match shorter.parent() {
            Some(parent) => shorter = parent,
            None => return 1,
        }
    }
}

fn line_of_exactly(text: &str, document: usize, path: &FieldPath, place: Place) -> Option<usize> {
    let document = serde_yaml::Deserializer::from_str(text).nth(document)?;
    let error = Follow { steps: path.steps(), place }.deserialize(document).err()?;
    error.to_string().contains(FOUND).then(|| error.location().map(|location| location.line()))?
}

/// Builds data, and refuses a field that is given twice.
struct Data;

impl<'de> DeserializeSeed<'de> for Data {
    type Value = Value;
    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Data {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("plain data")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        let number = serde_json::Number::from_f64(value).ok_or_else(|| E::custom("the number is not finite"))?;
        Ok(Value::Number(number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(Data)? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let (mut object, mut seen) = (Map::new(), BTreeSet::new());
        while let Some(name) = fields.next_key_seed(Name { seen: &seen })? {
            seen.insert(name.clone());
            object.insert(name, fields.next_value_seed(Data)?);
        }
        Ok(Value::Object(object))
    }
}

/// The name of a field.
struct Name<'a> {
    seen: &'a BTreeSet<String>,
}

impl Name<'_> {
    fn take<E: serde::de::Error>(self, name: String) -> Result<String, E> {
        if self.seen.contains(&name) {
            return Err(E::custom(format!("the field {name} is given twice")));
        }
        Ok(name)
    }
}

impl<'de> DeserializeSeed<'de> for Name<'_> {
    type Value = String;
    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<String, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl Visitor<'_> for Name<'_> {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a field")
    }

    fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<String, E> {
        self.take(name.to_owned())
    }

    // kubectl makes texts of such keys, too.
    fn visit_bool<E: serde::de::Error>(self, name: bool) -> Result<String, E> {
        self.take(name.to_string())
    }

    fn visit_i64<E: serde::de::Error>(self, name: i64) -> Result<String, E> {
        self.take(name.to_string())
    }

    fn visit_u64<E: serde::de::Error>(self, name: u64) -> Result<String, E> {
        self.take(name.to_string())
    }
}

/// What the follower says when it is there.
const FOUND: &str = "the field is here";

/// Follows a path and gives up at its end.
#[derive(Clone, Copy)]
struct Follow<'a> {
    steps: &'a [Step],
    place: Place,
}

impl<'de> DeserializeSeed<'de> for Follow<'_> {
    type Value = ();
    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl Follow<'_> {
    /// Whether this value is what is looked for.
    fn here<E: serde::de::Error>(self) -> Result<(), E> {
        if self.steps.is_empty() { Err(E::custom(FOUND)) } else { Ok(()) }
    }
}

impl<'de> Visitor<'de> for Follow<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("anything")
    }

    fn visit_bool<E: serde::de::Error>(self, _: bool) -> Result<(), E> {
        self.here()
    }

    fn visit_i64<E: serde::de::Error>(self, _: i64) -> Result<(), E> {
        self.here()
    }

    fn visit_u64<E: serde::de::Error>(self, _: u64) -> Result<(), E> {
        self.here()
    }

    fn visit_f64<E: serde::de::Error>(self, _: f64) -> Result<(), E> {
        self.here()
    }

    fn visit_str<E: serde::de::Error>(self, _: &str) -> Result<(), E> {
        self.here()
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<(), E> {
        self.here()
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let Some((step, rest)) = self.steps.split_first() else { return Err(A::Error::custom(FOUND)) };
        for index in 0.. {
            let wanted = *step == Step::Item(index);
            let more = if wanted {
                items.next_element_seed(Follow { steps: rest, ..self })?
            } else {
                items.next_element::<IgnoredAny>()?.map(drop)
            };
            if more.is_none() {
                break;
            }
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<(), A::Error> {
        let Some((step, rest)) = self.steps.split_first() else { return Err(A::Error::custom(FOUND)) };
        let Step::Field(wanted) = step else { return Ok(()) };
        let stop_at_name = rest.is_empty() && self.place == Place::Name;
        while let Some(reached) = fields.next_key_seed(FollowName { wanted, stop_at_name })? {
            if reached {
                fields.next_value_seed(Follow { steps: rest, ..self })?;
            } else {
                fields.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

/// Looks for the name of a field.
struct FollowName<'a> {
    wanted: &'a str,
    stop_at_name: bool,
}

impl FollowName<'_> {
    fn at<E: serde::de::Error>(self, name: &str) -> Result<bool, E> {
        let reached = name == self.wanted;
        if reached && self.stop_at_name { Err(E::custom(FOUND)) } else { Ok(reached) }
    }
}

impl<'de> DeserializeSeed<'de> for FollowName<'_> {
    type Value = bool;
    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl Visitor<'_> for FollowName<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a field")
    }

    fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<bool, E> {
        self.at(name)
    }

    fn visit_bool<E: serde::de::Error>(self, name: bool) -> Result<bool, E> {
        self.at(&name.to_string())
    }

    fn visit_i64<E: serde::de::Error>(self, name: i64) -> Result<bool, E> {
        self.at(&name.to_string())
    }

    fn visit_u64<E: serde::de::Error>(self, name: u64) -> Result<bool, E> {
        self.at(&name.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# a comment
kind: A
spec:
  retry:
    maxRetries: 3
  taskTypes:
  - name: one
  - name: two
    timeoutSeconds: 5
---
kind: B
spec: {mode: Running,
  keys: x}
";

    #[test]
    fn a_field_is_found_in_its_document() {
        let line = |document, path: &str, place| line_of(TEXT, document, &FieldPath::parse(path), place);
        assert_eq!(line(0, "kind", Place::Value), 2);
        assert_eq!(line(0, "spec.retry", Place::Name), 4);
        assert_eq!(line(0, "spec.retry", Place::Value), 5);
        assert_eq!(line(0, "spec.taskTypes[1].timeoutSeconds", Place::Value), 9);
        assert_eq!(line(1, "kind", Place::Name), 11);
        assert_eq!(line(1, "spec.keys", Place::Value), 13);
        assert_eq!(line(0, "spec.retry.backoff.jitter", Place::Name), 4, "the nearest that is there");
    }

    #[test]
    fn documents_are_data_and_a_field_given_twice_is_refused_at_its_line() {
        let documents = documents(TEXT).expect("YAML");
        assert_eq!(documents.len(), 2);
        assert_eq!(documents[0]["spec"]["taskTypes"][1]["timeoutSeconds"], 5);
        let broken = super::documents("a: 1\nb:\n  c: 1\n  c: 2\n").expect_err("c twice");
        assert_eq!((broken.line, broken.sentence.contains("c is given twice")), (4, true), "{broken:?}");
        let broken = super::documents("a: 1\nb: [1,\nc: 2\n").expect_err("no YAML");
        assert!(broken.line >= 2, "{broken:?}");
    }
}
