//! Persistent volumes, the claims for them, and what is known of the drivers that make and attach them.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment};
use kube::ResourceExt;

use super::follow::Sight;
use super::in_namespace;
use crate::mirror::Mirror;

pub(super) struct Volumes;

impl Sight for Volumes {
    type Object = PersistentVolume;

    fn name(&self) -> String {
        "persistentvolumes".into()
    }

    fn key(&self, volume: &PersistentVolume) -> Option<String> {
        volume.metadata.name.clone()
    }

    fn show(&self, volume: PersistentVolume, _: &str, mirror: &mut Mirror) {
        mirror.volume(volume);
    }

    fn gone(&self, key: &str, mirror: &mut Mirror) {
        mirror.volume_gone(key);
    }

    fn shown(&self, mirror: &Mirror) -> BTreeSet<String> {
        mirror.volume_names()
    }
}

pub(super) struct VolumeClaims;

impl Sight for VolumeClaims {
    type Object = PersistentVolumeClaim;

    fn name(&self) -> String {
        "persistentvolumeclaims".into()
    }

    fn key(&self, claim: &PersistentVolumeClaim) -> Option<String> {
        Some(in_namespace(&claim.namespace()?, &claim.name_any()))
    }

    fn show(&self, claim: PersistentVolumeClaim, _: &str, mirror: &mut Mirror) {
        mirror.volume_claim(claim);
    }

    fn gone(&self, key: &str, mirror: &mut Mirror) {
        if let Some((namespace, name)) = key.split_once('/') {
            mirror.volume_claim_gone(namespace, name);
        }
    }

    fn shown(&self, mirror: &Mirror) -> BTreeSet<String> {
        mirror.volume_claim_names().map(|(namespace, name)| in_namespace(namespace, name)).collect()
    }
}

pub(super) struct StorageClasses;

impl Sight for StorageClasses {
    type Object = StorageClass;

    fn name(&self) -> String {
        "storageclasses".into()
    }

    fn key(&self, class: &StorageClass) -> Option<String> {
        class.metadata.name.clone()
    }

    fn show(&self, class: StorageClass, _: &str, mirror: &mut Mirror) {
        mirror.storage_class(class);
    }

    fn gone(&self, key: &str, mirror: &mut Mirror) {
        mirror.storage_class_gone(key);
    }

    fn shown(&self, mirror: &Mirror) -> BTreeSet<String> {
        mirror.storage_class_names()
    }
}

pub(super) struct CsiNodes;

impl Sight for CsiNodes {
    type Object = CSINode;

    /// Without the right no limit of volumes counts.
    const STARTS_WITHOUT_RIGHT: bool = true;

    fn name(&self) -> String {
        "csinodes".into()
    }

    fn key(&self, node: &CSINode) -> Option<String> {
        node.metadata.name.clone()
    }

    fn show(&self, node: CSINode, _: &str, mirror: &mut Mirror) {
        mirror.csi_node(node);
    }

    fn gone(&self, key: &str, mirror: &mut Mirror) {
        mirror.csi_node_gone(key);
    }

    fn shown(&self, mirror: &Mirror) -> BTreeSet<String> {
        mirror.csi_node_names()
    }
}

pub(super) struct VolumeAttachments;

impl Sight for VolumeAttachments {
    type Object = VolumeAttachment;

    const STARTS_WITHOUT_RIGHT: bool = true;

    fn name(&self) -> String {
        "volumeattachments".into()
    }

    fn key(&self, attachment: &VolumeAttachment) -> Option<String> {
        attachment.metadata.name.clone()
    }

    fn show(&self, attachment: VolumeAttachment, _: &str, mirror: &mut Mirror) {
        mirror.volume_attachment(attachment);
    }

    fn gone(&self, key: &str, mirror: &mut Mirror) {
        mirror.volume_attachment_gone(key);
    }

    fn shown(&self, mirror: &Mirror) -> BTreeSet<String> {
        mirror.volume_attachment_names()
    }
}

pub(super) struct CsiDrivers;

impl Sight for CsiDrivers {
    type Object = CSIDriver;

    /// Without the right, no driver is known to say how much storage is left.
    const STARTS_WITHOUT_RIGHT: bool = true;

    fn name(&self) -> String {
        "csidrivers".into()
    }

    fn key(&self, driver: &CSIDriver) -> Option<String> {
        driver.metadata.name.clone()
    }

    fn show(&self, driver: CSIDriver, _: &str, mirror: &mut Mirror) {
        mirror.csi_driver(driver);
    }

    fn gone(&self, key: &str, mirror: &mut Mirror) {
        mirror.csi_driver_gone(key);
    }

    fn shown(&self, mirror: &Mirror) -> BTreeSet<String> {
        mirror.csi_driver_names()
    }
}

pub(super) struct StorageCapacities;

impl Sight for StorageCapacities {
    type Object = CSIStorageCapacity;

    const STARTS_WITHOUT_RIGHT: bool = true;

    fn name(&self) -> String {
        "csistoragecapacities".into()
    }

    fn key(&self, capacity: &CSIStorageCapacity) -> Option<String> {
        let metadata = &capacity.metadata;
        Some(in_namespace(metadata.namespace.as_deref()?, metadata.name.as_deref()?))
    }

    fn show(&self, capacity: CSIStorageCapacity, _: &str, mirror: &mut Mirror) {
        mirror.storage_capacity(capacity);
    }

    fn gone(&self, key: &str, mirror: &mut Mirror) {
        if let Some((namespace, name)) = key.split_once('/') {
            mirror.storage_capacity_gone(namespace, name);
        }
    }

    fn shown(&self, mirror: &Mirror) -> BTreeSet<String> {
        mirror.storage_capacity_names().map(|(namespace, name)| in_namespace(namespace, name)).collect()
    }
}
