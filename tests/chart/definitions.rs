//! The chart's copies of the definitions.

use std::collections::BTreeSet;

use serde_json::Value;

use super::ground::{cluster, documents, file, objects, of_kind, text};

fn files(folder: &str) -> BTreeSet<String> {
    let listed = std::fs::read_dir(file(folder)).expect("the folder is there");
    listed.map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8")).collect()
}

#[test]
fn copies_are_the_definitions_byte_for_byte() {
    let names = files("crds");
    assert_eq!(names.len(), 2);
    assert_eq!(files("charts/windlass/files/crds"), names, "run `make crds`");
    for name in names {
        let same = text(&format!("crds/{name}")) == text(&format!("charts/windlass/files/crds/{name}"));
        assert!(same, "charts/windlass/files/crds/{name} is out of date: run `make crds`");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_labels_and_annotations_are_added_when_they_are_rendered() {
    let cluster = cluster().await;
    for (values, kept) in [("{}", true), ("crds: {keep: false}", false)] {
        let objects = objects(cluster, "here", values).await;
        let rendered = of_kind(&objects, "CustomResourceDefinition");
        assert_eq!(rendered.len(), 2);
        for rendered in rendered {
            let mut rendered = rendered.clone();
            let name = rendered["metadata"]["name"].as_str().expect("a name").to_owned();
            let policy = |name: &str| rendered["metadata"]["annotations"][name].clone();
            let (helm, argo) = (policy("helm.sh/resource-policy"), policy("argocd.argoproj.io/sync-options"));
            let stay = [Value::from("keep"), Value::from("Delete=false,Prune=false")];
            assert_eq!([helm, argo], if kept { stay } else { [Value::Null, Value::Null] });
            let metadata = rendered["metadata"].as_object_mut().expect("metadata");
            metadata.remove("labels").expect("labels");
            metadata.remove("annotations");
            assert_eq!(rendered, documents(&text(&format!("crds/{name}.yaml")))[0]);
        }
    }
    // Who says something else to Argo CD about everything is heard here, too.
    let values = "commonAnnotations: {argocd.argoproj.io/sync-options: ServerSideApply=true}";
    let rendered = objects(cluster, "here", values).await;
    for rendered in of_kind(&rendered, "CustomResourceDefinition") {
        let options = &rendered["metadata"]["annotations"]["argocd.argoproj.io/sync-options"];
        assert_eq!(options, "ServerSideApply=true,Delete=false,Prune=false");
    }
    let none = objects(cluster, "here", "crds: {enabled: false}").await;
    assert!(of_kind(&none, "CustomResourceDefinition").is_empty());
}
