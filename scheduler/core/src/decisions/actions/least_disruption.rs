//! Chooses the victims on one node so that a task fits there: as few as possible, and none that could stay.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::decisions::placement::{Engine, Policy, fits};
use crate::state::cluster::Cluster;
use crate::state::cluster::peer_rules::PeerRules;
use crate::state::node::Node;
use crate::state::resources::Charge;
use crate::vocabulary::claim::{ClaimId, NodeId};
use crate::vocabulary::request::Request;

use super::search::Search;
use super::selection::{EvictionKey, Measure, QueueOrder, Spares, VictimSelection};
use super::victims::Victim;

/// The harm of taking a set of victims; less is better. The number of units counts first, then their highest priority,
/// then their size, then the order in which they go. So one large claim of low priority is taken before two small ones,
/// and before a smaller one of higher priority.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Disruption {
    /// The number of running units.
    pub(super) running: usize,
    /// The highest priority of any victim.
    priority: i32,
    /// The amount that they hold; see [`Measure`].
    pub(super) amount: u64,
    /// The key of the victim that goes last.
    last: Option<EvictionKey>,
}

impl Disruption {
    /// The least harm of taking any victim, if these are the least values of each kind.
    pub(super) fn at_least(running: usize, priority: i32, amount: u64, last: Option<EvictionKey>) -> Self {
        Self { running, priority, amount, last }
    }

    /// The harm of taking all of these victims.
    pub(super) fn of(selection: &VictimSelection<'_>, measure: Measure, order: &QueueOrder, set: &[usize]) -> Self {
        let victims = || set.iter().filter_map(|victim| selection.get(*victim));
        Self {
            running: victims().map(|victim| victim.running).sum(),
            priority: victims().map(|victim| victim.rank().priority.0).max().unwrap_or(i32::MIN),
            amount: victims().map(|victim| measure.of_victim(victim)).fold(0, u64::saturating_add),
            last: set.iter().filter_map(|victim| selection.goes(order, *victim)).max(),
        }
    }
}

/// A set of victims on a node without which a task fits there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate<'a> {
    pub(super) disruption: &'a Disruption,
    /// The victims in the order in which they go.
    pub(super) set: &'a [usize],
    /// The exact charge of the task there.
    pub(super) charge: &'a Charge,
}

/// Everything that the search for one task needs to know.
pub(super) struct Question<'a> {
    pub(super) cluster: &'a Cluster,
    pub(super) selection: &'a VictimSelection<'a>,
    pub(super) request: &'a Request,
    pub(super) engine: &'a Engine<Box<dyn Policy>>,
    pub(super) measure: Measure,
    pub(super) order: &'a QueueOrder,
    pub(super) spares: Spares<'a>,
    /// The rules about peers that keep the task from nodes. A trial borrows them.
    pub(super) rules: Option<PeerRules<'a>>,
}

/// The victims to take from a node so that a task fits there.
#[derive(Debug)]
pub(super) struct Solution {
    pub(super) disruption: Disruption,
    pub(super) victims: Vec<usize>,
    /// The policy's cost of then placing the task there.
    pub(super) cost: i64,
}

/// Controls a search for room: says what is worth a look, and takes what is found.
pub(super) trait Seeker {
    /// The part of the search's budget that is not for looking.
    fn kept_back(&self, left: u32) -> u32;

    /// Whether a set of victims with this disruption, or a greater one, is worth a look.
    fn cares_for(&self, disruption: &Disruption) -> bool;

    /// Whether a set of victims may be taken.
    fn allows(&mut self, candidate: &Candidate<'_>) -> bool;

    /// Takes the solution that was found on a node.
    fn found(&mut self, node: NodeId, solution: Solution);

    /// Whether anything was found.
    fn has_found(&self) -> bool;
}

/// The part of a search's remaining budget that the sets of one node's victims may use: one in this many.
const PART_OF_ONE_NODE: u32 = 8;

impl<'a> Question<'a> {
    /// The least disruption that taking any of these victims could mean.
    pub(super) fn least(&self, here: &[usize]) -> Option<Disruption> {
        let victims = || here.iter().filter_map(|number| self.selection.get(*number));
        Some(Disruption {
            running: victims().map(|victim| victim.running).min()?,
            priority: victims().map(|victim| victim.rank().priority.0).min()?,
            amount: victims().map(|victim| self.measure.of_victim(victim)).min()?,
            last: here.iter().filter_map(|number| self.selection.goes(self.order, *number)).min(),
        })
    }

