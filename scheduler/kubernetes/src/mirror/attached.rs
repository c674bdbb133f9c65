//! How many volumes of a CSI driver a node can have attached, and how many it has.
//!
//! The books know a resource for each driver of which waiting pods have volumes: a pod asks for as many as it has
//! different volumes, and a node has as many as can be attached beside those that are.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::storage::v1::{CSINode, CSINodeDriver, VolumeAttachment};

use super::Mirror;
use super::volumes::{self, Name};
use crate::pod::PodFacts;

/// What the resource of a driver is called, followed by the driver.
const VOLUMES: &str = "attachable volumes of ";
/// The number of volumes that can be attached where nothing limits it.
const UNLIMITED: u64 = 1 << 32;

/// A volume of a driver: the driver, and what it calls the volume. A volume that is not made yet has the name of its
/// claim.
pub(super) type Attached = (String, String);

/// What is known of attached volumes.
#[derive(Debug, Default)]
pub(super) struct Attachments {
    /// By node, and by driver that is there, how many volumes can be attached; `None`: it does not limit them.
    limits: BTreeMap<String, BTreeMap<String, Option<u64>>>,
    /// Drivers that keep pods with their volumes from nodes where they are not there (yet).
    must_be_there: BTreeSet<String>,
    /// By the name of a VolumeAttachment, its node.
    attached_to: BTreeMap<String, String>,
    /// By node, and by the name of a VolumeAttachment there, its PersistentVolume.
    attachments: BTreeMap<String, BTreeMap<String, String>>,
    /// Drivers of which pods of ours ask for volumes, or have asked for some.
    drivers: BTreeSet<String>,
}

impl Mirror {
    pub(crate) fn csi_node(&mut self, node: CSINode) {
        let limit = |driver: CSINodeDriver| {
            let count = driver.allocatable.and_then(|allocatable| allocatable.count);
            (driver.name, count.map(|count| u64::try_from(count).unwrap_or(0)))
        };
        let (name, drivers) = (node.metadata.name.unwrap_or_default(), node.spec.drivers);
        let limits: BTreeMap<String, Option<u64>> = drivers.into_iter().map(limit).collect();
        let before = self.attachments.limits.insert(name.clone(), limits.clone());
        if before != Some(limits) {
            self.changed_nodes.insert(name);
        }
    }

    pub(crate) fn csi_node_gone(&mut self, name: &str) {
        if self.attachments.limits.remove(name).is_some() {
            self.changed_nodes.insert(name.to_owned());
        }
    }

    pub(crate) fn csi_node_names(&self) -> BTreeSet<String> {
        self.attachments.limits.keys().cloned().collect()
    }

    /// Notes whether a driver keeps pods with its volumes from nodes where it is not there.
    pub(super) fn keep_from_nodes_without(&mut self, driver: String, does: bool) {
        let has_changed = match does {
            true => self.attachments.must_be_there.insert(driver),
            false => self.attachments.must_be_there.remove(&driver),
        };
        if has_changed {
            self.changed_nodes.extend(self.nodes.keys().cloned());
        }
    }

    pub(super) fn drivers_that_must_be_there(&self) -> impl Iterator<Item = &String> {
        self.attachments.must_be_there.iter()
    }

    pub(crate) fn volume_attachment(&mut self, attachment: VolumeAttachment) {
        let name = attachment.metadata.name.unwrap_or_default();
        let Some(volume) = attachment.spec.source.persistent_volume_name else {
            return self.volume_attachment_gone(&name);
        };
        let node = attachment.spec.node_name;
        if self.attachments.attached_to.get(&name).is_some_and(|before| *before != node) {
            self.volume_attachment_gone(&name);
        }
        self.attachments.attached_to.insert(name.clone(), node.clone());
        let there = self.attachments.attachments.entry(node.clone()).or_default();
        if there.insert(name, volume.clone()).as_ref() != Some(&volume) {
            self.changed_nodes.insert(node);
        }
    }

    pub(crate) fn volume_attachment_gone(&mut self, name: &str) {
        let Some(node) = self.attachments.attached_to.remove(name) else { return };
        if let Some(there) = self.attachments.attachments.get_mut(&node) {
            there.remove(name);
            if there.is_empty() {
                self.attachments.attachments.remove(&node);
            }
        }
        self.changed_nodes.insert(node);
    }

