//! A matrix of values, each against the API server's dry run with strict validation.

use serde_json::Value;

use super::ground::{chart, cluster, objects, of_kind, render};

/// Everything at once: every optional object, every list and map with something in it.
const EVERYTHING: &str = r#"
commonLabels: {team: platform}
commonAnnotations: {owner: platform@example.com}
replicaCount: 3
image: {registry: "registry.example.com:5000", repository: mirror/windlass, tag: v1.2.3, pullPolicy: Always}
imagePullSecrets: [{name: pull}]
serviceAccount: {name: somebody, annotations: {example.com/role: queue}}
leaderElection: {leaseName: other-lease}
redis: {existingSecret: redis, existingSecretKey: address, caExistingSecret: redis-ca, caExistingSecretKey: root.pem}
eventLog: {existingSecret: history}
logging: {level: "windlass=debug,warn", format: text}
podLabels: {scrape: "yes", team: operators}
podAnnotations: {example.com/number: "1"}
deploymentAnnotations: {example.com/reload: "true"}
priorityClassName: system-cluster-critical
nodeSelector: {kubernetes.io/os: linux}
tolerations: [{key: dedicated, operator: Exists, effect: NoSchedule}]
affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: zone, operator: Exists}]}]}}}
topologySpreadConstraints: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: ScheduleAnyway}]
extraArgs: [--listen, "0.0.0.0:8080"]
extraEnv: [{name: RUST_BACKTRACE, value: "1"}]
extraVolumes: [{name: scratch, emptyDir: {}}]
extraVolumeMounts: [{name: scratch, mountPath: /scratch}]
service: {type: NodePort, port: 80, annotations: {a: b}}
podDisruptionBudget: {minAvailable: null, maxUnavailable: 50%}
networkPolicy: {enabled: true, ingressFrom: [{namespaceSelector: {matchLabels: {a: b}}}], egress: [{ports: [{port: 53, protocol: UDP}]}]}
serviceMonitor: {enabled: true, labels: {release: prometheus, team: monitoring}, annotations: {a: b}, interval: 30s, scrapeTimeout: 10s, relabelings: [{action: labeldrop, regex: pod}], metricRelabelings: [{action: keep, sourceLabels: [queue], regex: .+}]}
podMonitor: {enabled: true, labels: {release: prometheus, team: monitoring}, annotations: {a: b}, interval: 30s, scrapeTimeout: 10s, relabelings: [{action: labeldrop, regex: pod}], metricRelabelings: [{action: keep, sourceLabels: [queue], regex: .+}]}
prometheusRule: {enabled: true, labels: {release: prometheus, team: monitoring}, annotations: {a: b}, alertLabels: {team: platform}, disabled: [WindlassNoLeader], extraGroups: [{name: own, rules: [{alert: Own, expr: "vector(1)"}]}]}
grafanaDashboard: {enabled: true, labels: {team: monitoring}, annotations: {folder: Queues}}
extraObjects:
- {apiVersion: v1, kind: ConfigMap, metadata: {name: '{{ include "windlass.name" . }}-more', namespace: '{{ .Release.Namespace }}'}}
- |
  apiVersion: v1
  kind: ConfigMap
  metadata: {name: text, namespace: {{ .Release.Namespace }}}
"#;

