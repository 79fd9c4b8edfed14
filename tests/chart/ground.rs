//! The chart, rendered, and an API server that knows everything that it may render.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;
use tokio::sync::OnceCell;

use crate::kubernetes::Kubernetes;

/// The name of the release.
pub(super) const RELEASE: &str = "windlass";

/// A file of the project.
pub(super) fn file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The text of a file of the project.
pub(super) fn text(path: &str) -> String {
    let path = file(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub(super) fn chart() -> String {
    file("charts/windlass").to_str().expect("UTF-8").to_owned()
}

/// The shared API server, with the definitions of Windlass and of the Prometheus operator.
pub(super) async fn cluster() -> &'static Kubernetes {
    static DEFINED: OnceCell<()> = OnceCell::const_new();
    let cluster = Kubernetes::api().await;
    DEFINED.get_or_init(|| define(cluster)).await;
    cluster
}

async fn define(cluster: &Kubernetes) {
    for path in ["crds", "tests/chart/monitoring.yaml"] {
        cluster.kubectl(&["apply", "--server-side", "-f", file(path).to_str().expect("UTF-8")]).await;
    }
    cluster.kubectl(&["wait", "--for=condition=Established", "--timeout=120s", "crd", "--all"]).await;
}

/// What Helm makes of the chart with these values (YAML), as one text; `Err` is what it said.
pub(super) async fn render(cluster: &Kubernetes, namespace: &str, values: &str) -> Result<String, String> {
    let given = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(given.path(), values).expect("it can be written");
    let path = given.path().to_str().expect("UTF-8");
    cluster.try_helm(&["template", RELEASE, &chart(), "--namespace", namespace, "--values", path]).await
}

/// The same, as objects.
pub(super) async fn objects(cluster: &Kubernetes, namespace: &str, values: &str) -> Vec<Value> {
    let text = render(cluster, namespace, values).await.unwrap_or_else(|said| panic!("{values}\n{said}"));
    documents(&text)
}

/// The documents of a YAML text that are not empty.
pub(super) fn documents(text: &str) -> Vec<Value> {
    let all = serde_yaml::Deserializer::from_str(text).map(|one| Value::deserialize(one).expect("YAML"));
    all.filter(|one| !one.is_null()).collect()
}

/// The objects of a kind.
pub(super) fn of_kind<'a>(objects: &'a [Value], kind: &str) -> Vec<&'a Value> {
    objects.iter().filter(|object| object["kind"] == kind).collect()
}
