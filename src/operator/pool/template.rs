//! The pods of a pool: the user's template, and what Windlass adds to it.
//!
//! Pure: a spec and its surroundings in, a pod template out. What the user wrote
//! is kept as it is, also what this build does not know; whether it is any good
//! is the API server's judgement.

use serde_json::{Value, json};

use super::environment::{Identity, add_variables, variables};
use crate::crd::{Entrypoint, ExecHandler, HandlerType, WorkerPoolSpec};
use crate::operator::PullPolicy;

/// The container that claims tasks for an HTTP handler.
pub(crate) const WORKER: &str = "windlass-worker";
/// The init container that brings the worker to an Exec handler.
const INSTALLER: &str = "windlass-install";
/// The volume on which it does.
const VOLUME: &str = "windlass";
/// Where that volume is mounted, and what is on it.
const FOLDER: &str = "/windlass";
const PROGRAM: &str = "/windlass/windlass";
/// Room for the program.
const VOLUME_SIZE: &str = "512Mi";
/// The user of what Windlass puts into a pod: nobody in particular, and not root.
const USER: i64 = 65_532;
/// Where probes and metrics are served, unless the template says that the port is taken.
const PORT: u16 = 9464;
/// The name of that port, for whoever scrapes it.
const PORT_NAME: &str = "windlass";
/// What a pod gets to end beyond its time to drain: handlers are killed, tasks
/// given back, and behind HTTP the application ends after the worker.
const MARGIN_SECONDS: i64 = 15;

/// What a template depends on besides the spec.
#[derive(Debug, Clone)]
pub(super) struct Surroundings<'a> {
    pub(super) worker_image: &'a str,
    pub(super) pull: Option<PullPolicy>,
    pub(super) identity: Identity<'a>,
}

/// A pod template, and what is to be said about it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Built {
    pub(super) template: Value,
    /// What of the user's template has no effect.
    pub(super) remarks: Vec<String>,
}

/// Why no template can be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum TemplateProblem {
    #[error(
        "template.spec: the {kind} name {name:?} belongs to Windlass in every pod of a pool: give yours another one"
    )]
    NameTaken { kind: &'static str, name: &'static str },
    #[error("template: {0}")]
    Unreadable(String),
    #[error("handler.exec.container: template.spec.containers has no container {0:?}")]
    NoContainer(String),
}

/// The pod template of a pool.
pub(super) fn build(spec: &WorkerPoolSpec, around: &Surroundings<'_>) -> Result<Built, TemplateProblem> {
    spec.template.check().map_err(TemplateProblem::Unreadable)?;
    let mut template = serde_json::to_value(&spec.template).expect("invariant: a template is plain data");
    let mut remarks = Vec::new();
    let port = free_port(spec);
    refuse_taken_names(&template["spec"])?;
    let pod = &mut template["spec"];
    match spec.handler.type_ {
        HandlerType::Http => beside_applications(pod, spec, around, port),
        HandlerType::Exec => {
            let default = ExecHandler { command: Vec::new(), container: None, entrypoint: Entrypoint::Replace };
            let exec = spec.handler.exec.as_ref().unwrap_or(&default);
            into_container(pod, spec, exec, around, port, &mut remarks)?;
        }
        HandlerType::Sdk => {
            for container in list(pod, "containers") {
                let name = container["name"].as_str().unwrap_or_default().to_owned();
                add_variables(container, variables(&around.identity, &name));
            }
        }
    }
    if let Some(worker) = &spec.worker {
        add_pull_secrets(pod, worker.image_pull_secrets.iter().map(|secret| secret.name.as_str()));
    }
    give_time_to_drain(pod, i64::from(spec.drain_timeout_seconds) + MARGIN_SECONDS);
    Ok(Built { template, remarks })
}

/// HTTP: the worker is the only main container, so that it is told to end first
/// and the applications, which are sidecars, go after it.
fn beside_applications(pod: &mut Value, spec: &WorkerPoolSpec, around: &Surroundings<'_>, port: u16) {
    let applications = list(pod, "containers").drain(..).map(as_sidecar).collect::<Vec<_>>();
    list(pod, "initContainers").extend(applications);
    let (app_port, path) = spec.handler.http.as_ref().map_or((80, "/"), |http| (http.port, http.path.as_str()));
    let mut arguments = worker_arguments(spec, port);
    arguments.extend(["--http".to_owned(), format!("http://127.0.0.1:{app_port}{path}")]);
    let mut variables = variables(&around.identity, WORKER);
    variables.push(json!({ "name": "WINDLASS_LOG_FORMAT", "value": "json" }));
    let mut worker = json!({
        "name": WORKER,
        "image": around.worker_image,
        "args": escaped(arguments),
        "env": variables,
        "securityContext": restricted(),
        "resources": resources(spec),
    });
    add_pull_policy(&mut worker, around);
    add_probes(&mut worker, port);
    *list(pod, "containers") = vec![worker];
}

