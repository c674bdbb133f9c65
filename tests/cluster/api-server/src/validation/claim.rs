//! Checks of ResourceClaims and their status.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::NodeSelector;
use k8s_openapi::api::resource::v1::{
    AllocatedDeviceStatus, AllocationResult, DeviceClaim, DeviceRequest, OpaqueDeviceConfiguration, ResourceClaim,
    ResourceClaimTemplate,
};
use serde_json::Value;

use super::super::status::Failure;
use super::{at_most, extension, name, require, typed, unique};

const MAX_REQUESTS: usize = 32;
const MAX_CONSTRAINTS: usize = 32;
const MAX_CONFIGURATIONS: usize = 32;
const MAX_FIRST_AVAILABLE: usize = 8;
const MAX_RESULTS: usize = 32;
const MAX_RESERVED_FOR: usize = 256;
const MAX_CONDITIONS: usize = 8;

/// The names of a claim's requests, each with the names of its alternatives.
type RequestNames<'a> = BTreeMap<&'a str, Vec<&'a str>>;

pub(in super::super) fn validate(object: &Value, old: Option<&Value>) -> Result<(), Failure> {
    let claim: ResourceClaim = typed(object)?;
    if let Some(old) = old {
        let old: ResourceClaim = typed(old)?;
        return require(claim.spec == old.spec, "spec", || "field is immutable".into());
    }
    devices(&claim.spec.and_then(|spec| spec.devices).unwrap_or_default(), "spec.devices")
}

pub(in super::super) fn validate_template(object: &Value, _old: Option<&Value>) -> Result<(), Failure> {
    let template: ResourceClaimTemplate = typed(object)?;
    let spec = template.spec.and_then(|template| template.spec);
    devices(&spec.and_then(|spec| spec.devices).unwrap_or_default(), "spec.spec.devices")
}

/// Checks the opaque configuration of a class or a claim.
pub(super) fn opaque(configuration: Option<&OpaqueDeviceConfiguration>, path: &str) -> Result<(), Failure> {
    let Some(opaque) = configuration else {
        return Err(Failure::invalid(path, "opaque is required"));
    };
    name::driver(&opaque.driver, &format!("{path}.opaque.driver"))?;
    extension(&opaque.parameters.0, &format!("{path}.opaque.parameters"))
}

fn devices(claim: &DeviceClaim, path: &str) -> Result<(), Failure> {
    let requests = claim.requests.as_deref().unwrap_or_default();
    at_most(requests.len(), MAX_REQUESTS, &format!("{path}.requests"))?;
    unique(requests.iter().map(|request| &request.name), &format!("{path}.requests"))?;
    for (index, each) in requests.iter().enumerate() {
        request(each, &format!("{path}.requests[{index}]"))?;
    }
    let names = request_names(claim);
    let constraints = claim.constraints.as_deref().unwrap_or_default();
    at_most(constraints.len(), MAX_CONSTRAINTS, &format!("{path}.constraints"))?;
    for constraint in constraints {
        references(constraint.requests.as_deref(), &names, &format!("{path}.constraints"))?;
        let attribute = constraint.match_attribute.as_ref().xor(constraint.distinct_attribute.as_ref());
        require(attribute.is_some_and(|name| name.contains('/')), &format!("{path}.constraints"), || {
            "one of matchAttribute and distinctAttribute is required, with its domain".into()
        })?;
    }
    let configurations = claim.config.as_deref().unwrap_or_default();
    at_most(configurations.len(), MAX_CONFIGURATIONS, &format!("{path}.config"))?;
    for configuration in configurations {
        references(configuration.requests.as_deref(), &names, &format!("{path}.config"))?;
        opaque(configuration.opaque.as_ref(), &format!("{path}.config"))?;
    }
    Ok(())
}

