//! Values that cannot work are refused before anything is installed, in a sentence that names the field and what is allowed.

use super::ground::{cluster, render};

/// Wrong values, the field that the schema's message names, and what it says is allowed.
const BY_THE_SCHEMA: [(&str, &str, &str); 30] = [
    ("replicas: 3", "additional properties 'replicas'", "not allowed"),
    ("replicaCount: two", "'/replicaCount'", "want integer"),
    ("replicaCount: -1", "'/replicaCount'", "want 0"),
    ("replicaCount: 1.5", "'/replicaCount'", "want integer"),
    ("image: {name: windlass}", "'/image': additional properties 'name'", "not allowed"),
    ("image: {pullPolicy: Sometimes}", "'/image/pullPolicy'", "one of 'Always', 'IfNotPresent', 'Never'"),
    ("image: {digest: 'sha256:abc'}", "'/image/digest'", "sha256:[0-9a-f]{64}"),
    ("image: {tag: 1.10}", "'/image/tag'", "want string"),
    ("image: {repository: ''}", "'/image/repository'", "minLength"),
    ("imagePullSecrets: [pull]", "'/imagePullSecrets/0'", "want object"),
    ("watchNamespaces: shop", "'/watchNamespaces'", "want array"),
    ("watchNamespaces: [Shop]", "'/watchNamespaces/0'", "[a-z0-9]"),
    ("watchNamespaces: [shop, shop]", "'/watchNamespaces'", "items at 0 and 1 are equal"),
    ("rbac: {create: 'yes'}", "'/rbac/create'", "want boolean"),
    ("crds: {keep: 1}", "'/crds/keep'", "want boolean"),
    ("redis: {url: 'http://redis'}", "'/redis/url'", "rediss?"),
    ("redis: {existingSecret: Redis_Secret}", "'/redis/existingSecret'", "[a-z0-9]"),
    ("redis: {maxMemoryMebibytes: 1}", "'/redis/maxMemoryMebibytes'", "want 16"),
    ("eventLog: {url: 'mysql://history'}", "'/eventLog/url'", "postgres|postgresql|sqlite"),
    ("logging: {format: xml}", "'/logging/format'", "one of 'json', 'text'"),
    ("resources: {limit: {cpu: 1}}", "'/resources': additional properties 'limit'", "not allowed"),
    ("podLabels: {number: 1}", "'/podLabels/number'", "want string"),
    ("topologySpreadConstraints: [{maxSkew: 1}]", "'/topologySpreadConstraints/0'", "'topologyKey'"),
    ("extraArgs: --verbose", "'/extraArgs'", "want array"),
    ("service: {port: 70000}", "'/service/port'", "want 65,535"),
    ("service: {type: External}", "'/service/type'", "one of 'ClusterIP', 'NodePort', 'LoadBalancer'"),
    ("podDisruptionBudget: {minAvailable: most}", "'/podDisruptionBudget/minAvailable'", "[0-9]+%"),
    ("serviceMonitor: {interval: 30}", "'/serviceMonitor/interval'", "want string"),
    ("prometheusRule: {thresholds: {retryingRatio: 25}}", "'/prometheusRule/thresholds/retryingRatio'", "want 1"),
    ("prometheusRule: {disabled: [NoLeader]}", "'/prometheusRule/disabled/0'", "'WindlassNoLeader'"),
];

