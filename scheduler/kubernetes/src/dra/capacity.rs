//! What a request consumes of the capacities of a device, by the policies that the device has for requests.

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::{CapacityRequestPolicy, CapacityRequestPolicyRange, Device, DeviceCapacity};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::take::thousandths;

/// Amounts of capacities, by name, in thousandths.
pub(crate) type Amounts = BTreeMap<String, u128>;

/// What a request that wants these amounts consumes of each capacity of a device. A device that goes to one claim as a whole
/// must have these amounts, too.
///
/// # Errors
/// Which capacity the device lacks, or has too little of, even if no part of it is given out.
pub(crate) fn consumed(device: &Device, wanted: &BTreeMap<String, Quantity>) -> Result<Amounts, String> {
    let none = BTreeMap::new();
    let capacities = device.capacity.as_ref().unwrap_or(&none);
    if let Some(name) = wanted.keys().find(|name| !capacities.contains_key(*name)) {
        return Err(format!("it has no capacity {name:?}"));
    }
    let of_capacity = |(name, capacity): (&String, &DeviceCapacity)| {
        let amount =
            consumed_of(capacity, wanted.get(name)).map_err(|why| format!("of its capacity {name:?} {why}"))?;
        Ok((name.clone(), amount))
    };
    capacities.iter().map(of_capacity).collect()
}

/// What is left of each capacity of a device beside these amounts.
pub(crate) fn left(device: &Device, consumed: &Amounts) -> Amounts {
    let of_capacity = |(name, capacity): (&String, &DeviceCapacity)| {
        let all = thousandths(&capacity.value.0).unwrap_or_default();
        (name.clone(), all.saturating_sub(consumed.get(name).copied().unwrap_or_default()))
    };
    device.capacity.iter().flatten().map(of_capacity).collect()
}

/// Whether more than all of a capacity is consumed: the device has less by now than it had.
pub(crate) fn is_overdrawn(device: &Device, consumed: &Amounts) -> bool {
    let has_less = |(name, capacity): (&String, &DeviceCapacity)| {
        consumed.get(name).is_some_and(|consumed| *consumed > thousandths(&capacity.value.0).unwrap_or_default())
    };
    device.capacity.iter().flatten().any(has_less)
}

/// Whether several claims can have shares of a device.
pub(crate) fn is_shared(device: &Device) -> bool {
    device.allow_multiple_allocations == Some(true)
}

/// What a request consumes of one capacity: rounded up as the policy says.
fn consumed_of(capacity: &DeviceCapacity, wanted: Option<&Quantity>) -> Result<u128, String> {
    let read = |quantity: &Quantity| thousandths(&quantity.0).ok_or_else(|| format!("{:?} is no quantity", quantity.0));
    let all = read(&capacity.value)?;
    let policy = capacity.request_policy.as_ref();
    let takes = match (wanted, policy) {
        (Some(wanted), Some(policy)) => rounded_up(read(wanted)?, policy)
            .ok_or_else(|| format!("a request cannot take {}: its policy for requests forbids that", wanted.0))?,
        (Some(wanted), None) => read(wanted)?,
        (None, policy) => policy.and_then(|policy| policy.default.as_ref()).map_or(Ok(all), read)?,
    };
    match takes <= all {
        true => Ok(takes),
        false => Err(format!("there is {}, and a request takes {}", amount(all), amount(takes))),
    }
}

/// The least amount that a policy allows and that is not less than `wanted`; `None`: there is none.
fn rounded_up(wanted: u128, policy: &CapacityRequestPolicy) -> Option<u128> {
    if let Some(range) = &policy.valid_range {
        return rounded_up_in(wanted, range);
    }
    let values = policy.valid_values.iter().flatten();
    let mut values = values.map(|value| thousandths(&value.0)).collect::<Option<Vec<u128>>>()?;
    if values.is_empty() {
        return Some(wanted);
    }
    values.sort_unstable();
    values.into_iter().find(|value| *value >= wanted)
}

fn rounded_up_in(wanted: u128, range: &CapacityRequestPolicyRange) -> Option<u128> {
    let min = thousandths(&range.min.0)?;
    let rounded = match &range.step {
        _ if wanted < min => min,
        None => wanted,
        Some(step) => {
            let step = thousandths(&step.0).filter(|step| *step > 0)?;
            let max = range.max.as_ref().and_then(|max| thousandths(&max.0));
            // As in Kubernetes from 1.37, steps are counted in thousandths if an amount of the range is no whole number. Else
            // they are counted in whole units, and what is wanted is rounded up to such a unit.
            let is_whole = [Some(min), Some(step), max].into_iter().flatten().all(|amount| amount.is_multiple_of(1000));
            let wanted = if is_whole { wanted.next_multiple_of(1000) } else { wanted };
            min.checked_add((wanted - min).div_ceil(step).checked_mul(step)?)?
        }
    };
    match &range.max {
        Some(max) => Some(rounded).filter(|rounded| thousandths(&max.0).is_some_and(|max| *rounded <= max)),
        None => Some(rounded),
    }
}

/// An amount as it stands in an allocation.
pub(crate) fn quantity(thousandths: u128) -> Quantity {
    Quantity(match thousandths % 1000 {
        0 => (thousandths / 1000).to_string(),
        _ => format!("{thousandths}m"),
    })
}

