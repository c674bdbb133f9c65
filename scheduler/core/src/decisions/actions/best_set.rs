//! Room for a small gang among few victims: the best of all sets.
//!
//! The victims that are found for one member after the other can be more than needed, or so many that the eviction is
//! not allowed. If there are only a few possible victims, all sets of them are tried instead.

use crate::decisions::gang::{FreeRoom, Unplaceable, place_unit};
use crate::decisions::placement::{Engine, Policy};
use crate::decisions::plan::Refusal;
use crate::state::cluster::Cluster;
use crate::state::statement::Statement;
use crate::vocabulary::claim::NodeId;

use super::bounds::Taken;
use super::evicting::Evicting;
use super::least_disruption::Disruption;
use super::selection::Spares;

/// The most victims for which all sets are tried.
const VICTIMS_MAX: usize = 10;
/// The most members of a gang for which all sets are tried.
const MEMBERS_MAX: usize = 8;

impl Evicting<'_> {
    /// Places a small gang by evicting the best set of victims, if there are few. `None`: there are too many victims,
    /// or the unit is not a small gang.
    pub(super) fn place_by_best_set(
        &mut self,
        statement: &mut Statement<'_>,
        engine: &mut Engine<Box<dyn Policy>>,
    ) -> Option<Result<(), Refusal>> {
        let members = self.bounds.unit.claims.len();
        if !(2..=MEMBERS_MAX).contains(&members) {
            return None;
        }
        let all: Vec<usize> = self.selection.all().take(VICTIMS_MAX + 1).collect();
        if all.len() > VICTIMS_MAX {
            return None;
        }
        // If the eviction of all of them makes no room, the eviction of fewer does not either.
        match self.fits_without(statement, engine, &all) {
            Ok(()) => {}
            Err(Unplaceable::Limit(exceeded)) => return Some(Err(Refusal::Limit(exceeded))),
            Err(_) => return Some(Err(Refusal::NothingToTake)),
        }
        let mut refusal = None;
        for (_, set) in self.sets(statement.cluster(), all) {
            if !self.finder.search.spend(members + set.len()) {
                self.finder.search.stop(NodeId(0));
                return Some(Err(Refusal::SearchExhausted));
            }
            let start = statement.savepoint();
            set.iter().for_each(|number| self.evict(statement, *number));
            if place_unit(statement, engine, self.bounds.unit, &mut FreeRoom).is_ok() {
                match self.bounds.judge(statement.cluster(), self.sum(&set)) {
                    Ok(()) => return Some(Ok(())),
                    Err(other) => refusal = Some(other),
                }
            }
            statement.rollback(start);
        }
        Some(Err(refusal.or(self.bounds.refusal).unwrap_or(Refusal::NothingToTake)))
    }

    fn fits_without(
        &mut self,
        statement: &mut Statement<'_>,
        engine: &mut Engine<Box<dyn Policy>>,
        all: &[usize],
    ) -> Result<(), Unplaceable> {
        let start = statement.savepoint();
        all.iter().for_each(|number| self.evict(statement, *number));
        let fits = place_unit(statement, engine, self.bounds.unit, &mut FreeRoom);
        statement.rollback(start);
        fits
    }

    /// All sets that may be taken, the best first.
    fn sets(&mut self, cluster: &Cluster, mut all: Vec<usize>) -> Vec<(Disruption, Vec<usize>)> {
        let order = self.order(cluster);
        let Self { selection, bounds, .. } = self;
        all.sort_by_cached_key(|number| selection.goes(&order, *number));
        let mut spares = Spares::new(cluster, selection.victims());
        let mut sets = Vec::new();
        for members in 1..1_u32 << all.len() {
            let set = all.iter().enumerate().filter(|(place, _)| members & (1 << place) != 0);
            let set: Vec<usize> = set.map(|(_, number)| *number).collect();
            let victims = || set.iter().filter_map(|number| selection.get(*number));
            // A member that is evicted with its core is not a victim beside the core.
            let is_beside_its_core = victims()
                .filter(|victim| victim.rank().elastic)
                .any(|victim| victims().any(|core| !core.rank().elastic && core.group() == victim.group()));
            let keeps_budgets = victims().enumerate().all(|(place, victim)| {
                spares.allow(victim, set.iter().take(place).filter_map(|number| selection.get(*number)))
            });
            if is_beside_its_core || !keeps_budgets || !bounds.leaves_shares(cluster, selection, &set) {
                continue;
            }
            let disruption = Disruption::of(selection, bounds.measure, &order, &set);
            if bounds.is_bounded(Taken::default(), set.len(), disruption.amount) {
                sets.push((disruption, set));
            }
        }
        sets.sort_unstable();
        sets
    }
}
