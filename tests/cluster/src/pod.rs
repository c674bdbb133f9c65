//! Reads the fields of pods.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimConsumerReference};

use aliquot_test_api_server::{POD_GROUPS, Quantity};

pub(crate) fn uid_of(pod: &Pod) -> String {
    pod.metadata.uid.clone().unwrap_or_default()
}

/// The namespace and the name of the pod.
pub(crate) fn name_of(pod: &Pod) -> (String, String) {
    let metadata = &pod.metadata;
    (metadata.namespace.clone().unwrap_or_default(), metadata.name.clone().unwrap_or_default())
}

/// The containers of the pod, without init containers.
pub(crate) fn containers_of(pod: &Pod) -> &[Container] {
    pod.spec.as_ref().map(|spec| spec.containers.as_slice()).unwrap_or_default()
}

/// The init containers of the pod.
pub(crate) fn init_containers_of(pod: &Pod) -> &[Container] {
    pod.spec.as_ref().and_then(|spec| spec.init_containers.as_deref()).unwrap_or_default()
}

/// All containers of the pod, in the order in which they start.
pub(crate) fn all_containers_of(pod: &Pod) -> impl Iterator<Item = &Container> {
    init_containers_of(pod).iter().chain(containers_of(pod))
}

/// Whether an init container is a sidecar: it keeps running beside the containers after it.
pub(crate) fn is_sidecar(init_container: &Container) -> bool {
    init_container.restart_policy.as_deref() == Some("Always")
}

/// The names of the pod's claims, by the names that its containers use for them.
///
/// # Errors
/// If a claim from a template has not been made yet.
pub(crate) fn claim_names(pod: &Pod) -> Result<BTreeMap<String, String>, String> {
    let mut names = BTreeMap::new();
    let statuses = pod.status.iter().flat_map(|status| status.resource_claim_statuses.iter().flatten());
    for claim in pod.spec.iter().flat_map(|spec| spec.resource_claims.iter().flatten()) {
        let made = || statuses.clone().find(|status| status.name == claim.name)?.resource_claim_name.clone();
        let name = claim.resource_claim_name.clone().or_else(made);
        let name = name.ok_or_else(|| format!("the claim for {:?} has not been made yet", claim.name))?;
        names.insert(claim.name.clone(), name);
    }
    Ok(names)
}

/// Whether a claim is reserved for the pod, or for the PodGroup that the pod names. A pod does not know its group's UID.
pub(crate) fn is_user(pod: &Pod, claim: &ResourceClaim) -> bool {
    let group = pod.spec.as_ref().and_then(|spec| spec.scheduling_group.as_ref()?.pod_group_name.as_ref());
    let users = claim.status.iter().flat_map(|status| status.reserved_for.iter().flatten());
    users.into_iter().any(|user| user.uid == uid_of(pod) || is_group(user) && group == Some(&user.name))
}

/// Whether a user of a claim is a PodGroup of Kubernetes' own.
pub(crate) fn is_group(user: &ResourceClaimConsumerReference) -> bool {
    user.resource == POD_GROUPS.plural && user.api_group.as_deref() == Some(POD_GROUPS.group)
}

/// The claim that was made for the pod's extended resources, and pairs of a container and its request.
pub(crate) fn extended_claim(pod: &Pod) -> Option<(&str, Vec<(&str, &str)>)> {
    let claim = pod.status.as_ref()?.extended_resource_claim_status.as_ref()?;
    let mappings = claim.request_mappings.iter();
    let pairs = mappings.map(|mapping| (mapping.container_name.as_str(), mapping.request_name.as_str()));
    Some((&claim.resource_claim_name, pairs.collect()))
}

/// How much of each extended resource a container asks for.
pub(crate) fn extended_resources(container: &Container) -> BTreeMap<String, usize> {
    let limits = container.resources.iter().flat_map(|resources| resources.limits.iter().flatten());
    let extended = limits.filter(|(resource, _)| resource.contains('/'));
    let counted = extended.filter_map(|(resource, limit)| {
        let units = Quantity::parse(&limit.0)?.units();
        Some((resource.clone(), usize::try_from(units).ok()?))
    });
    counted.collect()
}

/// The phase of the pod.
pub(crate) fn phase_of(pod: &Pod) -> Option<&str> {
    pod.status.as_ref()?.phase.as_deref()
}

/// Whether the pod has ended.
pub(crate) fn is_terminal(pod: &Pod) -> bool {
    matches!(phase_of(pod), Some("Succeeded" | "Failed"))
}