fn request(request: &DeviceRequest, path: &str) -> Result<(), Failure> {
    name::label(&request.name, &format!("{path}.name"))?;
    let alternatives = request.first_available.as_deref().unwrap_or_default();
    require(request.exactly.is_some() == alternatives.is_empty(), path, || {
        "exactly one of exactly and firstAvailable is required".into()
    })?;
    if let Some(exactly) = &request.exactly {
        name::subdomain(&exactly.device_class_name, &format!("{path}.exactly.deviceClassName"))?;
        count(exactly.allocation_mode.as_deref(), exactly.count, path)?;
    }
    at_most(alternatives.len(), MAX_FIRST_AVAILABLE, &format!("{path}.firstAvailable"))?;
    unique(alternatives.iter().map(|alternative| &alternative.name), &format!("{path}.firstAvailable"))?;
    for alternative in alternatives {
        name::label(&alternative.name, &format!("{path}.firstAvailable.name"))?;
        name::subdomain(&alternative.device_class_name, &format!("{path}.firstAvailable.deviceClassName"))?;
        count(alternative.allocation_mode.as_deref(), alternative.count, path)?;
    }
    Ok(())
}

fn count(mode: Option<&str>, count: Option<i64>, path: &str) -> Result<(), Failure> {
    match mode.unwrap_or("ExactCount") {
        "ExactCount" => require(count.unwrap_or(1) > 0, path, || "count must be greater than zero".into()),
        "All" => require(count.unwrap_or(0) == 0, path, || "count must not be given with allocationMode All".into()),
        mode => Err(Failure::invalid(path, format!("allocationMode {mode:?} is not supported"))),
    }
}

fn request_names(claim: &DeviceClaim) -> RequestNames<'_> {
    let requests = claim.requests.iter().flatten();
    requests
        .map(|request| {
            let alternatives = request.first_available.iter().flatten();
            (request.name.as_str(), alternatives.map(|alternative| alternative.name.as_str()).collect())
        })
        .collect()
}

fn references(references: Option<&[String]>, names: &RequestNames<'_>, path: &str) -> Result<(), Failure> {
    let references = references.unwrap_or_default();
    unique(references.iter(), path)?;
    references.iter().try_for_each(|each| reference(each, names, path))
}

/// Checks the name of a request, or `request/alternative`.
fn reference(name: &str, names: &RequestNames<'_>, path: &str) -> Result<(), Failure> {
    let known = match name.split_once('/') {
        Some((request, alternative)) => names.get(request).is_some_and(|names| names.contains(&alternative)),
        None => names.contains_key(name),
    };
    require(known, path, || format!("{name:?} must be the name of a request in the claim"))
}

pub(in super::super) fn validate_status(object: &Value, old: &Value) -> Result<(), Failure> {
    let (claim, old): (ResourceClaim, ResourceClaim) = (typed(object)?, typed(old)?);
    let deleted = claim.metadata.deletion_timestamp.is_some();
    let (status, old_status) = (claim.status.unwrap_or_default(), old.status.unwrap_or_default());
    let devices = claim.spec.and_then(|spec| spec.devices).unwrap_or_default();

    let users = status.reserved_for.as_deref().unwrap_or_default();
    at_most(users.len(), MAX_RESERVED_FOR, "status.reservedFor")?;
    unique(users.iter().map(|user| &user.uid), "status.reservedFor")?;
    for user in users {
        let complete = !user.resource.is_empty() && !user.name.is_empty() && !user.uid.is_empty();
        require(complete, "status.reservedFor", || "resource, name and uid are required".into())?;
        let added = !old_status.reserved_for.iter().flatten().any(|old| old.uid == user.uid);
        require(!(deleted && added), "status.reservedFor", || {
            "no user may be added to a claim that is deleted".into()
        })?;
    }
    require(users.is_empty() || status.allocation.is_some(), "status.reservedFor", || {
        "may not be given while the claim is not allocated".into()
    })?;

    let statuses = status.devices.as_deref().unwrap_or_default();
    unique(statuses.iter().map(identity), "status.devices")?;
    for (index, each) in statuses.iter().enumerate() {
        device_status(each, status.allocation.as_ref(), &format!("status.devices[{index}]"))?;
    }

    match (&old_status.allocation, &status.allocation) {
        (Some(old), Some(new)) => require(old == new, "status.allocation", || "field is immutable".into()),
        (None, Some(new)) => allocation(new, &request_names(&devices)),
        _ => Ok(()),
    }
}

