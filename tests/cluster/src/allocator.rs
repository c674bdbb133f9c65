//! Allocates devices to claims, as the real scheduler does, for one node: it takes the first devices that fit.

mod capacity;
mod pool;
mod selector;

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::{
    AllocationResult, CapacityRequirements, Device, DeviceAllocationConfiguration, DeviceAllocationResult, DeviceClass,
    DeviceConstraint, DeviceRequestAllocationResult, DeviceSelector, DeviceToleration, ResourceClaim, ResourceSlice,
};

use aliquot_test_api_server::random_uuid;
use pool::{Candidate, Pools};

/// One of the alternatives that satisfy a request.
struct Wish<'a> {
    /// The name in results: `request` or `request/alternative`.
    name: String,
    class: &'a str,
    selectors: &'a [DeviceSelector],
    tolerations: &'a [DeviceToleration],
    capacity: Option<&'a CapacityRequirements>,
    /// The number of devices; `None` for all devices that there are.
    count: Option<usize>,
}

/// The devices that a claim has been given so far.
#[derive(Clone, Default)]
struct Chosen<'a> {
    results: Vec<DeviceRequestAllocationResult>,
    devices: Vec<(String, &'a Device)>,
    /// The satisfied requests or alternatives, with their classes.
    classes: Vec<(String, String)>,
}

/// Allocates devices of `node` to a claim, beside the allocations of other claims.
///
/// # Errors
/// The reason why the claim gets nothing there.
pub(crate) fn allocate(
    claim: &ResourceClaim,
    node: &str,
    classes: &BTreeMap<&str, &DeviceClass>,
    slices: &[&ResourceSlice],
    claims: &[&ResourceClaim],
) -> Result<AllocationResult, String> {
    let spec = claim.spec.as_ref().and_then(|spec| spec.devices.clone()).unwrap_or_default();
    let pools = Pools::gather(slices, node)?;
    let mut chosen = Chosen::default();
    let constraints = spec.constraints.as_deref().unwrap_or_default();
    for request in spec.requests.iter().flatten() {
        let wishes: Vec<Wish<'_>> = match &request.exactly {
            Some(exactly) => vec![Wish {
                name: request.name.clone(),
                class: &exactly.device_class_name,
                selectors: exactly.selectors.as_deref().unwrap_or_default(),
                tolerations: exactly.tolerations.as_deref().unwrap_or_default(),
                capacity: exactly.capacity.as_ref(),
                count: count(exactly.allocation_mode.as_deref(), exactly.count),
            }],
            None => request
                .first_available
                .iter()
                .flatten()
                .map(|alternative| Wish {
                    name: format!("{}/{}", request.name, alternative.name),
                    class: &alternative.device_class_name,
                    selectors: alternative.selectors.as_deref().unwrap_or_default(),
                    tolerations: alternative.tolerations.as_deref().unwrap_or_default(),
                    capacity: alternative.capacity.as_ref(),
                    count: count(alternative.allocation_mode.as_deref(), alternative.count),
                })
                .collect(),
        };
        let mut reasons = Vec::new();
        let satisfied = wishes.iter().find_map(|wish| {
            satisfy(wish, &pools, classes, claims, constraints, &chosen).map_err(|reason| reasons.push(reason)).ok()
        });
        chosen = satisfied.ok_or_else(|| reasons.join("; "))?;
    }
    let config = configurations(claim, classes, &chosen);
    let devices = DeviceAllocationResult { results: Some(chosen.results), config: Some(config) };
    let selector = serde_json::json!({"nodeSelectorTerms": [{"matchFields": [
        {"key": "metadata.name", "operator": "In", "values": [node]},
    ]}]});
    let node_selector = serde_json::from_value(selector).map_err(|error| error.to_string())?;
    Ok(AllocationResult { devices: Some(devices), node_selector, ..AllocationResult::default() })
}

fn count(mode: Option<&str>, count: Option<i64>) -> Option<usize> {
    if mode == Some("All") { None } else { Some(usize::try_from(count.unwrap_or(1)).unwrap_or(usize::MAX)) }
}

/// `chosen` with further devices that satisfy `wish`.
fn satisfy<'a>(
    wish: &Wish<'_>,
    pools: &'a Pools,
    classes: &BTreeMap<&str, &DeviceClass>,
    claims: &[&ResourceClaim],
    constraints: &[DeviceConstraint],
    chosen: &Chosen<'a>,
) -> Result<Chosen<'a>, String> {
    let class = classes.get(wish.class).ok_or_else(|| format!("no DeviceClass {:?}", wish.class))?;
    let of_class = class.spec.iter().flat_map(|spec| spec.selectors.iter().flatten());
    let selectors: Vec<&DeviceSelector> = of_class.chain(wish.selectors).collect();
    let mut chosen = chosen.clone();
    let mut found = 0;
    for candidate in pools.candidates() {
        if wish.count.is_some_and(|count| found == count) {
            break;
        }
        let selected = selectors
            .iter()
            .map(|selector| selector::selects(selector, &candidate))
            .collect::<Result<Vec<bool>, String>>()?;
        if selected.contains(&false) {
            continue;
        }
        let fits = is_tolerated(&candidate, wish.tolerations)
            && keeps(constraints, &wish.name, &candidate, &chosen)
            && pools.has_counters(&candidate, claims, &chosen.results);
        let result = fits.then(|| take(wish, &candidate, claims, &chosen.results)).transpose()?.flatten();
        match result {
            Some(result) => {
                chosen.results.push(result);
                chosen.devices.push((wish.name.clone(), candidate.device));
                found += 1;
            }
            None if wish.count.is_none() => return Err(format!("not all devices of {:?} are free", wish.class)),
            None => {}
        }
    }
    if found < wish.count.unwrap_or(1) {
        let wanted = wish.count.unwrap_or(1);
        return Err(format!("cannot allocate all devices for {:?}: {found} of {wanted} fit", wish.name));
    }
    chosen.classes.push((wish.name.clone(), wish.class.to_owned()));
    Ok(chosen)
}

