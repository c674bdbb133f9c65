//! Devices of drivers, their taints, their classes and claims for them, where the cluster has them.

use std::collections::BTreeSet;

use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim};
use kube::ResourceExt;
use kube::api::DynamicObject;
use tracing::warn;

use super::follow::Sight;
use super::in_namespace;
use crate::dra::{ClaimFacts, TaintRule, read_slice};
use crate::mirror::{Access, Mirror};

/// A field of their devices had another name before.
pub(super) struct ResourceSlices;

impl Sight for ResourceSlices {
    type Object = DynamicObject;

    fn name(&self) -> String {
        "resourceslices".into()
    }

    fn key(&self, slice: &DynamicObject) -> Option<String> {
        slice.metadata.name.clone()
    }

    fn show(&self, slice: DynamicObject, _: &str, mirror: &mut Mirror) {
        let name = slice.name_any();
        match read_slice(slice) {
            Ok(slice) => mirror.resource_slice(slice),
            Err(error) => {
                warn!(slice = name, error, "the ResourceSlice cannot be read, so no device of its pool is given out");
                mirror.resource_slice_gone(&name);
            }
        }
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

/// Their versions differ in what is not read.
pub(super) struct DeviceTaintRules;

impl Sight for DeviceTaintRules {
    type Object = DynamicObject;

    const STARTS_WITHOUT_RIGHT: bool = true;

    fn name(&self) -> String {
        "devicetaintrules".into()
    }

    fn key(&self, rule: &DynamicObject) -> Option<String> {
        rule.metadata.name.clone()
    }

    fn show(&self, rule: DynamicObject, _: &str, mirror: &mut Mirror) {
        let name = rule.name_any();
        let read = TaintRule::of(&rule.data).inspect_err(|error| {
            warn!(rule = name, error, "the DeviceTaintRule cannot be read, so devices do not have its taint");
        });
        mirror.device_taint_rule(&name, read.ok());
    }

    fn gone(&self, key: &str, mirror: &mut Mirror) {
        mirror.device_taint_rule(key, None);
    }

    fn shown(&self, mirror: &Mirror) -> BTreeSet<String> {
        mirror.device_taint_rule_names()
    }

    fn access(&self, access: Access, mirror: &mut Mirror) {
        mirror.device_taint_rules_are(access);
    }
}
