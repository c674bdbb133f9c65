//! Turns the scheduler's allocation of a claim into the slices to make.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_api_server::slice_config::{AuditPolicy as SaidAuditPolicy, PriorityClass, SliceConfig, SliceConfigError};
use aliquot_dialects::quantity;
use aliquot_node::{AuditPolicy, Device, Devices, Part, Partition, QosClass, SliceRequest};
use k8s_openapi::api::resource::v1::{
    DeviceAllocationConfiguration, DeviceAllocationResult, DeviceRequestAllocationResult, ResourceClaim,
};
use serde::{Deserialize, Serialize};

use super::names::{CORE, ClaimUid, DRIVER, MEMORY, device_of};
use super::partitions::partition_of;

/// The beginning of the descriptions of claims' slices.
const DESCRIPTION_PREFIX: &str = "claim ";
/// Maximum bytes of a slice's description.
const DESCRIPTION_BYTES_MAX: usize = 1024;

/// A slice of a claim, with the results and containers that belong to it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ClaimSlice {
    /// The slice to make. Parts on instances that are yet to be made are added once the instances exist.
    pub slice: SliceRequest,
    /// The devices to report to kubelet, in the order of the claim's status.
    pub devices: Vec<AllocatedDevice>,
    /// The pods and their containers that have the slice, if the claim has other slices besides: kubelet does not tell.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub containers: BTreeSet<(String, String)>,
}

impl ClaimSlice {
    /// The claim's requests that the slice answers.
    #[must_use]
    pub(super) fn requests(&self) -> BTreeSet<String> {
        self.devices.iter().map(|device| device.request.clone()).collect()
    }
}

/// One result of an allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AllocatedDevice {
    /// The claim's request that it answers; for a prioritised list, the list's name.
    pub request: String,
    /// The name of the pool that the device is in.
    pub pool: String,
    /// The device's name in it.
    pub device: String,
    /// The id of the share, on a device that allows several allocations.
    pub share_id: Option<String>,
    /// The MIG instance, if one is made for the claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<Partition>,
    /// The instance's UUID, once it was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance_uuid: Option<String>,
}

/// The reason why a claim cannot be prepared here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum AllocationError {
    /// The claim was deleted, and another claim has its name.
    #[error("there is another claim of that name now, with uid {found}")]
    OtherClaim {
        /// The UID of the other claim.
        found: String,
    },
    /// No scheduler has allocated it yet.
    #[error("nothing is allocated to the claim")]
    NotAllocated,
    /// None of its devices is of this driver.
    #[error("the claim has no device of {DRIVER}")]
    NoDevice,
    /// It was allocated a device of another node.
    #[error("the claim has device {device} of pool {pool}; this node's is {own}")]
    OtherPool {
        /// The device's name in its pool.
        device: String,
        /// The name of the device's pool.
        pool: String,
        /// The pool of this node.
        own: String,
    },
    /// The request asks for administrative access, and not for a part of a device.
    #[error(
        "request {request} asks for administrative access, which {DRIVER} does not support: a slice cannot reach \
         the parts of other slices"
    )]
    AdminAccess {
        /// The name of the claim's request.
        request: String,
    },
    /// The device is gone, or was partitioned.
    #[error("device {device} is not there any more; delete the pod and the claim, so that another one is chosen")]
    Gone {
        /// The device's name in its pool.
        device: String,
    },
    /// The device is not known, and the driver does not answer, for example because it is not loaded yet.
    #[error("device {device} is not known, because the driver does not answer ({problem}); kubelet tries again")]
    DriverSilent {
        /// The device's name in its pool.
        device: String,
        /// Why the driver does not answer.
        problem: String,
    },
    /// The API server returned a value that none of our resource slices allows.
    #[error("request {request} has {capacity} {found:?} of device {device}; it must be {expected}")]
    Capacity {
        /// The name of the claim's request.
        request: String,
        /// The device's name in its pool.
        device: String,
        /// The name of the capacity.
        capacity: &'static str,
        /// The value that was returned.
        found: String,
        /// The condition that the value must meet.
        expected: &'static str,
    },
    /// The requests of a slice add up to more than a whole device.
    #[error("the requests of the claim have {found} percent of device {device} in sum; at most 100 are possible")]
    WholeExceeded {
        /// The device's name in its pool.
        device: String,
        /// The sum, in percent.
        found: u64,
    },
    /// The limit is below the request.
    #[error(
        "coreLimitPercent is {limit}, below the {request} percent of device {device} that are allocated; give a limit \
         of at least {request}"
    )]
    LimitBelowRequest {
        /// The device's name in its pool.
        device: String,
        /// The limit, in percent.
        limit: u32,
        /// The request, in percent.
        request: u32,
    },
    /// Requests of one slice want different values of a field that a slice has only once.
    #[error(
        "the requests {requests:?} have different values of {field}, and they are one slice: give all of them the \
         same, or make two claims"
    )]
    Conflict {
        /// The requests of the slice.
        requests: BTreeSet<String>,
        /// The field of the parameters.
        field: &'static str,
    },
    /// The parameters cannot be understood.
    #[error(transparent)]
    Config(#[from] SliceConfigError),
}