fn as_sidecar(mut container: Value) -> Value {
    container["restartPolicy"] = json!("Always");
    container
}

/// Exec: the program comes on a volume, and starts in the user's container.
fn into_container(
    pod: &mut Value,
    spec: &WorkerPoolSpec,
    exec: &ExecHandler,
    around: &Surroundings<'_>,
    port: u16,
    remarks: &mut Vec<String>,
) -> Result<(), TemplateProblem> {
    let mut installer = json!({
        "name": INSTALLER,
        "image": around.worker_image,
        "args": ["install", PROGRAM],
        "securityContext": restricted(),
        "resources": resources(spec),
        "volumeMounts": [{ "name": VOLUME, "mountPath": FOLDER }],
    });
    add_pull_policy(&mut installer, around);
    list(pod, "initContainers").push(installer);
    list(pod, "volumes").push(json!({ "name": VOLUME, "emptyDir": { "sizeLimit": VOLUME_SIZE } }));

    let wanted = exec.container.as_deref();
    let found = list(pod, "containers").iter_mut().find(|of| wanted.is_none_or(|name| of["name"] == name));
    let container = found.ok_or_else(|| TemplateProblem::NoContainer(wanted.unwrap_or_default().to_owned()))?;
    let name = container["name"].as_str().unwrap_or_default().to_owned();
    let mut command = vec![PROGRAM.to_owned()];
    command.extend(worker_arguments(spec, port));
    command.extend(["--exec".to_owned(), "--".to_owned()]);
    command.extend(exec.command.iter().cloned());
    let command = escaped(command);
    match exec.entrypoint {
        Entrypoint::Replace => {
            if container.get("command").is_some() || container.get("args").is_some() {
                remarks.push(format!(
                    "command and args of container {name:?} have no effect: handler.exec.command is what runs; set \
                     handler.exec.entrypoint to Keep if they should start it"
                ));
            }
            container["command"] = command.into();
            container.as_object_mut().map(|fields| fields.remove("args"));
        }
        // What the entrypoint is given comes first, as its options would.
        Entrypoint::Keep => list(container, "args").extend(command),
    }
    list(container, "volumeMounts").push(json!({ "name": VOLUME, "mountPath": FOLDER, "readOnly": true }));
    add_variables(container, variables(&around.identity, &name));
    add_probes(container, port);
    Ok(())
}

/// Says when to pull the worker's image, unless Kubernetes does the same by itself: no pod is replaced for nothing.
fn add_pull_policy(container: &mut Value, around: &Surroundings<'_>) {
    let default = PullPolicy::by_default(around.worker_image);
    if let Some(pull) = around.pull.filter(|pull| *pull != default) {
        container["imagePullPolicy"] = pull.as_str().into();
    }
}

/// The arguments that every handler has in common.
fn worker_arguments(spec: &WorkerPoolSpec, port: u16) -> Vec<String> {
    let mut arguments = vec![
        "worker".to_owned(),
        "--concurrency".to_owned(),
        spec.concurrency.to_string(),
        "--drain-timeout".to_owned(),
        format!("{}s", spec.drain_timeout_seconds),
        "--listen".to_owned(),
        format!("0.0.0.0:{port}"),
    ];
    if !spec.task_types.is_empty() {
        arguments.extend(["--types".to_owned(), spec.task_types.join(",")]);
    }
    arguments
}

/// A `$` that reaches the program as it was written: Kubernetes takes two for one.
fn escaped(words: Vec<String>) -> Vec<Value> {
    words.into_iter().map(|word| Value::String(word.replace('$', "$$"))).collect()
}

/// Probes and a port by which to find them; a container that has probes keeps its own.
fn add_probes(container: &mut Value, port: u16) {
    let probe = |path: &str, every: u32, failures: u32| {
        json!({
            "httpGet": { "path": path, "port": port },
            "periodSeconds": every, "timeoutSeconds": 5, "failureThreshold": failures,
        })
    };
    for (name, probe) in [("livenessProbe", probe("/livez", 10, 3)), ("readinessProbe", probe("/readyz", 3, 2))] {
        if container.get(name).is_none() {
            container[name] = probe;
        }
    }
    list(container, "ports").push(json!({ "name": PORT_NAME, "containerPort": port, "protocol": "TCP" }));
}

