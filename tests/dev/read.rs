//! Manifests that are read.

use std::path::Path;

use windlass::crd::HandlerType;
use windlass::dev::read;

#[test]
fn the_demo_is_read_with_every_default() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/demo");
    let manifests = read(&[folder.clone()]).expect("allowed");
    let queues: Vec<String> = manifests.queues.keys().map(ToString::to_string).collect();
    assert_eq!(queues, ["default/mail", "default/orders"]);
    let cashiers = &manifests.pools[&"cashiers".parse().expect("valid")];
    assert_eq!((cashiers.spec.replicas, cashiers.spec.handler.type_), (2, HandlerType::Exec));
    assert_eq!(cashiers.folder, folder);
    assert_eq!(cashiers.queue.to_string(), "default/orders");
}

#[test]
fn files_of_a_folder_belong_together_and_what_is_not_ours_is_left_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).expect("written");
    write(
        "b.yml",
        "apiVersion: windlass.dev/v1alpha1\nkind: TaskQueue\nmetadata: {name: q, namespace: shop}\nspec: {}\n",
    );
    write(
        "a.json",
        r#"{"apiVersion": "windlass.dev/v1alpha1", "kind": "WorkerPool", "metadata": {"name": "p", "namespace": "shop"},
            "spec": {"queueRef": {"name": "q"}, "handler": {"type": "SDK"},
                     "template": {"spec": {"containers": [{"name": "app", "image": "x"}]}}}}"#,
    );
    write("c.yaml", "---\n# nothing\n---\napiVersion: v1\nkind: Secret\nmetadata: {name: s}\n---\n");
    write("notes.txt", "kind: nonsense");
    std::fs::create_dir(folder.path().join("deeper.yaml")).expect("made");
    let manifests = read(&[folder.path().to_owned()]).expect("allowed");
    assert_eq!((manifests.queues.len(), manifests.pools.len()), (1, 1));
    assert_eq!(manifests.others.iter().collect::<Vec<_>>(), ["Secret s"]);
    assert_eq!(manifests.pools.values().next().expect("one").queue.to_string(), "shop/q");
}
