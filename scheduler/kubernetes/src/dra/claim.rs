//! A ResourceClaim, as far as the scheduler needs to know it.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_scheduler_core::{Comparison, DeviceProperty, NodeTerm};
use k8s_openapi::api::resource::v1::{
    DeviceClaim, DeviceClaimConfiguration, DeviceConstraint, DeviceRequest, DeviceRequestAllocationResult,
    DeviceSelector, DeviceSubRequest, DeviceToleration, ExactDeviceRequest, ResourceClaim,
    ResourceClaimConsumerReference,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::extended::ANNOTATION as OF_EXTENDED_RESOURCES;
use super::pools::PCIE_ROOT;
use super::readiness::{Unready, unready};
use super::users::{GroupOwner, group_of_owner};
use super::whole::RESULTS_MAX;
use crate::placement::{self, OPTIONAL_NODE_OPERATIONS};

/// What scheduling needs to know of a claim.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ClaimFacts {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) resource_version: String,
    pub(crate) is_leaving: bool,
    /// The UID of the pod that it was made for. It is deleted together with that pod.
    pub(crate) owner: Option<String>,
    /// The PodGroup that it was made for. It is deleted together with that group.
    pub(crate) group: Option<GroupOwner>,
    /// A scheduler has made it for extended resources of that pod.
    pub(crate) is_of_extended_resources: bool,
    pub(crate) finalizers: Vec<String>,
    /// `Err`: what it asks for is not supported.
    pub(crate) ask: Result<Ask, String>,
    pub(crate) allocation: Option<Allocated>,
    pub(crate) reserved_for: Vec<ResourceClaimConsumerReference>,
}

/// What a claim asks for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Ask {
    /// Never empty: a claim without requests is not supported.
    pub(crate) requests: Vec<RequestAsk>,
    pub(crate) links: Vec<Link>,
    pub(crate) config: Vec<DeviceClaimConfiguration>,
}

/// A request of a claim.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RequestAsk {
    pub(crate) name: String,
    /// At least one choice. Of a prioritised list, the first choice that can be had is taken.
    pub(crate) choices: Vec<DevicesAsk>,
}

/// What a request, or one entry of its prioritised list, asks for: equal parts of a number of devices.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DevicesAsk {
    /// As allocations name it: `request`, or `request/subrequest`.
    pub(crate) name: String,
    pub(crate) class: String,
    pub(crate) selectors: Vec<String>,
    pub(crate) tolerations: Vec<DeviceToleration>,
    pub(crate) capacity: BTreeMap<String, Quantity>,
    /// How many devices, unless `is_all` is set.
    pub(crate) count: u16,
    /// All of a node's devices that will do.
    pub(crate) is_all: bool,
    /// It asks for administrative access, beside whoever has the devices.
    pub(crate) is_admin: bool,
}

/// A constraint of a claim: what the devices of some requests must have in common, or in what they must differ.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Link {
    pub(crate) requests: Vec<Linked>,
    pub(crate) property: DeviceProperty,
    pub(crate) comparison: Comparison,
}

impl Link {
    /// The attribute that is compared.
    pub(crate) fn attribute(&self) -> &str {
        match &self.property {
            DeviceProperty::NvlinkGroup => NVLINK_CLIQUE,
            DeviceProperty::Switch => PCIE_ROOT,
            DeviceProperty::Identity => UUID,
            DeviceProperty::Attribute(name) => name,
        }
    }
}

/// A request that a link is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Linked {
    /// Its place among the requests.
    pub(crate) request: usize,
    /// The one choice of the request that is meant; `None`: all its choices are.
    pub(crate) choice: Option<usize>,
}

impl Ask {
    /// What these requests ask for.
    ///
    /// # Errors
    /// Which part of a request is not supported.
    pub(crate) fn of(requests: Vec<DeviceRequest>) -> Result<Ask, String> {
        ask(DeviceClaim { requests: Some(requests), ..DeviceClaim::default() })
    }