/// The requests of `claim` that are answered with devices of ours. `uid` is the claim's UID in kubelet's request.
///
/// # Errors
/// There are none, or the claim has another UID.
pub(super) fn requests(claim: &ResourceClaim, uid: &ClaimUid) -> Result<BTreeSet<String>, AllocationError> {
    let found = claim.metadata.uid.as_deref().unwrap_or_default();
    if found != uid.as_str() {
        return Err(AllocationError::OtherClaim { found: found.into() });
    }
    if claim.status.as_ref().is_none_or(|status| status.allocation.is_none()) {
        return Err(AllocationError::NotAllocated);
    }
    let requests: BTreeSet<String> = results(claim).map(|result| base(&result.request).into()).collect();
    if requests.is_empty() { Err(AllocationError::NoDevice) } else { Ok(requests) }
}

/// The slices for `claim`, whose UID is `uid`, on this node, whose pool is `pool`: one for each set of its requests.
///
/// # Errors
/// See [`AllocationError`].
pub(super) fn resolve(
    claim: &ResourceClaim,
    uid: &ClaimUid,
    pool: &str,
    devices: &Devices,
    division: &[BTreeSet<String>],
) -> Result<Vec<ClaimSlice>, AllocationError> {
    let allocated = allocated(claim);
    let configs = allocated.and_then(|devices| devices.config.as_deref()).unwrap_or_default();
    let (namespace, name) = (claim.metadata.namespace.as_deref(), claim.metadata.name.as_deref());
    let described = format!("{DESCRIPTION_PREFIX}{}/{}", namespace.unwrap_or_default(), name.unwrap_or_default());
    let mut slices = Vec::new();
    for (number, requests) in division.iter().enumerate() {
        let mut merged = Merged::default();
        for result in results(claim).filter(|result| requests.contains(base(&result.request))) {
            merged.add(result, pool, devices, configs)?;
        }
        slices.push(match division {
            [_] => merged.slice(uid.slice_name(), described.clone())?,
            _ => {
                let requests: Vec<&str> = requests.iter().map(String::as_str).collect();
                let mut described = format!("{described}, {}", requests.join(", "));
                described.truncate(DESCRIPTION_BYTES_MAX);
                merged.slice(uid.numbered_slice_name(number), described)?
            }
        });
    }
    Ok(slices)
}

/// The namespace and the name of a slice's claim, from the slice's description.
#[must_use]
pub(super) fn described(description: &str) -> Option<(String, String)> {
    let claim = description.strip_prefix(DESCRIPTION_PREFIX)?;
    // No name has a comma in it.
    let (namespace, name) = claim.split(',').next()?.split_once('/')?;
    Some((namespace.to_owned(), name.to_owned()))
}

/// Whether a device of this node, whose pool is `pool`, is allocated to the claim.
#[must_use]
pub(super) fn is_allocated(claim: &ResourceClaim, pool: &str) -> bool {
    results(claim).any(|result| result.pool == pool)
}