/// What takes two values to be wrong, or a sentence to be told.
const BY_THE_CHART: [(&str, &str); 34] = [
    ("redis: {url: 'redis://a:6379', existingSecret: b}", "give one of them"),
    ("redis: {url: 'redis://ada:hunter2@a:6379'}", "name it in redis.existingSecret"),
    ("redis: {url: 'redis://:hunter2/and@a:6379'}", "name it in redis.existingSecret"),
    ("redis: {url: 'redis://a:6379/?pass=hunter2'}", "name it in redis.existingSecret"),
    ("redis: {url: 'redis://ada:hunter2@'}", "name it in redis.existingSecret"),
    ("redis: {url: 'redis://'}", "write redis://HOST:PORT"),
    ("redis: {url: 'redis://:6379'}", "write redis://HOST:PORT"),
    ("redis: {url: 'redis://a:6379,b:6379'}", "for several redis+sentinel://"),
    ("redis: {url: 'rediss+sentinel://a:26379'}", "which master"),
    ("redis: {url: 'rediss+sentinel://a:26379/'}", "which master"),
    ("redis: {url: 'redis+sentinel:///main'}", "names no Sentinel"),
    ("redis: {url: 'redis+cluster://'}", "names no node"),
    ("redis: {url: 'redis+cluster://a:6379,'}", "names no node"),
    ("eventLog: {url: 'postgres://a/b', existingSecret: c}", "give one of them"),
    ("eventLog: {url: 'postgres://ada:hunter2@a/b'}", "name it in eventLog.existingSecret"),
    ("eventLog: {url: 'postgres://a/b?user=ada&password=hunter2'}", "name it in eventLog.existingSecret"),
    ("eventLog: {url: 'postgres://a/b?sslmode=require&password=hunter2'}", "name it in eventLog.existingSecret"),
    ("eventLog: {url: 'postgres:///b'}", "write postgres://HOST:PORT/DATABASE"),
    ("{eventLog: {url: 'sqlite:///a/b'}, replicaCount: 2}", "use PostgreSQL, or replicaCount 1"),
    ("eventLog: {url: 'sqlite:///a/b'}", "give a volume in extraVolumes"),
    ("{eventLog: {url: 'sqlite:///b.db'}, extraVolumeMounts: [{name: a, mountPath: /a}]}", "names no file on a volume"),
    (
        "{eventLog: {url: 'sqlite://a/b.db'}, extraVolumeMounts: [{name: a, mountPath: /a}]}",
        "names no file on a volume",
    ),
    (
        "{eventLog: {url: 'sqlite:///a/../b'}, extraVolumeMounts: [{name: a, mountPath: /a}]}",
        "names no file on a volume",
    ),
    ("{eventLog: {url: 'sqlite:///a/'}, extraVolumeMounts: [{name: a, mountPath: /a/}]}", "names no file on a volume"),
    ("serviceAccount: {create: false}", "say in serviceAccount.name"),
    ("podDisruptionBudget: {maxUnavailable: 1}", "set one of them to null"),
    ("{replicaCount: 2, podDisruptionBudget: {minAvailable: 2}}", "leave at least one out"),
    ("{replicaCount: 3, podDisruptionBudget: {minAvailable: 67%}}", "leave at least one out"),
    ("{replicaCount: 2, podDisruptionBudget: {minAvailable: null, maxUnavailable: 0%}}", "let at least one be away"),
    ("{podDisruptionBudget: {minAvailable: null}}", "say podDisruptionBudget.minAvailable or"),
    ("commonLabels: {helm.sh/chart: mine}", "choose another label"),
    ("{watchNamespaces: [shop], helmTest: {namespace: mail}}", "not among watchNamespaces"),
    ("commonLabels: {app.kubernetes.io/name: mine}", "choose another label"),
    ("podLabels: {app.kubernetes.io/component: mine}", "choose another label"),
];

#[tokio::test(flavor = "multi_thread")]
async fn the_schema_names_the_field_and_what_is_allowed() {
    let cluster = cluster().await;
    for (values, field, allowed) in BY_THE_SCHEMA {
        let said = render(cluster, "here", values).await.expect_err(values);
        assert!(said.contains("values don't meet the specifications of the schema"), "{values}: {said}");
        assert!(said.contains(field) && said.contains(allowed), "{values}: {said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_chart_says_what_to_do_and_repeats_no_password() {
    let cluster = cluster().await;
    for (values, advice) in BY_THE_CHART {
        let said = render(cluster, "here", values).await.expect_err(values);
        assert!(said.contains(advice), "{values}: {said}");
        assert!(!said.contains("hunter2"), "{values}: {said}");
    }
}

/// What only looks like it: the chart is no stricter than what it installs.
#[tokio::test(flavor = "multi_thread")]
async fn addresses_and_budgets_that_work_are_taken() {
    let cluster = cluster().await;
    let volume = "extraVolumes: [{name: a, emptyDir: {}}], extraVolumeMounts: [{name: a, mountPath: /a/}]";
    let urls = [
        "redis://a",
        "redis://a:6379/1",
        "rediss://a.b_c-d.svc:6379/#insecure",
        "redis://[fd00::1]:6379",
        "redis+cluster://a:6379,b",
        "redis+cluster://a:6379/",
        "rediss+sentinel://a,[fd00::1]:26379/my.master",
    ];
    let mut all: Vec<String> = urls.map(|url| format!("redis: {{url: '{url}'}}")).to_vec();
    all.extend(
        ["postgres://a", "postgresql://a:5432/b?sslmode=require"].map(|url| format!("eventLog: {{url: '{url}'}}")),
    );
    let files = ["sqlite:///a/b.db", "sqlite:///a/b/c.db?mode=rwc"];
    all.extend(files.map(|url| format!("{{eventLog: {{url: '{url}'}}, {volume}}}")));
    let budgets = ["{minAvailable: 1}", "{minAvailable: 50%}", "{minAvailable: null, maxUnavailable: 1%}"];
    all.extend(budgets.map(|budget| format!("{{replicaCount: 2, podDisruptionBudget: {budget}}}")));
    for values in all {
        render(cluster, "here", &values).await.unwrap_or_else(|said| panic!("{values}: {said}"));
    }
}
