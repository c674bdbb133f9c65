//! ResourceSlices.

use k8s_openapi::api::resource::v1::{
    CapacityRequestPolicy, Device, DeviceAttribute, DeviceTaint, ResourceSlice, ResourceSliceSpec,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;
use serde_json::Value;

use super::super::status::Failure;
use super::{at_most, name, require, typed, unique};
use crate::quantity::Quantity;

/// The most devices of a slice.
const MAX_DEVICES: usize = 128;
/// The same for a slice with devices that have taints or consume counters.
const MAX_DEVICES_WITH_TAINTS_OR_COUNTERS: usize = 64;
const MAX_ATTRIBUTES_AND_CAPACITIES: usize = 32;
const MAX_ATTRIBUTE_LENGTH: usize = 64;
const MAX_TAINTS: usize = 16;
const MAX_COUNTER_SETS: usize = 8;
const MAX_COUNTERS: usize = 32;
const MAX_COUNTER_SETS_OF_A_DEVICE: usize = 2;
const MAX_VALID_VALUES: usize = 10;

pub(in super::super) fn validate(object: &Value, old: Option<&Value>) -> Result<(), Failure> {
    let slice: ResourceSlice = typed(object)?;
    if let Some(old) = old {
        let old: ResourceSlice = typed(old)?;
        require(slice.spec.driver == old.spec.driver, "spec.driver", immutable)?;
        require(slice.spec.pool.name == old.spec.pool.name, "spec.pool.name", immutable)?;
        require(slice.spec.node_name == old.spec.node_name, "spec.nodeName", immutable)?;
    }
    spec(&slice.spec)
}

fn immutable() -> String {
    "field is immutable".to_owned()
}

fn spec(spec: &ResourceSliceSpec) -> Result<(), Failure> {
    name::driver(&spec.driver, "spec.driver")?;
    name::pool(&spec.pool.name, "spec.pool.name")?;
    require(spec.pool.resource_slice_count > 0, "spec.pool.resourceSliceCount", || "must be greater than zero".into())?;
    require(spec.pool.generation >= 0, "spec.pool.generation", || "must be greater than or equal to zero".into())?;
    let per_device = spec.per_device_node_selection == Some(true);
    let places = [spec.node_name.is_some(), spec.node_selector.is_some(), spec.all_nodes.is_some(), per_device];
    require(places.into_iter().filter(|place| *place).count() == 1, "spec", || {
        "exactly one of nodeName, nodeSelector, allNodes, perDeviceNodeSelection is required".into()
    })?;
    if let Some(node) = &spec.node_name {
        name::subdomain(node, "spec.nodeName")?;
    }
    let counter_sets = spec.shared_counters.as_deref().unwrap_or_default();
    let devices = spec.devices.as_deref().unwrap_or_default();
    require(counter_sets.is_empty() || spec.devices.is_none(), "spec", || {
        "only one of sharedCounters and devices is allowed".into()
    })?;
    let advanced = devices.iter().any(|device| device.taints.is_some() || device.consumes_counters.is_some());
    at_most(devices.len(), if advanced { MAX_DEVICES_WITH_TAINTS_OR_COUNTERS } else { MAX_DEVICES }, "spec.devices")?;
    unique(devices.iter().map(|device| &device.name), "spec.devices")?;
    for (index, each) in devices.iter().enumerate() {
        device(each, per_device, &format!("spec.devices[{index}]"))?;
    }
    at_most(counter_sets.len(), MAX_COUNTER_SETS, "spec.sharedCounters")?;
    unique(counter_sets.iter().map(|set| &set.name), "spec.sharedCounters")?;
    for (index, set) in counter_sets.iter().enumerate() {
        let path = format!("spec.sharedCounters[{index}]");
        name::label(&set.name, &format!("{path}.name"))?;
        let keys: Vec<&String> = set.counters.keys().collect();
        counters(&keys, &format!("{path}.counters"))?;
        set.counters.values().try_for_each(|counter| quantity(&counter.value, &path).map(drop))?;
    }
    Ok(())
}

fn counters(keys: &[&String], path: &str) -> Result<(), Failure> {
    require(!keys.is_empty(), path, || "required".into())?;
    at_most(keys.len(), MAX_COUNTERS, path)?;
    keys.iter().try_for_each(|key| name::label(key, path))
}

fn device(device: &Device, per_device: bool, path: &str) -> Result<(), Failure> {
    name::label(&device.name, &format!("{path}.name"))?;
    let shared = device.allow_multiple_allocations == Some(true);
    let (attributes, capacities) = (device.attributes.iter().flatten(), device.capacity.iter().flatten());
    at_most(attributes.clone().count() + capacities.clone().count(), MAX_ATTRIBUTES_AND_CAPACITIES, path)?;
    for (key, value) in attributes {
        let path = format!("{path}.attributes[{key}]");
        name::qualified(key, &path)?;
        attribute(value, &path)?;
    }
    for (key, capacity) in capacities {
        let path = format!("{path}.capacity[{key}]");
        name::qualified(key, &path)?;
        let value = quantity(&capacity.value, &path)?;
        if let Some(policy) = &capacity.request_policy {
            require(shared, &format!("{path}.requestPolicy"), || "allowMultipleAllocations must be true".into())?;
            request_policy(policy, value, &format!("{path}.requestPolicy"))?;
        }
    }
    let taints = device.taints.as_deref().unwrap_or_default();
    at_most(taints.len(), MAX_TAINTS, &format!("{path}.taints"))?;
    taints.iter().try_for_each(|each| taint(each, &format!("{path}.taints")))?;
    let consumed = device.consumes_counters.as_deref().unwrap_or_default();
    at_most(consumed.len(), MAX_COUNTER_SETS_OF_A_DEVICE, &format!("{path}.consumesCounters"))?;
    unique(consumed.iter().map(|consumption| &consumption.counter_set), &format!("{path}.consumesCounters"))?;
    for consumption in consumed {
        name::label(&consumption.counter_set, &format!("{path}.consumesCounters.counterSet"))?;
        let keys: Vec<&String> = consumption.counters.keys().collect();
        counters(&keys, &format!("{path}.consumesCounters.counters"))?;
    }
    let places = [device.node_name.is_some(), device.node_selector.is_some(), device.all_nodes.is_some()];
    require(places.into_iter().filter(|place| *place).count() == usize::from(per_device), path, || {
        "exactly one of nodeName, nodeSelector, allNodes must be set if, and only if, perDeviceNodeSelection is".into()
    })
}

fn attribute(attribute: &DeviceAttribute, path: &str) -> Result<(), Failure> {
    // Lists of values need a feature that is off.
    let DeviceAttribute { bool, int, string, version, .. } = attribute;
    let given = [bool.is_some(), int.is_some(), string.is_some(), version.is_some()];
    require(given.into_iter().filter(|given| *given).count() == 1, path, || "exactly one value must be given".into())?;
    if let Some(text) = string.as_ref().or(version.as_ref()) {
        require(text.len() <= MAX_ATTRIBUTE_LENGTH, path, || {
            format!("{text:?} is longer than {MAX_ATTRIBUTE_LENGTH}")
        })?;
    }
    match version {
        Some(version) => require(is_semantic_version(version), path, || {
            format!("{version:?} must be a version as semver.org 2.0.0 has it")
        }),
        None => Ok(()),
    }
}

fn request_policy(policy: &CapacityRequestPolicy, value: Quantity, path: &str) -> Result<(), Failure> {
    let values = policy.valid_values.as_deref().unwrap_or_default();
    require(values.is_empty() || policy.valid_range.is_none(), path, || {
        "cannot have validValues and validRange at the same time".into()
    })?;
    let default = policy.default.as_ref().map(|default| quantity(default, path)).transpose()?;
    require(default.is_some() || (values.is_empty() && policy.valid_range.is_none()), path, || {
        "default is required where validValues or validRange is given".into()
    })?;
    let Some(default) = default else { return Ok(()) };
    if let Some(range) = &policy.valid_range {
        let min = quantity(&range.min, path)?;
        let max = range.max.as_ref().map(|max| quantity(max, path)).transpose()?;
        let step = range.step.as_ref().map(|step| quantity(step, path)).transpose()?;
        require(min <= value && min <= default, path, || "min is larger than the capacity or the default".into())?;
        require(max.is_none_or(|max| min <= max && max <= value && default <= max), path, || {
            "max must not be smaller than min and default, nor larger than the capacity".into()
        })?;
        if let Some(step) = step {
            require(step > Quantity::of(0) && min.plus(step) <= value, path, || "one step is too large".into())?;
            let on_a_step = |quantity: Quantity| (quantity.units() - min.units()) % step.units() == 0;
            require(on_a_step(default) && max.is_none_or(on_a_step), path, || {
                "default and max must be whole steps from min".into()
            })?;
        }
    }
    if !values.is_empty() {
        at_most(values.len(), MAX_VALID_VALUES, path)?;
        let values = values.iter().map(|value| quantity(value, path)).collect::<Result<Vec<_>, _>>()?;
        require(values.is_sorted_by(|a, b| a < b), path, || "values must ascend".into())?;
        require(values.iter().all(|option| *option <= value), path, || "an option is larger than the capacity".into())?;
        require(values.contains(&default), path, || "the default is none of the valid values".into())?;
    }
    Ok(())
}

fn taint(taint: &DeviceTaint, path: &str) -> Result<(), Failure> {
    name::label_key(&taint.key, path)?;
    name::label_value(taint.value.as_deref().unwrap_or_default(), path)?;
    require(["None", "NoSchedule", "NoExecute"].contains(&taint.effect.as_str()), path, || {
        format!("effect {:?} is not supported", taint.effect)
    })
}

fn quantity(text: &Text, path: &str) -> Result<Quantity, Failure> {
    Quantity::parse(&text.0).ok_or_else(|| Failure::bad_request(format!("{path}: {:?} is no quantity", text.0)))
}

fn is_semantic_version(version: &str) -> bool {
    let (rest, build) = match version.split_once('+') {
        Some((rest, build)) => (rest, Some(build)),
        None => (version, None),
    };
    let (core, pre_release) = match rest.split_once('-') {
        Some((core, pre_release)) => (core, Some(pre_release)),
        None => (rest, None),
    };
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let number = |part: &str| digits(part) && (part == "0" || !part.starts_with('0'));
    let word = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    core.split('.').count() == 3
        && core.split('.').all(number)
        && pre_release.is_none_or(|text| text.split('.').all(|part| word(part) && (!digits(part) || number(part))))
        && build.is_none_or(|text| text.split('.').all(word))
}

#[cfg(test)]
mod tests {
    use super::is_semantic_version;

    #[test]
    fn versions_are_judged_as_semver_org_has_it() {
        for version in ["1.2.3", "0.0.0", "12.4.0", "1.0.0-alpha.1", "1.0.0+build.05", "1.0.0-0a"] {
            assert!(is_semantic_version(version), "{version}");
        }
        for version in ["", "1", "1.2", "535.104.05", "1.2.3.4", "v1.2.3", "1.2.3-", "1.2.3-01", "1..3"] {
            assert!(!is_semantic_version(version), "{version}");
        }
    }
}
