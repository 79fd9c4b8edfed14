//! The files under `examples/`, and what their comments say.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;
use windlass::State;

/// The project's folder.
pub(super) fn project() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The text of a file of the project.
pub(super) fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A path as people type it, from the project's folder.
pub(super) fn shown(path: &Path) -> String {
    path.strip_prefix(project()).expect("a file of the project").display().to_string()
}

/// All files under `examples/`, in the order of their names.
pub(super) fn files() -> Vec<PathBuf> {
    let (mut found, mut folders) = (Vec::new(), vec![project().join("examples")]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            // What `windlass dev` leaves in a folder where somebody ran it is no example.
            if path.is_dir() && path.file_name().is_some_and(|name| name != ".windlass") {
                folders.push(path);
            } else if path.is_file() {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// Those that may be manifests.
pub(super) fn manifests() -> Vec<PathBuf> {
    let is_data = |path: &PathBuf| path.extension().is_some_and(|ending| ending == "yaml" || ending == "yml");
    let json = |path: &PathBuf| path.extension().is_some_and(|ending| ending == "json");
    files().into_iter().filter(|path| is_data(path) || json(path)).collect()
}

/// Folders that kustomize makes manifests of.
pub(super) fn kustomizations() -> Vec<PathBuf> {
    let found = manifests().into_iter().filter(|path| path.ends_with("kustomization.yaml"));
    found.map(|path| path.parent().expect("a folder").to_owned()).collect()
}

/// The documents of a YAML text that are not empty.
pub(super) fn documents(text: &str) -> Vec<Value> {
    let all = serde_yaml::Deserializer::from_str(text).map(|one| Value::deserialize(one).expect("YAML"));
    all.filter(|one| !one.is_null()).collect()
}

/// The objects of a kind.
pub(super) fn of_kind<'a>(objects: &'a [Value], kind: &'a str) -> impl Iterator<Item = &'a Value> {
    objects.iter().filter(move |object| object["kind"] == kind)
}

/// The name of an object.
pub(super) fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().expect("a name")
}

/// A command of a comment, and the state that its tasks are said to reach.
#[derive(Debug)]
pub(super) struct Try {
    pub(super) command: String,
    pub(super) ends: Option<State>,
}

/// What an example says of itself.
#[derive(Debug)]
pub(super) struct Example {
    /// Where the comment is.
    pub(super) file: PathBuf,
    /// What `windlass dev` is given.
    pub(super) dev: Vec<String>,
    /// What a cluster is given.
    pub(super) cluster: Vec<String>,
    /// What to try.
    pub(super) tries: Vec<Try>,
}

impl Example {
    /// The folder that it is named after.
    pub(super) fn folder(&self) -> String {
        let path = shown(self.file.parent().expect("a folder"));
        path.trim_start_matches("examples/").trim_end_matches("/base").to_owned()
    }
}

const SHOWS: &str = "# Shows: ";
const LABELS: [&str; 3] = ["one machine:", "a cluster:", "try it:"];

/// All examples: the manifests whose comment says what they show.
pub(super) fn examples() -> Vec<Example> {
    let shows = manifests().into_iter().filter(|path| text(path).starts_with(SHOWS));
    shows.map(|file| read(&file)).collect()
}

/// Reads the comment on top of a manifest.
fn read(file: &Path) -> Example {
    let text = text(file);
    let lines = text.lines().take_while(|line| line.starts_with('#')).map(|line| &line[1..]);
    let (mut label, mut parts) = ("", [Vec::new(), Vec::new(), Vec::new()]);
    let mut goes_on = false;
    for line in lines {
        let words = line.trim();
        let begins = LABELS.into_iter().find(|label| words.starts_with(label));
        if words.is_empty() || (begins.is_none() && !line.starts_with("      ")) {
            label = "";
        }
        label = begins.unwrap_or(label);
        let Some(part) = LABELS.iter().position(|known| *known == label) else { continue };
        let words = words.trim_start_matches(label).trim();
        let end = words.trim_end_matches('\\').trim_end();
        match parts[part].last_mut() {
            Some(last) if goes_on => *last = format!("{last} {end}"),
            _ => parts[part].push(end.to_owned()),
        }
        goes_on = words.ends_with('\\');
    }
    let [machine, cluster, tries] = parts;
    let dev = machine.iter().find_map(|line| line.split_once("windlass dev -f ")).map(|(_, files)| files);
    let dev = dev.unwrap_or_else(|| panic!("{} names no windlass dev", file.display()));
    let dev = dev.split_whitespace().take_while(|word| !word.starts_with('(')).map(str::to_owned).collect();
    let without_remark = |line: &String| line.split("  #").next().unwrap_or(line).trim().to_owned();
    let cluster = cluster.iter().map(without_remark).collect();
    let tries = tries.iter().map(|line| a_try(file, line)).collect();
    Example { file: file.to_owned(), dev, cluster, tries }
}

/// `COMMAND   # STATE: why`; what stands behind another word is for people alone.
fn a_try(file: &Path, line: &str) -> Try {
    let (command, remark) = line.split_once("  #").unwrap_or((line, ""));
    let word = remark.trim().split([':', ' ']).next().unwrap_or_default();
    let ends = word.parse::<State>().ok();
    let promises = command.contains("task enqueue") || command.contains("task wait");
    assert!(ends.is_some() || !promises, "{}: what state ends {command:?} in?", file.display());
    Try { command: command.trim().to_owned(), ends }
}
