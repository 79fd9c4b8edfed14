//! Who leads: one of several operators, by a Lease.
//!
//! A holder renews the Lease; who wants it takes it when it was released, or
//! when it has not changed for as long as it is good, by one's own clock alone:
//! clocks of other machines are never compared. A holder that cannot renew stops
//! well before anybody else may take the Lease, so two never lead at once.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Api, PostParams};
use kube::{Client, ResourceExt};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::apply::FIELD_MANAGER;
use super::error::{self, OperatorError};
use super::options::LeaseName;

/// For how long a Lease is good that nobody renews.
const GOOD_FOR: Duration = Duration::from_secs(15);
/// A holder that could not renew for so long stops. Well before the Lease may be taken.
const STOP_AFTER: Duration = Duration::from_secs(10);
/// Between two renewals.
const RENEW_EVERY: Duration = Duration::from_secs(3);
/// Between two looks of who waits. A Lease that was released is taken after at most one of them.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// What one call to the API server may take.
const CALL: Duration = Duration::from_secs(4);

/// How often a release is tried while others change the Lease.
const RELEASES: usize = 5;

/// One process's part in the election.
pub(super) struct Election {
    api: Api<Lease>,
    name: String,
    me: String,
    /// Who holds the Lease, and since when it has not changed, by our clock.
    observed: Option<(Holding, Instant)>,
}

/// What of a Lease changes with every renewal.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Holding {
    holder: String,
    renewed: Option<Timestamp>,
    transitions: i32,
}

impl Holding {
    fn of(lease: &Lease) -> Self {
        let spec = lease.spec.clone().unwrap_or_default();
        Self {
            holder: spec.holder_identity.unwrap_or_default(),
            renewed: spec.renew_time.map(|time| time.0),
            transitions: spec.lease_transitions.unwrap_or_default(),
        }
    }
}

/// Until when this process may act as the leader.
#[derive(Clone)]
pub(super) struct Mandate(Arc<Mutex<Instant>>);

impl Mandate {
    fn until(time: Instant) -> Self {
        Self(Arc::new(Mutex::new(time)))
    }

    fn extend(&self, until: Instant) {
        *self.0.lock().expect("invariant: no panic while held") = until;
    }

    /// Whether it still holds. A process that was stopped for a while finds out here before anybody tells it.
    pub(super) fn holds(&self) -> bool {
        Instant::now() < *self.0.lock().expect("invariant: no panic while held")
    }
}

/// A Lease that this process holds.
pub(super) struct Held {
    lease: Lease,
    pub(super) mandate: Mandate,
    renewed: Instant,
}

impl Election {
    pub(super) fn new(client: Client, lease: &LeaseName, me: &str) -> Self {
        let api = Api::namespaced(client, &lease.namespace);
        Self { api, name: lease.name.clone(), me: me.to_owned(), observed: None }
    }

    /// Waits until this process holds the Lease. `beat` is called with each look: with what went wrong, if anything.
    pub(super) async fn acquire(&mut self, mut beat: impl FnMut(Option<&OperatorError>)) -> Held {
        loop {
            let began = Instant::now();
            match self.try_acquire(began).await {
                Ok(Some(held)) => {
                    beat(None);
                    return held;
                }
                Ok(None) => beat(None),
                Err(error) => beat(Some(&error)),
            }
            tokio::time::sleep(self.until_next_look(Instant::now())).await;
        }
    }

    /// Until the next look of who waits, which comes as soon as a Lease that nobody renews may be taken.
    fn until_next_look(&self, now: Instant) -> Duration {
        let usual = LOOK_EVERY.mul_f64(0.8 + 0.4 * fastrand::f64());
        let left = self.observed.as_ref().map(|(_, since)| (*since + GOOD_FOR).saturating_duration_since(now));
        left.filter(|left| !left.is_zero()).map_or(usual, |left| left.min(usual))
    }