fn identity(device: &AllocatedDeviceStatus) -> (&str, &str, &str, Option<&str>) {
    (&device.driver, &device.pool, &device.device, device.share_id.as_deref())
}

fn device_status(
    device: &AllocatedDeviceStatus,
    allocation: Option<&AllocationResult>,
    path: &str,
) -> Result<(), Failure> {
    let results = allocation.and_then(|allocation| allocation.devices.as_ref()).and_then(|all| all.results.as_ref());
    let allocated = results.into_iter().flatten().any(|result| {
        (result.driver.as_str(), result.pool.as_str(), result.device.as_str(), result.share_id.as_deref())
            == identity(device)
    });
    require(allocated, path, || format!("{:?} must be an allocated device in the claim", identity(device)))?;
    let conditions = device.conditions.as_deref().unwrap_or_default();
    at_most(conditions.len(), MAX_CONDITIONS, &format!("{path}.conditions"))?;
    unique(conditions.iter().map(|condition| &condition.type_), &format!("{path}.conditions"))?;
    for condition in conditions {
        let path = format!("{path}.conditions");
        name::label_key(&condition.type_, &path)?;
        require(["True", "False", "Unknown"].contains(&condition.status.as_str()), &path, || {
            format!("status {:?} is not supported", condition.status)
        })?;
        let mut reason = condition.reason.chars();
        let begins = reason.next().is_some_and(|first| first.is_ascii_alphabetic());
        let holds = begins && reason.all(|c| c.is_ascii_alphanumeric() || "_,:".contains(c));
        require(holds && condition.reason.len() <= 1024, &path, || {
            format!("reason {:?} must be a word in CamelCase", condition.reason)
        })?;
    }
    match &device.data {
        Some(data) => extension(&data.0, &format!("{path}.data")),
        None => Ok(()),
    }
}

fn allocation(allocation: &AllocationResult, names: &RequestNames<'_>) -> Result<(), Failure> {
    let path = "status.allocation.devices";
    let devices = allocation.devices.clone().unwrap_or_default();
    let results = devices.results.as_deref().unwrap_or_default();
    at_most(results.len(), MAX_RESULTS, &format!("{path}.results"))?;
    for result in results {
        reference(&result.request, names, &format!("{path}.results.request"))?;
        name::driver(&result.driver, &format!("{path}.results.driver"))?;
        name::pool(&result.pool, &format!("{path}.results.pool"))?;
        name::label(&result.device, &format!("{path}.results.device"))?;
        if let Some(share) = &result.share_id {
            name::uid(share, &format!("{path}.results.shareID"))?;
        }
    }
    if let Some(selector) = &allocation.node_selector {
        node_selector(selector, "status.allocation.nodeSelector")?;
    }
    let configurations = devices.config.as_deref().unwrap_or_default();
    at_most(configurations.len(), 2 * MAX_CONFIGURATIONS, &format!("{path}.config"))?;
    for configuration in configurations {
        let source = configuration.source.as_str();
        require(["FromClass", "FromClaim"].contains(&source), path, || format!("source {source:?} is not supported"))?;
        references(configuration.requests.as_deref(), names, &format!("{path}.config"))?;
        opaque(configuration.opaque.as_ref(), &format!("{path}.config"))?;
    }
    Ok(())
}

fn node_selector(selector: &NodeSelector, path: &str) -> Result<(), Failure> {
    let terms = selector.node_selector_terms.as_slice();
    require(terms.len() == 1, &format!("{path}.nodeSelectorTerms"), || {
        "must have exactly one node selector term".into()
    })?;
    for field in terms.iter().flat_map(|term| term.match_fields.iter().flatten()) {
        let is_one = field.values.as_ref().is_some_and(|values| values.len() == 1);
        let path = format!("{path}.nodeSelectorTerms.matchFields");
        require(field.key == "metadata.name", &path, || format!("{:?} is not a valid field selector key", field.key))?;
        require(["In", "NotIn"].contains(&field.operator.as_str()) && is_one, &path, || {
            "must have the operator In or NotIn, and exactly one value".into()
        })?;
    }
    Ok(())
}