    pub(crate) fn volume_attachment_names(&self) -> BTreeSet<String> {
        self.attachments.attached_to.keys().cloned().collect()
    }

    /// A pod that is not bound asks for volumes of these drivers. Nodes that do not know one yet are told of it.
    pub(super) fn learn_drivers(&mut self, uid: &str) {
        let Some(known) = self.pods.get(uid) else { return };
        let before = self.attachments.drivers.len();
        let asked: Vec<String> = self.attachable(&known.facts).into_iter().map(|(driver, _)| driver).collect();
        self.attachments.drivers.extend(asked);
        if self.attachments.drivers.len() > before {
            self.changed_nodes.extend(self.nodes.keys().cloned());
        }
    }

    /// The resources that stand for the volumes that a pod needs to have attached. Those of an imagined pod count if the
    /// nodes know the driver.
    pub(super) fn volumes_to_attach(&self, facts: &PodFacts) -> BTreeMap<String, u64> {
        let mut resources = BTreeMap::new();
        let attachable = self.attachable(facts).into_iter();
        for (driver, _) in attachable.filter(|(driver, _)| self.attachments.drivers.contains(driver)) {
            *resources.entry(resource_of(&driver)).or_default() += 1;
        }
        resources
    }

    /// The volumes of drivers that a pod has. As for kube-scheduler, those that a pod defines itself (`csi`) do not
    /// count: they are not attached.
    fn attachable(&self, facts: &PodFacts) -> BTreeSet<Attached> {
        let names = volumes::claims_of(facts).map(|name| (facts.namespace.clone(), name));
        names.filter_map(|name| self.volumes.attached_by(&name)).collect()
    }

    /// By the resource of each driver that pods ask for, how many more volumes a node can have.
    pub(super) fn attachable_on(&self, node: &str) -> BTreeMap<String, u64> {
        if self.attachments.drivers.is_empty() {
            return BTreeMap::new();
        }
        let limits = self.attachments.limits.get(node);
        let limit = |driver: &String| match limits.and_then(|limits| limits.get(driver)) {
            Some(limit) => *limit,
            None => self.attachments.must_be_there.contains(driver).then_some(0),
        };
        let mut attached: BTreeSet<Attached> = BTreeSet::new();
        if self.attachments.drivers.iter().any(|driver| limit(driver).is_some()) {
            let pods = self.on_node.get(node).into_iter().flatten().filter_map(|uid| self.pods.get(uid));
            attached.extend(pods.filter(|pod| !pod.is_gone).flat_map(|pod| self.attachable(&pod.facts)));
            // Those of pods that are gone are detached later.
            let there = self.attachments.attachments.get(node).into_iter().flat_map(BTreeMap::values);
            attached.extend(there.filter_map(|volume| self.volumes.handle(volume)));
        }
        let free = |driver: &String| {
            let taken = attached.iter().filter(|(of, _)| of == driver).count();
            let free = limit(driver).map(|limit| limit.saturating_sub(taken.try_into().unwrap_or(u64::MAX)));
            (resource_of(driver), free.unwrap_or(UNLIMITED))
        };
        self.attachments.drivers.iter().map(free).collect()
    }

    /// The claim of a pod that has a node has changed: what is attached there may be another one.
    pub(super) fn attached_claim_changed(&mut self, name: &Name) {
        let users = self.volumes.users_of(name);
        let nodes = users.filter_map(|uid| {
            let pod = self.pods.get(uid)?;
            pod.facts.node.clone().or_else(|| pod.instance.as_ref().map(|instance| instance.node.clone()))
        });
        let nodes: Vec<String> = nodes.collect();
        self.changed_nodes.extend(nodes);
    }
}

/// Those of counted resources that stand for volumes.
pub(super) fn volumes_in(counted: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let volumes = counted.iter().filter(|(name, _)| name.starts_with(VOLUMES));
    volumes.map(|(name, count)| (name.clone(), *count)).collect()
}

fn resource_of(driver: &str) -> String {
    format!("{VOLUMES}{driver}")
}