/// An amount as users read it: whole MiB and GiB by their suffixes.
pub(crate) fn amount(thousandths: u128) -> String {
    let suffixes = [("Gi", 1000 << 30), ("Mi", 1000 << 20)];
    let suffix = suffixes.into_iter().find(|(_, unit)| thousandths > 0 && thousandths.is_multiple_of(*unit));
    match suffix {
        Some((suffix, unit)) => format!("{}{suffix}", thousandths / unit),
        None => quantity(thousandths).0,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn device(capacity: Value) -> Device {
        serde_json::from_value(json!({"name": "d", "allowMultipleAllocations": true, "capacity": capacity})).unwrap()
    }

    fn wanted(amounts: &[(&str, &str)]) -> BTreeMap<String, Quantity> {
        amounts.iter().map(|(name, amount)| ((*name).to_owned(), Quantity((*amount).to_owned()))).collect()
    }

    /// What a request for this amount of a capacity consumes of it, in thousandths.
    fn of_policy(policy: &Value, amount: Option<&str>) -> Option<u128> {
        let device = device(json!({"c": {"value": "10", "requestPolicy": policy}}));
        let amounts: Vec<(&str, &str)> = amount.map(|amount| ("c", amount)).into_iter().collect();
        consumed(&device, &wanted(&amounts)).ok().map(|consumed| consumed["c"])
    }

    #[test]
    fn ranges_are_kept_as_kubernetes_keeps_them() {
        let range = |min: &str, max: Option<&str>, step: Option<&str>| json!({"default": min, "validRange": {"min": min, "max": max, "step": step}});
        for (policy, amount, expected) in [
            (range("2", None, None), None, Some(2000)),
            (range("2", None, None), Some("0"), Some(2000)),
            (range("2", None, None), Some("2500m"), Some(2500)),
            (range("2", None, None), Some("11"), None),
            (range("2", Some("4"), None), Some("4"), Some(4000)),
            (range("2", Some("4"), None), Some("4001m"), None),
            (range("2", Some("8"), Some("3")), Some("2"), Some(2000)),
            (range("2", Some("8"), Some("3")), Some("2001m"), Some(5000)),
            (range("2", Some("8"), Some("3")), Some("8"), Some(8000)),
            (range("2", Some("8"), Some("3")), Some("8001m"), None),
            // The next step is more than there is.
            (range("2", None, Some("6")), Some("9"), None),
            (range("0", None, Some("1")), Some("0"), Some(0)),
            // In whole steps what is wanted is rounded up to a whole unit first. Steps can also have fractions.
            (range("1", None, Some("3")), Some("1001m"), Some(4000)),
            (range("500m", None, Some("500m")), Some("100m"), Some(500)),
            (range("500m", None, Some("500m")), Some("500m"), Some(500)),
            (range("500m", None, None), Some("500m"), Some(500)),
            (range("500m", None, Some("500m")), Some("600m"), Some(1000)),
            (range("500m", Some("1"), Some("500m")), Some("1200m"), None),
            (range("1", Some("2500m"), Some("1")), Some("1200m"), Some(2000)),
            (range("1", None, Some("300m")), Some("1200m"), Some(1300)),
            (range("1", None, Some("0")), Some("2"), None),
        ] {
            assert_eq!(of_policy(&policy, amount), expected, "{policy} {amount:?}");
        }
    }

    #[test]
    fn without_a_request_the_default_counts_or_all() {
        let values = json!({"default": "3", "validValues": ["1", "3", "9"]});
        for (policy, amount, expected) in [
            (&values, None, Some(3000)),
            (&values, Some("3001m"), Some(9000)),
            (&values, Some("0"), Some(1000)),
            (&values, Some("9.5"), None),
            (&json!({"default": "4"}), None, Some(4000)),
            (&json!({"default": "4"}), Some("1"), Some(1000)),
            (&json!({}), None, Some(10_000)),
            (&Value::Null, None, Some(10_000)),
            (&Value::Null, Some("0"), Some(0)),
            (&Value::Null, Some("-1"), None),
            // More than there is.
            (&json!({"default": "11"}), None, None),
        ] {
            assert_eq!(of_policy(policy, amount), expected, "{policy} {amount:?}");
        }
    }

    #[test]
    fn what_a_device_lacks_is_named() {
        let nic = device(json!({"bandwidth": {"value": "10"}, "memory": {"value": "4Gi"}}));
        let lack = |amounts: &[(&str, &str)]| consumed(&nic, &wanted(amounts)).unwrap_err();
        assert_eq!(lack(&[("queues", "1")]), "it has no capacity \"queues\"");
        let memory = "of its capacity \"memory\" there is 4Gi, and a request takes 8Gi";
        assert_eq!(lack(&[("memory", "8192Mi")]), memory);
        assert_eq!(consumed(&nic, &wanted(&[("bandwidth", "1k")])).unwrap_err().matches("1000").count(), 1);
        assert_eq!(consumed(&device(json!({})), &wanted(&[])), Ok(Amounts::new()));
    }

    #[test]
    fn what_is_left_is_never_less_than_nothing() {
        let nic = device(json!({"bandwidth": {"value": "10"}, "memory": {"value": "4Gi"}}));
        let taken = Amounts::from([("bandwidth".to_owned(), 11_000), ("other".to_owned(), 1)]);
        let expected = Amounts::from([("bandwidth".to_owned(), 0), ("memory".to_owned(), 4000 << 30)]);
        assert_eq!(left(&nic, &taken), expected);
    }
}
