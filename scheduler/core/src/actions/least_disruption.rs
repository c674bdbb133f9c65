//! Who must go from one node so that a task fits there: as few as possible, and nobody whose staying would do no harm.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::claim::{ClaimId, NodeId};
use crate::cluster::Cluster;
use crate::node::Node;
use crate::placement::fits;
use crate::request::Request;
use crate::unit::Rank;

use super::victims::{Measure, Victims};

/// What it means to evict some victims; the less the better. The fewest, then the least important, then the smallest,
/// then those who go first.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Disruption {
    /// Units that run.
    pub(super) running: usize,
    /// The highest priority of any.
    priority: i32,
    /// What they hold; see [`Measure`].
    pub(super) amount: u64,
    /// The one that goes last of them: its queue's place, and its rank.
    last: Option<(usize, Reverse<Rank>)>,
}

/// What a task's search on a node needs to know.
#[derive(Debug)]
pub(super) struct Question<'a> {
    pub(super) cluster: &'a Cluster,
    pub(super) victims: &'a Victims<'a>,
    pub(super) request: &'a Request,
    pub(super) measure: Measure,
    /// By number of the queue, its place in the order in which queues give.
    pub(super) queue_order: &'a [usize],
    /// What may still be evicted of each budget.
    pub(super) spare: &'a [u32],
}

/// Some victims on a node without whom a task fits there, and the node without them.
#[derive(Debug)]
pub(super) struct Solution {
    pub(super) disruption: Disruption,
    pub(super) victims: Vec<usize>,
    pub(super) node: Node,
}

/// The key by which victims are sorted: who goes first is least.
pub(super) fn goes(victims: &Victims<'_>, queue_order: &[usize], victim: usize) -> Option<(usize, Reverse<Rank>)> {
    let victim = victims.all.get(victim)?;
    Some((queue_order.get(victim.queue).copied()?, Reverse(victim.rank())))
}

impl Question<'_> {
    /// The best that is found on a node with these victims, if any is `allowed` that evicts at most `running_max`
    /// running units.
    pub(super) fn answer(
        &self,
        id: NodeId,
        here: &[usize],
        running_max: usize,
        allowed: &mut dyn FnMut(&Disruption, &[usize]) -> bool,
    ) -> Option<Solution> {
        let mut here = here.to_vec();
        here.sort_unstable_by_key(|victim| goes(self.victims, self.queue_order, *victim));
        let mut trial = Trial::new(self, id)?;
        here.retain(|victim| trial.local(*victim).next().is_some());
        // Of victims that share a budget only as many as it can spare are thought of, those first that go first.
        let mut spare = self.spare.to_vec();
        here.retain(|victim| self.victims.take_from(&mut spare, *victim));
        let mut best: Option<(Disruption, Vec<usize>)> = None;
        let mut offer = |set: Vec<usize>| {
            let disruption = self.disruption(&set);
            let better = best.as_ref().is_none_or(|(best, _)| disruption < *best);
            if better && disruption.running <= running_max && allowed(&disruption, &set) {
                best = Some((disruption, set));
            }
        };
        let mut is_single = false;
        for victim in &here {
            trial.release(*victim);
            if trial.fits() {
                is_single = true;
                offer(vec![*victim]);
            }
            trial.keep(*victim);
        }
        if !is_single && running_max > 1 && here.len() > 1 {
            trial.minimal_sets(&here).into_iter().for_each(offer);
        }
        let (disruption, victims) = best?;
        victims.iter().for_each(|victim| trial.release(*victim));
        Some(Solution { disruption, victims, node: trial.node })
    }

    fn disruption(&self, set: &[usize]) -> Disruption {
        let victims = || set.iter().filter_map(|victim| self.victims.all.get(*victim));
        Disruption {
            running: victims().map(|victim| victim.running(self.cluster)).sum(),
            priority: victims().map(|victim| victim.rank().priority.0).max().unwrap_or(i32::MIN),
            amount: victims().map(|victim| self.measure.amount(victim)).fold(0, u64::saturating_add),
            last: set.iter().filter_map(|victim| goes(self.victims, self.queue_order, *victim)).max(),
        }
    }
}

