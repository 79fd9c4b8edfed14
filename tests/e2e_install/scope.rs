//! A release for one namespace, where nothing may do more than it needs.

use kube::ResourceExt;

use super::scene::{IMAGE, Scene};

/// Beside the application of work.yaml, a handler that is a program.
const PROGRAM: &str = "
apiVersion: windlass.dev/v1alpha1
kind: WorkerPool
metadata: {name: programs}
spec:
  queueRef: {name: work}
  taskTypes: [program]
  handler: {type: Exec, exec: {command: [cat]}}
  template:
    spec:
      securityContext: {runAsNonRoot: true, runAsUser: 1000, seccompProfile: {type: RuntimeDefault}}
      containers:
      - name: program
        image: localhost/handlers:test
        securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
";

#[tokio::test]
async fn a_release_for_one_namespace_needs_roles_alone_and_all_pods_pass_where_restricted_is_enforced() {
    let Some(scene) = Scene::enter().await else { return };
    let (system, jobs, elsewhere) = (scene.namespace().await, scene.namespace().await, scene.namespace().await);
    let (system, jobs, elsewhere) = (&*system, &*jobs, &*elsewhere);
    let refused = scene.tries(&format!("kubectl run -n {jobs} loose --image=localhost/handlers:test")).await;
    let refused = refused.expect_err("the level is enforced");
    assert!(refused.contains("violates PodSecurity \"restricted"), "{refused}");

    scene
        .types(&format!(
            "helm install windlass charts/windlass -n {system} --wait --timeout 3m {IMAGE} --set image.tag=test \
               --set 'watchNamespaces={{{jobs}}}'
             kubectl apply -n {elsewhere} -f tests/e2e_install/work.yaml
             kubectl apply -n {jobs} -f tests/e2e_install/work.yaml
             kubectl apply -n {jobs} -f - <<'END'{PROGRAM}END
             kubectl wait -n {jobs} --for=condition=Ready taskqueue/work workerpool/workers workerpool/programs \
               --timeout=3m"
        ))
        .await;
    let rendered = scene.types(&format!("helm get manifest windlass -n {system}")).await;
    let kinds: Vec<_> = rendered.lines().filter_map(|line| line.strip_prefix("kind: ")).collect();
    assert!(kinds.contains(&"Role") && !kinds.iter().any(|kind| kind.starts_with("ClusterRole")), "{kinds:?}");
    let of_the_release = "app.kubernetes.io/part-of=windlass";
    let there = scene.types(&format!("kubectl get clusterroles,clusterrolebindings -l {of_the_release} -o name")).await;
    assert_eq!(there, "");

    for (kind, count) in [("work", 4), ("program", 4)] {
        let said = scene
            .types(&format!(
                "windlass() {{ kubectl exec -n {system} deploy/windlass -- windlass \"$@\"; }}
                 windlass task enqueue -q {jobs}/work --type {kind} --payload '{{}}' -n {count} -o json |
                   grep -o '\"id\": *\"[^\"]*\"' | cut -d '\"' -f 4 | while read -r task; do
                     windlass task wait $task -q {jobs}/work --timeout 60s </dev/null
                   done"
            ))
            .await;
        assert_eq!(said.matches("succeeded").count(), count, "{said}");
    }
    let said = scene.types(&format!("helm test windlass -n {system}")).await;
    assert!(said.contains("Succeeded"), "{said}");

    // Nobody looks after the neighbours.
    let status = scene.types(&format!("kubectl get -n {elsewhere} taskqueue/work -o 'jsonpath={{.status}}'")).await;
    assert_eq!(status, "");
    let mut pods = scene.pods(system, "").await;
    pods.extend(scene.pods(jobs, "").await);
    let names: Vec<_> = pods.iter().map(ResourceExt::name_any).collect();
    eprintln!("these pods run where Restricted is enforced: {names:?}");
    assert_eq!(names.len(), 5, "{names:?}");
}
