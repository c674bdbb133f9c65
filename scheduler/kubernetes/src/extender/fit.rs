//! Which nodes have room for a pod's devices, and which suits best.

use std::collections::BTreeSet;

use aliquot_scheduler_core::explain::{NodeObstacle, Reason};
use aliquot_scheduler_core::{ClaimId, Cluster, Event, NodeId, Outcome, Request};
use aliquot_scheduler_engine::View;
use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;

use super::protocol::{ExtenderArgs, FilterResult, HostPriority, SCORE_MAX, Said};
use crate::pod::PodFacts;
use crate::serve::Shared;

/// A copy of the books in which a pod waits.
struct Trial {
    cluster: Cluster,
    claim: ClaimId,
    request: Request,
}

/// Why a pod gets no devices on any node.
enum Nowhere {
    /// The pod as it is never will get any.
    Ever(String),
    /// It gets none now, but there may be room later.
    Now(String),
}

impl Trial {
    /// `None`: the pod asks for no device here, so any node will do.
    fn of(shared: &Shared, view: &View, pod: Pod) -> Result<Option<Trial>, Nowhere> {
        let facts = facts(shared, pod).map_err(Nowhere::Ever)?;
        let claim = shared.read(|mirror| mirror.claim_of_chosen(&facts)).map_err(Nowhere::Ever)?;
        let Some(claim) = claim else { return Ok(None) };
        let (mut cluster, request) = (view.cluster().clone(), claim.request.clone());
        let claim = match cluster.apply(Event::ClaimAdded(claim)) {
            Ok(Outcome::Claim(claim)) => claim,
            Ok(_) => return Ok(None),
            Err(error) => return Err(Nowhere::Now(error.to_string())),
        };
        let bounds = view.scheduler().bounds_passed(&cluster, claim);
        let bounds: Vec<String> = bounds.iter().map(Reason::to_string).collect();
        match bounds.is_empty() {
            true => Ok(Some(Trial { cluster, claim, request })),
            false => Err(Nowhere::Now(bounds.join("; "))),
        }
    }

    fn node(&self, name: &str) -> Option<NodeId> {
        self.cluster.node_named(name)
    }
}

/// The pod as this scheduler sees it.
///
/// # Errors
/// Why this is not a pod that can be asked about.
pub(super) fn facts(shared: &Shared, pod: Pod) -> Result<PodFacts, String> {
    let facts = PodFacts::of(pod.into(), &shared.name).ok_or("the pod has no name or no UID")?;
    match facts.scheduler == shared.name {
        true => Err(format!("the pod names the scheduler {:?}, which places it by itself", shared.name)),
        false => Ok(facts),
    }
}

/// Which of the nodes have room for the pod's devices.
pub(super) fn filter(shared: &Shared, view: &View, args: ExtenderArgs) -> FilterResult {
    let names = match args.names() {
        Ok(names) => names,
        Err(error) => return FilterResult { error: error.into(), ..FilterResult::default() },
    };
    let mut result = FilterResult::default();
    let mut fitting = BTreeSet::new();
    match Trial::of(shared, view, args.pod) {
        Ok(None) => fitting.extend(names),
        Ok(Some(trial)) => {
            for name in names {
                let obstacle = trial.node(&name).map(|id| NodeObstacle::of(&trial.cluster, &trial.request, id));
                match obstacle {
                    Some(None) => _ = fitting.insert(name),
                    Some(Some(obstacle)) if obstacle.is_lasting() => {
                        result.failed_and_unresolvable_nodes.insert(name, Said::of_node(&obstacle.to_string()));
                    }
                    Some(Some(obstacle)) => {
                        result.failed_nodes.insert(name, Said::of_node(&obstacle.to_string()));
                    }
                    None => {
                        let why = Said::of_node("the scheduler of devices has not seen the node yet");
                        result.failed_nodes.insert(name, why);
                    }
                }
            }
        }
        Err(Nowhere::Ever(why)) => {
            let why = Said::of_node(&why);
            result.failed_and_unresolvable_nodes.extend(names.into_iter().map(|name| (name, why.clone())));
        }
        Err(Nowhere::Now(why)) => {
            let why = Said::of_node(&why);
            result.failed_nodes.extend(names.into_iter().map(|name| (name, why.clone())));
        }
    }
    // The nodes are sent back in the way in which they came.
    result.node_names = args.node_names.map(|mut names| {
        names.retain(|name| fitting.contains(name));
        names
    });
    if result.node_names.is_none() {
        result.nodes = args.nodes.map(|mut nodes| {
            if let Value::Array(items) = &mut nodes["items"] {
                items.retain(|node| node["metadata"]["name"].as_str().is_some_and(|name| fitting.contains(name)));
            }
            nodes
        });
    }
    result
}

/// How well each of the nodes suits the pod: by the policy that places pods of this scheduler.
///
/// # Errors
/// What is wrong with the question.
pub(super) fn prioritize(shared: &Shared, view: &View, args: &ExtenderArgs) -> Result<Vec<HostPriority>, String> {
    let names = args.names()?;
    let costs = match Trial::of(shared, view, args.pod.clone()) {
        Ok(Some(trial)) => {
            let ids: Vec<Option<NodeId>> = names.iter().map(|name| trial.node(name)).collect();
            let mut costs =
                view.scheduler().fork().costs_on(&trial.cluster, trial.claim, ids.iter().flatten().copied());
            // Nodes that are not known get no cost.
            let mut known = costs.drain(..);
            ids.iter().map(|id| id.and_then(|_| known.next().flatten())).collect()
        }
        Ok(None) | Err(_) => vec![None; names.len()],
    };
    Ok(names.into_iter().zip(scores(&costs)).map(|(host, score)| HostPriority { host, score }).collect())
}

/// The cheapest nodes get the greatest score. The dearest nodes get 0, as do nodes that do not suit. Only the order of
/// costs has a meaning, so the scores between are spread evenly.
fn scores(costs: &[Option<i64>]) -> Vec<i64> {
    let ranks: Vec<i64> = costs.iter().copied().flatten().collect::<BTreeSet<i64>>().into_iter().collect();
    let last = i64::try_from(ranks.len().saturating_sub(1)).unwrap_or(i64::MAX);
    let score = |cost: &Option<i64>| {
        let rank = i64::try_from(ranks.binary_search(cost.as_ref()?).ok()?).ok()?;
        Some(if last == 0 { SCORE_MAX } else { (last - rank) * SCORE_MAX / last })
    };
    costs.iter().map(|cost| score(cost).unwrap_or(0)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cheapest_node_has_the_greatest_score() {
        assert_eq!(scores(&[Some(5), None, Some(-3), Some(900), Some(5)]), [5, 0, 10, 0, 5]);
        assert_eq!(scores(&[Some(7), Some(7)]), [10, 10]);
        assert_eq!(scores(&[None]), [0]);
        assert_eq!(scores(&[]), [0; 0]);
    }
}
