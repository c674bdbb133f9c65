//! Searches that were too long for one cycle, and the search budget of a cycle.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::decisions::settings::Settings;
use crate::state::cluster::Cluster;
use crate::state::group::Group;
use crate::vocabulary::claim::{Action, NodeId};
use crate::vocabulary::pod_group::GroupId;

use super::search::Search;

/// The purpose of a search: room for the next unit of a group, by an action.
type Purpose = (Action, GroupId);

/// A search that was cut short.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Unfinished {
    pub(crate) action: Action,
    pub(crate) group: GroupId,
    /// The node at which the search goes on; `None`: at the first node.
    pub(crate) at: Option<NodeId>,
    /// How often the search was cut short. Each time its budget doubles.
    pub(crate) times: u32,
}

impl Unfinished {
    fn purpose(&self) -> Purpose {
        (self.action, self.group)
    }
}

/// The searches that go on in the next cycle, those that have waited longest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct SearchMemory {
    unfinished: VecDeque<Unfinished>,
}

impl SearchMemory {
    /// All unfinished searches, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Unfinished> {
        self.unfinished.iter()
    }

    /// Adds an unfinished search at the end.
    pub(crate) fn push(&mut self, unfinished: Unfinished) {
        self.unfinished.push_back(unfinished);
    }

    /// Forgets searches of groups that are gone or have no pending members.
    fn forget_gone(&mut self, cluster: &Cluster) {
        let waits = |unfinished: &Unfinished| cluster.group(unfinished.group).is_some_and(Group::has_waiting);
        self.unfinished.retain(waits);
    }
}

/// The rest of a cycle's search budget, and the searches that it is reserved for.
///
/// The budget of a cycle is bounded, and is given out in the order of turns. So that no search is skipped for ever, up
/// to half of the budget is reserved for unfinished searches, those that have waited longest first.
#[derive(Debug)]
pub(crate) struct Searches<'a> {
    memory: &'a mut SearchMemory,
    per_unit: u32,
    per_cycle: u32,
    left: u32,
    reserved: BTreeMap<Purpose, u32>,
    known: BTreeMap<Purpose, Unfinished>,
    /// The results of this cycle's searches; `None`: the search is finished.
    outcomes: BTreeMap<Purpose, Option<Unfinished>>,
    /// The searches of this cycle that were cut short or could not begin, in this order.
    order: Vec<Purpose>,
}

impl<'a> Searches<'a> {
    pub(super) fn new(cluster: &Cluster, memory: &'a mut SearchMemory, settings: &Settings) -> Self {
        let (per_unit, per_cycle) = (settings.search_budget.max(1), settings.search_budget_per_cycle.max(1));
        memory.forget_gone(cluster);
        let known: BTreeMap<_, _> = memory.iter().map(|unfinished| (unfinished.purpose(), *unfinished)).collect();
        let mut searches = Self {
            memory,
            per_unit,
            per_cycle,
            left: per_cycle,
            reserved: BTreeMap::new(),
            known,
            outcomes: BTreeMap::new(),
            order: Vec::new(),
        };
        let waiting: Vec<Unfinished> = searches.memory.iter().copied().collect();
        for unfinished in waiting {
            let budget = searches.budget(unfinished.times);
            let taken = (per_cycle - searches.left).saturating_add(budget);
            if taken > per_cycle / 2 && !searches.reserved.is_empty() {
                break;
            }
            searches.reserved.insert(unfinished.purpose(), budget);
            searches.left = searches.left.saturating_sub(budget);
        }
        searches
    }

    fn budget(&self, times: u32) -> u32 {
        let doubled = u64::from(self.per_unit) << times.min(31);
        u32::try_from(doubled).unwrap_or(u32::MAX).min(self.per_cycle)
    }

    /// Begins a search. `None`: this cycle's budget is used up.
    pub(super) fn begin(&mut self, action: Action, group: GroupId) -> Option<Search> {
        let purpose = (action, group);
        let known = self.known.get(&purpose).copied();
        let (at, times) = known.map_or((None, 0), |unfinished| (unfinished.at, unfinished.times));
        if let Some(budget) = self.reserved.get(&purpose) {
            return Some(Search::new(*budget, at));
        }
        if self.left > 0 {
            return Some(Search::new(self.budget(times), at));
        }
        let waits = known.unwrap_or(Unfinished { action, group, at, times });
        self.note(purpose, Some(waits));
        None
    }

    /// Whether a search was cut short in this cycle.
    pub(super) fn is_unfinished(&self, action: Action, group: GroupId) -> bool {
        matches!(self.outcomes.get(&(action, group)), Some(Some(_)))
    }

    /// Whether most of this cycle's budget is left.
    pub(super) fn has_plenty(&self) -> bool {
        self.left > self.per_cycle / 2
    }

    /// Ends a search. `found` says whether it has found room.
    pub(super) fn end(&mut self, action: Action, group: GroupId, search: &Search, found: bool) {
        let purpose = (action, group);
        match self.reserved.remove(&purpose) {
            Some(budget) => self.left = self.left.saturating_add(budget.saturating_sub(search.spent())),
            None => self.left = self.left.saturating_sub(search.spent()),
        }
        let times = self.known.get(&purpose).map_or(0, |unfinished| unfinished.times);
        let stopped = search.stopped().filter(|_| !found);
        let cut = stopped.map(|at| Unfinished { action, group, at: Some(at), times: times.saturating_add(1) });
        // Room for a group may be searched for in several ways. A way that is finished is no answer for one that was
        // cut short.
        if found || cut.is_some() || !self.outcomes.contains_key(&purpose) {
            self.note(purpose, cut);
        }
    }

    fn note(&mut self, purpose: Purpose, outcome: Option<Unfinished>) {
        if outcome.is_some() {
            self.order.push(purpose);
        }
        self.outcomes.insert(purpose, outcome);
    }

    /// Ends the cycle: remembers which searches go on in the next one. A search that could not begin for lack of budget
    /// keeps its place in the order. A search that was cut short goes to the end. A search that was not asked for,
    /// because its group had to wait for something else, goes behind those: a budget that is reserved for it is of no
    /// use to others.
    pub(super) fn finish(self, cluster: &Cluster) {
        let Self { memory, known, outcomes, order, .. } = self;
        let mut seen: BTreeSet<Purpose> = BTreeSet::new();
        let same = |unfinished: &Unfinished| outcomes.get(&unfinished.purpose()) == Some(&Some(*unfinished));
        let kept: Vec<Unfinished> = memory.iter().filter(|unfinished| same(unfinished)).copied().collect();
        let news = order.iter().filter_map(|purpose| outcomes.get(purpose).copied().flatten());
        let news = news.filter(|unfinished| known.get(&unfinished.purpose()) != Some(unfinished));
        let not_asked = memory.iter().filter(|unfinished| !outcomes.contains_key(&unfinished.purpose())).copied();
        let next = kept.into_iter().chain(news).chain(not_asked);
        memory.unfinished = next.filter(|next| seen.insert(next.purpose())).collect();
        memory.forget_gone(cluster);
    }
}
