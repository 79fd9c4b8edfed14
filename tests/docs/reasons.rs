//! docs/troubleshooting.md tells of every condition, reason and Event that the operator can give, and of no other.
//!
//! What the operator can give is read off its sources: where a reason is given to a condition, and with which status.
//! A reason that is given in a way that is not recognised here is missing here, and so fails as well.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use windlass::operator::reasons::{ConditionType, Reason};

use super::markdown::{Document, Heading, root, rows, text};

const GUIDE: &str = "docs/troubleshooting.md";

/// Resource, condition, reason, status.
type Given = (String, String, String, String);

/// A source file without its tests, in one line, so that line breaks do not matter.
fn source(path: &str) -> String {
    let whole = text(path);
    let product = whole.split("#[cfg(test)]").next().unwrap_or_default();
    product.lines().filter(|line| !line.trim_start().starts_with("//")).map(str::trim).collect::<Vec<_>>().join(" ")
}

/// The word at the beginning of a text.
fn word(text: &str) -> String {
    text.trim_start().chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect()
}

/// The text of a function, as far as the next one.
fn function<'a>(source: &'a str, name: &str) -> &'a str {
    let begin = source.find(&format!("fn {name}(")).unwrap_or_else(|| panic!("there is no fn {name} any more"));
    let rest = &source[begin + 3..];
    &rest[..rest.find(" fn ").unwrap_or(rest.len())]
}

/// The words behind each `before` in a text.
fn words_after(text: &str, before: &str) -> BTreeSet<String> {
    text.split(before).skip(1).map(word).filter(|word| !word.is_empty()).collect()
}

/// What is given in the form `Judgement::no(CONDITION, Reason::NAME, …)`, where a condition may be called `is`.
fn judgements(resource: &str, source: &str, found: &mut BTreeSet<Given>) {
    for (form, status) in [("yes(", "True"), ("no(", "False"), ("unknown(", "Unknown")] {
        let form = format!("Judgement::{form}");
        for (at, _) in source.match_indices(&form) {
            let rest = source[at + form.len()..].trim_start();
            let (condition, rest) = rest.split_once(',').expect("a condition and a reason");
            let Some(reason) = rest.trim_start().strip_prefix("Reason::").map(word) else { continue };
            let condition = match condition {
                "is" => {
                    let before = &source[..at];
                    let named = before.rfind("let is = ConditionType::").expect("what `is` stands for");
                    word(&before[named + "let is = ConditionType::".len()..])
                }
                named => word(named.strip_prefix("ConditionType::").unwrap_or(named)),
            };
            found.insert((resource.to_owned(), condition, reason, status.to_owned()));
        }
    }
}

/// Every source file of the operator: its path, and its text as [`source`] gives it.
fn sources() -> BTreeMap<String, String> {
    let (mut found, mut todo) = (BTreeMap::new(), vec![root().join("src/operator"), root().join("src/operator.rs")]);
    while let Some(path) = todo.pop() {
        if path.is_dir() {
            todo.extend(fs::read_dir(&path).expect("a folder").map(|entry| entry.expect("an entry").path()));
            continue;
        }
        let path = path.strip_prefix(root()).expect("inside").to_string_lossy().into_owned();
        let text = source(&path);
        found.insert(path, text);
    }
    found
}

/// All that the operator can give. What has to do with pools is under pool/, everything else is a queue's.
fn given() -> BTreeSet<Given> {
    let mut found = BTreeSet::new();
    let sources = sources();
    for (path, text) in &sources {
        let resource = if path.starts_with("src/operator/pool") { "WorkerPool" } else { "TaskQueue" };
        judgements(resource, text, &mut found);
    }
    let status = &sources["src/operator/queue/status.rs"];
    let mut queue = |condition: &str, reasons: BTreeSet<String>, status: &str| {
        for reason in reasons {
            found.insert(("TaskQueue".to_owned(), condition.to_owned(), reason, status.to_owned()));
        }
    };
    // What stands in the way of a queue, by the side on which it does.
    let plan = &sources["src/operator/queue/plan.rs"];
    let unresolved = function(plan, "unresolved");
    assert!(unresolved.contains("Self::new(Side::Broker, reason"), "an unresolved broker is on another side now");
    queue("BrokerConnected", words_after(unresolved, "Reason::"), "False");
    queue("BrokerConnected", words_after(plan, "Side::Broker, Reason::"), "False");
    queue("Provisioned", words_after(plan, "Side::Queue, Reason::"), "False");
    // Dangers are found and then told together.
    let degraded = function(status, "degraded");
    let dangers = words_after(degraded, "Reason::").into_iter().filter(|reason| reason != "AsExpected").collect();
    queue("Degraded", dangers, "True");
    // Objects that are not looked after have this one condition.
    for text in sources.values() {
        queue("Ready", words_after(text, "status::alone(Reason::"), "False");
    }
    found
}