/// A node's books on trial.
struct Trial<'a> {
    question: &'a Question<'a>,
    id: NodeId,
    node: Node,
    /// Claims that are off the node, and how many victims say so: a core and a member beyond it can share claims.
    released: Vec<(ClaimId, u32)>,
}

impl<'a> Trial<'a> {
    fn new(question: &'a Question<'a>, id: NodeId) -> Option<Self> {
        Some(Self { question, id, node: question.cluster.node(id)?.clone(), released: Vec::new() })
    }

    fn fits(&self) -> bool {
        fits(&self.node, self.question.request).is_ok()
    }

    /// A victim's claims on the node.
    fn local(&self, victim: usize) -> impl Iterator<Item = ClaimId> + use<'a> {
        let (id, cluster) = (self.id, self.question.cluster);
        let claims = self.question.victims.all.get(victim).into_iter().flat_map(|victim| victim.claims());
        claims.filter(move |claim| cluster.allocation(*claim).is_some_and(|at| at.node == id))
    }

    /// Takes a victim off the node.
    fn release(&mut self, victim: usize) {
        for claim in self.local(victim) {
            if let Some((_, times)) = self.released.iter_mut().find(|(released, _)| *released == claim) {
                *times += 1;
                continue;
            }
            let cluster = self.question.cluster;
            if let Some((of, at)) = cluster.claim(claim).zip(cluster.allocation(claim)) {
                self.node.give_back(claim, &of.request, at);
                self.released.push((claim, 1));
            }
        }
    }

    /// Puts a victim that was taken off back.
    fn keep(&mut self, victim: usize) {
        for claim in self.local(victim) {
            let Some(index) = self.released.iter().position(|(released, _)| *released == claim) else { continue };
            self.released[index].1 -= 1;
            if self.released[index].1 > 0 {
                continue;
            }
            self.released.swap_remove(index);
            let cluster = self.question.cluster;
            if let Some((of, at)) = cluster.claim(claim).zip(cluster.allocation(claim)) {
                let taken = self.node.take(claim, &of.request, at);
                debug_assert_eq!(taken, Ok(()), "what was given back can be taken again");
            }
        }
    }

    /// Sets without whom the task fits, and of whom nobody can stay: found by letting one after another stay who can,
    /// those first who go last, and those first whose device would have to be freed of many.
    fn minimal_sets(&mut self, here: &[usize]) -> Vec<Vec<usize>> {
        let mut last_first = here.to_vec();
        last_first.reverse();
        let mut crowds: BTreeMap<u16, usize> = BTreeMap::new();
        here.iter().flat_map(|victim| self.devices(*victim)).for_each(|device| *crowds.entry(device).or_default() += 1);
        let crowd = |victim: usize| self.devices(victim).filter_map(|device| crowds.get(&device)).max().copied();
        let mut crowded_first = last_first.clone();
        crowded_first.sort_by_cached_key(|victim| Reverse(crowd(*victim)));
        let mut sets = Vec::new();
        for order in [last_first, crowded_first] {
            order.iter().for_each(|victim| self.release(*victim));
            let mut set = Vec::new();
            if self.fits() {
                for victim in &order {
                    self.keep(*victim);
                    if !self.fits() {
                        self.release(*victim);
                        set.push(*victim);
                    }
                }
                set.iter().for_each(|victim| self.keep(*victim));
                sets.push(here.iter().copied().filter(|victim| set.contains(victim)).collect());
            } else {
                order.iter().for_each(|victim| self.keep(*victim));
                break;
            }
        }
        sets
    }

    /// The devices of a victim's claims here; of several claims more than once.
    fn devices(&self, victim: usize) -> impl Iterator<Item = u16> + use<'a> {
        let cluster = self.question.cluster;
        let allocations = self.local(victim).filter_map(|claim| cluster.allocation(claim));
        allocations.flat_map(|at| at.devices.iter().map(|part| part.device))
    }
}
