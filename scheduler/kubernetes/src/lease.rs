//! The election of a leader: the replica that holds the Lease leads.
//!
//! If somebody deletes the Lease, its holder makes it again and leads on. Until then others find none, as on a cluster
//! where nobody has led yet. A second Lease tells them apart: every leader sees to it that it is there, and nobody holds
//! it. Where it is, whoever finds no Lease waits until each holder has made it again or leads no more.

mod keeper;

use std::sync::Arc;
use std::time::Duration;

use aliquot_api_server::questions::LEASE as NAME;
use aliquot_api_server::{Client, is_conflict, is_not_found, message};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Api, PostParams};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

use crate::serve::Config;
use crate::telemetry::{Status, Written};

pub(crate) use keeper::Keeper;

/// The Lease that says that a replica has led here. Whoever makes it is the first one.
const HAS_LED: &str = "aliquot-scheduler-has-led";

/// The annotation of the Lease that says where kube-scheduler reaches the leader's extender.
const EXTENDER: &str = "aliquot.dev/extender";

/// A leader that has not renewed its lease for this long leads no more.
const LEASE: Duration = Duration::from_secs(10);
/// Time between two tries to get or renew it.
const RETRY: Duration = Duration::from_secs(2);

/// A replica that waits for the lease, or holds it.
#[derive(Clone)]
struct Candidate {
    leases: Api<Lease>,
    /// No two replicas have the same.
    identity: String,
    extender_url: Option<String>,
    status: Arc<Status>,
}

/// Until when this replica may write.
#[derive(Clone, Debug)]
pub(crate) struct Fence {
    until: Arc<Mutex<Instant>>,
}

impl Fence {
    /// The right to write until then.
    pub(crate) fn until(at: Instant) -> Fence {
        Fence { until: Arc::new(Mutex::new(at)) }
    }

    /// How long this replica may still write; `None`: its lease is over.
    pub(crate) fn left(&self) -> Option<Duration> {
        let left = self.until.lock().saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }

    /// What comes of a write; `None`: this replica may not write, or not for so long.
    pub(crate) async fn within<T>(&self, write: impl Future<Output = T>) -> Option<T> {
        timeout(self.left()?, write).await.ok()
    }

    /// Ends the right to write.
    pub(crate) fn end(&self) {
        *self.until.lock() = Instant::now();
    }
}

/// The state of another replica's lease that was seen last, and when it was seen. The times in the lease are not used,
/// because the clocks of machines differ.
struct Seen {
    /// `None`: no lease was seen yet, or it was deleted.
    resource_version: Option<String>,
    at: Instant,
    is_deleted: bool,
}

/// What became of this replica's lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Renewal {
    Renewed,
    /// It had been deleted.
    MadeAgain,
    /// Another replica has it.
    Lost,
}

impl Candidate {
    fn new(client: Client, config: &Config, status: Arc<Status>) -> Candidate {
        let (identity, extender_url) = (config.identity.clone(), config.extender_url.clone());
        Candidate { leases: Api::namespaced(client, &config.namespace), identity, extender_url, status }
    }

    /// Waits until this replica leads. Returns its term, which no leader has had before unless the lease was deleted while
    /// nobody led, and until when it may write.
    async fn lead(&self) -> (u64, Fence) {
        let mut seen = Seen { resource_version: None, at: Instant::now(), is_deleted: false };
        let mut last_holder = String::new();
        loop {
            let asked = Instant::now();
            let tried = self.try_to_lead(&mut seen).await;
            self.note(&tried);
            match tried {
                Ok(Ok(term)) => {
                    info!(term, identity = self.identity, "this replica leads");
                    return (term, Fence::until(asked + LEASE));
                }
                Ok(Err(holder)) if holder != last_holder => {
                    info!(holder, "another replica leads");
                    last_holder = holder;
                }
                Ok(Err(_)) => {}
                Err(error) => warn!(error = message(&error), "cannot ask for the lease"),
            }
            // A lease that is not renewed is taken as soon as it is over.
            let left = LEASE.saturating_sub(seen.at.elapsed());
            sleep(if left.is_zero() { RETRY } else { RETRY.min(left) }).await;
        }
    }

    fn note<T>(&self, answer: &kube::Result<T>) {
        match answer {
            Ok(_) => self.status.answered(),
            Err(_) => self.status.write_failed(Written::Lease),
        }
    }

    /// Takes the lease if no replica holds it. Returns the term, or the replica that holds the lease.
    async fn try_to_lead(&self, seen: &mut Seen) -> kube::Result<Result<u64, String>> {
        let Some(lease) = self.leases.get_opt(NAME).await? else {
            if seen.resource_version.is_some() {
                *seen = Seen { resource_version: None, at: Instant::now(), is_deleted: true };
            }
            if !seen.is_deleted && !self.is_first().await? {
                info!("there is no lease, but a replica has led before; waiting until it leads no more");
                *seen = Seen { resource_version: None, at: Instant::now(), is_deleted: true };
            }
            // Its holder may write until it is over, and makes it again before that.
            if seen.is_deleted && seen.at.elapsed() < LEASE {
                return Ok(Err(String::new()));
            }
            return taken(self.create(1).await, 1);
        };
        let spec = lease.spec.clone().unwrap_or_default();
        let holder = spec.holder_identity.clone().unwrap_or_default();
        if seen.resource_version != lease.metadata.resource_version {
            let resource_version = lease.metadata.resource_version.clone();
            *seen = Seen { resource_version, at: Instant::now(), is_deleted: false };
        }
        if !holder.is_empty() && holder != self.identity && seen.at.elapsed() < LEASE {
            let annotations = lease.metadata.annotations.as_ref();
            self.status.leader_is_at(annotations.and_then(|annotations| annotations.get(EXTENDER)).cloned());
            return Ok(Err(holder));
        }
        self.status.leader_is_at(None);
        let term = spec.lease_transitions.unwrap_or(0).max(0).saturating_add(1);
        let mut metadata = lease.metadata;
        self.say_where(&mut metadata);
        let lease = Lease { metadata, spec: Some(self.held(term)) };
        taken(self.leases.replace(NAME, &PostParams::default(), &lease).await, term)
    }