    /// Renews the Lease until it is lost, or until somebody else ends it. `beat` is called as in [`Election::acquire`].
    pub(super) async fn keep(&self, held: &mut Held, mut beat: impl FnMut(Option<&OperatorError>)) -> OperatorError {
        loop {
            tokio::time::sleep(RENEW_EVERY).await;
            loop {
                let began = Instant::now();
                match self.renew(held).await {
                    Ok(()) => {
                        beat(None);
                        held.renewed = began;
                        held.mandate.extend(began + STOP_AFTER);
                        break;
                    }
                    Err(error) if matches!(error, OperatorError::LeaseLost(_)) => return error,
                    Err(error) => {
                        beat(Some(&error));
                        tracing::warn!(%error, "the Lease could not be renewed");
                    }
                }
                if held.renewed.elapsed() + Duration::from_secs(1) >= STOP_AFTER {
                    return OperatorError::LeaseLost("it could not be renewed in time".to_owned());
                }
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }

    /// Gives the Lease back, so that somebody else can take it at once. The last renewal may have been cut off after it
    /// arrived, so a Lease that is another one than we know is read again, and released where it is ours still.
    pub(super) async fn release(&self, held: Held) -> Result<(), OperatorError> {
        let mut lease = held.lease;
        for _ in 0..RELEASES {
            if let Some(spec) = &mut lease.spec {
                (spec.holder_identity, spec.renew_time) = (None, Some(MicroTime(Timestamp::now())));
            }
            match self.replace(&lease, "release the Lease").await {
                Err(error) if is_conflict(&error) => {}
                Err(error) if error.is_gone() => return Ok(()),
                answer => return answer.map(drop),
            }
            match bounded(self.api.get_opt(&self.name), "give us the Lease").await? {
                Some(found) if Holding::of(&found).holder == self.me => lease = found,
                // Gone, or somebody else's, or released by an answer that was lost.
                _ => return Ok(()),
            }
        }
        Err(OperatorError::LeaseChanged)
    }

    async fn try_acquire(&mut self, now: Instant) -> Result<Option<Held>, OperatorError> {
        let found = bounded(self.api.get_opt(&self.name), "give us the Lease").await?;
        let Some(lease) = found else {
            let fresh = Lease {
                metadata: ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() },
                spec: Some(self.spec(0, None)),
            };
            let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
            return match bounded(self.api.create(&params, &fresh), "make the Lease").await {
                Err(error) if is_conflict(&error) => Ok(None),
                made => Ok(Some(Held::new(made?, now))),
            };
        };
        if !self.is_free(Holding::of(&lease), now) {
            return Ok(None);
        }
        let mut wanted = lease;
        let transitions = wanted.spec.as_ref().and_then(|spec| spec.lease_transitions).unwrap_or_default();
        wanted.spec = Some(self.spec(transitions.saturating_add(1), None));
        match self.replace(&wanted, "take the Lease").await {
            Err(error) if is_conflict(&error) => Ok(None),
            taken => Ok(Some(Held::new(taken?, now))),
        }
    }

    /// Whether a Lease may be taken: released, our own, or unchanged for too long.
    fn is_free(&mut self, now_is: Holding, now: Instant) -> bool {
        let free = now_is.holder.is_empty() || now_is.holder == self.me;
        match &self.observed {
            Some((was, since)) if *was == now_is => free || now.duration_since(*since) >= GOOD_FOR,
            _ => {
                self.observed = Some((now_is, now));
                free
            }
        }
    }

    async fn renew(&self, held: &mut Held) -> Result<(), OperatorError> {
        let mut wanted = held.lease.clone();
        let spec = wanted.spec.clone().unwrap_or_default();
        wanted.spec = Some(self.spec(spec.lease_transitions.unwrap_or_default(), spec.acquire_time));
        match self.replace(&wanted, "renew the Lease").await {
            Ok(renewed) => {
                held.lease = renewed;
                Ok(())
            }
            Err(error) if is_conflict(&error) || error.is_gone() => self.look_again(held).await,
            Err(error) => Err(error),
        }
    }

    /// Somebody changed the Lease. If it is ours all the same, an answer was lost or a label was added.
    async fn look_again(&self, held: &mut Held) -> Result<(), OperatorError> {
        let found = bounded(self.api.get_opt(&self.name), "give us the Lease").await?;
        let found = found.ok_or_else(|| OperatorError::LeaseLost("somebody deleted it".to_owned()))?;
        let holder = Holding::of(&found).holder;
        if holder != self.me {
            return Err(OperatorError::LeaseLost(format!("{holder:?} has it")));
        }
        held.lease = found;
        Err(OperatorError::LeaseChanged)
    }

    async fn replace(&self, lease: &Lease, action: &'static str) -> Result<Lease, OperatorError> {
        let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        bounded(self.api.replace(&lease.name_any(), &params, lease), action).await
    }

    fn spec(&self, transitions: i32, acquired: Option<MicroTime>) -> LeaseSpec {
        let now = MicroTime(Timestamp::now());
        LeaseSpec {
            holder_identity: Some(self.me.clone()),
            lease_duration_seconds: Some(GOOD_FOR.as_secs() as i32),
            acquire_time: Some(acquired.unwrap_or_else(|| now.clone())),
            renew_time: Some(now),
            lease_transitions: Some(transitions),
            ..LeaseSpec::default()
        }
    }
}

impl Held {
    fn new(lease: Lease, began: Instant) -> Self {
        Self { lease, mandate: Mandate::until(began + STOP_AFTER), renewed: began }
    }
}

/// Ends a term when its Lease is lost, and never later than its mandate.
pub(super) async fn guard(mandate: Mandate, term: CancellationToken) {
    while mandate.holds() {
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    term.cancel();
}

fn is_conflict(error: &OperatorError) -> bool {
    error.code() == Some(409)
}

async fn bounded<T>(
    call: impl Future<Output = Result<T, kube::Error>>,
    action: &'static str,
) -> Result<T, OperatorError> {
    error::within(CALL, call, action).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holding(holder: &str, renewed: i64) -> Holding {
        let renewed = Some(Timestamp::from_second(renewed).expect("a time"));
        Holding { holder: holder.into(), renewed, transitions: 1 }
    }

    fn election() -> Election {
        election_at("http://127.0.0.1:1")
    }

    fn election_at(url: &str) -> Election {
        drop(rustls::crypto::ring::default_provider().install_default());
        let client = Client::try_from(kube::Config::new(url.parse().expect("a URL")));
        let name = LeaseName { namespace: "windlass".into(), name: "windlass".into() };
        Election::new(client.expect("a client"), &name, "me")
    }

    #[tokio::test]
    async fn a_lease_is_taken_when_it_is_released_or_unchanged_for_as_long_as_it_is_good() {
        let (mut election, start) = (election(), Instant::now());
        assert!(!election.is_free(holding("other", 1), start), "the first look says nothing");
        assert!(!election.is_free(holding("other", 1), start + GOOD_FOR - Duration::from_millis(1)));
        assert!(election.is_free(holding("other", 1), start + GOOD_FOR));
        assert!(!election.is_free(holding("other", 2), start + GOOD_FOR), "it was renewed");
        assert!(!election.is_free(holding("other", 2), start + GOOD_FOR * 2 - Duration::from_millis(1)));
        assert!(election.is_free(holding("", 3), start + GOOD_FOR), "it was released");
        assert!(election.is_free(holding("me", 4), start + GOOD_FOR), "it is ours");
    }

    #[tokio::test]
    async fn a_lease_that_nobody_renews_is_looked_at_when_it_may_be_taken() {
        let (mut election, start) = (election(), Instant::now());
        election.is_free(holding("other", 1), start);
        assert!(election.until_next_look(start) >= LOOK_EVERY.mul_f64(0.8));
        let nearly = Duration::from_millis(70);
        assert_eq!(election.until_next_look(start + GOOD_FOR - nearly), nearly);
        assert!(election.until_next_look(start + GOOD_FOR) >= LOOK_EVERY.mul_f64(0.8), "no haste where it is refused");
    }

    #[tokio::test]
    async fn a_holder_whose_renewals_fail_says_so_with_each_of_them() {
        let (election, mut said) = (election(), Vec::new());
        // Its time is nearly over, so the first failure is the last one.
        let mut held = Held::new(Lease::default(), Instant::now() - STOP_AFTER);
        let ended = election.keep(&mut held, |trouble| said.push(trouble.map(ToString::to_string))).await;
        assert!(matches!(ended, OperatorError::LeaseLost(_)), "{ended}");
        assert!(matches!(&said[..], [Some(words)] if words.contains("renew the Lease")), "{said:?}");
    }

    /// An API server that keeps one Lease, as far as versions guard it.
    async fn server(lease: Lease) -> (String, Arc<Mutex<Lease>>) {
        let kept = Arc::new(Mutex::new(lease));
        let (read, write) = (kept.clone(), kept.clone());
        let get = async move || axum::Json(read.lock().expect("no panic while held").clone());
        let put = async move |axum::Json(new): axum::Json<Lease>| {
            let mut kept = write.lock().expect("no panic while held");
            if new.metadata.resource_version != kept.metadata.resource_version {
                let said =
                    serde_json::json!({"kind": "Status", "status": "Failure", "code": 409, "reason": "Conflict"});
                return (axum::http::StatusCode::CONFLICT, axum::Json(said));
            }
            let version = kept.resource_version().and_then(|version| version.parse::<u64>().ok()).expect("a version");
            *kept = new;
            kept.metadata.resource_version = Some((version + 1).to_string());
            (axum::http::StatusCode::OK, axum::Json(serde_json::to_value(&*kept).expect("JSON")))
        };
        let pages = axum::Router::new().fallback(axum::routing::get(get).put(put));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        tokio::spawn(async move { axum::serve(listener, pages).await });
        (url, kept)
    }

    fn lease(holder: &str, version: u64) -> Lease {
        Lease {
            metadata: ObjectMeta {
                name: Some("windlass".into()),
                resource_version: Some(version.to_string()),
                ..ObjectMeta::default()
            },
            spec: Some(LeaseSpec { holder_identity: Some(holder.into()), ..LeaseSpec::default() }),
        }
    }

    async fn released(on_the_server: Lease, known: Lease) -> Holding {
        let (url, kept) = server(on_the_server).await;
        let held = Held::new(known, Instant::now());
        election_at(&url).release(held).await.expect("released");
        let kept = kept.lock().expect("no panic while held");
        Holding::of(&kept)
    }

    #[tokio::test]
    async fn a_lease_whose_last_renewal_was_cut_off_is_released_all_the_same() {
        let after = released(lease("me", 2), lease("me", 1)).await;
        assert_eq!(after.holder, "");
        assert!(after.renewed.is_some(), "who waits sees that it changed");
        assert_eq!(released(lease("me", 1), lease("me", 1)).await.holder, "");
    }

    #[tokio::test]
    async fn a_lease_that_somebody_else_took_is_left_to_them() {
        assert_eq!(released(lease("other", 2), lease("me", 1)).await, Holding::of(&lease("other", 2)));
    }

    #[test]
    fn a_holder_stops_before_anybody_else_may_begin() {
        assert!(STOP_AFTER + CALL < GOOD_FOR);
    }
}
