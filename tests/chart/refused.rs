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
const BY_THE_CHART: [(&str, &str); 11] = [
    ("redis: {url: 'redis://a:6379', existingSecret: b}", "give one of them"),
    ("redis: {url: 'redis://ada:hunter2@a:6379'}", "name it in redis.existingSecret"),
    ("eventLog: {url: 'postgres://a/b', existingSecret: c}", "give one of them"),
    ("eventLog: {url: 'postgres://ada:hunter2@a/b'}", "name it in eventLog.existingSecret"),
    ("{eventLog: {url: 'sqlite:///a/b'}, replicaCount: 2}", "use PostgreSQL, or replicaCount 1"),
    ("eventLog: {url: 'sqlite:///a/b'}", "give a volume in extraVolumes"),
    ("serviceAccount: {create: false}", "say in serviceAccount.name"),
    ("podDisruptionBudget: {maxUnavailable: 1}", "set one of them to null"),
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
