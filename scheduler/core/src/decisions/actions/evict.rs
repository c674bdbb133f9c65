//! Places one unit by evicting others.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::decisions::entitled::Entitled;
use crate::decisions::gang::{FreeRoom, Unplaceable, place_unit};
use crate::decisions::placement::{Engine, Policy};
use crate::decisions::plan::{Refusal, cause};
use crate::decisions::queue_share::share;
use crate::decisions::settings::Settings;
use crate::decisions::shares::{Right, Shares};
use crate::decisions::unit::Unit;
use crate::state::cluster::Cluster;
use crate::state::group::Group;
use crate::state::resources::Charge;
use crate::state::statement::Statement;
use crate::vocabulary::claim::Action;
use crate::vocabulary::share::Share;

use super::bounds::{Bounds, Taken};
use super::context::ActionResult;
use super::evicting::Evicting;
use super::finder::{Finder, could_fit};
use super::frontier::Frontiers;
use super::memory::Searches;
use super::selection::{Measure, VictimSelection};
use super::takes::Takes;
use super::victims::Victims;

/// An attempt to place one unit.
pub(super) struct Attempt<'a> {
    pub(super) action: Action,
    pub(super) right: Right,
    pub(super) unit: &'a Unit,
    /// The resources that the unit may take, by number.
    pub(super) needs: &'a [usize],
    /// All units that could be evicted. `takes` says which of them may be evicted for this unit.
    pub(super) victims: &'a Victims,
    pub(super) takes: Takes,
    /// Whether the unit is refused if the evicted units of its own queue could take their places back from others.
    pub(super) must_settle: bool,
    /// The placed units of the unit's queue.
    pub(super) own: &'a Entitled,
    pub(super) shares: &'a Shares,
    pub(super) settings: &'a Settings,
}

impl Attempt<'_> {
    /// Evicts the units that must go for the unit to be placed.
    pub(super) fn run(
        self,
        cluster: &mut Cluster,
        engine: &mut Engine<Box<dyn Policy>>,
        searches: &mut Searches<'_>,
        frontiers: &mut Frontiers,
    ) -> ActionResult {
        let Self { action, right, unit, needs, victims, takes, must_settle, own, shares, settings } = self;
        let selection = VictimSelection::new(victims, takes.queues(), |victim| takes.allows(victim));
        if selection.is_empty() {
            return Err(Refusal::NothingToTake);
        }
        let mut search = searches.begin(action, unit.group).ok_or(Refusal::SearchExhausted)?;
        if !could_fit(cluster, &selection, unit, &mut search) {
            searches.end(action, unit.group, &search, false);
            return Err(Refusal::NothingToTake);
        }
        let least = unit.least_charge(cluster);
        let measure = Measure::of(&least);
        let asked = u128::from(measure.amount(unit.claims.len(), &least));
        let mut because = cause(cluster, action, unit.group);
        let bounds = Bounds {
            action,
            right,
            unit,
            preemptible: unit.is_preemptible(cluster),
            own,
            shares,
            measure,
            least,
            needs,
            amount_max: u64::try_from(asked * u128::from(settings.disruption_per_mille) / 1000).unwrap_or(u64::MAX),
            spared: Charge::default(),
            refusal: None,
        };
        let own_share = share(cluster, shares, unit.queue, Some(&bounds.least), bounds.asked_of());
        let finder = Finder::new(search, unit);
        let (evicted, before) = (BTreeSet::new(), BTreeMap::new());
        let for_share = BTreeSet::new();
        let mut room = Evicting { selection, takes: &takes, frontiers, finder, bounds, evicted, for_share, before };
        let mut statement = Statement::new(cluster);
        let placed = room.place(&mut statement, engine);
        searches.end(action, unit.group, &room.finder.search, placed.is_ok());
        placed?;
        let taken = room.taken(statement.cluster());
        room.bounds.judge(statement.cluster(), room.sum(&taken))?;
        if !room.bounds.is_bounded(Taken::default(), taken.len(), room.sum(&taken).amount) {
            return Err(Refusal::TooDisruptive);
        }
        // What the own queue can give alone is a matter of preemption.
        let is_own_alone = action == Action::Reclaim && room.is_own(&taken);
        if is_own_alone || (must_settle && room.leaves_a_right(statement.cluster(), &taken)) {
            return Err(Refusal::Unsettled);
        }
        because.shares = own_share.into_iter().chain(room.shares_before(&taken)).collect();
        room.find_elsewhere(&mut statement, engine, &taken);
        Ok(statement.keep(&because))
    }
}