/// A share of the candidate, or the whole device; `None` if it is taken.
fn take(
    wish: &Wish<'_>,
    candidate: &Candidate<'_>,
    claims: &[&ResourceClaim],
    chosen: &[DeviceRequestAllocationResult],
) -> Result<Option<DeviceRequestAllocationResult>, String> {
    let taken: Vec<_> = pool::results(claims).chain(chosen).filter(|result| candidate.is(result)).collect();
    let result = DeviceRequestAllocationResult {
        request: wish.name.clone(),
        driver: candidate.driver.to_owned(),
        pool: candidate.pool.to_owned(),
        device: candidate.device.name.clone(),
        tolerations: (!wish.tolerations.is_empty()).then(|| wish.tolerations.to_vec()),
        ..DeviceRequestAllocationResult::default()
    };
    if candidate.device.allow_multiple_allocations != Some(true) {
        let enough = capacity::has(candidate.device, wish.capacity)?;
        return Ok((taken.is_empty() && enough).then_some(result));
    }
    // A claim gets each device only once, even if more of it is free.
    if chosen.iter().any(|result| candidate.is(result)) {
        return Ok(None);
    }
    let Some(consumed) = capacity::consume(candidate.device, wish.capacity, &taken)? else { return Ok(None) };
    Ok(Some(DeviceRequestAllocationResult {
        share_id: Some(random_uuid()),
        consumed_capacity: Some(consumed),
        ..result
    }))
}

fn is_tolerated(candidate: &Candidate<'_>, tolerations: &[DeviceToleration]) -> bool {
    let mut taints = candidate.device.taints.iter().flatten().filter(|taint| taint.effect != "None");
    taints.all(|taint| {
        tolerations.iter().any(|toleration| {
            let same_key = toleration.key.as_deref().is_none_or(|key| key == taint.key);
            let same_effect = toleration.effect.as_deref().is_none_or(|effect| effect == taint.effect);
            let exists = toleration.operator.as_deref() == Some("Exists");
            same_key && same_effect && (exists || toleration.value == taint.value)
        })
    })
}

/// Whether the claim's constraints still hold with this candidate.
fn keeps(constraints: &[DeviceConstraint], wish: &str, candidate: &Candidate<'_>, chosen: &Chosen<'_>) -> bool {
    let concerns = |constraint: &DeviceConstraint, name: &str| {
        let requests = constraint.requests.as_deref().unwrap_or_default();
        let base = name.split('/').next().unwrap_or_default();
        requests.is_empty() || requests.iter().any(|request| request == name || request == base)
    };
    constraints.iter().filter(|constraint| concerns(constraint, wish)).all(|constraint| {
        let attribute = |device: &Device| {
            let name = constraint.match_attribute.as_ref().or(constraint.distinct_attribute.as_ref())?;
            let attributes = device.attributes.as_ref()?;
            // An attribute without a domain belongs to its driver's domain.
            let own = name.strip_prefix(candidate.driver).and_then(|rest| rest.strip_prefix('/'));
            attributes.get(name).or_else(|| attributes.get(own?)).cloned()
        };
        let Some(value) = attribute(candidate.device) else { return false };
        let mut others = chosen.devices.iter().filter(|(name, _)| concerns(constraint, name));
        if constraint.match_attribute.is_some() {
            others.all(|(_, device)| attribute(device).as_ref() == Some(&value))
        } else {
            others.all(|(_, device)| attribute(device).as_ref() != Some(&value))
        }
    })
}

/// The configurations of the classes, then those of the claim.
fn configurations(
    claim: &ResourceClaim,
    classes: &BTreeMap<&str, &DeviceClass>,
    chosen: &Chosen<'_>,
) -> Vec<DeviceAllocationConfiguration> {
    let mut configurations = Vec::new();
    for (request, class) in &chosen.classes {
        let spec = classes.get(class.as_str()).and_then(|class| class.spec.as_ref());
        for config in spec.iter().flat_map(|spec| spec.config.iter().flatten()) {
            configurations.push(DeviceAllocationConfiguration {
                source: "FromClass".to_owned(),
                requests: Some(vec![request.clone()]),
                opaque: config.opaque.clone(),
            });
        }
    }
    let devices = claim.spec.as_ref().and_then(|spec| spec.devices.as_ref());
    for config in devices.iter().flat_map(|devices| devices.config.iter().flatten()) {
        configurations.push(DeviceAllocationConfiguration {
            source: "FromClaim".to_owned(),
            requests: config.requests.clone(),
            opaque: config.opaque.clone(),
        });
    }
    configurations
}
