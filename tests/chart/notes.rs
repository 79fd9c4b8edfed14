//! What the chart says after an installation: its commands are run as they are printed.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::Api;

use super::ground::{RELEASE, chart};
use crate::kubernetes::Kubernetes;

/// What an operator would say of a queue that it has made; there is none, because no pods run here.
const READY: &str = r#"{"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "Ready", "message": "",
                        "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}"#;

/// The commands of the notes, each with the document that it is given.
fn commands(notes: &str) -> Vec<String> {
    let mut lines = notes.lines();
    let mut found = Vec::new();
    while let Some(line) = lines.next() {
        let mut command = line.trim().to_owned();
        if !command.starts_with("kubectl ") && !command.starts_with("helm ") {
            continue;
        }
        if command.ends_with("<<'END'") {
            for line in lines.by_ref().take_while(|line| *line != "END") {
                command.push_str(&format!("\n{line}"));
            }
            command.push_str("\nEND");
        }
        found.push(command);
    }
    found
}

/// Runs a command in a shell whose kubectl and helm are the cluster's.
async fn run(cluster: &Kubernetes, command: &str) -> String {
    let own = tempfile::tempdir().expect("a temporary directory");
    let bin = cluster.program("kubectl").parent().expect("a folder").to_owned();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").expect("a PATH"));
    let mut shell = tokio::process::Command::new("bash");
    shell.args(["-euc", command]).env("PATH", path).env("KUBECONFIG", cluster.kubeconfig()).kill_on_drop(true);
    shell.envs(["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"].map(|name| (name, own.path())));
    let output = shell.output().await.expect("bash starts");
    assert!(output.status.success(), "{command}\n{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Installs a release, and does what it then says: as far as that goes without pods.
async fn follow(cluster: &Kubernetes, namespace: &str, yours: &str, settings: &str) -> (String, Vec<String>) {
    let install = ["install", RELEASE, &chart(), "--namespace", namespace, "--set", settings];
    let said = cluster.try_helm(&install).await.unwrap_or_else(|said| panic!("{said}"));
    let (_, notes) = said.split_once("NOTES:\n").expect("notes");
    assert!(notes.lines().all(|line| line == line.trim_end() && line.len() < 140), "{notes}");
    cluster.kubectl(&["wait", "--for=condition=Established", "--timeout=120s", "crd", "--all"]).await;
    let commands = commands(notes);
    for command in &commands {
        let mut command = command.replace("CHART", &chart()).replace("YOUR_NAMESPACE", yours);
        if command.contains(" rollout status ") {
            command.push_str(" --watch=false");
        }
        if command.starts_with("kubectl wait ") {
            let queue = command.replace("kubectl wait", "kubectl patch").replace("--for=condition=Ready ", "");
            run(cluster, &format!("{queue} --subresource=status --type=merge --patch '{READY}'")).await;
        }
        // The test is a pod; that it is there is what can be seen here. tests/chart/pods.rs runs it.
        let printed = run(cluster, &command.replace("helm test", "helm get hooks")).await;
        assert!(!command.starts_with("helm test ") || printed.contains("helm.sh/hook: test"), "{printed}");
    }
    (notes.to_owned(), commands)
}

#[tokio::test(flavor = "multi_thread")]
async fn its_commands_work_as_they_are_printed() {
    let cluster = Kubernetes::start_api().await;
    let (here, there, yours) = (cluster.namespace().await, cluster.namespace().await, cluster.namespace().await);

    let settings = format!("watchNamespaces={{{}}},crds.keep=false", &*yours);
    let (notes, commands) = follow(&cluster, &here, &yours, &settings).await;
    assert_eq!(commands.len(), 9, "{notes}");
    assert!(notes.contains("Delete them\nfirst, while the operator runs"), "{notes}");
    let definitions: Api<CustomResourceDefinition> = Api::all(cluster.client().await);
    cluster.wait(&definitions, "taskqueues.windlass.dev", "to be gone", |found| found.is_none()).await;
    run(&cluster, &format!("kubectl -n {} delete secret windlass-redis", &*yours)).await;

    let (notes, commands) = follow(&cluster, &there, &yours, "redis.enabled=true").await;
    assert_eq!(commands.len(), 7, "{notes}");
    assert!(notes.contains("`helm uninstall windlass"), "{notes}");
    // The operator's address and the pods' are different Secrets also where they are in one namespace.
    let secrets = |namespace: &str| format!("kubectl get secrets --field-selector type=Opaque -o name -n {namespace}");
    assert_eq!(run(&cluster, &secrets(&there)).await, "secret/windlass-operator-redis\n");
    assert_eq!(run(&cluster, &secrets(&yours)).await, "secret/windlass-redis\n");
    run(&cluster, &format!("kubectl -n {} create secret generic windlass-redis --from-literal=url=a", &*there)).await;
}