/// What each is for, and its values. HERE is the release's namespace, THERE another one.
const MATRIX: [(&str, &str); 16] = [
    ("defaults", "{}"),
    ("everything", EVERYTHING),
    ("one namespace", "watchNamespaces: [HERE]"),
    (
        "a namespace that is not the release's",
        "{watchNamespaces: [THERE], replicaCount: 2, networkPolicy: {enabled: true}}",
    ),
    ("workers scraped everywhere", "podMonitor: {enabled: true}"),
    ("workers scraped in one namespace", "{watchNamespaces: [THERE], podMonitor: {enabled: true, namespace: THERE}}"),
    ("no Redis", "redis: {enabled: false}"),
    ("a Redis by its URL", "redis: {url: 'rediss+sentinel://a:26379,b:26379/main'}"),
    ("the small Redis behind a policy", "networkPolicy: {enabled: true}"),
    ("PostgreSQL without a password", "eventLog: {url: 'postgres://history:5432/windlass'}"),
    (
        "SQLite on a volume",
        "{eventLog: {url: 'sqlite:///history/events.db'}, extraVolumes: [{name: history, emptyDir: {}}], extraVolumeMounts: [{name: history, mountPath: /history}]}",
    ),
    ("an image by its digest", "image: {registry: '', repository: localhost/windlass, digest: 'sha256:DIGEST'}"),
    (
        "names of one's own",
        "{fullnameOverride: queues, serviceAccount: {create: false, name: given}, rbac: {create: false}}",
    ),
    ("no definitions", "{crds: {enabled: false}, nameOverride: tasks}"),
    ("definitions that go", "{crds: {keep: false}, rbac: {aggregateClusterRoles: false}, helmTest: {enabled: false}}"),
    ("nothing running", "{replicaCount: 0, resources: {}, podSecurityContext: {}, securityContext: {}}"),
];

fn filled(values: &str, here: &str, there: &str) -> String {
    // THERE has HERE in it, so it goes first.
    values.replace("THERE", there).replace("HERE", here).replace("DIGEST", &"0123456789abcdef".repeat(4))
}

