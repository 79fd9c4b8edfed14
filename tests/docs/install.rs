//! What the README and the guides say of an installation agrees with the chart, and with what the tests run on.

use serde_json::Value;

use super::markdown::{Document, guides, text};

fn chart(file: &str) -> Value {
    serde_yaml::from_str(&text(&format!("charts/windlass/{file}"))).expect("YAML")
}

/// Major and minor version of a Go module that a `go.mod` of the tests' cluster names.
fn version_of(module: &str, go: &str) -> String {
    let file = text(&format!("tests/cluster/go/{go}/go.mod"));
    let words: Vec<&str> = file.split_whitespace().collect();
    let found = words.windows(2).find(|pair| pair[0] == module && pair[1].starts_with('v'));
    let version = found.unwrap_or_else(|| panic!("{go} names no version of {module}"))[1].trim_start_matches('v');
    version.split('.').take(2).collect::<Vec<_>>().join(".")
}

/// The README in one line, because its sentences go on in the next.
fn readme() -> String {
    text("README.md").split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn the_readme_names_the_image_that_the_chart_takes_by_itself() {
    let (values, about) = (chart("values.yaml"), chart("Chart.yaml"));
    let of = |value: &Value| value.as_str().expect("a text").to_owned();
    let (registry, repository) = (of(&values["image"]["registry"]), of(&values["image"]["repository"]));
    let image = format!("{registry}/{repository}:{}", of(&about["appVersion"]));
    for command in ["docker build -t", "kind load docker-image"] {
        assert!(readme().contains(&format!("{command} {image}")), "README.md does not say {command} {image}");
    }
}

#[test]
fn the_readme_says_what_is_needed_and_what_it_was_tried_with() {
    let least = chart("Chart.yaml")["kubeVersion"].as_str().expect("a text").to_owned();
    let least = least.trim_start_matches(">=").split('.').take(2).collect::<Vec<_>>().join(".");
    let tried = format!(
        "Kubernetes {} with Helm {}",
        version_of("k8s.io/kubernetes", "kubernetes"),
        version_of("helm.sh/helm/v4", "helm")
    );
    for said in [format!("Kubernetes {least} or later"), tried] {
        assert!(readme().contains(&said), "README.md does not say {said:?}");
    }
}

/// Helm takes the chart's defaults for values that an upgrade does not repeat, the image's among them.
#[test]
fn every_upgrade_repeats_the_values() {
    let mut seen = 0;
    for path in guides().into_iter().chain(["README.md".to_owned()]) {
        let document = Document::read(&path);
        let scripts = document.blocks.iter().map(|block| (block.place.clone(), block.text.replace("\\\n", " ")));
        let inline = document.code().into_iter().map(|(line, code)| (format!("{path}:{line}"), code));
        for (place, script) in scripts.chain(inline) {
            for line in script.lines().filter(|line| line.contains("helm upgrade ")) {
                assert!(line.contains(" -f values.yaml") || line.contains(" --reuse-values"), "{place}: {line}");
                seen += 1;
            }
        }
    }
    assert!(seen > 2, "{seen}");
}
