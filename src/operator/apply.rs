//! Writing to the API server: server-side apply under one field manager.

use std::fmt::Debug;

use kube::api::{Api, DeleteParams, Patch, PatchParams};
use kube::{Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::error::{OperatorError, bounded};

/// Under whose name fields are owned.
pub const FIELD_MANAGER: &str = "windlass-operator";

/// Makes an object as written here; fields that are not written here are left to others.
pub async fn apply<K>(api: &Api<K>, object: &K, action: &'static str) -> Result<K, OperatorError>
where
    K: Resource + Clone + Serialize + DeserializeOwned + Debug,
{
    let params = PatchParams::apply(FIELD_MANAGER).force();
    bounded(api.patch(&object.name_any(), &params, &Patch::Apply(object)), action).await
}

/// Asks the API server what it would make of an object, and changes nothing.
pub async fn dry_run<K>(api: &Api<K>, object: &K) -> Result<K, kube::Error>
where
    K: Resource + Clone + Serialize + DeserializeOwned + Debug,
{
    let params = PatchParams::apply(FIELD_MANAGER).force().dry_run();
    api.patch(&object.name_any(), &params, &Patch::Apply(object)).await
}

/// Deletes an object; one that is gone already is fine.
pub async fn delete<K>(api: &Api<K>, name: &str, action: &'static str) -> Result<(), OperatorError>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    match bounded(api.delete(name, &DeleteParams::background()), action).await {
        Err(error) if error.is_gone() => Ok(()),
        answer => answer.map(drop),
    }
}
