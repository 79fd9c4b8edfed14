//! Manifests that cannot work, each refused by the API server with a sentence that names the field.

use std::path::{Path, PathBuf};

use super::ground::Ground;

/// A manifest that is to be refused.
struct Bad {
    file: PathBuf,
    /// What the refusal names.
    field: String,
    /// What it says.
    says: String,
    /// What is applied before, where the last one is a change.
    before: Vec<String>,
    manifest: String,
}

impl Bad {
    fn read(file: PathBuf) -> Self {
        let text = std::fs::read_to_string(&file).expect("a manifest");
        let head = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(&format!("# {name}: ")));
            line.unwrap_or_else(|| panic!("{} does not say its {name}", file.display())).to_owned()
        };
        let mut documents: Vec<String> = text.split("---\n").map(str::to_owned).collect();
        let manifest = documents.pop().expect("a manifest");
        Self { field: head("field"), says: head("says"), before: documents, manifest, file }
    }
}

fn all() -> Vec<Bad> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/operator/bad");
    let entries = std::fs::read_dir(dir).expect("the directory is there");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("readable").path()).collect();
    files.sort();
    files.into_iter().map(Bad::read).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_manifests_are_refused_with_the_field_and_what_to_do() {
    let ground = Ground::new().await;
    let (mut wrong, all) = (Vec::new(), all());
    assert!(all.len() >= 40, "only {}", all.len());
    for bad in &all {
        for before in &bad.before {
            ground.cluster.apply(&ground.namespace, before).await;
        }
        match ground.cluster.try_apply(&ground.namespace, &bad.manifest).await {
            Ok(_) => wrong.push(format!("{} was accepted", bad.file.display())),
            Err(said) if said.contains(&bad.field) && said.contains(&bad.says) => {}
            Err(said) => {
                let (field, says) = (&bad.field, &bad.says);
                wrong.push(format!("{}: expected {field:?} and {says:?} in: {said}", bad.file.display()));
            }
        }
        for kind in ["taskqueues", "workerpools"] {
            ground.cluster.kubectl(&["--namespace", &ground.namespace, "delete", kind, "--all", "--wait=false"]).await;
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), all.len(), wrong.join("\n"));
    eprintln!("{} bad manifests refused", all.len());
}
