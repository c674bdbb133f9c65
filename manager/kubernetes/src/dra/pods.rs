//! Whether the containers of a pod can be in the slices of its claims. A container is in one slice, so it can name one
//! claim, and not only a part of it. A process has one region: in two slices, it would use the devices of one of them
//! without limits.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod};

/// Why a container of `pod` cannot be in its slices. `ours` are the names of the claims that become slices, with how
/// many requests each has.
#[must_use]
pub(super) fn conflict(pod: &Pod, ours: &BTreeMap<String, usize>) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    let generated: BTreeMap<&str, &str> = pod
        .status
        .iter()
        .flat_map(|status| status.resource_claim_statuses.iter().flatten())
        .filter_map(|status| Some((status.name.as_str(), status.resource_claim_name.as_deref()?)))
        .collect();
    let claims: BTreeMap<&str, &str> = spec
        .resource_claims
        .iter()
        .flatten()
        .filter_map(|claim| {
            let name = claim.resource_claim_name.as_deref();
            Some((claim.name.as_str(), name.or_else(|| generated.get(claim.name.as_str()).copied())?))
        })
        .filter(|(_, claim)| ours.contains_key(*claim))
        .collect();
    let init = spec.init_containers.iter().flatten();
    init.chain(&spec.containers).find_map(|container| conflict_of(container, &claims, ours))
}

/// The same of one container; `claims` are the claims' names by the pod's names for them.
fn conflict_of(container: &Container, claims: &BTreeMap<&str, &str>, ours: &BTreeMap<String, usize>) -> Option<String> {
    let named = container.resources.iter().flat_map(|resources| resources.claims.iter().flatten());
    let mut slice: Option<&str> = None;
    for claim in named {
        let Some(&name) = claims.get(claim.name.as_str()) else { continue };
        if let Some(other) = slice.filter(|slice| *slice != name) {
            return Some(format!(
                "container {:?} names the claims {other:?} and {name:?}: each is a slice, and a container is in one \
                 slice; ask for all devices of a container in one claim",
                container.name
            ));
        }
        if let Some(request) = claim.request.as_deref().filter(|_| ours.get(name).is_some_and(|requests| *requests > 1))
        {
            return Some(format!(
                "container {:?} names only request {request:?} of claim {name:?}: a claim is one slice; name the whole \
                 claim, or make a claim of each request",
                container.name
            ));
        }
        slice = Some(name);
    }
    None
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(containers: Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "pod"},
            "spec": {
                "containers": containers,
                "resourceClaims": [
                    {"name": "one", "resourceClaimName": "claim-one"},
                    {"name": "two", "resourceClaimTemplateName": "template"},
                    {"name": "nic", "resourceClaimName": "claim-nic"},
                ],
            },
            "status": {"resourceClaimStatuses": [{"name": "two", "resourceClaimName": "pod-two-x"}]},
        }))
        .unwrap()
    }

    fn container(name: &str, claims: Value) -> Value {
        json!({"name": name, "resources": {"claims": claims}})
    }

    fn ours() -> BTreeMap<String, usize> {
        BTreeMap::from([("claim-one".into(), 1), ("pod-two-x".into(), 2)])
    }

    #[test]
    fn containers_may_be_in_slices_of_their_own_and_share_them() {
        let pod = pod(json!([
            container("a", json!([{"name": "one"}, {"name": "nic"}])),
            container("b", json!([{"name": "two"}])),
            container("c", json!([{"name": "one", "request": "gpu"}, {"name": "one"}])),
            container("d", json!([])),
        ]));
        assert_eq!(conflict(&pod, &ours()), None);
    }

    #[test]
    fn a_container_that_names_two_slices_is_refused() {
        let pod = pod(json!([container("a", json!([{"name": "one"}, {"name": "two"}]))]));
        let reason = conflict(&pod, &ours()).unwrap();
        assert!(reason.starts_with("container \"a\" names the claims \"claim-one\" and \"pod-two-x\""), "{reason}");
        assert_eq!(conflict(&pod, &BTreeMap::from([("claim-one".into(), 1)])), None);
    }

    #[test]
    fn a_container_that_names_a_part_of_a_slice_is_refused() {
        let pod = pod(json!([container("a", json!([{"name": "two", "request": "large"}]))]));
        let reason = conflict(&pod, &ours()).unwrap();
        assert!(reason.starts_with("container \"a\" names only request \"large\" of claim \"pod-two-x\""), "{reason}");
    }
}
