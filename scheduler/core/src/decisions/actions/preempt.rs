//! Preempt: units of lower priority in the same queue make way.

use crate::decisions::plan::Refusal;
use crate::decisions::shares::Right;
use crate::decisions::unit::Unit;
use crate::state::cluster::Cluster;
use crate::vocabulary::claim::Action;

use super::context::{ActionResult, Context};
use super::evict::Attempt;
use super::protection::delayed_until_ms;
use super::takes::Takes;

/// Places a unit by evicting units of strictly lower priority in its queue. If the unit would be entitled, it may take
/// any of them, otherwise only borrowed ones. It may take guaranteed ones only if it would be guaranteed.
pub(crate) fn preempt(cluster: &mut Cluster, context: &mut Context<'_>, unit: &Unit) -> ActionResult {
    let own = context.entitled.know(cluster, context.shares, unit.queue);
    // A unit of the lowest priority can take from no other unit.
    if own.units().next_back().is_none_or(|last| last.unit.rank.priority <= unit.rank.priority) {
        return Err(Refusal::NothingToTake);
    }
    if let Some(until_ms) = delayed_until_ms(cluster, unit) {
        return Err(Refusal::Delayed { until_ms });
    }
    let least = unit.least_charge(cluster);
    let [is_entitled, is_guaranteed] =
        [Right::FairShare, Right::Guarantee].map(|right| own.would_be(right, unit.rank, &least));
    context.know_evictable(cluster, unit.queue);
    let Context { shares, settings, engine, searches, frontiers, entitled, evictable, .. } = context;
    let own = entitled.know(cluster, shares, unit.queue);
    let queue = evictable.number_of(unit.queue).ok_or(Refusal::NothingToTake)?;
    let priority = unit.rank.priority.0;
    let takes = Takes::Preempt { queue, priority, entitled: is_entitled, guaranteed: is_guaranteed };
    let needs: Vec<usize> = least.parts().map(|(resource, _)| resource).collect();
    let (action, right) = (Action::Preempt, Right::FairShare);
    let attempt = Attempt { action, right, unit, needs: &needs, victims: evictable, takes, own, shares, settings };
    let steps = attempt.run(cluster, engine, searches, frontiers)?;
    context.changed(cluster, &steps);
    Ok(steps)
}