    /// The best allowed solution on a node with these victims, if there is one. Sets of several victims are tried as
    /// long as the budget lasts.
    pub(super) fn answer(
        &mut self,
        id: NodeId,
        mut here: Vec<usize>,
        search: &mut Search,
        seeker: &mut dyn Seeker,
    ) -> Option<Solution> {
        here.sort_unstable_by_key(|victim| self.selection.goes(self.order, *victim));
        let mut trial = NodeTrial::new(self, id)?;
        here.retain(|victim| trial.local(*victim).next().is_some());
        let mut best = Best { id, found: None };
        for victim in &here {
            if best.may_improve(self, &[*victim], seeker) {
                trial.release(*victim);
                best.offer(self, &trial, &[*victim], seeker);
                trial.keep(*victim);
            }
        }
        if here.len() > 1 && self.may_be_worth(&here, &best, seeker) && trial.may_fit_without_some(&here) {
            for set in trial.minimal_sets(&here) {
                search.spend(here.len());
                if best.may_improve(self, &set, seeker) {
                    set.iter().for_each(|victim| trial.release(*victim));
                    best.offer(self, &trial, &set, seeker);
                    set.iter().for_each(|victim| trial.keep(*victim));
                }
            }
            let looks = (search.left() / PART_OF_ONE_NODE).max(1);
            let (looked, is_whole) = self.sets(&mut trial, &here, looks, &mut best, seeker);
            search.spend(looked);
            if !is_whole {
                search.stop(id);
            }
        }
        self.rules = trial.rules;
        best.found
    }

    /// Whether several of these victims together could be better than the best single one.
    fn may_be_worth(&self, here: &[usize], best: &Best, seeker: &dyn Seeker) -> bool {
        let victims = || here.iter().filter_map(|number| self.selection.get(*number));
        let mut running: Vec<usize> = victims().map(|victim| victim.running).collect();
        running.sort_unstable();
        let Some(least) = self.least(here) else { return false };
        let least = Disruption { running: running.iter().take(2).sum(), ..least };
        seeker.cares_for(&least) && best.found.as_ref().is_none_or(|best| least < best.disruption)
    }

    /// Tries the sets of several victims, each in the order in which they go, and skips all that can be no better than
    /// the best known one. Returns the number of looks, and whether all sets were looked at.
    fn sets(
        &mut self,
        trial: &mut NodeTrial<'_>,
        here: &[usize],
        looks_max: u32,
        best: &mut Best,
        seeker: &mut dyn Seeker,
    ) -> (usize, bool) {
        let mut set: Vec<usize> = Vec::new();
        // For each member of the set, its position in `here`.
        let mut places: Vec<usize> = Vec::new();
        let (mut next, mut looks) = (0, 0);
        loop {
            let Some(victim) = here.get(next).copied() else {
                let Some(place) = places.pop() else { return (looks as usize, true) };
                set.pop().into_iter().for_each(|victim| trial.keep(victim));
                next = place + 1;
                continue;
            };
            if looks == looks_max {
                set.iter().for_each(|victim| trial.keep(*victim));
                return (looks as usize, false);
            }
            looks += 1;
            set.push(victim);
            if best.may_improve(self, &set, seeker) {
                trial.release(victim);
                // More victims would only make the set worse.
                if trial.fits() {
                    if set.len() > 1 {
                        best.offer(self, trial, &set, seeker);
                    }
                } else if next + 1 < here.len() {
                    places.push(next);
                    next += 1;
                    continue;
                }
                trial.keep(victim);
            }
            set.pop();
            next += 1;
        }
    }

    fn disruption(&self, set: &[usize]) -> Disruption {
        Disruption::of(self.selection, self.measure, self.order, set)
    }

    /// Whether disruption budgets allow the last of these victims to go together with the others.
    fn budgets_allow(&mut self, set: &[usize]) -> bool {
        let Some((last, others)) = set.split_last() else { return true };
        let selection = self.selection;
        let others = others.iter().filter_map(|number| selection.get(*number));
        selection.get(*last).is_some_and(|last| last.budgets.is_empty() || self.spares.allow(last, others))
    }
}

/// The best solution on a node so far.
struct Best {
    id: NodeId,
    found: Option<Solution>,
}

impl Best {
    /// Whether a set, or a larger one that contains it, could be better than the best one.
    fn may_improve(&self, question: &mut Question<'_>, set: &[usize], seeker: &dyn Seeker) -> bool {
        let disruption = question.disruption(set);
        let is_better = self.found.as_ref().is_none_or(|best| disruption < best.disruption);
        is_better && seeker.cares_for(&disruption) && (1..=set.len()).all(|end| question.budgets_allow(&set[..end]))
    }

    /// Takes a set if the task fits without it in the trial's present state, and if it is allowed.
    fn offer(&mut self, question: &Question<'_>, trial: &NodeTrial<'_>, set: &[usize], seeker: &mut dyn Seeker) {
        if !trial.fits() {
            return;
        }
        let (engine, request) = (question.engine, question.request);
        let Some((cost, allocation)) = engine.choose_if(self.id, &trial.node, request) else { return };
        let charge = Charge::of(request, &allocation, &trial.node);
        let disruption = question.disruption(set);
        if seeker.allows(&Candidate { disruption: &disruption, set, charge: &charge }) {
            self.found = Some(Solution { disruption, victims: set.to_vec(), cost });
        }
    }
}

/// A copy of one node's books, from which victims are taken on trial. So a look changes no queue, group or index. Only
/// the chosen victims are evicted, in a statement.
struct NodeTrial<'a> {
    cluster: &'a Cluster,
    selection: &'a VictimSelection<'a>,
    request: &'a Request,
    id: NodeId,
    node: Node,
    /// Claims that are off their nodes, and how many victims include each: a core and a member beyond it can share
    /// claims. Claims on other nodes matter only to rules about peers.
    released: Vec<(ClaimId, u32)>,
    rules: Option<PeerRules<'a>>,
}