    /// What each request asks for, if these of its choices are taken: `choices` has one number for each request.
    pub(crate) fn taken<'a>(&'a self, choices: &[usize]) -> impl Iterator<Item = &'a DevicesAsk> {
        self.requests.iter().zip(choices).filter_map(|(request, choice)| request.choices.get(*choice))
    }

    /// All choices of all requests.
    pub(crate) fn choices(&self) -> impl Iterator<Item = &DevicesAsk> {
        self.requests.iter().flat_map(|request| &request.choices)
    }

    /// The same, with a number of devices in each choice: a choice for all of a node's devices becomes a choice for each of
    /// its `numbers`, or for the number 0, which no node has, if there is none. Without `numbers` a choice stays as it is.
    pub(crate) fn in_numbers(&self, numbers: impl Fn(&DevicesAsk) -> Option<Vec<u16>>) -> Ask {
        let none = |choice: DevicesAsk| DevicesAsk { count: 0, ..choice };
        let of_choice = |choice: &DevicesAsk| match numbers(choice).filter(|_| choice.is_all) {
            None => vec![choice.clone()],
            Some(numbers) => {
                let of_numbers: Vec<DevicesAsk> =
                    numbers.into_iter().map(|count| DevicesAsk { count, ..choice.clone() }).collect();
                if of_numbers.is_empty() { vec![none(choice.clone())] } else { of_numbers }
            }
        };
        let of_request = |request: &RequestAsk| request.choices.iter().map(of_choice).collect::<Vec<_>>();
        let mut requests: Vec<Vec<Vec<DevicesAsk>>> = self.requests.iter().map(of_request).collect();
        // A number is left out if the claim would get more devices with it than a claim can get.
        let fewest = |choices: &Vec<Vec<DevicesAsk>>| choices.iter().flatten().map(|of| usize::from(of.count)).min();
        let fewest: Vec<usize> = requests.iter().map(|choices| fewest(choices).unwrap_or_default()).collect();
        let of_all: usize = fewest.iter().sum();
        for (choices, fewest) in requests.iter_mut().zip(fewest) {
            let is_possible = |of: &DevicesAsk| of_all - fewest + usize::from(of.count) <= RESULTS_MAX;
            for choice in choices.iter_mut() {
                let first = choice.first().filter(|of| of.is_all).cloned();
                choice.retain(|of| !of.is_all || is_possible(of));
                if choice.is_empty() {
                    choice.extend(first.map(none));
                }
            }
        }
        // The places of the choices that a former choice became.
        let became = |request: usize, choice: usize| {
            let before = requests.get(request).into_iter().flatten().take(choice).map(Vec::len).sum::<usize>();
            let count = requests.get(request).and_then(|choices| choices.get(choice)).map_or(0, Vec::len);
            before..before + count
        };
        let linked = |linked: &Linked| match linked.choice {
            None => vec![*linked],
            Some(choice) => {
                became(linked.request, choice).map(|choice| Linked { choice: Some(choice), ..*linked }).collect()
            }
        };
        let links = self
            .links
            .iter()
            .map(|link| Link { requests: link.requests.iter().flat_map(linked).collect(), ..link.clone() })
            .collect();
        let named = self.requests.iter().zip(requests);
        let requests = named
            .map(|(RequestAsk { name, .. }, choices)| RequestAsk { name: name.clone(), choices: choices.concat() })
            .collect();
        Ask { requests, links, config: self.config.clone() }
    }

    /// The attributes of devices that constraints compare, without those for which the books have a property of their
    /// own.
    pub(crate) fn compared(&self) -> impl Iterator<Item = &str> {
        self.links.iter().filter_map(|link| match &link.property {
            DeviceProperty::Attribute(name) => Some(name.as_str()),
            _ => None,
        })
    }
}

