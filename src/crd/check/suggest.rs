//! What somebody may have meant.

use serde_json::Value;

/// What to write instead of a word that is not among the known ones.
pub(super) fn instead<'a>(word: &str, known: impl Iterator<Item = &'a str> + Clone) -> String {
    let listed = || known.clone().collect::<Vec<_>>().join(", ");
    match closest(word, known.clone()) {
        Some(meant) => format!("did you mean {meant}? Known here: {}", listed()),
        None => format!("known here: {}", listed()),
    }
}

/// The known word that looks most like this one, if any does.
pub(crate) fn closest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let lower = word.to_lowercase();
    let score = |candidate: &str| {
        let candidate = candidate.to_lowercase();
        // `visibilityTimeout` for `visibilityTimeoutSeconds`.
        let part = lower.len() >= 3 && (candidate.contains(&lower) || lower.contains(&candidate));
        if part { 1 } else { distance(&lower, &candidate) }
    };
    let far = (lower.chars().count() / 3).max(1);
    known.map(|candidate| (score(candidate), candidate)).filter(|(score, _)| *score <= far).min().map(|(_, best)| best)
}

/// How many letters have to be added, removed, changed or swapped with their neighbour.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows: Vec<Vec<usize>> = vec![(0..=b.len()).collect()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let same = usize::from(a[i - 1] != b[j - 1]);
            let mut best = (rows[i - 1][j] + 1).min(row[j - 1] + 1).min(rows[i - 1][j - 1] + same);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

/// Where else in the schema a field of that name is known, as `spec.retry`.
pub(super) fn home_of(name: &str, schema: &Value, here: &str) -> Option<String> {
    let properties = schema.get("properties")?.as_object()?;
    let below = |(field, schema): (&String, &Value)| {
        let path = if here.is_empty() { field.clone() } else { format!("{here}.{field}") };
        let known = schema.pointer("/properties").is_some_and(|fields| fields.get(name).is_some());
        if known { Some(path) } else { home_of(name, schema, &path) }
    };
    properties.iter().filter(|(field, _)| *field != "status").find_map(below)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_hand_is_recognised_and_a_stranger_is_not() {
        let known = ["maxRetries", "maxCrashes", "backoff", "visibilityTimeoutSeconds"];
        let closest = |word: &str| closest(word, known.into_iter());
        assert_eq!(closest("maxRetrys"), Some("maxRetries"));
        assert_eq!(closest("MaxRetries"), Some("maxRetries"));
        assert_eq!(closest("bakcoff"), Some("backoff"));
        assert_eq!(closest("visibilityTimeout"), Some("visibilityTimeoutSeconds"));
        assert_eq!(closest("colour"), None);
    }
}
