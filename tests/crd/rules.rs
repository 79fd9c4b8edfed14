//! Each rule across fields is seen to refuse and to accept.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use windlass::crd::Kind;
use windlass::crd::check::check;

/// A TaskQueue with that spec.
fn queue(spec: Value) -> Value {
    json!({"apiVersion": "windlass.dev/v1alpha1", "kind": "TaskQueue", "metadata": {"name": "emails"}, "spec": spec})
}

/// A WorkerPool whose spec has these fields besides what it must have.
fn pool(fields: Value) -> Value {
    let mut spec = json!({
        "queueRef": {"name": "emails"},
        "handler": {"type": "HTTP", "http": {"port": 8080}},
        "template": {"spec": {"containers": [{"name": "app", "image": "app:1"}]}},
    });
    for (name, value) in fields.as_object().expect("fields") {
        spec[name] = value.clone();
    }
    json!({"apiVersion": "windlass.dev/v1alpha1", "kind": "WorkerPool", "metadata": {"name": "mailers"}, "spec": spec})
}

/// One rule: what it says, an object that breaks it, one that keeps it, and what they replace.
struct Case {
    kind: Kind,
    says: &'static str,
    at: &'static str,
    refused: Value,
    accepted: Value,
    old: Option<Value>,
}

fn queue_case(says: &'static str, at: &'static str, refused: Value, accepted: Value) -> Case {
    Case { kind: Kind::TaskQueue, says, at, refused: queue(refused), accepted: queue(accepted), old: None }
}

fn pool_case(says: &'static str, at: &'static str, refused: Value, accepted: Value) -> Case {
    Case { kind: Kind::WorkerPool, says, at, refused: pool(refused), accepted: pool(accepted), old: None }
}

fn redis(redis: Value) -> Value {
    json!({"broker": {"type": "Redis", "redis": redis}})
}

fn backoff(backoff: Value) -> Value {
    json!({"retry": {"backoff": backoff}})
}

fn named(mut object: Value, name: &str) -> Value {
    object["metadata"]["name"] = name.into();
    object
}

fn broker_cases() -> Vec<Case> {
    let secret = json!({"name": "redis", "key": "url"});
    vec![
        queue_case(
            "redis belongs to the type Redis",
            "spec.broker",
            json!({"broker": {"type": "Redis"}}),
            redis(json!({"url": "redis://cache:6379"})),
        ),
        queue_case("exactly one way", "spec.broker.redis", redis(json!({})), redis(json!({"urlSecretRef": secret}))),
        queue_case(
            "exactly one way",
            "spec.broker.redis",
            redis(json!({"url": "redis://cache:6379", "urlSecretRef": secret})),
            redis(json!({"url": "redis://cache:6379/2"})),
        ),
        queue_case(
            "holds no user or password",
            "spec.broker.redis.url",
            redis(json!({"url": "redis://me:hunter2@cache:6379"})),
            redis(json!({"url": "rediss://cache:6379"})),
        ),
        queue_case(
            "sentinel belongs to the topology Sentinel",
            "spec.broker.redis",
            redis(json!({"url": "redis://a:1,b:2", "topology": "Sentinel"})),
            redis(json!({"url": "redis://a:1,b:2", "topology": "Sentinel", "sentinel": {"masterName": "main"}})),
        ),
        queue_case(
            "sentinel belongs to the topology Sentinel",
            "spec.broker.redis",
            redis(json!({"url": "redis://a:1", "topology": "Cluster", "sentinel": {"masterName": "main"}})),
            redis(json!({"url": "redis://a:1", "topology": "Cluster"})),
        ),
        queue_case(
            "tls needs a URL that begins with rediss://",
            "spec.broker.redis",
            redis(json!({"url": "redis://a:1", "tls": {"caSecretRef": secret}})),
            redis(json!({"url": "rediss://a:1", "tls": {"caSecretRef": secret}})),
        ),
        queue_case("set broker as well", "spec.keys", json!({"keys": {"task": "jobs"}}), {
            let mut both = redis(json!({"url": "redis://a:1"}));
            both["keys"] = json!({"task": "jobs"});
            both
        }),
        queue_case(
            "three different streams",
            "spec.keys",
            {
                let mut both = redis(json!({"url": "redis://a:1"}));
                both["keys"] = json!({"task": "jobs", "result": "jobs"});
                both
            },
            {
                let mut both = redis(json!({"url": "redis://a:1"}));
                both["keys"] = json!({"task": "jobs", "result": "results", "deadLetter": "dead", "group": "jobs"});
                both
            },
        ),
        adopting("task", "windlass:{shop/emails}:task", "windlass"),
        adopting("result", "windlass:{shop/emails}:result", "results:windlass:"),
        adopting("deadLetter", "windlass:adopted:jobs", "{windlass:jobs}:dead"),
    ]
}

