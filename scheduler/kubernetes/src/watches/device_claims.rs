//! Devices of drivers, their classes and claims for them, where the cluster has them.

use std::collections::BTreeSet;

use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceSlice};
use kube::ResourceExt;

use super::follow::Sight;
use super::in_namespace;
use crate::dra::ClaimFacts;
use crate::mirror::{Access, Mirror};

pub(super) struct ResourceSlices;

impl Sight for ResourceSlices {
    type Object = ResourceSlice;

    fn name(&self) -> String {
        "resourceslices".into()
    }

    fn key(&self, slice: &ResourceSlice) -> Option<String> {
        slice.metadata.name.clone()
    }

    fn show(&self, slice: ResourceSlice, _: &str, mirror: &mut Mirror) {
        mirror.resource_slice(slice);
    }

    fn gone(&self, key: &str, mirror: &mut Mirror) {
        mirror.resource_slice_gone(key);
    }

    fn shown(&self, mirror: &Mirror) -> BTreeSet<String> {
        mirror.resource_slice_names()
    }
}

pub(super) struct DeviceClasses;

impl Sight for DeviceClasses {
    type Object = DeviceClass;

    fn name(&self) -> String {
        "deviceclasses".into()
    }

    fn key(&self, class: &DeviceClass) -> Option<String> {
        class.metadata.name.clone()
    }

    fn show(&self, class: DeviceClass, _: &str, mirror: &mut Mirror) {
        mirror.device_class(class);
    }

    fn gone(&self, key: &str, mirror: &mut Mirror) {
        mirror.device_class_gone(key);
    }

    fn shown(&self, mirror: &Mirror) -> BTreeSet<String> {
        mirror.device_class_names()
    }
}

pub(super) struct ResourceClaims;

impl Sight for ResourceClaims {
    type Object = ResourceClaim;

    fn name(&self) -> String {
        "resourceclaims".into()
    }

    fn key(&self, claim: &ResourceClaim) -> Option<String> {
        Some(in_namespace(&claim.namespace()?, &claim.name_any()))
    }

    fn show(&self, claim: ResourceClaim, _: &str, mirror: &mut Mirror) {
        if let Some(facts) = ClaimFacts::of(claim) {
            mirror.resource_claim(facts);
        }
    }

    fn gone(&self, key: &str, mirror: &mut Mirror) {
        if let Some((namespace, name)) = key.split_once('/') {
            mirror.resource_claim_gone(namespace, name);
        }
    }

    fn shown(&self, mirror: &Mirror) -> BTreeSet<String> {
        mirror.resource_claim_names().map(|(namespace, name)| in_namespace(namespace, name)).collect()
    }

    fn access(&self, access: Access, mirror: &mut Mirror) {
        mirror.resource_claims_are(access);
    }
}
