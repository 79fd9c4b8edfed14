//! `WorkerPool`: who runs a queue's tasks.

#![allow(unreachable_pub, reason = "the schema is derived from copies of the types inside functions")]

use k8s_openapi::api::core::v1::{LocalObjectReference, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::template::PodTemplate;

/// Who runs the tasks of a queue, and how.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, CustomResource, KubeSchema)]
#[kube(
    group = "windlass.dev",
    version = "v1alpha1",
    kind = "WorkerPool",
    plural = "workerpools",
    namespaced,
    doc = "Workers that run the tasks of one TaskQueue: a number of equal pods, each with a handler in any language.",
    status = "WorkerPoolStatus",
    derive = "PartialEq",
    shortname = "wp",
    category = "windlass",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn(name = "Ready", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(name = "Queue", type_ = "string", json_path = ".spec.queueRef.name"),
    printcolumn(name = "Handler", type_ = "string", json_path = ".spec.handler.type"),
    printcolumn(name = "Desired", type_ = "integer", json_path = ".status.desiredReplicas"),
    printcolumn(name = "Available", type_ = "integer", json_path = ".status.readyReplicas"),
    printcolumn(name = "Running", type_ = "integer", json_path = ".status.running", description = "Tasks that its workers hold"),
    printcolumn(name = "Reason", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].reason"#, priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new("self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,50}[a-z0-9])?$')")
        .message("a pool's name has 1 to 52 lower-case letters, digits or -, and begins and ends with a letter or digit: the names of its pods are made from it"),
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.autoscaling) || !has(oldSelf.autoscaling) || self.replicas == oldSelf.replicas")
        .message("replicas belongs to the autoscaler while autoscaling is set: change autoscaling.minReplicas or maxReplicas, or remove autoscaling")
        .field_path(".replicas"),
    validation = Rule::new("self.handler.type != 'Exec' || !has(self.handler.exec) || !has(self.handler.exec.container) || self.template.spec.containers.exists(c, c.name == self.handler.exec.container)")
        .message("handler.exec.container must name a container of template.spec.containers")
        .field_path(".handler.exec.container"),
)]
pub struct WorkerPoolSpec {
    /// The queue whose tasks it runs.
    pub queue_ref: QueueRef,
    /// The types of tasks that it can do; every type if left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 64),
        inner(length(min = 1, max = 100), regex(pattern = r"^[A-Za-z0-9][A-Za-z0-9._/:-]*$"))
    )]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub task_types: Vec<String>,
    /// How many tasks one pod runs at the same time.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 1000))]
    pub concurrency: u32,
    /// How many pods there are. Belongs to the autoscaler while `autoscaling` is set.
    #[serde(default = "one")]
    #[schemars(range(min = 0, max = 10_000))]
    pub replicas: u32,
    /// What runs a task.
    pub handler: Handler,
    /// Settings of what Windlass puts beside the handler.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<WorkerSettings>,
    /// How long a pod that ends may go on with the tasks that it holds, in seconds; what is not done by then is given
    /// back to the queue.
    #[serde(default = "drain_timeout")]
    #[schemars(range(min = 0, max = 86_400))]
    pub drain_timeout_seconds: u32,
    /// Lets the number of pods follow the work; `replicas` alone decides if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub autoscaling: Option<Autoscaling>,
    /// The pods, as in a Deployment.
    pub template: PodTemplate,
}

/// A queue of the same namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct QueueRef {
    /// The TaskQueue's name.
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
}

/// How a task reaches the code that runs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum HandlerType {
    /// A request a task.
    #[serde(rename = "HTTP")]
    Http,
    /// A process a task.
    Exec,
    /// The container claims its tasks itself.
    #[serde(rename = "SDK")]
    Sdk,
}

impl HandlerType {
    /// As a manifest spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http => "HTTP",
            Self::Exec => "Exec",
            Self::Sdk => "SDK",
        }
    }
}

/// What runs a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.type == 'HTTP' ? has(self.http) : !has(self.http)")
        .message("http belongs to the type HTTP: set http.port with that type, and with no other"),
    validation = Rule::new("self.type == 'Exec' ? has(self.exec) : !has(self.exec)")
        .message("exec belongs to the type Exec: set exec.command with that type, and with no other"),
    validation = Rule::new("self.type == 'SDK' || !has(self.sdk)")
        .message("sdk belongs to the type SDK: leave it out with any other type"),
)]
pub struct Handler {
    /// HTTP: a request to a container of the pod for each task. Exec: a process in a container for each task.
    /// SDK: the container claims its tasks itself, with a Windlass library.
    #[serde(rename = "type")]
    pub type_: HandlerType,
    /// Where tasks are posted to. With the type HTTP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<HttpHandler>,
    /// What is run for each task. With the type Exec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exec: Option<ExecHandler>,
    /// Settings of the type SDK; it has none yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sdk: Option<SdkHandler>,
}