/// No stream that may be another queue's own is adopted.
fn adopting(stream: &str, refused: &str, accepted: &str) -> Case {
    let with = |name: &str| {
        let mut both = redis(json!({"url": "redis://a:1"}));
        both["keys"] = json!({stream: name});
        both
    };
    queue_case("names that begin with windlass: are queues' own", "spec.keys", with(refused), with(accepted))
}

fn time_cases() -> Vec<Case> {
    vec![
        queue_case(
            "at least three times heartbeatPeriodSeconds",
            "spec.visibilityTimeoutSeconds",
            json!({"visibilityTimeoutSeconds": 89}),
            json!({"visibilityTimeoutSeconds": 90}),
        ),
        queue_case(
            "at least twice heartbeatPeriodSeconds",
            "spec.reclaim.workerLostAfterSeconds",
            json!({"reclaim": {"workerLostAfterSeconds": 59}}),
            json!({"reclaim": {"workerLostAfterSeconds": 2, "causes": ["VisibilityTimeout"]}}),
        ),
        queue_case(
            "delaysMilliseconds belongs to the strategy Schedule",
            "spec.retry.backoff",
            backoff(json!({"strategy": "Fixed", "baseMilliseconds": 1, "delaysMilliseconds": [1]})),
            backoff(json!({"strategy": "Schedule", "delaysMilliseconds": [60000, 300000, 900000]})),
        ),
        queue_case(
            "baseMilliseconds belongs to the strategies",
            "spec.retry.backoff",
            backoff(json!({"strategy": "Exponential"})),
            backoff(json!({"strategy": "Exponential", "baseMilliseconds": 1})),
        ),
        queue_case(
            "maxMilliseconds caps the strategies",
            "spec.retry.backoff",
            backoff(json!({"strategy": "Fixed", "baseMilliseconds": 1, "maxMilliseconds": 2})),
            backoff(json!({"strategy": "Quadratic", "baseMilliseconds": 1, "maxMilliseconds": 2})),
        ),
        queue_case(
            "milliseconds belongs to the jitter Additive",
            "spec.retry.backoff.jitter",
            backoff(json!({"strategy": "Fixed", "baseMilliseconds": 1, "jitter": {"kind": "Additive"}})),
            backoff(
                json!({"strategy": "Fixed", "baseMilliseconds": 1, "jitter": {"kind": "Additive", "milliseconds": 5}}),
            ),
        ),
        queue_case(
            "percent belongs to the jitters",
            "spec.retry.backoff.jitter",
            backoff(json!({"strategy": "Fixed", "baseMilliseconds": 1, "jitter": {"kind": "None", "percent": 5}})),
            backoff(json!({"strategy": "Fixed", "baseMilliseconds": 1, "jitter": {"kind": "Symmetric", "percent": 5}})),
        ),
        queue_case(
            "min ≤ default ≤ max",
            "spec.priority",
            json!({"priority": {"min": 0, "max": 3}}),
            json!({"priority": {"min": 0, "max": 3, "default": 3}}),
        ),
    ]
}

fn pool_cases() -> Vec<Case> {
    vec![
        pool_case(
            "http belongs to the type HTTP",
            "spec.handler",
            json!({"handler": {"type": "HTTP"}}),
            json!({"handler": {"type": "HTTP", "http": {"port": 1}}}),
        ),
        pool_case(
            "exec belongs to the type Exec",
            "spec.handler",
            json!({"handler": {"type": "SDK", "exec": {"command": ["true"]}}}),
            json!({"handler": {"type": "Exec", "exec": {"command": ["true"]}}}),
        ),
        pool_case(
            "sdk belongs to the type SDK",
            "spec.handler",
            json!({"handler": {"type": "HTTP", "http": {"port": 1}, "sdk": {}}}),
            json!({"handler": {"type": "SDK", "sdk": {}}}),
        ),
        pool_case(
            "must name a container",
            "spec.handler.exec.container",
            json!({"handler": {"type": "Exec", "exec": {"command": ["true"], "container": "other"}}}),
            json!({"handler": {"type": "Exec", "exec": {"command": ["true"], "container": "app"}}}),
        ),
        pool_case(
            "minReplicas must not be above maxReplicas",
            "spec.autoscaling",
            json!({"autoscaling": {"minReplicas": 3, "maxReplicas": 2}}),
            json!({"autoscaling": {"maxReplicas": 2}}),
        ),
    ]
}

