//! Links lead somewhere.

use std::path::Path;

use super::markdown::{Document, OTHERS, all, guides, root, tidy};

/// What is wrong with a link, if anything.
fn broken(document: &Document, target: &str) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (file, anchor) = target.split_once('#').map_or((target, None), |(file, anchor)| (file, Some(anchor)));
    let folder = Path::new(&document.path).parent().expect("a file has a folder");
    let path = if file.is_empty() { Some(document.path.clone().into()) } else { tidy(&folder.join(file)) };
    let Some(path) = path else { return Some("it leads out of the project".to_owned()) };
    if !root().join(&path).exists() {
        return Some(format!("there is no {}", path.display()));
    }
    let anchor = anchor?;
    if path.extension().is_none_or(|extension| extension != "md") {
        return Some("only documents have headings".to_owned());
    }
    let there = Document::read(&path.to_string_lossy());
    (!there.anchors().contains(anchor)).then(|| format!("{} has no heading for #{anchor}", path.display()))
}

#[test]
fn every_link_leads_to_a_file_and_every_anchor_to_a_heading() {
    let mut wrong: Vec<String> =
        OTHERS.iter().filter(|path| !root().join(path).exists()).map(|path| format!("there is no {path}")).collect();
    let mut seen = 0;
    for document in all() {
        for (line, target) in document.links() {
            seen += 1;
            wrong.extend(broken(&document, &target).map(|why| format!("{}:{line}: {target}: {why}", document.path)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(seen > 30, "{seen} links were found");
}

#[test]
fn a_broken_link_is_seen() {
    let readme = Document::read("README.md");
    assert!(broken(&readme, "docs/nothing.md").is_some_and(|why| why.contains("no docs/nothing.md")));
    assert!(broken(&readme, "docs/alerts.md#no-such-heading").is_some());
    assert!(broken(&readme, "../elsewhere").is_some_and(|why| why.contains("out of")));
    assert_eq!(broken(&readme, "docs/alerts.md#windlassnoleader"), None);
    assert_eq!(broken(&readme, "#figures"), None);
}

#[test]
fn the_readme_leads_to_every_document() {
    let linked: Vec<String> = Document::read("README.md").links().into_iter().map(|(_, target)| target).collect();
    for guide in guides() {
        let leads = |target: &String| target.split('#').next() == Some(guide.as_str());
        assert!(linked.iter().any(leads), "README.md does not link {guide}");
    }
}