#[tokio::test(flavor = "multi_thread")]
async fn every_rendering_passes_a_strict_dry_run() {
    let cluster = cluster().await;
    let (here, there) = (cluster.namespace().await, cluster.namespace().await);
    for (name, values) in MATRIX {
        let text = render(cluster, &here, &filled(values, &here, &there)).await;
        let text = text.unwrap_or_else(|said| panic!("{name}: {said}"));
        let arguments =
            ["apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict", "-f", "-"];
        let taken =
            cluster.try_kubectl(&arguments, &text).await.unwrap_or_else(|said| panic!("{name}: {said}\n{text}"));
        assert!(taken.lines().all(|line| line.contains("(server dry run)")), "{name}: {taken}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_strict_dry_run_refuses_a_field_that_is_not_there() {
    let cluster = cluster().await;
    let namespace = cluster.namespace().await;
    for (values, field) in [
        ("podSecurityContext: {runAsNobody: true}", "runAsNobody"),
        ("{serviceMonitor: {enabled: true, relabelings: [{action: drop, regexp: a}]}}", "regexp"),
        ("{prometheusRule: {enabled: true, extraGroups: [{name: a, rules: [{expr: b, until: c}]}]}}", "until"),
    ] {
        let text = render(cluster, &namespace, values).await.expect("it is rendered");
        let arguments = ["apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-"];
        let said = cluster.try_kubectl(&arguments, &text).await.expect_err("it is refused");
        assert!(said.contains(field), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_chart_is_lint_free() {
    let cluster = cluster().await;
    for values in ["{}", EVERYTHING] {
        let given = tempfile::NamedTempFile::new().expect("a temporary file");
        std::fs::write(given.path(), values).expect("it can be written");
        let path = given.path().to_str().expect("UTF-8");
        let said = cluster.try_helm(&["lint", "--strict", &chart(), "--values", path]).await;
        let said = said.unwrap_or_else(|said| panic!("{said}"));
        assert!(said.contains("0 chart(s) failed"), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespaced_release_renders_roles_and_no_cluster_role() {
    let cluster = cluster().await;
    let objects = objects(cluster, "here", "watchNamespaces: [here, there]").await;
    for object in &objects {
        let kind = object["kind"].as_str().expect("a kind");
        assert!(!kind.starts_with("Cluster"), "{object}");
        let namespaced = object["metadata"]["namespace"].is_string();
        assert_eq!(namespaced, kind != "CustomResourceDefinition", "{object}");
    }
    let roles = of_kind(&objects, "Role");
    let places = |namespace: &str| roles.iter().filter(|role| role["metadata"]["namespace"] == namespace).count();
    assert_eq!((places("here"), places("there")), (2, 1), "one for the work in each, and one for the Lease");
}

#[tokio::test(flavor = "multi_thread")]
async fn values_arrive_where_they_belong() {
    let cluster = cluster().await;
    let objects = objects(cluster, "here", EVERYTHING).await;
    let deployment = of_kind(&objects, "Deployment");
    assert_eq!(deployment.len(), 1, "no small Redis beside one's own");
    let pod = &deployment[0]["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    assert_eq!(container["image"], "registry.example.com:5000/mirror/windlass:v1.2.3");
    assert_eq!(container["args"], serde_json::json!(["operator", "--listen", "0.0.0.0:8080"]));
    let environment = |name: &str| {
        let all = container["env"].as_array().expect("it has an environment");
        let found = all.iter().find(|one| one["name"] == name);
        found.unwrap_or_else(|| panic!("no {name}")).clone()
    };
    assert_eq!(environment("WINDLASS_LEASE_NAME")["value"], "other-lease");
    assert_eq!(environment("WINDLASS_REDIS_URL")["value"], "file:///etc/windlass/redis/address");
    let url = pod["volumes"].as_array().expect("it has volumes").iter().find(|volume| volume["name"] == "redis-url");
    assert_eq!(url.expect("the file comes from the Secret")["secret"]["secretName"], "redis");
    assert_eq!(environment("WINDLASS_REDIS_CA_FILE")["value"], "/etc/windlass/redis-ca/root.pem");
    assert_eq!(environment("WINDLASS_EVENT_LOG_URL")["valueFrom"]["secretKeyRef"]["name"], "history");
    assert_eq!(environment("RUST_BACKTRACE")["value"], "1");
    let spread = &pod["topologySpreadConstraints"][0];
    assert_eq!(spread["labelSelector"]["matchLabels"]["app.kubernetes.io/component"], "operator");
    assert_eq!(environment("WINDLASS_WORKER_IMAGE_PULL_POLICY")["value"], "Always");
    assert_eq!(deployment[0]["spec"]["template"]["metadata"]["labels"]["team"], "operators");
    let lease = |role: &&&Value| role["metadata"]["name"] == "windlass-leader";
    let role = *of_kind(&objects, "Role").iter().find(lease).expect("a Role for the Lease");
    assert_eq!(role["rules"][1]["resourceNames"][0], "other-lease");
    for object in &objects {
        if object["metadata"]["labels"]["app.kubernetes.io/instance"].is_string() {
            let monitors =
                ["ServiceMonitor", "PodMonitor", "PrometheusRule"].contains(&object["kind"].as_str().expect("it"));
            let dashboard = object["metadata"]["name"] == "windlass-dashboard";
            let team = if monitors || dashboard { "monitoring" } else { "platform" };
            assert_eq!(object["metadata"]["labels"]["team"], team, "the nearest one wins: {object}");
            assert_eq!(object["metadata"]["annotations"]["owner"], "platform@example.com", "{object}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_constraint_with_a_selector_of_its_own_keeps_it_as_it_is() {
    let own = r#"{"matchLabels": {"team": "platform"}}"#;
    let spread =
        |selector: &str| format!("{{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule{selector}}}");
    let constraints =
        [format!(", labelSelector: {own}"), ", labelSelector: {}".into(), String::new()].map(|one| spread(&one));
    let values = format!("topologySpreadConstraints: [{}]", constraints.join(", "));
    let objects = objects(cluster().await, "here", &values).await;
    let operator =
        *of_kind(&objects, "Deployment").iter().find(|one| one["metadata"]["name"] == "windlass").expect("it");
    let spread = &operator["spec"]["template"]["spec"]["topologySpreadConstraints"];
    let selectors = [0, 1, 2].map(|at| spread[at]["labelSelector"].clone());
    let own: Value = serde_json::from_str(own).expect("JSON");
    assert_eq!(selectors, [own, serde_json::json!({}), operator["spec"]["selector"].clone()]);
}

/// Its pod must outlive an upgrade: every task is in it.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_that_changes_with_a_version_is_in_the_small_redis_pod() {
    let cluster = cluster().await;
    let objects = objects(cluster, "here", "commonLabels: {build: seven}").await;
    let redis =
        *of_kind(&objects, "Deployment").iter().find(|one| one["metadata"]["name"] == "windlass-redis").expect("it");
    let pod = redis["spec"]["template"].to_string();
    assert!(!pod.contains("version") && !pod.contains("helm.sh/chart") && !pod.contains("seven"), "{pod}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_with_a_file_of_its_own_goes_before_the_next_one_comes() {
    let cluster = cluster().await;
    let strategy = async |values: &str| {
        of_kind(&objects(cluster, "here", values).await, "Deployment")[0]["spec"]["strategy"].clone()
    };
    let (_, file) = MATRIX.iter().find(|(name, _)| *name == "SQLite on a volume").expect("it");
    assert_eq!(strategy(&format!("{{redis: {{enabled: false}}, {}", &file[1..])).await["type"], "Recreate");
    assert_eq!(strategy("{redis: {enabled: false}, eventLog: {url: 'postgres://a/b'}}").await["type"], "RollingUpdate");
}

#[tokio::test(flavor = "multi_thread")]
async fn large_numbers_are_written_out() {
    let cluster = cluster().await;
    let objects = objects(cluster, "here", "redis: {maxMemoryMebibytes: 1048576}").await;
    assert!(objects.iter().any(|object| object.to_string().contains(r#""1048576mb""#)));
}

/// Names of digits alone, wherever somebody may give one.
const DIGITS: &str = r#"
watchNamespaces: ["2024"]
fullnameOverride: "2025"
serviceAccount: {name: "2026"}
leaderElection: {leaseName: "2027"}
redis: {existingSecret: "2028", caExistingSecret: "2029"}
eventLog: {existingSecret: "2031"}
priorityClassName: "2032"
serviceMonitor: {enabled: true}
podMonitor: {enabled: true}
prometheusRule: {enabled: true}
networkPolicy: {enabled: true}
grafanaDashboard: {enabled: true}
replicaCount: 2
"#;

/// The fields of an object that name something, and are no text.
fn numbers_as_names(object: &Value, place: &str, found: &mut Vec<String>) {
    match object {
        Value::Object(fields) => {
            for (field, value) in fields {
                let place = format!("{place}.{field}");
                let names = ["name", "namespace", "value", "serviceAccountName", "secretName", "priorityClassName"]
                    .contains(&field.as_str());
                if names && value.is_number() {
                    found.push(place.clone());
                }
                numbers_as_names(value, &place, found);
            }
        }
        Value::Array(all) => {
            for value in all {
                if ["resourceNames", "matchNames"].iter().any(|field| place.ends_with(field)) && value.is_number() {
                    found.push(place.to_owned());
                }
                numbers_as_names(value, place, found);
            }
        }
        _ => {}
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn names_of_digits_alone_are_text() {
    let objects = objects(cluster().await, "2030", DIGITS).await;
    let mut found = Vec::new();
    for object in objects.iter().filter(|object| object["kind"] != "CustomResourceDefinition") {
        numbers_as_names(object, object["kind"].as_str().expect("a kind"), &mut found);
    }
    assert_eq!(found, Vec::<String>::new());
    let roles = of_kind(&objects, "Role");
    assert!(roles.iter().any(|role| role["metadata"]["namespace"] == "2024" && role["metadata"]["name"] == "2025"));
}

/// A name of digits is one to Helm.
#[tokio::test(flavor = "multi_thread")]
async fn labels_are_text_whatever_a_release_is_called() {
    let said =
        cluster().await.try_helm(&["template", "12", &chart(), "--namespace", "here"]).await.expect("it is rendered");
    let objects = super::ground::documents(&said);
    let labelled = of_kind(&objects, "Service")[0]["metadata"]["labels"]["app.kubernetes.io/instance"].clone();
    assert_eq!(labelled, Value::from("12"));
}
