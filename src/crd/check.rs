//! Judges a manifest by the resource's own schema, as the API server would.
//!
//! Everything comes from one place: which fields exist, their types, bounds and
//! defaults, and the rules across fields (CEL). So a manifest that passes here
//! passes `kubectl apply`, and the other way round.

mod path;
mod structure;
mod suggest;

use kube::core::cel::{ErrorKind, ValidationError, Validator};
use serde_json::Value;

use super::Kind;
pub use path::{FieldPath, Step};

/// Which end of a field a problem is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Its name: it should not be there, or something is missing under it.
    Name,
    /// Its value.
    Value,
}

/// What is wrong with a manifest, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The field.
    pub path: FieldPath,
    /// Which end of it.
    pub place: Place,
    /// What is wrong and what would be right.
    pub sentence: String,
}

/// The object with every default filled in, or all that is wrong with it.
/// `old` is what it replaces: some fields may not change.
pub fn check(kind: Kind, object: &Value, old: Option<&Value>) -> Result<Value, Vec<Problem>> {
    let mut object = object.clone();
    structure::fill_in(kind.schema(), &mut object);
    let problems = structure::check(kind.schema(), &object);
    // Rules speak of fields that are there and have the right type.
    let problems = if problems.is_empty() { rules(kind, &object, old) } else { problems };
    if problems.is_empty() { Ok(object) } else { Err(problems) }
}

fn rules(kind: Kind, object: &Value, old: Option<&Value>) -> Vec<Problem> {
    match Validator::new().validate(kind.schema(), object, old) {
        Ok(()) => Vec::new(),
        Err(errors) => errors.into_iter().map(broken_rule).collect(),
    }
}

fn broken_rule(error: ValidationError) -> Problem {
    let sentence = match error.kind {
        ErrorKind::ValidationFailure => error.message,
        _ => format!("the rule {:?} could not be judged: {}", error.rule, error.message),
    };
    Problem { path: FieldPath::parse(&error.field_path), place: Place::Name, sentence }
}
