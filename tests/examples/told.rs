//! Nothing is an example that nobody tells of.

use std::collections::BTreeSet;

use super::tree::{documents, examples, files, kustomizations, manifests, of_kind, project, shown, text};

#[test]
fn every_folder_with_a_queue_says_what_it_shows_and_how_to_try_it() {
    let told: BTreeSet<String> = examples().iter().map(super::tree::Example::folder).collect();
    for file in manifests() {
        let text = text(&file);
        if of_kind(&documents(&text), "TaskQueue").next().is_none() {
            continue;
        }
        let folder = shown(file.parent().expect("a folder"));
        let folder = folder.trim_start_matches("examples/").trim_end_matches("/base");
        assert!(told.contains(folder), "{} has no comment on top", file.display());
    }
    assert!(told.len() >= 12, "{told:?}");
    for example in examples() {
        assert!(!example.dev.is_empty() && !example.cluster.is_empty(), "{example:?}");
        assert!(example.tries.iter().any(|one| one.ends.is_some()), "{example:?}");
    }
}

#[test]
fn the_readme_tells_of_every_example_and_of_nothing_else() {
    let readme = text(&project().join("examples/README.md"));
    let links: BTreeSet<&str> = readme
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next())
        .filter(|link| !link.contains(':'))
        .collect();
    for link in &links {
        assert!(project().join("examples").join(link).exists(), "{link} is not there");
    }
    for file in files() {
        let path = shown(&file);
        let path = path.trim_start_matches("examples/");
        let told =
            links.iter().any(|link| path == *link || path.starts_with(&format!("{}/", link.trim_end_matches('/'))));
        assert!(told || path == "README.md", "{path} is not in examples/README.md");
    }
    for example in examples() {
        let command = format!("windlass dev -f {}", example.dev.join(" "));
        assert!(readme.contains(&command), "examples/README.md does not say {command:?}");
    }
}

#[test]
fn the_copy_of_the_name_references_is_the_original() {
    let of = |path: &str| text(&project().join("examples").join(path));
    assert_eq!(of("gitops/base/config/name-references.yaml"), of("handlers/name-references.yaml"));
}

/// What has no kind is no object: some kustomization must use it, or nobody does.
#[test]
fn every_file_that_is_no_object_is_used_by_a_kustomization() {
    for file in manifests() {
        if documents(&text(&file)).iter().all(|document| document["kind"].is_string()) {
            continue;
        }
        let uses = |folder: &std::path::PathBuf| {
            let kustomization = &documents(&text(&folder.join("kustomization.yaml")))[0];
            let listed = kustomization["configurations"].as_array().into_iter().flatten();
            listed.filter_map(|path| path.as_str()).any(|path| folder.join(path) == file)
        };
        assert!(kustomizations().iter().any(uses), "{} is used by nobody", file.display());
    }
}