impl Evicting<'_> {
    fn place(&mut self, statement: &mut Statement<'_>, engine: &mut Engine<Box<dyn Policy>>) -> Result<(), Refusal> {
        let (start, unit) = (statement.savepoint(), self.bounds.unit);
        self.keep_share(statement)?;
        self.keep_limits(statement).map_err(Refusal::Limit)?;
        let is_bounded = statement.savepoint() != start;
        if !is_bounded && let Some(found) = self.place_by_best_set(statement, engine) {
            return found;
        }
        match (place_unit(statement, engine, unit, self), self.bounds.refusal) {
            (Ok(()), _) => {}
            (Err(Unplaceable::Limit(exceeded)), _) => return Err(Refusal::Limit(exceeded)),
            (Err(_), _) if self.finder.search.stopped().is_some() => return Err(Refusal::SearchExhausted),
            (Err(_), refusal) => return Err(refusal.unwrap_or(Refusal::NothingToTake)),
        }
        // For a single claim, no more than necessary was taken from its node.
        if unit.claims.len() > 1 || is_bounded {
            self.spare_whom_it_can(statement, engine, start);
        }
        Ok(())
    }

    /// What the other queues that lose these victims held before.
    fn shares_before(&self, taken: &[usize]) -> Vec<Share> {
        let givers = taken.iter().filter_map(|number| self.selection.queue(self.selection.get(*number)?));
        let givers: BTreeSet<_> = givers.filter(|queue| *queue != self.bounds.unit.queue).collect();
        givers.into_iter().filter_map(|queue| self.before.get(&queue).cloned().flatten()).collect()
    }

    /// Whether one of these victims could take a place from a queue that holds too much: it is within the fair share of
    /// the unit's queue beside the unit, or the queue would stay within its share with it back in place.
    fn leaves_a_right(&self, cluster: &Cluster, taken: &[usize]) -> bool {
        let Bounds { shares, own, unit, .. } = self.bounds;
        let displaced = own.displaced_by(unit.rank, &unit.charge(cluster));
        let mut victims = taken.iter().filter_map(|number| self.selection.get(*number));
        victims.any(|victim| {
            !displaced.contains(&victim.rank()) || shares.exceeded(cluster, unit.queue, &victim.charge).is_none()
        })
    }

    /// Places evicted units elsewhere if there is room for them and they take no more than before, though perhaps of
    /// another model. Then they are moved and not evicted.
    fn find_elsewhere(&self, statement: &mut Statement<'_>, engine: &mut Engine<Box<dyn Policy>>, taken: &[usize]) {
        let mut last_first = taken.to_vec();
        if taken.len() > 1 {
            let order = self.order(statement.cluster());
            // Units within their queue's share go before borrowed ones: they could take the place back from these.
            last_first.sort_by_cached_key(|number| {
                let is_within = self.selection.get(*number).map(|victim| (victim.guaranteed, victim.entitled));
                Reverse((is_within, self.selection.goes(&order, *number)))
            });
        }
        for victim in last_first.into_iter().filter_map(|number| self.selection.get(number)) {
            // Without its core, no member beyond it is placed. The rest of a gang is not started elsewhere: it would do
            // no work there either.
            for placed in &victim.units {
                let before = statement.savepoint();
                let is_placed = place_unit(statement, engine, &placed.unit, &mut FreeRoom).is_ok();
                let cluster = statement.cluster();
                let is_whole = cluster.group(placed.unit.group).is_some_and(Group::has_minimum);
                if !is_placed || !is_whole || placed.unit.charge(cluster).takes_more_than(&placed.charge) {
                    statement.rollback(before);
                    break;
                }
            }
        }
    }
}