fn allocated(claim: &ResourceClaim) -> Option<&DeviceAllocationResult> {
    claim.status.as_ref()?.allocation.as_ref()?.devices.as_ref()
}

/// The results of the claim's allocation that are devices of ours.
fn results(claim: &ResourceClaim) -> impl Iterator<Item = &DeviceRequestAllocationResult> {
    let all = allocated(claim).and_then(|devices| devices.results.as_deref()).unwrap_or_default();
    all.iter().filter(|result| result.driver == DRIVER)
}

/// The results so far, collected for one slice.
#[derive(Default)]
struct Merged {
    parts: Vec<Part>,
    devices: Vec<AllocatedDevice>,
    configs: Vec<SliceConfig>,
}

impl Merged {
    fn add(
        &mut self,
        result: &DeviceRequestAllocationResult,
        pool: &str,
        devices: &Devices,
        configs: &[DeviceAllocationConfiguration],
    ) -> Result<(), AllocationError> {
        let name = || result.device.clone();
        if result.pool != pool {
            return Err(AllocationError::OtherPool { device: name(), pool: result.pool.clone(), own: pool.into() });
        }
        if result.admin_access == Some(true) {
            return Err(AllocationError::AdminAccess { request: result.request.clone() });
        }
        let config = config_of(&result.request, configs)?;
        let partition = partition_of(devices, &result.device).map(|offer| offer.partition());
        if partition.is_some() {
            core_limit_percent(result, 100, &config)?;
        } else {
            let device = device_of(devices, &result.device)
                .filter(|device| !device.is_partitioned)
                .ok_or_else(|| missing(name(), devices))?;
            let part = part(result, device, &config)?;
            match self.parts.iter_mut().find(|known| known.device_uuid == part.device_uuid) {
                None => self.parts.push(part),
                Some(known) => join(known, &part, &result.device)?,
            }
        }
        self.configs.push(config);
        self.devices.push(AllocatedDevice {
            request: base(&result.request).into(),
            pool: result.pool.clone(),
            device: name(),
            share_id: result.share_id.clone(),
            partition,
            instance_uuid: None,
        });
        Ok(())
    }

    fn slice(self, name: String, description: String) -> Result<ClaimSlice, AllocationError> {
        let host_memory_limit_bytes = self.agreed("hostMemoryLimit", |config| config.host_memory_limit_bytes)?;
        Ok(ClaimSlice {
            slice: SliceRequest {
                name,
                qos_class: self.agreed("priorityClass", |config| config.priority_class)?.map(qos_class),
                host_memory_limit_bytes: host_memory_limit_bytes.unwrap_or(0),
                audit_policy: self.agreed("auditPolicy", |config| config.audit_policy)?.map(audit_policy),
                description,
                aliases: BTreeSet::new(),
                environment: BTreeMap::new(),
                parts: self.parts,
                // No pod is named, because pods can share a claim.
                pod_uid: None,
            },
            devices: self.devices,
            containers: BTreeSet::new(),
        })
    }

    /// The common value of a slice's field in all configs that set it.
    fn agreed<T: PartialEq>(
        &self,
        field: &'static str,
        of: impl Fn(&SliceConfig) -> Option<T>,
    ) -> Result<Option<T>, AllocationError> {
        let mut agreed = None;
        for said in self.configs.iter().filter_map(of) {
            if agreed.as_ref().is_some_and(|agreed| *agreed != said) {
                let requests = self.devices.iter().map(|device| device.request.clone()).collect();
                return Err(AllocationError::Conflict { requests, field });
            }
            agreed = Some(said);
        }
        Ok(agreed)
    }
}

fn missing(device: String, devices: &Devices) -> AllocationError {
    match &devices.problem {
        Some(problem) => AllocationError::DriverSilent { device, problem: problem.clone() },
        None => AllocationError::Gone { device },
    }
}