/// The sections of a level under a heading.
fn under<'a>(headings: &'a [Heading], title: &str, level: usize) -> Vec<&'a Heading> {
    let begin = headings.iter().position(|heading| heading.level == level - 1 && heading.title == title);
    let begin = begin.unwrap_or_else(|| panic!("{GUIDE} has no heading {title}"));
    let rest = headings[begin + 1..].iter();
    rest.take_while(|heading| heading.level >= level).filter(|heading| heading.level == level).collect()
}

/// The reasons that a document tells of, each with its meaning.
fn told(guide: &Document) -> BTreeMap<Given, String> {
    let headings = guide.headings();
    let mut found = BTreeMap::new();
    for resource in ["TaskQueue", "WorkerPool"] {
        for condition in under(&headings, resource, 3) {
            let lines = guide.below(condition);
            for row in rows(&lines) {
                let [reason, status, meaning] = row.as_slice() else { panic!("{GUIDE}: {row:?} is no row of reasons") };
                let name = reason.split('`').nth(1).unwrap_or_else(|| panic!("{GUIDE}: {reason} is no reason"));
                let key = (resource.to_owned(), condition.title.clone(), name.to_owned(), status.clone());
                assert_eq!(found.insert(key, meaning.clone()), None, "{GUIDE} tells of {name} twice");
            }
        }
    }
    found
}

#[test]
fn every_condition_has_a_section_in_the_order_in_which_it_is_shown() {
    let headings = Document::read(GUIDE).headings();
    let queues = ConditionType::OF_QUEUES.map(ConditionType::as_str).to_vec();
    let pools = ConditionType::OF_POOLS.map(ConditionType::as_str).to_vec();
    for (resource, conditions) in [("TaskQueue", queues), ("WorkerPool", pools)] {
        let told: Vec<&str> = under(&headings, resource, 3).iter().map(|heading| heading.title.as_str()).collect();
        assert_eq!(told, conditions, "{resource}");
    }
}

#[test]
fn every_reason_that_can_be_given_is_told_of_and_no_other() {
    let (given, told) = (given(), told(&Document::read(GUIDE)));
    let told: BTreeSet<Given> = told.into_keys().collect();
    let missing: Vec<_> = given.difference(&told).collect();
    let invented: Vec<_> = told.difference(&given).collect();
    assert!(missing.is_empty(), "{GUIDE} does not tell of {missing:#?}");
    assert!(invented.is_empty(), "{GUIDE} tells of what the operator cannot give: {invented:#?}");
}

#[test]
fn every_reason_there_is_can_be_given() {
    let given: BTreeSet<String> = given().into_iter().map(|(.., reason, _)| reason).collect();
    let known: BTreeSet<String> = Reason::ALL.iter().map(|reason| reason.as_str().to_owned()).collect();
    assert_eq!(given, known);
}

#[test]
fn meanings_are_those_of_the_code() {
    for ((resource, condition, name, _), meaning) in told(&Document::read(GUIDE)) {
        let known = Reason::ALL.iter().find(|reason| reason.as_str() == name);
        let known = known.unwrap_or_else(|| panic!("{name} is no reason"));
        assert_eq!(meaning, known.meaning(), "{resource}, {condition}, {name}");
    }
}

/// A condition that holds is good news, but for the one that tells of dangers.
fn is_good(condition: &str, status: &str) -> bool {
    status == if condition == "Degraded" { "False" } else { "True" }
}

