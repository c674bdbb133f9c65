//! The parts that containers of pods have of claims, and the division of a claim into slices that follows from them.
//!
//! A container has a whole claim, or single requests of it: those that it names, and those that kube-scheduler has made
//! for its extended resources, where all containers of a pod have one claim in common. Kubelet gives the container the
//! CDI devices of these requests. A container is in one slice. So the requests that a container has together form one
//! slice, and a request that no container has together with others is a slice of its own. If two containers have some
//! requests in common but not all, no division gives each exactly its own, and the claim is refused: slices that
//! overlap would be in one container together. A process has one region: in two slices, it would use the devices of
//! only one of them.
//!
//! A claim is refused when it is prepared. Kubelet does not ask again for a claim that is prepared already, so a pod
//! that joins such claims later is not refused: it gets an event.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_dialects::requesting_annotations;
use k8s_openapi::api::core::v1::Pod;

/// A container's part of a claim; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    /// The name of its pod.
    pub pod: String,
    /// Its name in the pod.
    pub container: String,
    /// The claim's requests that it has.
    pub requests: BTreeSet<String>,
}

/// A container that cannot be in one slice that has exactly its requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Misfit {
    /// The name of its pod.
    pub pod: String,
    /// The container, and the reason.
    pub reason: String,
}

/// A container with a claim, or with one of its requests.
struct Mention<'pod> {
    container: &'pod str,
    claim: &'pod str,
    /// The request; `None` stands for the whole claim.
    request: Option<&'pod str>,
}

/// All mentions of claims by the pod's containers, including init containers.
fn mentions(pod: &Pod) -> Vec<Mention<'_>> {
    let generated: BTreeMap<&str, &str> = pod
        .status
        .iter()
        .flat_map(|status| status.resource_claim_statuses.iter().flatten())
        .filter_map(|status| Some((status.name.as_str(), status.resource_claim_name.as_deref()?)))
        .collect();
    // The claims' names, by the pod's names for them.
    let names: BTreeMap<&str, &str> = pod
        .spec
        .iter()
        .flat_map(|spec| spec.resource_claims.iter().flatten())
        .filter_map(|claim| {
            let name = claim.resource_claim_name.as_deref();
            Some((claim.name.as_str(), name.or_else(|| generated.get(claim.name.as_str()).copied())?))
        })
        .collect();
    let containers = pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten().chain(&spec.containers));
    let named = containers.flat_map(|container| {
        let claims = container.resources.iter().flat_map(|resources| resources.claims.iter().flatten());
        claims.map(move |claim| (container.name.as_str(), claim))
    });
    let of_claims = named.filter_map(|(container, claim)| {
        let request = claim.request.as_deref().filter(|request| !request.is_empty());
        Some(Mention { container, claim: names.get(claim.name.as_str())?, request })
    });
    let extended = pod.status.iter().filter_map(|status| status.extended_resource_claim_status.as_ref());
    let of_extended_resources = extended.flat_map(|extended| {
        extended.request_mappings.iter().map(|mapping| Mention {
            container: &mapping.container_name,
            claim: &extended.resource_claim_name,
            request: Some(&mapping.request_name),
        })
    });
    of_claims.chain(of_extended_resources).collect()
}

/// Whether a pod is in the PodGroup of this name.
#[must_use]
pub(super) fn is_member(pod: &Pod, group: &str) -> bool {
    let of_pod = pod.spec.as_ref().and_then(|spec| spec.scheduling_group.as_ref()?.pod_group_name.as_deref());
    of_pod == Some(group)
}

/// The parts of the claim `claim` that the pod's containers have. `requests` are those that our devices answer.
#[must_use]
pub(super) fn seen(pod: &Pod, claim: &str, requests: &BTreeSet<String>) -> Vec<Seen> {
    let mut by_container: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for mention in mentions(pod).into_iter().filter(|mention| mention.claim == claim) {
        let has = by_container.entry(mention.container).or_default();
        has.extend(requests.iter().filter(|name| mention.request.is_none_or(|request| request == *name)).cloned());
    }
    let pod = pod.metadata.name.as_deref().unwrap_or_default();
    let seen = by_container.into_iter().map(|(container, requests)| Seen {
        pod: pod.into(),
        container: container.into(),
        requests,
    });
    seen.filter(|seen| !seen.requests.is_empty()).collect()
}

/// The reason why a container of `pod` cannot be in its slices: it has two of the claims that become slices. `is_ours`
/// says whether the claim of a name becomes one.
#[must_use]
pub(super) fn conflict(pod: &Pod, is_ours: impl Fn(&str) -> bool) -> Option<String> {
    let mut by_container: BTreeMap<&str, &str> = BTreeMap::new();
    mentions(pod).into_iter().filter(|mention| is_ours(mention.claim)).find_map(|mention| {
        let Mention { container, claim, .. } = mention;
        let other = by_container.insert(container, claim).filter(|other| *other != claim)?;
        Some(format!(
            "container {container:?} has the claims {other:?} and {claim:?}: each is a slice, and a container is in one \
             slice; ask for all devices of a container in one claim"
        ))
    })
}

