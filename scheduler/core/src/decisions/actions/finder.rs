//! The search over nodes for the least disruption that makes room for a task.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use crate::decisions::placement::{admits, room};
use crate::decisions::unit::Unit;
use crate::state::class::ClassId;
use crate::state::cluster::Cluster;
use crate::vocabulary::claim::NodeId;
use crate::vocabulary::request::Request;

use super::least_disruption::{Question, Seeker};
use super::search::Search;
use super::selection::VictimSelection;

/// Looks for room that could be made by taking victims.
pub(super) struct Finder {
    pub(super) search: Search,
    /// Members of the unit for which no room was sought yet.
    members_left: u32,
}

impl Finder {
    pub(super) fn new(search: Search, unit: &Unit) -> Self {
        let members_left = u32::try_from(unit.claims.len()).unwrap_or(u32::MAX);
        Self { search, members_left }
    }

    /// Looks at all nodes, or those of `among`, as long as the budget lasts, for whom to take from each.
    ///
    /// Nodes are taken in order, so that the next search can go on where this one ends; but of as many as the budget is
    /// enough for in any case those come first that promise most, and then most others need no closer look.
    pub(super) fn each_node(&mut self, question: &mut Question<'_>, among: Option<&[NodeId]>, seeker: &mut dyn Seeker) {
        // Members for whom room is still to be found leave each other a part of the budget.
        let enough = self.search.left() - self.search.left() / self.members_left.max(1);
        let kept_back = seeker.kept_back(self.search.left());
        self.members_left = self.members_left.saturating_sub(1);
        let (cluster, request) = (question.cluster, question.request);
        let among: Option<BTreeSet<NodeId>> = among.map(|among| among.iter().copied().collect());
        let is_open = |id: NodeId| {
            among.as_ref().is_none_or(|among| among.contains(&id))
                && !cluster.is_held(id)
                && may_run(cluster, id, request)
        };
        let mut nodes = question.selection.nodes(self.search.start).filter(|(id, _)| is_open(*id)).peekable();
        while let Some((next, _)) = nodes.peek() {
            let left = self.search.left();
            if seeker.has_found() && left < enough {
                // There the next member's search goes on.
                self.search.start = Some(*next);
            }
            if left <= kept_back || (seeker.has_found() && left < enough) {
                self.search.stop(*next);
                return;
            }
            let keeps = if left > enough { kept_back.max(enough) } else { kept_back };
            let mut available = (left - keeps) as usize;
            let mut promising = BinaryHeap::new();
            while let Some((id, here)) = nodes.next_if(|(_, here)| promising.is_empty() || looks(here) <= available) {
                available = available.saturating_sub(looks(&here));
                promising.push(Reverse((question.least(&here), id, here)));
            }
            self.search.pass(promising.len());
            while let Some(Reverse((least, id, here))) = promising.pop() {
                if least.is_none_or(|least| !seeker.cares_for(&least)) {
                    continue;
                }
                if !self.search.spend(looks(&here)) {
                    let rest = promising.into_iter().map(|Reverse((_, id, _))| id);
                    self.search.stop(rest.fold(id, NodeId::min));
                    return;
                }
                if let Some(solution) = question.answer(id, here, &mut self.search, seeker) {
                    seeker.found(id, solution);
                }
            }
        }
    }
}

/// What a look at a node costs.
fn looks(here: &[usize]) -> usize {
    1 + here.len()
}

/// Whether all members of a gang could fit if everybody who may be taken were gone: if not, nothing need be tried. A
/// single claim is not worth asking about: the search itself asks the same of each node.
pub(super) fn could_fit(cluster: &Cluster, selection: &VictimSelection<'_>, unit: &Unit, search: &mut Search) -> bool {
    if unit.claims.len() < 2 {
        return true;
    }
    let mut missing: BTreeMap<ClassId, u32> = BTreeMap::new();
    unit.claims
        .iter()
        .filter_map(|claim| cluster.class_of(*claim))
        .for_each(|class| *missing.entry(class).or_default() += 1);
    for (id, node) in cluster.nodes() {
        if cluster.is_held(id) {
            continue;
        }
        search.note(1);
        let mut emptied = None;
        for (class, missing) in &mut missing {
            let Some(request) = cluster.class(*class).map(|class| class.request()) else { return false };
            if *missing == 0 || !may_run(cluster, id, request) {
                continue;
            }
            let emptied = emptied.get_or_insert_with(|| selection.without(cluster, id));
            *missing = missing.saturating_sub(room(emptied.as_ref().unwrap_or(node), request));
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
    cluster.node(id).is_some_and(|node| admits(node.spec(), request).is_ok())
}