fn qos_class(class: PriorityClass) -> QosClass {
    match class {
        PriorityClass::LatencyCritical => QosClass::LatencyCritical,
        PriorityClass::Standard => QosClass::Standard,
        PriorityClass::Batch => QosClass::Batch,
    }
}

fn audit_policy(said: SaidAuditPolicy) -> AuditPolicy {
    match said {
        SaidAuditPolicy::Report => AuditPolicy::Report,
        SaidAuditPolicy::Stop => AuditPolicy::Stop,
    }
}

/// The parameters for a request: first those of its class, then those of the claim, each in its order. A tenant writes
/// the claim, so it cannot loosen what the class says to protect others.
fn config_of(request: &str, configs: &[DeviceAllocationConfiguration]) -> Result<SliceConfig, AllocationError> {
    let applies = |config: &&DeviceAllocationConfiguration| {
        let requests = config.requests.as_deref().unwrap_or_default();
        requests.is_empty() || requests.iter().any(|named| named == request || named == base(request))
    };
    let mut merged = SliceConfig::default();
    for is_class in [true, false] {
        let of_source = configs.iter().filter(|config| (config.source == "FromClass") == is_class).filter(applies);
        for opaque in of_source.filter_map(|config| config.opaque.as_ref()).filter(|opaque| opaque.driver == DRIVER) {
            merged = merged.overridden_by(SliceConfig::parse(&opaque.parameters.0)?);
        }
    }
    Ok(merged)
}

/// The part of one device that was allocated. A device that allows only one allocation is allocated as a whole.
fn part(
    result: &DeviceRequestAllocationResult,
    device: &Device,
    config: &SliceConfig,
) -> Result<Part, AllocationError> {
    let consumed = |capacity: &'static str, whole: u64, expected: &'static str| {
        let Some(quantity) = result.consumed_capacity.as_ref().and_then(|consumed| consumed.get(capacity)) else {
            return Ok(whole);
        };
        quantity::whole(&quantity.0).ok().filter(|value| (1..=whole).contains(value)).ok_or_else(|| {
            AllocationError::Capacity {
                request: result.request.clone(),
                device: result.device.clone(),
                capacity,
                found: quantity.0.clone(),
                expected,
            }
        })
    };
    let core = consumed(CORE, 100, "1 to 100 percent")?;
    let core_request_percent = u32::try_from(core).unwrap_or(100);
    let memory_limit_bytes = consumed(MEMORY, device.memory_bytes, "at least 1 byte, and at most what the device has")?;
    let core_limit_percent = core_limit_percent(result, core_request_percent, config)?;
    Ok(Part { device_uuid: device.uuid.clone(), core_request_percent, core_limit_percent, memory_limit_bytes })
}

/// The limit for a guaranteed share of `request` percent.
fn core_limit_percent(
    result: &DeviceRequestAllocationResult,
    request: u32,
    config: &SliceConfig,
) -> Result<u32, AllocationError> {
    let limit = config.core_limit_percent.unwrap_or(request);
    if limit < request {
        return Err(AllocationError::LimitBelowRequest { device: result.device.clone(), limit, request });
    }
    Ok(limit)
}

/// Adds `other` to `known`: if one device answers several requests of a claim, the slice has their sum of it.
fn join(known: &mut Part, other: &Part, device: &str) -> Result<(), AllocationError> {
    let found = u64::from(known.core_request_percent) + u64::from(other.core_request_percent);
    known.core_request_percent = u32::try_from(found)
        .ok()
        .filter(|sum| *sum <= 100)
        .ok_or_else(|| AllocationError::WholeExceeded { device: device.into(), found })?;
    known.core_limit_percent = known.core_limit_percent.saturating_add(other.core_limit_percent).min(100);
    known.memory_limit_bytes = known.memory_limit_bytes.saturating_add(other.memory_limit_bytes);
    Ok(())
}

/// The request's name without the name of the chosen alternative: containers and kubelet know no alternatives.
fn base(request: &str) -> &str {
    request.split_once('/').map_or(request, |(base, _)| base)
}

#[cfg(test)]
mod tests;