/// Lists the annotations of the pod that would ask for something if it had no claims. `None` if it has none.
#[must_use]
pub(super) fn unread_annotations(pod: &Pod) -> Option<String> {
    let ours: Vec<&str> = requesting_annotations(pod.metadata.annotations.iter().flat_map(BTreeMap::keys)).collect();
    let listed = || {
        format!(
            "{} changes nothing for claims: say it in the claim's config, as coreLimitPercent or priorityClass of a \
             SliceConfig",
            ours.join(", ")
        )
    };
    (!ours.is_empty()).then(listed)
}

/// Groups the claim's requests into slices. A claim is one slice if all its containers have the whole claim, or if no
/// container has it.
#[must_use]
pub(super) fn divide(requests: &BTreeSet<String>, seen: &[Seen]) -> Vec<BTreeSet<String>> {
    if seen.iter().all(|seen| seen.requests == *requests) {
        return vec![requests.clone()];
    }
    let mut division: Vec<BTreeSet<String>> =
        requests.iter().map(|request| BTreeSet::from([request.clone()])).collect();
    for Seen { requests, .. } in seen {
        let (apart, mut others): (Vec<_>, Vec<_>) = division.into_iter().partition(|set| set.is_disjoint(requests));
        others = vec![others.drain(..).flatten().collect()];
        others.extend(apart);
        division = others;
    }
    division.sort();
    division
}

/// A container whose part of `claim` is not one of these sets of requests.
#[must_use]
pub(super) fn misfit(claim: &str, division: &[BTreeSet<String>], seen: &[Seen]) -> Option<Misfit> {
    let (misfit, set) = seen.iter().find_map(|seen| {
        let set = division.iter().find(|set| !set.is_disjoint(&seen.requests))?;
        (*set != seen.requests).then_some((seen, set))
    })?;
    let Seen { pod, container, requests } = misfit;
    let other = seen.iter().find(|other| other.requests != *requests && !other.requests.is_disjoint(set));
    let why = match other {
        Some(Seen { pod, container, requests }) => {
            format!(
                "container {container:?} of pod {pod:?} has {}: a container is in one slice, so let containers have the \
                 same requests or none in common",
                named(requests)
            )
        }
        None => format!(
            "{} became a slice when the claim was first prepared, and is one until no pod on the node uses the claim: \
             delete those that do",
            named(set)
        ),
    };
    Some(Misfit {
        pod: pod.clone(),
        reason: format!("container {container:?} has {} of claim {claim:?}, and {why}", named(requests)),
    })
}

