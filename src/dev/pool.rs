//! One WorkerPool on this machine: its replicas and, behind HTTP, what they post to.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::keeper::{Ask, Household, Keeper, Port, Recipe};
use super::manifest::{PoolManifest, PoolName};
use super::screen::Tone;
use super::speech::Speech;
use crate::crd::{HandlerType, LocalProcess};
use crate::telemetry;

/// What a worker has to end, beyond its time to drain.
const MARGIN: Duration = Duration::from_secs(10);
/// What other programs have to end.
const APP_GRACE: Duration = Duration::from_secs(10);

/// What pools share.
#[derive(Clone)]
pub(super) struct Surroundings {
    pub(super) household: Household,
    pub(super) redis_url: String,
    /// Names this data directory.
    pub(super) id: String,
    /// The lock that its programs hold.
    pub(super) hold: PathBuf,
}

/// A pool that is, or was, asked for. Its places stay when it is no longer, so
/// that a program that still ends is never met by its successor.
pub(super) struct Pool {
    name: PoolName,
    surroundings: Surroundings,
    app: Keeper,
    replicas: Vec<Keeper>,
}

/// What a manifest comes to on this machine.
#[derive(Debug, Default, PartialEq, Eq)]
struct Plan {
    /// What the workers post to.
    app: Option<Recipe>,
    /// A recipe a replica.
    replicas: Vec<Recipe>,
    /// What is not done here as it would be in a cluster.
    remarks: Vec<String>,
}

impl Pool {
    /// A pool with nothing in it yet.
    pub(super) fn new(name: PoolName, surroundings: Surroundings) -> Self {
        let app = Keeper::new(format!("{}/app", name.name()), surroundings.household.clone());
        Self { name, surroundings, app, replicas: Vec::new() }
    }

    /// Does what the manifest says from now on.
    pub(super) fn apply(&mut self, manifest: &PoolManifest) {
        let plan = plan(&self.name, manifest, &self.surroundings);
        let household = &self.surroundings.household;
        for remark in &plan.remarks {
            household.screen.line(self.name.name(), Tone::Faint, remark);
        }
        match plan.app {
            Some(recipe) => self.app.run(recipe),
            None => self.app.rest(),
        }
        for (index, recipe) in plan.replicas.iter().enumerate() {
            if index == self.replicas.len() {
                let name = format!("{}-{}", self.name.name(), index + 1);
                self.replicas.push(self.app.beside(name, household.clone()));
            }
            self.replicas[index].run(recipe.clone());
        }
        self.replicas.iter().skip(plan.replicas.len()).for_each(Keeper::rest);
    }

    /// Ends what runs; it may come back.
    pub(super) fn rest(&self) {
        self.replicas.iter().for_each(Keeper::rest);
        self.app.rest();
    }

    /// Ends all for good: first the workers, then what they post to.
    pub(super) async fn leave(self) {
        futures::future::join_all(self.replicas.into_iter().map(Keeper::leave)).await;
        self.app.leave().await;
    }
}

fn plan(name: &PoolName, manifest: &PoolManifest, surroundings: &Surroundings) -> Plan {
    let (spec, mut remarks) = (&manifest.spec, Vec::new());
    let exec = spec.handler.exec.as_ref();
    let container = spec.template.spec.container(exec.and_then(|exec| exec.container.as_deref()));
    let process = container.and_then(|container| container.local_process().ok());
    let process = process.unwrap_or_else(|| LocalProcess {
        command: Vec::new(),
        environment: BTreeMap::new(),
        unknown_environment: Vec::new(),
        left_out: Vec::new(),
    });
    if let Some(autoscaling) = &spec.autoscaling {
        let (least, most) = (autoscaling.min_replicas, autoscaling.max_replicas);
        remarks.push(format!("not scaled on one machine: {} replicas, not {least} to {most}", spec.replicas));
    }
    if !process.unknown_environment.is_empty() {
        let names = process.unknown_environment.join(", ");
        remarks.push(format!("only a cluster knows {names}: set what the handler needs in this terminal"));
    }
    if !process.left_out.is_empty() {
        remarks.push(format!("on this machine, without a container: {} have no effect", process.left_out.join(", ")));
    }
    if spec.template.spec.containers.len() > 1 {
        let name = container.map_or("the first", |container| container.name.as_str());
        remarks.push(format!("of the pod's containers only {name} counts here"));
    }
    let recipe = Cook { name, manifest, surroundings, process: &process };
    match spec.handler.type_ {
        HandlerType::Exec => {
            let command = exec.map(|exec| exec.command.clone()).unwrap_or_default();
            let handler: Vec<String> = ["--exec".to_owned(), "--".to_owned()].into_iter().chain(command).collect();
            Plan { app: None, replicas: recipe.workers(&handler, Port::None), remarks }
        }
        HandlerType::Http => http(&recipe, remarks),
        HandlerType::Sdk => sdk(&recipe, remarks),
    }
}

