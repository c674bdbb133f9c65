//! The storage that is left for new volumes, as far as CSI drivers say so.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_dialects::quantity;
use aliquot_scheduler_core::{NodeOperator, NodeRequirement, NodeTerm};
use k8s_openapi::api::storage::v1::{CSIDriver, CSIStorageCapacity};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::{ClaimFacts, Mirror, Name};
use crate::peers;

/// What CSI drivers say of the storage that is left.
#[derive(Debug, Default)]
pub(super) struct Capacities {
    /// The drivers that say how much is left. Their volumes are made only where enough is.
    drivers: BTreeSet<String>,
    /// By namespace and name of the CSIStorageCapacity.
    segments: BTreeMap<Name, Segment>,
}

/// Nodes that reach the same storage, for one class.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Segment {
    class: String,
    /// What the labels of these nodes must say; all nodes if empty.
    requirements: BTreeSet<NodeRequirement>,
    /// The largest volume that can be made.
    volume_bytes_max: u64,
}

impl Mirror {
    pub(crate) fn csi_driver(&mut self, driver: CSIDriver) {
        let name = driver.metadata.name.unwrap_or_default();
        self.volumes.has_changed |= match driver.spec.storage_capacity == Some(true) {
            true => self.volumes.capacities.drivers.insert(name.clone()),
            false => self.volumes.capacities.drivers.remove(&name),
        };
        self.keep_from_nodes_without(name, driver.spec.prevent_pod_scheduling_if_missing == Some(true));
    }

    pub(crate) fn csi_driver_gone(&mut self, name: &str) {
        self.volumes.has_changed |= self.volumes.capacities.drivers.remove(name);
        self.keep_from_nodes_without(name.to_owned(), false);
    }

    pub(crate) fn csi_driver_names(&self) -> BTreeSet<String> {
        self.volumes.capacities.drivers.iter().chain(self.drivers_that_must_be_there()).cloned().collect()
    }

    pub(crate) fn storage_capacity(&mut self, capacity: CSIStorageCapacity) {
        let metadata = capacity.metadata;
        let name = (metadata.namespace.unwrap_or_default(), metadata.name.unwrap_or_default());
        // As for kube-scheduler, the limit of one volume counts before what is left in all, and one without topology or
        // amount says nothing of any node.
        let bytes = capacity.maximum_volume_size.or(capacity.capacity).as_ref().and_then(bytes);
        let requirements = peers::requirements(capacity.node_topology.as_ref()).ok().flatten();
        let segment = requirements.zip(bytes).map(|(requirements, volume_bytes_max)| Segment {
            class: capacity.storage_class_name,
            requirements,
            volume_bytes_max,
        });
        let segments = &mut self.volumes.capacities.segments;
        let before = match segment.clone() {
            Some(segment) => segments.insert(name, segment),
            None => segments.remove(&name),
        };
        self.volumes.has_changed |= before != segment;
    }

    pub(crate) fn storage_capacity_gone(&mut self, namespace: &str, name: &str) {
        let name = (namespace.to_owned(), name.to_owned());
        self.volumes.has_changed |= self.volumes.capacities.segments.remove(&name).is_some();
    }

    pub(crate) fn storage_capacity_names(&self) -> impl Iterator<Item = (&str, &str)> {
        let names = self.volumes.capacities.segments.keys();
        names.map(|(namespace, name)| (namespace.as_str(), name.as_str()))
    }
}

impl Capacities {
    /// The nodes that reach enough storage for the new volume of a claim; empty: all.
    ///
    /// # Errors
    /// No node reaches enough storage.
    pub(super) fn terms(&self, name: &str, claim: &ClaimFacts, driver: &str) -> Result<BTreeSet<NodeTerm>, String> {
        let (Some(wanted), true) = (&claim.size, self.drivers.contains(driver)) else { return Ok(BTreeSet::new()) };
        let wanted_bytes = bytes(wanted).unwrap_or(u64::MAX);
        let is_enough = |of: &&Segment| Some(&of.class) == claim.class.as_ref() && of.volume_bytes_max >= wanted_bytes;
        let segments: Vec<&Segment> = self.segments.values().filter(is_enough).collect();
        if segments.is_empty() {
            return Err(format!(
                "the PersistentVolumeClaim {name:?} asks for {}, and its driver {driver} says that no node has so much \
                 storage left for the StorageClass {:?}",
                wanted.0,
                claim.class.as_deref().unwrap_or_default()
            ));
        }
        match segments.iter().any(|segment| segment.requirements.is_empty()) {
            true => Ok(BTreeSet::new()),
            false => Ok(joined(segments.into_iter().map(|segment| &segment.requirements))),
        }
    }
}

/// One term for all segments that ask for values of the same label alone: with local disks each node is a segment.
fn joined<'a>(segments: impl Iterator<Item = &'a BTreeSet<NodeRequirement>>) -> BTreeSet<NodeTerm> {
    let (mut terms, mut values_of) = (BTreeSet::new(), BTreeMap::<&String, BTreeSet<String>>::new());
    for requirements in segments {
        let mut all = requirements.iter();
        match (all.next(), all.next()) {
            (Some(NodeRequirement { key, operator: NodeOperator::In(values) }), None) => {
                values_of.entry(key).or_default().extend(values.iter().cloned());
            }
            _ => _ = terms.insert(NodeTerm { requirements: requirements.clone() }),
        }
    }
    terms.extend(values_of.into_iter().map(|(key, values)| {
        let requirement = NodeRequirement { key: key.clone(), operator: NodeOperator::In(values) };
        NodeTerm { requirements: BTreeSet::from([requirement]) }
    }));
    terms
}

/// Rounded up to whole bytes, as Kubernetes does on both sides of the comparison.
pub(super) fn bytes(quantity: &Quantity) -> Option<u64> {
    u64::try_from(quantity::thousandths(&quantity.0).ok()?.div_ceil(1000)).ok()
}
