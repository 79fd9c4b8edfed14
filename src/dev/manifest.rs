//! Reads manifests from files, as a cluster would, and says what is wrong with them and where.
//!
//! Owns: which files are read, and what together they ask for ([`Manifests`]).
//! Must not know: how any of it is carried out.

mod yaml;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::crd::check::{self, FieldPath, Place, Problem};
use crate::crd::{self, Kind, TaskQueueSpec, WorkerPoolSpec};
use crate::protocol::names::QueueName;

/// Namespace and name of a pool.
pub(super) type PoolName = QueueName;

/// A file's place and what is wrong there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The file, as it was named.
    pub file: PathBuf,
    /// The line, from 1; 0 where it is about the whole file.
    pub line: usize,
    /// Which field, where it is about one.
    pub field: String,
    /// What is wrong and what would be right.
    pub sentence: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: ", self.file.display())?,
            line => write!(f, "{}:{line}: ", self.file.display())?,
        }
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.sentence)
    }
}

/// A text with its place.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Source {
    pub(super) file: PathBuf,
    pub(super) text: String,
}

/// A queue that is asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct QueueManifest {
    /// What it promises.
    pub spec: TaskQueueSpec,
    object: Value,
}

/// A pool that is asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct PoolManifest {
    /// Whose tasks it runs.
    pub queue: QueueName,
    /// How.
    pub spec: WorkerPoolSpec,
    /// The folder of its manifest.
    pub folder: PathBuf,
    object: Value,
}

/// All that is asked for.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Manifests {
    /// The queues.
    pub queues: BTreeMap<QueueName, QueueManifest>,
    /// The pools.
    pub pools: BTreeMap<PoolName, PoolManifest>,
    /// What the files hold besides: kind and name of what is not ours.
    pub others: BTreeSet<String>,
}

/// Reads files, and the manifests in folders.
pub(super) fn sources(paths: &[PathBuf]) -> Result<Vec<Source>, Refusal> {
    let mut files = Vec::new();
    for path in paths {
        if path.is_dir() { files.extend(manifests_in(path)?) } else { files.push(path.clone()) }
    }
    let read = |file: PathBuf| match std::fs::read_to_string(&file) {
        Ok(text) => Ok(Source { file, text }),
        Err(error) => Err(unreadable(&file, &error)),
    };
    files.into_iter().map(read).collect()
}

/// The manifests of a folder in the order of their names; not of folders in it, as with kubectl.
fn manifests_in(folder: &Path) -> Result<Vec<PathBuf>, Refusal> {
    let listed = std::fs::read_dir(folder).map_err(|error| unreadable(folder, &error))?;
    let is_manifest = |path: &PathBuf| {
        let ending = path.extension().and_then(|ending| ending.to_str());
        path.is_file() && matches!(ending, Some("yaml" | "yml" | "json"))
    };
    let mut files: Vec<PathBuf> = listed.flatten().map(|entry| entry.path()).filter(is_manifest).collect();
    files.sort();
    if files.is_empty() {
        let sentence = "the folder holds no manifest: put a .yaml, .yml or .json file into it".to_owned();
        return Err(Refusal { file: folder.to_owned(), line: 0, field: String::new(), sentence });
    }
    Ok(files)
}

fn unreadable(file: &Path, error: &std::io::Error) -> Refusal {
    let sentence = format!("cannot be read: {error}");
    Refusal { file: file.to_owned(), line: 0, field: String::new(), sentence }
}

impl Manifests {
    /// What the sources ask for, or all that is wrong with them. `before` is
    /// what they replace: some fields may not change.
    pub(super) fn read(sources: &[Source], before: Option<&Self>) -> Result<Self, Vec<Refusal>> {
        let mut reader = Reader { before, found: Self::default(), places: BTreeMap::new(), refusals: Vec::new() };
        for source in sources {
            reader.file(source);
        }
        reader.resolve();
        reader.refusals.sort_by(|a, b| (&a.file, a.line).cmp(&(&b.file, b.line)));
        if reader.refusals.is_empty() { Ok(reader.found) } else { Err(reader.refusals) }
    }
}