    /// Notes that a replica has led or is about to. Whether none has before.
    async fn is_first(&self) -> kube::Result<bool> {
        let metadata = ObjectMeta { name: Some(HAS_LED.into()), ..ObjectMeta::default() };
        match self.leases.create(&PostParams::default(), &Lease { metadata, spec: None }).await {
            Ok(_) => Ok(true),
            Err(error) if is_conflict(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn create(&self, term: i32) -> kube::Result<Lease> {
        let mut metadata = ObjectMeta { name: Some(NAME.into()), ..ObjectMeta::default() };
        self.say_where(&mut metadata);
        let lease = Lease { metadata, spec: Some(self.held(term)) };
        self.leases.create(&PostParams::default(), &lease).await
    }

    /// Writes where the extender of this replica is, in place of what an earlier leader wrote.
    fn say_where(&self, metadata: &mut ObjectMeta) {
        let annotations = metadata.annotations.get_or_insert_default();
        annotations.remove(EXTENDER);
        annotations.extend(self.extender_url.clone().map(|url| (EXTENDER.to_owned(), url)));
    }

    fn held(&self, term: i32) -> LeaseSpec {
        let now = MicroTime(Timestamp::now());
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(LEASE.as_secs()).ok(),
            acquire_time: Some(now.clone()),
            renew_time: Some(now),
            lease_transitions: Some(term),
            ..LeaseSpec::default()
        }
    }

    /// Renews the lease until that is not possible any more, and says why.
    async fn renew(&self, term: u64, fence: &Fence) -> String {
        let mut is_noted = false;
        loop {
            sleep(RETRY).await;
            let Some(left) = fence.left() else { return "it was not renewed in time".into() };
            let asked = Instant::now();
            let Ok(renewed) = timeout(left, self.renew_once(term)).await else {
                return "the API server did not answer in time".into();
            };
            self.note(&renewed);
            match renewed {
                Ok(Renewal::Lost) => return "another replica has taken it".into(),
                Ok(renewal) => {
                    *fence.until.lock() = asked + LEASE;
                    // Whoever deletes the lease may delete all.
                    is_noted &= renewal == Renewal::Renewed;
                    is_noted = is_noted || matches!(timeout(RETRY, self.is_first()).await, Ok(Ok(_)));
                }
                Err(error) => warn!(error = message(&error), "cannot renew the lease"),
            }
        }
    }

    async fn renew_once(&self, term: u64) -> kube::Result<Renewal> {
        let Some(mut lease) = self.leases.get_opt(NAME).await? else {
            warn!(term, "the lease was deleted; making it again");
            return match self.create(i32::try_from(term).unwrap_or(i32::MAX)).await {
                // Another replica was faster.
                Err(error) if is_conflict(&error) => Ok(Renewal::Lost),
                other => other.map(|_| Renewal::MadeAgain),
            };
        };
        let Some(spec) = lease.spec.as_mut().filter(|spec| self.is_ours(spec, term)) else {
            return Ok(Renewal::Lost);
        };
        spec.renew_time = Some(MicroTime(Timestamp::now()));
        // If another replica was faster, the next try sees its lease.
        self.leases.replace(NAME, &PostParams::default(), &lease).await.map(|_| Renewal::Renewed)
    }

    fn is_ours(&self, spec: &LeaseSpec, term: u64) -> bool {
        let is_term = spec.lease_transitions.and_then(|number| u64::try_from(number).ok()) == Some(term);
        is_term && spec.holder_identity.as_deref() == Some(&self.identity)
    }

    /// Gives the lease back, so that the next leader need not wait for its end.
    async fn give_back(&self, term: u64) {
        let given = async {
            // The last renewal may still be on its way, and change the lease in between.
            loop {
                match self.give_back_once(term).await {
                    Err(error) if is_conflict(&error) => {}
                    other => return other,
                }
            }
        };
        match timeout(RETRY, given).await {
            Ok(Err(error)) => warn!(error = message(&error), "cannot give the lease back"),
            Err(_) => warn!("cannot give the lease back: the API server does not answer"),
            Ok(Ok(())) => {}
        }
    }

    async fn give_back_once(&self, term: u64) -> kube::Result<()> {
        let Some(mut lease) = self.leases.get_opt(NAME).await? else { return Ok(()) };
        let Some(spec) = lease.spec.as_mut().filter(|spec| self.is_ours(spec, term)) else { return Ok(()) };
        spec.holder_identity = None;
        self.leases.replace(NAME, &PostParams::default(), &lease).await.map(drop)
    }
}

/// Reads the answer to taking the lease: another replica may have been faster.
fn taken(answer: kube::Result<Lease>, term: i32) -> kube::Result<Result<u64, String>> {
    match answer {
        Ok(_) => Ok(Ok(u64::try_from(term).unwrap_or(0))),
        Err(error) if is_conflict(&error) || is_not_found(&error) => Ok(Err(String::new())),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;
