//! Which requests of its claims each container of a pod has. A container is in one slice, and a claim is divided into
//! slices so that each container has exactly one of them. Where that cannot be, the node would refuse the pod.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Container, PodSpec};

use crate::dra::ClaimFacts;

/// Says which container a node would refuse. The claims are those for devices of our driver, with their names in the pod.
///
/// # Errors
/// With the container, and what it has.
pub(super) fn check(spec: &PodSpec, claims: &[(&str, &ClaimFacts)]) -> Result<(), String> {
    let containers = || spec.init_containers.iter().flatten().chain(&spec.containers);
    for container in containers() {
        let mut of_container = claims.iter().filter(|(name, claim)| !requests(container, name, claim).is_empty());
        if let (Some((first, _)), Some((second, _))) = (of_container.next(), of_container.next()) {
            return Err(format!(
                "container {:?} has the claims {first:?} and {second:?}: each is a slice, and a container is in one slice; \
                 ask for all devices of a container in one claim",
                container.name
            ));
        }
    }
    for (name, claim) in claims {
        let sets: Vec<(&str, BTreeSet<&str>)> =
            containers().map(|of| (of.name.as_str(), requests(of, name, claim))).collect();
        let overlap = sets.iter().enumerate().find_map(|(number, (first, set))| {
            let mut others = sets.iter().skip(number + 1);
            let (second, _) = others.find(|(_, other)| other != set && !other.is_disjoint(set))?;
            Some((first, second))
        });
        if let Some((first, second)) = overlap {
            return Err(format!(
                "containers {first:?} and {second:?} have some requests of the claim {name:?} in common and not all: a \
                 container is in one slice, so let containers have the same requests or none in common"
            ));
        }
    }
    Ok(())
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