/// A document of a file.
#[derive(Clone, Copy)]
struct Document<'a> {
    source: &'a Source,
    number: usize,
    value: &'a Value,
}

impl Document<'_> {
    fn refusal(&self, path: &FieldPath, place: Place, sentence: impl Into<String>) -> Refusal {
        Refusal {
            file: self.source.file.clone(),
            line: yaml::line_of(&self.source.text, self.number, path, place),
            field: path.to_string(),
            sentence: sentence.into(),
        }
    }

    fn text(&self, pointer: &str) -> &str {
        self.value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
    }
}

/// Where an object came from.
struct Origin {
    file: PathBuf,
    line: usize,
    /// Where a pool names its queue.
    queue_ref: usize,
}

struct Reader<'a> {
    before: Option<&'a Manifests>,
    found: Manifests,
    places: BTreeMap<(Kind, QueueName), Origin>,
    refusals: Vec<Refusal>,
}

impl Reader<'_> {
    fn file(&mut self, source: &Source) {
        let documents = match yaml::documents(&source.text) {
            Ok(documents) => documents,
            Err(yaml::Broken { line, sentence }) => {
                let (file, field) = (source.file.clone(), String::new());
                return self.refusals.push(Refusal { file, line, field, sentence });
            }
        };
        for (number, value) in documents.iter().enumerate().filter(|(_, value)| !value.is_null()) {
            let document = Document { source, number, value };
            if let Err(refusal) = self.document(document) {
                self.refusals.push(refusal);
            }
        }
    }

    fn document(&mut self, document: Document<'_>) -> Result<(), Refusal> {
        let Some(kind) = kind_of(document)? else {
            let name = document.text("/metadata/name");
            self.found.others.insert(format!("{} {name}", document.text("/kind")));
            return Ok(());
        };
        let name = name_of(document)?;
        let before = self.before.and_then(|before| before.object(kind, &name));
        let object = match check::check(kind, document.value, before) {
            Ok(object) => object,
            Err(problems) => {
                let refusal = |Problem { path, place, sentence }| document.refusal(&path, place, sentence);
                self.refusals.extend(problems.into_iter().map(refusal));
                return Ok(());
            }
        };
        self.once(kind, &name, document)?;
        match kind {
            Kind::TaskQueue => self.queue(document, name, object),
            Kind::WorkerPool => self.pool(document, name, object),
        }
    }

    /// One object of a kind and name.
    fn once(&mut self, kind: Kind, name: &QueueName, document: Document<'_>) -> Result<(), Refusal> {
        let line =
            |path: &str| yaml::line_of(&document.source.text, document.number, &FieldPath::parse(path), Place::Name);
        let (file, queue_ref) = (document.source.file.clone(), line("spec.queueRef.name"));
        let origin = Origin { file, line: line("metadata.name"), queue_ref };
        if let Some(first) = self.places.insert((kind, name.clone()), origin) {
            let sentence =
                format!("{} {name} is already given in {}:{}", kind.as_str(), first.file.display(), first.line);
            return Err(document.refusal(&FieldPath::parse("metadata.name"), Place::Name, sentence));
        }
        Ok(())
    }

    fn queue(&mut self, document: Document<'_>, name: QueueName, object: Value) -> Result<(), Refusal> {
        let spec: TaskQueueSpec = typed(document, &object)?;
        let refused = |error: crd::InvalidSpec| {
            let path = FieldPath::parse(&format!("spec.{}", error.field));
            document.refusal(&path, Place::Name, error.sentence)
        };
        spec.keys(&name).map_err(refused)?;
        spec.policy(crate::protocol::policy::EventRecording::On).map_err(refused)?;
        self.found.queues.insert(name, QueueManifest { spec, object });
        Ok(())
    }

    fn pool(&mut self, document: Document<'_>, name: PoolName, object: Value) -> Result<(), Refusal> {
        let spec: WorkerPoolSpec = typed(document, &object)?;
        let template = FieldPath::parse("spec.template");
        spec.template.check().map_err(|sentence| document.refusal(&template, Place::Name, sentence))?;
        let queue = QueueName::new(name.namespace(), &spec.queue_ref.name).map_err(|error| {
            document.refusal(&FieldPath::parse("spec.queueRef.name"), Place::Value, error.to_string())
        })?;
        let folder = document.source.file.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new(".")).to_owned();
        self.found.pools.insert(name, PoolManifest { queue, spec, folder, object });
        Ok(())
    }

    /// Every pool's queue is there.
    fn resolve(&mut self) {
        // With a broken file, a queue that seems to be missing may stand in it.
        if !self.refusals.is_empty() {
            return;
        }
        for (name, pool) in &self.found.pools {
            if self.found.queues.contains_key(&pool.queue) {
                continue;
            }
            let origin = &self.places[&(Kind::WorkerPool, name.clone())];
            let known: Vec<String> = self.found.queues.keys().map(ToString::to_string).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            self.refusals.push(Refusal {
                file: origin.file.clone(),
                line: origin.queue_ref,
                field: "spec.queueRef.name".to_owned(),
                sentence: format!("there is no TaskQueue {} in these manifests; known: {known}", pool.queue),
            });
        }
    }
}

