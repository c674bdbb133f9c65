//! The containers that have devices, as kubelet tells.
//!
//! A unit of a device plugin belongs to one pod. Several containers of the pod have it if one ends before the others
//! start: an init container, and the containers after it.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_node::Consumer;
use aliquot_proto::kubelet::pod_resources::ListPodResourcesResponse;

use super::recorded::Recorded;

/// The containers of the node that have devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holders {
    listed: Vec<Holder>,
    pods: BTreeSet<PodName>,
    recorded: Vec<Recorded>,
    /// Why the checkpoint could not be read.
    unread: Option<String>,
}

/// A pod's namespace and name.
pub type PodName = (String, String);

/// A container with its devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The container and its pod.
    pub consumer: Consumer,
    /// Ids of device plugins' units, by resource.
    pub devices: BTreeMap<String, BTreeSet<String>>,
    /// Fully qualified names of the CDI devices of its claims.
    pub cdi_devices: BTreeSet<String>,
}

impl Holders {
    /// Combines the list of `PodResources` and the checkpoint, which may be older.
    #[must_use]
    pub(super) fn new(listed: ListPodResourcesResponse, recorded: Result<Vec<Recorded>, String>) -> Holders {
        let (recorded, unread) = match recorded {
            Ok(recorded) => (recorded, None),
            Err(reason) => (Vec::new(), Some(reason)),
        };
        Holders { recorded, unread, ..Holders::from(listed) }
    }

    /// Holders with only these recorded containers.
    #[cfg(test)]
    pub(crate) fn with_recorded(recorded: Vec<Recorded>) -> Holders {
        Holders { recorded, ..Holders::default() }
    }

    /// All containers that `PodResources` lists. It does not list init containers that end before the others start.
    pub fn iter(&self) -> impl Iterator<Item = &Holder> {
        self.listed.iter()
    }

    /// The pods that have not ended, including those without devices.
    pub fn pods(&self) -> impl Iterator<Item = &PodName> {
        self.pods.iter()
    }

    /// All containers that kubelet's checkpoint records.
    #[must_use]
    pub fn recorded(&self) -> &[Recorded] {
        &self.recorded
    }

    /// The reason why the checkpoint could not be read; `None` if it was.
    #[must_use]
    pub fn unread(&self) -> Option<&str> {
        self.unread.as_deref()
    }

    /// The listed container that has exactly these units of a resource.
    #[must_use]
    pub fn of(&self, resource: &str, ids: &BTreeSet<String>) -> Option<&Holder> {
        self.listed.iter().find(|holder| holder.devices.get(resource) == Some(ids))
    }

    /// A listed container that has one of these units of a resource.
    #[must_use]
    pub fn of_any(&self, resource: &str, ids: &BTreeSet<String>) -> Option<&Holder> {
        let has_one = |held: &BTreeSet<String>| !held.is_disjoint(ids);
        self.listed.iter().find(|holder| holder.devices.get(resource).is_some_and(has_one))
    }

    /// The units of a resource that each container has.
    pub fn units<'a>(&'a self, resource: &'a str) -> impl Iterator<Item = &'a BTreeSet<String>> {
        let listed = self.listed.iter().map(|holder| &holder.devices);
        let all = listed.chain(self.recorded.iter().map(|recorded| &recorded.devices));
        all.filter_map(move |devices| devices.get(resource))
    }
}

impl From<ListPodResourcesResponse> for Holders {
    fn from(answer: ListPodResourcesResponse) -> Holders {
        let (mut listed, mut pods) = (Vec::new(), BTreeSet::new());
        for pod in answer.pod_resources {
            pods.insert((pod.namespace.clone(), pod.name.clone()));
            for container in pod.containers {
                let mut devices: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
                for of_resource in container.devices {
                    // A resource has an entry for each NUMA node.
                    devices.entry(of_resource.resource_name).or_default().extend(of_resource.device_ids);
                }
                let claims = container.dynamic_resources.into_iter().flat_map(|claim| claim.claim_resources);
                let cdi_devices: BTreeSet<String> =
                    claims.flat_map(|claim| claim.cdi_devices).map(|device| device.name).collect();
                if devices.is_empty() && cdi_devices.is_empty() {
                    continue;
                }
                let consumer =
                    Consumer { namespace: pod.namespace.clone(), pod: pod.name.clone(), container: container.name };
                listed.push(Holder { consumer, devices, cdi_devices });
            }
        }
        Holders { listed, pods, ..Holders::default() }
    }
}

impl FromIterator<Holder> for Holders {
    fn from_iter<I: IntoIterator<Item = Holder>>(holders: I) -> Holders {
        let listed: Vec<Holder> = holders.into_iter().collect();
        let pods =
            listed.iter().map(|holder| (holder.consumer.namespace.clone(), holder.consumer.pod.clone())).collect();
        Holders { listed, pods, ..Holders::default() }
    }
}
