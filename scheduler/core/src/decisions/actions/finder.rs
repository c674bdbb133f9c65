//! The search over nodes for the least disruption that makes room for a task.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use crate::decisions::placement::room;
use crate::decisions::unit::Unit;
use crate::state::class::ClassId;
use crate::state::cluster::Cluster;
use crate::vocabulary::claim::NodeId;

use super::frontier::{Frontier, may_run};
use super::least_disruption::{Question, Seeker};
use super::search::{Search, looks};
use super::selection::VictimSelection;

/// Looks for room that could be made by taking victims.
pub(super) struct Finder {
    pub(super) search: Search,
    /// How many members of the unit have not been searched room for yet.
    members_left: u32,
}

impl Finder {
    pub(super) fn new(search: Search, unit: &Unit) -> Self {
        let members_left = u32::try_from(unit.claims.len()).unwrap_or(u32::MAX);
        Self { search, members_left }
    }

    /// Looks at all nodes, as [`Finder::each_node`] does, if the budget is enough for all of them whatever they
    /// promise. Then only the nodes that promise enough are needed, and a frontier has these.
    pub(super) fn each_promising_node(
        &mut self,
        question: &mut Question<'_>,
        frontier: &Frontier,
        seeker: &mut dyn Seeker,
    ) {
        let cluster = question.cluster;
        let left = self.search.left();
        let own_part = left / self.members_left.max(1);
        let (nodes, looks_of_all) = frontier.open(cluster);
        if own_part == 0 || looks_of_all > own_part as usize || seeker.kept_back(left) > left - own_part {
            return self.each_node(question, None, seeker);
        }
        self.members_left = self.members_left.saturating_sub(1);
        self.search.pass(nodes);
        let mut seen = BTreeSet::new();
        for (least, id) in frontier.best_first(question.order) {
            if cluster.is_held(id) || !seen.insert(id) {
                continue;
            }
            if !seeker.cares_for(&least) {
                return;
            }
            let here: Vec<usize> = question.selection.on(id).collect();
            if !self.search.spend(looks(here.len())) {
                let is_left = |other: &NodeId| !cluster.is_held(*other) && !seen.contains(other);
                self.search.stop(frontier.nodes().find(is_left).map_or(id, |first| first.min(id)));
                return;
            }
            if let Some(solution) = question.answer(id, here, &mut self.search, seeker) {
                seeker.found(id, solution);
            }
        }
    }

    /// Goes on to the next member of the unit: for this one, there is no node to look at.
    pub(super) fn pass_over_member(&mut self) {
        self.members_left = self.members_left.saturating_sub(1);
    }

    /// Looks for the best victims on each node, or on each of `among`, as long as the budget lasts.
    ///
    /// Nodes are taken in order, so that the next search can continue where this one ends. But among those for which
    /// the budget is enough in any case, the nodes that promise most come first: then most of the others need no closer
    /// look.
    pub(super) fn each_node(&mut self, question: &mut Question<'_>, among: Option<&[NodeId]>, seeker: &mut dyn Seeker) {
        // Members that still need room leave each other a part of the budget.
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
                // The next member's search continues there.
                self.search.start = Some(*next);
            }
            if left <= kept_back || (seeker.has_found() && left < enough) {
                self.search.stop(*next);
                return;
            }
            let keeps = if left > enough { kept_back.max(enough) } else { kept_back };
            let mut available = (left - keeps) as usize;
            let mut promising = BinaryHeap::new();
            while let Some((id, here)) =
                nodes.next_if(|(_, here)| promising.is_empty() || looks(here.len()) <= available)
            {
                available = available.saturating_sub(looks(here.len()));
                promising.push(Reverse((question.least(&here), id, here)));
            }
            self.search.pass(promising.len());
            while let Some(Reverse((least, id, here))) = promising.pop() {
                if least.is_none_or(|least| !seeker.cares_for(&least)) {
                    continue;
                }
                if !self.search.spend(looks(here.len())) {
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

/// Whether all members of a gang could fit if all victims that may be taken were gone. If not, nothing needs to be
/// tried. A single claim is not checked here: the search itself checks the same on each node.
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