impl Manifests {
    fn object(&self, kind: Kind, name: &QueueName) -> Option<&Value> {
        match kind {
            Kind::TaskQueue => self.queues.get(name).map(|queue| &queue.object),
            Kind::WorkerPool => self.pools.get(name).map(|pool| &pool.object),
        }
    }
}

/// Which of our kinds a document is; `None` if it is somebody else's.
fn kind_of(document: Document<'_>) -> Result<Option<Kind>, Refusal> {
    let at = |field: &str, sentence: String| document.refusal(&FieldPath::parse(field), Place::Value, sentence);
    if !document.value.is_object() {
        return Err(at("", "a manifest is a group of fields: apiVersion, kind, metadata and spec".to_owned()));
    }
    for field in ["apiVersion", "kind"] {
        if document.text(&format!("/{field}")).is_empty() {
            let known = Kind::ALL.map(Kind::as_str).join(" or ");
            let sentence = match field {
                "kind" => format!("kind is required: {known}"),
                _ => format!("apiVersion is required: {}", crd::API_VERSION),
            };
            return Err(at("", sentence));
        }
    }
    let (version, kind) = (document.text("/apiVersion"), document.text("/kind"));
    let ours = version.split('/').next() == crd::API_VERSION.split('/').next();
    match Kind::named(kind) {
        Some(_) if version != crd::API_VERSION => {
            Err(at("apiVersion", format!("{version:?} is not known for a {kind}; write {}", crd::API_VERSION)))
        }
        None if ours => {
            Err(at("kind", format!("{kind:?} is not known; write {}", Kind::ALL.map(Kind::as_str).join(" or "))))
        }
        kind => Ok(kind),
    }
}

fn name_of(document: Document<'_>) -> Result<QueueName, Refusal> {
    let at = |field: &str, sentence: String| document.refusal(&FieldPath::parse(field), Place::Name, sentence);
    for field in ["name", "namespace"] {
        let value = document.value.pointer(&format!("/metadata/{field}"));
        if value.is_some_and(|value| !value.is_string()) {
            return Err(at(&format!("metadata.{field}"), "must be a text".to_owned()));
        }
    }
    let name = document.text("/metadata/name");
    if name.is_empty() {
        return Err(at("metadata", "metadata.name is required".to_owned()));
    }
    let namespace = Some(document.text("/metadata/namespace")).filter(|namespace| !namespace.is_empty());
    QueueName::new(namespace.unwrap_or(QueueName::DEFAULT_NAMESPACE), name)
        .map_err(|error| at("metadata.name", error.to_string()))
}

/// The spec of an object that the schema allows.
fn typed<T: DeserializeOwned>(document: Document<'_>, object: &Value) -> Result<T, Refusal> {
    serde_json::from_value(object["spec"].clone())
        .map_err(|error| document.refusal(&FieldPath::parse("spec"), Place::Name, error.to_string()))
}
