//! Waiting for a condition, and explaining why it did not come.

use std::fmt::Debug;
use std::time::Instant;

use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::{Api, ListParams, LogParams};
use kube::{Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Kubernetes, LIMIT, POLL};

/// How much of each log an explanation holds.
const TAIL: usize = 15;

impl Kubernetes {
    /// Waits until the object of that name (`None`: it does not exist) is as it should be, and returns
    /// it as it then was; `what` completes the sentence "waited for NAME …".
    ///
    /// # Panics
    ///
    /// After [`LIMIT`], with the object as it was last, what happened in its namespace, and what its
    /// pods and the cluster's programs said.
    pub async fn wait<K>(
        &self,
        api: &Api<K>,
        name: &str,
        what: &str,
        condition: impl Fn(Option<&K>) -> bool,
    ) -> Option<K>
    where
        K: Clone + Debug + DeserializeOwned + Serialize + Resource,
    {
        let started = Instant::now();
        loop {
            // An apiserver that is being killed by a test does not answer; it will.
            let seen = api.get_opt(name).await;
            if let Ok(found) = &seen
                && condition(found.as_ref())
            {
                return found.clone();
            }
            if started.elapsed() > LIMIT {
                let last = match seen {
                    Ok(Some(found)) => serde_json::to_string_pretty(&found).unwrap_or_else(|error| error.to_string()),
                    Ok(None) => "there is none".to_owned(),
                    Err(error) => error.to_string(),
                };
                let around = self.explain(api.namespace()).await;
                panic!("waited {LIMIT:?} for {name} {what}; last seen: {last}\n{around}");
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Waits until `look` answers `Ok`; `Err` is what it saw instead.
    ///
    /// # Panics
    ///
    /// After [`LIMIT`], with what was seen last and what happened in the namespace.
    pub async fn wait_for<T>(
        &self,
        namespace: &str,
        what: &str,
        mut look: impl AsyncFnMut() -> Result<T, String>,
    ) -> T {
        let started = Instant::now();
        loop {
            match look().await {
                Ok(found) => return found,
                Err(seen) if started.elapsed() > LIMIT => {
                    let around = self.explain(Some(namespace)).await;
                    panic!("waited {LIMIT:?} for {what}; last seen: {seen}\n{around}");
                }
                Err(_) => tokio::time::sleep(POLL).await,
            }
        }
    }

    /// What a person would look at next: events, the pods' last words, the programs' last words.
    pub async fn explain(&self, namespace: Option<&str>) -> String {
        let mut told = String::new();
        if let Some(namespace) = namespace {
            told += &self.events(namespace).await;
            told += &self.pods(namespace).await;
        }
        for log in self.logs().and_then(|logs| std::fs::read_dir(logs).ok()).into_iter().flatten().flatten() {
            let text = std::fs::read_to_string(log.path()).unwrap_or_default();
            told += &format!("--- {}\n{}\n", log.file_name().to_string_lossy(), tail(&text));
        }
        told
    }

    async fn events(&self, namespace: &str) -> String {
        let events: Api<Event> = Api::namespaced(self.client().await, namespace);
        let mut told = format!("--- events of {namespace}\n");
        match events.list(&ListParams::default()).await {
            Ok(found) => {
                for event in found {
                    let about = event.involved_object;
                    told += &format!(
                        "{}/{} {}: {}\n",
                        about.kind.unwrap_or_default(),
                        about.name.unwrap_or_default(),
                        event.reason.unwrap_or_default(),
                        event.message.unwrap_or_default(),
                    );
                }
            }
            Err(error) => told += &format!("{error}\n"),
        }
        told
    }

    async fn pods(&self, namespace: &str) -> String {
        let pods: Api<Pod> = Api::namespaced(self.client().await, namespace);
        let mut told = String::new();
        for pod in pods.list(&ListParams::default()).await.into_iter().flatten() {
            let status = serde_json::to_string(&pod.status).unwrap_or_default();
            told += &format!("--- pod {}: {status}\n", pod.name_any());
            for container in pod.spec.iter().flat_map(|spec| &spec.containers) {
                let asked = LogParams { container: Some(container.name.clone()), ..LogParams::default() };
                let log = pods.logs(&pod.name_any(), &asked).await.unwrap_or_else(|error| error.to_string());
                told += &format!("--- log of {}/{}\n{}\n", pod.name_any(), container.name, tail(&log));
            }
        }
        told
    }
}

/// The last lines of a text.
fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(TAIL)..].join("\n")
}
