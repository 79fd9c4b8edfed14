//! What `kubectl describe` tells of a pool.

use k8s_openapi::api::events::v1::Event;
use kube::api::{Api, ListParams, Patch};
use serde_json::json;

use super::ground::Ground;

/// Waits until an Event on a pool has that reason and these words in it; returns its type.
async fn told(ground: &Ground, pool: &str, reason: &str, words: &str) -> String {
    let events: Api<Event> = Api::namespaced(ground.client.clone(), &ground.namespace);
    ground
        .cluster
        .wait_for(&ground.namespace, &format!("an Event {reason} that tells of {words:?}"), async || {
            let all = events.list(&ListParams::default()).await.map_err(|error| error.to_string())?.items;
            let on_pool = |event: &&Event| event.regarding.as_ref().and_then(|on| on.name.as_deref()) == Some(pool);
            let of: Vec<_> =
                all.iter().filter(on_pool).map(|event| (&event.reason, &event.note, &event.type_)).collect();
            let found = of.iter().find(|(why, note, _)| {
                why.as_deref() == Some(reason) && note.as_ref().is_some_and(|note| note.contains(words))
            });
            found.map(|(.., type_)| (*type_).clone().unwrap_or_default()).ok_or_else(|| format!("{of:?}"))
        })
        .await
}

#[tokio::test]
async fn a_pool_tells_that_it_was_scaled_and_why_a_template_is_refused() {
    let ground = Ground::new().await;
    ground.queue("q").await;
    ground.pool("p", "q", json!({"replicas": 2})).await;
    assert_eq!(told(&ground, "p", "Scaled", "made a Deployment of 2 pods").await, "Normal");
    ground.cluster.kubectl(&["-n", &ground.namespace, "scale", "workerpool/p", "--replicas=5"]).await;
    assert_eq!(told(&ground, "p", "Scaled", "from 2 to 5 pods").await, "Normal");
    let no_volume = json!({"spec": {"containers": [{
        "name": "app", "image": "app:1", "volumeMounts": [{"name": "nowhere", "mountPath": "/x"}]}]}});
    let change = |template: serde_json::Value| Patch::Merge(json!({"spec": {"template": template}}));
    ground.pools().patch("p", &Default::default(), &change(no_volume)).await.expect("patched");
    assert_eq!(told(&ground, "p", "TemplateRefused", "nowhere").await, "Warning");
    let unknown = json!({"spec": {"containers": [{"name": "app", "image": "app:1"}], "hostNetwrok": true}});
    ground.pools().patch("p", &Default::default(), &change(unknown)).await.expect("patched");
    assert_eq!(told(&ground, "p", "TemplateRefused", "hostNetwrok").await, "Warning");
}
