//! Which requests of its claims each container of a pod has. A container is in one slice, and a claim is divided into
//! slices so that each container has exactly one of them. Where that cannot be, the node would refuse the pod.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Container, ContainerExtendedResourceRequest, PodSpec};

use crate::dra::ClaimFacts;

/// A claim of a pod, and for each container that has requests of it, these requests.
pub(super) struct Divided<'a> {
    /// What the pod calls it.
    name: &'a str,
    requests: BTreeMap<&'a str, BTreeSet<&'a str>>,
}

impl<'a> Divided<'a> {
    /// A claim that containers name.
    pub(super) fn of(spec: &'a PodSpec, name: &'a str, claim: &'a ClaimFacts) -> Self {
        let containers = containers(spec).map(|of| (of.name.as_str(), requests(of, name, claim)));
        Self { name, requests: containers.filter(|(_, requests)| !requests.is_empty()).collect() }
    }

    /// A claim for extended resources.
    pub(super) fn by(mappings: &'a [ContainerExtendedResourceRequest], name: &'a str) -> Self {
        let mut requests: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for ContainerExtendedResourceRequest { container_name, request_name, .. } in mappings {
            requests.entry(container_name).or_default().insert(request_name);
        }
        Self { name, requests }
    }
}

/// Refuses a pod with a container that its node would refuse. `claims`: those for devices of our driver.
///
/// # Errors
/// The text names the container, and what it has.
pub(super) fn check(spec: &PodSpec, claims: &[Divided<'_>]) -> Result<(), String> {
    for container in containers(spec) {
        let mut of_container = claims.iter().filter(|claim| claim.requests.contains_key(container.name.as_str()));
        if let (Some(first), Some(second)) = (of_container.next(), of_container.next()) {
            return Err(format!(
                "container {:?} has the claims {:?} and {:?}: each is a slice, and a container is in one slice; \
                 ask for all devices of a container in one claim",
                container.name, first.name, second.name
            ));
        }
    }
    for claim in claims {
        let sets = || containers(spec).filter_map(|of| Some((of.name.as_str(), claim.requests.get(of.name.as_str())?)));
        let overlap = sets().enumerate().find_map(|(number, (first, set))| {
            let mut others = sets().skip(number + 1);
            let (second, _) = others.find(|(_, other)| *other != set && !other.is_disjoint(set))?;
            Some((first, second))
        });
        if let Some((first, second)) = overlap {
            return Err(format!(
                "containers {first:?} and {second:?} have some requests of the claim {:?} in common and not all: a \
                 container is in one slice, so let containers have the same requests or none in common",
                claim.name
            ));
        }
    }
    Ok(())
}

/// The containers of a pod in the order in which they start.
fn containers(spec: &PodSpec) -> impl Iterator<Item = &Container> {
    spec.init_containers.iter().flatten().chain(&spec.containers)
}

/// The requests of a claim that a container has.
fn requests<'a>(container: &Container, name: &str, claim: &'a ClaimFacts) -> BTreeSet<&'a str> {
    let mentions = container.resources.iter().flat_map(|of| of.claims.iter().flatten()).filter(|of| of.name == name);
    let all = || claim.ask.iter().flat_map(|ask| &ask.requests).map(|request| request.name.as_str());
    let of_mention = |request: Option<String>| {
        let request = request.filter(|request| !request.is_empty());
        all().filter(move |name| request.as_ref().is_none_or(|request| request == name)).collect::<Vec<_>>()
    };
    mentions.flat_map(|mention| of_mention(mention.request.clone())).collect()
}