/// Where tasks are posted to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HttpHandler {
    /// The port that the container listens on.
    #[schemars(range(min = 1, max = 65_535))]
    pub port: u16,
    /// The path of the request.
    #[serde(default = "root")]
    #[schemars(length(min = 1, max = 1024), regex(pattern = r"^/[^\s#]*$"))]
    pub path: String,
}

/// What is run for each task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExecHandler {
    /// Program and arguments. The task comes as JSON on its standard input; what it prints is the result.
    #[schemars(length(min = 1, max = 100), inner(length(max = 4096)))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub command: Vec<String>,
    /// The container of `template` that it runs in; the first if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub container: Option<String>,
    /// What becomes of the image's entrypoint. Replace: the worker takes its place, and of the container's command and
    /// args nothing is used. Keep: the entrypoint, or the container's command, is started with the container's args and
    /// after them the worker as its arguments.
    #[serde(default)]
    pub entrypoint: Entrypoint,
}

/// What becomes of the image's entrypoint.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Entrypoint {
    /// The worker takes its place.
    #[default]
    Replace,
    /// It is started with the worker as its arguments.
    Keep,
}

/// Settings of the type SDK; it has none yet.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]

pub struct SdkHandler {}

/// Settings of what Windlass puts beside the handler.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkerSettings {
    /// Requests and limits of the worker's container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "resources_schema")]
    pub resources: Option<ResourceRequirements>,
    /// Secrets to pull the worker's image with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "secrets_schema")]
    pub image_pull_secrets: Vec<LocalObjectReference>,
}

/// Lets the number of pods follow the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.minReplicas <= self.maxReplicas")
        .message("minReplicas must not be above maxReplicas: lower the one or raise the other"),
)]
pub struct Autoscaling {
    /// The fewest pods; with 0 the first task starts one.
    #[serde(default)]
    #[schemars(range(min = 0, max = 10_000))]
    pub min_replicas: u32,
    /// The most pods.
    #[schemars(range(min = 1, max = 10_000))]
    pub max_replicas: u32,
    /// How many waiting and running tasks one pod is meant for.
    #[serde(default = "tasks_per_replica")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub tasks_per_replica: u32,
    /// For how long fewer pods must have been enough before some go, in seconds.
    #[serde(default = "scale_down_after")]
    #[schemars(range(min = 0, max = 86_400))]
    pub scale_down_after_seconds: u32,
}

/// How the pool is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkerPoolStatus {
    /// The generation of the spec that this status tells of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Ready, QueueResolved, TemplateAccepted, Available and ScalingActive.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
    /// Pods that exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// Pods that are ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i32>,
    /// Pods that there should be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub desired_replicas: Option<i32>,
    /// Selects the pods; for `kubectl scale` and autoscalers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// Workers that give signs of life.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers: Option<i64>,
    /// Tasks that its workers hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<i64>,
}

fn one() -> u32 {
    1
}

fn drain_timeout() -> u32 {
    60
}

fn root() -> String {
    "/".to_owned()
}

fn tasks_per_replica() -> u32 {
    20
}

fn scale_down_after() -> u32 {
    60
}

/// Requests and limits, as Kubernetes has them.
fn resources_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    let quantities = |description: &str| {
        serde_json::json!({
            "description": description,
            "type": "object",
            "additionalProperties": { "x-kubernetes-int-or-string": true },
        })
    };
    schemars::json_schema!({
        "type": "object",
        "properties": {
            "limits": quantities("The most that it may use, like cpu: 500m and memory: 64Mi."),
            "requests": quantities("What is set aside for it, like cpu: 10m and memory: 16Mi."),
        },
    })
}

/// Names of Secrets.
fn secrets_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "array",
        "maxItems": 16,
        "items": {
            "type": "object",
            "properties": { "name": { "description": "The Secret's name.", "type": "string", "minLength": 1, "maxLength": 253 } },
            "required": ["name"],
        },
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name"],
    })
}
