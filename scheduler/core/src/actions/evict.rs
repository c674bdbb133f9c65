//! One unit is placed where others are evicted.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use crate::claim::Action;
use crate::cluster::Cluster;
use crate::explain::{Share, shares_then};
use crate::gang::{FreeRoom, Unplaceable, place_unit};
use crate::group::Group;
use crate::placement::{Engine, Policy};
use crate::scheduler::{Settings, cause};
use crate::shares::Shares;
use crate::statement::Statement;
use crate::unit::Unit;

use super::context::{Outcome, Refusal, SearchMemory};
use super::evicting::{Bounds, Evicting};
use super::finder::{Finder, could_fit};
use super::least_disruption::goes;
use super::search::Search;
use super::victims::{Measure, Victim, Victims};

/// What is tried.
pub(super) struct Attempt<'a> {
    pub(super) action: Action,
    pub(super) unit: &'a Unit,
    pub(super) victims: Victims<'a>,
    pub(super) shares: &'a Shares,
    pub(super) settings: &'a Settings,
}

impl Attempt<'_> {
    /// Evicts whom it takes to place the unit, if `judge`, who is shown the state as it would be and who is evicted,
    /// has no objection.
    pub(super) fn run(
        self,
        cluster: &mut Cluster,
        engine: &mut Engine<Box<dyn Policy>>,
        memory: &mut SearchMemory,
        judge: impl FnOnce(&Cluster, &[&Victim<'_>]) -> Result<(), Refusal>,
    ) -> Outcome {
        let Self { action, unit, victims, shares, settings } = self;
        if victims.is_empty() || !could_fit(cluster, &victims, unit) {
            memory.note(action, unit.group, None);
            return Err(Refusal::NothingToTake);
        }
        let charge = unit.least_charge(cluster);
        let measure = Measure::of(&charge);
        let asked = u128::from(measure.of_charge(&charge)) * u128::from(settings.disruption_per_mille) / 1000;
        let search = Search::new(settings.search_budget, memory.start(action, unit.group));
        let mut because = cause(cluster, action, unit.group);
        let before = shares_then(cluster, shares, unit.queue, &charge, &victims.queues);
        let bounds = Bounds {
            amount_max: u64::try_from(asked).unwrap_or(u64::MAX),
            reclaims: (action == Action::Reclaim).then_some((shares, charge)),
            too_disruptive: false,
        };
        let mut room = Evicting { victims, finder: Finder::new(search, shares, measure, unit), bounds };
        let mut statement = Statement::new(cluster);
        let placed = room.place(&mut statement, engine, unit);
        memory.note(action, unit.group, room.finder.search.stopped().filter(|_| placed.is_err()));
        placed?;
        let taken = room.taken(statement.cluster());
        let evicted: Vec<&Victim<'_>> = taken.iter().filter_map(|number| room.victims.all.get(*number)).collect();
        judge(statement.cluster(), &evicted)?;
        because.shares = room.of_those_concerned(statement.cluster(), before, unit, &taken);
        room.find_elsewhere(&mut statement, engine, &taken);
        Ok(statement.keep(&because))
    }
}

impl Evicting<'_> {
    fn place(
        &mut self,
        statement: &mut Statement<'_>,
        engine: &mut Engine<Box<dyn Policy>>,
        unit: &Unit,
    ) -> Result<(), Refusal> {
        let start = statement.checkpoint();
        self.keep_limits(statement, unit).map_err(Refusal::Limit)?;
        let is_bounded = statement.checkpoint() != start;
        match place_unit(statement, engine, unit, self) {
            Ok(()) => {}
            Err(Unplaceable::Limit(exceeded)) => return Err(Refusal::Limit(exceeded)),
            Err(_) if self.finder.search.stopped().is_some() => return Err(Refusal::SearchExhausted),
            Err(_) if self.bounds.too_disruptive => return Err(Refusal::TooDisruptive),
            Err(_) => return Err(Refusal::NothingToTake),
        }
        // For a single claim nobody too many was taken from its node.
        if unit.claims.len() > 1 || is_bounded {
            self.spare_whom_it_can(statement, engine, unit, start);
        }
        Ok(())
    }

    /// Of what queues held before, the parts of the unit's queue and of those that it takes from.
    fn of_those_concerned(&self, cluster: &Cluster, before: Vec<Share>, unit: &Unit, taken: &[usize]) -> Vec<Share> {
        let givers = taken.iter().filter_map(|number| self.victims.queues.get(self.victims.all.get(*number)?.queue));
        let concerned: BTreeSet<&str> = givers
            .chain([&unit.queue])
            .filter_map(|queue| cluster.queue(*queue))
            .map(|queue| queue.spec().name.as_str())
            .collect();
        before.into_iter().filter(|share| concerned.contains(share.queue.as_str())).collect()
    }

    /// Places evicted units where there is room for them elsewhere: they are moved, then.
    fn find_elsewhere(&self, statement: &mut Statement<'_>, engine: &mut Engine<Box<dyn Policy>>, taken: &[usize]) {
        let order = self.victims.order_of_queues(statement.cluster(), self.finder.shares);
        let mut last_first = taken.to_vec();
        last_first.sort_by_cached_key(|number| Reverse(goes(&self.victims, &order, *number)));
        for victim in last_first.into_iter().filter_map(|number| self.victims.all.get(number)) {
            // Without its core no member beyond it is placed, and what is left of a gang starts nowhere.
            for placed in victim.units() {
                let before = statement.checkpoint();
                let is_placed = place_unit(statement, engine, &placed.unit, &mut FreeRoom).is_ok();
                let group = statement.cluster().group(placed.unit.group);
                if !is_placed || !group.is_some_and(Group::has_minimum) {
                    statement.rollback(before);
                    break;
                }
            }
        }
    }
}
