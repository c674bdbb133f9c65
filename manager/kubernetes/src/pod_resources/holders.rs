//! What kubelet says of who has what, by container.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_proto::kubelet::pod_resources::ListPodResourcesResponse;

use crate::node::Consumer;

/// The containers of the node that have devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holders(Vec<Holder>);

/// A container, and what it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Which container.
    pub consumer: Consumer,
    /// Ids of device plugins' units, by resource.
    pub devices: BTreeMap<String, BTreeSet<String>>,
    /// Fully qualified names of the CDI devices of its claims.
    pub cdi_devices: BTreeSet<String>,
}

impl Holders {
    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Holder> {
        self.0.iter()
    }

    /// The container that has exactly these units of a resource.
    #[must_use]
    pub fn of(&self, resource: &str, ids: &BTreeSet<String>) -> Option<&Holder> {
        self.0.iter().find(|holder| holder.devices.get(resource) == Some(ids))
    }

    /// All units of a resource that somebody has.
    #[must_use]
    pub fn held(&self, resource: &str) -> BTreeSet<&str> {
        let of_resource = self.0.iter().filter_map(|holder| holder.devices.get(resource));
        of_resource.flatten().map(String::as_str).collect()
    }
}

impl From<ListPodResourcesResponse> for Holders {
    fn from(answer: ListPodResourcesResponse) -> Holders {
        let mut found = Vec::new();
        for pod in answer.pod_resources {
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
                found.push(Holder { consumer, devices, cdi_devices });
            }
        }
        Holders(found)
    }
}

impl FromIterator<Holder> for Holders {
    fn from_iter<I: IntoIterator<Item = Holder>>(holders: I) -> Holders {
        Holders(holders.into_iter().collect())
    }
}
