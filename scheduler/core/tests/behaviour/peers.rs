//! Rules about peers, checked anew from where all tasks are. The scheduler's books are not trusted.

use std::collections::BTreeMap;
use std::sync::Arc;

use aliquot_scheduler_core::{
    Action, ClaimId, Cluster, KnownClaim, KnownNode, NodeId, Outcome, Peers, Plan, Step, TopologySpread,
};

/// Tasks with peers, each with its node; `None`: the task is not a claim.
type Standing = Vec<(Option<ClaimId>, NodeId, Arc<Peers>)>;

/// All placed tasks with peers.
pub(crate) fn standing(cluster: &Cluster) -> Standing {
    let claims =
        cluster.claims().filter_map(|(id, claim, at)| Some((Some(id), at?.node, claim.request.peers.clone()?)));
    let foreign = cluster
        .nodes()
        .flat_map(|(id, node)| node.spec().foreign.iter().map(move |peers| (None, id, Arc::clone(peers))));
    claims.chain(foreign).collect()
}

/// Whether the rules allow a claim on a node beside the `standing` tasks.
pub(crate) fn allow(cluster: &Cluster, standing: &Standing, claim: &KnownClaim, node: NodeId) -> Result<(), String> {
    let Some(peers) = &claim.request.peers else { return Ok(()) };
    keeps_apart(cluster, standing, peers, node)?;
    has_near(cluster, standing, peers, node)?;
    peers.spread.iter().try_for_each(|rule| is_even(cluster, standing, peers, rule, node))
}

fn spec(cluster: &Cluster, node: NodeId) -> &KnownNode {
    cluster.node(node).expect("no claim is on a node that is gone").spec()
}

fn domain<'a>(cluster: &'a Cluster, node: NodeId, key: &str) -> Option<&'a str> {
    spec(cluster, node).labels.get(key)
}

/// No member of a group is in the same domain as a task that avoids the group.
fn keeps_apart(cluster: &Cluster, standing: &Standing, peers: &Peers, node: NodeId) -> Result<(), String> {
    let same = |other: NodeId, key: &str| {
        domain(cluster, node, key).is_some_and(|own| Some(own) == domain(cluster, other, key))
    };
    for (other, at, of) in standing {
        let avoids = |one: &Peers, another: &Peers| {
            let mut rules = one.anti_affinity.iter();
            rules.any(|rule| another.member_of.contains(&rule.group) && same(*at, &rule.topology_key))
        };
        if avoids(peers, of) || avoids(of, peers) {
            return Err(format!("{peers:?} on {node:?} is too near to {other:?} on {at:?}: {of:?}"));
        }
    }
    Ok(())
}

fn has_near(cluster: &Cluster, standing: &Standing, peers: &Peers, node: NodeId) -> Result<(), String> {
    let Some(rule) = &peers.affinity else { return Ok(()) };
    let members = || standing.iter().filter(|(.., of)| of.member_of.contains(&rule.group)).map(|(_, at, _)| *at);
    if rule.topology_keys.iter().any(|key| domain(cluster, node, key).is_none()) {
        return Err(format!("{node:?} lacks a key of {rule:?}"));
    }
    let is_near = |key: &String| members().any(|other| domain(cluster, other, key) == domain(cluster, node, key));
    let nobody = members().all(|other| rule.topology_keys.iter().all(|key| domain(cluster, other, key).is_none()));
    let is_first = nobody && peers.member_of.contains(&rule.group);
    match is_first || rule.topology_keys.iter().all(is_near) {
        true => Ok(()),
        false => Err(format!("{peers:?} on {node:?} is far from {:?}", members().collect::<Vec<_>>())),
    }
}

fn is_even(
    cluster: &Cluster,
    standing: &Standing,
    peers: &Peers,
    rule: &TopologySpread,
    node: NodeId,
) -> Result<(), String> {
    let counts = |node: &KnownNode| {
        peers.spread.iter().all(|other| node.labels.contains_key(&other.topology_key))
            && rule.labels.iter().all(|(key, value)| node.labels.get(key) == Some(value))
            && (rule.node_terms.is_empty() || rule.node_terms.iter().any(|term| term.matches(&node.labels)))
            && rule.tolerations.as_ref().is_none_or(|all| {
                node.taints.iter().all(|taint| all.iter().any(|toleration| toleration.tolerates(taint)))
            })
    };
    let mut domains: BTreeMap<&str, u32> = BTreeMap::new();
    for (id, node) in cluster.nodes().filter(|(_, node)| counts(node.spec())) {
        let members = standing.iter().filter(|(_, at, of)| *at == id && of.member_of.contains(&rule.group)).count();
        let value = node.spec().labels.get(&rule.topology_key).expect("nodes that count have it");
        *domains.entry(value).or_default() += u32::try_from(members).expect("few");
    }
    let own = domain(cluster, node, &rule.topology_key).ok_or_else(|| format!("{node:?} lacks the key of {rule:?}"))?;
    let Some(least) = domains.values().min().copied() else { return Ok(()) };
    let least = if domains.len() < rule.min_domains as usize { 0 } else { least };
    let then = domains.get(own).copied().unwrap_or(0) + u32::from(peers.member_of.contains(&rule.group));
    match then <= least + rule.max_skew {
        true => Ok(()),
        false => Err(format!("{node:?} would be the {then}th in {own} of {domains:?}: {rule:?}")),
    }
}

/// The claims that waited for others to be gone, and start now, are near those that their affinity asks for. A member of
/// this group can have been the first.
pub(crate) fn let_start(cluster: &Cluster, outcome: &Outcome) -> Result<(), String> {
    let Outcome::Claims { ready, .. } = outcome else { return Ok(()) };
    let there = standing(cluster);
    for id in ready {
        let (Some(claim), Some(at)) = (cluster.claim(*id), cluster.allocation(*id)) else { continue };
        let Some(peers) = &claim.request.peers else { continue };
        has_near(cluster, &there, peers, at.node)?;
    }
    Ok(())
}

/// The claims that a plan has placed are where the rules allow them, and no two tasks are nearer than their rules
/// allow. In a plan that only places, each claim is where the rules allowed it when its turn came.
pub(crate) fn are_heeded(before: &Cluster, after: &Cluster, plan: &Plan) -> Result<(), String> {
    let there = standing(after);
    for id in plan.steps.iter().filter_map(|planned| planned.step.placed()) {
        let (Some(claim), Some(at)) = (after.claim(id), after.allocation(id)) else { continue };
        let Some(peers) = &claim.request.peers else { continue };
        let others: Standing = there.iter().filter(|(other, ..)| *other != Some(id)).cloned().collect();
        keeps_apart(after, &others, peers, at.node)?;
    }
    let only_places = |step: &Step| matches!(step, Step::Place { .. });
    if plan.steps.iter().any(|planned| planned.action != Action::Allocate || !only_places(&planned.step)) {
        return Ok(());
    }
    let mut there = standing(before);
    for planned in &plan.steps {
        let Step::Place { claim: id, to, .. } = &planned.step else { continue };
        let Some(claim) = after.claim(*id) else { continue };
        allow(after, &there, claim, to.node)?;
        there.extend(claim.request.peers.clone().map(|peers| (Some(*id), to.node, peers)));
    }
    Ok(())
}
