//! Searches that were too long for one cycle, and how much is looked at in a cycle.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::decisions::settings::Settings;
use crate::state::cluster::Cluster;
use crate::state::group::Group;
use crate::vocabulary::claim::{Action, NodeId};
use crate::vocabulary::pod_group::GroupId;

use super::search::Search;

/// What is searched for: room for the next unit of a group, by an action.
type Purpose = (Action, GroupId);

/// A search that has not seen everything.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Unfinished {
    pub(crate) action: Action,
    pub(crate) group: GroupId,
    /// The node at which to go on; `None`: at the first.
    pub(crate) at: Option<NodeId>,
    /// How often it was cut short. Each time it is given twice as much.
    pub(crate) times: u32,
}

impl Unfinished {
    fn purpose(&self) -> Purpose {
        (self.action, self.group)
    }
}

/// The searches that go on in the next cycle, those first that have waited longest.
#[derive(Clone, Debug, Default)]
pub(crate) struct SearchMemory {
    unfinished: VecDeque<Unfinished>,
}

impl SearchMemory {
    /// All of them, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Unfinished> {
        self.unfinished.iter()
    }

    /// Adds one, as the last.
    pub(crate) fn push(&mut self, unfinished: Unfinished) {
        self.unfinished.push_back(unfinished);
    }

    /// Forgets groups that are gone, or have nothing to place any more.
    fn forget_gone(&mut self, cluster: &Cluster) {
        let waits = |unfinished: &Unfinished| cluster.group(unfinished.group).is_some_and(Group::has_waiting);
        self.unfinished.retain(waits);
    }
}

/// How much may still be looked at in a cycle, and for whom.
///
/// What a cycle looks at is bounded, and given out in the order of turns. So that nobody is passed over for ever, those
/// whose searches are unfinished have, the longest first, up to half of it for themselves.
#[derive(Debug)]
pub(crate) struct Searches<'a> {
    memory: &'a mut SearchMemory,
    per_unit: u32,
    per_cycle: u32,
    left: u32,
    reserved: BTreeMap<Purpose, u32>,
    known: BTreeMap<Purpose, Unfinished>,
    /// What this cycle has to say of some: `None`, it is finished.
    outcomes: BTreeMap<Purpose, Option<Unfinished>>,
    /// Those of them that were cut short, or not begun, in this order.
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

    /// Begins a search; `None`: too much was looked at in this cycle already.
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

    /// Ends a search that has found room, or not.
    pub(super) fn end(&mut self, action: Action, group: GroupId, search: &Search, found: bool) {
        let purpose = (action, group);
        match self.reserved.remove(&purpose) {
            Some(budget) => self.left = self.left.saturating_add(budget.saturating_sub(search.spent())),
            None => self.left = self.left.saturating_sub(search.spent()),
        }
        let times = self.known.get(&purpose).map_or(0, |unfinished| unfinished.times);
        let stopped = search.stopped().filter(|_| !found);
        let cut = stopped.map(|at| Unfinished { action, group, at: Some(at), times: times.saturating_add(1) });
        // A group may be sought room for in several ways. Those that come to an end are no answer for one that was cut.
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

    /// Ends the cycle: remembers who goes on in the next one. Who was not begun for want of budget keeps its place in
    /// the order; who was cut short goes to the end of it, and who was not asked for, as its group had to wait for
    /// something else, behind that: what is kept for it is of no use to others.
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
