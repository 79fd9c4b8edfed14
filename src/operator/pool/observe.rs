//! What there is: the pool's queue, its Deployment, and what there is to do.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::Deployment;
use kube::ResourceExt;
use kube::core::DeserializeGuard;

use super::asking::NoAnswer;
use super::environment::{Access, DEFAULT_SECRET, DEFAULT_SECRET_KEY};
use super::judge::QueueFound;
use super::{Shared, key};
use crate::broker::{Broker, Demand, WorkerRecord};
use crate::crd::{self, TaskQueue, WorkerPool};
use crate::operator::directory::KnownQueue;
use crate::operator::error::OperatorError;
use crate::operator::pods::book::PodBook;
use crate::operator::reasons::ConditionType;
use crate::operator::secrets::{self, SecretProblem};
use crate::protocol::names::{Capabilities, QueueName, TaskType};

/// What was found.
pub(super) struct Observed {
    pub(super) live: Option<Deployment>,
    pub(super) queue: QueueFound,
    /// How pods reach the queue; only where it was found.
    pub(super) ground: Option<Ground>,
    /// What there is to do, and who is there to do it; `None` if the queue could not be asked.
    pub(super) work: Option<Work>,
}

/// What pods stand on.
pub(super) struct Ground {
    pub(super) known: Arc<KnownQueue>,
    pub(super) access: Access,
    /// The Redis that the queue asks for, if it asks for one.
    pub(super) broker: Option<crd::Broker>,
    /// Change with what pods have to follow, and their template does not show.
    pub(super) versions: Vec<String>,
}

/// What there is to do, and who is there to do it.
pub(super) struct Work {
    pub(super) demand: Demand,
    /// The pool's own workers.
    pub(super) workers: Vec<WorkerRecord>,
}

impl Work {
    /// How many tasks the workers of a pod hold.
    pub(super) fn held_by_pod(&self, uid: &str) -> u64 {
        let of_pod = self.workers.iter().filter(|worker| worker.info.pod_uid.as_deref() == Some(uid));
        of_pod.map(|worker| self.held_by(worker)).sum()
    }

    /// How many pods hold tasks, those left out that are on their way out anyway.
    pub(super) fn busy_pods(&self, book: &PodBook) -> u32 {
        let busy = self.workers.iter().filter(|worker| self.held_by(worker) > 0);
        let pods: BTreeSet<_> = busy.filter_map(|worker| worker.info.pod_uid.as_deref()).collect();
        u32::try_from(pods.into_iter().filter(|uid| !book.is_leaving(uid)).count()).unwrap_or(u32::MAX)
    }

    /// How many tasks all of them hold.
    pub(super) fn held(&self) -> u64 {
        self.workers.iter().map(|worker| self.held_by(worker)).sum()
    }

    fn held_by(&self, worker: &WorkerRecord) -> u64 {
        self.demand.held.get(&worker.info.id).copied().unwrap_or(0)
    }
}

/// Finds out what there is.
pub(super) async fn observe(pool: &WorkerPool, shared: &Shared) -> Result<Observed, OperatorError> {
    let (namespace, name) = key(pool);
    let context = &shared.context;
    let deployments = context.api::<Deployment>(&namespace);
    let queues = context.api::<DeserializeGuard<TaskQueue>>(&namespace);
    let found = tokio::try_join!(deployments.get_opt(&name), queues.get_opt(&pool.spec.queue_ref.name));
    let (live, queue) = found.map_err(OperatorError::api("show what a pool has"))?;
    let (queue, ground) = match queue {
        None => (QueueFound::Missing, None),
        Some(DeserializeGuard(Ok(queue))) => find_ground(queue, &namespace, shared).await,
        Some(DeserializeGuard(Err(invalid))) => {
            let why = format!("this version of the operator cannot read the object: {}", invalid.error);
            (QueueFound::NotReady(why), None)
        }
    };
    let work = match &ground {
        Some(ground) => ask(pool, &ground.known, shared).await,
        None => None,
    };
    Ok(Observed { live, queue, ground, work })
}

