//! The chart in real pods: installed, ready, and `helm test` sees a task done, where Restricted is enforced.

use kube::api::Api;
use windlass::crd::TaskQueue;

use super::ground::{RELEASE, chart};
use crate::kubernetes::Kubernetes;

/// What points the chart to images that the nodes have.
fn images(windlass: &str, redis: &str) -> String {
    let split =
        |image: &str| image.rsplit_once(':').map(|(name, tag)| (name.to_owned(), tag.to_owned())).expect("a tag");
    let ((windlass, tag), (redis, redis_tag)) = (split(windlass), split(redis));
    format!(
        "image.registry=,image.repository={windlass},image.tag={tag},\
         redis.image.registry=,redis.image.repository={redis},redis.image.tag={redis_tag}"
    )
}

/// Installs a release with these further settings, sees a task done, and removes the release.
async fn see_a_task_done(cluster: &Kubernetes, settings: &str) {
    let namespace = cluster.namespace().await;
    let label = "pod-security.kubernetes.io/enforce=restricted";
    cluster.kubectl(&["label", "namespace", &namespace, label]).await;
    let images = images(cluster.windlass_image().await, cluster.redis_image().await);
    let settings = settings.replace("HERE", &namespace);
    let helm = async |arguments: &[&str]| {
        let said = cluster.try_helm(&[arguments, &["--namespace", &namespace, "--timeout", "180s"]].concat()).await;
        match said {
            Ok(said) => said,
            Err(said) => panic!("helm {arguments:?}: {said}\n{}", cluster.explain(Some(&namespace)).await),
        }
    };
    helm(&["install", RELEASE, &chart(), "--wait", "--set", &images, "--set", &settings]).await;
    // Twice, because what the first leaves behind must not make the second succeed by itself.
    for _ in 0..2 {
        let said = helm(&["test", RELEASE]).await;
        assert!(said.contains("Succeeded"), "{said}");
        let queues: Api<TaskQueue> = Api::namespaced(cluster.client().await, &namespace);
        cluster.wait(&queues, "windlass-test", "to be gone", |found| found.is_none()).await;
    }
    helm(&["uninstall", RELEASE, "--wait"]).await;
}

/// One after the other: the definitions belong to one release at a time.
#[tokio::test(flavor = "multi_thread")]
async fn an_installation_sees_a_task_done_in_the_whole_cluster_and_in_one_namespace() {
    let Some(cluster) = Kubernetes::nodes().await else { return };
    see_a_task_done(cluster, "crds.keep=false").await;
    see_a_task_done(cluster, "crds.keep=false,watchNamespaces={HERE},replicaCount=2,networkPolicy.enabled=true").await;
}