/// What a claim was given.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Allocated {
    /// The nodes where it can be used; empty: all. `Err`: what it says of them is not supported.
    pub(crate) terms: Result<BTreeSet<NodeTerm>, String>,
    /// All results except those with `adminAccess`, which takes nothing of a device.
    pub(crate) results: Vec<DeviceRequestAllocationResult>,
    /// The devices that their drivers have not made ready yet, and that must be ready before a pod is bound.
    pub(crate) unready: Vec<Unready>,
    /// The drivers of the devices to which it has administrative access.
    pub(crate) admin_of: BTreeSet<String>,
    /// When it was allocated, in milliseconds since 1970, if that is known.
    pub(crate) allocated_ms: Option<i64>,
}

impl ClaimFacts {
    /// What is known of a claim; `None` if it has no UID or no name.
    pub(crate) fn of(claim: ResourceClaim) -> Option<ClaimFacts> {
        let (metadata, status) = (claim.metadata, claim.status.unwrap_or_default());
        let owners = metadata.owner_references.unwrap_or_default();
        let annotations = metadata.annotations.unwrap_or_default();
        let unready = unready(&status);
        let owner = owners.into_iter().find(|owner| owner.controller == Some(true));
        let group = owner.as_ref().and_then(group_of_owner);
        Some(ClaimFacts {
            namespace: metadata.namespace.unwrap_or_default(),
            name: metadata.name?,
            uid: metadata.uid?,
            resource_version: metadata.resource_version.unwrap_or_default(),
            is_leaving: metadata.deletion_timestamp.is_some(),
            owner: owner.filter(|owner| owner.kind == "Pod").map(|owner| owner.uid),
            group,
            is_of_extended_resources: annotations.get(OF_EXTENDED_RESOURCES).is_some_and(|text| text == "true"),
            finalizers: metadata.finalizers.unwrap_or_default(),
            ask: ask(claim.spec.and_then(|spec| spec.devices).unwrap_or_default()),
            allocation: status.allocation.map(|allocation| {
                let terms = allocation.node_selector.as_ref();
                let results = allocation.devices.and_then(|devices| devices.results).unwrap_or_default();
                let skips = |result: &DeviceRequestAllocationResult| {
                    result.skip_node_operations.as_ref().is_some_and(|calls| !calls.is_empty())
                };
                // Kubelet leaves out calls to a driver only on nodes with this feature.
                let needed = results.iter().any(skips).then_some(OPTIONAL_NODE_OPERATIONS).into_iter().collect();
                let with_features = |terms| placement::both(terms, &placement::declare(&needed));
                let is_admin = |result: &DeviceRequestAllocationResult| result.admin_access == Some(true);
                let (of_admin, results): (Vec<_>, Vec<_>) = results.into_iter().partition(is_admin);
                Allocated {
                    terms: terms.map_or_else(|| Ok(BTreeSet::new()), placement::terms).map(with_features),
                    results,
                    admin_of: of_admin.into_iter().map(|result| result.driver).collect(),
                    unready,
                    allocated_ms: allocation.allocation_timestamp.map(|time| time.0.as_millisecond()),
                }
            }),
            reserved_for: status.reserved_for.unwrap_or_default(),
        })
    }

    /// Whether this is a later version of the claim than the other.
    pub(crate) fn is_newer_than(&self, other: &ClaimFacts) -> bool {
        let number = |claim: &ClaimFacts| claim.resource_version.parse::<u64>().ok();
        match (number(self), number(other)) {
            (Some(this), Some(other)) => this > other,
            _ => self.resource_version != other.resource_version,
        }
    }

    /// The devices of its allocation that are not ready.
    pub(crate) fn unready(&self) -> impl Iterator<Item = &Unready> {
        self.allocation.iter().flat_map(|allocation| &allocation.unready)
    }
}

fn ask(devices: DeviceClaim) -> Result<Ask, String> {
    let requests = devices.requests.unwrap_or_default();
    if requests.is_empty() {
        return Err("it has no request, and Aliquot's scheduler allocates claims with one request at least".into());
    }
    let requests: Vec<RequestAsk> = requests.into_iter().map(request).collect::<Result<_, _>>()?;
    let links =
        devices.constraints.unwrap_or_default().iter().map(|of| link(of, &requests)).collect::<Result<_, _>>()?;
    Ok(Ask { requests, links, config: devices.config.unwrap_or_default() })
}

