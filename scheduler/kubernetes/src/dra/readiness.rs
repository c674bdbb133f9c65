//! Devices that their drivers make ready after they are allocated, and before the pod is bound (`bindingConditions`).

use k8s_openapi::api::resource::v1::{
    AllocatedDeviceStatus, AllocationResult, DeviceRequestAllocationResult, ResourceClaimStatus,
};

use super::PoolKey;

/// A device of an allocation that is not ready.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Unready {
    pub(crate) pool: PoolKey,
    pub(crate) device: String,
    pub(crate) why: Missing,
}

/// Why a device is not ready.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Missing {
    /// This condition is not true yet.
    Condition(String),
    /// This condition is true: the device will not be ready. With what the driver says about it.
    Failure { condition: String, said: String },
}

/// Which devices of an allocation are not ready.
pub(super) fn unready(status: &ResourceClaimStatus) -> Vec<Unready> {
    let results = status.allocation.iter().flat_map(results_of);
    let of_result = |result: &DeviceRequestAllocationResult| {
        let why = missing(result, status.devices.iter().flatten().find(|of| is_about(of, result)))?;
        Some(Unready { pool: (result.driver.clone(), result.pool.clone()), device: result.device.clone(), why })
    };
    results.filter_map(of_result).collect()
}

/// Whether an allocation has devices that must be ready before the pod is bound.
pub(crate) fn must_be_ready(allocation: &AllocationResult) -> bool {
    results_of(allocation).any(|result| result.binding_conditions.as_ref().is_some_and(|of| !of.is_empty()))
}

fn results_of(allocation: &AllocationResult) -> impl Iterator<Item = &DeviceRequestAllocationResult> {
    allocation.devices.iter().flat_map(|devices| devices.results.iter().flatten())
}

fn is_about(status: &AllocatedDeviceStatus, result: &DeviceRequestAllocationResult) -> bool {
    (&status.driver, &status.pool, &status.device, &status.share_id)
        == (&result.driver, &result.pool, &result.device, &result.share_id)
}

fn missing(result: &DeviceRequestAllocationResult, status: Option<&AllocatedDeviceStatus>) -> Option<Missing> {
    let wanted = result.binding_conditions.as_ref().filter(|of| !of.is_empty())?;
    let conditions = || status.iter().flat_map(|of| of.conditions.iter().flatten()).filter(|of| of.status == "True");
    let failures = result.binding_failure_conditions.iter().flatten();
    let failure = failures.into_iter().find_map(|name| conditions().find(|of| of.type_ == *name));
    if let Some(failure) = failure {
        let said = format!("{}: {}", failure.reason, failure.message);
        return Some(Missing::Failure { condition: failure.type_.clone(), said });
    }
    let is_missing = |name: &&String| !conditions().any(|of| of.type_ == **name);
    wanted.iter().find(is_missing).cloned().map(Missing::Condition)
}

impl Unready {
    pub(crate) fn has_failed(&self) -> bool {
        matches!(self.why, Missing::Failure { .. })
    }
}

impl std::fmt::Display for Unready {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Unready { pool: (driver, pool), device, why } = self;
        match why {
            Missing::Condition(name) => {
                write!(f, "the condition {name:?} of device {pool}/{device} of {driver} is not true")
            }
            Missing::Failure { condition, said } => {
                write!(f, "the condition {condition:?} of device {pool}/{device} of {driver} is true ({said})")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn unready_with(devices: Value) -> Vec<String> {
        let result = json!({
            "request": "r", "driver": "d", "pool": "p", "device": "x", "shareID": "s",
            "bindingConditions": ["Near", "Warm"], "bindingFailureConditions": ["Broken"],
        });
        let plain = json!({"request": "r", "driver": "d", "pool": "p", "device": "y"});
        let status = json!({"allocation": {"devices": {"results": [result, plain]}}, "devices": devices});
        unready(&serde_json::from_value(status).unwrap()).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_device_is_ready_when_all_its_conditions_are_true() {
        let status = |share: &str, conditions: &[(&str, &str)]| {
            let condition = |(name, status): &(&str, &str)| {
                json!({
                    "type": name, "status": status, "reason": "R", "message": "as it is",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                })
            };
            let conditions: Vec<Value> = conditions.iter().map(condition).collect();
            json!([{"driver": "d", "pool": "p", "device": "x", "shareID": share, "conditions": conditions}])
        };
        let waits = |name: &str| vec![format!("the condition {name:?} of device p/x of d is not true")];
        assert_eq!(unready_with(json!([])), waits("Near"));
        assert_eq!(unready_with(status("s", &[("Near", "True"), ("Warm", "False")])), waits("Warm"));
        assert_eq!(unready_with(status("other", &[("Near", "True"), ("Warm", "True")])), waits("Near"));
        assert!(unready_with(status("s", &[("Near", "True"), ("Warm", "True")])).is_empty());
        let broken = unready_with(status("s", &[("Near", "True"), ("Warm", "True"), ("Broken", "True")]));
        assert_eq!(broken, ["the condition \"Broken\" of device p/x of d is true (R: as it is)"]);
        assert_eq!(unready_with(status("s", &[("Near", "Unknown"), ("Broken", "False")])), waits("Near"));
    }
}
