//! Where in a manifest.

use std::fmt;

/// One step down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Into a field.
    Field(String),
    /// To an item of a list.
    Item(usize),
}

/// The way from the top of a manifest to a field.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FieldPath(Vec<Step>);

impl FieldPath {
    /// The field of that name under this one.
    pub fn field(&self, name: &str) -> Self {
        self.with(Step::Field(name.to_owned()))
    }

    /// An item of the list that this is.
    pub fn item(&self, index: usize) -> Self {
        self.with(Step::Item(index))
    }

    /// The steps, from the top.
    pub fn steps(&self) -> &[Step] {
        &self.0
    }

    /// The field that this one is in; `None` at the top.
    pub fn parent(&self) -> Option<Self> {
        let (_, above) = self.0.split_last()?;
        Some(Self(above.to_vec()))
    }

    /// Reads `spec.taskTypes[0].name`.
    pub fn parse(text: &str) -> Self {
        let mut path = Self::default();
        for part in text.split('.').filter(|part| !part.is_empty()) {
            let mut pieces = part.split('[');
            path = pieces.next().filter(|name| !name.is_empty()).map_or(path.clone(), |name| path.field(name));
            for index in pieces {
                path = index.trim_end_matches(']').parse().map_or(path.clone(), |index| path.item(index));
            }
        }
        path
    }

    fn with(&self, step: Step) -> Self {
        Self(self.0.iter().cloned().chain([step]).collect())
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, step) in self.0.iter().enumerate() {
            match step {
                Step::Field(name) if number == 0 => f.write_str(name)?,
                Step::Field(name) => write!(f, ".{name}")?,
                Step::Item(index) => write!(f, "[{index}]")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_survives_printing() {
        let path = FieldPath::default().field("spec").field("taskTypes").item(3).field("name");
        assert_eq!(path.to_string(), "spec.taskTypes[3].name");
        assert_eq!(FieldPath::parse(&path.to_string()), path);
        assert_eq!(FieldPath::parse(""), FieldPath::default());
    }
}