fn request(request: DeviceRequest) -> Result<RequestAsk, String> {
    let DeviceRequest { name, exactly, first_available } = request;
    let choices = match exactly {
        Some(exactly) => {
            let is_admin = exactly.admin_access == Some(true);
            vec![DevicesAsk { is_admin, ..devices(name.clone(), as_listed(exactly))? }]
        }
        None => {
            let of_list = |of: DeviceSubRequest| devices(format!("{name}/{}", of.name), of);
            first_available.unwrap_or_default().into_iter().map(of_list).collect::<Result<_, _>>()?
        }
    };
    match choices.is_empty() {
        true => Err(format!("request {name:?} has neither exactly nor firstAvailable")),
        false => Ok(RequestAsk { name, choices }),
    }
}

/// A request without a list, in the form of an entry of a list.
fn as_listed(exactly: ExactDeviceRequest) -> DeviceSubRequest {
    let ExactDeviceRequest {
        admin_access: _,
        allocation_mode,
        capacity,
        count,
        derived_attributes,
        device_class_name,
        selectors,
        tolerations,
    } = exactly;
    DeviceSubRequest {
        allocation_mode,
        capacity,
        count,
        derived_attributes,
        device_class_name,
        name: String::new(),
        selectors,
        tolerations,
    }
}

fn devices(name: String, asked: DeviceSubRequest) -> Result<DevicesAsk, String> {
    let DeviceSubRequest {
        allocation_mode,
        capacity,
        count,
        derived_attributes,
        device_class_name,
        name: _,
        selectors,
        tolerations,
    } = asked;
    if derived_attributes.is_some_and(|derived| !derived.is_empty()) {
        return Err(format!("request {name:?} has derivedAttributes, which Aliquot's scheduler does not support"));
    }
    let is_all = match allocation_mode.as_deref() {
        None | Some("ExactCount") => false,
        Some("All") => true,
        Some(mode) => {
            return Err(format!(
                "request {name:?} has allocationMode {mode:?}; Aliquot's scheduler supports ExactCount and All"
            ));
        }
    };
    let count = count.unwrap_or(1);
    Ok(DevicesAsk {
        count: u16::try_from(count)
            .map_err(|_| format!("request {name:?} asks for {count} devices, which is too many"))?,
        name,
        is_all,
        is_admin: false,
        class: device_class_name,
        selectors: expressions(&selectors.unwrap_or_default())?,
        tolerations: tolerations.unwrap_or_default(),
        capacity: capacity.and_then(|capacity| capacity.requests).unwrap_or_default(),
    })
}

/// The devices of one clique reach each other by NVLink. A device that reaches no other one is a clique of its own. In
/// the books such a device has no group, so the attribute is compared, and not the group.
pub(crate) const NVLINK_CLIQUE: &str = "gpu.aliquot.dev/nvlinkClique";
/// Each device has its own.
const UUID: &str = "gpu.aliquot.dev/uuid";

/// What a constraint says of the devices of some requests, or of all if it names none.
fn link(constraint: &DeviceConstraint, requests: &[RequestAsk]) -> Result<Link, String> {
    let (attribute, comparison) = match (&constraint.match_attribute, &constraint.distinct_attribute) {
        (Some(attribute), None) => (attribute, Comparison::Same),
        (None, Some(attribute)) => (attribute, Comparison::Distinct),
        _ => {
            return Err(
                "it has a constraint that is neither matchAttribute nor distinctAttribute; Aliquot's scheduler \
                        supports these"
                    .into(),
            );
        }
    };
    let property = match attribute.as_str() {
        PCIE_ROOT => DeviceProperty::Switch,
        UUID => DeviceProperty::Identity,
        other => DeviceProperty::Attribute(other.to_owned()),
    };
    let named = constraint.requests.iter().flatten();
    let all = || requests.iter().enumerate();
    let linked = |name: &String| {
        let whole = all().find(|(_, of)| of.name == *name).map(|(request, _)| Linked { request, choice: None });
        let one = || {
            all().find_map(|(request, of)| {
                let choice = of.choices.iter().position(|choice| choice.name == *name)?;
                Some(Linked { request, choice: Some(choice) })
            })
        };
        let linked = whole.or_else(one);
        linked.ok_or_else(|| format!("it has a constraint on the request {name:?}, which it does not have"))
    };
    let linked: Vec<Linked> = named.map(linked).collect::<Result<_, _>>()?;
    let all = all().map(|(request, _)| Linked { request, choice: None });
    let requests = if linked.is_empty() { all.collect() } else { linked };
    Ok(Link { requests, property, comparison })
}