impl<'a> NodeTrial<'a> {
    fn new(question: &mut Question<'a>, id: NodeId) -> Option<Self> {
        let Question { cluster, selection, request, .. } = *question;
        let node = cluster.node(id)?.clone();
        Some(Self { cluster, selection, request, id, node, released: Vec::new(), rules: question.rules.take() })
    }

    fn fits(&self) -> bool {
        fits(&self.node, self.request).is_ok() && self.rules.as_ref().is_none_or(|rules| rules.admit(self.node.spec()))
    }

    /// Whether the task may fit without some of these victims: it fits without all of them, or it depends on some that
    /// stay.
    fn may_fit_without_some(&mut self, here: &[usize]) -> bool {
        if self.rules.as_ref().is_some_and(PeerRules::depend_on_others) {
            return true;
        }
        here.iter().for_each(|victim| self.release(*victim));
        let fits = self.fits();
        here.iter().for_each(|victim| self.keep(*victim));
        fits
    }

    /// A victim's claims on the node.
    fn local(&self, victim: usize) -> impl Iterator<Item = ClaimId> + use<'a> {
        self.placed(victim, false)
    }

    /// A victim's claims on the node, or with `anywhere` on any node.
    fn placed(&self, victim: usize, anywhere: bool) -> impl Iterator<Item = ClaimId> + use<'a> {
        let (id, cluster) = (self.id, self.cluster);
        let claims = self.selection.get(victim).into_iter().flat_map(Victim::claims);
        claims.filter(move |claim| cluster.allocation(*claim).is_some_and(|at| anywhere || at.node == id))
    }

    /// Takes a victim off the node.
    fn release(&mut self, victim: usize) {
        for claim in self.placed(victim, self.rules.is_some()) {
            if let Some((_, times)) = self.released.iter_mut().find(|(released, _)| *released == claim) {
                *times += 1;
                continue;
            }
            if let Some((of, at)) = self.cluster.claim(claim).zip(self.cluster.allocation(claim)) {
                if at.node == self.id {
                    self.node.give_back(claim, &of.request, at);
                }
                self.rules.iter_mut().for_each(|rules| rules.leave_out(self.cluster, claim));
                self.released.push((claim, 1));
            }
        }
    }

    /// Puts a victim back that was taken off.
    fn keep(&mut self, victim: usize) {
        for claim in self.placed(victim, self.rules.is_some()) {
            let Some(index) = self.released.iter().position(|(released, _)| *released == claim) else { continue };
            self.released[index].1 -= 1;
            if self.released[index].1 > 0 {
                continue;
            }
            self.released.swap_remove(index);
            if let Some((of, at)) = self.cluster.claim(claim).zip(self.cluster.allocation(claim)) {
                if at.node == self.id {
                    let taken = self.node.take(claim, &of.request, at);
                    debug_assert_eq!(taken, Ok(()), "what was given back can be taken again");
                }
                self.rules.iter_mut().for_each(|rules| rules.put_back(self.cluster, claim));
            }
        }
    }

    /// Minimal sets without which the task fits: no member of such a set can stay. They are found by letting one victim
    /// after another stay, in two orders: the reverse of the order in which they go, and first those on the most
    /// crowded device.
    fn minimal_sets(&mut self, here: &[usize]) -> Vec<Vec<usize>> {
        let mut last_first = here.to_vec();
        last_first.reverse();
        let mut crowds: BTreeMap<u16, usize> = BTreeMap::new();
        here.iter().flat_map(|victim| self.devices(*victim)).for_each(|device| *crowds.entry(device).or_default() += 1);
        let crowd = |victim: usize| self.devices(victim).filter_map(|device| crowds.get(&device)).max().copied();
        let mut crowded_first = last_first.clone();
        crowded_first.sort_by_cached_key(|victim| Reverse(crowd(*victim)));
        [last_first, crowded_first].map(|order| self.minimal_set(here, &order)).into()
    }

    /// The victims that must go if all others stay, tried in this order.
    fn minimal_set(&mut self, here: &[usize], order: &[usize]) -> Vec<usize> {
        order.iter().for_each(|victim| self.release(*victim));
        let mut set = Vec::new();
        for victim in order {
            self.keep(*victim);
            if !self.fits() {
                self.release(*victim);
                set.push(*victim);
            }
        }
        set.iter().for_each(|victim| self.keep(*victim));
        here.iter().copied().filter(|victim| set.contains(victim)).collect()
    }

    /// The devices of a victim's claims on the node. A device that several claims hold comes several times.
    fn devices(&self, victim: usize) -> impl Iterator<Item = u16> + use<'a> {
        let cluster = self.cluster;
        let allocations = self.local(victim).filter_map(|claim| cluster.allocation(claim));
        allocations.flat_map(|at| at.devices.iter().map(|part| part.device))
    }
}
