//! Sorts of objects that a cluster may lack: they are watched while the API server has them.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::Arc;

use aliquot_api_server::Client;
use k8s_openapi::api::resource::v1::ResourceSlice;
use kube::api::{Api, ApiResource, GroupVersionKind};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::{debug, info, warn};

use super::device_claims::{DeviceClasses, DeviceTaintRules, ResourceClaims, ResourceSlices};
use super::elastic_gpus::{ElasticGpuClaims, ElasticGpuClasses, ElasticGpus};
use super::follow::{Sight, follow, forget};
use super::served::Served;
use super::{Queues, QueuesOfKai, SchedulingPolicies, queues_of_kai};
use crate::gang::{Address, GangKind};
use crate::mirror::{Access, Mirror};
use crate::owner::OwnerKind;
use crate::serve::Shared;
use crate::workload::WorkloadKind;

/// Resources that are of use only together. Each is read after those that its objects refer to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    Queues,
    QueuesOfKai,
    SchedulingPolicies,
    ElasticGpus,
    /// Claims are read before devices, so that no device is given out that a claim has already.
    DeviceClaims,
    DeviceTaintRules,
    Gang(GangKind),
    /// Objects whose words count for their pods.
    Owners(OwnerKind),
    /// Workloads that a leader has suspended.
    Suspended(WorkloadKind),
}

/// Follows a resource until the API server has it no more.
type Following = Pin<Box<dyn Future<Output = ()> + Send>>;
type Follow = Box<dyn FnOnce(watch::Sender<Option<Access>>) -> Following + Send>;

impl Family {
    pub(super) fn all() -> impl Iterator<Item = Family> {
        let single = [
            Family::Queues,
            Family::QueuesOfKai,
            Family::SchedulingPolicies,
            Family::ElasticGpus,
            Family::DeviceClaims,
            Family::DeviceTaintRules,
        ];
        let suspended = WorkloadKind::ALL.map(Family::Suspended);
        let owners = OwnerKind::ALL.map(Family::Owners);
        single.into_iter().chain(GangKind::ALL.map(Family::Gang)).chain(owners).chain(suspended)
    }

    /// Without these a new leader can decide: pods of gangs wait, pods are evicted one by one, and the words of what stands
    /// above a workload do not count.
    fn can_come_later(self) -> bool {
        match self {
            Family::Gang(_) | Family::Suspended(_) => true,
            Family::Owners(kind) => kind.is_above_others(),
            _ => false,
        }
    }