fn named(requests: &BTreeSet<String>) -> String {
    let names: Vec<String> = requests.iter().map(|request| format!("{request:?}")).collect();
    format!("request {}", names.join(" and "))
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

    #[test]
    fn only_annotations_that_would_ask_for_something_change_nothing() {
        let with = |keys: &[&str]| {
            let mut pod = pod(json!([]));
            let annotations = keys.iter().map(|key| ((*key).to_owned(), "1".to_owned()));
            pod.metadata.annotations = Some(annotations.collect());
            unread_annotations(&pod)
        };
        // The scheduler reads and writes these.
        let of_the_scheduler =
            ["aliquot.dev/generation", "aliquot.dev/devices", "aliquot.dev/gang", "aliquot.dev/gang-size"];
        assert_eq!(with(&of_the_scheduler), None);
        assert_eq!(with(&["elastic-gpu-claim.aliquot.dev/main", "example.com/note"]), None);
        let text = with(&["aliquot.dev/generation", "aliquot.dev/gpu-core-limit"]).unwrap();
        assert!(text.starts_with("aliquot.dev/gpu-core-limit changes nothing for claims"), "{text}");
    }

    /// A pod with a claim for its extended resources, with these requests of these containers.
    fn extended(mappings: &[(&str, &str)]) -> Pod {
        let mapping = |(container, request): &(&str, &str)| json!({"containerName": container, "requestName": request, "resourceName": "example.com/gpu"});
        let mappings: Vec<Value> = mappings.iter().map(mapping).collect();
        let mut pod = pod(json!([container("a", json!([])), container("b", json!([{"name": "one"}]))]));
        let status = json!({"resourceClaimName": "extended", "requestMappings": mappings});
        pod.status.as_mut().unwrap().extended_resource_claim_status = serde_json::from_value(status).unwrap();
        pod
    }

    fn container(name: &str, claims: Value) -> Value {
        json!({"name": name, "resources": {"claims": claims}})
    }

    fn set(requests: &[&str]) -> BTreeSet<String> {
        requests.iter().map(|request| (*request).to_owned()).collect()
    }

    /// Sets of requests, for example `a b|c`.
    fn sets(text: &str) -> Vec<BTreeSet<String>> {
        text.split_terminator('|').map(|names| names.split(' ').map(Into::into).collect()).collect()
    }

    /// Containers `c0`, `c1`, ... with these requests.
    fn having(text: &str) -> Vec<Seen> {
        let seen = |(number, requests)| Seen { pod: "pod".into(), container: format!("c{number}"), requests };
        sets(text).into_iter().enumerate().map(seen).collect()
    }

    fn brief(seen: Vec<Seen>) -> Vec<(String, Vec<String>)> {
        seen.into_iter().map(|seen| (seen.container, seen.requests.into_iter().collect())).collect()
    }

    #[test]
    fn containers_may_be_in_slices_of_their_own_and_share_them() {
        let pod = pod(json!([
            container("a", json!([{"name": "one"}, {"name": "nic"}])),
            container("b", json!([{"name": "two"}])),
            container("c", json!([{"name": "one", "request": "gpu"}, {"name": "one"}])),
            container("d", json!([])),
        ]));
        assert_eq!(conflict(&pod, |name| ["claim-one", "pod-two-x"].contains(&name)), None);
    }

    #[test]
    fn a_container_that_has_two_slices_is_refused() {
        let named = pod(json!([container("a", json!([{"name": "one"}, {"name": "two"}]))]));
        let reason = conflict(&named, |name| ["claim-one", "pod-two-x"].contains(&name)).unwrap();
        assert!(reason.starts_with("container \"a\" has the claims \"claim-one\" and \"pod-two-x\""), "{reason}");
        assert_eq!(conflict(&named, |name| ["claim-one"].contains(&name)), None);
        let extended = extended(&[("b", "r")]);
        let reason = conflict(&extended, |name| ["claim-one", "extended"].contains(&name)).unwrap();
        assert!(reason.starts_with("container \"b\" has the claims \"claim-one\" and \"extended\""), "{reason}");
    }

    #[test]
    fn a_container_has_what_it_names_of_our_requests() {
        let pod = pod(json!([
            container("all", json!([{"name": "two"}])),
            container("empty", json!([{"name": "two", "request": ""}])),
            container("both", json!([{"name": "two", "request": "large"}, {"name": "two"}])),
            container("pair", json!([{"name": "two", "request": "large"}, {"name": "two", "request": "small"}])),
            container("single", json!([{"name": "two", "request": "small"}])),
            container("nic", json!([{"name": "two", "request": "nic"}])),
            container("other", json!([{"name": "one"}])),
        ]));
        let expect = |name: &str, requests: &[&str]| (name.to_owned(), set(requests).into_iter().collect::<Vec<_>>());
        assert_eq!(
            brief(seen(&pod, "pod-two-x", &set(&["large", "small"]))),
            [
                expect("all", &["large", "small"]),
                expect("both", &["large", "small"]),
                expect("empty", &["large", "small"]),
                expect("pair", &["large", "small"]),
                expect("single", &["small"]),
            ]
        );
    }

    #[test]
    fn a_container_has_the_requests_that_were_made_for_its_extended_resources() {
        let pod = extended(&[("a", "container-0-request-0"), ("b", "container-1-request-0"), ("a", "other")]);
        let requests = set(&["container-0-request-0", "container-1-request-0", "other"]);
        let expect = |name: &str, requests: &[&str]| (name.to_owned(), set(requests).into_iter().collect::<Vec<_>>());
        assert_eq!(
            brief(seen(&pod, "extended", &requests)),
            [expect("a", &["container-0-request-0", "other"]), expect("b", &["container-1-request-0"])]
        );
        assert_eq!(seen(&pod, "pod-two-x", &requests), []);
    }

    #[test]
    fn what_a_container_has_is_one_slice_and_nothing_else_is() {
        for (requests, has, expected) in [
            ("a", "", "a"),
            ("a b", "", "a b"),
            ("a b", "a b|a b", "a b"),
            ("a b", "a|b", "a|b"),
            ("a b", "a|a", "a|b"),
            ("a b c", "a c|b|a c", "a c|b"),
            ("a b c d", "b c", "a|b c|d"),
        ] {
            let (requests, having) = (sets(requests).remove(0), having(has));
            let division = divide(&requests, &having);
            assert_eq!(division, sets(expected), "{has}");
            assert_eq!(misfit("claim", &division, &having), None, "{has}");
        }
    }

    #[test]
    fn containers_that_have_some_requests_in_common_are_refused() {
        for (requests, has, container) in [("a b", "a b|a", "c1"), ("a b", "a|a b", "c0"), ("a b c", "a b|b c", "c0")] {
            let (requests, having) = (sets(requests).remove(0), having(has));
            let misfit = misfit("claim", &divide(&requests, &having), &having).unwrap();
            assert!(misfit.reason.starts_with(&format!("container {container:?} has request ")), "{misfit:?}");
            assert!(misfit.reason.contains("of pod \"pod\" has request"), "{misfit:?}");
        }
        // The claim was divided differently before.
        for (division, has) in [("a b", "b"), ("a|b", "a b")] {
            let (division, having) = (sets(division), having(has));
            let misfit = misfit("claim", &division, &having).unwrap();
            assert!(misfit.reason.contains("became a slice when the claim was first prepared"), "{misfit:?}");
        }
    }
}
