//! Writing an object's status: only what changed, and counts not too often.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use kube::api::{Api, Patch, PatchParams};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::apply::FIELD_MANAGER;
use super::conditions::ours;
use super::error::{OperatorError, bounded};

/// Between two writes of one object that change nothing but counts.
const BETWEEN_COUNTS: Duration = Duration::from_secs(10);

/// A status with conditions, and with counts that change all the time.
pub trait Status: Serialize + Clone + PartialEq {
    /// Its conditions.
    fn conditions_mut(&mut self) -> &mut Vec<Condition>;
    /// Makes all counts, and times and words that move with them, the same as in `other`.
    fn take_counts(&mut self, other: &Self);
}

/// What came of a status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// It was so already.
    Unchanged,
    /// Only counts differ, and the last write is too recent: write again after so long.
    Deferred(Duration),
    /// It was written.
    Done,
    /// The object is gone, or another one has its name.
    Gone,
}

/// Writes statuses, and remembers when it did.
#[derive(Default)]
pub struct StatusWriter(Mutex<HashMap<String, Instant>>);

impl StatusWriter {
    /// Writes `new` where it differs from `current`, which is what the API server has.
    pub async fn write<K, S>(
        &self,
        api: &Api<K>,
        meta: &ObjectMeta,
        current: Option<&S>,
        new: &S,
    ) -> Result<Written, OperatorError>
    where
        K: kube::Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
        S: Status,
    {
        let name = meta.name.as_deref().ok_or(OperatorError::Incomplete("a name"))?;
        let uid = meta.uid.as_deref().ok_or(OperatorError::Incomplete("a UID"))?;
        match difference(current, new) {
            Difference::None => return Ok(Written::Unchanged),
            Difference::Counts => {
                if let Some(left) = self.too_soon(uid) {
                    return Ok(Written::Deferred(left));
                }
            }
            Difference::More => {}
        }
        // The UID is the precondition: an object of the same name that came since is another one.
        let patch = serde_json::json!({
            "apiVersion": K::api_version(&()),
            "kind": K::kind(&()),
            "metadata": { "name": name, "uid": uid },
            "status": new,
        });
        let params = PatchParams::apply(FIELD_MANAGER).force();
        self.remember(uid);
        match bounded(api.patch_status(name, &params, &Patch::Apply(patch)), "write the status").await {
            Err(error) if matches!(error.code(), Some(404 | 409)) => Ok(Written::Gone),
            answer => answer.map(|_| Written::Done),
        }
    }

    /// Forgets an object that is gone.
    pub fn forget(&self, uid: &str) {
        self.last().remove(uid);
    }

    fn too_soon(&self, uid: &str) -> Option<Duration> {
        let since = self.last().get(uid)?.elapsed();
        BETWEEN_COUNTS.checked_sub(since).filter(|left| !left.is_zero())
    }

    fn remember(&self, uid: &str) {
        self.last().insert(uid.to_owned(), Instant::now());
    }

    fn last(&self) -> std::sync::MutexGuard<'_, HashMap<String, Instant>> {
        self.0.lock().expect("invariant: no panic while held")
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Difference {
    None,
    Counts,
    More,
}

fn difference<S: Status>(current: Option<&S>, new: &S) -> Difference {
    let Some(current) = current else { return Difference::More };
    let (mut current, mut wanted) = (current.clone(), new.clone());
    let seen = ours(current.conditions_mut(), wanted.conditions_mut());
    *current.conditions_mut() = seen;
    if current == wanted {
        return Difference::None;
    }
    wanted.take_counts(&current);
    if current == wanted { Difference::Counts } else { Difference::More }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Clone, Default, PartialEq, Serialize)]
    struct Shown {
        conditions: Vec<Condition>,
        generation: i64,
        backlog: u64,
    }

    impl Status for Shown {
        fn conditions_mut(&mut self) -> &mut Vec<Condition> {
            &mut self.conditions
        }

        fn take_counts(&mut self, other: &Self) {
            self.backlog = other.backlog;
        }
    }

    fn condition(type_: &str, status: &str) -> Condition {
        let time = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::UNIX_EPOCH);
        Condition {
            type_: type_.into(),
            status: status.into(),
            reason: "So".into(),
            message: String::new(),
            observed_generation: None,
            last_transition_time: time,
        }
    }

    #[test]
    fn what_did_not_change_is_not_written() {
        let shown = Shown { conditions: vec![condition("Ready", "True")], generation: 1, backlog: 3 };
        let mut with_foreign = shown.clone();
        with_foreign.conditions.insert(0, condition("Foreign", "True"));
        assert_eq!(difference(Some(&with_foreign), &shown), Difference::None);
        let counted = Shown { backlog: 4, ..shown.clone() };
        assert_eq!(difference(Some(&shown), &counted), Difference::Counts);
        let turned = Shown { conditions: vec![condition("Ready", "False")], ..counted.clone() };
        assert_eq!(difference(Some(&shown), &turned), Difference::More);
        assert_eq!(difference(None, &shown), Difference::More);
        assert_eq!(difference(Some(&shown), &Shown { generation: 2, ..shown.clone() }), Difference::More);
        let wiped = Shown { conditions: Vec::new(), ..shown.clone() };
        assert_eq!(difference(Some(&wiped), &shown), Difference::More, "somebody took our conditions away");
    }

    #[tokio::test]
    async fn a_server_that_hangs_holds_up_a_status_and_no_more() {
        drop(rustls::crypto::ring::default_provider().install_default());
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", silent.local_addr().expect("an address"));
        let client = kube::Client::try_from(kube::Config::new(url.parse().expect("a URL"))).expect("a client");
        let api: Api<crate::crd::TaskQueue> = Api::namespaced(client, "shop");
        let meta = ObjectMeta { name: Some("emails".into()), uid: Some("uid".into()), ..ObjectMeta::default() };
        let (writer, new) = (StatusWriter::default(), crate::crd::TaskQueueStatus::default());
        let written = writer.write(&api, &meta, None, &new);
        let outcome = tokio::time::timeout(Duration::from_secs(60), written).await.expect("it does not wait for ever");
        assert!(matches!(outcome, Err(OperatorError::NoAnswer { .. })), "{outcome:?}");
    }

    #[test]
    fn counts_are_written_at_most_once_in_ten_seconds() {
        let writer = StatusWriter::default();
        assert_eq!(writer.too_soon("uid"), None);
        writer.remember("uid");
        assert!(writer.too_soon("uid").is_some_and(|left| left > Duration::from_secs(8)));
        writer.forget("uid");
        assert_eq!(writer.too_soon("uid"), None);
    }
}
