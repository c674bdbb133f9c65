//! Consumable capacity: the part that a request takes of a device which several claims share.

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::{CapacityRequirements, Device, DeviceCapacity, DeviceRequestAllocationResult};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;

use aliquot_test_api_server::Quantity;

/// The amounts that a request takes of each of the device's capacities; `None` if the device does not have them.
pub(super) fn consume(
    device: &Device,
    wanted: Option<&CapacityRequirements>,
    taken: &[&DeviceRequestAllocationResult],
) -> Result<Option<BTreeMap<String, Text>>, String> {
    all_known(device, wanted)?;
    let mut consumed = BTreeMap::new();
    for (name, capacity) in device.capacity.iter().flatten() {
        let wanted = requested(wanted, name);
        let takes = wanted.map_or_else(|| default(capacity), |wanted| rounded(wanted, capacity))?;
        if violates(takes, capacity)? {
            return Ok(None);
        }
        let mut sum = takes;
        for other in taken {
            if let Some(text) = other.consumed_capacity.as_ref().and_then(|consumed| consumed.get(name)) {
                sum = sum.plus(parse(text)?);
            }
        }
        if sum > parse(&capacity.value)? {
            return Ok(None);
        }
        consumed.insert(name.clone(), Text(takes.units().to_string()));
    }
    Ok(Some(consumed))
}

/// Whether a device that is allocated as a whole has the wanted capacities.
pub(super) fn has(device: &Device, wanted: Option<&CapacityRequirements>) -> Result<bool, String> {
    all_known(device, wanted)?;
    for (name, capacity) in device.capacity.iter().flatten() {
        if let Some(wanted) = requested(wanted, name)
            && parse(wanted)? > parse(&capacity.value)?
        {
            return Ok(false);
        }
    }
    Ok(true)
}

fn all_known(device: &Device, wanted: Option<&CapacityRequirements>) -> Result<(), String> {
    let mut names = wanted.iter().flat_map(|wanted| wanted.requests.iter().flatten()).map(|(name, _)| name);
    let known = |name: &&String| device.capacity.as_ref().is_some_and(|capacity| capacity.contains_key(*name));
    match names.find(|name| !known(name)) {
        Some(name) => Err(format!("some requested capacity has not been defined: {name}")),
        None => Ok(()),
    }
}

fn requested<'a>(wanted: Option<&'a CapacityRequirements>, name: &str) -> Option<&'a Text> {
    wanted?.requests.as_ref()?.get(name)
}

/// The amount for a request that names none: the default, or all.
fn default(capacity: &DeviceCapacity) -> Result<Quantity, String> {
    let default = capacity.request_policy.as_ref().and_then(|policy| policy.default.as_ref());
    parse(default.unwrap_or(&capacity.value))
}

/// The wanted amount, rounded up to one that can be allocated.
fn rounded(wanted: &Text, capacity: &DeviceCapacity) -> Result<Quantity, String> {
    let wanted = parse(wanted)?;
    let Some(policy) = &capacity.request_policy else { return Ok(wanted) };
    if let Some(range) = &policy.valid_range {
        let min = parse(&range.min)?;
        let Some(step) = &range.step else { return Ok(wanted.max(min)) };
        let step = parse(step)?.units();
        let above = wanted.units() - min.units();
        let steps = if above <= 0 { 0 } else { above.div_euclid(step) + i128::from(above.rem_euclid(step) != 0) };
        return Ok(Quantity::of(min.units() + steps * step));
    }
    let values = policy.valid_values.iter().flatten().map(parse).collect::<Result<Vec<_>, _>>()?;
    Ok(values.into_iter().find(|value| *value >= wanted).unwrap_or(wanted))
}

fn violates(takes: Quantity, capacity: &DeviceCapacity) -> Result<bool, String> {
    let Some(policy) = &capacity.request_policy else { return Ok(false) };
    if let Some(max) = policy.valid_range.as_ref().and_then(|range| range.max.as_ref()) {
        return Ok(takes > parse(max)?);
    }
    let values = policy.valid_values.iter().flatten().map(parse).collect::<Result<Vec<_>, _>>()?;
    Ok(!values.is_empty() && !values.contains(&takes))
}

fn parse(text: &Text) -> Result<Quantity, String> {
    Quantity::parse(&text.0).ok_or_else(|| format!("{:?} is no quantity", text.0))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn device() -> Device {
        serde_json::from_value(json!({
            "name": "gpu-0", "allowMultipleAllocations": true,
            "capacity": {
                "core": {"value": "100", "requestPolicy": {
                    "default": "100", "validRange": {"min": "1", "max": "100", "step": "1"}}},
                "memory": {"value": "80Gi", "requestPolicy": {
                    "default": "80Gi", "validRange": {"min": "1Mi", "step": "1Mi"}}},
            },
        }))
        .unwrap()
    }

    fn wanted(core: &str, memory: &str) -> CapacityRequirements {
        serde_json::from_value(json!({"requests": {"core": core, "memory": memory}})).unwrap()
    }

    #[test]
    fn a_share_is_rounded_up_and_bounded_by_what_others_have() {
        let consumed = consume(&device(), Some(&wanted("30", "1000000")), &[]).unwrap().unwrap();
        assert_eq!((consumed["core"].0.as_str(), consumed["memory"].0.as_str()), ("30", "1048576"));
        let other = DeviceRequestAllocationResult { consumed_capacity: Some(consumed), ..Default::default() };
        assert!(consume(&device(), Some(&wanted("70", "1Mi")), &[&other]).unwrap().is_some());
        assert!(consume(&device(), Some(&wanted("71", "1Mi")), &[&other]).unwrap().is_none());
        assert!(consume(&device(), None, &[&other]).unwrap().is_none());
        assert!(consume(&device(), Some(&wanted("101", "1Mi")), &[]).unwrap().is_none());
    }

    #[test]
    fn a_capacity_that_the_device_has_not_is_an_error() {
        let wanted: CapacityRequirements = serde_json::from_value(json!({"requests": {"cores": "1"}})).unwrap();
        assert!(consume(&device(), Some(&wanted), &[]).unwrap_err().contains("cores"));
    }
}
