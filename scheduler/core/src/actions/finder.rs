//! The search over nodes for the least disruption that makes room for a task.

use std::collections::{BTreeMap, BTreeSet};

use crate::claim::NodeId;
use crate::class::ClassId;
use crate::cluster::Cluster;
use crate::placement::{Misfit, fits, room};
use crate::request::Request;
use crate::shares::Shares;
use crate::unit::Unit;

use super::least_disruption::{Disruption, Question, Solution};
use super::search::Search;
use super::victims::{Measure, Victims};

/// Looks for room that could be made by taking victims.
pub(super) struct Finder<'a> {
    pub(super) search: Search,
    pub(super) measure: Measure,
    pub(super) shares: &'a Shares,
    /// Members of the unit for which no room was sought yet.
    members_left: u32,
}

impl<'a> Finder<'a> {
    pub(super) fn new(search: Search, shares: &'a Shares, measure: Measure, unit: &Unit) -> Self {
        let members_left = u32::try_from(unit.claims.len()).unwrap_or(u32::MAX);
        Self { search, measure, shares, members_left }
    }

    /// Looks at all nodes, or those of `among`, as long as the budget lasts, and calls `found` with whom to take from
    /// each, as far as that is `allowed`. What `found` answers is the greatest number of running units that is of
    /// interest from then on.
    pub(super) fn each_node(
        &mut self,
        cluster: &Cluster,
        victims: &Victims<'_>,
        request: &Request,
        among: Option<&[NodeId]>,
        allowed: &mut dyn FnMut(&Disruption, &[usize]) -> bool,
        found: &mut dyn FnMut(NodeId, Solution) -> usize,
    ) {
        // Members for whom room is still to be found leave each other a part of the budget.
        let slice = self.search.left() / self.members_left.max(1);
        self.members_left = self.members_left.saturating_sub(1);
        let enough = self.search.left() - slice;
        let among: Option<BTreeSet<NodeId>> = among.map(|among| among.iter().copied().collect());
        let queue_order = victims.order_of_queues(cluster, self.shares);
        let spare = victims.spare(cluster);
        let question =
            Question { cluster, victims, request, measure: self.measure, queue_order: &queue_order, spare: &spare };
        let mut running_max = usize::MAX;
        for (id, here) in victims.nodes(self.search.start) {
            if among.as_ref().is_some_and(|among| !among.contains(&id))
                || cluster.is_held(id)
                || !may_run(cluster, id, request)
            {
                continue;
            }
            if running_max < usize::MAX && self.search.left() < enough {
                return;
            }
            if !self.search.spend(1 + here.len()) {
                self.search.stop(id);
                return;
            }
            let here: Vec<usize> = here.iter().map(|(_, victim)| *victim).collect();
            if let Some(solution) = question.answer(id, &here, running_max, allowed) {
                running_max = found(id, solution);
            }
        }
    }
}

/// Whether all members of a gang could fit if everybody who may be taken were gone: if not, nothing need be tried. A
/// single claim is not worth asking about: the search itself asks the same of each node.
pub(super) fn could_fit(cluster: &Cluster, victims: &Victims<'_>, unit: &Unit) -> bool {
    if unit.claims.len() < 2 {
        return true;
    }
    let mut missing: BTreeMap<ClassId, u32> = BTreeMap::new();
    unit.claims
        .iter()
        .filter_map(|claim| cluster.class_of(*claim))
        .for_each(|class| *missing.entry(class).or_default() += 1);
    let mut nodes = victims.nodes(None).peekable();
    for (id, node) in cluster.nodes() {
        let here = nodes.next_if(|(at, _)| *at == id).map_or(&[][..], |(_, here)| here);
        if cluster.is_held(id) {
            continue;
        }
        let mut emptied = None;
        for (class, missing) in &mut missing {
            let Some(request) = cluster.class(*class).map(|class| class.request()) else { return false };
            if *missing == 0 || !may_run(cluster, id, request) {
                continue;
            }
            let node = match here {
                [] => node,
                _ => emptied.get_or_insert_with(|| victims.without(cluster, id, here)).as_ref().unwrap_or(node),
            };
            *missing = missing.saturating_sub(room(node, request));
        }
        missing.retain(|_, missing| *missing > 0);
        if missing.is_empty() {
            return true;
        }
    }
    missing.is_empty()
}

/// Whether such tasks may run on a node at all.
pub(super) fn may_run(cluster: &Cluster, id: NodeId, request: &Request) -> bool {
    let fits = cluster.node(id).map(|node| fits(node, request));
    !matches!(fits, None | Some(Err(Misfit::Cordoned | Misfit::NotAdmitted | Misfit::Models { .. })))
}