/// The first port from the usual one on that nothing in the pod says to use.
fn free_port(spec: &WorkerPoolSpec) -> u16 {
    let pod = serde_json::to_value(&spec.template.spec).expect("invariant: a template is plain data");
    let containers = ["containers", "initContainers"].into_iter().filter_map(|of| pod[of].as_array()).flatten();
    let ports = containers.filter_map(|container| container["ports"].as_array()).flatten();
    let mut taken: Vec<u64> = ports.filter_map(|port| port["containerPort"].as_u64()).collect();
    taken.extend(spec.handler.http.as_ref().map(|http| u64::from(http.port)));
    (PORT..).find(|port| !taken.contains(&u64::from(*port))).unwrap_or(PORT)
}

fn give_time_to_drain(pod: &mut Value, seconds: i64) {
    // Whoever gave more time has a reason; less would cut a drain short.
    let given = pod["terminationGracePeriodSeconds"].as_i64().unwrap_or(0);
    pod["terminationGracePeriodSeconds"] = given.max(seconds).into();
}

fn add_pull_secrets<'a>(pod: &mut Value, names: impl Iterator<Item = &'a str>) {
    for name in names {
        let all = list(pod, "imagePullSecrets");
        if all.iter().all(|known| known["name"] != name) {
            all.push(json!({ "name": name }));
        }
    }
}

/// What Pod Security calls restricted.
fn restricted() -> Value {
    json!({
        "runAsNonRoot": true,
        "runAsUser": USER,
        "allowPrivilegeEscalation": false,
        "readOnlyRootFilesystem": true,
        "capabilities": { "drop": ["ALL"] },
        "seccompProfile": { "type": "RuntimeDefault" },
    })
}

fn resources(spec: &WorkerPoolSpec) -> Value {
    match spec.worker.as_ref().and_then(|worker| worker.resources.as_ref()) {
        Some(given) => serde_json::to_value(given).expect("invariant: resources are plain data"),
        None => json!({ "requests": { "cpu": "10m", "memory": "32Mi" } }),
    }
}

fn refuse_taken_names(pod: &Value) -> Result<(), TemplateProblem> {
    let uses = |of: &str, name: &str| {
        pod[of].as_array().is_some_and(|all| all.iter().any(|one| one["name"].as_str() == Some(name)))
    };
    for name in [WORKER, INSTALLER] {
        if uses("containers", name) || uses("initContainers", name) {
            return Err(TemplateProblem::NameTaken { kind: "container", name });
        }
    }
    if uses("volumes", VOLUME) {
        return Err(TemplateProblem::NameTaken { kind: "volume", name: VOLUME });
    }
    Ok(())
}

/// A list in an object, made where there is none. A template in which another kind
/// of value stands in its place was refused before.
fn list<'a>(object: &'a mut Value, field: &str) -> &'a mut Vec<Value> {
    if !object[field].is_array() {
        object[field] = json!([]);
    }
    object[field].as_array_mut().expect("invariant: it was just made one")
}

#[cfg(test)]
mod tests {
    use super::super::environment::Access;
    use super::*;
    use k8s_openapi::api::core::v1 as core;

    fn spec(handler: Value, pod: Value) -> WorkerPoolSpec {
        let whole = json!({
            "queueRef": {"name": "emails"}, "handler": handler, "taskTypes": ["send", "render"], "concurrency": 8,
            "template": {"metadata": {"labels": {"team": "mail"}}, "spec": pod},
        });
        serde_json::from_value(whole).expect("a spec")
    }

    fn built(spec: &WorkerPoolSpec) -> Result<Built, TemplateProblem> {
        built_with(spec, None)
    }

    fn built_with(spec: &WorkerPoolSpec, pull: Option<PullPolicy>) -> Result<Built, TemplateProblem> {
        let queue = "shop/emails".parse().expect("valid");
        let access = Access::to_default("redis://redis:6379", None);
        let identity = Identity {
            queue: &queue,
            pool_uid: "pool-uid",
            access: &access,
            task_types: &spec.task_types,
            concurrency: spec.concurrency,
        };
        let built = build(spec, &Surroundings { worker_image: "windlass:1", pull, identity })?;
        serde_json::from_value::<core::PodTemplateSpec>(built.template.clone()).expect("Kubernetes can read it");
        Ok(built)
    }

    fn made(handler: Value, pod: Value) -> Value {
        built(&spec(handler, pod)).expect("built").template
    }

    fn names(list: &Value) -> Vec<&str> {
        list.as_array().map(|all| all.iter().filter_map(|one| one["name"].as_str()).collect()).unwrap_or_default()
    }