    /// Group, versions (the best one first), and plural names.
    fn address(self) -> (&'static str, &'static [&'static str], Vec<&'static str>) {
        let own = |plurals: &[&'static str]| ("aliquot.dev", &["v1alpha1"][..], plurals.to_vec());
        match self {
            Family::Queues => own(&["queues"]),
            Family::QueuesOfKai => (QueuesOfKai::GROUP, &[QueuesOfKai::VERSION], vec![QueuesOfKai::PLURAL]),
            Family::SchedulingPolicies => own(&["schedulingpolicies"]),
            Family::ElasticGpus => own(&["elasticgpus", "elasticgpuclasses", "elasticgpuclaims"]),
            Family::DeviceClaims => {
                ("resource.k8s.io", &["v1"], vec!["resourceclaims", "deviceclasses", "resourceslices"])
            }
            Family::DeviceTaintRules => ("resource.k8s.io", &["v1", "v1beta2", "v1alpha3"], vec!["devicetaintrules"]),
            Family::Gang(kind) => {
                let Address { group, versions, plural, .. } = kind.api();
                (group, versions, vec![plural])
            }
            Family::Owners(kind) => {
                let Address { group, versions, plural, .. } = kind.api();
                (group, versions, vec![plural])
            }
            Family::Suspended(kind) => {
                let Address { group, versions, plural, .. } = kind.api();
                (group, versions, vec![plural])
            }
        }
    }

    /// All groups with a version that can be read, as `group/version`.
    pub(super) fn group_versions(self) -> BTreeSet<String> {
        let (group, versions, _) = self.address();
        versions.iter().map(|version| format!("{group}/{version}")).collect()
    }

    /// The best version in which the API server has all of it.
    fn version(self, served: &Served) -> Option<&'static str> {
        let (group, versions, plurals) = self.address();
        let has_all = |version: &str| plurals.iter().all(|plural| served.has(group, version, plural));
        versions.iter().copied().find(|version| has_all(version))
    }

    fn say_absent(self) {
        let (group, versions, plurals) = self.address();
        let (resources, versions) = (plurals.join(", "), versions.join(" or "));
        let what = format!("the cluster has no {resources} of {group} in version {versions}");
        match self {
            Family::Gang(_)
            | Family::Owners(_)
            | Family::Suspended(_)
            | Family::DeviceTaintRules
            | Family::QueuesOfKai => {
                debug!("{what}; they are watched once they are there")
            }
            Family::DeviceClaims => info!("{what}; they are watched once they are there"),
            _ => warn!("{what}; the scheduler works without them; apply its manifests, which define them"),
        }
    }

    /// Removes its objects from the mirror.
    fn forget(self, mirror: &mut Mirror) {
        match self {
            Family::Queues => forget(&Queues, mirror),
            Family::QueuesOfKai => forget(&QueuesOfKai, mirror),
            Family::SchedulingPolicies => forget(&SchedulingPolicies, mirror),
            Family::ElasticGpus => {
                forget(&ElasticGpuClaims, mirror);
                forget(&ElasticGpuClasses, mirror);
                forget(&ElasticGpus, mirror);
            }
            Family::DeviceClaims => {
                forget(&ResourceSlices, mirror);
                forget(&DeviceClasses, mirror);
                forget(&ResourceClaims, mirror);
            }
            Family::DeviceTaintRules => forget(&DeviceTaintRules, mirror),
            Family::Gang(kind) => forget(&kind, mirror),
            Family::Owners(kind) => forget(&kind, mirror),
            Family::Suspended(kind) => forget(&kind, mirror),
        }
    }

    /// How each of its resources is followed, in the order of reading.
    fn follows(self, version: &'static str, client: &Client, shared: &Arc<Shared>) -> Vec<Follow> {
        let all = || client.clone();
        match self {
            Family::Queues => vec![of(Queues, Api::all(all()), shared)],
            Family::QueuesOfKai => vec![of(QueuesOfKai, Api::all_with(all(), &queues_of_kai()), shared)],
            Family::SchedulingPolicies => vec![of(SchedulingPolicies, Api::all(all()), shared)],
            Family::ElasticGpus => vec![
                of(ElasticGpus, Api::all(all()), shared),
                of(ElasticGpuClasses, Api::all(all()), shared),
                of(ElasticGpuClaims, Api::all(all()), shared),
            ],
            Family::DeviceClaims => vec![
                of(ResourceClaims, Api::all(all()), shared),
                of(DeviceClasses, Api::all(all()), shared),
                of(ResourceSlices, Api::all_with(all(), &ApiResource::erase::<ResourceSlice>(&())), shared),
            ],
            Family::DeviceTaintRules => {
                let kind = GroupVersionKind::gvk("resource.k8s.io", version, "DeviceTaintRule");
                let resource = ApiResource::from_gvk_with_plural(&kind, "devicetaintrules");
                vec![of(DeviceTaintRules, Api::all_with(all(), &resource), shared)]
            }
            Family::Gang(kind) => {
                shared.change(|mirror| mirror.gangs_are_in(kind, version));
                vec![of(kind, Api::all_with(all(), &kind.api().resource(version)), shared)]
            }
            Family::Owners(kind) => {
                vec![of(kind, Api::all_with(all(), &kind.api().resource(version)), shared)]
            }
            Family::Suspended(kind) => {
                shared.change(|mirror| mirror.suspendables_are_in(kind, version));
                vec![of(kind, Api::all_with(all(), &kind.resource(version)), shared)]
            }
        }
    }

    /// Watches its resources whenever the API server has all of them, and says in `access` whether the mirror shows their
    /// objects. Ends only when the sender of `served` is dropped.
    pub(super) async fn keep(
        self,
        client: Client,
        shared: Arc<Shared>,
        mut served: watch::Receiver<Option<Served>>,
        access: watch::Sender<Option<Access>>,
    ) {
        let mut is_complained = false;
        loop {
            let (version, lacks_answers) = match served.borrow_and_update().as_ref() {
                Some(served) => (Some(self.version(served)), served.lacks_answers(&self.group_versions())),
                None => (None, false),
            };
            match version {
                Some(Some(version)) => {
                    self.follow(version, &client, &shared, &access).await;
                    // A new leader need not wait for gangs that are served by name only, for example. Without other
                    // resources it could decide wrongly, so it waits for them.
                    let is_known = access.borrow().is_some();
                    if !is_known {
                        if !std::mem::replace(&mut is_complained, true) {
                            let (group, _, plurals) = self.address();
                            let resources = plurals.join(", ");
                            warn!(group, resources, "the API server names them, but does not have them; trying again");
                        }
                        if self.can_come_later() {
                            shared.change(|mirror| self.forget(mirror));
                            access.send_replace(Some(Access::Absent));
                        }
                    }
                }
                Some(None) if lacks_answers => self.is_unanswered(&shared, &access),
                Some(None) if *access.borrow() != Some(Access::Absent) => {
                    self.say_absent();
                    shared.change(|mirror| self.forget(mirror));
                    access.send_replace(Some(Access::Absent));
                }
                Some(None) | None => {}
            }
            // A resource was not found. The next look tells whether it was removed, or was missing for a moment only.
            if served.changed().await.is_err() {
                return;
            }
        }
    }

    /// The API server does not say whether it has its resources. Without some a new leader can begin. Without others it
    /// could decide wrongly, so it waits.
    fn is_unanswered(self, shared: &Shared, access: &watch::Sender<Option<Access>>) {
        let is_known = access.borrow().is_some();
        if self.can_come_later() && !is_known {
            shared.change(|mirror| match self {
                Family::Gang(kind) => mirror.gangs_are(kind, Access::Unanswered),
                Family::Owners(kind) => mirror.owners_are(kind, Access::Unanswered),
                Family::Suspended(kind) => mirror.suspendables_are(kind, Access::Unanswered),
                _ => {}
            });
            access.send_replace(Some(Access::Unanswered));
        }
    }

    /// Follows its resources until one of them is gone.
    async fn follow(
        self,
        version: &'static str,
        client: &Client,
        shared: &Arc<Shared>,
        access: &watch::Sender<Option<Access>>,
    ) {
        let mut tasks = JoinSet::new();
        self.follow_together(&mut tasks, version, client, shared, access).await;
        // A task that is being ended can still show objects. They would stay if they came after the family is forgotten.
        tasks.shutdown().await;
    }

    async fn follow_together(
        self,
        tasks: &mut JoinSet<()>,
        version: &'static str,
        client: &Client,
        shared: &Arc<Shared>,
        access: &watch::Sender<Option<Access>>,
    ) {
        for follow in self.follows(version, client, shared) {
            let (told, mut of_resource) = watch::channel(None);
            tasks.spawn(follow(told));
            loop {
                let seen = *of_resource.borrow_and_update();
                match seen {
                    Some(Access::Read) => break,
                    Some(_) => _ = access.send_replace(seen),
                    None => {}
                }
                tokio::select! {
                    _ = tasks.join_next() => return,
                    _ = of_resource.changed() => {}
                }
            }
        }
        access.send_replace(Some(Access::Read));
        tasks.join_next().await;
    }
}

fn of<S: Sight>(sight: S, objects: Api<S::Object>, shared: &Arc<Shared>) -> Follow {
    let shared = Arc::clone(shared);
    Box::new(move |access| Box::pin(follow(Arc::new(sight), objects, shared, access)))
}