/// The CEL expressions of selectors.
///
/// # Errors
/// A selector is of another kind.
pub(crate) fn expressions(selectors: &[DeviceSelector]) -> Result<Vec<String>, String> {
    let expression = |selector: &DeviceSelector| selector.cel.as_ref().map(|cel| cel.expression.clone());
    let all: Option<Vec<String>> = selectors.iter().map(expression).collect();
    all.ok_or_else(|| "a selector is not in CEL, which Aliquot's scheduler does not support".to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn ask_of(devices: Value) -> Result<Ask, String> {
        let claim = json!({"metadata": {"name": "c", "uid": "u"}, "spec": {"devices": devices}});
        ClaimFacts::of(serde_json::from_value(claim).unwrap()).unwrap().ask
    }

    #[test]
    fn what_is_not_supported_is_named() {
        let exactly = json!({"deviceClassName": "gpu.aliquot.dev"});
        for (devices, named) in [
            (json!({"requests": []}), "one request"),
            (json!({"requests": [{"name": "a"}]}), "neither exactly nor firstAvailable"),
            (
                json!({"requests": [{"name": "a", "firstAvailable": [
                    {"name": "x", "deviceClassName": "c"}, {"name": "y", "deviceClassName": "c", "allocationMode": "Some"},
                ]}]}),
                "\"a/y\" has allocationMode \"Some\"",
            ),
            (
                json!({"requests": [{"name": "a", "exactly": {
                    "deviceClassName": "c", "derivedAttributes": [{"name": "derived/numa", "expression": "1"}],
                }}]}),
                "\"a\" has derivedAttributes",
            ),
            (
                json!({
                    "requests": [{"name": "a", "exactly": exactly}],
                    "constraints": [{"requests": ["b"], "matchAttribute": "gpu.aliquot.dev/parentUUID"}],
                }),
                "\"b\"",
            ),
            (json!({"requests": [{"name": "a", "exactly": exactly}], "constraints": [{}]}), "neither"),
        ] {
            let error = ask_of(devices.clone()).unwrap_err();
            assert!(error.contains(named), "{devices}: {error}");
        }
    }

    #[test]
    fn a_request_says_how_much_of_how_many_devices() {
        let ask = ask_of(json!({"requests": [{"name": "gpu", "exactly": {
            "deviceClassName": "gpu.aliquot.dev", "count": 2, "allocationMode": "ExactCount",
            "selectors": [{"cel": {"expression": "true"}}], "capacity": {"requests": {"core": "25"}},
        }}]}))
        .unwrap();
        let [RequestAsk { name, choices }] = <[RequestAsk; 1]>::try_from(ask.requests).unwrap();
        let [of] = <[DevicesAsk; 1]>::try_from(choices).unwrap();
        assert_eq!((name.as_str(), of.name.as_str(), of.count), ("gpu", "gpu", 2));
        assert_eq!((of.selectors, of.capacity["core"].0.as_str()), (vec!["true".to_owned()], "25"));
    }

    #[test]
    fn a_prioritised_list_is_read_in_its_order() {
        let list = json!([
            {"name": "large", "deviceClassName": "big", "count": 2, "tolerations": [{"key": "k", "operator": "Exists"}]},
            {"name": "small", "deviceClassName": "gpu", "capacity": {"requests": {"core": "25"}}},
        ]);
        let exactly = json!({"deviceClassName": "gpu"});
        let requests = json!([{"name": "a", "firstAvailable": list}, {"name": "b", "exactly": exactly}]);
        let near = "gpu.aliquot.dev/nvlinkClique";
        let ask = ask_of(json!({"requests": requests, "constraints": [
            {"requests": ["a/large", "b"], "matchAttribute": near}, {"requests": ["a"], "matchAttribute": near},
        ]}))
        .unwrap();
        let names = |choices: &[usize]| ask.taken(choices).map(|of| of.name.clone()).collect::<Vec<_>>();
        assert_eq!([names(&[0, 0]), names(&[1, 0])], [["a/large", "b"], ["a/small", "b"]]);
        let large = &ask.requests[0].choices[0];
        assert_eq!((large.class.as_str(), large.count, large.tolerations.len()), ("big", 2, 1));
        let linked = |request, choice| Linked { request, choice };
        assert_eq!(ask.links[0].requests, [linked(0, Some(0)), linked(1, None)]);
        assert_eq!(ask.links[1].requests, [linked(0, None)]);
    }

    #[test]
    fn constraints_say_what_the_devices_have_in_common() {
        let exactly = json!({"deviceClassName": "gpu.aliquot.dev", "count": 2});
        let requests = json!([{"name": "a", "exactly": exactly}, {"name": "b", "exactly": exactly}]);
        let link = |constraint: Value| {
            let ask = ask_of(json!({"requests": requests, "constraints": [constraint]})).unwrap();
            let [link] = <[Link; 1]>::try_from(ask.links).unwrap();
            let requests: Vec<usize> = link.requests.iter().map(|linked| linked.request).collect();
            (requests, link.property, link.comparison)
        };
        let linked = json!({"matchAttribute": "gpu.aliquot.dev/nvlinkClique"});
        let property = DeviceProperty::Attribute("gpu.aliquot.dev/nvlinkClique".into());
        assert_eq!(link(linked), (vec![0, 1], property, Comparison::Same));
        let near = json!({"requests": ["b"], "matchAttribute": "resource.kubernetes.io/pcieRoot"});
        assert_eq!(link(near), (vec![1], DeviceProperty::Switch, Comparison::Same));
        let different = json!({"distinctAttribute": "gpu.aliquot.dev/uuid"});
        assert_eq!(link(different), (vec![0, 1], DeviceProperty::Identity, Comparison::Distinct));
        let parent = json!({"matchAttribute": "gpu.aliquot.dev/parentUUID"});
        let property = DeviceProperty::Attribute("gpu.aliquot.dev/parentUUID".into());
        assert_eq!(link(parent), (vec![0, 1], property, Comparison::Same));
    }

    #[test]
    fn an_allocation_says_where_and_for_whom() {
        let claim = json!({
            "metadata": {
                "name": "c", "uid": "u", "resourceVersion": "9",
                "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "p-1", "controller": true}],
            },
            "spec": {},
            "status": {
                "allocation": {
                    "devices": {"results": [
                        {"request": "r", "driver": "d", "pool": "p", "device": "a", "adminAccess": true},
                        {"request": "r", "driver": "d", "pool": "p", "device": "b"},
                    ]},
                    "nodeSelector": {"nodeSelectorTerms": [
                        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}]},
                },
                "reservedFor": [{"resource": "pods", "name": "p", "uid": "p-1"}],
            },
        });
        let facts = ClaimFacts::of(serde_json::from_value(claim).unwrap()).unwrap();
        let allocation = facts.allocation.clone().unwrap();
        assert_eq!((allocation.results.len(), allocation.results[0].device.as_str()), (1, "b"));
        assert_eq!(allocation.terms.unwrap().len(), 1);
        assert_eq!(facts.owner.as_deref(), Some("p-1"));
        assert!(facts.has_user("p-1") && !facts.has_users_beside("p-1"));
        let earlier = ClaimFacts { resource_version: "8".into(), ..facts.clone() };
        assert!(facts.is_newer_than(&earlier) && !earlier.is_newer_than(&facts) && !facts.is_newer_than(&facts));
    }
}