async fn find_ground(queue: TaskQueue, namespace: &str, shared: &Shared) -> (QueueFound, Option<Ground>) {
    if queue.metadata.deletion_timestamp.is_some() {
        return (QueueFound::Deleting, None);
    }
    let known = QueueName::new(namespace, &queue.name_any()).ok().and_then(|name| shared.context.directory.get(&name));
    // A queue of the same name that was there before is another one.
    let Some(known) = known.filter(|known| Some(&known.uid) == queue.metadata.uid.as_ref()) else {
        return (QueueFound::NotReady(why_not_ready(&queue)), None);
    };
    let own = queue.spec.broker.as_ref().and_then(|broker| broker.redis.as_ref());
    let access = match (own, &shared.context.options.default_redis) {
        (Some(redis), _) => Access::to(redis),
        (None, Some(default)) => match default.now() {
            Ok((url, ca_pem)) => Access::to_default(&url, ca_pem.as_deref()),
            Err(error) => return (QueueFound::NotReady(error.to_string()), None),
        },
        (None, None) => return (QueueFound::NotReady("the operator has no default Redis".to_owned()), None),
    };
    let versions = match versions(namespace, &access, shared).await {
        Ok(versions) => versions,
        Err(problem) if own.is_some() => return (QueueFound::NotReady(problem.to_string()), None),
        Err(problem) => {
            let why = format!(
                "the operator's Redis needs a password, and pods take theirs from Secret {DEFAULT_SECRET}, key \
                 {DEFAULT_SECRET_KEY}, of their namespace: {problem}"
            );
            return (QueueFound::NoCredentials(why), None);
        }
    };
    (QueueFound::Yes, Some(Ground { known, access, broker: queue.spec.broker, versions }))
}

/// The versions of the Secrets that pods read when they start, and never again.
async fn versions(namespace: &str, access: &Access, shared: &Shared) -> Result<Vec<String>, SecretProblem> {
    let secrets = &shared.context.secrets;
    let mut versions = Vec::new();
    for wanted in access.secrets() {
        let read = match secrets.version(namespace, wanted, secrets::GOOD_FOR).await {
            // What is missing is looked for more often: somebody is about to make it.
            Err(_) => secrets.version(namespace, wanted, secrets::AT_LEAST).await,
            known => known,
        };
        versions.push(read?);
    }
    Ok(versions)
}

fn why_not_ready(queue: &TaskQueue) -> String {
    let conditions = queue.status.iter().flat_map(|status| &status.conditions);
    let mut unready =
        conditions.filter(|condition| condition.type_ == ConditionType::Ready.as_str() && condition.status != "True");
    unready.next().map_or_else(|| "it is not provisioned yet".to_owned(), |condition| condition.message.clone())
}

/// What the pool's workers can do.
pub(super) fn capabilities(pool: &WorkerPool) -> Capabilities {
    let types = pool.spec.task_types.iter().filter_map(|name| TaskType::new(name).ok());
    Capabilities::of(types).unwrap_or_else(|_| Capabilities::any())
}

async fn ask(pool: &WorkerPool, known: &KnownQueue, shared: &Shared) -> Option<Work> {
    let capabilities = capabilities(pool);
    let questions = async { tokio::try_join!(known.broker.demand(&capabilities), known.broker.workers()) };
    match shared.asking.ask(&known.connection.fingerprint, questions).await {
        Ok((demand, all)) => {
            let uid = pool.metadata.uid.as_deref();
            let workers: Vec<_> = all.into_iter().filter(|worker| worker.info.pool.as_deref() == uid).collect();
            look_for_strangers(&workers, known, shared);
            Some(Work { demand, workers })
        }
        Err(NoAnswer::Silent) => None,
        Err(error) => {
            tracing::warn!(queue = %known.name, %error, "a queue could not be asked what there is to do");
            None
        }
    }
}

/// Workers of the pool whose pods nobody knows may have lost them while nobody watched.
fn look_for_strangers(workers: &[WorkerRecord], known: &KnownQueue, shared: &Shared) {
    let book = &shared.context.pods;
    let is_strange = |worker: &WorkerRecord| worker.info.pod_uid.as_deref().is_some_and(|uid| !book.knows(uid));
    if book.is_complete() && workers.iter().any(is_strange) {
        book.look_at(&known.name);
    }
}
