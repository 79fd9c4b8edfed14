//! The pods of a pool: only what Windlass itself reads is typed, the rest is kept as it is.

#![allow(unreachable_pub, reason = "the schema is derived from copies of the types inside functions")]

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1 as core;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The pods, as in a Deployment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodTemplate {
    /// Labels and annotations of the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "anything")]
    pub metadata: Option<Map<String, Value>>,
    /// What runs in a pod.
    pub spec: PodSpec,
}

/// What runs in a pod. Every field of a Kubernetes PodSpec is allowed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct PodSpec {
    /// The containers.
    #[schemars(length(min = 1, max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub containers: Vec<Container>,
    /// Everything else, as it came.
    #[serde(flatten)]
    #[schemars(skip)]
    pub rest: Map<String, Value>,
}

/// A container. Every field of a Kubernetes Container is allowed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct Container {
    /// Its name in the pod.
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// The image that it runs.
    #[schemars(length(min = 1, max = 1024))]
    pub image: String,
    /// Everything else, as it came.
    #[serde(flatten)]
    #[schemars(skip)]
    pub rest: Map<String, Value>,
}

/// What of a container can be run without one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalProcess {
    /// Program and arguments; empty where only the image knows.
    pub command: Vec<String>,
    /// Plain variables of its environment.
    pub environment: BTreeMap<String, String>,
    /// Variables whose values only a cluster knows.
    pub unknown_environment: Vec<String>,
    /// Other settings that only a cluster can keep.
    pub left_out: Vec<String>,
}

fn anything(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
}

impl PodTemplate {
    /// Whether Kubernetes could read it: the message says which value has the wrong type.
    pub fn check(&self) -> Result<(), String> {
        let whole = serde_json::to_value(self).map_err(|error| error.to_string())?;
        serde_json::from_value::<core::PodTemplateSpec>(whole).map(drop).map_err(|error| error.to_string())
    }
}

impl PodSpec {
    /// The container of that name, or the first.
    pub fn container(&self, name: Option<&str>) -> Option<&Container> {
        match name {
            Some(name) => self.containers.iter().find(|container| container.name == name),
            None => self.containers.first(),
        }
    }
}

impl Container {
    /// What of it can be run on this machine.
    pub fn local_process(&self) -> Result<LocalProcess, String> {
        /// Settings that mean something without a container, or that are the image's business.
        const UNDERSTOOD: [&str; 4] = ["command", "args", "env", "ports"];
        let whole = serde_json::to_value(self).map_err(|error| error.to_string())?;
        let container: core::Container = serde_json::from_value(whole).map_err(|error| error.to_string())?;
        // Arguments without a command go to the image's own entrypoint, which nobody here knows.
        let command = container.command.unwrap_or_default();
        let arguments = if command.is_empty() { Vec::new() } else { container.args.unwrap_or_default() };
        let (plain, unknown): (Vec<_>, Vec<_>) =
            container.env.unwrap_or_default().into_iter().partition(|variable| variable.value_from.is_none());
        Ok(LocalProcess {
            command: command.into_iter().chain(arguments).collect(),
            environment: plain.into_iter().map(|of| (of.name, of.value.unwrap_or_default())).collect(),
            unknown_environment: unknown.into_iter().map(|of| of.name).collect(),
            left_out: self.rest.keys().filter(|key| !UNDERSTOOD.contains(&key.as_str())).cloned().collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn container(value: Value) -> Container {
        serde_json::from_value(value).expect("a container")
    }

    #[test]
    fn what_is_not_typed_is_kept() {
        let given = json!({"name": "app", "image": "x", "resources": {"limits": {"cpu": "1"}}, "env": []});
        assert_eq!(serde_json::to_value(container(given.clone())).expect("plain data"), given);
    }

    #[test]
    fn a_command_runs_here_and_arguments_alone_do_not() {
        let whole = container(json!({
            "name": "app", "image": "x", "command": ["python3"], "args": ["app.py"], "resources": {},
            "env": [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
        }));
        let process = whole.local_process().expect("readable");
        assert_eq!(process.command, ["python3", "app.py"]);
        assert_eq!(process.environment, BTreeMap::from([("A".to_owned(), "1".to_owned())]));
        assert_eq!(
            (process.unknown_environment, process.left_out),
            (vec!["B".to_owned()], vec!["resources".to_owned()])
        );
        let image_only = container(json!({"name": "app", "image": "x", "args": ["serve"]}));
        assert!(image_only.local_process().expect("readable").command.is_empty());
    }

    #[test]
    fn a_wrong_type_deep_in_the_template_is_found() {
        let template: PodTemplate = serde_json::from_value(json!({
            "spec": {"containers": [{"name": "app", "image": "x", "command": "python3 app.py"}]},
        }))
        .expect("the outer part is right");
        assert!(template.check().expect_err("a command is a list").contains("sequence"));
    }
}