fn http(cook: &Cook<'_>, mut remarks: Vec<String>) -> Plan {
    let spec = &cook.manifest.spec;
    let (port, path) = spec.handler.http.as_ref().map_or((0, "/"), |http| (http.port, http.path.as_str()));
    let handler = ["--http".to_owned(), format!("http://127.0.0.1:{port}{path}")];
    let app = cook.app().map(|app| Recipe { port: Port::Own(port), ..app }).filter(|_| spec.replicas > 0);
    if cook.process.command.is_empty() {
        remarks.push(format!("images are not run here: start what listens on 127.0.0.1:{port} yourself"));
    } else if spec.replicas > 1 {
        remarks.push(format!("one process on port {port} serves all {} workers", spec.replicas));
    }
    // A handler that still starts would cost each task a retry.
    let from = if app.is_some() { Port::Beside(port) } else { Port::Anybodys(port) };
    Plan { replicas: cook.workers(&handler, from), app, remarks }
}

fn sdk(cook: &Cook<'_>, mut remarks: Vec<String>) -> Plan {
    let replicas = match cook.app() {
        Some(recipe) => {
            (0..cook.manifest.spec.replicas as usize).map(|index| cook.place(recipe.clone(), index)).collect()
        }
        None => {
            remarks
                .push("images are not run here: give the container a command, or start the worker yourself".to_owned());
            Vec::new()
        }
    };
    Plan { app: None, replicas, remarks }
}

/// Makes recipes for one pool.
struct Cook<'a> {
    name: &'a PoolName,
    manifest: &'a PoolManifest,
    surroundings: &'a Surroundings,
    process: &'a LocalProcess,
}

impl Cook<'_> {
    fn workers(&self, handler: &[String], port: Port) -> Vec<Recipe> {
        let spec = &self.manifest.spec;
        let drain = Duration::from_secs(spec.drain_timeout_seconds.into());
        let mut command = vec![
            self.surroundings.household.program.display().to_string(),
            "worker".to_owned(),
            "-q".to_owned(),
            self.manifest.queue.to_string(),
            "--concurrency".to_owned(),
            spec.concurrency.to_string(),
            "--drain-timeout".to_owned(),
            format!("{}s", drain.as_secs()),
        ];
        if !spec.task_types.is_empty() {
            command.extend(["--types".to_owned(), spec.task_types.join(",")]);
        }
        command.extend(handler.iter().cloned());
        let mut recipe = Recipe { grace: drain + MARGIN, ask: Ask::Program, port, ..self.recipe(command) };
        // Whoever asked for another form of logs gets it as it is.
        if std::env::var_os(telemetry::FORMAT).is_none() {
            recipe.environment.insert(telemetry::FORMAT.to_owned(), "json".to_owned());
            recipe.speech = Speech::Logs;
        }
        (0..spec.replicas as usize).map(|index| self.place(recipe.clone(), index)).collect()
    }

    /// The container's command, where it has one.
    fn app(&self) -> Option<Recipe> {
        let command = &self.process.command;
        (!command.is_empty()).then(|| self.recipe(command.clone()))
    }

    fn recipe(&self, command: Vec<String>) -> Recipe {
        let mut environment = self.process.environment.clone();
        environment.insert("WINDLASS_REDIS_URL".to_owned(), self.surroundings.redis_url.clone());
        environment.insert("WINDLASS_QUEUE".to_owned(), self.manifest.queue.to_string());
        environment.insert("WINDLASS_TASK_TYPES".to_owned(), self.manifest.spec.task_types.join(","));
        environment.insert("WINDLASS_CONCURRENCY".to_owned(), self.manifest.spec.concurrency.to_string());
        Recipe {
            command,
            environment,
            folder: self.manifest.folder.clone(),
            grace: APP_GRACE,
            ask: Ask::Group,
            port: Port::None,
            speech: Speech::Plain,
            after: None,
            hold: self.surroundings.hold.clone(),
        }
    }

    /// A replica has a place of its own, as a pod's container has: whoever comes
    /// to it next, also after a restart, takes back what the one before held.
    fn place(&self, mut recipe: Recipe, index: usize) -> Recipe {
        let pod = format!("{}-{}", self.name.name(), index + 1);
        let uid = format!("dev:{}/{}/{pod}", self.surroundings.id, self.name.namespace());
        recipe.environment.insert("WINDLASS_POD_NAME".to_owned(), pod);
        recipe.environment.insert("WINDLASS_POD_UID".to_owned(), uid);
        recipe.environment.insert("WINDLASS_CONTAINER".to_owned(), "worker".to_owned());
        recipe
    }
}