fn name_cases() -> Vec<Case> {
    let (queue, pool) = (queue(json!({})), pool(json!({})));
    let case = |kind, says, object: &Value, bad: &str, good: &str| Case {
        kind,
        says,
        at: "",
        refused: named(object.clone(), bad),
        accepted: named(object.clone(), good),
        old: None,
    };
    vec![
        case(Kind::TaskQueue, "it becomes a part of keys", &queue, "a.b", &"x".repeat(63)),
        case(Kind::WorkerPool, "names of its pods", &pool, &"x".repeat(53), &"x".repeat(52)),
    ]
}

fn change_cases() -> Vec<Case> {
    let broker = redis(json!({"url": "redis://a:1"}));
    let keys = |task: &str| {
        let mut both = broker.clone();
        both["keys"] = json!({"task": task});
        both
    };
    let mut elsewhere = broker.clone();
    elsewhere["broker"]["redis"]["url"] = "redis://b:1".into();
    let change = |says, at, old: &Value, refused: Value| Case {
        kind: Kind::TaskQueue,
        says,
        at,
        refused: queue(refused),
        accepted: queue(old.clone()),
        old: Some(queue(old.clone())),
    };
    let scaled = |replicas: u32| json!({"replicas": replicas, "autoscaling": {"maxReplicas": 9}});
    vec![
        change("broker is immutable", "spec.broker", &broker, elsewhere),
        change("broker is immutable", "spec.broker", &broker, json!({})),
        change("broker is immutable", "spec.broker", &json!({}), broker.clone()),
        change("keys is immutable", "spec.keys", &keys("jobs"), keys("others")),
        change("keys is immutable", "spec.keys", &keys("jobs"), broker.clone()),
        Case {
            kind: Kind::WorkerPool,
            says: "replicas belongs to the autoscaler",
            at: "spec.replicas",
            refused: pool(scaled(2)),
            accepted: pool(json!({"replicas": 2})),
            old: Some(pool(scaled(1))),
        },
    ]
}

fn cases() -> Vec<Case> {
    [broker_cases(), time_cases(), pool_cases(), name_cases(), change_cases()].into_iter().flatten().collect()
}

#[test]
fn each_rule_refuses_with_its_sentence_at_its_field_and_accepts_what_keeps_it() {
    for Case { kind, says, at, refused, accepted, old } in cases() {
        let problems = check(kind, &refused, old.as_ref()).expect_err(says);
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(problems[0].sentence.contains(says), "{says}: {problems:?}");
        assert_eq!(problems[0].path.to_string(), at, "{problems:?}");
        check(kind, &accepted, old.as_ref()).unwrap_or_else(|problems| panic!("{says}: {problems:?}"));
    }
}

#[test]
fn no_rule_is_without_a_case() {
    fn messages(schema: &Value, found: &mut BTreeSet<String>) {
        match schema {
            Value::Object(fields) => {
                for rule in fields.get("x-kubernetes-validations").and_then(Value::as_array).into_iter().flatten() {
                    found.insert(rule["message"].as_str().expect("a sentence").to_owned());
                }
                fields.values().for_each(|below| messages(below, found));
            }
            Value::Array(items) => items.iter().for_each(|below| messages(below, found)),
            _ => {}
        }
    }
    let mut known = BTreeSet::new();
    Kind::ALL.into_iter().for_each(|kind| messages(kind.schema(), &mut known));
    let cases = cases();
    for sentence in &known {
        assert!(cases.iter().any(|case| sentence.contains(case.says)), "no case for: {sentence}");
    }
    assert!(known.len() >= 20, "{known:#?}");
}
