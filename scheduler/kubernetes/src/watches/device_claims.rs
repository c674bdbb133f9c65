//! Devices of drivers, their classes and claims for them, where the cluster has them.

use std::collections::BTreeSet;
use std::sync::Arc;

use aliquot_api_server::{Client, is_not_found};
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceSlice};
use kube::ResourceExt;
use kube::api::Api;
use tokio::sync::watch;

use super::{Sight, follow, in_namespace};
use crate::dra::ClaimFacts;
use crate::mirror::Mirror;
use crate::serve::Shared;

/// The API group, in the version that is supported.
const GROUP_VERSION: &str = "resource.k8s.io/v1";

struct ResourceSlices;

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

struct DeviceClasses;

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

struct ResourceClaims;

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

    fn complete(&self, mirror: &mut Mirror) {
        mirror.resource_claims_served();
    }
}

/// Watches devices, classes and claims if the cluster has them. A cluster that gets them later has them for the next
/// leader.
///
/// # Errors
/// The API server does not say what it has.
pub(crate) async fn start_device_claims(
    client: &Client,
    shared: &Arc<Shared>,
) -> Result<Vec<watch::Receiver<bool>>, kube::Error> {
    match client.list_api_group_resources(GROUP_VERSION).await {
        Ok(_) => Ok(vec![
            follow(ResourceSlices, Api::all(client.clone()), shared),
            follow(DeviceClasses, Api::all(client.clone()), shared),
            follow(ResourceClaims, Api::all(client.clone()), shared),
        ]),
        Err(error) if is_not_found(&error) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}