#[test]
fn every_reason_that_is_no_good_news_has_a_section_that_says_what_to_look_at_and_what_to_do() {
    let guide = Document::read(GUIDE);
    let headings = guide.headings();
    for resource in ["TaskQueue", "WorkerPool"] {
        let bad: BTreeSet<String> = given()
            .into_iter()
            .filter(|(of, condition, _, status)| of == resource && !is_good(condition, status))
            .map(|(.., reason, _)| reason)
            .collect();
        let conditions = under(&headings, resource, 3);
        let sections: Vec<&Heading> = conditions
            .iter()
            .flat_map(|condition| {
                let begin = headings.iter().position(|heading| heading == *condition).expect("it is one of them");
                headings[begin + 1..].iter().take_while(|heading| heading.level == 4)
            })
            .collect();
        let told: BTreeSet<String> = sections.iter().map(|section| section.title.clone()).collect();
        assert_eq!(told.len(), sections.len(), "a reason of a {resource} has one section");
        let missing: Vec<_> = bad.difference(&told).collect();
        assert!(missing.is_empty(), "{resource}: no section for {missing:?}");
        let all: BTreeSet<String> = Reason::ALL.iter().map(|reason| reason.as_str().to_owned()).collect();
        assert!(told.is_subset(&all), "{resource}: a section for no reason: {told:?}");
        for section in sections {
            let lines = guide.below(section);
            for begins in ["- *Look:*", "- *Do:*"] {
                assert!(lines.iter().any(|line| line.starts_with(begins)), "{}: no {begins:?}", section.title);
            }
        }
    }
}

/// Events whose reason is a word of their own; the others have a condition's reason.
fn events() -> BTreeSet<(String, String)> {
    let mut found = BTreeSet::new();
    for source in sources().into_values() {
        for weight in ["Normal", "Warning"] {
            let words = words_after(&source, &format!("Weight::{weight}, \""));
            found.extend(words.into_iter().map(|word| (word, weight.to_owned())));
        }
        // Those of which one is chosen first, and told below.
        if source.contains("Weight::Normal, reason, note") {
            let words = words_after(&source, "Some((\"");
            found.extend(words.into_iter().map(|word| (word, "Normal".to_owned())));
        }
    }
    found
}

#[test]
fn every_event_is_told_of_and_no_other() {
    let guide = Document::read(GUIDE);
    let headings = guide.headings();
    let section = headings.iter().find(|heading| heading.title == "Events").expect("a section about Events");
    let told: BTreeSet<(String, String)> = rows(&guide.below(section))
        .into_iter()
        .map(|row| (row[0].trim_matches('`').to_owned(), row[1].clone()))
        .collect();
    assert_eq!(told, events());
}

#[test]
fn every_error_class_of_the_command_line_has_its_status() {
    use windlass::cli::error::Kind;
    let guide = Document::read(GUIDE);
    let headings = guide.headings();
    let section = headings.iter().find(|heading| heading.title == "The command line").expect("a section");
    let told: BTreeSet<String> = rows(&guide.below(section)).into_iter().map(|row| row[0].clone()).collect();
    let mut known: BTreeSet<String> =
        [Kind::Failed, Kind::Usage, Kind::NotFound, Kind::Conflict].map(|kind| kind.code().to_string()).into();
    known.insert("0".to_owned());
    assert_eq!(told, known);
}

/// Sentences of refusals, as far as their first variable part.
#[test]
fn sentences_that_are_quoted_are_said_by_the_program() {
    let guide = Document::read(GUIDE);
    let quoted: Vec<String> = guide
        .prose
        .iter()
        .filter_map(|(_, line)| line.strip_prefix("**“")?.split_once("”**"))
        .map(|(said, _)| said.to_owned())
        .collect();
    assert!(quoted.len() > 10, "{quoted:?}");
    let mut sources = String::new();
    let mut todo = vec![root().join("src")];
    while let Some(path) = todo.pop() {
        if path.is_dir() {
            todo.extend(fs::read_dir(&path).expect("a folder").map(|entry| entry.expect("an entry").path()));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            // A sentence may go on in the next line.
            let text = fs::read_to_string(&path).expect("a source");
            let joined = text.split("\\\n").map(str::trim_start).collect::<String>();
            sources.push_str(&joined);
        }
    }
    for sentence in quoted {
        for part in sentence.split('…').map(str::trim).filter(|part| !part.is_empty()) {
            assert!(sources.contains(part), "nobody says {part:?}");
        }
    }
}