    fn variable<'a>(container: &'a Value, name: &str) -> &'a Value {
        let all = container["env"].as_array().expect("an environment");
        all.iter().find(|one| one["name"] == name).unwrap_or(&Value::Null)
    }

    const HTTP: fn() -> Value = || json!({"type": "HTTP", "http": {"port": 8080, "path": "/tasks"}});

    /// closes: a preStop drain that fires on a failed liveness probe leaves a zombie
    #[test]
    fn behind_http_the_worker_is_the_only_main_container_and_applications_are_sidecars_after_the_users_own_init() {
        let pod = json!({
            "initContainers": [{"name": "migrate", "image": "m"}],
            "containers": [{"name": "app", "image": "a", "newField": {"x": 1}}, {"name": "cache", "image": "c"}],
            "serviceAccountName": "mailer", "someday": [1, 2],
        });
        let template = made(HTTP(), pod);
        let pod = &template["spec"];
        assert_eq!(names(&pod["containers"]), [WORKER]);
        assert_eq!(names(&pod["initContainers"]), ["migrate", "app", "cache"]);
        assert!(pod["initContainers"][0].get("restartPolicy").is_none());
        assert_eq!(pod["initContainers"][1]["restartPolicy"], "Always");
        assert_eq!(pod["initContainers"][1]["newField"], json!({"x": 1}), "what is not known is kept");
        assert_eq!((&pod["someday"], &pod["serviceAccountName"]), (&json!([1, 2]), &json!("mailer")));
        assert!(pod["initContainers"][1].get("env").is_none(), "the application gets no credential");
        let worker = &pod["containers"][0];
        let arguments: Vec<_> = worker["args"].as_array().expect("a list").iter().filter_map(Value::as_str).collect();
        assert_eq!(arguments[0], "worker");
        assert!(arguments.ends_with(&["--http", "http://127.0.0.1:8080/tasks"]), "{arguments:?}");
        assert!(arguments.windows(2).any(|pair| pair == ["--types", "send,render"]), "{arguments:?}");
        assert_eq!(worker["livenessProbe"]["httpGet"]["port"], PORT);
        assert_eq!(pod["terminationGracePeriodSeconds"], 75);
        assert_eq!(variable(worker, "WINDLASS_POD_UID")["valueFrom"]["fieldRef"]["fieldPath"], "metadata.uid");
        assert_eq!(variable(worker, "WINDLASS_CONTAINER")["value"], WORKER);
    }

    #[test]
    fn exec_starts_the_worker_in_the_users_container_from_a_volume() {
        let handler =
            json!({"type": "Exec", "exec": {"command": ["sh", "-c", "echo $HOME $(date)"], "container": "app"}});
        let pod = json!({
            "initContainers": [{"name": "first", "image": "i"}],
            "containers": [
                {"name": "other", "image": "o"},
                {"name": "app", "image": "a", "command": ["serve"], "args": ["now"], "livenessProbe": {"tcpSocket": {"port": 1}}},
            ],
            "terminationGracePeriodSeconds": 600,
        });
        let built = built(&spec(handler, pod)).expect("built");
        let pod = &built.template["spec"];
        assert_eq!(names(&pod["initContainers"]), ["first", INSTALLER]);
        assert_eq!(names(&pod["volumes"]), [VOLUME]);
        let app = &pod["containers"][1];
        let command: Vec<_> = app["command"].as_array().expect("a list").iter().filter_map(Value::as_str).collect();
        assert_eq!(&command[..2], [PROGRAM, "worker"]);
        assert_eq!(command.last(), Some(&"echo $$HOME $$(date)"), "Kubernetes gives back what was written");
        assert!(app.get("args").is_none());
        assert!(built.remarks[0].contains("entrypoint to Keep"), "{:?}", built.remarks);
        assert_eq!(app["livenessProbe"], json!({"tcpSocket": {"port": 1}}), "its own probe stays");
        assert_eq!(app["readinessProbe"]["httpGet"]["path"], "/readyz");
        assert!(pod["containers"][0].get("env").is_none(), "the other container is left alone");
        assert_eq!(pod["terminationGracePeriodSeconds"], 600, "more time than needed is kept");
    }

    #[test]
    fn an_entrypoint_that_is_kept_is_given_the_worker_as_its_arguments() {
        let handler = json!({"type": "Exec", "exec": {"command": ["./run"], "entrypoint": "Keep"}});
        let template =
            made(handler, json!({"containers": [{"name": "app", "image": "a", "command": ["tini"], "args": ["--"]}]}));
        let app = &template["spec"]["containers"][0];
        assert_eq!(app["command"], json!(["tini"]));
        let arguments: Vec<_> = app["args"].as_array().expect("a list").iter().filter_map(Value::as_str).collect();
        assert_eq!((&arguments[..3], arguments.last()), (&["--", PROGRAM, "worker"][..], Some(&"./run")));
    }

    #[test]
    fn an_sdk_gets_its_environment_and_nothing_else() {
        let given = json!({"containers": [{"name": "app", "image": "a", "command": ["serve"]}]});
        let template = made(json!({"type": "SDK"}), given);
        let pod = &template["spec"];
        assert_eq!(names(&pod["containers"]), ["app"]);
        assert!(pod.get("initContainers").is_none() && pod["containers"][0].get("livenessProbe").is_none());
        assert_eq!(variable(&pod["containers"][0], "WINDLASS_TASK_TYPES")["value"], "send,render");
        assert_eq!(variable(&pod["containers"][0], "WINDLASS_CONTAINER")["value"], "app");
    }

    #[test]
    fn what_windlass_adds_passes_as_restricted() {
        let exec = json!({"type": "Exec", "exec": {"command": ["x"]}});
        let pod = || json!({"containers": [{"name": "app", "image": "a"}]});
        let (http, exec) = (made(HTTP(), pod()), made(exec, pod()));
        for ours in [&http["spec"]["containers"][0], &exec["spec"]["initContainers"][0]] {
            let context = &ours["securityContext"];
            assert_eq!((&context["runAsNonRoot"], &context["allowPrivilegeEscalation"]), (&json!(true), &json!(false)));
            assert_eq!(context["capabilities"]["drop"], json!(["ALL"]));
            assert_eq!(context["seccompProfile"]["type"], "RuntimeDefault");
            assert!(context["runAsUser"].as_i64().is_some_and(|user| user > 0));
        }
    }

    #[test]
    fn a_port_that_the_template_uses_is_left_to_it() {
        let template =
            made(HTTP(), json!({"containers": [{"name": "app", "image": "a", "ports": [{"containerPort": PORT}]}]}));
        assert_eq!(template["spec"]["containers"][0]["readinessProbe"]["httpGet"]["port"], PORT + 1);
    }

    #[test]
    fn names_that_are_taken_are_refused_with_a_sentence() {
        let problem = |pod: Value| built(&spec(HTTP(), pod)).expect_err("refused").to_string();
        let container = problem(json!({"containers": [{"name": WORKER, "image": "a"}]}));
        assert!(container.contains("give yours another one"), "{container}");
        let volume =
            json!({"containers": [{"name": "app", "image": "a"}], "volumes": [{"name": VOLUME, "emptyDir": {}}]});
        assert!(problem(volume).contains("volume name \"windlass\""));
        let no_list = json!({"containers": [{"name": "app", "image": "a"}], "initContainers": "migrate"});
        assert!(problem(no_list).starts_with("template: "));
    }

    #[test]
    fn when_to_pull_is_said_of_what_windlass_adds_and_only_where_kubernetes_would_do_otherwise() {
        let exec = || json!({"type": "Exec", "exec": {"command": ["x"]}});
        for (handler, ours) in [(HTTP(), "containers"), (exec(), "initContainers")] {
            let spec = spec(handler, json!({"containers": [{"name": "app", "image": "a"}]}));
            let with = |pull| built_with(&spec, pull).expect("built").template;
            let always = with(Some(PullPolicy::Always));
            assert_eq!(with(None), with(Some(PullPolicy::IfNotPresent)), "no pod is replaced for nothing");
            assert_eq!(always["spec"][ours][0]["imagePullPolicy"], "Always");
            assert_eq!(always.to_string().matches("imagePullPolicy").count(), 1, "the owner says it of the others");
        }
    }

    #[test]
    fn settings_of_the_worker_reach_its_container() {
        let mut spec = spec(
            HTTP(),
            json!({"containers": [{"name": "app", "image": "a"}], "imagePullSecrets": [{"name": "mine"}]}),
        );
        spec.worker = serde_json::from_value(json!({
            "resources": {"limits": {"memory": "64Mi"}}, "imagePullSecrets": [{"name": "mine"}, {"name": "ours"}],
        }))
        .expect("settings");
        let template = built(&spec).expect("built").template;
        assert_eq!(template["spec"]["containers"][0]["resources"], json!({"limits": {"memory": "64Mi"}}));
        assert_eq!(names(&template["spec"]["imagePullSecrets"]), ["mine", "ours"]);
    }
}
