//! Which requests of its claims each container of a pod has. A container is in one slice, and a claim is divided into
//! slices so that each container has exactly one of them. Where that cannot be, the node would refuse the pod.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Container, ContainerExtendedResourceRequest, PodSpec};

/// A claim of a pod, and for each container that has requests of it, these requests.
pub(super) struct Divided<'a> {
    /// What the pod calls it.
    name: &'a str,
    requests: BTreeMap<&'a str, BTreeSet<&'a str>>,
}

impl<'a> Divided<'a> {
    /// A claim that containers name. `of_ours`: those of its requests that are for devices of our driver.
    pub(super) fn of(spec: &'a PodSpec, name: &'a str, of_ours: &BTreeSet<&'a str>) -> Self {
        let containers = containers(spec).map(|of| (of.name.as_str(), requests(of, name, of_ours)));
        Self { name, requests: containers.filter(|(_, requests)| !requests.is_empty()).collect() }
    }

    /// A claim for extended resources. `of_ours`: those of its requests that are for devices of our driver.
    pub(super) fn by(
        mappings: &'a [ContainerExtendedResourceRequest],
        name: &'a str,
        of_ours: &BTreeSet<&str>,
    ) -> Self {
        let mut requests: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        let mappings = mappings.iter().filter(|mapping| of_ours.contains(mapping.request_name.as_str()));
        for ContainerExtendedResourceRequest { container_name, request_name, .. } in mappings {
            requests.entry(container_name).or_default().insert(request_name);
        }
        Self { name, requests }
    }

    /// Whether a division of the claim for the containers of one pod is one for those of the other pod, too: a request that
    /// no container of a pod has is divided from the others. But a node makes one slice of the claim if no
    /// container of the pod names it. `of_ours`: the claim's requests for devices of our driver.
    pub(super) fn is_like(&self, other: &Self, of_ours: &BTreeSet<&str>) -> bool {
        let (own, others) = (self.sets(of_ours), other.sets(of_ours));
        let is_among = |set: &BTreeSet<&str>, sets: &[&BTreeSet<&str>]| {
            let is_apart = || sets.iter().all(|of| of.is_disjoint(set));
            sets.contains(&set) || set.len() == 1 && is_apart()
        };
        own.iter().all(|set| is_among(set, &others)) && others.iter().all(|set| is_among(set, &own))
    }

    /// The requests that are in one slice together because of these containers.
    fn sets<'b>(&'b self, of_ours: &'b BTreeSet<&'b str>) -> Vec<&'b BTreeSet<&'b str>> {
        if self.requests.is_empty() { vec![of_ours] } else { self.requests.values().collect() }
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

/// Those of a claim's requests for devices of our driver that a container has.
fn requests<'a>(container: &Container, name: &str, of_ours: &BTreeSet<&'a str>) -> BTreeSet<&'a str> {
    let mentions = container.resources.iter().flat_map(|of| of.claims.iter().flatten()).filter(|of| of.name == name);
    let of_mention = |request: Option<String>| {
        let request = request.filter(|request| !request.is_empty());
        let is_meant = move |name: &&str| request.as_ref().is_none_or(|request| request == name);
        of_ours.iter().copied().filter(is_meant).collect::<Vec<_>>()
    };
    mentions.flat_map(|mention| of_mention(mention.request.clone())).collect()
}
